"""What one record adds to a sum is a function of that record alone, and never longer than the
bound, whatever the record is: for every kind of statistic, on the lattice and in real numbers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from capemix.methods import methods
from capemix.statistics.cells import CellCounts, Column, PairCounts
from capemix.statistics.check import added, check_records
from capemix.statistics.denoising import DenoisingGradients, Network
from capemix.statistics.head import Head
from capemix.statistics.histograms import ClassCounts, MeansAndSquares, ValueSizes
from capemix.statistics.moments import Moments, NormHistogram, Spreads
from capemix.statistics.projection import Projection
from capemix.statistics.scattering import channels, features_of
from capemix.sums import statistic as statistics
from capemix.sums.rows import ClippedRows, ZScoredRows
from capemix.sums.statistic import Statistic
from capemix.sums.steps import ColumnMap, PublicMap

WIDTH, CLASSES = 3, 2
RANGE = PublicMap.of_range(-2, 3)
MAP = ColumnMap((0.5, 0.0, -1.0), (1.0, 1e-3, 7.0), (-2.0, -1.0, 0.0), (3.0, 1.0, 0.0))
CHANCE = np.random.default_rng(0)
BASIS = CHANCE.normal(size=(WIDTH, 2))
CENTRES = CHANCE.normal(size=(CLASSES, WIDTH))
PLAIN = Projection(RANGE, WIDTH, CLASSES)
TURNED = Projection(MAP, WIDTH, CLASSES, centre=CENTRES, basis=BASIS, scale=np.array([2.0, 1e4]))
POINTED = Projection(
    RANGE, WIDTH, CLASSES, basis=BASIS, points=CHANCE.normal(size=(CLASSES, 3, 2)),
    without=np.eye(WIDTH)[:, :1],
)  # fmt: skip

CELLS = (
    Column(0, (-1.0, 0.0, 5e-324)),
    Column(0),
    Column(1, bins=(1, 0)),
    Column(1, (0.5,), missing=2),
)
SMALL: dict[str, Statistic] = {
    "rows": ClippedRows(WIDTH, CLASSES, RANGE, 1.3),
    "rows of one pool, labelled": ClippedRows(
        WIDTH, CLASSES, MAP, 0.7, label_columns=True, one_pool=True
    ),
    "rows as they stand": ClippedRows(WIDTH, CLASSES, PublicMap(), 5.0, label_columns=True),
    "class counts": ClassCounts(WIDTH, CLASSES),
    "value sizes": ValueSizes(WIDTH),
    "means and squares": MeansAndSquares(WIDTH, RANGE),
    "means and squares as they stand": MeansAndSquares(WIDTH, PublicMap()),
    "cell counts": CellCounts(WIDTH, CLASSES, CELLS),
    "pair counts": PairCounts(WIDTH, CLASSES, CELLS, CELLS[::-1], (5, 1, 3, 4), (3, 2, 1, 5)),
    "moments": Moments(TURNED, 0.9, (0.6, 0.8)),
    "moments of all": Moments(PLAIN, 1.1, (0.0, 1.0), apart=False),
    "moments by point": Moments(POINTED, 0.4, (0.1, 2.0)),
    "spreads": Spreads(TURNED, 0.9),
    "spreads of all": Spreads(PLAIN, 2.0, apart=False),
    "norms": NormHistogram(TURNED),
}
SIDE = 8
_IMAGES = Projection(
    PublicMap.of_range(0, 16), SIDE**2, CLASSES, centre=CHANCE.normal(size=(1, SIDE**2)) * 0.1
)
HEAD = Head(
    _IMAGES, (SIDE, SIDE), 20, np.zeros(channels()), np.full(channels(), 0.1),
    CHANCE.normal(size=(features_of((SIDE, SIDE)) + 1, CLASSES)),
)  # fmt: skip

NETWORK = DenoisingGradients(
    Network((SIDE, SIDE), CLASSES, channels=4, about=8, noises=2), PublicMap.of_range(0, 16),
    CHANCE.normal(size=Network((SIDE, SIDE), CLASSES, channels=4, about=8).weights) * 0.1,
    0.1, "a seed",
)  # fmt: skip

number = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-5, 5),
    st.sampled_from([0.0, -0.0, 1e308, -1e308, 5e-324, 16.0]),
)
LATTICES = [None, 1, 7, 300, 32_767]


def records(width: int, most: int) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    """Rows, and codes of classes; those below 0 and beyond the list drop their records."""
    return st.integers(1, most).flatmap(
        lambda count: st.tuples(
            arrays(np.float64, (count, width), elements=number),
            arrays(np.int64, count, elements=st.integers(-1, CLASSES - 1)),
        )
    )


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("lattice", LATTICES)
@settings(max_examples=40)
@given(given_=records(WIDTH, 5))
def test_a_record_adds_its_own_part_within_the_bound(
    name: str, lattice: int | None, given_: tuple[np.ndarray, np.ndarray]
) -> None:
    check_records(SMALL[name], *given_, lattice)


@pytest.mark.parametrize("lattice", [None, 9, 2_000, 32_767])
def test_an_image_adds_its_own_part_of_a_gradient_within_the_bound(lattice: int | None) -> None:
    chance = np.random.default_rng(1)
    rows = chance.uniform(-3, 20, size=(40, SIDE**2))
    rows[0], rows[1, 5], rows[2, 7], rows[3] = 0.0, np.nan, np.inf, 1e308
    rows[4], rows[5] = rows[6], -1e308
    for asked in (HEAD, NETWORK):
        check_records(asked, rows, chance.integers(-1, CLASSES, 40), lattice)


@pytest.mark.parametrize("name", SMALL)
def test_many_records_add_up_to_their_parts(name: str) -> None:
    """More of them than are gone through at a time."""
    chance = np.random.default_rng(2)
    rows = chance.normal(size=(9_000, WIDTH)) * 10.0 ** chance.integers(-4, 5, size=(9_000, 1))
    labels = chance.integers(-1, CLASSES, 9_000)
    cuts = [0, 1, 4_095, 4_097, 8_999, 9_000]
    parts = [added(SMALL[name], rows[a:b], labels[a:b], 1_000) for a, b in pairwise(cuts)]
    assert (added(SMALL[name], rows, labels, 1_000) == sum(parts)).all()


def test_every_kind_that_a_message_can_bring_is_tried_here() -> None:
    methods()  # and with them all statistics
    tried = {asked.kind for asked in (*SMALL.values(), HEAD, NETWORK)}  # type: ignore[attr-defined]
    assert tried == set(statistics._KINDS)


def test_what_looks_at_several_records_is_found_out_here_and_no_message_brings_it() -> None:
    asked = ZScoredRows(ClippedRows(WIDTH, CLASSES, PublicMap(), 1.3))
    rows, labels = np.random.default_rng(3).normal(size=(5, WIDTH)), np.zeros(5, dtype=np.int64)
    with pytest.raises(ValueError, match="add something else than each of them alone"):
        check_records(asked, rows, labels, 300)
    methods()
    assert ZScoredRows not in statistics._KINDS.values()


class Longer(ClassCounts):
    """Counts that weigh more than they say."""

    def add_to(self, sums: Any, features: Any, labels: Any, lattice: int | None) -> None:
        super().add_to(sums, features, labels, lattice)
        sums *= 1 + (lattice or 1)


class Undefined(ClassCounts):
    """What is added is no number, where numbers need not be whole."""

    def add_to(self, sums: Any, features: Any, labels: Any, lattice: int | None) -> None:
        super().add_to(sums, features, labels, lattice)
        sums *= np.nan


class Everywhere(ClassCounts):
    """Half a count in each of two groups."""

    def add_to(self, sums: Any, features: Any, labels: Any, lattice: int | None) -> None:
        super().add_to(sums, features, labels, lattice)
        sums[:] = 0.5 if lattice is None else lattice // 2


class Undropped(ClassCounts):
    """Records that count for nothing count for something."""

    def add_to(self, sums: Any, features: Any, labels: Any, lattice: int | None) -> None:
        super().add_to(sums, features, np.abs(labels), lattice)


@pytest.mark.parametrize("lattice", [None, 300])
@pytest.mark.parametrize(
    ("kind", "code", "says"),
    [
        (Longer, 0, "more than the norm bound"),
        (Everywhere, 0, "more than one group"),
        (Undropped, -1, "its code drops adds something"),
    ],
)
def test_what_breaks_a_rule_is_found_out_here(
    kind: Any, code: int, says: str, lattice: int | None
) -> None:
    with pytest.raises(ValueError, match=says):
        check_records(kind(WIDTH, CLASSES), np.zeros((1, WIDTH)), np.array([code]), lattice)


def test_what_is_no_number_is_found_out_here() -> None:
    with pytest.raises(ValueError, match="no number"):
        check_records(Undefined(WIDTH, CLASSES), np.zeros((1, WIDTH)), np.zeros(1, int), None)
