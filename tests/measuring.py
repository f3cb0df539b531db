"""The opening sums of a plan by themselves."""

from __future__ import annotations

from capemix.collector import Collector, Engine
from capemix.facts import Facts
from capemix.guarantee import Guarantee
from capemix.methods import measured
from capemix.plan import Plan
from capemix.program_cost import ProgramCost


def measured_facts(plan: Plan, engine: Engine) -> Facts:
    """What the opening sums find, and nothing after them."""
    return measured.measure(Collector(plan, engine))


def opening_guarantee(plan: Plan) -> Guarantee:
    """What the opening sums cost by themselves."""
    return ProgramCost(plan).opening_guarantee(seeded=False)
