"""Every fact that is measured is paid for: what is found, what it costs, and that none is left
out."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import capemix.sums.share
from capemix import documents
from capemix.accounting.gaussian import gaussian_epsilon, gaussian_multiplier
from capemix.api import synthesize
from capemix.data import LabeledRows, UnlistedRows, partition
from capemix.data.arrays import cells_of_arrays
from capemix.data.cells import words_of
from capemix.engines.local import LocalEngine, list_threshold, listed_words, sum_shares
from capemix.errors import InputError
from capemix.facts import CLASS_LIST, CLASS_SIZES, CLIP_NORM, RANGES, SCALES, Facts
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.measured import (
    LIST_FAILURE,
    budget_part,
    ranges_of,
)
from capemix.methods.mixing import Mixing
from capemix.plan import Plan, make_plan
from capemix.queries import Relation
from capemix.randomness.source import SeededSource
from capemix.release import Release
from capemix.run import run
from capemix.statistics.histograms import BINS, ClassCounts, MeansAndSquares, ValueSizes
from capemix.statistics.moments import NORMS, NormHistogram
from capemix.statistics.projection import Projection
from capemix.sums.query import SumQuery
from capemix.sums.statistic import Statistic
from capemix.sums.steps import ColumnMap, Coverage, PublicMap, SiteZScore
from conftest import Capemix
from measuring import measured_facts, opening_epsilon
from world import labeled_rows

EVERY = (CLASS_SIZES, RANGES, SCALES, CLIP_NORM)
"""What is measured where the classes are declared and nothing else."""


def a_table(rows: int = 20_000) -> LabeledRows:
    """Columns of very different sizes, one of them never zero and one with few values."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, rows)
    return labeled_rows(
        np.stack(
            [
                1000 + 200 * label + 100 * rng.normal(size=rows),
                0.005 * label + 0.01 * rng.normal(size=rows),
                rng.integers(0, 5, rows).astype(float),
            ],
            axis=1,
        ),
        label,
        (0, 1),
    )


def opening_plan(
    epsilon: float = 1.0,
    classes: tuple[int, ...] | None = (0, 1),
    *,
    columns: bool = True,
    class_sizes: tuple[int, ...] | None = None,
    clip: float | None = None,
    **who: Any,
) -> Plan:
    """To mix rows of three columns; what is measured first costs ``epsilon``, at a delta of
    1e-6."""
    facts = Facts(
        ("x0", "x1", "x2"), "label", classes, class_sizes, None if columns else PublicMap()
    )
    unit = make_plan(facts, Mixing(clip=clip), delta=1e-6, **who)
    part = sum(unit.method.opening_share(line.name, 3) for line in unit.opening)
    whole = gaussian_epsilon(gaussian_multiplier(epsilon, 1e-6) * math.sqrt(part), 1e-6)
    plan = make_plan(facts, Mixing(clip=clip), delta=1e-6, **who).calibrate(whole)
    assert budget_part(plan) == pytest.approx(part)
    return plan


def test_sizes_ranges_means_scales_and_a_norm_are_found() -> None:
    rows = a_table()
    found = measured_facts(opening_plan(), LocalEngine(rows, SeededSource(1)))
    assert found.class_sizes == pytest.approx(tuple(rows.class_counts()), abs=300)
    assert isinstance(found.normalise, ColumnMap)
    np.testing.assert_array_less(found.normalise.low, rows.features.mean(axis=0))
    np.testing.assert_array_less(rows.features.mean(axis=0), found.normalise.high)
    scale = rows.features.std(axis=0)
    np.testing.assert_allclose(
        (np.array(found.normalise.shift) - rows.features.mean(axis=0)) / scale, 0.0, atol=0.3
    )
    np.testing.assert_allclose(np.array(found.normalise.scale) / scale, 1.0, atol=0.35)
    assert found.clip_norm is not None
    scaled = (rows.features - found.normalise.shift) / found.normalise.scale
    assert 0.75 < np.mean(np.linalg.norm(scaled, axis=1) <= found.clip_norm) <= 1.0


