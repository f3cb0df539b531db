"""The inner loops in numba: compiled once, cached, and free of the interpreter's lock.

They are in one long module because `Kernels` asks it for all of them, and `plain` has each of them
again.
"""

# mypy: disable-error-code="call-arg,misc,no-untyped-call,no-untyped-def,untyped-decorator"

from __future__ import annotations

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

U64 = np.uint64

FUSED = {"contract"}
"""A product and a sum may be rounded once, together: twice as fast. Lanes stay apart."""


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


@intrinsic
def _multiply(_typing, a, b, c, d):
    """a * b + c + d of 64-bit words, as its high and its low word."""
    del a, b, c, d  # their types, and all are taken for words

    def generate(_context, builder, _signature, words):
        narrow = words[0].type
        wide = type(narrow)(128)
        a, b, c, d = (builder.zext(word, wide) for word in words)
        found = builder.add(builder.add(builder.mul(a, b), c), d)
        both = builder.lshr(found, wide(64)), found
        return cgutils.pack_array(builder, [builder.trunc(each, narrow) for each in both])

    return types.UniTuple(types.uint64, 2)(*[types.uint64] * 4), generate


@numba.njit(nogil=True, cache=True)
def _product(a, m, b, n, out):
    """Of m and n words; whoever calls this gives both as constants, and the loops are unrolled."""
    for k in range(m + n):
        out[k] = U64(0)
    for i in range(m):
        if a[i]:
            carry = U64(0)
            for j in range(n):
                carry, out[i + j] = _multiply(a[i], b[j], out[i + j], carry)
            out[i + n] = carry


@numba.njit(nogil=True, cache=True)
def gaussian_weights(step, ratio, out):
    product = np.empty(6, dtype=np.uint64)
    now = np.empty(3, dtype=np.uint64)
    for k in range(3):
        out[0, k] = U64(0)
        out[1, k] = now[k] = step[k]
    out[0, 3] = U64(1)
    out[1, 3] = U64(0)
    for x in range(2, out.shape[0]):
        _product(now, 3, ratio, 3, product)
        for k in range(3):
            now[k] = product[3 + k]
        _product(out[x - 1], 3, now, 3, product)
        for k in range(3):
            out[x, k] = product[3 + k]
        out[x, 3] = U64(0)


@numba.njit(nogil=True, cache=True)
def rounded_weights(half, coefficients, slope, out):
    last = coefficients.shape[0] - 1
    u = np.empty(4, dtype=np.uint64)
    total = np.empty(4, dtype=np.uint64)
    product = np.empty(8, dtype=np.uint64)
    for x in range(half.shape[0]):
        carry = U64(0)
        for k in range(4):
            carry, u[k] = _multiply(U64(x) * U64(x), slope[k], U64(0), carry)
            total[k] = coefficients[last, k]
        for j in range(last - 1, -1, -1):
            _product(u, 4, total, 4, product)
            carry = U64(0)
            for k in range(4):
                carry, total[k] = _multiply(U64(1), product[3 + k], coefficients[j, k], carry)
        _product(total, 4, half[x], 4, product)
        for k in range(4):
            out[x, k] = product[3 + k]


@numba.njit(nogil=True, cache=True)
def half_sums(rows, out):
    out[:] = U64(0)
    for x in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            out[k, 0] += rows[x, k] & U64(0xFFFFFFFF)
            out[k, 1] += rows[x, k] >> U64(32)


@numba.njit(nogil=True, cache=True)
def scaled(weights, reciprocal, head, middle, tail):
    product = np.empty(10, dtype=np.uint64)
    for x in range(weights.shape[0]):
        _product(weights[x], 4, reciprocal, 6, product)
        head[x] = product[8]
        middle[x] = product[7]
        tail[x] = product[6] >> U64(32)


@numba.njit(nogil=True, cache=True)
def alias_columns(columns_log2, first, table, middle, tail):
    half = U64(32)
    low = U64(0xFFFFFFFF)
    capacity = U64(1) << U64(32 - columns_log2)
    columns = table.shape[0]
    # Two stacks in one array: the small from the front on, the large from the back on.
    stacks = np.empty(columns, dtype=np.int32)
    small = 0
    large = columns
    for i in range(columns):
        if table[i] < capacity:
            stacks[small] = i
            small += 1
        else:
            large -= 1
            stacks[large] = i
    while small:
        small -= 1
        i = stacks[small]
        j = stacks[large]
        # What column i has no room for, it takes off j: left[j] + left[i] - capacity.
        last = tail[j] + tail[i]
        between = middle[j] + middle[i]
        over = U64(between < middle[i])
        tail[j] = last & low
        middle[j] = between + (last >> half)
        over += U64(middle[j] < between)
        table[j] = table[j] + table[i] + over - capacity
        table[i] = table[i] << half | U64(first + j) & low
        if table[j] < capacity:
            large += 1
            stacks[small] = j
            small += 1
    for at in range(large, columns):
        i = stacks[at]
        table[i] = U64(first + i) & low
        middle[i] = U64(0)
        tail[i] = U64(0)


