"""Every look at the rows is paid for: what it finds, what it costs, and that none is left out."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capemix.looks import (
    LIST_FAILURE,
    NORMS,
    SHARES,
    Looks,
    list_threshold,
    listed_words,
    one_hot_norms,
    one_hot_sizes,
    plan_looks,
    quantile_of,
    ranges_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import capemix.sums.share
from capemix.accounting.gaussian import gaussian_epsilon
from capemix.api import release_of
from capemix.data import LabeledRows, UnlistedRows, partition
from capemix.data.arrays import cells_of_arrays
from capemix.data.cells import words_of
from capemix.engines.local import run_local
from capemix.errors import InputError
from capemix.federation import Federation, Form, MaskKind, Scheme
from capemix.plan import Plan, plan_from_json
from capemix.queries import Relation
from capemix.randomness.source import SeededSource, SystemSource
from capemix.sums.steps import ColumnMap, Coverage, PublicMap
from conftest import Capemix
from world import labeled_rows


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


def looks_at(
    epsilon: float = 1.0,
    federation: Federation | None = None,
    class_sizes: tuple[int, ...] | None = None,
    clip: float | None = None,
) -> Looks:
    return plan_looks(
        3,
        2,
        federation or Federation(Scheme.CENTRAL),
        class_sizes=class_sizes,
        columns=True,
        clip=clip,
        epsilon=epsilon,
        delta=1e-6,
        relation=Relation.ADD_REMOVE,
    )


def test_looks_find_sizes_ranges_means_scales_and_a_norm() -> None:
    rows = a_table()
    found = looks_at().take([rows], SeededSource(1))
    assert found.class_sizes == pytest.approx(tuple(rows.class_counts()), abs=300)
    assert found.normalise is not None
    np.testing.assert_array_less(found.normalise.low, rows.features.mean(axis=0))
    np.testing.assert_array_less(rows.features.mean(axis=0), found.normalise.high)
    scale = rows.features.std(axis=0)
    np.testing.assert_allclose(
        (np.array(found.normalise.shift) - rows.features.mean(axis=0)) / scale, 0.0, atol=0.3
    )
    np.testing.assert_allclose(np.array(found.normalise.scale) / scale, 1.0, atol=0.35)
    assert found.clip is not None
    scaled = (rows.features - found.normalise.shift) / found.normalise.scale
    assert 0.75 < np.mean(np.linalg.norm(scaled, axis=1) <= found.clip) <= 1.0


def test_together_looks_cost_what_was_asked_and_alone_less() -> None:
    looks = looks_at(epsilon=0.7)
    guarantee = looks.guarantee(seeded=False)
    assert guarantee.epsilon == pytest.approx(0.7, rel=1e-3)
    lines = looks.lines(0.2)
    assert [line.line for line in lines] == list(SHARES)
    assert sum(line.share for line in lines) == pytest.approx(0.2)
    composed = [line.epsilon_composed for line in lines]
    assert composed == sorted(composed)
    assert composed[-1] == pytest.approx(0.7, rel=1e-3)
    assert sum(line.epsilon_alone for line in lines) > 0.7  # adding up would cost more


DECLARED = {
    "nothing": ({}, list(SHARES)),
    "sizes": ({"class_sizes": (10_000, 10_000)}, list(SHARES)[1:]),
    "clip": ({"clip": 2.0}, list(SHARES)[:3]),
    "both": ({"class_sizes": (10_000, 10_000), "clip": 2.0}, list(SHARES)[1:3]),
}


@pytest.mark.parametrize("declared", DECLARED)
def test_what_is_declared_is_not_looked_at_and_the_others_share_what_it_cost(declared: str) -> None:
    asked, names = DECLARED[declared]
    looks = looks_at(epsilon=0.7, **asked)
    lines = looks.lines(0.2)
    assert list(looks.plans) == [line.line for line in lines] == names
    assert sum(line.share for line in lines) == pytest.approx(0.2)
    assert looks.guarantee(seeded=False).epsilon == pytest.approx(0.7, rel=1e-3)
    noise = {name: plan.noise or 0.0 for name, plan in looks.plans.items()}
    every = looks_at(epsilon=0.7).plans
    part = sum(SHARES[name] for name in names)
    for name in names:  # 1/m^2 is shared out
        assert noise[name] == pytest.approx((every[name].noise or 0.0) * part**0.5, rel=1e-3)
    found = looks.take([a_table()], SeededSource(1))
    assert (found.class_sizes == (10_000, 10_000)) is ("class_sizes" in asked)
    assert (found.clip is None) is ("clip" in asked)
    assert found.normalise is not None
    scale = a_table().features.std(axis=0)
    np.testing.assert_allclose(np.array(found.normalise.scale) / scale, 1.0, atol=0.35)


def test_looks_compose_as_one_gaussian() -> None:
    """The oracle: the exact Gaussian mechanism with 1/m^2 = sum of 1/m_i^2 is never above."""
    looks = looks_at()
    multipliers = [plan.noise_multiplier for plan in looks.plans.values()]
    together = sum(m**-2 for m in multipliers) ** -0.5
    exact = gaussian_epsilon(together, 1e-6)
    guarantee = looks.guarantee(seeded=False)
    assert guarantee.epsilon is not None
    assert exact <= guarantee.epsilon < 1.25 * exact  # Rényi accounting is a little above


@pytest.mark.parametrize("name", list(SHARES))
def test_the_noise_of_a_look_has_the_scale_that_is_accounted(name: str) -> None:
    """Four sites, one colluding: what the others leave on the sum, over what a record can add."""
    looks = looks_at(federation=Federation(Scheme.CAPE, sites=4, colluding=1))
    plan = looks.plans[name]
    width = plan.mixing.width
    nothing = LabeledRows(
        features=np.zeros((0, width)),
        labels=np.zeros(0, dtype=np.int64),
        classes=(0,),
        feature_names=tuple(map(str, range(width))),
    )
    noise = np.concatenate(
        [
            run_local(plan, [nothing] * 4, source=SeededSource(seed), reference=False).features[0]
            for seed in range(math.ceil(4000 / width))
        ]
    )
    honest = noise * math.sqrt(3 / 4)
    accounted = plan.noised_sum().view_multipliers["public"] * plan.query.l2_norm_bound

    def p_value(scale: float) -> float:
        found = float((honest**2).sum() / scale**2)
        return 2 * min(stats.chi2.cdf(found, len(honest)), stats.chi2.sf(found, len(honest)))

    assert p_value(accounted) > 1e-4
    assert p_value(accounted * 1.1) < 1e-9
    assert p_value(accounted / 1.1) < 1e-9


# -- a list of classes that nobody declared --------------------------------------------------------


def looks_for_classes(epsilon: float = 1.0, delta: float = 1e-6, columns: bool = False) -> Looks:
    return plan_looks(
        3, None, Federation(Scheme.CENTRAL), columns=columns, epsilon=epsilon, delta=delta,
        relation=Relation.ADD_REMOVE,
    )  # fmt: skip


def unlisted(labels: Any) -> UnlistedRows:
    return UnlistedRows.of(cells_of_arrays(np.ones((len(labels), 3)), labels), "label")


def test_a_word_that_one_record_has_is_listed_as_rarely_as_delta_pays_for() -> None:
    """The threshold is no lower than it must be, and little higher: at a failure of 0.2, a count of
    1 passes with a probability of at most 0.1."""
    plan = looks_for_classes().plans["class list"]
    words = words_of(np.array([f"w{at}" for at in range(8000)]))
    passed = sum(
        len(listed_words(words.take(np.arange(8000)[part::8]), plan, 0.2, SeededSource(part)))
        for part in range(8)
    )
    law = stats.binom(8000, 0.1)
    assert law.sf(passed - 1) > 1e-4
    assert passed > 0.09 * 8000
    unit = plan.lattice_norm_bound
    assert unit is not None
    gap = list_threshold(unit, plan.site_deviation, 0.2) - unit
    assert stats.norm.sf((gap - 1) / plan.site_deviation) <= 0.1
    assert list_threshold(unit, plan.site_deviation, 1e-9) > list_threshold(
        unit, plan.site_deviation, 0.2
    )


def test_delta_pays_for_the_list_before_it_pays_for_the_noise() -> None:
    looks = looks_for_classes()
    assert looks.rounds.list_failure == LIST_FAILURE * 1e-6
    assert looks.cost(Relation.ADD_REMOVE).failure == LIST_FAILURE * 1e-6
    assert looks.guarantee(seeded=False).epsilon == pytest.approx(1.0, rel=1e-3)
    assert looks.guarantee(seeded=False).delta == 1e-6
    declared = plan_looks(
        3, 2, Federation(Scheme.CENTRAL), columns=False, epsilon=1.0, delta=1e-6,
        relation=Relation.ADD_REMOVE,
    )  # fmt: skip
    assert declared.cost(Relation.ADD_REMOVE).failure == 0
    found, known = (
        float(one.plans[name].noise or 0.0)
        for one, name in ((looks, "class list"), (declared, "class sizes"))
    )
    assert known < found < 1.1 * known


def test_the_counts_of_listed_words_have_the_noise_that_is_accounted() -> None:
    plan = looks_for_classes().plans["class list"]
    words = words_of(np.repeat([f"w{at}" for at in range(500)], 1000))
    found = listed_words(words, plan, 1e-6, SeededSource(7))
    assert len(found) == 500
    off = np.array(list(found.values())) - 1000

    def p_value(scale: float) -> float:
        square = float((off**2).sum() / scale**2)
        return float(2 * min(stats.chi2.cdf(square, 500), stats.chi2.sf(square, 500)))

    assert p_value(float(plan.noise or 0.0)) > 1e-4
    assert p_value(1.3 * float(plan.noise or 0.0)) < 1e-6


def test_classes_that_stand_out_are_found_with_their_sizes() -> None:
    labels = np.repeat(["a", "b", "?", "", "rare"], [800, 500, 600, 600, 3])
    found = looks_for_classes().take(unlisted(labels), SeededSource(1))
    assert found.classes == ("a", "b")
    assert found.class_sizes == pytest.approx((800, 500), abs=60)
    numbers = looks_for_classes().take(unlisted(np.repeat([10, 9], 500)), SeededSource(1))
    assert numbers.classes == (9, 10)


def test_a_record_that_counts_for_nothing_has_no_label_either() -> None:
    rows = unlisted(np.repeat(["a", "b"], [500, 500]))
    spoilt = replace(rows, features=np.repeat([[1.0] * 3, [1.0, np.nan, 1.0]], 500, axis=0))
    assert looks_for_classes().take(spoilt, SeededSource(1)).classes == ("a",)


def test_no_list_is_found_where_no_label_stands_out() -> None:
    for labels in (["a", "b"], [f"id{at}" for at in range(3000)], []):
        with pytest.raises(InputError, match="class list could not be found"):
            looks_for_classes().take(unlisted(labels), SeededSource(1))


def test_a_list_ends_at_a_thousand_classes_the_largest_first() -> None:
    plan = looks_for_classes(epsilon=40.0).plans["class list"]
    sizes = np.where(np.arange(1100) < 1000, 400, 100)
    words = words_of(np.repeat([f"w{at}" for at in range(1100)], sizes))
    found = listed_words(words, plan, 1e-6, SeededSource(1))
    assert set(found) == {f"w{at}" for at in range(1000)}


def test_sites_find_no_list_together() -> None:
    with pytest.raises(InputError, match="must be declared for more than one site"):
        plan_looks(
            3, None, Federation(Scheme.CAPE, sites=4, colluding=1), columns=False, epsilon=1.0,
            delta=1e-6, relation=Relation.ADD_REMOVE,
        )  # fmt: skip


def test_looks_for_classes_and_columns_share_one_budget() -> None:
    rows = a_table()
    names = np.array(["u", "v"])[rows.labels]
    open_rows = UnlistedRows.of(cells_of_arrays(rows.features, names), "label")
    release = release_of(
        open_rows, epsilon=3.0, normalise="paid", source=SystemSource(), samples=200
    )
    lines = [line.line for line in release.plan.budget()]
    assert lines == ["class list", "ranges", "means and scales", "clip norm", "mixtures"]
    assert release.plan.classes == ("u", "v")
    assert release.guarantee.epsilon == pytest.approx(3.0, rel=1e-3)
    assert release.guarantee.delta == pytest.approx(1e-5)
    covered = {step.name: step.coverage for step in release.plan.steps}
    assert covered["class list"] is covered["class sizes"] is Coverage.PAID


# -- columns ---------------------------------------------------------------------------------------


def test_ranges_of_very_many_columns_must_be_declared() -> None:
    with pytest.raises(InputError, match="--public-range must be declared for more than 250"):
        plan_looks(
            784,
            10,
            Federation(Scheme.CENTRAL),
            columns=True,
            epsilon=1.0,
            delta=1e-6,
            relation=Relation.ADD_REMOVE,
        )


@pytest.mark.parametrize("scheme", ["cape", "conventional", "algorithm1"])
def test_looks_over_sites_find_the_same(scheme: str) -> None:
    rows = a_table()
    federation = Federation(Scheme.CAPE, sites=4, colluding=1)
    if scheme == "conventional":
        federation = Federation(Scheme.CONVENTIONAL, sites=4, colluding=1)
    elif scheme == "algorithm1":
        federation = Federation(
            Scheme.CAPE, Form.ALGORITHM1, sites=4, colluding=1, masks=MaskKind.GAUSSIAN
        )
    parts = partition(rows, 4, "dirichlet", seed=1)
    found = looks_at(epsilon=4.0, federation=federation).take(parts, SeededSource(2))
    assert found.class_sizes == pytest.approx(tuple(rows.class_counts()), abs=400)
    assert found.normalise is not None
    scale = rows.features.std(axis=0)
    np.testing.assert_allclose(np.array(found.normalise.scale) / scale, 1.0, atol=0.4)


def test_a_site_without_rows_takes_part_in_every_look() -> None:
    rows = a_table(2000)
    parts = [rows, *(rows.take(np.array([], dtype=np.int64)) for _ in range(3))]
    federation = Federation(Scheme.CAPE, sites=4, colluding=1)
    found = looks_at(epsilon=4.0, federation=federation).take(parts, SeededSource(2))
    assert found.class_sizes == pytest.approx(tuple(rows.class_counts()), abs=400)


finite = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=200)
@given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=5))
def test_what_a_record_adds_keeps_its_bound(values: list[tuple[float, float, float]]) -> None:
    features = np.array(values)
    sizes = one_hot_sizes(features)
    assert (sizes.sum(axis=1) == 3).all()  # one bin a column: norm sqrt(3)
    assert set(np.unique(sizes)) <= {0.0, 1.0}
    norms = one_hot_norms(np.where(np.isfinite(features), features, 0.0).clip(-1e100, 1e100))
    assert (norms.sum(axis=1) == 1).all()


@settings(max_examples=200)
@given(st.floats(min_value=-1e12, max_value=1e12, allow_subnormal=False))
def test_a_value_lies_in_the_range_that_its_bin_gives(value: float) -> None:
    found = ranges_of(100.0 * one_hot_sizes(np.array([[value]])), deviation=1.0)
    low, high = found.low, found.high
    if abs(value) >= 2.0**-20:  # smaller ones count as the smallest size
        assert low[0] <= value <= high[0]
        assert high[0] - low[0] <= abs(value)


def test_noise_alone_widens_no_range() -> None:
    counts = one_hot_sizes(np.full((1000, 1), 3.0)).sum(axis=0, keepdims=True)
    noisy = counts + 20.0 * np.random.default_rng(0).normal(size=counts.shape)
    found = ranges_of(noisy, 20.0)
    assert [float(end[0]) for end in (found.low, found.high)] == [2.0, 4.0]


def test_a_quantile_of_noisy_counts() -> None:
    assert quantile_of(np.array([5.0, -3.0, 90.0, 5.0]), 0.9) == 2
    assert quantile_of(np.full(len(NORMS), -1.0), 0.9) == len(NORMS) // 2


@pytest.mark.parametrize("declared", DECLARED)
def test_no_path_from_rows_to_the_release_lacks_a_line(
    declared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows reach a sum through `prepare_records` alone; each of its plans has a line of the budget,
    and the noise that the line was costed with."""
    read: list[Plan] = []
    real = capemix.sums.share.prepare_records

    def spy(plan: Plan, *rows: Any) -> Any:
        read.append(plan)
        return real(plan, *rows)

    def never(_rows: LabeledRows) -> Any:
        raise AssertionError("true class sizes were read")

    monkeypatch.setattr("capemix.engines.local.prepare_records", spy)
    monkeypatch.setattr(LabeledRows, "class_counts", never)
    asked, names = DECLARED[declared]
    release = release_of(
        a_table(), epsilon=2.0, normalise="paid", source=SystemSource(), samples=200, **asked
    )
    lines = release.plan.budget()
    assert [line.line for line in lines] == [*names, "mixtures"]
    assert len(read) == len(lines)
    for plan, line in zip(read, lines, strict=True):
        assert plan.query.l2_norm_bound == pytest.approx(line.sensitivity)
        assert line.epsilon_alone is not None
    covered = {step.name: step.coverage for step in release.plan.steps}
    assert covered["normalise"] is Coverage.PAID
    assert (covered["clip"] is Coverage.PAID) is ("clip" not in asked)
    assert (covered["class sizes"] is Coverage.PAID) is ("class_sizes" not in asked)
    assert Coverage.NOT_COVERED not in covered.values()
    assert "clip" not in asked or release.plan.preparation.clip == asked["clip"]
    assert release.guarantee.epsilon == pytest.approx(2.0, rel=1e-3)
    assert lines[-1].epsilon_composed == pytest.approx(2.0, rel=1e-3)
    assert release.guarantee.delta == pytest.approx(1e-5)


