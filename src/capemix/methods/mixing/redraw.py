"""As many rows as are wanted, drawn anew from what a release's noisy mixtures say of each class."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from capemix.errors import InputError
from capemix.methods.gaussians import clamped_rows
from capemix.methods.mixing.denoise import class_moments
from capemix.queries import Selection
from capemix.randomness.gaussian import add_gaussian
from capemix.randomness.source import SeededSource
from capemix.sums.rows import denormalise_rows, normalise_rows
from capemix.sums.steps import DeclaredMap, SiteZScore

if TYPE_CHECKING:
    from capemix.methods.mixing import Mixing
    from capemix.plan import Plan

Real = npt.NDArray[np.float64]

_ENOUGH: Final = 2_000
"""Rows by which centre and variances are matched after clamping, though fewer may be kept."""


def check_redraw(mixing: Mixing, plan: Plan) -> None:
    """Refuse what no rows can be drawn anew from."""
    rows, pools = mixing.redraw or 0, mixing.pools(plan)
    if rows < pools:
        raise InputError(
            "redraw",
            f"must be a number of rows from {pools}, one for each class",
            value=rows,
            fix="say how many rows to draw",
        )
    if mixing.pool == "all" or mixing.label_noise or isinstance(plan.known.normalise, SiteZScore):
        raise InputError(
            "redraw",
            "needs classes mixed apart, labels as they are and a public map",
            value=rows,
            fix="leave it out, or use the sound accountant and mix by class",
        )
    if min(mixing.draws(plan)) < 2:
        raise InputError(
            "samples",
            "must be two mixtures of every class or more, to draw rows anew",
            value=min(mixing.draws(plan)),
            fix="raise it",
        )


def redrawn_rows(
    mixing: Mixing, plan: Plan, mixtures: npt.NDArray[np.floating[Any]]
) -> tuple[Real, npt.NDArray[np.int64]]:
    """``mixing.redraw`` rows in the data's own units, and their labels.

    The chance in it comes from the noisy mixtures themselves: it hides nothing, and whoever has
    them draws the same rows.
    """
    from capemix.methods.mixing import spread

    how, width = plan.known.normalise, plan.known.width
    if mixing.redraw is None or not isinstance(how, DeclaredMap):
        raise ValueError("this plan draws nothing anew")
    low: Real | float = -np.inf
    high: Real | float = np.inf
    if how.low is not None and how.high is not None:
        ends = [np.broadcast_to(end, width) for end in (how.low, how.high)]
        low, high = normalise_rows(np.stack(ends), how)
    digest = hashlib.sha256(np.ascontiguousarray(mixtures).tobytes()).digest()
    source = SeededSource(int.from_bytes(digest[:16], "big"))
    counts, sizes = spread(mixing.redraw, mixing.pools(plan)), mixing.pool_sizes(plan)
    rows, start = [], 0
    for k, (draws, count) in enumerate(zip(mixing.draws(plan), counts, strict=True)):
        own = mixtures[start : start + draws].astype(np.float64)
        start += draws
        centre, covariance = class_moments(
            own,
            rows_mixed=mixing.divisor(plan),
            rate=mixing.mixture / sizes[k],
            noise=mixing.noise(plan),
            poisson=mixing.selection is Selection.POISSON,
        )
        normals = np.zeros((max(count, _ENOUGH), width))
        add_gaussian(normals.reshape(-1), 1.0, source.stream("normals", k))
        rows.append(clamped_rows(centre, covariance, normals, low, high)[:count])
    together = np.vstack(rows)
    denormalise_rows(together, how)
    return together, np.repeat(np.arange(len(counts), dtype=np.int64), counts)
