"""Keys that two sites share: Diffie-Hellman and HKDF, bound to the run and to the pair."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from capemix.federation import Federation
from capemix.protocol import group
from capemix.protocol.wire import Context, ProtocolError, digest
from capemix.randomness.source import ByteStream, Key, derive_key
from capemix.zerosum.graph import PeerGraph

_PROBE: Final = X25519PrivateKey.from_private_bytes(bytes(range(32)))
"""Nobody's key: what it cannot agree on a secret with is no key."""


def public_bytes(key: Ed25519PrivateKey | X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def _key_of(
    purpose: bytes,
    context: Context,
    shared: bytes,
    keys: tuple[bytes, bytes],
    pair: tuple[int, int],
) -> bytearray:
    low, high = sorted(pair)
    info = b"|".join(
        (b"capemix", purpose, context.run, context.roster, context.plan, *sorted(keys))
    )
    derived = HKDF(hashes.SHA256(), 32, None, info + f"|{low}|{high}".encode()).derive(shared)
    return bytearray(derived)


def box_key(
    context: Context, own: X25519PrivateKey, other: bytes, site: int, peer: int
) -> bytearray:
    """For the shares that two sites send each other."""
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise ProtocolError("a peer's key is not a key") from None
    return _key_of(b"box", context, shared, (public_bytes(own), other), (site, peer))


def pair_key(context: Context, own: Key, other: bytes, site: int, peer: int) -> bytearray:
    """For the noise that cancels between two sites. ``own`` is a scalar, and ``other`` a point."""
    shared = group.times(own, other)
    return _key_of(b"pair", context, shared, (group.point_of(own), other), (site, peer))


def own_mask_key(context: Context, secret: Key) -> bytearray:
    """The key of a site's self mask, from the scalar of which others hold shares."""
    return derive_key(secret, "self mask", context.run.hex())


def check_keys(box: bytes, mask: bytes) -> None:
    """Whether these are keys at all: with them anyone could agree on a secret with their owner."""
    try:
        _PROBE.exchange(X25519PublicKey.from_public_bytes(box))
    except ValueError:
        raise ProtocolError("its key for shares is not a key") from None
    if not group.is_point(mask):
        raise ProtocolError("its key for masks is not a key")


def commitment(context: Context, site: int, nonce: Key, box: bytes, mask: bytes) -> str:
    """What a site says of its keys before it sees another's, so that nobody can take another's
    keys for its own, nor choose its nonce by the others'."""
    said = (context.run, context.roster, context.plan, site.to_bytes(4, "big"), nonce, box, mask)
    return hashlib.sha256(b"capemix keys|" + b"".join(said)).hexdigest()


def setting_of(keys: Mapping[int, dict[str, Any]], members: Iterable[int]) -> str:
    """A digest of what a site's masks depend on: the keys it was shown, and who the members are."""
    shown = {str(site): body for site, body in keys.items()}
    return digest({"keys": shown, "members": sorted(members)}).hex()


def included_of(included: Iterable[int], setting: str) -> str:
    """A digest of what sites agree on: who is in the sum, and what all of them masked among."""
    return digest({"included": sorted(included), "setting": setting}).hex()


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
