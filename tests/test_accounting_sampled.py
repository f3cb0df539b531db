"""The cost of sampled sums: check values, other libraries, and direct sums over the lattice."""

from __future__ import annotations

import math
import time

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp
from scipy.stats import norm

from capemix.accounting.calibration import smallest_noise
from capemix.accounting.sampled import (
    ORDERS,
    _loss_epsilon,
    _moves,
    epsilon_pld,
    epsilon_rdp,
    fixed_size_rdp,
    poisson_rdp,
    poisson_replace_rdp,
    rdp_curve,
    sampler_delta,
)
from capemix.errors import InputError
from capemix.queries import Participation, Relation, Selection

DELTA = 1e-5
ADD_REMOVE, REPLACE_ONE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
CHECKED = [  # epsilon, selected of 6000, draws; noise by privacy loss, noise by Rényi
    (10.0, 64, 6000, 0.7385, 0.7648),
    (10.0, 256, 200, 0.6743, 0.7247),
    (1.0, 256, 200, 2.468, 2.670),
    (1.0, 64, 6000, 3.184, 3.441),
]
Laws = tuple[NDArray[np.float64], NDArray[np.float64]]


def renyi(log_p: NDArray[np.float64], log_q: NDArray[np.float64], order: int) -> float:
    """D_α(P‖Q), summed over all points."""
    return float(logsumexp(order * log_p - (order - 1) * log_q)) / (order - 1)


def mixture(q: float, log_rest: NDArray[np.float64], log_moved: NDArray[np.float64]) -> Laws:
    """(1-q)R + qU and R."""
    return np.logaddexp(math.log1p(-q) + log_rest, math.log(q) + log_moved), log_rest


def line(sigma: float, *moves: int, reach: int) -> list[NDArray[np.float64]]:
    """Log masses of the rounded Gaussian on Z at each of the moves."""
    from_0 = [np.abs(np.arange(-reach, reach + 1.0) - move) for move in moves]
    ends = [[log_ndtr((side - x) / sigma) for side in (0.5, -0.5)] for x in from_0]
    return [upper + np.log1p(-np.exp(lower - upper)) for upper, lower in ends]


def lattice(sigma: float, *moves: tuple[int, int], reach: int) -> list[NDArray[np.float64]]:
    """The same on Z², on one square of points."""
    laws = [[line(sigma, x, reach=reach)[0] for x in move] for move in moves]
    return [np.add.outer(one, two).ravel() for one, two in laws]


def of_dp_accounting(probability: float, noise: float, orders: list[int]) -> NDArray[np.float64]:
    accountant = RdpAccountant(orders)
    gaussian = dp_accounting.GaussianDpEvent(noise)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(probability, gaussian))
    return np.array(accountant._rdp)


def group(draws: int, selected: int, among: int = 6000) -> Participation:
    return Participation(draws=draws, selected=selected, among=among)


# Rényi, added or removed


@pytest.mark.parametrize(("epsilon", "selected", "draws", "_pld", "noise"), CHECKED)
def test_renyi_noise_of_the_checked_settings(
    epsilon: float, selected: int, draws: int, _pld: float, noise: float
) -> None:
    groups = [group(draws, selected)] * 10
    found = smallest_noise(lambda s: epsilon_rdp(groups, s, DELTA, ADD_REMOVE), epsilon)
    assert found == pytest.approx(noise, rel=0.01)


@pytest.mark.parametrize("probability", [1e-3, 64 / 6000, 0.3, 1.0])
@pytest.mark.parametrize("noise", [0.3, 0.74, 2.0, 10.0])
def test_poisson_rdp_equals_dp_accounting_at_integer_orders(
    probability: float, noise: float
) -> None:
    orders = [2, 3, 4, 10, 64, 300, 1024]
    theirs = of_dp_accounting(probability, noise, orders)
    np.testing.assert_allclose(
        poisson_rdp(probability, noise, orders), theirs, rtol=1e-9, atol=1e-14
    )


def test_one_percent_less_noise_is_told_apart() -> None:
    orders = [2, 3, 4, 10, 64]
    wrong = poisson_rdp(64 / 6000, 0.99 * 0.74, orders)
    assert np.min(np.abs(wrong / of_dp_accounting(64 / 6000, 0.74, orders) - 1)) > 0.01


