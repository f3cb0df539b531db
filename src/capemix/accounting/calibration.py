"""From a cost to the noise that keeps it."""

from __future__ import annotations

import math
from collections.abc import Callable

from capemix.errors import InputError


def smallest_noise(
    epsilon_at: Callable[[float], float],
    target: float,
    *,
    start: float = 1.0,
    relative_tolerance: float = 2e-5,
) -> float:
    """The smallest noise with ``epsilon_at(noise) <= target``, which holds for what is returned.

    ``epsilon_at`` falls with the noise. The answer is bracketed by doubling or halving from
    ``start``, then bisected on the logarithm.
    """
    if target == math.inf:
        return 0.0
    if not target > 0:
        raise InputError("epsilon", "is not positive", value=target, fix="ask for more than 0")
    low = high = start
    reached = epsilon_at(high)
    while reached > target:
        low, high, before = high, 2 * high, reached
        reached = epsilon_at(high)
        stalled = math.isfinite(before) and reached > before * (1 - 1e-3)
        if reached > target and (stalled or high > start * 2.0**100):
            raise InputError(
                "epsilon",
                "cannot be reached with any noise",
                value=target,
                fix=f"ask for more than {reached:.3g}",
            )
    while low == high or epsilon_at(low) <= target:
        if low < start * 2.0**-100:
            return low
        low, high = low / 2, low
    while high > low * (1 + relative_tolerance):
        middle = math.sqrt(low * high)
        if epsilon_at(middle) <= target:
            high = middle
        else:
            low = middle
    return high
