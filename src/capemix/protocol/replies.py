"""The form of what sites answer. Whatever passes here, the other sites accept in turn: a site whose
answer they would refuse is the one that leaves, and not they."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from capemix.protocol import shamir
from capemix.protocol.agreement import check_keys, commitment
from capemix.protocol.chunks import Cut
from capemix.protocol.dealing import KINDS, are_shares_of, read_shown
from capemix.protocol.wire import Context, ProtocolError, bytes_of, must_have, sites_of
from capemix.sums.query import SumQuery
from capemix.sums.share import share_dtype

_LONGEST_REASON: Final = 500

Body = dict[str, Any]


def check_plan(body: Body) -> None:
    must_have(body, "accept", "seeded", "reason", "commit")
    bytes_of(body, "commit", 32)
    if body["accept"] is not True:
        raise ProtocolError(f"declined: {str(body['reason'])[:_LONGEST_REASON]}")
    if type(body["seeded"]) is not bool or body["reason"] is not None:
        raise ProtocolError("it accepts, and says something else beside it")


def check_site_keys(context: Context, site: int, body: Body, commit: str) -> None:
    must_have(body, "box", "mask", "nonce")
    nonce, box, mask = (bytes_of(body, name, 32) for name in ("nonce", "box", "mask"))
    if commitment(context, site, nonce, box, mask) != commit:
        raise ProtocolError("its keys and its nonce are not those it committed to")
    check_keys(box, mask)
    if box == mask:
        raise ProtocolError("its two keys are one")


def check_complaints(body: Body, sites: int, dealers: set[int], keys: str) -> None:
    """``keys`` is the digest of those that all sites were shown."""
    must_have(body, "complaints", "keys")
    if body["keys"] != keys:
        raise ProtocolError("it was shown other keys")
    if not set(sites_of(body, "complaints", sites)) <= dealers:
        raise ProtocolError("it complains about a site that dealt it nothing")


def check_opened(body: Body, deals: dict[int, dict[str, str]]) -> None:
    """``deals`` are those of the holders that complained."""
    must_have(body, "opened")
    opened = body["opened"]
    if not isinstance(opened, dict) or set(opened) != {str(holder) for holder in deals}:
        raise ProtocolError("it did not show its share to each site that complains about it")
    for holder, deal in deals.items():
        if not are_shares_of(deal, read_shown(opened, str(holder))):
            raise ProtocolError(f"its share for site {holder} is not what its point says")


def check_announcement(body: Body, query: SumQuery, cut: Cut) -> None:
    must_have(body, "shape", "dtype", "chunks", "setting")
    if (body["shape"], body["dtype"]) != (list(query.shape), share_dtype(query).str):
        raise ProtocolError("its upload has another shape than the sum's")
    chunks = body["chunks"]
    if not isinstance(chunks, list) or len(chunks) != cut.chunks:
        raise ProtocolError(f"its upload must be announced in {cut.chunks} chunks")
    for place, found in enumerate(chunks):
        bytes_of({f"chunks[{place}]": found}, f"chunks[{place}]", 32)


def check_revealed(body: Body, wanted: dict[str, set[int]]) -> None:
    """``wanted`` has, for each kind of secret, the sites whose shares are to be revealed."""
    must_have(body, *KINDS)
    for kind in KINDS:
        shares = body[kind]
        if not isinstance(shares, dict) or set(shares) != {str(site) for site in wanted[kind]}:
            raise ProtocolError("it revealed other shares than were agreed")
        for site in shares:
            bytes_of(shares, site, shamir.SHARE_BYTES)


# -- what shows only when the answers of a round are held side by side ----------------------------


def seeded_among_others(said: Mapping[int, Body]) -> dict[int, str]:
    """Sites that draw from a test seed where others do not, who would not go on with them: the
    fewer of the two have to leave."""
    seeded = [site for site, body in said.items() if body["seeded"]]
    others = [site for site, body in said.items() if not body["seeded"]]
    if len(seeded) <= len(others):
        return dict.fromkeys(seeded, "it draws from a test seed, and others do not")
    return dict.fromkeys(others, "it does not draw from a test seed, and others do")


def with_one_key(said: Mapping[int, Body]) -> dict[int, str]:
    """Sites with a key that another one has. They committed to it before any key was shown, so
    none of them can have been copied by the others."""
    times = Counter(body[name] for body in said.values() for name in ("box", "mask"))
    twice = [s for s, body in said.items() if max(times[body["box"]], times[body["mask"]]) > 1]
    return dict.fromkeys(twice, "it has a key that another site has, too")


def complained(said: Mapping[int, Body], dealers: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Of each dealer, who says that it got a wrong share."""
    of = {
        dealer: tuple(h for h, body in sorted(said.items()) if dealer in body["complaints"])
        for dealer in dealers
    }
    return {dealer: holders for dealer, holders in of.items() if holders}


def wrong_to_many(complained: Mapping[int, tuple[int, ...]], most: int) -> dict[int, str]:
    """Dealers about whom more sites complain than may lie."""
    return {
        dealer: f"{len(holders)} sites got wrong shares from it, and {most} may lie"
        for dealer, holders in complained.items()
        if len(holders) > most
    }
