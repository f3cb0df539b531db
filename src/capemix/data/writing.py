"""Coded rows written as a table again, in the types that its schema declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from capemix.data.rows import LabeledRows


def write_table(rows: LabeledRows, path: Path) -> None:
    """Rows that are coded by a schema, as a .parquet file from which the schema gives the same:
    cells as they were coded, also those with no declared value."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = rows.table
    if table is None:
        raise ValueError("rows without a schema")
    columns: dict[str, Any] = {}
    for column, place in zip(table.columns, table.places, strict=True):
        block = rows.features[:, place].astype(np.float64, copy=False)
        columns[column.name] = column.arrow(column.kept(block))
    labels = [table.label.categories[code] for code in rows.labels]
    columns[table.label.name] = table.label.arrow(labels)
    pq.write_table(pa.table(columns), path)
