"""What can be told from noise whose law is known, and what is taken where nothing can.

Post-processing: noisy values and the deviation of their noise go in, never a row. So whether
something is told may be said aloud, in a release's warnings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, norm

Real = npt.NDArray[np.float64]

CHANCE: Final = 0.01
"""With which noise alone makes any one of the numbers of a look stand out."""

_AT_ONCE: Final = 4096
"""Rows that are squared at a time."""

_SHOWN: Final = 4
"""Names that a warning lists before it counts the rest."""


def sure(numbers: int) -> float:
    """Deviations of the noise that one of so many numbers must exceed to stand out of it."""
    return float(norm.isf(CHANCE / max(numbers, 1)))


def stands_out(counts: Real, deviation: float, window: int) -> bool:
    """Whether some ``window`` neighbours of a histogram hold more than noise explains."""
    window = min(window, len(counts))
    sums = np.convolve(counts, np.ones(window), mode="valid")
    return bool(sums.max() > sure(len(sums)) * deviation * math.sqrt(window))


def positive_mean(value: float, deviation: float) -> float:
    """What to expect of a number that is 0 or more and was seen as ``value``, with normal noise:
    the mean of a normal law cut at 0."""
    if deviation <= 0.0:
        return max(value, 0.0)
    at = value / deviation
    return max(value + deviation * math.exp(norm.logpdf(at) - norm.logcdf(at)), 0.0)


def records_of(counts: Real, deviation: float) -> tuple[float, bool]:
    """How many records there are, at least 1, from noisy counts of the classes; and whether that
    can be told. Where it can, it is their sum, which has no bias."""
    total, noise = float(counts.sum()), deviation * math.sqrt(len(counts))
    if total > sure(1) * noise:
        return max(total, 1.0), True
    return max(positive_mean(total, noise), 1.0), False


def told_sizes(
    counts: Real, shrunk: Real, deviation: float, classes: Sequence[str]
) -> tuple[Real, tuple[str, ...]]:
    """Class sizes to go by, and what cannot be told of them: those ``shrunk``, unless not even
    their sum stands out of the noise. Then all classes are taken to be alike."""
    records, told = records_of(counts, deviation)
    if not told:
        alike = np.full(len(counts), max(records / len(counts), 1.0))
        return alike, (
            f"class sizes: the number of records cannot be told from noise (deviation"
            f" {deviation:.3g} a class); {records:.0f} records in classes of one size are assumed."
            " If a column holds text, every record counts for nothing: see `capemix data`",
        )
    hidden = np.flatnonzero(counts <= sure(len(counts)) * deviation)
    if not len(hidden):
        return shrunk, ()
    names = listed(classes[k] for k in hidden.tolist())
    return shrunk, (
        f"class sizes: {len(hidden)} of {len(counts)} cannot be told from noise (deviation"
        f" {deviation:.3g} records): {names}",
    )


def told_apart(centres: Real, variances: Real) -> bool:
    """Whether class centres, rows of ``centres`` with noise of ``variances`` (a number a class),
    differ by more than noise explains: in all columns together, or in some one column."""
    if len(centres) < 2 or variances.max() <= 0.0:
        return True
    weights = 1.0 / np.maximum(variances, 1e-300)
    middle = weights @ centres / weights.sum()
    apart = weights @ (centres - middle) ** 2  # of each column: chi squared, K - 1
    free, columns = len(centres) - 1, centres.shape[1]
    together = float(apart.sum()) > chi2.isf(CHANCE / 2, free * columns)
    return bool(together or apart.max() > chi2.isf(CHANCE / 2 / columns, free))


def more_than_noise(rows: npt.NDArray[np.floating[Any]], draws: Sequence[int], tau: float) -> bool:
    """Whether noisy rows, so many ``draws`` of each group one after the other, hold more than noise
    of deviation ``tau`` on every number: by their squares, or by the squares of groups' means."""
    if tau <= 0.0 or not rows.size:
        return True
    squares, means, groups, start = 0.0, 0.0, 0, 0
    for count in draws:
        total = np.zeros(rows.shape[1])
        for first in range(start, start + count, _AT_ONCE):
            some = rows[first : min(first + _AT_ONCE, start + count)].astype(np.float64)
            squares += float(np.vdot(some, some))
            total += some.sum(axis=0)
        if count:
            means, groups = means + float(total @ total) / count, groups + 1
        start += count
    by_rows = squares / tau**2 > chi2.isf(CHANCE / 2, rows.size)
    by_means = means / tau**2 > chi2.isf(CHANCE / 2, groups * rows.shape[1])
    return bool(by_rows or by_means)


def listed(names: Iterable[object]) -> str:
    """The first few, and how many more."""
    every = [str(name) for name in names]
    more = len(every) - _SHOWN
    return ", ".join(every[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
