"""The ledger: what is counted before it exists, by whom it can be edited unseen (nobody who leaves
the heads alone), and the filter that lets plans depend on earlier releases."""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_distribution import (
    from_gaussian_mechanism,
    from_privacy_parameters,
)
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from capemix import documents
from capemix.accounting.cost import CLAIMED, PROVED, Cost, alone_cost, response_rdp, together
from capemix.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_multiplier
from capemix.accounting.sampled import ORDERS
from capemix.api import Synthesizer, synthesize
from capemix.collector import Engine
from capemix.data import LabeledRows
from capemix.engines.local import LocalEngine
from capemix.errors import BudgetError, InputError
from capemix.facts import Facts
from capemix.ledger import Account, Head, Ledger, Limit, Way, chain, default_path
from capemix.ledger.filter import kappa, repetitions
from capemix.methods import Method
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.mixing import Mixing
from capemix.methods.mixing.planning import plan_mixtures
from capemix.methods.shares import OCTAVES
from capemix.plan import Plan, make_plan
from capemix.queries import Relation
from capemix.randomness.source import SeededSource
from capemix.release import read_release
from capemix.run import run
from capemix.sums.query import SumQuery
from capemix.sums.steps import ColumnMap, PublicMap
from capemix_research.baselines import RecordPlan, make_record_plan, release_records
from conftest import Capemix

KILLS = int(os.environ.get("CAPEMIX_KILLS", "20"))
LIMIT = Limit(5.0, 1e-5)
OLD = Path(__file__).with_name("golden") / "ledger-1"
OF_PIXELS = PublicMap.of_range(0, 16)


@cache
def a_plan(epsilon: float = 1.0, **changed: Any) -> Plan:
    asked: dict[str, Any] = {"width": 2, "class_sizes": (100, 100), "samples": 20, "mixture": 10}
    return plan_mixtures(**{**asked, "classes": ("no", "yes"), **changed}).calibrate(epsilon)


def a_record_plan(epsilon: float, classes: tuple[str | int, ...] = (0, 1, 2)) -> RecordPlan:
    facts = Facts(("a", "b"), "y", classes, normalise=PublicMap())
    return make_record_plan("local-perturbation", facts).calibrate(epsilon)


def cost_of(plan: Plan, relation: Relation | None = None) -> Cost:
    """Of a plan whose facts are all declared."""
    [cost] = plan.costs(relation)
    return cost


def some_rows(count: int = 200) -> LabeledRows:
    rng = np.random.default_rng(0)
    return LabeledRows(
        features=rng.random((count, 2)),
        labels=(np.arange(count) % 2).astype(np.int64),
        classes=("no", "yes"),
        feature_names=("a", "b"),
    )


def response(epsilon: float) -> Cost:
    """Randomised response: its curve is exact, and its outcomes can be counted out."""
    curve = {order: response_rdp(epsilon, 2, order) for order in ORDERS}
    return Cost(Relation.ADD_REMOVE, epsilon, 0.0, curve)


def until_refused(account: Account, cost: Cost, most: int = 10_000) -> tuple[Account, int]:
    for times in range(most):
        admitted = account.admit(cost)
        if admitted is None:
            return account, times
        account = admitted[0]
    raise AssertionError("never refused")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.open(tmp_path / "ledger.db")
    made.set_limit("people", LIMIT)
    return made


# -- the filter --------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "noise", "draws"), [(0.1, 2.0, 10), (1.0, 8.0, 1)])
@pytest.mark.parametrize("times", [1, 7])
def test_what_was_spent_is_what_dp_accounting_composes(
    rate: float, noise: float, draws: int, times: int
) -> None:
    selected = round(100 * rate)
    plan = plan_mixtures(
        width=2, class_sizes=(100,), samples=draws, mixture=selected, noise=noise / selected
    )
    account = Account(Limit(20.0, 1e-5))
    for _ in range(times):
        admitted = account.admit(cost_of(plan))
        assert admitted is not None
        account = admitted[0]
    if rate == 1.0:
        expected = gaussian_epsilon(noise / math.sqrt(draws * times), 1e-5)
    elif times == 1:
        expected = plan.guarantee().epsilon or math.inf
    else:
        oracle = RdpAccountant(list(ORDERS))
        event = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
        oracle.compose(SelfComposedDpEvent(event, draws * times))
        expected = oracle.get_epsilon(1e-5)
    assert account.epsilon == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize(("limit", "each"), [(10.0, 1.0), (1.0, 0.1), (5.0, 2.0), (3.0, 0.05)])
def test_repetitions_compose_as_tightly_as_if_planned_in_advance(limit: float, each: float) -> None:
    cost = cost_of(a_plan(each))
    account, times = until_refused(Account(Limit(limit, 1e-5)), cost)
    by_order = (
        (limit - kappa(order, 1e-5)) / spent for order, spent in cost.curve.items() if spent
    )
    best = int(max(by_order))
    assert best - 1 - best // 50 <= times <= best
    assert times > limit / each  # more than adding epsilons allows
    assert account.holds
    assert account.epsilon <= limit
    assert repetitions(account, cost) == 0


@pytest.mark.parametrize(
    "plan",
    [
        a_plan(2.0),
        a_plan(2.0, law="gaussian"),
        a_plan(2.0, relation="replace-one"),
        a_plan(2.0, selection="fixed-size"),
        a_plan(2.0, scheme="cape", sites=4),
        a_plan(2.0, scheme="cape", sites=4, masks="gaussian"),
        a_plan(2.0, scheme="cape", sites=60, colluding=15, peers=14),
        a_plan(30.0),
        a_record_plan(2.0),
    ],
    ids=str.split("plain real replace-one fixed cape masks sparse thirty records"),
)
def test_a_release_that_costs_the_whole_limit_fits_once(plan: Any) -> None:
    guarantee = plan.guarantee()
    relation = guarantee.relation
    account = Account(Limit(guarantee.epsilon, guarantee.delta, relation))
    cost = cost_of(plan, relation) if isinstance(plan, Plan) else plan.cost(relation)
    account, times = until_refused(account, cost)
    assert times == 1
    assert account.epsilon <= guarantee.epsilon * (1 + 1e-9)
    assert account.used == pytest.approx(1.0, rel=0.01)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), first=st.sampled_from([0.2, 0.4, 0.7]))
