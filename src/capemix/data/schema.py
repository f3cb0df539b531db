"""What is public of a table's columns, as its owner declares it, and rows coded by it.

A numeric column has a range, may be of whole numbers, and may be taken by its logarithm; a category
has a list of values. Coded, a number stands as it is or as its logarithm, and a category is a block
of zeros with a 1 at its value, so that a block's norm is at most 1. Every rule looks at one cell
and at what is declared: a value off the list counts as missing, and missing is a value of its own
where the owner says so, and else a block of zeros. A record without a number where one is
declared, or without a listed label, counts for nothing.

A schema may be drafted from rows (`capemix.data.draft`). Then it says so, and a release by it has
no guarantee until its owner has confirmed that everything in it is public knowledge.
"""

from __future__ import annotations

import hashlib
import json
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from capemix.data.cells import LARGEST_WHOLE, Cells, are_distinct, places
from capemix.data.rows import MAX_CLASSES, LabeledRows
from capemix.documents import as_json, family, read
from capemix.errors import InputError

DRAFTED: Final = "what the schema says of ranges and lists"
"""What a draft that nobody has confirmed has read from rows."""

Value = str | int | bool
Codes = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]


_GRID: Final = 2.0**32
"""Logarithms are whole numbers over this: a power taken back has the same one on every machine."""

_MOST_LOG: Final = 1e300
"""Numbers between 1 over this and this have logarithms that can be taken back."""

_LARGEST: Final = sys.float_info.max

WIDE: Final = 3.0
"""A range above 0 is wide if its high end is so many times its low end, or more; chosen on training
rows that were held out, see docs/research/tables.md."""


