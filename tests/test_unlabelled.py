"""A table without a label is released like any other: one class of all records is inside, and no
label is asked for, paid for or written."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from capemix import documents
from capemix.api import Synthesizer, synthesize
from capemix.data import Table, open_data, partition
from capemix.data.arrays import cells_of_columns
from capemix.data.rows import UNLABELLED, LabeledRows
from capemix.data.schema import Category, Number
from capemix.errors import InputError
from capemix.facts import CLASS_SIZES, Facts
from capemix.methods.tables import Tables
from capemix.methods.tables.program import PAIRS
from capemix.plan import make_plan
from capemix.randomness.source import SeededSource
from capemix.release import read_release
from capemix.statistics.cells import CLASS_WEIGHT, Column, PairCounts
from capemix.statistics.check import added
from conftest import Capemix

HOUSES = Table(
    columns=(
        Number("rooms", 1, 9, type="integer"),
        Number("size", 10.0, 300.0),
        Category("heating", ("gas", "oil", "none"), missing=True),
        Category("garden", (False, True)),
    )
)


def houses(records: int = 300, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rooms = rng.integers(1, 10, records)
    return pd.DataFrame(
        {
            "rooms": rooms,
            "size": np.clip(rooms * 25 + rng.normal(0, 15, records), 10, 300).round(1),
            "heating": rng.choice(["gas", "oil", None], records, p=[0.6, 0.3, 0.1]),
            "garden": rng.random(records) < rooms / 10,
        }
    )


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The table, and its schema."""
    data, schema = tmp_path / "houses.csv", tmp_path / "schema.json"
    houses().to_csv(data, index=False)
    schema.write_text(json.dumps(documents.as_json(HOUSES)))
    return data, schema


def coded(records: int = 300) -> LabeledRows:
    return HOUSES.rows(cells_of_columns(houses(records), HOUSES.names, None))


# -- what is declared ------------------------------------------------------------------------------


def test_a_schema_without_a_label_has_one_class_of_all_records(files: tuple[Path, Path]) -> None:
    data, schema = files
    found = Table.read(schema)
    assert found == HOUSES
    assert (found.label_name, found.classes) == (None, UNLABELLED)
    rows = open_data(data, table=found).train
    assert rows.class_counts().tolist() == [300]
    facts = Facts.of(rows)
    assert facts.label is None
    assert facts.undeclared(sizes=True) == (CLASS_SIZES,)  # how many records there are
    assert facts.columns_read == HOUSES.names
    with pytest.raises(InputError, match="must be one, of all records"):
        replace(facts, table=None, features=tuple("abcdefg"), classes=("yes", "no"))
    with pytest.raises(InputError, match=r"label is not the schema's.*the schema has none"):
        open_data(data, "garden", table=found)


def test_a_label_is_no_part_of_the_draft_of_a_table_without_one(
    capemix: Capemix, files: tuple[Path, Path], tmp_path: Path
) -> None:
    data, _ = files
    out = tmp_path / "draft.json"
    assert capemix("schema", "draft", data, "--out", out).code == 0
    drafted = Table.read(out)
    assert (drafted.label, drafted.names) == (None, HOUSES.names)
    assert drafted.drafted
    assert not drafted.is_confirmed
    labelled = replace(drafted, columns=drafted.columns[:3], label=Category("garden", ("a", "b")))
    assert replace(drafted, columns=drafted.columns[:3]).digest() != labelled.digest()


def test_a_file_of_numbers_without_a_schema_still_needs_a_label(
    capemix: Capemix, tmp_path: Path
) -> None:
    data = tmp_path / "numbers.csv"
    data.write_text("a,b\n1,2\n3,4\n")
    ran = capemix("synth", data, "--epsilon", 1, "--out", tmp_path / "out", "--no-ledger")
    assert ran.code != 0
    assert "--label is not given" in ran.err
    assert "a table without one needs a schema" in " ".join(ran.err.split())


# -- what it costs ---------------------------------------------------------------------------------


def test_one_class_costs_the_count_of_records_and_no_pairs_with_it() -> None:
    facts = Facts.of(coded())
    plan = make_plan(facts, Tables()).calibrate(1.0)
    first, *_ = plan.body
    assert (first.name, first.reads) == (CLASS_SIZES, "each record")
    declared = make_plan(replace(facts, class_sizes=(9000,)), Tables()).calibrate(10.0)
    assert CLASS_SIZES not in declared.names
    pairs = next(line for line in declared.body if line.name == PAIRS)
    assert pairs.l2_norm_bound == math.sqrt(6)  # of four columns


