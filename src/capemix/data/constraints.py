"""What a schema may declare of several columns at once: which of their values go together.

A constraint is public knowledge. It is never found in rows, and records that break one are counted
as they are; but no released row breaks one (`capemix.data.mending`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

from capemix.data.column import Column, Value
from capemix.data.columns import Category, Number
from capemix.data.moments import Moment
from capemix.documents import family
from capemix.errors import InputError, quoted

Together = tuple[Value | None, ...]
"""Values of some columns, None for missing."""

Codes = tuple[int, ...]
"""The same as places in the columns' lists."""

MOST: Final = 10_000
"""Combinations that a schema may allow of some columns together."""


class Constraint(ABC):
    """Of columns by their names. A kind is a frozen dataclass, told from others by ``kind``."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns that it is on."""

    @abstractmethod
    def check(self, types: Mapping[str, Column]) -> None:
        """Refuse what these columns cannot have. ``types`` has each of its columns."""

    @abstractmethod
    def __str__(self) -> str:
        """What it says, in words."""


@dataclass(frozen=True)
class Inequality(Constraint):
    """Where both have a value, that of ``low`` is at most that of ``high``."""

    low: str
    high: str
    kind: Literal["inequality"] = "inequality"

    @property
    def columns(self) -> tuple[str, ...]:
        return self.low, self.high

    def check(self, types: Mapping[str, Column]) -> None:
        one, other = types[self.low], types[self.high]
        numbers = isinstance(one, Number) and isinstance(other, Number)
        moments = isinstance(one, Moment) and isinstance(other, Moment) and one.type == other.type
        if not (numbers or moments) or self.low == self.high:
            raise _refused(
                self, "must compare two columns of numbers, or two of one kind of date or time"
            )

    def __str__(self) -> str:
        return f"{self.low} <= {self.high}"


@dataclass(frozen=True)
class Combinations(Constraint):
    """The values of some categories, ``among``, are one of those ``allowed``."""

    among: tuple[str, ...]
    allowed: tuple[Together, ...]
    kind: Literal["combinations"] = "combinations"

    @property
    def columns(self) -> tuple[str, ...]:
        return self.among

    def check(self, types: Mapping[str, Column]) -> None:
        if len(self.among) < 2 or len(set(self.among)) < len(self.among) or not self.allowed:
            raise _refused(self, "must list what is allowed of two columns or more")
        for values in self.allowed:
            if len(values) != len(self.among):
                raise _refused(self, f"must list {len(self.among)} values together, got {values}")
        self.places(types)

    def places(self, types: Mapping[str, Column]) -> frozenset[Codes]:
        """What is allowed."""
        found = (
            tuple(
                place_of(self, types[name], value)
                for name, value in zip(self.among, values, strict=True)
            )
            for values in self.allowed
        )
        return frozenset(found)

    def __str__(self) -> str:
        shown = "; ".join(_together(values) for values in self.allowed[:4])
        more = f" and {len(self.allowed) - 4} more" if len(self.allowed) > 4 else ""
        return f"{', '.join(self.among)} are together one of: {shown}{more}"


@dataclass(frozen=True)
class Dependence(Constraint):
    """The value of the category ``column`` decides that of the category ``decides``: pairs of
    both, in ``map``. What is in no pair decides nothing."""

    column: str
    decides: str
    map: tuple[tuple[Value | None, Value | None], ...]
    kind: Literal["dependence"] = "dependence"

    @property
    def columns(self) -> tuple[str, ...]:
        return self.column, self.decides

    def check(self, types: Mapping[str, Column]) -> None:
        if self.column == self.decides or not self.map:
            raise _refused(self, "must map values of one column to values of another")
        firsts = [place_of(self, types[self.column], first) for first, _ in self.map]
        if len(set(firsts)) < len(firsts):
            raise _refused(self, "must map each value once")
        self.places(types)

    def places(self, types: Mapping[str, Column]) -> frozenset[Codes]:
        """What is allowed."""
        one, other = types[self.column], types[self.decides]
        decided = {place_of(self, one, a): place_of(self, other, b) for a, b in self.map}
        free = [place for place in range(places_in(one)) if place not in decided]
        return frozenset([*decided.items(), *product(free, range(places_in(other)))])

    def __str__(self) -> str:
        shown = "; ".join(_together(pair) for pair in self.map[:4])
        more = f" and {len(self.map) - 4} more" if len(self.map) > 4 else ""
        return f"{self.column} decides {self.decides}: {shown}{more}"


KINDS: Final = (Inequality, Combinations, Dependence)
family(Constraint, lambda: KINDS)


def check_all(constraints: Sequence[Constraint], types: Mapping[str, Column]) -> None:
    """Refuse constraints on what is no column, or that a column cannot meet."""
    for each in constraints:
        for name in each.columns:
            if name not in types:
                raise InputError(
                    "constraints",
                    "name no column of the schema",
                    value=name,
                    fix=f"choose one of {quoted(list(types))}",
                )
        each.check(types)


def places_in(column: Column) -> int:
    """How many values a category can have; missing, the last, is one of them."""
    return len(column.categories) + column.missing if isinstance(column, Category) else 0


def place_of(constraint: Constraint, column: Column, value: Value | None) -> int:
    if not isinstance(column, Category):
        raise _refused(constraint, f"must be of categories, and '{column.name}' is none")
    if value is None and column.missing:
        return len(column.categories)
    alike = [type(each) is type(value) and each == value for each in column.categories]
    if True not in alike:
        raise _refused(constraint, f"has a value that '{column.name}' does not list: {value}")
    return alike.index(True)


def _together(values: Together) -> str:
    return ", ".join(json.dumps(value, ensure_ascii=False) for value in values)


def _refused(constraint: Constraint, problem: str) -> InputError:
    return InputError(
        "constraints", problem, value=str(constraint), fix="correct it, or leave it out"
    )
