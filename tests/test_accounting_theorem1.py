"""Theorem 1 against its check values, an independent evaluation, and two other libraries."""

from __future__ import annotations

import math
import time

import dp_accounting
import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from autodp import mechanism_zoo, transformer_zoo  # type: ignore[import-untyped]
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray

from capemix.accounting.calibration import smallest_noise
from capemix.accounting.theorem1 import Theorem1, without_replacement_rdp

DELTA = 1e-5
ORDERS = [3, 4, 5, 8, 16, 32, 64]


def mnist(mixture: int, *, printed: bool = False) -> Theorem1:
    """The paper's setting: N = T = 60000, K = 10, c = 1."""
    return Theorem1(
        samples=60000, rate=mixture * 10 / 60000, mixture=mixture, clip=1.0, printed=printed
    )


def gaussian_over_change(mixture: int, noise: float) -> float:
    """Theorem 1's Gaussian, as deviation over sensitivity: ε(α) = α / (2 of its square)."""
    return mixture * noise / math.sqrt(4 * 1.0**2 + 2)


def independent(rate: float, slope: float, order: int) -> float:
    """Theorem 27 of Wang, Balle, Kasiviswanathan, summed as it stands with 600 digits."""
    with mpmath.workdps(600):
        p, s = mpmath.mpf(rate), mpmath.mpf(slope)
        grown = [mpmath.exp(i * (i - 1) * s) for i in range(order + 2)]
        b = [
            mpmath.fsum((-1) ** i * math.comb(n, i) * grown[i] for i in range(n + 1))
            for n in range(order + 2)
        ]
        total = 1 + p**2 * math.comb(order, 2) * min(4 * (grown[2] - 1), 2 * grown[2])
        for j in range(3, order + 1):
            root = mpmath.sqrt(b[2 * (j // 2)] * b[2 * ((j + 1) // 2)])
            total += 4 * p**j * math.comb(order, j) * root
        return float(mpmath.log(total) / (order - 1))


def of_dp_accounting(mixture: int, noise: float) -> NDArray[np.float64]:
    accountant = RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(gaussian_over_change(mixture, noise))
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(6000, mixture, gaussian))
    return np.array(accountant._rdp)


def of_autodp(mixture: int, noise: float) -> NDArray[np.float64]:
    gaussian = mechanism_zoo.ExactGaussianMechanism(gaussian_over_change(mixture, noise))
    gaussian.neighboring = "replace_one"
    sample = transformer_zoo.AmplificationBySampling(PoissonSampling=False)
    sampled = sample(gaussian, mixture / 6000, improved_bound_flag=True)
    return np.array([sampled.RenyiDP(float(order)) for order in ORDERS])


@pytest.mark.parametrize(
    ("mixture", "epsilon", "noise"),
    [
        (1, 10, 1.155),
        (4, 10, 0.344),
        (16, 10, 0.138),
        (512, 10, 0.114),
        (4, 20, 0.322),
        (512, 20, 0.0651),
    ],
)
def test_noise_of_the_papers_settings(mixture: int, epsilon: float, noise: float) -> None:
    theorem = mnist(mixture)
    begin = time.process_time()
    found = smallest_noise(lambda tau: theorem.epsilon(tau, DELTA), epsilon)
    assert time.process_time() - begin < 5
    assert found == pytest.approx(noise, rel=5e-3)


@pytest.mark.parametrize("slope", [30.0, 3.0, 0.3, 1e-2, 1e-4, 1e-9])
def test_equals_an_independent_evaluation(slope: float) -> None:
    orders = [3, 4, 17, 64, 101]
    ours = without_replacement_rdp(4 / 6000, slope, orders)
    theirs = [independent(4 / 6000, slope, order) for order in orders]
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize(("mixture", "noise"), [(1, 1.155), (4, 0.3439), (512, 0.114), (4, 3.0)])
def test_is_never_below_the_term_by_term_minimum_of_two_libraries(
    mixture: int, noise: float
) -> None:
    ours = mnist(mixture).rdp(noise, ORDERS)
    assert np.all(ours >= of_dp_accounting(mixture, noise) * (1 - 1e-9))
    assert np.all(ours >= of_autodp(mixture, noise) * (1 - 1e-9))


def test_exceeds_the_term_by_term_minimum_as_quoted() -> None:
    ours, theirs = mnist(4).rdp(0.3439, ORDERS), of_dp_accounting(4, 0.3439)
    third, thirty_second = ORDERS.index(3), ORDERS.index(32)
    assert ours[third] == pytest.approx(7.005e-5, rel=1e-4)
    assert theirs[third] == pytest.approx(3.577e-5, rel=2e-4)
    assert ours[thirty_second] == pytest.approx(43.2282, abs=1e-4)
    assert theirs[thirty_second] == pytest.approx(43.2058, abs=1e-4)


@pytest.mark.parametrize(
    ("mixture", "noise", "tolerance"),
    [(1, 1.155, 1e-12), (4, 0.3439, 1e-12), (512, 0.114, 1e-10)],  # they subtract in doubles
)
def test_with_the_term_by_term_minimum_equals_two_libraries(
    mixture: int, noise: float, tolerance: float
) -> None:
    slope = 0.5 / gaussian_over_change(mixture, noise) ** 2
    ours = without_replacement_rdp(mixture / 6000, slope, ORDERS, termwise=True)
    np.testing.assert_allclose(ours, of_dp_accounting(mixture, noise), rtol=tolerance)
    np.testing.assert_allclose(ours, of_autodp(mixture, noise), rtol=5 * tolerance)


def test_one_percent_less_noise_is_told_apart() -> None:
    slope = 0.5 / gaussian_over_change(4, 0.99 * 0.3439) ** 2
    wrong = without_replacement_rdp(4 / 6000, slope, ORDERS, termwise=True)
    assert np.min(np.abs(wrong / of_dp_accounting(4, 0.3439) - 1)) > 1e-3


def test_the_printed_form_is_negative_under_the_root_from_order_five_on() -> None:
    """B(3) = -(x-1)²(x+2) with x = e^{2ε(1)}, and orders from 5 on have a term with B(3)."""
    slope = 3 / (4 * 0.3439) ** 2
    x = math.exp(2 * slope)
    assert 1 - 3 + 3 * x - x**3 == pytest.approx(-((x - 1) ** 2) * (x + 2))
    printed = mnist(4, printed=True).rdp(0.3439, range(3, 40))
    assert np.all(np.isfinite(printed[:2]))
    assert np.all(np.isinf(printed[2:]))


def test_the_printed_form_claims_less_than_the_theorem_it_cites() -> None:
    assert np.all(mnist(4, printed=True).rdp(0.3439, [3, 4]) < mnist(4).rdp(0.3439, [3, 4]))
    assert mnist(4, printed=True).epsilon(0.3439, DELTA) < 7 < mnist(4).epsilon(0.3439, DELTA)


@pytest.mark.parametrize("noise", [0.05, 0.3439, 1.0, 5.0])
def test_divergence_does_not_fall_with_the_order_so_the_search_may_stop(noise: float) -> None:
    cost = mnist(4).rdp(noise, range(3, 200))
    assert np.all(np.diff(cost) >= 0)
    every = 60000 * cost + math.log(1 / DELTA) / np.arange(2, 199)
    assert mnist(4).epsilon(noise, DELTA) <= np.min(every) * (1 + 1e-12)


def test_limits_of_the_noise() -> None:
    assert mnist(4).epsilon(0.0, DELTA) == math.inf
    assert mnist(4).epsilon(1e-150, DELTA) == math.inf
    assert mnist(4).epsilon(1e3, DELTA) < 0.03
    assert np.all(mnist(4).rdp(math.inf, ORDERS) == 0)
