"""From noisy counts to rows: all of it post-processing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.collector import Collector
from capemix.facts import Facts
from capemix.methods.class_gaussian.draw import gaussian_rows
from capemix.methods.class_gaussian.estimate import estimate_class_gaussians
from capemix.methods.projected import ProjectedSums
from capemix.methods.tables.columns import Parts, cells_within, mapped, values_of
from capemix.methods.tables.grid import (
    Grid,
    bins_of_category,
    bins_of_number,
    grid_of,
    joined,
    on_simplex,
)
from capemix.methods.tables.labels import ByClass, classes_of
from capemix.methods.tables.mixture import (
    PairTables,
    fitted_mixture,
    rows_of,
    uniforms,
    without_noise,
)
from capemix.methods.tables.offered import offer_columns, offer_pairs
from capemix.methods.tables.program import CELLS, PAIRS, most_cells, most_slices, target_of
from capemix.methods.told import listed, sure
from capemix.randomness.source import Source
from capemix.statistics.cells import CLASS_WEIGHT, CellCounts, Column, PairCounts

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

HEAVY: Final = 2.0
"""So many times the noise on all pairs with it a bin holds, at least."""

CUT_OFF: Final = 0.1
"""The part of the records at an end of a range from which it is said."""

_LEAST: Final = 1e-6
"""Of a deviation by which things are weighted."""

_NARROW: Final = 0.02
"""Of a range: a cell at its end that is no wider holds little but what was moved there."""


@dataclass(frozen=True, eq=False)
class Counted:
    """Noisy counts of each column's fine cells."""

    grid: Grid
    counts: tuple[Real, ...]
    deviation: float

    def values(self, at: int) -> Real:
        """A number's cells without that of missing ones."""
        return self.counts[at][: len(self.grid.columns[at].edges) + 1]


def counted_cells(sums: Collector) -> Counted:
    """Ask for the fine cells."""
    plan = sums.plan
    facts, chosen = plan.known, plan.chosen or {}
    grid = grid_of(facts, chosen["fineness"])
    noisy = sums.ask(CELLS, CellCounts(facts.width, facts.groups, grid.columns))[0]
    found = Counted(grid, tuple(np.split(noisy, grid.starts[1:-1])), sums.noise_on(CELLS))
    sums.warn(*_cut_off(found))
    return found


def _cut_off(found: Counted) -> tuple[str, ...]:
    """Which numbers surely lie at an end of their range, or beyond it, in many records."""
    out = []
    for at in found.grid.numbers:
        counts, boundaries = found.values(at), found.grid.boundaries(at)
        if len(counts) < 2:
            continue
        alone = np.array([boundaries[1] - boundaries[0], boundaries[-1] - boundaries[-2]])
        narrow = alone < _NARROW * (boundaries[-1] - boundaries[0])
        unlike = np.array([boundaries[0], boundaries[-1]]) != 0.0  # zeros are often many
        ends, doubt = counts[[0, -1]], sure(2) * found.deviation
        surely = ends - doubt > CUT_OFF * max(float(counts.sum()), 1.0)
        if (surely & narrow & unlike).any():
            out.append(found.grid.names[at])
    if not out:
        return ()
    return (
        f"ranges: more than {CUT_OFF:.0%} of the records lie at an end of the range of"
        f" {listed(out)}, or beyond it and were moved there; if that is not how the data are,"
        " declare a wider range",
    )


# -- by pairs --------------------------------------------------------------------------------------


