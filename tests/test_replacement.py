"""How far a replaced record moves whole-number sums: never further than the factor that its
statistic says, over the lattice's norm bound, and as far for some two records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from capemix.methods.image_clusters.estimate import WEIGHTS
from capemix.queries import COUNTED
from capemix.statistics.cells import CellCounts, Column, PairCounts
from capemix.statistics.histograms import ClassCounts, MeansAndSquares, ValueSizes
from capemix.statistics.moments import Moments, NormHistogram, Spreads, replaced_moments
from capemix.statistics.projection import Projection
from capemix.sums.rows import ClippedRows
from capemix.sums.statistic import Statistic, replacement_factor_of
from capemix.sums.steps import PublicMap

Row = npt.NDArray[np.float64]
Record = tuple[Row, int]

WIDTH, CLASSES = 4, 3
FRAME = Projection(PublicMap(), WIDTH, CLASSES)
ABOUT = Projection(
    PublicMap(), WIDTH, CLASSES, centre=np.full((CLASSES, WIDTH), 0.3), scale=np.full(WIDTH, 1.7)
)

CELLS = (Column(0, (-0.5, 0.5)), Column(1, (0.0,), missing=2), Column(2, bins=(0, 1)))
SLICES = (Column(0, (-0.5, 0.0, 0.5)), *CELLS[1:])

LATTICES = (3, 5, 7, 9, 25, 77, 1001, 32_767)

STATISTICS: dict[str, Statistic] = {
    "class counts": ClassCounts(WIDTH, CLASSES),
    "value sizes": ValueSizes(WIDTH),
    "norms": NormHistogram(FRAME),
    "means and squares": MeansAndSquares(WIDTH, PublicMap()),
    "counts alone": Moments(FRAME, 2.0, (1.0, 0.0)),
    "means alone": Moments(FRAME, 2.0, (0.0, 1.0)),
    "means of all": Moments(FRAME, 2.0, (0.0, 1.0), apart=False),
    "counts and means, even": Moments(FRAME, 2.0, next(iter(WEIGHTS.values()))),
    "counts and means": Moments(ABOUT, 2.0, (0.5, 0.75**0.5)),
    "few means": Moments(FRAME, 2.0, (1.0, 0.2)),
    "spreads": Spreads(FRAME, 2.0),
    "one spread": Spreads(FRAME, 2.0, apart=False),
    "cells": CellCounts(WIDTH, CLASSES, CELLS),
    "pairs": PairCounts(WIDTH, CLASSES, CELLS, SLICES, (3, 3, 2), (4, 3, 2)),
    "pairs, with a target": PairCounts(WIDTH, 1, CELLS, (), (3, 3, 2), (), 0),
    "rows": ClippedRows(WIDTH, CLASSES, PublicMap(), 1.5),
    "rows in one pool": ClippedRows(WIDTH, CLASSES, PublicMap(), 1.5, one_pool=True),
    "rows and labels": ClippedRows(
        WIDTH, CLASSES, PublicMap(), 1.5, label_columns=True, one_pool=True
    ),
}
LOOSE = ("means and squares",)
"""What no two records reach: a factor of 2 holds for any statistic."""


def added(asked: Statistic, record: Record, lattice: int) -> npt.NDArray[np.int64]:
    sums = np.zeros((asked.groups, asked.width), dtype=np.int64)
    row, label = record
    asked.add_to(sums, row[None], np.array([label]), lattice)
    return sums


def records() -> Iterator[Record]:
    """Long and short ones along and across the axes, and any."""
    rng = np.random.default_rng(3)
    eye = np.eye(WIDTH)
    rows = [np.zeros(WIDTH), *(size * sign * axis for size, sign, axis in product(
        (1e-3, 0.9, 1e6), (1, -1), eye[:2]
    )), np.ones(WIDTH), -np.ones(WIDTH), 1e9 * np.ones(WIDTH), -1e9 * np.ones(WIDTH)]  # fmt: skip
    rows += [rng.normal(size=WIDTH) * 10 ** rng.uniform(-2, 3) for _ in range(12)]
    rows += [np.array([-1.0, -1.0, 0.0, 1.0]), np.array([1.0, 1.0, 1.0, 0.0])]  # no cell in common
    for at, row in enumerate(rows):
        yield row, at % CLASSES
        yield row, 0
    yield np.full(WIDTH, np.nan), 0


@pytest.mark.parametrize("name", STATISTICS)
def test_no_two_records_move_a_sum_further_than_its_factor_and_some_do_so_far(name: str) -> None:
    asked = STATISTICS[name]
    factor = replacement_factor_of(asked)
    assert COUNTED <= factor <= 2.0
    reached = 0.0
    for lattice in LATTICES:
        sums = np.array([added(asked, record, lattice).ravel() for record in records()])
        lengths = np.sqrt((sums.astype(float) ** 2).sum(axis=1))
        assert lengths.max() <= lattice * (1 + 1e-12)
        apart = np.sqrt(((sums[:, None] - sums[None]).astype(float) ** 2).sum(axis=-1))
        assert apart.max() <= factor * lattice * (1 + 1e-12)
        reached = max(reached, float(apart.max()) / lattice)
    if name not in LOOSE:
        assert reached > 0.99 * factor  # a factor 1% smaller would be too small


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.75**0.5), (3, 4)])
def test_the_factor_of_counts_and_means_is_the_larger_of_its_two_ways(
    weights: tuple[float, float],
) -> None:
    within = 2 * weights[1] / math.hypot(*weights)
    assert replaced_moments(weights) == pytest.approx(max(within, COUNTED), rel=1e-9)
