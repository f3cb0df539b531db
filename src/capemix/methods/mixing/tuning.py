"""How many mixtures, of how many rows: chosen from public numbers alone, by predicted noise.

Rows drawn anew from mixtures keep of a class's spread what stands out of the noise. In units of the
clip norm, mixtures of l rows with noise TAU, scaled back up to rows, have noise of variance TAU^2 l
on each number, and of T of them the largest eigenvalue of noise alone is at
    edge(T, l) = TAU(T, l)^2 l (1 + sqrt(d/T))^2,
with TAU(T, l) what the budget asks for. The pair with the lowest edge is taken: it lets the most of
any class through, whatever that class is. No row is read.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from capemix.errors import InputError
from capemix.methods.mixing.denoise import noise_edge

if TYPE_CHECKING:
    from capemix.methods.mixing import Mixing
    from capemix.plan import Plan

DRAWS: Final = (25, 50, 100, 200, 400, 800, 1600)
"""Mixtures of each class that are tried."""

MIXTURES: Final = tuple(2**power for power in range(2, 12))
"""Rows in a mixture that are tried, as far as the smallest class has twice as many."""


def check_tune(mixing: Mixing, plan: Plan | None = None) -> None:
    """Refuse a config, or with it a plan, that leaves nothing to choose or to choose by."""
    if mixing.redraw is None:
        raise InputError(
            "tune",
            "chooses mixtures to draw rows anew from",
            fix="say how many rows with 'redraw', or leave it out",
        )
    for name in ("samples", "mixture"):
        if getattr(mixing, name) != getattr(type(mixing), name):
            raise InputError(
                name, "is chosen by 'tune'", value=getattr(mixing, name), fix="leave one out"
            )
    if plan is not None and plan.epsilon == math.inf:
        raise InputError(
            "tune",
            "chooses mixtures by the noise they will have, and there is none",
            value="epsilon inf",
            fix="give a budget, or leave it out",
        )


def tuned(mixing: Mixing, plan: Plan) -> tuple[int, int]:
    """Mixtures of each class, and rows in each. ``plan`` knows the class sizes and its budget."""
    smallest = min(mixing.class_sizes(plan)) // mixing.sites_averaged(plan)
    tried = []
    for rows in MIXTURES:
        if 2 * rows > smallest:
            break
        for draws in DRAWS:
            own = replace(mixing, samples=draws * mixing.pools(plan), mixture=rows, tune=False)
            planned = replace(plan, method=own).settled()
            noise = own.noise(planned) ** 2 * own.divisor(planned)
            tried.append((noise_edge(noise, plan.known.width, draws), draws, rows))
    if not tried:
        raise InputError(
            "tune",
            "has nothing to choose from: the smallest class is too small",
            value=smallest,
            fix=f"give 'mixture' and 'samples', or classes of {2 * MIXTURES[0]} rows or more",
        )
    _, draws, rows = min(tried)
    return draws, rows
