"""Files become cells: a reader for each kind of file, by its suffix.

A reader splits a file into records and a record into cells, and looks at nothing else. What the
cells say is read later, each by itself (`capemix.data.cells`).

A text file is read by a declared dialect. It is first made UTF-8 with plain line ends, a character
at a time, so that what cannot be decoded spoils its own cell. Then every line is a record, or
several where the dialect says that a quoted cell may have line ends. A record that does not have a
cell for each column has no value. Which lines have none is told to the file's owner alone
(`capemix.data.faults`): what is raised here names no line.

What is refused here is the file as a whole: one that cannot be opened, unpacked, or held in memory,
or whose header or array names are not usable. docs/guide/reading.md lists it.
"""

from __future__ import annotations

import codecs
import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from capemix.data.arrays import read_npz
from capemix.data.cells import Cells, one_array
from capemix.data.dialect import SEPARATORS, USUAL, Dialect
from capemix.data.parquet import read_parquet
from capemix.data.rows import check_column, check_names, check_written
from capemix.errors import InputError, unreadable
from capemix.kernels.machine import require_unpacked

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE: Final = 1 << 26
"""Bytes of text that are parsed at a time."""

MAX_LINE: Final = 1 << 24
"""Bytes; a longer record has no value."""

_SEPARATOR_LINE: Final = re.compile(rb'"?sep=[,;\t|]"?\n', re.IGNORECASE)
"""The line before the header by which a spreadsheet is told the separator."""

_CELL: Final = rb'(?:"[^"]*+(?:""[^"]*+)*+"|[^"%s\n]*+)'
_ONE_LINE_CELL: Final = rb'(?:"[^"]*+(?:""[^"]*+)*+"(?=[%s]|\Z)|(?!")[^%s]*+)'
_CELLS: Final = r'(?:\A|[%s])(?:"([^"]*+(?:""[^"]*+)*+)"|([^%s]*+))'


def open_cells(
    path: str | Path,
    label: str | None = None,
    also: Sequence[str] = (),
    dialect: Dialect | None = None,
    *,
    labelled: bool = True,
) -> Cells:
    """The cells of a file; its suffix says how it is read, and for a text file its declared
    ``dialect``. ``label`` names the label's column or array: a table must have it, if it is
    ``labelled``, and arrays that are named as usual need not be told. ``also`` names other arrays
    that are wanted; a table's columns are all read."""
    path = Path(path)
    suffix = suffix_of(path)
    field = f"data file {path.name}"
    if suffix is None:
        raise InputError(field, "has an unknown suffix", fix=f"give one of {', '.join(READERS)}")
    if not path.is_file():
        raise InputError(field, "does not exist", value=path, fix="check the path")
    if path.stat().st_size == 0:
        raise InputError(field, "is empty", fix="give a file with a header")
    cells = READERS[suffix](path, field, label, also, dialect)
    if cells.label is not None:
        check_column("label", cells.label, cells.names)
    elif labelled:
        raise InputError(
            "label",
            "is not given",
            fix=f"name the label column of {path.name}; a table without one needs a schema"
            " (`capemix schema draft`)",
        )
    return cells


def suffix_of(path: str | Path) -> str | None:
    """The one of `READERS` that a file's name ends in."""
    return next((end for end in READERS if str(path).lower().endswith(end)), None)


# -- text ------------------------------------------------------------------------------------------


class QuoteError(InputError):
    """A file in which nobody can tell where the record ends that begins on ``line`` (private)."""

    def __init__(self, field: str, line: int, *, named: bool = False) -> None:
        self.line = line
        super().__init__(
            field,
            "has a quote that is left open, or that stands inside a cell, or a backslash at the"
            " end of a line: then nobody can tell where a record ends",
            value=f"line {line}" if named else None,
            fix="write it with a CSV writer that doubles quotes (RFC 4180), or as Parquet"
            + ("" if named else "; `capemix schema draft` names the line"),
        )

    def named(self) -> QuoteError:
        """The same with its line, for the file's owner."""
        return QuoteError(self.field, self.line, named=True)


@dataclass(frozen=True, repr=False)
class Text:
    """A text file by its ``dialect``: its ``names``, and the lines after its header as UTF-8 with
    LF (private). ``width`` is how many cells a record has: columns at the end may have no name, and
    are not read. ``first`` is the number of the first line after the header."""

    dialect: Dialect
    between: bytes
    names: tuple[str, ...]
    width: int
    body: bytes
    first: int


def read_text(
    path: Path, field: str, label: str | None, _also: Sequence[str], declared: Dialect | None
) -> Cells:
    """Every cell as text."""
    text = opened(unpacked(path, field), field, declared or usual(path))
    check_names(field, text.names)
    if label is not None:
        if declared is None:
            check_written("label", label, text.names)
        check_column("label", label, text.names)
    return cells_from(text, *set_apart(text, field, is_declared=declared is not None), label)


