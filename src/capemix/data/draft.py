"""A schema drafted from rows, for their owner to check: it reads them, outside of any budget.

Nothing in a draft is known to be public. It is marked as drafted, and no release by it has a
guarantee until its owner has read it line by line and confirmed it (`capemix schema confirm`).
"""

from __future__ import annotations

import calendar
import datetime as dt
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from capemix.data.cells import LARGEST_WHOLE, MISSING_WORDS, Cells, Real, Words
from capemix.data.column import Value
from capemix.data.dialect import Dialect
from capemix.data.finding import find_dialect
from capemix.data.moments import DAY, seconds_of, seconds_of_day
from capemix.data.persons import with_person
from capemix.data.rows import MAX_CLASSES, label_place, named
from capemix.data.schema import Category, Column, Identifier, Moment, Number, Table
from capemix.errors import InputError

MARGIN: Final = 0.05
"""A drafted range is at least so much of its width wider than the values, at either end."""

_MOST_DISTINCT: Final = 0.5
"""Text with more distinct values than this part of its cells is taken for names or identifiers."""

_NEARLY_ALL: Final = 0.95
"""Text with as many distinct values as this part of all records is taken for identifiers."""

_DECIMALS: Final = 6
"""A number of so many decimals, or fewer, has them declared."""

_LARGEST: Final = 1e300
"""Numbers that a range is drafted for."""

_FEW: Final = 20
"""Distinct values that any text column may have."""


@dataclass(frozen=True)
class Draft:
    """A drafted schema, and the columns that are not in it, each with the reason (private)."""

    table: Table
    left_out: dict[str, str]


def draft_table(path: str | Path, label: str | None = None, person: str | None = None) -> Draft:
    """A schema that covers a file's rows, and says how the file is written. Numbers, dates and
    times get a range that is rounded outwards, and text a list of its values. Text of which nearly
    every cell is different is taken for identifiers, to be made anew; text that hardly repeats is
    left out, and so is the column ``person``, which says whose a row is."""
    cells, dialect = find_dialect(path, label)
    people = cells if person is None else with_person(cells, person)
    return _drafted(people, label, dialect, outwards=True)


def fitted_table(path: str | Path, label: str) -> Table:
    """The same with ranges as narrow as the rows: for rows that are public, in experiments."""
    cells, dialect = find_dialect(path, label)
    return _drafted(cells, label, dialect, outwards=False).table


def _drafted(cells: Cells, label: str | None, dialect: Dialect | None, *, outwards: bool) -> Draft:
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    if cells.person is not None:
        left_out[cells.person] = "it says whose a row is"
    for name in cells.names:
        if name not in (label, cells.person):
            found = _column(name, cells, outwards)
            if isinstance(found, str):
                left_out[name] = found
            else:
                columns.append(found)
    if label is None:
        return Draft(Table(tuple(columns), drafted=True, file=dialect), left_out)
    place = label_place(cells, label, [each.name for each in columns])
    listed = Category(label, _classes(cells, label))
    table = Table(tuple(columns), listed, drafted=True, label_place=place, file=dialect)
    return Draft(table, left_out)


def _classes(cells: Cells, label: str) -> tuple[Value, ...]:
    words = _present(cells.words(label))
    classes: tuple[Value, ...] = named(words)
    if _are_truths(words, cells.written(label)):
        classes = tuple(word == "1" for word in sorted(words))
    if not classes:
        raise InputError("label", "has no values", value=label, fix="name the label column")
    if len(classes) > MAX_CLASSES:
        raise InputError(
            "label",
            f"has more than {MAX_CLASSES} values: it is no list of classes",
            value=label,
            fix="choose another column",
        )
    return classes


def _present(words: Words) -> list[str]:
    """The words that some cell has, other than those for missing."""
    counted = zip(words.distinct, words.counts().tolist(), strict=True)
    return [word for word, count in counted if count and word not in MISSING_WORDS]


def _are_truths(words: list[str], written: frozenset[str]) -> bool:
    return set(words) <= {"0", "1"} and "truth" in written


