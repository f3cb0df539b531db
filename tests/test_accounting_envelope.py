"""A drawn sum after measured facts: what an envelope promises is held against another library's
losses, and against whoever chooses the draws by what was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm

from capemix.accounting.envelope import Envelope, envelope
from capemix.accounting.gaussian import gaussian_delta, gaussian_multiplier
from capemix.accounting.sampled import delta_profile
from capemix.api import config_of
from capemix.facts import Facts
from capemix.plan import Plan, make_plan
from capemix.program_cost import ProgramCost
from capemix.queries import Participation, Relation
from capemix.sums.steps import PublicMap

Real = NDArray[np.float64]

DELTA = 1e-5
ADD_REMOVE, REPLACE_ONE = Relation.ADD_REMOVE, Relation.REPLACE_ONE

NOISES: dict[float, dict[tuple[int, int], float]] = {
    1.0: {
        (4, 20): 4.5511, (4, 100): 9.6076, (4, 1000): 30.0121,
        (30, 20): 1.1529, (30, 100): 1.5917, (30, 1000): 4.1025,
        (400, 20): 0.6235, (400, 100): 0.677, (400, 1000): 0.7653,
        (5000, 20): 0.4186, (5000, 100): 0.459, (5000, 1000): 0.5123,
    },
    10.0: {
        (4, 20): 0.8902, (4, 100): 1.4802, (4, 1000): 4.0668,
        (30, 20): 0.467, (30, 100): 0.5654, (30, 1000): 0.8436,
        (400, 20): 0.317, (400, 100): 0.35, (400, 1000): 0.4143,
        (5000, 20): 0.2545, (5000, 100): 0.272, (5000, 1000): 0.3013,
    },
}  # fmt: skip
"""For each epsilon, one record in so many drawn so often: the least noise below the envelope, to a
thousandth."""
EACH = [(epsilon, drawn) for epsilon, of in NOISES.items() for drawn in of]


def squared(epsilon: float, part: float = 0.01) -> float:
    """What a Gaussian that has this part of the budget moves by, over its noise, squared."""
    return part * gaussian_multiplier(epsilon, DELTA) ** -2


@cache
def losses(
    drawn: tuple[int, int],
    noise: float,
    relation: Relation = ADD_REMOVE,
    interval: float = 2e-4,
    pessimistic: bool = True,
) -> Any:
    """Another library's, of a drawn sum: above the truth, or below it."""
    kinds = NeighboringRelation
    among, draws = drawn
    return from_gaussian_mechanism(
        noise,
        pessimistic_estimate=pessimistic,
        sampling_prob=1 / among,
        value_discretization_interval=interval,
        neighboring_relation=kinds.REPLACE_ONE
        if relation is REPLACE_ONE
        else kinds.ADD_OR_REMOVE_ONE,
    ).self_compose(draws)


def together(
    epsilon: float, drawn: tuple[int, int], noise: float, relation: Relation = ADD_REMOVE
) -> float:
    """Delta of a Gaussian and a drawn sum after it that is fixed beforehand."""
    step = 2e-4 * epsilon
    first = from_gaussian_mechanism(squared(epsilon) ** -0.5, value_discretization_interval=step)
    after = losses(drawn, noise, relation, step)
    return float(first.compose(after).get_delta_for_epsilon(epsilon))


@pytest.mark.parametrize(
    ("epsilon", "part", "relation"),
    [(1.0, 0.01, ADD_REMOVE), (10.0, 0.01, ADD_REMOVE), (0.3, 0.2, REPLACE_ONE)],
)
def test_the_mean_of_an_envelope_is_delta(epsilon: float, part: float, relation: Relation) -> None:
    """By quadrature over the Gaussian's loss, step by step."""
    moved = squared(epsilon, part)
    found = envelope(epsilon, DELTA, moved, relation)
    assert np.all(np.diff(found.epsilons) > 0)
    assert np.all(np.diff(found.heights) <= 0)
    assert np.all((found.heights > 0) & (found.heights <= 1))
    law = norm(moved / 2, math.sqrt(moved))
    # H is 1 below its first step, where the loss is above all of these.
    ends = epsilon - np.append(found.epsilons, found.epsilons[-1] + 60 * math.sqrt(moved))
    mean = quad(law.pdf, ends[0], ends[0] + 40 * math.sqrt(moved), epsabs=0, limit=200)[0]
    for height, above, below in zip(found.heights, ends[:-1], ends[1:], strict=True):
        mean += height * quad(law.pdf, below, above, epsabs=0, limit=200)[0]
    assert mean == pytest.approx(DELTA, rel=1e-6)
    assert mean <= DELTA * (1 + 1e-8)
    assert found.delta_with(epsilon) == pytest.approx(mean, rel=1e-7)


