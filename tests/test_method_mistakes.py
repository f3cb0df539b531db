"""What the author of a method gets wrong is refused in words, before anything is charged."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from capemix.data import LabeledRows, partition
from capemix.engines.in_process import InProcessEngine
from capemix.engines.local import LocalEngine
from capemix.errors import BudgetError, CapemixError, InputError
from capemix.facts import CLASS_LIST, CLASS_SIZES, CLIP_NORM, RANGES, SCALES, Facts
from capemix.ledger import Ledger, Limit, Lineage
from capemix.methods.base import Method, SyntheticRows
from capemix.methods.mixing import Mixing
from capemix.plan import Plan, make_plan
from capemix.queries import QueryShape
from capemix.randomness.source import SystemSource
from capemix.run import run
from capemix.statistics.histograms import ClassCounts
from capemix.sums.steps import PublicMap, SiteZScore

if TYPE_CHECKING:
    from capemix.collector import Collector

UNIT = PublicMap.of_range(0, 1)


def some_rows() -> LabeledRows:
    generator = np.random.default_rng(0)
    return LabeledRows(
        generator.uniform(size=(400, 3)), np.arange(400) % 2, ("a", "b"), ("x", "y", "z"), "l"
    )


def facts(**known: Any) -> Facts:
    return replace(Facts.of(some_rows()), **known)


KNOWN = facts(class_sizes=(200, 200), normalise=UNIT)


def line(name: str = "n", **changed: Any) -> QueryShape:
    return QueryShape(name, "labels", "class counts", 1, 2, **changed)


@dataclass(frozen=True)
class Counts(Method):
    """Counts records by class, once for each line; it asks again ``tries`` times if that fails."""

    lines: tuple[QueryShape, ...] = (line(),)
    facts: tuple[str, ...] = ()
    tries: int = 1
    kind: Literal["counts"] = "counts"

    def measures(self, facts: Facts) -> tuple[str, ...]:  # noqa: ARG002
        return self.facts

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:  # noqa: ARG002
        return self.lines

    def release(self, sums: Collector) -> SyntheticRows:
        for each in self.lines:
            for left in reversed(range(self.tries)):
                try:
                    sums.ask(each.name, ClassCounts(3, 2))
                    break
                except (CapemixError, ValueError):
                    if not left:
                        raise
        return SyntheticRows(np.zeros((2, 3)), np.arange(2))


def a_lineage(folder: Path, epsilon: float = 5.0) -> Lineage:
    lineage = Ledger.open(folder / "ledger.db").lineage("rows")
    lineage.set_limit(Limit(epsilon, 1e-5))
    return lineage


def test_a_method_that_asks_again_after_a_charge_was_refused_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone else spends what is left between the check and the charge."""
    lineage = a_lineage(tmp_path, 1.0)
    drawn: list[str] = []
    monkeypatch.setattr(LocalEngine, "sum", lambda _self, _plan, query: drawn.append(query.name))

    class Late(LocalEngine):
        def origin(self, plan: Plan) -> Any:
            lineage.charge("someone else's", plan.costs()[0])
            return super().origin(plan)

    monkeypatch.setattr(Lineage, "check", lambda *_costs, **_instead: None)
    plan = make_plan(KNOWN, Counts(tries=3)).calibrate(1.0)
    with pytest.raises(ValueError, match="'n' failed, so no other can be asked for"):
        run(plan, Late(some_rows()), lineage)
    with pytest.raises(BudgetError):
        run(plan, Late(some_rows()), lineage)
    assert drawn == []


class Swallows(Counts):
    """Makes rows of nothing where a sum fails."""

    def release(self, sums: Collector) -> SyntheticRows:
        with suppress(ValueError):
            return super().release(sums)
        return SyntheticRows(np.zeros((2, 3)), np.arange(2))


def test_a_method_that_goes_on_after_a_sum_failed_makes_no_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(*_: object) -> None:
        raise InputError("the line", "is dead", fix="try again")

    monkeypatch.setattr(LocalEngine, "sum", lost)
    with pytest.raises(ValueError, match="'n' failed"):
        run(make_plan(KNOWN, Swallows()).calibrate(1.0), LocalEngine(some_rows()))


@pytest.mark.parametrize(
    "names",
    [(line(), line()), (line(share=100.0), line(share=0.01)), (line("n 2"), line(repeats=2))],
    ids=["alike", "of other shares", "by its repeats"],
)
def test_two_sums_of_one_name_are_refused(names: tuple[QueryShape, ...]) -> None:
    """They would be accounted for apart, and drawn alike."""
    with pytest.raises(InputError, match="asks for two sums of one name"):
        make_plan(KNOWN, Counts(names))


def test_a_sum_is_not_called_like_one_that_measures_a_fact() -> None:
    asked = Counts((line(CLASS_SIZES),), (CLASS_SIZES,))
    with pytest.raises(InputError, match="asks for two sums of one name"):
        make_plan(facts(normalise=UNIT), asked)


