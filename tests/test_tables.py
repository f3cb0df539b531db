"""Mixed tables: what the owner declares is all that is public, every rule looks at one cell, and
what is released has the table's types, ranges and categories and no others."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import capemix.engines.local
import capemix.methods.class_gaussian
from capemix import documents
from capemix.api import Synthesizer
from capemix.data import LabeledRows, Table, open_data, partition
from capemix.data.arrays import cells_of_columns
from capemix.data.schema import Category, Number
from capemix.errors import InputError
from capemix.facts import Facts, map_of
from capemix.methods.class_gaussian.categories import frequencies, picked
from capemix.methods.class_gaussian.draw import drawn_rows
from capemix.methods.gaussians import ClassGaussians
from capemix.plan import Plan
from capemix.randomness.source import SeededSource
from capemix.release import read_release
from capemix.sums.rows import normalise_rows
from capemix.sums.steps import PublicMap
from conftest import Capemix
from releasing import plan_of, release_of

Real = npt.NDArray[np.float64]

PEOPLE = Table(
    columns=(
        Number("age", 17, 90, type="integer"),
        Number("weight", 30.0, 200.0, scale="log"),
        Category("work", ("office", "field", "none"), missing=True),
        Category("smokes", (False, True)),
        Category("rooms", (1, 2, 3)),
        Number("gain", 0, 10_000, type="integer"),
    ),
    label=Category("income", ("high", "low")),
)


def people(records: int = 4000, seed: int = 0) -> pd.DataFrame:
    """Income goes with age, work and gain; weight with smoking; gain is mostly 0."""
    rng = np.random.default_rng(seed)
    high = rng.random(records) < 0.3
    age = np.clip(rng.normal(40 + 10 * high, 10), 17, 90).round().astype(int)
    smokes = rng.random(records) < 0.4
    work = np.where(
        rng.random(records) < np.where(high, 0.8, 0.3),
        "office",
        np.where(rng.random(records) < 0.7, "field", "none"),
    ).astype(object)
    work[rng.random(records) < 0.1] = None
    gain = np.where(rng.random(records) < np.where(high, 0.4, 0.05), 4000, 0)
    return pd.DataFrame(
        {
            "age": age,
            "weight": np.clip(rng.normal(70 + 25 * smokes, 10), 30, 200),
            "work": work,
            "smokes": smokes,
            "rooms": rng.integers(1, 4, records),
            "gain": gain,
            "income": np.where(high, "high", "low"),
        }
    )


def table_rows(table: Table, columns: Any, labels: Any) -> LabeledRows:
    return table.rows(cells_of_columns(columns, table.names, table.label.name, labels))


def coded(frame: pd.DataFrame) -> LabeledRows:
    return table_rows(PEOPLE, frame, frame["income"])


def released(sites: Any, epsilon: float = 8.0, **asked: Any) -> Any:
    return release_of(sites, "class-gaussian", epsilon=epsilon, source=SeededSource(3), **asked)


# -- what is declared ------------------------------------------------------------------------------


def test_a_schema_comes_back_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(documents.as_json(PEOPLE)))
    assert Table.read(file) == PEOPLE
    assert PEOPLE.width == 2 + 4 + 2 + 3 + 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"type": "number", "low": 2, "high": 1}, "low <= high"),
        ({"type": "number", "low": 0, "high": math.inf}, "low <= high"),
        ({"type": "number", "low": "0", "high": 1}, "'x' low .*expected `int"),
        ({"type": "integer", "low": 0, "high": 1.5}, "is of integers"),
        ({"type": "integer", "low": 0, "high": 10**20}, "below 2\\^53"),
        ({"type": "category", "categories": [1, 2**70]}, "integers below 2\\^53"),
        ({"type": "colour"}, "unknown type"),
        ({"type": "category", "categories": []}, "must list its categories"),
        ({"type": "category", "categories": ["a", 1]}, "must list its categories"),
        ({"type": "category", "categories": [1.5]}, "categories.0. .*expected `bool"),
        ({"type": "category", "categories": ["a", "a"]}, "each once"),
        ({"type": "category", "categories": ["1", "1.0"]}, "in one spelling"),
        ({"type": "category", "categories": ["é", "e\u0301"]}, "in one spelling"),
        ({"type": "category", "categories": ["a", " "]}, "in one spelling"),
        ({"type": "number", "low": 0}, "'x' .*missing required field `high`"),
        ({"type": "number", "low": 0, "high": 1, "step": 1}, "not known .got step"),
        ({"type": "number", "low": 0, "high": 1, "scale": "log"}, "must lie between 1e-300"),
        ({"type": "number", "low": -2, "high": -1, "scale": "log"}, "must lie between 1e-300"),
        ({"type": "number", "low": 1, "high": 1e301, "scale": "log"}, "and 1e\\+300"),
        ({"type": "number", "low": 1.0, "high": 1.0 + 1e-15, "scale": "log"}, "no single value"),
        (
            {"type": "number", "low": 1, "high": 2, "scale": "root"},
            "'x' scale .*linear or log",
        ),
        (
            {"type": "number", "low": 1, "high": 2, "scale": ["log"]},
            "'x' scale .*linear or log",
        ),
        ({"type": "category", "categories": ["a", "b"], "mising": True}, "not known .got mising"),
        (
            {"type": "category", "categories": ["a"], "missing": "yes"},
            "missing .*expected `bool`",
        ),
        ({"type": "number", "low": 0, "high": 10**400}, "two finite numbers"),
        ({"name": "income", "type": "number", "low": 0, "high": 1}, "a column twice"),
    ],
)
def test_schemas_that_declare_nothing_sensible_are_refused(
    change: dict[str, Any], says: str
) -> None:
    good = documents.as_json(PEOPLE)
    assert documents.from_json(Table, good, name="schema") == PEOPLE
    with pytest.raises(InputError, match=says):
        documents.from_json(Table, good | {"columns": [{"name": "x"} | change]}, name="schema")


def test_real_numbers_are_taken_by_their_logarithm_where_their_range_is_wide() -> None:
    ranges = {
        "wide": (0.5, 1.5), "narrow": (0.5, 1.49), "from 0": (0.0, 9.5), "negative": (-9.5, -0.5),
        "huge": (1.5, 1e305), "tiny": (1e-310, 1.0),
    }  # fmt: skip
    numbers = [Number(name, *ends) for name, ends in ranges.items()]
    numbers.append(Number("whole", 1, 90, type="integer"))
    found = Table((*numbers, PEOPLE.columns[2]), PEOPLE.label).with_logs()
    assert [each.name for each in found.columns if getattr(each, "log", False)] == ["wide"]
    assert [each.name for each in found.columns] == [*ranges, "whole", "work"]


# -- how a cell is coded ---------------------------------------------------------------------------


@given(
    st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=20),
    st.floats(1e-300, 1e299),
    st.floats(1.001, 1e100),
)
def test_a_logarithm_is_taken_back_to_the_bit_and_tells_what_lies_outside(
    values: list[float], low: float, wide: float
) -> None:
    column = Number("x", low, min(low * wide, 1e300), scale="log")
    cells = np.array([*values, *np.geomspace(column.low, column.high, 9)])
    found = column.coded(cells)
    assert np.array_equal(column.coded(column.values(found)), found)
    outside = (cells < column.low) | (cells > column.high)
    assert np.array_equal(column.strays(found[:, None]), outside)
    released = column.cells(found[:, None])
    assert ((released >= column.low) & (released <= column.high)).all()
    assert np.allclose(released[~outside], cells[~outside], rtol=1e-9, atol=0)
    restored = column.restored(found[:, None])
    assert np.array_equal(column.coded(released), restored[:, 0])
    assert np.array_equal(column.restored(restored), restored)
    table = Table((column,), PEOPLE.label)
    assert (np.abs(normalise_rows(found[:, None], map_of(table))) <= 1.0).all()


def test_whole_numbers_by_their_logarithm_come_back_whole() -> None:
    column = Number("amount", 1, 20_000, type="integer", scale="log")
    cells = np.arange(1, 20_001, dtype=np.float64)
    assert np.array_equal(column.cells(column.coded(cells)[:, None]), cells.astype(np.int64))
    between = np.log([[1.3], [1.6], [0.1], [9e9]])
    assert column.cells(between).tolist() == [1, 2, 1, 20_000]


def test_a_skewed_column_comes_back_skewed_by_its_logarithm_alone() -> None:
    cost = np.exp(np.random.default_rng(4).normal(5, 1, 4000))
    off = {}
    for scale in ("log", "linear"):
        table = Table(
            (Number("cost", 1.0, 20_000.0, scale=scale),),
            Category("y", ("a", "b")),
        )
        rows = table_rows(table, {"cost": cost}, ["a", "b"] * 2000)
        found = table.cells(released(rows, samples=4000).features)["cost"]
        off[scale] = scipy.stats.ks_2samp(found, cost).statistic
    # Clipped at the median of norms, rows are narrower than the records either way.
    assert off["log"] < 0.18 < 0.22 < off["linear"]


def test_a_value_is_known_in_any_spelling_and_one_off_the_list_counts_as_missing() -> None:
    def places(column: Category, cells: list[object]) -> list[int]:
        rows = table_rows(
            Table((column,), PEOPLE.label), {column.name: cells}, ["low"] * len(cells)
        )
        found = rows.features
        return np.where(found.any(axis=1), found.argmax(axis=1), -1).tolist()

    work, smokes, rooms = (c for c in PEOPLE.columns if isinstance(c, Category))
    assert places(work, ["office", " none ", "None", None, "?", ""]) == [0, 2, 3, 3, 3, 3]
    assert places(smokes, [True, "true", "FALSE", "yes", None]) == [1, 1, 0, -1, -1]
    assert places(smokes, [1, 0.0, "1", 2]) == [1, 0, 1, -1]  # as files write truth values
    assert places(rooms, [3, "3", "3.0", 3.0, "03", 4, float("nan")]) == [2, 2, 2, 2, 2, -1, -1]


@given(
    st.lists(st.one_of(st.text(max_size=4), st.none(), st.sampled_from(["office", "field"]))),
    st.one_of(st.text(max_size=4), st.none()),
)
def test_a_block_has_norm_one_at_most_and_a_cell_changes_its_own_row_only(
    cells: list[str | None], other: str | None
) -> None:
    table = Table((PEOPLE.columns[2], PEOPLE.columns[4]), PEOPLE.label)
    cells = ["none", *cells]

    def rows(words: list[str | None]) -> Real:
        columns = {"work": words, "rooms": [9] * len(words)}
        found = table_rows(table, columns, ["low"] * len(words))
        return normalise_rows(found.features, map_of(table))

    one, two = rows(cells), rows([other, *cells[1:]])
    assert (np.linalg.norm(one, axis=1) <= 1.0).all()
    assert (one[:, 4:] == 0).all()  # rooms: off a list without a missing value, no category
    assert np.array_equal(one[1:], two[1:])


def test_files_are_read_by_their_schema(tmp_path: Path) -> None:
    frame = people(300)
    frame["secret"] = "not declared"
    frame.loc[5, "income"] = "unheard of"  # counts for nothing
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    text, typed = (
        open_data(tmp_path / f"a.{kind}", table=PEOPLE).train for kind in ("csv", "parquet")
    )
    assert np.array_equal(text.features, typed.features)
    assert np.array_equal(text.features, coded(frame).features)
    assert len(text) == 299
    assert text.unfit == 1
    assert text.read_from_rows == ()
    assert "secret" not in " ".join(text.feature_names)
    with pytest.raises(InputError, match="schema names no column"):
        open_data(tmp_path / "a.csv", table=Table((Number("height", 0, 1),), PEOPLE.label))


def test_a_record_without_a_declared_number_counts_for_nothing(tmp_path: Path) -> None:
    frame = people(300)
    frame["weight"] = frame["weight"].astype(object)
    frame["age"] = frame["age"].astype(object)
    for at, (column, odd) in enumerate(
        (("weight", None), ("weight", np.inf), ("age", "old"), ("age", np.nan), ("income", ""))
    ):
        frame.loc[at, column] = odd
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.astype({"weight": str, "age": str}).to_parquet(tmp_path / "a.parquet")
    for rows in (coded(frame), *(open_data(tmp_path / f"a.{kind}", table=PEOPLE).train
                                 for kind in ("csv", "parquet"))):  # fmt: skip
        assert np.array_equal(rows.features, coded(frame[5:]).features)
        assert rows.unfit == 5


# -- one category out of a block -------------------------------------------------------------------


@given(st.lists(st.floats(-1, 2), min_size=1, max_size=6))
def test_frequencies_are_the_nearest_that_sum_to_one(noisy: list[float]) -> None:
    values = np.array(noisy)
    found = frequencies(values)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1.0)
    rng = np.random.default_rng(0)
    others = rng.dirichlet(np.ones(len(values)), size=200)
    assert ((found - values) ** 2).sum() <= ((others - values) ** 2).sum(axis=1).min() + 1e-9


def test_categories_are_picked_as_often_as_they_should_be() -> None:
    rng = np.random.default_rng(1)
    wanted = np.array([0.62, 0.25, 0.1, 0.03, 0.0])
    spread = np.diag(wanted) - np.outer(wanted, wanted)
    deviations = rng.multivariate_normal(np.zeros(5), spread + 0.01 * np.eye(5), size=20_000)
    places = picked(deviations, wanted)
    assert set(places) == {0, 1, 2, 3}
    found = np.eye(5)[places]
    assert found.mean(axis=0) == pytest.approx(wanted, abs=0.01)
    assert found[:, 3].mean() == pytest.approx(0.03, rel=0.2)
    assert found[:, 4].sum() == 0
    plain = np.eye(5)[(wanted + deviations).argmax(axis=1)].mean(axis=0)
    assert plain[3] < 0.015  # the largest value alone would halve what is rare
    assert np.corrcoef(found[:, 1], deviations[:, 1])[0, 1] > 0.5


# -- releases --------------------------------------------------------------------------------------


def test_a_release_has_the_tables_types_ranges_and_categories(
    tmp_path: Path, capemix: Capemix
) -> None:
    file, schema, out = tmp_path / "people.csv", tmp_path / "schema.json", tmp_path / "out"
    real = people()
    real.to_csv(file, index=False)
    schema.write_text(json.dumps(documents.as_json(PEOPLE)))
    ran = capemix(
        "synth", file, "--schema", schema, "--method", "class-gaussian", "--epsilon", 8,
        "--no-ledger", "--samples", 4000, "--out", out, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.json["epsilon"] == pytest.approx(8.0, rel=1e-3)
    made = pd.read_parquet(out / "synthetic.parquet")
    assert list(made.columns) == list(real.columns)
    for name, kind in (("age", "int64"), ("weight", "float64"), ("rooms", "int64")):
        assert made[name].dtype == kind
    assert made["smokes"].dtype == bool
    assert made["gain"].dtype == "int64"
    assert made["age"].between(17, 90).all()
    assert made["weight"].between(30, 200).all()
    assert made["gain"].between(0, 10_000).all()
    assert set(made["work"].dropna()) <= {"office", "field", "none"}
    assert 0.05 < made["work"].isna().mean() < 0.15  # missing is a category, and comes back so
    assert set(made["rooms"]) == {1, 2, 3}
    for income in ("high", "low"):
        ours, true = (each[each["income"] == income] for each in (made, real))
        assert (ours["work"] == "office").mean() == pytest.approx(
            (true["work"] == "office").mean(), abs=0.05
        )
        assert ours["age"].mean() == pytest.approx(true["age"].mean(), abs=2)
    heavier = made.groupby("smokes")["weight"].mean()
    assert heavier[True] - heavier[False] > 8  # of 25: what goes together still does
    assert (made["gain"] == 0).mean() > 0.5
    scored = capemix("evaluate", out, "--test", file, "--train", file, "--json")
    assert scored.code == 0, scored.err
    assert scored.json["ratio"] > 0.95
    assert read_release(out).rows.table == PEOPLE


def drawn_people(samples: int | None, texture: float) -> Real:
    """1,000 records of each class, in the table's own units, blocks without texture."""
    facts = Facts.of(PEOPLE.no_rows())
    deviations = np.full(PEOPLE.width, texture)
    for block in PEOPLE.blocks:
        deviations[block] = 0.0
    centres = np.full((2, PEOPLE.width), 0.25)
    spreads = np.repeat(0.04 * np.eye(PEOPLE.width)[None], 2, axis=0)
    found = ClassGaussians(np.full(2, 1000.0), centres, spreads, deviations)
    return drawn_rows(facts, found, samples, SeededSource(5))[0]


