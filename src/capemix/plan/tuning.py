"""How many mixtures, of how many rows: chosen from public numbers alone, by predicted noise.

Rows drawn anew from mixtures keep of a class's spread what stands out of the noise. In units of the
clip norm, mixtures of l rows with noise TAU, scaled back up to rows, have noise of variance TAU^2 l
on each number, and of T of them the largest eigenvalue of noise alone is at
    edge(T, l) = TAU(T, l)^2 l (1 + sqrt(d/T))^2,
with TAU(T, l) what the budget asks for. The pair with the lowest edge is taken: it lets the most of
any class through, whatever that class is. No row is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from capemix.errors import InputError
from capemix.plan.plan import Plan
from capemix.synthesizers.redraw import noise_edge

DRAWS: Final = (25, 50, 100, 200, 400, 800, 1600)
"""Mixtures of each class that are tried."""

MIXTURES: Final = tuple(2**power for power in range(2, 12))
"""Rows in a mixture that are tried, as far as the smallest class has twice as many."""

Planned = Callable[[int, int], Plan]
"""A plan with so many mixtures of each class, of so many rows; not calibrated."""


def tuned_mixture(planned: Planned, epsilon: float, smallest_class: int) -> tuple[int, int]:
    """Mixtures of each class, and rows in each."""
    tried = []
    for mixture in MIXTURES:
        if 2 * mixture > smallest_class:
            break
        for draws in DRAWS:
            plan = planned(draws, mixture).calibrate(epsilon)
            noise = (plan.noise or 0.0) ** 2 * plan.mixing.divisor
            tried.append((noise_edge(noise, plan.mixing.width, draws), draws, mixture))
    if not tried:
        raise InputError(
            "--tune",
            "has nothing to choose from: the smallest class is too small",
            value=smallest_class,
            fix=f"give --mixture and --samples, or classes of {2 * MIXTURES[0]} rows or more",
        )
    _, draws, mixture = min(tried)
    return draws, mixture
