"""What one noised answer costs, exactly: the analytic Gaussian mechanism and randomised response.

Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and
Optimal Denoising" (ICML 2018), Theorem 8; Warner, "Randomized Response" (1965), for K answers as in
Kairouz, Bonawitz, Ramage, "Discrete Distribution Estimation under Local Privacy" (2016).

The noise multiplier is here the deviation of the noise over the *sensitivity*: the largest change
in l2 norm between neighbours. Plain numbers only, nothing but `math`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

_STEPS: Final = 200  # halvings: more than a double has bits


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """The smallest δ at this ε: Φ(1/2m - εm) - e^ε Φ(-1/2m - εm)."""
    if multiplier <= 0.0:
        return 1.0
    half, slope = 0.5 / multiplier, epsilon * multiplier
    second = _normal_cdf(-half - slope)
    minus = math.exp(min(epsilon + math.log(second), 0.0)) if second > 0.0 else 0.0
    return max(0.0, _normal_cdf(half - slope) - minus)


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The smallest ε at this δ; it holds for what is returned."""
    if multiplier <= 0.0:
        return math.inf
    if gaussian_delta(0.0, multiplier) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, multiplier) > delta:
        high *= 2.0
    return _least(lambda epsilon: gaussian_delta(epsilon, multiplier) <= delta, 0.0, high)


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier that keeps (ε, δ); it holds for what is returned."""
    if epsilon == math.inf:
        return 0.0
    high = 1.0
    while gaussian_delta(epsilon, high) > delta:
        high *= 2.0
    return _least(lambda multiplier: gaussian_delta(epsilon, multiplier) <= delta, 0.0, high)


def kept_probability(epsilon: float, answers: int) -> float:
    """Randomised response among K answers tells the true one with e^ε / (e^ε + K - 1), and each
    other one with e^-ε times that."""
    return 1.0 / (1.0 + (answers - 1) * math.exp(-epsilon))


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _least(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The least value that holds, from above: ``holds`` is false at first, then true."""
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
