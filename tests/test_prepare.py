"""No row leaves preparation longer than its bound, whatever it was."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from capemix.errors import InputError
from capemix.methods.mixing.planning import plan_mixtures
from capemix.sums.rows import (
    ClippedRows,
    Preparation,
    clip_rows,
    denormalise_rows,
    normalise_rows,
    truncate_rows,
)
from capemix.sums.steps import Coverage, PublicMap, SiteZScore

any_rows = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.floats(allow_nan=True, allow_infinity=True, width=64),
)
bounds = st.floats(min_value=1e-6, max_value=1e6)


def exact_square(row: np.ndarray) -> Fraction:
    return sum((Fraction(float(x)) ** 2 for x in row), Fraction(0))


@settings(max_examples=300)
@given(any_rows, bounds)
def test_no_clipped_row_exceeds_its_bound(rows: np.ndarray, bound: float) -> None:
    for row in clip_rows(rows, bound):
        assert exact_square(row) <= Fraction(bound) ** 2


@settings(max_examples=300)
@given(any_rows, bounds, st.integers(1, 32_767))
def test_no_lattice_row_exceeds_its_integer_bound(
    rows: np.ndarray, bound: float, lattice: int
) -> None:
    clipped = clip_rows(rows, bound)
    units = truncate_rows(clipped, l2_norm_bound=bound, lattice_norm_bound=lattice)
    for row in units:
        assert sum(int(x) ** 2 for x in row) <= lattice**2


@settings(max_examples=100)
@given(any_rows, st.integers(1, 32_767))
def test_even_rows_that_were_never_clipped_stay_in_bound(rows: np.ndarray, lattice: int) -> None:
    units = truncate_rows(np.nan_to_num(rows), l2_norm_bound=1.0, lattice_norm_bound=lattice)
    for row in units:
        assert sum(int(x) ** 2 for x in row) <= lattice**2


@settings(max_examples=100)
@given(any_rows, bounds, st.integers(1, 32_767), st.booleans())
def test_prepared_rows_keep_the_bound_with_their_label_columns(
    rows: np.ndarray, clip: float, lattice: int, label_columns: bool
) -> None:
    labels = np.arange(len(rows), dtype=np.int64) % 3
    asked = ClippedRows(rows.shape[1], 3, PublicMap(), clip, label_columns=label_columns)
    prepared = asked.rows_by_group(rows, labels, lattice)
    assert sum(len(part) for part in prepared.by_group) == len(rows)
    for part in prepared.by_group:
        for row in part:
            assert sum(int(x) ** 2 for x in row) <= lattice**2


def test_short_rows_are_not_touched_by_clipping() -> None:
    rows = np.array([[0.3, 0.4], [3.0, 4.0], [0.0, 0.0]])
    clipped = clip_rows(rows, 1.0)
    np.testing.assert_allclose(clipped[0], rows[0], rtol=1e-15)
    np.testing.assert_allclose(clipped[1], [0.6, 0.8], rtol=1e-11)
    assert (clipped[2] == 0).all()


def test_a_row_that_is_not_finite_counts_as_zero_and_changes_no_other() -> None:
    good = np.array([[0.1, -0.2]])
    bad = np.array([[np.nan, 1.0], [0.1, -0.2], [np.inf, 0.0]])
    clipped = clip_rows(bad, 1.0)
    assert (clipped[[0, 2]] == 0).all()
    assert (clipped[1] == clip_rows(good, 1.0)[0]).all()


def test_truncation_is_toward_zero() -> None:
    units = truncate_rows(np.array([[0.59, -0.59]]), l2_norm_bound=1.0, lattice_norm_bound=10)
    assert units.tolist() == [[5, -5]]


@pytest.mark.parametrize("lattice", [1, 32, 101, 32_767])
@pytest.mark.parametrize("bound", [1.0, 0.3, 7.7])
def test_a_record_of_exactly_the_bound_adds_all_of_it(lattice: int, bound: float) -> None:
    one_hot = clip_rows(np.array([[0.0, bound, 0.0]]), bound)
    units = truncate_rows(one_hot, l2_norm_bound=bound, lattice_norm_bound=lattice)
    assert units.tolist() == [[0, lattice, 0]]


@pytest.mark.parametrize("lattice", [101, 5_000, 32_767])
def test_no_clipped_row_is_stretched_past_its_bound_and_dropped(lattice: int) -> None:
    """The nearest whole vector beyond the bound, shortened to it."""
    bound = math.sqrt(lattice**2 + 1.0)
    row = clip_rows(np.array([[lattice, 1.0]]), bound)
    units = truncate_rows(row, l2_norm_bound=bound, lattice_norm_bound=lattice)
    assert units.tolist() == [[lattice - 1, 0]]


def test_a_replaced_row_and_label_move_the_sum_by_no_more_than_is_counted() -> None:
    """Where the square of the features' own bound is just under a whole number, they reach it: more
    than the bounds in real numbers say."""
    clip, lattice = 1.3092287160856952, 20_000
    plan = plan_mixtures(
        width=4, class_sizes=(50, 50), samples=2, mixture=2, clip=clip, label_noise=True, noise=1.0
    )
    line = plan.query("mixtures").line
    left, features = math.ceil((lattice * clip / line.l2_norm_bound) ** 2), []
    while left:
        features.append(math.isqrt(left))
        left -= features[-1] ** 2
    whole = np.array(features, dtype=np.float64)
    clipped = clip_rows((whole * clip / np.linalg.norm(whole))[None], clip)[0]
    rows = np.array([[*clipped, 1.0, 0.0], [*-clipped, 0.0, 1.0]])
    units = truncate_rows(rows, l2_norm_bound=line.l2_norm_bound, lattice_norm_bound=lattice)
    moved = int(((units[0].astype(int) - units[1]) ** 2).sum())
    real = Fraction(4 * clip**2 + 2) / Fraction(clip**2 + 1) * lattice**2
    assert real < moved <= Fraction(line.replacement_factor) ** 2 * lattice**2


def test_a_number_short_of_a_whole_one_by_more_than_rounding_is_truncated() -> None:
    rows = np.array([[1.0 - 1e-9, 0.0]])
    units = truncate_rows(rows, l2_norm_bound=1.0, lattice_norm_bound=32)
    assert units.tolist() == [[31, 0]]


def test_the_public_map_goes_there_and_back_inside_its_range() -> None:
    how = PublicMap.of_range(0, 16)
    rows = np.array([[0.0, 8.0, 16.0, 40.0, -3.0]])
    mapped = normalise_rows(rows, how)
    assert mapped.tolist() == [[-1.0, 0.0, 1.0, 1.0, -1.0]]
    doubled = mapped * 2
    denormalise_rows(doubled, how)
    assert doubled.tolist() == [[0.0, 8.0, 16.0, 16.0, 0.0]]


def test_a_public_map_looks_at_one_row_at_a_time_and_a_z_score_does_not() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 3))
    more = np.vstack([rows, [[100.0, 0.0, 0.0]]])
    public = PublicMap.of_range(-2, 2)
    assert (normalise_rows(rows, public) == normalise_rows(more, public)[:20]).all()
    assert (normalise_rows(rows, SiteZScore()) != normalise_rows(more, SiteZScore())[:20]).any()


def test_the_z_score_is_the_papers() -> None:
    rows = np.random.default_rng(1).normal(3, 2, size=(50, 4))
    rows[:, 3] = 7.0  # a constant feature
    scored = normalise_rows(rows, SiteZScore())
    np.testing.assert_allclose(scored.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(scored.std(axis=0), [1, 1, 1, 0], atol=1e-12)


def test_every_step_says_how_it_is_covered() -> None:
    covered = [step.coverage for step in Preparation(PublicMap.of_range(0, 1), 1.0).steps]
    assert covered == [Coverage.PUBLIC, Coverage.PER_ROW]
    assert SiteZScore().step.coverage is Coverage.NOT_COVERED


def test_a_range_must_be_a_range() -> None:
    for low, high in ((1, 1), (2, 1), (0, math.inf), (math.nan, 1)):
        with pytest.raises(InputError, match="public_range"):
            PublicMap.of_range(low, high)
