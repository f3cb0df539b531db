"""Losses composed by FFT: the claim is never below the truth, however small delta is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from numpy.typing import NDArray
from scipy.special import ndtr

from capemix.accounting import losses, sampled
from capemix.accounting.calibration import smallest_noise
from capemix.accounting.gaussian import gaussian_delta
from capemix.accounting.losses import Losses, best_tilt, compose, one_draw, rounding
from capemix.accounting.sampled import delta_pld, epsilon_pld, epsilon_rdp
from capemix.methods.mixing.planning import plan_mixtures, with_noise
from capemix.queries import Participation, Relation

ADD_REMOVE, REPLACE_ONE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
GROUP = Participation(draws=200, selected=64, among=6000)
NOISE = 0.7
Real = NDArray[np.float64]


# -- a lower bound on the truth ----------------------------------------------------------------


@dataclass(frozen=True)
class LowerLaw:
    """A law of losses that is *below* the true one: outcomes are put into cells, and each has the
    least loss of its cell, rounded down to the grid. Composed with weights e^(tilt * loss)."""

    interval: float
    first: int
    weights: Real
    log_scale: float
    tilt: float
    off: float

    def delta(self, epsilon: float) -> float:
        """No more than the true delta."""
        loss = (self.first + np.arange(len(self.weights))) * self.interval
        loss, weights = loss[loss > epsilon], self.weights[loss > epsilon]
        scale = np.exp(np.minimum(self.log_scale - self.tilt * loss, 700))
        found = float(np.sum(weights * scale * -np.expm1(epsilon - loss)))
        worst = self.tilt * math.log(self.tilt) - (1 + self.tilt) * math.log1p(self.tilt)
        lost = self.off * math.exp(min(self.log_scale - self.tilt * epsilon + worst, 700))
        return (found - lost) * (1 - 1e-9)


def below(relation: Relation, group: Participation, noise: float, tilt: float) -> LowerLaw:
    """One record removed from its group, or replaced within it."""
    q, draws = group.probability, group.draws
    interval, length, cells = 4e-5, 1 << 20, 600_000
    x = np.linspace(-1 - 14 * noise, 2 + 14 * noise, cells + 1)
    # Differences of the nearer tail: small masses keep their digits.
    right = (1 - q) * ndtr(-x / noise) + q * ndtr((1 - x) / noise)
    left = (1 - q) * ndtr(x / noise) + q * ndtr((x - 1) / noise)
    mass = np.where(x[1:] > 0.5, right[:-1] - right[1:], left[1:] - left[:-1])
    mass = np.maximum(mass, 0) * (1 - 1e-8)
    loss = np.log1p(q * np.expm1((x - 0.5) / noise**2))
    if relation is REPLACE_ONE:
        loss = loss - np.log1p(q * np.expm1((-x - 0.5) / noise**2))
    assert np.all(np.diff(loss) >= 0)
    index = np.floor((loss[:-1] - 1e-12) / interval).astype(np.int64)
    log_weight = tilt * index * interval
    weight = mass * np.exp(log_weight - log_weight.max())
    scale = weight.sum()
    weight /= scale
    middle = round(float(weight @ index))
    ring = np.bincount((index - middle) % length, weight, minlength=length)
    composed = np.fft.irfft(np.fft.rfft(ring) ** draws, length)
    half = length // 2
    # What the FFT may be off by, generously, and what may come round from outside of the ring.
    off = 200 * 2.0**-53 * math.log2(length) * draws * math.sqrt(length)
    away = (index - middle) * interval
    for sign in (1, -1):
        orders = sign * np.array([0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0])
        moved = [draws * math.log(float(weight @ np.exp(order * away))) for order in orders]
        off += math.exp(float(np.min(moved - np.abs(orders) * half * interval)))
    assert off < 1e-4
    return LowerLaw(
        interval=interval,
        first=draws * middle - half,
        weights=np.roll(composed, half),
        log_scale=draws * (math.log(scale) + float(log_weight.max())),
        tilt=tilt,
        off=off,
    )


@pytest.fixture(scope="module")
def truths() -> dict[Relation, LowerLaw]:
    return {relation: below(relation, GROUP, NOISE, 2.5) for relation in Relation}


@pytest.fixture(autouse=True)
def _uncached() -> Iterator[None]:
    """Nothing computed under a wrong law is kept."""
    cached = (sampled._loss_epsilon, sampled._loss_delta, losses.one_draw)
    for each in cached:
        each.cache_clear()
    yield
    for each in cached:
        each.cache_clear()


def claimed(delta: float, relation: Relation = ADD_REMOVE) -> float:
    found = epsilon_pld([GROUP], NOISE, delta, relation)
    assert found is not None
    return found


# -- claims --------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-12, 1e-13, 3e-14, 1e-16, 1e-20])
def test_no_claim_is_below_the_truth_at_any_delta(
    truths: dict[Relation, LowerLaw], delta: float, relation: Relation
) -> None:
    least = truths[relation].delta(claimed(delta, relation))
    assert 0.93 * delta < least <= delta


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("epsilon", [1.0, 5.0, 8.7, 9.5, 12.0])
def test_delta_at_an_epsilon_is_not_below_the_truth(
    truths: dict[Relation, LowerLaw], epsilon: float, relation: Relation
) -> None:
    found = delta_pld([GROUP], NOISE, epsilon, relation)
    assert found is not None
    assert 0.93 * found < truths[relation].delta(epsilon) <= found


@pytest.mark.parametrize("delta", [1e-5, 3e-14, 1e-30, 1e-100])
def test_epsilon_and_delta_undo_each_other(delta: float) -> None:
    assert delta_pld([GROUP], NOISE, claimed(delta), ADD_REMOVE) == pytest.approx(delta, rel=0.02)


def plain(delta: float) -> float:
    """Composed without a tilt, rounding not counted: what a library does."""
    adjacent = NeighboringRelation.ADD_OR_REMOVE_ONE
    one = from_gaussian_mechanism(
        NOISE,
        sampling_prob=GROUP.probability,
        value_discretization_interval=1e-3,
        neighboring_relation=adjacent,
    )
    return float(one.self_compose(GROUP.draws).get_epsilon_for_delta(delta))


def test_a_plain_fft_claims_less_than_the_truth(truths: dict[Relation, LowerLaw]) -> None:
    assert truths[ADD_REMOVE].delta(plain(1e-9)) <= 1e-9
    assert truths[ADD_REMOVE].delta(plain(3e-14)) > 3.3e-14


def untilted(*_: object, **__: object) -> float:
    return 1e-9


def test_without_a_tilt_the_bound_on_rounding_alone_keeps_the_claim(
    truths: dict[Relation, LowerLaw], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled, "best_tilt", untilted)
    for delta in (1e-5, 1e-9, 1e-13, 3e-14, 1e-20):
        assert truths[ADD_REMOVE].delta(claimed(delta)) <= delta
    # Rounding is above this delta: what is left is Rényi.
    assert claimed(3e-14) == epsilon_rdp([GROUP], NOISE, 3e-14, ADD_REMOVE)


def test_without_the_bound_on_rounding_the_claim_breaks(
    truths: dict[Relation, LowerLaw], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong law: as before, and nothing counted for the FFT."""
    monkeypatch.setattr(sampled, "best_tilt", untilted)
    monkeypatch.setattr(losses, "rounding", lambda *_: 0.0)
    broken = [
        truths[ADD_REMOVE].delta(claimed(delta)) / delta for delta in (1e-13, 5e-14, 3e-14, 1e-14)
    ]
    assert max(broken) > 1.1


