"""The baselines: their laws, bounds and costs, and what they are worth on the digits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from capemix import documents
from capemix.accounting import mint
from capemix.accounting.gaussian import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_multiplier,
    kept_probability,
)
from capemix.accounting.theorem1 import Theorem1
from capemix.api import Synthesizer, config_of, synthesize
from capemix.data import LabeledRows, Table, UnlistedRows, open_data, partition
from capemix.data.arrays import cells_of_arrays
from capemix.data.schema import Category, Number
from capemix.errors import EpsilonError, InputError
from capemix.evaluate import preparation_of, train_and_test
from capemix.facts import Facts
from capemix.guarantee import Status
from capemix.ledger import Ledger, Limit
from capemix.methods import methods
from capemix.methods.mixing import Mixing, Pool
from capemix.methods.mixing.planning import mixture_sum, plan_mixtures
from capemix.plan import Plan, make_plan
from capemix.queries import Relation
from capemix.randomness.source import SeededSource, Source
from capemix.randomness.tables import response_shift
from capemix.release import read_release
from capemix.sums.share import prepare_site
from capemix.sums.steps import PublicMap
from capemix_research.baselines import (
    Baseline,
    Projection,
    RecordMethod,
    RecordPlan,
    baseline_of,
    make_record_plan,
    noise_of,
)
from capemix_research.baselines.plan import unnamed_facts
from capemix_research.baselines.projection import back, project, public_matrix
from capemix_research.baselines.recordwise import (
    answered_labels,
    noised_rows,
    random_order,
    release_records,
)
from capemix_research.cli.baseline import MethodName
from conftest import Capemix

ACCEPT = 1e-6
REJECT = 1e-12
DELTA = 1e-5
RECORDWISE = tuple(RecordMethod)


def some_rows(count: int = 300, width: int = 6, classes: int = 3) -> LabeledRows:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, count)
    return LabeledRows(
        features=rng.normal(size=(count, width)) / 3 + np.eye(classes, width)[labels],
        labels=labels.astype(np.int64),
        classes=tuple(range(classes)),
        feature_names=tuple(f"x{i}" for i in range(width)),
    )


def variance_p(values: np.ndarray, deviation: float) -> float:
    """Two-sided, for centred and nearly normal values."""
    squares = float((values**2).sum()) / deviation**2
    return 2 * min(stats.chi2.sf(squares, values.size), stats.chi2.cdf(squares, values.size))


def a_mix(**asked: Any) -> Plan:
    given = {"width": 784, "class_sizes": (6000,) * 10, "samples": 2000, "mixture": 64}
    return plan_mixtures(**{**given, "pool": "all", **asked})


def dp_mix(**config: Any) -> Mixing:
    return Mixing(pool=Pool.ALL, label_noise=True, **config)


def tau(plan: Plan) -> float:
    """The deviation of the noise on a released mixture."""
    return mixture_sum(plan).deviation


def a_record_plan(name: str = "local-perturbation", **asked: Any) -> RecordPlan:
    facts = unnamed_facts(asked.pop("width", 6), asked.pop("classes", 3))
    return make_record_plan(name, facts, **asked)


# -- DP-Mix ------------------------------------------------------------------------------------


def test_dp_mix_has_one_pool_and_a_record_meets_all_draws() -> None:
    (group,) = mixture_sum(a_mix(noise=0.1)).participation
    assert (group.draws, group.selected, group.among) == (2000, 64, 60_000)
    by_class = a_mix(noise=0.1, pool="class")
    assert {(p.draws, p.among) for p in mixture_sum(by_class).participation} == {(200, 6000)}
    assert a_mix(clip=3.0).outline[0].l2_norm_bound == pytest.approx(math.sqrt(10))
    conventional = a_mix(noise=0.1, scheme="conventional", sites=10)
    assert mixture_sum(conventional).participation[0].among == 6000


def test_dp_mix_keeps_labels_noised() -> None:
    assert a_mix().outline[0].width == 784 + 10
    with pytest.raises(InputError, match="mixed label"):
        a_mix(label_noise=False)
    with pytest.raises(InputError, match="samples must give every class"):
        a_mix(samples=(200,) * 10)
    with pytest.raises(InputError, match="records there are"):
        a_mix(class_sizes=(6,) * 10)
    assert a_mix(class_sizes=(7,) * 10).outline[0].participation[0].among == 70


def test_dp_mix_costs_what_dp_accounting_says_of_t_draws_at_l_over_n() -> None:
    plan = a_mix().calibrate(5.0)
    multiplier = plan.guarantee().views["public"].noise_multiplier
    assert multiplier == pytest.approx(tau(plan) * 64 / math.sqrt(2))
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(64 / 60_000, dp_accounting.GaussianDpEvent(multiplier)),
        2000,
    )
    rdp = dp_accounting.rdp.RdpAccountant(range(2, 513)).compose(event).get_epsilon(DELTA)
    assert rdp > 5.0
    exact = pld.from_gaussian_mechanism(multiplier, sampling_prob=64 / 60_000)
    exact = exact.self_compose(2000)
    assert plan.guarantee().epsilon == pytest.approx(exact.get_epsilon_for_delta(DELTA), rel=2e-3)


def test_dp_mix_of_fixed_size_is_replace_one_with_both_labels_changed() -> None:
    plan = a_mix(selection="fixed-size", clip=2.0).calibrate(5.0)
    change = math.sqrt(4 * 2.0**2 + 2) / 64
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.SampledWithoutReplacementDpEvent(
            60_000, 64, dp_accounting.GaussianDpEvent(tau(plan) / change)
        ),
        2000,
    )
    accountant = dp_accounting.rdp.RdpAccountant(
        range(2, 257), dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    assert accountant.compose(event).get_epsilon(DELTA) == pytest.approx(5.0, rel=2e-3)
    assert mint.FIXED_POOL_ASSUMPTION in plan.guarantee().assumptions
    assert mint.FIXED_SIZE_ASSUMPTION not in plan.guarantee().assumptions


def test_the_papers_accountant_of_dp_mix_draws_at_l_over_n() -> None:
    plan = a_mix(accountant="paper", samples=60_000, mixture=4).calibrate(10.0)
    theorem = Theorem1(samples=60_000, rate=4 / 60_000, mixture=4, clip=1.0)
    assert theorem.epsilon(tau(plan), DELTA) == pytest.approx(10.0, rel=1e-3)
    # With K times DP-CDA's pool a draw costs less: T compositions, each at a rate K times lower.
    by_class = plan_mixtures(
        width=784, class_sizes=(6000,) * 10, samples=60_000, mixture=4, accountant="paper"
    ).calibrate(10.0)
    assert tau(plan) < tau(by_class)


def test_prepared_rows_of_one_pool_carry_every_label_within_the_bound() -> None:
    rows = some_rows()
    plan = plan_mixtures(
        width=6, class_sizes=(100,) * 3, samples=10, mixture=10, pool="all", noise=0.1, clip=0.7
    )
    query = mixture_sum(plan)
    (pool,) = prepare_site(query, rows.features, rows.labels).by_group  # type: ignore[union-attr]
    assert len(pool) == len(rows)
    whole = pool.astype(np.int64)
    assert np.einsum("ij,ij->i", whole, whole).max() <= query.lattice_norm_bound**2  # type: ignore[operator]
    assert (whole[:, 6:].argmax(axis=1) == rows.labels).all()
    off_the_list = np.where(rows.labels == 2, 7, rows.labels)
    (known,) = prepare_site(query, rows.features, off_the_list).by_group  # type: ignore[union-attr]
    assert len(known) == (rows.labels != 2).sum()


def test_mixed_labels_follow_the_noisy_law_and_not_one_10_percent_wider() -> None:
    """With equal rows and labels everywhere, a mixed label is Poisson counts over l plus noise."""
    count, mixture, noise = 400, 20, 0.4
    rows = LabeledRows(
        features=np.zeros((count, 2)),
        labels=np.zeros(count, dtype=np.int64),
        classes=(0, 1),
        feature_names=("a", "b"),
    )
    plan = plan_mixtures(
        width=2, class_sizes=(200, 200), samples=20_000, mixture=mixture, pool="all", noise=noise
    )
    release = synthesize(plan, rows, source=SeededSource(3))
    assert release.mixed_labels is not None
    own, other = release.mixed_labels.T.astype(np.float64)
    binomial = count * (mixture / count) * (1 - mixture / count) / mixture**2

    spread = math.sqrt(noise**2 + binomial)
    assert stats.kstest(other, "norm", args=(0, noise)).pvalue > ACCEPT
    for values, deviation in ((other, noise), (own - 1, spread)):
        assert variance_p(values, deviation) > ACCEPT
        assert variance_p(values, 1.1 * deviation) < REJECT
        assert variance_p(values, deviation / 1.1) < REJECT
    # The released label is the larger entry: wrong as often as two such normals cross.
    flipped = stats.norm.sf(1 / math.sqrt(2 * noise**2 + binomial))
    assert stats.binomtest(int((release.labels == 1).sum()), 20_000, flipped).pvalue > 1e-3


def test_dp_mix_over_sites_is_the_central_sum() -> None:
    train = open_data("digits").train
    asked = {"width": 64, "class_sizes": (140,) * 10, "samples": 60, "mixture": 20, "clip": 4.0}
    asked |= {"pool": "all", "normalise": PublicMap.of_range(0, 16)}
    plan = plan_mixtures(**asked, scheme="cape", sites=4).calibrate(8.0)
    release = synthesize(plan, partition(train, 4, "dirichlet", seed=0, alpha=0.1))
    assert release.guarantee.status is Status.GUARANTEE
    assert release.mixed_labels is not None
    assert release.mixed_labels.shape == (60, 10)
    assert (release.mixed_labels.argmax(axis=1) == release.labels).all()
    written = json.loads(json.dumps(documents.as_json(plan)))
    assert documents.from_json(Plan, written, name="the plan") == plan
    # The mixed labels tell how many records were drawn: l on average, over all sites.
    spread = math.sqrt((10 * tau(plan) ** 2 + 1 / 20) / 60)
    assert release.mixed_labels.sum(axis=1).mean() == pytest.approx(1.0, abs=6 * spread)


def test_undeclared_sizes_fix_the_pool_and_are_paid_for() -> None:
    train = open_data("digits").train
    method = dp_mix(mixture=300, samples=50, clip=4.0)
    plan = make_plan(Facts.of(train, normalise=PublicMap()), method).calibrate(8.0)
    release = synthesize(plan, train, source=SeededSource(0))
    assert release.guarantee.epsilon == pytest.approx(8.0, rel=1e-3)
    assert release.plan.outline[-1].participation[0].among == pytest.approx(len(train), rel=0.1)


# -- accounting of records released one by one -----------------------------------------------------


@settings(max_examples=60)
@given(epsilon=st.floats(0.05, 30), delta=st.sampled_from([1e-3, 1e-5, 1e-9]))
def test_the_analytic_gaussian_mechanism_is_dp_accountings(epsilon: float, delta: float) -> None:
    multiplier = gaussian_multiplier(epsilon, delta)
    theirs = GaussianPrivacyLoss(multiplier).get_delta_for_epsilon(epsilon)
    assert gaussian_delta(epsilon, multiplier) <= delta
    assert theirs == pytest.approx(delta, rel=1e-6)
    assert gaussian_delta(epsilon, multiplier * 0.999) > delta
    assert gaussian_epsilon(multiplier, delta) == pytest.approx(epsilon, rel=1e-9)


def test_the_analytic_gaussian_mechanism_agrees_with_a_privacy_loss_distribution() -> None:
    for epsilon in (0.5, 5.0, 20.0):
        multiplier = gaussian_multiplier(epsilon, DELTA)
        found = pld.from_gaussian_mechanism(multiplier).get_epsilon_for_delta(DELTA)
        assert found == pytest.approx(epsilon, rel=1e-3)


def test_the_classical_formula_is_larger_where_it_holds() -> None:
    for epsilon in (0.1, 0.5, 0.9):
        classical = math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon
        assert gaussian_multiplier(epsilon, DELTA) < classical


def test_the_ends_of_the_analytic_mechanism() -> None:
    assert gaussian_delta(1.0, 0.0) == 1.0
    assert gaussian_epsilon(0.0, DELTA) == math.inf
    assert gaussian_epsilon(1e9, DELTA) == 0.0
    assert gaussian_multiplier(math.inf, DELTA) == 0.0
    assert gaussian_delta(2000.0, 0.01) <= 1.0  # no overflow
    assert kept_probability(math.inf, 10) == 1.0
    assert kept_probability(0.0, 10) == pytest.approx(0.1)


@pytest.mark.parametrize("name", RECORDWISE)
@pytest.mark.parametrize("classes", [1, 2, 10])
def test_calibrate_and_guarantee_invert_each_other(name: str, classes: int) -> None:
    for epsilon in (0.1, 1.0, 10.0, 30.0):
        plan = a_record_plan(name, classes=classes, clip=3.0).calibrate(epsilon)
        guarantee = plan.guarantee()
        assert guarantee.epsilon is not None
        assert epsilon * (1 - 1e-6) <= guarantee.epsilon <= epsilon
        assert guarantee.status is Status.GUARANTEE
        assert guarantee.relation is Relation.REPLACE_ONE
        assert guarantee.accountant == "analytic Gaussian"
        assert plan.label_epsilon == pytest.approx(0.5 * epsilon if classes > 1 else 0.0)
        assert plan.noise == pytest.approx(
            6.0 * gaussian_multiplier(epsilon * (0.5 if classes > 1 else 1.0), DELTA), rel=1e-6
        )


def test_row_and_label_together_cost_no_more_than_claimed() -> None:
    """The exact loss of both, composed by dp_accounting, is within the sum of the two."""
    plan = a_record_plan(classes=10).calibrate(4.0)
    row = pld.from_gaussian_mechanism(plan.noise_multiplier / 2)
    # Its parameter is the chance of a uniform answer, the true one among them.
    uniform = (1 - plan.label_kept) * 10 / 9
    label = pld.from_randomized_response(uniform, 10)
    both = row.compose(label).get_epsilon_for_delta(DELTA)
    assert both <= 4.0 * (1 + 1e-3)
    assert both > 3.0


def test_nothing_is_proved_beyond_the_samplers_error_so_no_more_can_be_asked_for() -> None:
    plan = a_record_plan()
    with pytest.raises(EpsilonError, match=r"more than can be delivered.*got 200.*at most") as said:
        plan.calibrate(200.0)
    most = said.value.most
    kept = plan.calibrate(0.999 * most)
    assert kept.guarantee().epsilon == pytest.approx(0.999 * most, rel=1e-6)
    guarantee = plan.with_noise((kept.noise or 0.0) / 2).guarantee()  # which 200 would need
    assert guarantee.epsilon is None
    assert guarantee.status is Status.NO_PRIVACY


def test_sites_release_side_by_side_at_the_same_guarantee() -> None:
    rows = some_rows()
    plan = a_record_plan().calibrate(3.0)
    alone = release_records(plan, [rows])
    apart = release_records(plan, partition(rows, 3, "iid", seed=0))
    assert len(alone) == len(apart) == len(rows)
    assert alone.guarantee.epsilon == apart.guarantee.epsilon
    assert apart.guarantee.adversary.colluding == 2
    assert set(apart.guarantee.views) == {"public", "server"}
    assert "records, at every site, is public" in " ".join(apart.guarantee.assumptions)


# -- their laws and bounds -------------------------------------------------------------------------


def test_noise_follows_the_calibrated_normal_and_not_one_3_percent_wider() -> None:
    plan = a_record_plan(width=50, clip=2.0).calibrate(5.0)
    released = noised_rows(plan, np.zeros((2000, 50)), SeededSource(1)).reshape(-1)
    assert plan.noise is not None
    assert stats.kstest(released, "norm", args=(0, plan.noise)).pvalue > ACCEPT
    assert variance_p(released, plan.noise) > ACCEPT
    assert variance_p(released, 1.03 * plan.noise) < REJECT
    assert variance_p(released, plan.noise / 1.03) < REJECT


def test_labels_follow_randomised_response_and_not_one_at_half_the_budget() -> None:
    plan = a_record_plan(classes=5).calibrate(4.0)
    labels = np.full(200_000, 3)
    answered = answered_labels(plan, labels, SeededSource(2))
    counts = np.bincount(answered, minlength=5)

    def p_value(epsilon: float) -> float:
        expected = np.full(5, (1 - kept_probability(epsilon, 5)) / 4)
        expected[3] = kept_probability(epsilon, 5)
        return float(stats.chisquare(counts, expected * len(labels)).pvalue)

    assert p_value(2.0) > ACCEPT
    assert p_value(1.0) < REJECT
    assert p_value(2.05) < REJECT


@settings(max_examples=40)
@given(epsilon=st.floats(0, 60), answers=st.integers(1, 40))
def test_the_table_of_answers_keeps_its_epsilon(epsilon: float, answers: int) -> None:
    law = response_shift(epsilon, answers).probabilities()
    told = [float(law.get(shift, 0)) for shift in range(answers)]
    assert sum(law.values()) == 1
    assert told[0] == pytest.approx(kept_probability(epsilon, answers), rel=1e-12)
    for other in told[1:]:
        assert other == pytest.approx(math.exp(-epsilon) * told[0], rel=1e-9)


def test_the_table_of_answers_refuses_what_it_cannot_hold() -> None:
    for epsilon, answers in ((-1.0, 3), (math.nan, 3), (1.0, 0)):
        with pytest.raises(ValueError, match="no table"):
            response_shift(epsilon, answers)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-3, 1.0, 1e3, 1e200]),
    dimensions=st.integers(1, 8),
)
def test_no_projected_row_exceeds_its_bound_whatever_the_matrix(
    seed: int, scale: float, dimensions: int
) -> None:
    rows = np.random.default_rng(seed).normal(size=(5, 8)) * scale
    for projection in (None, Projection(dimensions, seed)):
        plan = RecordPlan(
            method=RecordMethod(
                "local-perturbation" if projection is None else "random-projection"
            ),
            facts=unnamed_facts(8, 1),
            clip=1.5,
            delta=DELTA,
            projection=projection,
            noise=0.0,
        )
        released = noised_rows(plan, rows, SeededSource(0))
        if projection is not None:
            released = project(released, public_matrix(projection, 8))
        assert np.linalg.norm(released, axis=1).max() <= 1.5 * (1 + 1e-6)


def test_the_public_matrix_keeps_norms_on_average_and_comes_back() -> None:
    projection = Projection(50, seed=3)
    matrix = public_matrix(projection, 200)
    assert (matrix == public_matrix(projection, 200)).all()
    assert not (matrix == public_matrix(replace(projection, seed=4), 200)).any()
    assert stats.kstest(matrix.reshape(-1), "norm", args=(0, 50**-0.5)).pvalue > ACCEPT
    assert variance_p(matrix, 50**-0.5) > ACCEPT
    assert variance_p(matrix, 1.1 * 50**-0.5) < REJECT
    rows = np.random.default_rng(0).normal(size=(20, 50))
    assert project(back(rows, matrix), matrix) == pytest.approx(rows)


# -- noise for experiments -------------------------------------------------------------------------


def test_noise_of_gives_every_baselines_noise() -> None:
    asked = {"epsilon": 10.0, "samples": 60_000, "records": 60_000, "mixture": 4}
    found = {
        kind: noise_of(kind, **({"sites": 10} if "conv" in kind else {}), **asked)
        for kind in Baseline
    }
    assert found[Baseline.CENTRAL].row == pytest.approx(0.344, rel=5e-3)
    assert found[Baseline.CONVENTIONAL].row == pytest.approx(
        math.sqrt(10) * found[Baseline.CENTRAL].row, rel=1e-6
    )
    assert found[Baseline.DP_MIX].label == found[Baseline.DP_MIX].row < 0.344
    for kind in (Baseline.RANDOM_PROJECTION, Baseline.LOCAL_PERTURBATION):
        assert found[kind].row == pytest.approx(2 * gaussian_multiplier(5.0, DELTA), rel=1e-5)
        assert found[kind].label is None
        assert found[kind].label_kept == pytest.approx(kept_probability(5.0, 10))
    assert noise_of("dp-cda", **{**asked, "epsilon": math.inf}).row == 0.0
    sound = noise_of("dp-mix", **{**asked, "samples": 2000, "mixture": 64}, accountant="sound")
    assert sound.row == tau(a_mix().calibrate(10.0))
    shared = noise_of("local-perturbation", epsilon=10.0, label_share=0.2)
    assert shared.row == pytest.approx(2 * gaussian_multiplier(8.0, DELTA), rel=1e-5)


# -- on the digits ---------------------------------------------------------------------------------


def accuracy(name: str, epsilon: float, seed: int = 1, **asked: Any) -> float:
    digits = open_data("digits")
    assert digits.test is not None
    assert digits.info is not None
    source, how = SeededSource(seed), PublicMap.of_range(0, 16)
    if name == "dp-mix":
        facts = Facts.of(digits.train, class_sizes=digits.info.class_sizes, normalise=how)
        plan = make_plan(facts, dp_mix(samples=1400, clip=4.0, **asked)).calibrate(epsilon)
        release = synthesize(plan, digits.train, source=source)
    else:
        release = baseline_of(
            name, digits.train, epsilon=epsilon, source=source, clip=4.0, normalise=how
        )
    rows = LabeledRows(
        features=release.features.astype(np.float64),
        labels=release.labels,
        classes=digits.train.classes,
        feature_names=digits.train.feature_names,
    )
    preparation = preparation_of(release.manifest({}))
    score = train_and_test(rows, digits.test, preparation, prepared=True)
    return score.declared_public().accuracy


def test_dp_mix_learns_the_digits_without_noise_and_with_little() -> None:
    assert accuracy("dp-mix", math.inf, mixture=2) > 0.85
    assert accuracy("dp-mix", 40.0, mixture=4) > 0.6


@pytest.mark.parametrize("name", RECORDWISE)
def test_records_one_by_one_are_worth_little_at_small_budgets(name: str) -> None:
    assert accuracy(name, math.inf) > 0.75
    assert accuracy(name, 1.0) < 0.25
    assert accuracy(name, 10.0) < 0.5


# -- the command line and the Python interface ----------------------------------------------------


def test_the_command_lines_names_are_the_methods() -> None:
    assert get_args(MethodName) == tuple(RecordMethod)
    assert not {*methods()} & {*RecordMethod}


@pytest.mark.parametrize("name", ["dp-mix", *RECORDWISE])
def test_every_baseline_makes_a_release_that_can_be_evaluated(
    capemix: Capemix, research: Capemix, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "release"
    asked = ("--epsilon", 5, "--out", out, "--json")
    if name == "dp-mix":
        ran = capemix("synth", "--method", "mixing", "--pool", "all", "--label-noise", *asked)
    else:
        ran = research("baseline", "--method", name, *asked)
    assert ran.code == 0, ran.err
    assert ran.json["status"] == "guarantee"
    assert ran.json["epsilon"] == pytest.approx(5, rel=1e-3)
    files = {"manifest.json", "report.html", "synthetic.npz", "synthetic.parquet"}
    assert {p.name for p in out.iterdir()} == files | (
        {"mixed_labels.npy", "signature.json"} if name == "dp-mix" else set()
    )
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["rows"] == (1000 if name == "dp-mix" else 1442)
    if name == "dp-mix":
        assert manifest["plan"]["method"]["pool"] == "all"
        assert np.load(out / "mixed_labels.npy").shape == (1000, 10)
    else:
        assert manifest["plan"]["method"] == name
        assert manifest["guarantee"]["relation"] == "replace-one"
    saved, digits = read_release(out), open_data("digits")
    assert digits.test is not None
    how = preparation_of(saved.manifest)
    score = train_and_test(saved.rows, digits.test, how, prepared=True).declared_public()
    assert 0 <= score.accuracy <= 1


@pytest.mark.parametrize("name", RECORDWISE)
def test_a_screen_for_people(research: Capemix, tmp_path: Path, name: str) -> None:
    ran = research("baseline", "--method", name, "--epsilon", 5, "--out", tmp_path / "r")
    for word in ("analytic Gaussian", "replace-one", "randomised response", "row of norm 4"):
        assert word in " ".join(ran.out.split())


def test_account_and_calibrate_know_dp_mix(capemix: Capemix) -> None:
    words: list[object] = [
        "--method",
        "mixing",
        "--pool",
        "all",
        "--label-noise",
        "--classes",
        10,
        "--clip",
        2,
        "--json",
    ]
    words += ["--records", 60_000, "--samples", 2000, "--mixture", 64]
    first = capemix("calibrate", "--epsilon", 3, *words).json
    again = capemix("account", "--noise", first["noise"], *words).json
    assert first["epsilon"] == pytest.approx(3, rel=1e-3)
    assert again == {**first, "epsilon": pytest.approx(first["epsilon"])}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--projection", 4], "--projection has no meaning"),
        (["--partition", "iid"], "--partition has no meaning"),
        (["--clip", 0], "--clip must be"),
        (["--delta", 2], "--delta must be"),
        (["--epsilon", -1], "--epsilon must be"),
        (["--epsilon", 1000], "--epsilon is more than"),
        (["--public-range", "some"], "--public-range must be"),
        (["--method", "random-projection", "--projection", 65], "64 features"),
        (["--lineage", "people", "--no-ledger"], "contradicts --lineage"),
        (["--lineage", "people", "--test-seed", 1], "no budget can pay"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(
    research: Capemix, tmp_path: Path, words: list[object], says: str
) -> None:
    out = tmp_path / "r"
    method = ("--method", "local-perturbation", "--epsilon", 5)
    ran = research("baseline", *method, "--out", out, *words)
    assert ran.code == 2
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--mixture", 4],
        ["--samples", 4],
        ["--scheme", "cape"],
        ["--accountant", "paper"],
        ["--selection", "poisson"],
        ["--class-sizes", 140],
        ["--no-label-noise"],
        ["--law", "rounded"],
        ["--relation", "add-or-remove-one"],
        ["--normalise", "site-zscore"],
    ],
    ids=lambda words: words[0],
)
def test_what_mixtures_alone_have_is_no_option(
    research: Capemix, tmp_path: Path, words: list[object]
) -> None:
    out = tmp_path / "r"
    method = ("--method", "local-perturbation", "--epsilon", 5)
    ran = research("baseline", *method, "--out", out, *words)
    assert ran.code == 2
    assert "No such option" in ran.err
    assert str(words[0]) in ran.err
    assert not out.exists()


@pytest.mark.parametrize("name", RECORDWISE)
@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("synth", ("--epsilon", 5, "--mixture", 4)),
        ("synth", ()),
        ("calibrate", ("--epsilon", 5, "--classes", 10)),
        ("account", ("--noise", 5, "--classes", 10)),
    ],
)
def test_the_old_spelling_says_the_new_command(
    capemix: Capemix, tmp_path: Path, command: str, more: tuple[object, ...], name: str
) -> None:
    words = (*more, "--out", tmp_path / "r") if command == "synth" else more
    ran = capemix(command, *words, "--synthesizer", name)
    assert (ran.code, ran.out) == (2, "")
    assert f"is now `capemix-research baseline --method {name}`" in ran.err
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("name", RECORDWISE)
def test_the_product_does_not_know_them(name: str) -> None:
    with pytest.raises(InputError, match="method is unknown"):
        config_of(name)
    with pytest.raises(InputError, match="method is unknown"):
        Synthesizer(method=name).fit(np.zeros((4, 2)), [0, 1, 0, 1])


def write_rows(path: Path) -> Path:
    rows = some_rows()
    lines = [
        f"{a:.3f},{b:.3f},{y}" for (a, b, *_), y in zip(rows.features, rows.labels, strict=True)
    ]
    path.write_text("\n".join(["a,b,y", *lines]) + "\n")
    return path


def test_a_file_of_ones_own_is_counted_or_not_by_name(research: Capemix, tmp_path: Path) -> None:
    asked: list[object] = ["baseline", "--method", "local-perturbation", "--epsilon", 2]
    asked += ["--data", write_rows(tmp_path / "t.csv"), "--label", "y"]
    out = tmp_path / "r"
    for more, says in (
        ((), "--lineage is needed"),
        (("--no-ledger",), "--classes must be declared for local-perturbation"),
        (("--no-ledger", "--sites", 2), "--classes must be declared"),
    ):
        ran = research(*asked, *more, "--out", out)
        assert ran.code == 2
        assert says in ran.err
        assert not out.exists()
    listed = ("--classes", "0,1,2", "--json", "--out")
    assert research(*asked, "--no-ledger", *listed, out).json["status"] == "guarantee"
    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.set_limit("people", Limit(3.0, 1e-5, Relation.REPLACE_ONE))
    counted = ("--lineage", "people", "--ledger", ledger.path)
    assert research(*asked, *counted, *listed, tmp_path / "first").code == 0
    assert ledger.lineage("people").account().total.charges == 1
    ran = research(*asked, *counted, *listed, tmp_path / "second")
    assert ran.code == 2
    assert not (tmp_path / "second").exists()


def test_dealt_sites_release_every_record_at_the_same_guarantee(
    research: Capemix, tmp_path: Path
) -> None:
    words = ("--sites", 3, "--partition", "dirichlet", "--epsilon", 5, "--json")
    out = tmp_path / "r"
    ran = research("baseline", "--method", "random-projection", *words, "--out", out)
    assert ran.json["epsilon"] == pytest.approx(5, rel=1e-3)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["rows"] == 1442
    assert manifest["plan"]["projection"] == {"dimensions": 16, "seed": 0}


def test_an_epsilon_that_cannot_be_delivered_is_refused_before_rows_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_args: Any) -> Any:
        raise AssertionError("rows were read")

    asked: dict[str, Any] = {"source": SeededSource(1)}
    with monkeypatch.context() as patched:
        patched.setattr("capemix_research.baselines.recordwise.every_record", never)
        with pytest.raises(EpsilonError, match=r"epsilon is more than.*\(got 1000\)") as said:
            baseline_of("local-perturbation", some_rows(), epsilon=1000.0, **asked)
    most = math.floor(10 * said.value.most) / 10
    assert f"give at most {most:g}, or inf" in str(said.value)
    release = baseline_of("local-perturbation", some_rows(), epsilon=most, **asked)
    assert release.guarantee.epsilon == pytest.approx(most, rel=2e-3)


def test_other_refusals(capemix: Capemix, tmp_path: Path) -> None:
    for words, says in (
        (["synth", "--out", tmp_path / "r", "--projection", 4], "No such option"),
        (["synth", "--out", tmp_path / "r", "--method", "magic"], "magic"),
    ):
        ran = capemix(*words, "--epsilon", 5)
        assert ran.code == 2
        assert says in ran.err


def test_plans_and_rows_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="method is unknown"):
        a_record_plan("mixing")
    coded = Table((Number("a", 0, 1),), Category("y", (0, 1))).no_rows()
    with pytest.raises(InputError, match="must have no schema"):
        baseline_of("local-perturbation", coded, epsilon=1.0)
    for wrong in ({"label_share": 1.0}, {"label_share": -0.1}, {"classes": 0}, {"clip": math.nan}):
        with pytest.raises(InputError):
            a_record_plan(**wrong)
    with pytest.raises(InputError, match="calibrate"):
        a_record_plan().guarantee()
    for epsilon in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="epsilon"):
            a_record_plan().calibrate(epsilon)
    plan = a_record_plan().calibrate(1.0)
    with pytest.raises(InputError, match="6 columns"):
        release_records(plan, [some_rows(width=5)])
    with pytest.raises(TypeError, match="SystemSource"):
        release_records(plan, [some_rows()], source=np.random.default_rng(0))  # type: ignore[arg-type]


def test_a_record_plan_has_no_place_for_a_noise_seed() -> None:
    assert "seed" not in {field.name for field in fields(RecordPlan)}
    rows, plan = some_rows(), a_record_plan().calibrate(1.0)
    first, second = release_records(plan, [rows]), release_records(plan, [rows])
    assert not (first.features == second.features).all()
    seeded = [release_records(plan, [rows], source=SeededSource(5)) for _ in range(2)]
    assert (seeded[0].features == seeded[1].features).all()
    assert (seeded[0].labels == seeded[1].labels).all()
    assert seeded[0].guarantee.status is Status.SEEDED


def test_a_synthesizer_by_method() -> None:
    rows = some_rows()
    made = Synthesizer(5.0, method=dp_mix(), public_range=(-3, 3), classes=rows.classes)
    fitted = made.fit(rows.features, rows.labels)
    X, y = fitted.sample()
    assert X.shape == (1000, 6)
    assert set(y) <= {0, 1, 2}
    assert fitted.guarantee_.epsilon == pytest.approx(5.0, rel=1e-3)


@pytest.mark.parametrize("name", RECORDWISE)
def test_a_record_that_counts_for_nothing_is_released_as_one_all_the_same(name: str) -> None:
    """Their number is public, so it may not tell which of them could be read."""
    rows = some_rows()
    spoilt, labels = rows.features.astype(float), rows.labels.astype(object)
    spoilt[3, 2], labels[5], labels[7] = np.nan, "off the list", None
    unlisted = UnlistedRows.of(cells_of_arrays(spoilt, labels), "label")
    asked: dict[str, Any] = {"normalise": PublicMap.of_range(-3, 3), "epsilon": 5.0}
    released = baseline_of(name, unlisted.listed(rows.classes), **asked)
    assert len(released) == len(rows)
    assert set(released.labels) <= {0, 1, 2}
    assert released.guarantee.epsilon == pytest.approx(5.0, rel=1e-3)
    with pytest.raises(InputError, match=f"must be declared for {name}"):
        baseline_of(name, unlisted, **asked)


def test_released_records_are_in_no_order_of_the_file() -> None:
    """A record that is read otherwise, or not at all, may take another place among the rows; the
    places of the others must not tell."""
    rows = some_rows()
    plan = a_record_plan(clip=10.0).calibrate(math.inf)
    released = release_records(plan, partition(rows, 2, "iid", seed=0), source=SeededSource(1))
    apart = np.linalg.norm(released.features[:, None] - rows.features[None], axis=2)
    order = apart.argmin(axis=1)
    assert sorted(order.tolist()) == list(range(300))
    assert (released.labels == rows.labels[order]).all()
    assert abs(stats.spearmanr(order, np.arange(300)).statistic) < 0.3


def test_pools_by_name() -> None:
    assert list(Pool) == ["class", "all"]
    with pytest.raises(InputError, match="pool"):
        a_mix(pool="some")


def places_of_the_first(orders: Callable[[int, Source], np.ndarray], rows: int) -> np.ndarray:
    drawn = [orders(rows, SeededSource(seed)) for seed in range(2000)]
    return np.bincount([int(np.flatnonzero(order == 0)[0]) for order in drawn], minlength=rows)


def test_records_come_in_any_order_alike_and_one_that_favours_a_place_is_found() -> None:
    """Where a record stood in its file would otherwise say something of the records before it."""
    assert sorted(random_order(7, SeededSource(1)).tolist()) == list(range(7))
    assert stats.chisquare(places_of_the_first(random_order, 5)).pvalue > ACCEPT

    def as_they_stand(count: int, source: Source) -> np.ndarray:
        order = random_order(count, source)
        return np.arange(count) if order[1] == 1 else order

    assert stats.chisquare(places_of_the_first(as_they_stand, 5)).pvalue < REJECT
