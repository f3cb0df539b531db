"""How like a table a release is: figures by hand on tiny tables, and what chance alone makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capemix.data import LabeledRows, Table
from capemix.data.arrays import cells_of_columns
from capemix.data.schema import Category, Identifier, Moment, Number
from capemix.data.writing import write_table
from capemix.errors import InputError
from capemix.evaluate import Classifier, Predicted, Score, fidelity, measured, measures
from capemix.evaluate.coding import CodedTable, coded, column_values
from capemix.evaluate.propensity import propensity
from capemix.evaluate.subsample import as_good_as
from capemix.randomness.source import SeededSource
from conftest import Capemix
from releasing import release_of

SCHEMA = Table(
    columns=(
        Number("age", 0, 100, type="integer"),
        Number("rooms", 1, 4, type="integer"),
        Number("size", 1.0, 100.0, scale="log"),
        Category("work", ("office", "field"), missing=True),
        Category("smokes", (False, True)),
    ),
    label=Category("income", ("high", "low")),
)


def rows_of(columns: dict[str, Any], labels: Any) -> LabeledRows:
    return SCHEMA.rows(cells_of_columns(columns, SCHEMA.names, SCHEMA.label.name, labels))


def people(records: int, seed: int, *, together: bool = True) -> LabeledRows:
    """Age, work and income go together, or do not; every column by itself is the same."""
    rng = np.random.default_rng(seed)
    high = rng.random(records) < 0.4
    goes = high if together else rng.random(records) < 0.4
    work = np.where(goes, "office", "field").astype(object)
    work[rng.random(records) < 0.1] = None
    columns = {
        "age": np.where(goes, 60, 30) + rng.integers(0, 20, records),
        "rooms": rng.integers(1, 5, records),
        "size": np.exp(rng.uniform(0, np.log(100), records)),
        "work": work,
        "smokes": rng.random(records) < 0.5,
    }
    return rows_of(columns, np.where(high, "high", "low"))


def a_table(*columns: list[int], numeric: tuple[bool, ...] | None = None) -> CodedTable:
    """Cells of three values each and one for none."""
    cells = np.array(columns, dtype=np.int64).T
    k = len(columns)
    return CodedTable(
        tuple("abcdef"[:k]), (4,) * k, numeric or (False,) * k, cells, cells.astype(np.float64)
    )


# -- cells -----------------------------------------------------------------------------------------


def test_cells_follow_from_the_schema_alone() -> None:
    columns = {
        "age": [0, 4, 5, 99, 100, 300],
        "rooms": [1, 2, 3, 4, 4, 4],
        "size": [1.0, 5.9, 6.0, 100.0, 50.5, 50.4],
        "work": ["office", "field", None, "sea", "office", "office"],
        "smokes": [False, True, False, True, True, "often"],
    }
    found = coded(rows_of(columns, ["high", "low", "low", "low", "low", "high"]))
    assert found.names == (*columns, "income")
    assert found.sizes == (21, 5, 21, 4, 3, 3)  # one more for what has no value
    assert found.numeric == (True, True, True, False, False, False)
    assert found.cells.T.tolist() == [
        [0, 0, 1, 19, 19, 19],
        [0, 1, 2, 3, 3, 3],
        [0, 0, 1, 19, 10, 9],  # equal bins of the range, whatever the scale
        [0, 1, 2, 2, 0, 0],
        [0, 1, 0, 1, 1, 2],
        [0, 1, 1, 1, 1, 0],
    ]
    values = column_values(rows_of(columns, ["high"] * 6))
    assert values[:, 0].tolist() == [0, 4, 5, 99, 100, 100]
    assert values[:5, 2] == pytest.approx(columns["size"][:5])
    assert np.isnan(values[5, 4])


def test_cells_of_dates_and_of_what_is_missing_constant_or_made_anew() -> None:
    table = Table(
        (
            Identifier("patient"),
            Number("visits", 0, 5, type="integer", missing=True),
            Number("version", 1.5, 1.5),
            Moment("born", "2000-01-01", "2000-04-10", type="date"),  # a hundred days
            Moment("at", "00:00:00", "23:59:59", type="time", missing=True),
        )
    )
    columns = {
        "patient": ["a", "b", "c"],
        "visits": [0, None, 5],
        "version": [1.5, 1.5, 1.5],
        "born": ["2000-01-01", "2000-01-06", "2000-04-10"],
        "at": ["00:00:00", "12:00:00", None],
    }
    rows = table.rows(cells_of_columns(columns, table.names, None))
    found = coded(rows)
    assert found.names == ("visits", "born", "at")
    assert (found.sizes, found.numeric) == ((7, 21, 21), (True, True, True))
    assert found.cells.T.tolist() == [[0, 6, 5], [0, 1, 19], [0, 10, 20]]
    assert (
        np.isnan(found.values).tolist()
        == np.isnan([[0, 0, 0], [np.nan, 0, 0], [0, 0, np.nan]]).tolist()
    )
    assert fidelity.associations(found)[0, 1] == pytest.approx(fidelity.associations(found)[1, 0])


# -- figures by hand -------------------------------------------------------------------------------


def test_total_variation_by_hand() -> None:
    one = a_table([0, 0, 1, 1], [0, 1, 0, 1])
    other = a_table([0, 0, 0, 1], [0, 0, 1, 1])
    found = fidelity.fidelity(one, other)
    # a: (1/2, 1/2) and (3/4, 1/4). b: equal. Together: 1/4 each, and 1/2, 1/4, 0, 1/4.
    assert found.columns == pytest.approx((0.25, 0.0))
    assert found.one_way == pytest.approx(0.125)
    assert found.two_way == pytest.approx(0.25)
    assert np.array(found.pairs) == pytest.approx(np.array([[0, 0.25], [0.25, 0]]))
    assert found.three_way is None


def test_three_columns_can_differ_where_no_pair_does() -> None:
    """The sum of three bits: even in one table, odd in the other."""
    even = a_table([0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0])
    odd = a_table([0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 1])
    found = fidelity.fidelity(even, odd)
    assert (found.one_way, found.two_way, found.three_way) == (0.0, 0.0, 1.0)


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 40))
def test_total_variation_is_a_distance(seed: int, ones: int, others: int) -> None:
    rng = np.random.default_rng(seed)
    tables = [a_table(*rng.integers(0, 4, (3, n)).tolist()) for n in (ones, others, ones)]
    columns = (0, 1, 2)
    found = [
        fidelity.total_variation(tables[i], tables[j], columns) for i, j in ((0, 1), (1, 2), (0, 2))
    ]
    assert all(0 <= each <= 1 for each in found)
    assert found[0] <= found[1] + found[2] + 1e-12
    assert fidelity.total_variation(tables[0], tables[0], columns) == 0
    assert fidelity.total_variation(tables[1], tables[0], columns) == pytest.approx(found[0])
    fewer = fidelity.total_variation(tables[0], tables[1], columns[:2])
    assert fewer <= found[0] + 1e-12  # what two columns show, three do


def test_tables_with_many_empty_cells_are_counted_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = coded(people(200, 0)), coded(people(150, 1))
    before = [fidelity.total_variation(one, other, chosen) for chosen in ((0, 2), (0, 2, 3, 5))]
    monkeypatch.setattr(fidelity, "_CELLS", 10)
    after = [fidelity.total_variation(one, other, chosen) for chosen in ((0, 2), (0, 2, 3, 5))]
    assert after == pytest.approx(before)


def test_range_queries_find_what_a_loop_over_rows_finds() -> None:
    table = coded(people(60, 0))
    found = fidelity.answers(table)
    for part, query in zip(found[:40], list(fidelity._queries(table))[:40], strict=True):
        assert len({at for at, _ in query}) == 3
        hits = [all(asked[cells[at]] for at, asked in query) for cells in table.cells]
        assert part == pytest.approx(np.mean(hits))
        for at, asked in query:
            assert not asked[-1]  # what has no value is in no range
            places = np.flatnonzero(asked)
            if table.numeric[at]:
                assert (np.diff(places) == 1).all()


def test_correlations_by_hand() -> None:
    a = [0, 1, 2, 0, 1, 2]
    numbers = a_table(a, a[::-1], [0, 0, 0, 1, 1, 1], numeric=(True, True, True))
    found = fidelity.associations(numbers)
    assert found == pytest.approx(np.corrcoef(numbers.values.T))
    assert found[0, 1] == pytest.approx(-1.0)
    same = fidelity.associations(a_table(a * 50, a * 50, [0, 0, 0, 1, 1, 1] * 50))
    assert same[0, 1] == pytest.approx(1.0)  # one says the other
    assert same[0, 2] == 0.0  # each has every value of the other as often
    # Chi-squared of ((30, 10), (10, 30)) is 20, of 80 rows; less 1/79 of bias.
    skewed = a_table([0] * 40 + [1] * 40, [0] * 30 + [1] * 10 + [0] * 10 + [1] * 30)
    assert fidelity.associations(skewed)[0, 1] == pytest.approx(
        np.sqrt((20 / 80 - 1 / 79) / (2 - 1 / 79 - 1))
    )


def test_a_constant_or_missing_column_goes_with_nothing() -> None:
    table = a_table([1, 1, 1, 1], [0, 1, 2, 1], [1, 1, 1, 1], numeric=(True, True, False))
    gone = CodedTable(table.names, table.sizes, table.numeric, table.cells, table.values.copy())
    gone.values[:, 1] = np.nan
    for each in (table, gone):
        assert np.array_equal(fidelity.associations(each), np.eye(3))


# -- law and wrong law -----------------------------------------------------------------------------


def test_rows_of_one_law_are_at_the_floor_and_rows_of_another_above_it() -> None:
    train, test = people(1500, 0), people(1500, 1)
    same, other = people(1500, 2), people(1500, 3, together=False)
    right = measured(same, test, train).declared_public()
    wrong = measured(other, test, train).declared_public()
    assert right.floor == wrong.floor
    assert right.floor is not None
    for name, value, floor in right.lines():
        assert value == pytest.approx(floor, rel=0.5, abs=0.02), name
    assert wrong.release.fidelity.one_way < 2 * right.floor.fidelity.one_way
    for name in ("two_way", "three_way", "association", "queries"):
        least = 1.4 * getattr(right.floor.fidelity, name)
        assert getattr(wrong.release.fidelity, name) > least, name
    assert right.release.propensity.auc == pytest.approx(0.5, abs=0.05)
    assert wrong.release.propensity.auc > 0.6
    assert wrong.release.propensity.mse > 1.5 * right.release.propensity.mse


def test_rows_that_a_value_gives_away_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    one = a_table(*rng.integers(0, 2, (2, 300)).tolist())
    other = a_table(rng.integers(0, 2, 300).tolist(), [2] * 300)
    found = propensity(one, other, rows=200)
    assert (found.auc, found.rows) == (pytest.approx(1.0), 200)
    assert found.mse == pytest.approx(0.25, abs=0.01)


def test_the_floor_is_test_rows_beside_training_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test, release = people(80, 0), people(60, 1), people(90, 2)
    found = measured(release, test, train).declared_public()
    assert (found.against, found.release.propensity.rows) == ("train", 60)
    assert found.release.fidelity == fidelity.fidelity(coded(release), coded(train))
    assert found.floor is not None
    assert found.floor.fidelity == fidelity.fidelity(coded(test), coded(train))
    monkeypatch.setattr(measures, "MOST_ROWS", 30)
    fewer = measured(release, test, train).declared_public()
    assert fewer.release.propensity.rows == 30
    alone = measured(release, test).declared_public()
    assert (alone.against, alone.floor) == ("test", None)
    assert alone.release.fidelity == fidelity.fidelity(coded(release), coded(test))
    with pytest.raises(InputError, match="train has fewer than 6 rows"):
        measured(release, test, people(5, 3))


def test_measures_show_to_their_owner_alone() -> None:
    found = measured(people(20, 0), people(20, 1))
    assert repr(found) == "Private(...)"
    table = coded(people(20, 0))
    assert "CodedTable object" in repr(table)  # nor do the cells that they are made of


# -- models ----------------------------------------------------------------------------------------


def test_the_auc_by_hand() -> None:
    truth = np.array([0, 0, 1, 1])
    likely = np.array([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8]])
    said = Predicted(likely.argmax(axis=1)[None], likely[None])
    assert Score.of(truth, said, 2).auc == pytest.approx(3 / 4)  # three of four pairs in order
    three = np.array([0, 1, 2])
    said = Predicted(np.array([[0, 1, 1]]), np.array([np.eye(3)[:, :2]]))
    assert Score.of(three, said, 3).auc == pytest.approx((1 + 1 + 0.5) / 3)  # 2 was never seen
    twice = Predicted(np.array([[0, 1, 1, 1]]), np.array([np.eye(3)[[0, 1, 2, 2], :2]]))
    found = Score.of(np.array([0, 1, 2, 2]), twice, 3).auc
    assert found == pytest.approx((1 + 1 + 2 * 0.5) / 4)  # a class weighs what it has
    assert Score.of(truth, Predicted(np.array([[0, 0, 1, 1]])), 2).auc is None
    assert Score.of(np.zeros(4, np.int64), said=Predicted(np.zeros((1, 4), np.int64)), classes=2)


@pytest.mark.parametrize("name", ["logreg", "boosting", "forest"])
def test_the_class_that_is_likeliest_is_the_one_that_is_said(name: str) -> None:
    rng = np.random.default_rng(0)
    train = rng.normal(size=(120, 3))
    labels = (train[:, 0] > 0).astype(np.int64) * 2  # no row of class 1
    said = Classifier(name).predictions(train, labels, rng.normal(size=(50, 3)))
    assert said.likely is not None
    assert said.likely.shape == (1, 50, 3)
    assert said.likely.sum(axis=2) == pytest.approx(np.ones((1, 50)))
    assert not said.likely[:, :, 1].any()
    assert (said.likely.argmax(axis=2) == said.classes).all()


def test_boosting_learns_many_rows_with_a_class_of_one_row() -> None:
    rng = np.random.default_rng(0)
    labels = np.append((np.arange(10_500) % 2), 2)
    train = rng.normal(size=(len(labels), 1)) + labels[:, None]
    said = Classifier("boosting").predictions(train, labels, train[:50])
    assert (said.classes[0] == labels[:50]).mean() > 0.6


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A release, and files of rows that it was made from and of others."""
    folder = tmp_path_factory.mktemp("people")
    files = []
    for name, rows in (("train", people(200, 0)), ("test", people(120, 1))):
        cells = SCHEMA.cells(np.asarray(rows.features, dtype=np.float64))
        cells["income"] = np.array(SCHEMA.classes)[rows.labels]
        names = list(cells)
        lines = [",".join("" if cell is None else str(cell) for cell in line)
                 for line in zip(*cells.values(), strict=True)]  # fmt: skip
        files.append(folder / f"{name}.csv")
        files[-1].write_text("\n".join([",".join(names), *lines]) + "\n")
    made = release_of(people(200, 0), "class-gaussian", epsilon=4.0, source=SeededSource(3))
    return made.save(folder / "release"), files[0], files[1]


