"""Coded tables: one category out of a block of Gaussian numbers.

Within a class a block with frequencies p has the covariance diag(p) - p p^T; divided by sqrt(p) it
is the same in every direction of the block. So the category picked is the largest of
    z_j + o_j,   z = deviation / sqrt(p),
with offsets o that give each category its frequency p. Neighbouring columns are correlated with z,
and so with what is picked. All of it is post-processing.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix import kernels

Real = npt.NDArray[np.float64]

_STEPS: Final = 40
_ROWS: Final = 4_000
"""So many rows fit the offsets: a frequency is then known to less than 0.01."""

_FLOOR: Final = 1e-3
"""What a frequency is counted from in a ratio."""


def frequencies(noisy: Real) -> Real:
    """The nearest that are not negative and sum to 1."""
    falling = np.sort(noisy)[::-1]
    beyond = (np.cumsum(falling) - 1.0) / np.arange(1, len(noisy) + 1)
    return np.asarray(np.maximum(noisy - beyond[np.flatnonzero(falling > beyond)[-1]], 0.0))


def picked(deviations: npt.NDArray[np.floating[Any]], wanted: Real) -> npt.NDArray[np.int64]:
    """One category, by its place, for each row of a block's deviations about its centre; each as
    often as ``wanted`` says, and one that is wanted never, never."""
    z = np.divide(deviations.T, np.sqrt(np.maximum(wanted, _FLOOR))[:, None], order="C")
    offsets = np.where(wanted > 0, 0.0, -np.inf)
    largest, place = kernels.active().largest, np.empty(len(deviations), dtype=np.int64)
    some, tried = np.ascontiguousarray(z[:, :_ROWS]), place[:_ROWS]
    for step in range(_STEPS):
        largest(some, offsets, tried)
        found = np.bincount(tried, minlength=len(wanted)) / len(tried)
        pace = 0.5 if step < _STEPS // 2 else 0.15
        offsets += pace * (np.log(wanted + _FLOOR) - np.log(found + _FLOOR))
    largest(z, offsets, place)
    return place
