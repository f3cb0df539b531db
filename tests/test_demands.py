"""What a plan may ask of a site's machine: decided by the plan's numbers and the policy, before
anything is charged, and the same whatever rows the site has."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capemix.agent import Agent, Holdings
from capemix.data import LabeledRows
from capemix.engines.flower.local import _permissive
from capemix.errors import InputError
from capemix.ledger import Account, Ledger
from capemix.sums.share import SourceDraws, prepare_records, share_bytes, site_share
from capemix.plan import MomentsPlan, Plan, make_moments_plan, make_plan
from capemix.plan.images import Images
from capemix.plan.shares import SIZES
from capemix.statistics.projection import Projection
from capemix.statistics.moments import Moments, Spreads
from capemix.sums.steps import PublicMap
from capemix.protocol.coordinator import Run
from capemix.protocol.demands import Demands, demands_of
from capemix.protocol.part import Part
from capemix.protocol.policy import Policy
from capemix.randomness.source import SeededSource
from capemix.zerosum.graph import PeerGraph
from capemix.zerosum.masks import deal_keys
from world import a_document, a_roster, identity

SITES = 4
SCHEMA = {"features": ["a", "b", "c"], "label": "y", "image_shape": None}
LIMITS = ("upload_bytes", "memory_bytes", "work", "draws")


@cache
def a_plan(**changed: Any) -> Plan:
    asked: dict[str, Any] = {
        "width": 3,
        "class_sizes": (4000, 4000),
        "samples": 50,
        "mixture": 16,
        "classes": ("no", "yes"),
        "scheme": "cape",
        "sites": SITES,
        "colluding": 1,
        "dropouts": 1,
    }
    return make_plan(**{**asked, **changed}).calibrate(0.9)


@cache
def in_rounds(**changed: Any) -> MomentsPlan:
    asked: dict[str, Any] = {"width": 3, "classes": ("no", "yes"), "scheme": "cape"}
    asked["normalise"] = PublicMap.of_range(0, 255)
    return make_moments_plan(**{**asked, "sites": SITES, **changed}).calibrate(0.9)


def huge() -> Plan:
    """Of 10^9 mixtures of three numbers: an upload of 12 GB, within epsilon 0.9."""
    return a_plan(samples=10**9)


def declined(plan: Plan, policy: Policy | None = None) -> str | None:
    policy = policy or Policy()
    return policy.declines(plan, SCHEMA, Account(policy.limit))


def rows_of(count: int) -> LabeledRows:
    rng = np.random.default_rng(count)
    labels = rng.integers(0, 2, count)
    return LabeledRows(rng.normal(size=(count, 3)), labels, ("no", "yes"), ("a", "b", "c"), "y")


def an_agent(count: int, folder: Path, policy: Policy) -> Agent:
    folder.mkdir()
    budget = Ledger.open(folder / "ledger.db").lineage("rows")
    roster = a_roster(SITES)
    return Agent(Holdings(0, identity("site 0"), roster, policy, rows_of(count), budget, 7))


def answered(plan: Plan, count: int, folder: Path, policy: Policy) -> tuple[bytes, Account]:
    """What a site with so many rows says to the proposal, and what it was charged."""
    agent = an_agent(count, folder, policy)
    roster, key = a_roster(SITES), identity("coordinator")
    run = Run(plan, SCHEMA, roster, key, bytes(range(16)), folder, chunk_bytes=256 << 20)
    said = agent.answer(dict(run.requests())[0])
    return said, agent._holdings.budget.account()


@pytest.mark.parametrize("policy", [Policy(), Policy(largest_upload_bytes=1 << 60)])
def test_a_plan_of_12_gb_is_declined_and_not_charged_whatever_the_rows(
    policy: Policy, tmp_path: Path
) -> None:
    assert share_bytes(huge()) == 12 * 10**9
    said = []
    for count in (1, 100_000):
        answer, account = answered(huge(), count, tmp_path / str(count), policy)
        assert account.total.charges == 0
        said.append(answer)
    assert said[0] == said[1]
    body = json.loads(said[0].splitlines()[0])["body"]
    assert body["accept"] is False
    limit = "upload_bytes of 1,073,741,824"
    if policy != Policy():
        limit = "memory_bytes of 8,589,934,592"
    assert f"above the policy's largest_{limit}: ask for fewer samples" in body["reason"]


@pytest.mark.parametrize("count", [1, 100_000])
def test_a_plan_of_usual_size_is_agreed_to_whatever_the_rows(count: int, tmp_path: Path) -> None:
    answer, _ = answered(a_plan(), count, tmp_path / "site", Policy())
    assert json.loads(answer.splitlines()[0])["body"]["accept"] is True


@pytest.mark.parametrize("limit", LIMITS)
def test_each_limit_is_held_to_the_last_unit_and_named(limit: str) -> None:
    plan = a_plan()
    asked = getattr(demands_of(plan), limit)
    assert declined(plan, Policy(**{f"largest_{limit}": asked})) is None
    if asked > 1:
        reason = declined(plan, Policy(**{f"largest_{limit}": asked - 1}))
        assert reason is not None
        assert f"{asked:,}" in reason
        assert f"above the policy's largest_{limit} of {asked - 1:,}: " in reason
        assert reason.endswith("or let the site raise its limit")


def test_every_demand_has_a_limit() -> None:
    assert tuple(field.name for field in fields(Demands)) == LIMITS
    known = {field.name for field in fields(Policy)}
    assert {f"largest_{name}" for name in LIMITS} <= known


def test_demands_are_those_of_the_plans_numbers() -> None:
    plan = a_plan(samples=1000)
    asked = demands_of(plan)
    assert asked.upload_bytes == share_bytes(plan) == 1000 * 3 * 4
    assert asked.work == 1000 * 3 * (1 + 1 + 3 + 16)  # noise, own mask, three pairs, rows
    assert asked.draws == 2  # 500 draws of a class, at a rate of 16 / 4000
    more = {
        "samples": 10**6,
        "class_sizes": (16, 16),
        "sites": 40,
        "mixture": 4000,
    }
    for name, value in more.items():
        assert demands_of(a_plan(**{name: value})).work >= demands_of(a_plan()).work
    assert demands_of(a_plan(class_sizes=(16, 16), samples=10**5)).draws == 50_000


def test_understated_class_sizes_do_not_hide_the_work_of_a_record() -> None:
    """Of a class that is said to have 16 records, every one is in every draw."""
    plan = a_plan(class_sizes=(16, 16), samples=10**5)
    reason = declined(plan)
    assert reason is not None
    assert "asks for 50,000 draws that a record takes part in, above the policy's" in reason
    assert "largest_draws of 10,000" in reason
    assert "declare the true class sizes" in reason


def test_rounds_are_judged_all_together() -> None:
    whole = in_rounds()
    each = [demands_of(plan) for plan in whole.chosen_rounds().plans.values()]
    asked = demands_of(whole)
    assert asked.work == sum(one.work for one in each)
    assert asked.draws == len(each)
    assert asked.upload_bytes == max(one.upload_bytes for one in each)
    first = whole.chosen_rounds().plan(
        SIZES,
        classes=whole.classes,
        contribution=Moments(Projection(whole.normalise, 3, 2), 1.0, (1.0, 0.0)),
    )
    part = Part(bytes(16), whole, SIZES)
    for work, fits in ((asked.work, True), (asked.work - 1, False)):
        policy = Policy(synthesizers=("moments",), largest_work=work)
        reason = policy.declines(first, SCHEMA, Account(policy.limit), part)
        assert (reason is None) == fits
        assert fits or "largest_work" in str(reason)


def test_the_largest_plans_that_are_usual_fit_the_limits_as_they_come() -> None:
    digits = {"class_sizes": (6000,) * 10, "classes": tuple(range(10)), "width": 784}
    for mixture in (1, 64, 512):
        plan = a_plan(**digits, samples=60_000, mixture=mixture, sites=10)
        assert Policy().exceeded(demands_of(plan)) is None
    for plan in (
        in_rounds(width=250, classes=tuple(range(1000))),
        in_rounds(width=784, classes=tuple(range(10)), images=Images((28, 28), True, True)),
    ):
        assert Policy().exceeded(demands_of(plan)) is None


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1", None, 1 << 61])
def test_a_limit_is_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(
        InputError, match=rf"policy largest_{name} (must be a whole number|.*expected `int`)"
    ):
        a_document(Policy, json.dumps({f"largest_{name}": value}))
    assert getattr(a_document(Policy, f'{{"largest_{name}": 77}}'), f"largest_{name}") == 77


def test_a_trials_policy_allows_what_its_plan_asks_for() -> None:
    plan = a_plan(class_sizes=(16, 16), samples=10**5)
    policy = _permissive(plan)
    assert declined(plan, policy) is None
    assert policy.largest_draws == asdict(demands_of(plan))["draws"]


# -- that the estimate is one ----------------------------------------------------------------------


def peak(plan: Plan, features: Any, labels: Any) -> int:
    keys = deal_keys(PeerGraph.complete(SITES), SeededSource(1))[0]
    draws = SourceDraws(plan, SeededSource(2))
    tracemalloc.start()
    try:
        prepared = prepare_records(plan, features, labels)
        site_share(plan, 0, prepared, draws, keys, threads=1)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [1, 3000])
def test_no_more_memory_is_taken_than_a_plan_is_said_to(count: int) -> None:
    rng = np.random.default_rng(3)
    frame = Projection(PublicMap.of_range(0, 255), 60, 2, basis=rng.normal(size=(60, 60)))
    asked = Spreads(frame, 1.0)
    by_number = make_plan(
        width=1, class_sizes=(900,), samples=3 << 20, mixture=3, scheme="cape", sites=SITES
    )
    moments = make_plan(
        width=3600, class_sizes=(1, 1), samples=2, mixture=1, clip=1.0, scheme="cape",
        sites=SITES, contribution=asked, classes=(0, 1),
    )  # fmt: skip
    for plan, width in ((by_number, 1), (a_plan(samples=1 << 20), 3), (moments, 60)):
        calibrated = plan if plan.noise else replace(plan, noise=2.0)
        rows = rng.normal(size=(count, width))
        labels = rng.integers(0, len(plan.classes), count)
        said = demands_of(calibrated)
        found = peak(calibrated, rows, labels)
        kept = 8 * rows.size  # of each record, up to a limit of its own: the frame's 60 directions
        assert said.upload_bytes < found
        assert found < said.memory_bytes + 2 * rows.size + kept
