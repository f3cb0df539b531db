"""From noisy counts to rows: all of it post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.collector import Collector
from capemix.facts import Facts
from capemix.methods.class_gaussian.draw import gaussian_rows
from capemix.methods.class_gaussian.estimate import estimate_class_gaussians
from capemix.methods.projected import ProjectedSums
from capemix.methods.tables.columns import cells_within, mapped, values_of
from capemix.methods.tables.grid import (
    Grid,
    bins_of_category,
    bins_of_number,
    grid_of,
    joined,
    on_simplex,
)
from capemix.methods.tables.labels import classes_of
from capemix.methods.tables.mixture import PairTables, fitted_mixture, rows_of, uniforms
from capemix.methods.tables.program import CELLS, PAIRS, most_cells, target_of
from capemix.methods.told import listed, sure
from capemix.randomness.source import Source
from capemix.statistics.cells import CLASS_WEIGHT, CellCounts, Column, PairCounts

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

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
    """Noisy counts of fine cells: of each column, groups by cells."""

    grid: Grid
    counts: tuple[Real, ...]
    deviation: float

    def whole(self, at: int) -> Real:
        """Of all classes."""
        return np.asarray(self.counts[at].sum(axis=0))

    def values(self, at: int) -> Real:
        """Of all classes, a number's cells without that of missing ones."""
        return self.whole(at)[: len(self.grid.columns[at].edges) + 1]

    @property
    def whole_deviation(self) -> float:
        return self.deviation * math.sqrt(len(self.counts[0]))


def counted_cells(sums: Collector) -> Counted:
    """Ask for the fine cells."""
    plan = sums.plan
    facts, chosen = plan.known, plan.chosen or {}
    grid = grid_of(facts, chosen["fineness"])
    asked = CellCounts(facts.width, facts.groups, grid.columns, bool(chosen["apart"]))
    noisy = np.asarray(sums.ask(CELLS, asked))
    found = Counted(grid, tuple(np.split(noisy, grid.starts[1:-1], axis=1)), sums.noise_on(CELLS))
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
        ends, doubt = counts[[0, -1]], sure(2) * found.whole_deviation
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
    """Rows whose pairs of columns are as the noisy tables have them."""
    plan = sums.plan
    facts, chosen = plan.known, plan.chosen or {}
    fine = counted_cells(sums)
    records = float(sizes.sum())
    most = most_cells(facts, chosen["fineness"], chosen["bins"])
    bins = _bins(fine, records / chosen["bins"], HEAVY * sums.noise_on(PAIRS), most)
    columns = joined(fine.grid, bins)
    asked = PairCounts(facts.width, facts.groups, columns, most, target_of(facts))
    tables, deviation = asked.tables(sums.ask(PAIRS, asked)[0]), sums.noise_on(PAIRS)
    source = sums.source()
    mixture = fitted_mixture(_pair_tables(fine, bins, asked, tables, deviation, sizes), source)
    rows = round(records) if samples is None else samples
    cells = rows_of(mixture, rows, source)[:-1]
    k, classes = len(columns), facts.groups
    if classes > 1:
        wanted = [tables[at, k] for at in range(k)]
        chance = uniforms(source, ("class", 0), rows)
        labels = classes_of(cells, wanted, deviation / CLASS_WEIGHT, chance)
    else:
        labels = np.zeros(rows, dtype=np.int64)
    return _filled(facts, fine, bins, cells, labels, source)


def _bins(fine: Counted, usual: float, least: float, most: tuple[int, ...]) -> list[Codes]:
    """Each fine cell's bin, column by column."""
    found, goal = [], max(usual, least)
    for at, column in enumerate(fine.grid.columns):
        mass = on_simplex(fine.whole(at))
        if column.bins:
            found.append(bins_of_category(mass, goal, most[at]))
        elif column.missing is None:
            found.append(bins_of_number(mass, goal, most[at]))
        else:  # the last cell is a bin of its own
            bins = bins_of_number(mass[:-1], goal, most[at] - 1)
            found.append(np.append(bins, bins[-1] + 1))
    return found


def _pair_tables(
    fine: Counted,
    bins: list[Codes],
    asked: PairCounts,
    tables: dict[tuple[int, int], Real],
    deviation: float,
    sizes: Real,
) -> PairTables:
    """In parts of the records. A column by itself is what its fine cells and all tables with it
    say, each weighted by its noise."""
    k, classes = len(bins), len(sizes)
    counts = [*(int(each.max()) + 1 for each in bins), classes]
    starts = np.concatenate([[0], np.cumsum(counts)]).tolist()
    records, width = float(sizes.sum()), int(sum(counts))
    owner = np.zeros((k + 1, k + 1))
    pairs = np.zeros((width, width))
    sums = [np.zeros(size) for size in counts]
    weight = [np.zeros(size) for size in counts]
    for (left, right), table in tables.items():
        owner[left, right] = owner[right, left] = asked.weight(left, right) ** 2
        noise = max(deviation, _LEAST) / asked.weight(left, right)
        pairs[starts[left] : starts[left + 1], starts[right] : starts[right + 1]] = table
        pairs[starts[right] : starts[right + 1], starts[left] : starts[left + 1]] = table.T
        for own, axis, other in ((left, 1, right), (right, 0, left)):
            sums[own] += table.sum(axis=axis) / (noise**2 * counts[other])
            weight[own] += 1.0 / (noise**2 * counts[other])
    margins = []
    for at in range(k):
        cells = np.bincount(bins[at])
        precision = 1.0 / (max(fine.whole_deviation, _LEAST) ** 2 * cells)
        sums[at] += np.bincount(bins[at], weights=fine.whole(at)) * precision
        margins.append(on_simplex(sums[at] / (weight[at] + precision)))
    margins.append(np.maximum(sizes, 0.0))
    parts = np.concatenate([each / max(float(each.sum()), 1e-9) for each in margins])
    return PairTables(tuple(counts), pairs / max(records, 1.0), owner, parts)


def _filled(
    facts: Facts, fine: Counted, bins: list[Codes], cells: Codes, labels: Codes, source: Source
) -> tuple[Real, Codes]:
    """Rows of values in these cells, by class."""
    rows = np.zeros((len(labels), facts.width))
    every = np.arange(len(labels))
    for at, column in enumerate(fine.grid.columns):
        chance = uniforms(source, ("cell", at), len(labels))
        found = cells_within(cells[at], labels, bins[at], fine.counts[at], fine.deviation, chance)
        if column.bins:
            rows[every, column.place + found] = 1.0
            continue
        chance = uniforms(source, ("value", at), len(labels))
        there = np.minimum(found, len(column.edges))
        rows[:, column.place] = values_of(there, fine.grid.boundaries(at), chance)
        _mark(rows, column, found > len(column.edges))
    order = np.argsort(labels, kind="stable")
    rows, labels = rows[order], labels[order]
    if facts.table is not None:
        facts.table.restore(rows)
    return rows, labels


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
        noise, counts = fine.whole_deviation, fine.values(at)
        there = slice(None) if column.missing is None else rows[:, column.missing] == 0
        values = rows[there, column.place]
        moved = mapped(values, counts, boundaries, noise, chance[there])
        rows[there, column.place] = moved
