"""The audit: its bounds hold, it stays below sound claims, and it sees what is broken.

Seeds are fixed and the confidence is 0.999, so a false alarm in a correct pipeline has at most one
chance in a thousand for each bound, before the slack of the claim itself.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import pickle
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from scipy import stats

from capemix import program_cost
from capemix.accounting import mint
from capemix.accounting.compose import as_one
from capemix.accounting.gaussian import gaussian_epsilon
from capemix.api import config_of, synthesize
from capemix.audit import bounds
from capemix.audit.canary import Change, two_worlds
from capemix.audit.configurations import (
    SETTINGS,
    pairs_setting,
    small_plan,
    sound_settings,
    table_setting,
)
from capemix.audit.drawn import Setting, log_ratio
from capemix.audit.facts import facts_setting
from capemix.audit.many import Task, audit_all, sound_tasks, write_table
from capemix.audit.measure import Measured, audit, measure
from capemix.audit.membership import Attack, Target, attack, judge
from capemix.audit.programs import Program, added, carried_out, corners
from capemix.audit.settings import Lost, Scores, View
from capemix.audit.views import Observer
from capemix.collector import Collector
from capemix.data import LabeledRows, open_data
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.methods import Method, SyntheticRows
from capemix.methods.mixing.planning import plan_mixtures
from capemix.plan import Plan, make_plan
from capemix.queries import Participation, QueryShape, Relation
from capemix.randomness.source import ByteStream, SeededSource, derive_key
from capemix.randomness.tables import rounded_gaussian
from capemix.release import read_release
from capemix.statistics.histograms import ClassCounts
from capemix.sums import rows as prepare_rows_module
from capemix.sums.query import SumQuery
from capemix.sums.select import select
from capemix.sums.share import SourceDraws
from capemix.sums.steps import PublicMap, SiteZScore
from capemix.zerosum.masks import RingMasks
from capemix_research.audit.paper import paper_settings, paper_tasks, with_power
from capemix_research.audit.power import Pair, would_catch
from capemix_research.report.audit_page import paper_table, sound_table
from conftest import Capemix
from world import labeled_rows

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "docs" / "research" / "audit"
CONFIDENCE = 0.999


def normal_scores(mu: float, runs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Log ratios of N(mu, 1) over N(0, 1), without and with."""
    rng = np.random.default_rng(seed)
    return tuple(mu * (rng.normal(size=runs) + shift) - mu**2 / 2 for shift in (0.0, mu))  # type: ignore[return-value]


# -- the bounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (1, 10), (7, 10), (10, 10), (3, 5000)])
def test_rates_are_bounded_as_scipy_bounds_them(successes: int, trials: int) -> None:
    interval = stats.binomtest(successes, trials).proportion_ci(0.9, "exact")
    assert bounds.at_least(successes, trials, 0.95) == pytest.approx(interval.low, abs=1e-12)
    assert bounds.at_most(successes, trials, 0.95) == pytest.approx(interval.high, abs=1e-12)


@pytest.mark.parametrize(("mu", "delta"), [(0.5, 1e-2), (1.5, 1e-3), (3.0, 0.1)])
def test_the_bound_is_jax_privacys(mu: float, delta: float) -> None:
    auditing = import_module("jax_privacy.auditing")
    without, with_ = normal_scores(mu, 4000, 1)
    found = bounds.clopper_pearson_epsilon(without, with_, delta, 0.95)
    level = found.test.threshold
    pooled = np.sort(np.concatenate([without, with_]))
    level += (pooled[np.searchsorted(pooled, level, side="right")] - level) / 2  # between scores
    judge = auditing.CanaryScoreAuditor(bounds.halves(with_)[1], bounds.halves(without)[1])
    theirs = judge.epsilon_clopper_pearson(
        0.05, delta, one_sided=False, threshold_strategy=auditing.Explicit(level)
    )
    ours = [
        bounds.clopper_pearson_epsilon(
            without, with_, delta, 0.95, bounds.Test(level, reverse)
        ).epsilon
        for reverse in (False, True)
    ]
    assert max(ours) == pytest.approx(theirs, abs=1e-9)
    assert max(ours) == pytest.approx(found.epsilon, abs=1e-9)


def test_the_gaussian_fit_is_near_jax_privacys_and_below_the_truth() -> None:
    auditing = import_module("jax_privacy.auditing")
    mu, delta = 1.2, 1e-5
    without, with_ = normal_scores(mu, 20_000, 2)
    epsilon, found = bounds.gaussian_fit_epsilon(without, with_, delta, 0.95)
    theirs = auditing.CanaryScoreAuditor(with_, without).epsilon_from_gdp(0.05, delta)
    truth = gaussian_epsilon(1 / mu, delta)
    assert max(theirs, epsilon) < truth
    assert epsilon == pytest.approx(theirs, rel=0.05)  # theirs pays for trying every threshold
    assert 0.9 * mu < found < mu


@pytest.mark.parametrize("bound", ["counts", "ratio", "fit"])
def test_no_bound_exceeds_the_truth_more_often_than_its_confidence_allows(bound: str) -> None:
    mu, delta, repeats = 1.5, 1e-2, 200
    truth = gaussian_epsilon(1 / mu, delta)
    above = 0
    for seed in range(repeats):
        without, with_ = normal_scores(mu, 400, seed)
        if bound == "counts":
            found = bounds.clopper_pearson_epsilon(without, with_, delta, 0.9).epsilon
        elif bound == "ratio":
            found = bounds.ratio_law_epsilon(with_, delta, 0.9)
        else:
            found = bounds.gaussian_fit_epsilon(without, with_, delta, 0.9)[0]
        above += found > truth
    assert above <= stats.binom.ppf(1 - 1e-6, repeats, 0.1)


