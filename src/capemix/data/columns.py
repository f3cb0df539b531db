"""The types that a table's column can have, as its owner declares it.

Each type is one class here, and all that the rest asks of a column is a method of `Column`: what a
schema file says of it, how a cell is read, which records count, how what was read is coded as
numbers, and how numbers become cells of its own type again. Every rule looks at one cell and at
what is declared. A cell that cannot be read costs its own record or counts as missing.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from capemix.data.cells import LARGEST_WHOLE, Cells, Codes, Real, are_distinct, places
from capemix.data.rows import MAX_CLASSES
from capemix.documents import enlist, family, load_plugins
from capemix.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Value = str | int | bool
Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[Any] | Sequence[Value | None]

_GRID: Final = 2.0**32
"""Logarithms are whole numbers over this: a power taken back has the same one on every machine."""

_MOST_LOG: Final = 1e300
"""Numbers between 1 over this and this have logarithms that can be taken back."""

_LARGEST: Final = sys.float_info.max

WIDE: Final = 3.0
"""A range above 0 is wide if its high end is so many times its low end, or more; chosen on training
rows that were held out, see docs/research/tables.md."""


class Column(ABC):
    """A column of a table, as its owner declares it. A type of column is a frozen dataclass with
    `column_type`; its fields are what a schema file says of such a column.

    A coded row has ``width`` numbers for the column, and a *block* is these numbers of some rows:
    an array of rows by ``width``.
    """

    name: str

    @abstractmethod
    def __str__(self) -> str:
        """What is declared, in words: their owner is asked whether it is public knowledge."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers of a coded row are its."""

    @property
    @abstractmethod
    def coded_names(self) -> tuple[str, ...]:
        """What these numbers are called, each by a name of its own."""

    @property
    @abstractmethod
    def ends(self) -> tuple[float, float]:
        """The range, low < high, into which each of these numbers is moved before it is summed."""

    @property
    @abstractmethod
    def is_one_hot(self) -> bool:
        """Whether a row has a 1 at one of these numbers at most, and zeros else. They are summed as
        they stand, and one of them is drawn. Other numbers are mapped from ``ends`` to [-1, 1]."""

    @abstractmethod
    def read(self, cells: Cells) -> Real | Codes:
        """What each record's cell says, one number a record. It looks at one cell at a time, and
        fails for none: what says nothing has a number of its own, NaN or -1 say."""

    @abstractmethod
    def fits(self, read: Real | Codes) -> Mask:
        """Which records count, by what was read of each. The others count for nothing."""

    @abstractmethod
    def code_into(self, block: Real, read: Real | Codes) -> None:
        """Write what was read of records that fit, coded as finite numbers, in place of zeros."""

    @abstractmethod
    def strays(self, block: npt.NDArray[Any]) -> Mask:
        """Which rows have no declared value here: none of the list, or one outside of the range."""

    @abstractmethod
    def kept(self, block: Real) -> Values:
        """One cell a row, as it was coded, strays included: read again, it is coded the same."""

    @abstractmethod
    def restored(self, block: Real) -> Real:
        """A drawn block, moved to the nearest that stands for a declared value."""

    @abstractmethod
    def cells(self, block: Real) -> Values:
        """One declared value a row, in the column's own type, None for missing; of any numbers
        that were drawn and restored."""

    @abstractmethod
    def arrow(self, cells: Values) -> pa.Array:
        """What `cells` or `kept` gave as it is written to a file, in a type that does not depend
        on which values there are."""

    def with_log(self) -> Column:
        """The same, taken by its logarithm where what is declared suits that."""
        return self


_TYPES: dict[str, type[Column]] = {}
C = TypeVar("C", bound=type[Column])


def column_type(cls: C) -> C:
    """Make a type of column known by the names that its field ``type`` may have in a schema."""
    enlist(_TYPES, cls, word="types of column", tag="type")
    return cls


def column_types() -> tuple[type[Column], ...]:
    """Each type of column that is known, once."""
    load_plugins()
    return tuple(dict.fromkeys(_TYPES.values()))


family(Column, column_types, tag="type")


