"""Selection and sums: exact laws, and the same bits on both kernel paths and the plain loop."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from capemix import kernels
from capemix.errors import InputError
from capemix.mix import reference
from capemix.mix.select import Selected, _floyd_with_ties, select
from capemix.mix.sums import sum_selected
from capemix.queries import Participation, Selection
from capemix.randomness.source import ByteStream, SeededSource

ACCEPT = 1e-6
REJECT = 1e-12


def subsets(selected: Selected) -> list[tuple[int, ...]]:
    return [
        tuple(sorted(selected.indices[a:b].tolist()))
        for a, b in zip(selected.starts, selected.starts[1:], strict=False)
    ]


def uniform_p(counts: Counter[tuple[int, ...]], cells: int, total: int) -> float:
    observed = np.array(list(counts.values()) + [0] * (cells - len(counts)))
    return float(stats.chisquare(observed, np.full(cells, total / cells)).pvalue)


def test_fixed_size_subsets_are_uniform() -> None:
    participation = Participation(1, 3, 7, Selection.FIXED)
    found = Counter(subsets(select(participation, 7, 70_000, SeededSource(1).stream("a"))))
    assert set(found) == set(combinations(range(7), 3))
    assert uniform_p(found, 35, 70_000) > ACCEPT


def test_poisson_selection_takes_each_record_independently_at_the_plans_rate() -> None:
    # 5 records, rate 2/8: 32 subsets with known probabilities, whatever the population.
    participation = Participation(1, 2, 8)
    total, q = 100_000, 0.25
    found = Counter(subsets(select(participation, 5, total, SeededSource(2).stream("a"))))
    every = [c for r in range(6) for c in combinations(range(5), r)]

    def p_value(rate: float) -> float:
        expected = np.array([rate ** len(c) * (1 - rate) ** (5 - len(c)) for c in every]) * total
        return float(stats.chisquare([found[c] for c in every], expected).pvalue)

    assert p_value(q) > ACCEPT
    assert p_value(q * 1.04) < REJECT


def test_poisson_selection_handles_the_ends() -> None:
    stream = SeededSource(3).stream("a")
    assert len(select(Participation(1, 2, 8), 0, 5, stream).indices) == 0
    everyone = select(Participation(1, 8, 8), 6, 3, stream)
    assert subsets(everyone) == [tuple(range(6))] * 3


def test_fixed_size_selection_needs_enough_records() -> None:
    with pytest.raises(ValueError, match="more records"):
        select(Participation(1, 4, 4, Selection.FIXED), 3, 1, SeededSource(1).stream("a"))


@pytest.mark.parametrize(("population", "size"), [(1, 1), (9, 4), (200, 31), (600, 512)])
def test_both_kernels_and_the_exact_path_select_the_same_records(
    monkeypatch: pytest.MonkeyPatch, population: int, size: int
) -> None:
    chosen = {}
    for name in ("fast", "plain"):
        monkeypatch.setenv("CAPEMIX_KERNELS", name)
        participation = Participation(1, size, population + 3)
        chosen[name] = select(participation, population, 40, SeededSource(4).stream("a"))
    assert (chosen["fast"].starts == chosen["plain"].starts).all()
    assert (chosen["fast"].indices == chosen["plain"].indices).all()
    # The exact path reads the same words; give it those of a fixed-size draw.
    fixed = Participation(1, size, population, Selection.FIXED)
    expected = select(fixed, population, 40, SeededSource(5).stream("a"))
    words = SeededSource(5).stream("a").words(40 * size)
    again = np.empty_like(expected.indices)
    _floyd_with_ties(words, expected.starts, population, again, SeededSource(5).stream("b"))
    assert (again == expected.indices).all()


class OneTie(ByteStream):
    def __init__(self, word: int) -> None:
        super().__init__(bytes(32))
        self.word = word

    def tie_words(self, count: int) -> np.ndarray:
        return np.full(count, self.word, dtype=np.uint64)


@pytest.mark.parametrize("name", ["fast", "plain"])
def test_an_index_that_64_bits_leave_open_is_settled_by_64_more(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CAPEMIX_KERNELS", name)
    starts, out = np.array([0, 1]), np.empty(1, dtype=np.int32)
    # With 3 records, (2^64 - 1) // 3 has remainder just below the carry into the next index.
    word = (1 << 64) // 3
    assert kernels.active().floyd(np.array([word], dtype=np.uint64), starts, 3, out) == 1
    for tie, index in ((0, 0), ((1 << 64) - 1, 1)):
        _floyd_with_ties(np.array([word], dtype=np.uint64), starts, 3, out, OneTie(tie))
        assert out[0] == index
    settled = np.array([word + 5], dtype=np.uint64)
    assert kernels.active().floyd(settled, starts, 3, out) == 0
    assert out[0] == 1


@pytest.mark.parametrize("name", ["fast", "plain"])
@pytest.mark.parametrize("dtype", [np.int16, np.float64])
def test_sums_are_those_of_the_plain_loop(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: type
) -> None:
    monkeypatch.setenv("CAPEMIX_KERNELS", name)
    rows = (np.random.default_rng(0).normal(size=(50, 13)) * 9000).astype(dtype)
    selected = select(Participation(1, 9, 50), 50, 30, SeededSource(6).stream("a"))
    out = np.empty((30, 13), dtype=np.int32 if dtype is np.int16 else np.float64)
    sum_selected(rows, selected, out)
    expected = reference.sums_by_loop(rows, selected)
    if dtype is np.int16:
        assert (out == expected).all()
    else:
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-6)


def test_the_obvious_loop_is_dp_cda() -> None:
    rows = [np.full((5, 3), 2.0), np.full((4, 3), -1.0)]
    mixtures, labels = reference.mixtures_by_loop(rows, (2, 3), 3, 0.0, np.random.default_rng(0))
    assert labels.tolist() == [0, 0, 1, 1, 1]
    assert mixtures.tolist() == [[2.0] * 3] * 2 + [[-1.0] * 3] * 3


def test_an_unknown_kernel_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPEMIX_KERNELS", "turbo")
    with pytest.raises(InputError, match="CAPEMIX_KERNELS"):
        kernels.active()
