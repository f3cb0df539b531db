"""A drawn sum that is planned after a Gaussian one, for what both cost together.

Sums that measure facts come first and are one Gaussian; G is how far a record moves it, over its
noise, squared. What a drawn sum is (its rates, and so its noise) depends on what they found. Write
Z for the logarithm of the Gaussian's likelihood ratio, N(G/2, G), and d_k(x) for the delta of the
drawn sum k at epsilon x. Both together have
    delta(epsilon) <= sup over rules k(.) of E[d_k(epsilon - Z)] <= E[H(epsilon - Z)],
if every sum that may be chosen has d_k <= H everywhere. So a falling H is fixed beforehand, by
public numbers alone, with E[H(epsilon - Z)] <= delta; and then the noise of the drawn sum is the
least with which it stays below H (docs/theory/proofs/rounds.md).

Any H would do. This one has the shape that drawn sums themselves have, from rarely drawn to drawn
in full, so that little is lost whatever the rates turn out to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from capemix.accounting.gaussian import gaussian_delta, gaussian_multiplier
from capemix.accounting.sampled import delta_profile
from capemix.queries import Participation, Relation

Real = NDArray[np.float64]

SHAPES: Final = tuple(Participation(*each) for each in ((16, 1, 64), (64, 1, 1024), (64, 1, 32768)))
"""Sums whose shapes H has, beside the Gaussian's: how often a record may be drawn, and its rate."""

MOST_EPSILON: Final = 100.0
"""Beyond it no envelope is made: what is asked for there promises nothing."""

_POINTS: Final = 240
_OUTSIDE: Final = 0.005
"""The part of delta that H may cost by what lies below its first step."""

_FLOOR: Final = 1e-3
"""Of delta, what H is at least: below it a profile is rounding."""


@dataclass(frozen=True, eq=False)
class Envelope:
    """H: ``heights[i]`` from ``epsilons[i]`` up to the next, and 1 below the first. ``squared`` is
    G, and ``epsilon`` and ``delta`` what both sums keep together."""

    epsilons: Real
    heights: Real
    squared: float
    epsilon: float
    delta: float

    def delta_with(self, epsilon: float) -> float:
        """E[H(epsilon - Z)], for a drawn sum below H after the Gaussian."""
        below, within = _chances(epsilon, self.epsilons, self.squared)
        return min(1.0, (below + float(self.heights @ within)) * (1 + 1e-12))

    def excess(
        self, participation: Sequence[Participation], noise_multiplier: float, relation: Relation
    ) -> float:
        """The most that a drawn sum is of H anywhere: at most 1 if it may be chosen."""
        return _excess(self, tuple(participation), noise_multiplier, relation)


@lru_cache(maxsize=1024)
def _excess(
    below: Envelope,
    participation: tuple[Participation, ...],
    noise_multiplier: float,
    relation: Relation,
) -> float:
    """See `Envelope.excess`. A plan is calibrated more than once on its way to a release, and each
    time by the same steps."""
    if not np.all(below.heights > 0.0):
        return math.inf
    profile = delta_profile(participation, noise_multiplier, below.epsilons, relation)
    return float(np.max(profile / below.heights))


def _chances(epsilon: float, at: Real, squared: float) -> tuple[float, Real]:
    """How likely epsilon - Z is below the first step, and on each of them; the last has no end.
    Small chances are differences of small numbers."""
    places = (epsilon - at - squared / 2) / math.sqrt(squared)
    upto, beyond = ndtr(places), ndtr(-places)
    steps = np.where(places[1:] > 0.0, beyond[1:] - beyond[:-1], upto[:-1] - upto[1:])
    return float(beyond[0]), np.append(steps, upto[-1])


@lru_cache(maxsize=32)
def envelope(epsilon: float, delta: float, squared: float, relation: Relation) -> Envelope | None:
    """H for a budget of which the Gaussian takes ``squared``; None where it takes so much that no
    H would leave a drawn sum anything."""
    if not 0.0 < squared < gaussian_multiplier(epsilon, delta) ** -2:
        return None
    first = epsilon - squared / 2 + math.sqrt(squared) * float(ndtri(_OUTSIDE * delta))
    whole = gaussian_multiplier(epsilon, delta)
    left = 1.0 / math.sqrt(whole**-2 - squared)  # of the Gaussian with which it all is one
    last = epsilon + 4.0 / whole
    at = np.linspace(max(first, 0.01 * epsilon), last, _POINTS)
    outside, _ = _chances(epsilon, at, squared)
    if outside > delta / 2:
        return None
    shapes = [np.array([gaussian_delta(x, left) for x in at])]
    for shape in SHAPES:
        noise = _calibrated(shape, at, epsilon, delta, squared, relation)
        shapes.append(delta_profile([shape, shape], noise, at, relation))
    highest = np.maximum(np.max(shapes, axis=0), 2 * _FLOOR * delta)
    inside = Envelope(at, highest, squared, epsilon, delta).delta_with(epsilon) - outside
    scale = (delta - outside) / inside * (1 - 1e-9)
    found = Envelope(at, np.minimum(highest * scale, 1.0), squared, epsilon, delta)
    sound = np.all(found.heights > 0.0) and found.delta_with(epsilon) <= delta
    return found if sound else None


def _calibrated(
    shape: Participation,
    at: Real,
    epsilon: float,
    delta: float,
    squared: float,
    relation: Relation,
) -> float:
    """About the noise with which a sum of this shape keeps the budget after the Gaussian."""
    low, high = math.log(0.05), math.log(1e3)
    while high - low > 0.02:
        middle = (low + high) / 2
        profile = delta_profile([shape, shape], math.exp(middle), at, relation)
        kept = Envelope(at, profile, squared, epsilon, delta).delta_with(epsilon) <= delta
        low, high = (low, middle) if kept else (middle, high)
    return math.exp(high)
