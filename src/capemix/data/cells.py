"""What one cell says: as a number, and as a word in the one spelling that its value has.

Every rule here looks at one cell. What the other cells of a column are, which type the column has
in its file, and how many records there are change nothing: 1, 1.0, "1", " 1 " and "1.00" are one
value, and so are 1, true and "TRUE". A file's writer may turn a whole column from integers to
floats or to text because of one record; the values of the others stay what they are. A rule for one
cell and the same rule for a whole column of Arrow must agree, so both are in this one long module.
"""

from __future__ import annotations

import datetime
import math
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.data.dialect import USUAL, Dialect

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Features = npt.NDArray[np.uint8] | npt.NDArray[np.float64]

LARGEST_WHOLE: Final = (1 << 53) - 1
"""Whole numbers up to here fit every kind of file: each is a double, and no other one rounds to
it. A larger one is no word, since a file's writer may round it."""

MISSING_WORDS: Final = frozenset(("NA", "N/A", "n/a", "null", "NULL", "None", "?"))
"""Words that tables write where they have no value. A list of categories may declare one."""

_NUMBER: Final = USUAL.number
_MOMENT: Final = re.compile(
    r"([0-9]{4,}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]*)?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_IS_NUMBER: Final = re.compile(_NUMBER)
_CLOCK: Final = re.compile(r"(-?[0-9]+ days)? ?\+?([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]*)?")
_MOST_FRACTIONS: Final = 2.0**23
"""From here on every 32-bit float is a whole number."""

_NO_VALUES: Final = frozenset(
    sign + word for sign in ("", "+", "-") for word in ("inf", "infinity", "nan")
) | {"nat", "<na>"}
"""What writers make of numbers and dates that are none, when a column becomes text."""

_TRUTH: Final = {"true": 1.0, "false": 0.0}


# -- one cell --------------------------------------------------------------------------------------


def number(cell: object) -> float:
    """The cell as a finite number; NaN for anything else, missing included."""
    try:
        return _number(cell)
    except Exception:  # of a class of its own: it says nothing of the other cells
        return math.nan


def spelled(cell: object) -> str | None:
    """The cell as a word, in the one spelling of its value; None where it is missing or is no plain
    value. True and 1 are one value, since files write the one for the other."""
    try:
        return _spelled(cell)
    except Exception:  # as above
        return None


def as_written(value: float) -> float:
    """Of a word: a fraction that is a 32-bit float stands for the shortest decimal that is nearest
    to it. As text it becomes that, and as a double it stays what it is."""
    if not abs(value) < _MOST_FRACTIONS or value.is_integer():
        return value
    single = np.float32(value)
    return float(str(single)) if float(single) == value else value


def _number(cell: object) -> float:
    if isinstance(cell, (str, bytes)):
        return _text_number(_text(cell).strip())
    if isinstance(cell, (complex, np.complexfloating)):
        cell = cell.real if cell.imag == 0 else None
    if isinstance(cell, np.timedelta64):  # of numpy an integer, in a unit of the whole column's
        return math.nan
    if isinstance(cell, (bool, int, float, Decimal, np.bool_, np.integer, np.floating)):
        value = float(cell)  # fails for an integer or a decimal that no double holds
        return value if math.isfinite(value) else math.nan
    return math.nan


def _spelled(cell: object) -> str | None:
    if isinstance(cell, (complex, np.complexfloating)):
        cell = cell.real if cell.imag == 0 else None
    if isinstance(cell, np.timedelta64):
        return None
    if isinstance(cell, (bool, int, np.bool_, np.integer)):
        return _spelled_whole(int(cell))
    if isinstance(cell, (float, np.floating, Decimal)):
        return _spelled_number(_number(cell))
    if isinstance(cell, datetime.datetime) and cell == cell and cell.tzinfo is not None:
        cell = cell.astimezone(datetime.UTC)
    if isinstance(cell, (datetime.date, datetime.time)):
        return None if cell != cell else _spelled_text(str(cell))
    if isinstance(cell, np.datetime64):
        coarse = np.datetime_data(cell)[0] in ("Y", "M", "W", "D", "h", "m")
        return (
            None if np.isnat(cell) else _spelled_text(str(cell.astype("M8[s]") if coarse else cell))
        )
    return _spelled_text(_text(cell)) if isinstance(cell, (str, bytes)) else None


def _written(cell: object) -> str | None:
    if isinstance(cell, (bool, np.bool_)):
        return "truth"
    if isinstance(cell, (float, np.floating)):
        return "fraction" if math.isfinite(cell) else None
    if isinstance(cell, (datetime.datetime, np.datetime64)):
        days = isinstance(cell, np.datetime64) and np.datetime_data(cell)[0] == "D"
        return None if days or cell != cell else "moment"
    if not isinstance(cell, (str, bytes)):
        return None
    text = _text(cell).strip()
    if text.lower() in _TRUTH:
        return "truth"
    return "fraction" if _IS_NUMBER.match(text) and not text.lstrip("+-").isdigit() else None


def _text(cell: str | bytes) -> str:
    return cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell)


