"""Wavelets: the same in numba and in numpy, up to how often single precision rounds."""

from __future__ import annotations

import numpy as np
import pytest

from capemix.kernels import fast, plain


def singles(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("side", "every"), [(1, 1), (3, 2), (5, 1), (9, 3)])
def test_moduli_are_those_of_all_taps(side: int, every: int) -> None:
    values, half = singles(4 * every + side, 2 * every + side, 3), singles(2, 2, side, side)
    turned = half[:, :, ::-1, ::-1]
    wavelets = half + np.array([1, -1], dtype=np.float32)[:, None, None] * turned
    found = {}
    for module in (fast, plain):
        out = found[module] = np.empty((2, 5, 3, 3), dtype=np.float32)
        module.moduli(values, wavelets, every, out)
    assert found[fast] == pytest.approx(found[plain], rel=1e-5, abs=1e-5)
    for k, i, j in np.ndindex(2, 5, 3):
        part = values[i * every : i * every + side, j * every : j * every + side]
        real, imaginary = np.einsum("rde,del->rl", wavelets[k], part)
        assert found[fast][k, i, j] == pytest.approx(np.hypot(real, imaginary), rel=1e-4, abs=1e-4)


def test_averages_weigh_rows_and_columns() -> None:
    values, down, across = singles(2, 11, 17, 3), singles(4, 11), singles(5, 17)
    found = {}
    for module in (fast, plain):
        out = found[module] = np.empty((2, 4, 5, 3), dtype=np.float32)
        module.averages(values, down, across, out)
    assert found[fast] == pytest.approx(found[plain], rel=1e-5, abs=1e-5)
    said = np.einsum("ir,jc,krcl->kijl", down, across, values)
    assert np.allclose(found[fast], said, rtol=1e-4, atol=1e-4)
