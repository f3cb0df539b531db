"""As many rows as are wanted, drawn anew from what a release's noisy mixtures say of each class."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from capemix.plan import Plan
from capemix.prepare.rows import denormalise_rows, normalise_rows
from capemix.prepare.steps import SiteZScore
from capemix.queries import Selection
from capemix.randomness.gaussian import add_gaussian
from capemix.randomness.source import SeededSource
from capemix.synthesizers.mixing import spread
from capemix.synthesizers.moments import clamped_rows
from capemix.synthesizers.redraw import class_moments

Real = npt.NDArray[np.float64]

_ENOUGH: int = 2_000
"""Rows by which centre and variances are matched after clamping, though fewer may be kept."""


def redrawn_rows(
    plan: Plan, mixtures: npt.NDArray[np.floating[Any]]
) -> tuple[Real, npt.NDArray[np.int64]]:
    """``plan.redraw`` rows in the data's own units, and their labels.

    The chance in it comes from the noisy mixtures themselves: it hides nothing, and whoever has
    them draws the same rows.
    """
    if plan.redraw is None or isinstance(plan.normalise, SiteZScore):
        raise ValueError("this plan draws nothing anew")
    mixing, how = plan.mixing, plan.normalise
    low: Real | float = -np.inf
    high: Real | float = np.inf
    if how.low is not None and how.high is not None:
        ends = [np.broadcast_to(end, mixing.width) for end in (how.low, how.high)]
        low, high = normalise_rows(np.stack(ends), how)
    digest = hashlib.sha256(np.ascontiguousarray(mixtures).tobytes()).digest()
    source = SeededSource(int.from_bytes(digest[:16], "big"))
    counts = spread(plan.redraw, mixing.classes)
    rows, start = [], 0
    for k, (draws, count) in enumerate(zip(mixing.samples, counts, strict=True)):
        own = mixtures[start : start + draws].astype(np.float64)
        start += draws
        centre, covariance = class_moments(
            own,
            rows_mixed=mixing.divisor,
            rate=mixing.mixture / mixing.pool_sizes[k],
            noise=plan.noise or 0.0,
            poisson=mixing.selection is Selection.POISSON,
        )
        normals = np.zeros((max(count, _ENOUGH), mixing.width))
        add_gaussian(normals.reshape(-1), 1.0, source.stream("normals", k))
        rows.append(clamped_rows(centre, covariance, normals, low, high)[:count])
    together = np.vstack(rows)
    denormalise_rows(together, how)
    return together, np.repeat(np.arange(mixing.classes, dtype=np.int64), counts)