@pytest.mark.parametrize("sigma", [0.74, 3.0])
@pytest.mark.parametrize("probability", [0.01, 0.3])
def test_orders_bound_a_draw_with_rounded_noise(sigma: float, probability: float) -> None:
    """A whole shift of a rounded Gaussian costs no more than that of a continuous one, and next to
    as much where the lattice is fine; with a tenth less noise it costs more."""
    orders, reach = [2, 3, 5, 8], math.ceil(34 * sigma)
    bound = poisson_rdp(probability, sigma, orders)
    log_p, log_q = mixture(probability, *line(sigma, 0, 1, reach=reach))
    forward = np.array([renyi(log_p, log_q, order) for order in orders])
    backward = np.array([renyi(log_q, log_p, order) for order in orders])
    assert np.all(backward <= forward * (1 + 1e-9))
    assert np.all(forward <= bound * (1 + 1e-9))
    if sigma == 3.0:
        assert np.all(forward > 0.95 * bound)
        less = mixture(probability, *line(0.9 * sigma, 0, 1, reach=reach))
        assert all(renyi(*less, order) > most for order, most in zip(orders, bound, strict=True))


@pytest.mark.parametrize(
    ("sigma", "move", "epsilon"),
    [(0.74, 1, 8.0), (3.0, 4, 7.848), (47.0, 64, 7.432), (3.0, 1, 1.906), (47.0, 1, 0.115)],
)
def test_the_continuous_delta_bounds_the_rounded_one(
    sigma: float, move: int, epsilon: float
) -> None:
    """One unsampled draw in one dimension, within half a lattice step of an epsilon at which the
    discrete Gaussian, which is not drawn for that, would be above."""
    reach = round(14 * sigma) + move
    z = np.arange(-reach, reach + 1.0)

    def of(eps: float, log_u: NDArray[np.float64], log_r: NDArray[np.float64]) -> float:
        exact = float(np.sum(np.maximum(0, -np.expm1(eps + log_r - log_u)) * np.exp(log_u)))
        half, slope = move / (2 * sigma), eps * sigma / move
        smooth = norm.sf(slope - half) - math.exp(eps) * norm.sf(slope + half)
        return exact / float(smooth)

    def greatest(log_u: NDArray[np.float64], log_r: NDArray[np.float64]) -> float:
        step = move / sigma**2
        about = np.linspace(epsilon - step / 2, epsilon + step / 2, 501)
        return max(of(eps, log_u, log_r) for eps in about)

    assert greatest(*line(sigma, move, 0, reach=reach)) <= 1 + 1e-9
    log_norm = logsumexp(-(z**2) / (2 * sigma**2))
    discrete = [-((z - at) ** 2) / (2 * sigma**2) - log_norm for at in (move, 0)]
    assert greatest(*discrete) > 1.0001


# Rényi, replaced


@pytest.mark.parametrize("probability", [0.01, 0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("noise", [0.3, 0.5, 0.74, 1.0, 2.0, 5.0])
def test_replacement_bounds_the_true_divergence_closely(probability: float, noise: float) -> None:
    orders = [2, 3, 4, 5, 8, 13, 32]
    reach = 2 * 32 + 12 * noise
    z = np.linspace(-reach, reach, 60001)
    log_step = math.log(z[1] - z[0])
    rest, plus, minus = (norm.logpdf(z, m, noise) + log_step for m in (0, 1, -1))
    (log_p, _), (log_q, _) = mixture(probability, rest, plus), mixture(probability, rest, minus)
    true = np.array([renyi(log_p, log_q, order) for order in orders])
    bound = poisson_replace_rdp(probability, noise, orders)
    assert np.all(bound >= true * (1 - 1e-6))
    assert np.all(bound <= 1.8 * true)


@pytest.mark.parametrize("sigma", [0.6, 1.5])
@pytest.mark.parametrize("probability", [0.02, 0.3])
def test_replacement_bounds_every_move_on_the_lattice(sigma: float, probability: float) -> None:
    orders = [2, 3, 4, 7]
    bound = poisson_replace_rdp(probability, sigma / math.sqrt(2), orders)
    moves = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)]
    rest, *moved = lattice(sigma, (0, 0), *moves, reach=26)
    laws = [mixture(probability, rest, law)[0] for law in moved]
    greatest = [
        max(renyi(p, q, order) for p in laws for q in laws if p is not q) for order in orders
    ]
    antipodal = [renyi(laws[0], laws[-1], order) for order in orders]
    assert np.all(bound >= np.array(greatest) * (1 - 1e-9))
    np.testing.assert_allclose(antipodal, greatest, rtol=1e-9)
    closer = poisson_replace_rdp(probability, 1.3 * sigma / math.sqrt(2), orders)
    assert np.any(closer < greatest)  # a bound for a third more noise is found


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_replacement_at_the_ends_is_exact(probability: float) -> None:
    expected = probability * np.array(ORDERS) * 2.0**2 / (2 * 3.0**2)
    np.testing.assert_allclose(poisson_replace_rdp(probability, 3.0, ORDERS), expected, rtol=1e-12)


