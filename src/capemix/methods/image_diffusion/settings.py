"""The settings of image-diffusion, by public numbers alone.

They were chosen on training rows that were held out (docs/research/images.md)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from capemix.queries import Participation

if TYPE_CHECKING:
    from capemix.plan import Plan

GRADIENTS: Final = "gradients"

RATE: Final = Participation(1, 256, 4096)
"""Of every round: one record in sixteen, however many there are. That it waits for nothing that is
measured is what makes all sums one composition."""

CLIP: Final = 0.1
"""The norm that a record's gradient is shortened to."""

LABELS_PART: Final = 0.12
"""Of the budget, the teacher's."""

CLUSTERS_PART: Final = (0.5, 0.3)
"""Of the budget, what the clusters have at epsilon 1 and less, and at epsilon 10 and more."""

ROUNDS: Final = (300, 600)
"""Sums of gradients at these."""

_LIKELY: Final = 1.0
"""The epsilon that a plan is shown for until it has one."""


def between(plan: Plan, at_one: float, at_ten: float) -> float:
    """What a setting is at the budget that was asked for, between its ends by the logarithm."""
    epsilon = _LIKELY if plan.epsilon is None else plan.epsilon
    part = min(max(math.log10(max(epsilon, 1e-9)), 0.0), 1.0)
    return at_one + (at_ten - at_one) * part
