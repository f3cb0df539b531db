"""Which records enter a draw: Poisson or fixed-size subsets, exact and from the secure source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capemix import kernels
from capemix.queries import Participation, Selection
from capemix.randomness.source import ByteStream
from capemix.randomness.tables import binomial


@dataclass(frozen=True, eq=False, repr=False)
class Selected:
    """Subsets of one group's records, a subset a draw: indices[starts[t]:starts[t+1]]."""

    starts: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]


def select(
    participation: Participation, population: int, draws: int, stream: ByteStream
) -> Selected:
    """``draws`` subsets of ``population`` records.

    Poisson: every record independently with probability selected / among, whatever the population
    is; drawn as a binomial size and a uniform subset of that size. Fixed-size: exactly
    ``selected`` records, uniformly.
    """
    if participation.selection is Selection.FIXED:
        sizes = np.full(draws, participation.selected, dtype=np.int64)
        if participation.selected > population:
            raise ValueError("fixed-size selection asks for more records than there are")
    elif population == 0:
        sizes = np.zeros(draws, dtype=np.int64)
    elif participation.selected >= participation.among:
        sizes = np.full(draws, population, dtype=np.int64)
    else:
        law = binomial(population, participation.selected, participation.among)
        sizes = law.draw(stream, draws)
    starts = np.zeros(draws + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    indices = np.empty(int(starts[-1]), dtype=np.int32)
    words = stream.words(len(indices))
    if kernels.active().floyd(words, starts, population, indices):
        _floyd_with_ties(words, starts, population, indices, stream)
    return Selected(starts, indices)


def _floyd_with_ties(
    words: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    population: int,
    indices: npt.NDArray[np.int32],
    stream: ByteStream,
) -> None:
    """The same subsets in plain integers, reading 64 more bits where one word is not enough.

    A value is floor(w * bound / 2^128) for a 128-bit w: within bound * 2^-128 of uniform.
    """
    for t in range(len(starts) - 1):
        begin, end = int(starts[t]), int(starts[t + 1])
        chosen: set[int] = set()
        for j in range(begin, end):
            top = population - (end - begin) + (j - begin)
            bound = top + 1
            product = int(words[j]) * bound
            value, remainder = product >> 64, product & ((1 << 64) - 1)
            if remainder > (1 << 64) - bound:
                value += (remainder + ((int(stream.tie_words(1)[0]) * bound) >> 64)) >> 64
            if value in chosen:
                value = top
            chosen.add(value)
            indices[j] = value
