"""Public maps of images: each row by itself, and what they are said to be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import ndimage, signal

from capemix.statistics.pixels import leaned, slants, smooth_directions
from capemix.statistics.scattering import (
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
    """To the last bit, whatever the batch and the number of threads."""
    images = some_images(70)
    together = scattered(images, threads=2)
    for size in (1, 7, 33):
        parts = [scattered(images[k : k + size], threads=1) for k in range(0, 70, size)]
        assert (np.concatenate(parts) == together).all()
    leans = [slants(images[k : k + 1])[0] for k in range(5)]
    assert np.allclose(slants(images[:5]), leans)


def test_both_kernels_scatter_to_the_same_features(monkeypatch: pytest.MonkeyPatch) -> None:
    images = some_images(3) - 0.2
    found = {}
    for name in ("fast", "plain"):
        monkeypatch.setenv("CAPEMIX_KERNELS", name)
        found[name] = scattered(images)
    assert found["fast"] == pytest.approx(found["plain"], rel=1e-4, abs=1e-6)


def wavelet(turn: int, scale: int, reach: int) -> np.ndarray:
    down, across = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    angle = math.pi * turn / ORIENTATIONS
    along = across * math.cos(angle) + down * math.sin(angle)
    beside = down * math.cos(angle) - across * math.sin(angle)
    width = 0.8 * 2**scale
    bell = np.exp(-(along**2 + (beside / 1.5) ** 2) / (2 * width**2))
    waves = bell * np.exp(1j * 0.75 * math.pi / 2**scale * along)
    return np.asarray((waves - bell * waves.sum() / bell.sum()) / (3 * math.pi * width**2))


def modulus(values: np.ndarray, turn: int, scale: int, reach: int) -> np.ndarray:
    return np.abs(signal.convolve2d(values, wavelet(turn, scale, reach), mode="same"))


def read_off(values: np.ndarray, every: int) -> np.ndarray:
    down, across = np.mgrid[-40:41, -40:41]
    blur = np.exp(-(down**2 + across**2) / (2 * (0.8 * every) ** 2))
    blurred = signal.fftconvolve(values, blur / blur.sum(), mode="full")[40:-40, 40:-40]
    return np.asarray(blurred[every // 2 :: every, every // 2 :: every])


@pytest.mark.parametrize(
    ("reach", "error", "where"), [(3, 1e-5, np.s_[:, :]), (12, 0.02, np.s_[2:-2, 2:-2])]
)
def test_scattering_is_averaged_moduli_of_wavelet_convolutions(
    reach: int, error: float, where: tuple[slice, slice]
) -> None:
    """Both orders of one image, with the wavelets as far as they are taken, and, away from the
    edges, about so where they go on."""
    image = some_images(1)[0]
    found = scattered(image[None])[0].reshape(channels(), 7, 7)
    fine = modulus(image, 3, 0, reach)
    coarse = modulus(image, 5, 1, 2 * reach)[::2, ::2]
    # The second order is taken at half of the resolution, where the coarse wavelets are the fine.
    again = modulus(fine[::2, ::2], 1, 0, reach)
    for place, said in (
        (0, read_off(image, STEP)),
        (1 + 3, read_off(fine, STEP)),
        (1 + ORIENTATIONS + 5, read_off(coarse, STEP // 2)),
        (1 + 2 * ORIENTATIONS + 3 * ORIENTATIONS + 1, read_off(again, STEP // 2)),
    ):
        assert np.allclose(found[place][where], said[where], rtol=0, atol=error * said.max())
        # Not another orientation, or scale.
        other = found[place + 1][where]
        assert not np.allclose(other, said[where], rtol=0, atol=2 * error * said.max())


def test_wavelets_do_not_see_what_is_even() -> None:
    """Away from the edges, brightness alone moves the first channel and no other."""
    found = scattered(np.ones((1, 60, 60)))[0].reshape(channels(), 15, 15)[:, 7, 7]
    assert found[0] == pytest.approx(1.0, abs=1e-5)
    assert np.abs(found[1:]).max() < 1e-4


def test_features_are_counted_and_sizes_checked() -> None:
    assert features_of((28, 28)) == 2401 == scattered(some_images(1)).shape[1]
    assert scattered(some_images(2, 8)).shape == (2, features_of((8, 8)))
    assert scattered(some_images(2)[:, :, :20]).shape == (2, features_of((28, 20)))
    assert scattered(some_images(1)[:0]).shape == (0, 2401)
    with pytest.raises(ValueError, match="no grid of every fourth pixel"):
        scattered(some_images(1, 30)[:, :, :29])
