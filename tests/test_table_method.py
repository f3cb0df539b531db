"""The method for tables: cells, pairs, the mixture, classes and values, and whole releases."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capemix.api import synthesize
from capemix.data import partition
from capemix.data.columns import Category, Number
from capemix.data.rows import LabeledRows
from capemix.data.schema import Table
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.methods import method_named
from capemix.methods.tables import Tables
from capemix.methods.tables.columns import Parts, cells_within, mapped, values_of
from capemix.methods.tables.grid import (
    FINENESS,
    bins_of_category,
    bins_of_number,
    edges_of,
    fineness_of,
    grid_of,
    on_simplex,
)
from capemix.methods.tables.labels import ByClass, classes_of, fitted_law
from capemix.methods.tables.mixture import PairTables, fitted_mixture, rows_of, without_noise
from capemix.methods.tables.program import choice_for, choices_of, is_possible, most_cells
from capemix.plan import make_plan
from capemix.queries import Relation
from capemix.randomness.source import SeededSource
from capemix.statistics.cells import CLASS_WEIGHT, CellCounts, Column, PairCounts
from capemix.statistics.check import added
from capemix.sums.steps import PublicMap

Real = npt.NDArray[np.float64]
RNG = np.random.default_rng

SURVEY = Table(
    columns=(
        Number("age", 18, 90, type="integer"),
        Number("hours", 0, 99, type="integer"),
        Number("gain", 0.0, 100_000.0),
        Number("score", -3.0, 3.0),
        Category("job", ("office", "field", "home", "none"), missing=True),
        Category("city", ("north", "south")),
    ),
    label=Category("pays", ("no", "yes")),
)


def survey(count: int, seed: int = 0) -> LabeledRows:
    """Columns that go together in ways that no Gaussian has: half work 40 hours, nine in ten have
    no gain, and who pays depends on age, gain and job."""
    rng = RNG(seed)
    age = rng.integers(18, 91, count)
    job = np.where(age > 65, 3, rng.choice(3, count, p=[0.6, 0.3, 0.1]))
    hours = np.where(job == 3, 0, np.where(rng.random(count) < 0.5, 40, rng.integers(5, 80, count)))
    gain = np.where(rng.random(count) < 0.1, np.exp(rng.normal(8, 1, count)), 0.0)
    score = np.clip(rng.normal(np.where(job == 1, 1.0, -0.5), 0.5), -3, 3)
    odds = 0.05 * (age - 45) + 2.0 * (gain > 0) + 1.0 * (job == 0) - 1.0
    pays = (rng.random(count) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    cells: list[Any] = [age, hours, gain, score]
    coded = [each.astype(np.float64) for each in cells]
    return SURVEY.coded([*coded, job, rng.integers(0, 2, count)], pays)


def codes_of(rows: Any, bins: int = 12) -> list[npt.NDArray[np.int64]]:
    """Each column in a few cells, the class last: how releases are judged."""
    features, out = rows.features, []
    for column, place in zip(SURVEY.columns, SURVEY.places, strict=True):
        if not column.numbers:
            out.append(features[:, place].argmax(axis=1))
        else:
            low, high = column.ends
            even = (features[:, place.start] - low) / (high - low) * bins
            out.append(np.clip(even.astype(np.int64), 0, bins - 1))
    return [*out, rows.labels]


def apart(one: Any, other: Any, ways: int) -> float:
    """The mean total variation over all sets of so many columns."""
    found, (a, b) = [], (codes_of(one), codes_of(other))
    for some in combinations(range(len(a)), ways):
        sizes = [int(max(a[at].max(), b[at].max())) + 1 for at in some]
        places = [np.ravel_multi_index([x[at] for at in some], sizes) for x in (a, b)]
        laws = [np.bincount(each, minlength=math.prod(sizes)) for each in places]
        found.append(0.5 * np.abs(laws[0] / laws[0].sum() - laws[1] / laws[1].sum()).sum())
    return float(np.mean(found))


def released(rows: LabeledRows, epsilon: float, name: str = "tables", **asked: Any) -> Any:
    facts = Facts.of(rows)
    plan = make_plan(facts, method_named(name)(**asked)).calibrate(epsilon)
    return synthesize(plan, rows, source=SeededSource(1))


# -- cells -----------------------------------------------------------------------------------------


def test_pairs_are_counted_as_one_would_by_hand() -> None:
    rng = RNG(1)
    rows = np.column_stack([rng.normal(size=500), np.eye(3)[rng.integers(0, 3, 500)]])
    labels = rng.integers(0, 2, 500)
    at = (Column(0, (-0.5, 0.5)), Column(1, bins=(0, 1, 1)))
    slices = (Column(0, (-0.5, 0.0, 0.5)), Column(1, bins=(0, 1, 2)))
    asked = PairCounts(4, 2, at, slices, (4, 3), (9, 3))
    pairs, by_class = asked.tables(added(asked, rows, labels, None)[0])
    number, kind = np.digitize(rows[:, 0], [-0.5, 0.5]), np.array([0, 1, 1])[rows[:, 1:].argmax(1)]
    fine, each = np.digitize(rows[:, 0], [-0.5, 0.0, 0.5]), rows[:, 1:].argmax(1)
    for table, (a, b) in (
        (pairs[0, 1], (number, kind)), (by_class[0], (fine, labels)), (by_class[1], (each, labels)),
    ):  # fmt: skip
        by_hand = np.zeros(table.shape)
        np.add.at(by_hand, (a, b), 1.0)
        np.testing.assert_allclose(table, by_hand)
    assert asked.l2_norm_bound == pytest.approx(math.sqrt(1 + 2 * CLASS_WEIGHT**2))
    alone = added(asked, rows[:1], labels[:1], None)
    assert np.linalg.norm(alone) == pytest.approx(asked.l2_norm_bound)


def test_room_for_more_cells_than_a_word_counts_is_not_taken_for_little() -> None:
    """Or a site would be asked for tables that no memory holds, and would fail or not by whether it
    has a record of a class."""
    at = (Column(0), Column(1), Column(2))
    a, b, asked = 1 << 17, 1 << 16, 1 << 20
    c = (asked - a * b) // b * pow(3, -1, 1 << 47) % (1 << 47)
    assert ((a + b) * c + a * b) % (1 << 63) == asked
    assert PairCounts(3, 1, at, (), (a, b, c), ()).width == (a + b) * c + a * b


def test_a_record_without_a_listed_category_adds_nothing_there() -> None:
    asked = CellCounts(3, 1, (Column(0), Column(1, bins=(0, 1))))
    found = added(asked, np.array([[1.0, 0.0, 0.0]]), np.zeros(1, dtype=np.int64), None)
    assert found[0].tolist() == [pytest.approx(1.0), 0.0, 0.0]


def test_a_missing_number_has_a_cell_of_its_own_beside_those_of_values() -> None:
    """Of its value, which is coded as the middle of the range, nothing is seen."""
    column = Column(0, (-0.5, 0.5), missing=2)
    rows = np.array([[-1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert column.of(rows).tolist() == [0, 1, 2, 3]
    assert column.cells == 4
    asked = CellCounts(3, 1, (column,))
    found = added(asked, rows, np.zeros(4, dtype=np.int64), None)
    assert found[0].tolist() == pytest.approx([1, 1, 1, 1])


@pytest.mark.parametrize(
    "parts",
    [
        {"edges": (1.0, 0.0)},
        {"edges": (1.0, 1.0)},
        {"edges": (math.nan,)},
        {"edges": (math.inf,)},
        {"bins": (0, -1)},
        {"edges": (1.0,), "bins": (0, 1)},
        {"edges": (1.0,), "missing": -1},
        {"bins": (0, 1), "missing": 3},
    ],
)
def test_cells_by_which_a_record_could_be_found_elsewhere_for_another_are_refused(
    parts: dict[str, Any],
) -> None:
    """Where edges do not rise, a search for many values at once finds one where another ended."""
    with pytest.raises(InputError, match="must be parted by rising finite edges"):
        Column(0, **parts)
    with pytest.raises(InputError, match="must be of the 2 numbers"):
        CellCounts(2, 1, (Column(2),))
    with pytest.raises(InputError, match="must be of the 2 numbers"):
        CellCounts(2, 1, (Column(0, missing=2),))


@settings(max_examples=80)
@given(
    low=st.floats(-1e6, 1e6),
    span=st.floats(1e-3, 1e6),
    octave=st.integers(3, 10),
    where=st.floats(0, 1),
)
def test_every_value_of_a_range_lies_in_the_cell_that_has_it(
    low: float, span: float, octave: int, where: float
) -> None:
    high, value = low + span, low + where * span
    edges = edges_of(low, high, 2**octave)
    assert list(edges) == sorted(set(edges))
    assert len(edges) < 2 ** (octave + 1) + 300
    cell = int(Column(0, edges).of(np.array([[value]]))[0])
    bounds = np.array([low, *edges, max(high, np.nextafter(low, math.inf))])
    assert bounds[cell] <= value <= bounds[cell + 1]


def test_zero_and_the_ends_have_cells_of_their_own_and_few_whole_numbers_one_each() -> None:
    edges = edges_of(-1.0, 3.0, 8)
    column = Column(0, edges)
    for value in (-1.0, 0.0, 3.0):
        near = np.array([[np.nextafter(value, -9)], [value], [np.nextafter(value, 9)]])
        before, mine, after = column.of(near).tolist()
        assert value in (-1.0,) or before != mine
        assert value in (3.0,) or after != mine
    assert edges_of(2, 6, 8, 1.0) == (2.5, 3.5, 4.5, 5.5)
    assert edges_of(0.25, 1.0, 8, 0.25) == (0.375, 0.625, 0.875)
    skew = edges_of(0.0, 65_536.0, 8)
    assert sum(edge <= 16.0 for edge in skew) >= 5  # towards zero they are finer and finer
    assert edges_of(5.0, 5.0, 8) == ()


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 1000), min_size=1, max_size=60), st.floats(0.1, 500), st.integers(2, 9)
)
def test_bins_join_neighbours_up_to_a_goal_and_are_no_more_than_asked(
    mass: list[float], goal: float, most: int
) -> None:
    bins = bins_of_number(np.array(mass), goal, most)
    assert bins[0] == 0
    assert set(np.diff(bins).tolist()) <= {0, 1}
    assert bins.max() < most
    kinds = bins_of_category(np.array(mass), goal, most)
    assert sorted(set(kinds.tolist())) == list(range(kinds.max() + 1))
    assert kinds.max() < most


def test_a_heavy_cell_is_alone() -> None:
    bins = bins_of_number(np.array([1.0, 1.0, 50.0, 1.0, 1.0, 1.0]), 3.0, 10)
    assert bins.tolist() == [0, 0, 1, 2, 2, 2]


def test_counts_are_moved_to_the_nearest_that_are_not_negative() -> None:
    assert on_simplex(np.array([3.0, -1.0, 2.0])).tolist() == [2.5, 0.0, 1.5]
    assert on_simplex(np.array([-3.0, 1.0])).tolist() == [0.0, 0.0]


def test_cells_are_finer_the_less_noise_there_is() -> None:
    found = [fineness_of(1000.0, noise) for noise in (0.0, 1.5, 10.0, 100.0, 1e9)]
    assert found == [1024, 128, 16, 8, 8]
    assert (found[0], found[-1]) == FINENESS[::-1]


# -- what is chosen --------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    noise=st.floats(1e-6, 1e6),
    records=st.floats(1, 1e9),
    rank=st.integers(0, 11),
    relation=st.sampled_from(Relation),
)
def test_whatever_the_numbers_what_is_chosen_is_possible(
    noise: float, records: float, rank: int, relation: Relation
) -> None:
    facts = Facts.of(survey(1))
    chosen = choice_for(facts, noise, records, rank, relation)
    assert is_possible(chosen, facts, rank)
    most = choices_of(facts, rank)[0]
    assert all(chosen[name] <= most[name] for name in ("fineness", "slices"))
    assert not chosen["pairs"] or chosen["bins"] <= most["bins"]


@pytest.mark.parametrize(("columns", "classes"), [(20, 100), (50, 26), (5, 1000), (250, 2)])
def test_what_is_chosen_of_many_columns_and_classes_is_possible(columns: int, classes: int) -> None:
    """Or a release would be refused after class sizes were paid for, because of how many they
    are."""
    names = tuple(f"x{at}" for at in range(columns))
    facts = Facts(names, "y", tuple(range(classes)), normalise=PublicMap.of_range(-4, 5))
    for records in np.geomspace(100, 1e7, 120).tolist():
        chosen = choice_for(facts, 3.0, records, 4, Relation.ADD_REMOVE)
        assert is_possible(chosen, facts, 4), (records, chosen)
        assert chosen["slices"] <= choices_of(facts, 4)[0]["slices"]


@pytest.mark.parametrize("relation", list(Relation))
def test_no_choice_costs_more_than_is_promised(relation: Relation) -> None:
    facts = Facts.of(survey(1))
    plan = make_plan(facts, Tables(), relation=relation).calibrate(1.0)
    for records in (30.0, 3000.0, 300_000.0):
        chosen = choice_for(facts, plan.multiplier or 0.0, records, 11, relation)
        made = replace(plan, chosen=chosen)
        assert made.names[: len(plan.opening) + 1] == plan.names[: len(plan.opening) + 1]
        for asked in Relation:
            assert made.epsilon_in(asked) <= plan.epsilon_in(asked) * (1 + 1e-12)
        assert plan.guarantee().epsilon <= 1.0


# -- fitting ---------------------------------------------------------------------------------------


def a_law() -> Real:
    """Of three columns of four cells: the second follows the first, the third both."""
    law = RNG(3).dirichlet(np.full(64, 0.2)).reshape(4, 4, 4)
    return np.asarray(law)


def tables_of(law: Real) -> PairTables:
    sizes = law.shape
    starts = np.concatenate([[0], np.cumsum(sizes)])
    pairs, margins = np.zeros((starts[-1], starts[-1])), []
    for a in range(3):
        margins.append(law.sum(axis=tuple({0, 1, 2} - {a})))
        for b in range(3):
            if a < b:
                table = law.sum(axis=tuple({0, 1, 2} - {a, b}))
                pairs[starts[a] : starts[a + 1], starts[b] : starts[b + 1]] = table
                pairs[starts[b] : starts[b + 1], starts[a] : starts[a + 1]] = table.T
    return PairTables(sizes, pairs, 1.0 - np.eye(3), np.concatenate(margins))


def test_a_table_is_nearer_without_what_noise_made_of_it_and_noise_alone_is_nothing() -> None:
    rng = RNG(11)
    table = np.outer(rng.normal(size=12), rng.normal(size=20)) * 10.0
    noise = rng.normal(size=table.shape)
    found = without_noise(table + noise, 1.0)
    assert np.linalg.norm(found - table) < 0.5 * np.linalg.norm(noise)
    assert np.abs(without_noise(0.9 * noise, 1.0)).max() < 1e-9
    assert (without_noise(table, 0.0) == table).all()


def test_rows_of_a_mixture_have_the_pairs_that_it_was_fitted_to() -> None:
    law = a_law()
    cells = rows_of(fitted_mixture(tables_of(law), SeededSource(1)), 20_000, SeededSource(2))
    for a, b in combinations(range(3), 2):
        table = law.sum(axis=tuple({0, 1, 2} - {a, b}))
        found = np.bincount(cells[a] * 4 + cells[b], minlength=16).reshape(4, 4) / 20_000
        independent = np.outer(table.sum(axis=1), table.sum(axis=0))
        assert 0.5 * np.abs(found - table).sum() < 0.02
        assert 0.5 * np.abs(independent - table).sum() > 0.1


def test_rows_are_as_many_as_their_laws_say_to_one_in_each_component() -> None:
    law = a_law()
    cells = rows_of(fitted_mixture(tables_of(law), SeededSource(1)), 5000, SeededSource(2))
    for at in range(3):
        margin = law.sum(axis=tuple({0, 1, 2} - {at}))
        assert np.abs(np.bincount(cells[at], minlength=4) / 5000 - margin).max() < 0.01


def by_class(cells: Any, labels: Any, deviation: float, bins: Any) -> ByClass:
    """Counts of each column's cells by classes, exact whatever is said of their noise."""
    counts = []
    for each in cells:
        table = np.zeros((int(each.max()) + 1, 2))
        np.add.at(table, (each, labels), 1.0)
        counts.append(table)
    sizes = np.bincount(labels, minlength=2).astype(np.float64)
    alone = [np.arange(len(table)) for table in counts]
    return ByClass(counts, deviation, alone, [bins] * len(cells), sizes)