def usual(path: Path) -> Dialect:
    """How a file is written where nobody says it."""
    return replace(USUAL, separator="tab") if path.name.lower().endswith(".tsv") else USUAL


# -- bytes become lines ----------------------------------------------------------------------------


def unpacked(path: Path, field: str) -> bytes:
    """A few kilobytes can unpack to more than any machine holds."""
    import gzip

    try:
        if not path.name.lower().endswith(".gz"):
            return path.read_bytes()
        parts: list[bytes] = []
        with gzip.open(path) as stream:
            while part := stream.read(_PIECE):
                parts.append(part)
                require_unpacked(field, sum(map(len, parts)))
        return b"".join(parts)
    except (OSError, EOFError, zlib.error):
        raise unreadable(field, "CSV") from None


def as_utf8(data: bytes, encoding: str) -> bytes:
    """A character at a time, so that no line end comes or goes. Bytes that are no UTF-8 stay until
    their cell is read."""
    if encoding == "utf-8":
        return data.removeprefix(codecs.BOM_UTF8)
    codec = "cp1252"  # Latin-1, and what Windows writes in its place
    if encoding == "utf-16":  # the mark, or else the header's first character, has the byte order
        codec = "utf-16-be" if data[:2] == codecs.BOM_UTF16_BE or data[:1] == b"\0" else "utf-16-le"
        data = data[2:] if data[:2] in (codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE) else data
    decoder = codecs.getincrementaldecoder(codec)("replace")
    pieces = (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))
    parts = [decoder.decode(piece).encode("utf-8", "replace") for piece in pieces]
    return b"".join((*parts, decoder.decode(b"", final=True).encode()))


def opened(data: bytes, field: str, dialect: Dialect) -> Text:
    """A file's header and its lines."""
    between = SEPARATORS[dialect.separator]
    data = as_utf8(data, dialect.encoding).replace(b"\r\n", b"\n")
    content = data.lstrip(b"\n")
    header_line = len(data) - len(content) + 1
    if mark := _SEPARATOR_LINE.match(content):
        content, header_line = content[mark.end() :], header_line + 1
    if not content.strip():
        raise InputError(field, "is empty", fix="give a file with a header")
    if not content.endswith(b"\n"):
        content += b"\n"
    if dialect.trailing:
        content = content.replace(between + b"\n", b"\n")
    header, _, body = content.partition(b"\n")
    found = split_line(header, dialect)
    if found is None:
        raise unreadable(field, "CSV")
    names = [name.strip() for name in found]
    while len(names) > 1 and not names[-1]:
        names.pop()
    return Text(dialect, between, tuple(names), len(found), body, header_line + 1)


# -- lines become cells ----------------------------------------------------------------------------


Careful = list[tuple[tuple[int, int], list[str] | None]]
"""Of each record that is read by itself, from where to where it goes, and its cells, None if it has
no value."""


def cells_from(text: Text, plain: bytes, careful: Careful, label: str | None) -> Cells:
    """The cells of what `set_apart` found: of plain lines first, then of the others."""
    import pyarrow as pa

    plain_numbers = (text.dialect.decimal, text.dialect.thousands) == ("point", "none")
    parts = [_parsed(text.width, piece, text.between) for piece in _pieces(plain)]
    parts.append(_table(text.width, [row for _, row in careful if row is not None]))
    whole = pa.concat_tables(parts)
    columns = map(one_array, whole.itercolumns())
    return Cells(
        whole.num_rows,
        dict(zip(text.names, columns, strict=False)),  # those at the end have no name
        label,
        without_value=plain.count(b"\n") + len(careful) - whole.num_rows,
        dialect=None if plain_numbers else text.dialect,
    )


def set_apart(text: Text, field: str, *, is_declared: bool) -> tuple[bytes, Careful]:
    """The lines that Arrow may read, and each other record: one with a quote, or with half a line
    end. Where nobody has declared a dialect, a backslash at the end of a line has the file refused,
    too: MySQL writes it before the line ends in its cells."""
    plain: list[bytes] = []
    rows: Careful = []
    dialect, body = text.dialect, text.body
    suspect = _SUSPECT[dialect.quotes if is_declared else "undeclared"].search
    at, record = 0, record_of(text.between)
    while found := suspect(body, at):
        start = body.rfind(b"\n", at, found.start()) + 1 or at
        plain.append(body[at:start])
        row: list[str] | None = None
        if dialect.quotes != "many-lines":
            end = body.index(b"\n", start)
            row = split_line(body[start:end], dialect) if end - start <= MAX_LINE else None
        else:
            # However long the record is, and however many cells it has: no line of it is another.
            whole = record.match(body, start)
            if whole is None or (not is_declared and whole[0].endswith(b"\\")):
                raise QuoteError(field, body.count(b"\n", 0, start) + text.first)
            end = whole.end()
            row = split_record(whole[0], text.between) if end - start <= MAX_LINE else None
        rows.append(((start, end), row if row is not None and len(row) == text.width else None))
        at = end + 1
    return b"".join((*plain, body[at:])), rows


