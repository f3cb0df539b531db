"""What is public of images: smooth directions come first, and handwriting slants.

Each of these is a function of one row and of constants; none looks at another row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import fft, ndimage

Real = npt.NDArray[np.float64]

MOST_SLANT: float = 1.0
"""Columns by which an image may lean for every row."""


def smooth_directions(shape: tuple[int, int], count: int) -> Real:
    """``count`` orthonormal images as columns, those of the two-dimensional cosine transform, from
    the smoothest on (by the sum of the squares of their frequencies, in half waves an image)."""
    height, width = shape
    if not 1 <= count <= height * width:
        raise ValueError(f"an image of {height} x {width} has no {count} directions")
    down, across = np.meshgrid(np.arange(height) / height, np.arange(width) / width, indexing="ij")
    order = np.argsort((down**2 + across**2).ravel(), kind="stable")[:count]
    waves = np.zeros((count, height, width))
    waves.reshape(count, -1)[np.arange(count), order] = 1.0
    images = fft.idctn(waves, axes=(1, 2), norm="ortho")
    return np.ascontiguousarray(images.reshape(count, -1).T)


def slants(images: npt.NDArray[np.floating[Any]]) -> Real:
    """How far each image (count, height, width) leans, in columns a row: the covariance of column
    and row over the variance of the row, pixels taken as weights. 0 of an empty image."""
    rows = np.arange(images.shape[1], dtype=np.float64)
    columns = np.arange(images.shape[2], dtype=np.float64)
    weights = np.maximum(images, 0.0)
    mass = np.maximum(weights.sum(axis=(1, 2)), 1e-9)
    down = rows[None, :] - (weights.sum(axis=2) @ rows / mass)[:, None]
    across = columns[None, :] - (weights.sum(axis=1) @ columns / mass)[:, None]
    both = np.einsum("nij,ni,nj->n", weights, down, across) / mass
    spread = np.einsum("nij,ni->n", weights, down**2) / mass
    return np.asarray(np.clip(both / np.maximum(spread, 1e-2), -MOST_SLANT, MOST_SLANT))


def leaned(images: npt.NDArray[np.floating[Any]], by: Real) -> Real:
    """Each image with its rows moved sideways, by ``by`` columns for every row below the middle;
    what comes in from outside is 0. By the negative of its slant, an image is set upright."""
    out = np.empty(images.shape)
    count, height, width = images.shape
    middle = (height - 1) / 2
    down = np.arange(height) - middle
    for n in range(count):
        shift = by[n] * down
        across = np.arange(width)[None, :] - shift[:, None]
        at = np.stack(np.broadcast_arrays(np.arange(height)[:, None], across))
        ndimage.map_coordinates(images[n], at, out[n], order=1, mode="constant", cval=0.0)
    return out
