"""The sums of a table, and what is chosen of them by public numbers.

Class sizes; counts of the fine cells of every column, where they can be told from noise; then
counts of all pairs of columns, where those can, or else the sums of a Gaussian for each class.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from capemix.facts import CLASS_SIZES, Facts
from capemix.methods.class_gaussian import gaussian_lines, rank_and_octave
from capemix.methods.shares import OCTAVES, exactly, sizes_share
from capemix.methods.tables.grid import FINENESS, edges_of, fineness_of, grid_of
from capemix.queries import COUNTED, QueryShape, Relation
from capemix.statistics.cells import CLASS_WEIGHT, Column, Columns, pairs_norm, pairs_width

if TYPE_CHECKING:
    from capemix.methods.base import Choice
    from capemix.plan import Plan

CELLS: Final = "cells"
PAIRS: Final = "pairs"

CELLS_PART: Final = 0.2
"""Of what class sizes leave, the part of single columns' cells."""

LEAST_SIGNAL: Final = (200.0, 100.0)
"""So many times the noise on a pair of cells there must be records, and so many times for each
class, or pairs are not counted: of many classes, Gaussians tell more."""

BINS: Final = (4, 32)
"""Of a column in pairs, at least and at most; a category may have twice as many."""

MOST_CELLS: Final = 1000
"""Of all columns in pairs: all pairs of them are counted."""

SLICE: Final = 3.0
"""So many times the noise on it with a class a slice of a column should hold, where there are two
classes; it grows as the root of their number."""

MOST_SLICES: Final = 512
"""Slices of a column that holds as much in each. As many again hold less."""

MOST_CLASS_CELLS: Final = 1 << 20
"""Of all columns' slices with the classes."""

MOST_FINE: Final = 1 << 16
"""Fine cells of all columns."""

LEAST_BINS: Final = 12.0
"""So many times the noise on a cell there must be records, or cells are not counted: four bins of a
column would not stand out of it, and rows of Gaussians are nearer without them."""

NAMES: Final = ("pairs", "fineness", "bins", "slices", "rank", "octave")


def choice_for(
    facts: Facts, multiplier: float, records: float, most_rank: int, relation: Relation
) -> Choice:
    """For so many records, declared or counted with noise, under sums with noise of ``multiplier``
    as one."""
    k, classes = columns_of(facts), facts.groups
    noise = relation.moves(COUNTED) * multiplier
    rest = 1.0 - sizes_share(facts.width)
    on_cell = noise * math.sqrt(k / (CELLS_PART * rest))
    on_pair = noise * norm_of(facts) / math.sqrt((1.0 - CELLS_PART) * rest)
    least, each = LEAST_SIGNAL
    signal = records / on_pair if on_pair > 0 else math.inf
    pairs = has_pairs(facts) and signal >= max(least, each * classes)
    counted = pairs or records >= LEAST_BINS * on_cell
    fineness = _fitting_fineness(facts, fineness_of(records, on_cell)) if counted else 0
    gaussian = {"rank": 0, "octave": 0}
    if not pairs:
        sums = multiplier / math.sqrt((1.0 - CELLS_PART if counted else 1.0) * rest)
        gaussian = rank_and_octave(records, classes, most_rank, sums, relation)
    wanted = math.sqrt(signal / 2.0) if math.isfinite(signal) else BINS[1]
    bins = _fitting(facts, max(BINS[0], min(BINS[1], int(wanted))))
    held = SLICE * max(on_cell, on_pair / CLASS_WEIGHT) * math.sqrt(classes / 2.0)
    slices = int(min(records / held, MOST_SLICES)) if held > 0 else MOST_SLICES
    return {
        "pairs": int(pairs),
        "fineness": fineness,
        "bins": bins,
        "slices": _fitting_slices(facts, max(BINS[0], slices)),
        **gaussian,
    }


def choices_of(facts: Facts, most_rank: int) -> tuple[Choice, ...]:
    """Those between which every choice lies."""
    fine = {"fineness": _fitting_fineness(facts, FINENESS[1])}
    slices = _fitting_slices(facts, MOST_SLICES)
    most = {"bins": _fitting(facts, BINS[1]), "slices": slices, "rank": 0, "octave": 0}
    gaussian = (
        {**cells, "pairs": 0, "rank": rank, "octave": octave, "bins": BINS[0], "slices": BINS[0]}
        for cells in (fine, {"fineness": 0})
        for rank, octave in ((0, 0), (most_rank, OCTAVES - 1))
    )
    pairs = ({"pairs": 1, **fine, **most},) if has_pairs(facts) else ()
    return (*pairs, *gaussian)


def is_possible(chosen: Choice, facts: Facts, most_rank: int) -> bool:
    if set(chosen) != set(NAMES):
        return False
    fineness, bins, slices = (chosen[name] for name in ("fineness", "bins", "slices"))
    most = _fitting_fineness(facts, FINENESS[1])
    cells = FINENESS[0] <= fineness <= most and fineness & (fineness - 1) == 0
    return (
        chosen["pairs"] in (0, int(has_pairs(facts)))
        and (cells or (fineness == 0 and not chosen["pairs"]))
        and 2 <= bins <= _fitting(facts, BINS[1])
        and 2 <= slices <= _fitting_slices(facts, MOST_SLICES)
        and 0 <= chosen["rank"] <= most_rank
        and 0 <= chosen["octave"] < OCTAVES
    )


