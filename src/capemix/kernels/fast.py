"""The inner loops in numba: compiled once, cached, and free of the interpreter's lock."""

# mypy: disable-error-code="misc,no-untyped-def,untyped-decorator"

from __future__ import annotations

import numba
import numpy as np

U64 = np.uint64


@numba.njit(nogil=True, cache=True)
def alias_add(words, columns_log2, table, first, out, ties):
    mask = U64((1 << columns_log2) - 1)
    shift = U64(columns_log2)
    half = U64(32)
    low = U64(0xFFFFFFFF)
    found = 0
    for start in range(0, out.shape[0], 8192):
        part = words[start : start + 8192]
        to = out[start : start + 8192]
        tied = 0
        for i in range(to.shape[0]):
            word = U64(part[i])
            column = word & mask
            fraction = word >> shift
            entry = table[np.int64(column)]
            own = np.int64(column) + first
            to[i] += own if fraction < (entry >> half) else np.int64(np.int32(entry & low))
            tied += fraction == (entry >> half)
        if tied:
            for i in range(to.shape[0]):
                word = U64(part[i])
                if word >> shift == table[np.int64(word & mask)] >> half:
                    ties[found] = start + i
                    found += 1
    return found


@numba.njit(nogil=True, cache=True)
def floyd(words, starts, population, indices):
    stamp = np.zeros(population, dtype=np.int32)
    low = U64(0xFFFFFFFF)
    half = U64(32)
    unsettled = 0
    for t in range(starts.shape[0] - 1):
        begin = starts[t]
        size = starts[t + 1] - begin
        for j in range(size):
            top = population - size + j
            bound = U64(top + 1)
            word = words[begin + j]
            # floor(word * bound / 2^64) in 32-bit halves; the remainder says whether more bits
            # of the word could still carry into it.
            upper = (word >> half) * bound + (((word & low) * bound) >> half)
            value = np.int64(upper >> half)
            unsettled += word * bound > U64(0) - bound
            if stamp[value] == t + 1:
                value = top
            stamp[value] = t + 1
            indices[begin + j] = value
    return unsettled


@numba.njit(nogil=True, cache=True)
def to_float(words, unit, out):
    for i in range(out.shape[0]):
        out[i] = words[i] * unit


@numba.njit(nogil=True, cache=True)
def gather_sum(rows, starts, indices, out):
    width = rows.shape[1]
    for t in range(out.shape[0]):
        acc = out[t]
        begin = starts[t]
        end = starts[t + 1]
        quads = begin + (end - begin) // 4 * 4
        for k in range(width):
            acc[k] = 0
        for j in range(begin, quads, 4):
            a = rows[indices[j]]
            b = rows[indices[j + 1]]
            c = rows[indices[j + 2]]
            d = rows[indices[j + 3]]
            for k in range(width):
                acc[k] += a[k] + b[k] + c[k] + d[k]
        for j in range(quads, end):
            a = rows[indices[j]]
            for k in range(width):
                acc[k] += a[k]