def test_together_facts_cost_what_was_asked_and_alone_less() -> None:
    plan = opening_plan(epsilon=0.7)
    assert opening_epsilon(plan) == pytest.approx(0.7, rel=1e-4)
    lines = plan.budget()[:-1]
    assert tuple(line.line for line in lines) == EVERY
    shares = [plan.method.opening_share(name, 3) for name in EVERY]
    assert [line.share for line in lines] == pytest.approx(shares)
    composed = [line.epsilon_composed or math.inf for line in lines]
    assert composed == sorted(composed)
    assert composed[-1] == pytest.approx(0.7, rel=1e-4)
    alone = sum(line.epsilon_alone or math.inf for line in lines)
    assert 0.7 < alone < math.inf  # adding up would cost more


DECLARED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "nothing": ({}, EVERY),
    "sizes": ({"class_sizes": (10_000, 10_000)}, EVERY[1:]),
    "clip": ({"clip": 2.0}, EVERY[:3]),
    "both": ({"class_sizes": (10_000, 10_000), "clip": 2.0}, EVERY[1:3]),
}


@pytest.mark.parametrize("declared", DECLARED)
def test_what_is_declared_is_not_measured_and_its_share_is_left_for_the_method(
    declared: str,
) -> None:
    asked, names = DECLARED[declared]
    plan = opening_plan(epsilon=0.7, **asked)
    lines = plan.budget()[:-1]
    assert tuple(line.name for line in plan.opening) == tuple(line.line for line in lines) == names
    shares = [plan.method.opening_share(name, 3) for name in names]
    assert [line.share for line in lines] == pytest.approx(shares)
    assert plan.budget()[-1].share == pytest.approx(1.0 - sum(shares))
    assert opening_epsilon(plan) == pytest.approx(0.7, rel=1e-4)
    found = measured_facts(plan, LocalEngine(a_table(), SeededSource(1)))
    assert (found.class_sizes == (10_000, 10_000)) is ("class_sizes" in asked)
    assert (found.clip_norm is None) is ("clip" in asked)
    assert isinstance(found.normalise, ColumnMap)
    scale = a_table().features.std(axis=0)
    np.testing.assert_allclose(np.array(found.normalise.scale) / scale, 1.0, atol=0.35)


def test_a_declared_clip_norm_is_not_measured_either() -> None:
    facts = replace(opening_plan().facts, clip_norm=2.0)
    plan = make_plan(facts, Mixing()).calibrate(2.0)
    assert tuple(line.name for line in plan.opening) == EVERY[:3]
    assert plan.row_clip == 2.0
    covered = {step.name: step.coverage for step in plan.steps}
    assert covered["clip"] is Coverage.PER_ROW


def test_measured_facts_compose_as_one_gaussian() -> None:
    """The oracle: the exact Gaussian mechanism with 1/m^2 = sum of 1/m_i^2."""
    plan = opening_plan()
    multipliers = [plan.query(line.name).noise_multiplier for line in plan.opening]
    together = sum(m**-2 for m in multipliers) ** -0.5
    exact = gaussian_epsilon(together, 1e-6)
    assert opening_epsilon(plan) == pytest.approx(exact, rel=1e-5)
    assert opening_epsilon(plan) >= exact


STATISTICS: dict[str, Statistic] = {
    CLASS_SIZES: ClassCounts(3, 2),
    RANGES: ValueSizes(3),
    SCALES: MeansAndSquares(3, PublicMap()),
    CLIP_NORM: NormHistogram(Projection(PublicMap(), 3, 2)),
}


