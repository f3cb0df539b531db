"""Cells of arrays: of npz files, and of tables and arrays in memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.data.cells import Cells
from capemix.data.rows import pixel_names
from capemix.errors import InputError, quoted, unreadable
from capemix.kernels.machine import require_unpacked

LABEL = "label"
"""What the labels of arrays are called."""

_PAIRS: Final = (
    ("X", "y"),
    ("features", "labels"),
    ("data", "target"),
    ("x_train", "y_train"),
)
"""Features and labels, as npz files usually call them."""


def cells_of_arrays(X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> Cells:
    """Rows by columns beside one label a row, if they have labels."""
    features, labels = _array(X), None if y is None else _array(y)
    if features.ndim == 1 and any(isinstance(row, (list, tuple, np.ndarray)) for row in features):
        raise InputError("X", "must have rows of one length", fix="give a 2-d array")
    if features.ndim != 2:
        raise InputError("X", "must be rows by columns", value=features.shape, fix="reshape it")
    if labels is None:
        return array_cells(features, {}, label=None, field="X")
    if labels.shape != (len(features),):
        raise InputError("y", "must be one label per row", value=labels.shape, fix="reshape it")
    return array_cells(features, {LABEL: labels}, label=LABEL, field="X")


def cells_of_columns(
    columns: Any,
    names: Sequence[str],
    label: str | None,
    y: npt.ArrayLike | None = None,
    person: str | None = None,
) -> Cells:
    """The named columns of anything that gives a column by its name, a DataFrame or a dict. The
    labels are ``y``, or where that is not given the column ``label``. ``person`` is the column that
    says whose a row is."""
    found: dict[str, Any] = {}
    if y is not None and label is not None:
        found[label] = _array(y)
    more = (*(() if label is None or found else (label,)), *(() if person is None else (person,)))
    for name in (*names, *more):
        try:
            cells = _array(columns[name])
        except (KeyError, IndexError, TypeError):
            of = "of persons" if name == person else "of the schema"
            raise InputError(
                "X", f"lacks a column {of}", value=name, fix="give it, or undeclare it"
            ) from None
        first = next(iter(found.values()), cells)
        if cells.ndim != 1 or cells.shape != first.shape:
            raise InputError(
                "X",
                f"must have a value for each of the {len(first)} records",
                value=f"{name}: {cells.shape}",
                fix="give columns, and y, of one length",
            )
        found[name] = cells
    return Cells(len(first), found, label, person=person)


def _array(cells: Any) -> npt.NDArray[Any]:
    """What is no array of numbers yet becomes one without a common type, so that a cell stays what
    it is."""
    if isinstance(cells, np.ma.MaskedArray):
        return np.asarray(np.ma.filled(cells.astype(object), None))
    if hasattr(cells, "__array__"):
        try:
            found = np.asarray(cells)
            # Numpy makes numbers of moments in nanoseconds where it makes objects of them.
            plain = isinstance(cells, np.ndarray) or found.dtype.kind in "buifmM"
            return found if plain else np.asarray(cells, dtype=object)
        except Exception:  # one cell is beyond the calendar, say
            return _one_by_one(cells)
    try:
        return np.asarray(cells, dtype=object)
    except ValueError:  # arrays of different lengths
        raise InputError("X", "must have rows of one length", fix="give a 2-d array") from None


def _one_by_one(cells: Any) -> npt.NDArray[Any]:
    """A column's cells, None for each that has no value in Python: it is the only one to fail."""
    found = np.full(len(cells), None, dtype=object)
    by_place = getattr(cells, "iloc", cells)
    for at in range(len(cells)):
        with contextlib.suppress(Exception):
            cell = by_place[at]
            found[at] = cell.as_py() if hasattr(cell, "as_py") else cell
    return found


# -- files ----------------------------------------------------------------------------------------