def test_whoever_chooses_plans_by_what_came_out_stays_within_the_limit(
    seed: int, first: float
) -> None:
    """Every outcome of up to eleven releases, each chosen by the outcomes before it, counted out:
    the hockey-stick divergence at the limit's epsilon is at most its delta."""
    limit = Limit(1.0, 0.05)
    rng = np.random.default_rng(seed)
    depth = 11
    chosen = rng.choice([0.05, 0.2, 0.4, 0.7], size=2**depth)
    greedy = seed % 2 == 0

    def walk(account: Account, ratio: float, weight: float, place: int, level: int) -> float:
        """Sum of (P - e^ε Q)_+ below this history; ratio is log P/Q, weight is P."""
        epsilon = first if level == 0 else float(chosen[place])
        if greedy and level:  # spend where it hurts most, dawdle elsewhere
            epsilon = 0.7 if ratio > 0 else 0.05
        admitted = account.admit(response(epsilon)) if level < depth else None
        if admitted is None:
            return max(0.0, weight * (1 - math.exp(limit.epsilon - ratio)))
        told = 1 / (1 + math.exp(-epsilon))
        return walk(admitted[0], ratio + epsilon, weight * told, 2 * place + 1, level + 1) + walk(
            admitted[0], ratio - epsilon, weight * (1 - told), 2 * place % 2**depth, level + 1
        )

    chosen = np.resize(chosen, 2 ** (depth + 1))
    assert walk(Account(limit), 0.0, 1.0, 0, 0) <= limit.delta


def test_an_order_chosen_by_what_came_out_would_not_be_covered() -> None:
    """Why the order is fixed: the larger of two orders' martingales has a mean well above 1."""
    z = np.linspace(-12, 16, 200_001)
    density = np.exp(-((z - 1) ** 2) / 2) / math.sqrt(2 * math.pi)
    log_ratio = z - 0.5  # of N(1, 1) against N(0, 1)
    at = {a: np.exp((a - 1) * log_ratio - (a - 1) * a / 2) for a in (2, 8)}
    mean = {a: float(np.sum(density * m) * (z[1] - z[0])) for a, m in at.items()}
    assert mean == {2: pytest.approx(1.0), 8: pytest.approx(1.0)}
    either = float(np.sum(density * np.maximum(at[2], at[8])) * (z[1] - z[0]))
    assert either > 1.9


@settings(max_examples=50)
@given(
    sizes=st.lists(st.sampled_from([0.05, 0.3, 1.0, 2.5]), max_size=12),
    limit=st.floats(0.5, 12.0),
    aside=st.floats(0.0, 1e-6),
)
def test_no_sequence_passes_the_limit_and_what_is_used_only_grows(
    sizes: list[float], limit: float, aside: float
) -> None:
    account = Account(Limit(limit, 1e-5))
    for size in sizes:
        plain = cost_of(a_plan(size))
        cost = Cost(plain.relation, size, 1e-5, plain.curve, failure=aside, distance=2.0**-90)
        admitted = account.admit(cost)
        if admitted is None:
            continue
        after, _, _ = admitted
        assert after.holds
        assert account.used <= after.used <= 1 + 1e-9
        assert after.epsilon <= limit * (1 + 1e-9)
        assert after.total.charges == account.total.charges + 1
        if account.terms is not None:
            assert after.terms == account.terms
        account = after


def test_failing_graphs_and_samplers_come_out_of_delta() -> None:
    sparse = cost_of(a_plan(1.0, scheme="cape", sites=60, colluding=15, peers=14))
    assert 0 < sparse.failure < sparse.delta
    assert sparse.distance > 0
    assert sparse.basis == PROVED
    assert cost_of(a_plan(1.0, scheme="cape", sites=4, masks="gaussian")).basis == CLAIMED
    curve = cost_of(a_plan(0.1)).curve
    costly = Cost(Relation.ADD_REMOVE, 0.1, 4e-6, curve, failure=4e-7)
    account, times = until_refused(Account(LIMIT), costly)
    assert times == 2  # by delta, though the curve would have let hundreds pass
    assert account.aside + account.gone <= LIMIT.delta
    far = Cost(Relation.ADD_REMOVE, 0.1, 2e-5, curve, distance=1e-6)
    assert Account(LIMIT).admit(far) is None


