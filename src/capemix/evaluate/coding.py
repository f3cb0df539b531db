"""A table's rows as cells that can be counted, and as numbers that a tree can part.

A category's cells are its values. A whole number of at most `BINS` values has a cell for each; any
other number has `BINS` equal bins of its declared range. One more cell is for what has no value. So
two tables of one schema are coded in the same way, whatever their rows are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.data.columns import Column
from capemix.data.rows import LabeledRows
from capemix.data.schema import Table

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

BINS: Final = 20


@dataclass(frozen=True, eq=False, repr=False)
class CodedTable:
    """Rows by columns, the label last. ``cells`` are whole numbers below ``sizes``. ``values`` are
    numbers in their own units and places in a list of categories, NaN for what has no value;
    ``numeric`` says which columns are numbers."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    numeric: tuple[bool, ...]
    cells: Codes
    values: Real

    def __len__(self) -> int:
        return len(self.cells)

    def take(self, chosen: npt.NDArray[Any]) -> CodedTable:
        """The rows at these positions."""
        return CodedTable(
            self.names, self.sizes, self.numeric, self.cells[chosen], self.values[chosen]
        )


def coded(rows: LabeledRows) -> CodedTable:
    """Rows of a schema as cells and values. Columns of which nothing is coded (constants, say) are
    left out."""
    table = _schema(rows)
    parts = [_part(*each, rows.features) for each in _columns(table)]
    if table.label is not None:
        labels = rows.labels.astype(np.float64)
        parts.append(_Part(table.label.name, labels, _listed(labels, len(rows.classes)), False))
    return CodedTable(
        names=tuple(part.name for part in parts),
        sizes=tuple(part.cells[1] for part in parts),
        numeric=tuple(part.numeric for part in parts),
        cells=np.column_stack([part.cells[0] for part in parts]),
        values=np.column_stack([part.values for part in parts]),
    )


def column_values(rows: LabeledRows) -> Real:
    """A number for each column but the label: a number in its own units, a category's place in its
    list, NaN where there is no value."""
    return np.column_stack([_part(*e, rows.features).values for e in _columns(_schema(rows))])


def _schema(rows: LabeledRows) -> Table:
    if rows.table is None:
        raise ValueError("rows without a schema")
    return rows.table


def _columns(table: Table) -> Iterator[tuple[Column, slice, int]]:
    """The columns of which something is coded, where it lies in a row, and how many numbers they
    have before what is a list."""
    lists = list(table.blocks)
    for column, place in zip(table.columns, table.places, strict=True):
        own = [each for each in lists if place.start <= each.start < place.stop]
        listed = sum(each.stop - each.start for each in own)
        if column.width:
            yield column, place, column.width - listed


@dataclass(frozen=True, eq=False, repr=False)
class _Part:
    """A column: its values, the cell of each, and how many cells there are."""

    name: str
    values: Real
    cells: tuple[Codes, int]
    numeric: bool


def _part(column: Column, place: slice, numbers: int, features: npt.NDArray[Any]) -> _Part:
    block = features[:, place].astype(np.float64, copy=False)
    if not numbers:
        values = np.where(block.any(axis=1), block.argmax(axis=1).astype(np.float64), np.nan)
        return _Part(column.name, values, _listed(values, column.width), False)
    values, whole = _as_numbers(column, block)
    ends = np.zeros((2, column.width))
    ends[:, :numbers] = np.array(column.ends)[:, None]
    (low, high), _ = _as_numbers(column, ends)
    if whole and high - low < BINS:
        count, found = int(high - low) + 1, np.nan_to_num(values) - low
    else:
        count, found = BINS, np.floor((np.nan_to_num(values) - low) / (high - low) * BINS)
    found = np.clip(found, 0, count - 1)
    return _Part(column.name, values, _or_none(found, values, count), True)


def _as_numbers(column: Column, block: Real) -> tuple[Real, bool]:
    """In the column's own units, NaN for none; and whether its type is of whole numbers."""
    import pyarrow as pa

    found = column.arrow(column.cells(block))
    if pa.types.is_temporal(found.type):
        found = found.cast(pa.int32() if found.type.bit_width == 32 else pa.int64())
    whole = pa.types.is_integer(found.type) or pa.types.is_boolean(found.type)
    return found.cast(pa.float64()).to_numpy(zero_copy_only=False), whole


def _listed(values: Real, count: int) -> tuple[Codes, int]:
    return _or_none(np.nan_to_num(values), values, count)


def _or_none(cells: Real, values: Real, count: int) -> tuple[Codes, int]:
    """One more cell, the last, for what has no value."""
    return np.where(np.isnan(values), count, cells).astype(np.int64), count + 1
