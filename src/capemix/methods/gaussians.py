"""Rows drawn from a Gaussian for each class, whose centre and spread come from private sums.

The sums asked for, in this order (each about what the one before found):
    class sizes; the centre of all rows; the classes' centres, and again about those; the spread
    within classes, one for all; and in its ``rank`` largest directions, each class's own spread;
and before each but the first a histogram of norms, by whose median rows are clipped.
Everything below is post-processing: it knows the law of the noise in its inputs, and takes for
signal only what exceeds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Real = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]

CLIPPED_AT: Final = 0.5
"""Rows are clipped at the median of their norms: half of them lose length, and noise halves."""

STRENGTH: Final = (0.4, 2.0)
"""Of a row's texture, in deviations: each has its own, so that a model trained on the rows learns
to see through it. More teaches trees more, and linear models less."""

_LEAST: Final = 1e-4
"""Of a variance, in units of the normalised range."""


@dataclass(frozen=True, eq=False)
class ClassGaussians:
    """What is drawn from, in normalised units: for each class its size, centre and spread; for each
    column the deviation of its texture, or 0."""

    sizes: Real
    centres: Real
    spreads: Real
    texture: Real

    def __repr__(self) -> str:
        return f"ClassGaussians(classes={len(self.sizes)}, columns={self.centres.shape[1]})"


def apportioned(total: int, sizes: Real) -> npt.NDArray[np.int64]:
    """``total`` rows over classes in proportion to their sizes, by largest remainders; none gets
    less than one."""
    exact = max(total - len(sizes), 0) * np.maximum(sizes, 0.0) / max(float(sizes.sum()), 1e-300)
    counts = np.floor(exact).astype(np.int64)
    behind = np.argsort(counts - exact, kind="stable")[: max(total - len(sizes), 0) - counts.sum()]
    counts[behind] += 1
    return np.asarray(counts + 1)


def tuned_rank(records: float, classes: int, columns: int, noise_multiplier: float) -> int:
    """How many directions of a class's own spread stand out of their noise; 0 if fewer than 4.

    In r directions scaled to variance 1 a record's vector has a norm of about sqrt(r), so the
    noise matrix of n/K records has its largest eigenvalue at
        2 r^(3/2) m / (n/K),   m the round's noise multiplier.
    The rank is the largest at which that is no more than the variance, 1. Only public numbers
    enter: declared or paid ones.
    """
    each = records / classes / (2.0 * max(noise_multiplier, 1e-9))
    rank = min(columns, math.floor(each ** (2.0 / 3.0)))
    return rank if rank >= 4 else 0


def shrunk_sizes(counts: Real, deviation: float) -> Real:
    """Class sizes with noise of ``deviation``, drawn towards their mean as James and Stein do, by
    which four or more are nearer to what they are (fewer are left as they are); none by more than
    the deviation, so that a class unlike the others stays so (Efron, Morris 1972); at least 1.
    Sums are divided by them: of a hundred records noise would make some centre twice as far."""
    apart = counts - counts.mean()
    found = float((apart**2).sum())
    part = min((len(counts) - 3) * deviation**2 / found, 1.0) if found and len(counts) > 3 else 0.0
    return np.asarray(np.maximum(counts - np.clip(part * apart, -deviation, deviation), 1.0))


def shrunk_centres(centres: Real, variances: Real) -> Real:
    """Class centres (about the centre of all) with noise of ``variances``, a number a class: each
    coordinate shrunk by its part of signal, as Wiener's filter does."""
    between = np.maximum((centres**2).mean(axis=0) - variances.mean(), 0.0)
    whole = between[None, :] + variances[:, None]
    return np.asarray(centres * (between[None, :] / np.maximum(whole, 1e-300)))


def averaged(
    first: Real, first_deviation: float, second: Real, second_deviation: float
) -> tuple[Real, float]:
    """Two estimates with noise of these deviations, weighted for the least noise; and what that is.
    Without any the second counts, which was looked at from nearer."""
    both = math.hypot(first_deviation, second_deviation)
    part = (second_deviation / both) ** 2 if both else 0.0
    deviation = first_deviation * second_deviation / both if both else 0.0
    return np.asarray(part * first + (1.0 - part) * second), deviation


