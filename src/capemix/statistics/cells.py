"""What records add where the distribution of columns is measured: a 1 at the cell of each value; a
1 at the two cells of each pair of values, and at the cell of each value and the class.

Cells are public: they are laid by declared or paid numbers before a record is looked at. Which cell
a value is in depends on that value alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from capemix.errors import InputError
from capemix.queries import COUNTED
from capemix.sums.rows import bounded_rows
from capemix.sums.statistic import Codes, statistic

Real = npt.NDArray[np.float64]

CLASS_WEIGHT: Final = math.sqrt(2.0)
"""Of a column with the class, or with the target, where another pair of columns has 1: a model that
is trained on the rows learns from these pairs most."""

_AT_ONCE: Final = 1 << 20
"""Numbers that are gone through at a time."""


@dataclass(frozen=True)
class Column:
    """Where a column's cells lie. A number's are parted by ``edges``, each the first value of the
    next cell; if it may be ``missing``, that is the place of a 1 where it is, and such records are
    in one more cell, the last. A category's are those of ``bins``, one for each of the numbers that
    it is coded in, from ``place`` on; a record that has a 1 at none of them is in no cell."""

    place: int
    edges: tuple[float, ...] = ()
    bins: tuple[int, ...] = ()
    missing: int | None = None

    def __post_init__(self) -> None:
        edges = np.asarray(self.edges, dtype=np.float64)
        # Among edges that do not rise, where a value is found depends on the one before it.
        rising = bool(np.isfinite(edges).all() and (np.diff(edges) > 0).all())
        missing = () if self.missing is None else (self.missing,)
        whole = (self.place, *self.bins, *missing)
        listed = all(type(each) is int and each >= 0 for each in whole)
        if not rising or not listed or ((self.edges or missing) and self.bins):
            raise InputError(
                "cells of a column",
                "must be parted by rising finite edges, or be the bins of its categories",
                value=f"{len(self.edges)} edges, {len(self.bins)} bins",
                fix="propose them again",
            )

    @property
    def cells(self) -> int:
        if self.bins:
            return 1 + max(self.bins)
        return 1 + len(self.edges) + (self.missing is not None)

    @property
    def last(self) -> int:
        """The last of a record's numbers that is looked at."""
        return max(self.place + max(1, len(self.bins)) - 1, self.missing or 0)

    def of(self, features: npt.NDArray[Any]) -> Codes:
        """Each record's cell, -1 for none."""
        if self.bins:
            block = features[:, self.place : self.place + len(self.bins)]
            found = np.asarray(self.bins, dtype=np.int64)[block.argmax(axis=1)]
            return np.where((block == 1).any(axis=1), found, -1)
        values = np.nan_to_num(features[:, self.place].astype(np.float64), nan=0.0)
        found = np.searchsorted(np.asarray(self.edges, dtype=np.float64), values, side="right")
        if self.missing is None:
            return found
        return np.where(features[:, self.missing] == 1, self.cells - 1, found)


Columns = tuple[Column, ...]


def cells_of(columns: Columns, features: npt.NDArray[Any]) -> Codes:
    """Each record's cells, columns by records."""
    return np.stack([column.of(features) for column in columns])


@statistic
@dataclass(frozen=True)
class CellCounts:
    """A 1 at the cell of each of a record's values, if its class is known. ``columns`` is how many
    numbers a record has."""

    columns: int
    classes: int
    at: Columns
    kind: Literal["cell counts"] = "cell counts"

    groups: ClassVar = 1
    replacement_factor: ClassVar = COUNTED

    def __post_init__(self) -> None:
        _check_places(self.at, self.columns)

    @property
    def width(self) -> int:
        return sum(column.cells for column in self.at)

    @property
    def l2_norm_bound(self) -> float:
        return math.sqrt(len(self.at))

    def add_to(
        self, sums: npt.NDArray[Any], features: npt.NDArray[Any], labels: Codes, lattice: int | None
    ) -> None:
        one = self._parts(lattice)[0]
        counts = np.zeros(self.width, dtype=np.int64)
        for rows, codes in _pieces(features, labels, self.classes):
            start, all_as_one = 0, np.zeros_like(codes)
            for column in self.at:
                size = column.cells
                counts[start : start + size] += _tables(all_as_one, column.of(rows), 1, size)[0]
                start += size
        sums[0] += counts * one

    def _parts(self, lattice: int | None) -> npt.NDArray[Any]:
        ones = np.ones((1, len(self.at)))
        return np.asarray(bounded_rows(ones, self.l2_norm_bound, lattice)[0])

    def unit(self, lattice: int | None) -> float:
        """What a record adds to a cell, as the sums have it: 1, less what the lattice cuts off."""
        return float(self._parts(lattice)[0]) * _lattice_unit(self.l2_norm_bound, lattice)


