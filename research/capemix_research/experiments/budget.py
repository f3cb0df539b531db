"""How much noise the same promise takes, by tight accounting and by Rényi accounting.

    python -m capemix_research.experiments.budget

Noise is the multiplier of the method's sums as one: its deviation over what a record adds. No row
is read. The table is of settings that are fixed here, at delta 1e-5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from capemix.accounting.calibration import smallest_noise
from capemix.accounting.cost import Cost
from capemix.api import config_of
from capemix.facts import Facts, unnamed_columns
from capemix.ledger.filter import Account, Limit
from capemix.plan import Plan, make_plan
from capemix.sums.steps import PublicMap

DELTA: Final = 1e-5
RELEASES: Final = 12
"""Of a year, a month each."""


class Line(NamedTuple):
    """``before`` by Rényi orders, measured facts added to the rest; ``after`` as it is
    accounted."""

    setting: str
    before: float
    after: float


def facts(classes: int, each: int, *, sizes: bool = True, ranges: bool = True) -> Facts:
    return Facts(
        features=unnamed_columns(10),
        label="label",
        classes=tuple(range(classes)),
        class_sizes=(each,) * classes if sizes else None,
        normalise=PublicMap() if ranges else None,
    )


def lines() -> Iterator[Line]:
    gaussians, mixing = config_of("class-gaussian"), config_of("mixing", samples=1000, mixture=16)
    for sites in (1, 10):
        who: dict[str, Any] = {} if sites == 1 else {"scheme": "cape", "sites": sites}
        where = "one curator" if sites == 1 else f"{sites} sites"
        for epsilon in (0.1, 1.0, 3.0, 10.0):
            plan = make_plan(facts(3, 500), gaussians, epsilon=epsilon, **who)
            yield _line(f"class Gaussians, {where}, epsilon {epsilon:g}", plan)
        plan = make_plan(facts(3, 500, sizes=False, ranges=False), gaussians, epsilon=1.0, **who)
        apart = [
            make_plan(facts(3, 500), gaussians, delta=part * DELTA, epsilon=part, **who)
            for part in (0.2, 0.8)
        ]
        yield Line(
            f"class Gaussians with measured facts, {where}, epsilon 1",
            _as_one(*map(_before, apart)),
            _as_one(plan.opening_multiplier, plan.multiplier),
        )
    for epsilon in (1.0, 3.0, 10.0):
        plan = make_plan(facts(10, 6000), mixing, epsilon=epsilon)
        yield _line(f"mixtures, l=16, T_k=100, n_k=6000, epsilon {epsilon:g}", plan)
    for name, plan in (
        ("class Gaussians", make_plan(facts(3, 500), gaussians, epsilon=1.0)),
        ("mixtures", make_plan(facts(10, 6000), mixing, epsilon=1.0)),
    ):
        yield _twelve(f"{RELEASES} releases of {name} in one ledger, epsilon 3", plan)


def _line(setting: str, plan: Plan) -> Line:
    return Line(setting, _before(plan), plan.multiplier or math.nan)


def _as_one(*multipliers: float | None) -> float:
    """The multiplier of independent sums together: their 1/m^2 add up."""
    return 1.0 / math.sqrt(sum(1.0 / (each or math.nan) ** 2 for each in multipliers))


def _before(plan: Plan) -> float:
    """The least noise by Rényi orders."""
    return smallest_noise(
        lambda noise: replace(plan, multiplier=noise).conservative_epsilon(),
        plan.epsilon or math.inf,
        start=plan.multiplier or 1.0,
    )


def _twelve(setting: str, plan: Plan) -> Line:
    def least(cost: Callable[[Plan], Cost]) -> float:
        low, high = math.log(0.2), math.log(40.0)
        while high - low > 1e-3:
            middle = (low + high) / 2
            costs = [cost(replace(plan, multiplier=math.exp(middle)))] * RELEASES
            fits = Account(Limit(3.0, DELTA)).admits(costs)
            low, high = (low, middle) if fits else (middle, high)
        return math.exp(high)

    def by_curve(tried: Plan) -> Cost:
        return replace(tried.costs()[0], squared=None)

    return Line(setting, least(by_curve), least(lambda tried: tried.costs()[0]))


def main() -> None:
    print("| setting | noise by Rényi | noise | less |\n|---|---|---|---|")
    for line in lines():
        less = 1 - line.after / line.before
        print(f"| {line.setting} | {line.before:.4g} | {line.after:.4g} | {less:.1%} |")


if __name__ == "__main__":
    main()