class Column(ABC):
    """A column of a table, as its owner declares it: a `Number` or a `Category`."""

    name: str

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers of a coded row are its."""

    @property
    @abstractmethod
    def coded_names(self) -> tuple[str, ...]:
        """What these numbers are called."""

    @abstractmethod
    def read(self, cells: Cells) -> Real | Codes:
        """Each record's number (NaN for none), or place in the list (-1 for none)."""

    @abstractmethod
    def write(self, read: Real | Codes, coded: Real) -> None:
        """What was read, coded: into zeros."""

    @abstractmethod
    def cells(self, coded: Real) -> npt.NDArray[Any] | list[Value | None]:
        """One cell for each row, in the column's own type; None for missing."""

    @abstractmethod
    def strays(self, coded: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which cells have none of the listed values, or one outside of the range."""


family(Column, lambda: (Number, Category), tag="type")


@dataclass(frozen=True)
class Number(Column):
    """A numeric column: values lie, or are moved, between ``low`` and ``high``; with the scale
    "log" they are coded by their logarithm, for what is skewed and never 0."""

    name: str
    type: Literal["integer", "number"] = field(default="number", kw_only=True)
    low: int | float
    high: int | float
    scale: Literal["linear", "log"] = field(default="linear", kw_only=True)

    def __post_init__(self) -> None:
        ends = (self.low, self.high)
        if not all(type(end) in (int, float) and abs(end) <= _LARGEST for end in ends) or (
            self.low >= self.high
        ):
            raise InputError(
                f"column '{self.name}'",
                "must have two finite numbers, low < high",
                value=f"{self.low}, {self.high}",
                fix="give the smallest and largest value that it can take",
            )
        whole = all(float(end).is_integer() and abs(end) <= LARGEST_WHOLE for end in ends)
        if self.whole and not whole:
            raise InputError(
                f"column '{self.name}'",
                "is of integers, and so must its range be, below 2^53",
                value=f"{self.low}, {self.high}",
                fix="round its ends, or make it a number",
            )
        within = self.low >= 1 / _MOST_LOG and self.high <= _MOST_LOG
        if self.log and not (within and self.ends[0] < self.ends[1]):
            raise InputError(
                f"column '{self.name}'",
                f"is by its logarithm: its range must lie between {1 / _MOST_LOG:g} and"
                f" {_MOST_LOG:g}, and be no single value",
                value=f"{self.low}, {self.high}",
                fix="give a range above 0, or leave the scale out",
            )

    @property
    def whole(self) -> bool:
        return self.type == "integer"

    @property
    def log(self) -> bool:
        return self.scale == "log"

    @property
    def width(self) -> int:
        return 1

    @property
    def wide(self) -> bool:
        """Whether these are real numbers of a wide range above 0, as measures of size have."""
        ends = self.low >= 1 / _MOST_LOG and WIDE * self.low <= self.high <= _MOST_LOG
        return ends and not self.whole

    @property
    def ends(self) -> tuple[float, float]:
        """The range of what is coded."""
        low, high = self.coded(np.array([self.low, self.high], dtype=np.float64))
        return float(low), float(high)

    def coded(self, values: Real) -> Real:
        """What stands for the values, those outside of the range told apart from those inside."""
        if not self.log:
            return values
        inside = np.rint(np.log(np.clip(values, self.low, self.high)) * _GRID) / _GRID
        # Of 0 and less there is no logarithm: whatever lies outside lies 1 outside.
        return np.asarray(inside - (values < self.low) + (values > self.high))

    @property
    def coded_names(self) -> tuple[str, ...]:
        return (self.name,)

    def read(self, cells: Cells) -> Real:
        return np.asarray(cells.numbers([self.name])[:, 0], dtype=np.float64)

    def write(self, read: Real | Codes, coded: Real) -> None:
        coded[:, 0] = self.coded(read.astype(np.float64, copy=False))

    def values(self, coded: Real) -> Real:
        """The values that stand behind the codes, also outside of the range."""
        if not self.log:
            return coded
        low, high = self.ends
        values = np.exp(coded)
        inside = (coded >= low) & (coded <= high)
        return np.where(inside, np.clip(values, self.low, self.high), values)

    def restored(self, coded: Real) -> Real:
        """As coded: what is released, in the range, whole where the column is."""
        return self.coded(self._released(coded))

    def cells(self, coded: Real) -> npt.NDArray[Any]:
        values = self._released(coded[:, 0])
        return values.astype(np.int64) if self.whole else values

    def _released(self, coded: Real) -> Real:
        values = np.clip(self.values(coded), self.low, self.high)
        return np.rint(values) if self.whole else values

    def strays(self, coded: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        low, high = self.ends
        return np.asarray((coded[:, 0] < low) | (coded[:, 0] > high))

    def __str__(self) -> str:
        how = ", by its logarithm" if self.log else ""
        return f"{'integer' if self.whole else 'number'} from {self.low} to {self.high}{how}"


@dataclass(frozen=True)
class Category(Column):
    """A column of listed values, all text, all whole numbers or all truth values; with
    ``missing``, what is missing or off the list is one more."""

    name: str
    type: Literal["category"] = field(default="category", kw_only=True)
    categories: tuple[Value, ...]
    missing: bool = False

    def __post_init__(self) -> None:
        kinds = {type(value) for value in self.categories}
        if len(kinds) != 1 or not kinds <= {str, int, bool}:
            raise InputError(
                f"column '{self.name}'",
                "must list its categories: all text, all integers, or true and false",
                value=sorted(kind.__name__ for kind in kinds),
                fix="list every value that it can take",
            )
        if kinds == {int} and max(map(abs, self.categories)) > LARGEST_WHOLE:  # type: ignore[arg-type]
            raise InputError(
                f"column '{self.name}'",
                "must list integers below 2^53",
                value=max(self.categories, key=abs),  # type: ignore[arg-type]
                fix="put a letter before each",
            )
        if not are_distinct(self.categories) or self.width > MAX_CLASSES:
            raise InputError(
                f"column '{self.name}'",
                f"must list at most {MAX_CLASSES} categories, each once and in one spelling",
                value=len(self.categories),
                fix="shorten the list: 1, 1.0 and '1' are the same, and so are true and TRUE",
            )

    @property
    def width(self) -> int:
        return len(self.categories) + self.missing

    @property
    def coded_names(self) -> tuple[str, ...]:
        words = [*self.categories, *(["(missing)"] if self.missing else [])]
        return tuple(f"{self.name}={word}" for word in words)

    def read(self, cells: Cells) -> Codes:
        off_list = len(self.categories) if self.missing else -1
        return cells.words(self.name).codes(places(self.categories), off_list)

    def write(self, read: Real | Codes, coded: Real) -> None:
        listed = np.flatnonzero(read >= 0)
        coded[listed, read[listed].astype(np.int64, copy=False)] = 1.0

    def cells(self, coded: Real) -> list[Value | None]:
        if not (coded.max(axis=1) > 0).all():
            raise ValueError("a block without a category")
        words: list[Value | None] = [*self.categories, *([None] if self.missing else [])]
        return [words[place] for place in coded.argmax(axis=1)]

    def strays(self, coded: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        return np.asarray(coded[:, : len(self.categories)].max(axis=1) == 0)

    def __str__(self) -> str:
        listed = ", ".join(json.dumps(value, ensure_ascii=False) for value in self.categories)
        return listed + (", or missing" if self.missing else "")


@dataclass(frozen=True)
class Table:
    """A table's columns, and the label with its classes: all declared public. ``drafted``: its
    ranges and lists were read from rows. ``confirmed``: the digest of what their owner said to be
    public knowledge; it holds for that alone, see `is_confirmed`."""

    format: Literal["capemix-schema/1"] = field(
        default="capemix-schema/1", kw_only=True, repr=False
    )
    columns: tuple[Column, ...]
    label: Category
    drafted: bool = False
    confirmed: str | None = None

    def __post_init__(self) -> None:
        names = [column.name for column in (*self.columns, self.label)]
        if not self.columns or not all(type(name) is str and name for name in names):
            raise InputError(
                "schema", "must name the label and at least one column", fix="name every column"
            )
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise InputError("schema", "has a column twice", value=twice[0], fix="leave one out")
        if self.label.missing or bool in map(type, self.label.categories):
            raise InputError(
                "schema",
                "must list the label's classes as text or integers, without a missing one",
                value=self.label.name,
                fix="rows of other classes count for nothing",
            )
        if self.confirmed is not None and not self.drafted:
            raise InputError(
                "schema",
                "is confirmed, but says that it is no draft",
                value=self.drafted,
                fix="draft it again, and confirm it with `capemix schema confirm`",
            )

    @property
    def classes(self) -> tuple[str | int, ...]:
        return self.label.categories

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read, other than the label."""
        return tuple(column.name for column in self.columns)

    @property
    def width(self) -> int:
        """How many numbers a coded row has."""
        return sum(column.width for column in self.columns)

    @property
    def places(self) -> tuple[slice, ...]:
        """Where each column lies in a coded row."""
        ends = np.cumsum([column.width for column in self.columns]).tolist()
        return tuple(
            slice(end - column.width, end) for end, column in zip(ends, self.columns, strict=True)
        )

    @property
    def blocks(self) -> tuple[slice, ...]:
        """Where the categories lie."""
        return tuple(
            place
            for place, column in zip(self.places, self.columns, strict=True)
            if isinstance(column, Category)
        )

    def digest(self) -> str:
        """Of everything that is declared: a confirmation is of this, and of nothing else. What is
        taken for granted (a linear scale, a label's type) is no part of it."""
        found = as_json(self)
        label = {name: found["label"][name] for name in ("name", "categories")}
        columns = [
            {part: said for part, said in column.items() if (part, said) != ("scale", "linear")}
            for column in found["columns"]
        ]
        text = json.dumps({"label": label, "columns": columns}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def is_confirmed(self) -> bool:
        """Whether this draft is what was confirmed: one that has been changed since is not."""
        return self.confirmed is not None and self.confirmed == self.digest()

    def confirm(self) -> Table:
        """The same draft, as its owner confirms it."""
        return replace(self, confirmed=self.digest())

    @property
    def read_from_rows(self) -> tuple[str, ...]:
        """What of it was read from rows and not confirmed."""
        return (DRAFTED,) if self.drafted and not self.is_confirmed else ()

    def rows(self, cells: Cells) -> LabeledRows:
        """The records of a table, coded. Whether a record is among the rows, and what stands for
        it, depends on that record and on this schema alone."""
        rows = self.coded([column.read(cells) for column in self.columns], self.label.read(cells))
        return replace(rows, unfit=rows.unfit + cells.without_value)

    def coded(self, cells: Sequence[Real | Codes], labels: Codes) -> LabeledRows:
        """Rows from each column's numbers, or places in its list (-1 for none). A record with a
        label below 0, or with NaN for a number, counts for nothing."""
        known = labels >= 0
        for column, values in zip(self.columns, cells, strict=True):
            if isinstance(column, Number):
                known = known & np.isfinite(values)
        features = np.zeros((int(known.sum()), self.width))
        for column, place, values in zip(self.columns, self.places, cells, strict=True):
            column.write(values[known], features[:, place])
        return LabeledRows(
            features=features,
            labels=labels[known],
            classes=self.classes,
            feature_names=tuple(name for column in self.columns for name in column.coded_names),
            label_name=self.label.name,
            table=self,
            unfit=int(len(labels) - known.sum()),
            read_from_rows=self.read_from_rows,
        )

    def with_logs(self) -> Table:
        """The same, but that real numbers of a wide range above 0 are taken by their logarithm. It
        reads the ends of the ranges alone."""
        columns = tuple(
            replace(each, scale="log") if isinstance(each, Number) and each.wide else each
            for each in self.columns
        )
        return replace(self, columns=columns, confirmed=None)

    def no_rows(self) -> LabeledRows:
        """What is public of coded rows."""
        none = np.empty(0, dtype=np.int64)
        return self.coded([none] * len(self.columns), none)

    def strays(self, rows: LabeledRows) -> dict[str, int]:
        """How many of these coded rows have, column by column, no listed value or a number outside
        of its range (private)."""
        return {
            column.name: int(column.strays(rows.features[:, place]).sum())
            for column, place in zip(self.columns, self.places, strict=True)
        }

    def restore(self, rows: Real) -> None:
        """In place: numbers into their range, whole where the column is."""
        for column, place in zip(self.columns, self.places, strict=True):
            if isinstance(column, Number):
                rows[:, place.start] = column.restored(rows[:, place.start])

    def cells(self, rows: Real) -> dict[str, Any]:
        """Coded rows as columns of the table, each in its own type."""
        return {
            column.name: column.cells(rows[:, place])
            for column, place in zip(self.columns, self.places, strict=True)
        }

    @classmethod
    def read(cls, path: str | Path) -> Table:
        return read(cls, path, name="schema")
