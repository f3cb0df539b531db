"""Images drawn from Gaussian clusters of each class, whose moments come from private sums.

The sums asked for, in this order (each about what the ones before found):
    class sizes; the centre of all images; the classes' centres; the spread within classes in smooth
    directions, one for all, of which the ``rank`` largest are kept; the texture (the spread of
    what those leave); points to which records are nearest, moved a few times; and about them each
    cluster's count, mean and spread; with a teacher, gradients of a head that labels the rows.
Everything below is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import ndimage

Real = npt.NDArray[np.float64]

FIRST_AT: Final = 0.9
"""Part of the records that a mean's clip norm leaves alone: a mean of images must not be drawn
towards their centre."""

STRENGTH: Final = (0.5, 2.5)
"""Of a row's texture, in deviations: each has its own, so that a model trained on the rows learns
to see through it."""

SMOOTH_A_RECORD: Final = 2
"""Smooth rows drawn for each record, as far as so many rows are asked for: they are free, and a
second set of them still teaches. Rows beyond have another texture."""

TEXTURES: Final = 2
"""Of a smooth row, at most: rows alike but for their texture teach to see through it, and need no
other label."""

TRUST: Final = 0.6
"""The teacher's part of a soft label; the class that a row was drawn for has the rest."""

_LEAST_PART: Final = 0.15
"""Of an even part of the class: a point with fewer records is set anew."""

_LEAST_VARIANCE: Final = 0.1


def tuned_clusters(
    records: float, classes: int, most_rank: int, most_clusters: int, noise_multiplier: float
) -> tuple[int, int]:
    """Directions and a class's clusters, from public numbers: with n/K records a class and noise m,
        r = 4.65 (n/K / m)^(1/3),     J = 2.8 (n/K) / (2 r^(3/2) m),
    J so that the noise matrix of a cluster's spread, its directions scaled to variance 1, has its
    largest eigenvalue near 2.8; and r no more than leaves one cluster. The two constants were
    chosen on held-out training rows of MNIST and FashionMNIST at epsilon 1 and 10.
    """
    each = records / classes / max(noise_multiplier, 1e-9)
    rank = math.floor(min(4.65 * each ** (1.0 / 3.0), (2.8 * each / 2.0) ** (2.0 / 3.0)))
    rank = max(1, min(most_rank, rank))
    clusters = math.floor(2.8 * each / (2.0 * rank**1.5))
    return rank, max(1, min(most_clusters, clusters))


def moved_points(points: Real, counts: Real, totals: Real, anew: Real) -> Real:
    """Each point moved to the mean of its records, of whose number and differences from it the
    noisy sums are given; set ``anew`` where they are too few. Classes by points by directions."""
    even = counts.sum(axis=1, keepdims=True) / counts.shape[1]
    enough = counts > np.maximum(_LEAST_PART * even, 1.0)
    moved = points + totals / np.maximum(counts, 1.0)[:, :, None]
    return np.where(enough[:, :, None], moved, anew)


@dataclass(frozen=True, eq=False)
class Clusters:
    """What is drawn from, in scaled directions about the points: classes by clusters by ..."""

    counts: Real
    means: Real
    roots: Real
    """Of the covariances: of normals e, e @ roots.T has them."""

    def __repr__(self) -> str:
        return f"Clusters(classes={len(self.counts)}, each={self.counts.shape[1]})"


def found_clusters(counts: Real, totals: Real, seconds: Real, mean_deviation: float) -> Clusters:
    """Counts, means and covariances from noisy sums; means shrunk by their part of signal.

    Covariances are as they were found, save that no direction has less than `_LEAST_VARIANCE` of
    what it has in all clusters together. Their noise makes rows differ more than records do:
    shrinking it away, at the noise's edge, brought covariances nearer and taught less.
    """
    counts = np.maximum(counts, 1.0)
    means = totals / counts[:, :, None]
    noise = (mean_deviation / counts) ** 2
    signal = np.maximum((means**2).mean(axis=2) - noise, 0.0)
    means *= (signal / np.maximum(signal + noise, 1e-300))[:, :, None]
    outer = means[:, :, :, None] * means[:, :, None, :]
    about = seconds - counts[:, :, None, None] * outer
    values, directions = np.linalg.eigh(about.sum(axis=(0, 1)) / counts.sum())
    deviations = np.sqrt(np.maximum(values, 1e-4))
    root, back = ((directions * by) @ directions.T for by in (deviations, 1.0 / deviations))
    values, directions = np.linalg.eigh(back @ (about / counts[:, :, None, None]) @ back)
    own = directions * np.sqrt(np.maximum(values, _LEAST_VARIANCE))[:, :, None, :]
    return Clusters(counts, means, root @ own)


@dataclass(frozen=True, eq=False)
class Texture:
    """What smooth rows lack: normals e and f give it by e @ root.T + f * sqrt(white)."""

    root: Real
    white: Real
    """Variances, pixel by pixel, of what did not stand out of the noise."""

    def __repr__(self) -> str:
        return f"Texture(pixels={len(self.white)}, directions={self.root.shape[1]})"


def cleaned_texture(spread: Real, edge: float, directions: Real, shape: tuple[int, int]) -> Texture:
    """From the noisy second moments of what is left, in ``directions`` (columns of pixels): what
    exceeds the noise's edge as it is, and the rest of each pixel's variance, smoothed over its
    neighbours, without any shape."""
    values, turned = np.linalg.eigh(spread)
    clear = values > edge
    freed = (values[clear] + np.sqrt(values[clear] ** 2 - edge**2)) / 2
    root = (directions @ turned[:, clear]) * np.sqrt(freed)
    pixels = np.einsum("ij,ij->i", directions @ spread, directions) - (root**2).sum(axis=1)
    near = ndimage.uniform_filter(np.maximum(pixels, 0.0).reshape(shape), 3, mode="constant")
    return Texture(root, np.maximum(near.ravel(), 0.0))