def rows_by_pairs(sums: Collector, sizes: Real, samples: int | None) -> tuple[Real, Codes]:
    """Rows whose pairs of columns, and each column with the class, are as counted."""
    plan = sums.plan
    facts, chosen = plan.known, plan.chosen or {}
    fine = counted_cells(sums)
    records = float(sizes.sum())
    room = (
        most_cells(facts, chosen["fineness"], chosen["bins"]),
        most_slices(facts, chosen["fineness"], chosen["slices"]),
    )
    several = facts.groups > 1
    goal = max(records / chosen["bins"], HEAVY * sums.noise_on(PAIRS))
    parts = _parts(fine, goal, records / chosen["slices"] if several else goal, *room)
    columns = joined(fine.grid, [each.bins for each in parts])
    slices = joined(fine.grid, [each.slices for each in parts]) if several else ()
    asked = PairCounts(facts.width, facts.groups, columns, slices, *room, target_of(facts))
    pairs, by_class = asked.tables(sums.ask(PAIRS, asked)[0])
    offer_columns(sums, fine.grid, fine.counts, parts)
    offer_pairs(sums, fine.grid.names, asked, pairs, by_class)
    noise = max(sums.noise_on(PAIRS), _LEAST)
    joins = [each.slices for each in parts], [each.of_slices for each in parts]
    known = ByClass(by_class, noise / CLASS_WEIGHT, *joins, sizes)
    source = sums.source()
    mixture = fitted_mixture(_pair_tables(fine, parts, asked, pairs, noise, known), source)
    rows = round(records) if samples is None else samples
    bins = rows_of(mixture, rows, source)
    return _filled(facts, fine, parts, bins, known, source)


def _parts(
    fine: Counted, goal: float, less: float, most: tuple[int, ...], slices: tuple[int, ...]
) -> list[Parts]:
    """Each column's fine cells joined to slices that hold ``less``, and these to bins that hold
    ``goal``. Where there is one class, a bin is a slice. Missing numbers are apart."""
    found = []
    for at, (column, room) in enumerate(zip(fine.grid.columns, slices or most, strict=True)):
        apart = column.missing is not None
        join = bins_of_category if column.bins else bins_of_number
        mass = on_simplex(fine.counts[at])
        mass = mass[:-1] if apart else mass
        some = join(mass, min(less, goal), room - apart)
        held = np.bincount(some, weights=mass).astype(np.float64)
        whole = join(held, goal, most[at] - apart)
        if apart:
            some, whole = (np.append(each, each.max() + 1) for each in (some, whole))
        found.append(Parts(some, whole))
    return found


def _pair_tables(
    fine: Counted,
    parts: list[Parts],
    asked: PairCounts,
    tables: dict[tuple[int, int], Real],
    noise: float,
    known: ByClass,
) -> PairTables:
    """In parts of the records. A column by itself is what its fine cells and all tables with it
    say, each weighted by its noise."""
    counts = [int(each.of_slices.max()) + 1 for each in parts]
    starts = np.concatenate([[0], np.cumsum(counts)]).tolist()
    of_cells = max(fine.deviation, _LEAST) ** -2
    of_slices = 1.0 / (known.deviation**2 * len(known.sizes))
    sums, precisions = [], []
    for at, each in enumerate(parts):
        precision = of_cells / np.bincount(each.bins)
        found = np.bincount(each.bins, weights=fine.counts[at]) * precision
        if known.counts:
            by_slices = of_slices / np.bincount(each.of_slices)
            held = known.counts[at].sum(axis=1)
            found = found + np.bincount(each.of_slices, weights=held) * by_slices
            precision = precision + by_slices
        sums.append(found)
        precisions.append(precision)
    for (left, right), table in tables.items():
        for own, axis, other in ((left, 1, right), (right, 0, left)):
            known_as = asked.weight(left, right) ** 2 / (noise**2 * counts[other])
            sums[own] = sums[own] + table.sum(axis=axis) * known_as
            precisions[own] = precisions[own] + known_as
    margins = [on_simplex(each / weight) for each, weight in zip(sums, precisions, strict=True)]
    laws = [each / max(float(each.sum()), 1e-9) for each in margins]
    records = max(float(known.sizes.sum()), 1.0)
    weights = np.zeros((len(parts), len(parts)))
    pairs = np.zeros((starts[-1], starts[-1]))
    for (left, right), table in tables.items():
        weight = asked.weight(left, right)
        weights[left, right] = weights[right, left] = weight**2
        rows, columns = (slice(starts[at], starts[at + 1]) for at in (left, right))
        alone = np.outer(laws[left], laws[right])
        cleared = alone + without_noise(table / records - alone, noise / weight / records)
        pairs[rows, columns], pairs[columns, rows] = cleared, cleared.T
    return PairTables(tuple(counts), pairs, weights, np.concatenate(laws))


