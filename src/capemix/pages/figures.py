"""What a release's folder says of its columns, as numbers to draw: of its rows, and of the noisy
counts that they were made of. Nothing else is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from capemix.data.cells import Cells
from capemix.data.column import Column
from capemix.data.columns import Category, Number
from capemix.facts import Facts

if TYPE_CHECKING:
    import pyarrow as pa

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

MOST_BARS: Final = 48
"""Of a column of numbers: finer cells are joined."""
_MOST_READ: Final = 1.7976931348623157e308


@dataclass(frozen=True, eq=False)
class Counted:
    """Noisy counts of records, and the deviation of the noise on each."""

    count: Real
    error: Real


@dataclass(frozen=True, eq=False)
class Shown:
    """A column: what it is called and what is declared of it, how many rows have each of its cells
    (``words``; the last is for missing values if ``missing``), which cell each row has, and the
    noisy counts of these cells, where there are any. ``values`` are numbers in its own units, NaN
    for none; None for a list. ``joined`` say to which ``bin`` of counted pairs each row belongs,
    and to which ``slice`` of those by class."""

    name: str
    declared: str
    words: tuple[str, ...]
    cells: Codes
    values: Real | None
    missing: bool = False
    counted: Counted | None = None
    joined: Mapping[str, Codes] = field(default_factory=dict)

    @property
    def rows(self) -> Real:
        """How many rows have each cell."""
        return np.bincount(self.cells, minlength=len(self.words)).astype(np.float64)

    @property
    def numeric(self) -> bool:
        return self.values is not None


def shown(
    facts: Facts, names: Sequence[str], rows: pa.Table, statistics: Mapping[str, pa.Table]
) -> Iterator[Shown]:
    """These columns of a release, the label among them; identifiers, which are new, are not."""
    counts = statistics.get("columns")
    for name in names:
        column = column_of(facts, name)
        if not column.width:
            continue
        cells = rows[name].combine_chunks()
        if name == facts.label:
            yield _label(facts, cells, statistics.get("classes"))
            continue
        own = None if counts is None else _of_column(counts, name)
        listed = isinstance(column, Category) or not column.numbers
        declared = "" if facts.table is None else str(column)
        make = _listed if listed else _numbers
        yield make(column, declared, cells, own)


def column_of(facts: Facts, name: str) -> Column:
    """What is declared of a column. Without a schema it is of any numbers."""
    if name == facts.label:
        label = None if facts.table is None else facts.table.label
        return label or Category(name, categories=facts.listed)
    if facts.table is None:
        return Number(name, -_MOST_READ, _MOST_READ)
    return facts.table.columns[facts.features.index(name)]


def word(value: Any) -> str | None:
    """A cell as the statistics spell it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None or value != value else str(value)


@dataclass(frozen=True, eq=False)
class _Own:
    """The lines of one column in the statistics: None for the cell of missing values."""

    first: list[str | None]
    last: list[str | None]
    counted: Counted
    joined: Mapping[str, Codes] = field(default_factory=dict)

    def joined_by(self, lines: npt.NDArray[Any]) -> dict[str, Codes]:
        """The bin and the slice of each row, by its line."""
        return {name: each[np.minimum(lines, len(each) - 1)] for name, each in self.joined.items()}


def _of_column(counts: pa.Table, name: str) -> _Own | None:
    import pyarrow.compute as pc

    own = counts.filter(pc.equal(counts["column"], name))
    if not len(own):
        return None
    joined = {name: own[name].to_numpy() for name in ("bin", "slice") if name in own.column_names}
    return _Own(own["from"].to_pylist(), own["to"].to_pylist(), _counted(own), joined)


def _counted(own: pa.Table) -> Counted:
    return Counted(
        own["count"].to_numpy().astype(np.float64), own["standard_error"].to_numpy().astype(float)
    )


def _label(facts: Facts, cells: pa.Array, counts: pa.Table | None) -> Shown:
    own = None
    if counts is not None:
        words = [word(each) for each in counts["class"].to_pylist()]
        own = _Own(words, words, _counted(counts))
    column = column_of(facts, str(facts.label))
    return _listed(column, "the label", cells, own)