def test_add_remove_ten_is_replace_one_of_about_fifteen() -> None:
    groups = [group(6000, 64)] * 10
    noise = smallest_noise(lambda s: epsilon_rdp(groups, s, DELTA, ADD_REMOVE), 10.0)
    assert 15 < epsilon_rdp(groups, noise, DELTA, REPLACE_ONE) < 17
    loss = epsilon_pld(groups, 0.7383, DELTA, REPLACE_ONE)
    assert loss == pytest.approx(15.0, rel=0.01)


def test_a_changed_group_is_a_removal_and_an_addition() -> None:
    orders = [2, 3, 8]
    groups = [group(100, 64), group(100, 64), group(700, 1)]
    removal, other = (g.draws * poisson_rdp(g.probability, 0.7, orders) for g in groups[1:])
    within = 100 * poisson_replace_rdp(64 / 6000, 0.7, orders)
    curve = rdp_curve(groups, 0.7, REPLACE_ONE, orders=orders)
    np.testing.assert_allclose(curve, np.maximum(2 * removal, within))
    pair = rdp_curve(groups[1:], 0.7, REPLACE_ONE, orders=orders)
    np.testing.assert_allclose(pair, np.maximum(removal + other, within))
    alone = rdp_curve(groups[:1], 0.7, REPLACE_ONE, orders=orders)
    np.testing.assert_allclose(alone, within)


def test_leaving_out_dominated_groups_changes_nothing() -> None:
    orders = [2, 3, 8, 30]
    groups = [group(d, s) for d in (10, 50, 200) for s in (1, 64, 256)] + [group(90, 200)]
    each = [g.draws * poisson_rdp(g.probability, 2.0, orders) for g in groups]
    np.testing.assert_allclose(
        rdp_curve(groups, 2.0, ADD_REMOVE, orders=orders), np.max(each, axis=0)
    )
    within = [g.draws * poisson_replace_rdp(g.probability, 2.0, orders) for g in groups]
    across = [a + b for i, a in enumerate(each) for b in each[:i]]
    np.testing.assert_allclose(
        rdp_curve(groups, 2.0, REPLACE_ONE, orders=orders), np.max(within + across, axis=0)
    )


# Fixed size


@pytest.mark.parametrize("noise", [0.37, 1.0, 5.0])
def test_fixed_size_equals_dp_accounting(noise: float) -> None:
    orders = [2, 3, 4, 16, 64]
    accountant = RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(noise)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(6000, 64, gaussian))
    np.testing.assert_allclose(fixed_size_rdp(6000, 64, noise, orders), accountant._rdp, rtol=1e-11)


def test_fixed_size_costs_the_replacement_of_a_record() -> None:
    sized = Participation(draws=50, selected=64, among=6000, selection=Selection.FIXED)
    curve = rdp_curve([sized, sized], 2.0, REPLACE_ONE)
    np.testing.assert_allclose(curve, 50 * fixed_size_rdp(6000, 64, 1.0, ORDERS))
    nonnegative = rdp_curve([sized], 2.0, REPLACE_ONE, replacement_factor=math.sqrt(2))
    assert np.all(nonnegative < curve)
    assert epsilon_pld([sized], 2.0, DELTA, REPLACE_ONE) is None


def test_a_whole_group_of_fixed_size_is_the_plain_gaussian() -> None:
    np.testing.assert_allclose(fixed_size_rdp(8, 8, 3.0, [2, 5]), np.array([2, 5]) / 18)


def test_fixed_size_has_no_added_record() -> None:
    sized = Participation(draws=50, selected=64, among=6000, selection=Selection.FIXED)
    with pytest.raises(InputError, match="fixed-size"):
        rdp_curve([sized], 2.0, ADD_REMOVE)


# Privacy loss distributions


@pytest.mark.parametrize(("epsilon", "selected", "draws", "noise", "_rdp"), CHECKED)
def test_loss_noise_of_the_checked_settings(
    epsilon: float, selected: int, draws: int, noise: float, _rdp: float
) -> None:
    groups = [group(draws, selected)] * 10
    more, less = (epsilon_pld(groups, noise * f, DELTA, ADD_REMOVE) for f in (0.99, 1.01))
    assert more is not None
    assert less is not None
    assert less < epsilon < more


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE_ONE])
def test_loss_is_quick_pessimistic_and_close_to_a_finer_one(relation: Relation) -> None:
    groups = [group(6000, 64)]
    begin = time.process_time()
    ours = epsilon_pld(groups, 0.74, DELTA, relation)
    assert time.process_time() - begin < 3
    name = "ADD_OR_REMOVE_ONE" if relation is ADD_REMOVE else "REPLACE_ONE"
    fine = from_gaussian_mechanism(
        0.74,
        sampling_prob=64 / 6000,
        value_discretization_interval=2e-4,
        neighboring_relation=dp_accounting.NeighboringRelation[name],
    ).self_compose(6000)
    assert ours is not None
    assert 1 <= ours / fine.get_epsilon_for_delta(DELTA) <= 1.002


