"""Every row lands at exactly one site."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capemix.data import LabeledRows, Split, partition
from capemix.errors import InputError

HOWS: tuple[Split, ...] = get_args(Split)


def numbered(labels: list[int]) -> LabeledRows:
    """Rows whose one feature is their number."""
    return LabeledRows(
        features=np.arange(len(labels), dtype=np.float64)[:, None],
        labels=np.array(labels, dtype=np.int64),
        classes=tuple(range(max(labels) + 1)),
        feature_names=("number",),
    )


def numbers(parts: tuple[LabeledRows, ...]) -> list[list[int]]:
    return [part.features[:, 0].astype(int).tolist() for part in parts]


LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=60)


@given(data=st.data(), labels=LABELS, how=st.sampled_from(HOWS), seed=st.integers(0, 2**64))
def test_any_partition_is_a_true_partition(
    data: st.DataObject, labels: list[int], how: Split, seed: int
) -> None:
    rows = numbered(labels)
    sites = data.draw(st.integers(1, len(rows)))
    alpha = data.draw(st.floats(1e-6, 1e6))
    parts = partition(rows, sites, how, alpha=alpha, seed=seed)
    assert len(parts) == sites
    assert sorted(chain.from_iterable(numbers(parts))) == list(range(len(rows)))
    for part in parts:
        assert part.classes == rows.classes
        for row in range(len(part)):
            assert part.labels[row] == labels[int(part.features[row, 0])]


@given(labels=LABELS, how=st.sampled_from(HOWS), seed=st.integers(0, 100))
def test_the_same_seed_gives_the_same_partition(labels: list[int], how: Split, seed: int) -> None:
    rows = numbered(labels)
    sites = min(3, len(rows))
    once, again = (partition(rows, sites, how, seed=seed) for _ in range(2))
    assert numbers(once) == numbers(again)


@pytest.mark.parametrize("how", HOWS)
def test_another_seed_gives_another_partition(how: Split) -> None:
    rows = numbered([0, 1] * 50)
    one, two = (partition(rows, 4, how, seed=seed) for seed in (1, 2))
    assert numbers(one) != numbers(two)


@given(labels=LABELS, data=st.data())
def test_stratified_sizes_differ_by_at_most_one_in_each_class(
    labels: list[int], data: st.DataObject
) -> None:
    rows = numbered(labels)
    sites = data.draw(st.integers(1, len(rows)))
    counts = np.array([p.class_counts() for p in partition(rows, sites, "stratified", seed=5)])
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_iid_sizes_differ_by_at_most_one() -> None:
    sizes = [len(part) for part in partition(numbered([0] * 23), 5, "iid", seed=0)]
    assert sorted(sizes) == [4, 4, 5, 5, 5]


def test_a_small_alpha_skews_the_labels_more_than_a_large_one() -> None:
    rows = numbered([label for label in range(10) for _ in range(200)])

    def largest_share(alpha: float) -> float:
        counts = np.array(
            [part.class_counts() for part in partition(rows, 5, "dirichlet", alpha=alpha, seed=3)]
        )
        return float((counts.max(axis=0) / counts.sum(axis=0)).mean())

    assert largest_share(0.05) > 0.7
    assert largest_share(1000) < 0.25


def test_a_dirichlet_site_may_be_empty_and_still_is_a_site() -> None:
    rows = numbered([0] * 30)
    parts = partition(rows, 5, "dirichlet", alpha=1e-3, seed=0)
    assert [len(part) for part in parts].count(0) > 0
    empty = next(part for part in parts if not len(part))
    assert empty.width == 1
    assert empty.class_counts().tolist() == [0]


def test_there_may_be_more_sites_than_rows() -> None:
    parts = partition(numbered([0, 1]), 5, "iid", seed=0)
    assert sorted(len(part) for part in parts) == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("how", HOWS)
def test_every_record_that_is_no_row_is_at_one_site_too(how: Split) -> None:
    rows = replace(numbered([0, 1] * 10), unfit=3)
    assert [part.unfit for part in partition(rows, 4, how, seed=0)] == [3, 0, 0, 0]


@pytest.mark.parametrize("sites", [-1, 0])
def test_an_impossible_number_of_sites_is_refused(sites: int) -> None:
    with pytest.raises(InputError, match="sites must"):
        partition(numbered([0, 1, 0]), sites, "iid", seed=0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(InputError, match="alpha must"):
        partition(numbered([0, 1, 0]), 2, "dirichlet", alpha=alpha, seed=0)


def test_an_unknown_kind_and_a_negative_seed_are_refused() -> None:
    with pytest.raises(InputError, match="choose one of iid, stratified, dirichlet"):
        partition(numbered([0, 1]), 2, "sorted", seed=0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seed must not be negative"):
        partition(numbered([0, 1]), 2, "iid", seed=-1)