@pytest.mark.parametrize("name", EVERY)
def test_the_noise_on_a_measured_fact_has_the_scale_that_is_accounted(name: str) -> None:
    """Four sites, one colluding: what the others leave on the sum, over what a record can add."""
    plan = opening_plan(scheme="cape", sites=4, colluding=1)
    query = plan.query(name, STATISTICS[name])
    nothing = LabeledRows(np.zeros((0, 3)), np.zeros(0, dtype=np.int64), (0, 1), ("a", "b", "c"))
    noise = np.concatenate(
        [
            sum_shares(query, [nothing] * 4, SeededSource(2000 + seed)).ravel()
            for seed in range(math.ceil(4000 / math.prod(query.shape)))
        ]
    )
    honest = noise * math.sqrt(3 / 4)
    accounted = query.noised().view_multipliers["public"] * query.l2_norm_bound

    def p_value(scale: float) -> float:
        found = float((honest**2).sum() / scale**2)
        return float(2 * min(stats.chi2.cdf(found, len(honest)), stats.chi2.sf(found, len(honest))))

    assert p_value(accounted) > 1e-4
    assert p_value(accounted * 1.1) < 1e-9
    assert p_value(accounted / 1.1) < 1e-9


# -- a list of classes that nobody declared --------------------------------------------------------


def list_plan(epsilon: float = 1.0) -> Plan:
    return opening_plan(epsilon, None, columns=False)


def list_query(epsilon: float = 1.0) -> SumQuery:
    return list_plan(epsilon).query(CLASS_LIST)


def found_in(rows: UnlistedRows) -> Facts:
    return measured_facts(list_plan(), LocalEngine(rows, SeededSource(1)))


def unlisted(labels: Any) -> UnlistedRows:
    return UnlistedRows.of(cells_of_arrays(np.ones((len(labels), 3)), labels), "label")


def test_a_word_that_one_record_has_is_listed_as_rarely_as_delta_pays_for() -> None:
    """The threshold is no lower than it must be, and little higher: at a failure of 0.2, a count of
    1 passes with a probability of at most 0.1."""
    query = list_query()
    words = words_of(np.array([f"w{at}" for at in range(8000)]))
    passed = sum(
        len(listed_words(words.take(np.arange(8000)[part::8]), query, 0.2, SeededSource(part)))
        for part in range(8)
    )
    law = stats.binom(8000, 0.1)
    assert law.sf(passed - 1) > 1e-4
    assert passed > 0.09 * 8000
    unit = query.lattice_norm_bound
    assert unit is not None
    gap = list_threshold(unit, query.site_deviation, 0.2) - unit
    assert stats.norm.sf((gap - 1) / query.site_deviation) <= 0.1
    assert list_threshold(unit, query.site_deviation, 1e-9) > list_threshold(
        unit, query.site_deviation, 0.2
    )


def test_delta_pays_for_the_list_before_it_pays_for_the_noise() -> None:
    plan = list_plan()
    assert plan.list_failure == pytest.approx(LIST_FAILURE * 1e-6)
    assert plan.costs(Relation.ADD_REMOVE)[0].failure == plan.list_failure
    declared = opening_plan(columns=False)
    assert declared.list_failure == 0
    assert declared.costs(Relation.ADD_REMOVE)[0].failure == 0
    deviations = [each.deviation for each in (declared.query(CLASS_SIZES), plan.query(CLASS_LIST))]
    assert deviations[0] == pytest.approx(deviations[1], rel=1e-12)
    left = gaussian_epsilon(plan.query(CLASS_LIST).noise_multiplier, (1 - LIST_FAILURE) * 1e-6)
    assert opening_epsilon(plan) == pytest.approx(left, rel=1e-5)
    assert opening_epsilon(plan) > opening_epsilon(declared) == pytest.approx(1.0, rel=1e-5)
    # So a drawn sum after it, or the same sums as one, have more noise.
    assert (plan.multiplier or 0.0) > (declared.multiplier or 0.0)


def test_the_list_is_made_with_the_chance_of_failure_that_delta_pays_for() -> None:
    """Whichever method asks: a threshold of another chance is not the collector's to take."""
    asked: list[float] = []

    class Watched(LocalEngine):
        def list_classes(self, plan: Plan, query: SumQuery, failure: float) -> dict[str, float]:
            asked.append(failure)
            return super().list_classes(plan, query, failure)

    rows = unlisted(np.repeat(["a", "b"], 500))
    for method in (Mixing(samples=20), ClassGaussian(samples=20)):
        plan = make_plan(Facts.of(rows, normalise=PublicMap()), method).calibrate(5.0)
        made = synthesize_with(plan, Watched(rows))
        assert asked.pop() == plan.list_failure == made.list_failure
        whole = made.costs()[0]
        assert whole.failure == plan.list_failure