def test_rows_up_to_one_a_record_are_without_texture_and_those_beyond_have_it() -> None:
    assert np.array_equal(drawn_people(None, 0.3), drawn_people(None, 0.0))
    assert np.array_equal(drawn_people(900, 0.3), drawn_people(900, 0.0))
    plain, found = drawn_people(8000, 0.0), drawn_people(8000, 0.3)
    numbers = np.ones(PEOPLE.width, dtype=bool)
    for block in PEOPLE.blocks:
        numbers[block] = False
    assert np.array_equal(found[:, ~numbers], plain[:, ~numbers])
    for start in (0, 4000):
        assert np.array_equal(found[start : start + 1000], plain[start : start + 1000])
        beyond = slice(start + 1000, start + 4000)
        moved = found[beyond, numbers] != plain[beyond, numbers]
        assert moved.mean(axis=0).min() > 0.9
    assert set(plain[:, 0] % 1) == set(found[:, 0] % 1) == {0.0}
    low, high = (np.asarray(end) for end in (map_of(PEOPLE).low, map_of(PEOPLE).high))
    assert (found >= low).all()
    assert (found <= high).all()


def test_categories_have_no_texture(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[ClassGaussians] = []
    estimate = capemix.methods.class_gaussian.estimate_class_gaussians
    monkeypatch.setattr(
        capemix.methods.class_gaussian,
        "estimate_class_gaussians",
        lambda taking, sizes: found.append(estimate(taking, sizes)) or found[-1],
    )
    released(coded(people(300)), epsilon=0.5)
    numbers = np.ones(PEOPLE.width, dtype=bool)
    for block in PEOPLE.blocks:
        numbers[block] = False
    assert (found[0].texture[~numbers] == 0).all()
    assert (found[0].texture[numbers] > 0).all()


def test_every_look_at_a_table_is_a_line_of_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    sums: list[float] = []
    real = capemix.engines.local.sum_shares

    def watched(query: Any, *args: Any, **kwargs: Any) -> Any:
        sums.append(query.deviation)
        return real(query, *args, **kwargs)

    monkeypatch.setattr(capemix.engines.local, "sum_shares", watched)
    release = released(coded(people(1000)), 2.0)
    lines = release.plan.budget()
    assert len(sums) == len(lines)
    assert min(sums) > 0
    assert sum(line.share for line in lines) == pytest.approx(1.0)
    assert lines[-1].epsilon_composed == pytest.approx(2.0, rel=1e-3)
    assert release.guarantee.epsilon == pytest.approx(2.0, rel=1e-3)


def test_sites_release_a_table_together_by_one_schema() -> None:
    rows = coded(people(2000))
    sites = partition(rows, 3, "stratified", seed=1)
    assert sites[0].table == PEOPLE
    release = released(list(sites), scheme="cape", samples=500)
    assert set(release.columns()["smokes"]) == {False, True}
    narrower = replace(PEOPLE, columns=(Number("age", 0, 90, type="integer"), *PEOPLE.columns[1:]))
    other = replace(sites[1], table=narrower)
    with pytest.raises(InputError, match="the same at every site"):
        released([sites[0], other, sites[2]], scheme="cape")


def test_a_plan_of_a_table_comes_back_from_a_message() -> None:
    plan = released(coded(people(300))).plan
    again = documents.from_json(Plan, documents.as_json(plan), name="plan")
    assert again.facts.table == PEOPLE
    assert again == plan
    bent = documents.as_json(plan)
    bent["facts"]["table"] = {"format": "none"}
    with pytest.raises(InputError, match=r"facts table format .*write capemix-schema/1"):
        documents.from_json(Plan, bent, name="plan")


def test_what_a_schema_cannot_go_with_is_refused(tmp_path: Path, capemix: Capemix) -> None:
    people(200).to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "schema.json").write_text(json.dumps(documents.as_json(PEOPLE)))
    (tmp_path / "broken.json").write_text("{")

    def refused(*words: object, schema: str = "schema.json", data: tuple[object, ...] = ()) -> str:
        ran = capemix(
            "synth", *(data or (tmp_path / "people.csv",)), "--schema", tmp_path / schema,
            "--epsilon", 1, "--no-ledger", "--out", tmp_path / "no", *words,
        )  # fmt: skip
        assert ran.code == 2
        assert not (tmp_path / "no").exists()
        return ran.err

    gaussian = ("--method", "class-gaussian")
    assert "is the schema's to say" in refused(*gaussian, "--public-range", "0,1")
    assert "is not the schema's" in refused(*gaussian, "--label", "age")
    assert "broken.json is not readable JSON" in refused(*gaussian, schema="broken.json")
    assert "does not apply to the dataset" in refused(*gaussian, data=("--data", "digits"))
    assert "needs a method that restores categories" in refused("--method", "mixing")


