"""From a cost to the noise that keeps it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from scipy.optimize import brentq

from capemix.errors import EpsilonError, InputError

_DELIVERED: Final = 1e-3
"""The part of epsilon that may be left unused before it counts as not delivered."""


def smallest_noise(
    epsilon_at: Callable[[float], float],
    target: float,
    *,
    start: float = 1.0,
    step: float = 2.0,
    relative_tolerance: float = 2e-5,
    stalls: bool = True,
) -> float:
    """The smallest noise with ``epsilon_at(noise) <= target``, which holds for what is returned.

    ``epsilon_at`` falls with the noise. Where it turns infinite before it comes near the target,
    the target cannot be delivered and is refused, with what can be. The answer is bracketed in
    steps of the factor ``step`` from ``start``, then narrowed on the logarithms of both. A cost
    that no longer falls shows that no noise will do; without ``stalls`` it may be level where there
    is too little noise, and falls in the end.
    """
    if target == math.inf:
        return 0.0
    if not target > 0:
        raise InputError("epsilon", "is not positive", value=target, fix="ask for more than 0")
    high, reached = start, epsilon_at(start)
    if reached <= target:
        while epsilon_at(high / step) <= target:
            high /= step
            if high < start * 2.0**-100:
                return high
    while reached > target:
        before, high = reached, step * high
        reached = epsilon_at(high)
        stalled = stalls and math.isfinite(before) and reached > before * (1 - 1e-3)
        if reached > target and (stalled or high > start * 2.0**100):
            raise InputError(
                "epsilon",
                "cannot be reached with any noise",
                value=target,
                fix=f"ask for more than {reached:.3g}",
            )
    low = high / step

    # Log epsilon is nearly straight in log noise: Brent needs a handful of steps.
    def excess(log_noise: float) -> float:
        return math.log(min(max(epsilon_at(math.exp(log_noise)), 1e-300), 1e300) / target)

    if excess(math.log(high)) >= 0:
        return high
    root = brentq(excess, math.log(low), math.log(high), xtol=relative_tolerance / 2)
    noise = math.exp(root)
    while (reached := epsilon_at(noise)) > target:
        noise *= 1 + relative_tolerance / 2
        if noise >= high:
            noise, reached = high, epsilon_at(high)
            break
    if reached < target * (1 - _DELIVERED) and math.isinf(epsilon_at(noise * (1 - _DELIVERED))):
        raise EpsilonError(target, reached)
    return noise
