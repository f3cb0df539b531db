"""Sources, integer tables and Gaussians: the right law is accepted, a slightly wrong one is not."""

from __future__ import annotations

import copy
import math
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from capemix.kernels import integers_of, words_of
from capemix.randomness import tables
from capemix.randomness.gaussian import add_gaussian, draw_normals
from capemix.randomness.source import ByteStream, SeededSource, SystemSource, derive_key

ACCEPT = 1e-6
REJECT = 1e-12


def chi_square_p(sample: np.ndarray, pmf: Callable[[np.ndarray], np.ndarray]) -> float:
    """p-value of an integer sample against a pmf; bins below 20 expected counts are pooled."""
    values = np.arange(sample.min() - 1, sample.max() + 2)
    expected = pmf(values) * len(sample)
    observed = np.array([(sample == v).sum() for v in values], dtype=float)
    keep = expected >= 20
    observed = np.append(observed[keep], observed[~keep].sum())
    expected = np.append(expected[keep], len(sample) - expected[keep].sum())
    if expected[-1] < 1:
        observed, expected = observed[:-1], expected[:-1]
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(stats.chi2.sf(statistic, len(expected) - 1))


def discrete_pmf(sigma: float) -> Callable[[np.ndarray], np.ndarray]:
    total = sum(math.exp(-(k**2) / (2 * sigma**2)) for k in range(-2000, 2001))
    return lambda x: np.exp(-(x.astype(float) ** 2) / (2 * sigma**2)) / total


def rounded_pmf(sigma: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: stats.norm.cdf((x + 0.5) / sigma) - stats.norm.cdf((x - 0.5) / sigma)


# -- sources -----------------------------------------------------------------------------------


def test_a_seeded_source_repeats_and_a_system_source_does_not() -> None:
    assert (SeededSource(3).stream("a").words(4) == SeededSource(3).stream("a").words(4)).all()
    assert (SeededSource(3).stream("a").words(4) != SeededSource(4).stream("a").words(4)).any()
    assert (SystemSource().stream("a").words(4) != SystemSource().stream("a").words(4)).any()


def test_the_two_kinds_of_source_are_not_interchangeable() -> None:
    assert not isinstance(SeededSource(1), SystemSource)
    assert not isinstance(SystemSource(), SeededSource)
    assert type(SystemSource().child("x")) is SystemSource
    assert type(SeededSource(1).child("x")) is SeededSource
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Sly", (SystemSource,), {})
    with pytest.raises(TypeError):
        SystemSource(7)  # type: ignore[call-arg]


def test_a_label_gives_its_key_once_only() -> None:
    source = SystemSource()
    source.stream("noise", 1)
    with pytest.raises(RuntimeError, match="twice"):
        source.stream("noise", 1)
    source.child("noise", 1)  # another purpose, another key
    source.stream("noise", "1")  # another label: the encoding tells 1 from "1"


def test_labels_are_encoded_injectively() -> None:
    key = bytes(32)
    labels = [("a", "b"), ("ab",), ("a", "b", ""), ("a", 1), ("a", "1"), (1, "a"), ("a1",)]
    assert len({bytes(derive_key(key, *label)) for label in labels}) == len(labels)


def test_a_source_hides_and_keeps_its_key() -> None:
    source = SystemSource()
    assert source._key.hex()[:8] not in repr(source)
    assert "hidden" in repr(source)
    assert "hidden" in repr(source.stream("a"))
    for copier in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            copier(source)


def test_the_stream_is_aes_256_in_counter_mode() -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes(range(32))
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    expected = block.update(b"".join(i.to_bytes(16, "big") for i in range(100_000)))
    stream, out = ByteStream(key), np.empty(1_600_000, dtype=np.uint8)
    stream.fill(out[:100])
    stream.fill(out[100:])
    assert out.tobytes() == expected


# -- integer tables -----------------------------------------------------------------------------


def log2_distance(law: tables.IntegerLaw, pmf: Callable[[int], mp.mpf]) -> float:
    """log2 of the total-variation distance, the missing tails included."""
    with mp.workprec(500):
        probabilities = law.probabilities()
        assert sum(probabilities.values()) == 1
        exact = {v: pmf(v) for v in probabilities}
        inside = sum(
            abs(mp.mpf(p.numerator) / p.denominator - exact[v]) for v, p in probabilities.items()
        )
        outside = 1 - sum(exact.values())
        return float(mp.log((inside + abs(outside)) / 2, 2))


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.7, 41.0, 1000.25])
def test_the_discrete_gaussian_table_is_exact_to_2_to_the_minus_100(sigma: float) -> None:
    with mp.workprec(500):
        s = mp.mpf(sigma)
        reach = int(40 * sigma) + 40
        total = mp.fsum(mp.exp(-(mp.mpf(k) ** 2) / (2 * s**2)) for k in range(-reach, reach + 1))
        distance = log2_distance(
            tables.discrete_gaussian(sigma),
            lambda v: mp.exp(-(mp.mpf(v) ** 2) / (2 * s**2)) / total,
        )
        slightly_wrong = log2_distance(
            tables.discrete_gaussian(sigma * (1 + 2**-40)),
            lambda v: (
                mp.exp(-(mp.mpf(v) ** 2) / (2 * s**2)) / total if abs(v) < reach else mp.mpf(0)
            ),
        )
    assert distance < -100
    assert slightly_wrong > -50


