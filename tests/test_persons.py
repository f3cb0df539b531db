"""People with several rows: whoever joins, leaves or is replaced, with however many rows of
whatever kind, moves each sum by no more than is paid for, and changes nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from agents import AgentsEngine, allowing
from capemix import documents
from capemix.agent import lacking, rows_for
from capemix.api import Synthesizer, synthesize
from capemix.audit.configurations import pairs_setting, small_plan
from capemix.audit.drawn import Setting
from capemix.audit.measure import audit
from capemix.data import LabeledRows, Table, UnlistedRows, open_data, partition, with_person
from capemix.data import persons as persons_module
from capemix.data.arrays import cells_of_columns
from capemix.data.persons import MOST_ROWS, counted, kept
from capemix.engines.flower.local import _write_rows
from capemix.engines.in_process import InProcessEngine
from capemix.engines.local import LocalEngine, list_threshold
from capemix.errors import InputError
from capemix.facts import CLASS_LIST, Facts
from capemix.guarantee import RECORD
from capemix.methods import Method
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.measured import list_failure
from capemix.methods.mixing import MIXTURES, Mixing, Pool
from capemix.methods.tables import Tables
from capemix.plan import Plan, make_plan
from capemix.queries import Relation, Selection
from capemix.randomness.source import SeededSource
from capemix.run import run
from capemix.sums import share as share_module
from capemix.sums.query import SumQuery
from capemix.sums.share import prepare_records
from capemix.sums.statistic import PreparedRows, Statistic, SummedRows, replacement_factor_of
from capemix.sums.steps import PublicMap
from conftest import Capemix
from one_record import (
    COLUMNS,
    SCHEMA,
    VALUES,
    Seen,
    compare,
    folder_bytes,
    records,
    signing,
    watched,
)
from test_each_record import HOSTILE, METHODS, WIDTH
from test_replacement import STATISTICS
from test_replacement import added as added_by
from test_replacement import records as extreme_records
from test_same_law import Gathered

Codes = npt.NDArray[np.int64]

MOST = 3
RANGE = PublicMap.of_range(-4, 4)

# -- which rows count ------------------------------------------------------------------------------

OWNERS = st.lists(st.integers(0, 4), max_size=40)


@given(OWNERS, st.integers(1, 6), st.data())
def test_which_rows_count_is_decided_by_each_person_alone(
    owners: list[int], most: int, data: st.DataObject
) -> None:
    """Wherever the others' rows stand, how many there are and whether they are there."""
    persons = np.array(owners, dtype=np.int64)
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=40, max_size=40)))
    labels = labels[: len(persons)]
    for classes in (None, labels):
        found = kept(persons, most, classes)
        assert (np.diff(found) > 0).all()
        for person in set(owners):
            own = np.flatnonzero(persons == person)
            alone = kept(
                np.zeros(len(own), dtype=np.int64), most, None if classes is None else classes[own]
            )
            assert own[alone].tolist() == [at for at in found.tolist() if persons[at] == person]
            assert len(alone) <= most
            if classes is None:
                assert len(alone) == min(most, len(own))
            else:
                assert set(classes[own[alone]]) == {classes[own[0]]}


def test_rows_that_count_lie_evenly_among_a_persons() -> None:
    assert kept(np.zeros(10, dtype=np.int64), 3).tolist() == [0, 3, 6]
    assert kept(np.zeros(4, dtype=np.int64), 3).tolist() == [0, 1, 2]
    assert kept(np.array([-1, 0, -1, 0]), 3).tolist() == [1, 3]


# -- one sum: neighbours ---------------------------------------------------------------------------


def of_people(query: SumQuery, most: int = MOST) -> SumQuery:
    return replace(query, line=query.line.of_persons(most))