def synthesize_with(plan: Plan, engine: LocalEngine) -> Plan:
    made = run(plan, engine).plan
    assert isinstance(made, Plan)
    return made


def test_the_counts_of_listed_words_have_the_noise_that_is_accounted() -> None:
    query = list_query()
    words = words_of(np.repeat([f"w{at}" for at in range(500)], 1000))
    found = listed_words(words, query, 1e-6, SeededSource(7))
    assert len(found) == 500
    off = np.array(list(found.values())) - 1000

    def p_value(scale: float) -> float:
        square = float((off**2).sum() / scale**2)
        return float(2 * min(stats.chi2.cdf(square, 500), stats.chi2.sf(square, 500)))

    assert p_value(query.deviation) > 1e-4
    assert p_value(1.3 * query.deviation) < 1e-6


def test_classes_that_stand_out_are_found_with_their_sizes() -> None:
    labels = np.repeat(["a", "b", "?", "", "rare"], [800, 500, 600, 600, 3])
    found = found_in(unlisted(labels))
    assert found.classes == ("a", "b")
    assert found.class_sizes == pytest.approx((800, 500), abs=60)
    numbers = found_in(unlisted(np.repeat([10, 9], 500)))
    assert numbers.classes == (9, 10)


def test_a_record_that_counts_for_nothing_has_no_label_either() -> None:
    rows = unlisted(np.repeat(["a", "b"], [500, 500]))
    spoilt = replace(rows, features=np.repeat([[1.0] * 3, [1.0, np.nan, 1.0]], 500, axis=0))
    assert found_in(spoilt).classes == ("a",)


def test_no_list_is_found_where_no_label_stands_out() -> None:
    for labels in (["a", "b"], [f"id{at}" for at in range(3000)], []):
        with pytest.raises(InputError, match="class list could not be found"):
            found_in(unlisted(labels))


def test_a_list_ends_at_a_thousand_classes_the_largest_first() -> None:
    query = replace(list_plan(), opening_multiplier=0.2).query(CLASS_LIST)
    sizes = np.where(np.arange(1100) < 1000, 400, 100)
    words = words_of(np.repeat([f"w{at}" for at in range(1100)], sizes))
    found = listed_words(words, query, 1e-6, SeededSource(1))
    assert set(found) == {f"w{at}" for at in range(1000)}


def test_sites_find_no_list_together() -> None:
    with pytest.raises(InputError, match="must be declared for more than one site"):
        opening_plan(classes=None, scheme="cape", sites=4, colluding=1)


@pytest.mark.parametrize("method", [Mixing(samples=200), ClassGaussian(samples=200)], ids=str)
def test_classes_and_columns_are_measured_within_one_budget(method: Any) -> None:
    rows = a_table()
    names = np.array(["u", "v"])[rows.labels]
    open_rows = UnlistedRows.of(cells_of_arrays(rows.features, names), "label")
    plan = make_plan(Facts.of(open_rows), method).calibrate(3.0)
    release = synthesize(plan, open_rows)
    lines = release.plan.budget()
    opening = [CLASS_LIST, RANGES, SCALES, *([CLIP_NORM] if plan.drawn else [])]
    assert [line.line for line in lines][: len(opening)] == opening
    assert lines[-1].epsilon_composed == pytest.approx(3.0, rel=1e-3)
    composed = [line.epsilon_composed or math.inf for line in lines]
    assert composed == sorted(composed)
    assert release.facts.classes == ("u", "v")
    assert release.guarantee.epsilon == pytest.approx(3.0, rel=1e-3)
    assert release.guarantee.epsilon <= 3.0
    assert release.guarantee.delta == pytest.approx(1e-5)
    covered = {step.name: step.coverage for step in release.plan.steps}
    assert covered["class list"] is covered["class sizes"] is Coverage.PAID


# -- columns ---------------------------------------------------------------------------------------