def test_the_ratio_law_reaches_far_beyond_what_counts_can_show() -> None:
    """mu = 6: epsilon about 44 at 1e-5, from 2000 runs that could show 4.9 by counting."""
    without, with_ = normal_scores(6.0, 2000, 3)
    truth = gaussian_epsilon(1 / 6, 1e-5)
    assert bounds.ceiling(2000, 2000, 1e-5, CONFIDENCE) < 5
    assert 0.6 * truth < bounds.ratio_law_epsilon(with_, 1e-5, CONFIDENCE) < truth
    counted = bounds.clopper_pearson_epsilon(without, with_, 1e-5, CONFIDENCE)
    assert counted.epsilon <= bounds.ceiling(2000, 2000, 1e-5, CONFIDENCE)
    assert bounds.power(counted, 3.0, 1e-5, CONFIDENCE) > 0.99
    assert bounds.power(counted, 10.0, 1e-5, CONFIDENCE) == 0.0
    assert bounds.ratio_law_power(with_, 10.0, 1e-5, CONFIDENCE) > 0.99
    assert bounds.ratio_law_power(with_, 2 * truth, 1e-5, CONFIDENCE) < 0.01


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(InputError, match="too few"):
        bounds.clopper_pearson_epsilon(np.zeros(5), np.ones(5), 0.01, 0.95)


# -- the laws that scores rest on ------------------------------------------------------------------


def tight(draws: int = 100, **asked: Any) -> Setting:
    """Where a small excess shows: a large delta, and exact accounting for one curator."""
    asked = {"scheme": "central", "law": "rounded", **asked}
    plan = small_plan(2.0, mixture=10, size=100, draws=draws, delta=0.1, **asked)
    return Setting("tight", plan, reference=False)


def variance_p_value(noise: np.ndarray) -> float:
    found = float((noise**2).sum())
    return 2 * min(stats.chi2.sf(found, noise.size), stats.chi2.cdf(found, noise.size))


@pytest.mark.parametrize(
    ("view", "asked"),
    [
        (View.PUBLIC, {"scheme": "central"}),
        (View.PUBLIC, {"scheme": "cape", "sites": 4, "dropouts": 1}),
        (View.SERVER, {"scheme": "cape", "sites": 4, "dropouts": 1}),
        (View.SERVER, {"scheme": "cape", "sites": 4, "dropouts": 1, "masks": "gaussian"}),
        (View.SERVER, {"scheme": "conventional", "sites": 3}),
        (View.SERVER, {"scheme": "cape", "form": "algorithm1", "sites": 3}),
    ],
)
def test_what_is_seen_without_a_canary_has_the_law_that_scores_assume(
    view: View, asked: dict[str, Any]
) -> None:
    """Noise of the stated deviation around the stated base: no part of any mask is left."""
    plan = plan_mixtures(
        width=1, class_sizes=(60, 60), samples=(2000, 2000), mixture=5, label_noise=False,
        noise=0.3, **asked,
    )  # fmt: skip
    observer = Observer(Setting("law", plan, view))
    first, difference, *_ = observer.observe(0, SeededSource(1))
    signal = observer.signals[0]
    # With rows on the lattice or at fixed size, nothing but noise moves the sums.
    noise = (first - signal.base) / signal.deviation
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert variance_p_value(noise) > 1e-6
    assert variance_p_value(1.1 * noise) < 1e-6
    other = observer.signals[1]
    assert stats.kstest((difference - other.base) / other.deviation, "norm").pvalue > 1e-6
    query = plan.query("mixtures")
    claimed = plan.guarantee().views[view].noise_multiplier * query.l2_norm_bound
    claimed *= query.lattice_scale
    assert signal.deviation == pytest.approx(claimed, rel=1e-9)


def test_a_score_is_the_log_ratio_of_the_two_laws() -> None:
    """E_without[e^L] = 1 and E_with[e^-L] = 1, over runs of the pipeline."""
    setting = tight(draws=5)
    scores = setting.scores(1500, source=SeededSource(5))
    for found, sign in ((scores.without[:, 0], 1.0), (scores.with_[:, 0], -1.0)):
        ratios = np.exp(sign * found)
        assert ratios.mean() == pytest.approx(1.0, abs=5 * ratios.std() / math.sqrt(len(ratios)))
    signal = Observer(setting).signals[0]
    draws = np.linspace(-2, 3, 5) * signal.deviation
    q, moved = signal.probability, signal.in_[1][0]
    base = stats.norm.pdf(draws, 0, signal.deviation)
    mixed = (1 - q) * base + q * stats.norm.pdf(draws, moved, signal.deviation)
    assert log_ratio(draws, signal) == pytest.approx(np.log(mixed / base).sum())


