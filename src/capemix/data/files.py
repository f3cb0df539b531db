"""Labelled rows from a user's file: npz arrays, CSV or Parquet."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capemix.data.rows import MISSING_WORDS, LabeledRows, code_labels, pixel_names
from capemix.data.schema import Category, Number, Table, Value
from capemix.data.soft_labels import is_soft_label
from capemix.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_PAIRS = (("X", "y"), ("features", "labels"), ("data", "target"), ("x_train", "y_train"))
_SUFFIXES = (".npz", ".csv", ".csv.gz", ".parquet")
_BLOCK = 1 << 24
_START = 1 << 16
_NAMED = 8
"""At most so many columns are named in an error."""


@dataclass(frozen=True, eq=False)
class LoadedFile:
    """The rows of a file, and the code of each row's site where a site column was named."""

    rows: LabeledRows
    sites: npt.NDArray[np.int64] | None = dataclasses.field(default=None, repr=False)


def load_file(
    path: str | Path, label: str | None = None, site_column: str | None = None
) -> LoadedFile:
    """Read a file of labelled rows; the suffix says how.

    - ``.csv``, ``.csv.gz``, ``.parquet``: ``label`` names the column of the classes, every other
      column is a numeric feature (but for a release's soft labels, which are left out).
    - ``.npz``: arrays X and y, features and labels, data and target, or x_train and y_train;
      ``label`` may name the array of the classes. Images (n, height, width) are flattened.

    ``site_column`` names the column (or array) that says where a row lives. The column names, the
    dtypes and the list of classes are taken as public.
    """
    path, suffix, field = _named_file(path)
    if label is not None and label == site_column:
        raise InputError("site column", "is also the label", value=label, fix="name another column")
    if suffix == ".npz":
        return _from_npz(path, field, label, site_column)
    if label is None:
        raise InputError("label", "is not given", fix=f"name the label column of {path.name}")
    names, columns = _read_columns(path, suffix, field)
    return _from_table(field, names, columns, label, site_column, text=suffix != ".parquet")


def load_table(path: str | Path, table: Table, site_column: str | None = None) -> LoadedFile:
    """Read a .csv, .csv.gz or .parquet file by its declared schema; other columns are not read.

    A row whose label is not declared counts for nothing.
    """
    path, suffix, field = _named_file(path)
    _check_is_table(field, suffix)
    text = suffix != ".parquet"
    names, columns = _read_columns(path, suffix, field)
    _check_names(field, names)
    for name in (*table.names, table.label.name):
        _check_column("schema", name, names)
    _check_rows(field, len(columns[0]))
    found = dict(zip(names, columns, strict=True))
    sites = None
    if site_column is not None:
        _check_column("site column", site_column, names)
        sites = _coded(found[site_column], f"site column '{site_column}'", text=text)[1]
    numbers = {each.name: found[each.name] for each in table.columns if isinstance(each, Number)}
    values = {
        name: _numeric(field, {name: each}, text=text)[0][:, 0].astype(np.float64)
        for name, each in numbers.items()
    }
    cells = [
        values[each.name]
        if isinstance(each, Number)
        else each.codes(*_distinct(found[each.name], f"column '{each.name}'", text=text))
        for each in table.columns
    ]
    label = f"label column '{table.label.name}'"
    labels = table.label.codes(*_distinct(found[table.label.name], label, text=text))
    rows = table.coded(cells, labels)
    return LoadedFile(rows, None if sites is None else sites[labels >= 0])


