"""Shamir's secret sharing (1979), with points by which anybody can check a share (Feldman 1987).

A secret is a scalar of the group. Its shares are the values of a polynomial: the secret is the
value at 0, and holder h has the value at h + 1. Any ``threshold`` shares give the secret back;
fewer say nothing about it. The shares' points tell whether they lie on one polynomial.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from capemix.protocol import group
from capemix.protocol.group import ORDER
from capemix.randomness.source import ByteStream, Key

SHARE_BYTES: Final = group.SCALAR_BYTES
SECRET_AT: Final = -1
"""The place of the secret among points: as if it were a holder's, whose value is at 0."""


def split(
    secret: Key, holders: Sequence[int], threshold: int, stream: ByteStream
) -> dict[int, bytearray]:
    """A share for every holder (a site's number)."""
    if not 1 <= threshold <= len(holders):
        raise ValueError(f"{threshold} of {len(holders)} shares can never meet")
    if len(set(holders)) != len(holders) or min(holders) < 0:
        raise ValueError("holders must be distinct site numbers")
    coefficients = [group.as_scalar(secret)]
    coefficients += [group.drawn(stream) for _ in range(threshold - 1)]
    return {holder: group.as_bytes(_value(coefficients, holder + 1)) for holder in holders}


def combine(shares: Mapping[int, Key]) -> bytearray:
    """The secret, by Lagrange's formula at 0."""
    places = {holder + 1: int.from_bytes(share, "little") for holder, share in shares.items()}
    secret = 0
    for x, y in places.items():
        top = bottom = 1
        for other in places:
            if other != x:
                top = top * other % ORDER
                bottom = bottom * (other - x) % ORDER
        secret = (secret + y * top * pow(bottom, -1, ORDER)) % ORDER
    return group.as_bytes(secret)


def on_one_polynomial(points: Mapping[int, bytes], threshold: int) -> bool:
    """Whether the shares behind these points are of one polynomial, of which ``threshold`` give the
    secret back.

    Values at n places are those of a polynomial of t coefficients if and only if they are
    orthogonal to all p(x) / prod (x - y), with p of n - t coefficients (Cascudo, David 2017). One
    such p is tried, drawn from the points themselves: what is on no polynomial passes for one p in
    2^252.
    """
    if not all(map(group.is_point, points.values())):
        return False
    places = {holder + 1: point for holder, point in sorted(points.items())}
    text = b"".join(x.to_bytes(4, "big") + point for x, point in places.items())
    stream = ByteStream(hashlib.sha256(b"capemix polynomial|" + text).digest())
    tried = [group.drawn(stream) for _ in range(len(places) - threshold)]
    weighted = [
        (_value(tried, x) * pow(_distances(x, places), -1, ORDER), point)
        for x, point in places.items()
    ]
    return group.weighted_sum(weighted) == group.NEUTRAL


def _distances(x: int, places: Iterable[int]) -> int:
    product = 1
    for other in places:
        if other != x:
            product = product * (x - other) % ORDER
    return product


def _value(coefficients: Sequence[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % ORDER
    return value
