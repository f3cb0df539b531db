"""How like two tables of one schema are: a release and real rows, or real rows and other real rows.

The second comparison is the *floor*: what chance alone makes of rows of one law. A release is as
faithful as can be seen where its figures are those of the floor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.evaluate.coding import CodedTable
from capemix.randomness.simulation import simulation_generator

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Matrix = tuple[tuple[float, ...], ...]

TRIPLES: Final = 48
"""Sets of three columns that are compared, or all if there are fewer."""

QUERIES: Final = 500
"""Range queries that are asked of both tables."""

_PARTED: Final = 3
"""Columns of a range query, if there are so many."""

_CELLS: Final = 1 << 20
"""Cells of a table of several columns that are counted, whether rows are there or not."""


@dataclass(frozen=True)
class Fidelity:
    """How far two tables are apart; 0 says that nothing tells them apart.

    ``columns`` and ``pairs`` are total variations of each column and each pair of them (0 on the
    diagonal), the label last; ``associations`` are differences of what the function of this name
    finds. ``one_way``, ``two_way`` and ``three_way`` are mean total variations over all columns,
    all pairs and `TRIPLES` sets of three; None where there are no such sets. ``queries`` is the
    mean error of range queries, as a part of all rows, and ``association`` the mean size of the
    differences.
    """

    names: tuple[str, ...]
    columns: tuple[float, ...]
    pairs: Matrix
    associations: Matrix
    one_way: float
    two_way: float | None
    three_way: float | None
    queries: float
    association: float | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def fidelity(one: CodedTable, other: CodedTable) -> Fidelity:
    """Compare two tables of one schema, both with rows."""
    if (one.names, one.sizes) != (other.names, other.sizes):
        raise ValueError("tables of two schemas")
    k = len(one.names)
    columns = [total_variation(one, other, (at,)) for at in range(k)]
    pairs = np.zeros((k, k))
    for left, right in itertools.combinations(range(k), 2):
        pairs[left, right] = pairs[right, left] = total_variation(one, other, (left, right))
    triples = [total_variation(one, other, chosen) for chosen in triples_of(k)]
    apart = associations(one) - associations(other)
    return Fidelity(
        names=one.names,
        columns=tuple(columns),
        pairs=_matrix(pairs),
        associations=_matrix(apart),
        one_way=float(np.mean(columns)),
        two_way=_mean_of_pairs(pairs),
        three_way=float(np.mean(triples)) if triples else None,
        queries=float(np.abs(answers(one) - answers(other)).mean()),
        association=_mean_of_pairs(np.abs(apart)),
    )


def total_variation(one: CodedTable, other: CodedTable, columns: Sequence[int]) -> float:
    """Half of the sum of differences between the parts of the rows in each cell of these columns:
    the largest difference that any question about them can have."""
    place = np.zeros(len(one) + len(other), dtype=np.int64)
    count = 1
    for at in columns:
        place = place * one.sizes[at] + np.concatenate([one.cells[:, at], other.cells[:, at]])
        count *= one.sizes[at]
        if count > _CELLS:  # most are empty: leave those out
            kept, place = np.unique(place, return_inverse=True)
            count = len(kept)
    parts = [
        np.bincount(rows, minlength=count) / len(rows)
        for rows in (place[: len(one)], place[len(one) :])
    ]
    return min(1.0, float(np.abs(parts[0] - parts[1]).sum() / 2))  # sums are rounded


def triples_of(columns: int) -> list[tuple[int, ...]]:
    """Sets of three of so many columns: always the same."""
    if math.comb(columns, 3) <= TRIPLES:
        return list(itertools.combinations(range(columns), 3))
    draws = simulation_generator(0)
    return [tuple(draws.choice(columns, 3, replace=False).tolist()) for _ in range(TRIPLES)]


def answers(table: CodedTable) -> Real:
    """The part of the rows that each of `QUERIES` range queries finds.

    A query is of three columns: of a number an interval of its cells, of a category some of its
    values. Which ones follows from the schema alone.
    """
    found = []
    for query in _queries(table):
        inside = np.ones(len(table), dtype=bool)
        for at, asked in query:
            inside &= asked[table.cells[:, at]]
        found.append(inside.mean())
    return np.array(found)


def _queries(table: CodedTable) -> Iterator[list[tuple[int, npt.NDArray[np.bool_]]]]:
    draws, k = simulation_generator(1), len(table.names)
    for _ in range(QUERIES):
        query = []
        for at in draws.choice(k, min(_PARTED, k), replace=False).tolist():
            size = table.sizes[at] - 1  # what has no value is in no range
            if table.numeric[at]:
                low, high = np.sort(draws.integers(0, size, 2))
                asked = (np.arange(size + 1) >= low) & (np.arange(size + 1) <= high)
            else:
                asked = np.append(draws.integers(0, 2, size) == 1, False)
            query.append((at, asked))
        yield query


def associations(table: CodedTable) -> Real:
    """How each two columns go together: of two numbers Pearson's correlation, a missing one taken
    for the mean; of others Cramer's V of their cells, without its bias (Bergsma 2013)."""
    k, rows = len(table.names), len(table)
    found = np.zeros((k, k))
    numbers = np.flatnonzero(table.numeric)
    if len(numbers):
        values = table.values[:, numbers]
        known = ~np.isnan(values)
        count = np.maximum(known.sum(axis=0), 1)
        centred = np.where(known, values - np.nansum(values, axis=0) / count, 0.0)
        largest = np.abs(centred).max(axis=0, initial=0.0)
        centred /= np.where(largest > 0, largest, 1.0)  # squares neither vanish nor overflow
        lengths = np.sqrt((centred**2).sum(axis=0))
        centred /= np.where(lengths > 0, lengths, 1.0)
        found[np.ix_(numbers, numbers)] = centred.T @ centred
    for left, right in itertools.combinations(range(k), 2):
        if not (table.numeric[left] and table.numeric[right]):
            shape = (table.sizes[left], table.sizes[right])
            place = table.cells[:, left] * shape[1] + table.cells[:, right]
            counts = np.bincount(place, minlength=shape[0] * shape[1]).reshape(shape)
            found[left, right] = found[right, left] = _cramers_v(counts, rows)
    np.fill_diagonal(found, 1.0)
    return found


def _cramers_v(counts: npt.NDArray[np.int64], rows: int) -> float:
    counts = counts[counts.any(axis=1)][:, counts.any(axis=0)]
    if min(counts.shape) < 2 or rows < 2:
        return 0.0
    usual = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / rows
    square = float(((counts - usual) ** 2 / usual).sum()) / rows
    size = np.array(counts.shape, dtype=np.float64)
    square = max(0.0, square - float(np.prod(size - 1)) / (rows - 1))
    most = float((size - (size - 1) ** 2 / (rows - 1)).min()) - 1
    return math.sqrt(min(square / most, 1.0)) if most > 0 else 0.0


def _mean_of_pairs(matrix: Real) -> float | None:
    pairs = matrix[np.triu_indices(len(matrix), 1)]
    return float(pairs.mean()) if len(pairs) else None


def _matrix(values: Real) -> Matrix:
    return tuple(tuple(row) for row in values.tolist())
