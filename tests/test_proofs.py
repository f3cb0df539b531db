"""The steps of docs/theory/proofs, each checked by brute force at a small size."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import binom, poisson

from capemix.accounting.joint_view import complete_view_variance
from capemix.accounting.sampled import (
    _log_antipodal_moments,
    poisson_rdp,
    poisson_replace_rdp,
    sampler_delta,
)
from capemix.errors import InputError
from capemix.federation import Federation
from capemix.methods.mixing.planning import plan_mixtures
from capemix.randomness import tables

# -- the joint form --------------------------------------------------------------------------------


def drawn(rows: tuple[int, ...], rate: Fraction) -> dict[int, Fraction]:
    """The law of the sum over a binomial number of rows, a uniform subset of that size."""
    law: Counter[int] = Counter()
    n = len(rows)
    for size in range(n + 1):
        weight = math.comb(n, size) * rate**size * (1 - rate) ** (n - size)
        for chosen in combinations(rows, size):
            law[sum(chosen)] += weight / math.comb(n, size)
    return law


def convolved(one: dict[int, Fraction], other: dict[int, Fraction]) -> dict[int, Fraction]:
    law: Counter[int] = Counter()
    for (a, p), (b, q) in product(one.items(), other.items()):
        law[a + b] += p * q
    return law


def test_the_sum_over_sites_is_one_poisson_draw_for_every_split() -> None:
    """Exactly, in fractions: every way of dealing five rows to three sites, empty ones included."""
    rows, rate = (1, 2, 2, 5, -3), Fraction(2, 7)
    pooled: Counter[int] = Counter()
    for taken in product((0, 1), repeat=5):
        weight = math.prod((rate if one else 1 - rate for one in taken), start=Fraction(1))
        pooled[sum(row for row, one in zip(rows, taken, strict=True) if one)] += weight
    assert drawn(rows, rate) == pooled
    for owners in product(range(3), repeat=5):
        law: dict[int, Fraction] = {0: Fraction(1)}
        for site in range(3):
            own = tuple(r for r, o in zip(rows, owners, strict=True) if o == site)
            law = convolved(law, drawn(own, rate))
        assert law == pooled


# -- the server's view -----------------------------------------------------------------------------


@pytest.mark.parametrize(("sites", "ring"), [(2, 4), (3, 2), (3, 3)])
def test_masked_uploads_tell_the_honest_sum_and_nothing_else(sites: int, ring: int) -> None:
    """All pair masks of a small ring: the uploads' joint law depends on the sum alone, and is
    uniform on the uploads that have it."""
    pairs = list(combinations(range(sites), 2))

    def uploads(values: tuple[int, ...]) -> Counter[tuple[int, ...]]:
        seen: Counter[tuple[int, ...]] = Counter()
        for masks in product(range(ring), repeat=len(pairs)):
            masked = list(values)
            for (low, high), mask in zip(pairs, masks, strict=True):
                masked[low] += mask
                masked[high] -= mask
            seen[tuple(word % ring for word in masked)] += 1
        return seen

    by_sum: dict[int, Counter[tuple[int, ...]]] = {}
    for values in product(range(ring), repeat=sites):
        seen = uploads(values)
        assert len(seen) == ring ** (sites - 1)
        assert len(set(seen.values())) == 1
        assert by_sum.setdefault(sum(values) % ring, seen) == seen
    assert len(by_sum) == ring


def test_a_graph_that_falls_apart_tells_two_sums() -> None:
    """The check of the check: without the mask between two halves their sums show."""
    seen = {
        ((a + mask) % 4, (b - mask) % 4, c)
        for a, b, c, mask in product(range(4), repeat=4)
        if c == 1
    }
    assert {upload[2] for upload in seen} == {1}


def feasible(sites: int) -> list[tuple[int, int]]:
    found = []
    for colluding, dropouts in product(range(1, sites), range(sites)):
        try:
            Federation(sites=sites, colluding=colluding, dropouts=dropouts)
        except InputError:
            continue
        found.append((colluding, dropouts))
    return found


@pytest.mark.parametrize("ratio", [1.0, 100.0])
def test_no_lie_about_who_is_lost_leaves_less_than_the_formula(ratio: float) -> None:
    """Covariances of all that the server holds, for every adversary of up to 7 sites and every
    number of honest sites that it calls lost, with and without the colluders it leaves out."""
    for sites in range(2, 8):
        for colluding, dropouts in feasible(sites):
            honest = sites - colluding - dropouts
            claimed = complete_view_variance(1.0, ratio, honest)
            own = float(max(1, honest))  # the self mask's variance: `masks_of`
            for lost in range(dropouts + 1):
                included = sites - colluding - lost
                laplacian = included * np.eye(included) - np.ones((included, included))
                covariance = np.zeros((included + lost, included + lost))
                covariance[:included, :included] = np.eye(included) + ratio * laplacian
                # Its pair keys are revealed, its self mask is not.
                covariance[included:, included:] = (1.0 + own) * np.eye(lost)
                left = 1.0 / np.diag(np.linalg.inv(covariance))
                assert left.min() >= claimed * (1 - 1e-9)


def test_any_two_quorums_share_an_honest_site() -> None:
    for sites in range(2, 12):
        for colluding, dropouts in feasible(sites):
            federation = Federation(sites=sites, colluding=colluding, dropouts=dropouts)
            assert 2 * federation.agreement - sites > colluding
            assert colluding < federation.share_threshold <= sites - dropouts


# -- the lattice -----------------------------------------------------------------------------------


def plane(sigma: float, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of Z^2 and their log weights under the discrete Gaussian."""
    side = np.arange(-reach, reach + 1)
    points = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    log = -(points**2).sum(axis=1) / (2 * sigma**2)
    return points, log - logsumexp(log)


