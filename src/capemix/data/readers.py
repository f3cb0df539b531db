"""Files become cells: a reader for each kind of file, by its suffix.

A reader splits a file into records and a record into cells, and looks at nothing else. What the
cells say is read later, each by itself (`capemix.data.cells`). Of a text file every line is a
record, or several where a quoted cell has line ends; one that does not have a cell for each column
is a record without a value. Quotes that are not as RFC 4180 has them are refused: a writer that
escapes them otherwise would make many records of one.

What is refused here is the file as a whole: one that cannot be opened, unpacked, or held in memory,
or whose header or array names are not usable. docs/guide/reading.md lists it.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from capemix.data.arrays import read_npz
from capemix.data.cells import Cells
from capemix.data.soft_labels import is_soft_label
from capemix.errors import InputError, quoted, unreadable
from capemix.kernels.machine import require_unpacked

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST_FIXED: Final = 1 << 12
"""Bytes of a cell of fixed length: longer ones are not read."""

_PIECE: Final = 1 << 26
"""Bytes of text that are parsed at a time."""

MAX_LINE: Final = 1 << 24
"""Bytes; a longer record has no value."""

_CAREFUL: Final = re.compile(rb'["\r]|\\\n')

_CELL: Final = rb'(?:"[^"]*+(?:""[^"]*+)*+"|[^",\n]*+)'
_RECORD: Final = re.compile(_CELL + rb"(?:," + _CELL + rb")*+(?=\n)")
"""RFC 4180: line ends in quoted cells, and quotes nowhere else. Nothing is tried twice."""

_CELLS: Final = re.compile(rb'(?:\A|,)(?:"([^"]*+(?:""[^"]*+)*+)"|([^,]*+))')


def open_cells(
    path: str | Path,
    label: str | None = None,
    also: Sequence[str] = (),
    *,
    labelled: bool = True,
) -> Cells:
    """The cells of a file; its suffix says how it is read. ``label`` names the label's column or
    array: a table must have it, if it is ``labelled``, and arrays that are named as usual need not
    be told. ``also`` names other arrays that are wanted; a table's columns are all read."""
    path = Path(path)
    suffix = suffix_of(path)
    field = f"data file {path.name}"
    if suffix is None:
        raise InputError(field, "has an unknown suffix", fix=f"give one of {', '.join(READERS)}")
    if not path.is_file():
        raise InputError(field, "does not exist", value=path, fix="check the path")
    if path.stat().st_size == 0:
        raise InputError(field, "is empty", fix="give a file with a header")
    cells = READERS[suffix](path, field, label, also)
    if cells.label is not None:
        check_column("label", cells.label, cells.names)
    elif labelled:
        raise InputError(
            "label",
            "is not given",
            fix=f"name the label column of {path.name}; a table without one needs a schema",
        )
    return cells


def suffix_of(path: str | Path) -> str | None:
    """The one of `READERS` that a file's name ends in."""
    return next((end for end in READERS if str(path).lower().endswith(end)), None)