@pytest.mark.parametrize("declared", [(), ("class_sizes",), ("normalise",)])
def test_no_round_of_moments_lacks_a_line(
    declared: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Plan] = []
    real = capemix.sums.share.prepare_records

    def spy(plan: Plan, *rows: Any) -> Any:
        read.append(plan)
        return real(plan, *rows)

    monkeypatch.setattr("capemix.engines.local.prepare_records", spy)
    asked = {"class_sizes": (10_000, 10_000), "normalise": PublicMap.of_range(-2000, 2000)}
    release = release_of(
        a_table(),
        epsilon=2.0,
        source=SystemSource(),
        synthesizer="moments",
        **{"normalise": "paid"} | {name: asked[name] for name in declared},
    )
    lines = release.plan.budget()
    assert len(read) == len(lines)
    for plan, line in zip(read, lines, strict=True):
        assert plan.query.l2_norm_bound == pytest.approx(line.sensitivity)
        assert line.epsilon_alone is not None
    assert Coverage.NOT_COVERED not in {step.coverage for step in release.plan.steps}
    assert lines[-1].epsilon_composed == pytest.approx(2.0, rel=1e-2)
    assert release.guarantee.epsilon == pytest.approx(2.0, rel=1e-2)


def test_a_table_needs_nothing_declared(tmp_path: Path) -> None:
    rows = a_table()
    release = release_of(
        rows, epsilon=3.0, normalise="paid", clip=None, source=SystemSource(), samples=400
    )
    assert isinstance(release.plan.normalise, ColumnMap)
    means = [release.features[release.labels == k].mean(axis=0) for k in (0, 1)]
    real = [rows.features[rows.labels == k].mean(axis=0) for k in (0, 1)]
    scale = rows.features.std(axis=0)
    for made, true in zip(means, real, strict=True):
        assert np.all(np.abs(made - true) < 0.5 * scale)
    manifest = release.manifest({})
    assert [line["line"] for line in manifest["budget"]] == [*SHARES, "mixtures"]
    assert release.save(tmp_path / "out").exists()


def test_a_column_map_comes_back_from_json() -> None:
    from capemix.plan import make_plan

    plan = make_plan(
        width=2,
        class_sizes=(50,),
        samples=5,
        mixture=5,
        normalise=ColumnMap((1.0, 2.0), (0.5, 3.0), (-1.0, 0.0), (2.0, 9.0)),
        noise=1.0,
    )
    assert plan_from_json(plan.as_json()) == plan
    assert plan.steps[0].coverage is Coverage.PUBLIC  # no look paid for it: it counts as declared


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
    release = release_of(
        rows, epsilon=5.0, normalise="paid", clip=None, source=SystemSource(), samples=200
    )
    assert isinstance(release.plan, Plan)
    made = replace(rows, features=release.features, labels=release.labels)
    target = Target(made, release.plan.as_json(), release.plan.preparation)
    assert np.abs(target.synthetic()).max() < 20.0  # raw units are in the thousands


def test_nothing_is_written_into_a_release(
    capemix: Capemix, research: Capemix, tmp_path: Path
) -> None:
    release_of(
        a_table(500), epsilon=5.0, normalise="paid", clip=None, source=SystemSource(), samples=20
    ).save(tmp_path / "out")
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
