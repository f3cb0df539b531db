"""Selection and sums: exact laws, and the same bits on both kernel paths and the plain loop."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

from capemix import kernels
from capemix.errors import InputError
from capemix.methods.mixing.planning import mixture_sum, plan_mixtures
from capemix.queries import Participation, Selection
from capemix.randomness.source import ByteStream, SeededSource
from capemix.randomness.tables import binomial
from capemix.sums import reference
from capemix.sums.select import PIECE, Selected, _floyd_with_ties, select, sum_selected
from capemix.sums.share import SourceDraws, prepare_site, site_share

ACCEPT = 1e-6
REJECT = 1e-12


def in_one(participation: Participation, population: int, draws: int, stream: Any) -> Selected:
    """All draws in one piece."""
    [selected] = select(participation, population, draws, stream)
    return selected


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
    found = Counter(subsets(in_one(participation, 7, 70_000, SeededSource(1).stream("a"))))
    assert set(found) == set(combinations(range(7), 3))
    assert uniform_p(found, 35, 70_000) > ACCEPT


def test_poisson_selection_takes_each_record_independently_at_the_plans_rate() -> None:
    # 5 records, rate 2/8: 32 subsets with known probabilities, whatever the population.
    participation = Participation(1, 2, 8)
    total, q = 100_000, 0.25
    found = Counter(subsets(in_one(participation, 5, total, SeededSource(2).stream("a"))))
    every = [c for r in range(6) for c in combinations(range(5), r)]

    def p_value(rate: float) -> float:
        expected = np.array([rate ** len(c) * (1 - rate) ** (5 - len(c)) for c in every]) * total
        return float(stats.chisquare([found[c] for c in every], expected).pvalue)

    assert p_value(q) > ACCEPT
    assert p_value(q * 1.04) < REJECT


def test_poisson_selection_handles_the_ends() -> None:
    stream = SeededSource(3).stream("a")
    assert len(in_one(Participation(1, 2, 8), 0, 5, stream).indices) == 0
    everyone = in_one(Participation(1, 8, 8), 6, 3, stream)
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
        chosen[name] = in_one(participation, population, 40, SeededSource(4).stream("a"))
    assert (chosen["fast"].starts == chosen["plain"].starts).all()
    assert (chosen["fast"].indices == chosen["plain"].indices).all()
    # The exact path reads the same words; give it those of a fixed-size draw.
    fixed = Participation(1, size, population, Selection.FIXED)
    expected = in_one(fixed, population, 40, SeededSource(5).stream("a"))
    words = SeededSource(5).stream("a").words(40 * size)
    again = np.empty_like(expected.indices)
    marks = np.zeros(population, dtype=np.uint8)
    stream = SeededSource(5).stream("b")
    _floyd_with_ties(words, expected.starts, population, again, stream, marks)
    assert not marks.any()
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
    marks = np.zeros(3, dtype=np.uint8)
    one = np.array([word], dtype=np.uint64)
    assert kernels.active().floyd(one, starts, 3, out, marks, False) == 1
    for tie, index in ((0, 0), ((1 << 64) - 1, 1)):
        _floyd_with_ties(one, starts, 3, out, OneTie(tie), marks)
        assert out[0] == index
    settled = np.array([word + 5], dtype=np.uint64)
    assert kernels.active().floyd(settled, starts, 3, out, marks, False) == 0
    assert out[0] == 1
    assert not marks.any()


# -- a piece at a time -----------------------------------------------------------------------------


def whole_selection(
    participation: Participation, population: int, draws: int, stream: ByteStream
) -> Selected:
    """All subsets at once, as one would first write it: all sizes, then a word for every index."""
    if participation.selected >= participation.among:
        sizes = np.full(draws, population)
    else:
        law = binomial(population, participation.selected, participation.among)
        sizes = law.draw(stream, draws)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    words = stream.words(int(starts[-1]))
    indices = np.empty(len(words), dtype=np.int32)
    for t, size in enumerate(sizes.tolist()):
        chosen: set[int] = set()
        for j in range(size):
            top = population - size + j
            value = (int(words[starts[t] + j]) * (top + 1)) >> 64
            indices[starts[t] + j] = value = top if value in chosen else value
            chosen.add(value)
    return Selected(starts, indices)


def joined(pieces: list[Selected], draws: int) -> Selected:
    sizes = np.zeros(draws, dtype=np.int64)
    for piece in pieces:
        own = np.diff(piece.starts)
        sizes[piece.first : piece.first + len(own)] += own
    indices = np.concatenate([piece.indices for piece in pieces])
    return Selected(np.concatenate([[0], np.cumsum(sizes)]), indices)


@pytest.mark.parametrize("name", ["fast", "plain"])
@pytest.mark.parametrize("piece", [4, 64, 300, PIECE])
@pytest.mark.parametrize("rate", [(3, 100), (60, 100), (100, 100)])
def test_pieces_are_the_whole_selection_from_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, name: str, piece: int, rate: tuple[int, int]
) -> None:
    monkeypatch.setenv("CAPEMIX_KERNELS", name)
    participation, population, draws = Participation(1, *rate), 170, 50
    one, two = (SeededSource(8).stream("a") for _ in range(2))
    pieces = list(select(participation, population, draws, one, piece=piece))
    whole = whole_selection(participation, population, draws, two)
    found = joined(pieces, draws)
    assert max(len(each.indices) for each in pieces) <= piece
    assert (found.starts == whole.starts).all()
    assert (found.indices == whole.indices).all()
    assert (one.words(5) == two.words(5)).all()  # neither read more than the other


class Tied(ByteStream):
    """Words of which every third leaves its index open."""

    def __init__(self) -> None:
        super().__init__(bytes(32))
        self.read = 0

    def words(self, count: int) -> np.ndarray:
        found = super().words(count)
        for place in range(count):
            if (self.read + place) % 3 == 0:
                found[place] = (1 << 64) // (31 + (self.read + place) % 10)
        self.read += count
        return found


@pytest.mark.parametrize("name", ["fast", "plain"])
def test_ties_are_settled_by_the_same_bits_in_pieces(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CAPEMIX_KERNELS", name)
    found, ties = [], []
    for piece in (4, 1000):
        # Ten of forty: the bounds are 31 to 40, and the words above tie at every one but 32.
        fixed, stream = Participation(1, 10, 40, Selection.FIXED), Tied()
        found.append(joined(list(select(fixed, 40, 30, stream, piece=piece)), 30))
        ties.append(stream.tie_words(3))
    assert (found[0].indices == found[1].indices).all()
    assert all(len(set(one)) == 10 for one in subsets(found[0]))
    assert (ties[0] == ties[1]).all()
    assert (ties[0] != Tied().tie_words(3)).any()  # some were read


@pytest.mark.parametrize("name", ["fast", "plain"])
@pytest.mark.parametrize("dtype", [np.int16, np.float64])
def test_a_draw_in_several_pieces_adds_up_to_the_same_sum(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: type
) -> None:
    monkeypatch.setenv("CAPEMIX_KERNELS", name)
    rows = (np.random.default_rng(1).normal(size=(300, 5)) * 9000).astype(dtype)
    sums = []
    for piece in (16, PIECE):
        out = np.zeros((20, 5), dtype=np.int32 if dtype is np.int16 else np.float64)
        for part in select(
            Participation(1, 2, 3), 300, 20, SeededSource(9).stream("a"), piece=piece
        ):
            sum_selected(rows, part, out)
        sums.append(out)
    if name == "fast" or dtype is np.int16:
        assert sums[0].tobytes() == sums[1].tobytes()
    else:
        np.testing.assert_allclose(sums[0], sums[1], rtol=1e-12)


def peak(work: Any) -> int:
    """Bytes, at most at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_for_a_selection_does_not_grow_with_records_times_draws() -> None:
    rows, draws, bound = 4_000, 3_000, 16e6
    participation = Participation(1, 1, 2)
    everything = np.ones((rows, 1), dtype=np.int16)

    def by_pieces() -> None:
        out = np.zeros((draws, 1), dtype=np.int32)
        for part in select(participation, rows, draws, SeededSource(1).stream("a")):
            sum_selected(everything, part, out)

    def at_once() -> None:
        stream = SeededSource(1).stream("a")
        sizes = binomial(rows, 1, 2).draw(stream, draws)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        words = stream.words(int(starts[-1]))
        indices, marks = np.empty(len(words), dtype=np.int32), np.zeros(rows, dtype=np.uint8)
        kernels.active().floyd(words, starts, rows, indices, marks, False)
        sum_selected(everything, Selected(starts, indices), np.zeros((draws, 1), dtype=np.int32))

    by_pieces()  # once before it counts: compiled code and tables stay
    assert peak(by_pieces) < bound
    assert peak(at_once) > 4 * bound


