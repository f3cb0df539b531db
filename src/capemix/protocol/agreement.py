"""Keys that two sites share: X25519 and HKDF, bound to the run and to the pair."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from capemix.federation import Federation
from capemix.protocol.wire import Context, ProtocolError, digest
from capemix.randomness.source import ByteStream
from capemix.zerosum.graph import PeerGraph


def public_bytes(key: Ed25519PrivateKey | X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def _agree(
    purpose: bytes, context: Context, own: X25519PrivateKey, other: bytes, pair: tuple[int, int]
) -> bytearray:
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise ProtocolError("a peer's key is not a key") from None
    low, high = sorted(pair)
    first, second = sorted((public_bytes(own), other))
    info = b"|".join(
        (b"capemix", purpose, context.run, context.roster, context.plan, first, second)
    )
    derived = HKDF(hashes.SHA256(), 32, None, info + f"|{low}|{high}".encode()).derive(shared)
    return bytearray(derived)


def box_key(
    context: Context, own: X25519PrivateKey, other: bytes, site: int, peer: int
) -> bytearray:
    """For the shares that two sites send each other."""
    return _agree(b"box", context, own, other, (site, peer))


def pair_key(
    context: Context, own: X25519PrivateKey, other: bytes, site: int, peer: int
) -> bytearray:
    """For the noise that cancels between two sites."""
    return _agree(b"pair", context, own, other, (site, peer))


def setting_of(keys: Mapping[int, dict[str, Any]], members: Iterable[int]) -> str:
    """A digest of what a site's masks depend on: the keys it was shown, and who the members are."""
    shown = {str(site): body for site, body in keys.items()}
    return digest({"keys": shown, "members": sorted(members)}).hex()


def peers_among(federation: Federation, nonces: Mapping[int, bytes]) -> dict[int, tuple[int, ...]]:
    """Each site's peers among those that revealed a nonce.

    A sparse graph is drawn from all these nonces, committed to before any was revealed, so that
    nobody, the server included, chooses who stands beside whom.
    """
    if federation.peers is None:
        graph = PeerGraph.complete(federation.sites)
    else:
        text = b"capemix graph|" + b"|".join(
            site.to_bytes(4, "big") + nonces[site] for site in sorted(nonces)
        )
        stream = ByteStream(hashlib.sha256(text).digest())
        graph = PeerGraph.circulant(federation.sites, federation.peers, stream)
    return {site: tuple(p for p in graph.peers[site] if p in nonces) for site in nonces}
