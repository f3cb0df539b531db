"""What one record adds to a sum, and what a site's records add up to.

A statistic is a frozen value. What it makes of a record is a function of that record and of the
statistic's own public numbers alone, and never longer than its norm bound, whatever the record is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from capemix.data.persons import together
from capemix.documents import enlist, family
from capemix.queries import SIGNED

Array = npt.NDArray[Any]
Codes = npt.NDArray[np.int64]


@runtime_checkable
class Statistic(Protocol):
    """What one record adds to one of ``groups``: ``width`` numbers of norm ``l2_norm_bound`` at
    most. It reads rows of ``columns`` numbers, and class codes; a code below 0 drops its record."""

    @property
    def columns(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def l2_norm_bound(self) -> float: ...

    def add_to(self, sums: Array, features: Array, labels: Codes, lattice: int | None) -> None:
        """Add what these records add to ``sums``, groups by width: in whole numbers, of which
        ``lattice`` are one norm bound; or with None in real ones."""
        ...


@runtime_checkable
class RowStatistic(Statistic, Protocol):
    """One of which each record's part is kept, so that records can be drawn again and again."""

    def rows_by_group(self, features: Array, labels: Codes, lattice: int | None) -> PreparedRows:
        """What each record adds, a row for each, group by group."""
        ...


@dataclass(frozen=True, eq=False)
class PreparedRows:
    """One site's rows by group, none longer than its bound.

    On the lattice ``by_group`` holds int16 arrays and the bound is ``lattice_norm_bound`` units;
    in real arithmetic it holds float64 arrays, bounded by ``l2_norm_bound``. ``persons``, where it
    is said, are those of the rows: one's rows are drawn together, see `of_persons`.
    """

    by_group: tuple[Array, ...]
    l2_norm_bound: float
    lattice_norm_bound: int | None
    persons: tuple[Codes, ...] | None = None

    def of_persons(self, most: int) -> PreparedRows:
        """One row for each person, what theirs add together: of ``most`` rows at most."""
        if self.persons is None:
            raise ValueError("nothing says whose these rows are")
        pairs = zip(self.by_group, self.persons, strict=True)
        lattice = self.lattice_norm_bound
        return PreparedRows(
            tuple(together(rows, persons) for rows, persons in pairs),
            most * self.l2_norm_bound,
            None if lattice is None else most * lattice,
        )

    def __repr__(self) -> str:
        return f"PreparedRows(groups={len(self.by_group)}, l2_norm_bound={self.l2_norm_bound})"


@dataclass(frozen=True, eq=False)
class SummedRows:
    """What a site's records add up to, groups by width: integers, each record's part (or a
    person's) of norm ``lattice_norm_bound`` at most; or in real arithmetic, ``l2_norm_bound``."""

    sums: Array
    l2_norm_bound: float
    lattice_norm_bound: int | None

    def __repr__(self) -> str:
        return f"SummedRows(shape={self.sums.shape}, l2_norm_bound={self.l2_norm_bound})"


@dataclass(frozen=True, eq=False)
class WaitingRecords:
    """One site's records, of which only those that are drawn are made ready, once they are: what
    each of them adds is too long to keep."""

    features: Array
    labels: Codes
    l2_norm_bound: float
    lattice_norm_bound: int | None

    def __repr__(self) -> str:
        return f"WaitingRecords(l2_norm_bound={self.l2_norm_bound})"


Prepared = PreparedRows | SummedRows | WaitingRecords

_KINDS: dict[str, type] = {}
S = TypeVar("S", bound=type)


def statistic(cls: S) -> S:
    """Make a kind of statistic known by its name, so that a message can carry it to a site."""
    enlist(_KINDS, cls, word="statistics")
    return cls


def kind_of(asked: Statistic) -> str:
    """What this statistic is called in messages and outlines."""
    return str(asked.kind)  # type: ignore[attr-defined]


def replacement_factor_of(asked: Statistic) -> float:
    """The largest change when a record is replaced, over the norm bound: 2, from one end to the
    other, unless the statistic says that it is less (`QueryShape.replacement_factor`)."""
    return float(getattr(asked, "replacement_factor", SIGNED))


family(Statistic, lambda: _KINDS.values())