@pytest.mark.parametrize("answers", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_the_curve_of_randomised_response_is_its_definition(epsilon: float, answers: int) -> None:
    told = math.exp(epsilon) / (math.exp(epsilon) + answers - 1)
    other = (1 - told) / (answers - 1)
    p = np.array([told, other, *[other] * (answers - 2)])
    q = np.array([other, told, *[other] * (answers - 2)])
    for order in (2, 5, 40):
        defined = math.log(np.sum(p**order * q ** (1 - order))) / (order - 1)
        assert response_rdp(epsilon, answers, order) == pytest.approx(defined, abs=1e-12)
    assert response_rdp(800.0, answers, 3) <= 800.0
    assert response_rdp(1.0, 1, 3) == 0.0


def test_one_plan_can_be_counted_in_either_relation_if_it_draws_by_poisson() -> None:
    plan = a_plan()
    added, replaced = (cost_of(plan, relation) for relation in Relation)
    assert replaced.epsilon > added.epsilon == plan.guarantee().epsilon
    assert all(replaced.curve[a] > added.curve[a] for a in ORDERS)
    with pytest.raises(InputError, match="fixed-size"):
        a_plan(selection="fixed-size").costs(Relation.ADD_REMOVE)
    with pytest.raises(InputError, match="one by one"):
        a_record_plan(1.0).cost(Relation.ADD_REMOVE)
    with pytest.raises(InputError, match="add-or-remove-one, as of the limit"):
        Account(LIMIT).admit(replaced)


# -- Gaussians alone, and both filters at once --------------------------------------------------


def gaussian_cost(squared: float) -> Cost:
    """A sum that every record joins: its Rényi divergence of order a is a/2 of this."""
    epsilon = gaussian_epsilon(squared**-0.5, 1e-5)
    curve = {order: order / 2 * squared for order in ORDERS}
    return Cost(Relation.ADD_REMOVE, epsilon, 1e-5, curve, squared=squared)


@cache
def a_gaussian_plan(epsilon: float) -> Plan:
    facts = Facts(("a", "b"), "y", ("no", "yes"), normalise=PublicMap())
    return make_plan(facts, ClassGaussian()).calibrate(epsilon)


def test_gaussians_alone_add_up_to_one_gaussian() -> None:
    """What was released costs what the exact Gaussian and another library say of all of it; and
    as many fit as one Gaussian of the limit, but for the part of delta that is kept."""
    limit = Limit(5.0, 1e-5)
    account, squares = Account(limit), []
    for epsilon in (1.0, 0.5, 2.0, 0.7, 1.5):
        cost = cost_of(a_gaussian_plan(epsilon))
        admitted = account.admit(cost)
        assert admitted is not None
        account = admitted[0]
        squares.append(cost.squared or math.nan)
        together = gaussian_epsilon(sum(squares) ** -0.5, 1e-5)
        assert account.epsilon == pytest.approx(together, rel=1e-5)
    oracle = from_gaussian_mechanism(squares[0] ** -0.5)
    for squared in squares[1:]:
        oracle = oracle.compose(from_gaussian_mechanism(squared**-0.5))
    assert account.epsilon == pytest.approx(oracle.get_epsilon_for_delta(1e-5), rel=2e-3)
    cost = cost_of(a_gaussian_plan(0.5))
    assert cost.squared is not None
    left = gaussian_multiplier(5.0, 0.9 * 0.95 * 1e-5) ** -2 - sum(squares)
    assert until_refused(account, cost)[1] == int(left / cost.squared) == repetitions(account, cost)


@pytest.mark.parametrize("menu", [(1,), (1, 2, 3), (4, 7)])
def test_whoever_chooses_gaussians_by_what_came_out_gets_no_more_than_one(
    menu: tuple[int, ...],
) -> None:
    """The best of all adversaries, worked out backwards: which size to ask for next, at each
    likelihood ratio so far, or to stop. It comes to the delta of one Gaussian."""
    limit, parts = Limit(1.0, 1e-3), 12
    allowed = Account(limit)._fitted(gaussian_cost(1e-3))
    assert allowed is not None
    unit = allowed.allowed_squared / parts
    ratio = np.linspace(-6.0, 9.0, 1501)
    step = ratio[1] - ratio[0]

    def moved(squared: float, after: np.ndarray) -> np.ndarray:
        """The mean of what comes after, over what this release adds to the ratio."""
        around = ratio[None, :] - ratio[:, None]
        law = np.exp(-((around - squared / 2) ** 2) / (2 * squared))
        return np.asarray(law @ after * (step / math.sqrt(2 * math.pi * squared)))

    seen: dict[int, Any] = {}

    def best(account: Account, spent: int) -> Any:
        """What is reached from each ratio, where so many units were spent."""
        if spent in seen:
            return seen[spent]
        assert account.holds
        found = np.maximum(0.0, -np.expm1(limit.epsilon - ratio))
        for size in menu:
            admitted = account.admit(gaussian_cost(size * unit * (1 - 1e-9)))
            if admitted is not None:
                after = best(admitted[0], spent + size)
                found = np.maximum(found, moved(size * unit, after))
        seen[spent] = found
        return found

    reached = float(np.interp(0.0, ratio, best(Account(limit), 0)))
    most = max(seen)
    assert reached == pytest.approx(gaussian_delta(1.0, (most * unit) ** -0.5), rel=0.01)
    assert reached <= limit.delta
    if menu == (1,):
        assert most == parts
        assert reached > 0.8 * limit.delta  # nothing but what is kept is given away


def test_a_lineage_of_gaussians_that_turns_to_draws_goes_on_under_the_other_filter() -> None:
    limit = Limit(5.0, 1e-5)
    gaussian, drawn = cost_of(a_gaussian_plan(1.0)), cost_of(a_plan(0.5))
    account = Account(limit)
    for _ in range(3):
        admitted = account.admit(gaussian)
        assert admitted is not None
        account = admitted[0]
    terms = account.terms
    assert terms is not None
    assert terms.gaussians == 0.95
    assert account.squared == pytest.approx(3 * (gaussian.squared or 0.0))
    turned = account.admit(drawn)
    assert turned is not None
    assert turned[1] is Way.CURVE
    account = turned[0]
    assert account.terms == terms
    assert account.squared == math.inf
    spent = 3 * gaussian.curve[terms.order] + drawn.curve[terms.order]
    assert account.divergence == pytest.approx(spent)
    again = account.admit(gaussian)
    assert again is not None
    assert again[0].divergence == pytest.approx(spent + gaussian.curve[terms.order])
    # Full of Gaussians it has no room for a draw: the other filter was passed on the way.
    full, times = until_refused(Account(limit), gaussian)
    assert times > 3
    assert full.divergence > full.allowed
    assert full.admit(drawn) is None
    # And where the first release is no Gaussian, Gaussians alone are no way.
    first = Account(limit).admit(drawn)
    assert first is not None
    assert first[0].allowed_squared == 0.0


WHOLE: dict[str, tuple[Facts, Method]] = {
    "class Gaussians": (Facts(("a", "b"), "y", (0, 1)), ClassGaussian()),
    "class Gaussians, no list": (Facts(("a", "b"), "y", None), ClassGaussian()),
    "mixing": (Facts(("a", "b"), "y", (0, 1), (90, 80), PublicMap()), Mixing()),
    "mixing, measured": (Facts(("a", "b"), "y", (0, 1)), Mixing()),
    "mixing, no list": (Facts(("a", "b"), "y", None), Mixing()),
    "images": (
        Facts(tuple(map(str, range(64))), "y", (0, 1), None, OF_PIXELS, image_shape=(8, 8)),
        ImageClusters(),
    ),
    "images, soft labels": (
        Facts(tuple(map(str, range(64))), "y", (0, 1), None, OF_PIXELS, image_shape=(8, 8)),
        ImageClusters(soft_labels=True),
    ),
}


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("name", WHOLE)
def test_a_release_whose_own_epsilon_is_the_limit_fits_once(name: str, epsilon: float) -> None:
    facts, method = WHOLE[name]
    plan = make_plan(facts, method).calibrate(epsilon)
    costs, instead = plan.costs(), plan.cost_alone(plan.relation)
    account = Account(Limit(epsilon, plan.delta))
    assert account.admits(costs, instead=instead)
    at_once = False
    for cost in costs:
        admitted = account.admit(cost, whole=together(costs), instead=instead)
        assert admitted is not None
        account, _, paid = admitted
        at_once = paid is instead
        if at_once:
            break
        instead = None
    assert account.holds
    assert account.used > 0.9
    assert not account.admits(costs, instead=plan.cost_alone(plan.relation))
    less = Account(Limit(0.98 * epsilon, plan.delta))
    assert not less.admits(costs, instead=plan.cost_alone(plan.relation))


def test_a_sum_that_was_paid_for_with_an_earlier_one_fixes_no_terms() -> None:
    """It costs nothing at any order, so that each would suit it: what comes later would find an
    order at which a Gaussian costs thousands of times as much."""
    columns = Facts(("a", "b", "c", "d"), "y", (0, 1))
    plan = make_plan(columns, Mixing(samples=100, mixture=16), epsilon=1.0)
    costs, instead = plan.costs(), plan.cost_alone(plan.relation)
    admitted = Account(Limit(1.1, 2e-5)).admit(costs[0], whole=together(costs), instead=instead)
    assert admitted is not None
    account = admitted[0]
    assert (admitted[1], account.terms) == (Way.ALONE, None)
    nothing = Cost(plan.relation, 0.0, 0.0, dict.fromkeys(ORDERS, 0.0), squared=0.0)
    paid = account.admit(nothing)
    assert paid is not None
    assert paid[0].terms is None
    later = gaussian_cost(1e-4)
    assert until_refused(paid[0], later)[1] == until_refused(account, later)[1] > 0


def test_a_list_of_classes_can_be_found_twelve_times_within_a_limit() -> None:
    """A month's release, each with a list found by a threshold, in a year's limit."""
    facts = Facts(("a", "b"), "y", None)
    for method in (ClassGaussian(), Mixing()):
        plan = make_plan(facts, method).calibrate(1.0)
        account, costs = Account(Limit(10.0, 1e-5)), plan.costs()
        for _ in range(12):
            instead = plan.cost_alone(plan.relation)
            assert account.admits(costs, instead=instead)
            for cost in costs:
                admitted = account.admit(cost, whole=together(costs), instead=instead)
                assert admitted is not None
                account, instead = admitted[0], None
        assert account.holds


def losses_of(kind: str, size: float) -> tuple[Cost, Any]:
    """A cost, and another library's losses of the same release."""
    step = 2e-3
    if kind == "gaussian":
        return gaussian_cost(size**2), from_gaussian_mechanism(
            1 / size, value_discretization_interval=step
        )
    if kind == "alone":
        cost = alone_cost(size, 1e-7, Relation.ADD_REMOVE)
        return cost, from_privacy_parameters(
            DifferentialPrivacyParameters(size, 1e-7), value_discretization_interval=step
        )
    draws, rate, noise = 20, 0.05, 0.3 / size
    plan = plan_mixtures(
        width=2, class_sizes=(100,), samples=draws, mixture=5, noise=noise / 5, delta=1e-5
    )
    return cost_of(plan), from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=step
    ).self_compose(draws)