def hockey_stick(p: NDArray[np.float64], q: NDArray[np.float64], epsilon: float) -> float:
    return float(np.sum(np.maximum(0, p - math.exp(epsilon) * q)))


@pytest.mark.parametrize(("probability", "noise"), [((1, 1), 1.0), ((1, 5), 0.7), ((1, 50), 0.5)])
def test_replacement_loss_equals_a_direct_integral(
    probability: tuple[int, int], noise: float
) -> None:
    selected, among = probability
    q = selected / among
    z = np.linspace(-1 - 12 * noise, 1 + 12 * noise, 400001)
    rest, plus, minus = (norm.pdf(z, m, noise) * (z[1] - z[0]) for m in (0, 1, -1))
    ours = epsilon_pld([group(1, selected, among)], noise, 1e-4, REPLACE_ONE)
    assert ours is not None
    p, r = (1 - q) * rest + q * plus, (1 - q) * rest + q * minus
    # Where no draw is left to chance the figure is exact, and this sum is off by its step.
    assert hockey_stick(p, r, ours) <= 1e-4 * (1 + 1e-7)
    assert hockey_stick(p, r, 0.998 * ours) > 1e-4


@pytest.mark.parametrize(("leaving", "joining"), [(0, 1), (1, 0)])
def test_changed_group_loss_equals_a_direct_integral(leaving: int, joining: int) -> None:
    """Two groups of one draw: a record leaves one and joins the other."""
    noise, delta, groups = 0.9, 1e-3, (group(1, 4, 5), group(1, 1, 10))
    z = np.linspace(-6.5, 7.5, 1501)
    rest, moved = (norm.pdf(z, m, noise) * (z[1] - z[0]) for m in (0, 1))
    left, joined = (
        (1 - q) * rest + q * moved
        for q in (groups[leaving].probability, groups[joining].probability)
    )
    before, after = np.outer(left, rest).ravel(), np.outer(rest, joined).ravel()
    moves = ((groups[leaving], "REMOVE"), (groups[joining], "ADD"))
    ours = _loss_epsilon(moves, noise, delta, 1e-3)
    assert hockey_stick(before, after, ours) <= delta * (1 + 1e-3)
    assert hockey_stick(before, after, 0.998 * ours) > delta


def test_the_loss_regards_every_change_that_a_larger_one_does_not_cover() -> None:
    few, often, small = group(10, 256), group(90, 64), group(5, 1)
    assert _moves([few, often, small], ADD_REMOVE) == {
        ((g, kind),) for g in (few, often) for kind in ("REMOVE", "ADD")
    }
    assert _moves([often, often, small], REPLACE_ONE) == {
        ((often, "REPLACE"),),
        ((often, "REMOVE"), (often, "ADD")),
    }
    assert ((often, "REMOVE"), (few, "ADD")) in _moves([few, often], REPLACE_ONE)
    assert ((few, "REMOVE"), (often, "ADD")) in _moves([few, often], REPLACE_ONE)
    assert _moves([few], REPLACE_ONE) == {((few, "REPLACE"),)}


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE_ONE])
def test_renyi_is_never_below_the_loss(relation: Relation) -> None:
    groups = [group(200, 256), group(6000, 64)]
    for noise in (0.7, 3.0):
        loss = epsilon_pld(groups, noise, DELTA, relation)
        assert loss is not None
        assert loss <= epsilon_rdp(groups, noise, DELTA, relation)


# Edges, and what the sampler adds


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE_ONE])
def test_no_noise_no_privacy_and_no_draws_no_cost(relation: Relation) -> None:
    assert epsilon_rdp([group(10, 64)], 0.0, DELTA, relation) == math.inf
    assert epsilon_pld([group(10, 64)], 0.0, DELTA, relation) == math.inf
    assert epsilon_rdp([group(0, 64)], 1.0, DELTA, relation) == 0
    assert epsilon_pld([group(0, 64)], 1.0, DELTA, relation) == 0
    assert np.all(np.isinf(rdp_curve([group(10, 64)], 0.0, relation)))


def test_a_rate_above_one_is_refused() -> None:
    with pytest.raises(InputError, match="probability"):
        epsilon_rdp([group(10, 7000)], 1.0, DELTA, ADD_REMOVE)


def test_the_sampler_error_in_delta() -> None:
    coordinates = 6000 * 784
    assert sampler_delta(10.0, coordinates, 1, 2.0**-51) == pytest.approx(
        (1 + math.exp(10)) * coordinates * 2.0**-51
    )
    assert sampler_delta(10.0, coordinates, 10, 2.0**-100) < 1e-18
    assert sampler_delta(1e6, coordinates, 10, 2.0**-100) == 1.0
    assert sampler_delta(10.0, coordinates, 10, 0.0) == 0.0
