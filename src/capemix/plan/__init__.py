"""What is asked, frozen: `Plan`, and how plans are made: `make_plan`, `plan_from_json`; and
`RecordPlan`, `make_record_plan`, where every record is released by itself; and `MomentsPlan`, of
rounds of moments."""

from __future__ import annotations

from capemix.plan.making import make_plan, plan_from_json
from capemix.plan.moments import MomentsPlan
from capemix.plan.plan import (
    ARITHMETIC,
    Accountant,
    BudgetLine,
    NoiseLaw,
    Plan,
)
from capemix.plan.recordwise import Projection, RecordPlan, make_record_plan

__all__ = [
    "ARITHMETIC",
    "Accountant",
    "BudgetLine",
    "MomentsPlan",
    "NoiseLaw",
    "Plan",
    "Projection",
    "RecordPlan",
    "make_plan",
    "make_record_plan",
    "plan_from_json",
]
