"""Public maps of images: each row by itself, and what they are said to be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import ndimage

from capemix.prepare.images import leaned, slants, smooth_directions
from capemix.prepare.scattering import (
    ORIENTATIONS,
    STEP,
    channels,
    features_of,
    scattered,
)


def some_images(count: int = 5, side: int = 28) -> np.ndarray:
    noise = np.random.default_rng(0).random((count, side, side))
    return ndimage.gaussian_filter(noise, (0, 2, 2)) ** 2


def test_smooth_directions_are_orthonormal_and_begin_with_the_smoothest() -> None:
    found = smooth_directions((12, 8), 40)
    assert np.allclose(found.T @ found, np.eye(40))
    assert np.allclose(found[:, 0], found[0, 0])  # the mean
    images = found.T.reshape(40, 12, 8)
    roughness = [
        (np.diff(one, axis=0) ** 2).sum() + (np.diff(one, axis=1) ** 2).sum() for one in images
    ]
    assert np.mean(roughness[:10]) < 0.5 * np.mean(roughness[-10:])
    whole = smooth_directions((12, 8), 96)
    assert np.allclose(whole @ whole.T, np.eye(96))
    for count in (0, 97):
        with pytest.raises(ValueError, match="has no"):
            smooth_directions((12, 8), count)


def test_a_leaning_bar_is_set_upright_and_leans_again() -> None:
    bar = np.zeros((1, 28, 28))
    bar[0, 4:24, 12:16] = 1.0
    for by in (-0.4, 0.0, 0.3):
        tilted = leaned(bar, np.array([by]))
        assert slants(tilted)[0] == pytest.approx(by, abs=0.03)
        upright = leaned(tilted, -slants(tilted))
        assert abs(slants(upright)[0]) < 0.02
        assert np.abs(upright - bar).mean() < 0.03
    assert slants(np.zeros((1, 28, 28)))[0] == 0.0
    assert np.array_equal(leaned(bar, np.zeros(1)), bar)


def test_no_image_feels_another() -> None:
    images = some_images()
    alone = [scattered(images[k : k + 1])[0] for k in range(5)]
    assert np.allclose(scattered(images), alone, atol=1e-6)
    assert np.allclose(slants(images), [slants(images[k : k + 1])[0] for k in range(5)])


def distances(size: int) -> tuple[np.ndarray, np.ndarray]:
    place = (np.arange(size) + size // 2) % size - size // 2
    down, across = np.meshgrid(place, place, indexing="ij")
    return down, across


def wavelet(size: int, turn: int, scale: int) -> np.ndarray:
    down, across = distances(size)
    angle = math.pi * turn / ORIENTATIONS
    along = across * math.cos(angle) + down * math.sin(angle)
    beside = down * math.cos(angle) - across * math.sin(angle)
    width = 0.8 * 2**scale
    bell = np.exp(-(along**2 + (beside / 2) ** 2) / (2 * width**2))
    waves = bell * np.exp(1j * 0.75 * math.pi / 2**scale * along)
    return np.asarray((waves - bell * waves.sum() / bell.sum()) / (4 * math.pi * width**2))


def convolved(values: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    out = np.zeros(values.shape, dtype=complex)
    for i, j in np.ndindex(*values.shape):
        out += values[i, j] * np.roll(kernel, (i, j), axis=(0, 1))
    return out


def read_off(values: np.ndarray, every: int) -> np.ndarray:
    down, across = distances(len(values))
    blur = np.exp(-(down**2 + across**2) / (2 * (0.8 * every) ** 2))
    return convolved(values, blur / blur.sum()).real[every::every, every::every]


def test_scattering_is_averaged_moduli_of_wavelet_convolutions() -> None:
    """Both orders of one image, against sums over all pixels."""
    image = some_images(1)[0]
    padded = np.pad(image, STEP // 2)
    found = scattered(image[None])[0].reshape(channels(), 7, 7)
    fine = np.abs(convolved(padded, wavelet(32, 3, 0)))
    coarse = np.abs(convolved(padded, wavelet(32, 5, 1)))
    # The second order is taken at half of the resolution, where the coarse wavelets are the fine.
    again = np.abs(convolved(fine[::2, ::2], wavelet(16, 6, 0)))
    for place, said in (
        (0, read_off(padded, STEP)),
        (1 + 3, read_off(fine, STEP)),
        (1 + ORIENTATIONS + 5, read_off(coarse, STEP)),
        (1 + 2 * ORIENTATIONS + 3 * ORIENTATIONS + 6, read_off(again, STEP // 2)),
    ):
        assert np.allclose(found[place], said, rtol=1e-3, atol=1e-3 * np.abs(said).max())
        assert not np.allclose(found[place + 1], said, rtol=1e-3)  # another orientation, or scale


def test_features_are_counted_and_sizes_checked() -> None:
    assert features_of((28, 28)) == 3969 == scattered(some_images(1)).shape[1]
    assert scattered(some_images(2, 8)).shape == (2, features_of((8, 8)))
    with pytest.raises(ValueError, match="no grid of every fourth pixel"):
        scattered(some_images(1, 30)[:, :, :29])