def _text_number(text: str) -> float:
    if text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    value = float(text) if _IS_NUMBER.match(text) else math.nan
    return value if math.isfinite(value) else math.nan


def _spelled_whole(value: int) -> str | None:
    return str(value) if abs(value) <= LARGEST_WHOLE else None


def _spelled_number(value: float) -> str | None:
    if not math.isfinite(value):
        return None
    return _spelled_whole(int(value)) if value.is_integer() else repr(as_written(value))


def _spelled_text(text: str) -> str | None:
    text = unicodedata.normalize("NFC", text.strip())
    text.encode()  # fails for half of a character
    if not text or text.lower() in _NO_VALUES:
        return None
    if text.lower() in _TRUTH or _IS_NUMBER.match(text):
        return _spelled_number(_text_number(text))
    if moment := _MOMENT.fullmatch(text):
        return _spelled_moment(*moment.groups())
    if clock := _CLOCK.fullmatch(text):
        days, time, fraction = clock.groups()
        part = (fraction or "").rstrip("0").rstrip(".")
        return (
            days
            if days and not part and time == "00:00:00"
            else f"{days or ''} {time}{part}".strip()
        )
    return text


def _spelled_moment(date: str, time: str, fraction: str | None, zone: str | None) -> str:
    """A writer adds times and fractions to all of a column's dates because of one, and gives all
    of them the zone of one."""
    part = (fraction or "").rstrip("0").rstrip(".")
    if zone is None:
        return date if not part and time == "00:00:00" else f"{date} {time}{part}"
    try:
        moment = datetime.datetime.fromisoformat(f"{date}T{time}{zone}").astimezone(datetime.UTC)
    except (ValueError, OverflowError):  # in no calendar
        return f"{date} {time}{part}{zone}"
    return f"{moment.replace(tzinfo=None).isoformat(' ')}{part}+00:00"


# -- a declared list -------------------------------------------------------------------------------


def places(values: Sequence[str | int | bool]) -> dict[str, int]:
    """Where the words of a declared list stand in it; a value without a word is left out."""
    found: dict[str, int] = {}
    for at, value in enumerate(values):
        word = spelled(value)
        if word is not None:
            found.setdefault(word, at)
    return found


def are_distinct(values: Sequence[str | int | bool]) -> bool:
    """Whether each value of a declared list has a word of its own: 1 and "1" have the same, and so
    have 1 and true."""
    return len({spelled(value) for value in values} - {None}) == len(values)


# -- a column --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Words:
    """A column's words (private): ``positions`` points from each record into ``distinct``, and is
    -1 where the cell is missing."""

    distinct: tuple[str, ...]
    positions: Codes

    def codes(self, listed: Mapping[str, int], otherwise: int = -1) -> Codes:
        """Each record's place by ``listed``, which maps words to places."""
        found = np.array([listed.get(word, otherwise) for word in self.distinct], dtype=np.int64)
        return np.append(found, otherwise)[self.positions]

    def counts(self) -> Codes:
        """How many records have each of the distinct words."""
        present = self.positions[self.positions >= 0]
        return np.bincount(present, minlength=len(self.distinct)).astype(np.int64)

    def take(self, chosen: npt.NDArray[Any]) -> Words:
        return Words(self.distinct, self.positions[chosen])


