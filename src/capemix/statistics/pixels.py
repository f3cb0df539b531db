"""What is public of images: smooth directions come first, and handwriting slants.

Each of these is a function of one row and of constants; none looks at another row.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import fft

from capemix import kernels

Real = npt.NDArray[np.float64]

MOST_SLANT: Final = 1.0
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


_SHADES: Final = 255


def slants(images: npt.NDArray[np.floating[Any]]) -> Real:
    """How far each image (count, height, width) leans, in columns a row: the covariance of column
    and row over the variance of the row, pixels of 0 to 1 taken as weights. 0 of an empty image.

    Pixels are rounded to 256 shades, so that every sum is one of whole numbers, and exact.
    """
    count, height, width = images.shape
    shades = np.rint(np.clip(images, 0.0, 1.0).reshape(count, -1) * _SHADES)
    down, across = (side.ravel() for side in np.indices((height, width), dtype=np.float64))
    sums = shades @ np.stack([np.ones_like(down), down, across, down * across, down**2], axis=1)
    mass, rows, columns, both, squares = sums.T
    spread = np.maximum(mass * squares - rows**2, 1e-2 * mass**2)
    found = (mass * both - rows * columns) / np.maximum(spread, 1.0)
    found = np.where(np.isfinite(found), found, 0.0)
    return np.asarray(np.clip(found, -MOST_SLANT, MOST_SLANT))


def leaned(images: npt.NDArray[Any], by: Real) -> npt.NDArray[Any]:
    """Each image with its rows moved sideways, by ``by`` columns for every row below the middle,
    between pixels linearly; what comes in from outside is 0. By the negative of its slant, an image
    is set upright."""
    out = np.empty_like(images, order="C")
    kernels.active().leaned(np.ascontiguousarray(images), by, out)
    return out


def upright_rows(rows: Real, shape: tuple[int, int], blank: float, full: float) -> Real:
    """Images as rows of pixels from ``blank`` to ``full``, each set upright; the slant that it had
    is one more column."""
    images = (rows.reshape(-1, *shape) - blank) / (full - blank)
    found = slants(images)
    turned = leaned(images, -found).reshape(len(rows), -1) * (full - blank) + blank
    return np.hstack([turned, found[:, None]])
