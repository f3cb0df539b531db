"""Flower as the engine: it carries messages, loses some, and the release is still the same."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from capemix.data import LabeledRows, partition
from capemix.engines.flower import exchange as exchange_module
from capemix.engines.flower.app_folder import write_federation
from capemix.engines.flower.coordinator_app import find_sites
from capemix.engines.flower.envelope import Refused, pack, pack_refusal, unpack
from capemix.engines.flower.files import (
    RELEASED,
    Outcome,
    RoundOpen,
    RoundOver,
    plan_text,
    read_plan_file,
)
from capemix.engines.flower.local import run_on_loopback
from capemix.engines.flower.processes import ChildError, Processes
from capemix.engines.flower.progress import Progress
from capemix.engines.flower.relay import AGENT_SOCKET, AGENT_SOCKETS, agent_path, ask_agent
from capemix.engines.flower.rounds import WINDOW, Round
from capemix.engines.flower.settings import Settings
from capemix.engines.local import LocalEngine
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.journal import plan_digest
from capemix.methods.mixing import Mixing
from capemix.plan import Plan, make_plan
from capemix.protocol.agreement import public_bytes
from capemix.protocol.answering import ROUNDS
from capemix.protocol.chunks import LEAST_CHUNK
from capemix.protocol.hello import introduce
from capemix.protocol.roster import Member, Roster
from capemix.protocol.wire import ProtocolError, parse
from capemix.randomness.source import SeededSource
from capemix.run import run as carry_out
from capemix.sums.share import share_bytes
from capemix.sums.steps import PublicMap
from capemix.verify import Outcome as Checked
from capemix.verify import verify
from conftest import Capemix
from test_protocol import CHUNKS, World, assert_sum, chunked
from world import mixtures_of

SEED = 7


@pytest.fixture(scope="module")
def rows() -> LabeledRows:
    rng = np.random.default_rng(0)
    return LabeledRows(
        features=rng.normal(size=(240, 6)),
        labels=(np.arange(240) % 3).astype(np.int64),
        classes=("high", "low", "none"),
        feature_names=tuple("abcdef"),
        label_name="risk",
    )


@pytest.fixture(scope="module")
def plan(rows: LabeledRows) -> Plan:
    return make_plan(
        Facts.of(rows, class_sizes=(80, 80, 80), normalise=PublicMap()),
        Mixing(samples=180, mixture=8, clip=1.0),
        scheme="cape",
        sites=4,
        colluding=1,
        dropouts=1,
    ).calibrate(5.0)


# -- a federation of processes --------------------------------------------------------------------


@pytest.mark.long
def test_the_bytes_are_the_same_in_process_simulated_and_deployed(
    rows: LabeledRows, plan: Plan, tmp_path: Path
) -> None:
    """Deployed: four SuperNodes over TLS with node authentication, and one is killed between
    upload and unmask, which changes nothing."""
    parts = partition(rows, 4, "stratified", seed=SEED)
    killed: list[int] = []

    def kill(outcome: Outcome, nodes: Mapping[int, int]) -> None:
        if not killed and outcome.rounds and outcome.rounds[-1].round == "upload":
            os.kill(nodes[2], signal.SIGKILL)
            killed.append(nodes[2])
            simulate()  # while the others wait for the dead

    def simulate() -> None:
        found = run_on_loopback(
            plan, parts, tmp_path / "sim", engine="simulation", test_seed=SEED, round_seconds=40.0
        )
        assert found.included == [0, 1, 2, 3]
        assert not found.lost

    outcome = run_on_loopback(
        plan,
        parts,
        tmp_path / "out",
        test_seed=SEED,
        round_seconds=40.0,
        chunk_bytes=LEAST_CHUNK,
        watch=kill,
    )
    assert killed
    assert outcome.status == RELEASED
    assert outcome.included == [0, 1, 2, 3]
    assert set(outcome.lost) == {"2"}
    assert [done.answered for done in outcome.rounds][:4] == [4, 4, 4, 4]
    assert outcome.rounds[-1].answered == 3
    assert (
        next(one for one in outcome.rounds if one.round == "upload").bytes_in
        > 4 * share_bytes(mixtures_of(plan))
        > 4 * LEAST_CHUNK
    )
    assert all(outcome.peak_memory[who] > 1 << 20 for who in ("coordinator", "superlink", "agent"))
    carry_out(plan, LocalEngine(parts, SeededSource(SEED))).save(tmp_path / "local")
    folders = [tmp_path / name for name in ("local", "out", "sim")]
    assert len({(folder / "synthetic.parquet").read_bytes() for folder in folders}) == 1
    theirs, ours, again = (json.loads((f / "manifest.json").read_text()) for f in folders)
    for manifest, folder in ((ours, folders[1]), (again, folders[2])):
        found = verify(folder)  # by the trial's own keys
        assert not found.of(Checked.FAILED), found
        assert "sites" in {each.about for each in found.of(Checked.HELD)}
        assert manifest.pop("signer")["name"] == "coordinator"
        del manifest["sha256"]["consents.json"]
    assert ours == again
    assert theirs.pop("signer") is None
    assert theirs.pop("how_made")["curator_saw"] == "every record"
    assert ours.pop("how_made")["counted"] == "by each site in its own ledger"
    # Only what is assumed differs: here there was a server to hide from.
    assert "one process" in " ".join(theirs["guarantee"].pop("assumptions"))
    assert "X25519" in " ".join(ours["guarantee"].pop("assumptions"))
    assert ours == theirs
    assert Outcome.read(tmp_path / "out") == outcome
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["local", "out", "out.outcome.json", "sim", "sim.outcome.json"]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A socket's path is short, and a test's folder is not."""
    folder = Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def processes_in(folder: Path) -> set[int]:
    """Those with a variable or an open file there (Ray's workers write over their variables)."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            named = f"FLWR_HOME={folder}".encode() in (process / "environ").read_bytes()
            if named or any(folder in f.readlink().parents for f in (process / "fd").iterdir()):
                found.add(int(process.name))
    return found


@pytest.mark.parametrize(
    ("number", "engine", "last"),
    [
        (signal.SIGINT, "deployment", "logs/supernode-0.log"),
        (signal.SIGTERM, "deployment", "logs/supernode-0.log"),
        (signal.SIGINT, "simulation", "capemix-*/ray/session_2*/logs/worker-*.out"),
    ],
)
def test_an_interrupt_stops_everything_that_was_started(
    short_folder: Path, tmp_path: Path, number: signal.Signals, engine: str, last: str
) -> None:
    command = [sys.executable, "-c", "from capemix.cli import main; main()", "federate", "local"]
    command += ["--sites", "2", "--samples", "100", "--out", str(tmp_path / "out")]
    command += ["--engine", engine, "--logs", str(tmp_path / "logs")]
    process = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(short_folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 90
        while not [*short_folder.glob(last), *tmp_path.glob(last)]:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        assert processes_in(short_folder)
        process.send_signal(number)
        assert process.wait(timeout=40) != 0
    finally:
        process.kill()
        process.wait()
    assert processes_in(short_folder) == set()
    assert list(short_folder.iterdir()) == []
    assert not (tmp_path / "out").exists()


def test_children_end_even_if_they_will_not(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1); time.sleep(600)"
    with Processes(tmp_path, os.environ) as processes:
        child = processes.start("stubborn", [sys.executable, "-u", "-c", stubborn])
        end = time.monotonic() + 20
        while not child.output and time.monotonic() < end:
            time.sleep(0.05)
        assert child.alive
    assert child.process.returncode == -signal.SIGKILL
    with Processes(tmp_path, os.environ) as processes:
        with pytest.raises(ChildError, match="failed"):
            processes.run("bad", [sys.executable, "-c", "raise SystemExit(3)"], 20.0)
        assert processes.run("good", [sys.executable, "-c", "print(5)"], 20.0) == "5\n"
        with pytest.raises(ChildError, match="too long"):
            processes.run("slow", [sys.executable, "-c", "import time; time.sleep(60)"], 0.3)


def test_what_cannot_be_run_is_refused_first(rows: LabeledRows, plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be 4"):
        run_on_loopback(plan, [rows], tmp_path / "out")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(InputError, match="in use"):
        run_on_loopback(plan, [rows] * 4, tmp_path / "used")


# -- the relay ------------------------------------------------------------------------------------


def test_bytes_come_back_as_they_were() -> None:
    for raw in (b"", b"x", bytes(range(256)) * 999):
        assert unpack(pack(raw)) == raw
    with pytest.raises(Refused, match="not today"):
        unpack(pack_refusal("not today"))
    for content in (RecordDict(), RecordDict({"message": ConfigRecord({"bytes": 1})})):
        with pytest.raises(Refused, match="not a message"):
            unpack(content)


@contextlib.contextmanager
def an_agent(path: Path, reply: bytes) -> Iterator[list[bytes]]:
    """Answers one connection with these bytes."""
    seen: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(20)

        def answer() -> None:
            stream, _ = server.accept()
            with stream:
                stream.settimeout(20)
                length = int.from_bytes(stream.recv(8, socket.MSG_WAITALL), "big")
                seen.append(stream.recv(length, socket.MSG_WAITALL) if length else b"")
                stream.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        yield seen
        thread.join(20)


def framed(status: int, reply: bytes) -> bytes:
    return bytes([status]) + len(reply).to_bytes(8, "big") + reply


def test_the_relay_passes_bytes_on_and_a_refusal_back(short_folder: Path) -> None:
    with an_agent(short_folder / "a", framed(0, b"yes")) as seen:
        assert ask_agent(str(short_folder / "a"), b"please") == b"yes"
    assert seen == [b"please"]
    with (
        an_agent(short_folder / "b", framed(1, b"no")),
        pytest.raises(Refused, match="no"),
    ):
        ask_agent(str(short_folder / "b"), b"please")
    with (
        an_agent(short_folder / "c", framed(0, b"cut short")[:-2]),
        pytest.raises(Refused, match="ended the connection"),
    ):
        ask_agent(str(short_folder / "c"), b"")
    with pytest.raises(Refused, match="cannot be reached"):
        ask_agent(str(short_folder / "nobody"), b"")
    assert AGENT_SOCKET == "agent-socket"


def test_a_node_finds_its_agent_by_its_own_word_or_by_its_number() -> None:
    def path(node: dict[str, Any], run: dict[str, Any]) -> str:
        return agent_path(SimpleNamespace(node_config=node, run_config=run))  # type: ignore[arg-type]

    pattern = {AGENT_SOCKETS: "/run/{}.socket"}
    assert path({"partition-id": 3}, pattern) == "/run/3.socket"
    assert path({"partition-id": 3, AGENT_SOCKET: "/mine"}, pattern) == "/mine"
    for node, run in (({}, pattern), ({"partition-id": 3}, {})):
        with pytest.raises(Refused, match="no agent-socket"):
            path(node, run)


def test_the_relay_loads_nothing_that_holds_rows() -> None:
    code = (
        "import sys, capemix.engines.flower.relay;"
        "print([m for m in sys.modules if m.startswith('capemix.')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(eval(ran.stdout))
    assert loaded == {
        "capemix.engines",
        "capemix.engines.flower",
        "capemix.engines.flower.envelope",
        "capemix.engines.flower.relay",
    }


# -- the coordinator's side, with a network made of this test --------------------------------------


class FakeGrid:
    """Answers as told: bytes, what a function makes of the question, a refusal, an error, or
    never."""

    def __init__(self, answers: Mapping[int, Any]) -> None:
        self.answers = answers
        self.sent: dict[str, Any] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.answers)

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(f"m{len(self.sent)}")
            self.sent[ids[-1]] = message
        return ids

    def pull_messages(self, ids: Iterable[str]) -> Iterable[Any]:
        for sent in ids:
            question = self.sent[sent]
            answer = self.answers[question.metadata.dst_node_id]
            if answer is None:
                continue
            if callable(answer):
                answer = answer(unpack(question.content))
            error = SimpleNamespace(code=answer) if isinstance(answer, int) else None
            content = None
            if isinstance(answer, bytes):
                content = pack(answer)
            elif isinstance(answer, Refused):
                content = pack_refusal(str(answer))
            yield SimpleNamespace(error=error, content=content, has_error=lambda e=error: bool(e))


@pytest.fixture
def no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own messages can only be made inside one of its tasks."""

    def message(content: Any, *, dst_node_id: int, **_more: Any) -> Any:
        metadata = SimpleNamespace(dst_node_id=dst_node_id)
        return SimpleNamespace(content=content, metadata=metadata)

    monkeypatch.setattr(exchange_module, "Message", message)


