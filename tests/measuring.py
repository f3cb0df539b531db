"""The opening sums of a plan by themselves."""

from __future__ import annotations

from capemix.collector import Collector, Engine
from capemix.facts import Facts
from capemix.methods import measured
from capemix.plan import Plan
from capemix.program_cost import ProgramCost


def measured_facts(plan: Plan, engine: Engine) -> Facts:
    """What the opening sums find, and nothing after them."""
    return measured.measure(Collector(plan, engine))


def opening_epsilon(plan: Plan, delta: float | None = None) -> float:
    """What the opening sums cost by themselves, at all of the plan's delta or at this one."""
    cost = ProgramCost(plan)
    return cost.epsilon(cost.opened, plan.delta if delta is None else delta)