def test_a_table_needs_a_method_that_restores_categories() -> None:
    rows = coded(people(200))
    with pytest.raises(InputError, match="schema needs a method that restores categories"):
        plan_of(rows, "mixing", mixture=4, samples=20)
    with pytest.raises(InputError, match="public_range contradicts the ranges of the schema"):
        Facts.of(rows, normalise=PublicMap.of_range(0, 1))


def test_too_many_categories_are_refused_by_what_they_count_as() -> None:
    words = tuple(f"w{at}" for at in range(300))
    table = Table((Category("word", words),), PEOPLE.label)
    rows = table_rows(table, {"word": ["w1", "w2"]}, ["low", "high"])
    with pytest.raises(InputError, match="categories counted one by one"):
        released(rows)


def test_frames_go_in_and_columns_come_out() -> None:
    frame = people(1500)
    made = Synthesizer(epsilon=8.0, method="class-gaussian", schema=PEOPLE, test_seed=1)
    columns, labels = made.fit(frame.drop(columns="income"), frame["income"]).sample(200)
    assert set(labels) == {"high", "low"}
    assert len(columns["work"]) == 200
    assert set(columns["work"].dropna()) <= {"office", "field", "none"}
    assert columns["age"].dtype == np.int64
    with pytest.raises(InputError, match="lacks a column of the schema"):
        made.fit({"age": [1]}, ["low"])
    for odd in (frame.assign(weight="a private word"), frame.assign(income="rich")):
        columns, labels = made.fit(odd, odd["income"]).sample(20)  # of records that count, none
        assert len(columns["weight"]) == len(labels) == 20
        assert set(labels) == {"high", "low"}