def some_people(count: int = 45) -> tuple[npt.NDArray[Any], Codes, Codes]:
    rng = np.random.default_rng(0)
    labels = (np.arange(count) // 4 % 2).astype(np.int64)
    return rng.uniform(-20, 280, (count, WIDTH)), labels, np.arange(count) // 4


def prepared(
    query: SumQuery, rows: Any, labels: Codes, persons: Codes
) -> SummedRows | PreparedRows:
    chosen = kept(persons, query.line.per_person, labels if query.line.groups > 1 else None)
    return prepare_records(query, rows[chosen], labels[chosen], persons[chosen])


@pytest.mark.parametrize("method", METHODS)
def test_a_person_moves_a_sum_by_no_more_than_its_bound(method: str) -> None:
    """With one row, as many as count and more, of any values; and where records are drawn a person
    is one of them."""
    query = of_people(METHODS[method]())
    rows, labels, persons = some_people()
    without = prepared(query, rows, labels, persons)
    odd = list(HOSTILE.values())
    far = np.full(WIDTH, 250.0)
    for own in ([far], [odd[0]], [far] * MOST, [far] * (MOST + 2), [far, *odd]):
        places = np.linspace(0, len(rows), len(own)).astype(np.int64)
        made = prepared(
            query,
            np.insert(rows, places, own, axis=0),
            np.insert(labels, places, 1),
            np.insert(persons, places, 77),
        )
        bound = without.lattice_norm_bound or without.l2_norm_bound * (1 + 1e-12)
        assert made.lattice_norm_bound == without.lattice_norm_bound == query.lattice_norm_bound
        if isinstance(made, SummedRows):
            assert isinstance(without, SummedRows)
            assert np.linalg.norm((made.sums - without.sums).astype(np.float64)) <= bound
            continue
        assert isinstance(without, PreparedRows)
        added = 0
        for ours, others in zip(made.by_group, without.by_group, strict=True):
            added += len(ours) - len(others)
            assert ours[: len(others)].tobytes() == others.tobytes()  # 77 comes last
            assert ours.dtype == others.dtype
            assert (np.linalg.norm(ours.astype(np.float64), axis=1) <= bound).all()
        assert added == 1


def test_some_person_moves_a_sum_by_the_whole_bound() -> None:
    query = of_people(METHODS["class counts"]())
    rows, labels, persons = some_people()
    without, made = (
        prepared(query, rows[keep], labels[keep], persons[keep])
        for keep in (persons != 5, np.ones(len(rows), dtype=bool))
    )
    assert isinstance(made, SummedRows)
    assert isinstance(without, SummedRows)
    assert np.linalg.norm(made.sums - without.sums) == query.lattice_norm_bound


@pytest.mark.parametrize("name", STATISTICS)
def test_a_person_who_is_replaced_moves_a_sum_no_further_than_the_factor_of_a_record(
    name: str,
) -> None:
    asked: Statistic = STATISTICS[name]
    factor, rng = replacement_factor_of(asked), np.random.default_rng(5)
    for lattice in (7, 1001):
        each = [added_by(asked, record, lattice).ravel() for record in extreme_records()]
        alike = np.array([MOST * part for part in each])
        mixed = np.array([np.sum([each[at] for at in rng.integers(0, len(each), MOST)], axis=0)
                          for _ in range(60)])  # fmt: skip
        people = np.vstack([alike, mixed, np.array(each)]).astype(np.float64)
        apart = np.sqrt(((people[:, None] - people[None]) ** 2).sum(axis=-1))
        assert apart.max() <= MOST * factor * lattice * (1 + 1e-12)


def test_the_order_of_the_rows_of_others_changes_nothing() -> None:
    rows, labels, persons = some_people()
    order = np.argsort(persons % 5 * 100 + persons, kind="stable")  # each person's stay in order
    for method in ("pairs", "mixing", "mixing, one pool", "spreads"):
        query = of_people(METHODS[method]())
        one = prepared(query, rows, labels, persons)
        other = prepared(query, rows[order], labels[order], persons[order])
        if isinstance(one, SummedRows) and isinstance(other, SummedRows):
            assert one.sums.tobytes() == other.sums.tobytes()
        elif isinstance(one, PreparedRows) and isinstance(other, PreparedRows):
            for ours, theirs in zip(one.by_group, other.by_group, strict=True):
                assert ours.tobytes() == theirs.tobytes()


def test_a_row_that_cannot_be_made_ready_costs_itself_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = of_people(METHODS["mixing"]())
    rows, labels, persons = some_people()
    poisoned, at = rows.copy(), 9
    poisoned[at] = 66.6
    rest = np.arange(len(rows)) != at
    expected: Any = prepare_records(query, rows[rest], labels[rest], persons[rest])
    real = share_module.prepare_site

    def stumbling(query: SumQuery, features: Any, labels: Any) -> Any:
        if (features == 66.6).all(axis=1).any():
            raise RuntimeError("66.6")
        return real(query, features, labels)

    monkeypatch.setattr(share_module, "prepare_site", stumbling)
    made: Any = prepare_records(query, poisoned, labels, persons)
    for ours, theirs in zip(made.by_group, expected.by_group, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_sums_of_people_are_not_made_of_rows_that_are_nobodys() -> None:
    rows, labels, _ = some_people()
    with pytest.raises(ValueError, match="nothing says whose"):
        prepare_records(of_people(METHODS["cells"]()), rows, labels)


# -- what it costs ---------------------------------------------------------------------------------


def a_plan(
    method: Method, rows_per_person: int | None = MOST, *, relation: str | None = None, **known: Any
) -> Plan:
    facts = {"classes": (0, 1), "class_sizes": (500, 400), "normalise": RANGE, **known}
    made = Facts(("a", "b"), "y", rows_per_person=rows_per_person, **facts)
    return make_plan(made, method, relation=relation, epsilon=2.0)


ADDED_UP = {"class-gaussian": ClassGaussian(), "tables": Tables()}


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("name", ADDED_UP)
def test_sums_of_all_cost_a_person_what_dp_accounting_finds(name: str, relation: Relation) -> None:
    """By the bounds that the method says of records, times how many rows a person has."""
    plan = a_plan(ADDED_UP[name], relation=relation, normalise=None, class_sizes=None)
    of_records = replace(plan, facts=replace(plan.facts, rows_per_person=None))
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for query, alone in zip(plan.queries(), of_records.queries(), strict=True):
        factor = alone.line.replacement_factor if relation is Relation.REPLACE_ONE else 1.0
        moved = MOST * factor * alone.line.l2_norm_bound / alone.line.divisor
        accountant.compose(dp_accounting.GaussianDpEvent(query.deviation / moved))
    found = plan.guarantee().epsilon
    assert found is not None
    assert accountant.get_epsilon(plan.delta) == pytest.approx(found, rel=2e-3)


def test_drawn_sums_cost_a_person_what_dp_accounting_finds() -> None:
    """One class: each of a hundred draws has all of a person's rows, or none."""
    plan = a_plan(Mixing(samples=100, mixture=16, clip=1.0), classes=(0,), class_sizes=(160,))
    query = plan.query(MIXTURES)
    one = dp_accounting.GaussianDpEvent(query.deviation * 16 / (MOST * 1.0))
    drawn = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(0.1, one), 100)
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    found = plan.guarantee().epsilon
    assert found is not None
    assert accountant.compose(drawn).get_epsilon(plan.delta) == pytest.approx(found, rel=1e-2)


PROGRAMS: dict[str, tuple[Method, dict[str, Any]]] = {
    "tables": (Tables(), {}),
    "class-gaussian, all measured": (ClassGaussian(), {"normalise": None, "class_sizes": None}),
    "mixing": (Mixing(samples=50, mixture=8), {}),
    "mixing, all measured": (
        Mixing(samples=50, mixture=8),
        {"normalise": None, "class_sizes": None},
    ),
    "mixing, one pool": (Mixing(samples=50, mixture=8, pool=Pool.ALL, label_noise=True), {}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_sum_has_as_many_times_the_noise_as_a_person_has_rows(name: str) -> None:
    method, known = PROGRAMS[name]
    people, alone = a_plan(method, MOST, **known), a_plan(method, None, **known)
    assert people.guarantee().epsilon == pytest.approx(alone.guarantee().epsilon, rel=1e-6)
    assert people.names == alone.names
    for ours, theirs in zip(people.queries(), alone.queries(), strict=True):
        assert ours.deviation == pytest.approx(MOST * theirs.deviation, rel=1e-6)
        assert ours.line.l2_norm_bound == MOST * theirs.line.l2_norm_bound
        lattice = ours.lattice_norm_bound, ours.record_lattice
        assert lattice[0] == MOST * (lattice[1] or 0)
        assert not ours.drawn or (lattice[0] or 0) < 2**15
    assert [line.sensitivity for line in people.budget()] == [
        pytest.approx(MOST * line.sensitivity) for line in alone.budget()
    ]


def test_one_row_for_each_person_costs_what_a_record_does() -> None:
    one, record = a_plan(Tables(), 1), a_plan(Tables(), None)
    assert one.queries() == record.queries()
    assert one.guarantee().unit == "one person with at most 1 row"
    assert record.guarantee().unit == RECORD


def test_what_is_chosen_follows_the_noise_on_rows() -> None:
    """As for a plan of records with as much noise."""
    for method in (Tables(), ClassGaussian(), ImageClusters()):
        shape = (4, 4) if isinstance(method, ImageClusters) else None
        names = tuple(f"x{at}" for at in range(16))
        facts = Facts(names, "y", (0, 1), (2000, 2000), RANGE, image_shape=shape)
        plan = make_plan(replace(facts, rows_per_person=10), method, epsilon=3.0)
        alone = make_plan(facts, method)
        noisy = replace(
            alone,
            multiplier=10 * (plan.multiplier or 0),
            opening_multiplier=10 * (plan.opening_multiplier or 0) or None,
        )
        assert plan.method.foreseen(plan) == noisy.method.foreseen(noisy) is not None
        assert plan.method.foreseen(plan) != plan.method.foreseen(
            make_plan(facts, method, epsilon=3.0)
        )


def test_a_word_that_one_person_has_shows_with_no_more_than_its_part_of_delta() -> None:
    """However the person's rows are spread over words that nobody else has."""
    facts = Facts(("a", "b"), "y", None, normalise=RANGE, rows_per_person=MOST)
    plan = make_plan(facts, ClassGaussian()).calibrate(10.0)
    query, failure = plan.query(CLASS_LIST), list_failure(plan.opening, plan.delta)
    unit, sigma = query.record_lattice or 0, query.site_deviation
    threshold = list_threshold(MOST * unit, sigma, failure / MOST)
    for rows in ((1,), (3,), (1, 1, 1), (2, 1)):
        chances = [float(ndtr(-(threshold - count * unit - 0.5) / sigma)) for count in rows]
        assert sum(chances) <= failure / 2
    assert float(ndtr(-(threshold - unit - MOST * unit - 0.5) / sigma)) > failure / 2 / MOST


def test_own_words_beside_a_shift_cost_no_more_than_the_larger_chance() -> None:
    """Lists with a word that only one table has, which shows with some chance, beside counts that
    are moved: delta(epsilon) by brute force."""
    at = np.arange(-60, 61)
    table, moved = (np.exp(-((at - shift) ** 2) / 50) for shift in (0, 4))
    table, moved = table / table.sum(), moved / moved.sum()
    for p, q in ((0.1, 0.0), (0.0, 0.1), (0.1, 0.02), (0.02, 0.1), (0.05, 0.05)):
        one = np.concatenate([(1 - p) * table, p * table, 0 * table])
        other = np.concatenate([(1 - q) * moved, 0 * moved, q * moved])
        for epsilon in (0.0, 0.1, 0.5, 1.0, 3.0):
            within = np.maximum(moved - np.exp(epsilon) * table, 0).sum()
            delta = np.maximum(other - np.exp(epsilon) * one, 0).sum()
            assert delta <= within + max(p, q) + 1e-12


def test_published_claims_and_draws_of_a_fixed_size_are_of_records() -> None:
    for method in (
        Mixing(samples=50, mixture=8, accountant="paper", label_noise=True),
        Mixing(samples=50, mixture=8, selection=Selection.FIXED, label_noise=True),
    ):
        with pytest.raises(InputError, match="of single records"):
            a_plan(method)
    for wrong in (0, -1, MOST_ROWS + 1, True, 2.0):
        with pytest.raises(InputError, match="from 1 to"):
            a_plan(Tables(), wrong)  # type: ignore[arg-type]


def test_the_guarantee_the_plan_and_its_digest_say_whose_it_is() -> None:
    people = a_plan(Tables())
    said = people.guarantee()
    assert said.unit == "one person with at most 3 rows"
    assert not any("one record per person" in each for each in said.assumptions)
    assert any("column of persons" in each for each in said.assumptions)
    sites = make_plan(people.facts, Tables(), scheme="cape", sites=4, epsilon=2.0).guarantee()
    assert any("all rows of a person are at one site" in each for each in sites.assumptions)
    assert documents.as_json(people)["facts"]["rows_per_person"] == MOST
    assert people.steps[0].name == "people"
    again = documents.from_json(Plan, documents.as_json(people), name="plan")
    assert again == people != a_plan(Tables(), 4)


# -- whole releases: neighbours --------------------------------------------------------------------

LABEL, WHO = "y", "visitor of the house"
NUMBERS, TABLE = ("a", "b", LABEL, WHO), (*COLUMNS, WHO)
ID = 70_000_000


def visitors(count: int = 40) -> list[dict[str, Any]]:
    """Of each person one to six rows, in no order."""
    of = np.random.default_rng(1).permutation(np.repeat(np.arange(14), np.arange(14) % 6 + 1))
    who = [ID + int(person) for person in of[:count]]
    return [{**row, WHO: person} for row, person in zip(records(count), who, strict=True)]


def newcomer(name: str) -> list[dict[str, Any]]:
    """Somebody's rows: one, as many as count, more, and odd ones."""
    usual = {"a": 0.5, "b": -0.25, "c": "red", "place": "north", LABEL: 1, WHO: ID + 99}
    if name == "odd rows":
        odd = ("text", "missing", "NaN", "1e308", "beyond 2^63", "a date")
        return [{**usual, "a": VALUES[each]} for each in odd] + [
            {**usual, LABEL: VALUES[each]} for each in odd
        ]
    if name == "nobody":
        return [{**usual, WHO: VALUES[each]} for each in ("missing", "nothing", "NaN", "infinity")]
    return [{**usual, LABEL: at % 2} for at in range({"one row": 1, "seven rows": 7}[name])]


def mixed(rows: list[dict[str, Any]], more: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newcomer's rows here and there, their own order kept."""
    found, places = list(rows), np.linspace(0, len(rows), len(more)).astype(int)
    for place, row in sorted(zip(places.tolist(), more, strict=True), key=lambda p: -p[0]):
        found.insert(place, row)
    return found


def as_text(value: Any) -> str:
    return "" if value is None else str(value)


def write(rows: list[dict[str, Any]], columns: Sequence[str], path: Path) -> None:
    cells = {name: [row[name] for row in rows] for name in columns}
    if path.suffix == ".csv":
        text = {name: list(map(as_text, column)) for name, column in cells.items()}
        pd.DataFrame(text).to_csv(path, index=False)
        return
    if path.suffix == ".npz":
        X = np.array([[float(row["a"]), float(row["b"])] for row in rows])
        np.savez(path, X=X, y=cells[LABEL], **{WHO: cells[WHO]})
        return
    made = {}
    for name, column in cells.items():
        try:
            made[name] = pa.array(column)
        except (pa.ArrowException, OverflowError):
            made[name] = pa.array(list(map(as_text, column)))
    pq.write_table(pa.table(made), path)


MIXED = ("--method", "mixing", "--mixture", "4", "--samples", "20")
LISTED = ("--classes", "0,1", "--label", LABEL)
PLACES = ("--scheme", "cape", "--partition", "place", "--site-names", "north,south,east")
WAYS: dict[str, tuple[str, Sequence[str], tuple[str, ...]]] = {
    "mixing": (".csv", NUMBERS, (*MIXED, *LISTED)),
    "mixing, not listed": (".parquet", NUMBERS, (*MIXED, "--label", LABEL)),
    "mixing, three sites": (".csv", ("place", *NUMBERS), (*MIXED, *LISTED, *PLACES)),
    "tables": (".parquet", TABLE, ("--schema", "schema.json")),
    "class-gaussian": (".csv", NUMBERS, ("--method", "class-gaussian", "--label", LABEL)),
    "arrays": (".npz", NUMBERS, (*MIXED, *LISTED)),
}


def released(
    capemix: Capemix, folder: Path, way: str, more: list[dict[str, Any]], first: Seen | None
) -> Seen:
    suffix, columns, options = WAYS[way]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write(mixed(visitors(), more), columns, folder / f"rows{suffix}")
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    placed = [folder / each if each == "schema.json" else each for each in options]
    with watched(first) as seen:
        ran = capemix(
            "synth", folder / f"rows{suffix}", *placed, "--person", WHO, "--rows-per-person", "2",
            "--epsilon", "32", "--no-ledger", "--test-seed", "7", "--out", folder / "out",
            "--key", signing(folder),
        )  # fmt: skip
        seen.said += [ran.code, ran.out, ran.err]
        seen.said.append(folder_bytes(folder / "out") if ran.code == 0 else None)
    assert ran.code == 0, ran.err
    return seen


def in_one(found: Any) -> bytes:
    """All that a run leaves, in bytes."""
    files = b"".join(name.encode() + data for name, data in found[-1].items())
    return files + "".join(map(str, found[:-1])).encode()


@pytest.mark.parametrize("way", WAYS)
def test_a_person_changes_only_their_own_part_of_a_release(
    capemix: Capemix, tmp_path: Path, way: str
) -> None:
    """And the column of persons is nowhere in it, nor in what is said: no name, no cell."""
    without = released(capemix, tmp_path / "run", way, [], None)
    everything = in_one(without.said)
    assert b"one person with at most 2 rows" in everything
    assert WHO.encode() not in everything
    assert str(ID)[:5].encode() not in everything
    names = ("one row", "seven rows") if way == "arrays" else ("seven rows", "odd rows", "nobody")
    for name in names:
        seen = released(capemix, tmp_path / "run", way, newcomer(name), without)
        compare(without, seen, most=2)
        if name == "nobody":
            assert without.counts == seen.counts
            for (_, before), (_, after) in zip(without.prepared, seen.prepared, strict=True):
                assert repr(before) == repr(after)
                if isinstance(before, SummedRows) and isinstance(after, SummedRows):
                    assert before.sums.tobytes() == after.sums.tobytes()


# -- from Python -----------------------------------------------------------------------------------


def a_frame(count: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    who = np.repeat(np.arange(count), rng.integers(1, 6, count))
    a = rng.normal(size=len(who)) + 0.5 * (who % 2)
    found = pd.DataFrame({"a": a, WHO: who, "b": rng.normal(size=len(who)), LABEL: who % 2})
    return found.sample(frac=1.0, random_state=0)


def test_a_synthesizer_takes_a_frame_with_a_column_of_persons() -> None:
    frame = a_frame()
    fitted = Synthesizer(2.0, person=WHO, rows_per_person=2, test_seed=1, classes=[0, 1])
    X, y = frame.drop(columns=LABEL), frame[LABEL]
    made = fitted.fit(X, y).release_
    assert made.guarantee.unit == "one person with at most 2 rows"
    assert made.features.shape[1] == 2
    again = Synthesizer(2.0, person=WHO, rows_per_person=2, test_seed=1, classes=[0, 1])
    of_polars = again.fit(pl.from_pandas(X.reset_index(drop=True)), y).release_
    assert of_polars.features.tobytes() == made.features.tobytes()
    schema = documents.from_json(Table, {**SCHEMA, "columns": SCHEMA["columns"][:2]}, name="schema")
    coded = Synthesizer(2.0, person=WHO, rows_per_person=2, test_seed=1, schema=schema)
    sampled, _ = coded.fit(frame).sample(5)
    assert list(sampled) == ["a", "b"]


def test_what_does_not_go_together_is_refused() -> None:
    frame = a_frame(30)
    X, y = frame.drop(columns=LABEL), frame[LABEL]
    for asked, said in (
        ({"person": WHO}, "must be declared where a column says whose a row is"),
        ({"rows_per_person": 2}, "is not named"),
        ({"person": "nobody", "rows_per_person": 2}, "must be a frame with the column"),
    ):
        with pytest.raises(InputError, match=said):
            Synthesizer(1.0, classes=[0, 1], **asked).fit(X, y)
    schema = documents.from_json(Table, SCHEMA, name="schema")
    cells = cells_of_columns({**{n: ["1"] for n in COLUMNS}}, schema.names, LABEL, person="a")
    with pytest.raises(InputError, match="would be released"):
        schema.rows(cells)
    for column in (LABEL, "nobody"):
        with pytest.raises(InputError, match="other than the label"):
            with_person(cells, column)
    rows = some_rows()
    with pytest.raises(InputError, match="must be declared where"):
        synthesize(a_plan(ClassGaussian(), None), rows)
    with pytest.raises(InputError, match="is not named"):
        synthesize(a_plan(ClassGaussian()), replace(rows, persons=None))


# -- several sites ---------------------------------------------------------------------------------


def some_rows(count: int = 400) -> LabeledRows:
    frame = a_frame(count)
    cells = cells_of_columns(frame, ("a", "b"), LABEL, person=WHO)
    return UnlistedRows.of(cells, LABEL).listed((0, 1))


def test_people_are_dealt_out_as_wholes() -> None:
    rows = some_rows()
    for how in ("iid", "stratified", "dirichlet"):
        parts = partition(rows, 5, how, seed=1)  # type: ignore[arg-type]
        people = [
            set((part.persons if part.persons is not None else np.array([])).tolist())
            for part in parts
        ]
        assert sum(map(len, people)) == len(set.union(*people)) == 400
        assert sum(map(len, parts)) == len(rows)


def test_a_release_of_people_is_the_same_bit_for_bit_however_many_sites_they_are_at() -> None:
    """With shared noise: which rows of a person count does not depend on who else is there."""
    rows, plan = some_rows(), a_plan(Tables(samples=200))
    found = []
    for sites in (1, 6, 13):
        parts = [counted(part, MOST, one_class=False) for part in split(rows, sites)]
        found.append(run(plan, Gathered(parts, SeededSource(3))))
    assert len({made.features.tobytes() for made in found}) == 1


def test_the_same_people_are_drawn_from_whichever_site_they_are_at() -> None:
    rows, plan = some_rows(), a_plan(Mixing(samples=40, mixture=8))
    assert isinstance(plan.method, Mixing)
    query = plan.query(MIXTURES, plan.method.statistic(plan))

    def people(parts: Sequence[LabeledRows]) -> list[list[bytes]]:
        chosen = [counted(part, MOST, one_class=plan.one_class) for part in parts]
        made: list[Any] = [
            prepare_records(query, each.features, each.labels, each.persons) for each in chosen
        ]
        groups = zip(*(each.by_group for each in made), strict=True)
        return [sorted(bytes(row) for part in group for row in part) for group in groups]

    assert sum(map(len, people([rows]))) == 400  # each in one class
    assert people([rows]) == people(split(rows, 4))


def split(rows: LabeledRows, sites: int) -> Sequence[LabeledRows]:
    return partition(rows, sites, "iid", seed=2)


def test_people_give_the_same_bits_by_every_engine(tmp_path: Path) -> None:
    rows = some_rows(120)
    parts, who = partition(rows, 4, "iid", seed=1), {"scheme": "cape", "sites": 4, "colluding": 1}
    sizes: dict[str, Any] = {"class_sizes": (200, 200), "normalise": RANGE}
    facts = Facts(("a", "b"), LABEL, (0, 1), rows_per_person=2, **sizes)
    for name, method in (
        ("all", ClassGaussian(samples=9)),
        ("drawn", Mixing(samples=9, mixture=8)),
    ):
        plan = make_plan(facts, method, **who, epsilon=4.0)
        agents = AgentsEngine(tmp_path / name, allowing(plan), parts, seed=5)
        engines = [LocalEngine(parts, SeededSource(5)), agents]
        if name == "drawn":
            engines.append(InProcessEngine(parts, SeededSource(5)))
        assert len({run(plan, engine).features.tobytes() for engine in engines}) == 1


def test_a_site_takes_part_only_if_plan_and_rows_are_of_people_both() -> None:
    rows, plan = some_rows(), a_plan(ClassGaussian())
    assert lacking(rows, plan.facts) is None
    said = lacking(replace(rows, persons=None), plan.facts)
    assert said is not None
    assert "do not say whose" in said
    said = lacking(rows, replace(plan.facts, rows_per_person=None))
    assert said is not None
    assert "rows are of people" in said
    used = counted(rows_for(rows, plan.facts), 2, one_class=False)
    assert used.persons is not None
    assert np.bincount(used.persons).max() == 2


def test_a_federations_files_and_commands_know_people(capemix: Capemix, tmp_path: Path) -> None:
    a_frame(60).to_csv(tmp_path / "site.csv", index=False)
    planned = capemix(
        "federate", "plan", "--features", "a,b", "--label", LABEL, "--classes", "0,1", "--epsilon",
        "2", "--sites", "4", "--rows-per-person", "2", "--out", tmp_path / "plan.json", "--json",
    )  # fmt: skip
    assert planned.json["unit"] == "one person with at most 2 rows"
    check = ("site", "check", "--data", tmp_path / "site.csv", "--plan", tmp_path / "plan.json")
    ran = capemix(*check, "--label", LABEL, "--person", WHO, "--json")
    assert (ran.json["people"], ran.json["most_rows"]) == (60, 5)
    assert ran.json["rows"] == ran.json["used"] + ran.json["beyond"]
    assert "--person is not named" in capemix(*check, "--label", LABEL).err


def test_commands_for_the_owner_leave_the_column_out(capemix: Capemix, tmp_path: Path) -> None:
    a_frame(60).to_csv(tmp_path / "rows.csv", index=False)
    ran = capemix("data", tmp_path / "rows.csv", "--label", LABEL, "--person", WHO, "--json")
    assert (ran.json["features"], ran.json["people"], ran.json["beyond"]) == (2, 60, 0)
    ran = capemix(
        "schema", "draft", tmp_path / "rows.csv", "--label", LABEL, "--person", WHO, "--json",
        "--out", tmp_path / "schema.json",
    )  # fmt: skip
    assert ran.json["left_out"] == {WHO: "it says whose a row is"}
    assert WHO not in (tmp_path / "schema.json").read_text()
    numbers = ("--classes", "2", "--records", "900", "--features", "2", "--rows-per-person", "3")
    least = capemix("calibrate", *numbers, "--epsilon", "1", "--method", "mixing", "--json").json
    assert least["unit"] == "one person with at most 3 rows"
    spent = capemix("account", *numbers, "--noise", least["noise"], "--method", "mixing", "--json")
    assert spent.json["epsilon"] == pytest.approx(1.0, rel=1e-3)


def test_people_come_back_from_the_files_of_a_trial(tmp_path: Path) -> None:
    rows, schema = some_rows(50), documents.from_json(Table, SCHEMA, name="schema")
    frame = a_frame(50).assign(c="red")
    coded = schema.rows(cells_of_columns(frame, schema.names, LABEL, person=WHO))
    _write_rows(rows, tmp_path / "numbers.parquet", WHO)
    _write_rows(coded, tmp_path / "coded.parquet", WHO)
    for own, table in ((rows, None), (coded, schema)):
        path = tmp_path / f"{'numbers' if table is None else 'coded'}.parquet"
        listed = None if table else (0, 1)
        again = open_data(path, LABEL, classes=listed, table=table, person=WHO).train
        assert again.features.tobytes() == own.features.tobytes()
        assert own.persons is not None
        assert again.persons is not None
        pairs = set(zip(own.persons.tolist(), again.persons.tolist(), strict=True))
        assert len(pairs) == len(set(own.persons.tolist())) == len(set(again.persons.tolist()))


def test_files_with_the_column_are_evaluated_and_attacked(capemix: Capemix, tmp_path: Path) -> None:
    """Names in it make no row unfit: it is no column of the release."""
    frame = a_frame(60)
    frame[WHO] = "Mr " + frame[WHO].astype(str)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    made = capemix(
        "synth", tmp_path / "rows.csv", "--label", LABEL, "--classes", "0,1", "--public-range=-4,4",
        "--person", WHO, "--rows-per-person", "2", "--epsilon", "9", "--no-ledger", "--json",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert made.json["unit"] == "one person with at most 2 rows"
    ran = capemix(
        "evaluate", tmp_path / "out", "--test", tmp_path / "rows.csv", "--label", LABEL, "--json"
    )
    assert ran.json["synthetic"]["accuracy"] > 0.4
    files = ("--members", tmp_path / "rows.csv", "--non-members", tmp_path / "rows.csv")
    assert capemix("attack", tmp_path / "out", *files, "--label", LABEL, "--json").code == 0


# -- the audit -------------------------------------------------------------------------------------


def test_an_audit_of_people_sees_noise_that_is_a_records() -> None:
    """Near what is claimed, and over it where the noise is not as many times as much."""
    plan = small_plan(4, mixture=8, size=80, draws=40, delta=1e-2, rows_per_person=4)
    honest = audit(Setting("people", plan), 400, source=SeededSource(1))
    assert 0.6 * 4 < honest.epsilon_ratio <= 4
    of_records = audit(Setting("people", plan, noise_factor=0.25), 200, source=SeededSource(1))
    assert of_records.epsilon_ratio > 4 * 1.5


def test_an_audit_of_people_sees_rows_that_are_not_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = pairs_setting("people", 1.0, 1e-2, rows_per_person=1)
    assert audit(setting, 20, source=SeededSource(2)).epsilon_ratio <= 1.0
    monkeypatch.setattr(persons_module, "kept", lambda persons, *_: np.arange(len(persons)))
    unbounded = pairs_setting("people", 1.0, 1e-2, rows_per_person=1)
    assert audit(unbounded, 20, source=SeededSource(2)).epsilon_ratio > 1.2
