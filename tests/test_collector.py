"""A method gets each noisy sum once, in the order and of the kind that its plan says, with the
noise that was planned; and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from capemix.collector import Collector, Origin
from capemix.errors import InputError
from capemix.facts import CLASS_LIST, CLASS_SIZES, CLIP_NORM, RANGES, SCALES, Facts
from capemix.methods.base import Choice, Method, SyntheticRows
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.mixing import Mixing
from capemix.methods.shares import OCTAVES
from capemix.plan import Plan, make_plan
from capemix.queries import COUNTED, Participation, QueryShape, Relation
from capemix.statistics.histograms import ClassCounts, MeansAndSquares, ValueSizes
from capemix.statistics.moments import Moments, NormHistogram
from capemix.statistics.projection import Projection
from capemix.sums.query import SumQuery
from capemix.sums.rows import ClippedRows
from capemix.sums.steps import ColumnMap, PublicMap

MAP = ColumnMap((0.0,) * 2, (1.0,) * 2, (-1.0,) * 2, (1.0,) * 2)
FRAME = Projection(MAP, 2, 2)


class Written:
    """An engine that draws nothing, and writes down what it was asked for."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.asked: list[SumQuery] = []
        self.failures: list[float] = []
        self.breaks = breaks

    def check(self, plan: Plan) -> None: ...

    def origin(self, plan: Plan) -> Origin:  # noqa: ARG002
        return Origin()

    def sum(self, plan: Plan, query: SumQuery) -> Any:  # noqa: ARG002
        self.asked.append(query)
        if self.breaks:
            raise RuntimeError("the line went dead")
        return np.zeros(query.shape)

    def list_classes(self, plan: Plan, query: SumQuery, failure: float) -> dict[str, float]:  # noqa: ARG002
        self.asked.append(query)
        self.failures.append(failure)
        return {"no": 50.0, "yes": 60.0}


def facts(**known: Any) -> Facts:
    return Facts(**{"features": ("a", "b"), "label": "y", "classes": ("no", "yes"), **known})


def a_collector(known: Facts, method: Method, **changed: Any) -> tuple[Collector, Written]:
    engine = Written(**changed)
    return Collector(make_plan(known, method).calibrate(2.0), engine), engine


def opened() -> tuple[Collector, Written]:
    """All opening sums are in."""
    sums, engine = a_collector(facts(), Mixing(samples=4, mixture=2))
    sums.ask(CLASS_SIZES, ClassCounts(2, 2))
    sums.ask(RANGES, ValueSizes(2))
    sums.ask(SCALES, MeansAndSquares(2, MAP))
    sums.ask(CLIP_NORM, NormHistogram(FRAME))
    return sums, engine


FOUND = facts(class_sizes=(50, 60), normalise=MAP, clip_norm=1.0)


def test_sums_come_in_their_order_and_once_each() -> None:
    sums, engine = a_collector(facts(), Mixing(samples=4, mixture=2))
    for name, asked in ((RANGES, ValueSizes(2)), ("mixtures", ClassCounts(2, 2)), ("", None)):
        with pytest.raises(ValueError, match="not the next of the outline"):
            sums.ask(name, asked)  # type: ignore[arg-type]
    sums.ask(CLASS_SIZES, ClassCounts(2, 2))
    with pytest.raises(ValueError, match="not the next of the outline"):
        sums.ask(CLASS_SIZES, ClassCounts(2, 2))
    assert [query.name for query in engine.asked] == [CLASS_SIZES]


def test_after_the_last_sum_there_is_none() -> None:
    sums, engine = opened()
    sums.measured(FOUND)
    sums.ask("mixtures", sums.plan.method.statistic(sums.plan))  # type: ignore[attr-defined]
    for name in sums.plan.names:
        with pytest.raises(ValueError, match="not the next of the outline"):
            sums.ask(name, ClassCounts(2, 2))
    assert [query.name for query in engine.asked] == list(sums.plan.names)


def test_a_sum_that_failed_is_not_drawn_again() -> None:
    """What came of it is not known: noise may have been drawn, and shares sent."""
    sums, engine = a_collector(facts(), Mixing(), breaks=True)
    with pytest.raises(RuntimeError, match="dead"):
        sums.ask(CLASS_SIZES, ClassCounts(2, 2))
    engine.breaks = False
    for name, asked in ((CLASS_SIZES, ClassCounts(2, 2)), (RANGES, ValueSizes(2))):
        with pytest.raises(ValueError, match="'class sizes' failed, so no other can be asked for"):
            sums.ask(name, asked)
    assert len(engine.asked) == 1


