"""What is asked, frozen: `Plan`, and how plans are made: `make_plan`, `plan_from_json`; and
`MomentsPlan`, `make_moments_plan`, `moments_from_json`, of rounds of moments. What a federation can
be asked for: `asked_from_json`, and the schema that it codes rows by: `table_of`."""

from __future__ import annotations

from typing import Any

from capemix.data.schema import Table
from capemix.plan.making import make_plan, plan_from_json
from capemix.plan.moments import MomentsPlan, make_moments_plan, moments_from_json
from capemix.plan.plan import (
    ARITHMETIC,
    Accountant,
    BudgetLine,
    NoiseLaw,
    Plan,
)
from capemix.synthesizers.names import SynthesizerName

Asked = Plan | MomentsPlan
"""What a federation carries out: one sum, or rounds of them."""


def asked_from_json(found: dict[str, Any]) -> Asked:
    """What the ``as_json`` of either wrote."""
    in_rounds = [name for name in SynthesizerName if name.of_moments]
    rounds = found.get("synthesizer") in in_rounds
    return moments_from_json(found) if rounds else plan_from_json(found)


def table_of(plan: Asked) -> Table | None:
    """The schema that it codes rows by, if it does."""
    return plan.table if isinstance(plan, MomentsPlan) else None


__all__ = [
    "ARITHMETIC",
    "Accountant",
    "Asked",
    "BudgetLine",
    "MomentsPlan",
    "NoiseLaw",
    "Plan",
    "asked_from_json",
    "make_moments_plan",
    "make_plan",
    "moments_from_json",
    "plan_from_json",
    "table_of",
]