def test_the_command_says_how_like_a_release_is(
    capemix: Capemix, released: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    release, train, test = released
    page = tmp_path / "like.html"
    before = sorted(release.iterdir())
    words = ["evaluate", release, "--test", test, "--train", train]
    ran = capemix(*words, "--report", page, "--json")
    assert ran.code == 0, ran.err
    found = ran.json
    assert set(found["models"]) == {"logreg", "boosting", "forest"}
    assert found["models"]["logreg"]["accuracy"] == found["synthetic"]["accuracy"]
    for scores in found["models"].values():
        assert all(0 <= scores[name] <= 1 for name in ("accuracy", "auc", "real_auc"))
    assert found["likeness"]["against"] == "train"
    for part in ("release", "floor"):
        like = found["likeness"][part]
        assert like["names"] == [*SCHEMA.names, "income"]
        assert like["one_way"] == pytest.approx(np.mean(like["columns"]))
        assert like["two_way"] == pytest.approx(
            np.array(like["pairs"])[np.triu_indices(6, 1)].mean()
        )
    assert [each["name"] for each in found["membership"]] == ["nearest neighbour"]
    assert "keep it to yourself" in found["private"]
    said = page.read_text()
    assert "<title>Private: " in said
    assert found["likeness"]["as_good_as"]["release"] > 0
    like, attack = found["likeness"]["release"], found["membership"][0]
    distance = -attack["scores"]["others"][-1]
    assert f">{distance:.4g}<" in said
    figures = (like["two_way"], found["models"]["forest"]["real_accuracy"], attack["auc"])
    for part in (*SCHEMA.names, "keep it to yourself", *(f">{each:.3f}<" for each in figures)):
        assert part in said
    assert "<script" not in said
    assert sorted(release.iterdir()) == before
    shown = capemix(*words).out
    for said in ("2-way total variation", "pMSE", "boosting: AUC", "membership attack"):
        assert said in shown
    assert shown.count("keep it to yourself") == 1


def test_a_page_of_public_rows_is_not_marked_private(
    capemix: Capemix, released: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    release, _, test = released
    page = tmp_path / "page.html"
    words = ("evaluate", release, "--test", test, "--rows-are-public", "--report", page)
    assert capemix(*words).code == 0
    said = page.read_text()
    assert "Private" not in said
    assert "Anyone may see the real rows" in said


def test_without_training_rows_there_is_no_floor(
    capemix: Capemix, released: tuple[Path, Path, Path]
) -> None:
    release, _, test = released
    found = capemix("evaluate", release, "--test", test, "--model", "boosting", "--json").json
    assert (found["model"], found["real"]) == ("boosting", None)
    assert found["likeness"]["against"] == "test"
    assert found["likeness"]["floor"] is None
    assert found["membership"] == []


def test_a_table_without_a_label_is_like_itself_too(capemix: Capemix, tmp_path: Path) -> None:
    table = Table((Number("size", 0, 10), Category("lift", (False, True))), target="size")
    rng = np.random.default_rng(0)
    lift = rng.random(200) < 0.5
    frame = {"size": 2 + 5 * lift + rng.random(200), "lift": lift}
    rows = table.rows(cells_of_columns(frame, table.names, None))
    made = release_of(rows, "class-gaussian", epsilon=8.0, source=SeededSource(3))
    release, test = made.save(tmp_path / "release"), tmp_path / "test.parquet"
    write_table(rows, test)
    words = ["evaluate", release, "--test", test]
    found = capemix(*words, "--train", test, "--json").json
    assert found["synthetic"]["ridge"]["r2"] > 0.5
    assert found["likeness"]["release"]["names"] == ["size", "lift"]
    assert found["likeness"]["floor"]["one_way"] == 0.0  # the same rows
    assert found["membership"][0]["auc"] == pytest.approx(0.5)
    shown = capemix(*words).out
    assert "2-way total variation" in shown
    assert shown.count("keep it to yourself") == 1
    category = capemix(*words, "--target", "lift", "--json").json
    assert category["models"]["boosting"]["accuracy"] > 0.9
    assert category["likeness"]["against"] == "test"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("like.svg", "--report must end in .html"),
        ("there.html", "--report is in use"),
        ("release/like.html", "--report lies in a release"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_first(
    capemix: Capemix, released: tuple[Path, Path, Path], name: str, says: str
) -> None:
    release, _, test = released
    (release.parent / "there.html").touch()
    ran = capemix("evaluate", release, "--test", test, "--report", release.parent / name)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_a_page_of_rows_without_a_schema_says_what_models_learn(
    capemix: Capemix, tmp_path: Path
) -> None:
    numbers = LabeledRows(
        np.arange(40.0).reshape(20, 2), np.arange(20) % 2, ("no", "yes"), ("a", "b")
    )
    made = release_of(numbers, "class-gaussian", epsilon=4.0, source=SeededSource(3))
    made.save(tmp_path / "release")
    lines = [f"{2 * at},{2 * at + 1},{'yes' if at % 2 else 'no'}" for at in range(20)]
    (tmp_path / "test.csv").write_text("\n".join(["a,b,label", *lines]))
    page = tmp_path / "page.html"
    words = ("evaluate", tmp_path / "release", "--test", tmp_path / "test.csv")
    ran = capemix(*words, "--report", page, "--json")
    assert ran.code == 0, ran.err
    said = page.read_text()
    assert f">{ran.json['synthetic']['accuracy']:.3f}<" in said
    assert "Column by column" not in said


# -- as good as a subsample ------------------------------------------------------------------------


def test_fresh_rows_are_as_good_as_a_subsample_of_as_many() -> None:
    real = coded(people(4000, 0))
    found = as_good_as(coded(people(400, 1)), real)
    assert found is not None
    assert found.bound is None
    assert 0.07 < found.part < 0.14
    assert list(found.errors) == sorted(found.errors, reverse=True)
    assert str(found).endswith("%")


def test_what_is_better_or_worse_than_any_subsample_is_said_to_be() -> None:
    real = coded(people(4000, 0))
    best = as_good_as(real, real)
    assert best is not None
    assert str(best) == "at least 50%"
    one = as_good_as(real.take(np.zeros(300, dtype=int)), real)
    assert one is not None
    assert str(one) == "less than 0.1%"
    assert as_good_as(real, real.take(np.arange(5))) is None