@pytest.mark.parametrize("sigma", [0.4, 1.3])
def test_mixed_moments_are_the_continuous_ones(sigma: float) -> None:
    """E_R[u^i v^j] = exp((|ix + jy|^2 - i|x|^2 - j|y|^2) / 2 sigma^2) for whole moves x, y."""
    points, log_r = plane(sigma, 40)
    for x, y in (((1, 0), (0, 1)), ((1, 1), (-1, -1)), ((2, -1), (1, 1))):
        a, b = np.array(x), np.array(y)
        log_u, log_v = ((2 * points @ m - m @ m) / (2 * sigma**2) for m in (a, b))
        for i, j in ((1, 0), (2, 0), (1, 1), (3, 2), (0, 4)):
            found = logsumexp(log_r + i * log_u + j * log_v)
            moved = i * a + j * b
            exact = (moved @ moved - i * (a @ a) - j * (b @ b)) / (2 * sigma**2)
            assert found == pytest.approx(exact, abs=1e-9)


def delta_of(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def test_laws_within_a_factor_cost_twice_its_logarithm_and_scale_delta() -> None:
    """delta'(eps + 2t) <= e^t delta(eps) where all probabilities are within e^(+-t); and without
    the factor e^t it can fail, so it is paid."""
    generator = np.random.default_rng(1)
    fails = 0
    for _ in range(300):
        p, q = generator.dirichlet(np.full(4, 0.5), 2)
        bent = []
        t = 0.0
        for law in (p, q):
            other = law * np.exp(generator.choice([-0.3, 0.3], 4))
            other /= other.sum()
            t = max(t, float(np.abs(np.log(other / law)).max()))
            bent.append(other)
        for epsilon in (0.0, 0.5, 1.0, 2.0):
            before, after = delta_of(p, q, epsilon), delta_of(*bent, epsilon + 2 * t)
            assert after <= math.exp(t) * before + 1e-12
        for order in (2, 3, 8):
            allowed = renyi(p, q, order) + (2 * order - 1) / (order - 1) * t
            assert renyi(*bent, order) <= allowed + 1e-9
            fails += after > before + 1e-12
    p, q, t = np.array([0.01, 0.99]), np.array([0.0, 1.0]), 0.3
    more = p * [math.exp(t), 1.0]
    more[1] = 1 - more[0]
    assert delta_of(more, q, 1.0 + 2 * t) > delta_of(p, q, 1.0) * 1.3


def test_what_samplers_are_off_by_is_in_delta() -> None:
    """delta'(eps) <= delta(eps) + (1 + e^eps) k for laws within total variation k."""
    generator = np.random.default_rng(2)
    for _ in range(300):
        p, q = generator.dirichlet(np.ones(5), 2)
        near = [0.95 * law + 0.05 * generator.dirichlet(np.full(5, 0.3)) for law in (p, q)]
        k = max(np.abs(a - b).sum() / 2 for a, b in zip(near, (p, q), strict=True))
        for epsilon in (0.0, 1.0, 2.0):
            allowed = delta_of(p, q, epsilon) + sampler_delta(epsilon, 1, 1, k)
            assert delta_of(*near, epsilon) <= allowed + 1e-12


def test_total_variation_adds_up_over_draws() -> None:
    generator = np.random.default_rng(3)
    a, b, c, d = generator.dirichlet(np.ones(6), 4)
    apart = [np.abs(x - y).sum() / 2 for x, y in ((a, b), (c, d))]
    together = np.abs(np.outer(a, c) - np.outer(b, d)).sum() / 2
    assert together <= sum(apart) + 1e-12


def test_truncation_toward_zero_makes_nothing_longer() -> None:
    generator = np.random.default_rng(4)
    rows = generator.normal(0, 3, (1000, 7))
    cut = np.trunc(rows)
    assert np.all(np.linalg.norm(cut, axis=1) <= np.linalg.norm(rows, axis=1))
    # To the nearest would: that is why it is not done.
    assert np.any(np.linalg.norm(np.rint(rows), axis=1) > np.linalg.norm(rows, axis=1))


@pytest.mark.parametrize("mixture", [1, 2, 10, 64, 512, 10_000, 10**6])
def test_a_sum_leaves_the_rings_reach_with_no_measurable_chance(mixture: int) -> None:
    count = mixture + 14 * math.sqrt(mixture) + 100
    for law in (poisson(mixture), binom(10 * mixture, 0.1)):
        assert law.logsf(math.floor(count)) < -100 * math.log(2)
    sigma = 50.0
    weights = np.exp(-(np.arange(0, 3000.0) ** 2) / (2 * sigma**2))
    beyond = weights[math.ceil(13 * (sigma + 1)) :].sum() / (2 * weights.sum() - 1)
    assert 0 < 2 * beyond < 2.0**-100
    assert max(map(abs, tables.rounded_gaussian(2.0).probabilities())) < 13 * (2.0 + 1)


def test_the_ring_is_as_wide_as_its_reach() -> None:
    asked = {"width": 3, "class_sizes": (10**6,), "samples": 1, "scheme": "cape", "sites": 5}
    for mixture in (1, 100, 10_000, 300_000):
        plan = plan_mixtures(**asked, mixture=mixture, noise=1.0 / mixture).query("mixtures")
        count = mixture + 14 * math.sqrt(mixture) + 100
        reach = count * (plan.lattice_norm_bound or 0) + 13 * 5 * (plan.site_deviation + 1)
        assert reach < 2 ** (plan.ring_bits - 1)


# -- a replaced record -----------------------------------------------------------------------------


def renyi(p: np.ndarray, q: np.ndarray, order: int) -> float:
    return float(logsumexp(order * np.log(p) + (1.0 - order) * np.log(q))) / (order - 1)


def test_the_weak_triangle_inequality_with_the_exponents_used() -> None:
    generator = np.random.default_rng(5)
    for _ in range(200):
        p, q, r = generator.dirichlet(np.ones(4), 3)
        for a in (2, 3, 6):
            through = 2 * a / (2 * a - 1) * renyi(p, r, 2 * a - 1) + renyi(r, q, 2 * a)
            assert renyi(p, q, a) <= through + 1e-12


def test_powers_below_one_stay_under_their_parabola() -> None:
    excess = np.linspace(-1, 0, 2001)
    for order in (2, 3, 4, 9, 40):
        parabola = 1 + order * excess + math.comb(order, 2) * excess**2
        assert np.all((1 + excess) ** order <= parabola + 1e-12)


@pytest.mark.parametrize("j", [3, 5, 9, 21])
def test_the_odd_bound_is_the_best_convex_polynomial_above_the_positive_part(j: int) -> None:
    r = math.sqrt((j - 2) * (j + 1) / (j * (j - 1)))
    for scale in (0.1, 1.0, 7.0):
        root = 1 / (2 * (1 + r))
        a, b, c = root * scale, root / scale, 2 * r * root
        d = np.linspace(-5, 5, 4001)
        quadratic = a + c * d + b * d**2
        assert np.all(quadratic >= np.maximum(d, 0.0) - 1e-12)  # times d^(j-1) >= 0
        bend = a * (j - 1) * (j - 2) + c * j * (j - 1) * d + b * (j + 1) * j * d**2
        assert np.all(bend >= -1e-9)
        # Neither inequality has room: the constants are the least.
        touch = 2 * math.sqrt(a * b) + c - 1
        assert abs(touch) < 1e-12
        assert c == pytest.approx(2 * math.sqrt(a * b) * r)


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_moments_of_every_pair_of_moves_are_below_the_antipodal_ones(sigma: float) -> None:
    """Price's theorem, looked at: all whole moves of norm up to sqrt(5) in the plane."""
    norm = math.sqrt(5)
    points, log_r = plane(sigma, math.ceil(18 + 8 * sigma))
    weights = np.exp(log_r)
    moves = [np.array(m) for m in product(range(-2, 3), repeat=2) if m[0] ** 2 + m[1] ** 2 <= 5]
    ratios = [np.exp((2 * points @ m - m @ m) / (2 * sigma**2)) for m in moves]
    log_even = _log_antipodal_moments(sigma / norm, 8)
    even = {j: math.exp(log_even[j // 2 - 1]) for j in (2, 4, 6, 8)}
    for u, v in product(ratios, repeat=2):
        d = u - v
        for j in (2, 4, 6):
            assert float(weights @ d**j) <= even[j] * (1 + 1e-7)
        for j in (3, 5, 7):
            r = math.sqrt((j - 2) * (j + 1) / (j * (j - 1)))
            bound = math.sqrt(even[j - 1] * even[j + 1]) / (1 + r)
            assert float(weights @ np.maximum(d, 0.0) ** j) <= bound * (1 + 1e-7)
    # Antipodal moves of that norm are on the lattice: the even bound is reached.
    at = [tuple(m) for m in moves]
    d = ratios[at.index((2, 1))] - ratios[at.index((-2, -1))]
    assert float(weights @ d**4) == pytest.approx(even[4], rel=1e-6)


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
def test_antipodal_moments_equal_their_binomial_sum(noise: float) -> None:
    """The trapezoidal rule against exact moments, summed in high precision."""
    import mpmath

    with mpmath.workdps(80):
        found = _log_antipodal_moments(noise, 20)
        for j in (2, 6, 20):
            s = 1 / mpmath.mpf(noise) ** 2
            exact = mpmath.fsum(
                (-1) ** k * mpmath.binomial(j, k) * mpmath.exp(((j - 2 * k) ** 2 - j) * s / 2)
                for k in range(j + 1)
            )
            assert found[j // 2 - 1] == pytest.approx(float(mpmath.log(exact)), rel=1e-11)


def test_a_changed_label_costs_a_removal_and_an_addition_exactly() -> None:
    """Two draws, one of each class: the joint divergence is the sum, and each part is bounded by
    the Poisson draw's, forwards or backwards."""
    sigma, rate = 0.9, 0.3
    z = np.arange(-60, 61.0)
    rest = np.exp(-(z**2) / (2 * sigma**2))
    rest /= rest.sum()
    moved = np.roll(rest, 1)
    with_it = (1 - rate) * rest + rate * moved
    inside = (rest > 1e-100) & (moved > 1e-100)
    p = np.outer(with_it[inside], rest[inside])  # in the first class
    q = np.outer(rest[inside], with_it[inside])  # in the second
    orders = [2, 3, 5]
    bound = 2 * poisson_rdp(rate, sigma, orders)
    for order, most in zip(orders, bound, strict=True):
        parts = renyi(with_it[inside], rest[inside], order)
        parts += renyi(rest[inside], with_it[inside], order)
        assert renyi(p.ravel(), q.ravel(), order) == pytest.approx(parts, rel=1e-9)
        assert parts <= most * (1 + 1e-9)
    assert np.all(bound <= 2 * poisson_replace_rdp(rate, sigma, orders))