@column_type
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
    def wide(self) -> bool:
        """Whether these are real numbers of a wide range above 0, as measures of size have."""
        ends = self.low >= 1 / _MOST_LOG and WIDE * self.low <= self.high <= _MOST_LOG
        return ends and not self.whole

    def with_log(self) -> Number:
        return replace(self, scale="log") if self.wide else self

    @property
    def width(self) -> int:
        return 1

    @property
    def coded_names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def ends(self) -> tuple[float, float]:
        low, high = self.coded(np.array([self.low, self.high], dtype=np.float64))
        return float(low), float(high)

    @property
    def is_one_hot(self) -> bool:
        return False

    def read(self, cells: Cells) -> Real:
        return np.asarray(cells.numbers([self.name])[:, 0], dtype=np.float64)

    def fits(self, read: Real | Codes) -> Mask:
        return np.isfinite(read)

    def code_into(self, block: Real, read: Real | Codes) -> None:
        block[:, 0] = self.coded(read.astype(np.float64, copy=False))

    def strays(self, block: npt.NDArray[Any]) -> Mask:
        low, high = self.ends
        return np.asarray((block[:, 0] < low) | (block[:, 0] > high))

    def kept(self, block: Real) -> Real:
        return self.values(block[:, 0])

    def restored(self, block: Real) -> Real:
        return self.coded(self._released(block))

    def cells(self, block: Real) -> npt.NDArray[Any]:
        values = self._released(block[:, 0])
        return values.astype(np.int64) if self.whole else values

    def arrow(self, cells: Values) -> pa.Array:
        import pyarrow as pa

        return pa.array(cells)  # integers, or floats: as the array has them

    def coded(self, values: Real) -> Real:
        """What stands for the values, those outside of the range told apart from those inside."""
        if not self.log:
            return values
        inside = np.rint(np.log(np.clip(values, self.low, self.high)) * _GRID) / _GRID
        # Of 0 and less there is no logarithm: whatever lies outside lies 1 outside.
        return np.asarray(inside - (values < self.low) + (values > self.high))

    def values(self, coded: Real) -> Real:
        """The values that stand behind the codes, also outside of the range."""
        if not self.log:
            return coded
        low, high = self.ends
        values = np.exp(coded)
        inside = (coded >= low) & (coded <= high)
        return np.where(inside, np.clip(values, self.low, self.high), values)

    def _released(self, coded: Real) -> Real:
        values = np.clip(self.values(coded), self.low, self.high)
        return np.rint(values) if self.whole else values

    def __str__(self) -> str:
        how = ", by its logarithm" if self.log else ""
        return f"{'integer' if self.whole else 'number'} from {self.low} to {self.high}{how}"


@column_type
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

    @property
    def ends(self) -> tuple[float, float]:
        return 0.0, 1.0

    @property
    def is_one_hot(self) -> bool:
        return True

    def read(self, cells: Cells) -> Codes:
        off_list = len(self.categories) if self.missing else -1
        return cells.words(self.name).codes(places(self.categories), off_list)

    def fits(self, read: Real | Codes) -> Mask:
        return np.ones(len(read), dtype=bool)

    def code_into(self, block: Real, read: Real | Codes) -> None:
        listed = np.flatnonzero(read >= 0)
        block[listed, read[listed].astype(np.int64, copy=False)] = 1.0

    def strays(self, block: npt.NDArray[Any]) -> Mask:
        return np.asarray(block[:, : len(self.categories)].max(axis=1) == 0)

    def kept(self, block: Real) -> list[Value | None]:
        words = [*self.categories, None]
        places = np.where(block.any(axis=1), block.argmax(axis=1), len(self.categories))
        return [words[place] for place in places]

    def restored(self, block: Real) -> Real:
        return block

    def cells(self, block: Real) -> list[Value | None]:
        if not (block.max(axis=1) > 0).all():
            raise ValueError("a block without a category")
        words: list[Value | None] = [*self.categories, *([None] if self.missing else [])]
        return [words[place] for place in block.argmax(axis=1)]

    def arrow(self, cells: Values) -> pa.Array:
        import pyarrow as pa

        kind = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}[type(self.categories[0])]
        return pa.array(cells, kind)

    def __str__(self) -> str:
        listed = ", ".join(json.dumps(value, ensure_ascii=False) for value in self.categories)
        return listed + (", or missing" if self.missing else "")