def test_positive_losses_a_twentieth_too_light_are_found(
    truths: dict[Relation, LowerLaw], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check tells such a claim at every size of delta."""
    right: Callable[..., Losses] = one_draw

    def less(*asked: object) -> Losses:
        one = right(*asked)
        masses = one.masses * np.where(one.values > 0, 0.95, 1.0)
        return Losses(one.interval, one.first, masses, one.infinite)

    monkeypatch.setattr(sampled, "one_draw", less)
    for delta in (1e-9, 3e-14, 1e-20):
        assert truths[ADD_REMOVE].delta(claimed(delta)) > delta


def test_plans_keep_tiny_deltas(truths: dict[Relation, LowerLaw]) -> None:
    """A curator's plan by the rounded law: what it promises, and what it calibrates to."""
    delta = 3e-14
    plan = plan_mixtures(
        width=784, class_sizes=(6000,) * 10, samples=2000, mixture=64, law="rounded", delta=delta
    )
    promised = with_noise(plan, NOISE / 64).guarantee().epsilon
    assert promised is not None
    assert truths[ADD_REMOVE].delta(promised) <= delta
    found = plan.calibrate(6.0)
    truth = below(ADD_REMOVE, GROUP, found.query("mixtures").deviation * 64, 4.0)
    assert 0.9 * delta < truth.delta(6.0) <= delta


def test_calibration_keeps_tiny_deltas() -> None:
    def epsilon_at(noise: float) -> float:
        found = epsilon_pld([GROUP], noise, 1e-14, REPLACE_ONE)
        assert found is not None
        return found

    noise = smallest_noise(epsilon_at, 6.0, start=0.9, relative_tolerance=1e-3)
    assert below(REPLACE_ONE, GROUP, noise, 4.0).delta(6.0) <= 1e-14


def test_a_changed_group_keeps_tiny_deltas() -> None:
    """Two groups that all records join: their pair of moves is one Gaussian."""
    sure = Participation(draws=3, selected=10, among=10)
    moves = ((sure, "REMOVE"), (sure, "ADD"))
    for delta in (1e-6, 1e-14, 1e-40):
        epsilon = sampled._loss_epsilon(moves, 4.0, delta, 1e-3)
        exact = gaussian_delta(epsilon, 4.0 / math.sqrt(6))
        assert 0.99 * delta < exact <= delta


@pytest.mark.parametrize("delta", [1e-299, 1e-305])
def test_a_delta_beyond_doubles_is_left_to_renyi(delta: float) -> None:
    assert claimed(delta) == epsilon_rdp([GROUP], NOISE, delta, ADD_REMOVE)


# -- the parts -----------------------------------------------------------------------------------


def exact_delta(epsilon: float, q: float, noise: float, kind: str) -> mp.mpf:
    """One draw, to 60 digits: the best threshold, from a wide bracket."""
    epsilon, q, noise = mp.mpf(epsilon), mp.mpf(q), mp.mpf(noise)

    def normal(x: mp.mpf, mean: int) -> mp.mpf:
        return mp.erfc((x - mean) / noise / mp.sqrt(2)) / 2

    def loss(x: mp.mpf, mean: int) -> mp.mpf:
        return mp.log(1 - q + q * mp.exp((mean * x - mp.mpf(1) / 2) / noise**2))

    def ratio(x: mp.mpf) -> mp.mpf:
        if kind == "REMOVE":
            return loss(x, 1)
        return -loss(-x, 1) if kind == "ADD" else loss(x, 1) - loss(x, -1)

    low, high = mp.mpf(-400), mp.mpf(400)
    if ratio(low) >= epsilon:
        return 1 - mp.exp(epsilon)
    if ratio(high) <= epsilon:
        return mp.mpf(0)
    for _ in range(220):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(middle) < epsilon else (low, middle)
    # ADD is turned round, so that its losses grow with x as the others do.
    mixed = (1 - q) * normal(high, 0) + q * normal(high, -1 if kind == "ADD" else 1)
    other = normal(high, 0)
    if kind == "REPLACE":
        other = (1 - q) * normal(high, 0) + q * normal(high, -1)
    upper, lower = (other, mixed) if kind == "ADD" else (mixed, other)
    return upper - mp.exp(epsilon) * lower


@pytest.mark.parametrize("kind", ["REMOVE", "ADD", "REPLACE"])
@pytest.mark.parametrize(("q", "noise"), [(64 / 6000, 0.7), (0.5, 3.0), (1e-5, 1.0), (0.2, 0.2)])
def test_one_draw_is_above_the_exact_delta(q: float, noise: float, kind: str) -> None:
    with mp.workdps(60):
        one = one_draw(q, noise, kind, 0.01 if noise > 0.3 else 0.1, -80.0)
        masses = [mp.mpf(float(mass)) for mass in one.masses]
        count = len(masses)
        assert mp.fsum(masses) >= 1 - one.infinite
        for at in sorted({0, 1, count // 7, count // 3, count // 2, 3 * count // 4, count - 2}):
            epsilon = mp.mpf(one.first + at) * mp.mpf(one.interval)
            bound = mp.mpf(one.infinite) + mp.fsum(
                masses[i] * -mp.expm1((at - i) * mp.mpf(one.interval)) for i in range(at, count)
            )
            exact = exact_delta(epsilon, q, noise, kind)
            assert bound >= exact
            assert bound <= exact + mp.mpf(10) ** -11 * (exact + bound) + mp.mpf(10) ** -11


@pytest.mark.parametrize("draws", [1, 2, 7, 100])
def test_the_fft_is_off_by_less_than_its_bound(draws: int) -> None:
    """Against sums of products in extended precision, where nothing cancels."""
    masses = np.exp(-0.5 * ((np.arange(41) - 13) / 6.0) ** 2)
    masses /= masses.sum()
    one = Losses(0.1, -13, masses, 0.0)
    found = compose([(one, draws)], 0.3)
    exact = np.ones(1, dtype=np.longdouble)
    for _ in range(draws):
        exact = np.convolve(exact, masses.astype(np.longdouble))
    index = -13 * draws + np.arange(len(exact))
    tilted = exact * np.exp(0.3 * 0.1 * index - np.longdouble(found.log_scale))
    within = (index >= found.first) & (index < found.first + len(found.tilted))
    assert float(tilted[~within].sum()) <= 1e-16
    laid = np.zeros(len(found.tilted), dtype=np.longdouble)
    laid[index[within] - found.first] = tilted[within]
    # The scale is rounded up, so the exact law is a little below the tilted one.
    off = float(np.abs(found.tilted - laid).sum())
    assert off <= found.error + 1e-11 * draws
    assert 0 < found.error < 1e-9


def test_the_bound_on_rounding_is_highams_for_every_draw() -> None:
    eta = 4 * 2**-53 + 4 * 2**-53 * math.sqrt(2)
    expected = 2**9 * 202 * (18 * eta + 8 * 2**-53)
    assert rounding(1 << 18, 200) == pytest.approx(1.01 * expected, rel=1e-9)
    assert rounding(1 << 18, 400) > 1.9 * rounding(1 << 18, 200)


@pytest.mark.parametrize(
    ("rate", "noise", "kind", "draws", "interval"),
    [
        (0.25, 5.0, "REMOVE", 100, 1e-3),
        (0.25, 5.0, "ADD", 100, 1e-3),
        (1 / 400, 0.7, "REMOVE", 1000, 4e-3),
        (1 / 5000, 0.3, "ADD", 50, 1e-2),
        (0.05, 1.0, "REPLACE", 200, 4e-3),
        (1.0, 20.0, "REMOVE", 30, 1e-3),
    ],
)
def test_deltas_at_many_epsilons_are_those_at_each(
    rate: float, noise: float, kind: str, draws: int, interval: float
) -> None:
    """By running sums, and never below what they are at each, but for rounding that they count."""
    parts = [(one_draw(rate, noise, kind, interval, -60.0), draws)]
    epsilons = np.sort(np.append(np.linspace(0.0, 12.0, 97), [interval * 7, interval * 7.5]))
    for about in (0.01, 1.0, 6.0):
        composed = compose(parts, best_tilt(parts, epsilon=about))
        each = np.array([composed.delta(epsilon) for epsilon in epsilons.tolist()])
        many = composed.deltas(epsilons)
        assert np.all(many >= each * (1 - 1e-9))
        where = each > 1e-15
        np.testing.assert_allclose(many[where], each[where], rtol=1e-6)
        assert np.all(many <= 1.0)
        told = where & (many < 1.0)
        assert np.all(composed.deltas(epsilons + interval)[told] < many[told])
