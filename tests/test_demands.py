"""What a plan may ask of a site's machine: decided by the plan's numbers and the policy, before
anything is charged, and the same whatever rows the site has."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capemix.agent import Agent, SiteState
from capemix.data import LabeledRows
from capemix.engines.flower.local import _permissive
from capemix.errors import InputError
from capemix.facts import CLASS_SIZES, Facts
from capemix.ledger import Account, Ledger
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.mixing import Mixing
from capemix.methods.mixing.planning import plan_mixtures
from capemix.plan import Plan, make_plan
from capemix.program_cost import known
from capemix.protocol.coordinator import Run
from capemix.protocol.demands import Demands, _of_sum, demands_of
from capemix.protocol.policy import Policy
from capemix.protocol.step import ReleaseStep
from capemix.queries import QueryShape
from capemix.randomness.source import SeededSource
from capemix.statistics.histograms import ClassCounts
from capemix.statistics.moments import Spreads
from capemix.statistics.projection import Projection
from capemix.sums.query import SumQuery
from capemix.sums.share import SourceDraws, prepare_records, share_bytes, site_share
from capemix.sums.steps import PublicMap
from capemix.zerosum.graph import PeerGraph
from capemix.zerosum.masks import deal_keys
from world import a_document, a_roster, identity, mixtures_of, step_of

SITES = 4
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
    plan = plan_mixtures(**{**asked, **changed})
    names = ("a", "b", "c") if plan.facts.width == 3 else plan.facts.features
    return replace(plan, facts=replace(plan.facts, features=names, label="y")).calibrate(0.9)


@cache
def in_sums(width: int = 3, classes: int = 2, **changed: Any) -> Plan:
    """Of many sums in each of which every record takes part."""
    method = changed.pop("method", ClassGaussian())
    facts = Facts(
        features=tuple(f"column {place}" for place in range(width)),
        label="y",
        classes=tuple(range(classes)),
        **{"normalise": PublicMap.of_range(0, 255), **changed},
    )
    return make_plan(facts, method, scheme="cape", sites=SITES).calibrate(0.9)


def huge() -> Plan:
    """Of 10^9 mixtures of three numbers: an upload of 12 GB. The noise that a budget needs grows
    with the root of their number; this is more, so that nobody waits for its calibration."""
    usual = a_plan(samples=10**5)
    more = replace(usual.method, samples=10**9)
    return replace(usual, method=more, multiplier=200 * known(usual.multiplier))


def declined(plan: Plan, policy: Policy | None = None) -> str | None:
    policy = policy or Policy()
    return policy.declines(step_of(plan), Account(policy.limit))


def rows_of(count: int) -> LabeledRows:
    rng = np.random.default_rng(count)
    labels = rng.integers(0, 2, count)
    return LabeledRows(rng.normal(size=(count, 3)), labels, ("no", "yes"), ("a", "b", "c"), "y")


def an_agent(count: int, folder: Path, policy: Policy) -> Agent:
    folder.mkdir()
    budget = Ledger.open(folder / "ledger.db").lineage("rows")
    roster = a_roster(SITES)
    return Agent(SiteState(0, identity("site 0"), roster, policy, rows_of(count), budget, 7))


def answered(plan: Plan, count: int, folder: Path, policy: Policy) -> tuple[bytes, Account]:
    """What a site with so many rows says to the proposal, and what it was charged."""
    agent = an_agent(count, folder, policy)
    roster, key = a_roster(SITES), identity("coordinator")
    run = Run(step_of(plan), roster, key, bytes(range(16)), folder, chunk_bytes=256 << 20)
    said = agent.answer(dict(run.requests())[0])
    return said, agent._state.budget.account()


@pytest.mark.parametrize("policy", [Policy(), Policy(largest_upload_bytes=1 << 60)])
def test_a_plan_of_12_gb_is_declined_and_not_charged_whatever_the_rows(
    policy: Policy, tmp_path: Path
) -> None:
    assert share_bytes(mixtures_of(huge())) == 12 * 10**9
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
    assert asked.upload_bytes == share_bytes(mixtures_of(plan)) == 1000 * 3 * 4
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


@pytest.mark.parametrize("method", [ClassGaussian(), Mixing(samples=50, mixture=16)])
@pytest.mark.parametrize("way", [PublicMap.of_range(0, 255), None])
def test_all_sums_of_a_release_are_judged_together(method: Any, way: PublicMap | None) -> None:
    """Those that open it included."""
    plan = in_sums(method=method, normalise=way)
    each = [share_bytes(query) for query in plan.queries()]
    asked = demands_of(plan)
    numbers = [line.rows * line.width * line.repeats for line in plan.outline]
    selected = [max(group.selected for group in line.participation) for line in plan.outline]
    peers = SITES - 1
    assert asked.work == sum(
        count * (2 + peers + rows) for count, rows in zip(numbers, selected, strict=True)
    )
    assert asked.upload_bytes == max(each)
    if not plan.drawn:
        assert asked.draws == len(each) == len(plan.names)
    assert plan.names[0] == CLASS_SIZES
    step = ReleaseStep(bytes(16), plan, CLASS_SIZES, ClassCounts(3, 2))
    for work, fits in ((asked.work, True), (asked.work - 1, False)):
        policy = Policy(methods=(plan.method.kind,), largest_work=work)
        reason = policy.declines(step, Account(policy.limit))
        assert (reason is None) == fits
        assert fits or "largest_work" in str(reason)


def test_the_largest_plans_that_are_usual_fit_the_limits_as_they_come() -> None:
    digits = {"class_sizes": (6000,) * 10, "classes": tuple(range(10)), "width": 784}
    for mixture in (1, 64, 512):
        plan = a_plan(**digits, samples=60_000, mixture=mixture, sites=10)
        assert not list(Policy().exceeded(demands_of(plan)))
    images = ImageClusters(soft_labels=True, deskew=True)
    for plan in (
        in_sums(width=250, classes=1000),
        in_sums(width=784, classes=10, method=images, image_shape=(28, 28)),
    ):
        assert not list(Policy().exceeded(demands_of(plan)))


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


@pytest.mark.parametrize(
    ("sizes", "tune"),
    [
        ((1, 1), False),
        ((1, 1), True),
        ((20, 30), False),
        pytest.param((20, 30), True, marks=pytest.mark.long),
        ((4000, 10**9), False),
        pytest.param((4000, 10**9), True, marks=pytest.mark.long),
    ],
)
def test_a_trials_policy_allows_what_its_plan_asks_for_whatever_is_measured(
    sizes: tuple[int, int], tune: bool
) -> None:
    method = Mixing(samples=5000, mixture=16, clip=1.0)
    if tune:
        method = Mixing(clip=1.0, redraw=90, tune=True)
    plan = in_sums(method=method)
    policy = _permissive(plan)
    if tune:
        sizes = (max(sizes[0], 8), max(sizes[1], 8))  # of fewer records nothing can be tuned
    later = replace(plan, measured=replace(plan.facts, class_sizes=sizes)).settled()
    for one in (plan, later):
        assert not list(policy.exceeded(demands_of(one)))
    assert policy.total_epsilon == policy.max_epsilon == plan.epsilon


# -- that the estimate is one ----------------------------------------------------------------------


def peak(query: SumQuery, features: Any, labels: Any) -> int:
    keys = deal_keys(PeerGraph.complete(SITES), SeededSource(1))[0]
    draws = SourceDraws(query, SeededSource(2))
    tracemalloc.start()
    try:
        prepared = prepare_records(query, features, labels)
        site_share(query, 0, prepared, draws, keys, threads=1)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [1, 3000])
def test_no_more_memory_is_taken_than_a_plan_is_said_to(count: int) -> None:
    rng = np.random.default_rng(3)
    frame = Projection(PublicMap.of_range(0, 255), 60, 2, basis=rng.normal(size=(60, 60)))
    asked = Spreads(frame, 1.0)
    by_number = plan_mixtures(
        width=1, class_sizes=(900,), samples=3 << 20, mixture=3, scheme="cape", sites=SITES,
        noise=2.0,
    )  # fmt: skip
    by_class = in_sums(width=60)
    spreads = QueryShape("spreads", "products", "spreads", 3600, 2)
    products = replace(by_class.query(CLASS_SIZES), line=spreads).of(asked)
    drawn = [(plan, mixtures_of(plan)) for plan in (by_number, a_plan(samples=1 << 20))]
    for plan, query in (*drawn, (by_class, products)):
        width = query.summed.columns
        rows = rng.normal(size=(count, width))
        labels = rng.integers(0, len(plan.facts.listed), count)
        said = _of_sum(query)
        assert said.memory_bytes <= demands_of(plan).memory_bytes or plan is by_class
        found = peak(query, rows, labels)
        kept = 8 * rows.size  # of each record, up to a limit of its own: the frame's 60 directions
        assert said.upload_bytes < found
        assert found < said.memory_bytes + 2 * rows.size + kept