@pytest.mark.parametrize(("epsilon", "drawn"), EACH, ids=str)
def test_a_sum_below_the_envelope_keeps_delta_and_little_noise_is_lost(
    epsilon: float, drawn: tuple[int, int]
) -> None:
    """At rates from one in 4 to one in 5000: with 3% less noise a sum that is fixed beforehand
    would not keep it."""
    among, draws = drawn
    noise = NOISES[epsilon][drawn]
    found = envelope(epsilon, DELTA, squared(epsilon), ADD_REMOVE)
    group = [Participation(draws, 1, among)]
    assert found.excess(group, noise * 1.002, ADD_REMOVE) <= 1.0
    assert found.excess(group, noise * 0.995, ADD_REMOVE) > 1.0
    assert together(epsilon, drawn, noise) <= DELTA
    assert together(epsilon, drawn, 0.97 * noise) > DELTA


@pytest.mark.parametrize("epsilon", NOISES)
def test_whoever_chooses_the_draws_by_what_was_measured_stays_within_delta(epsilon: float) -> None:
    """The best rule of all: for each outcome of the Gaussian the rate that costs most there."""
    moved = squared(epsilon)
    z = np.linspace(moved / 2 + 14 * moved**0.5, moved / 2 - 14 * moved**0.5, 4001)
    weights = norm.pdf(z, moved / 2, math.sqrt(moved)) * (z[0] - z[1])

    def by_outcome(drawn: tuple[int, int], factor: float) -> Real:
        law = losses(drawn, factor * NOISES[epsilon][drawn], interval=2e-4 * epsilon)
        return np.where(epsilon > z, law.get_delta_for_epsilon(epsilon - z), 1.0)

    each = np.array([by_outcome(drawn, 1.0) for drawn in NOISES[epsilon]])
    best = float(each.max(axis=0) @ weights)
    assert best <= DELTA
    assert best > float((each @ weights).max()) * 1.03  # choosing gains something
    # With the noise of sums that are fixed beforehand it would not do.
    less = np.array([by_outcome(drawn, 0.97) for drawn in NOISES[epsilon]])
    assert float(less.max(axis=0) @ weights) > DELTA
    # The sign of the outcome alone, for each two.
    low, middle = each[:, z < moved / 2] @ weights[z < moved / 2], z >= moved / 2
    assert float((low[:, None] + each[:, middle] @ weights[middle]).max()) <= DELTA


@pytest.mark.parametrize("drawn", [(30, 100), (400, 20)])
def test_a_replaced_record_stays_within_delta(drawn: tuple[int, int]) -> None:
    found = envelope(2.0, DELTA, squared(2.0), REPLACE_ONE)
    among, draws = drawn
    group = [Participation(draws, 1, among)]
    noise = {(30, 100): 1.3901, (400, 20): 0.5396}[drawn]
    assert found.excess(group, noise * 1.002, REPLACE_ONE) <= 1.0
    assert found.excess(group, noise * 0.99, REPLACE_ONE) > 1.0
    assert together(2.0, drawn, noise, REPLACE_ONE) <= DELTA
    assert together(2.0, drawn, 0.9 * noise, REPLACE_ONE) > DELTA


def test_an_envelope_of_the_gaussians_shape_is_that_of_one_gaussian() -> None:
    """H that is the rest of one Gaussian costs what the whole one does."""
    moved, whole = squared(2.0, 0.3), gaussian_multiplier(2.0, DELTA)
    rest = 1 / math.sqrt(whole**-2 - moved)
    at = np.linspace(0.0, 6.0, 20_001)
    heights = np.array([gaussian_delta(x, rest) for x in at])
    found = Envelope(at, heights, moved, 2.0, DELTA).delta_with(2.0)
    assert DELTA <= found <= DELTA * 1.01  # a step function from above


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(("draws", "among", "noise"), [(1000, 400, 0.8), (20, 4, 5.0), (3, 1, 4.0)])
def test_a_profile_is_above_the_delta_of_another_library_and_close(
    draws: int, among: int, noise: float, relation: Relation
) -> None:
    at = np.linspace(0.05, 2.0, 12)
    ours = delta_profile([Participation(draws, 1, among)], noise, at, relation)
    if among == 1:
        ends = 2.0 if relation is REPLACE_ONE else 1.0
        exact = [gaussian_delta(x, noise / ends / math.sqrt(draws)) for x in at.tolist()]
        np.testing.assert_allclose(ours, exact, rtol=1e-12)
        return
    most, least = (
        losses((among, draws), noise, relation, pessimistic=pessimistic).get_delta_for_epsilon(at)
        for pessimistic in (True, False)
    )
    assert np.all(ours >= least - 1e-13)  # theirs is rounded
    assert np.all(ours <= most * 1.02 + 1e-12)
    wrong = delta_profile([Participation(draws, 1, among)], 1.1 * noise, at, relation)
    assert np.any(wrong < least)


