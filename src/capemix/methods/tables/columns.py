"""Values of columns from noisy counts of their cells: post-processing."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.methods.tables.grid import bins_of_number, on_simplex

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

SURE: Final = 3.0
"""How often the noise on a bin that values are mapped to goes into what it holds."""

MOST: Final = 64
"""Bins that a column of Gaussian rows is mapped to, at most."""

_ENOUGH: Final = 10
"""So many values in a bin say how they are distributed there."""


def cells_within(
    bins: Codes, labels: Codes, joined: Codes, counts: Real, deviation: float, chance: Real
) -> Codes:
    """For each row a fine cell of its bin. ``joined``: each fine cell's bin. ``counts``: groups by
    fine cells, of each class or of all as one, with noise of ``deviation``. Within a bin a class
    differs from all as far as its counts stand out of the noise (James, Stein)."""
    out = np.empty(len(bins), dtype=np.int64)
    groups = len(counts)
    for each in range(int(joined.max()) + 1):
        cells, mine = np.flatnonzero(joined == each), bins == each
        if not mine.any():
            continue
        if len(cells) == 1:
            out[mine] = cells[0]
            continue
        whole = on_simplex(counts[:, cells].sum(axis=0))
        if whole.sum() <= 0:
            whole = np.ones(len(cells))
        law = whole / whole.sum()
        for group in range(groups):
            some = np.flatnonzero(mine & (labels == group)) if groups > 1 else np.flatnonzero(mine)
            if not len(some):
                continue
            own = law
            if groups > 1:
                own = _shrunk(counts[group, cells], law, deviation)
            ends = np.cumsum(own)
            place = np.searchsorted(ends, chance[some] * ends[-1], side="right")
            out[some] = cells[np.minimum(place, len(cells) - 1)]
    return out


def _shrunk(counts: Real, law: Real, deviation: float) -> Real:
    mass = max(float(counts.sum()), 0.0)
    apart = counts - mass * law
    noise = deviation**2 * (len(counts) - 1)
    found = float((apart**2).sum())
    part = max(0.0, 1.0 - noise / found) if found > 0 else 0.0
    own = np.maximum(mass * law + part * apart, 0.0)
    return own if own.sum() > 0 else law


def values_of(cells: Codes, boundaries: Real, chance: Real) -> Real:
    """A value for each row, even within its cell; of one that holds a single number, that."""
    low, high = boundaries[cells], boundaries[cells + 1]
    alone = high <= np.nextafter(low, np.inf)
    return np.where(alone, low, low + (high - low) * chance)


def mapped(values: Real, counts: Real, boundaries: Real, deviation: float, chance: Real) -> Real:
    """Values of Gaussian rows moved, in their order, so that each bin of a column holds its noisy
    part of them; of equal ones, which are many at the ends of a range, ``chance`` decides, or they
    would be in the order of their classes. Within a bin they are distributed as those are that lay
    there before; evenly, where next to none did."""
    mass = on_simplex(counts)
    if mass.sum() <= SURE * deviation:
        return values
    goal = max(SURE * deviation, mass.sum() / MOST)
    joined = bins_of_number(mass, goal, MOST)
    parts = on_simplex(np.bincount(joined, weights=counts).astype(np.float64))
    ends = np.rint(np.cumsum(parts) / parts.sum() * len(values)).astype(np.int64)
    order = np.lexsort((chance, values))
    ranked = values[order]
    out, start = np.empty_like(values), 0
    for each, end in enumerate(ends.tolist()):
        some = order[start:end]
        start = end
        if not len(some):
            continue
        cells = np.flatnonzero(joined == each)
        low, high = boundaries[cells[0]], boundaries[cells[-1] + 1]
        if high <= np.nextafter(low, np.inf):
            out[some] = low
            continue
        place = (np.arange(len(some)) + 0.5) / len(some)
        inside = ranked[np.searchsorted(ranked, low, "right") : np.searchsorted(ranked, high)]
        if len(inside) >= _ENOUGH:
            out[some] = np.quantile(inside, place)
        else:
            out[some] = low + (high - low) * place
    return out
