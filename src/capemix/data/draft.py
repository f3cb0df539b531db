"""A schema drafted from rows, for their owner to check: it reads them, outside of any budget.

Nothing in a draft is known to be public. It is marked as drafted, and no release by it has a
guarantee until its owner has read it line by line and confirmed it (`capemix schema confirm`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from capemix.data.cells import LARGEST_WHOLE, MISSING_WORDS, Cells, Real, Words
from capemix.data.readers import open_cells
from capemix.data.rows import MAX_CLASSES, named
from capemix.data.schema import Category, Column, Number, Table
from capemix.errors import InputError

MARGIN: Final = 0.05
"""A drafted range is at least so much of its width wider than the values, at either end."""

_MOST_DISTINCT: Final = 0.5
"""Text with more distinct values than this part of its cells is taken for names or identifiers."""

_LARGEST: Final = 1e300
"""Numbers that a range is drafted for."""

_FEW: Final = 20
"""Distinct values that any text column may have."""


@dataclass(frozen=True)
class Draft:
    """A drafted schema; the columns that are not in it, each with the reason; and how many records
    would count for nothing since a column has no number for them (all of it private)."""

    table: Table
    left_out: dict[str, str]
    without_number: dict[str, int]


def draft_table(path: str | Path, label: str) -> Draft:
    """A schema that covers a file's rows. Numbers get a range that is rounded outwards, and text a
    list of its values; a column of text that hardly repeats is left out."""
    cells = open_cells(path, label)
    return _drafted(cells, label, outwards=True)


def fitted_table(path: str | Path, label: str) -> Table:
    """The same with ranges as narrow as the rows: for rows that are public, in experiments."""
    return _drafted(open_cells(path, label), label, outwards=False).table


def _drafted(cells: Cells, label: str, *, outwards: bool) -> Draft:
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    for name in cells.names:
        if name != label:
            found = _column(name, cells, outwards)
            if isinstance(found, str):
                left_out[name] = found
            else:
                columns.append(found)
    classes = _present(cells.words(label))
    if not classes:
        raise InputError("label", "has no values", value=label, fix="name the label column")
    if len(classes) > MAX_CLASSES:
        raise InputError(
            "label",
            f"has more than {MAX_CLASSES} values: it is no list of classes",
            value=label,
            fix="choose another column",
        )
    table = Table(tuple(columns), Category(label, named(classes)), drafted=True)
    return Draft(table, left_out, table.unread(cells))


def _present(words: Words) -> list[str]:
    """The words that some cell has, other than those for missing."""
    counted = zip(words.distinct, words.counts().tolist(), strict=True)
    return [word for word, count in counted if count and word not in MISSING_WORDS]


def _column(name: str, cells: Cells, outwards: bool) -> Column | str:
    """What is drafted of a column, or why it is left out."""
    numbers = np.asarray(cells.numbers([name])[:, 0], dtype=np.float64)
    words = cells.words(name)
    present = _present(words)
    told = np.isin(words.positions, np.flatnonzero(np.isin(words.distinct, present)))
    finite = np.isfinite(numbers)  # also where a number is too large to be a word
    if not (told | finite).any():
        return "it has no values"
    truths = told.any() and set(present) <= {"0", "1"} and cells.has_truths(name)
    if not (told & ~finite).any() and not truths:
        if np.abs(numbers[finite]).max() > _LARGEST:
            return "its numbers are too large for a range around them"
        return _range(name, numbers[finite], outwards)
    held = int(told.sum())
    if len(present) > MAX_CLASSES or (len(present) > _FEW and len(present) > _MOST_DISTINCT * held):
        return f"{len(present)} distinct texts look like names or identifiers"
    missing = held < len(words.positions)
    if truths:
        return Category(name, tuple(word == "1" for word in sorted(present)), missing=missing)
    return Category(name, tuple(sorted(present)), missing=missing)


def _range(name: str, values: Real, outwards: bool) -> Number:
    low, high = float(values.min()), float(values.max())
    whole = bool((values == np.rint(values)).all()) and max(-low, high) < LARGEST_WHOLE / 4
    if outwards and not (whole and (low, high) == (0.0, 1.0)):
        low, high = outward(low, high)
    high = high if low < high else low + 1
    if whole:
        return Number(name, int(low), int(high), type="integer")
    return Number(name, low, high)


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
