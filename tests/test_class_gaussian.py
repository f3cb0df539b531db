"""A Gaussian for each class, from private sums: what a record adds is bounded, its noise is the one
accounted for, and what is made of the sums knows noise from signal."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from threadpoolctl import threadpool_limits

import capemix.engines.local
import capemix.sums.share
from capemix import documents
from capemix.accounting.gaussian import gaussian_epsilon, gaussian_multiplier
from capemix.accounting.sampled import epsilon_pld
from capemix.api import Synthesizer
from capemix.data import LabeledRows, load_dataset, partition
from capemix.engines.local import sum_shares
from capemix.errors import BudgetError, InputError
from capemix.evaluate import train_and_test
from capemix.facts import CLASS_SIZES, Facts
from capemix.federation import CENTRAL, Federation, Scheme
from capemix.kernels import machine
from capemix.ledger import Ledger
from capemix.ledger.filter import Limit
from capemix.methods import Method, SyntheticRows
from capemix.methods.class_gaussian import MOST_RANK, ClassGaussian
from capemix.methods.class_gaussian.draw import drawn_rows
from capemix.methods.class_gaussian.estimate import CENTRE, CENTRES, REFINED, SPREAD, SPREADS
from capemix.methods.gaussians import (
    STRENGTH,
    ClassGaussians,
    averaged,
    clamped_rows,
    cleaned_spread,
    own_spread,
    shrunk_centres,
    shrunk_sizes,
    texture_of,
    tuned_rank,
    wigner_edge,
)
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.projected import ProjectedSums
from capemix.plan import Plan
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import ProtocolError
from capemix.queries import COUNTED, Participation, QueryShape, Relation
from capemix.randomness.source import SeededSource, SystemSource
from capemix.randomness.tables import MAX_SIGMA
from capemix.run import check_room
from capemix.statistics import moments as moments_module
from capemix.statistics.histograms import ClassCounts
from capemix.statistics.moments import Moments, NormHistogram, Spreads
from capemix.statistics.projection import Projection, row_by_row, whole_rows, whole_scale
from capemix.sums.query import lattice_norm_bound
from capemix.sums.rows import Preparation
from capemix.sums.statistic import Statistic, SummedRows
from capemix.sums.steps import PublicMap
from conftest import Capemix
from releasing import release_of
from world import labeled_rows

Real = npt.NDArray[np.float64]

ANYTHING = hnp.arrays(
    np.float64,
    (6, 3),
    elements=st.floats(allow_nan=True, allow_infinity=True, width=64),
)
FEDERATION = Federation(Scheme.CAPE, sites=4, colluding=1)


def digits() -> tuple[LabeledRows, LabeledRows]:
    return load_dataset("digits")


def a_plan(
    rows: LabeledRows,
    federation: Federation = CENTRAL,
    *,
    samples: int | None = None,
    class_sizes: tuple[int, ...] | None = None,
    method: Method | None = None,
    **asked: Any,
) -> Plan:
    facts = Facts.of(rows, class_sizes=class_sizes, normalise=PublicMap.of_range(0, 16))
    return Plan(facts, method or ClassGaussian(samples=samples), federation=federation, **asked)


def chosen(plan: Plan, rank: int) -> Plan:
    """The plan once its rank is chosen, of some hundred records to each unit of noise."""
    return replace(plan, chosen={"rank": rank, "octave": 7})


def summed(rows: Any, labels: Any, asked: Any, lattice: int | None = None) -> Any:
    """What these records add up to, groups by width."""
    sums = np.zeros((asked.groups, asked.width), dtype=np.float64 if lattice is None else np.int64)
    asked.add_to(sums, rows, labels, lattice)
    return sums


def alone(rows: Real, labels: Any, asked: Any, lattice: int | None = None) -> Any:
    """What each record adds, records by groups by width; and that sums are those of the records."""
    each = np.stack(
        [summed(rows[n : n + 1], labels[n : n + 1], asked, lattice) for n in range(len(rows))]
    )
    sums = summed(rows, labels, asked, lattice)
    if lattice is None:
        assert np.allclose(sums, each.sum(axis=0), atol=1e-12)
    else:
        assert np.array_equal(sums, each.sum(axis=0))
    return each


# -- what a record adds ----------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    rows=ANYTHING,
    clip=st.floats(1e-3, 1e3),
    weights=st.tuples(*[st.sampled_from([0.0, 0.3, 1.0])] * 2).filter(any),
    lattice=st.sampled_from([None, 5, 1000, 32_767]),
    points=st.booleans(),
)
def test_no_record_adds_more_than_is_counted(
    rows: Real,
    clip: float,
    weights: tuple[float, float],
    lattice: int | None,
    points: bool,
) -> None:
    labels = np.array([0, 1, 0, 1, 1, 0])
    rng = np.random.default_rng(0)
    frame = Projection(
        PublicMap(), 3, 2, centre=rng.normal(size=(2, 3)), basis=rng.normal(size=(3, 2)),
        points=rng.normal(size=(2, 4, 2)) if points else None, scale=np.array([0.1, 30.0]),
    )  # fmt: skip
    for asked in (
        Moments(frame, clip, weights),
        Moments(frame, clip, weights, apart=False),
        Spreads(frame, clip),
        Spreads(frame, clip, apart=False),
        NormHistogram(frame),
    ):
        each = alone(rows, labels, asked, lattice)
        assert each.shape == (len(rows), asked.groups, asked.width)
        assert ((each != 0).any(axis=2).sum(axis=1) <= 1).all()  # in one group
        bound = asked.l2_norm_bound if lattice is None else float(lattice)
        assert np.isfinite(each).all()
        norms = np.sqrt((each.astype(np.float64) ** 2).sum(axis=(1, 2)))
        assert (norms <= bound * (1 + 1e-12)).all()


@settings(max_examples=80)
@given(
    rows=hnp.arrays(np.float64, (5, 7), elements=st.floats(-1.0, 1.0)),
    most=st.integers(1, 400),
)
def test_rows_in_whole_numbers_keep_to_their_norm_and_lose_little(rows: Real, most: int) -> None:
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    whole = whole_rows(rows, most).astype(np.int64)
    assert ((whole**2).sum(axis=1) <= most**2).all()
    off = np.abs(whole - rows * whole_scale(most, 7)).max(axis=1)
    assert (off <= 1.0 + 1e-9).all()


def test_few_rows_are_too_long_after_rounding() -> None:
    rows = np.random.default_rng(3).normal(size=(20_000, 60))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for most in (12, 40, 181):
        off = np.abs(whole_rows(rows, most) - rows * whole_scale(most, 60)).max(axis=1)
        assert (off > 0.5 + 1e-9).mean() < 0.01
        assert whole_scale(most, 60) > 0.85 * most


@pytest.mark.parametrize("shape", [(30, 20), (50, 50), (64, 7)])
def test_what_a_record_adds_does_not_depend_on_who_else_is_there(shape: tuple[int, int]) -> None:
    """Not by a bit: a matrix product adds in an order that depends on the number of rows."""
    columns, kept = shape
    rng = np.random.default_rng(7)
    rows, labels = rng.normal(size=(3000, columns)), np.zeros(3000, dtype=np.int64)
    plain = Projection(
        PublicMap(), columns, 1, basis=rng.normal(size=shape), scale=rng.uniform(0.1, 9, kept)
    )
    out = np.linalg.qr(rng.normal(size=(columns, 1)))[0]
    frame = replace(plain, points=rng.normal(size=(1, 5, kept)), without=out)

    def seen(frame: Projection, count: int) -> tuple[Real, Real]:
        look = frame.looking(rows[:count], labels[:count])
        pieces = [look(np.arange(at, min(at + 1000, count))) for at in range(0, count, 1000)]
        return tuple(np.concatenate([piece[part] for piece in pieces]) for part in (0, 1))

    whole, places = seen(frame, 3000)
    assert len(set(places)) == 5
    for count in (1, 2, 3, 5, 17, 100, 400, 401, 1500, 2047, 2048, 2049):
        some, near = seen(frame, count)
        assert np.array_equal(some, whole[:count])
        assert np.array_equal(near, places[:count])
    assert np.allclose(seen(plain, 3000)[0], rows @ plain.basis * plain.scale, atol=1e-3)
    # Sums that are exact have no order; in floating point they have.
    turned = rng.permutation(columns)
    products = [row_by_row(rows, frame.basis), row_by_row(rows[:, turned], frame.basis[turned])]
    assert np.array_equal(*products)
    assert not np.array_equal(rows @ frame.basis, rows[:, turned] @ frame.basis[turned])


def test_directions_left_out_leave_nothing() -> None:
    rng = np.random.default_rng(8)
    rows, labels = rng.normal(size=(50, 6)), np.zeros(50, dtype=np.int64)
    out = np.linalg.qr(rng.normal(size=(6, 2)))[0]
    left = rows - rows @ out @ out.T
    kept = rng.normal(size=(6, 3))
    for basis, said in ((None, left), (kept, left @ kept)):
        frame = Projection(PublicMap(), 6, 1, basis=basis, without=out)
        assert np.allclose(frame.looking(rows, labels)(np.arange(50))[0], said, atol=1e-4)


def test_sums_are_the_same_bits_on_one_thread_and_on_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    rows, labels = rng.normal(size=(4_000, 40)), rng.integers(0, 3, 4_000)
    frame = Projection(PublicMap(), 40, 3, basis=rng.normal(size=(40, 20)))
    asked = (Moments(frame, 9.0, (0.5, 1.0)), Spreads(frame, 9.0), NormHistogram(frame))
    pools: list[int] = []

    class Counted(ThreadPoolExecutor):
        def __init__(self, most: int) -> None:
            pools.append(most)
            super().__init__(most)

    monkeypatch.setattr(machine, "ThreadPoolExecutor", Counted)
    monkeypatch.setattr(machine, "cores", lambda: 3)
    monkeypatch.setattr(moments_module, "cores", lambda: 3)
    found = []
    for little in (rows.size + 1, rows.size):
        monkeypatch.setattr(machine, "_LITTLE", little)
        found.append([summed(rows.copy(), labels, one, 900) for one in asked])
        assert bool(pools) == (little == rows.size)
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("lattice", [None, 32_767])
def test_sums_give_back_counts_means_and_spreads(lattice: int | None) -> None:
    rng = np.random.default_rng(2)
    rows, labels = rng.normal(size=(300, 4)), rng.integers(0, 3, 300)
    frame = Projection(PublicMap(), 4, 3)
    counted, spreads = Moments(frame, 9.0, (0.5, 1.0)), Spreads(frame, 9.0)

    def sums(asked: Any) -> Real:
        made = summed(rows, labels, asked, lattice)
        return np.asarray(made * (1.0 if lattice is None else asked.l2_norm_bound / lattice))

    near = {"atol": 1e-9} if lattice is None else {"atol": 3.0}  # a unit of the lattice each
    for k in range(3):
        mine = rows[labels == k]
        assert counted.counts(sums(counted))[k] == pytest.approx(len(mine), rel=1e-3)
        assert np.allclose(counted.totals(sums(counted))[k], mine.sum(axis=0), **near)
        assert np.allclose(spreads.seconds(sums(spreads), lattice)[k], mine.T @ mine, **near)


def test_noise_on_both_halves_of_a_spread_is_half_as_strong_off_its_diagonal() -> None:
    asked = Spreads(Projection(PublicMap(), 40, 1), 3.0)
    noise = np.random.default_rng(5).normal(size=(1, 1600))
    found = asked.seconds(noise, None)[0]
    assert np.array_equal(found, found.T)
    off = found[np.triu_indices(40, 1)]
    assert off.var() == pytest.approx(81.0 / 2, rel=0.15)
    assert np.diag(found).var() == pytest.approx(81.0, rel=0.6)
    assert np.linalg.eigvalsh(found)[-1] == pytest.approx(wigner_edge(9.0, 40), rel=0.15)


def test_records_go_to_their_classs_nearest_point_and_lie_about_it() -> None:
    points = np.array([[[0.0], [10.0]], [[5.0], [20.0]]])
    asked = Moments(Projection(PublicMap(), 1, 2, points=points), 3.0, (1.0, 1.0))
    rows, labels = np.array([[1.0], [9.0], [9.0], [21.0]]), np.array([0, 0, 1, 1])
    made = alone(rows, labels, asked).sum(axis=0)
    assert made[:, 0].tolist() == pytest.approx([1, 1, 1, 1])
    about = 3.0 * made[:, 1]
    assert about == pytest.approx([1.0, -1.0, 3.0, 1.0])  # the third is clipped from 4 to 3


def test_the_norm_below_which_half_of_the_records_lie() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(20_000, 9)) * rng.uniform(0.1, 3.0, (20_000, 1))
    asked = NormHistogram(Projection(PublicMap(), 9, 1))
    labels = np.zeros(len(rows), dtype=np.int64)
    sums = summed(rows, labels, asked)
    norms = np.linalg.norm(rows, axis=1)
    for part in (0.25, 0.5, 0.9):
        assert asked.quantile(sums, part) == pytest.approx(np.quantile(norms, part), rel=0.05)
    assert asked.quantile(-np.ones_like(sums), 0.5) == 3.0  # nothing but noise


# -- noise and cost --------------------------------------------------------------------------------


@pytest.mark.parametrize("federation", [CENTRAL, FEDERATION])
def test_sums_cost_together_what_was_asked_and_alone_less(federation: Federation) -> None:
    rows, _ = digits()
    plan = a_plan(rows, federation).calibrate(1.5)
    for rank in (0, 7, MOST_RANK):
        found = chosen(plan, rank)
        lines = found.budget()
        assert sum(line.share for line in lines) == pytest.approx(1.0)
        composed = [line.epsilon_composed or 0.0 for line in lines]
        assert composed == sorted(composed)
        assert composed[-1] <= 1.5
        assert composed[-1] == pytest.approx(1.5, rel=1e-3)
        assert all((line.epsilon_alone or 0.0) < 1.5 for line in lines)
    assert plan.guarantee().epsilon == pytest.approx(1.5, rel=1e-3)


@pytest.mark.parametrize("relation", list(Relation))
def test_one_curators_rounded_sums_cost_one_gaussian_exactly(relation: Relation) -> None:
    train, _ = digits()
    plan = replace(a_plan(train), relation=relation)
    for epsilon in (1.0, 10.0):
        rounded = plan.calibrate(epsilon)
        # What each sum moves by, over its noise, squared: whatever the rank, it adds up to one
        # Gaussian that costs what was asked. A replaced record moves counts and products by less,
        # and they have less noise then.
        whole = gaussian_multiplier(epsilon, 1e-5) ** -2
        for rank in (0, 8):
            moved = [
                (query.line.replacement_factor if relation is Relation.REPLACE_ONE else 1.0)
                / query.site_multiplier
                for query in chosen(rounded, rank).queries()
            ]
            assert whole * (1 - 1e-4) < sum(m**2 for m in moved) <= whole
        assert rounded.guarantee().epsilon == pytest.approx(epsilon, rel=1e-5)
        (cost,) = rounded.costs()
        assert cost.epsilon <= epsilon
        assert documents.from_json(Plan, documents.as_json(rounded), name="plan") == rounded
    noise = [rounded.query(name).site_multiplier for name in (CLASS_SIZES, CENTRES, SPREAD)]
    shares = [line.share for line in rounded.outline if line.name in (CLASS_SIZES, CENTRES, SPREAD)]
    factors = (COUNTED, 2.0, COUNTED) if relation is Relation.REPLACE_ONE else (1.0, 1.0, 1.0)
    for own, share, factor in zip(noise, shares, factors, strict=True):
        assert own * math.sqrt(share) == pytest.approx(factor * (rounded.multiplier or 0.0))


def test_a_release_of_rounded_noise_says_so_and_draws_it(monkeypatch: pytest.MonkeyPatch) -> None:
    train, _ = digits()
    drawn: list[float] = []
    law = capemix.sums.share.rounded_gaussian
    monkeypatch.setattr(
        capemix.sums.share, "rounded_gaussian", lambda sigma: (drawn.append(sigma), law(sigma))[1]
    )
    release = release_of(
        train, "class-gaussian", epsilon=1.0, law="rounded", source=SeededSource(1),
        normalise=PublicMap.of_range(0, 16),
    )  # fmt: skip
    assert len(drawn) >= len(release.plan.names)
    assert documents.as_json(release.plan)["law"] == "rounded"
    assert "rounded Gaussian" in str(documents.as_json(release.guarantee))


def test_the_choice_of_rank_leaves_the_total_and_the_first_sum_as_they_are() -> None:
    rows, _ = digits()
    plan = a_plan(rows, FEDERATION).calibrate(1.0)
    noise = {chosen(plan, rank).query(CLASS_SIZES).deviation for rank in (0, 4, MOST_RANK)}
    assert len(noise) == 1


@dataclass(frozen=True)
class Lines(Method):
    """A method of two sums of which one record adds to one of four groups, twice as much."""

    kind: Literal["lines"] = "lines"

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:  # noqa: ARG002
        groups = 4
        return (
            QueryShape("a", "", "moments", 3, share=0.25),
            QueryShape("b", "", "moments", 5, groups, l2_norm_bound=2.0, share=0.75),
        )

    def release(self, sums: Any) -> SyntheticRows:
        raise NotImplementedError


def test_sums_compose_as_one_gaussian() -> None:
    """Without sites nothing is on top: Rényi accounting is a little above the exact figure."""
    rows, _ = digits()
    plan = a_plan(rows, method=Lines(), delta=1e-6).calibrate(2.0)
    multipliers = [plan.query(name).noise_multiplier for name in "ab"]
    together = sum(m**-2 for m in multipliers) ** -0.5
    assert together == pytest.approx(plan.multiplier)
    exact = gaussian_epsilon(together, 1e-6)
    assert exact <= 2.0 < 1.2 * exact
    assert multipliers[0] / multipliers[1] == pytest.approx(math.sqrt(3.0))
    assert plan.query("b").deviation == pytest.approx(2.0 * multipliers[1])


@pytest.mark.parametrize("relation", list(Relation))
def test_draws_that_leave_nothing_to_chance_cost_what_a_gaussian_costs(relation: Relation) -> None:
    """The closed form, against the loss distribution of draws that are all but certain."""
    sure = [Participation(3, 10**6, 10**6), Participation(2, 10**6, 10**6)]
    nearly = [replace(one, selected=10**6 - 1) for one in sure]
    exact, close = (epsilon_pld(given, 2.0, 1e-5, relation) for given in (sure, nearly))
    assert exact is not None
    assert exact == pytest.approx(close, rel=5e-3)
    ends = 2.0 if relation is Relation.REPLACE_ONE else 1.0
    assert exact == gaussian_epsilon(2.0 / ends / math.sqrt(3.0), 1e-5)


@pytest.mark.parametrize("name", [CLASS_SIZES, CENTRES, SPREAD])
def test_the_noise_of_a_sum_has_the_scale_that_is_accounted(name: str) -> None:
    """Four sites, one colluding: what the others leave on the sum, over what a record can add."""
    rows, _ = digits()
    plan = chosen(a_plan(rows, FEDERATION).calibrate(1.0), 0)
    nothing = rows.take(np.zeros(len(rows), dtype=bool))
    frame = Projection(PublicMap.of_range(0, 16), rows.width, len(rows.classes))
    asked: Statistic = {
        CLASS_SIZES: ClassCounts(rows.width, len(rows.classes)),
        CENTRES: Moments(frame, 2.0, (0.0, 1.0)),
        SPREAD: Spreads(frame, 2.0, apart=False),
    }[name]
    query = plan.query(name, asked)
    size = math.prod(query.shape)
    noise = np.concatenate(
        [
            sum_shares(query, [nothing] * 4, SeededSource(seed)).reshape(-1)
            for seed in range(math.ceil(4000 / size))
        ]
    )
    honest = noise * math.sqrt(3 / 4)
    share = query.line.share / sum(line.share for line in plan.body)
    accounted = (plan.multiplier or 0.0) / math.sqrt(share)

    def p_value(scale: float) -> float:
        found = float((honest**2).sum() / scale**2)
        return 2 * min(stats.chi2.cdf(found, len(honest)), stats.chi2.sf(found, len(honest)))

    assert p_value(accounted) > 1e-4
    assert p_value(accounted * 1.1) < 1e-9
    assert p_value(accounted / 1.1) < 1e-9


def test_a_sum_comes_back_from_a_message_and_adds_no_more_than_it_says() -> None:
    rows, _ = digits()
    plan = chosen(a_plan(rows, FEDERATION).calibrate(1.0), 5)
    rng = np.random.default_rng(0)
    frame = Projection(
        PublicMap.of_range(0, 16), 64, 10,
        centre=rng.normal(size=(10, 64)), basis=rng.normal(size=(64, 5)), scale=np.ones(5),
    )  # fmt: skip
    step = ReleaseStep(bytes(16), plan, SPREADS, Spreads(frame, 2.0))
    assert step.misfit() is None
    again = ReleaseStep.from_json(step.as_json())
    assert again.as_json() == step.as_json()
    one, two = (
        sum_shares(each.query, [rows] * 4, SeededSource(1)).tobytes() for each in (step, again)
    )
    assert one == two
    longer = Moments(replace(frame, basis=None, scale=None), 2.0, (0.0, 1.1))
    with pytest.raises(InputError, match="with a norm bound of 1"):
        plan.query(CENTRES, longer)
    assert "adds up something else" in str(replace(step, name=CENTRES, statistic=longer).misfit())
    more = step.as_json()
    more["plan"]["chosen"]["rank"] = 6  # noise for other directions than are added up
    assert "adds up something else" in str(ReleaseStep.from_json(more).misfit())
    more["plan"]["chosen"]["rank"] = MOST_RANK + 1
    with pytest.raises(ProtocolError, match="chosen rank is not possible"):
        ReleaseStep.from_json(more)


@pytest.mark.parametrize(
    "bad",
    [
        {"shape": [2], "f8": "AAAA"},
        {"shape": [-1], "f8": ""},
        {"shape": [1 << 40], "f8": ""},
        {"shape": "2", "f8": ""},
        {"f8": ""},
        [1.0],
        documents.as_json(np.array([np.nan])),
    ],
)
def test_arrays_that_were_not_written_by_us_are_refused(bad: Any) -> None:
    said = documents.as_json(Projection(PublicMap(), 2, 1, scale=np.ones(2)))
    documents.from_json(Projection, said, name="a projection")
    with pytest.raises(InputError):
        documents.from_json(Projection, said | {"scale": bad}, name="a projection")


# -- what is made of the sums ----------------------------------------------------------------------


def wigner(size: int, deviation: float, seed: int) -> Real:
    half = np.random.default_rng(seed).normal(size=(size, size)) * deviation / 2
    return np.asarray(half + half.T)  # deviation / sqrt(2) off the diagonal, deviation on it


def test_noise_has_its_largest_eigenvalue_at_the_edge() -> None:
    for size in (100, 300):
        largest = [np.linalg.eigvalsh(wigner(size, 0.3, s))[-1] for s in range(20)]
        assert np.mean(largest) == pytest.approx(wigner_edge(0.3, size), rel=0.05)


def test_directions_that_stand_out_keep_their_variance_and_noise_is_evened_out() -> None:
    size, edge = 80, wigner_edge(0.02, 80)
    true = np.diag(np.r_[np.full(76, 0.05), 1.0, 2.0, 4.0, 8.0])
    found, directions, flat = cleaned_spread(true + wigner(size, 0.02, 1), edge)
    assert found[-4:] == pytest.approx([1.0, 2.0, 4.0, 8.0], rel=0.1)
    assert 60 <= flat <= 76
    assert np.ptp(found[:flat]) < 1e-9  # what is below the edge is told apart by nobody
    assert found.sum() == pytest.approx(np.trace(true), rel=0.1)
    assert abs(directions[-1, -1]) > 0.99
    raw = np.linalg.eigvalsh(true + wigner(size, 0.02, 1))
    assert raw[0] < 0 < found[0]


def test_texture_is_the_part_of_a_column_that_no_clear_direction_has() -> None:
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(5, 5)))[0]
    variances = np.array([0.1, 0.1, 0.1, 2.0, 3.0])
    whole = np.diag((turn * variances) @ turn.T)
    clear = np.diag((turn[:, 3:] * variances[3:]) @ turn[:, 3:].T)
    assert texture_of(variances, turn, 3) ** 2 == pytest.approx(whole - clear)
    assert texture_of(variances, turn, 5) ** 2 == pytest.approx(whole)
    assert (texture_of(variances, turn, 0) == 0).all()


def test_texture_has_a_strength_of_each_rows_own() -> None:
    """A fourth moment tells it from texture of one strength for all, of the same variance."""
    spread = 1e-4 * np.eye(4)[None]
    sizes, centres, texture = np.array([10.0]), np.zeros((1, 4)), np.array([0.5, 1.0, 2.0, 0.0])
    facts = Facts(("a", "b", "c", "d"), "y", (0,), normalise=PublicMap())
    one, other = (
        drawn_rows(facts, ClassGaussians(sizes, centres, spread, each), 100_010, SeededSource(1))[
            0
        ][10:]
        for each in (texture, np.zeros(4))
    )
    added = one - other
    assert (added[:, 3] == 0).all()
    unit = added[:, :3] / texture[:3]
    even = np.random.default_rng(2).uniform(*STRENGTH, len(unit)).astype(np.float32)
    normal = np.random.default_rng(3).normal(size=len(unit))
    for column in unit.T:
        assert stats.ks_2samp(column, even * normal).pvalue > 1e-4
        one_strength = np.sqrt((even**2).mean()) * normal
        assert stats.ks_2samp(column, one_strength).pvalue < 1e-9
    # The same strength for all columns of a row, and no sign in common.
    assert np.corrcoef(np.abs(unit.T))[0, 1] > 0.1
    assert abs(np.corrcoef(unit.T)[0, 1]) < 0.02


def test_a_release_of_more_rows_than_records_has_the_texture_that_its_noise_leaves() -> None:
    """At a small epsilon few directions stand out, and rows beyond one a record are wider."""
    train, _ = digits()
    few, many = (released(train, 1.0, 3, samples=count) for count in (1200, 6000))
    plain, most_beyond = (made.features[made.labels == 0] for made in (few, many))
    assert most_beyond.std(axis=0).mean() > 1.15 * plain.std(axis=0).mean()


def test_a_class_of_nothing_but_noise_has_everybodys_spread() -> None:
    edge = wigner_edge(0.05, 40)
    noise = wigner(40, 0.05, 2)
    assert np.abs(own_spread(np.eye(40) + noise, 1.1 * edge) - np.eye(40)).max() < 1e-9
    own = np.eye(40)
    own[0, 0] = 5.0
    assert own_spread(own + noise, edge)[0, 0] == pytest.approx(5.0, rel=0.1)
    assert np.linalg.eigvalsh(own_spread(-own, edge))[0] > 0


def test_centres_are_shrunk_as_far_as_noise_reaches() -> None:
    rng = np.random.default_rng(4)
    true = np.zeros((50, 2))
    true[:, 0] = rng.normal(size=50)
    noisy = true + 0.5 * rng.normal(size=true.shape)
    found = shrunk_centres(noisy, np.full(50, 0.25))
    assert ((found - true) ** 2).mean() < 0.7 * ((noisy - true) ** 2).mean()
    assert np.abs(found[:, 1]).max() < 0.5 * np.abs(noisy[:, 1]).max()
    assert np.array_equal(shrunk_centres(noisy, np.zeros(50)), noisy)


def test_class_sizes_are_drawn_together_as_far_as_noise_drove_them_apart() -> None:
    rng = np.random.default_rng(8)
    alike, apart = np.full(10, 100.0), np.array([40.0, 400.0, 100.0, 60.0])
    noisy = alike + 28 * rng.normal(size=(500, 10))
    found = np.stack([shrunk_sizes(each, 28.0) for each in noisy])
    assert ((found - alike) ** 2).mean() < 0.3 * ((noisy - alike) ** 2).mean()
    noisy = apart + 10 * rng.normal(size=(500, 4))
    found = np.stack([shrunk_sizes(each, 10.0) for each in noisy])
    assert ((found - apart) ** 2).mean() < 1.01 * ((noisy - apart) ** 2).mean()
    assert np.array_equal(shrunk_sizes(apart, 0.0), apart)
    one_large = np.array([10.0] * 99 + [200.0])
    noisy = one_large + 28 * rng.normal(size=(500, 100))
    found = np.stack([shrunk_sizes(each, 28.0) for each in noisy])
    assert np.abs(found - np.maximum(noisy, 1.0)).max() <= 28.001
    assert np.allclose(found[:, -1], noisy[:, -1] - 28)
    assert ((found - one_large) ** 2).mean() < 0.4 * ((noisy - one_large) ** 2).mean()
    for few in ([70.0], [70.0, 30.0], [70.0, 30.0, 20.0]):
        assert shrunk_sizes(np.array(few), 28.0).tolist() == few
    assert shrunk_sizes(np.array([-500.0, 900.0]), 1.0).tolist() == [1.0, 900.0]


@pytest.mark.parametrize("declared", [True, False])
def test_the_noise_that_sizes_are_freed_of_is_the_noise_they_have(
    declared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a declared range in a sum of the method's own, without one in an opening sum."""
    seen, sizes = [], np.arange(500) % 20 + 5

    def spy(counts: Real, deviation: float) -> Real:
        found = shrunk_sizes(counts, deviation)
        seen.append((counts, deviation, found))
        return found

    for module in ("projected", "measured"):
        monkeypatch.setattr(f"capemix.methods.{module}.shrunk_sizes", spy)
    labels = np.repeat(np.arange(500), sizes)
    rows = labeled_rows(np.random.default_rng(1).uniform(size=(len(labels), 2)), labels, range(500))
    how = PublicMap.of_range(0, 1) if declared else None
    made = release_of(rows, "class-gaussian", epsilon=2, normalise=how, source=SeededSource(4))
    ((counts, deviation, found),) = seen
    assert deviation > 5
    drawn = np.bincount(made.labels)  # has these sizes and not the noisy ones
    assert np.abs(drawn - found).mean() < 1 < np.abs(drawn - np.maximum(counts, 1.0)).mean()

    def p_value(tried: float) -> float:
        law = stats.chi2(len(sizes))
        square = float(((counts - sizes) ** 2).sum()) / tried**2
        return float(2 * min(law.cdf(square), law.sf(square)))

    assert p_value(deviation) > 1e-3
    assert p_value(0.8 * deviation) < 1e-6
    assert p_value(1.25 * deviation) < 1e-6