@pytest.mark.usefixtures("no_task")
def test_the_silent_the_refusing_and_the_dead_hold_nobody_up() -> None:
    grid: Any = FakeGrid({5: b"five", 6: Refused("no"), 7: 3, 8: None})
    started = time.monotonic()
    found = dict(exchange_module.exchange(grid, [(node, b"?") for node in (5, 6, 7, 8)], 0.6))
    assert 0.5 < time.monotonic() - started < 5
    assert found[5] == b"five"
    assert isinstance(found[6], Refused)
    assert isinstance(found[7], Refused)
    assert 8 not in found


@pytest.mark.usefixtures("no_task")
def test_what_flower_cannot_read_costs_its_sender_alone() -> None:
    """As Flower's grid, this one raises what the node made it, once, and has let go of it then."""
    gone = {5: 0, 6: 0}

    class Raising(FakeGrid):
        def pull_messages(self, ids: Iterable[str]) -> Iterable[Any]:
            (sent,) = ids
            node = self.sent[sent].metadata.dst_node_id
            if node in gone:
                gone[node] += 1
                if node == 6 or gone[node] == 1:
                    raise LookupError("no such object")
            return list(super().pull_messages(ids))

    grid: Any = Raising({5: 3, 7: b"seven"})
    found = dict(exchange_module.exchange(grid, [(node, b"?") for node in (5, 7)], 20.0))
    assert isinstance(found[5], Refused)
    assert found[7] == b"seven"
    with pytest.raises(LookupError):  # a SuperLink that is gone is not a site's fault
        dict(exchange_module.exchange(grid, [(6, b"?")], 20.0))


