"""The protocol's edges: other executions, other company, other columns, and strangers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capemix.accounting.joint_view import MOST_PROPOSALS, graph_failure_probability
from capemix.agent import Agent
from capemix.errors import InputError
from capemix.federation import Federation, Scheme, peers_for
from capemix.ledger import Account
from capemix.methods.mixing.planning import plan_mixtures
from capemix.plan import Plan
from capemix.protocol import wire
from capemix.protocol.agreement import public_bytes
from capemix.protocol.policy import Policy
from capemix.protocol.roster import Member, Roster
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import COORDINATOR, Context, Message, ProtocolError
from capemix.randomness.source import SystemSource
from test_agent import a_plan, a_run, a_state, budget, keys
from world import ASKED, RUN, World, a_document, counting_plan, identity, signed_request, step_of

__all__ = ["keys"]  # a fixture


def up_to(world: World, round_: str) -> None:
    while world.run.round != round_:
        for site, raw in list(world.run.requests()):
            answer = world.ask(site, raw)
            if answer is not None:
                world.bring(site, answer)
        world.run.close()


def test_fixed_size_plans_have_no_place_in_a_federation(tmp_path: Path) -> None:
    """Their cost rests on declared class sizes: rows enough at every site, or an understatement."""
    plan = plan_mixtures(
        **{**ASKED, "class_sizes": (4000,)}, form="algorithm1", noise=1.0, selection="fixed-size"
    )
    world = World(plan, tmp_path)
    with pytest.raises(ProtocolError, match="0 of 4 sites are left"):
        world.drive()
    assert set(world.refused.values()) == {"in a federation records are drawn by Poisson selection"}


def test_signatures_of_an_earlier_execution_agree_to_nothing(tmp_path: Path) -> None:
    """The agents were started anew and the server uses the run's number again."""
    plan = counting_plan(5, 1, 1)
    first = World(plan, tmp_path / "first", seed=1)
    up_to(first, "agree")
    old = {s: first.ask(s, raw) for s, raw in list(first.run.requests())}
    again = World(plan, tmp_path / "again", seed=2)
    up_to(again, "unmask")
    body = {"agreed": {str(s): wire.parse(raw).signature.hex() for s, raw in old.items() if raw}}
    request = wire.seal(
        again.run._context, identity("coordinator"), Message("unmask", COORDINATOR, body)
    )
    for site in range(5):
        assert again.ask(site, request) is None
        assert "only 0 sites signed the same" in again.refused[site]


def test_a_site_with_real_noise_does_not_join_sites_with_test_seeds(tmp_path: Path) -> None:
    world = World(counting_plan(4, 1, 1), tmp_path)
    world.sites[0]._source = SystemSource()
    accepts = {}
    for site, raw in list(world.run.requests()):
        answer = world.ask(site, raw)
        assert answer is not None
        accepts[str(site)] = answer.decode()
        world.run.receive(site, answer)
    told = signed_request(world, "keys", {"accepts": accepts})
    assert world.ask(0, told) is None  # whatever the coordinator does about it
    assert "draws from a test seed" in world.refused[0]
    world.drive()
    assert world.run.included == (1, 2, 3)
    assert world.run.lost == {0: "it does not draw from a test seed, and others do"}


def test_all_sites_are_asked_about_the_same_columns(tmp_path: Path) -> None:
    plan = counting_plan(4, 1, 1)
    world = World(plan, tmp_path)

    def other_columns(site: int, round_: str, raw: bytes) -> bytes:
        if (site, round_) != (2, "plan"):
            return raw
        facts = replace(plan.facts, features=("another", "column 2"))
        step = step_of(replace(plan, facts=facts)).as_json()
        body = {**wire.parse(raw).body, "step": step}
        context = Context(RUN, world.roster.digest(), wire.digest(step))
        return wire.seal(context, identity("coordinator"), Message("plan", COORDINATOR, body))

    world.drive(request=other_columns)
    assert world.run.included == (0, 1, 3)
    assert world.run.lost[2].startswith("the signature of 2")


def test_a_site_is_not_shown_another_answer_as_its_own(tmp_path: Path) -> None:
    """Its own earlier answer, say, from before it was started anew."""
    plan = counting_plan(4, 1, 1)
    earlier = World(plan, tmp_path / "earlier", seed=1)
    up_to(earlier, "keys")
    old = earlier.said[0, "plan"].decode()
    world = World(plan, tmp_path / "now", seed=2)
    up_to(world, "keys")
    raw = dict(world.run.requests())[0]
    body = wire.parse(raw).body
    body["accepts"]["0"] = old
    request = wire.seal(
        world.run._context, identity("coordinator"), Message("keys", COORDINATOR, body)
    )
    assert world.ask(0, request) is None
    assert "another answer than this site gave" in world.refused[0]


@pytest.mark.parametrize("text", ["\ud800", "{}", ""])
def test_a_bad_setting_costs_its_sender_alone(tmp_path: Path, text: str) -> None:
    plan = counting_plan(4, 1, 1)
    world = World(plan, tmp_path)

    def spoil(site: int, round_: str, raw: bytes) -> bytes:
        if (site, round_) != (3, "upload"):
            return raw
        body = {**wire.parse(raw).body, "setting": text}
        return wire.seal(world.run._context, identity("site 3"), Message("upload", 3, body))

    world.drive(reply=spoil)
    assert world.run.included == (0, 1, 2)


