"""How one budget is shared out over sums: by public numbers, and the same up to every choice."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from capemix import synthesize
from capemix.data.rows import LabeledRows
from capemix.facts import CLASS_SIZES, CLIP_NORM, RANGES, SCALES, Facts
from capemix.methods.base import Method
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import MOST_CLUSTERS, ImageClusters
from capemix.methods.shares import (
    CENTRE,
    FLAT,
    MOST_SIZES,
    NORMS,
    OCTAVES,
    TRACE,
    WORTH,
    GaussianShares,
    centres_part,
    exactly,
    gaussian_shares,
    octave_of,
    opening_share,
    sizes_share,
)
from capemix.plan import Plan, make_plan
from capemix.queries import QueryShape, Relation
from capemix.randomness.source import SeededSource
from capemix.sums.steps import PublicMap

TABLES = ((1, 2), (4, 3), (16, 26), (64, 10), (108, 2), (250, 1000))
"""Columns and classes."""


def every_share() -> list[tuple[int, int, int, int, GaussianShares]]:
    return [
        (columns, classes, octave, rank, gaussian_shares(columns, classes, octave, rank))
        for columns, classes in TABLES
        for octave in range(OCTAVES)
        for rank in (0, 4, min(columns, 64))
        if rank <= columns
    ]


def test_shares_are_above_0_and_add_up_to_everything() -> None:
    for _, _, _, rank, found in every_share():
        looks = found.norms * (5 if rank else 4)
        own = (found.sizes, found.centre, found.first, found.again, found.spread, found.own)
        assert sum(own) + looks == pytest.approx(1.0)
        assert min(own[:-1]) > 0.0
        assert (found.own > 0.0) == (rank > 0)


def test_shares_depend_on_records_and_noise_by_their_ratio_alone() -> None:
    for ratio in (0.0, 0.3, 1.0, 7.0, 1e3, 3e14):
        octaves = {octave_of(ratio * noise, noise) for noise in (1.0, 2.0, 0.25)}
        assert len(octaves) == 1
        assert 0 <= octaves.pop() < OCTAVES
    assert octave_of(500.0, 0.0) == OCTAVES - 1
    assert [octave_of(records, 1.0) for records in (1.0, 2.0, 1023.0, 1024.0)] == [0, 1, 9, 10]


def test_more_records_need_less_for_norms_the_centre_and_the_first_look() -> None:
    """And more of the rest is for the spread, of which more can be told then."""
    for (columns, classes), rank in itertools.product(TABLES, (0, 1)):
        found = [gaussian_shares(columns, classes, octave, rank) for octave in range(OCTAVES)]
        for before, after in itertools.pairwise(found):
            assert after.norms <= before.norms
            assert after.centre <= before.centre
            centres = [each.first + each.again for each in (before, after)]
            assert after.first / centres[1] <= before.first / centres[0] * (1 + 1e-12)
            assert after.spread / centres[1] >= before.spread / centres[0] * (1 - 1e-12)
        assert (found[0].norms, found[-1].norms) == (NORMS[1], NORMS[0])
        assert (found[0].centre, found[-1].centre) == (CENTRE[1], CENTRE[0])
        assert {each.sizes for each in found} == {sizes_share(columns)}


def test_many_records_get_the_shares_that_make_the_sum_of_errors_least() -> None:
    """Against a search: errors are a^2/s, with each a as the theory has it."""
    for (columns, classes), rank in itertools.product(TABLES[2:5], (0, 8)):
        found = gaussian_shares(columns, classes, OCTAVES - 1, rank)
        roots = [columns * classes, WORTH * columns**1.5, WORTH * rank**1.5 * classes]
        given = np.array([found.first + found.again, found.spread, found.own])
        given[1] -= TRACE * given[0]  # what its trace has
        parts = given / given.sum()

        def error(parts: Any, roots: list[float] = roots) -> float:
            return sum(a**2 / s for a, s in zip(roots, parts, strict=True) if a)

        least = error(parts)
        rng = np.random.default_rng(1)
        for _ in range(300):
            other = parts * np.exp(0.3 * rng.standard_normal(3))
            assert error(other / other.sum()) >= least * (1 - 1e-9)
        for power in (0.5, 2.0):
            wrong = parts**power
            assert error(wrong / wrong.sum()) > 1.01 * least


def test_what_is_spent_on_a_spread_that_noise_hides_is_halved_where_the_constant_says() -> None:
    columns, classes = 64, 2
    octave = math.floor(math.log2(math.sqrt(columns) / FLAT))
    near = gaussian_shares(columns, classes, octave, 0)
    whole = gaussian_shares(columns, classes, OCTAVES - 1, 0)

    def part(found: GaussianShares) -> float:
        return found.spread / (found.first + found.again) - TRACE

    u = math.sqrt(columns) * 2.0 ** -(octave + 0.5)
    assert part(near) / part(whole) == pytest.approx(1 / (1 + (u / FLAT) ** 2))
    assert 0.3 < part(near) / part(whole) < 0.7


def test_class_sizes_have_less_the_more_columns_there_are() -> None:
    shares = [sizes_share(columns) for columns in (1, 25, 26, 100, 784)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == MOST_SIZES
    assert shares[-2] == pytest.approx(0.05)
    assert opening_share(CLASS_SIZES, 100) == shares[-2]
    most = sum(opening_share(name, 1) for name in (CLASS_SIZES, RANGES, SCALES, CLIP_NORM))
    assert most < 0.25  # the method has the rest


def test_images_centres_have_less_the_more_clusters_tell() -> None:
    parts = [centres_part(rank, clusters) for rank, clusters in ((1, 1), (8, 1), (43, 4), (85, 10))]
    assert parts == sorted(parts, reverse=True)
    assert parts[0] > 0.9
    assert parts[-1] < 0.05


def test_shares_add_up_to_1_to_the_last_bit() -> None:
    rng = np.random.default_rng(2)
    for count in (1, 2, 7, 40):
        shares = rng.random(count)
        shares /= shares.sum()
        lines = [QueryShape(f"{at}", "", "moments", 1, share=x) for at, x in enumerate(shares)]
        found = exactly(lines)
        for order in (found, found[::-1]):
            assert sum(each.share for each in order) == 1.0
        assert [each.share for each in found] == pytest.approx(list(shares), abs=1e-9)


# -- plans -----------------------------------------------------------------------------------------


def facts_of(columns: int = 16, **known: Any) -> Facts:
    names = tuple(f"x{at}" for at in range(columns))
    return Facts(names, "y", ("no", "yes"), **{"normalise": PublicMap.of_range(0, 1), **known})


PLANS: dict[str, tuple[Method, Facts]] = {
    "tables": (ClassGaussian(), facts_of()),
    "tables, sizes declared": (ClassGaussian(), facts_of(class_sizes=(300, 400))),
    "tables, all measured": (ClassGaussian(), facts_of(normalise=None)),
    "tables, no classes": (ClassGaussian(), replace(facts_of(), classes=None)),
    "images": (ImageClusters(), facts_of(image_shape=(4, 4))),
    "images, taught": (ImageClusters(soft_labels=True), facts_of(image_shape=(4, 4))),
}


def choices_of(plan: Plan) -> list[dict[str, int]]:
    if isinstance(plan.method, ImageClusters):
        return [
            {"rank": rank, "clusters": clusters}
            for rank in (1, 2, 5, 16)
            for clusters in (1, 2, 7, MOST_CLUSTERS)
        ]
    return [{"rank": rank, "octave": octave} for rank in (0, 4, 9, 16) for octave in range(OCTAVES)]


def moved(plan: Plan, relation: Relation) -> float:
    """How far neighbours move all sums, over the noise that each is carried out with, squared."""
    found = 0.0
    for query in plan.queries():
        noised = query.noised()
        replaced = relation is Relation.REPLACE_ONE
        ends = query.line.replacement_factor if replaced else 1.0
        found += (ends / noised.view_multipliers[noised.strongest]) ** 2
    return found


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("name", PLANS)
def test_whatever_is_chosen_the_total_is_fixed_and_nothing_asked_before_changes(
    name: str, relation: Relation
) -> None:
    method, facts = PLANS[name]
    plan = make_plan(facts, method, relation=relation).calibrate(2.0)
    before = [line for line in plan.outline if line.name == CLASS_SIZES or line in plan.opening]
    asked = [plan.query(line.name) for line in before]
    assert asked or facts.class_sizes is not None
    total = moved(plan, relation)
    promised = plan.guarantee().epsilon
    assert promised is not None
    assert promised <= 2.0 * (1 + 1e-9)
    for choice in choices_of(plan):
        made = replace(plan, chosen=choice)
        assert [made.query(query.name) for query in asked] == asked
        assert moved(made, relation) == pytest.approx(total, rel=1e-12)
        assert made.guarantee().epsilon == pytest.approx(promised, rel=1e-9)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("name", PLANS)
def test_the_same_noise_costs_in_no_relation_more_than_is_charged_in_it(
    name: str, relation: Relation
) -> None:
    """Whatever is chosen on the way; and what is charged in another relation than the plan's is
    charged before anything is chosen."""
    method, facts = PLANS[name]
    plan = make_plan(facts, method, relation=relation).calibrate(2.0)
    for asked in Relation:
        (charged,) = plan.costs(asked)
        assert charged.relation is asked
        assert charged.squared is not None
        spent = [moved(replace(plan, chosen=choice), asked) for choice in choices_of(plan)]
        assert max(spent) <= charged.squared * (1 + 1e-12)
        assert max(spent) > 0.6 * charged.squared
        assert plan.epsilon_in(asked) == pytest.approx(charged.epsilon)
    # A replaced record is one removed and one added: at a right angle, or in one direction.
    added, replaced = ((plan.costs(each)[0].squared or 0.0) for each in Relation)
    assert 2.0 * added <= replaced * (1 + 1e-12)
    assert replaced <= 4.0 * added * (1 + 1e-12)


def some_rows(records: int) -> LabeledRows:
    rng = np.random.default_rng(3)
    labels = np.arange(records) % 2
    features = np.clip(rng.normal(0.5, 0.1, (records, 3)) + 0.2 * labels[:, None], 0, 1)
    return LabeledRows(features, labels, ("no", "yes"), ("a", "b", "c"), "y")


def test_shares_and_rows_made_follow_counts_that_were_declared_or_paid_for() -> None:
    """Two files of very different length, and the same declared counts: one program, to the last
    share, and as many rows."""
    method = ClassGaussian()
    programs = []
    for records in (400, 4_000):
        rows = some_rows(records)
        facts = Facts.of(rows, class_sizes=(500, 300), normalise=PublicMap.of_range(0, 1))
        made = synthesize(
            make_plan(facts, method).calibrate(1.0), rows, source=SeededSource(records)
        )
        programs.append((made.plan.outline, made.plan.chosen, len(made.features)))
    assert programs[0] == programs[1]
    assert programs[0][2] == 800
    counted = []
    for seed in (1, 2):
        rows = some_rows(400)
        facts = Facts.of(rows, normalise=PublicMap.of_range(0, 1))
        made = synthesize(make_plan(facts, method).calibrate(1.0), rows, source=SeededSource(seed))
        counted.append(len(made.features))
    assert counted[0] != counted[1]  # noisy counts of the same rows
    assert all(200 < count < 600 for count in counted)


def test_what_shares_depend_on_are_numbers_that_are_public() -> None:
    """The rule's signature has no rows; its result, nothing but shares."""
    assert all(each.type == "float" for each in fields(GaussianShares))
    plan = make_plan(facts_of(), ClassGaussian()).calibrate(1.0)
    assert plan.outline == replace(plan, multiplier=7.0).outline  # noise enters by the choice alone
