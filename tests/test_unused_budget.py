"""How much of the epsilon that was asked for a plan's sums leave unused: by another library, from
the noise that each sum is carried out with and what a record can add to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)

from capemix.facts import Facts
from capemix.methods import Method
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.mixing import Mixing
from capemix.methods.tables import Tables
from capemix.plan import Plan, make_plan
from capemix.queries import Relation
from capemix.sums.query import SumQuery
from capemix.sums.steps import ColumnMap, PublicMap

GRID = 2e-3
"""What the other library's grid may put on epsilon, over it."""
RANGE = PublicMap.of_range(-4, 5)
SITES = {1: {}, 10: {"scheme": "cape", "sites": 10, "colluding": 3, "dropouts": 1}}
RECORDS = (30.0, 5000.0, 1e6)
RELATIONS = {
    Relation.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Relation.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
}


@dataclass(frozen=True)
class Setting:
    epsilon: float
    delta: float = 1e-5
    width: int = 6
    sizes: tuple[int, ...] = (500, 700)
    relation: Relation = Relation.ADD_REMOVE
    draws: int = 40
    mixture: int = 8


CHOSEN = [
    Setting(0.1),
    Setting(1.0),
    Setting(1.0, delta=1e-9, sizes=(50,) * 10),
    Setting(2.0, width=40),
    Setting(3.0, sizes=(9000, 120), mixture=100, draws=30),
    Setting(6.0, draws=400, mixture=3),
    Setting(10.0, delta=1e-6),
    Setting(20.0, width=2),
]


def drawn_at_random(count: int) -> list[Setting]:
    rng = np.random.default_rng(20)
    return [
        Setting(
            epsilon=float(np.exp(rng.uniform(math.log(0.1), math.log(20.0)))),
            delta=float(10 ** rng.uniform(-9, -3)),
            width=int(rng.integers(1, 30)),
            sizes=tuple(rng.integers(60, 5000, rng.integers(2, 6)).tolist()),
            draws=int(rng.integers(5, 300)),
            mixture=int(rng.integers(1, 60)),
        )
        for _ in range(count)
    ]


def multiplier(query: SumQuery) -> float:
    """What the honest sites leave on a sum, over what a record can add to it."""
    who = query.federation.adversary
    honest = (who.sites - who.colluding - who.dropouts) / who.sites
    noise = query.deviation * query.line.divisor * math.sqrt(honest)
    return noise / query.l2_norm_bound


@cache
def gaussian(noise: float, step: float) -> PrivacyLossDistribution:
    return from_gaussian_mechanism(noise, value_discretization_interval=step)


def used(plan: Plan) -> float:
    """Epsilon of all the plan's sums, for the record that pays most; where it is replaced, by one
    of its own class."""
    asked = plan.epsilon or 0.0
    queries = plan.queries()
    step = asked * 1e-4
    moved = 0.0
    for query in queries:
        if not query.drawn:
            ends = query.line.replacement_factor if plan.relation is Relation.REPLACE_ONE else 1.0
            moved += (ends / multiplier(query)) ** 2
    first = gaussian(moved**-0.5, step) if moved else None
    drawn = [query for query in queries if query.drawn]
    if not drawn:
        assert first is not None
        return float(first.get_epsilon_for_delta(plan.delta))
    (query,) = drawn
    found = 0.0
    for group in {(g.draws, g.selected, g.among) for g in query.participation}:
        draws, selected, among = group
        law = from_gaussian_mechanism(
            multiplier(query),
            sampling_prob=min(1.0, selected / among),
            value_discretization_interval=step,
            neighboring_relation=RELATIONS[plan.relation],
        ).self_compose(draws)
        law = law if first is None else first.compose(law)
        found = max(found, float(law.get_epsilon_for_delta(plan.delta)))
    return found


def table(setting: Setting, **known: Any) -> Facts:
    names = tuple(f"x{at}" for at in range(setting.width))
    return Facts(names, "y", tuple(range(len(setting.sizes))), **known)


def class_gaussian(setting: Setting) -> tuple[Facts, Method]:
    return table(setting), ClassGaussian()


def declared_class_gaussian(setting: Setting) -> tuple[Facts, Method]:
    return table(setting, class_sizes=setting.sizes, normalise=RANGE), ClassGaussian()