def test_a_sum_that_could_not_be_charged_is_not_drawn_for_nothing() -> None:
    def refused(_plan: Plan) -> None:
        raise InputError("the lineage", "has nothing left", fix="wait")

    engine = Written()
    sums = Collector(make_plan(facts(), Mixing()).calibrate(2.0), engine, before=refused)
    with pytest.raises(InputError, match="nothing left"):
        sums.ask(CLASS_SIZES, ClassCounts(2, 2))
    for _ in range(3):
        with pytest.raises(ValueError, match="no other can be asked for"):
            sums.ask(CLASS_SIZES, ClassCounts(2, 2))
    assert engine.asked == []


@pytest.mark.parametrize(
    "asked",
    [
        ValueSizes(2),  # of another kind
        ClassCounts(2, 3),  # for other groups
        ClippedRows(1, 2, PublicMap(), 1.0),
        NormHistogram(FRAME),
    ],
    ids=str,
)
def test_a_sum_of_another_kind_or_size_is_refused_before_anything_is_charged(asked: Any) -> None:
    charged: list[Plan] = []
    engine = Written()
    plan = make_plan(facts(), Mixing()).calibrate(2.0)
    sums = Collector(plan, engine, before=charged.append)
    with pytest.raises(InputError, match="must be of kind class counts, for 2 groups of 1 numbers"):
        sums.ask(CLASS_SIZES, asked)
    assert engine.asked == charged == []
    sums.ask(CLASS_SIZES, ClassCounts(2, 2))
    assert charged == [plan]


def test_a_sum_of_a_larger_bound_is_refused() -> None:
    sums, engine = opened()
    sums.measured(FOUND)
    for clip in (1.0 + 1e-9, 7.0, 1e50):
        with pytest.raises(InputError, match="with a norm bound of 1"):
            sums.ask("mixtures", ClippedRows(2, 2, MAP, clip))
    assert engine.asked[-1].name == CLIP_NORM
    sums, engine = a_collector(facts(normalise=MAP, class_sizes=(50, 60)), ClassGaussian())
    sums.choose(rank=0, octave=0)
    sums.ask("norms for the centre", NormHistogram(FRAME))
    for weights in ((0.0, 1.1), (0.0, 1e9)):
        with pytest.raises(InputError, match="with a norm bound of 1"):
            sums.ask("centre", Moments(FRAME, 1.0, weights, apart=False))
    sums.ask("centre", Moments(FRAME, 1.0, (0.0, 1.0), apart=False))


@pytest.mark.parametrize("clip", [0.0, -1.0, np.nan, np.inf, 1e101])
def test_no_row_is_clipped_to_a_norm_that_bounds_nothing(clip: float) -> None:
    with pytest.raises(InputError, match="positive norm"):
        ClippedRows(2, 2, PublicMap(), clip)
    with pytest.raises(InputError, match="clip_norm must be a positive number"):
        facts(clip_norm=clip)


def test_facts_are_measured_once_by_all_opening_sums() -> None:
    sums, _ = a_collector(facts(), Mixing(samples=4, mixture=2))
    with pytest.raises(ValueError, match="measured once, by the opening sums"):
        sums.measured(FOUND)
    sums, _ = opened()
    with pytest.raises(ValueError, match="needs the facts to be measured first"):
        sums.ask("mixtures", ClippedRows(2, 2, MAP, 1.0))
    with pytest.raises(InputError, match="measured must be the declared facts"):
        sums.measured(replace(FOUND, label="other"))
    sums.measured(FOUND)
    with pytest.raises(ValueError, match="measured once"):
        sums.measured(FOUND)


def test_where_records_are_drawn_their_noise_waits_for_what_is_measured() -> None:
    sums, _ = opened()
    before = sums.plan
    sums.measured(FOUND)
    assert sums.plan.opening_multiplier == before.opening_multiplier
    assert sums.plan.multiplier == replace(before, measured=FOUND).settled().multiplier
    assert (sums.plan.guarantee().epsilon or 9.0) <= 2.0


