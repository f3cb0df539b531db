"""Which lines and cells of a text file do not fit what is declared: for its owner's eyes.

A release says nothing of this, and neither does an error on the way to one: what is wrong with one
line is that record's own. `capemix schema draft` and `capemix site check` ask here, so that a file
can be mended first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.data.cells import MISSING_WORDS, Cells
from capemix.data.columns import Column, Mask
from capemix.data.dialect import Dialect
from capemix.data.readers import (
    MAX_LINE,
    TEXT,
    Careful,
    QuoteError,
    Text,
    cells_from,
    opened,
    set_apart,
    split_line,
    suffix_of,
    unpacked,
    usual,
)
from capemix.data.rows import check_column
from capemix.data.schema import Table
from capemix.errors import InputError, printable

SHOWN: Final = 5
"""So many lines are named of each kind of fault."""

Lines = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Faults:
    """What does not fit (private): the first ``lines`` without a value, each with the reason, and
    the lines of the first cells of each column that do not fit it."""

    without_value: int = 0
    lines: dict[int, str] = field(default_factory=dict)
    cells: dict[str, list[int]] = field(default_factory=dict)

    def __str__(self) -> str:
        said = [f"line {line} has no value: {why}" for line, why in self.lines.items()]
        if self.without_value > len(self.lines):
            said.append(f"{self.without_value - len(self.lines)} more lines have no value")
        for name, lines in self.cells.items():
            where = ", ".join(map(str, lines))
            said.append(f"column {printable(name)}: a cell does not fit on line {where}")
        return "\n".join(said)


def faults_of(path: str | Path, table: Table, dialect: Dialect | None = None) -> Faults:
    """The faults of a text file by a schema, and by another dialect than the schema's if one is
    given. Of other files there are none to name."""
    path, suffix = Path(path), suffix_of(path)
    if suffix not in TEXT:
        return Faults()
    declared = dialect or table.file
    dialect = declared or usual(path)
    name = f"data file {path.name}"
    data = unpacked(path, name)
    check_units(data, name, dialect.encoding)
    text = opened(data, name, dialect)
    for column in (*(() if table.label is None else (table.label.name,)), *table.names):
        check_column("schema", column, text.names)
    plain, careful = set_apart(text, name, is_declared=declared is not None)
    lines, why = _lines(text, careful)
    cells = cells_from(text, plain, careful, table.label_name)
    found: dict[str, list[int]] = {}
    unfit = [(each.name, _unfit(each, cells)) for each in table.columns]
    if table.label is not None:
        unfit.append((table.label.name, np.asarray(table.label.read(cells) < 0)))
    for column, cells_unfit in unfit:
        if cells_unfit.any():
            found[column] = np.sort(lines[cells_unfit])[:SHOWN].tolist()
    return Faults(cells.without_value, why, found)


def _unfit(column: Column, cells: Cells) -> Mask:
    """Which records have a cell that does not fit: by which they count for nothing, or which says
    something that the column cannot read."""
    words, read = cells.words(column.name), column.read(cells)
    said = [at for at, word in enumerate(words.distinct) if word not in MISSING_WORDS]
    return np.asarray(~column.fits(read) | (np.isnan(read) & np.isin(words.positions, said)))


def check_units(data: bytes, name: str, encoding: str) -> None:
    """Refuse UTF-16 with half a character: after it, all that follows is read in wrong halves."""
    if encoding == "utf-16" and len(data) % 2:
        raise InputError(
            name,
            "is UTF-16 and has an odd number of bytes, so that no line can be told after the one"
            " with the odd byte",
            value=len(data),
            fix="write it again, as one file by one program",
        )


@contextlib.contextmanager
def naming_lines() -> Iterator[None]:
    """A refusal of a file for its quotes names the line here."""
    try:
        yield
    except QuoteError as error:
        raise error.named() from None


def _lines(text: Text, careful: Careful) -> tuple[Lines, dict[int, str]]:
    """The line on which each of the cells' records begins, and why the first lines of those without
    a value have none."""
    body = np.frombuffer(text.body, dtype=np.uint8)
    ends = np.flatnonzero(body == ord("\n"))
    between = np.flatnonzero(body == ord(text.between))
    cells = np.diff(np.searchsorted(between, ends), prepend=0) + 1
    lengths = np.diff(ends, prepend=-1) - 1
    plain = np.ones(len(ends), dtype=bool)
    begins: list[int] = []
    odd: dict[int, str] = {}
    for (start, end), row in careful:
        first, last = np.searchsorted(ends, (start, end)).tolist()
        plain[first : last + 1] = False
        if row is not None:
            begins.append(first)
        elif len(odd) < SHOWN:
            odd[first] = _why(text, text.body[start:end])
    fits = plain & (cells == text.width) & (lengths > 0) & (lengths <= MAX_LINE)
    for at in np.flatnonzero(plain & ~fits)[:SHOWN].tolist():
        odd[at] = _why(text, text.body[ends[at] - lengths[at] : ends[at]])
    lines = np.concatenate((np.flatnonzero(fits), np.array(begins, dtype=np.int64)))
    return lines + text.first, {at + text.first: odd[at] for at in sorted(odd)[:SHOWN]}


def _why(text: Text, record: bytes) -> str:
    if not record:
        return "it is empty"
    if len(record) > MAX_LINE:
        return f"it is longer than {MAX_LINE} bytes"
    found = split_line(record, text.dialect)
    if found is None:
        return (
            "a quote does not close in it"
            if text.dialect.quotes != "many-lines"
            else f"it has several lines, and not the {text.width} cells of the header"
        )
    return f"it has {len(found)} cells, and the header has {text.width}"
