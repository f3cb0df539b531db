"""The inner loops, twice: `fast` in numba and `plain` in numpy/scipy, with the same bits, save
that wavelets' sums are fused in the first and so rounded less often.

``CAPEMIX_KERNELS=plain`` chooses the second. Neither knows what the numbers mean.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from capemix.errors import InputError

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]
"""Large integers as 64-bit words, the lowest first, a row for each."""
Single = npt.NDArray[np.float32]
Double = npt.NDArray[np.float64]


def words_of(integers: Iterable[int], words: int) -> Words:
    """A row of so many words for each."""
    raw = b"".join(integer.to_bytes(8 * words, "little") for integer in integers)
    return np.frombuffer(raw, dtype="<u8").astype(np.uint64).reshape(-1, words)


def integers_of(rows: Words) -> list[int]:
    raw, length = rows.astype("<u8").tobytes(), 8 * rows.shape[1]
    starts = range(0, len(raw), length)
    return [int.from_bytes(raw[start : start + length], "little") for start in starts]


class Kernels(Protocol):
    """What both modules offer."""

    def alias_add(
        self,
        words: npt.NDArray[np.uint32],
        columns_log2: int,
        table: npt.NDArray[np.uint64],
        first: int,
        out: Array,
        ties: npt.NDArray[np.int32],
    ) -> int:
        """Add a draw of an alias table to each entry of ``out``; a tie adds the other value.

        A table entry is a column's threshold in the high half and its other value in the low one.
        Returns the number of ties, and their places in the front of ``ties``.
        """

    def gaussian_weights(self, step: Words, ratio: Words, out: Words) -> None:
        """out[0] = 1 and out[x + 1] = out[x] * step, where step becomes step * ratio each time.

        All are multiples of 2^-192 in 64-bit words, the lowest first: three words for the numbers
        below 1, four for the two or more of ``out``. Products are rounded down.
        """

    def rounded_weights(self, half: Words, coefficients: Words, slope: Words, out: Words) -> None:
        """out[x] = half[x] * sum_j c_j u^j, u = x^2 * slope; both may be the same memory.

        Coefficients and slope have four words: a whole one, and three of the fraction, on which
        every product is cut off.
        """

    def half_sums(self, rows: Words, out: Words) -> None:
        """Sums over up to 2^32 rows of words' low and high 32 bits: columns by 2."""

    def scaled(
        self, weights: Words, reciprocal: Words, head: Words, middle: Words, tail: Words
    ) -> None:
        """weight * reciprocal / 2^416 rounded down, of four words each and six, lowest first: its
        last 32 bits are the tail, the 64 before them the middle, and up to 64 the head."""

    def alias_columns(
        self, columns_log2: int, first: int, table: Words, middle: Words, tail: Words
    ) -> None:
        """Turn parts of 2^128, one for each value from ``first`` on, into the columns of an alias
        table (Vose 1991), where they lie.

        A part is a head (in ``table``), a middle and a tail as above. A column is its threshold in
        these three, with its other value below the head; 0 and its own value if it is full.
        """

    def floyd(
        self,
        words: npt.NDArray[np.uint64],
        starts: npt.NDArray[np.int64],
        population: int,
        indices: npt.NDArray[np.int32],
        marks: npt.NDArray[np.uint8],
        part: bool,
    ) -> int:
        """Draw uniform subsets (Floyd 1987); subset t fills indices[starts[t]:starts[t+1]].

        ``marks``, one for each record, are 0 before and after. With ``part`` there is one subset:
        records marked already are in it, those that come in are marked too, and all stay so.
        Returns how many draws one 64-bit word could not settle; the result then is void.
        """

    def gather_sum(
        self,
        rows: Array,
        starts: npt.NDArray[np.int64],
        indices: npt.NDArray[np.int32],
        out: Array,
    ) -> None:
        """out[t] += sum of rows[i] for i in indices[starts[t]:starts[t+1]], wrapping."""

    def to_float(self, words: Array, unit: float, out: Array) -> None:
        """out = words * unit, for flat arrays that may be the same memory, entry by entry."""

    def squared_norms(self, rows: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Each row's, added up in the precision and in the order of its columns (every fourth for
        itself), whatever rows there are besides: numpy's order depends on how many there are."""

    def leaned(self, images: Array, by: npt.NDArray[np.float64], out: Array) -> None:
        """out[n, i, j] = images[n, i] at the place j - by[n] * (i - middle row), between columns
        linearly, and 0 a column outside and beyond. All of ``by`` must be finite."""

    def clipped(self, rows: Double, limit: float, out: Double) -> None:
        """out[i] = rows[i] * min(1, limit / norm), up to rounding; zeros if it is not finite."""

    def centred(
        self,
        rows: Double,
        how: Double,
        centres: Double,
        which: npt.NDArray[np.int64],
        out: Double,
    ) -> None:
        """out[i] = (rows[i] moved into low to high - shift) / scale - centres[which[i]], the four
        being the rows of ``how``. A quotient that is not finite makes all of its row's 0."""

    def truncated(self, rows: Double, scale: float, most: int, out: npt.NDArray[np.int16]) -> None:
        """out[i] = rows[i] * scale toward zero, each number ``most`` in size at most and a NaN 0;
        zeros if its norm, in integers, is over ``most``."""

    def add_by_group(
        self,
        rows: npt.NDArray[np.int16],
        group: npt.NDArray[np.int64],
        sums: npt.NDArray[np.int64],
    ) -> None:
        """sums[group[i]] += rows[i] for every i."""

    def largest(self, values: Double, offsets: Double, out: npt.NDArray[np.int64]) -> None:
        """out[i] = the first place of the largest of values[:, i] + offsets; a NaN counts as
        such."""

    def moduli(self, values: Single, wavelets: Single, every: int, out: Single) -> None:
        """out[k, i, j] = absolute values of wavelet k laid over the values from row i * every and
        column j * every on; the last axis of values and of out is of independent lanes.

        Wavelets (kinds, real and imaginary, side, side), the side odd, are conjugate to themselves
        turned round, so that half of the taps and the middle are read.
        """

    def averages(self, values: Single, down: Single, across: Single, out: Single) -> None:
        """out[k, i, j] = sum over rows and columns of down[i, row] * across[j, column] *
        values[k, row, column], rows first; the last axis is of independent lanes."""


@cache
def _load(name: str) -> Kernels:
    if name == "fast":
        from capemix.kernels import fast

        return cast(Kernels, fast)
    from capemix.kernels import plain

    return cast(Kernels, plain)


def active() -> Kernels:
    name = os.environ.get("CAPEMIX_KERNELS", "fast")
    if name not in ("fast", "plain"):
        raise InputError("CAPEMIX_KERNELS", "is unknown", value=name, fix="use 'fast' or 'plain'")
    return _load(name)
