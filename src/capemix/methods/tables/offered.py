"""The noisy counts of a table themselves, as tables that are released beside the rows.

They are what the sums say, without bias: not made positive, not made to agree. All of it is
post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capemix.methods.measured import class_names
from capemix.methods.tables.program import CELLS, PAIRS
from capemix.statistics.cells import CLASS_WEIGHT, CellCounts, PairCounts

if TYPE_CHECKING:
    from capemix.collector import Collector
    from capemix.data.column import Column
    from capemix.facts import Facts
    from capemix.methods.tables.columns import Parts
    from capemix.methods.tables.grid import Grid

Real = npt.NDArray[np.float64]


def offer_columns(
    sums: Collector, grid: Grid, counts: Sequence[Real], parts: Sequence[Parts] | None = None
) -> None:
    """How many records each fine cell of each column has; and to which slice and bin it belongs,
    where fine cells were joined to such."""
    facts = sums.plan.known
    unit = CellCounts(facts.width, facts.groups, grid.columns).unit(sums.lattice(CELLS))
    found = []
    for at, (name, here) in enumerate(zip(grid.names, counts, strict=True)):
        first, last = cells_in_words(facts, grid, at)
        table = {"column": _same(name, len(here)), "from": first, "to": last}
        if parts is not None:
            of = parts[at]
            table |= {"bin": of.bins} if facts.groups == 1 else {"slice": of.slices, "bin": of.bins}
        error = np.full(len(here), sums.noise_on(CELLS) / unit)
        found.append(table | {"count": here / unit, "standard_error": error})
    sums.offer("columns", _one_below_the_other(found))


def offer_pairs(
    sums: Collector,
    names: Sequence[str],
    asked: PairCounts,
    pairs: dict[tuple[int, int], Real],
    by_class: Sequence[Real],
) -> None:
    """How many records two columns have in each pair of bins, and a column's slices in each
    class."""
    units, class_unit = asked.units(sums.lattice(PAIRS))
    noise, found = sums.noise_on(PAIRS), []
    for (left, right), table in pairs.items():
        weight, unit = asked.weight(left, right), units[left, right]
        bins, others = np.indices(table.shape)
        found.append(
            {
                "column": _same(names[left], table.size),
                "bin": bins.ravel(),
                "other_column": _same(names[right], table.size),
                "other_bin": others.ravel(),
                "count": table.ravel() * (weight / unit),
                "standard_error": np.full(table.size, noise / unit),
            }
        )
    if found:
        sums.offer("pairs", _one_below_the_other(found))
    classes, found = np.array(class_names(sums.plan.known)), []
    for name, table in zip(names, by_class, strict=False):
        slices, codes = np.indices(table.shape)
        found.append(
            {
                "column": _same(name, table.size),
                "slice": slices.ravel(),
                "class": classes[codes.ravel()],
                "count": table.ravel() * (CLASS_WEIGHT / class_unit),
                "standard_error": np.full(table.size, noise / class_unit),
            }
        )
    if found:
        sums.offer("by_class", _one_below_the_other(found))


def cells_in_words(facts: Facts, grid: Grid, at: int) -> tuple[Any, Any]:
    """The first and the last value of each fine cell of a column, as a file would have them: None
    for missing ones. Of numbers that may lie anywhere, the last is where the next cell begins."""
    if facts.table is None:
        first, last = _ends_of(grid.boundaries(at), None)
        return _words(first), _words(last)
    column = [each for each in facts.table.columns if each.width][at]
    if not column.numbers:
        words = _words(column.cells(np.eye(column.width)))
        return words, words
    first, last = (
        _words(column.cells(_block(column, ends)))
        for ends in _ends_of(grid.boundaries(at), column.step)
    )
    return first, last


def _ends_of(boundaries: Real, step: float | None) -> tuple[Real, Real]:
    """Boundaries lie between values that are a ``step`` apart, but for those of the range."""
    first, last = boundaries[:-1].copy(), boundaries[1:].copy()
    if step is not None:
        first[1:] += step / 2
        last[:-1] -= step / 2
    return first, np.where(last <= np.nextafter(first, np.inf), first, last)


def _block(column: Column, values: Real) -> Real:
    """These, coded; where some may be missing, and one that is."""
    block = np.zeros((len(values) + column.missing, column.width))
    block[: len(values), 0] = values
    if column.missing:
        block[:-1, -2], block[-1, -1] = 1.0, 1.0
    return block


def _words(values: Any) -> Any:
    return np.array([_word(value) for value in values], dtype=object)


def _word(value: Any) -> str | None:
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    return None if value is None or value != value else str(value)


def _same(word: str, times: int) -> npt.NDArray[Any]:
    return np.full(times, word, dtype=object)


def _one_below_the_other(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
