"""Parquet files become cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from capemix.data.cells import Cells, one_array
from capemix.data.dialect import Dialect
from capemix.data.rows import check_names
from capemix.data.soft_labels import is_soft_label
from capemix.errors import InputError, unreadable
from capemix.kernels.machine import require_unpacked

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST_FIXED: Final = 1 << 12
"""Bytes of a cell of fixed length: longer ones are not read."""


def read_parquet(
    path: Path, field: str, label: str | None, _also: Sequence[str], _dialect: Dialect | None
) -> Cells:
    """Every column that is plain, with cells of its own type."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as opened:
            require_unpacked(field, _declared(opened.metadata))
            fields = [each for each in opened.schema_arrow if not _is_beside(each)]
            names = [each.name for each in fields]
            check_names(field, names)
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
    found = one_array(column.cast(pa.large_binary() if text else kind))
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
