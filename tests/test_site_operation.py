"""What a site's engineers run into: a second agent, a name that is in use, plans that wait for a
person, limits that do not fit, a thousand runs, keys that cannot be read."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents import AgentsEngine, allowing
from capemix import agent as agent_module
from capemix import documents
from capemix.agent import Agent, SiteState, ask, serve
from capemix.data import partition
from capemix.engines.flower import standing
from capemix.engines.flower.app_folder import fitting_policy, write_federation
from capemix.engines.flower.files import plan_text
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.identity import load_identity, new_identity
from capemix.journal import Answer, Journal, plan_digest
from capemix.ledger import Account, Ledger, Limit
from capemix.methods.class_gaussian import ClassGaussian
from capemix.plan import Plan, make_plan
from capemix.protocol.agreement import public_bytes
from capemix.protocol.hello import new_challenge, site_of
from capemix.protocol.policy import Policy
from capemix.protocol.roster import Member, Roster
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import ProtocolError, parse
from capemix.queries import Relation
from capemix.run import run as carry_out
from capemix.sums.steps import PublicMap
from conftest import Capemix
from test_agent import SITES, a_plan, a_run, some_rows
from world import a_document


@pytest.fixture
def members(tmp_path: Path) -> dict[str, Any]:
    names = ["coordinator", *(f"site{s}" for s in range(SITES))]
    loaded = {name: load_identity(new_identity(name, tmp_path / "keys")[0]) for name in names}
    found = [Member(name, public_bytes(key).hex()) for name, key in loaded.items()]
    return {**loaded, "roster": Roster(found[0], tuple(found[1:]))}


def a_site(members: dict[str, Any], folder: Path, number: int = 0, **changed: Any) -> SiteState:
    kept: dict[str, Any] = {
        "policy": Policy(total_epsilon=5.0),
        "rows": partition(some_rows(), SITES, "stratified", seed=0)[number],
        "budget": Ledger.open(folder / f"{number}.db").lineage("rows"),
        "test_seed": 7,
    }
    identity = members[f"site{number}"]
    return SiteState(number, identity, members["roster"], **{**kept, **changed})


def proposed(members: dict[str, Any], folder: Path, agent: Agent, run: int = 1) -> dict[str, Any]:
    """What a site says to a proposal."""
    return parse(agent.answer(dict(a_run(members, a_plan(), folder, run).requests())[0])).body


def upload(members: dict[str, Any], folder: Path, agents: list[Agent], number: int) -> None:
    """A run up to and with its uploads."""
    run = a_run(members, a_plan(), folder / str(number), number)
    while True:
        for site, raw in list(run.requests()):
            run.receive(site, agents[site].answer(raw))
        if run.round == "upload":
            return
        run.close()


# -- one agent an identity -------------------------------------------------------------------------


def test_a_second_agent_of_one_identity_is_refused_and_the_first_goes_on(
    members: dict[str, Any], tmp_path: Path
) -> None:
    state, path = a_site(members, tmp_path), tmp_path / "socket"
    first = serve(state, path)
    threading.Thread(target=first.serve_forever, daemon=True).start()
    for other in (path, tmp_path / "another"):
        with pytest.raises(InputError, match="has an agent already"):
            serve(state, other)
    challenge = new_challenge()
    assert site_of(challenge, ask(path, challenge), members["roster"]) == 0
    assert not (tmp_path / "another").exists()
    first.shutdown()
    first.server_close()
    assert not path.exists()
    serve(state, path).server_close()  # a stopped agent leaves nothing in the way


def test_only_a_dead_socket_is_replaced_and_nothing_else_is_ever_deleted(
    members: dict[str, Any], tmp_path: Path
) -> None:
    precious = tmp_path / "precious.parquet"
    precious.write_text("rows")
    with pytest.raises(InputError, match="is the name of something else"):
        serve(a_site(members, tmp_path), precious)
    assert precious.read_text() == "rows"
    path = tmp_path / "socket"
    path.symlink_to(precious)
    with pytest.raises(InputError, match="is the name of something else"):
        serve(a_site(members, tmp_path), path)
    assert path.is_symlink()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        with pytest.raises(InputError, match="is another agent's"):
            serve(a_site(members, tmp_path), path)
        assert path.is_socket()
    server = serve(a_site(members, tmp_path), path)  # now it is dead: nobody listens
    assert path.is_socket()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as next_one:  # somebody took the name meanwhile
        next_one.bind(str(path))
        server.server_close()
        assert path.is_socket()


def test_a_twin_on_the_same_ledger_is_not_charged_for_the_same_run(
    members: dict[str, Any], tmp_path: Path
) -> None:
    """Both say yes before either is charged."""
    charged = Ledger.open(tmp_path / "0.db").lineage("rows")
    mine = [Agent(a_site(members, tmp_path, number)) for number in range(SITES)]
    others = [Agent(a_site(members, tmp_path / "others", number)) for number in range(1, SITES)]
    worlds = [mine, [Agent(a_site(members, tmp_path)), *others]]
    runs = [a_run(members, a_plan(), tmp_path / name) for name in ("a", "b")]
    while runs[0].round != "upload":
        for run, agents in zip(runs, worlds, strict=True):
            for site, raw in list(run.requests()):
                run.receive(site, agents[site].answer(raw))
            run.close()
    first, second = (dict(run.requests())[0] for run in runs)
    mine[0].answer(first)
    assert charged.account().total.charges == 1
    with pytest.raises(ProtocolError, match="overspent, or this run was charged"):
        worlds[1][0].answer(second)
    assert charged.account().total.charges == 1


# -- plans that a person approves ------------------------------------------------------------------


def test_a_plan_waits_until_a_person_approves_its_digest(
    members: dict[str, Any], tmp_path: Path, capemix: Capemix
) -> None:
    policy = Policy(plans="ask")
    agent = Agent(a_site(members, tmp_path, policy=policy))
    place, digest = ["--ledger", tmp_path / "0.db"], plan_digest(a_plan())
    for run in (1, 2):
        said = proposed(members, tmp_path, agent, run)
        assert not said["accept"]
        assert f"have not approved it yet (digest {digest[:16]})" in said["reason"]
    (shown,) = capemix("site", "pending", *place, "--json").json["plans"]
    assert (shown["digest"], shown["answer"]) == (digest, "pending")
    assert "epsilon 0.9" in shown["plan"]
    assert "columns a, b; label y" in shown["plan"]
    assert capemix("site", "approve", digest[:8], *place).code == 2
    assert capemix("site", "approve", digest[:12], *place).out == f"approved  {digest}\n"
    assert proposed(members, tmp_path, agent, 3)["accept"]
    other = parse(agent.answer(dict(a_run(members, a_plan(samples=21), tmp_path, 4).requests())[0]))
    assert "have not approved" in other.body["reason"]
    assert capemix("site", "deny", digest, *place).code == 0
    assert "have denied the plan" in proposed(members, tmp_path, agent, 5)["reason"]


def test_a_plan_may_be_approved_before_it_is_proposed(
    members: dict[str, Any], tmp_path: Path, capemix: Capemix
) -> None:
    (tmp_path / "plan.json").write_text(plan_text(a_plan()))
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "0.1,0.2,yes\n0.3,0.4,no\n" * 5)
    words = ["--data", tmp_path / "rows.csv", "--label", "y", "--plan", tmp_path / "plan.json"]
    digest = capemix("site", "check", *words, "--json").json["digest"]
    agent = Agent(a_site(members, tmp_path, policy=Policy(plans="ask")))
    assert capemix("site", "approve", digest, "--ledger", tmp_path / "0.db").code == 0
    assert proposed(members, tmp_path, agent)["accept"]


def test_a_policy_without_the_word_goes_by_its_limits(
    members: dict[str, Any], tmp_path: Path
) -> None:
    policy = a_document(Policy, '{"max_epsilon": 1.0}')
    assert proposed(members, tmp_path, Agent(a_site(members, tmp_path, policy=policy)))["accept"]
    with pytest.raises(InputError, match="policy plans"):
        a_document(Policy, '{"plans": "perhaps"}')


def test_what_was_accepted_declined_and_charged_is_in_the_log(
    members: dict[str, Any], tmp_path: Path, capemix: Capemix
) -> None:
    agents = [Agent(a_site(members, tmp_path, number)) for number in range(SITES)]
    upload(members, tmp_path, agents, 1)
    strict = Agent(a_site(members, tmp_path, policy=Policy(max_epsilon=0.5, total_epsilon=5.0)))
    assert not proposed(members, tmp_path, strict, 2)["accept"]
    journal = Journal.beside(tmp_path / "0.db")
    events = journal.events()
    assert [event["event"] for event in events] == ["accepted", "charged", "declined"]
    assert events[1]["epsilon"] == pytest.approx(0.9, rel=1e-3)
    assert events[0]["plan"] == events[1]["plan"] == plan_digest(a_plan())
    assert "above 0.5 a run" in events[2]["reason"]
    assert journal.log.stat().st_mode & 0o077 == 0
    assert journal.log.parent.stat().st_mode & 0o077 == 0
    found = capemix("site", "status", "--ledger", tmp_path / "0.db", "--json").json
    assert found["agents"][0] | {"time": None, "run": None} == {
        "site": 0,
        "runs": False,
        "time": None,
        "round": "plan",
        "run": None,
    }
    assert 0 < found["budgets"][0]["left"] < 1
    assert found["last_event"]["event"] == "declined"
    with serve(a_site(members, tmp_path), tmp_path / "socket"):
        said = capemix("site", "status", "--ledger", tmp_path / "0.db").out
        assert "agent of site 0: runs" in said
        assert "left of epsilon 5" in said


def test_every_sum_of_a_release_is_logged_with_the_digest_that_was_approved(tmp_path: Path) -> None:
    """Class sizes are measured first, and are in what is proposed for the sums after that."""
    rows = replace(some_rows(), label_name="y")
    facts = Facts.of(rows, normalise=PublicMap())
    who = {"scheme": "cape", "sites": SITES, "colluding": 1, "dropouts": 1}
    plan = make_plan(facts, ClassGaussian(samples=20), **who).calibrate(1.0)
    parts = partition(rows, SITES, "stratified", seed=0)
    engine = AgentsEngine(tmp_path / "agents", allowing(plan, plans="ask"), parts)
    for agent in engine.agents:
        agent.journal.answer(plan_digest(plan), Answer.APPROVED)
    carry_out(plan, engine)
    events = engine.agents[0].journal.events()
    assert [event["event"] for event in events[:5]] == ["approved", *["accepted", "charged"] * 2]
    assert len({event.get("sum") for event in events}) > 5
    assert {event["plan"] for event in events} == {plan_digest(plan)}


def test_nothing_that_an_agent_writes_down_depends_on_its_rows(
    members: dict[str, Any], tmp_path: Path
) -> None:
    written = []
    for name, rows in (("some", some_rows()), ("none", some_rows().take(np.array([], dtype=int)))):
        agents = [
            Agent(a_site(members, tmp_path / name, number, rows=rows)) for number in range(SITES)
        ]
        upload(members, tmp_path / name, agents, 1)
        folder = Journal.beside(tmp_path / name / "0.db").log.parent
        texts = [path.read_text() for path in sorted(folder.glob("*.json*"))]
        lines = [json.loads(line) for text in texts for line in text.splitlines()]
        written.append([{**line, "time": None} for line in lines])
    assert written[0] == written[1]
    assert len(written[0]) == 3


# -- limits that fit -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"epsilon": 5.0},
        {"masks": "gaussian"},
        {"sites": 9, "colluding": 2, "dropouts": 2},
        {"class_sizes": (10**7, 10**7), "samples": 50_000, "mixture": 10_000},
    ],
)
def test_a_new_policy_fits_its_plan_and_has_room_for_three_runs(changed: dict[str, Any]) -> None:
    plan = a_plan(**changed)
    policy = fitting_policy(plan)
    step, account = ReleaseStep.first_of(plan), Account(policy.limit)
    for _ in range(3):
        assert not list(policy.objections(step, account))
        for cost in plan.costs(policy.relation):
            admitted = account.admit(cost)
            assert admitted is not None
            account = admitted[0]
    assert policy.plans == "ask"


def test_init_writes_that_policy(tmp_path: Path) -> None:
    write_federation(tmp_path / "federation", a_plan(epsilon=3.0))
    read = documents.read(Policy, tmp_path / "federation" / "policy.json", name="policy")
    assert read == fitting_policy(a_plan(epsilon=3.0))


def test_a_check_says_everything_that_would_be_declined_at_once(
    capemix: Capemix, tmp_path: Path
) -> None:
    (tmp_path / "plan.json").write_text(plan_text(a_plan()))
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "0.1,0.2,yes\n0.3,0.4,no\n" * 5)
    words: list[Any] = ["site", "check", "--data", tmp_path / "rows.csv", "--label", "y"]
    words += ["--plan", tmp_path / "plan.json", "--policy", tmp_path / "policy.json"]
    limits = {"max_epsilon": 0.5, "least_sites": 9, "columns": ["a"], "methods": ["class-gaussian"]}
    (tmp_path / "policy.json").write_text(json.dumps({**limits, "largest_work": 1}))
    declined = capemix(*words, "--json").json["declined"]
    for says in ("not among the methods", "largest_work", "above 0.5 a run", "fewer than 9"):
        assert sum(says in reason for reason in declined) == 1
    assert len(declined) == 5
    said = capemix(*words).out
    assert "The policy declines the plan:" in said
    assert all(reason in said for reason in declined)
    (tmp_path / "policy.json").write_text("{}")
    assert "The policy allows the plan." in capemix(*words).out
    ledger = Ledger.open(tmp_path / "l.db")
    ledger.set_limit("rows", Limit(0.1, 1e-5))
    place = ["--ledger", tmp_path / "l.db", "--lineage", "rows"]
    (reason,) = capemix(*words, *place, "--json").json["declined"]
    assert "the ledger's limit of 0.1" in reason
    assert "capemix ledger set-limit" in reason


def test_a_refusal_names_the_limit_that_binds() -> None:
    step, policy = ReleaseStep.first_of(a_plan()), Policy(total_epsilon=0.5)
    for limit, says in (
        (Limit(0.5, 1e-5), "the policy's total_epsilon"),
        (Limit(0.3, 1e-5), "the ledger's limit of 0.3"),
        (Limit(0.5, 1e-7), "at delta 1e-07"),
    ):
        reason = policy.declines(step, Account(limit))
        assert reason is not None
        assert says in reason


def test_a_first_start_freezes_no_limit(members: dict[str, Any], tmp_path: Path) -> None:
    for total in (1.0, 5.0, 2.0):
        Agent(a_site(members, tmp_path, policy=Policy(total_epsilon=total)))
        budget = Ledger.open(tmp_path / "0.db").lineage("rows")
        assert budget.account().limit.epsilon == total
    Agent(a_site(members, tmp_path, policy=Policy(relation=Relation.REPLACE_ONE)))
    assert budget.relation is Relation.REPLACE_ONE


# -- years of running ------------------------------------------------------------------------------


def test_an_agent_lets_old_runs_go_and_takes_new_ones(
    members: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "_MOST_RUNS", 5)
    agents = [Agent(a_site(members, tmp_path, number)) for number in range(SITES)]
    upload(members, tmp_path, agents, 1)
    for number in range(2, 12):
        assert proposed(members, tmp_path, agents[0], number)["accept"]
    assert len(agents[0]._runs) == 5
    with pytest.raises(ProtocolError, match="has been in that run already"):
        proposed(members, tmp_path, agents[0], 1)  # charged: never again


def test_a_key_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read: no such file.*name the file"):
        load_identity(tmp_path / "absent.key")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"cannot be read: is a directory.*let this user read it"):
        load_identity(tmp_path / "folder")
    (tmp_path / "other.key").write_text("something")
    with pytest.raises(InputError, match="is not a key file"):
        load_identity(tmp_path / "other.key")


FLOWER_SAYS = """
echo "Exit Code: 305" >&2
echo "Failed to initialize the connection to the SuperLink." >&2
echo "[code: 2004] Failed to activate SuperNode." >&2
exit 1
"""


def test_a_node_that_is_not_registered_is_told_what_to_do(
    tmp_path: Path, capemix: Capemix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's own programs say this, and end; here others stand in for them."""
    for name, text in (("flower-supernode", FLOWER_SAYS), ("flower-superexec", "sleep 60")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(standing, "tool", lambda name: tmp_path / name)
    words: list[Any] = ["site", "node", "--superlink", "coordinator.example:8000"]
    words += ["--authority", tmp_path / "ca.pem", "--key", tmp_path / "node"]
    words += ["--socket", tmp_path / "socket"]
    assert "node.pub is for the coordinator" in capemix(*words).out
    ran = capemix(*words)
    assert ran.code == 2
    assert "coordinator.example:8000: [code: 2004] Failed to activate" in ran.err
    assert "have the coordinator register node.pub" in ran.err
    (tmp_path / "flower-supernode").write_text("#!/bin/sh\necho something else; exit 1")
    assert "supernode ended:\nsomething else" in capemix(*words).err


# -- documents that two readers would read differently ---------------------------------------------


@pytest.mark.parametrize("cls", [Policy, Roster, Member, Plan])
def test_a_document_with_a_key_twice_is_refused(cls: Any, members: dict[str, Any]) -> None:
    whole = {
        Policy: Policy(),
        Roster: members["roster"],
        Member: members["roster"].coordinator,
        Plan: a_plan(),
    }[cls]
    text = json.dumps(documents.as_json(whole))
    key = text[1:].split(":", 1)[0]
    found = documents.as_json(whole)
    again = json.dumps(found[json.loads(key)])
    assert a_document(cls, text) is not None
    with pytest.raises(InputError, match="has a key twice"):
        a_document(cls, text[:-1] + f",{key}:{again}}}")


def test_the_digest_says_whom_it_covers(
    members: dict[str, Any], capemix: Capemix, tmp_path: Path
) -> None:
    path = tmp_path / "roster.json"
    path.write_text(json.dumps(documents.as_json(members["roster"])))
    said = capemix("federate", "digest", path).out
    assert "of 4 sites:" in said
    for member in (members["roster"].coordinator, *members["roster"].sites):
        assert f"{member.name}, {member.identity}" in said
    found = capemix("federate", "digest", path, "--json").json
    assert found["digest"] == members["roster"].digest().hex()
    assert found["members"]["site 3"]["name"] == "site3"


def test_an_answer_is_a_whole_file_or_none(tmp_path: Path) -> None:
    journal = Journal.beside(tmp_path / "ledger.db")
    digest = plan_digest(a_plan())
    assert journal.answer_to(a_plan()) is Answer.PENDING
    for answer in (Answer.APPROVED, Answer.DENIED, Answer.APPROVED):
        journal.answer(digest, answer)
        assert journal.answer_to(a_plan()) is answer
        assert [(each.digest, each.answer) for each in journal.plans()] == [(digest, answer)]
    assert journal.plans()[0].plan == a_plan()
    assert not list(tmp_path.rglob("*.part"))
    assert {event["event"] for event in journal.events()} == {"asked", "approved", "denied"}
    assert (tmp_path / "ledger.db.site").stat().st_mode & 0o077 == 0


def test_a_name_that_cannot_be_a_socket_leaves_nothing_behind(
    members: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"socket cannot be listened on: .*too long"):
        serve(a_site(members, tmp_path), tmp_path / ("long" * 40))
    serve(a_site(members, tmp_path), tmp_path / "socket").server_close()  # the lock is free


def test_plans_that_wait_fill_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capemix.journal._MOST_PENDING", 3)
    journal = Journal.beside(tmp_path / "ledger.db")
    for samples in range(20, 30):
        assert journal.answer_to(a_plan(samples=samples)) is Answer.PENDING
    assert len(journal.plans()) == 3


def test_an_introduction_with_a_key_twice_is_none(members: dict[str, Any], tmp_path: Path) -> None:
    challenge = new_challenge()
    reply = Agent(a_site(members, tmp_path)).answer(challenge)
    assert site_of(challenge, reply, members["roster"]) == 0
    twice = reply.replace(b'"site":0', b'"site":1,"site":0')
    assert "does not say who it is" in str(site_of(challenge, twice, members["roster"]))