@pytest.mark.parametrize("sigma", [1.0, 5.3, 23.0, 1000.25])
def test_the_rounded_gaussian_table_is_exact_to_2_to_the_minus_100(sigma: float) -> None:
    with mp.workprec(500):
        s, half = mp.mpf(sigma), mp.mpf(1) / 2
        distance = log2_distance(
            tables.rounded_gaussian(sigma),
            lambda v: (
                (
                    mp.erfc((abs(v) - half) / (s * mp.sqrt(2)))
                    - mp.erfc((abs(v) + half) / (s * mp.sqrt(2)))
                )
                / 2
            ),
        )
    assert distance < -100


@pytest.mark.parametrize(
    ("n", "size", "among"), [(5, 1, 3), (300, 5, 77), (600, 60, 600), (50, 49, 50)]
)
def test_the_binomial_table_is_exact_to_2_to_the_minus_100(n: int, size: int, among: int) -> None:
    p = Fraction(size, among)
    with mp.workprec(500):
        distance = log2_distance(
            tables.binomial(n, size, among),
            lambda v: (
                mp.mpf((math.comb(n, v) * p**v * (1 - p) ** (n - v)).numerator)
                / (math.comb(n, v) * p**v * (1 - p) ** (n - v)).denominator
            ),
        )
    assert distance < -100


def exact_gaussian(sigma: float) -> list[int]:
    """exp(-x^2 / 2 sigma^2) from 0 on, in units of 2^-192, by the recurrence that is promised."""
    variance = Fraction(sigma) ** 2
    last = math.ceil(sigma * math.sqrt(2.0 * math.log(2.0) * 115)) + 1
    step, ratio = tables._fixed_exp(-1 / (2 * variance)), tables._fixed_exp(-1 / variance)
    weights, weight = [], 1 << 192
    for _ in range(last + 1):
        weights.append(weight)
        weight, step = (weight * step) >> 192, (step * ratio) >> 192
    return weights


@pytest.mark.parametrize("sigma", [3.7, 1000.25, 4e4])
def test_weights_are_off_by_no_more_than_their_recurrence_rounds_away(sigma: float) -> None:
    """x products, each of a factor that x products made: x^2 units of 2^-192, and as many again for
    the two numbers that it starts from. A deviation that is off in its 40th bit is far outside."""
    half = tables._half_gaussian(sigma)
    places = [1, 2, int(sigma), int(3 * sigma), int(8 * sigma), len(half) - 1]
    found = integers_of(half[places])
    with mp.workprec(500):

        def distance(x: int, weight: int, s: mp.mpf) -> mp.mpf:
            return abs(weight - mp.exp(-(mp.mpf(x) ** 2) / (2 * s**2)) * 2**192)

        for x, weight in zip(places, found, strict=True):
            assert distance(x, weight, mp.mpf(sigma)) <= 2 * x**2 + 2
            assert distance(x, weight, mp.mpf(sigma) * (1 + mp.mpf(2) ** -40)) > 2 * x**2 + 2