def test_canaries_come_too_long_and_are_clipped() -> None:
    query = tight().query
    without, with_ = two_worlds(query, Change.ADDED)
    bound = query.lattice_norm_bound
    assert bound is not None
    first, second = (world.sites[0].by_group[0] for world in (without, with_))  # type: ignore[union-attr]
    assert len(second) == len(first) + 1
    assert bound - 1 <= with_.canary[0] <= bound
    assert without.canary[0] == 0.0
    replaced = two_worlds(query, Change.REPLACED)
    assert replaced[0].canary[0] == -replaced[1].canary[0] != 0.0
    moved = two_worlds(query, Change.RELABELLED)
    assert (moved[0].canary[0], moved[1].canary[1]) == (0.0, 0.0)
    assert moved[1].canary[0] == moved[0].canary[1] != 0.0


# -- sound claims hold -----------------------------------------------------------------------------


def test_twenty_settings_stay_below_their_claims() -> None:
    """A few runs of each, whole programs included; the recorded sound.csv has thousands."""
    settings = sound_settings()
    assert len(settings) == SETTINGS >= 20
    assert sum(isinstance(setting, Program) for setting in settings) == 9
    for count in (21, 24):
        assert [one.name for one in sound_settings(count)] == [one.name for one in settings[:count]]
    for found in audit_all(sound_tasks(settings, 100), seed=4, workers=1):
        assert found.epsilon <= found.claimed, found.setting.name
        assert found.epsilon_ratio <= found.claimed, found.setting.name
    for what in ("mixture", "draws", "rate", "sites", "colluding", "view", "delta"):
        assert len({setting.describe()[what] for setting in settings}) >= 2, what


def test_the_recorded_audit_keeps_every_claim_and_comes_within_a_factor_of_two() -> None:
    rows = table("sound.csv")
    assert [row["name"] for row in rows] == [setting.name for setting in sound_settings()]
    for row in rows:
        assert float(row["epsilon"]) <= float(row["claimed"])
        assert float(row["epsilon_ratio"]) <= float(row["claimed"])
        assert float(row["confidence"]) == CONFIDENCE
    near = [
        row
        for row in rows
        if int(row["draws"]) >= 100
        and float(row["rate"]) < 0.2
        and 2 * float(row["epsilon"]) >= float(row["claimed"])
    ]
    assert len(near) >= 3


def test_the_tables_in_the_documents_are_the_recorded_ones() -> None:
    errata = (ROOT / "docs" / "theory" / "errata.md").read_text()
    assert sound_table(RECORDED / "sound.csv") in RECORDED.with_suffix(".md").read_text()
    assert paper_table(RECORDED / "paper.csv") in errata


def table(name: str) -> list[dict[str, str]]:
    with (RECORDED / name).open(newline="") as file:
        return list(csv.DictReader(file))


# -- seeded bugs are caught ------------------------------------------------------------------------


def audited(setting: Setting, runs: int, confidence: float = CONFIDENCE) -> Measured:
    return audit(setting, runs, source=SeededSource(11), confidence=confidence)


def test_nothing_is_caught_where_nothing_is_wrong() -> None:
    found = audited(tight(), 4000)
    assert found.claimed / 2 < found.epsilon < found.claimed
    assert 0.85 * found.claimed < found.epsilon_ratio < found.claimed
    assert found.power < 0.01


def test_noise_a_fifth_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SourceDraws.__init__

    def too_small(self: SourceDraws, *given: Any) -> None:
        made(self, *given)
        self._deviation *= 0.8

    monkeypatch.setattr(SourceDraws, "__init__", too_small)
    found = audited(tight(), 6000)
    assert found.violated
    assert found.power > 0.5


def test_rows_that_are_not_clipped_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_rows_module, "clip_rows", lambda rows, _bound: rows)
    real = tight(draws=20, law="gaussian")
    assert audited(real, 600).violated
    # On the lattice a second check, in integers, holds the row: both must fail.
    lattice = tight(draws=20)
    assert not audited(lattice, 600).violated

    def unchecked(rows: np.ndarray, *, l2_norm_bound: float, lattice_norm_bound: int) -> np.ndarray:
        return np.trunc(rows * (lattice_norm_bound / l2_norm_bound)).astype(np.int16)

    monkeypatch.setattr(prepare_rows_module, "truncate_rows", unchecked)
    assert audited(lattice, 600).violated


def test_a_noise_key_that_serves_two_blocks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[int, bytes] = {}

    def again(self: SourceDraws, _block: Any, out: np.ndarray) -> None:
        source: Any = self._source
        if id(source) not in kept:
            kept.clear()
            kept[id(source)] = source.key("noise")
        rounded_gaussian(self._deviation).add_to(out.reshape(-1), ByteStream(kept[id(source)]))

    setting = dataclasses.replace(tight(draws=30), reference=True)
    assert not audited(setting, 600).violated
    monkeypatch.setattr(SourceDraws, "add_noise", again)
    found = audited(setting, 600)
    assert found.violated
    assert found.attack == "difference"


def test_a_mask_key_that_serves_two_blocks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server subtracts one block of an upload from another: masks cancel, and one site's noise
    of two blocks is left where eleven sites' is claimed."""
    plan = small_plan(
        2.0, mixture=10, size=20, draws=20, delta=0.1, scheme="cape", sites=12, colluding=1
    )
    setting = Setting("masks", plan, View.SERVER)
    assert not audited(setting, 40).violated
    add = RingMasks.add
    for name in ("add_pair", "add_own"):
        monkeypatch.setattr(
            RingMasks,
            name,
            lambda self, block, key, label, sign: add(self, block, key, label[:-1], sign),
        )
    found = audited(setting, 450, confidence=0.99)
    assert found.violated
    assert found.attack == "upload's difference"