def write_table(rows: LabeledRows, path: Path) -> None:
    """Rows that are coded by a schema, as a .parquet file from which `load_table` gives the same:
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
            continue
        words = [*column.values, None]
        codes = np.where(block.any(axis=1), block.argmax(axis=1), len(column.values))
        columns[column.name] = category_column(column, [words[code] for code in codes])
    labels = [table.label.values[code] for code in rows.labels]
    columns[table.label.name] = category_column(table.label, labels)
    pq.write_table(pa.table(columns), path)


def category_column(column: Category, cells: Sequence[Value | None]) -> pa.Array:
    """Of the type that its list has, whichever of its values there are."""
    import pyarrow as pa

    kind = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}[column.kind]
    return pa.array(cells, kind)


def draft_table(path: str | Path, label: str) -> Table:
    """A schema that fits a file's rows, for their owner to check: it reads them, for no budget.

    Text and truth values become categories, numbers keep the range they have.
    """
    path, suffix, field = _named_file(path)
    _check_is_table(field, suffix)
    text = suffix != ".parquet"
    names, columns = _read_columns(path, suffix, field)
    _check_names(field, names)
    _check_column("label", label, names)
    _check_rows(field, len(columns[0]))
    found = dict(zip(names, columns, strict=True))
    classes, _ = _coded(found.pop(label), f"label column '{label}'", text=text)
    drafted = tuple(_drafted(name, column, text=text) for name, column in found.items())
    return Table(drafted, Category(label, classes))


def _drafted(name: str, column: pa.Array, *, text: bool) -> Number | Category:
    import pyarrow as pa

    typed = _typed(column, text=text)
    if typed is None or pa.types.is_boolean(typed.type) or typed.null_count == len(typed):
        cells = column if typed is None else typed
        distinct, _ = _distinct(cells, f"column '{name}'", text=typed is None and text)
        absent = [value is None or (text and value in MISSING_WORDS) for value in distinct]
        listed = [value for value, out in zip(distinct, absent, strict=True) if not out]
        if not all(isinstance(value, bool) for value in listed):
            listed = [str(value) for value in listed]
        return Category(name, tuple(sorted(set(listed))), missing=any(absent))
    values, dtypes = _numeric(name, {name: column}, text=text)
    low, high = values.min(), values.max()
    whole = not dtypes[0].startswith("float") or bool((values == np.rint(values)).all())
    high = high if low < high else low + 1
    if whole:
        return Number(name, int(low), int(high), whole=True)
    return Number(name, float(low), float(high))


def _named_file(path: str | Path) -> tuple[Path, str, str]:
    """The path, its suffix, and what errors call it."""
    path = Path(path)
    suffix = next((end for end in _SUFFIXES if path.name.lower().endswith(end)), None)
    field = f"data file {path.name}"
    if suffix is None:
        raise InputError(field, "has an unknown suffix", fix=f"give one of {', '.join(_SUFFIXES)}")
    if not path.is_file():
        raise InputError(field, "does not exist", value=path, fix="check the path")
    if path.stat().st_size == 0:
        raise InputError(field, "is empty", fix="give a file with rows")
    return path, suffix, field


def _check_is_table(field: str, suffix: str) -> None:
    if suffix == ".npz":
        raise InputError(
            field, "has no columns that a schema could name", value=suffix, fix="give a table"
        )


def _read_columns(path: Path, suffix: str, field: str) -> tuple[list[str], list[Any]]:
    if suffix == ".parquet":
        return _read_parquet(path, field)
    return _read_csv(path, field, compressed=suffix == ".csv.gz")


def _unreadable(field: str, kind: str) -> InputError:
    """Says nothing of the cause: the libraries' messages quote cells."""
    return InputError(field, f"is not a readable {kind} file", fix="write or copy the file again")