def _filled(
    facts: Facts, fine: Counted, parts: list[Parts], cells: Places, known: ByClass, source: Source
) -> tuple[Real, Codes]:
    """Rows of values, and their classes, by class. ``cells`` are bins, which become fine cells in
    place."""
    count = cells.shape[1]
    for at, each in enumerate(parts):
        first = float(uniforms(source, ("first cell", at), 1)[0])
        chance = uniforms(source, ("cell", at), count)
        held = _held(fine, each, known, at)
        cells[at] = cells_within(cells[at], each, fine.counts[at], held, first, chance)
    labels = np.zeros(count, dtype=np.int64)
    if known.counts:
        labels = classes_of(cells, known, uniforms(source, ("class", 0), count))
    order = np.argsort(labels, kind="stable")
    labels, every = labels[order], np.arange(count)
    rows = np.zeros((count, facts.width))
    for at, column in enumerate(fine.grid.columns):
        mine = cells[at, order]
        if column.bins:
            rows[every, column.place + mine] = 1.0
            continue
        chance = uniforms(source, ("value", at), count)
        there = np.minimum(mine, len(column.edges))
        rows[:, column.place] = values_of(there, fine.grid.boundaries(at), chance)
        _mark(rows, column, mine > len(column.edges))
    if facts.table is not None:
        facts.table.restore(rows)
    return rows, labels


def _held(fine: Counted, parts: Parts, known: ByClass, at: int) -> Real:
    """What each slice of a column holds, by its fine cells and by its classes."""
    counted = np.bincount(parts.slices, weights=fine.counts[at]).astype(np.float64)
    if not known.counts:
        return counted
    noise = fine.deviation**2 * np.bincount(parts.slices)
    part = noise / (noise + known.deviation**2 * len(known.sizes))
    return np.asarray(part * known.counts[at].sum(axis=1) + (1.0 - part) * counted)


def _mark(rows: Real, column: Column, missing: npt.NDArray[np.bool_]) -> None:
    """Which rows have a value of a number that may be missing, and which have none."""
    if column.missing is not None:
        rows[:, column.missing - 1], rows[:, column.missing] = ~missing, missing


# -- by Gaussians ----------------------------------------------------------------------------------


def rows_by_gaussians(
    taking: ProjectedSums, sizes: Real, samples: int | None
) -> tuple[Real, Codes]:
    """Rows of a Gaussian for each class, with columns that are distributed as they are counted, if
    they are."""
    sums = taking.sums
    facts = sums.plan.known
    fine = counted_cells(sums) if (sums.plan.chosen or {})["fineness"] else None
    if fine is not None:
        offer_columns(sums, fine.grid, fine.counts)
    found = estimate_class_gaussians(taking, sizes)
    source = sums.source()
    rows, labels = gaussian_rows(facts, found, samples, source)
    if fine is not None:
        _move(rows, fine, source)
    if facts.table is not None:
        facts.table.restore(rows)
    return rows, labels


def _move(rows: Real, fine: Counted, source: Source) -> None:
    """Each column of numbers to what is counted of it; in place."""
    for at in fine.grid.numbers:
        column, boundaries = fine.grid.columns[at], fine.grid.boundaries(at)
        chance = uniforms(source, ("tie", at), len(rows))
        noise, counts = fine.deviation, fine.values(at)
        there = slice(None) if column.missing is None else rows[:, column.missing] == 0
        values = rows[there, column.place]
        moved = mapped(values, counts, boundaries, noise, chance[there])
        rows[there, column.place] = moved
