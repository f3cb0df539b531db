"""Columns in memory, coded by a declared schema."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from capemix.data.rows import LabeledRows
from capemix.data.schema import Codes, Column, Number, Real, Table
from capemix.errors import InputError


def table_rows(table: Table, columns: Any, labels: npt.ArrayLike) -> LabeledRows:
    """Rows of ``columns``, anything that gives a column by its name: a DataFrame, or a dict."""
    known = np.asarray(labels, dtype=object)
    codes = table.label.codes(*_distinct(known))
    if not (codes >= 0).any():
        raise InputError("y", "has none of the schema's classes", fix="check the schema's label")
    return table.coded([_cells(each, columns, len(known)) for each in table.columns], codes)


def _cells(column: Column, columns: Any, length: int) -> Real | Codes:
    try:
        cells = np.asarray(columns[column.name], dtype=object)
    except (KeyError, IndexError, TypeError):
        raise InputError(
            "X", "lacks a column of the schema", value=column.name, fix="give it, or undeclare it"
        ) from None
    if cells.shape != (length,):
        raise InputError(
            "X",
            f"must have a value for each of the {length} labels",
            value=f"{column.name}: {cells.shape}",
            fix="give columns as long as y",
        )
    if not isinstance(column, Number):
        return column.codes(*_distinct(cells))
    try:
        numbers = cells.astype(np.float64)
    except (TypeError, ValueError):  # which would quote the cell
        numbers = np.full(length, np.nan)
    if not np.isfinite(numbers).all():
        raise InputError(
            f"column '{column.name}'",
            "has values that are missing, infinite or no numbers",
            fix="fill them, or drop those rows",
        )
    return numbers


def _distinct(cells: npt.NDArray[Any]) -> tuple[list[object], npt.NDArray[np.int64]]:
    places: dict[object, int] = {}
    positions = [places.setdefault(_plain(cell), len(places)) for cell in cells]
    return list(places), np.array(positions, dtype=np.int64)


def _plain(cell: Any) -> object:
    """Missing is one value, however it is written."""
    return None if cell is None or str(cell) in ("nan", "NaT", "<NA>") else str(cell)