def an_archive() -> bytes:
    packed = io.BytesIO()
    np.savez(packed, a=np.zeros(1, dtype=np.uint8))
    return packed.getvalue()


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", an_archive()])
def test_an_array_that_is_none_is_refused(data: bytes) -> None:
    array = Array("uint8", (1,), "numpy.ndarray", data)
    with pytest.raises(Refused, match="not a message"):
        unpack(RecordDict({"message": ArrayRecord({"bytes": array})}))


class SitesGrid:
    """Sites behind nodes 100, 101, ...; what ``spoil`` returns for a chunk is sent in its place."""

    def __init__(
        self, world: World, spoil: Callable[[int, int], bytes | Refused | None] | None = None
    ) -> None:
        self.world = world
        self.spoil = spoil
        self.under_way: dict[str, tuple[int, bytes]] = {}
        self.pushed = 0
        self.most_chunks = self.most_sites = 0

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        for message in messages:
            self.pushed += 1
            raw = unpack(message.content)
            self.under_way[f"m{self.pushed}"] = message.metadata.dst_node_id - 100, raw
            chunks = [s for s, raw in self.under_way.values() if parse(raw).round == "chunk"]
            self.most_chunks = max(self.most_chunks, len(chunks))
            self.most_sites = max(self.most_sites, len(set(chunks)))
            yield f"m{self.pushed}"

    def pull_messages(self, ids: Iterable[str]) -> Iterable[Any]:
        for sent in ids:
            site, raw = self.under_way[sent]
            asked = parse(raw)
            if asked.round != "chunk":
                answer: bytes | Refused | None = self.world.sites[site].answer(raw)
            else:
                answer = self.world.sites[site].chunk(raw)
                if self.spoil is not None:
                    answer = self.spoil(site, asked.body["index"]) or answer
                if answer == b"silence":
                    continue
            del self.under_way[sent]
            content = pack(answer) if isinstance(answer, bytes) else pack_refusal(str(answer))
            yield SimpleNamespace(content=content, has_error=lambda: False)