@numba.njit(nogil=True, cache=True)
def floyd(words, starts, population, indices, marks, part):
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
            if marks[value]:
                value = top
            marks[value] = 1
            indices[begin + j] = value
        if not part:
            for j in range(size):
                marks[indices[begin + j]] = 0
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


@numba.njit(nogil=True, cache=True)
def squared_norms(rows, out):
    width = rows.shape[1]
    fours = width // 4 * 4
    for i in range(rows.shape[0]):
        row = rows[i]
        a, b, c, d = row.dtype.type(0), row.dtype.type(0), row.dtype.type(0), row.dtype.type(0)
        for k in range(0, fours, 4):
            a += row[k] * row[k]
            b += row[k + 1] * row[k + 1]
            c += row[k + 2] * row[k + 2]
            d += row[k + 3] * row[k + 3]
        rest = row.dtype.type(0)
        for k in range(fours, width):
            rest += row[k] * row[k]
        out[i] = ((a + b) + (c + d)) + rest


@numba.njit(nogil=True, cache=True, error_model="numpy")
def clipped(rows, limit, out):
    width = rows.shape[1]
    square = np.empty(1, dtype=np.float64)
    most = np.empty(1, dtype=np.float64)
    most_bits = most.view(np.int64)
    bits = rows.view(np.int64)
    for i in range(rows.shape[0]):
        row = rows[i]
        to = out[i]
        # Without their signs, numbers are in the order of their bits, and NaNs above infinity.
        highest = np.int64(0)
        for k in range(width):
            highest = max(highest, bits[i, k] & np.int64(0x7FFFFFFFFFFFFFFF))
        most_bits[0] = highest
        finite = most[0] < np.inf
        # Divide by the largest entry first, so that no square overflows or vanishes.
        unit = most[0] if finite and most[0] > 0.0 else 1.0
        for k in range(width):
            to[k] = row[k] / unit if finite else 0.0
        squared_norms(out[i : i + 1], square)
        norm = np.sqrt(square[0])
        factor = limit / max(norm, 1e-300) if norm * unit > limit else unit
        for k in range(width):
            to[k] *= factor


@numba.njit(nogil=True, cache=True, error_model="numpy")
def centred(rows, how, centres, which, out):
    low, high, shift, scale = how[0], how[1], how[2], how[3]
    width = rows.shape[1]
    for i in range(rows.shape[0]):
        row = rows[i]
        to = out[i]
        centre = centres[which[i]]
        finite = True
        for k in range(width):
            value = low[k] if row[k] < low[k] else row[k]
            value = high[k] if value > high[k] else value
            to[k] = (value - shift[k]) / scale[k]
            finite &= abs(to[k]) < np.inf
        for k in range(width):
            to[k] = (to[k] if finite else 0.0) - centre[k]


@numba.njit(nogil=True, cache=True)
def truncated(rows, scale, most, out):
    width = rows.shape[1]
    for i in range(rows.shape[0]):
        row = rows[i]
        to = out[i]
        square = np.int64(0)
        for k in range(width):
            value = row[k] * scale
            value = value if value == value else 0.0
            whole = np.int32(min(max(value, -most), most))
            to[k] = whole
            square += np.int64(whole) * np.int64(whole)
        if square > most * most:
            to[:] = 0


@numba.njit(nogil=True, cache=True)
def add_by_group(rows, group, sums):
    for i in range(rows.shape[0]):
        row = rows[i]
        to = sums[group[i]]
        for k in range(rows.shape[1]):
            to[k] += row[k]


@numba.njit(nogil=True, cache=True)
def largest(values, offsets, out):
    most = np.empty(256, dtype=np.float64)
    for start in range(0, out.shape[0], 256):
        place = out[start : start + 256]
        place[:] = 0
        for i in range(place.shape[0]):
            most[i] = values[0, start + i] + offsets[0]
        for k in range(1, offsets.shape[0]):
            row = values[k, start : start + 256]
            for i in range(place.shape[0]):
                value = row[i] + offsets[k]
                # As numpy has it: the first NaN is larger than anything.
                more = (not (value <= most[i])) & (most[i] == most[i])
                place[i] = k if more else place[i]
                most[i] = value if more else most[i]