def check_column(field: str, wanted: str, names: Sequence[str]) -> None:
    """Refuse the name of a column that is not there."""
    if wanted in names:
        return
    if any(_is_number(name) for name in names):  # then these may be cells, so do not quote them
        fix = "check the name, and that the first line of the file names the columns"
    else:
        fix = f"choose one of {quoted(names)}"
    raise InputError(field, "names no column of the file", value=wanted, fix=fix)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _check_names(field: str, names: list[str]) -> None:
    if "" in names:
        raise InputError(
            field,
            f"has a column without a name, number {names.index('') + 1}",
            fix="name it, or leave it out (a saved index is no feature)",
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(field, f"has columns of the same name: {quoted(twice)}", fix="rename them")


# -- text ------------------------------------------------------------------------------------------


def _read_csv(path: Path, field: str, label: str | None, _also: Sequence[str] = ()) -> Cells:
    """Every cell as text. Bytes that are no UTF-8 spoil their own cell."""
    try:
        packed = path.name.lower().endswith(".gz")
        data = _unpacked(field, path) if packed else path.read_bytes()
    except (OSError, EOFError, zlib.error):
        raise unreadable(field, "CSV") from None
    data = data.removeprefix(b"\xef\xbb\xbf")
    data = data.replace(b"\r\n", b"\n").lstrip(b"\n")
    if not data.strip():
        raise InputError(field, "is empty", fix="give a file with a header")
    header, _, body = data.partition(b"\n")
    if _RECORD.match(header + b"\n") is None:
        raise unreadable(field, "CSV")
    names = [name.strip() for name in _split(header)]
    _check_names(field, names)
    return _text_cells(field, names, body, label)


def _unpacked(field: str, path: Path) -> bytes:
    """A few kilobytes can unpack to more than any machine holds."""
    import gzip

    parts: list[bytes] = []
    with gzip.open(path) as stream:
        while part := stream.read(_PIECE):
            parts.append(part)
            require_unpacked(field, sum(map(len, parts)))
    return b"".join(parts)


def _text_cells(field: str, names: Sequence[str], body: bytes, label: str | None) -> Cells:
    import pyarrow as pa

    if body and not body.endswith(b"\n"):
        body += b"\n"
    plain, careful = _set_apart(field, body, len(names))
    parts = [_parsed(names, piece) for piece in _pieces(plain)]
    parts.append(_table(names, [row for row in careful if row is not None]))
    whole = pa.concat_tables(parts)
    columns = map(_one, whole.itercolumns())
    return Cells(
        whole.num_rows,
        dict(zip(names, columns, strict=True)),
        label,
        without_value=plain.count(b"\n") + len(careful) - whole.num_rows,
    )


def _set_apart(field: str, body: bytes, columns: int) -> tuple[bytes, list[list[str] | None]]:
    """The lines that arrow may read, and the cells of the others, those with a quote or with half a
    line end: None for a record without a value."""
    plain: list[bytes] = []
    rows: list[list[str] | None] = []
    at = 0
    while found := _CAREFUL.search(body, at):
        start = body.rfind(b"\n", at, found.start()) + 1 or at
        plain.append(body[at:start])
        # However long the record is, and however many cells it has: no line of it is another.
        record = _RECORD.match(body, start)
        if record is None or record[0].endswith(b"\\"):
            raise InputError(
                field,
                "has a quote that is left open, or that stands inside a cell, or a backslash at the"
                " end of a line: then nobody can tell where a record ends",
                value="line " + str(body.count(b"\n", 0, start) + 2),
                fix="write it with a CSV writer that doubles quotes (RFC 4180), or as Parquet",
            )
        row = _split(record[0]) if len(record[0]) <= MAX_LINE else []
        rows.append(row if len(row) == columns else None)
        at = record.end() + 1
    return b"".join((*plain, body[at:])), rows


def _one(column: Any) -> Any:
    """A column in one array."""
    import pyarrow as pa

    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


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


def _parsed(names: Sequence[str], text: bytes) -> pa.Table:
    """Lines without a quote; one with another number of cells is left out."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if not text.strip(b"\n"):
        return _table(names, [])
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode("utf-8", "replace").encode()
    text = b"\n" + text  # or Arrow would take a mark of byte order off the first line's first cell
    numbered = [str(at) for at in range(len(names))]
    return arrow_csv.read_csv(
        io.BytesIO(text),
        arrow_csv.ReadOptions(column_names=numbered, block_size=len(text) + 1),
        arrow_csv.ParseOptions(
            quote_char=False, newlines_in_values=False, invalid_row_handler=lambda _row: "skip"
        ),
        arrow_csv.ConvertOptions(column_types=dict.fromkeys(numbered, pa.large_string())),
    )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> pa.Table:
    import pyarrow as pa

    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return pa.table(
        {str(at): pa.array(cells, pa.large_string()) for at, cells in enumerate(columns)}
    )


def _split(record: bytes) -> list[str]:
    """The cells of what `_RECORD` has matched."""
    return [
        (cell[2] if cell[1] is None else cell[1].replace(b'""', b'"')).decode("utf-8", "replace")
        for cell in _CELLS.finditer(record)
    ]


# -- Parquet ---------------------------------------------------------------------------------------


def _read_parquet(path: Path, field: str, label: str | None, _also: Sequence[str]) -> Cells:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as opened:
            require_unpacked(field, _declared(opened.metadata))
            fields = [each for each in opened.schema_arrow if not _is_beside(each)]
            names = [each.name for each in fields]
            _check_names(field, names)
            texts = [
                each.path
                for each in map(opened.schema.column, range(len(opened.schema)))
                if each.physical_type == "BYTE_ARRAY"
            ]
        flat = [each.name for each in fields if not _swells(each.type)]
        # As a dictionary, one long text in every row is held once; then it is known how long.
        with parquet.ParquetFile(path, read_dictionary=texts) as opened:
            rows = opened.metadata.num_rows
            table = _piecewise(field, opened, flat)
        found = {name: _undictionaried(field, table.column(name)) for name in flat}
    except InputError:
        raise
    except Exception:  # a tampered file can raise anything
        raise unreadable(field, "Parquet") from None
    # What is not read has no value in any record.
    return Cells(rows, {name: found.get(name, pa.nulls(rows)) for name in names}, label)


def _is_beside(each: Any) -> bool:
    """What is no column of the rows: an index of pandas, and soft labels."""
    name = each.name
    return (name.startswith("__index_level_") and name.endswith("__")) or is_soft_label(each)


def _swells(kind: Any) -> bool:
    """Lists, and bytes of one length beyond any word: a few bytes of a file can hold gigabytes of
    them, and neither is a value."""
    import pyarrow as pa

    long = pa.types.is_fixed_size_binary(kind) and kind.byte_width > _LONGEST_FIXED
    return bool(long or pa.types.is_nested(kind))


def _declared(metadata: Any) -> int:
    """The memory that the columns take, as the file says before any of it is unpacked."""
    lengths = [metadata.schema.column(at).length for at in range(metadata.num_columns)]
    read = (max(8, length) for length in lengths if length <= _LONGEST_FIXED)
    numbers = metadata.num_rows * sum(read)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return int(max(numbers, sum(group.total_byte_size for group in groups)))


def _piecewise(field: str, opened: Any, columns: Sequence[str]) -> pa.Table:
    """These columns, a group of rows at a time, as long as there is memory for all of it."""
    import pyarrow as pa

    pieces, held = [], 0
    for at in range(opened.metadata.num_row_groups):
        pieces.append(opened.read_row_group(at, columns=columns))
        held += pieces[-1].nbytes
        require_unpacked(field, held)
    return pa.concat_tables(pieces) if pieces else opened.read(columns=columns)


def _undictionaried(field: str, column: Any) -> Any:
    """A column in one array, checked; text as plain text, if there is memory for all of it. Text
    that is no UTF-8 stays bytes, so that it spoils its own cell only."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        if _is_text(kind):
            lengths = [
                pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() or 0
                for chunk in column.chunks
            ]
            require_unpacked(field, sum(lengths))
    text = _is_text(kind)
    found = _one(column.cast(pa.large_binary() if text else kind))
    # Of plain numbers and times every bit pattern is safe, and one that means nothing is its own.
    plain = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    found.validate(full=not plain)
    if not text:
        return found
    try:
        return found.cast(pa.large_string())
    except pa.ArrowInvalid:
        return found


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    return any(is_kind(kind) for is_kind in (*kinds, pa.types.is_large_binary))


Reader = Callable[[Path, str, str | None, Sequence[str]], Cells]
"""From a path, what errors call it, the label's name, and names of other arrays that are wanted."""

READERS: Final[dict[str, Reader]] = {
    ".csv": _read_csv,
    ".csv.gz": _read_csv,
    ".parquet": _read_parquet,
    ".npz": read_npz,
}
"""By the suffix of a file's name. tests/test_one_record.py holds each of them to the one-record
property."""
