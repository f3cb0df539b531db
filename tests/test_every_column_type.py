"""A table with a column of every type goes in and comes out with the same types and its columns in
the same order: through CSV, Parquet, pandas and polars. Cells are missing as often as they were."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capemix.api import Synthesizer
from capemix.data import LabeledRows, Table, draft_table, open_data, partition
from capemix.data.column import column_types
from capemix.data.schema import Category, Identifier, Moment, Number
from capemix.randomness.source import SeededSource
from capemix.release import read_release
from conftest import Capemix
from one_record import write_csv, write_parquet
from releasing import release_of

COUNT = 3000
MISSING = 0.05

KINDS = {
    "patient": pa.string(),
    "age": pa.int64(),
    "visits": pa.int64(),
    "weight": pa.float64(),
    "flag": pa.float64(),
    "real": pa.float64(),
    "died": pa.bool_(),
    "smokes": pa.bool_(),
    "well": pa.bool_(),
    "city": pa.string(),
    "rooms": pa.int64(),
    "born": pa.date32(),
    "seen": pa.timestamp("us"),
    "sent": pa.timestamp("us", "UTC"),
    "at": pa.time64("us"),
    "country": pa.string(),
    "version": pa.float64(),
}
LABEL = "died"
HOLED = ("visits", "weight", "well", "city", "born")


@cache
def hospital() -> pa.Table:
    """Who is old weighs more and dies more often; a weight is missing more often of who died."""
    rng = np.random.default_rng(0)
    age = rng.integers(18, 95, COUNT)
    died = rng.random(COUNT) < np.where(age > 70, 0.6, 0.1)
    second = dt.timedelta(seconds=1)
    cells: dict[str, list[Any]] = {
        "patient": [f"P{at:05d}" for at in rng.permutation(COUNT)],
        "age": age.tolist(),
        "visits": rng.poisson(3, COUNT).tolist(),
        "weight": np.clip(rng.normal(60 + age / 4, 8), 40, 120).round(1).tolist(),
        "flag": (rng.random(COUNT) < 0.3).astype(float).tolist(),
        "real": rng.normal(size=COUNT).tolist(),
        "died": died.tolist(),
        "smokes": (rng.random(COUNT) < 0.4).tolist(),
        "well": (rng.random(COUNT) < 0.7).tolist(),
        "city": rng.choice(["Ulm", "Bern", "Linz"], COUNT).tolist(),
        "rooms": rng.integers(1, 4, COUNT).tolist(),
        "born": [dt.date(2020, 6, 1) - dt.timedelta(days=365 * years) for years in age.tolist()],
        "seen": [dt.datetime(2020, 1, 1) + int(n) * second for n in rng.integers(0, 10**7, COUNT)],
        "sent": [dt.datetime(2020, 1, 1, 6, 30, tzinfo=dt.UTC)] * COUNT,
        "at": [(dt.datetime.min + int(n) * second).time() for n in rng.integers(0, 86400, COUNT)],
        "country": ["AT"] * COUNT,
        "version": [1.5] * COUNT,
    }
    for name in HOLED:
        often = np.where(died, 2.0, 0.75) * MISSING if name == "weight" else MISSING
        for at in np.flatnonzero(rng.random(COUNT) < often):
            cells[name][at] = None
    return pa.table({name: pa.array(cells[name], kind) for name, kind in KINDS.items()})


def nullable(found: pa.Table) -> pd.DataFrame:
    """As pandas has whole numbers and truth values of which some are missing."""
    return found.to_pandas().astype({"visits": "Int64", "well": "boolean"})


def write(found: pa.Table, path: Path) -> None:
    if path.suffix == ".csv":
        nullable(found).to_csv(path, index=False)
    else:
        pq.write_table(found, path)


@cache
def schema_of(suffix: str, folder: Path) -> Table:
    """As it is drafted of a file, and declared."""
    path = folder / f"hospital{suffix}"
    write(hospital(), path)
    return replace(draft_table(path, LABEL).table, drafted=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hospital")


def check(found: pa.Table) -> None:
    """Of a release: its types, order, values and missing cells."""
    assert {field.name: field.type for field in found.schema} == KINDS
    assert found.column_names == list(KINDS)
    given = hospital()
    for name in KINDS:
        holes = found.column(name).null_count / len(found)
        assert holes == pytest.approx(MISSING if name in HOLED else 0.0, abs=0.02), name
        if pa.types.is_date(KINDS[name]) or pa.types.is_integer(KINDS[name]):
            wanted, made = (
                np.array(each.column(name).drop_null().cast("int64" if name != "born" else "int32"))
                for each in (given, found)
            )
            assert abs(made.mean() - wanted.mean()) < 0.2 * wanted.std(), name
    ids = found.column("patient").to_pylist()
    assert ids == [f"id-{at:06d}" for at in range(1, len(found) + 1)]
    assert set(found.column("country").to_pylist()) == {"AT"}
    assert set(found.column("version").to_pylist()) == {1.5}
    assert set(found.column("flag").to_pylist()) == {0.0, 1.0}
    weights = [weight for weight in found.column("weight").to_pylist() if weight is not None]
    assert weights == [round(weight, 1) for weight in weights]
    assert all(moment.microsecond == 0 for moment in found.column("seen").to_pylist())
    died = found.column(LABEL).to_pylist()
    assert np.mean(died) == pytest.approx(np.mean(given.column(LABEL).to_pylist()), abs=0.03)
    changes = sum(one != other for one, other in pairwise(died))
    assert changes > len(died) / 5  # rows are in an order of chance, not class by class


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_every_type_comes_back_through_a_file(
    suffix: str, folder: Path, tmp_path: Path, capemix: Capemix
) -> None:
    schema_of(suffix, folder)
    rows, schema = folder / f"hospital{suffix}", tmp_path / "schema.json"
    ran = capemix("schema", "draft", rows, "--label", LABEL, "--out", schema)
    assert "made anew: patient" in ran.out
    ran = capemix(
        "synth", rows, "--schema", schema, "--method", "class-gaussian", "--epsilon", 30,
        "--no-ledger", "--test-seed", 1, "--csv", "--out", tmp_path / "out",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found = pq.read_table(tmp_path / "out" / "synthetic.parquet")
    check(found)
    saved = read_release(tmp_path / "out")
    assert saved.rows.unfit == 0
    assert saved.rows.table is not None
    # What comes out may go in again, and says the same.
    again = tmp_path / "out" / "synthetic.csv"
    types = [(each.name, type(each)) for each in draft_table(again, LABEL).table.columns]
    assert types == [(each.name, type(each)) for each in saved.rows.table.columns]
    text = open_data(again, table=saved.rows.table).train
    assert text.features.tobytes() == saved.rows.features.tobytes()


def test_both_kinds_of_files_say_the_same(folder: Path) -> None:
    tables = [schema_of(suffix, folder) for suffix in (".csv", ".parquet")]
    assert replace(tables[0], file=None) == tables[1]  # but for how the text is written
    assert {type(column) for column in tables[0].columns} == {Category, Identifier, Moment, Number}
    ours = {each for each in column_types() if each.__module__.startswith("capemix.")}
    assert ours == {Category, Identifier, Moment, Number}
    one, other = (
        open_data(folder / f"hospital{suffix}", table=tables[0]).train
        for suffix in (".csv", ".parquet")
    )
    assert one.features.tobytes() == other.features.tobytes()
    assert (len(one), one.unfit) == (COUNT, 0)


# -- frames ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_every_type_comes_back_in_a_frame(library: str, folder: Path) -> None:
    given: Any = nullable(hospital()) if library == "pandas" else pl.from_arrow(hospital())
    table = schema_of(".parquet", folder)
    synthesizer = Synthesizer(30.0, schema=table, method="class-gaussian", test_seed=1)
    names = [name for name in KINDS if name != LABEL]
    found, label = synthesizer.fit(given[names], given[LABEL]).sample()
    assert type(found) is type(given)
    assert type(label) is type(given[LABEL])
    assert list(found.columns) == names
    assert list(found.dtypes) == list(given[names].dtypes)
    assert label.dtype == given[LABEL].dtype
    check(pa.table(synthesizer.release_.facts.table.arrow(synthesizer.release_.columns())))
    few, labels = synthesizer.sample(100)
    assert len(few) == len(labels) == 100


def test_columns_by_name_come_back_by_name(folder: Path) -> None:
    table = schema_of(".parquet", folder)
    columns = {name: hospital().column(name).to_pylist() for name in table.names}
    labels = hospital().column(LABEL).to_pylist()
    made = Synthesizer(30.0, schema=table, method="class-gaussian", samples=50, test_seed=1)
    found, label = made.fit(columns, labels).sample()
    assert list(found) == list(table.names)
    assert label.dtype == bool
    assert {type(day) for day in found["born"]} <= {dt.date, type(None)}


def test_the_release_is_the_same_for_any_split_of_the_records(folder: Path) -> None:
    rows = rows_of(folder)
    central = release_of(rows, "class-gaussian", epsilon=math.inf, source=SeededSource(1))
    parts = list(partition(rows, 3, "iid", seed=2))
    joint = release_of(
        parts, "class-gaussian", epsilon=math.inf, source=SeededSource(1), scheme="cape"
    )
    ours, theirs = (made.columns() for made in (central, joint))
    for name in KINDS:
        pairs = list(zip(ours[name], theirs[name], strict=True))
        # Without noise sums differ by what is rounded.
        assert np.mean([one == other for one, other in pairs]) > (0.99 if name != "real" else 0)
        there = [pair for pair in pairs if isinstance(pair[0], float)]
        assert all(one == pytest.approx(other, abs=0.2) for one, other in there), name


# -- without a label -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [".csv", ".parquet", "pandas", "polars"])
def test_so_does_a_table_without_a_label(way: str, tmp_path: Path) -> None:
    rows = tmp_path / (f"rows{way}" if way.startswith(".") else "rows.parquet")
    write(hospital(), rows)
    table = replace(draft_table(rows).table, drafted=False)
    method = {"method": "tables" if way == ".csv" else "class-gaussian", "samples": 1000}
    if way.startswith("."):
        coded = open_data(rows, table=table).train
        made = release_of(coded, epsilon=30.0, source=SeededSource(1), **method)
        check(pq.read_table(made.save(tmp_path / "out") / "synthetic.parquet"))
        return
    given: Any = nullable(hospital()) if way == "pandas" else pl.from_arrow(hospital())
    found = Synthesizer(30.0, schema=table, test_seed=1, **method).fit(given).sample()
    assert type(found) is type(given)
    assert list(found.columns) == list(given.columns)
    assert list(found.dtypes) == list(given.dtypes)


# -- missing cells ---------------------------------------------------------------------------------


def rows_of(folder: Path) -> LabeledRows:
    table = schema_of(".parquet", folder)
    return open_data(folder / "hospital.parquet", table=table).train


@pytest.mark.parametrize("method", ["class-gaussian", "tables"])
def test_a_number_is_missing_as_often_as_in_each_class_and_keeps_its_distribution(
    method: str, folder: Path
) -> None:
    made = release_of(rows_of(folder), method, epsilon=30.0, source=SeededSource(3)).columns()
    given = hospital().to_pydict()
    for died in (False, True):
        kept = []
        for found in (given, made):
            weights = np.array(
                [w for w, d in zip(found["weight"], found[LABEL], strict=True) if d == died],
                dtype=np.float64,
            )
            there = weights[~np.isnan(weights)]
            kept.append((np.isnan(weights).mean(), there.mean(), there.std()))
        (rate, mean, spread), found = kept
        assert found[0] == pytest.approx(rate, abs=0.02)
        assert found[1] == pytest.approx(mean, abs=0.2 * spread)
        assert found[2] == pytest.approx(spread, rel=0.2)


@pytest.mark.parametrize(("method", "part"), [("tables", 0.2), ("class-gaussian", 0.5)])
def test_what_is_often_missing_keeps_the_mean_of_the_values_that_are_there(
    method: str, part: float
) -> None:
    rng = np.random.default_rng(1)
    there, z = rng.random(4000) < part, rng.normal(size=4000)
    x = np.where(there, np.clip(8.0 + 0.8 * z + 0.3 * rng.normal(size=4000), 0, 10), np.nan)
    columns = Number("x", 0.0, 10.0, missing=True), Number("z", -4.0, 4.0)
    rows = Table(columns, Category("y", ("a", "b"))).coded([x, z], rng.integers(0, 2, 4000))
    made = release_of(rows, method, epsilon=30.0, source=SeededSource(3)).columns()
    found = np.array(made["x"], dtype=np.float64)
    kept = ~np.isnan(found)
    assert kept.mean() == pytest.approx(part, abs=0.02)
    assert found[kept].mean() == pytest.approx(7.95, abs=0.2)
    assert 0.6 < found[kept].std() < 1.8
    assert np.corrcoef(found[kept], np.asarray(made["z"])[kept])[0, 1] > 0.2


# -- one cell --------------------------------------------------------------------------------------

OF_ALL_TYPES = Table(
    (
        Number("x", -5.0, 5.0, missing=True),
        Number("whole", 0, 90, type="integer", missing=True),
        Number("skewed", 1.0, 100.0, scale="log", decimals=2, missing=True),
        Number("one", 3.0, 3.0, missing=True),
        Moment("day", "2000-01-01", "2030-12-31", type="date", missing=True),
        Moment("moment", "2000-01-01", "2030-12-31", type="datetime", missing=True),
        Moment("time", "08:00:00", "20:00:00", type="time", missing=True),
        Category("kind", ("2020-01-01", "u", "1"), missing=True),
        Category("only", ("u",)),
        Identifier("id"),
    ),
    Category("y", ("a",)),
)
CELLS: tuple[Any, ...] = (
    None, "", "?", "u", "1", 1, 2.5, -1e308, "1e400", True, "2020-01-01", "2020-01-01 10:00:00.5",
    "2020-01-01T01:00+02:00", "0000-00-00", "2020-02-30", "9999-12-31", "10:30", "24:00",
    dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 12), dt.time(12), "\ud7ff", 2**60, float("nan"),
)  # fmt: skip


def coded(cells: list[Any], path: Path) -> LabeledRows:
    """Each of these as the cell of every column, in a file."""
    rows = [{**dict.fromkeys(OF_ALL_TYPES.names, cell), "y": "a"} for cell in cells]
    (write_csv if path.suffix == ".csv" else write_parquet)(rows, (*OF_ALL_TYPES.names, "y"), path)
    return open_data(path, table=OF_ALL_TYPES).train


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_cell_of_any_kind_changes_its_own_record_alone(
    suffix: str, folder: Path, data: st.DataObject
) -> None:
    cells = data.draw(st.lists(st.sampled_from(CELLS), min_size=2, max_size=6))
    at = data.draw(st.integers(0, len(cells) - 1))
    changed = [*cells[:at], data.draw(st.sampled_from(CELLS)), *cells[at + 1 :]]
    before, after = (coded(each, folder / f"odd{suffix}") for each in (cells, changed))
    assert len(before) == len(after) == len(cells)
    others = np.arange(len(cells)) != at
    assert before.features[others].tobytes() == after.features[others].tobytes()
    for rows in (before, after):
        for place in OF_ALL_TYPES.blocks:
            assert (rows.features[:, place].sum(axis=1) == 1).all()


def test_moments_are_read_in_utc_and_dates_without_their_time(tmp_path: Path) -> None:
    cells = ["2020-01-01T01:00:00+02:00", "2019-12-31 23:00:00", "2020-01-01", "1577833200"]
    made = OF_ALL_TYPES.cells(coded(cells, tmp_path / "rows.csv").features)
    assert list(made["day"]) == [dt.date(2019, 12, 31)] * 2 + [dt.date(2020, 1, 1), None]
    assert list(made["moment"])[:2] == [dt.datetime(2019, 12, 31, 23)] * 2
    assert list(made["time"]) == [None] * 4


def test_columns_of_numbers_need_no_schema_to_stay_in_their_order(
    tmp_path: Path, capemix: Capemix
) -> None:
    frame = hospital().select(["age", LABEL, "rooms"]).to_pandas()
    frame.to_csv(tmp_path / "rows.csv", index=False)
    ran = capemix(
        "synth", tmp_path / "rows.csv", "--label", LABEL, "--classes", "true,false", "--epsilon", 9,
        "--no-ledger", "--samples", 20, "--out", tmp_path / "out",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found = pq.read_table(tmp_path / "out" / "synthetic.parquet")
    assert found.column_names == ["age", LABEL, "rooms"]
    saved = read_release(tmp_path / "out")
    assert saved.rows.feature_names == ("age", "rooms")
    assert saved.manifest.facts.label_place == 1