def test_a_share_of_another_length_costs_its_sender_alone(tmp_path: Path) -> None:
    world = World(counting_plan(4, 1, 1), tmp_path)

    def spoil(site: int, round_: str, raw: bytes) -> bytes:
        if (site, round_) != (3, "shares"):
            return raw
        body = wire.parse(raw).body
        body["sealed"]["0"] = body["sealed"]["0"][:-2]
        return wire.seal(world.run._context, identity("site 3"), Message("shares", 3, body))

    world.drive(reply=spoil)
    assert world.run.included == (0, 1, 2)
    assert world.refused == {}


def test_strangers_leave_no_trace_at_an_agent(keys: dict[str, Any], tmp_path: Path) -> None:
    agent = Agent(a_state(keys, 0, tmp_path))
    run = a_run(keys, a_plan(), tmp_path)
    raw = dict(run.requests())[0]
    forged = wire.parse(raw).body
    for number in range(MOST_PROPOSALS + 10):
        context = Context(number.to_bytes(16, "little"), run._context.roster, run._context.plan)
        body = {**forged, "run": context.run.hex()}
        message = Message("plan", COORDINATOR, body)
        with pytest.raises(ProtocolError, match="signature"):
            agent.answer(wire.seal(context, keys["site1"], message))
    assert b'"accept":true' in agent.answer(raw)


def test_an_agent_started_anew_does_not_upload_in_the_same_run_again(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    def one_execution() -> None:
        agents = [Agent(a_state(keys, n, tmp_path)) for n in range(4)]
        run = a_run(keys, a_plan(epsilon=0.4), tmp_path)
        for _ in ("plan", "keys", "shares", "check", "upload"):
            for site, raw in list(run.requests()):
                run.receive(site, agents[site].answer(raw))
            if run.round != "upload":
                run.close()

    one_execution()
    assert budget(tmp_path, 0).account().total.charges == 1
    with pytest.raises(ProtocolError, match="has been in that run already"):
        one_execution()
    assert budget(tmp_path, 0).knows((1).to_bytes(16, "big").hex())


def test_starting_an_agent_anew_does_not_give_a_server_more_graphs(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty sites that mask with twenty each, which twenty colluders could be: a server that knows
    the graph may break off."""
    monkeypatch.setattr("capemix.agent.MOST_PROPOSALS", 3)
    roster = keys["roster"]
    strangers = (Member(f"{n}", public_bytes(identity(f"{n}")).hex()) for n in range(59))
    keys = {**keys, "roster": Roster(roster.coordinator, (roster.sites[0], *strangers))}
    asked = {"sites": 60, "colluding": 20, "dropouts": 0, "epsilon": 0.9}
    sparse, dense = (a_plan(**asked, peers=peers) for peers in (20, 24))
    assert sparse.federation.graph_failure() > 0 == dense.federation.graph_failure()

    def proposed(plan: Plan, number: int) -> bytes:
        """To an agent that has just been started."""
        agent = Agent(a_state(keys, 0, tmp_path))
        return agent.answer(dict(a_run(keys, plan, tmp_path, number).requests())[0])

    for number in (1, 2, 3):
        assert b'"accept":true' in proposed(sparse, number)
        assert b'"accept":true' in proposed(dense, 100 + number)
    with pytest.raises(ProtocolError, match="has been in that run already"):
        proposed(sparse, 2)
    said = proposed(sparse, 4)
    assert b'"accept":false' in said
    assert b"joined 3 runs on sparse graphs" in said
    assert b'"accept":true' in proposed(dense, 104)  # a graph that cannot fall apart
    joined = [line.entry for line in budget(tmp_path, 0).ledger.lines() if "run" in line.entry]
    assert [entry["kind"] for entry in joined] == ["joined"] * 3
    assert budget(tmp_path, 0).account().total.charges == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"real_arithmetic": "false"},
        {"columns": "age"},
        {"least_sites": "4"},
        {"least_colluding": None},
        {"max_epsilon": "1"},
    ],
)
def test_a_policy_of_other_types_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="policy"):
        a_document(Policy, json.dumps(changed))


def test_a_column_is_not_asked_for_twice() -> None:
    step = step_of(a_plan()).as_json()
    assert ReleaseStep.from_json(step).plan == a_plan()
    step["plan"]["facts"]["features"] = ["a", "a"]
    with pytest.raises(ProtocolError, match="features must be distinct names"):
        ReleaseStep.from_json(step)


def test_a_policy_declines_a_column_that_it_does_not_name() -> None:
    policy = Policy(columns=("a", "b", "c"))
    asked = a_plan()
    assert policy.declines(step_of(asked), Account(policy.limit)) is None
    other = replace(asked, facts=replace(asked.facts, features=("a", "d")))
    declined = policy.declines(step_of(other), Account(policy.limit))
    assert declined is not None
    assert "column" in declined


def test_the_reference_figure_is_not_needed_for_the_guarantee() -> None:
    plan = a_plan()
    with_it, without = plan.guarantee(), plan.guarantee()
    assert without.epsilon == with_it.epsilon
    assert without.epsilon_pld is None
    assert with_it.epsilon_pld is not None


def test_a_graph_drawn_again_and_again_is_in_delta() -> None:
    federation = Federation(Scheme.CAPE, sites=60, colluding=20, dropouts=2, peers=20)
    once = graph_failure_probability(60, 20, 20, 2)
    assert 0 < once < 1 / MOST_PROPOSALS
    assert federation.graph_failure() == pytest.approx(MOST_PROPOSALS * once)
    peers = peers_for(100, 10, 10, 1e-8)
    assert peers is not None
    assert MOST_PROPOSALS * graph_failure_probability(100, peers, 10, 10) <= 1e-8