@statistic
@dataclass(frozen=True)
class PairCounts:
    """A 1 at the cells of each pair of a record's values, and where there are several classes at
    the cell of each value and the class: there it is `CLASS_WEIGHT`, as it is in the pairs of the
    column ``target``. Of values in pairs the cells are ``at``; of values with the class they are
    ``slices``, which may be finer, and none where there is one class. A table has room for ``most``
    cells of each column, or ``most_slices``, used or not: so many numbers are known beforehand."""

    columns: int
    classes: int
    at: Columns
    slices: Columns
    most: tuple[int, ...]
    most_slices: tuple[int, ...]
    target: int | None = None
    kind: Literal["pair counts"] = "pair counts"

    groups: ClassVar = 1
    replacement_factor: ClassVar = COUNTED

    def __post_init__(self) -> None:
        _check_places(self.at, self.columns)
        if self.classes > 1 or self.slices:
            _check_places(self.slices, self.columns)
        if len(self.slices) != (len(self.at) if self.classes > 1 else 0):
            raise InputError("cells", "must be of the same columns", fix="propose them again")
        for cells, most in ((self.at, self.most), (self.slices, self.most_slices)):
            if any(each.cells > room for each, room in zip(cells, most, strict=True)):
                raise ValueError("a column has more cells than there is room for")
        told = self.target is not None
        if told and (self.classes > 1 or not 0 <= (self.target or 0) < len(self.at)):
            raise ValueError("the target is no column, or stands beside a class")

    @property
    def width(self) -> int:
        return pairs_width(self.most, self.most_slices, self.classes)

    @property
    def l2_norm_bound(self) -> float:
        several = self.classes > 1
        weighted = several or self.target is not None
        return pairs_norm(len(self.at) + several, weighted=weighted)

    def weight(self, left: int, right: int) -> float:
        """Of a pair of columns."""
        return CLASS_WEIGHT if self.target in (left, right) else 1.0

    @cached_property
    def _places(self) -> tuple[tuple[int, int, int], ...]:
        """Of each table of two columns: these, and where it starts."""
        start, found = 0, []
        for one in range(len(self.most)):
            for other in range(one + 1, len(self.most)):
                found.append((one, other, start))
                start += self.most[one] * self.most[other]
        return tuple(found)

    @cached_property
    def _class_places(self) -> tuple[int, ...]:
        """Where each table of a column and the class starts."""
        start, found = pairs_width(self.most, (), self.classes), []
        for room in self.most_slices:
            found.append(start)
            start += room * self.classes
        return tuple(found)

    def add_to(
        self, sums: npt.NDArray[Any], features: npt.NDArray[Any], labels: Codes, lattice: int | None
    ) -> None:
        units = self._parts(lattice)
        for rows, codes in _pieces(features, labels, self.classes):
            at = cells_of(self.at, rows)
            for (left, right, start), unit in zip(self._places, units, strict=False):
                size = self.most[left], self.most[right]
                table = _tables(at[left], at[right], *size).ravel()
                sums[0, start : start + table.size] += table * unit
            for column, start, most in zip(
                self.slices, self._class_places, self.most_slices, strict=True
            ):
                table = _tables(column.of(rows), codes, most, self.classes).ravel()
                sums[0, start : start + table.size] += table * units[-1]

    def _parts(self, lattice: int | None) -> npt.NDArray[Any]:
        pairs = [self.weight(left, right) for left, right, _ in self._places]
        parts = np.array([[*pairs, *[CLASS_WEIGHT] * len(self.slices)]])
        return np.asarray(bounded_rows(parts, self.l2_norm_bound, lattice)[0])

    def units(self, lattice: int | None) -> tuple[dict[tuple[int, int], float], float]:
        """What a record adds to each table of two columns, and to each with the class, as the sums
        have it: the weight, less what the lattice cuts off."""
        parts = self._parts(lattice) * _lattice_unit(self.l2_norm_bound, lattice)
        pairs = {place[:2]: float(part) for place, part in zip(self._places, parts, strict=False)}
        return pairs, float(parts[-1])

    def tables(self, sums: Real) -> tuple[dict[tuple[int, int], Real], list[Real]]:
        """The counts of each pair of columns, cells by cells; and of each column with the class,
        slices by classes."""
        pairs, by_class = {}, []
        for left, right, start in self._places:
            rows, width = self.most[left], self.most[right]
            table = sums[start : start + rows * width].reshape(rows, width)
            table = table[: self.at[left].cells, : self.at[right].cells]
            pairs[left, right] = table / self.weight(left, right)
        for column, start, most in zip(
            self.slices, self._class_places, self.most_slices, strict=True
        ):
            table = sums[start : start + most * self.classes].reshape(most, self.classes)
            by_class.append(table[: column.cells] / CLASS_WEIGHT)
        return pairs, by_class


def _check_places(at: Columns, width: int) -> None:
    if not at or max(each.last for each in at) >= width:
        raise InputError(
            "cells", f"must be of the {width} numbers of a record", fix="propose them again"
        )


def pairs_norm(columns: int, *, weighted: bool) -> float:
    """Of what a record adds to the tables of so many columns, the class being one. ``weighted``:
    the pairs of one of them have `CLASS_WEIGHT`."""
    heavy = columns - 1 if weighted else 0
    return math.sqrt(columns * (columns - 1) / 2 - heavy + heavy * CLASS_WEIGHT**2)


def pairs_width(most: tuple[int, ...], slices: tuple[int, ...], classes: int) -> int:
    """How many cells the tables have of columns of so many cells, and of so many slices by
    classes. Whole numbers of any length: a site holds what it is asked for against this."""
    return (sum(most) ** 2 - sum(size**2 for size in most)) // 2 + sum(slices) * classes


def _lattice_unit(bound: float, lattice: int | None) -> float:
    """What a 1 of the lattice is, in a statistic's units."""
    return 1.0 if lattice is None else bound / lattice


def _tables(left: Codes, right: Codes, rows: int, width: int) -> npt.NDArray[np.int64]:
    """How many records have which two cells; one that is in none adds nothing."""
    known = (left >= 0) & (right >= 0)
    if not known.all():
        left, right = left[known], right[known]
    return np.bincount(left * width + right, minlength=rows * width).reshape(rows, width)


def _pieces(
    features: npt.NDArray[Any], labels: Codes, classes: int
) -> list[tuple[npt.NDArray[Any], Codes]]:
    """Records whose class is known, some at a time."""
    known = (labels >= 0) & (labels < classes)
    if not known.all():
        features, labels = features[known], labels[known]
    step = max(1, _AT_ONCE // max(features.shape[1], 1))
    return [
        (features[start : start + step], labels[start : start + step])
        for start in range(0, len(features), step)
    ]