@pytest.mark.parametrize("part", ["share", "l2_norm_bound", "replacement_factor", "divisor"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e-320])
def test_the_numbers_of_a_line_are_positive(part: str, value: float) -> None:
    with pytest.raises(InputError, match=f"the {part} of the sum 'n' must be a positive number"):
        line(**{part: value})


NOTHING_KNOWN, MAPPED = facts(), facts(normalise=UNIT)


@pytest.mark.parametrize(
    ("known", "names", "right"),
    [
        (NOTHING_KNOWN, (RANGES,), (CLASS_SIZES, RANGES, SCALES)),
        (NOTHING_KNOWN, (SCALES,), (CLASS_SIZES, RANGES, SCALES)),
        (NOTHING_KNOWN, (RANGES, SCALES), (CLASS_SIZES, RANGES, SCALES)),
        (NOTHING_KNOWN, (RANGES, CLASS_SIZES, SCALES), (CLASS_SIZES, RANGES, SCALES)),
        (NOTHING_KNOWN, (CLIP_NORM,), (CLASS_SIZES, RANGES, SCALES, CLIP_NORM)),
        (NOTHING_KNOWN, (CLASS_SIZES, CLASS_SIZES), (CLASS_SIZES,)),
        (NOTHING_KNOWN, ("class size",), ()),
        (NOTHING_KNOWN, (CLASS_LIST,), ()),
        (MAPPED, (CLASS_SIZES, RANGES, SCALES), (CLASS_SIZES,)),
        (KNOWN, (CLASS_SIZES,), ()),
        (facts(normalise=SiteZScore()), (CLASS_SIZES, CLIP_NORM), (CLASS_SIZES,)),
        (replace(NOTHING_KNOWN, classes=None), (), (CLASS_LIST,)),
        (replace(NOTHING_KNOWN, classes=None), (CLASS_SIZES,), (CLASS_LIST,)),
    ],
    ids=str,
)
def test_facts_are_measured_in_order_and_with_what_they_need(
    known: Facts, names: tuple[str, ...], right: tuple[str, ...]
) -> None:
    with pytest.raises(InputError, match="must be facts that are not declared") as refused:
        make_plan(known, Counts(facts=names))
    assert f"have `measures` return {right}" in refused.value.fix
    plan = make_plan(known, Counts(facts=right))
    assert tuple(each.name for each in plan.opening) == right


@pytest.mark.parametrize(
    "names", [(CLASS_SIZES, RANGES, SCALES, CLIP_NORM), (CLASS_SIZES,), ()], ids=str
)
def test_any_part_of_what_is_not_declared_can_be_measured(names: tuple[str, ...]) -> None:
    plan = make_plan(NOTHING_KNOWN, Counts(facts=names)).calibrate(20.0)
    run(plan, LocalEngine(some_rows()))
    clipped = make_plan(MAPPED, Counts(facts=(CLIP_NORM,))).calibrate(20.0)
    found = run(clipped, LocalEngine(some_rows()))
    assert found.facts.clip_norm is not None


@pytest.mark.parametrize("kind", [LocalEngine, InProcessEngine])
def test_an_engine_makes_one_release(kind: Any, tmp_path: Path) -> None:
    """Its keys serve once, so a second one would fail after it was charged."""
    lineage, parts = a_lineage(tmp_path), partition(some_rows(), 2, "iid", seed=1)
    plan = make_plan(KNOWN, Mixing(samples=4, mixture=2), scheme="cape", sites=2).calibrate(0.5)
    source = SystemSource()
    engine = kind(parts, source)
    run(plan, engine, lineage)
    for used in (engine, kind(parts, source)):
        with pytest.raises(InputError, match="make a new engine"):
            run(plan, used, lineage)
    assert lineage.account().total.charges == 1
    run(plan, kind(parts), lineage)


def test_draws_whose_noise_waits_for_measured_facts_need_an_epsilon() -> None:
    plan = make_plan(MAPPED, Mixing(samples=40, mixture=4)).calibrate(1.0)
    with pytest.raises(InputError, match="epsilon must be given"):
        replace(plan, epsilon=None)


@pytest.mark.parametrize(("scheme", "sites"), [("conventional", 2), ("cape", 1), ("central", 1)])
def test_the_protocol_refuses_other_schemes_before_they_are_charged(
    scheme: str, sites: int, tmp_path: Path
) -> None:
    lineage = a_lineage(tmp_path)
    plan = make_plan(KNOWN, Mixing(samples=4, mixture=2), scheme=scheme, sites=sites)
    parts = [some_rows()] if sites == 1 else partition(some_rows(), sites, "iid", seed=1)
    with pytest.raises(InputError, match="scheme must be cape, of two sites or more"):
        run(plan.calibrate(0.5), InProcessEngine(parts), lineage)
    assert lineage.account().total.charges == 0
