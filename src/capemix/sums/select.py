"""Which records enter a draw: Poisson or fixed-size subsets, exact and from the secure source; and
the sum of the selected rows, never the rows themselves.

Subsets are drawn a piece at a time, so that the memory taken does not grow with the records times
the draws: a piece holds `PIECE` indices at most, and a byte marks each record meanwhile. The bytes
read from the source, and the subsets, are those of one piece of all draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix import kernels
from capemix.queries import Participation, Selection
from capemix.randomness.source import ByteStream
from capemix.randomness.tables import binomial

PIECE: Final = 1 << 18
"""Indices held at a time: 12 bytes each, and 4 of the piece before. A multiple of four, as many as
sums take in one step, so that a draw in several pieces adds up in the same order."""

Marks = npt.NDArray[np.uint8]
"""One for each record: 1 if it is in the subset that is being drawn."""


@dataclass(frozen=True, eq=False, repr=False)
class Selected:
    """Subsets of one group's records: of draw first + t, indices[starts[t]:starts[t+1]].

    A draw of more records than a piece holds is in several, one after the other.
    """

    starts: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    first: int = 0


def select(
    participation: Participation,
    population: int,
    draws: int,
    stream: ByteStream,
    *,
    piece: int = PIECE,
) -> Iterator[Selected]:
    """``draws`` subsets of ``population`` records, ``piece`` indices at a time.

    Poisson: every record independently with probability selected / among, whatever the population
    is; drawn as a binomial size and a uniform subset of that size. Fixed-size: exactly
    ``selected`` records, uniformly.
    """
    if participation.selection is Selection.FIXED and participation.selected > population:
        raise ValueError("fixed-size selection asks for more records than there are")
    starts = np.zeros(draws + 1, dtype=np.int64)
    np.cumsum(_sizes(participation, population, draws, stream), out=starts[1:])
    return _pieces(starts, population, stream, piece)


def _sizes(
    participation: Participation, population: int, draws: int, stream: ByteStream
) -> npt.NDArray[np.int64]:
    if participation.selection is Selection.FIXED:
        return np.full(draws, participation.selected, dtype=np.int64)
    if population == 0:
        return np.zeros(draws, dtype=np.int64)
    if participation.selected >= participation.among:
        return np.full(draws, population, dtype=np.int64)
    return binomial(population, participation.selected, participation.among).draw(stream, draws)


def _pieces(
    starts: npt.NDArray[np.int64], population: int, stream: ByteStream, piece: int
) -> Iterator[Selected]:
    """As many whole draws as fit, or parts of one that does not."""
    marks = np.zeros(population, dtype=np.uint8)
    first, draws = 0, len(starts) - 1
    while first < draws:
        begin = int(starts[first])
        stop = int(np.searchsorted(starts, begin + piece, side="right")) - 1
        if stop > first:
            own = starts[first : stop + 1] - begin
            yield Selected(own, _drawn(own, population, stream, marks), first)
            first = stop
            continue
        size = int(starts[first + 1]) - begin
        for done in range(0, size, piece):
            count = min(piece, size - done)
            # Floyd's steps from ``done`` on are those of a subset of ``count`` from as many records
            # as the last of them has to choose from, with the earlier ones marked.
            own, among = np.array([0, count]), population - size + done + count
            yield Selected(own, _drawn(own, among, stream, marks, part=True), first)
        marks[:] = 0
        first += 1


def _drawn(
    starts: npt.NDArray[np.int64],
    population: int,
    stream: ByteStream,
    marks: Marks,
    *,
    part: bool = False,
) -> npt.NDArray[np.int32]:
    indices = np.empty(int(starts[-1]), dtype=np.int32)
    words = stream.words(len(indices))
    if kernels.active().floyd(words, starts, population, indices, marks, part):
        if part:
            marks[indices] = 0  # each was new: what is left are the earlier parts' marks
        _floyd_with_ties(words, starts, population, indices, stream, marks, part=part)
    return indices


def _floyd_with_ties(
    words: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    population: int,
    indices: npt.NDArray[np.int32],
    stream: ByteStream,
    marks: Marks,
    *,
    part: bool = False,
) -> None:
    """The same subsets in plain integers, reading 64 more bits where one word is not enough.

    A value is floor(w * bound / 2^128) for a 128-bit w: within bound * 2^-128 of uniform.
    """
    for t in range(len(starts) - 1):
        begin, end = int(starts[t]), int(starts[t + 1])
        for j in range(begin, end):
            top = population - (end - begin) + (j - begin)
            bound = top + 1
            product = int(words[j]) * bound
            value, remainder = product >> 64, product & ((1 << 64) - 1)
            if remainder > (1 << 64) - bound:
                value += (remainder + ((int(stream.tie_words(1)[0]) * bound) >> 64)) >> 64
            if marks[value]:
                value = top
            marks[value] = 1
            indices[j] = value
        if not part:
            marks[indices[begin:end]] = 0


def sum_selected(rows: npt.NDArray[Any], selected: Selected, out: npt.NDArray[Any]) -> None:
    """Add to out[t] the rows selected for draw t (l rows of width d in, one out)."""
    to = out[selected.first : selected.first + len(selected.starts) - 1]
    # The kernels do not check bounds: a row wider than ``out`` would be written past its end.
    if rows.shape[1] != out.shape[1] or len(to) != len(selected.starts) - 1:
        raise ValueError(f"rows of width {rows.shape[1]} do not fit sums of shape {out.shape}")
    kernels.active().gather_sum(rows, selected.starts, selected.indices, to)