def test_ranges_of_very_many_columns_must_be_declared() -> None:
    facts = Facts(tuple(map(str, range(784))), "label", tuple(range(10)))
    with pytest.raises(InputError, match="public_range must be declared for more than 250"):
        make_plan(facts, Mixing())


SCHEMES: dict[str, dict[str, Any]] = {
    "cape": {"scheme": "cape"},
    "conventional": {"scheme": "conventional"},
    "algorithm1": {"scheme": "cape", "form": "algorithm1", "masks": "gaussian"},
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_facts_measured_over_sites_are_the_same(scheme: str) -> None:
    rows = a_table()
    parts = partition(rows, 4, "dirichlet", seed=1)
    plan = opening_plan(epsilon=4.0, sites=4, colluding=1, **SCHEMES[scheme])
    found = measured_facts(plan, LocalEngine(parts, SeededSource(2)))
    assert found.class_sizes == pytest.approx(tuple(rows.class_counts()), abs=400)
    assert isinstance(found.normalise, ColumnMap)
    scale = rows.features.std(axis=0)
    np.testing.assert_allclose(np.array(found.normalise.scale) / scale, 1.0, atol=0.4)


def test_a_site_without_rows_takes_part_in_every_opening_sum() -> None:
    rows = a_table(2000)
    parts = [rows, *(rows.take(np.array([], dtype=np.int64)) for _ in range(3))]
    plan = opening_plan(epsilon=4.0, scheme="cape", sites=4, colluding=1)
    found = measured_facts(plan, LocalEngine(parts, SeededSource(2)))
    assert found.class_sizes == pytest.approx(tuple(rows.class_counts()), abs=400)


def test_measured_facts_fill_in_what_was_not_declared_and_nothing_else() -> None:
    """A plan with other facts is no plan: its steps would count as paid for."""
    plan = opening_plan()
    mapped = ColumnMap((0.0,) * 3, (1.0,) * 3, (-1.0,) * 3, (1.0,) * 3)
    found = replace(plan.facts, class_sizes=(50, 50), normalise=mapped, clip_norm=1.0)
    assert replace(plan, measured=found).known == found
    for other in (
        {"normalise": SiteZScore()},
        {"normalise": PublicMap()},
        {"normalise": None},
        {"class_sizes": None},
        {"clip_norm": None},
        {"features": ("x0", "x1", "y")},
        {"label": "other"},
        {"classes": (0, 7)},
        {"unpaid": ("class sizes",)},
    ):
        with pytest.raises(InputError, match="measured must be the declared facts"):
            replace(plan, measured=replace(found, **other))  # type: ignore[arg-type]
    declared = replace(plan.facts, class_sizes=(50, 50), normalise=PublicMap())
    with pytest.raises(InputError, match="no opening sums"):
        replace(plan, facts=declared, measured=declared)


finite = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=200)
@given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=5))
def test_what_a_record_adds_keeps_its_bound(values: list[tuple[float, float, float]]) -> None:
    for value in values:
        features, labels = np.array([value]), np.zeros(1, dtype=np.int64)
        sizes, norms = np.zeros((1, 3 * BINS)), np.zeros((len(NORMS), 1))
        STATISTICS[RANGES].add_to(sizes, features, labels, None)
        STATISTICS[CLIP_NORM].add_to(norms, features, labels, None)
        assert np.count_nonzero(sizes) == 3  # one bin a column: norm sqrt(3)
        assert 1.0 - 1e-9 < sizes.max() <= 1.0
        assert np.count_nonzero(norms) == 1
        assert 1.0 - 1e-9 < norms.max() <= 1.0


def one_hot(values: list[list[float]]) -> np.ndarray:
    """The histogram of one column, as records fill it."""
    sums = np.zeros((1, BINS))
    ValueSizes(1).add_to(sums, np.array(values), np.zeros(len(values), dtype=np.int64), None)
    return sums


