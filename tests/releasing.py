"""Releases in one line, for tests: what is public of some rows, a method, a budget, a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from capemix.api import as_they_stand, config_of, synthesize
from capemix.collector import Collector
from capemix.data import LabeledRows, UnlistedRows
from capemix.engines.local import LocalEngine
from capemix.facts import Facts
from capemix.methods import method_named
from capemix.methods.base import SyntheticRows
from capemix.methods.mixing.planning import usual_mixing
from capemix.plan import Plan, make_plan
from capemix.randomness.source import Source
from capemix.release import Release
from capemix.run import rows_from
from capemix.sums.steps import Normalise

Rows = LabeledRows | UnlistedRows | Sequence[LabeledRows]
_COUNTED = ("source", "ledger", "lineage", "progress", "threads")


def plan_of(
    rows: Rows,
    method: str = "mixing",
    *,
    epsilon: float | None = None,
    class_sizes: tuple[int, ...] | None = None,
    normalise: Normalise | None = None,
    **asked: Any,
) -> Plan:
    """A plan for these rows, calibrated if there is an epsilon. ``asked`` are parts of the method's
    config, and who takes part: several sites' rows say their number. What is not declared is
    measured."""
    sites = [rows] if isinstance(rows, LabeledRows | UnlistedRows) else list(rows)
    if len(sites) > 1 and "scheme" in asked:
        asked.setdefault("sites", len(sites))
    facts = Facts.of(sites[0], class_sizes=class_sizes, normalise=normalise)
    if epsilon is not None and math.isinf(epsilon):
        facts = as_they_stand(facts, [each for each in sites if isinstance(each, LabeledRows)])
    known = {each.name for each in fields(method_named(method))}  # type: ignore[arg-type]
    config = {name: asked.pop(name) for name in list(asked) if name in known}
    if method == "mixing":
        made = usual_mixing(scheme=asked.get("scheme", "central"), **config)
    else:
        made = config_of(method, **config)
    plan = make_plan(facts, made, **asked)
    return plan if epsilon is None else plan.calibrate(epsilon)


def by_class(plan: Plan, rows: Rows, source: Source) -> SyntheticRows:
    """A plan's rows in the order in which its method makes them: a release has another."""
    return rows_from(Collector(plan, LocalEngine(rows, source)))


def release_of(rows: Rows, method: str = "mixing", *, epsilon: float, **asked: Any) -> Release:
    """Plan, calibrate and synthesize."""
    counted = {name: asked.pop(name) for name in _COUNTED if name in asked}
    return synthesize(plan_of(rows, method, epsilon=epsilon, **asked), rows, **counted)