def is_voses(law: tables.IntegerLaw, first: int, weights: list[int]) -> bool:
    """Whether a table is, to the last bit, what Vose's construction in integers gives."""
    total = sum(weights)
    left = [(weight << 128) // total for weight in weights]
    heaviest = max(range(len(left)), key=left.__getitem__)
    left[heaviest] += (1 << 128) - sum(left)
    k = max(1, (len(weights) - 1).bit_length())
    columns, capacity = 1 << k, 1 << (128 - k)
    left += [0] * (columns - len(weights))
    threshold, alias = [0] * columns, list(range(columns))
    small = [i for i, weight in enumerate(left) if weight < capacity]
    large = [i for i, weight in enumerate(left) if weight >= capacity]
    while small:
        i, j = small.pop(), large[-1]
        threshold[i], alias[i] = left[i], j
        left[j] -= capacity - left[i]
        if left[j] < capacity:
            large.pop()
            small.append(j)
    heads = [
        (weight >> 96) << 32 | (first + other) & 0xFFFFFFFF
        for weight, other in zip(threshold, alias, strict=True)
    ]
    middles = [(weight >> 32) & 0xFFFFFFFFFFFFFFFF for weight in threshold]
    tails = [weight & 0xFFFFFFFF for weight in threshold]
    return (law.columns_log2, law.first) == (k, first) and all(
        found.dtype == np.uint64 and np.array_equal(found, np.array(said, dtype=np.uint64))
        for found, said in ((law.table, heads), (law.middle, middles), (law.tail, tails))
    )


@pytest.mark.parametrize(
    ("kernels", "sigma"),
    [
        *(("fast", sigma) for sigma in (1e-3, 0.05, 0.3, 1.0, 7.5, 1000.25, 12345.678, 4e4)),
        *(("plain", sigma) for sigma in (1e-3, 0.05, 0.3, 1.0, 7.5, 1000.25)),
    ],
)
def test_a_gaussian_table_is_that_of_exact_integers(
    monkeypatch: pytest.MonkeyPatch, kernels: str, sigma: float
) -> None:
    monkeypatch.setenv("CAPEMIX_KERNELS", kernels)
    half = exact_gaussian(sigma)
    law = tables._mirrored(tables._half_gaussian(sigma))
    assert is_voses(law, 1 - len(half), [*half[:0:-1], *half])


def test_a_table_of_weights_a_hair_from_exact_is_told_apart() -> None:
    half = exact_gaussian(7.5)
    half[5] += half[0] >> 120
    law = tables._mirrored(tables._half_gaussian(7.5))
    assert not is_voses(law, 1 - len(half), [*half[:0:-1], *half])


ONE = 1 << 192


@pytest.mark.parametrize("kernels", ["fast", "plain"])
@pytest.mark.parametrize(
    "weights",
    [
        [ONE],
        [ONE, 0, 1],
        [ONE] * 3,
        [ONE] * 64,
        [ONE - 1] * 2 + [ONE] * 2 + [2],
        [ONE, *(ONE * 3 // 4 >> n for n in range(400))],
        [ONE, *(pow(3, 4_000 + n, ONE) for n in range(3_000))],
        [ONE, *(ONE - 1 - n for n in range(70_000))],
    ],
    ids=len,
)
def test_any_weights_table_is_that_of_exact_integers(
    monkeypatch: pytest.MonkeyPatch, kernels: str, weights: list[int]
) -> None:
    """The last lie a hair below equal shares, where quotients are hardest to round."""
    monkeypatch.setenv("CAPEMIX_KERNELS", kernels)
    assert is_voses(tables._alias_table(-7, words_of(weights, 4)), -7, weights)


def test_threads_that_ask_for_a_law_at_once_get_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    made, whole = [], tables._half_gaussian

    def slow(sigma: float) -> np.ndarray:
        made.append(sigma)
        time.sleep(0.05)
        return whole(sigma)

    monkeypatch.setattr(tables, "_half_gaussian", slow)
    with ThreadPoolExecutor(4) as pool:
        laws = list(pool.map(tables.discrete_gaussian, [6.125] * 4))
    assert made == [6.125]
    assert len({id(law) for law in laws}) == 1


@pytest.mark.parametrize("sigma", [1.7, 12.0])
def test_draws_follow_the_discrete_gaussian_and_not_one_5_percent_wider(sigma: float) -> None:
    sample = tables.discrete_gaussian(sigma).draw(SeededSource(1).stream("a"), 400_000)
    assert chi_square_p(sample, discrete_pmf(sigma)) > ACCEPT
    assert chi_square_p(sample, discrete_pmf(sigma * 1.05)) < REJECT
    assert chi_square_p(sample, discrete_pmf(sigma / 1.05)) < REJECT


def test_draws_follow_the_rounded_gaussian_and_not_the_discrete_one() -> None:
    # At sigma = 1 the two laws differ by the extra variance of rounding, 1/12.
    sample = tables.rounded_gaussian(1.0).draw(SeededSource(2).stream("a"), 400_000)
    assert chi_square_p(sample, rounded_pmf(1.0)) > ACCEPT
    assert chi_square_p(sample, discrete_pmf(1.0)) < REJECT


def test_draws_follow_the_binomial_and_not_one_with_a_2_percent_higher_rate() -> None:
    sample = tables.binomial(200, 40, 200).draw(SeededSource(3).stream("a"), 400_000)
    assert chi_square_p(sample, lambda x: stats.binom.pmf(x, 200, 0.2)) > ACCEPT
    assert chi_square_p(sample, lambda x: stats.binom.pmf(x, 200, 0.204)) < REJECT


def test_the_discrete_gaussian_has_the_scale_of_opendps() -> None:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    sigma, count = 7.5, 100_000
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    theirs = np.array(dp.m.make_gaussian(*space, scale=sigma)([0] * count))
    ours = tables.discrete_gaussian(sigma).draw(SeededSource(4).stream("a"), count)
    # sigma^2 estimates have relative deviation sqrt(2/count) = 0.0045 each.
    assert abs(ours.var() / theirs.var() - 1) < 0.04
    assert abs(ours.var() / sigma**2 - 1) < 0.03


class Given(ByteStream):
    """A stream whose words and tie words are the test's."""

    def __init__(self, words: np.ndarray, ties: list[int]) -> None:
        super().__init__(bytes(32))
        self.given, self.ties = words, ties

    def fill(self, out: np.ndarray) -> None:
        out[...] = self.given

    def tie_words(self, count: int) -> np.ndarray:
        assert count == len(self.ties)
        return np.array(self.ties, dtype=np.uint64)


@pytest.mark.parametrize("kernels", ["fast", "plain"])
def test_a_tie_is_settled_by_the_next_96_bits(
    monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    monkeypatch.setenv("CAPEMIX_KERNELS", kernels)
    law = tables.discrete_gaussian(3.7)
    own = law.first + np.arange(len(law.other))
    heads = law.table >> np.uint64(32)
    column = int(np.flatnonzero((own != law.other) & (heads > 0))[0])
    tied = (int(heads[column]) << law.columns_log2) | column
    words = np.array([tied], dtype=np.uint32)
    middle, tail = int(law.middle[column]), int(law.tail[column]) << 32
    for bits, value in (
        ([middle - 1, (1 << 64) - 1], own[column]),
        ([middle, tail - 1], own[column]),
        ([middle, tail], law.other[column]),
        ([middle + 1, 0], law.other[column]),
    ):
        for dtype in (np.int32, np.int64):
            out = np.zeros(1, dtype=dtype)
            law.add_to(out, Given(words, bits))
            assert out[0] == value


def test_ties_happen_and_change_nothing_in_the_law() -> None:
    """With 2^20 columns a word leaves 12 bits to compare: about one draw in 4096 is a tie."""
    law = tables.discrete_gaussian(40_000.0)
    assert law.columns_log2 == 20
    sample = law.draw(SeededSource(11).stream("a"), 500_000)
    assert stats.kstest(sample, "norm", (0, 40_000.0)).pvalue > ACCEPT
    assert stats.kstest(sample, "norm", (0, 41_000.0)).pvalue < REJECT


def test_both_kernels_draw_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    law = tables.discrete_gaussian(40_000.0)
    drawn = {}
    for name in ("fast", "plain"):
        monkeypatch.setenv("CAPEMIX_KERNELS", name)
        drawn[name] = law.draw(SeededSource(12).stream("a"), 300_000)
    assert (drawn["fast"] == drawn["plain"]).all()


def test_tables_refuse_what_they_cannot_hold() -> None:
    for sigma in (0.0, -1.0, math.nan, 1e6):
        with pytest.raises(ValueError, match="sigma"):
            tables.discrete_gaussian(sigma)
    with pytest.raises(ValueError, match="Binomial"):
        tables.binomial(10, 5, 5)


# -- Gaussian ------------------------------------------------------------------------------------


def test_gaussian_draws_follow_the_normal_law_and_not_one_2_percent_wider() -> None:
    out = np.zeros(1_000_001)
    add_gaussian(out, 3.0, SeededSource(5).stream("a"))
    assert stats.kstest(out, "norm", (0, 3.0)).pvalue > ACCEPT
    assert stats.kstest(out, "norm", (0, 3.0 * 1.02)).pvalue < REJECT
    correlation = np.corrcoef(out[:-1], out[1:])[0, 1]
    assert abs(correlation) < 6 / math.sqrt(len(out))


def test_normals_in_single_precision_follow_the_normal_law_and_not_one_2_percent_wider() -> None:
    out = np.full(1_000_001, np.nan, dtype=np.float32)
    draw_normals(out, SeededSource(7).stream("a"))
    assert stats.kstest(out, "norm").pvalue > ACCEPT
    assert stats.kstest(out, "norm", (0, 1.02)).pvalue < REJECT
    half = 1 << 14
    for other in (out[1:], out[half:]):  # its neighbour, and the other number of its pair
        correlation = np.corrcoef(out[: len(other)], other)[0, 1]
        assert abs(correlation) < 6 / math.sqrt(len(other))


def test_gaussian_noise_is_subtracted_exactly_by_the_same_stream() -> None:
    out = np.zeros(10_001)
    add_gaussian(out, 2.0, SeededSource(6).stream("a"))
    add_gaussian(out, 2.0, SeededSource(6).stream("a"), sign=-1)
    assert np.abs(out).max() == 0.0