def images(setting: Setting, *, soft_labels: bool) -> tuple[Facts, Method]:
    side = 8 + 4 * (setting.width % 2)
    names = tuple(map(str, range(side * side)))
    classes = tuple(range(len(setting.sizes)))
    facts = Facts(names, "y", classes, normalise=RANGE, image_shape=(side, side))
    return facts, ImageClusters(soft_labels=soft_labels)


ONCE: dict[str, Callable[[Setting], tuple[Facts, Method]]] = {
    "class Gaussians, nothing declared": class_gaussian,
    "class Gaussians, all declared": declared_class_gaussian,
    "tables": lambda setting: (table(setting, normalise=RANGE), Tables()),
    "image clusters": lambda setting: images(setting, soft_labels=False),
    "image clusters, soft labels": lambda setting: images(setting, soft_labels=True),
}


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize("name", ONCE)
def test_sums_that_every_record_joins_leave_less_than_2_percent_unused(
    name: str, sites: int, relation: Relation
) -> None:
    for setting in [*CHOSEN, *drawn_at_random(8)]:
        facts, method = ONCE[name](setting)
        plan = make_plan(facts, method, relation=relation, delta=setting.delta, **SITES[sites])
        plan = plan.calibrate(setting.epsilon)
        assert used(plan) <= setting.epsilon * (1 + GRID), setting
        # Whatever is chosen on the way uses it all.
        choices = [*plan.method.choices(plan), *map(partial(plan.method.chosen, plan), RECORDS)]
        for choice in choices:
            found = used(replace(plan, chosen=choice))
            assert 0.98 * setting.epsilon < found <= setting.epsilon * (1 + GRID), setting


@pytest.mark.parametrize(
    ("sites", "settings", "relation"),
    [
        (1, [*CHOSEN, *drawn_at_random(8)], Relation.ADD_REMOVE),
        (10, [*CHOSEN[:2], *drawn_at_random(2)], Relation.ADD_REMOVE),
        (1, [CHOSEN[1], CHOSEN[4]], Relation.REPLACE_ONE),
    ],
    ids=["1 site", "10 sites", "replaced"],
)
def test_mixing_with_declared_sizes_leaves_less_than_2_percent_unused(
    sites: int, settings: list[Setting], relation: Relation
) -> None:
    for setting in settings:
        facts = table(setting, class_sizes=setting.sizes, normalise=RANGE)
        mixture = min(setting.mixture, *setting.sizes)
        method = Mixing(samples=setting.draws * len(setting.sizes), mixture=mixture)
        plan = make_plan(facts, method, relation=relation, delta=setting.delta, **SITES[sites])
        plan = plan.calibrate(setting.epsilon)
        assert not plan.opening
        assert 0.98 * setting.epsilon < used(plan) <= setting.epsilon * (1 + GRID), setting


@pytest.mark.parametrize(
    ("sites", "settings", "relation"),
    [
        (1, [*CHOSEN[::2], *drawn_at_random(4)], Relation.ADD_REMOVE),
        (10, [CHOSEN[1], *drawn_at_random(1)], Relation.ADD_REMOVE),
        (1, [CHOSEN[2]], Relation.REPLACE_ONE),
    ],
    ids=["1 site", "10 sites", "replaced"],
)
def test_mixing_with_measured_sizes_leaves_less_than_5_percent_unused(
    sites: int, settings: list[Setting], relation: Relation
) -> None:
    """Sizes that were measured, or sizes and columns."""
    for at, setting in enumerate(settings):
        facts = table(setting, normalise=RANGE if at % 2 else None)
        mixture = min(setting.mixture, *setting.sizes)
        method = Mixing(samples=setting.draws * len(setting.sizes), mixture=mixture)
        plan = make_plan(facts, method, relation=relation, delta=setting.delta, **SITES[sites])
        plan = plan.calibrate(setting.epsilon)
        found = {"class_sizes": setting.sizes}
        if facts.normalise is None:
            columns = setting.width
            found["normalise"] = ColumnMap(*((value,) * columns for value in (0.0, 1.0, -1.0, 1.0)))
            found["clip_norm"] = 1.5
        plan = replace(plan, measured=replace(plan.facts, **found)).settled()
        assert plan.opening
        assert 0.95 * setting.epsilon < used(plan) <= setting.epsilon * (1 + GRID), setting
