"""Coded rows written as a table again, in the types that its schema declares."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from capemix.data.rows import LabeledRows


def write_table(rows: LabeledRows, path: Path, person: str | None = None) -> None:
    """Rows that are coded by a schema, as a .parquet file from which the schema gives the same:
    cells as they were coded, also those with no declared value. ``person`` names a further column,
    which says whose a row is."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = rows.table
    if table is None:
        raise ValueError("rows without a schema")
    features = rows.features.astype(np.float64, copy=False)
    written = table.arrow(table.kept(features, rows.labels))
    if person is not None:
        written = written.append_column(person, pa.array(rows.persons))
    pq.write_table(written, path)