def test_two_looks_are_averaged_for_the_least_noise() -> None:
    rng = np.random.default_rng(6)
    looks = rng.normal(size=20_000), 0.5 * rng.normal(size=20_000)
    found, deviation = averaged(looks[0], 1.0, looks[1], 0.5)
    assert found.std() == pytest.approx(deviation, rel=0.03)
    for part in (0.0, 0.1, 0.3, 0.5, 1.0):
        assert deviation <= math.hypot(part, (1 - part) * 0.5)
    nearer, none = averaged(looks[0], 0.0, looks[1], 0.0)
    assert np.array_equal(nearer, looks[1])
    assert none == 0.0


def test_from_its_own_centre_a_class_is_seen_with_less_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two classes far apart: what the second look adds is as long as a class is wide."""
    seen: dict[str, float] = {}
    first = ProjectedSums.first

    def watched(self: ProjectedSums, name: str, *args: Any, **asked: Any) -> Any:
        sums, seen[name] = first(self, name, *args, **asked)
        return sums, seen[name]

    monkeypatch.setattr(ProjectedSums, "first", watched)
    rng = np.random.default_rng(8)
    labels = np.repeat([0, 1], 1000)
    features = np.where(labels == 0, 4.0, 12.0)[:, None] + rng.normal(size=(2000, 9))
    rows = LabeledRows(features, labels, (0, 1), tuple(f"x{at}" for at in range(9)), "y")
    release = released(rows, 4.0, 2)
    assert list(seen) == [CENTRE, CENTRES, REFINED]
    assert seen[REFINED] < 0.5 * seen[CENTRES]
    ours = class_means(release.features, release.labels, 2)
    assert ours == pytest.approx(class_means(features, labels, 2), abs=0.3)


def test_clamped_rows_keep_their_centre_and_variance() -> None:
    rng = np.random.default_rng(5)
    spread = 0.3 * np.array([[1.0, 0.5], [0.5, 1.0]])
    centre = np.array([-0.6, 0.2])
    rows = clamped_rows(centre, spread, rng.normal(size=(20_000, 2)), -1.0, 1.0)
    assert rows.min() >= -1.0
    assert rows.max() <= 1.0
    assert rows.mean(axis=0) == pytest.approx(centre, abs=0.01)
    assert rows.var(axis=0) == pytest.approx([0.3, 0.3], rel=0.05)
    assert np.corrcoef(rows.T)[0, 1] > 0.35
    plain = np.clip(centre + rng.normal(size=(20_000, 2)) * math.sqrt(0.3), -1.0, 1.0)
    assert abs(plain.mean(axis=0)[0] - centre[0]) > 0.03  # what clamping alone would do


@pytest.mark.parametrize(
    ("records", "classes", "columns", "multiplier", "rank"),
    [
        (1257, 10, 64, 1.07, 15),  # digits at epsilon 10
        (1257, 10, 64, 8.1, 0),  # at 1: no direction of a class stands out
        (398, 2, 30, 1.07, 20),  # breast cancer at 10
        (60_000, 10, 64, 8.1, 51),
        (10**9, 2, 30, 1e-3, 30),
    ],
)
def test_the_rank_is_that_of_what_stands_out(
    records: int, classes: int, columns: int, multiplier: float, rank: int
) -> None:
    assert tuned_rank(records, classes, columns, multiplier) == rank
    if rank:
        edge = 2 * rank**1.5 * multiplier / (records / classes)
        assert edge <= 1.0
        assert rank == columns or 2 * (rank + 1) ** 1.5 * multiplier / (records / classes) > 1.0


# -- releases --------------------------------------------------------------------------------------


def class_means(rows: Real, labels: npt.NDArray[np.int64], classes: int) -> Real:
    return np.stack([rows[labels == k].mean(axis=0) for k in range(classes)])


def released(sites: Any, epsilon: float, seed: int, **asked: Any) -> Any:
    return release_of(
        sites, "class-gaussian", epsilon=epsilon, source=SeededSource(seed),
        normalise=PublicMap.of_range(0, 16), **asked,
    )  # fmt: skip


def test_with_a_large_budget_rows_have_the_datas_moments() -> None:
    train, _ = digits()
    # Not clipped at the median, nothing would be missing: as it is, length is lost.
    release = released(train, 46.0, 0, samples=20_000)
    ours = class_means(release.features, release.labels, 10)
    true = class_means(train.features, train.labels, 10)
    assert np.corrcoef(ours.ravel(), true.ravel())[0, 1] > 0.99
    assert np.abs(ours - true).mean() < 0.6  # of a range of 16
    assert release.features.min() >= 0
    assert release.features.max() <= 16


@pytest.mark.parametrize("split", ["stratified", "dirichlet"])
def test_sites_find_what_one_curator_finds(split: str) -> None:
    """Ten sites, any split: the same means within the noise, which is S/h in variance."""
    train, _ = digits()
    parts = partition(train, 10, split, seed=3, alpha=0.1)
    one = [released(train, 10.0, seed, samples=4000) for seed in range(4)]
    ten = [released(parts, 10.0, seed, samples=4000, scheme="cape") for seed in range(4)]
    means = [
        np.stack([class_means(r.features, r.labels, 10) for r in found]) for found in (one, ten)
    ]
    apart = means[0].mean(axis=0) - means[1].mean(axis=0)
    noise = math.sqrt(
        (means[0].var(axis=0, ddof=1).mean() + means[1].var(axis=0, ddof=1).mean()) / 4
    )
    assert np.sqrt((apart**2).mean()) < 1.5 * noise
    assert ten[0].guarantee.epsilon == pytest.approx(10.0, rel=1e-3)
    assert ten[0].guarantee.adversary.sites == 10


def test_sites_that_noise_for_themselves_pay_for_it() -> None:
    """Conventional: every upload is seen, so each has all of the noise, and the sum S times its
    variance; with a large budget it finds the same."""
    train, _ = digits()
    parts = partition(train, 3, "iid", seed=3)
    noisy = {
        scheme: released(parts, 10.0, 1, samples=4000, scheme=scheme)
        for scheme in ("cape", "conventional")
    }
    deviations = {
        scheme: chosen(found.plan, 0).query(CENTRES).deviation for scheme, found in noisy.items()
    }
    honest, sites = 2, 3  # one of three may collude
    ratio = math.sqrt(sites) / math.sqrt(sites / honest)
    assert deviations["conventional"] / deviations["cape"] == pytest.approx(ratio, rel=1e-2)
    true = class_means(train.features, train.labels, 10)
    found = released(parts, 45.0, 1, samples=4000, scheme="conventional")
    ours = class_means(found.features, found.labels, 10)
    assert np.corrcoef(ours.ravel(), true.ravel())[0, 1] > 0.99


def test_digits_at_epsilon_1_and_10_train_a_classifier() -> None:
    train, test = digits()
    how = Preparation(PublicMap.of_range(0, 16), 1e30)
    for epsilon, least in ((1.0, 0.85), (10.0, 0.92)):
        rows = released(train, epsilon, 7)
        made = replace(train, features=rows.features.astype(np.float64), labels=rows.labels)
        score = train_and_test(made, test, how, prepared=True).declared_public()
        assert score.accuracy > least
        assert (rows.plan.chosen["rank"] > 4) == (epsilon == 10.0)
    assert any(line.line == SPREADS for line in rows.plan.budget())


def test_the_release_says_what_it_read_and_what_it_cost(tmp_path: Path, capemix: Capemix) -> None:
    ran = capemix(
        "synth", "digits", "--method", "class-gaussian", "--epsilon", 2, "--scheme", "cape",
        "--sites", 5, "--no-ledger", "--samples", 300, "--out", tmp_path / "out", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.json["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert ran.json["method"] == "class-gaussian"
    manifest = (tmp_path / "out" / "manifest.json").read_text()
    for line in (CENTRES, REFINED, SPREAD, "norms for the spread"):
        assert f'"line": "{line}"' in manifest
    scored = capemix("evaluate", tmp_path / "out", "--test", "digits", "--json")
    assert scored.json["synthetic"]["accuracy"] > 0.8


def test_what_has_no_meaning_for_class_gaussians_is_refused(
    tmp_path: Path, capemix: Capemix
) -> None:
    for words in (["--mixture", 4], ["--clip", 1.0], ["--selection", "poisson"]):
        ran = capemix(
            "synth", "digits", "--method", "class-gaussian", "--epsilon", 1, "--no-ledger",
            "--out", tmp_path / "no", *words,
        )  # fmt: skip
        assert ran.code == 2
        assert f"{words[0]} is no option of the method class-gaussian" in ran.err
    assert not (tmp_path / "no").exists()
    ran = capemix("calibrate", "--method", "class-gaussian", "--epsilon", 1, "--classes", 2)
    assert "is for at most 250 columns" in ran.err


@pytest.mark.parametrize("listed", [False, True])
def test_a_table_of_unknown_range_and_classes_pays_for_them(listed: bool) -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 4000)
    table = np.stack([1000 + 200 * label + 50 * rng.normal(size=4000), rng.normal(size=4000)], 1)
    asked: dict[str, Any] = {} if listed else {"classes": (0, 1)}
    made = Synthesizer(epsilon=4.0, method="class-gaussian", test_seed=1, **asked).fit(table, label)
    lines = made.release_.plan.budget()
    looked = [line.line for line in lines]
    assert looked[:3] == ["class list" if listed else "class sizes", "ranges", "means and scales"]
    assert looked.count("class sizes") == (0 if listed else 1)
    assert made.classes_.tolist() == [0, 1]
    assert made.guarantee_.epsilon == pytest.approx(4.0, rel=1e-2)
    assert lines[-1].epsilon_composed == pytest.approx(4.0, rel=1e-2)
    rows, labels = made.sample()
    first = [rows[labels == k][:, 0].mean() for k in (0, 1)]
    assert 100 < first[1] - first[0] < 300


@pytest.mark.parametrize("asked", [{"samples": 10**12}, {"samples": 1000, "redraw": 10**12}])
def test_more_rows_than_the_memory_holds_are_refused_before_anything_is_charged(
    tmp_path: Path, asked: dict[str, int]
) -> None:
    train, _ = digits()
    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.lineage("digits").set_limit(Limit(1.0, 2e-5))
    with pytest.raises(InputError, match="than the memory holds"):
        release_of(
            train,
            "mixing" if "redraw" in asked else "class-gaussian",
            epsilon=0.5,
            source=SystemSource(),
            ledger=ledger,
            lineage="digits",
            **asked,
        )
    assert ledger.lineage("digits").account().used == 0.0


def test_rows_are_counted_with_what_it_takes_to_draw_and_write_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train, _ = digits()
    table = replace(train, image_shape=None)
    monkeypatch.setattr(machine, "memory", lambda: 64 * 40 * 1000.0)
    check_room(a_plan(table, samples=1000))
    check_room(a_plan(table, class_sizes=(100,) * 10))
    check_room(a_plan(table))
    with pytest.raises(InputError, match="samples asks for more rows"):
        check_room(a_plan(table, samples=1001))
    with pytest.raises(InputError, match="samples asks for more rows"):
        check_room(a_plan(table, class_sizes=(101,) * 10))
    seen = ImageClusters(soft_labels=True)
    check_room(a_plan(train, class_sizes=(62,) * 10, method=seen))  # four rows a record
    with pytest.raises(InputError, match="samples asks for more rows"):
        check_room(a_plan(train, class_sizes=(63,) * 10, method=seen))


def test_a_wide_release_has_the_same_bits_on_any_number_of_cores() -> None:
    """So many columns that matrix products are split among threads; whole numbers, so that the rows
    themselves do not depend on them."""
    rng = np.random.default_rng(6)
    features, labels = rng.integers(-1, 2, size=(900, 250)).astype(float), np.arange(900) % 3
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            made = release_of(
                labeled_rows(features, labels),
                "class-gaussian",
                epsilon=8.0,
                source=SeededSource(3),
                normalise=PublicMap(low=-1.0, high=1.0),
            )
        found.append(made.features.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("version", [0, 1])
def test_a_containers_limit_counts_where_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int
) -> None:
    paths = tmp_path / "second", tmp_path / "first"
    monkeypatch.setattr(machine, "_LIMITS", paths)
    whole = machine.memory()
    paths[version].write_text("max\n")
    assert machine.memory() == whole
    paths[version].write_text("4096\n")
    assert machine.memory() == 4096.0


def test_rows_of_more_sites_than_the_scheme_has_are_refused_before_they_are_charged(
    tmp_path: Path,
) -> None:
    train, _ = digits()
    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.lineage("digits").set_limit(Limit(1.0, 2e-5))
    with pytest.raises(InputError, match="sites must be 1 for this plan"):
        release_of(
            partition(train, 3, "iid", seed=1),
            "class-gaussian",
            epsilon=0.5,
            source=SystemSource(),
            normalise=PublicMap.of_range(0, 16),
            ledger=ledger,
            lineage="digits",
        )
    assert ledger.lineage("digits").account().used == 0.0


def test_no_lattice_has_more_noise_than_its_tables_hold() -> None:
    for multiplier in (1212.1212121212122, *(40_000 / k for k in range(1, 2000))):
        assert lattice_norm_bound(multiplier, 100) * multiplier <= MAX_SIGMA


def test_a_release_is_charged_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, _ = digits()
    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.lineage("digits").set_limit(Limit(1.0, 2e-5))
    drawn: list[str] = []
    real = capemix.engines.local.sum_shares

    def watched(*args: Any, **kwargs: Any) -> Any:
        drawn.append(f"{ledger.lineage('digits').account().used:.3f}")
        return real(*args, **kwargs)

    monkeypatch.setattr(capemix.engines.local, "sum_shares", watched)
    asked: dict[str, Any] = {
        "method": "class-gaussian", "normalise": PublicMap.of_range(0, 16), "ledger": ledger,
        "lineage": "digits",
    }  # fmt: skip
    release_of(train, epsilon=0.8, source=SystemSource(), **asked)
    assert drawn
    assert set(drawn) == {drawn[0]} != {"0.000"}
    drawn.clear()
    with pytest.raises(BudgetError):
        release_of(train, epsilon=0.8, source=SystemSource(), **asked)
    assert not drawn


def test_without_noise_nothing_is_promised() -> None:
    train, _ = digits()
    release = released(train, math.inf, 0)
    assert release.guarantee.epsilon is None


def test_plans_that_make_no_sense_are_refused() -> None:
    train, _ = digits()
    with pytest.raises(InputError, match="for each of the 10 classes"):
        a_plan(train, class_sizes=(1, 2))
    with pytest.raises(InputError, match="at least one row for each class"):
        a_plan(train, samples=3)
    with pytest.raises(InputError, match="has no noise yet"):
        chosen(a_plan(train), 0).query(CENTRES)
    wide = Facts(tuple(f"p{n}" for n in range(784)), "y", (0, 1), normalise=PublicMap())
    with pytest.raises(InputError, match="at most 250 columns"):
        Plan(wide, ClassGaussian())
    for epsilon in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match=r"^epsilon must be above 0"):
            a_plan(train).calibrate(epsilon)


def test_no_sum_of_private_rows_shows_in_what_is_printed() -> None:
    rows = np.full((3, 2), 7.125)
    asked = Moments(Projection(PublicMap(), 2, 1), 100.0, (0.0, 100.0))
    sums = summed(rows, np.zeros(3, dtype=np.int64), asked)
    assert sums[0] == pytest.approx([21.375, 21.375])
    made = SummedRows(sums, asked.l2_norm_bound, None)
    found = ClassGaussians(np.array([7.125]), rows[:1], np.eye(2)[None], rows[0])
    for text in (repr(made), str(made), repr(found), f"{found}"):
        assert "7.1" not in text
        assert "21." not in text