@settings(max_examples=200)
@given(st.floats(min_value=-1e12, max_value=1e12, allow_subnormal=False))
def test_a_value_lies_in_the_range_that_its_bin_gives(value: float) -> None:
    found = ranges_of(100.0 * one_hot([[value]]), deviation=1.0)
    low, high = found.low, found.high
    if abs(value) >= 2.0**-20:  # smaller ones count as the smallest size
        assert low[0] <= value <= high[0]
        assert high[0] - low[0] <= abs(value)


def test_noise_alone_widens_no_range() -> None:
    counts = one_hot([[3.0]] * 1000)
    noisy = counts + 20.0 * np.random.default_rng(0).normal(size=counts.shape)
    found = ranges_of(noisy, 20.0)
    assert [float(end[0]) for end in (found.low, found.high)] == [2.0, 4.0]


def test_a_quantile_of_noisy_counts() -> None:
    asked = NormHistogram(Projection(PublicMap(), 4, 1))
    counts = np.zeros((len(NORMS), 1))
    counts[7], counts[8], counts[9], counts[3] = 5.0, 90.0, 5.0, -3.0
    low, high = 2 * NORMS[7], 2 * NORMS[8]
    assert low < asked.quantile(counts, 0.5) < asked.quantile(counts, 0.9) < high
    assert asked.quantile(counts, 0.5) == pytest.approx((low + high) / 2)  # as if evenly
    assert asked.quantile(counts, 1.0) == pytest.approx(2 * NORMS[9])
    assert asked.quantile(np.full((len(NORMS), 1), -1.0), 0.9) == 2.0


def released_and_read(
    plan: Plan, rows: LabeledRows, monkeypatch: pytest.MonkeyPatch
) -> tuple[Release, list[SumQuery]]:
    """Rows reach a sum through `prepare_records` alone: with the queries that it was called for."""
    read: list[SumQuery] = []
    real = capemix.sums.share.prepare_records

    def spy(query: SumQuery, *given: Any) -> Any:
        read.append(query)
        return real(query, *given)

    def never(_rows: LabeledRows) -> Any:
        raise AssertionError("true class sizes were read")

    monkeypatch.setattr("capemix.engines.local.prepare_records", spy)
    monkeypatch.setattr(LabeledRows, "class_counts", never)
    return synthesize(plan, rows), read


def check_lines(release: Release, read: list[SumQuery]) -> None:
    """Each sum that was read has a line of the budget, and the noise that the line was costed
    with."""
    made, lines = release.plan, release.plan.budget()
    assert isinstance(made, Plan)
    assert [query.name for query in read] == [line.line for line in lines] == list(made.names)
    for query, line in zip(read, lines, strict=True):
        assert query.planned == made.query(query.name)
        assert query.l2_norm_bound == pytest.approx(line.sensitivity)
        assert line.epsilon_alone is not None
    assert Coverage.NOT_COVERED not in {step.coverage for step in made.steps}