def _memory() -> int:
    """Of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_memory(field: str, needed: int) -> None:
    """A few kilobytes can unpack to more than any machine holds."""
    if needed > _memory():
        raise InputError(
            field,
            "would fill more memory than this machine has",
            value=f"{needed / 1e9:.3g} GB",
            fix="give fewer rows, or a larger machine",
        )


def _check_rows(field: str, rows: int) -> None:
    if rows < 1:
        raise InputError(field, "has no rows below its header", fix="give a file with rows")
    if rows < 2:
        raise InputError(field, "has only one row", fix="give at least two rows")


# Tables


def _read_csv(path: Path, field: str, *, compressed: bool) -> tuple[list[str], list[Any]]:
    """Every cell as text: a type guessed from the first rows may not fit the later ones."""
    import pyarrow as pa
    from pyarrow import csv

    compression = "gzip" if compressed else None
    read = csv.ReadOptions(autogenerate_column_names=True, block_size=_BLOCK)
    parse = csv.ParseOptions(newlines_in_values=True)
    try:
        with pa.input_stream(path, compression=compression) as stream:
            start = stream.read(_START)
        if len(start) < _START:
            _check_lines(field, start.strip().splitlines())
        elif compressed:
            _check_unpacked(field, path)
        with (
            pa.input_stream(path, compression=compression) as stream,
            csv.open_csv(stream, read_options=read, parse_options=parse) as opened,
        ):
            generated = opened.schema.names
        convert = csv.ConvertOptions(column_types=dict.fromkeys(generated, pa.string()))
        with pa.input_stream(path, compression=compression) as stream:
            table = csv.read_csv(stream, read, parse, convert)
    except InputError:
        raise
    except Exception:  # a tampered file can raise anything
        raise _unreadable(field, "CSV") from None
    columns = [column.combine_chunks() for column in table.itercolumns()]
    names = [column[0].as_py().strip() for column in columns]
    return names, [column[1:] for column in columns]


def _check_unpacked(field: str, path: Path) -> None:
    import pyarrow as pa

    unpacked = 0
    with pa.input_stream(path, compression="gzip") as stream:
        while part := len(stream.read(_BLOCK)):
            unpacked += part
            _check_memory(field, unpacked)


def _check_lines(field: str, lines: Sequence[bytes]) -> None:
    if not lines:
        raise InputError(field, "is empty", fix="give a file with rows")
    if len(lines) == 1:
        _check_rows(field, 0)


def _read_parquet(path: Path, field: str) -> tuple[list[str], list[Any]]:
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as opened:
            columns = [opened.schema.column(at) for at in range(len(opened.schema))]
            _check_memory(field, 8 * opened.metadata.num_rows * len(columns))
            texts = [each.path for each in columns if each.physical_type == "BYTE_ARRAY"]
        # As a dictionary, one long text in every row is held once; then it is known how long.
        with parquet.ParquetFile(path, read_dictionary=texts) as opened:
            table = _with_texts(field, opened.read())
        table.validate(full=True)
    except InputError:
        raise
    except Exception:  # a tampered file can raise anything
        raise _unreadable(field, "Parquet") from None
    kept = [
        (each.name, column.combine_chunks())
        for each, column in zip(table.schema, table.itercolumns(), strict=True)
        if not (each.name.startswith("__index_level_") and each.name.endswith("__"))  # of pandas
        and not is_soft_label(each)
    ]
    return [name for name, _ in kept], [column for _, column in kept]


def _with_texts(field: str, table: pa.Table) -> pa.Table:
    """Text columns as plain text, if there is memory for a text in every row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    needed = 0
    for at, column in enumerate(table.itercolumns()):
        if not pa.types.is_dictionary(column.type):
            continue
        kind = column.type.value_type
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            for chunk in column.chunks:
                longest = pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0
                needed += longest * len(chunk)
            _check_memory(field, needed)
            table = table.set_column(at, table.field(at).with_type(kind), column.cast(kind))
    return table


def _from_table(
    field: str,
    names: list[str],
    columns: list[Any],
    label: str,
    site_column: str | None,
    *,
    text: bool,
) -> LoadedFile:
    _check_column("label", label, names)
    if site_column is not None:
        _check_column("site column", site_column, names)
    _check_names(field, names)
    _check_rows(field, len(columns[0]))
    table = dict(zip(names, columns, strict=True))
    classes, codes = _coded(table.pop(label), f"label column '{label}'", text=text)
    sites = None
    if site_column is not None:
        sites = _coded(table.pop(site_column), f"site column '{site_column}'", text=text)[1]
    if not table:
        raise InputError(field, "has no feature columns", fix="give at least one besides the label")
    features, dtypes = _numeric(field, table, text=text)
    rows = LabeledRows(
        features=features,
        labels=codes,
        classes=classes,
        feature_names=tuple(table),
        label_name=label,
        feature_dtypes=dtypes,
    )
    return LoadedFile(rows, sites)


