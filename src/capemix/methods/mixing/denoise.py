"""Noisy mixtures taken for what they say of their class: a centre and a spread to draw rows from.

A mixture is (1/l) times a sum over the class-k rows that were drawn, plus noise of deviation TAU on
every number. With Poisson draws at rate q, over the draws,
    mean = m,   covariance = (1 - q)/l (C + m m^T) + TAU^2 1,
m and C being the class's mean and covariance: the number of rows drawn varies too, hence m m^T.
With draws of a fixed size l out of n the covariance is (1 - (l-1)/(n-1))/l C + TAU^2 1.
So the deviations of mixtures from their mean, times the root of l, have the class's covariance and
a noise that is known. Post-processing: nothing but the release is read.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Real = npt.NDArray[np.float64]


def noise_edge(noise: float, columns: int, draws: int) -> float:
    """The largest eigenvalue of the sample covariance of ``draws`` vectors of noise alone, of
    variance ``noise`` on each of ``columns`` numbers: noise (1 + sqrt(d/T))^2 (Marchenko, Pastur
    1967)."""
    return noise * (1.0 + math.sqrt(columns / draws)) ** 2


def freed_of_noise(found: Real, noise: float, columns: int, draws: int) -> Real:
    """Eigenvalues of a sample covariance freed of noise of variance ``noise``: those beyond the
    edge by the inverse of what noise does to them (Baik, Silverstein 2006; Donoho, Gavish,
    Johnstone 2018), less the noise. The rest of the trace belongs to directions that are not known:
    it is spread evenly over them, as far as it exceeds noise (Wiener)."""
    ratio = columns / draws
    clear = found > noise_edge(noise, columns, draws)
    b = found + noise * (1.0 - ratio)
    root = np.sqrt(np.maximum(b**2 - 4.0 * found * noise, 0.0))
    freed = np.where(clear, np.maximum((b + root) / 2.0 - noise, 0.0), 0.0)
    trace = float(found.sum()) - noise * columns - float(freed.sum())
    even = max(trace, 0.0) / max(1, int((~clear).sum()))
    even *= even / (even + noise) if even else 0.0
    return np.asarray(np.where(clear, freed, even))


def class_moments(
    mixtures: Real, *, rows_mixed: int, rate: float, noise: float, poisson: bool
) -> tuple[Real, Real]:
    """The centre and the spread of a class, from its noisy mixtures of ``rows_mixed`` rows, each of
    which a record enters with probability ``rate``."""
    draws, columns = mixtures.shape
    centre = mixtures.mean(axis=0)
    factor = rows_mixed / max(1.0 - rate, 1e-9)
    about = (mixtures - centre) * math.sqrt(factor / max(draws - 1, 1))
    # The covariance's eigenvectors are those of the smaller of its two Gram matrices.
    _, singular, directions = np.linalg.svd(about, full_matrices=False)
    found = np.zeros(columns)
    found[: len(singular)] = singular**2
    freed = freed_of_noise(found, noise**2 * factor, columns, draws)
    even = float(freed[-1])
    own = freed[: len(singular)] - even
    spread = (directions.T * own) @ directions + even * np.eye(columns)
    if poisson:
        spread = _without(spread, centre)
    return centre, spread


def _without(spread: Real, centre: Real) -> Real:
    """C from C + m m^T, no variance below 0."""
    found, directions = np.linalg.eigh(spread - np.outer(centre, centre))
    return np.asarray((directions * np.maximum(found, 0.0)) @ directions.T)