@numba.njit(nogil=True, cache=True, fastmath=FUSED)
def _add_rows(weights, rows, to):
    # Eight rows a pass, so that ``to`` is read and written once for them; still one by one in
    # order, as the numpy twin adds them, save that fused sums are rounded less often.
    count = weights.shape[0]
    eights = count // 8 * 8
    for first in range(0, eights, 8):
        w = weights[first : first + 8]
        x = rows[first : first + 8]
        a, b, c, d, e, f, g, h = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]
        for p in range(to.shape[0]):
            half = to[p] + a * x[0, p] + b * x[1, p] + c * x[2, p] + d * x[3, p]
            to[p] = half + e * x[4, p] + f * x[5, p] + g * x[6, p] + h * x[7, p]
    for i in range(eights, count):
        weight = weights[i]
        row = rows[i]
        for p in range(to.shape[0]):
            to[p] += weight * row[p]


@numba.njit(nogil=True, cache=True)
def leaned(images, by, out):
    count, height, width = images.shape
    bordered = np.zeros(width + 2, dtype=images.dtype)
    for n in range(count):
        for row in range(height):
            bordered[1:-1] = images[n, row]
            shift = by[n] * (row - (height - 1) / 2)
            for column in range(width):
                place = min(max(column - shift, -1.0), float(width)) + 1.0
                left = min(int(place), width)
                part = images.dtype.type(place - left)
                near = bordered[left]
                out[n, row, column] = near + part * (bordered[left + 1] - near)


@numba.njit(nogil=True, cache=True, fastmath=FUSED)
def moduli(values, wavelets, every, out):
    kinds, rows, columns, lanes = out.shape
    side = wavelets.shape[2]
    pairs = side * side // 2
    wide = columns * lanes
    taps = wavelets.reshape(kinds, 2, side * side)
    # A few pairs at a time for all wavelets: what they share stays in the nearest cache.
    both = np.empty((8, wide), dtype=np.float32)
    apart = np.empty((8, wide), dtype=np.float32)
    lines = values.reshape(values.shape[0], values.shape[1] * lanes)
    sums = np.empty((kinds, 2, wide), dtype=np.float32)
    halved = np.float32(0.5) * taps[:, :, pairs:]
    for row in range(rows):
        # The middle is its own pair, at half of its weight.
        _pair(lines, row * every, side, pairs, every, lanes, both[0], apart[0])
        sums[:] = 0
        for k in range(kinds):
            _add_rows(halved[k, 0, :1], both, sums[k, 0])
        for first in range(0, pairs, 8):
            size = min(8, pairs - first)
            for i in range(size):
                _pair(lines, row * every, side, first + i, every, lanes, both[i], apart[i])
            for k in range(kinds):
                part = taps[k, :, first : first + size]
                _add_rows(part[0], both, sums[k, 0])
                _add_rows(part[1], apart, sums[k, 1])
        for k in range(kinds):
            real = sums[k, 0]
            imaginary = sums[k, 1]
            to = out[k, row].reshape(wide)
            for p in range(wide):
                to[p] = np.sqrt(real[p] * real[p] + imaginary[p] * imaginary[p])


@numba.njit(nogil=True, cache=True)
def _pair(lines, top, side, tap, every, lanes, both, apart):
    down = tap // side
    across = tap % side
    upper = lines[top + down, across * lanes :]
    lower = lines[top + side - 1 - down, (side - 1 - across) * lanes :]
    run = both.shape[0] if every == 1 else lanes  # next to one another where no point is left out
    for start in range(0, both.shape[0], run):
        a = upper[start * every : start * every + run]
        b = lower[start * every : start * every + run]
        sums = both[start : start + run]
        differences = apart[start : start + run]
        for p in range(run):
            sums[p] = a[p] + b[p]
            differences[p] = a[p] - b[p]


@numba.njit(nogil=True, cache=True, fastmath=FUSED)
def averages(values, down, across, out):
    kinds, rows, columns, lanes = values.shape
    line = np.empty((columns, lanes), dtype=np.float32)
    for k in range(kinds):
        for i in range(out.shape[1]):
            line[:] = 0
            out[k, i] = 0
            _add_rows(down[i], values[k].reshape(rows, columns * lanes), line.reshape(-1))
            for j in range(out.shape[2]):
                _add_rows(across[j], line, out[k, i, j])