def test_other_noise_was_fixed_before_the_first_sum() -> None:
    sums, _ = a_collector(facts(), ClassGaussian())
    before = sums.plan
    sums.ask(CLASS_SIZES, ClassCounts(2, 2))
    sums.ask(RANGES, ValueSizes(2))
    sums.ask(SCALES, MeansAndSquares(2, MAP))
    sums.measured(facts(class_sizes=(3, 40_000), normalise=MAP))
    assert sums.plan.multiplier == before.multiplier
    assert sums.plan.opening_multiplier == before.opening_multiplier


def test_a_choice_is_made_once_and_is_one_that_the_method_may_make() -> None:
    sums, _ = a_collector(facts(normalise=MAP, class_sizes=(50, 60)), ClassGaussian())
    wrong: list[dict[str, int]] = [{"rank": rank, "octave": 7} for rank in (-1, 3)]
    wrong += [{"rank": 1, "octave": octave} for octave in (-1, OCTAVES)]
    wrong += [{"rank": 1}, {"clusters": 1}, {"rank": 0, "more": 1}, {}]
    for each in wrong:
        with pytest.raises(
            InputError, match=r"chosen (rank is not possible|octave is not|has no meaning)"
        ):
            sums.choose(**each)
    sums.choose(rank=1, octave=7)
    for again in (0, 1):
        with pytest.raises(ValueError, match="a choice is made once"):
            sums.choose(rank=again, octave=7)
    mixed, _ = a_collector(facts(normalise=MAP, class_sizes=(50, 60)), Mixing())
    with pytest.raises(InputError, match="chosen has no meaning"):
        mixed.choose(rank=1)


class Greedy(Method):
    """Its choice would change the noise of a sum that is drawn already."""

    kind: Literal["greedy"] = "greedy"  # type: ignore[misc]

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        more = (plan.chosen or {"more": 0})["more"]
        first = QueryShape("first", "", "class counts", 1, 2, share=1.0 + more)
        return first, replace(first, name="second", share=1.0)

    def choices(self, plan: Plan) -> tuple[Choice | None, ...]:  # noqa: ARG002
        return {"more": 0}, {"more": 5}

    def release(self, sums: Collector) -> SyntheticRows:
        raise NotImplementedError


def test_the_noise_of_a_sum_that_is_drawn_cannot_be_changed() -> None:
    """The guarantee would speak of more noise than there is."""
    sums, _ = a_collector(facts(normalise=MAP, class_sizes=(50, 60)), Greedy())
    sums.ask("first", ClassCounts(2, 2))
    with pytest.raises(ValueError, match="asked for already cannot be changed"):
        sums.choose(more=5)
    sums.choose(more=0)
    early, _ = a_collector(facts(normalise=MAP, class_sizes=(50, 60)), Greedy())
    early.choose(more=5)
    assert early.plan.chosen == {"more": 5}


class Dearer(Method):
    """It may choose what no extreme of its choices has: sums that a replaced record moves more, or
    of so many numbers that the samplers take a part of delta."""

    kind: Literal["dearer"] = "dearer"  # type: ignore[misc]

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        factor = 2.0 if plan.chosen == {"at": 1} else COUNTED
        width = 10**19 if plan.chosen == {"at": 3} else 1
        return (QueryShape("counts", "", "class counts", width, 2, replacement_factor=factor),)

    def choices(self, plan: Plan) -> tuple[Choice | None, ...]:  # noqa: ARG002
        return {"at": 0}, {"at": 4}

    def release(self, sums: Collector) -> SyntheticRows:
        raise NotImplementedError


@pytest.mark.parametrize("relation", list(Relation))
def test_no_choice_costs_more_than_those_that_were_charged(relation: Relation) -> None:
    """The budget was charged for the dearest of the choices before the first sum was drawn, by a
    ledger in whichever relation."""
    plan = make_plan(FOUND, Dearer(), relation=relation, epsilon=2.0)
    sums = Collector(plan, Written())
    with pytest.raises(ValueError, match="no choice may cost more than those that were planned"):
        sums.choose(at=3)
    sums.choose(at=4)
    assert sums.plan.guarantee().epsilon == plan.guarantee().epsilon
    further = Collector(plan, Written())
    if relation is Relation.ADD_REMOVE:  # a ledger that counts replaced records was charged less
        with pytest.raises(ValueError, match="no choice may cost more than those that were"):
            further.choose(at=1)
        return
    further.choose(at=1)  # it has as much more noise
    noise = [each.query("counts").noise_multiplier for each in (further.plan, plan)]
    assert noise[0] == pytest.approx(2.0 / COUNTED * noise[1])
    assert further.plan.guarantee().epsilon == pytest.approx(plan.guarantee().epsilon)