_SUSPECT: Final = {
    "undeclared": re.compile(rb'["\r]|\\\n'),
    "many-lines": re.compile(rb'["\r]'),
    "one-line": re.compile(rb'["\r]'),
    "none": re.compile(rb"\r"),
}
"""What Arrow does not read as the dialect has it, or what no record may have."""


@cache
def record_of(between: bytes) -> re.Pattern[bytes]:
    """RFC 4180: line ends in quoted cells, and quotes nowhere else. Nothing is tried twice."""
    cell = _CELL % between
    return re.compile(cell + b"(?:[" + between + b"]" + cell + rb")*+(?=\n)")


@cache
def _line_of(between: bytes) -> re.Pattern[bytes]:
    """A line by itself: a cell that begins with a quote ends with one, and any other may have
    quotes in it."""
    cell = _ONE_LINE_CELL % (between, between)
    return re.compile(cell + b"(?:[" + between + b"]" + cell + rb")*+\Z")


@cache
def _cells_between(between: str) -> re.Pattern[str]:
    return re.compile(_CELLS % (between, between))


def split_line(line: bytes, dialect: Dialect) -> list[str] | None:
    """The cells of one line, None if its quotes do not fit."""
    between = SEPARATORS[dialect.separator]
    if dialect.quotes == "none":
        return [cell.decode("utf-8", "replace") for cell in line.split(between)]
    if dialect.quotes == "one-line":
        fits = _line_of(between).match(line) is not None
    else:
        found = record_of(between).match(line + b"\n")
        fits = found is not None and found.end() == len(line)
    return split_record(line, between) if fits else None


def split_record(record: bytes, between: bytes) -> list[str]:
    """The cells of a record whose quotes fit."""
    cells = _cells_between(between.decode()).findall(record.decode("utf-8", "replace"))
    return [quoted.replace('""', '"') if quoted else plain for quoted, plain in cells]


def _pieces(text: bytes) -> Iterator[bytes]:
    """The text in pieces that end where a line does, without lines that are too long."""
    start = 0
    while start < len(text):
        cut = text.rfind(b"\n", start, start + _PIECE)
        cut = text.index(b"\n", start + _PIECE) if cut < 0 else cut
        piece = text[start : cut + 1]
        if len(piece) > MAX_LINE:
            lines = piece.split(b"\n")
            piece = b"\n".join(line for line in lines if len(line) <= MAX_LINE)
        yield piece
        start = cut + 1


def _parsed(width: int, text: bytes, between: bytes) -> pa.Table:
    """Lines without a quote that means something; one with another number of cells is left out."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if not text.strip(b"\n"):
        return _table(width, [])
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode("utf-8", "replace").encode()
    text = b"\n" + text  # or Arrow would take a mark of byte order off the first line's first cell
    numbered = [str(at) for at in range(width)]
    return arrow_csv.read_csv(
        io.BytesIO(text),
        arrow_csv.ReadOptions(column_names=numbered, block_size=len(text) + 1),
        arrow_csv.ParseOptions(
            delimiter=between.decode(),
            quote_char=False,
            newlines_in_values=False,
            invalid_row_handler=lambda _row: "skip",
        ),
        arrow_csv.ConvertOptions(column_types=dict.fromkeys(numbered, pa.large_string())),
    )


def _table(width: int, rows: Sequence[Sequence[str]]) -> pa.Table:
    import pyarrow as pa

    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * width
    return pa.table(
        {str(at): pa.array(cells, pa.large_string()) for at, cells in enumerate(columns)}
    )


# -- all of them ---


def _read_npz(
    path: Path, field: str, label: str | None, also: Sequence[str], _dialect: Dialect | None
) -> Cells:
    return read_npz(path, field, label, also)


Reader = Callable[[Path, str, str | None, Sequence[str], Dialect | None], Cells]
"""From a path, what errors call it, the label's name, names of other arrays that are wanted, and
how a text file is written, if that is declared."""

TEXT: Final = (".csv", ".csv.gz", ".tsv", ".txt")
"""The suffixes of text files."""

READERS: Final[dict[str, Reader]] = {
    **dict.fromkeys(TEXT, read_text),
    ".parquet": read_parquet,
    ".npz": _read_npz,
}
"""By the suffix of a file's name. tests/test_one_record.py holds each of them to the one-record
property."""