@pytest.mark.parametrize("declared", DECLARED)
def test_no_path_from_rows_to_the_release_lacks_a_line(
    declared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, names = DECLARED[declared]
    facts = Facts.of(a_table(), class_sizes=asked.get("class_sizes"))
    plan = make_plan(facts, Mixing(samples=200, clip=asked.get("clip"))).calibrate(2.0)
    release, read = released_and_read(plan, a_table(), monkeypatch)
    check_lines(release, read)
    lines = release.plan.budget()
    assert [line.line for line in lines] == [*names, "mixtures"]
    covered = {step.name: step.coverage for step in release.plan.steps}
    assert covered["normalise"] is Coverage.PAID
    assert (covered["clip"] is Coverage.PAID) is ("clip" not in asked)
    assert (covered["class sizes"] is Coverage.PAID) is ("class_sizes" not in asked)
    assert "clip" not in asked or release.plan.row_clip == asked["clip"]
    assert release.guarantee.epsilon == pytest.approx(2.0, rel=1e-3)
    assert lines[-1].epsilon_composed == pytest.approx(2.0, rel=1e-3)
    assert release.guarantee.delta == pytest.approx(1e-5)


@pytest.mark.parametrize("declared", [(), ("class_sizes",), ("normalise",)])
def test_no_sum_of_class_gaussians_lacks_a_line(
    declared: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"class_sizes": (10_000, 10_000), "normalise": PublicMap.of_range(-2000, 2000)}
    facts = Facts.of(a_table(), **{name: asked[name] for name in declared})  # type: ignore[arg-type]
    plan = make_plan(facts, ClassGaussian()).calibrate(2.0)
    release, read = released_and_read(plan, a_table(), monkeypatch)
    check_lines(release, read)
    assert release.plan.budget()[-1].epsilon_composed == pytest.approx(2.0, rel=1e-2)
    assert release.guarantee.epsilon == pytest.approx(2.0, rel=1e-2)
    assert (release.guarantee.epsilon or math.inf) <= 2.0


def paid_release(rows: LabeledRows, epsilon: float, samples: int) -> Release:
    plan = make_plan(Facts.of(rows), Mixing(samples=samples)).calibrate(epsilon)
    return synthesize(plan, rows)


def test_a_table_needs_nothing_declared(tmp_path: Path) -> None:
    rows = a_table()
    release = paid_release(rows, 3.0, 400)
    assert isinstance(release.facts.normalise, ColumnMap)
    means = [release.features[release.labels == k].mean(axis=0) for k in (0, 1)]
    real = [rows.features[rows.labels == k].mean(axis=0) for k in (0, 1)]
    scale = rows.features.std(axis=0)
    for made, true in zip(means, real, strict=True):
        assert np.all(np.abs(made - true) < 0.5 * scale)
    manifest = release.manifest({})
    assert [line.line for line in manifest.budget] == [*EVERY, "mixtures"]
    assert release.save(tmp_path / "out").exists()


def test_a_column_map_comes_back_from_json() -> None:
    facts = Facts(
        ("a", "b"),
        "y",
        (0,),
        (50,),
        ColumnMap((1.0, 2.0), (0.5, 3.0), (-1.0, 0.0), (2.0, 9.0)),
    )
    plan = replace(make_plan(facts, Mixing(samples=5, mixture=5)), multiplier=1.0)
    assert documents.from_json(Plan, documents.as_json(plan), name="the plan") == plan
    assert plan.steps[0].coverage is Coverage.PUBLIC  # no sum paid for it: it counts as declared


@pytest.mark.parametrize(
    "parts",
    [
        ((0.0,), (1.0, 1.0), (0.0,), (1.0,)),
        ((0.0,), (0.0,), (0.0,), (1.0,)),
        ((math.nan,), (1.0,), (0.0,), (1.0,)),
        ((0.0,), (1.0,), (2.0,), (1.0,)),
        (("0",), (1.0,), (0.0,), (1.0,)),
    ],
)
def test_a_column_map_of_nonsense_is_refused(parts: Any) -> None:
    with pytest.raises(Exception, match="column map"):
        ColumnMap(*parts)


def test_an_attack_reads_a_paid_release_in_its_own_units() -> None:
    from capemix.audit.membership import Target

    rows = a_table()
    release = paid_release(rows, 5.0, 200)
    made = replace(rows, features=release.features, labels=release.labels)
    target = Target(made, release.manifest({}))
    assert np.abs(target.synthetic()).max() < 20.0  # raw units are in the thousands


def test_nothing_is_written_into_a_release(
    capemix: Capemix, research: Capemix, tmp_path: Path
) -> None:
    paid_release(a_table(500), 5.0, 20).save(tmp_path / "out")
    inside = tmp_path / "out" / "more"
    for program, words in (
        (capemix, ("synth", "--data", "digits", "--epsilon", 1, "--out", inside)),
        (research, ("frontier", "--data", "digits", "--out", inside)),
        (capemix, ("audit", "--quick", "--out", inside)),
    ):
        ran = program(*words)
        assert ran.code == 2
        assert "lies in a release" in ran.err
    assert not inside.exists()


def test_a_search_reads_no_private_test_rows(research: Capemix, tmp_path: Path) -> None:
    ran = research("frontier", "--test", tmp_path / "mine.csv", "--out", tmp_path / "found")
    assert ran.code == 2
    assert "--test is a file" in ran.err