def test_declared_columns_show_no_row() -> None:
    rows = coded(people(50))
    assert repr(rows) == "LabeledRows(width=12, classes=2)"


def test_results_go_on_where_they_stopped(tmp_path: Path) -> None:
    from capemix_research.experiments import tables

    file = tmp_path / "tables.csv"
    asked = ["--results", str(file), "--data", "breast_cancer", "--seeds", "1", "--epsilon", "10"]
    tables.main(asked)
    lines = file.read_text().splitlines()
    assert [line.split(",")[1] for line in lines] == ["method", "real", "moments"]
    assert float(lines[2].split(",")[4]) > 0.88
    tables.main(asked)
    assert file.read_text().splitlines() == lines


def test_cells_for_a_peer_go_there_and_back(tmp_path: Path) -> None:
    from capemix_research.experiments import peer_marginals

    file = tmp_path / "schema.json"
    file.write_text(json.dumps(documents.as_json(PEOPLE)))
    known = peer_marginals.coders(str(file))
    frame = people(500)
    rng = np.random.default_rng(0)
    for name in ("work", "smokes", "rooms"):
        cells = frame[name].astype(object).where(frame[name].notna(), "").astype(str)
        cells = cells.str.lower() if name == "smokes" else cells
        codes = known[name].codes(cells)
        assert codes.between(0, known[name].size - 1).all()
        assert (known[name].cells(codes, rng) == cells).all()
    for name, width in (("age", 73 / 20), ("weight", 170 / 20)):
        codes = known[name].codes(frame[name].astype(str))
        assert codes.between(0, 19).all()
        assert (known[name].cells(codes, rng) - frame[name]).abs().max() <= width


def test_the_page_has_the_tables_of_the_recorded_runs() -> None:
    from capemix_research.experiments import tables
    from capemix_research.experiments.results import whole_lines

    shelf = Path(__file__).parents[1] / "docs" / "research"
    page = (shelf / "tables.md").read_text()
    assert tables.splits_table(whole_lines(shelf / "tables.csv")) in page
