"""What is asked, frozen: `Plan`; and how plans are made: `make_plan`, `plan_from_json`."""

from __future__ import annotations

from capemix.plan.making import make_plan, plan_from_json
from capemix.plan.plan import ARITHMETIC, Accountant, NoiseLaw, Plan

__all__ = ["ARITHMETIC", "Accountant", "NoiseLaw", "Plan", "make_plan", "plan_from_json"]