def test_classes_go_with_cells_as_counted_and_where_noise_hides_that_as_often_everywhere() -> None:
    rng = RNG(4)
    cells = rng.integers(0, 3, (2, 30_000))
    odds = np.array([-1.5, 0.0, 1.5])[cells[0]] + np.array([0.5, 0.0, -0.5])[cells[1]]
    labels = (rng.random(30_000) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    known = by_class(cells, labels, 1.0, np.array([0, 0, 1]))
    made = classes_of(cells, known, rng.random(30_000))
    for each, table in zip(cells, known.counts, strict=True):
        rates = [made[each == cell].mean() for cell in range(3)]
        np.testing.assert_allclose(rates, table[:, 1] / table.sum(axis=1), atol=0.01)
    hidden = classes_of(cells, replace(known, deviation=1e5), rng.random(30_000))
    rates = [hidden[cells[0] == cell].mean() for cell in range(3)]
    np.testing.assert_allclose(rates, labels.mean(), atol=0.02)


def test_a_column_that_tells_nothing_of_the_class_is_told_from_one_that_does() -> None:
    """Both have noise on their counts; what it makes of the first column is not believed."""
    rng = RNG(9)
    cells, told = rng.integers(0, 40, (2, 20_000)), rng.normal(0, 2, 40)
    labels = (rng.random(20_000) < 1 / (1 + np.exp(-told[cells[1]]))).astype(np.int64)
    known = by_class(cells, labels, 30.0, np.arange(40) // 4)
    noisy = [each + rng.normal(0, 30.0, each.shape) for each in known.counts]
    law = fitted_law(cells, replace(known, counts=noisy))
    apart = law[:, 1] - law[:, 0]
    assert np.abs(apart[:40] - apart[:40].mean()).max() < 0.35  # noise alone would make it 0.8
    assert np.corrcoef(apart[40:], told)[0, 1] > 0.95


def test_rows_that_are_alike_have_a_class_as_often_as_they_should_to_a_few() -> None:
    rng = RNG(10)
    cells = np.zeros((1, 1000), dtype=np.int64)
    known = by_class(cells, np.arange(1000) % 4 // 3, 1.0, np.zeros(1, dtype=np.int64))
    assert abs(int(classes_of(cells, known, rng.random(1000)).sum()) - 250) <= 3


def test_values_lie_in_their_cells_and_single_numbers_come_back_to_the_last_bit() -> None:
    bounds = np.array([0.0, 5e-324, 1.0, 3.0])
    cells = np.array([0, 1, 2, 0])
    values = values_of(cells, bounds, np.array([0.9, 0.5, 0.5, 0.1]))
    assert values.tolist() == [0.0, 0.5, 2.0, 0.0]


def test_of_the_cells_of_a_bin_there_are_as_many_as_their_slices_hold() -> None:
    parts = Parts(np.array([0, 0, 1, 2, 2]), np.array([0, 0, 1]))
    counts = np.array(
        [30.0, 10.0, 1e3, 5.0, -8.0]
    )  # of the third slice noise made all that there is
    bins = np.repeat([0, 1], [1000, 10])
    cells = cells_within(
        bins, parts, counts, np.array([400.0, 600.0, 2.0]), 0.5, RNG(5).random(1010)
    )
    assert np.bincount(cells[:1000], minlength=5).tolist() == [300, 100, 600, 0, 0]
    assert set(cells[1000:]) == {3, 4}  # alike, where nothing is known


def test_gaussian_values_are_moved_in_their_order_to_what_is_counted() -> None:
    values, bounds = RNG(6).normal(size=1000), np.array([0.0, 5e-324, 10.0, 20.0])
    chance = RNG(7).random(1000)
    found = mapped(values, np.array([600.0, 300.0, 100.0]), bounds, 1.0, chance)
    assert (found[np.argsort(values)][:600] == 0.0).all()
    assert ((found > 0) & (found <= 10)).sum() == 300
    assert (np.diff(found[np.argsort(values)]) >= 0).all()
    hidden = mapped(values, np.array([6.0, 3.0, 1.0]), bounds, 100.0, chance)
    assert (hidden == values).all()


def test_equal_values_are_moved_without_regard_to_their_place() -> None:
    """Rows stand by class: in their order, the first class would have all the small values."""
    values, bounds = np.zeros(2000), np.array([0.0, 10.0, 20.0])
    found = mapped(values, np.array([1000.0, 1000.0]), bounds, 1.0, RNG(8).random(2000))
    assert found[:1000].mean() == pytest.approx(found[1000:].mean(), rel=0.1)


# -- releases --------------------------------------------------------------------------------------


def test_pairs_of_columns_come_back_where_a_gaussian_loses_them() -> None:
    rows = survey(20_000)
    found, gaussian = released(rows, 2.0), released(rows, 2.0, "class-gaussian")
    assert (found.plan.chosen or {})["pairs"] == 1
    said = [{step.name for step in each.plan.steps} for each in (found, gaussian)]
    assert ["clip" in names for names in said] == [False, True]  # ones are not cut to a length
    assert apart(rows, found, 1) < 0.01
    floor = apart(rows, survey(20_000, seed=9), 2)  # of other records of the same law
    assert apart(rows, found, 2) < 1.5 * floor
    assert apart(rows, gaussian, 2) > 5.0 * floor


def test_spikes_zeros_and_whole_numbers_come_back_as_they_are() -> None:
    rows = survey(20_000)
    cells = SURVEY.cells(released(rows, 2.0).features)
    real = SURVEY.cells(rows.features)
    assert cells["hours"].dtype == real["hours"].dtype == np.int64
    for name, value in (("hours", 40), ("hours", 0), ("gain", 0.0)):
        part = (real[name] == value).mean()
        assert (cells[name] == value).mean() == pytest.approx(part, abs=0.03)
    assert (cells["gain"] == 100_000.0).mean() < 0.001  # nothing piles up at the end


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
def test_few_records_give_something_sane(epsilon: float) -> None:
    rows = survey(300)
    found = released(rows, epsilon)
    assert (found.plan.chosen or {})["pairs"] == 0
    cells = SURVEY.cells(found.features)
    assert cells["age"].min() >= 18
    assert cells["age"].max() <= 90
    assert np.isfinite(cells["gain"]).all()
    assert set(cells["city"]) <= {"north", "south"}
    assert apart(rows, found, 1) < 0.9


def test_a_range_that_cuts_off_many_records_is_said() -> None:
    rows = survey(20_000)
    short = Table(
        columns=(Number("score", -3.0, 0.5), Number("gain", 0.0, 100_000.0)), label=SURVEY.label
    )
    cut = short.coded([rows.features[:, 3], rows.features[:, 2]], rows.labels)
    said = " ".join(released(cut, 2.0).warnings)
    assert "lie at an end of the range of score" in said
    assert "gain" not in said  # zeros are many of themselves
    assert released(rows, 2.0).warnings == ()


def test_numbers_without_a_schema_have_their_ranges_measured() -> None:
    rng = RNG(7)
    features = np.column_stack([rng.normal(100, 5, 20_000), rng.exponential(2.0, 20_000)])
    rows = LabeledRows(
        features=features,
        labels=(features[:, 1] > 2).astype(np.int64),
        classes=(0, 1),
        feature_names=("a", "b"),
    )
    found = released(rows, 2.0)
    for column in range(2):
        at = np.quantile(features[:, column], [0.1, 0.5, 0.9])
        np.testing.assert_allclose(
            np.quantile(found.features[:, column], [0.1, 0.5, 0.9]), at, rtol=0.15
        )


@pytest.mark.parametrize("sites", [5, 25])
def test_sites_have_the_rows_of_one_curator_where_no_noise_is_added(sites: int) -> None:
    """The sums, and so all rows, are the same to the last bit for any split."""
    rows = survey(3000)
    facts = Facts.of(rows, class_sizes=tuple(rows.class_counts().tolist()))
    one = synthesize(make_plan(facts, Tables(samples=500)).calibrate(math.inf), rows)
    plan = make_plan(facts, Tables(samples=500), scheme="cape", sites=sites, colluding=1)
    many = synthesize(plan.calibrate(math.inf), partition(rows, sites, "dirichlet", seed=1))
    assert (one.features == many.features).all()
    assert (one.labels == many.labels).all()


def test_all_pairs_have_no_more_cells_than_there_is_room_for() -> None:
    facts = Facts.of(survey(1))
    chosen = choices_of(facts, 3)[0]
    assert max(most_cells(facts, chosen["fineness"], chosen["bins"])) <= 32
    assert len(grid_of(facts, 16).columns) == len(SURVEY.columns)