def over(name: str) -> RoundOver:
    """A round that took two seconds."""
    return RoundOver(
        round=name, number=1, of=7, answered=4, bytes_out=1, bytes_in=1, lost=(), seconds=2.0
    )


def conduct(world: World, grid: Any, seconds: float = 20.0) -> list[RoundOpen]:
    shown: list[RoundOpen] = []
    done: list[RoundOver] = []
    while (round_ := world.run.round) is not None:
        progress = Progress(world.run, done, shown.append)
        Round(grid, world.run, {s: 100 + s for s in range(len(world.sites))}, seconds).conduct(
            progress
        )
        world.run.close()
        done.append(over(round_))
    return shown


@pytest.mark.usefixtures("no_task")
def test_chunks_come_from_many_sites_at_once_and_never_more_than_the_window(
    tmp_path: Path,
) -> None:
    world = chunked(tmp_path, sites=6)
    grid = SitesGrid(world)
    shown = conduct(world, grid)
    assert world.run.included == tuple(range(6))
    assert grid.most_chunks == grid.most_sites == WINDOW
    assert grid.pushed == 6 * len(world.run.rounds) + 6 * CHUNKS
    assert [each.number for each in shown] == [1, 2, 3, 4, 5, 6, 7]
    assert shown[4].expected_bytes == 6 * share_bytes(mixtures_of(world.plan))
    assert shown[5].seconds_left == pytest.approx(4.0, abs=0.5)  # two rounds of two seconds
    assert "round 6 of 7, agree: 1 sites in, 5 to come, 0 lost" in str(shown[5])