def test_a_sites_memory_is_its_upload_and_a_constant_whatever_its_rows() -> None:
    plan = plan_mixtures(
        width=1, class_sizes=(1,), samples=2_000, mixture=1, scheme="cape", sites=4
    ).calibrate(0.9)
    query = mixture_sum(plan)

    def taken(count: int) -> int:
        rows, labels = np.ones((count, 1)), np.zeros(count, dtype=np.int64)
        prepared = prepare_site(query, rows, labels)
        draws = SourceDraws(query, SeededSource(count))
        return peak(lambda: site_share(query, 0, prepared, draws, threads=1))

    taken(10)
    few, many = taken(10), taken(20_000)  # 40 million chosen records, twelve bytes each
    assert many < few + 16 * PIECE + 2 * 20_000  # a piece, the indices of the one before, marks


@pytest.mark.parametrize("name", ["fast", "plain"])
@pytest.mark.parametrize("dtype", [np.int16, np.float64])
def test_sums_are_those_of_the_plain_loop(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: type
) -> None:
    monkeypatch.setenv("CAPEMIX_KERNELS", name)
    rows = (np.random.default_rng(0).normal(size=(50, 13)) * 9000).astype(dtype)
    selected = in_one(Participation(1, 9, 50), 50, 30, SeededSource(6).stream("a"))
    out = np.zeros((30, 13), dtype=np.int32 if dtype is np.int16 else np.float64)
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
