"""Values of columns from noisy counts of their cells: post-processing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.methods.tables.grid import bins_of_number, on_simplex

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

SURE: Final = 3.0
"""How often the noise on a bin that values are mapped to goes into what it holds."""

MOST: Final = 64
"""Bins that a column of Gaussian rows is mapped to, at most."""

_ENOUGH: Final = 10
"""So many values in a bin say how they are distributed there."""


@dataclass(frozen=True, eq=False)
class Parts:
    """A column's fine cells joined to slices, and its slices to bins."""

    slices: Codes
    of_slices: Codes

    @property
    def bins(self) -> Codes:
        """Of each fine cell."""
        return np.asarray(self.of_slices[self.slices])


def cells_within(
    bins: Places, parts: Parts, counts: Real, held: Real, first: float, chance: Real
) -> Places:
    """For each row a fine cell of its bin. ``counts``: noisy ones of each fine cell. ``held``:
    what each slice holds. Of the cells of a bin there are as many as they hold, to one, from
    ``first`` of a step on, in the order of ``chance``."""
    out = np.empty(len(bins), dtype=np.int32)
    law = np.empty(len(counts))
    for each in range(len(held)):
        cells = np.flatnonzero(parts.slices == each)
        law[cells] = _law(counts[cells])
    order = np.lexsort((chance, bins))
    ends = np.searchsorted(bins[order], np.arange(int(parts.of_slices.max()) + 2))
    for each in range(len(ends) - 1):
        mine = order[ends[each] : ends[each + 1]]
        if not len(mine):
            continue
        cells, slices = np.flatnonzero(parts.bins == each), parts.of_slices == each
        masses = np.zeros(len(held))
        masses[slices] = _law(held[slices])
        up_to = np.cumsum(masses[parts.slices[cells]] * law[cells])
        place = (np.arange(len(mine)) + first) / len(mine)
        found = np.searchsorted(up_to, place * up_to[-1], side="right")
        out[mine] = cells[np.minimum(found, len(cells) - 1)]
    return out


def _law(counts: Real) -> Real:
    """Parts of one; alike where nothing is held."""
    mass = on_simplex(counts)
    whole = float(mass.sum())
    return mass / whole if whole > 0 else np.full(len(counts), 1.0 / len(counts))


def values_of(cells: Places, boundaries: Real, chance: Real) -> Real:
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
