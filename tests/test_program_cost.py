"""What a program of sums costs: its sums as one Gaussian where every record takes part once, and
what opens it added where records are drawn. Never more than was asked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from capemix.accounting.cost import together
from capemix.accounting.sampled import ORDERS
from capemix.data import LabeledRows
from capemix.engines.local import LocalEngine
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.federation import MaskKind
from capemix.guarantee import Status
from capemix.methods import Method
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.mixing import MIXTURES, Mixing
from capemix.plan import Plan, make_plan
from capemix.program_cost import ProgramCost
from capemix.queries import Relation
from capemix.randomness.source import SeededSource
from capemix.run import run
from capemix.sums.query import NoiseLaw
from capemix.sums.steps import ColumnMap, PublicMap

RANGE = PublicMap.of_range(-4, 5)
COLUMNS = ("a", "b", "c")


def facts(**known: Any) -> Facts:
    return Facts(**{"features": COLUMNS, "label": "y", "classes": ("no", "yes"), **known})


IMAGES = Facts(tuple(map(str, range(64))), "y", (0, 1, 2), normalise=RANGE, image_shape=(8, 8))

ONCE: dict[str, tuple[Facts, Method]] = {
    "class Gaussians, nothing declared": (facts(), ClassGaussian()),
    "class Gaussians, no list": (facts(classes=None), ClassGaussian()),
    "class Gaussians, sizes declared": (facts(class_sizes=(50, 60)), ClassGaussian()),
    "class Gaussians, all declared": (
        facts(class_sizes=(50, 60), normalise=RANGE),
        ClassGaussian(),
    ),
    "image clusters": (IMAGES, ImageClusters()),
    "image clusters, soft labels": (IMAGES, ImageClusters(soft_labels=True)),
}
DRAWN: dict[str, tuple[Facts, Method]] = {
    "nothing declared": (facts(), Mixing()),
    "no list": (facts(classes=None), Mixing()),
    "range declared": (facts(normalise=RANGE), Mixing()),
    "all declared": (facts(class_sizes=(50, 60), normalise=RANGE), Mixing()),
}
WHO: dict[str, dict[str, Any]] = {
    "central": {},
    "cape": {"scheme": "cape", "sites": 5, "colluding": 2, "dropouts": 1},
    "Gaussian masks": {"scheme": "cape", "sites": 5, "masks": MaskKind.GAUSSIAN},
    "conventional": {"scheme": "conventional", "sites": 4},
}


def composed(plan: Plan, names: tuple[str, ...], delta: float) -> float:
    """By an independent accountant: a Gaussian for each sum, with the noise that it is carried out
    with, as the strongest view has it."""
    replaced, kinds = plan.relation is Relation.REPLACE_ONE, NeighboringRelation
    relation = kinds.REPLACE_ONE if replaced else kinds.ADD_OR_REMOVE_ONE
    oracle = RdpAccountant(list(ORDERS), relation)
    for name in names:
        noised = plan.query(name).noised()
        multiplier = noised.view_multipliers[noised.strongest]
        oracle.compose(SelfComposedDpEvent(GaussianDpEvent(multiplier / (1 + replaced)), 1))
    return float(oracle.get_epsilon(delta))


@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("relation", list(Relation))
def test_sums_in_which_a_record_takes_part_once_cost_what_gaussians_compose_to(
    name: str, who: str, relation: Relation
) -> None:
    known, method = ONCE[name]
    if known.classes is None and who != "central":
        pytest.skip("sites find no list")
    plan = make_plan(known, method, relation=relation, **WHO[who]).calibrate(2.0)
    assert not plan.drawn
    epsilon = plan.guarantee().epsilon
    assert epsilon is not None
    assert 2.0 * (1 - 1e-3) < epsilon <= 2.0
    assert composed(plan, plan.names, plan.delta - plan.list_failure) == pytest.approx(
        epsilon, rel=1e-4
    )
    # With less noise the guarantee says so.
    louder = replace(plan, multiplier=(plan.multiplier or 0.0) / 1.1)
    assert (louder.guarantee().epsilon or math.inf) > 2.0


@pytest.mark.parametrize("relation", list(Relation))
def test_the_square_of_a_cost_is_that_of_the_gaussian_that_it_is(relation: Relation) -> None:
    """Whose Renyi divergence of order a is a/2 of it; drawn records have none."""
    known, method = ONCE["class Gaussians, sizes declared"]
    plan = make_plan(known, method, relation=relation).calibrate(2.0)
    (cost,) = plan.costs()
    assert cost.squared is not None
    for order, value in cost.curve.items():
        assert value == pytest.approx(order / 2 * cost.squared, rel=1e-9)
    one_by_one = plan.costs_from(plan.names[0], relation)
    assert together(one_by_one).squared == pytest.approx(cost.squared, rel=1e-9)
    drawn = make_plan(*DRAWN["all declared"], relation=relation).calibrate(2.0)
    assert [cost.squared for cost in drawn.costs()] == [None]
    assert together([cost, *drawn.costs()]).squared is None


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("who", ["central", "cape", "Gaussian masks"])
def test_where_records_are_drawn_what_opens_the_program_is_added(name: str, who: str) -> None:
    known, method = DRAWN[name]
    if known.classes is None and who != "central":
        pytest.skip("sites find no list")
    plan = make_plan(known, method, **WHO[who]).calibrate(2.0)
    whole = plan.guarantee()
    costs = plan.costs()
    assert whole.epsilon is not None
    assert 2.0 * (1 - 1e-3) < whole.epsilon <= 2.0
    assert whole.epsilon == pytest.approx(sum(cost.epsilon for cost in costs), abs=1e-12)
    assert whole.delta == pytest.approx(sum(cost.delta for cost in costs)) == pytest.approx(1e-5)
    if not plan.opening:
        assert len(costs) == 1
        return
    part = ProgramCost(plan).part
    opened = composed(plan, plan.names[:-1], part * plan.delta - plan.list_failure)
    assert opened == pytest.approx(costs[0].epsilon, rel=1e-4)
    assert costs[0].epsilon == pytest.approx(2.0 * part, rel=1e-3)
    assert costs[0].delta == part * plan.delta


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 10.0, 40.0])
@pytest.mark.parametrize("name", [*ONCE, *DRAWN])
def test_no_guarantee_is_above_what_was_asked(name: str, epsilon: float) -> None:
    known, method = (ONCE | DRAWN)[name]
    plan = make_plan(known, method).calibrate(epsilon)
    guarantee = plan.guarantee()
    assert guarantee.epsilon is not None
    assert guarantee.epsilon <= epsilon
    assert guarantee.delta <= plan.delta * (1 + 1e-12)
    assert guarantee.status is Status.GUARANTEE
    budget = plan.budget()
    assert (budget[-1].epsilon_composed or math.inf) <= epsilon * (1 + 1e-9)
    assert sum(line.share for line in budget) == pytest.approx(1.0)
    for choice in plan.method.choices(plan):
        chosen = replace(plan, chosen=choice).guarantee()
        assert (chosen.epsilon or math.inf) <= epsilon


@pytest.mark.parametrize("found", [(1, 1), (17, 17), (3_000, 40_000)])
def test_no_guarantee_is_above_what_was_asked_whatever_is_measured(
    found: tuple[int, int],
) -> None:
    mapped = ColumnMap((0.0,) * 3, (1.0,) * 3, (-1.0,) * 3, (1.0,) * 3)
    for method in (Mixing(), ClassGaussian()):
        plan = make_plan(facts(), method).calibrate(2.0)
        known = replace(plan.facts, class_sizes=found, normalise=mapped)
        if plan.drawn:
            known = replace(known, clip_norm=1.5)
        after = replace(plan, measured=known)
        after = after.settled() if plan.drawn else after
        assert after.opening_multiplier == plan.opening_multiplier
        assert (after.guarantee().epsilon or math.inf) <= 2.0
        if not plan.drawn:
            assert after.multiplier == plan.multiplier


def test_sums_that_compose_as_one_need_no_more_noise_than_epsilons_that_are_added() -> None:
    """Noise multipliers that the code of commit f3d3095 found for the same facts, of three columns
    and two classes, at epsilon 2 and delta 1e-5; it added the epsilons of measured facts and of
    moments."""
    before: dict[tuple[str, ...] | None, dict[bool, tuple[float | None, float]]] = {
        ("no", "yes"): {
            False: (10.332107746520315, 2.6631502578935544),
            True: (None, 2.149700072132082),
        },
        None: {
            False: (10.487056338657721, 2.663150257893554),
            True: (20.869721784358223, 2.377216766856811),
        },
    }
    for classes, by_range in before.items():
        for ranged, (opening, own) in by_range.items():
            known = facts(classes=classes, normalise=RANGE if ranged else None)
            plan = make_plan(known, ClassGaussian()).calibrate(2.0)
            assert plan.multiplier is not None
            assert plan.multiplier <= own * (1 + 1e-9)
            if opening is None:
                assert not plan.opening
                continue
            assert plan.opening_multiplier == pytest.approx(opening, rel=1e-9)
            assert plan.multiplier < 0.95 * own
            mixing = make_plan(known, Mixing()).calibrate(2.0)
            assert mixing.opening_multiplier == pytest.approx(opening, rel=1e-9)


@pytest.mark.parametrize("law", list(NoiseLaw))
def test_calibrating_again_changes_nothing(law: NoiseLaw) -> None:
    for known, method in (ONCE["class Gaussians, nothing declared"], DRAWN["range declared"]):
        plan = make_plan(known, method, law=law).calibrate(2.0)
        assert plan.calibrate(2.0) == plan
        assert plan.calibrate(math.inf).calibrate(2.0) == plan


def test_every_sum_has_a_graph_that_may_fall_apart() -> None:
    sparse: dict[str, Any] = {"scheme": "cape", "sites": 60, "colluding": 15}
    known = facts(class_sizes=(50, 60), normalise=RANGE)
    assert make_plan(known, Mixing(), **sparse, peers=14).calibrate(2.0)
    with pytest.raises(InputError, match="peers leaves more chance of failure"):
        make_plan(known, ClassGaussian(), **sparse, peers=14)
    plan = make_plan(known, ClassGaussian(), scheme="cape", sites=120).calibrate(2.0)
    [cost] = plan.costs()
    assert cost.failure == pytest.approx(len(plan.names) * plan.federation.graph_failure())
    assert 0 < cost.failure < plan.delta


def test_what_a_site_counts_sum_by_sum_is_no_less_than_the_whole() -> None:
    plan = make_plan(facts(), ClassGaussian(), scheme="cape", sites=5).calibrate(2.0)
    each = plan.costs_from(plan.names[0], Relation.ADD_REMOVE)
    assert len(each) == len(plan.names)
    [whole] = plan.costs()
    for order in ORDERS:
        assert sum(cost.curve[order] for cost in each) >= whole.curve[order] * (1 - 1e-12)
    assert sum(cost.distance for cost in each) >= whole.distance * (1 - 1e-12)


def test_draws_of_classes_that_turn_out_small_keep_the_epsilon_asked_for() -> None:
    """One draw a class of more records than there are: every record is in it. It was planned as a
    draw, and its noise waits for the sizes."""
    rows = LabeledRows(
        features=np.random.default_rng(0).normal(size=(400, 2)),
        labels=(np.arange(400) % 2).astype(np.int64),
        classes=("no", "yes"),
        feature_names=("a", "b"),
    )
    method = Mixing(samples=2, mixture=3000, clip=1.0)
    plan = make_plan(Facts.of(rows, normalise=PublicMap()), method).calibrate(1.0)
    made = run(plan, LocalEngine(rows, SeededSource(1)))
    assert isinstance(made.plan, Plan)
    assert all(group.always for group in made.plan.query(MIXTURES).participation)
    assert made.plan.drawn
    assert made.guarantee.epsilon == pytest.approx(1.0, rel=2e-3)
    assert (made.guarantee.epsilon or 0.0) <= 1.0
