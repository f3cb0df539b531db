"""Features of an image by fixed wavelets: scattering of order two (Bruna, Mallat 2013).

Moduli of an image's convolutions with Morlet wavelets of two scales and six orientations, and of
the finer ones' moduli with the coarser wavelets again, each averaged by a Gaussian and read off on
a grid of every fourth pixel. No number in it was learned, and each image's features are its own, to
the last bit: a public map.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix import kernels
from capemix.kernels.machine import in_parallel

ORIENTATIONS: Final = 6
STEP: Final = 4
"""Pixels between the points at which averages are read off."""

_FINE: Final = 3
"""Pixels that a fine wavelet reaches to each side: two and a half of its wider deviations."""
_COARSE: Final = 2 * _FINE
_LANES: Final = 32
"""Images side by side in the inner loops."""

Single = npt.NDArray[np.float32]


def channels() -> int:
    """The image itself, two scales, and the fine scale's moduli seen by the coarse one."""
    return 1 + 2 * ORIENTATIONS + ORIENTATIONS**2


def features_of(shape: tuple[int, int]) -> int:
    """How many numbers an image becomes."""
    return channels() * (shape[0] // STEP) * (shape[1] // STEP)


def scattered(images: npt.NDArray[Any], *, threads: int | None = None) -> Single:
    """Rows of features, channel by channel, of images (count, height, width) of one size; height
    and width are multiples of four. What lies around an image is 0."""
    count, height, width = images.shape
    if height % STEP or width % STEP:
        raise ValueError(f"images of {height} x {width} pixels have no grid of every fourth pixel")
    out = np.empty((count, channels(), height // STEP, width // STEP), dtype=np.float32)

    def fill(start: int) -> None:
        part = images[start : start + _LANES]
        values = np.zeros((1, height, width, _LANES), dtype=np.float32)
        values[0, :, :, : len(part)] = np.moveaxis(part, 0, -1)
        out[start : start + _LANES] = np.moveaxis(_of_lanes(values), -1, 0)[: len(part)]

    in_parallel(fill, range(0, count, _LANES), threads)
    return out.reshape(count, features_of((height, width)))


def _of_lanes(image: Single) -> Single:
    """Channels of images (1, height, width, lanes), each with points down and across and lanes."""
    fine = _moduli(image[0], _wavelets(_FINE), 1)
    # Every second pixel will do for the coarse wavelets; of the fine moduli, the fine wavelets
    # there are the coarse ones.
    coarse = _moduli(image[0], _wavelets(_COARSE), 2)
    again = [_moduli(half, _wavelets(_FINE), 1) for half in fine[:, ::2, ::2]]
    found = [_averaged(image, STEP), _averaged(fine, STEP)]
    found += [_averaged(half, STEP // 2) for half in (coarse, *again)]
    return np.concatenate(found)


def _moduli(values: Single, wavelets: Single, every: int) -> Single:
    """Of the convolutions with each wavelet, at every so many pixels."""
    height, width, lanes = values.shape
    reach = wavelets.shape[-1] // 2
    padded = np.zeros((height + 2 * reach, width + 2 * reach, lanes), dtype=np.float32)
    padded[reach:-reach, reach:-reach] = values
    out = np.empty((len(wavelets), height // every, width // every, lanes), dtype=np.float32)
    kernels.active().moduli(padded, wavelets, every, out)
    return out


def _averaged(values: Single, every: int) -> Single:
    """Read off at the middles of squares of so many pixels a side."""
    kinds, height, width, lanes = values.shape
    out = np.empty((kinds, height // every, width // every, lanes), dtype=np.float32)
    kernels.active().averages(values, _bells(height, every), _bells(width, every), out)
    return out


@lru_cache(maxsize=8)
def _wavelets(reach: int) -> Single:
    """Morlet wavelets of every orientation, as real and imaginary parts: a Gaussian of deviation
    0.8 pixels, half as much again across its wave of 3/4 pi a pixel, freed of its mean; all wider
    by as much as the reach is more than ``_FINE``."""
    down, across = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    wider, slant = reach / _FINE, 4.0 / ORIENTATIONS
    deviation, wave = 0.8 * wider, 0.75 * math.pi / wider
    found = []
    for turn in range(ORIENTATIONS):
        angle = math.pi * turn / ORIENTATIONS
        along = across * math.cos(angle) + down * math.sin(angle)
        beside = down * math.cos(angle) - across * math.sin(angle)
        bell = np.exp(-(along**2 + (slant * beside) ** 2) / (2 * deviation**2))
        waves = bell * np.exp(1j * wave * along)
        wavelet = waves - bell * (waves.sum() / bell.sum())
        wavelet *= slant / (2 * math.pi * deviation**2)
        found.append([wavelet.real, wavelet.imag])
    return np.array(found, dtype=np.float32)


@lru_cache(maxsize=8)
def _bells(side: int, every: int) -> Single:
    """A Gaussian around every so many pixels, as weights of a side's pixels: 1 in all, save for
    what lies outside."""
    deviation = 0.8 * every
    points = np.arange(every // 2, side, every)
    away = (points[:, None] - np.arange(side)) / deviation
    return np.asarray(
        np.exp(-(away**2) / 2) / (math.sqrt(2 * math.pi) * deviation), dtype=np.float32
    )
