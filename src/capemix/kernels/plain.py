"""The inner loops in numpy and scipy: slower, and the same bits (``gather_sum`` on
integers; wavelets up to rounding)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from capemix.kernels import Words, integers_of, words_of

Array = npt.NDArray[Any]
Single = npt.NDArray[np.float32]
Double = npt.NDArray[np.float64]
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_ROOM = 1 << 24
"""Marks held at a time, of subsets that are drawn side by side."""


def alias_add(
    words: npt.NDArray[np.uint32],
    columns_log2: int,
    table: npt.NDArray[np.uint64],
    first: int,
    out: Array,
    ties: npt.NDArray[np.int32],
) -> int:
    columns = (words & np.uint32((1 << columns_log2) - 1)).astype(np.int64)
    fractions = (words >> np.uint32(columns_log2)).astype(np.uint64)
    entries = table[columns]
    limits = entries >> _HALF
    other = (entries & _LOW).astype(np.uint32).view(np.int32)
    out += np.where(fractions < limits, columns + first, other).astype(out.dtype)
    tied = np.flatnonzero(fractions == limits)
    ties[: len(tied)] = tied
    return len(tied)


def gaussian_weights(step: Words, ratio: Words, out: Words) -> None:
    now, by = integers_of(np.stack([step, ratio]))
    weights, weight = [], 1 << 192
    for _ in range(len(out)):
        weights.append(weight)
        weight, now = (weight * now) >> 192, (now * by) >> 192
    out[:] = words_of(weights, 4)


def rounded_weights(half: Words, coefficients: Words, slope: Words, out: Words) -> None:
    [by], factors = integers_of(slope[None]), integers_of(coefficients)
    weights = []
    for x, weight in enumerate(integers_of(half)):
        total = factors[-1]
        for factor in reversed(factors[:-1]):
            total = (x * x * by * total >> 192) + factor
        weights.append(weight * total >> 192)
    out[:] = words_of(weights, 4)


def half_sums(rows: Words, out: Words) -> None:
    out[:, 0], out[:, 1] = (rows & _LOW).sum(axis=0), (rows >> _HALF).sum(axis=0)


def scaled(weights: Words, reciprocal: Words, head: Words, middle: Words, tail: Words) -> None:
    [factor] = integers_of(reciprocal[None])
    _store([(weight * factor) >> 416 for weight in integers_of(weights)], head, middle, tail)


def alias_columns(columns_log2: int, first: int, table: Words, middle: Words, tail: Words) -> None:
    columns, capacity = 1 << columns_log2, 1 << (128 - columns_log2)
    parts = zip(table.tolist(), middle.tolist(), tail.tolist(), strict=True)
    left = [a << 96 | b << 32 | c for a, b, c in parts]
    # A full column needs no comparison: it has its own value on both sides.
    threshold, alias = [0] * columns, list(range(columns))
    small = [i for i, weight in enumerate(left) if weight < capacity]
    large = [i for i, weight in enumerate(left) if weight >= capacity]
    while small:
        i = small.pop()
        j = large[-1]
        threshold[i], alias[i] = left[i], j
        left[j] -= capacity - left[i]
        if left[j] < capacity:
            large.pop()
            small.append(j)
    _store(threshold, table, middle, tail)
    other = (first + np.array(alias)).astype(np.uint64) & _LOW
    table[:] = table << _HALF | other


def _store(parts: list[int], head: Words, middle: Words, tail: Words) -> None:
    head[:] = [part >> 96 for part in parts]
    middle[:] = [(part >> 32) & 0xFFFFFFFFFFFFFFFF for part in parts]
    tail[:] = [part & 0xFFFFFFFF for part in parts]


def floyd(
    words: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    population: int,
    indices: npt.NDArray[np.int32],
    marks: npt.NDArray[np.uint8],
    part: bool,
) -> int:
    if part:
        return _floyd(words, starts, population, indices, marks.view(bool)[None])
    some, unsettled = max(1, _ROOM // max(1, population)), 0
    for first in range(0, len(starts) - 1, some):
        own = starts[first : first + some + 1]
        taken = np.zeros((len(own) - 1, population), dtype=bool)
        unsettled += _floyd(words, own, population, indices, taken)
    return unsettled


def _floyd(
    words: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    population: int,
    indices: npt.NDArray[np.int32],
    taken: npt.NDArray[np.bool_],
) -> int:
    """``taken`` says of every subset which records it has."""
    begins = starts[:-1]
    sizes = np.diff(starts)
    unsettled = 0
    for j in range(int(sizes.max(initial=0))):
        subsets = np.flatnonzero(sizes > j)
        tops = population - sizes[subsets] + j
        bounds = (tops + 1).astype(np.uint64)
        word = words[begins[subsets] + j]
        upper = (word >> _HALF) * bounds + (((word & _LOW) * bounds) >> _HALF)
        values = (upper >> _HALF).astype(np.int64)
        unsettled += int(np.count_nonzero(word * bounds > np.uint64(0) - bounds))
        values = np.where(taken[subsets, values], tops, values)
        taken[subsets, values] = True
        indices[begins[subsets] + j] = values
    return unsettled


def to_float(words: Array, unit: float, out: Array) -> None:
    out[...] = words * np.float64(unit)


def gather_sum(
    rows: Array, starts: npt.NDArray[np.int64], indices: npt.NDArray[np.int32], out: Array
) -> None:
    ones = np.ones(len(indices), dtype=out.dtype)
    selector = sparse.csr_matrix((ones, indices, starts), shape=(len(starts) - 1, len(rows)))
    out += selector @ rows.astype(out.dtype, copy=False)


def squared_norms(rows: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    width = rows.shape[1]
    fours = width // 4 * 4
    lanes = np.zeros((len(rows), 4), dtype=rows.dtype)
    for column in range(0, fours, 4):
        lanes += rows[:, column : column + 4] ** 2
    rest = np.zeros(len(rows), dtype=rows.dtype)
    for column in range(fours, width):
        rest += rows[:, column] ** 2
    out[:] = ((lanes[:, 0] + lanes[:, 1]) + (lanes[:, 2] + lanes[:, 3])) + rest


def leaned(images: Array, by: npt.NDArray[np.float64], out: Array) -> None:
    count, height, width = images.shape
    bordered = np.zeros((count, width + 2), dtype=images.dtype)
    columns = np.arange(width, dtype=np.float64)
    for row in range(height):
        bordered[:, 1:-1] = images[:, row]
        place = np.clip(columns - (by * (row - (height - 1) / 2))[:, None], -1.0, width) + 1.0
        left = np.minimum(place.astype(np.int64), width)
        near = np.take_along_axis(bordered, left, axis=1)
        step = np.take_along_axis(bordered, left + 1, axis=1) - near
        out[:, row] = near + (place - left).astype(images.dtype) * step


def clipped(rows: Double, limit: float, out: Double) -> None:
    most = np.abs(rows).max(axis=1, initial=0.0)
    finite = np.isfinite(most)
    unit = np.where(finite & (most > 0), most, 1.0)
    # Divide by the largest entry first, so that no square overflows or vanishes.
    out[:] = np.where(finite[:, None], rows, 0.0) / unit[:, None]
    squares = np.empty(len(rows))
    squared_norms(out, squares)
    norms = np.sqrt(squares)
    with np.errstate(over="ignore"):
        factor = np.where(norms * unit > limit, limit / np.maximum(norms, 1e-300), unit)
    out *= factor[:, None]


def centred(
    rows: Double, how: Double, centres: Double, which: npt.NDArray[np.int64], out: Double
) -> None:
    low, high, shift, scale = how
    np.clip(rows, low, high, out=out)
    with np.errstate(over="ignore", invalid="ignore"):
        out -= shift
        out /= scale
        out[~np.isfinite(out).all(axis=1)] = 0.0
        out -= centres[which]


def truncated(rows: Double, scale: float, most: int, out: npt.NDArray[np.int16]) -> None:
    with np.errstate(over="ignore"):
        units = np.trunc(rows * scale)
    units[np.isnan(units)] = 0.0
    whole = np.clip(units, -most, most).astype(np.int64)
    out[:] = whole
    out[np.einsum("ij,ij->i", whole, whole) > most**2] = 0


def add_by_group(
    rows: npt.NDArray[np.int16], group: npt.NDArray[np.int64], sums: npt.NDArray[np.int64]
) -> None:
    np.add.at(sums, group, rows)


def largest(values: Double, offsets: Double, out: npt.NDArray[np.int64]) -> None:
    out[:] = (values + offsets[:, None]).argmax(axis=0)


def moduli(values: Single, wavelets: Single, every: int, out: Single) -> None:
    side, (rows, columns) = wavelets.shape[2], out.shape[1:3]

    def seen(down: int, across: int) -> Single:
        """The values that this tap of the wavelets meets at every point."""
        below = values[down : down + every * (rows - 1) + 1 : every]
        return below[:, across : across + every * (columns - 1) + 1 : every]

    middle = 2 * seen(side // 2, side // 2)
    for wavelet, to in zip(wavelets, out, strict=True):
        real = np.float32(0.5) * wavelet[0, side // 2, side // 2] * middle
        imaginary = np.zeros_like(real)
        for tap in range(side * side // 2):
            down, across = divmod(tap, side)
            one, other = seen(down, across), seen(side - 1 - down, side - 1 - across)
            real += wavelet[0, down, across] * (one + other)
            imaginary += wavelet[1, down, across] * (one - other)
        to[...] = np.sqrt(real * real + imaginary * imaginary)


def averages(values: Single, down: Single, across: Single, out: Single) -> None:
    lines = np.zeros((len(values), len(down), *values.shape[2:]), dtype=np.float32)
    for row in range(values.shape[1]):
        lines += down[:, row, None, None] * values[:, None, row]
    out[...] = 0
    for column in range(values.shape[2]):
        out += across[:, column, None] * lines[:, :, None, column]
