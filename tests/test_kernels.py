"""Wavelets and the sums of a linear head: the same bits in numba and in numpy, and exact ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capemix.kernels import fast, plain

LEAST, MOST = np.iinfo(np.int16).min, np.iinfo(np.int16).max


def records(count: int, width: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(LEAST, MOST, (count, width), endpoint=True)
    return drawn.astype(np.int16)


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
    assert (found[fast] == found[plain]).all()
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
    assert (found[fast] == found[plain]).all()
    said = np.einsum("ir,jc,krcl->kijl", down, across, values)
    assert np.allclose(found[fast], said, rtol=1e-4, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 140), st.integers(0, 150), st.integers(1, 17))
def test_products_add_feature_after_feature_for_each_record_alone(n: int, d: int, k: int) -> None:
    features, weights = records(n, d), singles(d, k)
    out, again, alone = np.empty((3, n, k), dtype=np.float32)
    fast.products(features, weights, out)
    plain.products(features, weights, again)
    assert (out == again).all()
    for i in range(0, n, 19):
        fast.products(features[i : i + 19], weights, alone[i : i + 19])
    assert (out == alone).all()


@pytest.mark.parametrize("module", [fast, plain])
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(0, 1100), st.integers(1, 12))
def test_outer_sums_are_exact_and_added(module: object, n: int, d: int, k: int) -> None:
    features, residuals = records(n, d), records(n, k, 2)
    before = np.random.default_rng(3).integers(-(2**60), 2**60, (d, k))
    out = before.copy()
    module.outer_sum(features, residuals, out)  # type: ignore[attr-defined]
    assert (out - before == features.T.astype(np.int64) @ residuals.astype(np.int64)).all()


@pytest.mark.parametrize("module", [fast, plain])
def test_outer_sums_of_the_largest_numbers_are_exact(module: object) -> None:
    """More records than are summed before the doubles are emptied, and odd sums of them."""
    count = (1 << 20) + 5
    features = np.full((count, 2), LEAST, dtype=np.int16)
    features[:, 1] = MOST
    features[0, 0] = 1
    out = np.zeros((2, 1), dtype=np.int64)
    module.outer_sum(features, features[:, 1:].copy(), out)  # type: ignore[attr-defined]
    assert out.tolist() == [[(count - 1) * LEAST * MOST + MOST], [count * MOST**2]]