def _check_names(field: str, names: list[str]) -> None:
    if "" in names:
        raise InputError(
            field,
            f"has a column without a name, number {names.index('') + 1}",
            fix="name it, or leave it out (a saved index is no feature)",
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            field, f"has columns of the same name: {_listed(twice)}", fix="rename them"
        )


def _check_column(field: str, wanted: str, names: Sequence[str]) -> None:
    if wanted in names:
        return
    if any(_is_number(name) for name in names):  # then these may be cells, so do not quote them
        fix = "check the name, and that the first line of the file names the columns"
    else:
        fix = f"choose one of {_listed(names)}"
    raise InputError(field, "names no column of the file", value=wanted, fix=fix)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(f"'{name}'" for name in names[:_NAMED]) + more


def _coded(
    column: pa.Array, field: str, *, text: bool
) -> tuple[tuple[str | int, ...], npt.NDArray[np.int64]]:
    return code_labels(*_distinct(column, field, text=text), field=field, text=text)


def _distinct(
    column: pa.Array, field: str, *, text: bool
) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """The values that a column has, and where each row's is among them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if text:
        column = pc.utf8_trim_whitespace(column)
    if pa.types.is_nested(column.type):
        raise InputError(
            field,
            "must hold one scalar for each row",
            value=column.type,
            fix="choose a column of plain values",
        )
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float64())
    try:
        encoded = column.dictionary_encode(null_encoding="encode")
        distinct = encoded.dictionary.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError):  # a date may be in no calendar
        raise InputError(
            field, "has a type that cannot be coded", value=column.type, fix="make it text"
        ) from None
    return distinct, encoded.indices.to_numpy(zero_copy_only=False)


def _numeric(
    field: str, table: dict[str, Any], *, text: bool
) -> tuple[npt.NDArray[np.uint8] | npt.NDArray[np.float64], tuple[str, ...]]:
    """The features as one array, and the dtype that each column had."""
    columns = {name: _typed(column, text=text) for name, column in table.items()}
    words = [name for name, column in columns.items() if column is None]
    if words:
        raise InputError(
            field,
            f"has columns that are not numeric: {_listed(words)}",
            fix="drop them or code them as numbers",
        )
    typed = {name: column for name, column in columns.items() if column is not None}
    dtypes = tuple(_dtype_name(column) for column in typed.values())
    length = len(next(iter(typed.values())))
    kind = np.uint8 if set(dtypes) == {"uint8"} else np.float64
    features = np.empty((length, len(typed)), dtype=kind)
    for at, (name, column) in enumerate(typed.items()):
        values = column.to_numpy(zero_copy_only=False)
        bad = column.null_count
        if not bad:
            features[:, at] = values
            bad = int(length - np.isfinite(features[:, at]).sum())
        if bad:
            raise InputError(
                f"column '{name}'",
                f"has {bad} missing or infinite value(s)",
                fix="fill them, or drop those rows",
            )
    return features, dtypes


def _typed(column: pa.Array, *, text: bool) -> pa.Array | None:
    """The column as numbers or truth values, None if it holds anything else."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not text:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_decimal(column.type):
            return column.cast(pa.float64())
        known = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
        return column if any(is_kind(column.type) for is_kind in known) else None
    for tidy in (False, True):
        if tidy:
            column = pc.utf8_trim_whitespace(column)
            absent = pc.is_in(column, value_set=pa.array(MISSING_WORDS))
            column = pc.if_else(absent, pa.scalar(None, pa.string()), column)
        for kind in (pa.int64(), pa.float64(), pa.bool_()):
            try:
                return column.cast(kind)
            except pa.ArrowInvalid:
                continue
    return None


def _dtype_name(column: pa.Array) -> str:
    return str(np.dtype(column.type.to_pandas_dtype()).name)


