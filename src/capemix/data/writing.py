"""Coded rows written as a table again, in the types that its schema declares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capemix.data.rows import LabeledRows
from capemix.data.schema import Category, Number, Value

if TYPE_CHECKING:
    import pyarrow as pa


def write_table(rows: LabeledRows, path: Path) -> None:
    """Rows that are coded by a schema, as a .parquet file from which the schema gives the same:
    numbers as they stand, also outside of their range, and null where a block has no category."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = rows.table
    if table is None:
        raise ValueError("rows without a schema")
    columns: dict[str, Any] = {}
    for column, place in zip(table.columns, table.places, strict=True):
        block = rows.features[:, place]
        if isinstance(column, Number):
            columns[column.name] = column.values(block[:, 0].astype(np.float64, copy=False))
        elif isinstance(column, Category):
            words = [*column.categories, None]
            codes = np.where(block.any(axis=1), block.argmax(axis=1), len(column.categories))
            columns[column.name] = category_column(column, [words[code] for code in codes])
    labels = [table.label.categories[code] for code in rows.labels]
    columns[table.label.name] = category_column(table.label, labels)
    pq.write_table(pa.table(columns), path)


def category_column(column: Category, cells: Sequence[Value | None]) -> pa.Array:
    """Of the type that its list has, whichever of its values there are."""
    import pyarrow as pa

    kind = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}[type(column.categories[0])]
    return pa.array(cells, kind)
