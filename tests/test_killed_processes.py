"""A federation as the guide sets it up, of real processes, which are killed as by the system."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from capemix import documents
from capemix.data import LabeledRows, partition
from capemix.engines.flower.app_folder import write_federation
from capemix.engines.flower.enclosure import SharedLoopback
from capemix.engines.flower.files import DIED, RELEASED, RUNNING, STOPPED, Outcome
from capemix.engines.flower.local import _permissive, _write_rows
from capemix.engines.flower.processes import Child, Processes
from capemix.engines.local import LocalEngine
from capemix.facts import Facts
from capemix.identity import new_identity
from capemix.ledger import Ledger
from capemix.methods.mixing import Mixing
from capemix.plan import Plan, make_plan
from capemix.protocol.roster import Member, Roster
from capemix.randomness.source import SeededSource
from capemix.run import run as carry_out
from capemix.sums.steps import PublicMap
from standing import a_proxy_for

SITES, LIAR, SEED = 4, 3, 7
PATIENCE_S = 300.0
CAPEMIX = "from capemix.cli import main; main()"
LYING = """
from capemix.protocol.site import Site
honest = Site._unmask
def lying(self, body):
    said = honest(self, body)
    said["own"]["1"] = "00" * 32
    return said
Site._unmask = lying
"""


def rows() -> LabeledRows:
    rng = np.random.default_rng(0)
    return LabeledRows(
        features=rng.normal(size=(160, 4)),
        labels=(np.arange(160) % 2).astype(np.int64),
        classes=("no", "yes"),
        feature_names=tuple("abcd"),
        label_name="ill",
    )


def parts() -> list[LabeledRows]:
    return partition(rows(), SITES, "stratified", seed=SEED)


def a_plan() -> Plan:
    return make_plan(
        Facts.of(rows(), class_sizes=(80, 80), normalise=PublicMap()),
        Mixing(samples=60, mixture=8, clip=1.0),
        scheme="cape",
        sites=SITES,
        colluding=1,
        dropouts=1,
    ).calibrate(5.0)


def until(done: Callable[[], object], *children: Child) -> None:
    end = time.monotonic() + PATIENCE_S
    while not done():
        for child in children:
            assert child.alive, child.tail()
        assert time.monotonic() < end
        time.sleep(0.05)


def pid_of(*words: str) -> int:
    """The one process whose command line has all of these."""
    (found,) = (
        int(entry.name)
        for entry in Path("/proc").glob("[0-9]*")
        if all(word in command_of(entry) for word in words)
    )
    return found


def command_of(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A socket's path is short, and a test's folder is not."""
    made = Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def processes(folder: Path) -> Iterator[Processes]:
    (folder / "logs").mkdir()
    environment = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder)}
    with Processes(folder / "logs", environment) as started:
        yield started


class Standing:
    """The coordinator's and the sites' commands, each with the options of the guide."""

    def __init__(self, folder: Path, processes: Processes, plan: Plan) -> None:
        self.folder, self.processes = folder, processes
        self.federation, self.door = folder / "federation", folder / "door"
        self.release = self.federation / "release"
        names = ["coordinator", *(f"site-{site}" for site in range(SITES))]
        for name in names:
            new_identity(name, folder / "keys")
        members = [
            documents.read(Member, folder / "keys" / f"{name}.json", name="member")
            for name in names
        ]
        key = folder / "keys" / "coordinator.key"
        write_federation(self.federation, plan, Roster(members[0], tuple(members[1:])), key)
        (folder / "policy.json").write_text(json.dumps(documents.as_json(_permissive(plan))))
        for site, part in enumerate(parts()):
            _write_rows(part, folder / f"rows-{site}.parquet")
        self.ran = 0

    def start(self, name: str, *words: object, code: str = CAPEMIX) -> Child:
        return self.processes.start(name, [sys.executable, "-c", code, *map(str, words)])

    def agent(self, site: int, *more: object, name: str = "agent", code: str = CAPEMIX) -> Child:
        at = self.folder
        words = ["site", "serve", "--number", site, "--identity", at / "keys" / f"site-{site}.key"]
        words += ["--roster", self.federation / "roster.json", "--policy", at / "policy.json"]
        words += ["--data", at / f"rows-{site}.parquet", "--label", "ill", "--lineage", "rows"]
        words += ["--ledger", at / f"{site}.db", "--test-seed", SEED, *more]
        return self.start(f"{name}-{site}", *words, code=code)

    def socket(self, site: int) -> Path:
        return self.folder / f"agent-{site}"

    def serve(self) -> Child:
        up = self.federation / "superlink.json"
        up.unlink(missing_ok=True)
        words = ("federate", "serve", self.federation, "--host", "localhost", "--door", self.door)
        link = self.start("link", *words)
        until(up.exists, link)
        return link

    def node(self, site: int, port: int) -> tuple[object, ...]:
        key = self.folder / f"node-{site}"
        words = ("site", "node", "--superlink", f"localhost:{port}", "--key", key)
        words += ("--authority", self.federation / "tls" / "ca.pem")
        words += ("--port", SharedLoopback().free_port(), "--socket", self.socket(site))
        return (*words, "--logs", self.folder / f"logs-{site}")

    def run(self, *more: object) -> Child:
        """`federate run`, of a release that is begun or gone on with."""
        self.ran += 1
        words = ("federate", "run", self.federation, "--out", self.release, *more)
        return self.start(f"run-{self.ran}", *words)

    def outcome_after(self, round_: str) -> Outcome:
        """Once that round is over."""
        found: list[Outcome] = []

        def over() -> bool:
            outcome = Outcome.read(self.release)
            if outcome is not None and any(done.round == round_ for done in outcome.rounds):
                found.append(outcome)
            return bool(found)

        until(over)
        return found[0]

    def run_until_killed_after(
        self, round_: str, number: int = signal.SIGKILL, status: str = DIED
    ) -> str:
        """The coordinator is, once that round is over. What `federate run` says to it."""
        running = self.run()
        outcome = self.outcome_after(round_)
        assert outcome.status == RUNNING
        assert outcome.process is not None
        os.kill(outcome.process.pid, number)
        said = ended(running)
        found = Outcome.read(self.release)
        assert found is not None
        assert found.status == status
        assert not self.release.exists()
        return said


