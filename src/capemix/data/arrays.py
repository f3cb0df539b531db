"""Cells of tables and arrays in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from capemix.data.cells import Cells
from capemix.data.readers import array_cells
from capemix.errors import InputError

LABEL = "label"
"""What the labels of arrays are called."""


def cells_of_arrays(X: npt.ArrayLike, y: npt.ArrayLike) -> Cells:
    """Rows by columns beside one label a row."""
    features, labels = _array(X), _array(y)
    if features.ndim == 1 and any(isinstance(row, (list, tuple, np.ndarray)) for row in features):
        raise InputError("X", "must have rows of one length", fix="give a 2-d array")
    if features.ndim != 2:
        raise InputError("X", "must be rows by columns", value=features.shape, fix="reshape it")
    if labels.shape != (len(features),):
        raise InputError("y", "must be one label per row", value=labels.shape, fix="reshape it")
    return array_cells(features, {LABEL: labels}, label=LABEL, field="X")


def cells_of_columns(columns: Any, names: Sequence[str], label: str, y: npt.ArrayLike) -> Cells:
    """The named columns of anything that gives a column by its name, a DataFrame or a dict, beside
    one label a row."""
    labels = _array(y)
    found: dict[str, Any] = {}
    for name in names:
        try:
            cells = _array(columns[name])
        except (KeyError, IndexError, TypeError):
            raise InputError(
                "X", "lacks a column of the schema", value=name, fix="give it, or undeclare it"
            ) from None
        if cells.shape != labels.shape:
            raise InputError(
                "X",
                f"must have a value for each of the {len(labels)} labels",
                value=f"{name}: {cells.shape}",
                fix="give columns as long as y",
            )
        found[name] = cells
    return Cells(len(labels), found | {label: labels}, label)


def _array(cells: Any) -> npt.NDArray[Any]:
    """What is no array of numbers yet becomes one without a common type, so that a cell stays what
    it is."""
    if isinstance(cells, np.ma.MaskedArray):
        return np.asarray(np.ma.filled(cells.astype(object), None))
    if hasattr(cells, "__array__"):
        found = np.asarray(cells)
        if isinstance(cells, np.ndarray) or found.dtype.kind in "buif":
            return found
    try:
        return np.asarray(cells, dtype=object)
    except ValueError:  # arrays of different lengths
        raise InputError("X", "must have rows of one length", fix="give a 2-d array") from None