# What a hostile plan may bend


def planned_after(
    opening: float, noise: float, size: int, samples: int = 100, **bent: float
) -> Plan:
    """A plan of ten sites whose sizes are measured with ``opening`` times the noise that spends the
    whole budget, and whose draws of classes that were counted as ``size`` have ``noise``."""
    facts = Facts(("a", "b", "c", "d"), "y", (0, 1), normalise=PublicMap())
    method = config_of("mixing", samples=samples, mixture=16, clip=1.0)
    plan = make_plan(facts, method, scheme="cape", sites=10, epsilon=1.0)
    spends = gaussian_multiplier(1.0, plan.delta)
    plan = replace(plan, opening_multiplier=opening * spends, multiplier=noise, **bent)
    return replace(plan, measured=replace(facts, class_sizes=(size, size)))


@pytest.mark.parametrize("opening", [1.0 + 1e-9, 1.02, 1.1, 1.18, 1.3, 2.0, 10.0])
def test_no_share_of_the_opening_sums_lets_a_drawn_sum_of_little_noise_pass(opening: float) -> None:
    """Every record is in all of 50 sums, with a quarter of a record's noise: epsilon above 500."""
    assert planned_after(opening, 0.25, 16).guarantee().epsilon is None


@pytest.mark.parametrize("epsilon", [1e-9, 1e-6])
def test_a_tiny_budget_proves_nothing_of_a_large_cost(epsilon: float) -> None:
    for opening in (1.0, 100.0, 10_700.0):
        assert planned_after(opening, 0.5, 6000, epsilon=epsilon).guarantee().epsilon is None


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05, 0.3, 0.6, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(("epsilon", "delta"), [(0.02, 1e-2), (1.0, 1e-5), (8.0, 1e-9)])
def test_an_envelope_is_above_zero_and_costs_no_more_than_delta(
    epsilon: float, delta: float, relation: Relation, share: float
) -> None:
    spent = share * gaussian_multiplier(epsilon, delta) ** -2
    found = envelope(epsilon, delta, spent, relation)
    if found is None:
        assert share > 0.25 or epsilon < 10 * delta
        return
    assert found.heights.min() > 0.0
    assert found.delta_with(epsilon) <= delta


def test_two_proofs_to_choose_from_are_none() -> None:
    """A drawn sum that is above the envelope is not proved by adding up, however cheap it is."""
    plan = planned_after(2.0, 0.125, round(16 / 0.89e-5), samples=2)
    cost = ProgramCost(plan)
    assert cost.added < 1.0
    assert cost.proved == math.inf


@pytest.mark.parametrize("size", [64, 100, 1000])
def test_a_class_that_is_counted_small_gets_the_noise_that_it_takes(size: int) -> None:
    """Far too little noise looks alike at every step; that is no reason to give up."""
    facts = Facts(("a", "b"), "y", (0, 1), normalise=PublicMap())
    method = config_of("mixing", samples=400, mixture=64, clip=1.0)
    plan = make_plan(facts, method, epsilon=1.0)
    plan = replace(plan, measured=replace(facts, class_sizes=(size, 5000))).settled()
    assert plan.guarantee().epsilon == 1.0
    assert plan.multiplier is not None
    assert replace(plan, multiplier=0.98 * plan.multiplier).guarantee().epsilon is None


def test_tiny_deltas_lose_nothing_below_the_first_step() -> None:
    delta = 1e-15
    spent = 0.05 * gaussian_multiplier(1.0, delta) ** -2
    found = envelope(1.0, delta, spent, ADD_REMOVE)
    assert found is not None
    with mpmath.workdps(40):
        root = mpmath.sqrt(spent)

        def below(x: float) -> Any:
            """P(1 - Z < x)."""
            return mpmath.ncdf(-(1 - mpmath.mpf(x) - mpmath.mpf(spent) / 2) / root)

        ends = [below(x) for x in found.epsilons.tolist()] + [mpmath.mpf(1)]
        total = ends[0] + sum(
            height * (ends[at + 1] - ends[at]) for at, height in enumerate(found.heights.tolist())
        )
    assert total <= delta * (1 + 1e-6)
    assert found.delta_with(1.0) == pytest.approx(float(total), rel=1e-6)
