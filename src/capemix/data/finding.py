"""The dialect of a text file, found for a draft: it reads the rows, outside of any budget.

What is found is proposed to the file's owner, and stands in the schema that is drafted. Nothing is
found again when the file is read by that schema.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from capemix.data.cells import Cells
from capemix.data.dialect import SEPARATORS, Dialect
from capemix.data.faults import check_units
from capemix.data.readers import (
    TEXT,
    Text,
    as_utf8,
    open_cells,
    opened,
    record_of,
    split_line,
    split_record,
    suffix_of,
    unpacked,
)
from capemix.errors import InputError

_SAMPLE: Final = 1 << 20
"""Bytes of lines by which the separator is found, and whether quotes are to be read."""

_RECORDS: Final = 1 << 17
"""So many are looked at for the marks in their numbers."""

_LOOKS: Final = "^[-+0-9.,'\u2019 \u00a0\u202feE]*[0-9][-+0-9.,'\u2019 \u00a0\u202feE]*$"
"""A number by some marks."""

_MARKS: Final = (
    ("point", "none"),
    ("comma", "none"),
    ("comma", "point"),
    ("point", "comma"),
    ("comma", "space"),
    ("point", "space"),
    ("point", "apostrophe"),
    ("comma", "apostrophe"),
)
"""Marks of decimals and of thousands, in the order in which they are taken for meant."""


def find_dialect(path: str | Path, label: str | None) -> tuple[Cells, Dialect | None]:
    """A file's cells, and the dialect by which they are read; None if it is no text file."""
    path = Path(path)
    if suffix_of(path) not in TEXT or not path.is_file() or not path.stat().st_size:
        return open_cells(path, label, labelled=label is not None), None
    name = f"data file {path.name}"
    layout = _layout(unpacked(path, name), name, label)
    cells = open_cells(path, label, dialect=layout, labelled=label is not None)
    found = _marked(layout, list(cells.columns.values()))
    return cells if found == layout else replace(cells, dialect=found), found


def _layout(data: bytes, name: str, label: str | None) -> Dialect:
    """Everything but the marks in numbers."""
    encoding = _encoding(data)
    check_units(data, name, encoding)
    data = as_utf8(data, encoding)
    sample = _first(data)
    candidates = [
        Dialect(separator=separator, trailing=trailing, quotes="one-line")  # type: ignore[arg-type]
        for separator in SEPARATORS
        for trailing in (False, True)
    ]
    best = max(candidates, key=lambda each: _fit(sample, name, label, each))  # the first of equals
    text = opened(data, name, best)
    quotes = _quotes(text)
    return replace(best, encoding=encoding, quotes=quotes)


def _encoding(data: bytes) -> Literal["utf-8", "utf-16", "latin-1"]:
    """By the mark at the beginning, or by most of the lines that are not plain ASCII."""
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or data[:2].count(b"\0") == 1:
        return "utf-16"
    if data.startswith(codecs.BOM_UTF8) or data.isascii():
        return "utf-8"
    lines = [line for line in data.split(b"\n") if not line.isascii()]
    good = sum(line.decode("utf-8", "ignore").encode() == line for line in lines)
    return "utf-8" if 2 * good > len(lines) else "latin-1"


def _first(lines: bytes) -> bytes:
    """The first of them."""
    return lines[: lines.rfind(b"\n", 0, _SAMPLE) + 1] or lines


def _fit(
    sample: bytes, name: str, label: str | None, dialect: Dialect
) -> tuple[bool, int, int, bool]:
    """How well lines fit a dialect: that the label is a column, how many lines have a cell for each
    column, how many columns there are, and that all have a name."""
    try:
        text = opened(sample, name, dialect)
    except InputError:
        return False, 0, 0, False
    columns = len(text.names)
    fitting = _fitting(text, text.body.split(b"\n")) if columns > 1 else 0
    return label in text.names, fitting, columns, columns == text.width


def _fitting(text: Text, lines: Sequence[bytes]) -> int:
    found = (split_line(line, text.dialect) for line in lines)
    return sum(cells is not None and len(cells) == text.width for cells in found)


def _quotes(text: Text) -> Literal["many-lines", "one-line", "none"]:
    """Several lines only where a record has some: else every line is read by itself. Quotes that
    mostly do not close are characters."""
    if _multi_line(text):
        return "many-lines"
    none = replace(text.dialect, quotes="none")
    good = bad = 0
    for line in _first(text.body).split(b"\n"):
        if b'"' in line:
            quoted, plain = split_line(line, text.dialect), split_line(line, none)
            good += quoted is not None and quoted != plain and len(quoted) == text.width
            bad += quoted is None and plain is not None and len(plain) == text.width
    return "none" if bad > good else "one-line"


def _multi_line(text: Text) -> bool:
    """Whether some record has a cell of several lines, and a cell for each column."""
    between = text.between
    at, record = 0, record_of(between)
    while (found := text.body.find(b'"', at)) >= 0:
        start = text.body.rfind(b"\n", at, found) + 1 or at
        whole = record.match(text.body, start)
        at = (text.body.index(b"\n", found) if whole is None else whole.end()) + 1
        several = None if whole is None or b"\n" not in whole[0] else whole[0]
        if several is not None and len(split_record(several, between)) == text.width:
            return True
    return False


def _marked(dialect: Dialect, columns: Sequence[Any]) -> Dialect:
    """With the marks by which most cells are numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = [pc.utf8_trim_whitespace(column.slice(0, _RECORDS)) for column in columns]
    numbers = pa.concat_arrays(
        [each.filter(pc.match_substring_regex(each, _LOOKS)) for each in trimmed]
    )

    def fitting(marks: tuple[str, str]) -> int:
        by = _with_marks(dialect, *marks)
        return pc.sum(pc.match_substring_regex(numbers, by.number)).as_py() or 0

    if fitting(_MARKS[0]) == len(numbers):
        return dialect
    by_comma = dialect.separator == "comma"  # then a decimal comma is the less likely one
    order = sorted(_MARKS, key=lambda marks: marks[0] == "comma") if by_comma else _MARKS
    return _with_marks(dialect, *max(order, key=fitting))  # the first of equals


def _with_marks(dialect: Dialect, decimal: Any, thousands: Any) -> Dialect:
    return replace(dialect, decimal=decimal, thousands=thousands)
