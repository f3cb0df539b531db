"""A mixture of products whose pairs of columns are as noisy tables have them: post-processing.

    P(x) = sum_k w_k prod_a p_ka(x_a)
The weights and the columns' laws minimise the squared distance to all tables of pairs and to all
columns by themselves. What no table says, no column of a component does: columns are independent
there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.randomness.gaussian import draw_normals
from capemix.randomness.source import Source

Real = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]
"""Of a million rows there is little room."""

COMPONENTS: Final = 300
STEPS: Final = 600
RATE: Final = 0.1
"""The first step's length, in logarithms; it falls to a twentieth as a cosine does."""

MARGIN: Final = 10.0
"""What a column by itself counts, where a table of a pair counts 1: it has less noise."""

_DECAY: Final = (0.9, 0.99)


@dataclass(frozen=True, eq=False)
class PairTables:
    """``sizes``: how many cells each column has. ``pairs``: all columns by all columns, the parts
    of the records that have two cells, columns by themselves left out. ``weights``: what each
    column's pairs count. ``margins``: the parts of each column by itself."""

    sizes: tuple[int, ...]
    pairs: Real
    weights: Real
    margins: Real

    @property
    def starts(self) -> Codes:
        return np.concatenate([[0], np.cumsum(self.sizes)])


@dataclass(frozen=True, eq=False)
class Mixture:
    """``weights`` of the components, and each one's law of each column."""

    weights: Real
    laws: tuple[Real, ...]


def without_noise(table: Real, deviation: float) -> Real:
    """A table with noise of ``deviation`` on each number, its singular values shrunk as is best in
    Frobenius norm: those that do not stand out of noise are none (Gavish, Donoho 2017)."""
    edge = deviation * math.sqrt(max(table.shape))
    if edge <= 0:
        return table
    left, found, right = np.linalg.svd(table, full_matrices=False)
    shape, square = min(table.shape) / max(table.shape), (found / edge) ** 2
    clear = square > (1.0 + math.sqrt(shape)) ** 2
    inside = np.where(clear, (square - shape - 1.0) ** 2 - 4.0 * shape, 0.0)
    kept = edge * np.sqrt(np.maximum(inside, 0.0) / np.maximum(square, 1e-300))
    return np.asarray((left * kept) @ right)


def fitted_mixture(tables: PairTables, source: Source) -> Mixture:
    """By the steps of Adam, from the margins with a little chance."""
    starts, sizes = tables.starts[:-1], tables.sizes
    width = int(sum(sizes))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    pairs = tables.pairs.astype(np.float32)
    counted = (tables.weights[:, owner][owner]).astype(np.float32)
    margins = tables.margins.astype(np.float32)
    chance = np.empty((COMPONENTS, width), dtype=np.float32)
    draw_normals(chance.reshape(-1), source.stream("mixture", 0))
    logs = np.log(np.maximum(margins, 1e-6))[None, :] + chance
    parts = np.zeros(COMPONENTS, dtype=np.float32)
    moved = [_Adam(logs), _Adam(parts)]
    for step in range(STEPS):
        laws = _laws(logs, starts, sizes)
        weights = _softmax(parts)
        weighted = laws * weights[:, None]
        off = laws.T @ weighted - pairs
        off *= counted
        beyond = (weighted.sum(axis=0) - margins) * np.float32(MARGIN)
        pull = laws @ off
        slope = (pull + beyond) * weights[:, None]
        mean = np.repeat(np.add.reduceat(slope * laws, starts, axis=1), sizes, axis=1)
        slope = laws * (slope - mean)
        own = 0.5 * (pull * laws).sum(axis=1) + laws @ beyond
        own = weights * (own - float(weights @ own))
        rate = RATE * (0.05 + 0.95 * 0.5 * (1.0 + np.cos(np.pi * step / STEPS)))
        moved[0].step(slope, rate)
        moved[1].step(own, rate)
    laws = _laws(logs, starts, sizes).astype(np.float64)
    found = _softmax(parts).astype(np.float64)
    return Mixture(found / found.sum(), tuple(np.split(laws, tables.starts[1:-1], axis=1)))


class _Adam:
    """Steps in place, of a length that does not depend on the slopes' scale."""

    def __init__(self, values: Single) -> None:
        self._values, self._turn = values, 0
        self._mean, self._square = np.zeros_like(values), np.zeros_like(values)

    def step(self, slope: npt.NDArray[Any], rate: float) -> None:
        self._turn += 1
        first, second = _DECAY
        self._mean += np.float32(1 - first) * (slope - self._mean)
        self._square += np.float32(1 - second) * (slope * slope - self._square)
        length = rate / (1 - first**self._turn)
        root = np.sqrt(self._square / np.float32(1 - second**self._turn))
        self._values -= np.float32(length) * self._mean / (root + np.float32(1e-12))


def _laws(logs: Single, starts: Codes, sizes: tuple[int, ...]) -> Single:
    """Each column's part of ``logs`` as probabilities."""
    most = np.repeat(np.maximum.reduceat(logs, starts, axis=1), sizes, axis=1)
    laws = np.exp(logs - most)
    laws /= np.repeat(np.add.reduceat(laws, starts, axis=1), sizes, axis=1)
    return np.asarray(laws, dtype=np.float32)


def _softmax(logs: Single) -> Single:
    found = np.exp(logs - logs.max())
    return np.asarray(found / found.sum(), dtype=np.float32)


# -- rows ----------------------------------------------------------------------------------------


def rows_of(mixture: Mixture, rows: int, source: Source) -> Places:
    """So many rows' cells, columns by rows: of components and, within each, of cells there are as
    many as their laws say, to one."""
    component = _counts(mixture.weights, rows, uniforms(source, ("component", 0), 1)[0])
    ends = np.concatenate([[0], np.cumsum(component)])
    cells = np.empty((len(mixture.laws), rows), dtype=np.int32)
    owner = np.repeat(np.arange(len(component), dtype=np.int32), component)
    for at, laws in enumerate(mixture.laws):
        firsts = uniforms(source, ("first", at), len(component))
        for k in np.flatnonzero(component):
            some = _counts(laws[k], int(component[k]), firsts[k])
            cells[at, ends[k] : ends[k + 1]] = np.repeat(np.arange(len(some)), some)
        # In an order of chance within each component, or columns would go together.
        chance = uniforms(source, ("order", at), rows)
        order = np.lexsort((chance, owner))
        cells[at] = cells[at][order]
    return cells


def _counts(law: Real, rows: int, first: float) -> Codes:
    """Of ``rows`` points a step apart, from ``first`` of a step, how many fall into each part."""
    ends = np.cumsum(law)
    ends *= rows / ends[-1]
    up_to = np.clip(np.ceil(ends - first), 0, rows).astype(np.int64)
    up_to[-1] = rows
    return np.diff(np.maximum.accumulate(up_to), prepend=0)


def uniforms(source: Source, name: tuple[str, int], count: int) -> Real:
    """From 0 to 1."""
    return source.stream(*name).words(count).astype(np.float64) * 2.0**-64