@pytest.mark.usefixtures("no_task")
@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (Refused("the disk is full"), "chunk 2 of its upload did not come: the disk is full"),
        (b"silence", "chunk 2 of its upload did not come: no answer within 1 s"),
        (b"rubbish", "chunk 2 of its upload has 7 bytes, not 4096"),
    ],
)
def test_a_node_that_fails_a_chunk_is_lost_with_its_reason(
    tmp_path: Path, sent: bytes | Refused, says: str
) -> None:
    world = chunked(tmp_path)
    grid = SitesGrid(world, lambda site, index: sent if (site, index) == (1, 2) else None)
    conduct(world, grid, seconds=1.0)
    assert world.run.lost == {1: says}
    assert world.run.included == (0, 2, 3)
    assert_sum(world.run.release_sums()[:1], (0, 2, 3))


@pytest.mark.usefixtures("no_task")
@pytest.mark.parametrize("hiccup", [Refused("the agent cannot be reached"), Refused("busy")])
def test_a_chunk_that_does_not_come_is_asked_for_again(
    tmp_path: Path, hiccup: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's hiccup costs no site its place, though none may be missing."""
    monkeypatch.setattr("capemix.engines.flower.rounds._PAUSE", 0.05)
    world = chunked(tmp_path, dropouts=0)
    left = {(1, 2): 2, (3, 0): 1}

    def spoil(site: int, index: int) -> Refused | None:
        if left.get((site, index), 0) == 0:
            return None
        left[site, index] -= 1
        return hiccup

    conduct(world, SitesGrid(world, spoil))
    assert not any(left.values())
    assert world.run.lost == {}
    assert_sum(world.run.release_sums()[:1], (0, 1, 2, 3))


def test_the_time_left_is_told_from_the_pace_of_the_bytes() -> None:
    run: Any = SimpleNamespace(
        uploaded=(0, 100),
        answered=(),
        waiting_for=(0,),
        lost={},
        wanted=lambda: iter([(0, 0)]),
        round="upload",
        rounds=("plan", "keys", "shares", "check", "upload", "agree", "unmask"),
    )
    shown: list[RoundOpen] = []
    done = [over(name) for name in run.rounds[:4]]
    progress = Progress(run, done, shown.append)
    progress()
    assert shown[-1].seconds_left is None
    run.uploaded = (25, 100)
    progress._pace_from, progress._next = time.monotonic() - 5.0, 0.0
    progress()
    assert shown[-1].seconds_left == pytest.approx(15.0 + 2 * 2.0, abs=0.5)
    assert str(shown[-1]).endswith("0.0 kB of 0.1 kB in, about 19 s left")


def identities() -> tuple[Roster, list[Ed25519PrivateKey]]:
    keys = [Ed25519PrivateKey.generate() for _ in range(5)]
    members = [Member(f"m{n}", public_bytes(key).hex()) for n, key in enumerate(keys)]
    return Roster(members[0], tuple(members[1:])), keys[1:]


@pytest.mark.usefixtures("no_task")
def test_nodes_are_matched_to_sites_and_strangers_left_out() -> None:
    roster, keys = identities()

    def hello(site: int, key: Ed25519PrivateKey, of: Roster = roster) -> Any:
        return lambda challenge: introduce(challenge, of, site, key)

    nodes: dict[int, Any] = {100 + s: hello(s, keys[s]) for s in (0, 1, 2)}
    other = Roster(roster.coordinator, roster.sites[::-1])
    strange = {
        50: hello(1, keys[3]),  # asks for another site's place, and is there first
        200: hello(3, keys[3], other),
        201: b"{}",
        202: hello(7, keys[3]),
        203: b"\xff",
        204: Refused("agent is down"),
    }
    outcome = Outcome()
    grid: Any = FakeGrid({**strange, **nodes})
    assert find_sites(grid, roster, 1.5, outcome, 3) == {0: 100, 1: 101, 2: 102}
    assert set(outcome.nodes_left_out) == set(map(str, strange))
    assert "did not sign" in outcome.nodes_left_out["50"]
    with pytest.raises(ProtocolError, match="2 sites came; 3 of 4"):
        find_sites(FakeGrid(dict(list(nodes.items())[:2])), roster, 0.5, Outcome(), 3)  # type: ignore[arg-type]
    outcome = Outcome()
    twice: Any = FakeGrid({**nodes, 300: hello(1, keys[1])})
    assert find_sites(twice, roster, 1.0, outcome, 3)[1] == 101
    assert "here already" in outcome.nodes_left_out["300"]


# -- files -----------------------------------------------------------------------------------------


def test_a_plan_file_comes_back_and_a_bad_one_is_refused(
    plan: Plan, rows: LabeledRows, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_text(plan))
    found = read_plan_file(path)
    assert found == plan
    assert (found.facts.features, found.facts.label) == (rows.feature_names, "risk")
    for text in ("", "[]", "{}", '{"plan": 1, "schema": {}}', '{"plan": {}, "schema": {}}'):
        path.write_text(text)
        with pytest.raises(InputError):
            read_plan_file(path)
    said = json.loads(plan_text(plan))
    for broken in ({}, {"features": 3, "label": "x"}, {"features": ["a"]}):
        path.write_text(json.dumps(said | {"facts": broken}))
        with pytest.raises(InputError):
            read_plan_file(path)
    for changed in (
        replace(plan, multiplier=None),
        make_plan(plan.facts, plan.method).calibrate(1.0),  # of one curator
    ):
        path.write_text(plan_text(changed))
        with pytest.raises(InputError, match="calibrated cape plan"):
            read_plan_file(path)


def test_init_writes_an_app_that_flower_can_read(plan: Plan, tmp_path: Path) -> None:
    import tomllib

    write_federation(tmp_path / "fed", plan)
    app = tomllib.loads((tmp_path / "fed" / "app" / "pyproject.toml").read_text())["tool"]["flwr"]
    settings = Settings.from_config(app["app"]["config"])
    assert settings.plan == tmp_path / "fed" / "plan.json"
    assert read_plan_file(settings.plan) == plan
    for component in app["app"]["components"].values():
        module, _, name = component.partition(":")
        source = tmp_path / "fed" / "app" / (module.replace(".", "/") + ".py")
        assert f"{name} = " in source.read_text()
    assert not list((tmp_path / "fed" / "app").rglob("*.json"))
    with pytest.raises(InputError, match="in use"):
        write_federation(tmp_path / "fed", plan)
    wrong: list[dict[str, Any]] = [{"out": "relative"}, {"round-seconds": 0.0}, {"chunk-bytes": 9}]
    wrong += [{"wait-seconds": "soon"}, {"chunk-bytes": 65536.0}, {"give-up": 1}]
    for change in wrong:
        with pytest.raises(InputError):
            Settings.from_config({**app["app"]["config"], **change})


def test_the_coordinators_commands(capemix: Capemix, tmp_path: Path) -> None:
    members = []
    for name in ("coordinator", "a", "b", "c"):
        members.append(capemix("keygen", "--name", name, "--out", tmp_path, "--json").json)
    sites = [word for m in members[1:] for word in ("--site", m["public"])]
    out = tmp_path / "roster.json"
    words = ("--coordinator", members[0]["public"], *sites, "--out", out)
    made = capemix("federate", "roster", *words, "--json").json
    assert capemix("federate", "digest", out, "--json").json == made
    assert capemix("federate", "digest", out).out.split()[1] == made["digest"][:4]
    again = capemix("federate", "roster", *words[:-2], *words[2:4], "--out", out)
    assert again.code == 2
    assert "twice" in again.err
    proposal = ("federate", "plan", "--epsilon", 3, "--sites", 3, "--label", "y", "--samples", 20)
    proposal += ("--classes", "0,1", "--class-sizes", 90, "--out", tmp_path / "plan.json")
    for features, width in (("a,b,c", 3), ("4x5", 20)):
        said = capemix(*proposal, "--features", features, "--json").json
        assert said["epsilon"] <= 3
        written = read_plan_file(tmp_path / "plan.json")
        assert said["digest"] == plan_digest(written)  # what the sites see of it
        assert plan_digest(written) in capemix(*proposal, "--features", features).out
        facts = written.facts
        assert facts.classes == (0, 1)
        assert facts.width == len(facts.features) == width
    assert facts.image_shape == (4, 5)
    folder = tmp_path / "fed"
    found = capemix("federate", "init", folder, "--plan", tmp_path / "plan.json", "--json").json
    assert all(Path(path).exists() for path in found["files"])
    for bad in (("--features", "a,a"), ("--features", "a,b", "--public-range", "low,high")):
        assert capemix(*proposal, *bad).code == 2


def test_what_a_federation_costs_can_be_measured(research: Capemix) -> None:
    words = ("federate", "measure", "--sites", 4, "--samples", 200, "--width", 9, "--in-process")
    found = research(*words, "--json").json
    assert list(found["seconds"]) == [*(each for each in ROUNDS if each != "open"), "sum"]
    assert found["bytes_a_site"]["upload"][1] >= 200 * 9 * 4
    assert found["peak_memory"]["everything"] > 1 << 20
    assert "| 4 | 200 |" in research(*words).out
    assert research(*words[:4], "--samples", 7).code == 2
