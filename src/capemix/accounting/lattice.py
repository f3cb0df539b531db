"""What it costs that noise is drawn in whole numbers: next to nothing, for any number of sites.

Each site adds round(N(0, s^2)) to whole numbers. Let n honest sites do so, R the sum of their
noises and G the sum before rounding. With U_1, ..., U_{n-1} even on [-1/2, 1/2] and V = round(G +
sum U),
    (1 - rho) P(V = k) <= P(R = k) <= (1 + rho) P(V = k)      for every whole k
(docs/theory/proofs/lattice.md). For whole X, X + V is a function of X + G and of chance that knows
no record: whatever the continuous Gaussian promises, X + V promises. So the continuous Gaussian's
guarantee (epsilon, delta) is one of the lattice, at
    (epsilon + N log((1 + rho) / (1 - rho)), (1 + rho)^N delta)
for N noised numbers in all.
"""

from __future__ import annotations

import math
from typing import Final

LEAST_SITE_DEVIATION: Final = 4.0
"""In lattice units. With less noise at a site, nothing is proved of a sum of several: at 4 the
factor differs from 1 by less than 2^-215."""


def rounding_ratio(site_deviation: float, sites: int) -> float:
    """rho, for so many honest sites whose noise has at least this deviation, in lattice units; 0
    for one site, and infinite for several with less than `LEAST_SITE_DEVIATION`."""
    if sites < 2:
        return 0.0
    if site_deviation < LEAST_SITE_DEVIATION:
        return math.inf
    return lemma_ratio(site_deviation, sites)


def lemma_ratio(site_deviation: float, sites: int) -> float:
    """The lemma's rho for any deviation, so that it can be held against exact laws:
    (1 + t)^n - 1 with t = 2 sum_{k >= 1} exp(-pi^2 s^2 k^2)."""
    square = (math.pi * site_deviation) ** 2
    each = 2 * math.exp(-square) / -math.expm1(-3 * square)
    return math.expm1(sites * math.log1p(each))