KIND = st.tuples(st.sampled_from(["gaussian", "drawn", "alone"]), st.sampled_from([0.1, 0.25, 0.4]))


@settings(max_examples=25)
@given(first=KIND, others=st.lists(KIND, max_size=14), limit=st.floats(0.5, 4.0))
def test_no_sequence_of_any_releases_costs_more_than_the_limit_by_another_library(
    first: tuple[str, float], others: list[tuple[str, float]], limit: float
) -> None:
    """Each repeated until it is refused, then the next, composed as if planned in advance."""
    account, composed = Account(Limit(limit, 1e-5)), None
    for kind in (first, *others):
        cost, law = losses_cached(kind)
        for _ in range(3):
            admitted = account.admit(cost)
            if admitted is None:
                break
            account = admitted[0]
            composed = law if composed is None else composed.compose(law)
    if composed is not None:
        assert composed.get_delta_for_epsilon(limit) <= 1e-5 * 1.01


@cache
def losses_cached(kind: tuple[str, float]) -> tuple[Cost, Any]:
    return losses_of(*kind)


# -- ledgers that were written before Gaussians were added up ------------------------------------


def old_ledger(folder: Path) -> Ledger:
    """The lines of commit 4263b37, as they were written: with neither squares nor growths, and with
    the order and what is kept where the terms are now."""
    ledger = Ledger.open(folder / "old.db")
    lines = (OLD / "lines.jsonl").read_text().splitlines()
    with closing(sqlite3.connect(ledger.path)) as database, database:
        database.executemany(
            "INSERT INTO entries VALUES (?, ?, ?)",
            [(at, text, chain.hash_of(text)) for at, text in enumerate(lines, start=1)],
        )
    return ledger


def test_an_old_ledger_allows_what_it_allowed(tmp_path: Path) -> None:
    ledger = old_ledger(tmp_path)
    accounts, known = ledger.accounts(), json.loads((OLD / "accounts.json").read_text())
    assert accounts.keys() == known.keys()
    half = cost_of(a_plan(0.5))
    for name, then in known.items():
        account = accounts[name]
        assert account.order == then["order"]
        assert account.holds is then["holds"]
        for figure in ("gone", "divergence", "aside", "distance", "allowed", "allowed_aside"):
            assert getattr(account, figure) == pytest.approx(then[figure], rel=1e-12), figure
        assert account.used == pytest.approx(then["used"], rel=1e-12)
        assert account.epsilon == pytest.approx(then["epsilon"], rel=1e-9)
        assert account.allowed_squared == 0.0
    assert repetitions(accounts["gaussians"], half) > 0
    # It goes on under the terms that it has.
    ledger.charge("gaussians", "release", cost_of(a_gaussian_plan(0.5)))
    after = ledger.accounts()["gaussians"]
    assert after.order == known["gaussians"]["order"]
    assert after.divergence > accounts["gaussians"].divergence
    assert after.squared == math.inf
    # One in which nothing fixed an order has terms of its own from its next release on.
    ledger.charge("alone", "release", cost_of(a_plan(0.3)))
    assert ledger.accounts()["alone"].terms is not None
    assert ledger.accounts()["alone"].allowed_squared == 0.0
    ledger.verify()


# -- the file ----------------------------------------------------------------------------------


def charge_all(path: Path, epsilon: float, counted: Any) -> None:
    cost, lineage = cost_of(a_plan(epsilon)), Ledger.open(path).lineage("people")
    for times in itertools.count():
        try:
            lineage.charge("release", cost)
        except BudgetError:
            counted.put(times)
            return


def test_two_processes_cannot_overspend(ledger: Ledger) -> None:
    ledger.set_limit("people", Limit(2.0, 1e-5))
    context = multiprocessing.get_context("spawn")
    counted = context.Queue()
    workers = [
        context.Process(target=charge_all, args=(ledger.path, 0.5, counted)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    times = [counted.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(60)
    alone = until_refused(Account(Limit(2.0, 1e-5)), cost_of(a_plan(0.5)))[1]
    assert sum(times) == alone
    account = ledger.accounts()["people"]
    assert account.total.charges == alone
    assert account.holds
    assert ledger.verify().lines == alone + 2


def test_kill_9_at_random_instants_never_leaves_too_little_in_the_ledger(tmp_path: Path) -> None:
    """Set CAPEMIX_KILLS=200 for more of them."""
    script = Path(__file__).with_name("killed.py")
    words = [sys.executable, script, tmp_path, KILLS, 1]
    ran = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["times"] == KILLS
    assert found["under_counted"] == 0
    assert found["charges"] >= found["releases"] > 0
    assert sum(found["killed"].values()) == KILLS


def test_a_charge_is_in_the_log_and_synced_before_it_returns(ledger: Ledger) -> None:
    with ledger._connected() as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)
        ledger.charge("people", "release", cost_of(a_plan()))  # while a reader is there
    assert ledger.path.stat().st_mode & 0o077 == 0
    assert Ledger.open(ledger.path).accounts()["people"].total.charges == 1


def edit(ledger: Ledger, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(ledger.path)) as database, database:
        assert database.execute(statement, values).rowcount


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        (
            "UPDATE entries SET text = replace(text, '\"epsilon\":', '\"epsilon\": ') WHERE line=3",
            3,
        ),
        ("UPDATE entries SET text = replace(text, 'release', 'nothing') WHERE line = 2", 2),
        ("UPDATE entries SET hash = lower(hex(randomblob(32))) WHERE line = 4", 4),
        ("UPDATE entries SET text = '[]' WHERE line = 1", 1),
        ("DELETE FROM entries WHERE line = 2", 2),
        ("DELETE FROM entries WHERE line = 1", 1),
        ("UPDATE entries SET line = 9 WHERE line = 4", 4),
    ],
)
def test_an_edit_is_seen_and_stops_everything(ledger: Ledger, statement: str, line: int) -> None:
    for _ in range(3):
        ledger.charge("people", "release", cost_of(a_plan(0.1)))
    edit(ledger, statement)
    uses: list[Callable[[], object]] = [
        ledger.verify,
        ledger.lines,
        lambda: ledger.set_limit("people", LIMIT),
        lambda: ledger.charge("people", "release", cost_of(a_plan(0.1))),
    ]
    for use in uses:
        with pytest.raises(InputError, match=f"was edited .*line {line} of"):
            use()