def _listed(column: Column, declared: str, cells: pa.Array, own: _Own | None) -> Shown:
    found = cells.value_counts()
    values, times = found.field(0).to_pylist(), found.field(1).to_pylist()
    said = [word(value) for value in values]
    listed: list[str]
    declares = getattr(column, "categories", None)
    if own is None and declares is not None:
        listed = [str(word(each)) for each in declares]
    elif own is None:
        order = sorted(range(len(said)), key=lambda i: (-times[i], said[i] or ""))
        listed = [each for i in order if (each := said[i]) is not None]
    else:
        listed = [each for each in own.first if each is not None]
    places: dict[str | None, int] = {each: i for i, each in enumerate(listed)}
    missing = None in said or (own is not None and None in own.first)
    coded = np.array([places.get(each, len(listed)) for each in said], dtype=np.int64)
    encoded = cells.dictionary_encode() if not _is_dictionary(cells) else cells
    index = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
    by_index = [places.get(word(v), len(listed)) for v in encoded.dictionary.to_pylist()]
    rows = np.array([*by_index, len(listed)], dtype=np.int64)[index]
    missing = missing or bool(len(coded) and coded.max(initial=0) >= len(listed))
    counted = None if own is None else own.counted
    joined = {} if own is None else own.joined_by(rows)
    words = (*(str(each) for each in listed), *(("missing",) if missing else ()))
    return Shown(column.name, declared, words, rows, None, missing, counted, joined)


def _is_dictionary(cells: pa.Array) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_dictionary(cells.type))


def _read(column: Column, cells: Any, count: int) -> Real:
    read = column.read(Cells(count, {column.name: cells}, None))
    return np.asarray(read, dtype=np.float64)


def _numbers(column: Column, declared: str, cells: pa.Array, own: _Own | None) -> Shown:
    values = _read(column, cells, len(cells))
    known = np.isfinite(values)
    if own is None:
        first, words, place = _even_cells(cells, values, known)
        counted, joined = None, {}
    else:
        listed = [each for each in own.first if each is not None]
        starts = _read(column, np.array(listed, dtype=object), len(listed))
        edges = list(range(0, len(starts), -(-len(starts) // MOST_BARS)))
        ends = [*edges[1:], len(starts)]
        last = [each for each in own.last if each is not None]
        words = [
            listed[a] if listed[a] == last[b - 1] else f"{listed[a]} to {last[b - 1]}"
            for a, b in zip(edges, ends, strict=True)
        ]
        first = starts[edges]
        # A value below the first start is a rounding of it: it belongs to the first cell.
        place = np.clip(np.searchsorted(first, values, side="right") - 1, 0, len(first) - 1)
        line = np.clip(np.searchsorted(starts, values, side="right") - 1, 0, len(starts) - 1)
        joined = own.joined_by(np.where(known, line, len(starts)))
        groups = [slice(a, b) for a, b in zip(edges, ends, strict=True)]
        groups += [slice(len(starts), None)] if len(own.first) > len(listed) else []
        counted = Counted(
            np.array([own.counted.count[each].sum() for each in groups]),
            np.array([np.sqrt((own.counted.error[each] ** 2).sum()) for each in groups]),
        )
    missing = not known.all() or (counted is not None and len(counted.count) > len(words))
    place = np.where(known, place, len(words)).astype(np.int64)
    if missing:
        words = [*words, "missing"]
        if counted is not None and len(counted.count) < len(words):
            missing_too = np.append(counted.count, 0.0), np.append(counted.error, 0.0)
            counted = Counted(*missing_too)
    values = np.where(known, values, np.nan)
    return Shown(column.name, declared, tuple(words), place, values, missing, counted, joined)


def _even_cells(
    cells: pa.Array, values: Real, known: npt.NDArray[np.bool_]
) -> tuple[Real, list[str], npt.NDArray[np.intp]]:
    """From the least to the largest value among the rows, which anyone may see."""
    import pyarrow as pa

    some = values[known]
    if not len(some):
        return np.zeros(0), [], np.zeros(len(values), dtype=np.intp)
    low, high = float(some.min()), float(some.max())
    distinct = np.unique(some)
    if len(distinct) <= MOST_BARS // 2:
        first = distinct
    else:
        part = np.arange(MOST_BARS // 2) / (MOST_BARS // 2)
        first = low * (1 - part) + high * part  # which no range of doubles overflows
    place = np.clip(np.searchsorted(first, values, side="right") - 1, 0, len(first) - 1)
    plain = pa.types.is_floating(cells.type) or pa.types.is_integer(cells.type)
    if plain:
        said = [f"{each:.5g}" for each in first]
        ends = [*said[1:], f"{high:.5g}"]
        words = (
            said if first is distinct else [f"{a} to {b}" for a, b in zip(said, ends, strict=True)]
        )
        return first, words, place
    # Dates and times are told by a row that is there; between two of them there is nothing to tell.
    words = [""] * len(first)
    order = np.flatnonzero(known)[np.argsort(some, kind="stable")]
    found, least = np.unique(place[order], return_index=True)
    for bar, row in zip(found.tolist(), order[least].tolist(), strict=True):
        words[bar] = f"from {word(cells[row].as_py())}"
    return first, words, place