def words_of(column: Any) -> Words:
    """The words of an Arrow or a numpy array."""
    distinct, positions = _distinct(column)
    found: dict[str, int] = {}
    codes = [
        -1 if (word := spelled(cell)) is None else found.setdefault(word, len(found))
        for cell in distinct
    ]
    return Words(tuple(found), np.array(codes or [-1], dtype=np.int64)[positions])


def numbers_of(cells: Any) -> Real:
    """The cells of an Arrow array, or of a numpy array of any shape, as numbers: NaN where a cell
    is none."""
    if not isinstance(cells, np.ndarray):
        return _arrow_numbers(cells)
    kind = cells.dtype.kind
    if kind in "buif":
        with np.errstate(over="ignore", invalid="ignore"):
            found = cells.astype(np.float64)
        found[~np.isfinite(found)] = np.nan
        return found
    if kind in "USOTc":
        flat = [number(cell) for cell in _items(cells.reshape(-1))]
        return np.array(flat, dtype=np.float64).reshape(cells.shape)
    return np.full(cells.shape, np.nan)


def _items(cells: npt.NDArray[Any]) -> Sequence[object]:
    """A flat array's cells; None for text with numbers in it that are no characters."""
    if cells.dtype.kind != "U" or not cells.dtype.itemsize:
        return list(cells.tolist())
    points = np.ascontiguousarray(cells).view(f"{cells.dtype.byteorder}u4")
    bad = (points.reshape(len(cells), cells.dtype.itemsize // 4) > sys.maxunicode).any(axis=1)
    found: list[object] = np.where(bad, "", cells).tolist() if bad.any() else cells.tolist()
    for at in np.flatnonzero(bad):
        found[at] = None
    return found


def one_array(column: Any) -> Any:
    """A column in one array."""
    import pyarrow as pa

    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def _item(cells: Any, at: int) -> object:
    """One cell of an Arrow array by itself; None where it has no value in Python."""
    try:
        return cells[at].as_py()
    except Exception:  # it says nothing of the other cells
        return None


def _distinct(column: Any) -> tuple[Sequence[object], Codes]:
    if isinstance(column, np.ndarray):
        found: dict[tuple[type, object], int] = {}
        cells = _items(column) if column.dtype.kind in "buifUSO" else list(column)
        positions = [found.setdefault(_key(cell), len(found)) for cell in cells]
        return [cell for _, cell in found], np.array(positions, dtype=np.int64)
    return _arrow_distinct(column)


def _key(cell: object) -> tuple[type, object]:
    """What tells a cell from others. Only of plain types is it known what they are equal to: two
    moments may be equal and yet be written otherwise."""
    plain = type(cell) in (str, bytes, bool, int, float)
    return type(cell) if plain else str, cell if plain else spelled(cell)


def _arrow_distinct(column: Any) -> tuple[Sequence[object], Codes]:
    import pyarrow as pa

    column = _plain(column)
    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return [None], np.zeros(len(column), dtype=np.int64)
    try:
        encoded = column.dictionary_encode(null_encoding="encode")
        values, positions = encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False)
    except (pa.ArrowException, NotImplementedError):
        values, positions = column, np.arange(len(column))
    try:
        return values.to_pylist(), positions.astype(np.int64)
    except (pa.ArrowException, ValueError, OverflowError):  # a date in no calendar, say
        return [_item(values, at) for at in range(len(values))], positions.astype(np.int64)


def _arrow_numbers(column: Any) -> Real:
    import pyarrow as pa

    column = _plain(column)
    kind = column.type
    if pa.types.is_large_string(kind):
        return _text_numbers(column)
    if pa.types.is_large_binary(kind) or pa.types.is_decimal(kind):
        cells = (_item(column, at) for at in range(len(column)))
        return np.array([number(cell) for cell in cells], dtype=np.float64)
    if not any(
        is_kind(kind)
        for is_kind in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    ):
        return np.full(len(column), np.nan)
    absent = column.is_null().to_numpy(zero_copy_only=False)
    found = numbers_of(
        column.fill_null(False if pa.types.is_boolean(kind) else 0).to_numpy(zero_copy_only=False)
    )
    found[absent] = np.nan
    return found


def _plain(column: Any) -> Any:
    """Without dictionaries, with one type for text and one for bytes, and moments in one zone."""
    import pyarrow as pa

    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.cast(pa.timestamp(column.type.unit, "UTC"))
    for is_kind, kind in (
        (pa.types.is_string, pa.large_string()),
        (pa.types.is_binary, pa.large_binary()),
        (pa.types.is_fixed_size_binary, pa.large_binary()),
        (pa.types.is_float16, pa.float32()),
    ):
        if is_kind(column.type):
            return column.cast(kind)
    return column


def _text_numbers(column: Any) -> Real:
    """Arrow's reading where it reads every cell, else Python's of each: both round correctly, so a
    cell has one value in either."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pc.utf8_trim_whitespace(column)
    valid = pc.fill_null(pc.match_substring_regex(column, _NUMBER), False)
    digits = pc.if_else(valid, pc.utf8_ltrim(column, "+"), pa.scalar(None, pa.large_string()))
    try:
        found = digits.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
    except pa.ArrowException:  # one is beyond a double
        found = np.array(
            [math.nan if cell is None else number(cell) for cell in digits.to_pylist()]
        )
    rest = pc.invert(valid).to_numpy(zero_copy_only=False)
    if rest.any():
        found[rest] = [number(cell) for cell in column.filter(pa.array(rest)).to_pylist()]
    found[~np.isfinite(found)] = np.nan
    return np.asarray(found, dtype=np.float64)


# -- a table ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Cells:
    """A table as a reader found it, not yet interpreted. ``columns`` are Arrow or numpy arrays by
    name, a cell for each record; ``label`` names the one with the labels, None if there are none.
    Names and ``image_shape`` are public, the cells are private.

    ``matrix``, where features come as one array, is that array, and ``matrix_names`` its columns'
    names; they are not in ``columns``. ``without_value`` counts further records (private), of which
    nothing is known: lines with too few cells, say, or records of no site. ``dialect`` is of a
    text file, whose columns are Arrow arrays of text, with other numbers than in plain notation.
    ``person`` names the column that says whose each record is, if one does. It is read for that
    alone.
    """

    records: int
    columns: Mapping[str, Any]
    label: str | None
    matrix: npt.NDArray[Any] | None = None
    matrix_names: tuple[str, ...] = ()
    image_shape: tuple[int, int] | None = None
    without_value: int = 0
    dialect: Dialect | None = None
    person: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.matrix_names, *self.columns)

    def take(self, chosen: npt.NDArray[np.intp]) -> Cells:
        """The records at these positions."""
        return replace(
            self,
            records=len(chosen),
            columns={name: column.take(chosen) for name, column in self.columns.items()},
            matrix=None if self.matrix is None else self.matrix[chosen],
            without_value=0,
        )

    def words(self, name: str) -> Words:
        return words_of(self._column(name))

    def written(self, name: str) -> frozenset[str]:
        """How some cells are written, beyond what their words say: as a "truth", a "fraction" (1.0,
        say) or a "moment": for a draft."""
        return frozenset(filter(None, map(_written, _distinct(self._column(name))[0])))

    def numbers(self, names: Sequence[str]) -> Features:
        """These columns side by side: NaN where a cell is no number. Bytes stay bytes."""
        if self.matrix is not None and tuple(names) == self.matrix_names:
            return self.matrix if self.matrix.dtype == np.uint8 else numbers_of(self.matrix)
        out = np.empty((self.records, len(names)))
        for at, name in enumerate(names):
            cells = self._cells(name)
            out[:, at] = numbers_of(
                cells if self.dialect is None else self.dialect.as_numbers(cells)
            )
        return out

    def _column(self, name: str) -> Any:
        """With numbers in plain notation."""
        cells = self._cells(name)
        return cells if self.dialect is None else self.dialect.as_words(cells)

    def _cells(self, name: str) -> Any:
        if name in self.matrix_names and self.matrix is not None:
            return self.matrix[:, self.matrix_names.index(name)]
        return self.columns[name]