def test_a_rollback_looks_whole_from_inside_and_a_kept_head_shows_it(ledger: Ledger) -> None:
    heads = [ledger.head()]
    for _ in range(3):
        ledger.charge("people", "release", cost_of(a_plan(0.1)))
        heads.append(ledger.head())
    for head in heads:
        assert ledger.verify(Head.parse(str(head))) == heads[-1]
    edit(ledger, "DELETE FROM entries WHERE line > 2")
    assert ledger.verify() == heads[1]  # nothing to see from inside
    with pytest.raises(InputError, match="does not go through that head"):
        ledger.verify(heads[-1])
    for _ in range(2):
        ledger.charge("people", "release", cost_of(a_plan(0.1)))
    assert ledger.head().lines == heads[-1].lines
    with pytest.raises(InputError, match="does not go through"):
        ledger.verify(Head(4, "0" * 16))
    for nonsense in ("", "4", "4-", "x-0123456789abcdef", "4-0123456789ABCDEF", "-4-" + "0" * 16):
        with pytest.raises(InputError, match="not a ledger's head"):
            Head.parse(nonsense)


def test_a_broken_file_is_one_sentence(tmp_path: Path, ledger: Ledger) -> None:
    for _ in range(20):
        ledger.charge("people", "release", cost_of(a_plan(0.1)))
    whole = ledger.path.read_bytes()
    rng = np.random.default_rng(0)
    broken = {
        "noise": rng.bytes(5000),
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "scrambled": whole[:200] + rng.bytes(len(whole) - 200),
    }
    for name, content in broken.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"the ledger (cannot be read|was edited)"):
            Ledger.open(path).charge("people", "release", cost_of(a_plan(0.1)))
    with closing(sqlite3.connect(tmp_path / "other.db")) as other, other:
        other.execute("CREATE TABLE entries (line, text, hash)")
    with pytest.raises(InputError, match="cannot be read"):
        Ledger.open(tmp_path / "other.db")
    with pytest.raises(InputError, match="cannot be read"):
        Ledger.open(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        Ledger.open(tmp_path / "absent.db", create=False)
    with pytest.raises(InputError, match="cannot be written"):
        Ledger.open(tmp_path / "noise" / "ledger.db")


def test_limits_go_down_and_up_and_are_lines_themselves(ledger: Ledger) -> None:
    cost = cost_of(a_plan(1.0))
    ledger.charge("people", "release", cost)
    lowered = ledger.set_limit("people", Limit(0.5, 1e-5))
    assert lowered.used > 1
    with pytest.raises(BudgetError, match="would be overspent"):
        ledger.charge("people", "release", cost_of(a_plan(0.1)))
    raised = ledger.set_limit("people", Limit(8.0, 1e-5))
    assert raised.order == lowered.order
    ledger.charge("people", "release", cost)
    with pytest.raises(InputError, match="must stay add-or-remove-one"):
        ledger.set_limit("people", Limit(8.0, 1e-5, Relation.REPLACE_ONE))
    ledger.set_limit("others", Limit(1.0, 1e-6, Relation.REPLACE_ONE))
    assert [line.entry["kind"] for line in ledger.lines()] == [
        "limit",
        "charge",
        "limit",
        "limit",
        "charge",
        "limit",
    ]
    for bad in ("", "  ", "a\nb", "x" * 101):
        with pytest.raises(InputError, match="printable"):
            ledger.set_limit(bad, LIMIT)
    for epsilon, delta in ((0.0, 1e-5), (math.inf, 1e-5), (math.nan, 1e-5), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(InputError, match="must be"):
            Limit(epsilon, delta)


def test_what_is_written_comes_back_exactly_and_holds_nothing_of_a_row(ledger: Ledger) -> None:
    cost = cost_of(a_plan(1.0))
    admitted = ledger.accounts()["people"].admit(cost)
    assert admitted is not None
    charged = ledger.charge("people", "release", cost)
    assert not charged.at_once
    assert charged.head == ledger.head()
    (_, line) = ledger.lines()
    assert line.cost == cost
    assert line.account == admitted[0]
    assert set(line.entry) == {
        *("kind", "lineage", "what", "run", "line", "previous", "time", "way", "order"),
        *("kept", "relation", "epsilon", "delta", "curve", "failure", "distance", "basis"),
        *("gaussians", "squared", "growth"),
    }
    with pytest.raises(InputError, match="has no limit yet"):
        ledger.charge("strangers", "release", cost)


# -- releases ----------------------------------------------------------------------------------


def charges(ledger: Ledger) -> int:
    return ledger.accounts()["people"].total.charges


def test_a_release_is_charged_before_anything_is_drawn_and_never_refunded(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def breaks(*_: object, **__: object) -> None:
        seen.append(charges(ledger))
        raise RuntimeError("power cut")

    monkeypatch.setattr("capemix.engines.local.site_share", breaks)
    counted = {"ledger": ledger, "lineage": "people"}
    with pytest.raises(RuntimeError):
        synthesize(a_plan(), some_rows(), **counted)
    assert seen == [1]
    assert charges(ledger) == 1
    with pytest.raises(InputError, match="2 classes"):  # what cannot work is told before
        synthesize(
            a_plan(), LabeledRows(np.ones((2, 2)), np.zeros(2, int), (0,), ("a", "b")), **counted
        )
    assert charges(ledger) == 1
    ledger.set_limit("people", Limit(0.01, 1e-5))
    with pytest.raises(BudgetError):
        synthesize(a_plan(), some_rows(), **counted)
    assert seen == [1]


def test_paid_class_sizes_are_part_of_the_charge(ledger: Ledger) -> None:
    facts = Facts.of(some_rows(), normalise=PublicMap())
    plan = make_plan(facts, Mixing(mixture=8, samples=50)).calibrate(5.0)
    synthesize(plan, some_rows(), ledger=ledger.path, lineage="people")
    lines = [line.entry for line in ledger.lines()[1:]]
    assert [line["what"] for line in lines] == ["class sizes, and all sums after it"]
    assert [(line["epsilon"], line["delta"]) for line in lines] == [(5.0, 1e-5)]
    with pytest.raises(BudgetError):
        synthesize(plan, some_rows(), ledger=ledger, lineage="people")
    assert charges(ledger) == 1  # not even the sizes were counted again
    ledger.set_limit("people", Limit(20.0, 1e-4))
    ledger.set_limit("others", Limit(20.0, 1e-4))
    synthesize(plan, some_rows(), ledger=ledger.path, lineage="others")
    whats = [line.entry.get("what") for line in ledger.lines() if line.lineage == "others"]
    assert whats == [None, "class sizes", "release"]  # by their curves, where those fit


def test_records_released_one_by_one_are_charged(ledger: Ledger) -> None:
    plan = a_record_plan(2.0, ("no", "yes"))
    with pytest.raises(InputError, match="one by one"):
        release_records(plan, [some_rows()], ledger=ledger, lineage="people")
    ledger.set_limit("people", Limit(5.0, 1e-5, Relation.REPLACE_ONE))
    release_records(plan, [some_rows()], ledger=ledger, lineage="people")
    assert charges(ledger) == 1
    read = replace(some_rows(), read_from_rows=("the class list",))
    with pytest.raises(InputError, match="cannot pay: the class list was read from the rows"):
        release_records(plan, [read], ledger=ledger, lineage="people")
    with pytest.raises(InputError, match="not private"):
        release_records(
            plan, [some_rows()], source=SeededSource(1), ledger=ledger, lineage="people"
        )
    assert charges(ledger) == 1


def test_what_is_not_private_is_refused_and_not_counted(ledger: Ledger) -> None:
    counted: dict[str, Any] = {"ledger": ledger, "lineage": "people"}
    with pytest.raises(InputError, match="not private"):
        synthesize(a_plan(), some_rows(), source=SeededSource(1), **counted)
    plan = make_plan(Facts.of(some_rows()), ClassGaussian()).calibrate(1.0)
    with pytest.raises(InputError, match="not private"):
        synthesize(plan, some_rows(), source=SeededSource(1), **counted)
    with pytest.raises(InputError, match="a paper claim bounds nothing"):
        synthesize(a_plan(accountant="paper"), some_rows(), **counted)
    with pytest.raises(InputError, match="gives no privacy"):
        synthesize(a_plan(math.inf), some_rows(), **counted)
    with pytest.raises(InputError, match="lineage is not named"):
        synthesize(a_plan(), some_rows(), ledger=ledger)
    assert charges(ledger) == 0


def test_a_synthesizer_counts_its_fits() -> None:
    rows = some_rows()
    asked: dict[str, Any] = {"method": Mixing(mixture=8, samples=20), "class_sizes": (100, 100)}
    asked["classes"] = (0, 1)
    made = Synthesizer(epsilon=1.0, public_range=(0, 1), lineage="people", **asked)
    with pytest.raises(InputError, match="has no limit yet"):
        made.fit(rows.features, rows.labels)
    Ledger.open().set_limit("people", LIMIT)
    made.fit(rows.features, rows.labels).fit(rows.features, rows.labels)
    assert charges(Ledger.open()) == 2
    Synthesizer(epsilon=1.0, lineage="people", **asked).fit(rows.features, rows.labels)
    assert charges(Ledger.open()) == 4  # without a range, measured facts and release
    assert default_path().is_file()


def test_a_limit_that_the_owner_lowered_is_not_raised_again(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    people = ledger.lineage("people")
    people.set_limit(Limit(1.0, 1e-5))
    ledger.set_limit("people", Limit(0.2, 1e-5))
    people.set_limit(Limit(1.0, 1e-5))
    assert people.account().limit.epsilon == 0.2


# -- the command line --------------------------------------------------------------------------


def own_table(folder: Path) -> Path:
    rows = some_rows(300)
    lines = [
        f"{a:.3f},{b:.3f},{'ny'[y]}" for (a, b), y in zip(rows.features, rows.labels, strict=True)
    ]
    path = folder / "people.csv"
    path.write_text("\n".join(["a,b,y", *lines]) + "\n")
    return path


def test_a_file_of_ones_own_is_counted_or_declared_not_to_be(
    capemix: Capemix, tmp_path: Path
) -> None:
    table = own_table(tmp_path)
    words = ["synth", table, "--label", "y", "--public-range", "0,1", "--method", "mixing"]
    words += ["--mixture", 8, "--samples", 50, "--epsilon", 2, "--json", "--out"]
    refused = capemix(*words, tmp_path / "r")
    assert refused.code == 2
    assert "--lineage is needed" in refused.err
    assert "--no-ledger" in refused.err
    assert "has no limit yet" in capemix(*words, tmp_path / "r", "--lineage", "people").err
    assert "contradicts" in capemix(*words, tmp_path / "r", "--lineage", "x", "--no-ledger").err
    set_ = capemix("ledger", "set-limit", "people", "--epsilon", 3, "--json")
    assert set_.json["used"] == 0
    assert capemix(*words, tmp_path / "r", "--lineage", "people").code == 0
    shown = capemix("ledger", "show", "people", "--json").json["lines"]
    assert [line["what"] for line in shown] == ["limit", "class list", "release"]
    both = sum(line["epsilon"] for line in shown[1:])  # counted apart, a little above 2
    assert 0 < shown[-1]["epsilon_so_far"] <= both < 2.5
    assert shown[-1]["used"] + shown[-1]["left"] == pytest.approx(1)
    ran = None
    for number in range(20):
        ran = capemix(*words, tmp_path / f"more{number}", "--lineage", "people")
        if ran.code:
            break
        assert read_release(tmp_path / f"more{number}").manifest.guarantee["epsilon"] <= 2
    assert ran is not None
    assert "would be overspent" in ran.err
    assert not list(tmp_path.glob("*people*db*"))
    assert capemix(*words, tmp_path / "uncounted", "--no-ledger").code == 0
    seeded = capemix(*words, tmp_path / "s", "--lineage", "people", "--test-seed", 1)
    assert "not private" in seeded.err
    assert not (tmp_path / "s").exists()


def test_public_datasets_need_no_lineage_but_may_have_one(capemix: Capemix, tmp_path: Path) -> None:
    place = tmp_path / "own.db"
    words = ["synth", "--data", "digits", "--method", "mixing", "--epsilon", 2]
    words += ["--samples", 20, "--mixture", 8, "--json"]
    assert capemix(*words, "--out", tmp_path / "a").code == 0
    assert not default_path().exists()
    capemix("ledger", "set-limit", "digits", "--epsilon", 2.5, "--ledger", place)
    counted = [*words, "--lineage", "digits", "--ledger", place]
    assert capemix(*counted, "--out", tmp_path / "b").code == 0
    assert Ledger.open(place).accounts()["digits"].total.charges == 1


def test_the_ledgers_commands(capemix: Capemix, ledger: Ledger) -> None:
    place = ["--ledger", ledger.path]
    first = capemix("ledger", "head", *place).out.strip()
    assert Head.parse(first).lines == 1
    for _ in range(2):
        ledger.charge("people", "release", cost_of(a_plan(1.0)))
    head = capemix("ledger", "head", *place, "--json").json["head"]
    said = capemix("ledger", "verify", "--head", first, *place)
    assert said.code == 0
    assert f"3 lines, head {head}" in said.out
    assert capemix("ledger", "verify", *place, "--json").json["lines"] == 3
    shown = capemix("ledger", "show", *place).out
    for words in ("alone", "so far", "used", "left", "people", "still fit"):
        assert words in shown
    lowered = capemix("ledger", "set-limit", "people", "--epsilon", 0.5, *place)
    assert "used" in lowered.out
    assert capemix("ledger", "show", *place).code == 0
    edit(ledger, "UPDATE entries SET text = replace(text, 'people', 'nobody') WHERE line = 2")
    edited = capemix("ledger", "verify", *place)
    assert edited.code == 2
    assert "line 2" in edited.err
    assert capemix("ledger", "show", "strangers", *place).code == 2
    assert "does not exist" in capemix("ledger", "show").err
    assert capemix("ledger", "set-limit", "x", "--epsilon", 0, *place).code == 2


class Watched:
    """An engine that writes down how often was charged before each sum, and can refuse a plan."""

    def __init__(self, engine: Engine, ledger: Ledger, *, refuses: bool = False) -> None:
        self._engine, self._ledger, self._refuses = engine, ledger, refuses
        self.drawn: list[tuple[str, int]] = []
        self.noise: dict[str, float] = {}

    def check(self, plan: Plan) -> None:
        if self._refuses:
            raise InputError("rows", "are not here", fix="bring them")
        self._engine.check(plan)

    def origin(self, plan: Plan) -> Any:
        return self._engine.origin(plan)

    def _seen(self, query: SumQuery) -> None:
        self.drawn.append((query.name, charges(self._ledger)))
        self.noise[query.name] = query.noise_multiplier

    def sum(self, plan: Plan, query: SumQuery) -> Any:
        self._seen(query)
        return self._engine.sum(plan, query)

    def list_classes(self, plan: Plan, query: SumQuery, failure: float) -> dict[str, float]:
        self._seen(query)
        return self._engine.list_classes(plan, query, failure)


PROGRAMS: dict[str, Method] = {
    "drawn": Mixing(mixture=8, samples=20),
    "one Gaussian": ClassGaussian(samples=20),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_sums_that_are_charged_are_the_ones_that_are_drawn(name: str, ledger: Ledger) -> None:
    """All of a program as one before its first sum; or where records are drawn, the opening before
    the first and the drawn sum before it."""
    plan = make_plan(Facts.of(some_rows()), PROGRAMS[name]).calibrate(2.0)
    engine = Watched(LocalEngine(some_rows()), ledger)
    release = run(plan, engine, ledger.lineage("people"))
    made = release.plan
    assert isinstance(made, Plan)
    assert [sum_ for sum_, _ in engine.drawn] == list(made.names)
    assert engine.noise == {each: made.query(each).noise_multiplier for each in made.names}
    opening = [line.name for line in plan.opening]
    whats = [line.entry["what"] for line in ledger.lines()[1:]]
    lines = [line.cost for line in ledger.lines()[1:]]
    for line, cost in zip(lines, made.costs(), strict=True):
        assert line is not None
        assert line.curve == pytest.approx(cost.curve, rel=1e-12)
        assert replace(line, curve={}, squared=None) == replace(cost, curve={}, squared=None)
        assert (line.squared is None) is (cost.squared is None)
        assert line.squared is None or line.squared == pytest.approx(cost.squared, rel=1e-12)
    if name == "drawn":
        assert whats == [", ".join(opening), "release"]
        assert [charged for _, charged in engine.drawn] == [1] * len(opening) + [2]
        assert sum(cost.epsilon for cost in lines if cost) > (release.guarantee.epsilon or 0.0)
    else:
        assert whats == ["release"]
        assert {charged for _, charged in engine.drawn} == {1}
        assert [cost.epsilon for cost in lines if cost] == [release.guarantee.epsilon]


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_charged_where_an_engine_refuses_or_no_budget_pays(
    name: str, ledger: Ledger
) -> None:
    people = ledger.lineage("people")
    declared = Facts.of(some_rows(), normalise=PublicMap())
    plan = make_plan(declared, PROGRAMS[name]).calibrate(2.0)

    def refused(plan: Plan, engine: Watched, says: str) -> None:
        with pytest.raises(InputError, match=says):
            run(plan, engine, people)
        assert engine.drawn == []
        assert charges(ledger) == 0

    rows = LocalEngine(some_rows())
    refused(plan, Watched(rows, ledger, refuses=True), "rows are not here")
    seeded = LocalEngine(some_rows(), SeededSource(1))
    refused(plan, Watched(seeded, ledger), "not private")
    refused(plan.calibrate(math.inf), Watched(rows, ledger), "gives no privacy")
    refused(plan.calibrate(30.0), Watched(rows, ledger), "would be overspent")
    taken = replace(some_rows(), read_from_rows=("the class list",))
    refused(plan, Watched(LocalEngine(taken), ledger), "the class list was read from the rows")
    unpaid = replace(plan, facts=replace(declared, unpaid=("the range",)))
    refused(unpaid, Watched(rows, ledger), "the range was read from the rows")


def test_what_is_charged_covers_every_choice_that_is_made_on_the_way() -> None:
    facts = Facts(("a", "b", "c"), "y", ("no", "yes"), normalise=PublicMap())
    plan = make_plan(facts, ClassGaussian()).calibrate(2.0)
    charged, rounding = cost_of(plan), 1 + 1e-12  # of sums of doubles, as a ledger has it
    for rank, octave in itertools.product(range(4), range(0, OCTAVES, 5)):
        made = cost_of(replace(plan, chosen={"rank": rank, "octave": octave}))
        assert made.epsilon <= charged.epsilon * rounding <= 2.0
        assert made.distance <= charged.distance
        assert all(made.curve[order] <= charged.curve[order] * rounding for order in ORDERS)


def test_what_is_charged_covers_every_list_of_classes_that_may_be_found() -> None:
    plan = make_plan(Facts(("a", "b"), "y", None), ClassGaussian()).calibrate(2.0)
    charged = cost_of(plan)
    for count in (1, 2, 1000):
        found = replace(
            plan.facts,
            classes=tuple(range(count)),
            class_sizes=(5,) * count,
            normalise=ColumnMap((0.0,) * 2, (1.0,) * 2, (0.0,) * 2, (1.0,) * 2),
        )
        known = replace(plan, measured=found)
        made = cost_of(known)
        assert made.epsilon <= charged.epsilon <= 2.0
        assert made.distance <= charged.distance
        assert (known.guarantee().epsilon or math.inf) <= 2.0


def test_joining_or_lowering_what_is_not_there_leaves_the_ledger_whole(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="typo"):
        ledger.lineage("typo").join("run", 10)
    assert ledger.lineage("people").join("run", 10)
    assert ledger.verify().lines == 2  # the limit, and the run that was joined
    with pytest.raises(InputError, match="is not the one in which the lineage's limit was set"):
        ledger.lineage("people").set_limit(Limit(10.0, 1e-5, Relation.REPLACE_ONE))


# -- what a site's machine runs into ---------------------------------------------------------------


def test_a_run_is_charged_once_whoever_asks(ledger: Ledger) -> None:
    """Two agents of one site on one ledger are one site: the second is refused."""
    twins = [Ledger.open(ledger.path).lineage("people") for _ in range(2)]
    twins[0].charge("upload", cost_of(a_plan(0.1)), run="one")
    with pytest.raises(BudgetError, match="was charged already"):
        twins[1].charge("upload", cost_of(a_plan(0.1)), run="one")
    assert ledger.lineage("people").account().total.charges == 1
    assert twins[1].knows("one")
    assert not twins[1].knows("two")
    ledger.set_limit("others", LIMIT)  # other people's rows may be in the same run
    ledger.charge("others", "upload", cost_of(a_plan(0.1)), run="one")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER gone AFTER INSERT ON entries BEGIN DELETE FROM entries; END",
        "CREATE VIEW more AS SELECT 1",
        "CREATE TABLE more (line)",
        "CREATE INDEX more ON entries (hash)",
        "DROP TABLE entries; CREATE VIEW entries(line, text, hash) AS WITH RECURSIVE c(x) AS"
        " (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x, 'a', 'b' FROM c",
    ],
)
def test_a_file_that_defines_anything_else_is_refused_unread(
    ledger: Ledger, statement: str
) -> None:
    """A view may never end, and a trigger may take charges away."""
    with closing(sqlite3.connect(ledger.path)) as database:
        database.executescript(statement)
    uses: list[Callable[[], object]] = [
        lambda: Ledger.open(ledger.path),
        ledger.verify,
        ledger.head,
        lambda: ledger.charge("people", "release", cost_of(a_plan(0.1))),
    ]
    for use in uses:
        with pytest.raises(InputError, match="cannot be read"):
            use()


def test_a_line_with_a_key_twice_is_refused(ledger: Ledger) -> None:
    """A reader and capemix could take different ones."""
    with closing(sqlite3.connect(ledger.path)) as database, database:
        (text,) = database.execute("SELECT text FROM entries").fetchone()
        text = text.replace('"epsilon":5.0', '"epsilon":5.0,"epsilon":500.0')
        database.execute("UPDATE entries SET text = ?, hash = ?", (text, chain.hash_of(text)))
    with pytest.raises(InputError, match="cannot be read"):
        Ledger.open(ledger.path).accounts()


def test_a_full_disk_is_one_sentence_and_counts_nothing(ledger: Ledger) -> None:
    ledger.charge("people", "release", cost_of(a_plan(0.1)))
    before = ledger.head()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(InputError, match="disk is full, or fails"):
            ledger.charge("people", "release", cost_of(a_plan(0.1)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ledger.verify() == before
    assert ledger.lineage("people").account().total.charges == 1
    ledger.charge("people", "release", cost_of(a_plan(0.1)))


def test_what_was_added_up_is_added_up_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All hashes are computed each time, and the lines before are not read again; a chain that is
    another one, written anew with right hashes, is read from its first line."""
    people = ledger.lineage("people")
    for number in range(30):
        people.charge("release", cost_of(a_plan(0.1)), run=str(number))
    read: list[str] = []
    parse = documents.parse

    def counted(text: str, *, name: str) -> Any:
        read.append(text)
        return parse(text, name=name)

    monkeypatch.setattr("capemix.ledger.ledger.documents.parse", counted)
    standing = people.account()
    assert people.knows("29")
    assert not people.knows("30")
    assert len(read) == 1  # the last line, which this process wrote
    assert Ledger.open(ledger.path).lineage("people").account() == standing
    assert len(read) == 1 + 31
    with closing(sqlite3.connect(ledger.path)) as database, database:
        lines = database.execute("SELECT text FROM entries ORDER BY line LIMIT 11").fetchall()
        database.execute("DELETE FROM entries")
        before = chain.START
        for place, (text,) in enumerate(lines, start=1):
            entry = {**json.loads(text), "previous": before, "time": "another"}
            text, before = chain.text_of(entry), chain.hash_of(chain.text_of(entry))
            database.execute("INSERT INTO entries VALUES (?, ?, ?)", (place, text, before))
    assert people.account().total.charges == 10


def test_a_policys_limit_binds_nobody_before_something_is_charged(ledger: Ledger) -> None:
    """So that a first start with a file that was not meant is no limit for ever."""
    rows = ledger.lineage("rows")
    for epsilon in (1.0, 3.0, 2.0):
        rows.set_limit(Limit(epsilon, 1e-5))
        assert rows.account().limit.epsilon == epsilon
    rows.set_limit(Limit(2.0, 1e-5, Relation.REPLACE_ONE))
    rows.set_limit(Limit(2.0, 1e-5))
    rows.charge("release", cost_of(a_plan(0.1)))
    rows.set_limit(Limit(3.0, 1e-5))
    assert rows.account().limit.epsilon == 2.0
    rows.set_limit(Limit(1.0, 1e-5))  # down it goes at any time
    assert rows.account().limit.epsilon == 1.0


def test_a_graph_is_counted_as_often_as_it_is_joined(ledger: Ledger) -> None:
    people = ledger.lineage("people")
    assert [people.join("one", 2) for _ in range(3)] == [True, True, False]
    assert not Ledger.open(ledger.path).lineage("people").join("two", 2)


def test_a_line_that_is_no_text_was_edited(ledger: Ledger) -> None:
    edit(ledger, "UPDATE entries SET text = CAST(text AS BLOB)")
    with pytest.raises(InputError, match="was edited"):
        ledger.verify()
