"""Features of an image by fixed wavelets: scattering of order two (Bruna, Mallat 2013).

Moduli of an image's convolutions with Morlet wavelets of two scales and eight orientations, and of
the finer ones' moduli with the coarser wavelets again, each averaged by a Gaussian and read off on
a grid of every fourth pixel. No number in it was learned, and each image's features are its own: a
public map.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import fft

ORIENTATIONS: Final = 8
STEP: Final = 4
"""Pixels between the points at which averages are read off."""

_CHUNK: Final = 256

Complex = npt.NDArray[np.complexfloating[Any, Any]]
"""Of single precision: scipy keeps it, though its types do not say so."""
Single = npt.NDArray[np.float32]


def channels() -> int:
    """The image itself, two scales, and the fine scale's moduli seen by the coarse one."""
    return 1 + 2 * ORIENTATIONS + ORIENTATIONS**2


def features_of(shape: tuple[int, int]) -> int:
    """How many numbers an image becomes."""
    return channels() * (shape[0] // STEP) * (shape[1] // STEP)


def scattered(images: npt.NDArray[Any], *, threads: int | None = None) -> Single:
    """Rows of features, channel by channel, of images (count, height, width) of one size; height
    and width are multiples of four."""
    count, height, width = images.shape
    if height % STEP or width % STEP:
        raise ValueError(f"images of {height} x {width} pixels have no grid of every fourth pixel")
    grid = (height // STEP, width // STEP)
    out = np.empty((count, channels(), *grid), dtype=np.float32)
    with fft.set_workers(threads or 1):
        for start in range(0, count, _CHUNK):
            part = images[start : start + _CHUNK]
            padded = np.zeros((len(part), height + STEP, width + STEP), dtype=np.float32)
            padded[:, STEP // 2 : -STEP // 2, STEP // 2 : -STEP // 2] = part
            out[start : start + _CHUNK] = _of_padded(padded)
    return out.reshape(count, -1)


def _of_padded(images: Single) -> Single:
    shape = images.shape[1:]
    fine, coarse = _wavelets(shape, 0), _wavelets(shape, 1)
    blur, blur_halved = _blur(shape, 0.8 * STEP), _blur(_half(shape), 0.4 * STEP)
    spectrum = fft.fft2(images.astype(np.complex64))
    found = [_averaged(spectrum, blur, STEP)]
    of_fine = [fft.fft2(_modulus(spectrum, wavelet)) for wavelet in fine]
    of_coarse = [fft.fft2(_modulus(spectrum, wavelet)) for wavelet in coarse]
    found += [_averaged(modulus, blur, STEP) for modulus in of_fine + of_coarse]
    for modulus in of_fine:
        # Every second pixel will do for the coarse wavelets, which there are the fine ones.
        half = _folded(modulus, 2)
        for wavelet in _wavelets(_half(shape), 0):
            again = fft.fft2(_modulus(half, wavelet))
            found.append(_averaged(again, blur_halved, STEP // 2))
    return np.stack(found, axis=1)


def _half(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(side // 2 for side in shape)


def _modulus(spectrum: Complex, wavelet: Complex) -> Complex:
    return np.abs(fft.ifft2(spectrum * wavelet)).astype(np.complex64)


def _averaged(spectrum: Complex, blur: Complex, every: int) -> Single:
    """The blurred image at every so many pixels, without the points that lie in the padding."""
    low = fft.ifft2(_folded(spectrum * blur, every)).real
    return np.asarray(low[:, 1:, 1:], dtype=np.float32)


def _folded(spectrum: Complex, every: int) -> Complex:
    """The spectrum of every so many pixels: frequencies that they cannot tell apart, averaged."""
    count, height, width = spectrum.shape
    parts = spectrum.reshape(count, every, height // every, every, width // every)
    return np.asarray(parts.mean(axis=(1, 3)))


@lru_cache(maxsize=8)
def _wavelets(shape: tuple[int, ...], scale: int) -> tuple[Complex, ...]:
    """Morlet wavelets of every orientation, in the Fourier domain: a Gaussian of deviation 0.8
    2^scale pixels, twice as wide across its wave of 3/4 pi 2^-scale, freed of its mean."""
    down, across = _distances(shape)
    deviation, wave, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4.0 / ORIENTATIONS
    found: list[Complex] = []
    for turn in range(ORIENTATIONS):
        angle = math.pi * turn / ORIENTATIONS
        along = across * math.cos(angle) + down * math.sin(angle)
        beside = down * math.cos(angle) - across * math.sin(angle)
        bell = np.exp(-(along**2 + (slant * beside) ** 2) / (2 * deviation**2))
        waves = bell * np.exp(1j * wave * along)
        wavelet = waves - bell * (waves.sum() / bell.sum())
        wavelet *= slant / (2 * math.pi * deviation**2)
        found.append(np.asarray(fft.fft2(wavelet), dtype=np.complex64))
    return tuple(found)


@lru_cache(maxsize=8)
def _blur(shape: tuple[int, ...], deviation: float) -> Complex:
    down, across = _distances(shape)
    bell = np.exp(-(down**2 + across**2) / (2 * deviation**2))
    return np.asarray(fft.fft2(bell / bell.sum()), dtype=np.complex64)


def _distances(shape: tuple[int, ...]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Of every pixel from the first one, around the edges."""
    sides = [fft.fftfreq(side, 1.0 / side) for side in shape]
    down, across = np.meshgrid(*sides, indexing="ij")
    return down, across
