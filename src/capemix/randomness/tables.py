"""Integer laws by Walker's alias method, each within 2^-100 of the exact law per draw.

A table has 2^k columns. A draw reads a 32-bit word: k bits choose the column, the other 32-k are
compared with the head of the column's threshold; only on a tie (probability 2^-(32-k)) are 96
further bits compared with its tail. Probabilities are thus multiples of 2^-128, rounded from
weights of 192 bits after the point: of 2^20 columns that is 2^-108 in all. The weights themselves
are off by less than 2^-115, and the tails cut off weigh less than 2^-110.

The alias method is Walker 1977, Vose 1991.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache, wraps
from typing import Any, Final, ParamSpec, cast

import numpy as np
import numpy.typing as npt

from capemix import kernels
from capemix.kernels import Words, integers_of, words_of
from capemix.randomness.source import ByteStream

P = ParamSpec("P")

TOTAL_VARIATION: Final = 2.0**-100
"""The error per draw that accounting adds to delta; what the tables reach is smaller."""

MAX_SIGMA: Final = 40_000.0
"""Largest deviation, in lattice units, that a table is built for (2^20 columns)."""

_CHUNK: Final = 1 << 19  # words at a time: every call hands the interpreter lock over twice
_FIXED: Final = 192  # bits after the point while weights are computed
_WORDS: Final = 4  # of 64 bits that hold a weight, 1 at most
_TOTAL: Final = 128  # probabilities are multiples of 2^-128
_SHIFT: Final = 416  # bits taken off a weight's product with the total's reciprocal
_TAIL_BITS: Final = 115
_LAWS: Final = 16  # kept: a release of moments has eleven rounds, each with a law of its own
_DECIMAL = Context(prec=130)


_LOCAL = threading.local()


def _scratch() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]]:
    """Buffers of this thread: fresh memory for every block would cost more than the draws."""
    if not hasattr(_LOCAL, "buffers"):
        _LOCAL.buffers = np.empty(_CHUNK, dtype=np.uint32), np.empty(_CHUNK, dtype=np.int32)
    words, ties = _LOCAL.buffers
    return words, ties


@dataclass(frozen=True, eq=False)
class IntegerLaw:
    """A table to draw integers from; ``columns_log2`` is k above.

    Column c stands for the value ``first + c`` and, past its threshold, for its other value.
    Threshold and other value share a word, so that a draw touches one line of the cache.
    """

    columns_log2: int
    first: int
    table: npt.NDArray[np.uint64]  # the threshold's first 32-k bits, then the other value;
    middle: npt.NDArray[np.uint64]  # the threshold's next 64 bits
    tail: npt.NDArray[np.uint64]  # and last 32

    def add_to(self, out: npt.NDArray[np.integer[Any]], stream: ByteStream) -> None:
        """Add one draw to every entry of the flat ``out`` (int32 or int64, wrapping)."""
        words, ties = _scratch()
        for start in range(0, len(out), _CHUNK):
            part = out[start : start + _CHUNK]
            drawn = words[: len(part)]
            stream.fill(drawn)
            count = kernels.active().alias_add(
                drawn, self.columns_log2, self.table, self.first, part, ties
            )
            if count:
                self._settle(part, drawn, ties[:count], stream)

    @property
    def other(self) -> npt.NDArray[np.int32]:
        return (self.table & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)

    def draw(self, stream: ByteStream, count: int) -> npt.NDArray[np.int64]:
        out = np.zeros(count, dtype=np.int64)
        self.add_to(out, stream)
        return out

    def _settle(
        self,
        out: npt.NDArray[np.integer[Any]],
        words: npt.NDArray[np.uint32],
        ties: npt.NDArray[np.int32],
        stream: ByteStream,
    ) -> None:
        # The kernel gave every tie the column's other value; put right those that are its own.
        columns = (words[ties] & np.uint32((1 << self.columns_log2) - 1)).astype(np.int64)
        bits = stream.tie_words(2 * len(ties)).reshape(-1, 2)
        middle, tail = self.middle[columns], self.tail[columns]
        other = (self.table[columns] & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
        own = (bits[:, 0] < middle) | (
            (bits[:, 0] == middle) & ((bits[:, 1] >> np.uint64(32)) < tail)
        )
        out[ties[own]] += (self.first + columns - other)[own].astype(out.dtype)

    def probabilities(self) -> dict[int, Fraction]:
        """The law that the table draws from, exactly."""
        columns, other = 1 << self.columns_log2, self.other
        capacity = 1 << (_TOTAL - self.columns_log2)
        law: dict[int, int] = {}
        for column in range(columns):
            own = (int(self.table[column] >> np.uint64(32)) << 96) + (
                int(self.middle[column]) << 32
            )
            own += int(self.tail[column])
            for value, weight in (
                (self.first + column, own),
                (int(other[column]), capacity - own),
            ):
                if weight:
                    law[value] = law.get(value, 0) + weight
        return {value: Fraction(weight, 1 << _TOTAL) for value, weight in law.items()}


def _alias_table(first: int, weights: Words) -> IntegerLaw:
    """The values first, first + 1, ... with these weights, by Vose's construction in exact
    integers; the rounding remainder joins the heaviest value."""
    parts = _room(len(weights))
    _scale(weights, _sum(weights), parts[:, : len(weights)])
    return _finished(first, parts)


def _mirrored(half: Words) -> IntegerLaw:
    """The same of the values 0, 1, ... with these weights and their likes below 0."""
    reach, [middle] = len(half) - 1, integers_of(half[:1])
    parts = _room(2 * reach + 1)
    _scale(half, 2 * _sum(half) - middle, parts[:, reach : 2 * reach + 1])
    parts[:, :reach] = parts[:, 2 * reach : reach : -1]
    return _finished(-reach, parts)


def _sum(weights: Words) -> int:
    halves = np.empty((_WORDS, 2), dtype=np.uint64)
    kernels.active().half_sums(weights, halves)
    return sum(int(half) << 32 * place for place, half in enumerate(halves.flat))


def _room(values: int) -> Words:
    """Heads, middles and tails of parts of 2^128, in as many columns as a table has."""
    return np.zeros((3, 1 << max(1, (values - 1).bit_length())), dtype=np.uint64)


def _scale(weights: Words, total: int, parts: Words) -> None:
    """weight * 2^128 / total, rounded down.

    It is a product with m = ceil(2^544 / total): weight * m / 2^416 is above the quotient by less
    than weight / 2^416. As weight * total is below 2^416, that is less than 1 / total, and does
    not reach the next integer (Granlund, Montgomery 1994).
    """
    [reciprocal] = words_of([-(-(1 << (_TOTAL + _SHIFT)) // total)], 6)
    kernels.active().scaled(weights, reciprocal, *parts)


def _finished(first: int, parts: Words) -> IntegerLaw:
    table, middle, tail = parts
    # Parts rounded down lack less than 2^32 of 2^128: the tails alone tell how much.
    missing = -int(tail.sum()) % (1 << 32)
    heaviest = np.flatnonzero(table == table.max())
    for part in (middle, tail):
        heaviest = heaviest[part[heaviest] == part[heaviest].max()]
    at = heaviest[0]
    low = (int(middle[at]) << 32) + int(tail[at]) + missing
    tail[at], middle[at] = low & 0xFFFFFFFF, (low >> 32) & 0xFFFFFFFFFFFFFFFF
    table[at] += np.uint64(low >> 96)
    columns_log2 = len(table).bit_length() - 1
    kernels.active().alias_columns(columns_log2, first, table, middle, tail)
    return IntegerLaw(columns_log2, first, table, middle, tail)


def _kept(laws: int) -> Callable[[Callable[P, IntegerLaw]], Callable[P, IntegerLaw]]:
    """Keep so many laws, and let threads that ask for one at the same time wait for one table."""

    def keep(make: Callable[P, IntegerLaw]) -> Callable[P, IntegerLaw]:
        made = cast(Callable[P, IntegerLaw], lru_cache(maxsize=laws)(make))
        lock = threading.Lock()

        @wraps(make)
        def law(*given: P.args, **named: P.kwargs) -> IntegerLaw:
            with lock:
                return made(*given, **named)

        return law

    return keep


def _fixed_exp(exponent: Fraction) -> int:
    """exp(exponent) as an integer multiple of 2^-192."""
    ratio = _DECIMAL.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))
    scaled = _DECIMAL.multiply(_DECIMAL.exp(ratio), Decimal(1 << _FIXED))
    return int(scaled)


def _half_gaussian(sigma: float) -> Words:
    """exp(-x^2 / 2 sigma^2) for x = 0, 1, ... until the tail is below 2^-115."""
    if not 0.0 < sigma <= MAX_SIGMA:
        raise ValueError(f"sigma must be in (0, {MAX_SIGMA:g}] lattice units, not {sigma}")
    variance = Fraction(sigma) ** 2
    last = math.ceil(sigma * math.sqrt(2.0 * math.log(2.0) * _TAIL_BITS)) + 1
    step, ratio = words_of([_fixed_exp(-1 / (2 * variance)), _fixed_exp(-1 / variance)], 3)
    weights = np.empty((last + 1, _WORDS), dtype=np.uint64)
    kernels.active().gaussian_weights(step, ratio, weights)
    return weights


@_kept(_LAWS)
def rounded_gaussian(sigma: float) -> IntegerLaw:
    """round(N(0, sigma^2)): the mass of N(0, sigma^2) on [x - 1/2, x + 1/2].

    The mass is exp(-x^2/2s^2) times the integral over |t| <= 1/2 of cosh(x t / s^2)
    exp(-t^2 / 2 s^2), expanded in even powers of x / s^2.
    """
    if sigma < 1.0:
        raise ValueError(f"a rounded Gaussian is drawn for sigma >= 1 lattice unit, not {sigma}")
    half = _half_gaussian(sigma)
    variance = Fraction(sigma) ** 2
    one = 1 << _FIXED
    inverse_variance = (one * variance.denominator) // variance.numerator
    most = len(half) ** 2 / float(variance) ** 2  # of x^2 / s^4
    coefficients: list[int] = []
    j, size = 0, 1.0
    while size > 2.0**-140:
        # The integral of t^(2j) exp(-t^2/2s^2) over |t| <= 1/2, by the series of exp.
        moment, factor, i = 0, one, 0
        while factor:
            power = 2 * (j + i) + 1
            moment += (factor >> (power - 1)) // power
            i += 1
            factor = -((factor * inverse_variance) >> _FIXED) // (2 * i)
            if abs(factor) <= 1:
                break
        coefficients.append(moment // math.factorial(2 * j))
        j += 1
        size *= most / 4 / (2 * j) / (2 * j + 1)
    slope = (inverse_variance * inverse_variance) >> _FIXED
    words = words_of([*coefficients, slope], 4)
    kernels.active().rounded_weights(half, words[:-1], words[-1], half)
    return _mirrored(half)


@_kept(8)
def response_shift(epsilon: float, answers: int) -> IntegerLaw:
    """Randomised response as a shift modulo K: 0 with weight 1, each of 1..K-1 with e^-epsilon.

    Added to the true answer modulo K it tells that one with probability e^ε / (e^ε + K - 1).
    """
    if not epsilon >= 0.0 or answers < 1:
        raise ValueError(f"no table for {answers} answers at epsilon {epsilon}")
    other = _fixed_exp(-Fraction(epsilon))
    weights = [1 << _FIXED] + [other] * (answers - 1)
    return _alias_table(0, words_of(weights, _WORDS))


@_kept(256)
def binomial(trials: int, selected: int, among: int) -> IntegerLaw:
    """Binomial(trials, selected / among), for Poisson selection of records."""
    if not (trials >= 1 and 0 < selected < among):
        raise ValueError(f"no table for Binomial({trials}, {selected}/{among})")
    mode = min(trials, (trials + 1) * selected // among)
    odds_up, odds_down = selected, among - selected
    negligible = 1 << (_FIXED - _TAIL_BITS - trials.bit_length())
    up, weight, count = [], 1 << _FIXED, mode
    while weight > negligible and count <= trials:
        up.append(weight)
        weight = weight * (trials - count) * odds_up // ((count + 1) * odds_down)
        count += 1
    down, weight, count = [], 1 << _FIXED, mode
    while count > 0:
        weight = weight * count * odds_down // ((trials - count + 1) * odds_up)
        count -= 1
        if weight <= negligible:
            break
        down.append(weight)
    return _alias_table(mode - len(down), words_of([*down[::-1], *up], _WORDS))
