"""The site's agent: over a real socket, under a policy, with a budget, against a hostile relay."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capemix import documents
from capemix.agent import (
    COULD_NOT_ANSWER,
    Agent,
    SiteState,
    ask,
    rows_for,
    serve,
)
from capemix.data import LabeledRows, UnlistedRows, partition
from capemix.data.arrays import cells_of_columns
from capemix.engines.flower.files import plan_text
from capemix.errors import InputError
from capemix.identity import load_identity, new_identity
from capemix.journal import plan_digest
from capemix.ledger import Account, Ledger, Lineage
from capemix.methods.mixing.planning import plan_mixtures
from capemix.plan import Plan
from capemix.private import PRIVATE
from capemix.protocol.agreement import public_bytes
from capemix.protocol.answering import ROUNDS
from capemix.protocol.chunks import LEAST_CHUNK
from capemix.protocol.coordinator import Run
from capemix.protocol.hello import new_challenge, site_of
from capemix.protocol.policy import Policy
from capemix.protocol.roster import Member, Roster
from capemix.protocol.wire import COORDINATOR, Context, Message, ProtocolError, digest, parse, seal
from capemix.randomness.source import SeededSource
from conftest import Capemix
from releasing import by_class
from world import a_document, mixtures_of, step_of

SITES = 4


def some_rows() -> LabeledRows:
    rng = np.random.default_rng(0)
    return LabeledRows(
        features=rng.random((200, 2)),
        labels=(np.arange(200) % 2).astype(np.int64),
        classes=("no", "yes"),
        feature_names=("a", "b"),
    )


@cache
def a_plan(**changed: Any) -> Plan:
    asked: dict[str, Any] = {
        "width": 2,
        "class_sizes": (100, 100),
        "samples": 20,
        "mixture": 10,
        "classes": ("no", "yes"),
        "scheme": "cape",
        "sites": SITES,
        "colluding": 1,
        "dropouts": 1,
    }
    epsilon = changed.pop("epsilon", 0.9)
    plan = plan_mixtures(**{**asked, **changed})
    named = replace(plan.facts, features=("a", "b"), label="y")
    return replace(plan, facts=named).calibrate(epsilon)


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    names = ["coordinator", *(f"site{s}" for s in range(SITES))]
    loaded = {name: load_identity(new_identity(name, tmp_path / "keys")[0]) for name in names}
    members = [Member(name, public_bytes(key).hex()) for name, key in loaded.items()]
    return {**loaded, "roster": Roster(members[0], tuple(members[1:]))}


def budget(folder: Path, number: int) -> Lineage:
    return Ledger.open(folder / f"{number}.db").lineage("rows")


def spent(folder: Path, number: int = 0) -> float:
    return budget(folder, number).account().epsilon


def a_state(keys: dict[str, Any], number: int, folder: Path, **changed: Any) -> SiteState:
    parts = partition(some_rows(), SITES, "stratified", seed=0)
    kept: dict[str, Any] = {
        "number": number,
        "identity": keys[f"site{number}"],
        "roster": keys["roster"],
        "policy": Policy(),
        "rows": parts[number],
        "budget": budget(folder, number),
        "test_seed": 7,
    }
    return SiteState(**{**kept, **changed})


@pytest.fixture
def sockets(keys: dict[str, Any], tmp_path: Path) -> Iterator[list[Path]]:
    servers = []
    for number in range(SITES):
        server = serve(a_state(keys, number, tmp_path), tmp_path / f"{number}.sock")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
    yield [tmp_path / f"{number}.sock" for number in range(SITES)]
    for server in servers:
        server.shutdown()
        server.server_close()


def drive(run: Run, sockets: list[Path]) -> np.ndarray:
    while run.round is not None:
        for site, raw in list(run.requests()):
            try:
                run.receive(site, ask(sockets[site], raw))
            except ProtocolError as error:
                run.receive(site, str(error).encode())
        for site, index in run.wanted():
            run.receive_chunk(site, index, ask(sockets[site], run.chunk_request(site, index)))
        run.close()
    return np.asarray(run.release_sums())


def a_run(keys: dict[str, Any], plan: Plan, folder: Path, run: int = 1) -> Run:
    spool = folder / "spool"
    spool.mkdir(parents=True, exist_ok=True)
    number = run.to_bytes(16, "big")
    step = step_of(plan, release=number)
    return Run(step, keys["roster"], keys["coordinator"], number, spool, chunk_bytes=LEAST_CHUNK)


def test_agents_over_sockets_give_the_local_release(
    keys: dict[str, Any], sockets: list[Path], tmp_path: Path
) -> None:
    plan = a_plan()
    run = a_run(keys, plan, tmp_path)
    found = drive(run, sockets)
    assert run.included == (0, 1, 2, 3)
    assert run.seeded
    parts = partition(some_rows(), SITES, "stratified", seed=0)
    local = by_class(plan, parts, SeededSource(7))
    assert found.astype(np.float64).tobytes() == local.features.astype(np.float64).tobytes()
    for number in range(SITES):
        assert spent(tmp_path, number) == pytest.approx(0.9, rel=1e-3)


def test_an_agent_proves_which_site_it_is(keys: dict[str, Any], sockets: list[Path]) -> None:
    roster, challenge = keys["roster"], new_challenge()
    other = Roster(roster.coordinator, roster.sites[:3])
    reply = ask(sockets[2], challenge)
    assert site_of(challenge, reply, roster) == 2

    def judged(asked: bytes, by: Roster, **lies: Any) -> str:
        return str(site_of(asked, json.dumps({**json.loads(reply), **lies}).encode(), by))

    assert "did not sign" in judged(new_challenge(), roster)
    assert "did not sign" in judged(challenge, roster, site=1)
    assert "did not sign" in judged(challenge, other, roster=other.digest().hex())
    assert "did not sign" in judged(challenge, roster, signature="00")
    assert "another roster" in judged(challenge, other)
    assert "no place" in judged(challenge, roster, site=7)
    for nonsense in (b"", b"[]", b"{}", b"\xff", reply[:-9]):
        assert "does not say" in str(site_of(challenge, nonsense, roster))
    # It signs nothing else at this door.
    for raw in (b"", challenge[:-1], challenge + b"x"):
        with pytest.raises(ProtocolError):
            ask(sockets[2], raw)


def test_the_total_budget_ends_the_second_run(
    keys: dict[str, Any], sockets: list[Path], tmp_path: Path
) -> None:
    drive(a_run(keys, a_plan(), tmp_path, 1), sockets)
    with pytest.raises(ProtocolError, match="overspent"):
        drive(a_run(keys, a_plan(), tmp_path, 2), sockets)


def test_runs_side_by_side_cannot_overspend(
    keys: dict[str, Any], sockets: list[Path], tmp_path: Path
) -> None:
    runs = [a_run(keys, a_plan(), tmp_path, number) for number in (1, 2)]
    for _ in range(3):  # plan, keys, shares: both were agreed to before either was charged
        for run in runs:
            for site, raw in list(run.requests()):
                run.receive(site, ask(sockets[site], raw))
            run.close()
    drive(runs[0], sockets)
    with pytest.raises(ProtocolError):
        drive(runs[1], sockets)
    for number in range(SITES):
        assert spent(tmp_path, number) <= 1.0


def test_a_hostile_relay_can_lose_messages_and_nothing_else(
    keys: dict[str, Any], sockets: list[Path], tmp_path: Path
) -> None:
    run = a_run(keys, a_plan(), tmp_path)
    requests = dict(run.requests())
    first = ask(sockets[0], requests[0])
    assert b"accept" in first
    for other in (b"rows, please\n", b"{}\n", requests[0][:-1], b"x" * 100):
        with pytest.raises(ProtocolError):
            ask(sockets[0], other)
    assert ask(sockets[0], requests[0]) == first
    assert not spent(tmp_path)  # no upload was ever made
    assert (tmp_path / "0.sock").stat().st_mode & 0o077 == 0


def test_chunks_can_be_had_again_until_another_upload_is_made(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    policy = Policy(total_epsilon=2.0)
    agents = [Agent(a_state(keys, n, tmp_path, policy=policy)) for n in range(SITES)]
    plan = a_plan(samples=1000)
    runs = [a_run(keys, plan, tmp_path / str(number), number) for number in (1, 2)]
    first, second = runs

    def announce(run: Run) -> None:
        for round_ in ("plan", "keys", "shares", "check", "upload"):
            if round_ != "plan":
                run.close()
            for site, raw in list(run.requests()):
                run.receive(site, agents[site].answer(raw))

    with pytest.raises(ProtocolError, match="no upload for that run"):
        agents[0].answer(first.chunk_request(0, 0))
    announce(first)
    before = spent(tmp_path)
    chunks = list(first.wanted())
    assert len(chunks) == 2 * SITES
    for site, index in chunks:
        data = agents[site].answer(first.chunk_request(site, index))
        assert agents[site].answer(first.chunk_request(site, index)) == data
        if site != 3:
            first.receive_chunk(site, index, data)
    assert spent(tmp_path) == before  # asking is free: nothing is made anew
    announce(second)
    for site in range(SITES):
        with pytest.raises(ProtocolError, match="no upload"):
            agents[site].answer(first.chunk_request(site, 0))
        assert agents[site].answer(second.chunk_request(site, 0))
    first.close()  # what came whole before stays in, and its run goes on
    while first.round is not None:
        for site, raw in list(first.requests()):
            first.receive(site, agents[site].answer(raw))
        first.close()
    assert first.included == (0, 1, 2)
    assert first.release_sums().shape == mixtures_of(plan).shape


# -- a hostile client on the socket ----------------------------------------------------------------


def alive(path: Path) -> bool:
    return json.loads(ask(path, new_challenge()))["site"] == 0


def send(path: Path, raw: bytes, *, listen: bool = True) -> bytes:
    """Bytes as they are, without a frame; what comes back until the agent hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.settimeout(20)
        stream.connect(str(path))
        stream.sendall(raw)
        if not listen:
            return b""
        stream.shutdown(socket.SHUT_WR)
        said = bytearray()
        with contextlib.suppress(ConnectionResetError):  # it hung up before it had read all
            while part := stream.recv(1 << 16):
                said += part
    return bytes(said)


