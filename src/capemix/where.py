"""Conditions on released rows, `age >= 50` or `sex = F`. They choose among rows that anyone may
see, so they cost nothing; what a condition says is read as a cell of its column is."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.data.cells import Cells, places, spelled
from capemix.data.columns import Category, Column, Number
from capemix.data.identifiers import Identifier
from capemix.errors import InputError, quoted
from capemix.facts import Facts

Mask = npt.NDArray[np.bool_]

SIGNS: Final[dict[str, Any]] = {
    "<=": np.less_equal,
    ">=": np.greater_equal,
    "!=": np.not_equal,
    "=": np.equal,
    "<": np.less,
    ">": np.greater,
}
_SIGN: Final = re.compile(r"\s*(<=|>=|!=|==?|<|>)\s*(.*)", re.DOTALL)
_MOST: Final = sys.float_info.max
_FIX: Final = "write COLUMN SIGN VALUE, as in 'age >= 50' or 'sex = F'"


@dataclass(frozen=True)
class Condition:
    """A row's cell in ``column`` compares so with a value of ``values``: with one of them, if there
    are several. None, and nothing at all, is a missing value."""

    column: str
    sign: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str, names: Sequence[str]) -> Condition:
        """What was typed. Names may have spaces and signs: the longest that fits is meant."""
        typed = text.strip()
        for name in sorted(names, key=len, reverse=True):
            found = _SIGN.fullmatch(typed.removeprefix(name))
            if typed.startswith(name) and found:
                return cls(name, "=" if found[1] == "==" else found[1], (found[2].strip(),))
        told = _SIGN.search(text)
        if told is None or not text[: told.start()].strip():
            raise InputError("where", "is no condition", value=text, fix=_FIX)
        raise _unknown(text[: told.start()].strip(), names)


def conditions(where: Mapping[str, Any]) -> list[Condition]:
    """As a program says them: of each column a value, a list of values, or a range as a tuple
    (low, high), where None leaves an end open."""
    found = []
    for name, said in where.items():
        if isinstance(said, tuple):
            if len(said) != 2:
                raise InputError(
                    "where",
                    "must have two ends for a range",
                    value=f"{name}: {said}",
                    fix="give (low, high), None for an open end, or a list of values",
                )
            ends = zip((">=", "<="), said, strict=True)
            found += [Condition(name, sign, (end,)) for sign, end in ends if end is not None]
        else:
            listed = isinstance(said, (list, set, frozenset))
            found.append(Condition(name, "=", tuple(said) if listed else (said,)))
    return found


def matching(facts: Facts, cells: Cells, asked: Sequence[Condition]) -> Mask:
    """Which released rows meet every condition."""
    found = np.ones(cells.records, dtype=np.bool_)
    for each in asked:
        column = _column(facts, each.column)
        if isinstance(column, Identifier):
            raise InputError(
                "where", "asks for what is made anew", value=each.column, fix="leave it out"
            )
        if isinstance(column, Category):
            found &= _by_words(each, column, cells)
        else:
            found &= _by_numbers(each, column, cells)
    return found


def evenly(places: npt.NDArray[np.intp], wanted: int | None) -> npt.NDArray[np.intp]:
    """``wanted`` of these places, evenly among them; all, if there are no more."""
    if wanted is None or wanted >= len(places):
        return places
    return places[np.arange(wanted) * len(places) // wanted]


def _column(facts: Facts, name: str) -> Column:
    """What is public of a column. Without a schema it is of numbers, and any may be asked for."""
    if facts.label == name:
        return Category(name, categories=facts.listed)
    if name not in facts.features:
        raise _unknown(name, names_of(facts))
    if facts.table is None:
        return Number(name, -_MOST, _MOST)
    return facts.table.columns[facts.features.index(name)]


def names_of(facts: Facts) -> tuple[str, ...]:
    """The columns that a condition may be on."""
    return (*facts.features, *(() if facts.label is None else (facts.label,)))


def _by_words(asked: Condition, column: Category, cells: Cells) -> Mask:
    if asked.sign not in ("=", "!="):
        raise InputError(
            "where",
            f"has no order for '{column.name}', which is a category",
            value=f"{column.name} {asked.sign} {asked.values[0]}",
            fix="use = or !=",
        )
    listed, wanted = places(column.categories), []
    for said in asked.values:
        word = spelled(said)
        if word not in listed and not (word is None and column.missing):
            raise _no_value(column, said)
        wanted.append(-1 if word is None else listed[word])
    found = np.isin(cells.words(column.name).codes(listed), wanted)
    return found if asked.sign == "=" else ~found


def _by_numbers(asked: Condition, column: Column, cells: Cells) -> Mask:
    own = np.asarray(column.read(cells), dtype=np.float64)
    absent, found = np.isnan(own), np.zeros(cells.records, dtype=np.bool_)
    for said in asked.values:
        typed = np.array([said, None], dtype=object)[:1]
        [value] = column.read(Cells(1, {column.name: typed}, None)).tolist()
        if not np.isnan(value):
            found |= SIGNS[asked.sign](own, value) & ~absent
        elif column.missing and said in (None, "") and asked.sign in ("=", "!="):
            found |= absent if asked.sign == "=" else ~absent
        else:
            raise _no_value(column, said)
    return found


def _no_value(column: Column, said: object) -> InputError:
    return InputError(
        "where", f"has no value of '{column.name}'", value=said, fix=f"it is: {column}"
    )


def _unknown(name: str, names: Sequence[str]) -> InputError:
    return InputError(
        "where", "names no column of the release", value=name, fix=f"choose one of {quoted(names)}"
    )