def read_npz(path: Path, field: str, label: str | None, also: Sequence[str]) -> Cells:
    arrays = _NpzArrays(path, field)
    x_name, y_name = _pair(field, arrays.names, label, also)
    wanted = [y_name, *(name for name in also if name in arrays.names)]
    return array_cells(
        arrays.read(x_name),
        {name: arrays.read(name) for name in wanted},
        label=y_name,
        field=f"{field}, array '{x_name}',",
    )


def array_cells(
    features: npt.NDArray[Any],
    columns: dict[str, npt.NDArray[Any]],
    *,
    label: str | None,
    field: str,
) -> Cells:
    """Features as one array, rows by columns or grey images, beside flat arrays by name."""
    array = features
    if array.ndim == 4 and array.shape[3] == 1:
        array = array[:, :, :, 0]
    if array.ndim not in (2, 3) or 0 in array.shape[1:]:
        raise InputError(
            field,
            "must be rows by columns, or grey images",
            value=array.shape,
            fix="reshape it to (rows, columns) or (rows, height, width)",
        )
    shape = (int(array.shape[1]), int(array.shape[2])) if array.ndim == 3 else None
    flat = array.reshape(len(array), math.prod(array.shape[1:]))
    names = tuple(f"x{at}" for at in range(flat.shape[1])) if shape is None else pixel_names(shape)
    if set(columns) & set(names):
        raise InputError(
            "label", "has the name of a feature", value=label, fix="name the array otherwise"
        )
    beside = {name: _flat(name, column, len(flat)) for name, column in columns.items()}
    return Cells(len(flat), beside, label, flat, names, shape)


def _flat(name: str, array: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (rows,):
        raise InputError(
            f"array '{name}'",
            f"must have one value for each of the {rows} rows",
            value=array.shape,
            fix="save features and labels of the same rows",
        )
    return array


class _NpzArrays:
    """The arrays of an npz file, read one at a time and never unpickled."""

    def __init__(self, path: Path, field: str) -> None:
        self._path = path
        self._field = field
        self.names: list[str] = self._open(lambda archive: list(archive.files))

    def read(self, name: str) -> npt.NDArray[Any]:
        """One array."""
        array: npt.NDArray[Any] = self._open(lambda archive: self._array(archive, name))
        if not isinstance(array, np.ndarray):
            raise unreadable(self._field, "npz")
        return array

    def _array(self, archive: Any, name: str) -> Any:
        for member in archive.zip.infolist():
            if member.filename in (name, f"{name}.npy"):
                require_unpacked(self._field, member.file_size)
        return archive[name]

    def _open(self, use: Callable[[Any], Any]) -> Any:
        try:
            with (
                self._path.open("rb") as stream,  # numpy leaves a broken file open
                np.load(stream, allow_pickle=False) as archive,
            ):
                return use(archive)
        except InputError:
            raise
        except Exception as error:  # a tampered file can raise anything
            if "allow_pickle" in str(error):
                raise InputError(
                    self._field,
                    "holds an array of Python objects",
                    fix="save plain arrays of numbers or strings",
                ) from None
            raise unreadable(self._field, "npz") from None


def _pair(
    field: str, names: Sequence[str], label: str | None, also: Sequence[str]
) -> tuple[str, str]:
    """The names of the feature array and of the label array."""
    if label is None:
        for x_name, y_name in _PAIRS:
            if x_name in names and y_name in names:
                return x_name, y_name
        expected = ", ".join(f"{x_name} and {y_name}" for x_name, y_name in _PAIRS)
        raise InputError(
            field, "has no pair of arrays that is known", fix=f"name its arrays {expected}"
        )
    if label not in names:
        raise InputError(
            "label",
            "names no array of the file",
            value=label,
            fix=f"choose one of {quoted(names)}",
        )
    partners = [x_name for x_name, y_name in _PAIRS if y_name == label]
    others = [name for name in names if name != label and name not in also]
    for x_name in (*partners, *(x_name for x_name, _ in _PAIRS)):
        if x_name in others:
            return x_name, label
    if len(others) == 1:
        return others[0], label
    raise InputError(field, "does not say which array has the features", fix="name that array X")
