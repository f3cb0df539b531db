"""What a release measures before its method asks for anything, audited by itself.

There is no other record, so that nothing but noise surrounds the canary. Its value is larger than
any range that is looked for, so that it lies at the end of whichever is found and adds to every
sum as much as a record may.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from capemix.accounting.calibration import smallest_noise
from capemix.audit.programs import Program
from capemix.data.rows import LabeledRows
from capemix.facts import Facts
from capemix.methods.base import Method, SyntheticRows
from capemix.plan import Plan, make_plan
from capemix.queries import QueryShape, Relation
from capemix.statistics.histograms import EXPONENTS

if TYPE_CHECKING:
    from capemix.collector import Collector

BEYOND: Final = 2.0 ** (EXPONENTS[-1] + 2)
"""Outside of every range that can be found."""


@dataclass(frozen=True)
class FactsAlone(Method):
    """A method that needs every fact and makes no row: what is measured is all that it tells."""

    kind: Literal["facts alone"] = "facts alone"

    def measures(self, facts: Facts) -> tuple[str, ...]:
        return facts.undeclared(sizes=True, clip=True)

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:  # noqa: ARG002
        return ()

    def release(self, sums: Collector) -> SyntheticRows:
        return SyntheticRows(np.empty((0, sums.plan.known.width)), np.empty(0, dtype=np.int64))


def facts_setting(
    name: str, epsilon: float, delta: float, relation: Relation = Relation.ADD_REMOVE
) -> Program:
    """One curator's four opening sums, of one column and two classes, with all of ``epsilon``. With
    a record replaced, the other one is of the other class and at the other end."""
    facts = Facts(features=("x",), label="label", classes=(0, 1))
    plan = make_plan(facts, FactsAlone(), relation=relation, delta=delta)

    def with_noise(multiplier: float) -> Plan:
        return replace(plan, epsilon=epsilon, opening_multiplier=multiplier, multiplier=1.0)

    def reached(multiplier: float) -> float:
        found = with_noise(multiplier).guarantee().epsilon
        return math.inf if found is None else found

    noise = smallest_noise(reached, epsilon, start=8.0)
    other = _one(-BEYOND, 1) if relation is Relation.REPLACE_ONE else _one(0.0, 0).take([])
    return Program(name, with_noise(noise), (other,), (_one(BEYOND, 0),))


def _one(value: float, label: int) -> LabeledRows:
    return LabeledRows(
        features=np.array([[value]]),
        labels=np.array([label], dtype=np.int64),
        classes=(0, 1),
        feature_names=("x",),
    )
