"""What rounding costs: sums of rounded Gaussians are held against one continuous Gaussian that is
rounded once, by exact convolutions where the difference can be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from numpy.typing import NDArray
from scipy.special import ndtr

from capemix.accounting import mint
from capemix.accounting.gaussian import gaussian_delta
from capemix.accounting.lattice import LEAST_SITE_DEVIATION, lemma_ratio, rounding_ratio
from capemix.accounting.mint import NoisedSum
from capemix.methods.mixing.planning import plan_mixtures
from capemix.queries import QueryShape, Relation

Real = NDArray[np.float64]

_FAR = 25.0
"""Deviations of the sum up to which probabilities are compared: below 1e-130."""

SITES = [
    *((s,) * sites for s in (0.5, 0.7, 1.0) for sites in (2, 3, 4)),
    (1.2, 1.2),
    (1.5, 1.5),
    (0.5, 0.9),
    (0.8, 2.0),
    (0.6, 0.6, 3.0),
    (0.5, 0.7, 1.1),
    (0.5, 0.5, 0.5, 1.5),
]


def whole(deviations: Sequence[float]) -> float:
    """Of the sum before rounding."""
    return math.sqrt(sum(s**2 for s in deviations))


def places(deviations: Sequence[float]) -> Real:
    """Whole numbers at which probabilities are compared."""
    reach = math.floor(_FAR * whole(deviations))
    return np.arange(-reach, reach + 1.0)


def sum_of_rounded(deviations: Sequence[float], reach: int) -> Real:
    """P(R = k) for |k| up to ``reach``: every split of k is added up, so no digit cancels."""
    law = np.ones(1)
    for s in deviations:
        k = np.arange(-2 * reach, 2 * reach + 1.0)
        masses = ndtr((0.5 - np.abs(k)) / s) - ndtr((-0.5 - np.abs(k)) / s)
        law = np.convolve(law, masses)
    middle = (len(law) - 1) // 2
    return law[middle - reach : middle + reach + 1]


def rounded_once(deviation: float, uniforms: int, at: Real) -> Real:
    """P(round(G + U_1 + ... + U_n) = k): the density at k of G and n + 1 uniforms, piece by piece
    of the uniforms' own, which is a polynomial on each."""
    n = uniforms + 1
    nodes, weights = np.polynomial.legendre.leggauss(40)
    total = np.zeros(len(at))
    for piece in range(n):
        w = -n / 2 + piece + (nodes + 1) / 2
        density = np.zeros(len(w))
        for j in range(piece + 1):  # Irwin and Hall's
            density += (-1) ** j * math.comb(n, j) * (w + n / 2 - j) ** (n - 1)
        density /= math.factorial(n - 1)
        gaussian = np.exp(-(((at[:, None] - w) / deviation) ** 2) / 2)
        total += gaussian @ (weights / 2 * density) / (deviation * math.sqrt(2 * math.pi))
    return total