def kinds(folder: Path) -> list[list[str]]:
    """Of each site's ledger the lines."""
    ledgers = [Ledger.open(folder / f"{site}.db") for site in range(SITES)]
    return [[line.entry["kind"] for line in ledger.lines()] for ledger in ledgers]


def ended(child: Child) -> str:
    until(lambda: not child.alive)
    return child.tail(30)


@pytest.mark.long
def test_a_liar_a_dead_coordinator_and_a_dead_superlink_change_nothing_of_the_release(
    folder: Path, processes: Processes
) -> None:
    """One of four sites reveals a wrong share. The coordinator is killed between upload and unmask,
    and the SuperLink after it. Each time the same run is gone on with, and in the end the release
    has the bytes that one process makes.

    Every limit is one release. That was paid for another one before, whose coordinator was told to
    stop, and said how to go on: it was given up, and refunded."""
    plan = a_plan()
    standing = Standing(folder, processes, plan)
    with a_proxy_for(standing.door, standing.federation / "tls") as port:
        link = standing.serve()
        agents = []
        for site in range(SITES):
            words = ("--socket", standing.socket(site), "--new-lineage")
            code = LYING + CAPEMIX if site == LIAR else CAPEMIX
            agents.append(standing.agent(site, *words, code=code))
        nodes = [standing.node(site, port) for site in range(SITES)]
        for made in [standing.start(f"key-{s}", *words) for s, words in enumerate(nodes)]:
            ended(made)
        public = [folder / f"node-{site}.pub" for site in range(SITES)]
        ended(standing.start("register", "federate", "register", standing.federation, *public))
        for site, words in enumerate(nodes):
            standing.start(f"node-{site}", *words)
        for site, agent in enumerate(agents):
            until(standing.socket(site).exists, agent)

        said = standing.run_until_killed_after("upload", signal.SIGTERM, STOPPED)
        again = f"capemix federate run {standing.federation} --out {standing.release}"
        assert f"told to stop\ngo on with it: {again}\n" in said
        assert "refunded: 0, 1, 2, 3" in ended(standing.run("--give-up"))
        assert kinds(folder) == [["limit", "charge", "refund"]] * SITES
        assert not list(standing.federation.glob(".release*"))

        standing.run_until_killed_after("upload")
        second = standing.run()
        standing.outcome_after("agree")
        os.kill(pid_of("flower-superlink", str(standing.federation / "superlink.db")), 9)
        assert "superlink ended" in ended(link)
        ended(second)
        assert not standing.release.exists()

        standing.serve()
        said = ended(standing.run())
    found = Outcome.read(standing.release)
    assert found is not None
    assert found.status == RELEASED, said
    assert found.included == [0, 1, 2, 3]
    assert found.lost == {}
    assert found.blamed == {str(LIAR): "it revealed a wrong share of the self mask of site 1"}
    assert [done.round for done in found.rounds] == ["unmask"]
    carry_out(plan, LocalEngine(parts(), SeededSource(SEED))).save(folder / "local")
    ours, theirs = (at / "synthetic.parquet" for at in (standing.release, folder / "local"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert kinds(folder) == [["limit", "charge", "refund", "charge"]] * SITES


def test_a_second_agent_of_an_identity_refuses_to_start(folder: Path, processes: Processes) -> None:
    """The one that runs was killed before, and does not stand in its own way."""
    standing = Standing(folder, processes, a_plan())
    killed = standing.agent(0, "--socket", standing.socket(0), "--new-lineage", name="killed")
    until(standing.socket(0).exists, killed)
    os.kill(killed.pid, signal.SIGKILL)
    ended(killed)
    first = standing.agent(0, "--socket", standing.socket(0))
    until(lambda: "listens" in first.tail(), first)
    second = standing.agent(0, "--socket", folder / "another", name="twin")
    assert "has an agent already" in ended(second)
    assert not (folder / "another").exists()
    assert first.alive
