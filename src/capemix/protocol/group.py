"""The group in which shares are checked without being shown: edwards25519's, of prime order.

A number below the order is a scalar, 32 bytes, lowest first. Its point is the scalar times the base
point: everybody may see it, and nobody can compute the scalar from it. All arithmetic on points is
libsodium's, which refuses what is no point, or none of this group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nacl import bindings

from capemix.protocol.wire import ProtocolError
from capemix.randomness.source import ByteStream, Key

ORDER: Final = (1 << 252) + 27742317777372353535851937790883648493
SCALAR_BYTES: Final = 32
NEUTRAL: Final = b"\x01" + bytes(31)
"""What a sum of points is whose scalars add up to 0. It is no key, and no share's point."""


def drawn(stream: ByteStream) -> int:
    """Uniform below the order, but for 2^-258: 512 bits of the stream, reduced."""
    return int.from_bytes(stream.words(8).tobytes(), "little") % ORDER


def as_bytes(scalar: int) -> bytearray:
    return bytearray(scalar.to_bytes(SCALAR_BYTES, "little"))


def as_scalar(raw: Key) -> int:
    """A scalar in its one spelling."""
    found = int.from_bytes(raw, "little")
    if len(raw) != SCALAR_BYTES or not 0 < found < ORDER:
        raise ProtocolError("it is no number of the group")
    return found


def point_of(scalar: Key) -> bytes:
    """The scalar times the base point."""
    as_scalar(scalar)
    return bytes(bindings.crypto_scalarmult_ed25519_base_noclamp(bytes(scalar)))


def times(scalar: Key, point: bytes) -> bytes:
    """The scalar times a point, after a check that it is one of the group's and not the neutral
    one."""
    try:
        return bytes(bindings.crypto_scalarmult_ed25519_noclamp(bytes(scalar), point))
    except (RuntimeError, TypeError, ValueError):
        raise ProtocolError("it is no point of the group") from None


def is_point(raw: bytes) -> bool:
    return bool(bindings.crypto_core_ed25519_is_valid_point(raw))


def weighted_sum(weighted: Iterable[tuple[int, bytes]]) -> bytes:
    """The sum of scalar times point."""
    total = NEUTRAL
    for weight, point in weighted:
        if weight % ORDER:
            part = times(as_bytes(weight % ORDER), point)
            total = bytes(bindings.crypto_core_ed25519_add(total, part))
    return total
