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
    words: npt.NDArray[np.uint64],
    columns_log2: int,
    threshold: npt.NDArray[np.uint64],
    own: npt.NDArray[np.int32],
    other: npt.NDArray[np.int32],
    out: Array,
) -> int:
    columns = (words & np.uint64((1 << columns_log2) - 1)).astype(np.int64)
    fractions = words >> np.uint64(columns_log2)
    limits = threshold[columns]
    out += np.where(fractions < limits, own[columns], other[columns]).astype(out.dtype)
    return int(np.count_nonzero(fractions == limits))


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
