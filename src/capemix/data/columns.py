"""The types of column for numbers and for listed values; of what a type is, `column` tells."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from capemix.data.cells import LARGEST_WHOLE, Cells, Codes, Real, are_distinct, places
from capemix.data.column import Column, Mask, Value, Values, column_type, column_types
from capemix.data.ranges import Ranged, or_none
from capemix.data.rows import MAX_CLASSES
from capemix.errors import InputError

if TYPE_CHECKING:
    from typing import Any

    import pyarrow as pa

__all__ = ["Category", "Column", "Mask", "Number", "Value", "Values", "column_type", "column_types"]

_GRID: Final = 2.0**32
"""Logarithms are whole numbers over this: a power taken back has the same one on every machine."""

_MOST_LOG: Final = 1e300
"""Numbers between 1 over this and this have logarithms that can be taken back."""

_LARGEST: Final = sys.float_info.max

MOST_DECIMALS: Final = 12
"""After a point; a double has no more than about 16 digits in all."""

WIDE: Final = 3.0
"""A range above 0 is wide if its high end is so many times its low end, or more; chosen on training
rows that were held out, see docs/research/tables.md."""


@column_type
@dataclass(frozen=True)
class Number(Ranged):
    """A numeric column: values lie, or are moved, between ``low`` and ``high``, and have so many
    ``decimals`` where that is declared; with the scale "log" they are coded by their logarithm, for
    what is skewed and never 0. With ``missing``, what is no number counts as missing."""

    name: str
    type: Literal["integer", "number"] = field(default="number", kw_only=True)
    low: int | float
    high: int | float
    scale: Literal["linear", "log"] = field(default="linear", kw_only=True)
    decimals: int | None = field(default=None, kw_only=True)
    missing: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        ends = (self.low, self.high)
        if not all(type(end) in (int, float) and abs(end) <= _LARGEST for end in ends) or (
            self.low > self.high
        ):
            raise InputError(
                f"column '{self.name}'",
                "must have two finite numbers, low <= high",
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
        self._check_decimals()
        within = self.low >= 1 / _MOST_LOG and self.high <= _MOST_LOG
        if self.log and not (within and self.numbers and self.ends[0] < self.ends[1]):
            raise InputError(
                f"column '{self.name}'",
                f"is by its logarithm: its range must lie between {1 / _MOST_LOG:g} and"
                f" {_MOST_LOG:g}, and be no single value",
                value=f"{self.low}, {self.high}",
                fix="give a range above 0, or leave the scale out",
            )

    def _check_decimals(self) -> None:
        if self.decimals is None:
            return
        if self.whole or not 0 <= self.decimals <= MOST_DECIMALS:
            raise InputError(
                f"column '{self.name}'",
                f"may have from 0 to {MOST_DECIMALS} decimals, if it is of type number",
                value=self.decimals,
                fix="leave the decimals out",
            )
        ends = np.array([self.low, self.high], dtype=np.float64)
        exact = np.abs(ends) <= LARGEST_WHOLE / 10.0**self.decimals
        if not (exact.all() and (self._rounded(ends) == ends).all()):
            raise InputError(
                f"column '{self.name}'",
                f"has {self.decimals} decimals, and so must the ends of its range, below 2^53 over"
                f" 10^{self.decimals}",
                value=f"{self.low}, {self.high}",
                fix="round its ends, or give fewer decimals",
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
    def span(self) -> tuple[float, float]:
        return float(self.low), float(self.high)

    @property
    def apart(self) -> float | None:
        """How far declared values lie apart; None if there may be any."""
        digits = 0 if self.whole else self.decimals
        return None if digits is None else 10.0**-digits

    @property
    def step(self) -> float | None:
        return None if self.log else self.apart

    def read(self, cells: Cells) -> Real:
        return np.asarray(cells.numbers([self.name])[:, 0], dtype=np.float64)

    def typed(self, values: Real) -> Values:
        return values

    def cells(self, block: Real) -> npt.NDArray[Any]:
        values = np.asarray(super().cells(block))
        absent = np.isnan(values)
        if self.whole:
            values = np.where(absent, 0, values).astype(np.int64)
        return or_none(values, absent) if self.missing else values

    def arrow(self, cells: Values) -> pa.Array:
        import pyarrow as pa

        found = np.asarray(cells)
        if found.dtype == object:  # with None for missing
            return pa.array(found, pa.int64() if self.whole else pa.float64())
        return pa.array(found, from_pandas=True)  # integers, or floats: as the array has them

    def coded(self, values: Real) -> Real:
        if not self.log:
            return values
        inside = np.rint(np.log(np.clip(values, self.low, self.high)) * _GRID) / _GRID
        # Of 0 and less there is no logarithm: whatever lies outside lies 1 outside.
        return np.asarray(inside - (values < self.low) + (values > self.high))

    def values(self, coded: Real) -> Real:
        if not self.log:
            return coded
        low, high = self.ends
        values = np.exp(coded)
        inside = (coded >= low) & (coded <= high)
        return np.where(inside, np.clip(values, self.low, self.high), values)

    def declared(self, values: Real) -> Real:
        return self._rounded(super().declared(values))

    def _rounded(self, values: Real) -> Real:
        if self.whole:
            return np.rint(values) + 0.0
        if self.decimals is None:
            return values
        per = 10.0**self.decimals  # of whole numbers over it the nearest double is the shortest
        return np.rint(values * per) / per + 0.0

    def __str__(self) -> str:
        kind = "integer" if self.whole else "number"
        said = f"{kind} from {self.low} to {self.high}" if self.numbers else f"always {self.low}"
        how = "" if self.decimals is None else f", with {self.decimals} decimals"
        return self._or_missing(said + how + (", by its logarithm" if self.log else ""))


@column_type
@dataclass(frozen=True)
class Category(Column):
    """A column of listed values, all text, all whole numbers or all truth values; with
    ``missing``, what is missing or off the list is one more. One that can have a single value takes
    no number."""

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
        places = len(self.categories) + self.missing
        return places if places > 1 else 0

    @property
    def numbers(self) -> int:
        return 0

    @property
    def coded_names(self) -> tuple[str, ...]:
        words = [*self.categories, *(["(missing)"] if self.missing else [])]
        return tuple(f"{self.name}={word}" for word in words[: self.width])

    @property
    def ends(self) -> tuple[float, float]:
        return 0.0, 1.0

    def read(self, cells: Cells) -> Codes:
        off_list = len(self.categories) if self.missing else -1
        return cells.words(self.name).codes(places(self.categories), off_list)

    def fits(self, read: Real | Codes) -> Mask:
        return np.ones(len(read), dtype=bool)

    def code_into(self, block: Real, read: Real | Codes) -> None:
        listed = np.flatnonzero((read >= 0) & (self.width > 0))
        block[listed, read[listed].astype(np.int64, copy=False)] = 1.0

    def strays(self, block: npt.NDArray[Any]) -> Mask:
        listed = block[:, : len(self.categories)]
        return np.asarray(~listed.any(axis=1) & (self.width > 0))

    def kept(self, block: Real) -> list[Value | None]:
        if not self.width:
            return [self.categories[0]] * len(block)
        words = [*self.categories, None]
        places = np.where(block.any(axis=1), block.argmax(axis=1), len(self.categories))
        return [words[place] for place in places]

    def restored(self, block: Real) -> Real:
        return block

    def cells(self, block: Real) -> list[Value | None]:
        if self.width and not (block.max(axis=1) > 0).all():
            raise ValueError("a block without a category")
        return self.kept(block)

    def arrow(self, cells: Values) -> pa.Array:
        import pyarrow as pa

        kind = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}[type(self.categories[0])]
        return pa.array(cells, kind)

    def __str__(self) -> str:
        listed = ", ".join(json.dumps(value, ensure_ascii=False) for value in self.categories)
        return listed + (", or missing" if self.missing else "")