def test_selection_that_is_not_secret_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def public(self: SourceDraws, block: Any, participation: Any, population: int) -> Any:
        del self
        stream = ByteStream(derive_key(bytes(32), *block.label))
        return select(participation, population, block.stop - block.start, stream)

    monkeypatch.setattr(SourceDraws, "select", public)
    found = audited(tight(), 2000)
    assert found.violated
    assert found.attack == "learned draws"


def test_draws_counted_once_and_made_twice_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    true = mint.tight_epsilon

    def half(noised: mint.NoisedSum, *rest: Any) -> float:
        query = noised.query
        counted = tuple(
            dataclasses.replace(group, draws=group.draws // 2) for group in query.participation
        )
        fewer = dataclasses.replace(query, draws=counted)
        return true(dataclasses.replace(noised, query=fewer), *rest)

    monkeypatch.setattr(mint, "tight_epsilon", half)
    found = audited(tight(), 4000)
    assert found.claimed == pytest.approx(2.0, rel=1e-3)
    assert found.violated


# -- measured facts --------------------------------------------------------------------------------


def tight_facts() -> Program:
    """All four opening sums where a small excess shows: at a huge delta."""
    return facts_setting("tight facts", 3.3, 0.5)


def program_audited(setting: Program, runs: int) -> Measured:
    return measure(setting, setting.scores(runs, source=SeededSource(11)), confidence=0.99)


def p_value(scores: Scores, multiplier: float) -> float:
    """Of the log ratios, if the two worlds are a Gaussian of this multiplier apart."""
    shift = 1 / (2 * multiplier**2)
    pooled = np.concatenate([scores.without + shift, scores.with_ - shift])[:, 0]
    return min(
        float(stats.kstest(multiplier * pooled, "norm").pvalue),
        variance_p_value(multiplier * pooled),
    )


@pytest.mark.long
def test_nothing_is_caught_where_nothing_is_wrong_with_measured_facts() -> None:
    """A canary adds as much as a record may to every sum, whatever was found before: log ratios
    are normal, of mean -+ 1/(2 m^2) and variance 1/m^2, and not of a multiplier a tenth off."""
    setting = tight_facts()
    scores = setting.scores(4000, source=SeededSource(3))
    assert len(setting.names) == 4
    m = sum(setting.plan.query(name).noise_multiplier ** -2 for name in setting.names) ** -0.5
    assert p_value(scores, m) > 1e-4
    assert p_value(scores, 1.1 * m) < 1e-4
    assert p_value(scores, m / 1.1) < 1e-4
    found = measure(setting, scores, confidence=0.99)
    assert setting.epsilon == pytest.approx(gaussian_epsilon(m, 0.5), rel=1e-3)
    assert found.claimed / 4 < found.epsilon < found.claimed
    assert 0.7 * found.claimed < found.epsilon_ratio < found.claimed


def less_noise(monkeypatch: pytest.MonkeyPatch, factor: float, name: str | None = None) -> None:
    """In all sums, or in those of a name."""
    made = SourceDraws.__init__

    def too_small(self: SourceDraws, query: SumQuery, source: Any) -> None:
        made(self, query, source)
        if name in (None, query.name):
            self._deviation *= factor

    monkeypatch.setattr(SourceDraws, "__init__", too_small)


@pytest.mark.long
def test_facts_with_a_fifth_too_little_noise_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    less_noise(monkeypatch, 0.8)
    assert program_audited(tight_facts(), 5000).violated


@pytest.mark.long
def test_a_fact_that_is_not_charged_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tight_facts()

    def but_ranges(parts: Any, relation: Relation, **failure: float) -> mint.NoisedSum:
        counted = [part for part in parts if part[0].query.name != "ranges"]
        return as_one(counted, relation, **failure)

    monkeypatch.setattr(program_cost, "as_one", but_ranges)
    assert program_audited(setting, 2000).violated


# -- whole programs of sums ------------------------------------------------------------------------


def tight_program() -> Program:
    """Eight sums where a small excess shows, as in `tight_facts`."""
    facts = Facts(
        features=("x0",), label="label", classes=(0,), class_sizes=(12,), normalise=PublicMap()
    )
    method = config_of("class-gaussian", samples=1)
    plan = make_plan(facts, method, delta=0.6, law="rounded")
    plan = dataclasses.replace(plan, multiplier=0.5)
    return Program.with_canary("tight", plan, corners(plan))


@pytest.mark.parametrize("who", [{"scheme": "central"}, {"scheme": "cape", "sites": 3}])
def test_a_canary_is_one_count_too_many_of_its_cells_and_pairs(who: dict[str, Any]) -> None:
    """It adds to every sum as much as a record may, however far beyond the range it lies."""
    setting = pairs_setting("pairs", 2.0, 1e-2, **who)
    seen = carried_out(setting, 1, SeededSource(3))
    assert [one.query.name for one in seen] == ["class sizes", "cells", "pairs"]
    for one in seen:
        sides = (setting.without, setting.with_)
        without, with_ = (added(one.query, side[: setting.honest]) for side in sides)
        lattice = one.query.lattice_norm_bound
        assert lattice is not None
        assert np.linalg.norm(with_ - without) == pytest.approx(lattice, rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("who", [{"scheme": "central"}, {"scheme": "cape", "sites": 3}])
def test_a_canary_shows_in_every_sum_and_by_no_more_than_is_accounted(
    who: dict[str, Any],
) -> None:
    """Eleven sums, each planned by what was found before. Log ratios are those of one Gaussian, and
    not of a multiplier a third off; it is the accounted one but for what is lost in truncation. A
    colluding site's part is taken off."""
    setting = table_setting("program", 2.0, 1e-2, **who)
    seen = carried_out(setting, 1, SeededSource(3))
    assert [one.query.name for one in seen] == list(setting.names)
    assert len(seen) == 11
    assert setting.honest == (1 if who["scheme"] == "central" else 2)

    def moved(query: SumQuery) -> float:
        """What the canary adds to a sum, over the most that a record may."""
        without, with_ = (
            added(query, sites[: setting.honest]) for sites in (setting.without, setting.with_)
        )
        return float(np.linalg.norm(with_ - without)) / (query.lattice_norm_bound or 0)

    moves = [moved(one.query) for one in seen]
    assert 0.75 < min(moves) <= max(moves) <= 1.0
    parts = [one.query.noised().view_multipliers["public"] / moved(one.query) for one in seen]
    m = sum(part**-2 for part in parts) ** -0.5
    assert setting.plan.multiplier is not None
    assert setting.plan.multiplier <= m < 1.1 * setting.plan.multiplier
    scores = setting.scores(200, source=SeededSource(3))
    assert p_value(scores, m) > 1e-4
    assert p_value(scores, 1.3 * m) < 1e-4
    assert p_value(scores, m / 1.3) < 1e-4


@pytest.mark.long
def test_a_sum_with_a_third_of_its_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tight_program()
    assert setting.epsilon == pytest.approx(gaussian_epsilon(0.5, 0.6), rel=1e-3)
    assert not program_audited(setting, 500).violated
    largest = max(setting.plan.body, key=lambda line: line.share / line.repeats).name
    less_noise(monkeypatch, 1 / 3, largest)
    found = program_audited(setting, 500)
    assert found.violated
    assert found.attack == largest


@dataclasses.dataclass(frozen=True)
class Counting(Method):
    """A method that the house does not know: it counts the classes twice, and makes no row."""

    kind: Literal["counting"] = "counting"

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        groups = len(plan.known.listed)
        return (QueryShape("counts", "each record's label", "class counts", 1, groups, repeats=2),)

    def release(self, sums: Collector) -> SyntheticRows:
        facts = sums.plan.known
        for name in sums.plan.body[0].names:
            sums.ask(name, ClassCounts(facts.width, len(facts.listed)))
        return SyntheticRows(np.empty((0, facts.width)), np.empty(0, dtype=np.int64))


def test_a_method_from_elsewhere_is_audited_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts(features=("x",), label="label", classes=(0, 1), normalise=PublicMap())
    plan = make_plan(facts, Counting(), delta=0.5, law="rounded").calibrate(3.3)
    setting = Program.with_canary("counting", plan, corners(plan))
    assert setting.names == ("counts 1", "counts 2")
    (found,) = audit_all(sound_tasks([setting], 8000), seed=1, workers=1, confidence=0.99)
    assert found.runs == 2000
    assert 0.7 * found.claimed < found.epsilon_ratio < found.claimed
    assert found.epsilon < found.claimed
    less_noise(monkeypatch, 0.4, "counts 2")
    (found,) = audit_all(sound_tasks([setting], 8000), seed=1, workers=1, confidence=0.99)
    assert found.violated
    assert found.attack == "counts 2"


def test_an_audit_of_draws_says_what_it_cannot_score() -> None:
    drawn, program = tight(), tight_facts()
    with pytest.raises(InputError, match="must all be declared"):
        _ = dataclasses.replace(drawn, plan=program.plan).query
    rows = corners(drawn.plan)
    with pytest.raises(ValueError, match="are drawn"):
        carried_out(Program.with_canary("drawn", drawn.plan, rows), 0, SeededSource(1))


# -- the paper's accounting, at a size that a test can afford --------------------------------------


def paper_plan(**asked: Any) -> Any:
    """Two classes, 100 draws of each, claimed 3 at delta 1e-2 by Theorem 1."""
    asked = {"class_sizes": (80, 80), "samples": 200, "mixture": 8, "delta": 1e-2, **asked}
    return plan_mixtures(width=1, accountant="paper", label_noise=False, **asked).calibrate(3.0)


def test_the_appendix_variance_on_a_central_mixture_is_seen_to_break_the_claim() -> None:
    """At the paper's own size: claimed 10. Counting a few hundred runs could show 3; the law of
    the scores shows 40."""
    sound, broken = paper_settings()[:2]
    assert (sound.epsilon, broken.epsilon) == pytest.approx((10.0, 10.0), abs=1e-3)
    source = SeededSource(11)
    assert audit(sound, 300, without=60, source=source.child(0)).epsilon_ratio < 10
    found = audit(broken, 300, without=60, source=source.child(1))
    assert found.epsilon_ratio > 40
    assert found.power_ratio > 0.99
    assert found.epsilon > 0.5
    assert found.most < 4


def test_algorithm_1_is_seen_to_break_against_all_other_sites() -> None:
    asked = {"scheme": "cape", "form": "algorithm1", "sites": 10, "class_sizes": (400, 400)}
    plan = paper_plan(**asked, mixture=20, site_noise="appendix")
    setting = Setting("colluders", plan, View.SERVER, claimed=3.0, colluding=9, reference=False)
    found = audited(setting, 600)
    assert found.epsilon_ratio > 1.5 * found.claimed
    assert found.power_ratio > 0.99
    alone = dataclasses.replace(setting, colluding=0)
    assert audited(alone, 40).epsilon_ratio < found.claimed


def test_an_outlier_is_seen_through_a_z_score() -> None:
    asked = {"scheme": "cape", "form": "algorithm1", "sites": 4, "class_sizes": (320, 320)}
    plan = paper_plan(**asked, normalise=SiteZScore())
    setting = Setting("z-score", plan, View.PUBLIC, claimed=3.0, colluding=0, reference=False)
    assert setting.changed is Change.OUTLIER
    found = audited(setting, 600)
    assert found.violated
    assert found.epsilon_ratio > 10 * found.claimed


def test_without_a_self_mask_a_site_called_lost_is_seen_to_break_the_claim() -> None:
    plan = small_plan(
        2.0, mixture=10, size=40, draws=20, delta=0.1,
        scheme="cape", masks="gaussian", sites=8, dropouts=1, colluding=1,
    )  # fmt: skip
    masked = Setting("lost", plan, View.SERVER, lost=Lost.MASKED, reference=False)
    bare = dataclasses.replace(masked, lost=Lost.BARE)
    assert not audited(masked, 1000).violated
    found = audited(bare, 1000)
    assert found.violated
    assert found.epsilon_ratio > 2 * found.claimed


def test_two_worlds_have_the_epsilon_that_their_law_gives() -> None:
    """Against the Gaussian mechanism, and against simulated log ratios of a Poisson draw."""
    one = Pair(Participation(1, 1, 1), move=2.0)
    assert one.epsilon(1e-3) == pytest.approx(gaussian_epsilon(0.5, 1e-3), rel=2e-3)
    many = Pair(Participation(50, 1, 10), move=1.5)
    epsilon = many.epsilon(0.05)
    excess = bounds.excess(many.log_ratios(200_000), epsilon)
    spread = excess.std() / math.sqrt(len(excess))
    assert excess.mean() == pytest.approx(0.05, abs=5 * spread)
    for wrong in (0.95, 1.05):
        other = bounds.excess(many.log_ratios(200_000), wrong * epsilon)
        assert abs(other.mean() - 0.05) > 5 * spread


def test_simulated_scores_are_those_of_real_runs() -> None:
    """The power rests on a simulation of the scores: same law as the pipeline's, and not with a
    move a tenth off."""
    setting = tight(draws=20)
    pair = Pair.of(setting)
    assert pair is not None
    real = setting.scores(2500, without=20, source=SeededSource(4)).with_[:, 0]
    assert stats.ks_2samp(real, pair.log_ratios(20_000)).pvalue > 1e-4
    assert stats.ks_2samp(real, pair.with_noise(0.9).log_ratios(20_000)).pvalue < 1e-4


def test_an_audit_catches_what_it_would_catch_nine_times_of_ten() -> None:
    """The noise that `would_catch` names, audited for real; with a little more it is missed."""
    setting = dataclasses.replace(tight(draws=20), claimed=2.0)
    pair = Pair.of(setting)
    assert pair is not None
    caught = would_catch(pair, 400, 2.0, setting.delta, CONFIDENCE)
    assert caught is not None
    assert caught.epsilon == pytest.approx(pair.with_noise(caught.noise).epsilon(setting.delta))
    assert caught.epsilon > 2.0
    source = SeededSource(5)

    def found(factor: float) -> int:
        at = dataclasses.replace(setting, noise_factor=factor * caught.noise)
        scores = at.scores(4000, without=20, source=source.child(factor)).with_[:, 0]
        parts = scores.reshape(10, 400)
        shown = [bounds.ratio_law_epsilon(part, setting.delta, CONFIDENCE) for part in parts]
        return sum(one > 2.0 for one in shown)

    assert found(1.0) >= 6
    assert found(1.3) <= 4


def test_where_the_canary_changes_other_draws_no_power_is_worked_out() -> None:
    plan = paper_plan(scheme="cape", form="algorithm1", sites=4, class_sizes=(320, 320),
                      normalise=SiteZScore())  # fmt: skip
    setting = Setting("z-score", plan, View.PUBLIC, claimed=3.0, colluding=0, reference=False)
    assert Pair.of(setting) is None
    found = measure(setting, setting.scores(40, source=SeededSource(1)))
    assert with_power(found, setting) is found


def test_the_recorded_audit_of_the_paper_shows_what_the_errata_say() -> None:
    rows = {row["name"]: row for row in table("paper.csv")}
    assert list(rows) == [setting.name for setting in paper_settings()]

    def at_least(name: str) -> float:
        return float(rows[name]["epsilon_ratio"])

    assert at_least("central, Theorem 1's noise") < 10
    assert 60 < at_least("central, the appendix's variance") < 82
    for mixture in (4, 16):
        assert at_least(f"Algorithm 1, l = {mixture}, public, 0 collude") < 3
        assert at_least(f"Algorithm 1, l = {mixture}, server, 0 collude") < 4.2
    assert at_least("Algorithm 1, l = 4, server, 9 collude") < 10
    assert 10 < at_least("Algorithm 1, l = 16, server, 9 collude") < 12.4
    assert at_least("Algorithm 1, z-score and an outlier") > 100
    assert at_least("Gaussian masks, called lost, its self mask on") < 4
    assert at_least("Gaussian masks, called lost, without a self mask") > 8
    for row in rows.values():
        if row["exact"]:
            assert float(row["epsilon_ratio"]) < float(row["exact"])
            assert float(row["claimed"]) < float(row["caught"]) < 2 * float(row["claimed"])
    broken = [name for name, row in rows.items() if float(row["exact"] or 1e9) > 10]
    assert broken == [name for name in rows if at_least(name) > float(rows[name]["claimed"])]
    assert float(rows["central, the appendix's variance"]["exact"]) == pytest.approx(81, abs=1)


# -- the command -----------------------------------------------------------------------------------


def test_audit_writes_a_table_and_the_laboratory_a_plot_too(
    capemix: Capemix, research: Capemix, tmp_path: Path
) -> None:
    import_module("matplotlib")
    out = tmp_path / "found"
    ran = research(
        "audit", "--out", out, "--configurations", 2, "--runs", 60, "--workers", 1,
        "--test-seed", 1,
    )  # fmt: skip
    assert ran.code == 0
    assert "0 of 2 claims exceeded" in ran.out
    assert "left]" in ran.err
    assert sorted(path.name for path in out.iterdir()) == ["audit.csv", "audit.png"]
    assert (out / "audit.png").read_bytes()[:4] == b"\x89PNG"
    again = capemix(
        "audit", "--out", tmp_path / "again", "--configurations", 2, "--runs", 60, "--workers", 1,
        "--test-seed", 1, "--json",
    )  # fmt: skip
    assert (tmp_path / "again" / "audit.csv").read_bytes() == (out / "audit.csv").read_bytes()
    assert again.json["settings"][0]["exact"] is None
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["audit.csv"]
    assert [row["name"] for row in again.json["settings"]] == [
        setting.name for setting in sound_settings(2)
    ]


def test_the_papers_accounting_is_audited_by_the_laboratory(
    capemix: Capemix, research: Capemix, tmp_path: Path
) -> None:
    ran = capemix("audit", "--paper", "--out", tmp_path / "x")
    assert (ran.code, ran.out) == (2, "")
    assert "`capemix audit --paper` is now `capemix-research audit --paper`" in ran.err
    assert not (tmp_path / "x").exists()
    assert "--paper" not in capemix("audit", "--help").out
    assert "--paper" in research("audit", "--help").out
    tasks = paper_tasks(paper_settings(), 400)
    assert {task.after for task in pickle.loads(pickle.dumps(tasks))} == {with_power}


def test_what_is_added_to_a_task_is_added_where_it_runs() -> None:
    setting = tight(draws=2)
    plain, more = audit_all(
        [Task(setting, 60), Task(setting, 60, after=with_power)], seed=1, workers=1
    )
    assert plain.exact is None
    assert more.exact is not None


@pytest.mark.parametrize("name", ["sound.csv", "paper.csv"])
def test_every_mark_lies_within_the_plot(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capemix_research.report import audit as report

    kept: list[Any] = []
    monkeypatch.setattr(report.plt, "close", kept.append)
    report.draw(RECORDED / name, tmp_path / "plot.png")
    monkeypatch.undo()
    axis = kept[0].axes[0]
    edge = axis.bbox.x1 - 5.0  # half a mark
    for marks in axis.collections:
        shown = axis.transData.transform(marks.get_offsets())
        assert shown[:, 0].max() < edge
    report.plt.close(kept[0])


@pytest.mark.parametrize(
    ("option", "value"), [("--configurations", 0), ("--confidence", 1.5), ("--runs", 3)]
)
def test_a_bad_option_is_one_sentence(
    capemix: Capemix, research: Capemix, tmp_path: Path, option: str, value: float
) -> None:
    for program in (capemix, research):
        ran = program("audit", "--out", tmp_path / "x", option, value)
        assert ran.code == 2
        assert option in ran.err
        assert not (tmp_path / "x").exists()


def test_an_exceeded_claim_ends_in_a_failure(
    capemix: Capemix, research: Capemix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "capemix.audit.configurations.sound_settings",
        lambda count: [dataclasses.replace(tight(), claimed=0.1)] if count is None else [],
    )
    words = ("--runs", 400, "--workers", 1, "--test-seed", 1)
    for name, program in (("x", capemix), ("y", research)):
        ran = program("audit", "--out", tmp_path / name, *words)
        assert ran.code == 1
        assert "1 of 1 claims exceeded" in ran.out


def test_the_table_holds_a_row_a_setting(tmp_path: Path) -> None:
    setting = tight(draws=2)
    found = measure(setting, setting.scores(40, source=SeededSource(1)))
    write_table([found], tmp_path / "t.csv")
    head, row = (tmp_path / "t.csv").read_text().splitlines()
    assert head.split(",")[0] == "name"
    assert row.startswith("tight,central,public,")


# -- membership inference on a release -------------------------------------------------------------


@pytest.fixture
def a_release(tmp_path: Path) -> Any:
    """Four hundred records, half of them behind a release; noise as asked."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 20))
    for name, part in (("in", slice(0, 200)), ("out", slice(200, 400))):
        columns = [f"x{i}" for i in range(20)]
        lines = [",".join([*columns, "y"])]
        lines += [
            ",".join([*(f"{v:.6f}" for v in row), str(i % 2)]) for i, row in enumerate(rows[part])
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")

    def make(epsilon: float) -> Path:
        out = tmp_path / "release"
        shutil.rmtree(out, ignore_errors=True)
        given = open_data(tmp_path / "in.csv", "y", classes=(0, 1)).train
        facts = Facts.of(given, class_sizes=(100, 100), normalise=PublicMap.of_range(-4, 4))
        plan = make_plan(facts, config_of("mixing", mixture=4, samples=2000, clip=1.0))
        release = synthesize(plan.calibrate(epsilon), given, source=SeededSource(1))
        return release.save(out)

    return make


def attacked(release: Path, folder: Path) -> list[Attack]:
    saved = read_release(release)
    members, others = (
        open_data(folder / f"{name}.csv", "y", classes=(0, 1)).train for name in ("in", "out")
    )
    return attack(Target(saved.rows, saved.manifest), members, others).declared_public()


def test_members_of_a_release_without_noise_are_found_and_of_a_private_one_are_not(
    a_release: Any, tmp_path: Path
) -> None:
    bare = attacked(a_release(math.inf), tmp_path)
    assert [one.name for one in bare] == ["nearest neighbour", "likelihood ratio"]
    assert bare[1].low > 0.95
    assert bare[1].caught[1].low > 0.3
    for one in attacked(a_release(1.0), tmp_path):
        assert one.low < 0.5 < one.high or one.auc < 0.6
        assert one.caught[1].low < 0.05


def test_an_attack_tells_its_owner_that_it_is_private(
    a_release: Any, capemix: Capemix, tmp_path: Path
) -> None:
    given = ["--members", tmp_path / "in.csv", "--non-members", tmp_path / "out.csv", "--json"]
    found = capemix("attack", a_release(1.0), *given).json
    assert [one["name"] for one in found["attacks"]] == ["nearest neighbour", "likelihood ratio"]
    assert "private rows" in found["private"]
    assert found["epsilon"] == pytest.approx(1, abs=1e-3)


def test_rows_that_are_no_mixtures_are_not_attacked_as_such(tmp_path: Path) -> None:
    """Drawn anew from mixtures, or by a method that draws no record."""
    rng = np.random.default_rng(0)
    rows = labeled_rows(rng.normal(size=(200, 3)), np.arange(200) % 2, (0, 1))
    facts = Facts.of(rows, class_sizes=(100, 100), normalise=PublicMap.of_range(-4, 4))
    for number, method in enumerate(
        (
            config_of("mixing", mixture=4, samples=50, redraw=60),
            config_of("class-gaussian", samples=60),
        )
    ):
        plan = make_plan(facts, method).calibrate(5.0)
        release = synthesize(plan, rows, source=SeededSource(1))
        saved = read_release(release.save(tmp_path / str(number)))
        target = Target(saved.rows, saved.manifest)
        assert target.mixed is None
        assert [one.name for one in attack(target, rows, rows).declared_public()] == [
            "nearest neighbour"
        ]


def test_what_an_attack_finds_stays_outside_the_release(
    a_release: Any, capemix: Capemix, tmp_path: Path
) -> None:
    release = a_release(5)
    given = ["--members", tmp_path / "in.csv", "--non-members", tmp_path / "out.csv"]
    ran = capemix("attack", release, *given, "--out", release / "attack.json")
    assert ran.code == 2
    assert "lies in a release" in ran.err
    ran = capemix("attack", release, *given, "--out", tmp_path / "mine.json")
    assert ran.code == 0
    assert "private rows" in ran.out
    assert "private" in json.loads((tmp_path / "mine.json").read_text())
    assert "attack.json" not in [path.name for path in release.iterdir()]


def test_the_area_under_the_curve_and_its_interval() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    members, others = rng.normal(0.3, 1, 300).round(1), rng.normal(0, 1, 500).round(1)
    found = judge("a", members, others, confidence=0.95)
    truth = roc_auc_score([1] * 300 + [0] * 500, np.concatenate([members, others]))
    assert found.auc == pytest.approx(truth)
    assert found.low < truth < found.high
    # The interval has about the deviation that resampling has.
    again = [
        roc_auc_score(
            [1] * 300 + [0] * 500,
            np.concatenate([rng.choice(members, 300), rng.choice(others, 500)]),
        )
        for _ in range(300)
    ]
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(np.std(again), rel=0.2)
    few = found.caught[1]
    assert few.low <= few.members <= few.high
    assert found.scores.members == tuple(np.quantile(members, found.scores.parts))
    nobody = judge("a", np.append(members, -np.inf), np.full(9, -np.inf), confidence=0.95).scores
    assert nobody.members == found.scores.members
    assert nobody.others == ()


def test_rows_of_no_known_class_are_refused(a_release: Any) -> None:
    saved = read_release(a_release(5))
    stranger = LabeledRows(
        features=np.zeros((5, 20)),
        labels=np.zeros(5, dtype=np.int64),
        classes=("z",),
        feature_names=saved.rows.feature_names,
    )
    with pytest.raises(InputError, match="members"):
        attack(Target(saved.rows, saved.manifest), stranger, stranger)
