"""Every type of column keeps the rules by its own methods alone: those that are built in, and one
that is written here, as a newcomer would write it. A type without an example here is asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capemix import documents
from capemix.data import LabeledRows, Table, open_data, unread
from capemix.data.arrays import cells_of_columns
from capemix.data.cells import Cells, Codes, Real
from capemix.data.columns import (
    Category,
    Column,
    Mask,
    Number,
    Values,
    column_type,
    column_types,
)
from capemix.data.identifiers import Identifier
from capemix.data.moments import Moment
from capemix.data.writing import write_table
from capemix.facts import map_of
from capemix.randomness.source import SeededSource
from capemix.release import read_release
from capemix.sums.rows import normalise_rows
from conftest import Capemix
from releasing import release_of


@column_type
@dataclass(frozen=True)
class Boolean(Column):
    """True or false: a 1 at one of two numbers. This class is all that there is of the type."""

    name: str
    type: Literal["boolean"] = field(default="boolean", kw_only=True)
    width = 2
    ends = (0.0, 1.0)
    numbers = 0

    @property
    def coded_names(self) -> tuple[str, ...]:
        return f"{self.name}=false", f"{self.name}=true"

    def read(self, cells: Cells) -> Codes:
        return cells.words(self.name).codes({"0": 0, "1": 1})

    def fits(self, read: Real | Codes) -> Mask:
        return np.asarray(read >= 0)

    def code_into(self, block: Real, read: Real | Codes) -> None:
        block[np.arange(len(read)), read.astype(np.int64, copy=False)] = 1.0

    def strays(self, block: Real) -> Mask:
        return np.zeros(len(block), dtype=bool)

    def kept(self, block: Real) -> Values:
        return np.asarray(block[:, 1] > 0)

    def restored(self, block: Real) -> Real:
        return block

    cells = kept

    def arrow(self, cells: Values) -> pa.Array:
        return pa.array(cells, pa.bool_())

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Example:
    """A column named x with cells that it declares, in its own type, some that it does not declare
    but reads, and the type in which a release has it."""

    column: Column
    declared: list[Any]
    stray: list[Any]
    arrow: pa.DataType


EXAMPLES: dict[type[Column], tuple[Example, ...]] = {
    Number: (
        Example(Number("x", -1.5, 2.0), [-1.5, 0.25, 2.0], [-7, 1e300, "3"], pa.float64()),
        Example(Number("x", 1, 90, type="integer"), [1, 17, 90], [-3, 2.5e9, 0], pa.int64()),
        Example(Number("x", 1.0, 64.0, scale="log"), [1.0, 64.0], [0.0, -2.0, 99], pa.float64()),
        Example(
            Number("x", -1.0, 2.5, missing=True), [0.0, None, 2.5], ["u", "", 9.75], pa.float64()
        ),
        Example(
            Number("x", -3, 9, type="integer", missing=True), [9, None, -3], [-4, 2.5], pa.int64()
        ),
        Example(
            Number("x", 1.0, 64.0, scale="log", decimals=1, missing=True),
            [1.0, 5.3, None, 64.0],
            [0.0, 2.04, "u"],
            pa.float64(),
        ),
        Example(Number("x", -0.3, 7.25, decimals=2), [-0.3, 0.07, 7.25], [1.005, 8], pa.float64()),
        Example(Number("x", 0.0, 1.0, decimals=0), [0.0, 1.0], [0.5, -1], pa.float64()),
        Example(Number("x", 7.5, 7.5), [7.5, 7.5], [7.0, "1e9"], pa.float64()),
        Example(Number("x", 7, 7, type="integer", missing=True), [7, None], [8, "u"], pa.int64()),
    ),
    Category: (
        Example(Category("x", ("u", "v", "w")), ["w", "u", "v"], ["?", "z", 8], pa.string()),
        Example(Category("x", (1, 20), missing=True), [20, 1, None], [3, "u"], pa.int64()),
        Example(Category("x", (False, True)), [True, False], [2, None], pa.bool_()),
        Example(Category("x", ("only",)), ["only", "only"], ["other", None], pa.string()),
        Example(Category("x", ("only",), missing=True), ["only", None], ["other"], pa.string()),
    ),
    Moment: (
        Example(
            Moment("x", "1999-12-31", "2024-02-29", type="date"),
            [date(1999, 12, 31), date(2024, 2, 29), date(2008, 7, 1)],
            ["2020-01-01", "2020-01-01 23:59:59.9", "1066-10-14", "9999-12-31", date(1, 1, 1)],
            pa.date32(),
        ),
        Example(
            Moment(
                "x", "2020-01-01 00:00:00", "2020-12-31T23:59:59", type="datetime", missing=True
            ),
            [datetime(2020, 1, 1), None, datetime(2020, 12, 31, 23, 59, 59)],
            ["2020-06-01T10:00+02:00", date(2030, 1, 1), "0001-01-01 00:00:00", "17:00"],
            pa.timestamp("us"),
        ),
        Example(
            Moment("x", "2020-01-01", "2020-12-31", type="datetime", zone="UTC"),
            [datetime(2020, 1, 1, 5, tzinfo=UTC), datetime(2020, 12, 31, tzinfo=UTC)],
            ["2020-06-01T10:00+02:00", "2020-06-01 10:00:00", date(2030, 1, 1)],
            pa.timestamp("us", "UTC"),
        ),
        Example(
            Moment("x", "08:00", "18:30:00", type="time"),
            [time(8), time(18, 30), time(11, 22, 33)],
            ["03:00:00.5", "23:59", time(12, 0, 0, 5)],
            pa.time64("us"),
        ),
        Example(
            Moment("x", "2020-05-05", "2020-05-05", type="date"),
            [date(2020, 5, 5)] * 2,
            ["2021-01-01"],
            pa.date32(),
        ),
    ),
    Identifier: (
        Example(Identifier("x"), ["id-000001", "id-000002"], ["id-000001", "?", None], pa.string()),
        Example(Identifier("x", first=9), [9, 10, 11], [9, 9, 2.5], pa.int64()),
    ),
    Boolean: (Example(Boolean("x"), [True, False], [], pa.bool_()),),
}

NO_VALUES = (
    None, "", "?", "junk", "\ud800", b"\xff", float("nan"), float("inf"), 10**400, 1j, [], {},
    object(), date(2020, 1, 1), np.datetime64("NaT"), np.timedelta64(3, "s"),
)  # fmt: skip
"""Cells of which none is a value that an example declares."""

HOSTILE = (*NO_VALUES, 0.5, -1e308, 2, True)
"""Cells that some type cannot read."""

LABEL = Category("y", ("a", "b"))


def of_every_type() -> list[Any]:
    return [
        pytest.param(example, id=f"{member.__name__}-{at}")
        for member in column_types()
        for at, example in enumerate(EXAMPLES.get(member, ()))
    ]


every = pytest.mark.parametrize("example", of_every_type())


def table_of(example: Example) -> Table:
    """The column beside another one."""
    return Table((example.column, Number("other", 0, 100, type="integer")), LABEL)


def rows_of(table: Table, cells: list[Any]) -> LabeledRows:
    return table.rows(cells_of(table, cells))


def cells_of(table: Table, cells: list[Any]) -> Cells:
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    columns = {"x": column, "other": np.arange(len(cells))}
    return cells_of_columns(columns, table.names, "y", np.array(["a", "b"] * len(cells))[::2])


def block_of(example: Example, cells: list[Any]) -> Real:
    table = table_of(example)
    return np.asarray(rows_of(table, cells).features[:, table.places[0]], dtype=np.float64)


@pytest.mark.parametrize("member", column_types())
def test_every_type_of_column_has_an_example(member: type[Column]) -> None:
    assert EXAMPLES.get(member), f"give an example of {member.__name__} in EXAMPLES"
    assert all(type(example.column) is member for example in EXAMPLES[member])


def test_two_types_cannot_have_one_name() -> None:
    @dataclass(frozen=True)
    class Other(Boolean):
        pass

    with pytest.raises(ValueError, match="two types of column are called boolean"):
        column_type(Other)


# -- the rules -------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("odd", HOSTILE, ids=lambda cell: type(cell).__name__)
def test_a_cell_costs_its_own_record_or_is_coded_and_changes_nothing_else(
    example: Example, odd: object
) -> None:
    for at in (0, 1, -1):
        check_one(example, odd, at)


def check_one(example: Example, odd: object, at: int) -> None:
    table = table_of(example)
    cells = [*example.declared, *example.stray, *example.declared]
    changed = list(cells)
    changed[at] = odd
    before, after = rows_of(table, cells), rows_of(table, changed)
    assert before.unfit == 0
    assert len(after) + after.unfit == len(cells)
    others = np.delete(np.arange(len(cells)), at)
    left = after.features[:, -1]  # the number beside it tells the records apart
    kept = after.features[np.isin(left, others)]
    assert kept.tobytes() == before.features[others].tobytes()
    assert after.unfit in (0, 1)
    mine = after.features[~np.isin(left, others)][:, table.places[0]]
    assert len(mine) == 1 - after.unfit
    dated = isinstance(odd, date) and isinstance(example.column, Moment)
    if any(odd is each for each in NO_VALUES) and example.column.width and not dated:
        assert example.column.strays(mine).all()  # lost or missing, and never a declared value
    assert unread(cells_of(table, changed), table) == ({"x": 1} if after.unfit else {})


@every
def test_what_is_coded_is_moved_into_a_range_that_is_declared(example: Example) -> None:
    table, column = table_of(example), example.column
    low, high = column.ends
    assert low < high
    assert len(set(column.coded_names)) == column.width
    rows = rows_of(table, [*example.declared, *example.stray, *HOSTILE])
    mapped = normalise_rows(rows.features, map_of(table))[:, table.places[0]]
    assert (np.abs(mapped) <= 1.0).all()
    hot = rows.features[:, table.places[0]][:, column.numbers :]
    assert set(np.unique(hot)) <= {0.0, 1.0}
    assert (hot.sum(axis=1) <= 1).all()
    block = block_of(example, example.declared)[:, : column.numbers]
    assert ((block >= low) & (block <= high)).all()
    assert table.no_rows().features.shape == (0, table.width)


def test_a_cell_that_is_missing_is_coded_by_a_number_in_any_range() -> None:
    """One that is not finite would have all records refused."""
    table = Table((Number("x", 1e308, 1.79e308, missing=True),))
    rows = table.rows(Cells(2, {"x": np.array([1.5e308, np.nan])}, None))
    assert (len(rows), rows.unfit) == (2, 0)


@every
def test_declared_values_come_back_from_their_codes(example: Example) -> None:
    column, block = example.column, block_of(example, example.declared)
    assert column.restored(block).tobytes() == block.tobytes()
    found = list(column.cells(block))
    assert [cell is None for cell in found] == [cell is None for cell in example.declared]
    if any(isinstance(cell, float) for cell in example.declared):
        given = [cell for cell in found if cell is not None]
        wanted = [cell for cell in example.declared if cell is not None]
        assert given == pytest.approx(wanted, rel=1e-9)
    else:
        assert found == example.declared
    declared = [cell for cell in example.declared if cell is not None]
    assert not column.strays(block_of(example, declared)).any()


@every
def test_whatever_is_drawn_becomes_a_declared_value(example: Example) -> None:
    column = example.column
    low, high = column.ends
    rng = np.random.default_rng(0)
    drawn = rng.uniform(2 * low - high, 2 * high - low, size=(200, column.width))
    if others := column.width - column.numbers:
        drawn[:, column.numbers :] = np.eye(others)[rng.integers(0, others, 200)]
    restored = column.restored(drawn)
    assert column.restored(restored).tobytes() == restored.tobytes()
    cells = list(column.cells(restored))
    assert block_of(example, cells).tobytes() == restored.tobytes()
    assert not column.strays(restored)[[cell is not None for cell in cells]].any()


@every
def test_coded_rows_come_back_from_a_file_and_released_cells_have_their_type(
    example: Example, tmp_path: Path
) -> None:
    table = table_of(example)
    rows = rows_of(table, [*example.declared, *example.stray, *HOSTILE])
    write_table(rows, tmp_path / "rows.parquet")
    again = open_data(tmp_path / "rows.parquet", table=table).train
    assert again.features.tobytes() == rows.features.tobytes()
    assert table.strays(again) == table.strays(rows)
    block = block_of(example, example.declared)
    for some in (block, block[:1], block[:0]):
        written = example.column.arrow(example.column.cells(some))
        assert isinstance(written, pa.Array)
        assert written.type == example.arrow
        assert written.to_pylist() == list(example.column.cells(some))


@every
def test_a_schema_with_it_comes_back_from_its_document(example: Example) -> None:
    table = table_of(example)
    said = json.loads(json.dumps(documents.as_json(table)))
    assert documents.from_json(Table, said, name="schema") == table
    assert said["columns"][0]["type"] in documents.names_of(type(example.column), "type")
    assert table.with_logs().names == table.names
    renamed = replace(table, columns=(replace(example.column, name="z"), table.columns[1]))  # type: ignore[type-var]
    assert renamed.digest() != table.digest()
    assert str(example.column)
    assert "object at" not in str(example.column)


# -- a new type from a file to a release -----------------------------------------------------------


def test_a_new_type_needs_nothing_but_its_class(tmp_path: Path, capemix: Capemix) -> None:
    rng = np.random.default_rng(1)
    high = rng.random(3000) < 0.5
    smokes = (rng.random(3000) < np.where(high, 0.8, 0.1)).astype(object)
    smokes[:2] = "sometimes", None
    frame = pd.DataFrame(
        {"smokes": smokes, "age": rng.integers(20, 80, 3000), "y": np.where(high, "a", "b")}
    )
    frame.to_csv(tmp_path / "rows.csv", index=False)
    schema = tmp_path / "schema.json"
    schema.write_text(
        '{"format": "capemix-schema/1", "columns": [{"name": "smokes", "type": "boolean"},'
        ' {"name": "age", "type": "integer", "low": 0, "high": 100}],'
        ' "label": {"name": "y", "categories": ["a", "b"]}}'
    )
    table = Table.read(schema)
    assert table.columns[0] == Boolean("smokes")
    rows = open_data(tmp_path / "rows.csv", table=table).train
    assert (len(rows), rows.unfit) == (2998, 2)
    release = release_of(rows, "class-gaussian", epsilon=8.0, source=SeededSource(2), samples=2000)
    release.save(tmp_path / "made")
    ran = capemix(
        "synth", tmp_path / "rows.csv", "--schema", schema, "--method", "class-gaussian",
        "--epsilon", 8, "--samples", 2000, "--no-ledger", "--out", tmp_path / "asked",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    for name in ("made", "asked"):
        found = pq.read_table(tmp_path / name / "synthetic.parquet")
        assert found.schema.field("smokes").type == pa.bool_()
        often = found.to_pandas().groupby("y")["smokes"].mean()
        assert often["a"] == pytest.approx(0.8, abs=0.1)
        assert often["b"] == pytest.approx(0.1, abs=0.1)
        saved = read_release(tmp_path / name)
        assert saved.manifest.facts.table == table
        assert (len(saved.rows), saved.rows.unfit) == (2000, 0)
