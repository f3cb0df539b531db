"""What a program of sums costs: its sums as one Gaussian where every record takes part once, and
one composition with what opens it where records are drawn. Never more than was asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capemix.accounting.cost import together
from capemix.accounting.gaussian import gaussian_epsilon, gaussian_multiplier
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
from capemix.queries import COUNTED, QueryShape, Relation
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
    """The exact figure of a Gaussian for each sum, with the noise that it is carried out with, as
    the strongest view has it: a replaced record moves each as far as its line says."""
    moved = 0.0
    for name in names:
        noised = plan.query(name).noised()
        multiplier = noised.view_multipliers[noised.strongest]
        ends = noised.query.replacement_factor if plan.relation is Relation.REPLACE_ONE else 1.0
        moved += (ends / multiplier) ** 2
    return gaussian_epsilon(moved**-0.5, delta)


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
    choices = [replace(plan, chosen=choice) for choice in plan.method.choices(plan)]
    left = plan.delta - plan.list_failure
    for each in choices:
        assert composed(each, each.names, left) == pytest.approx(epsilon, rel=1e-4)
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
    choices = [replace(plan, chosen=choice) for choice in plan.method.choices(plan)]
    for each in choices:
        one_by_one = together(each.costs_from(each.names[0], relation))
        assert one_by_one.squared == pytest.approx(cost.squared, rel=1e-9)
    drawn = make_plan(*DRAWN["all declared"], relation=relation).calibrate(2.0)
    assert [cost.squared for cost in drawn.costs()] == [None]
    assert together([cost, *drawn.costs()]).squared is None


class Shared(Method):
    """Sums with these shares and factors."""

    kind: Literal["shared"] = "shared"  # type: ignore[misc]

    def __init__(self, shares: Sequence[float], factors: Sequence[float]) -> None:
        self.shares, self.factors = shares, factors

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:  # noqa: ARG002
        return tuple(
            QueryShape(f"sum {at}", "", "class counts", 1, share=share, replacement_factor=factor)
            for at, (share, factor) in enumerate(zip(self.shares, self.factors, strict=True))
        )

    def release(self, sums: Any) -> Any:
        raise NotImplementedError


@settings(max_examples=60, deadline=None)
@given(
    of=st.lists(st.tuples(st.floats(1e-3, 1.0), st.floats(COUNTED, 2.0)), min_size=1, max_size=6),
    relation=st.sampled_from(Relation),
    noise=st.floats(1.0, 50.0),
)
def test_however_noise_is_shared_out_the_whole_is_one_total_and_no_less_in_another_relation(
    of: list[tuple[float, float]], relation: Relation, noise: float
) -> None:
    """What neighbours move each sum by, over its noise, squared: all of it in the relation in which
    it is shared out, and no more than is charged in another."""
    shares, factors = zip(*of, strict=True)
    known = facts(class_sizes=(50, 60), normalise=RANGE)
    plan = make_plan(known, Shared(shares, factors), relation=relation, multiplier=noise)
    for asked in Relation:
        spent = 0.0
        for query in plan.queries():
            factor = query.line.replacement_factor if asked is Relation.REPLACE_ONE else 1.0
            spent += (factor / query.noise_multiplier) ** 2
        charged = ProgramCost(plan, asked).costs()[0].squared
        assert charged is not None
        assert spent <= charged * (1 + 1e-12)
        if asked is relation:
            assert spent == pytest.approx(charged) == pytest.approx(noise**-2)


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("who", ["central", "cape", "Gaussian masks"])
def test_where_records_are_drawn_the_opening_has_its_share_of_one_composition(
    name: str, who: str
) -> None:
    known, method = DRAWN[name]
    if known.classes is None and who != "central":
        pytest.skip("sites find no list")
    plan = make_plan(known, method, **WHO[who]).calibrate(2.0)
    whole, costs = plan.guarantee(), plan.costs()
    assert whole.epsilon is not None
    assert 2.0 * (1 - 1e-3) < whole.epsilon <= 2.0
    assert whole.delta == plan.delta == 1e-5
    if not plan.opening:
        assert len(costs) == 1
        assert plan.cost_alone(plan.relation) is None
        return
    alone = plan.cost_alone(plan.relation)
    assert alone is not None
    assert (alone.epsilon, alone.delta, alone.squared) == (2.0, 1e-5, None)
    assert plan.cost_alone(Relation.REPLACE_ONE) is None
    part = ProgramCost(plan).part
    whole_gaussian = gaussian_multiplier(2.0, 1e-5) ** -2
    opened = sum(
        min(plan.query(each).noised().view_multipliers.values()) ** -2 for each in plan.names[:-1]
    )
    assert opened == pytest.approx(part * whole_gaussian, rel=1e-9)
    of_part = gaussian_epsilon((part * whole_gaussian) ** -0.5, 1e-5)
    assert composed(plan, plan.names[:-1], 1e-5) == pytest.approx(of_part, rel=1e-3)
    # Together they cost less than by adding up; a hundredth less noise is not proved.
    assert sum(cost.epsilon for cost in costs) > 2.05
    louder = replace(plan, multiplier=(plan.multiplier or 0.0) / 1.01)
    assert (louder.guarantee().epsilon or math.inf) > 2.0


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 10.0, 25.0])
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


def test_sums_that_compose_as_one_need_less_noise_than_epsilons_that_are_added() -> None:
    """Noise multipliers of the methods' own sums that were found for the same facts, of three
    columns and two classes, at epsilon 2 and delta 1e-5, where measured facts had a part of epsilon
    and moments the rest: by Rényi orders, and added up."""
    before: dict[tuple[str, ...] | None, dict[bool, float]] = {
        ("no", "yes"): {False: 2.6631502578935544, True: 2.149700072132082},
        None: {False: 2.663150257893554, True: 2.377216766856811},
    }
    for classes, by_range in before.items():
        for ranged, own in by_range.items():
            known = facts(classes=classes, normalise=RANGE if ranged else None)
            plan = make_plan(known, ClassGaussian()).calibrate(2.0)
            assert plan.multiplier is not None
            whole = plan.multiplier * math.sqrt(1 - ProgramCost(plan).part)  # of all sums as one
            assert whole < (0.85 if plan.opening else 0.95) * own
            if plan.opening:
                mixing = make_plan(known, Mixing()).calibrate(2.0)
                parts = [ProgramCost(each).part for each in (plan, mixing)]  # of one total
                wholes = [
                    (each.opening_multiplier or 0.0) * math.sqrt(part)
                    for each, part in zip((plan, mixing), parts, strict=True)
                ]
                assert wholes[0] == pytest.approx(wholes[1], rel=1e-2)


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


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("name", ["class Gaussians, no list", "class Gaussians, nothing declared"])
def test_what_is_promised_does_not_depend_on_what_was_measured(
    name: str, relation: Relation
) -> None:
    """Nor in another relation: nobody may be promised, or charged, less or more once it is known
    how many classes there are."""
    given, method = ONCE[name]
    plan = make_plan(given, method, relation=relation, epsilon=1.0)
    promised = plan.guarantee().epsilon
    assert promised == pytest.approx(1.0, rel=1e-5)
    ends = (1.0,) * 3
    way = given.normalise or ColumnMap((0.0,) * 3, ends, (-1.0,) * 3, ends)
    for classes in ((0, 1), tuple(range(200))):
        known = classes if given.classes is None else given.classes
        found = replace(given, classes=known, class_sizes=(50,) * len(known), normalise=way)
        known = replace(plan, measured=found)
        assert known.guarantee().epsilon == pytest.approx(promised)
        for asked in Relation:
            assert known.epsilon_in(asked) == pytest.approx(plan.epsilon_in(asked))


@pytest.mark.parametrize("count", [40, 4000])
def test_what_each_sum_costs_is_said_as_it_will_be_where_sizes_are_declared(count: int) -> None:
    """A few records are not asked for each class's own spread, and more of the budget goes to where
    they lie."""
    rows = LabeledRows(
        np.random.default_rng(2).uniform(-4, 5, size=(count, 3)),
        np.arange(count) % 2,
        ("no", "yes"),
        COLUMNS,
        "y",
    )
    sizes = (count // 2,) * 2
    plan = make_plan(facts(class_sizes=sizes, normalise=RANGE), ClassGaussian(), epsilon=2.0)
    release = run(plan, LocalEngine(rows, SeededSource(2)))
    assert plan.chosen is None
    assert release.plan.chosen is not None
    assert plan.budget() == release.plan.budget()


def test_what_will_be_chosen_of_images_is_foreseen_too() -> None:
    plan = make_plan(replace(IMAGES, class_sizes=(9, 9, 9)), ImageClusters(), epsilon=1.0)
    assert plan.method.foreseen(plan) == {"rank": 1, "clusters": 1}
    assert len(plan.budget()) < len(plan.outline)
    unknown = make_plan(IMAGES, ImageClusters(), epsilon=1.0)
    assert unknown.method.foreseen(unknown) is None
    assert len(unknown.budget()) == len(unknown.outline)