class Turning(Method):
    """Once the classes' sizes are known, or it has chosen so, it draws records."""

    kind: Literal["turning"] = "turning"  # type: ignore[misc]

    def measures(self, facts: Facts) -> tuple[str, ...]:
        return facts.undeclared(sizes=True)

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        turned = plan.measured is not None or plan.chosen == {"turned": 1}
        draws = (Participation(5, 2, 20),) * 2 if turned else ()
        return (QueryShape("rows", "", "rows", 2, 2, draws=draws),)

    def choices(self, plan: Plan) -> tuple[Choice | None, ...]:
        return ({"turned": 0}, {"turned": 1}) if plan.facts.class_sizes else (None,)

    def release(self, sums: Collector) -> SyntheticRows:
        raise NotImplementedError


def test_whether_records_are_drawn_is_fixed_before_the_first_sum() -> None:
    """What was charged for sums in which each record takes part once does not pay for draws."""
    sums, _ = a_collector(facts(normalise=MAP), Turning())
    sums.ask(CLASS_SIZES, ClassCounts(2, 2))
    with pytest.raises(ValueError, match="whether records are drawn cannot depend"):
        sums.measured(facts(normalise=MAP, class_sizes=(50, 60)))
    declared = facts(normalise=MAP, class_sizes=(50, 60))
    plan = replace(make_plan(declared, Turning()), multiplier=1.0)
    chosen = Collector(plan, Written())
    with pytest.raises(ValueError, match="whether records are drawn cannot depend"):
        chosen.choose(turned=1)


def test_a_collectors_plan_is_not_set_by_hand() -> None:
    sums, _ = opened()
    with pytest.raises(AttributeError):
        sums.plan = replace(sums.plan, multiplier=1e-9)  # type: ignore[misc]


def test_a_list_is_found_by_its_own_line_alone() -> None:
    sums, engine = a_collector(facts(classes=None, normalise=MAP), Mixing(samples=4, mixture=2))
    with pytest.raises(InputError, match="must be of kind class list"):
        sums.ask(CLASS_LIST, ClassCounts(2, 1))
    found = sums.list_classes(CLASS_LIST)
    assert engine.failures == [sums.plan.list_failure]
    assert found == {"no": 50.0, "yes": 60.0}
    counted, engine = a_collector(facts(), Mixing())
    with pytest.raises(ValueError, match="is no list of classes"):
        counted.list_classes(CLASS_SIZES)
    assert engine.asked == []


def test_it_is_said_before_the_first_sum_and_before_the_methods_first() -> None:
    said: list[tuple[int, bool]] = []
    engine = Written()
    plan = make_plan(facts(), Mixing(samples=4, mixture=2)).calibrate(2.0)
    sums = Collector(
        plan, engine, before=lambda now: said.append((len(engine.asked), now.measured is not None))
    )
    sums.ask(CLASS_SIZES, ClassCounts(2, 2))
    sums.ask(RANGES, ValueSizes(2))
    sums.ask(SCALES, MeansAndSquares(2, MAP))
    sums.ask(CLIP_NORM, NormHistogram(FRAME))
    sums.measured(FOUND)
    sums.ask("mixtures", sums.plan.method.statistic(sums.plan))  # type: ignore[attr-defined]
    assert said == [(0, False), (4, True)]


def test_chance_for_post_processing_depends_on_every_noisy_sum() -> None:
    class Other(Written):
        def sum(self, plan: Plan, query: SumQuery) -> Any:
            return super().sum(plan, query) + (query.name == RANGES)

    words = []
    for engine in (Written(), Other(), Other()):
        sums = Collector(make_plan(facts(), ClassGaussian()).calibrate(2.0), engine)
        sums.ask(CLASS_SIZES, ClassCounts(2, 2))
        sums.ask(RANGES, ValueSizes(2))
        words.append(sums.source().stream("a").words(2).tolist())
    assert words[0] != words[1] == words[2]