def _column(name: str, cells: Cells, outwards: bool) -> Column | str:
    """What is drafted of a column, or why it is left out."""
    numbers = np.asarray(cells.numbers([name])[:, 0], dtype=np.float64)
    words = cells.words(name)
    present = _present(words)
    told = np.isin(words.positions, np.flatnonzero(np.isin(words.distinct, present)))
    finite = np.isfinite(numbers)  # also where a number is too large to be a word
    if not (told | finite).any():
        return "it has no values"
    written = cells.written(name)
    truths = bool(told.any()) and _are_truths(present, written)
    if not (told & ~finite).any() and not truths:
        if np.abs(numbers[finite]).max() > _LARGEST:
            return "its numbers are too large for a range around them"
        missing = not bool(finite.all())
        return _range(name, numbers[finite], outwards, missing, "fraction" in written)
    held, records = int(told.sum()), len(words.positions)
    missing = held < records
    if (found := _moment(name, present, outwards, missing, "moment" in written)) is not None:
        return found
    if len(present) > _FEW and len(present) >= _NEARLY_ALL * records:
        return Identifier(name)
    if len(present) > MAX_CLASSES or (len(present) > _FEW and len(present) > _MOST_DISTINCT * held):
        return f"{len(present)} distinct texts look like names or identifiers"
    if truths:
        return Category(name, tuple(word == "1" for word in sorted(present)), missing=missing)
    return Category(name, tuple(sorted(present)), missing=missing)


def _range(name: str, values: Real, outwards: bool, missing: bool, fractions: bool) -> Number:
    """A number that never varies has no range, and those that are written with a point stay so,
    whole or not."""
    low, high = float(values.min()), float(values.max())
    decimals = _decimals(values)
    whole = decimals == 0
    if outwards and low < high and not (whole and (low, high) == (0.0, 1.0)):
        low, high = outward(low, high)
        if decimals is not None:
            per = 10.0**decimals
            low, high = math.floor(round(low * per, 3)) / per, math.ceil(round(high * per, 3)) / per
    if whole and not fractions:
        return Number(name, int(low), int(high), type="integer", missing=missing)
    return Number(name, low, high, decimals=decimals, missing=missing)


def _decimals(values: Real) -> int | None:
    """The fewest that all values have, if these are few."""
    largest = float(np.abs(values).max())
    for digits in range(_DECIMALS + 1):
        per = 10.0**digits
        if largest * per > LARGEST_WHOLE / 4:
            return None
        if (np.rint(values * per) / per == values).all():
            return digits
    return None


def _moment(
    name: str, words: list[str], outwards: bool, missing: bool, moments: bool
) -> Moment | None:
    """Dates, moments or times, if all words are such. Times have the whole day."""
    if not np.isnan([seconds_of_day(word) for word in words]).any():
        return Moment(name, "00:00:00", "23:59:59", type="time", missing=missing)
    seconds = np.array([seconds_of(word) for word in words])
    if np.isnan(seconds).any():
        return None
    dates = not moments and bool((seconds % DAY == 0).all())
    low, high = seconds.min(), seconds.max()
    first, last = (dt.datetime.fromtimestamp(end, dt.UTC) for end in (low, high))
    if outwards and low < high:
        first, last = _outward_dates(first, last)
    ends = [str(end.date() if dates else end.replace(tzinfo=None)) for end in (first, last)]
    if dates:
        return Moment(name, *ends, type="date", missing=missing)
    zoned = any(word.endswith("+00:00") for word in words)
    return Moment(name, *ends, type="datetime", missing=missing, zone="UTC" if zoned else None)


def _outward_dates(low: dt.datetime, high: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    """The same for dates: whole days, whole months of more than two, or whole years of more than
    two, as far as the calendar goes."""
    width = max(1, (high - low).days)
    margin = math.ceil(MARGIN * width)
    first = max(low.toordinal() - margin, dt.date.min.toordinal())
    last = min(high.toordinal() + margin, dt.date.max.toordinal())
    begin, end = dt.date.fromordinal(first), dt.date.fromordinal(last)
    if width > 2 * 365:
        begin, end = begin.replace(month=1, day=1), end.replace(month=12, day=31)
    elif width > 2 * 31:
        begin = begin.replace(day=1)
        end = end.replace(day=calendar.monthrange(end.year, end.month)[1])
    return (
        dt.datetime.combine(begin, dt.time.min, dt.UTC),
        dt.datetime.combine(end, dt.time(23, 59, 59), dt.UTC),
    )


def outward(low: float, high: float) -> tuple[float, float]:
    """A range of round numbers around this one, by a margin at either end: neither end is a value
    of a record. Values that are never negative keep 0 as their low end."""
    # A margin that doubles of this size can show.
    width = max((high - low) or abs(high) or 1.0, max(-low, high) * 2.0**-40, 1e-300)
    step = 10.0 ** math.floor(math.log10(width))
    ends = (low - MARGIN * width, high + MARGIN * width)
    # Divided by a whole power of ten, so that 0.3 is written 0.3.
    per = 10.0 ** -math.floor(math.log10(width))
    rounded = (
        (math.floor(ends[0] / step) * step, math.ceil(ends[1] / step) * step)
        if step >= 1
        else (math.floor(ends[0] * per) / per, math.ceil(ends[1] * per) / per)
    )
    return (0.0 if low >= 0 and rounded[0] < 0 else rounded[0]), rounded[1]