def up_to(run: Run, agents: list[Any], round_: str) -> None:
    """All rounds before this one, undisturbed; agents are sockets, or agents themselves."""
    while run.round != round_:
        for site, raw in list(run.requests()):
            run.receive(site, ask(agents[site], raw))
        for site, index in list(run.wanted()):
            run.receive_chunk(site, index, ask(agents[site], run.chunk_request(site, index)))
        run.close()


def test_arbitrary_bytes_get_a_refusal_and_nothing_else(sockets: list[Path]) -> None:
    rng = np.random.default_rng(0)
    for trial in range(150):
        noise = rng.bytes(int(rng.integers(1, 200)))
        framed = len(noise).to_bytes(8, "big") + noise
        said = send(sockets[0], framed if trial % 2 else noise)
        assert said[:1] in (b"", b"\1")
    assert alive(sockets[0])


@pytest.mark.parametrize("length", [2**64 - 1, 2**40, 2**28 + 1, 2**24])
def test_a_length_without_the_bytes_is_refused_at_once(sockets: list[Path], length: int) -> None:
    said = send(sockets[0], length.to_bytes(8, "big"))
    assert said[:1] == b"\1"
    assert b"too long" in said or b"ended inside a frame" in said
    assert alive(sockets[0])


def test_half_messages_and_closed_ears_are_left_behind(
    keys: dict[str, Any], sockets: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = a_run(keys, a_plan(), tmp_path)
    raw = dict(run.requests())[0]
    framed = len(raw).to_bytes(8, "big") + raw
    for cut in (0, 1, 7, 8, 9, len(framed) // 2, len(framed) - 1):
        send(sockets[0], framed[:cut], listen=False)
        assert b"accept" not in send(sockets[0], framed[:cut])
    send(sockets[0], framed, listen=False)  # a whole one, by someone who does not wait
    assert alive(sockets[0])
    run.receive(0, ask(sockets[0], raw))  # it was answered, into the void: the same answer again
    assert run.answered == (0,)
    assert capfd.readouterr().err == ""


def test_a_client_that_drips_bytes_is_cut_off(
    sockets: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capemix.agent._PATIENCE_S", 0.4)
    begun = time.monotonic()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
        slow.connect(str(sockets[0]))
        waiting = threading.Thread(target=ask, args=(sockets[0], new_challenge()), daemon=True)
        waiting.start()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for byte in (400).to_bytes(8, "big") + bytes(400):
                slow.sendall(bytes([byte]))
                time.sleep(0.1)
        waiting.join(20)
    assert not waiting.is_alive()
    assert time.monotonic() - begun < 20
    assert alive(sockets[0])


@pytest.mark.parametrize("round_", [round_ for round_ in ROUNDS if round_ != "open"])
def test_no_round_is_answered_in_two_ways(
    keys: dict[str, Any], sockets: list[Path], tmp_path: Path, round_: str
) -> None:
    """Not in a row, not at once over many connections, and not after a later round."""
    run = a_run(keys, a_plan(), tmp_path)
    up_to(run, sockets, round_)
    raw = dict(run.requests())[0]
    answers: list[bytes] = []

    def try_it() -> None:
        with contextlib.suppress(ProtocolError):
            answers.append(ask(sockets[0], raw))

    clients = [threading.Thread(target=try_it, daemon=True) for _ in range(25)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(30)
    assert len(answers) == 25
    assert len(set(answers)) == 1
    body = {**parse(raw).body, "more": 1}
    other = seal(run._context, keys["coordinator"], Message(round_, COORDINATOR, body))
    if round_ != "plan":  # another plan would be signed for another run
        with pytest.raises(ProtocolError, match="has answered another"):
            ask(sockets[0], other)
    assert ask(sockets[0], raw) == answers[0]
    uploads = ROUNDS.index(round_) >= ROUNDS.index("upload")
    assert budget(tmp_path, 0).account().total.charges == uploads
    if round_ == "upload":
        assert ask(sockets[0], run.chunk_request(0, 0))
    assert alive(sockets[0])


def test_requests_of_another_run_are_no_use(
    keys: dict[str, Any], sockets: list[Path], tmp_path: Path
) -> None:
    """A relay has two runs' requests, in any round, and hands in the wrong one."""
    mine, other = (a_run(keys, a_plan(), tmp_path / str(n), n) for n in (1, 2))
    agents = [Agent(a_state(keys, n, tmp_path / "elsewhere")) for n in range(SITES)]
    requests = []
    for _ in ("plan", "keys", "shares", "check", "upload"):
        for site, raw in list(other.requests()):
            if site == 0:
                requests.append(raw)
            other.receive(site, agents[site].answer(raw))
        if other.round != "upload":
            other.close()
    up_to(mine, sockets, "upload")
    with pytest.raises(ProtocolError, match="expected a plan message"):
        ask(sockets[0], requests[-1])  # a run that this agent did not join
    renamed = [
        raw.replace(other._context.run.hex().encode(), mine._context.run.hex().encode())
        for raw in requests
    ]
    with pytest.raises(ProtocolError, match="signature"):
        ask(sockets[0], renamed[-1])
    for raw in requests[1:]:  # it leaves no trace, and is refused as often as it comes
        with pytest.raises(ProtocolError, match="expected a plan message"):
            ask(sockets[0], raw)
    for raw in renamed[:-1]:
        with pytest.raises(ProtocolError, match="has answered another"):
            ask(sockets[0], raw)
    assert not spent(tmp_path)
    assert b"chunks" in ask(sockets[0], dict(mine.requests())[0])  # none of it has any effect


def test_what_a_client_can_get_said_does_not_hold_a_row(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    """Whatever it asks for, refusals are the same with other rows of the same columns."""
    plan = a_plan()
    asked = [b"rows\n", b"{}\n", b"\0" * 64]
    for change in (
        {"features": ["a", "z"]},
        {"features": []},
        {"features": None},
        {"features": [["a"], {"b": 1}]},
        {"features": ["a", "a"]},
        {},
    ):
        proposed = step_of(plan).as_json()
        facts = {**proposed["plan"]["facts"], **change} if change else {}
        step = {**proposed, "plan": {**proposed["plan"], "facts": facts}}
        run, roster = bytes(16), keys["roster"].digest()
        body = {"run": run.hex(), "roster": roster.hex(), "step": step}
        context = Context(run, roster, digest(step))
        asked.append(seal(context, keys["coordinator"], Message("plan", COORDINATOR, body)))
    said = []
    for fill in (0.125, 987654.321):
        rows = replace(some_rows(), features=np.full((200, 2), fill))
        heard = []
        for raw in asked:
            agent = Agent(a_state(keys, 0, tmp_path, rows=rows))
            try:
                heard.append(agent.answer(raw))
            except (ProtocolError, InputError) as error:
                heard.append(str(error).encode())
        assert not any(str(fill).encode() in one for one in heard)
        said.append(heard)
    assert said[0] == said[1]


def test_a_relay_is_told_of_no_file_and_the_sites_own_log_is(
    keys: dict[str, Any], sockets: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = dict(a_run(keys, a_plan(), tmp_path).requests())[0]
    (tmp_path / "0.db").write_bytes(b"something else")  # a ledger that cannot be read
    for path in tmp_path.glob("0.db-*"):
        path.unlink()
    with pytest.raises(ProtocolError) as heard:
        ask(sockets[0], raw)
    assert str(heard.value).encode() == COULD_NOT_ANSWER
    assert str(tmp_path) in caplog.text
    assert "the ledger cannot be read" in caplog.text
    assert "Traceback" not in caplog.text
    assert alive(sockets[0])


def test_what_nobody_foresaw_is_for_the_sites_log_alone(
    keys: dict[str, Any],
    sockets: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capemix: Capemix,
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("of patient 17")

    monkeypatch.setattr(Policy, "declines", broken)
    with pytest.raises(ProtocolError) as heard:
        ask(sockets[0], dict(a_run(keys, a_plan(), tmp_path).requests())[0])
    assert str(heard.value).encode() == COULD_NOT_ANSWER
    assert "of patient 17" in caplog.text
    said = capemix("site", "status", "--ledger", tmp_path / "0.db").out  # more people read this
    assert "last error: " in said
    assert "what RuntimeError" in said
    assert "patient" not in said


def test_a_group_may_be_let_in_to_the_socket(keys: dict[str, Any], tmp_path: Path) -> None:
    own = grp.getgrgid(os.getgid()).gr_name
    for group, mode in ((None, 0o600), (own, 0o660)):
        with serve(a_state(keys, 0, tmp_path), tmp_path / "socket", group):
            found = (tmp_path / "socket").stat()
            assert (found.st_mode & 0o777, found.st_gid) == (mode, os.getgid())
    with pytest.raises(InputError, match="group does not exist"):
        serve(a_state(keys, 0, tmp_path), tmp_path / "socket", "nobody-has-this-group")
    assert not (tmp_path / "socket").exists()


def test_what_an_agent_says_before_the_upload_does_not_depend_on_its_rows(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    said = []
    rows = some_rows()
    empty = rows.take(np.array([], dtype=np.int64))
    for mine in (rows, empty):
        agent = Agent(a_state(keys, 0, tmp_path, rows=mine))
        run = a_run(keys, a_plan(), tmp_path)
        said.append(agent.answer(dict(run.requests())[0]))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("policy", "plan", "says"),
    [
        (Policy(max_epsilon=0.5), {}, "above 0.5 a run"),
        (Policy(max_delta=1e-9), {}, "delta"),
        (Policy(total_epsilon=0.1), {}, "overspent"),
        (Policy(least_sites=5), {}, "fewer than 5"),
        (Policy(least_colluding=2), {}, "colluding"),
        (Policy(columns=("a",)), {}, "columns"),
        (Policy(classes=("no",)), {}, "classes"),
        (Policy(classes=(1, "no")), {"classes": ("1", "no ")}, None),
        (Policy(classes=(1, "no")), {"classes": ("02", "no")}, "classes"),
        (Policy(), {"masks": "gaussian"}, "real-arithmetic"),
        (Policy(), {"accountant": "paper"}, "soundly"),
        (Policy(), {"epsilon": float("inf")}, "no privacy"),
        (Policy(), {}, None),
        (Policy(real_arithmetic=True), {"masks": "gaussian"}, None),
    ],
)
def test_a_policy_declines_for_a_reason(
    policy: Policy, plan: dict[str, Any], says: str | None
) -> None:
    reason = policy.declines(step_of(a_plan(**plan)), Account(policy.limit))
    if says is None:
        assert reason is None
    else:
        assert reason is not None
        assert says in reason


def test_a_policy_file_is_checked() -> None:
    assert a_document(Policy, '{"max_epsilon": 2, "columns": ["a"]}').columns == ("a",)
    for text in ("", "[]", '{"max_epsilon": -1}', '{"unknown": 1}', '{"max_epsilon": "lots"}'):
        with pytest.raises(InputError):
            a_document(Policy, text)


def test_rows_of_other_classes_are_dropped_and_columns_put_in_order() -> None:
    rows = LabeledRows(
        features=np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]),
        labels=np.array([0, 1, 2]),
        classes=("maybe", "yes", "no"),
        feature_names=("c", "b", "a"),
    )
    used = rows_for(rows, a_plan().facts)
    assert used.features.tolist() == [[6.0, 5.0], [9.0, 8.0]]
    assert used.labels.tolist() == [1, 0]


def test_an_agents_file_is_coded_by_the_plans_list_each_record_by_itself() -> None:
    labels = ["yes", " no", "maybe", None, "yes", "no"]
    cells = cells_of_columns(
        {"c": ["a word"] * 6, "b": [2, 5, 8, 1, "?", 3.5], "a": [3, 6, 9, 1, 1, np.inf]},
        ["c", "b", "a"],
        "y",
        labels,
    )
    used = rows_for(UnlistedRows.of(cells, "y"), a_plan().facts)
    assert used.features.tolist() == [[3.0, 2.0], [6.0, 5.0]]
    assert used.labels.tolist() == [1, 0]
    assert used.classes == ("no", "yes")
    assert used.unfit == 4


def test_keys_are_made_once_and_kept_private(capemix: Capemix, tmp_path: Path) -> None:
    made = capemix("keygen", "--name", "clinic", "--out", tmp_path, "--json").json
    assert (tmp_path / "clinic.key").stat().st_mode & 0o077 == 0
    assert public_bytes(load_identity(tmp_path / "clinic.key")).hex() == made["identity"]
    assert capemix("keygen", "--name", "clinic", "--out", tmp_path).code == 2
    assert capemix("keygen", "--name", "../x", "--out", tmp_path).code == 2
    with pytest.raises(InputError, match="key file"):
        load_identity(tmp_path / "clinic.json")


def test_a_site_looks_at_its_own_rows_before_it_joins(capemix: Capemix, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(plan_text(a_plan()))
    table = tmp_path / "rows.csv"
    table.write_text("a,b,y\n" + "0.1,0.2,yes\n0.3,0.4,no\n?,0.6,no\n0.5,0.6,unsure\n" * 5)
    words = ["site", "check", "--data", table, "--label", "y", "--plan", plan]
    assert capemix(*words, "--json").json == {
        "rows": 20,
        "used": 10,
        "classes": {"no": 5, "yes": 5},
        "private": PRIVATE,
        "cells_that_are_no_number": {"a": 5},
        "digest": plan_digest(a_plan()),
    }
    said = capemix(*words).out
    assert "a: 5 cells have no value" in said
    assert "20 rows, of which 10 have a class of the plan" in said
    assert "10 rows count for nothing" in said
    table.write_text("a,y\n" + "0.1,yes\n0.3,no\n" * 5)
    ran = capemix(*words)
    assert ran.code == 2
    assert "lack a column (got b)" in ran.err
    plan.write_text("{}")
    assert capemix(*words).code == 2


@pytest.fixture
def an_agent(
    keys: dict[str, Any], capemix: Capemix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """`capemix site serve`, which is stopped as soon as it listens."""

    def stopped(_server: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("capemix.agent._Server.serve_forever", stopped)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    (tmp_path / "roster.json").write_text(json.dumps(documents.as_json(keys["roster"])))
    (tmp_path / "policy.json").write_text("{}")
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "0.1,0.2,yes\n0.3,0.4,no\n" * 5)

    def run(*words: object, lineage: str = "rows") -> Any:
        return capemix(
            *("site", "serve", "--number", 0, "--identity", tmp_path / "keys" / "site0.key"),
            *("--roster", tmp_path / "roster.json", "--policy", tmp_path / "policy.json"),
            *("--data", tmp_path / "rows.csv", "--label", "y", "--lineage", lineage),
            *("--socket", tmp_path / "socket", "--ledger", tmp_path / "kept.db", *words),
        )

    return run


def test_a_ledger_that_is_gone_is_refused_unless_it_is_said_to_be_new(
    an_agent: Any, tmp_path: Path
) -> None:
    ran = an_agent()
    assert (ran.code, ran.out) == (2, "")
    assert "--lineage has no ledger at" in ran.err
    assert "--new-lineage" in ran.err
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "kept.db").exists()
    ran = an_agent("--new-lineage")
    assert ran.code == 0, ran.err
    assert "ledger head 0" in ran.out
    assert "listens" in ran.out
    assert "for plans without a schema (one with a schema needs --plan)" in ran.out
    assert "rows" in Ledger.open(tmp_path / "kept.db").accounts()
    assert "ledger head 1-" in an_agent().out  # from then on it is known
    for path in tmp_path.glob("kept.db*"):
        if path.is_file():
            path.unlink()
    assert an_agent().code == 2


def test_a_mistyped_lineage_is_no_fresh_budget(an_agent: Any, tmp_path: Path) -> None:
    assert an_agent("--new-lineage").code == 0
    ran = an_agent(lineage="row")
    assert ran.code == 2
    assert "--lineage is not in the ledger" in ran.err
    assert set(Ledger.open(tmp_path / "kept.db").accounts()) == {"rows"}
    assert an_agent("--new-lineage", lineage="others").code == 0


def test_a_lineage_is_new_once_only(an_agent: Any) -> None:
    """So that the word cannot stay in whatever starts the agent, and forgive a lost file later."""
    assert an_agent("--new-lineage").code == 0
    ran = an_agent("--new-lineage")
    assert ran.code == 2
    assert "--new-lineage is for rows that the ledger does not know yet" in ran.err


def test_a_limit_that_was_set_beforehand_begins_a_lineage(
    an_agent: Any, capemix: Capemix, tmp_path: Path
) -> None:
    words = ["ledger", "set-limit", "rows", "--epsilon", 0.5, "--ledger", tmp_path / "kept.db"]
    assert capemix(*words).code == 0
    assert an_agent().code == 0
    limit = Ledger.open(tmp_path / "kept.db").accounts()["rows"].limit
    assert limit.epsilon == 0.5  # the policy's is higher