def lines_of(plan: Plan, chosen: Choice) -> tuple[QueryShape, ...]:
    """The outline, for this choice."""
    facts = plan.known
    k, classes = columns_of(facts), facts.groups
    counted = not plan.opening and facts.class_sizes is None
    first = sizes_share(facts.width)
    rest = 1.0 - first if counted else 1.0
    sizes = QueryShape(
        CLASS_SIZES,
        facts.tells_class,
        "class counts",
        1,
        classes,
        share=first,
        replacement_factor=COUNTED,
    )
    part = (1.0 - CELLS_PART if chosen["fineness"] else 1.0) * rest
    cells = QueryShape(
        CELLS,
        "each value's cell",
        "cell counts",
        _cells(facts, chosen["fineness"] or FINENESS[0]),
        1,
        l2_norm_bound=math.sqrt(k),
        share=CELLS_PART * rest,
        replacement_factor=COUNTED,
    )
    after: tuple[QueryShape, ...]
    if chosen["pairs"]:
        pairs = QueryShape(
            PAIRS,
            "the cells of each pair of values",
            "pair counts",
            pairs_width(
                most_cells(facts, chosen["fineness"], chosen["bins"]),
                most_slices(facts, chosen["fineness"], chosen["slices"]),
                classes,
            ),
            l2_norm_bound=norm_of(facts),
            share=part,
            replacement_factor=COUNTED,
        )
        after = (pairs,)
    else:
        own = gaussian_lines(facts.width, classes, chosen)
        whole = sum(line.share for line in own)
        after = tuple(replace(line, share=line.share / whole * part) for line in own)
    found = (*((sizes,) if counted else ()), *((cells,) if chosen["fineness"] else ()), *after)
    return exactly(found)


def columns_of(facts: Facts) -> int:
    """How many columns something is summed of, categories as one each."""
    if facts.table is None:
        return facts.width
    return sum(column.width > 0 for column in facts.table.columns)


def has_pairs(facts: Facts) -> bool:
    """Whether there are two columns, the class being one where there are several."""
    return columns_of(facts) + (facts.groups > 1) > 1


def target_of(facts: Facts) -> int | None:
    """The place of the column that models will predict, if one is declared."""
    return None if facts.table is None else facts.table.target_place


def norm_of(facts: Facts) -> float:
    """Of what a record adds to the tables of all pairs."""
    several = facts.groups > 1
    weighted = several or target_of(facts) is not None
    return pairs_norm(columns_of(facts) + several, weighted=weighted)


def most_cells(facts: Facts, fineness: int, bins: int) -> tuple[int, ...]:
    """How many cells each column has in pairs, at most."""
    fine = _fine(facts, fineness)
    return tuple(min(column.cells, 2 * bins if column.bins else bins) for column in fine)


def most_slices(facts: Facts, fineness: int, slices: int) -> tuple[int, ...]:
    """How many slices each column has, at most: none where all records are of one class."""
    if facts.groups == 1:
        return ()
    return tuple(min(column.cells, 2 * slices) for column in _fine(facts, fineness))


@lru_cache(maxsize=64)
def _fitting(facts: Facts, bins: int) -> int:
    """The most bins up to these with which all columns together have no more than `MOST_CELLS`."""
    fineness = _fitting_fineness(facts, FINENESS[1])
    while bins > 2 and sum(most_cells(facts, fineness, bins)) > MOST_CELLS:
        bins -= 1
    return bins


def _fitting_slices(facts: Facts, slices: int) -> int:
    """The same of slices and `MOST_CLASS_CELLS`, but that the most is found in steps."""
    return min(slices, _most_fitting_slices(facts))


@lru_cache(maxsize=64)
def _most_fitting_slices(facts: Facts) -> int:
    fineness = _fitting_fineness(facts, FINENESS[1])
    room, slices = MOST_CLASS_CELLS // facts.groups, MOST_SLICES
    while slices > 2 and sum(most_slices(facts, fineness, slices)) > room:
        slices = max(2, slices * 3 // 4)
    return slices


@lru_cache(maxsize=64)
def _fitting_fineness(facts: Facts, fineness: int) -> int:
    """The finest up to this with which all columns together have no more than `MOST_FINE` cells."""
    while fineness > FINENESS[0] and _cells(facts, fineness) > MOST_FINE:
        fineness //= 2
    return fineness


def message_bytes_of(facts: Facts) -> int:
    """Of all edges of cells, as a message has them: bins', and slices'."""
    fine = _cells(facts, _fitting_fineness(facts, FINENESS[1]))
    return 64 * columns_of(facts) + 64 * fine


@lru_cache(maxsize=64)
def _fine(facts: Facts, fineness: int) -> Columns:
    """The fine cells; until ranges are measured, those of a likely one."""
    if facts.normalise is None:
        return (Column(0, edges_of(-1.0, 1.0, fineness)),) * facts.width
    return grid_of(facts, fineness).columns


def _cells(facts: Facts, fineness: int) -> int:
    return sum(column.cells for column in _fine(facts, fineness))