def test_pairs_of_one_class_are_counted_as_one_would_by_hand() -> None:
    rows = np.array([[0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0]])
    at = (Column(0, (0.5,)), Column(1, bins=(0, 1)), Column(3, (0.5,)))
    labels = np.zeros(3, dtype=np.int64)
    for target, weights in ((None, (1, 1, 1)), (1, (CLASS_WEIGHT, 1, CLASS_WEIGHT))):
        asked = PairCounts(4, 1, at, (), (2, 2, 2), (), target)
        assert asked.l2_norm_bound == pytest.approx(math.sqrt(sum(each**2 for each in weights)))
        tables, by_class = asked.tables(added(asked, rows, labels, None)[0])
        assert by_class == []
        assert set(tables) == {(0, 1), (0, 2), (1, 2)}
        assert tables[0, 1] == pytest.approx(np.array([[1, 0], [0, 2]]))
        assert tables[0, 2] == pytest.approx(np.array([[0, 1], [1, 1]]))
        alone = np.linalg.norm(added(asked, rows[:1], labels[:1], None))
        assert alone == pytest.approx(asked.l2_norm_bound)
    for wrong in (3, -1):
        with pytest.raises(ValueError, match="the target is no column"):
            PairCounts(4, 1, at, (), (2, 2, 2), (), wrong)
    with pytest.raises(ValueError, match="stands beside a class"):
        PairCounts(4, 2, at, at, (2, 2, 2), (2, 2, 2), 1)


def test_a_single_column_has_no_pairs() -> None:
    alone = Table(columns=HOUSES.columns[:1])
    rows = alone.coded([np.full(90, 3.0)], np.zeros(90, dtype=np.int64))
    facts = Facts.of(rows, class_sizes=(10**9,))
    plan = make_plan(facts, Tables(samples=50)).calibrate(10.0)
    assert PAIRS not in plan.names
    made = synthesize(make_plan(Facts.of(rows), Tables()).calibrate(10.0), rows)
    assert set(made.columns()) == {"rooms"}


# -- what comes out --------------------------------------------------------------------------------


def test_a_release_has_the_columns_and_no_label(
    capemix: Capemix, files: tuple[Path, Path], tmp_path: Path
) -> None:
    data, schema = files
    out = tmp_path / "out"
    ran = capemix(
        "synth", data, "--schema", schema, "--epsilon", 5, "--method", "tables", "--samples", 70,
        "--no-ledger", "--out", out,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    said = " ".join(ran.out.split())
    assert "70 synthetic rows" in said
    assert "classes" not in said.replace("class sizes", "")
    assert "label" not in said
    table = pq.read_table(out / "synthetic.parquet")
    assert table.column_names == list(HOUSES.names)
    assert [str(kind) for kind in table.schema.types] == ["int64", "double", "string", "bool"]
    saved = read_release(out)
    assert saved.manifest.facts.label is None
    assert len(saved.rows) == 70
    assert saved.rows.class_counts().tolist() == [70]
    shown = capemix("data", data, "--schema", schema, "--json").json
    assert "classes" not in shown
    assert shown["records"] == 300


def test_in_python_the_columns_are_all_that_is_given_and_all_that_comes() -> None:
    frame = houses()
    fitted = Synthesizer(5.0, schema=HOUSES, method="tables", test_seed=1).fit(frame)
    found = fitted.sample(20)
    assert list(found) == list(HOUSES.names)
    assert found.shape == (20, 4)
    with pytest.raises(InputError, match="y is the label, and the schema names none"):
        Synthesizer(schema=HOUSES).fit(frame, frame["garden"])
    labelled = Table(columns=HOUSES.columns[:3], label=Category("garden", (0, 1)))
    asked: dict[str, Any] = {"schema": labelled, "method": "class-gaussian", "test_seed": 1}
    of_frame = Synthesizer(5.0, **asked).fit(frame).sample(20)
    apart = Synthesizer(5.0, **asked).fit(frame.drop(columns="garden"), frame["garden"])
    assert of_frame[1].equals(apart.sample(20)[1])
    numbers = Synthesizer(5.0, public_range=(0, 300), test_seed=1)
    found = numbers.fit(frame[["rooms", "size"]].to_numpy()).sample(10)
    assert found.shape == (10, 2)
    assert numbers.release_.facts.label is None
    with pytest.raises(InputError, match="y is not given, but classes are"):
        Synthesizer(classes=["a"]).fit(frame[["rooms"]].to_numpy())


# -- several sites ---------------------------------------------------------------------------------


def test_sites_plan_check_and_release_a_table_without_a_label(
    capemix: Capemix, files: tuple[Path, Path], tmp_path: Path
) -> None:
    data, schema = files
    plan, folder = tmp_path / "plan.json", tmp_path / "federation"
    ran = capemix(
        "federate", "plan", "--schema", schema, "--epsilon", 5, "--sites", 3, "--method", "tables",
        "--out", plan,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert capemix("federate", "init", folder, "--plan", plan).code == 0
    policy = folder / "policy.json"
    assert json.loads(policy.read_text())["columns"] == list(HOUSES.names)
    ran = capemix(
        "site", "check", "--data", data, "--plan", plan, "--policy", folder / "policy.json"
    )
    assert ran.code == 0, ran.err
    assert "300 rows, of which 300 count" in ran.out
    assert "The policy allows the plan" in ran.out
    assert "label" not in ran.out
    parts = partition(coded(), 3, "iid", seed=1)
    made = make_plan(Facts.of(parts[0]), Tables(), scheme="cape", sites=3).calibrate(5.0)
    release = synthesize(made, parts, source=SeededSource(1))
    assert tuple(release.columns()) == HOUSES.names
