"""The inner loops in numpy and scipy: slower, and the same bits on integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

Array = npt.NDArray[Any]
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


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


def floyd(
    words: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    population: int,
    indices: npt.NDArray[np.int32],
) -> int:
    begins = starts[:-1]
    sizes = np.diff(starts)
    taken = np.zeros((len(sizes), population), dtype=bool)
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
    out[...] = selector @ rows.astype(out.dtype, copy=False)
