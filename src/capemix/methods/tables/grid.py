"""Where the cells of a table's columns lie: fine ones, by declared or paid ranges alone; and the
bins that noisy counts of the fine ones are joined to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.facts import Facts
from capemix.statistics.cells import Column, Columns
from capemix.sums.steps import DeclaredMap

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

FINENESS: Final = (8, 1024)
"""Even cells of a number's range, at least and at most."""

OCTAVES: Final = 16
"""Powers of two about zero, so that a column that is skew has cells where its values are."""

PARTED: Final = 64
"""So many even cells to each part of an octave, of which there are eight at most."""

HELD: Final = 4.0
"""So many times the noise on it an even cell should hold."""

RARE: Final = 0.25
"""Of a usual bin: a category with less is put together with others."""


@dataclass(frozen=True)
class Grid:
    """The fine cells of each column that something is summed of, and for a number the ends of each
    cell."""

    names: tuple[str, ...]
    columns: Columns
    ends: tuple[tuple[float, float], ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each column's cells begin, and where the last one's end."""
        return (0, *np.cumsum([column.cells for column in self.columns]).tolist())

    def boundaries(self, at: int) -> Real:
        """Where a number's cells begin, other than that of missing ones, and where the last
        ends."""
        low, high = self.ends[at]
        return np.array([low, *self.columns[at].edges, max(high, np.nextafter(low, math.inf))])

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(at for at, column in enumerate(self.columns) if not column.bins)


def grid_of(facts: Facts, fineness: int) -> Grid:
    """Of columns whose ranges are known."""
    how = facts.normalise
    if not isinstance(how, DeclaredMap) or how.low is None or how.high is None:
        raise ValueError("the columns' ranges are not known")
    lows, highs = (np.broadcast_to(end, facts.width).tolist() for end in (how.low, how.high))
    table = facts.table
    found, ends, names = [], [], []
    if table is None:
        for place, (low, high) in enumerate(zip(lows, highs, strict=True)):
            found.append(Column(place, edges_of(low, high, fineness)))
            ends.append((low, high))
        return Grid(facts.features, tuple(found), tuple(ends))
    for column, where in zip(table.columns, table.places, strict=True):
        if not column.width:
            continue
        low, high = lows[where.start], highs[where.start]
        if not column.numbers:
            found.append(Column(where.start, bins=tuple(range(column.width))))
        else:
            missing = where.stop - 1 if column.numbers < column.width else None
            edges = edges_of(low, high, fineness, column.step)
            found.append(Column(where.start, edges, missing=missing))
        ends.append((low, high))
        names.append(column.name)
    return Grid(tuple(names), tuple(found), tuple(ends))


def edges_of(
    low: float, high: float, fineness: int, step: float | None = None
) -> tuple[float, ...]:
    """What parts a number's range: values that lie a ``step`` apart have a cell each, if there are
    few. Otherwise there are even cells; finer and finer ones towards zero, or towards the end that
    is nearest to it; and cells for zero and for the ends alone, where values pile up."""
    if high <= low:
        return ()
    if step is not None and (high - low) / step < 2 * fineness:
        first, last = round(low / step), round(high / step)
        return tuple(((np.arange(first, last) + 0.5) * step).tolist())
    pivot = min(max(0.0, low), high)
    parts = min(8, max(1, fineness // PARTED))
    steps = 2.0 ** (-np.arange(1, OCTAVES * parts + 1) / parts)
    even = np.linspace(low, high, fineness + 1)[1:-1]
    near = np.concatenate([pivot + steps * (high - pivot), pivot + steps * (low - pivot)])
    edges = np.concatenate([even, near])
    if step is not None:
        edges = (np.floor(edges / step) + 0.5) * step
        half = step / 2
        points = np.array([low + half, high - half, pivot - half, pivot + half])
    else:
        alone = np.array([low, pivot, high])
        points = np.concatenate([alone, np.nextafter(alone, math.inf)])
    edges = np.unique(np.concatenate([edges, points]))
    return tuple(edges[(edges > low) & (edges <= high)].tolist())


def fineness_of(records: float, noise: float) -> int:
    """A power of two: a fine cell of an even column holds `HELD` times the noise on it, if it
    can."""
    least, most = FINENESS
    wanted = records / (HELD * noise) if noise > 0 else math.inf
    return most if wanted >= most else max(least, 1 << max(0, int(math.log2(max(wanted, 1.0)))))


# -- bins ----------------------------------------------------------------------------------------


def bins_of_number(mass: Real, goal: float, most: int) -> Codes:
    """Neighbours joined until they hold ``goal``; a cell with as much is alone. Each fine cell's
    bin, of ``most`` at most."""
    while True:
        bins, at, held = np.zeros(len(mass), dtype=np.int64), 0, 0.0
        for cell, here in enumerate(mass.tolist()):
            if cell and (held >= goal or here >= goal):
                at, held = at + 1, 0.0
            bins[cell] = at
            held += here
        if at < most:
            return bins
        goal = goal * 1.2 if goal > 0 else 1e-9


def bins_of_category(mass: Real, goal: float, most: int) -> Codes:
    """Those that are rare together, as the last bin."""
    order = np.argsort(-mass, kind="stable")
    alone = min(int((mass >= RARE * goal).sum()), len(mass))
    if alone > most or (alone == most and alone < len(mass)):
        alone = most - 1
    bins = np.full(len(mass), alone, dtype=np.int64)
    bins[order[:alone]] = np.arange(alone)
    return bins


def joined(grid: Grid, bins: list[Codes]) -> Columns:
    """The columns with bins for cells."""
    out = []
    for column, each in zip(grid.columns, bins, strict=True):
        if column.bins:
            out.append(Column(column.place, bins=tuple(each.tolist())))
        else:
            first = np.flatnonzero(np.diff(each))
            edges = tuple(column.edges[at] for at in first.tolist() if at < len(column.edges))
            out.append(Column(column.place, edges, missing=column.missing))
    return tuple(out)


def on_simplex(counts: Real) -> Real:
    """The nearest that are not negative and have the same sum; alike where that is not positive."""
    total = float(counts.sum())
    if total <= 0:
        return np.full(len(counts), max(total, 0.0) / len(counts))
    falling = np.sort(counts)[::-1]
    beyond = (np.cumsum(falling) - total) / np.arange(1, len(counts) + 1)
    return np.asarray(np.maximum(counts - beyond[np.flatnonzero(falling > beyond)[-1]], 0.0))
