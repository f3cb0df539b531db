"""Whatever one record is, it changes its own bounded part of a site's sums and nothing else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from capemix.errors import InputError
from capemix.federation import Federation, MaskKind, Scheme
from capemix.methods.mixing import MIXTURES
from capemix.methods.mixing.planning import plan_mixtures
from capemix.queries import QueryShape
from capemix.statistics import projection as projection_module
from capemix.statistics.cells import CellCounts, Column, PairCounts
from capemix.statistics.head import Head
from capemix.statistics.histograms import ClassCounts, MeansAndSquares, ValueSizes
from capemix.statistics.moments import Moments, NormHistogram, Spreads
from capemix.statistics.projection import Projection
from capemix.statistics.scattering import channels, features_of
from capemix.sums.query import NoiseLaw, SumQuery
from capemix.sums.rows import ClippedRows
from capemix.sums.share import prepare_records, prepare_site
from capemix.sums.statistic import _KINDS as KINDS
from capemix.sums.statistic import Prepared, Statistic, SummedRows, kind_of, replacement_factor_of
from capemix.sums.steps import ColumnMap, PublicMap

Array = npt.NDArray[Any]

SIDE, CLASSES, COUNT = 8, ("no", "yes"), 301
WIDTH = SIDE * SIDE
RANGE = PublicMap.of_range(0, 255)


def some_rows(seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.uniform(-20, 280, (COUNT, WIDTH)), (np.arange(COUNT) % 2).astype(np.int64)


def summing(asked: Statistic, *, real: bool = False) -> SumQuery:
    """A sum in which every record adds this, once."""
    line = QueryShape(
        "a sum",
        "",
        kind_of(asked),
        asked.width,
        asked.groups,
        l2_norm_bound=asked.l2_norm_bound,
        replacement_factor=replacement_factor_of(asked),
    )
    masks, law = MaskKind.RING, NoiseLaw.ROUNDED
    if real:
        masks, law = MaskKind.GAUSSIAN, NoiseLaw.GAUSSIAN
    federation = Federation(Scheme.CAPE, sites=4, colluding=1, masks=masks)
    return SumQuery("a sum", line, federation, law, 3.0).of(asked)


def mixing(**changed: Any) -> SumQuery:
    asked = {"width": WIDTH, "class_sizes": (150, 150), "samples": 20, "mixture": 10, "noise": 0.1}
    plan = plan_mixtures(**{**asked, "classes": CLASSES, "scheme": "cape", "sites": 4, **changed})
    return plan.query(MIXTURES, plan.method.statistic(plan))


def a_frame(*, upright: bool = False, points: bool = False, how: Any = RANGE) -> Projection:
    rng = np.random.default_rng(1)
    seen = WIDTH + upright
    return Projection(
        how,
        WIDTH,
        2,
        centre=rng.normal(size=(2, seen)),
        basis=rng.normal(size=(seen, 7)),
        without=np.linalg.qr(rng.normal(size=(seen, 3)))[0],
        points=rng.normal(size=(2, 3, 7)) if points else None,
        scale=rng.uniform(0.5, 2, 7),
        upright=(SIDE, SIDE) if upright else None,
    )


def a_head(*, upright: bool) -> Head:
    rng = np.random.default_rng(2)
    shape = (SIDE, SIDE)
    frame = Projection(
        RANGE,
        WIDTH,
        2,
        centre=rng.normal(size=(1, WIDTH + upright)) * 0.1,
        upright=shape if upright else None,
    )
    weights = rng.normal(size=(features_of(shape) + 1, 2))
    return Head(frame, shape, 40, np.zeros(channels()), np.ones(channels()), weights)


UNBOUNDED = PublicMap(1.0, 1e-100)  # its quotients overflow
NARROW = ColumnMap((9.0,) * WIDTH, (200.0,) * WIDTH, (0.0,) * WIDTH, (255.0,) * WIDTH)
COLUMNS = ColumnMap((1e100,) * WIDTH, (1e-100,) * WIDTH, (-1e100,) * WIDTH, (1e100,) * WIDTH)

CELLS = (Column(0, (-1.0, 20.0)), Column(1), Column(2, bins=(0, 1)), Column(4, (9.0,), missing=6))
SLICES = (Column(0, (-1.0, 0.0, 20.0)), Column(1, (0.5,)), *CELLS[2:])

METHODS: dict[str, Callable[[], SumQuery]] = {
    "mixing": lambda: mixing(normalise=RANGE),
    "mixing, no range": mixing,
    "mixing, overflowing": lambda: mixing(normalise=UNBOUNDED),
    "mixing, columns": lambda: mixing(normalise=COLUMNS),
    "mixing, labels too": lambda: mixing(label_noise=True),
    "mixing, one pool": lambda: mixing(pool="all"),
    "mixing, real": lambda: mixing(masks="gaussian", normalise=RANGE),
    "counts and means": lambda: summing(Moments(a_frame(), 2.0, (1.0, 1.0))),
    "means, overflowing": lambda: summing(Moments(a_frame(how=UNBOUNDED), 2.0, (0.0, 1.0))),
    "means, columns": lambda: summing(Moments(a_frame(how=COLUMNS), 2.0, (0.0, 1.0))),
    "means by point": lambda: summing(Moments(a_frame(points=True), 2.0, (1.0, 1.0))),
    "means, as they are": lambda: summing(
        Moments(Projection(PublicMap(), WIDTH, 2), 9.0, (0.0, 1.0))
    ),
    "spreads": lambda: summing(Spreads(a_frame(), 2.0)),
    "spreads by point": lambda: summing(Spreads(a_frame(points=True), 2.0)),
    "one spread": lambda: summing(Spreads(a_frame(), 2.0, apart=False)),
    "norms": lambda: summing(NormHistogram(a_frame())),
    "norms, overflowing": lambda: summing(NormHistogram(a_frame(how=UNBOUNDED))),
    "images": lambda: summing(Spreads(a_frame(upright=True), 2.0)),
    "head": lambda: summing(a_head(upright=False)),
    "head, upright": lambda: summing(a_head(upright=True)),
    "rows, added up": lambda: summing(ClippedRows(WIDTH, 2, RANGE, 3.0)),
    "class counts": lambda: summing(ClassCounts(WIDTH, 2)),
    "value sizes": lambda: summing(ValueSizes(WIDTH)),
    "cells": lambda: summing(CellCounts(WIDTH, 2, CELLS)),
    "pairs": lambda: summing(PairCounts(WIDTH, 2, CELLS, SLICES, (3, 1, 2, 3), (4, 2, 3, 3))),
    "pairs, with a target": lambda: summing(PairCounts(WIDTH, 1, CELLS, (), (3, 1, 2, 3), (), 0)),
    "means and squares": lambda: summing(MeansAndSquares(WIDTH, RANGE)),
    "means and squares, overflowing": lambda: summing(MeansAndSquares(WIDTH, UNBOUNDED)),
    "means and squares, columns": lambda: summing(MeansAndSquares(WIDTH, NARROW)),
}

NO_CLASSES = ("value sizes", "means and squares")
"""Columns are looked at, whatever the class: a code below 0 is all that drops a record."""


def test_every_kind_of_statistic_is_held_to_the_property() -> None:
    """All that a message can carry to a site; that of a network, which is known where its module is
    imported, by `test_image_diffusion`."""
    held = {kind_of(asked().summed) for asked in METHODS.values()}
    assert held == set(KINDS) - {"denoising gradients"}


HOSTILE: dict[str, Array] = {
    "nan": np.full(WIDTH, np.nan),
    "one nan": np.where(np.arange(WIDTH) == 3, np.nan, 17.0),
    "infinite": np.full(WIDTH, np.inf),
    "both infinities": np.where(np.arange(WIDTH) % 2, np.inf, -np.inf),
    "huge": np.full(WIDTH, 1e308),
    "both huge": np.where(np.arange(WIDTH) % 2, 1.7e308, -1.7e308),
    "tiny": np.full(WIDTH, 5e-324),
    "mixed": np.resize([np.nan, np.inf, -1e308, 5e-324, -0.0], WIDTH),
}


def with_one(row: Array, place: int, label: int = 1) -> tuple[Array, Array]:
    rows, labels = some_rows()
    return np.insert(rows, place, row, axis=0), np.insert(labels, place, label)


def by_record(made: Prepared) -> tuple[Array, ...]:
    return (made.sums,) if isinstance(made, SummedRows) else made.by_group


def longest(made: Prepared) -> float:
    """Of what one record, alone, adds."""
    found = [np.linalg.norm(each.astype(np.float64), axis=-1).ravel() for each in by_record(made)]
    return float(max(np.concatenate(found), default=0.0))


def assert_others_as_without(query: SumQuery, row: Array, place: int, label: int = 1) -> None:
    """The other records' prepared rows are the same bits; and of sums, what is left once the
    record's own part is taken off."""
    without = prepare_records(query, *some_rows())
    made = prepare_records(query, *with_one(row, place, label))
    alone = prepare_records(query, row[None], np.array([label]))
    bound = alone.lattice_norm_bound or alone.l2_norm_bound * (1 + 1e-12)
    assert longest(alone) <= bound
    if isinstance(made, SummedRows):
        assert (made.sums - alone.sums).tobytes() == without.sums.tobytes()
        return
    for group, (ours, others) in enumerate(zip(made.by_group, without.by_group, strict=True)):
        one_pool = len(made.by_group) == 1
        own = one_pool or group == label
        labels = some_rows()[1][:place]
        at = place if one_pool else int((labels == label).sum())
        assert len(ours) == len(others) + own
        rest = np.delete(ours, at, axis=0) if own else ours
        assert rest.tobytes() == others.tobytes()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("place", [0, COUNT // 2, COUNT])
def test_a_record_of_any_values_leaves_the_others_as_they_are(method: str, place: int) -> None:
    query = METHODS[method]()
    for row in HOSTILE.values():
        assert_others_as_without(query, row, place)


@pytest.mark.parametrize(
    "asked",
    [
        Moments(a_frame(), 2.0, (1.0, 1.0)),
        Spreads(a_frame(), 2.0),
        ValueSizes(WIDTH),
        MeansAndSquares(WIDTH, RANGE),
    ],
    ids=kind_of,
)
def test_in_real_arithmetic_a_record_adds_a_bounded_part_too(asked: Statistic) -> None:
    query = summing(asked, real=True)
    without = prepare_records(query, *some_rows())
    for row in HOSTILE.values():
        made = prepare_records(query, *with_one(row, 5))
        alone = prepare_records(query, row[None], np.array([1]))
        assert longest(alone) <= asked.l2_norm_bound * (1 + 1e-12)
        # A sum of doubles has no order of its own: it is the same up to rounding.
        assert np.allclose(made.sums - alone.sums, without.sums, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("label", [-1, 2, 1 << 40, -(1 << 62)])
def test_a_label_that_is_no_class_drops_its_record_and_no_other(method: str, label: int) -> None:
    if label > 0 and method.startswith(NO_CLASSES):
        assert_others_as_without(METHODS[method](), np.full(WIDTH, 7.0), 11, label)
        return
    query = METHODS[method]()
    without = prepare_records(query, *some_rows())
    made = prepare_records(query, *with_one(np.full(WIDTH, 7.0), 11, label))
    for ours, others in zip(by_record(made), by_record(without), strict=True):
        assert ours.tobytes() == others.tobytes()


# -- what nobody foresaw ---------------------------------------------------------------------------

POISON = 66.6


@pytest.fixture
def stumbling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparation raises if this record is among those that it is given."""

    def on_poison(real: Callable[..., Any], place: int) -> Callable[..., Any]:
        def prepare(asked: Statistic, *given: Any) -> Any:
            if (given[place] == POISON).all(axis=1).any():
                raise FloatingPointError(f"a private value: {POISON}")
            return real(asked, *given)

        return prepare

    for kind in KINDS.values():
        for name, place in (("add_to", 1), ("rows_by_group", 0)):
            if hasattr(kind, name):
                monkeypatch.setattr(kind, name, on_poison(getattr(kind, name), place))


def all_or_none(query: SumQuery, features: Array, labels: Array) -> Prepared:
    """The wrong law: one record decides whether any counts."""
    try:
        return prepare_site(query, features, labels)
    except FloatingPointError:
        return prepare_site(query, features[:0], labels[:0])


@pytest.mark.usefixtures("stumbling")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("place", [0, COUNT // 2, COUNT])
def test_an_error_costs_the_record_that_it_is_about_and_no_other(
    method: str, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    query = METHODS[method]()
    rows = with_one(np.full(WIDTH, POISON), place)
    without = by_record(prepare_records(query, *some_rows()))
    found = by_record(prepare_records(query, *rows))
    wrong = by_record(all_or_none(query, *rows))
    for ours, theirs in zip(found, without, strict=True):
        assert ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes()
    assert any(len(one) != len(other) or (one != other).any() for one, other in zip(
        wrong, without, strict=True
    ))  # fmt: skip
    assert "1 records could not be made ready (FloatingPointError)" in caplog.text
    assert str(POISON) not in caplog.text


@pytest.mark.usefixtures("stumbling")
@pytest.mark.parametrize("method", ["mixing", "spreads"])
def test_several_such_records_and_nothing_else_add_nothing(method: str) -> None:
    query = METHODS[method]()
    rows, labels = some_rows()
    bad = np.isin(np.arange(COUNT), [0, 1, 2, 99, 200, COUNT - 1])
    rows[bad] = POISON
    found = by_record(prepare_records(query, rows, labels))
    for ours, others in zip(
        found, by_record(prepare_records(query, rows[~bad], labels[~bad])), strict=True
    ):
        assert ours.tobytes() == others.tobytes()
    none = by_record(prepare_records(query, rows[bad], labels[bad]))
    assert not sum(np.abs(each).sum() for each in none)


@pytest.mark.parametrize("method", ["mixing", "spreads", "head"])
@pytest.mark.parametrize("count", [0, 1, COUNT])
def test_a_plan_for_other_columns_is_refused_whatever_the_records_are(
    method: str, count: int
) -> None:
    rows, labels = some_rows()
    with pytest.raises(InputError, match="must have the 64 columns that are planned for"):
        prepare_records(METHODS[method](), rows[:count, :60], labels[:count])


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["means by point", "spreads", "images", "head, upright"])
def test_what_is_not_kept_of_records_is_made_anew_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    query = METHODS[method]()
    kept = prepare_site(query, *some_rows())
    monkeypatch.setattr(projection_module, "MOST_KEPT", 0)
    assert prepare_site(query, *some_rows()).sums.tobytes() == kept.sums.tobytes()


def test_memory_for_moments_does_not_grow_with_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = Projection(RANGE, WIDTH, 1, basis=np.eye(WIDTH))
    asked = Moments(frame, 2.0, (0.0, 1.0))

    def peak(count: int) -> int:
        rows, labels = np.full((count, WIDTH), 9.0), np.zeros(count, dtype=np.int64)
        tracemalloc.start()
        asked.add_to(np.zeros((1, WIDTH), dtype=np.int64), rows, labels, 100)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(10)
    few, most = 60_000, 25e6
    assert peak(few) > most  # kept, of all records
    monkeypatch.setattr(projection_module, "MOST_KEPT", 1 << 20)
    assert peak(few) < most
    assert peak(2 * few) < most