# Arrays


def _from_npz(path: Path, field: str, label: str | None, site_column: str | None) -> LoadedFile:
    arrays = _NpzArrays(path, field)
    x_name, y_name = _pair(field, arrays.names, label, site_column)
    features, image_shape = _array_features(field, x_name, arrays.read(x_name))
    _check_rows(field, len(features))
    classes, codes = _array_codes(f"label array '{y_name}'", arrays.read(y_name), len(features))
    sites = None
    if site_column is not None:
        if site_column not in arrays.names:
            raise InputError(
                "site column",
                "names no array of the file",
                value=site_column,
                fix=f"choose one of {_listed(arrays.names)}",
            )
        read = arrays.read(site_column)
        sites = _array_codes(f"site array '{site_column}'", read, len(features))[1]
    names = tuple(f"x{at}" for at in range(features.shape[1]))
    rows = LabeledRows(
        features=features,
        labels=codes,
        classes=classes,
        feature_names=names if image_shape is None else pixel_names(image_shape),
        label_name=y_name,
        image_shape=image_shape,
    )
    return LoadedFile(rows, sites)


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
            raise _unreadable(self._field, "npz")
        return array

    def _array(self, archive: Any, name: str) -> Any:
        for member in archive.zip.infolist():
            if member.filename in (name, f"{name}.npy"):
                _check_memory(self._field, member.file_size)
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
            raise _unreadable(self._field, "npz") from None


def _pair(
    field: str, names: Sequence[str], label: str | None, site_column: str | None
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
            fix=f"choose one of {_listed(names)}",
        )
    partners = [x_name for x_name, y_name in _PAIRS if y_name == label]
    others = [name for name in names if name not in (label, site_column)]
    for x_name in (*partners, *(x_name for x_name, _ in _PAIRS)):
        if x_name in others:
            return x_name, label
    if len(others) == 1:
        return others[0], label
    raise InputError(field, "does not say which array has the features", fix="name that array X")


def _array_features(
    field: str, name: str, array: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.uint8] | npt.NDArray[np.float64], tuple[int, int] | None]:
    if array.dtype.kind not in "buif":
        raise InputError(
            field, f"has an array '{name}' that is not numeric", value=array.dtype, fix="convert it"
        )
    if array.ndim == 4 and array.shape[3] == 1:
        array = array[:, :, :, 0]
    if array.ndim not in (2, 3) or 0 in array.shape[1:]:
        raise InputError(
            field,
            f"has an array '{name}' that is neither rows by columns nor grey images",
            value=array.shape,
            fix="reshape it to (rows, columns) or (rows, height, width)",
        )
    image_shape = (int(array.shape[1]), int(array.shape[2])) if array.ndim == 3 else None
    flat = array.reshape(len(array), math.prod(array.shape[1:]))
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is counted below
        features = flat if flat.dtype == np.uint8 else flat.astype(np.float64)
    bad = int(features.size - np.isfinite(features).sum())
    if bad:
        raise InputError(
            field,
            f"has {bad} missing or infinite value(s) in its array '{name}'",
            fix="fill them, or drop those rows",
        )
    return features, image_shape


def _array_codes(
    field: str, array: npt.NDArray[Any], rows: int
) -> tuple[tuple[str | int, ...], npt.NDArray[np.int64]]:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(
            field, "must have one value for each row", value=array.shape, fix="make it flat"
        )
    if len(array) != rows:
        raise InputError(
            field,
            f"must be as long as the features, {rows}",
            value=len(array),
            fix="save features and labels of the same rows",
        )
    if array.dtype.kind not in "buifUS":
        raise InputError(field, "must hold numbers or strings", value=array.dtype, fix="convert it")
    try:
        with np.errstate(invalid="ignore"):
            found, positions = np.unique(array, return_inverse=True)
        distinct = found.tolist()
    except ValueError:  # a string of what are no letters
        raise InputError(field, "holds text that cannot be read", fix="write it again") from None
    return code_labels(distinct, positions, field=field)
