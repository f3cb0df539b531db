"""How a site deals shares of its two secrets, so that a wrong one is seen by whoever gets it.

A deal is what one holder gets from one dealer: two shares, sealed, and beside them their points,
signed by the dealer. All of a dealer's points are public. The coordinator checks that they are of
one polynomial for each secret, and that the mask key's is of the key in use. A holder checks that
what was sealed for it is what the points say. A holder that complains can prove nothing, so nobody
is believed: the dealer shows that one share. This harms nobody, since one of the two sites lies:
the share is a liar's own, or the secret is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from capemix.protocol import group, shamir
from capemix.protocol.agreement import box_key
from capemix.protocol.shamir import SECRET_AT, SHARE_BYTES
from capemix.protocol.wire import (
    Context,
    Message,
    ProtocolError,
    bytes_of,
    is_signed,
    must_have,
    sign,
)
from capemix.randomness.source import Key, erase

Shares = tuple[bytearray, bytearray]
"""One holder's shares of one dealer's secrets: of the self mask, and of the mask key."""

SEALED_BYTES: Final = 2 * SHARE_BYTES + 16
"""Two shares for a peer, encrypted, with the tag."""

KINDS: Final = ("own", "pair")


@dataclass(frozen=True)
class Box:
    """A site's key for what others seal for it and it seals for them, in one run."""

    context: Context
    site: int
    key: X25519PrivateKey

    def seal(self, peer: int, other: bytes, shares: Shares) -> bytes:
        # The key serves one run and one pair; the two directions have nonces of their own.
        nonce = self.site.to_bytes(12, "big")
        return self._cipher(peer, other).encrypt(nonce, b"".join(shares), None)

    def open(self, peer: int, other: bytes, sealed: bytes) -> Shares | None:
        """What a peer sealed, or None if this is not what anyone sealed."""
        nonce = peer.to_bytes(12, "big")
        try:
            found = bytearray(self._cipher(peer, other).decrypt(nonce, sealed, None))
        except InvalidTag:
            return None
        return found[:SHARE_BYTES], found[SHARE_BYTES:]

    def _cipher(self, peer: int, other: bytes) -> ChaCha20Poly1305:
        key = box_key(self.context, self.key, other, self.site, peer)
        try:
            return ChaCha20Poly1305(key)
        finally:
            erase(key)


def dealt(
    box: Box,
    identity: Ed25519PrivateKey,
    boxes: Mapping[int, bytes],
    shares: Mapping[int, Shares],
) -> dict[str, Any]:
    """What a dealer answers: its points, and for each peer what is sealed and signed."""
    sealed, signed = {}, {}
    points = {
        kind: {str(h): group.point_of(of[at]).hex() for h, of in sorted(shares.items())}
        for at, kind in enumerate(KINDS)
    }
    for peer in (holder for holder in shares if holder != box.site):
        name = str(peer)
        sealed[name] = box.seal(peer, boxes[peer], shares[peer]).hex()
        said = _deal(box.site, peer, sealed[name], *(points[kind][name] for kind in KINDS))
        signed[name] = sign(box.context, identity, said)
    return {**points, "sealed": sealed, "signed": signed}


def deal_for(body: dict[str, Any], holder: int) -> dict[str, str]:
    """The part of a dealer's answer that is for one holder."""
    return {name: body[name][str(holder)] for name in ("sealed", "own", "pair", "signed")}


def _deal(dealer: int, holder: int, sealed: str, own: str, pair: str) -> Message:
    said = {"to": holder, "sealed": sealed, "own": own, "pair": pair}
    return Message("deal", dealer, said)


def check_deal(context: Context, key: bytes, dealer: int, holder: int, deal: Any) -> None:
    """Whether a dealer signed this for this holder."""
    if not isinstance(deal, dict):
        raise ProtocolError(f"the deal of site {dealer} is none")
    must_have(deal, "sealed", "own", "pair", "signed")
    bytes_of(deal, "sealed", SEALED_BYTES)
    for kind in KINDS:
        bytes_of(deal, kind, group.SCALAR_BYTES)
    said = _deal(dealer, holder, deal["sealed"], deal["own"], deal["pair"])
    if not is_signed(context, said, deal["signed"], key):
        raise ProtocolError(f"site {dealer} did not sign its deal for site {holder}")


def check_dealing(
    context: Context,
    key: bytes,
    dealer: int,
    body: dict[str, Any],
    holders: Sequence[int],
    threshold: int,
    mask: bytes,
) -> None:
    """All that can be seen from outside of what a dealer answers. ``mask`` is its key in use."""
    must_have(body, *KINDS, "sealed", "signed")
    peers = {str(holder) for holder in holders if holder != dealer}
    for name, of in (("sealed", peers), ("signed", peers), *((k, _names(holders)) for k in KINDS)):
        if not isinstance(body[name], dict) or set(body[name]) != of:
            raise ProtocolError("it did not share with every peer, and nobody else")
    for peer in (holder for holder in holders if holder != dealer):
        check_deal(context, key, dealer, peer, deal_for(body, peer))
    for kind, name in zip(KINDS, ("self mask", "mask key"), strict=True):
        points = {h: bytes_of(body[kind], str(h), group.SCALAR_BYTES) for h in holders}
        if kind == "pair":
            points[SECRET_AT] = mask
        if not shamir.on_one_polynomial(points, threshold):
            raise ProtocolError(f"its shares of its {name} do not belong together")


def _names(holders: Iterable[int]) -> set[str]:
    return {str(holder) for holder in holders}


def is_share_of(point: str, share: Key) -> bool:
    """Whether a share is the one that a dealer announced by its point."""
    try:
        return group.point_of(share).hex() == point
    except ProtocolError:
        return False


def are_shares_of(deal: Mapping[str, str], shares: Shares) -> bool:
    return all(is_share_of(deal[kind], share) for kind, share in zip(KINDS, shares, strict=True))


def shown(shares: Shares) -> str:
    """Shares in the open, for a holder that complained."""
    return b"".join(shares).hex()


def read_shown(body: dict[str, Any], name: str) -> Shares:
    raw = bytearray(bytes_of(body, name, 2 * SHARE_BYTES))
    return raw[:SHARE_BYTES], raw[SHARE_BYTES:]
