"""What numba and numpy both compute: the same bits, and wavelets up to how often single precision
rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from capemix.kernels import fast, integers_of, plain, words_of
from capemix.randomness.tables import rounded_gaussian

any_rows = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.floats(allow_nan=True, allow_infinity=True, width=64),
)


def singles(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("module", [fast, plain])
def test_words_are_the_integers_and_add_up_to_their_sum(module: Any) -> None:
    integers = [0, 1, (1 << 384) - 1, *(pow(7, n, 1 << 384) for n in range(1_000))]
    words = words_of(integers, 6)
    assert words.shape == (1_003, 6)
    assert int(words[9, 0]) == 7**6
    assert integers_of(words) == integers
    halves = np.empty((6, 2), dtype=np.uint64)
    module.half_sums(words, halves)
    assert sum(int(half) << 32 * n for n, half in enumerate(halves.flat)) == sum(integers)


@pytest.mark.parametrize("module", [fast, plain])
def test_products_of_words_carry_to_the_end(module: Any) -> None:
    weights = [0, 1, (1 << 224) - 1, (1 << 192) - 1, 1 << 192, *(11**n for n in range(60))]
    for factor in (0, 1, 1 << 352, (1 << 352) - 1, 13**95):
        found = np.empty((3, len(weights)), dtype=np.uint64)
        head, middle, tail = found
        module.scaled(words_of(weights, 4), words_of([factor], 6)[0], head, middle, tail)
        said = [weight * factor >> 416 for weight in weights]
        assert tail.tolist() == [part & 0xFFFFFFFF for part in said]
        assert middle.tolist() == [(part >> 32) % (1 << 64) for part in said]
        assert head.tolist() == [part >> 96 for part in said]


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


@pytest.mark.parametrize("module", [fast, plain])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 6, 784, 8_193, 20_737])
def test_a_norm_is_a_rows_own_to_the_last_bit(module: Any, dtype: type, width: int) -> None:
    """A record's part would else tell how many others there are."""
    rows = np.random.default_rng(2).normal(size=(60, width)).astype(dtype)

    def norms(some: np.ndarray) -> np.ndarray:
        out = np.empty(len(some), dtype=dtype)
        module.squared_norms(some, out)
        return out

    whole = norms(rows)
    assert whole == pytest.approx((rows.astype(np.float64) ** 2).sum(axis=1), rel=1e-4)
    assert np.array_equal(whole, np.concatenate([norms(rows[n : n + 1]) for n in range(60)]))
    assert np.array_equal(whole[17:], norms(rows[17:]))
    assert np.array_equal(norms(rows), whole)


@settings(max_examples=200)
@given(any_rows, st.floats(min_value=1e-300, max_value=1e300))
def test_rows_are_clipped_to_the_same_bits_by_both_kernels(rows: np.ndarray, limit: float) -> None:
    found = np.empty((2, *rows.shape))
    fast.clipped(rows, limit, found[0])
    plain.clipped(rows, limit, found[1])
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("reach", [2.0, np.inf])
@settings(max_examples=200)
@given(rows=any_rows, shift=st.floats(-3, 3), scale=st.floats(1e-9, 1e9))
def test_rows_are_normalised_about_a_centre_as_numpy_does_it(
    rows: np.ndarray, shift: float, scale: float, reach: float
) -> None:
    width = rows.shape[1]
    how = np.repeat([[-reach], [reach], [shift], [scale]], width, axis=1)
    centres, which = np.arange(2.0 * width).reshape(2, width), np.arange(len(rows)) % 2
    found = np.empty((2, *rows.shape))
    fast.centred(rows, how, centres, which, found[0])
    plain.centred(rows, how, centres, which, found[1])
    with np.errstate(over="ignore"):
        scaled = (np.clip(rows, -reach, reach) - shift) / scale
    finite = np.isfinite(scaled).all(axis=1, keepdims=True)
    assert np.array_equal(found[0], np.where(finite, scaled, 0.0) - centres[which])
    assert np.array_equal(*found)


@settings(max_examples=200)
@given(any_rows, st.floats(1e-9, 1e9), st.integers(1, 32_767))
def test_rows_are_truncated_to_the_same_integers_by_both_kernels(
    rows: np.ndarray, scale: float, most: int
) -> None:
    found = np.empty((2, *rows.shape), dtype=np.int16)
    fast.truncated(rows, scale, most, found[0])
    plain.truncated(rows, scale, most, found[1])
    assert np.array_equal(*found)
    assert ((found.astype(np.int64) ** 2).sum(axis=2) <= most**2).all()


@pytest.mark.parametrize("module", [fast, plain])
def test_rows_add_up_by_group(module: Any) -> None:
    random = np.random.default_rng(3)
    rows = random.integers(-32_767, 32_768, size=(500, 9)).astype(np.int16)
    group = random.integers(4, size=500)
    sums = np.ones((5, 9), dtype=np.int64)
    module.add_by_group(rows, group, sums)
    assert np.array_equal(
        sums, [1 + rows[group == g].sum(axis=0, dtype=np.int64) for g in range(5)]
    )


@settings(max_examples=200)
@given(any_rows, st.lists(st.sampled_from([0.0, -np.inf, 0.5, np.nan]), min_size=12, max_size=12))
def test_the_largest_is_numpys(rows: np.ndarray, offsets: list[float]) -> None:
    added = np.array(offsets[: rows.shape[1]])
    found = np.empty((2, len(rows)), dtype=np.int64)
    with np.errstate(invalid="ignore"):
        fast.largest(np.ascontiguousarray(rows.T), added, found[0])
        plain.largest(rows.T, added, found[1])
        assert np.array_equal(found[0], (rows + added).argmax(axis=1))
    assert np.array_equal(*found)


@pytest.mark.parametrize("width", [7, 9_000])
def test_norms_are_the_same_bits_by_both_kernels(width: int) -> None:
    rows = singles(5, width)
    found = np.empty((2, 5), dtype=np.float32)
    fast.squared_norms(rows, found[0])
    plain.squared_norms(rows, found[1])
    assert np.array_equal(*found)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_images_lean_by_the_same_bits_by_both_kernels(dtype: type) -> None:
    generator = np.random.default_rng(5)
    images = generator.random((9, 12, 8)).astype(dtype)
    by = np.array([0.0, 1.0, -1.0, 0.5, -0.25, 3.0, -3.0, *generator.uniform(-1, 1, 2)])
    found = np.full((2, 9, 12, 8), np.nan, dtype=dtype)
    fast.leaned(images, by, found[0])
    plain.leaned(images, by, found[1])
    assert np.array_equal(*found)
    assert np.array_equal(found[0][0], images[0])
    assert not np.allclose(found[0][3], images[3])


@pytest.mark.parametrize("sigma", [1.0, 3.7, 64.0, 900.5])
def test_both_kernels_make_the_same_table_of_a_rounded_gaussian(
    monkeypatch: pytest.MonkeyPatch, sigma: float
) -> None:
    found = []
    for name in ("fast", "plain"):
        monkeypatch.setenv("CAPEMIX_KERNELS", name)
        found.append(rounded_gaussian.__wrapped__(sigma))
    for one, other in zip(*(vars(law).values() for law in found), strict=True):
        assert np.array_equal(one, other)