def apart(summed: Sequence[float], once: Sequence[float], uniforms: int) -> float:
    """The largest |R/V - 1|, V rounded once with so many uniforms."""
    at = places(once)
    law = sum_of_rounded(summed, len(at) // 2)
    return float(np.abs(law / rounded_once(whole(once), uniforms, at) - 1).max())


@pytest.mark.parametrize("deviations", SITES, ids=str)
def test_a_sum_of_rounded_gaussians_is_within_rho_of_one_rounded_once(
    deviations: tuple[float, ...],
) -> None:
    rho = lemma_ratio(min(deviations), len(deviations))
    found = apart(deviations, deviations, len(deviations) - 1)
    assert found <= rho
    # Not vacuous: for two sites it is what is there, and for more where sites have little noise.
    if len(set(deviations)) == 1 and (len(deviations) == 2 or deviations[0] < 1.0):
        assert found > rho / 100


@pytest.mark.parametrize("deviations", SITES, ids=str)
def test_a_slightly_wrong_law_is_outside_of_rho(deviations: tuple[float, ...]) -> None:
    """One site with a tenth more or less noise; and a uniform too few or too many."""
    sites = len(deviations)
    rho = lemma_ratio(min(deviations), sites)
    for factor in (0.9, 1.1):
        assert apart((factor * deviations[0], *deviations[1:]), deviations, sites - 1) > rho
    for uniforms in (sites - 2, sites):
        assert apart(deviations, deviations, uniforms) > rho


@pytest.mark.parametrize(
    ("deviation", "sites", "distance"),
    [(1, 2, "2.1e-5"), (1, 3, "1.1e-6"), (2, 2, "2.9e-18"), (2, 3, "7.8e-24")],
)
def test_the_total_variation_is_what_high_precision_says(
    deviation: int, sites: int, distance: str
) -> None:
    with mp.workdps(50):
        s, half = mp.mpf(deviation), mp.mpf(1) / 2
        reach = 16 * deviation

        def mass(k: int) -> mp.mpf:
            ends = [(abs(k) + side) / (s * mp.sqrt(2)) for side in (-half, half)]
            return (mp.erfc(ends[0]) - mp.erfc(ends[1])) / 2

        one = {k: mass(k) for k in range(-reach, reach + 1)}
        law = {0: mp.mpf(1)}
        for _ in range(sites):
            longer: dict[int, mp.mpf] = {}
            for a, p in law.items():
                for b, q in one.items():
                    longer[a + b] = longer.get(a + b, mp.mpf(0)) + p * q
            law = longer
        sigma = s * mp.sqrt(sites)

        def density(w: mp.mpf) -> mp.mpf:
            """Of as many uniforms as there are sites."""
            if sites == 2:
                return 1 - abs(w)
            return mp.mpf(3) / 4 - w**2 if abs(w) <= half else (mp.mpf(3) / 2 - abs(w)) ** 2 / 2

        def once(k: int) -> mp.mpf:
            ends = [-mp.mpf(sites) / 2 + piece for piece in range(sites + 1)]
            return mp.quad(lambda w: density(w) * mp.npdf(k, w, sigma), ends)

        far = 13 * deviation
        inside = [2 * abs(law[k] - once(k)) for k in range(1, far)] + [abs(law[0] - once(0))]
        found = mp.fsum(inside) / 2
        rho = lemma_ratio(deviation, sites)
        assert found == pytest.approx(mp.mpf(distance), rel=0.05)
        assert found <= rho / 2


def test_rho_is_refused_below_four_units_and_nothing_from_there_on() -> None:
    assert rounding_ratio(0.1, 1) == 0.0
    for sites in (2, 3, 500):
        assert rounding_ratio(LEAST_SITE_DEVIATION * (1 - 1e-12), sites) == math.inf
        assert 0.0 < rounding_ratio(LEAST_SITE_DEVIATION, sites) < 2.0**-215
    assert LEAST_SITE_DEVIATION == 4.0


@pytest.mark.parametrize("sites", [1, 2, 3])
@pytest.mark.parametrize(("deviation", "shift"), [(0.7, 1), (1.0, 1), (1.0, 3)])
def test_the_continuous_gaussian_with_its_growth_bounds_the_sum_of_rounded_ones(
    sites: int, deviation: float, shift: int
) -> None:
    """Delta at every epsilon, both ways, of a whole shift: the exact law against one continuous
    Gaussian; with a tenth less noise than is said it is found."""
    ratio = 0.0 if sites == 1 else lemma_ratio(deviation, sites)
    growth = math.log1p(ratio) - math.log1p(-ratio)

    def exceeds(drawn: float) -> bool:
        reach = math.ceil(15 * deviation * math.sqrt(sites)) + shift
        law = sum_of_rounded((drawn,) * sites, reach)
        rest, moved = law[shift:], law[:-shift]
        said = deviation * math.sqrt(sites) / shift
        for epsilon in np.linspace(0.0, 12.0 / said, 200):
            most = math.exp(growth) * gaussian_delta(float(epsilon), said)
            for p, q in ((rest, moved), (moved, rest)):
                found = float(np.maximum(p - math.exp(epsilon + growth) * q, 0.0).sum())
                if found > most * (1 + 1e-9) + 1e-15:
                    return True
        return False

    assert not exceeds(deviation)
    assert exceeds(0.8 * deviation)


def a_sum(sites: int, site_sigma: float, multiplier: float = 2.0) -> NoisedSum:
    shape = QueryShape("a sum", "", "moments", 100)
    return NoisedSum(shape, {"server": multiplier}, mint.ROUNDED, site_sigma, sites)


def test_growth_counts_every_number_and_is_paid_for_in_epsilon_and_delta(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a ratio that can be seen."""
    assert a_sum(1, 1.5).rounding_growth == 0.0
    assert a_sum(3, 3.99).rounding_growth == math.inf
    assert mint.sound_epsilon(a_sum(3, 3.99), 2.0, 1e-5, Relation.ADD_REMOVE) == math.inf
    assert 0.0 < a_sum(3, 4.0).rounding_growth < 1e-60
    monkeypatch.setattr(mint, "rounding_ratio", lemma_ratio)
    coarse = a_sum(3, 1.2)
    rho = lemma_ratio(1.2, 3)
    assert coarse.rounding_growth == pytest.approx(100 * math.log((1 + rho) / (1 - rho)))
    paid = mint.sound_epsilon(coarse, 2.0, 1e-5, Relation.ADD_REMOVE)
    left = 1e-5 * math.exp(-coarse.rounding_growth)
    less = mint.sound_epsilon(a_sum(3, 1e3), 2.0, left, Relation.ADD_REMOVE)
    assert paid == pytest.approx(less + coarse.rounding_growth, rel=1e-9)
    assert paid > mint.sound_epsilon(a_sum(3, 1e3), 2.0, 1e-5, Relation.ADD_REMOVE)
    real = replace(coarse, arithmetic=mint.REAL, site_sigma=None)
    assert real.rounding_growth == 0.0


def test_mixtures_at_any_number_of_sites_cost_what_their_losses_say() -> None:
    """The same noise costs the same at one site and at ten, but for colluders' part of it: and no
    more than another library's losses say."""
    asked = {"width": 5, "class_sizes": (600, 600), "samples": 200, "mixture": 16}
    central = plan_mixtures(**asked).calibrate(2.0)
    joint = plan_mixtures(**asked, scheme="cape", sites=10, colluding=3).calibrate(2.0)
    assert joint.multiplier == pytest.approx(central.multiplier, rel=1e-4)
    multiplier = joint.guarantee().views["server"].noise_multiplier
    theirs = from_gaussian_mechanism(multiplier, sampling_prob=16 / 600).self_compose(100)
    assert theirs.get_epsilon_for_delta(1e-5) == pytest.approx(2.0, rel=2e-3)
