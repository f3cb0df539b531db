"""Shamir's secret sharing (1979) of 32-byte secrets, over the field of 2^521 - 1 elements.

Any ``threshold`` shares give the secret back; fewer say nothing about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from capemix.randomness.source import ByteStream, Key

PRIME: Final = (1 << 521) - 1
SHARE_BYTES: Final = 66
_SECRET_BYTES: Final = 32


def split(
    secret: Key, holders: Sequence[int], threshold: int, stream: ByteStream
) -> dict[int, bytearray]:
    """A share for every holder (a site's number): the polynomial's value at number + 1."""
    if len(secret) != _SECRET_BYTES:
        raise ValueError(f"a secret has {_SECRET_BYTES} bytes")
    if not 1 <= threshold <= len(holders):
        raise ValueError(f"{threshold} of {len(holders)} shares can never meet")
    if len(set(holders)) != len(holders) or min(holders) < 0:
        raise ValueError("holders must be distinct site numbers")
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [_field_element(stream) for _ in range(threshold - 1)]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (holder + 1) + coefficient) % PRIME
        shares[holder] = bytearray(value.to_bytes(SHARE_BYTES, "big"))
    return shares


def combine(shares: Mapping[int, Key]) -> bytearray | None:
    """The secret, by Lagrange's formula at 0; None if these shares are not of a 32-byte secret."""
    points = {holder + 1: int.from_bytes(share, "big") for holder, share in shares.items()}
    secret = 0
    for x, y in points.items():
        top = bottom = 1
        for other in points:
            if other != x:
                top = top * other % PRIME
                bottom = bottom * (other - x) % PRIME
        secret = (secret + y * top * pow(bottom, -1, PRIME)) % PRIME
    if secret >> (8 * _SECRET_BYTES):
        return None
    return bytearray(secret.to_bytes(_SECRET_BYTES, "big"))


def _field_element(stream: ByteStream) -> int:
    """Uniform below 2^521 - 1: 521 bits, drawn again in the one case that is too large."""
    while True:
        bits = int.from_bytes(stream.words(9).tobytes(), "big") >> (9 * 64 - 521)
        if bits < PRIME:
            return bits
