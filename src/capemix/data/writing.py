"""Coded rows written as a table again, in the types that its schema declares."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from capemix.data.rows import LabeledRows


def write_table(rows: LabeledRows, path: Path) -> None:
    """Rows that are coded by a schema, as a .parquet file from which the schema gives the same:
    cells as they were coded, also those with no declared value."""
    import pyarrow.parquet as pq

    table = rows.table
    if table is None:
        raise ValueError("rows without a schema")
    features = rows.features.astype(np.float64, copy=False)
    pq.write_table(table.arrow(table.kept(features, rows.labels)), path)