def wigner_edge(deviation: float, size: int) -> float:
    """The largest eigenvalue of symmetric noise: ``deviation`` on the diagonal, 1/sqrt(2) of it
    off the diagonal."""
    return deviation * math.sqrt(2.0 * size)


def cleaned_spread(spread: Real, edge: float) -> tuple[Real, Real, int]:
    """Variances and directions of a noisy covariance, ascending, and how many of them, from the
    first, do not stand out of the noise: what exceeds the noise's edge freed of what
    noise adds to it, (w + sqrt(w^2 - edge^2)) / 2 (Benaych-Georges, Nadakuditi 2011); the rest of
    the trace spread evenly over the rest of the directions."""
    found, directions = np.linalg.eigh(spread)
    clear = found > edge
    freed = np.where(clear, (found + np.sqrt(np.maximum(found**2 - edge**2, 0.0))) / 2, 0.0)
    flat = int((~clear).sum())
    rest = max(float(np.trace(spread)) - float(freed.sum()), 0.0) / max(1, flat)
    return np.maximum(np.where(clear, freed, rest), _LEAST), directions, flat


def texture_of(variances: Real, directions: Real, flat: int) -> Real:
    """Each column's deviation in the first ``flat`` of the directions: of that part only the size
    is known, not which columns go together in it."""
    return np.asarray(np.sqrt((directions[:, :flat] ** 2) @ variances[:flat]))


def strengths(
    words: npt.NDArray[np.uint64], between: tuple[float, float]
) -> npt.NDArray[np.float32]:
    """A row's each, even ``between`` two numbers, from random words."""
    least, most = between
    return (least + (most - least) * (words.astype(np.float64) * 2.0**-64)).astype(np.float32)


def own_spread(spread: Real, edge: float) -> Real:
    """A class's covariance in units in which all classes' is 1: its difference from 1, as far as it
    exceeds the noise (the shrinkage that is best in Frobenius norm, sqrt(w^2 - edge^2))."""
    found, directions = np.linalg.eigh(spread - np.eye(len(spread)))
    kept = np.sign(found) * np.sqrt(np.maximum(found**2 - edge**2, 0.0))
    return np.asarray((directions * np.maximum(1.0 + kept, 0.1)) @ directions.T)


def root_of(spread: Real) -> Real:
    """What gives normal rows the covariance ``spread``: its symmetric root, which does not depend
    on which directions of one variance are found."""
    found, directions = np.linalg.eigh(spread)
    return np.asarray((directions * np.sqrt(np.maximum(found, 0.0))) @ directions.T)


def clamped_rows(
    centre: Real, spread: Real, normals: Floats, low: Real | float, high: Real | float
) -> Real:
    """Rows of one class: ``normals`` turned to ``spread``, moved and stretched so that after being
    clamped to the range they still have the centre and the variances asked for."""
    deviations = np.asarray(normals @ root_of(spread).astype(normals.dtype), dtype=np.float64)
    return clamped(centre, np.diag(spread), deviations, low, high)


def clamped(
    centre: Real, variance: Real, deviations: Real, low: Real | float, high: Real | float
) -> Real:
    """The same, of deviations that have ``variance`` already."""
    if not np.isfinite(np.asarray(high) - np.asarray(low)).all():
        return np.asarray(centre + deviations)
    margin = 0.002 * (np.asarray(high) - np.asarray(low))
    aim = np.clip(centre, low + margin, high - margin)
    shift, stretch = aim.copy(), np.ones_like(aim)
    tried = np.empty_like(deviations)  # of the same layout: sums are in its order

    def move() -> None:
        np.multiply(stretch, deviations, out=tried)
        np.clip(np.add(shift, tried, out=tried), low, high, out=tried)

    for _ in range(30):
        move()
        mean = tried.mean(axis=0, keepdims=True)
        shift += aim - mean[0]
        ratio = np.sqrt(variance / np.maximum(tried.var(axis=0, mean=mean), 1e-12))
        stretch = np.clip(stretch * ratio, 0.3, 3.0)
    move()
    return tried
