"""A whole federation on one machine, as it would be on many: agents, a SuperLink with TLS, and
SuperNodes that prove who they are, or nodes that Flower simulates. Everything listens on loopback,
and everything is stopped."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from capemix import documents
from capemix.data.rows import LabeledRows
from capemix.data.writing import write_table
from capemix.engines.flower.app_folder import (
    CHUNK_BYTES,
    run_config,
    write_app,
)
from capemix.engines.flower.credentials import ServerFiles, node_key, server_certificate
from capemix.engines.flower.enclosure import (
    HOST,
    Enclosure,
    EnclosureError,
    Network,
    SharedLoopback,
)
from capemix.engines.flower.files import DIED, ENDED, RUNNING, STOPPED, Outcome, plan_text
from capemix.engines.flower.processes import (
    Child,
    ChildError,
    Processes,
    peak_memory,
    terminate_as_interrupt,
    wait_until,
)
from capemix.engines.flower.programs import (
    LINK,
    environment,
    link_command,
    tool,
    write_flower_config,
)
from capemix.engines.flower.relay import AGENT_SOCKET, AGENT_SOCKETS
from capemix.errors import InputError
from capemix.identity import new_identity
from capemix.plan import Plan
from capemix.protocol.demands import Demands
from capemix.protocol.policy import MOST_SIZE, Policy
from capemix.protocol.roster import Member, Roster
from capemix.protocol.wire import ProtocolError
from capemix.release import check_output

_START_SECONDS: Final = 90.0
_COMMAND_SECONDS: Final = 60.0
_LIST_EVERY: Final = 20.0
_POLL: Final = 0.2
_LONGEST_SOCKET: Final = 107
_RAY_SOCKET: Final = "ray/session_2000-01-01_00-00-00_000000_0000000/sockets/plasma_store"
_CAPEMIX: Final = "from capemix.cli import main; main()"

Engine = Literal["deployment", "simulation"]
"""SuperNodes as they would run at the sites, or Flower's simulation of them, on Ray."""

Watch = Callable[[Outcome, Mapping[int, int]], None]
"""Called when there is news: the outcome so far, and the process id of each site's SuperNode."""


def run_on_loopback(
    plan: Plan,
    sites: Sequence[LabeledRows],
    out: Path,
    *,
    engine: Engine = "deployment",
    test_seed: int | None = None,
    round_seconds: float = 120.0,
    chunk_bytes: int = CHUNK_BYTES,
    logs: Path | None = None,
    watch: Watch | None = None,
    single_user: bool = False,
) -> Outcome:
    """Carry out a calibrated plan; the release is in ``out`` afterwards.

    `ProtocolError` if the run ended without a release, `ChildError` if a process failed. All that
    is needed lies in a private folder that is gone in the end; ``logs`` keeps what the processes
    said. ``single_user`` says that nobody else has an account on this machine: needed where the
    system cannot close loopback to others.
    """
    check_output(out)
    simulated = engine == "simulation"
    if simulated and find_spec("ray") is None:
        raise InputError("ray", "is not installed", fix="pip install 'capemix[simulation]'")
    if len(sites) != plan.federation.sites:
        raise InputError(
            "sites",
            f"must be {plan.federation.sites} for this plan",
            value=len(sites),
            fix="repartition",
        )
    with ExitStack() as stack:
        stack.enter_context(terminate_as_interrupt())
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="capemix-")))
        if len(str(work / (_RAY_SOCKET if simulated else "agent-000.socket"))) > _LONGEST_SOCKET:
            raise InputError(
                "TMPDIR", "is too long a path for a socket", value=work.parent, fix="shorten it"
            )
        kept = work / "logs" if logs is None else logs
        kept.mkdir(parents=True, exist_ok=True)
        network = _network(stack, single_user=single_user)
        trial = _Trial(plan, work, round_seconds, chunk_bytes, test_seed, simulated, network)
        trial.prepare(sites)
        processes = stack.enter_context(Processes(kept, _environment(work)))
        try:
            outcome = trial.run(processes, watch)
        except ProtocolError:
            if (ended := Outcome.read(trial.release)) is not None:
                ended.write(out)  # without a release, it is all there is to see
            raise
        _hand_over(trial.release, out)
        outcome.write(out)
    return outcome


@dataclass(frozen=True)
class _Trial:
    plan: Plan
    work: Path
    round_seconds: float
    chunk_bytes: int
    test_seed: int | None
    simulated: bool
    network: Network

    @property
    def release(self) -> Path:
        return self.work / "release"

    @property
    def _numbers(self) -> range:
        return range(self.plan.federation.sites)

    @property
    def _wait_seconds(self) -> float:
        """All nodes start on the same cores."""
        return _START_SECONDS + 10.0 * self.plan.federation.sites

    @property
    def _simulation(self) -> str:
        """A relay only waits for its agent, so there is one for each site, whatever the cores."""
        sites = self.plan.federation.sites
        return f"num-supernodes={sites} client-resources-num-cpus=1 init-args-num-cpus={sites}"

    def _inside(self, command: Sequence[str | Path]) -> list[str | Path]:
        return self.network.joining(command)

    def _socket(self, site: int) -> Path:
        return self.work / f"agent-{site}.socket"

    # -- files -----------------------------------------------------------------------------------

    def prepare(self, sites: Sequence[LabeledRows]) -> None:
        """Every site's rows and identity, the roster, a policy, the plan and the app."""
        keys = self.work / "keys"
        names = ["coordinator", *(f"site-{s}" for s in self._numbers)]
        first, *others = (
            documents.read(Member, new_identity(name, keys)[1], name="member") for name in names
        )
        for file, found in (
            ("roster.json", Roster(first, tuple(others))),
            ("policy.json", _permissive(self.plan)),
        ):
            (self.work / file).write_text(json.dumps(documents.as_json(found)))
        (self.work / "plan.json").write_text(plan_text(self.plan))
        for site, rows in enumerate(sites):
            _write_rows(rows, self._data(site, rows.image_shape is not None), self._person)
        config = run_config(
            plan=self.work / "plan.json",
            roster=self.work / "roster.json",
            identity=keys / "coordinator.key",
            out=self.release,
            wait_seconds=self._wait_seconds,
            round_seconds=self.round_seconds,
            chunk_bytes=self.chunk_bytes,
        )
        if self.simulated:
            config[AGENT_SOCKETS] = str(self.work / "agent-{}.socket")
        write_app(self.work / "app", config)

    @property
    def _person(self) -> str | None:
        """What the column of persons is called in the sites' files, if there is one."""
        facts, name = self.plan.facts, "person"
        if facts.rows_per_person is None:
            return None
        while name in (*facts.features, facts.label):
            name += "_"
        return name

    def _data(self, site: int, images: bool) -> Path:
        return self.work / f"rows-{site}{'.npz' if images else '.parquet'}"

    # -- processes -------------------------------------------------------------------------------

    def run(self, processes: Processes, watch: Watch | None) -> Outcome:
        port = self.network.free_port()
        server = server_certificate(self.work)
        write_flower_config(self.work / "flwr", port, server)
        link = self._start_link(processes, port, server)
        agents = [self._start_agent(processes, site) for site in self._numbers]
        wait_until(
            lambda: not link.alive or self.network.listens(port),
            _START_SECONDS,
            "no SuperLink came up",
        )
        processes.check([link])
        numbers = () if self.simulated else self._numbers
        nodes = {s: self._start_node(processes, s, port, server) for s in numbers}
        for site, agent in enumerate(agents):
            socket_ = self._socket(site)
            wait_until(
                lambda agent=agent, path=socket_: not agent.alive or path.exists(),  # type: ignore[misc]
                _START_SECONDS,
                f"the agent of site {site} does not listen",
            )
        processes.check(agents)
        submit = [tool("flwr"), "run", self.work / "app", LINK, "--format", "json"]
        if self.simulated:
            submit += ["--federation-config", self._simulation]
        started = json.loads(processes.run("flwr-run", self._inside(submit), _COMMAND_SECONDS))
        if not started.get("success"):
            raise ChildError("Flower did not start the run")
        outcome = self._follow(processes, link, nodes, str(started["run-id"]), watch)
        outcome.peak_memory["superlink"] = peak_memory(link.pid)
        outcome.peak_memory["agent"] = max(peak_memory(agent.pid) for agent in agents)
        return outcome

    def _start_link(self, processes: Processes, port: int, server: ServerFiles) -> Child:
        command = link_command(port, server)
        command += ["--simulation" if self.simulated else "--enable-supernode-auth"]
        return processes.start("superlink", self._inside(command))

    def _start_agent(self, processes: Processes, site: int) -> Child:
        images = self._data(site, True).exists()
        command: list[str | Path] = [sys.executable, "-c", _CAPEMIX, "site", "serve"]
        command += ["--number", str(site), "--identity", self.work / "keys" / f"site-{site}.key"]
        command += ["--roster", self.work / "roster.json", "--policy", self.work / "policy.json"]
        command += ["--data", self._data(site, images)]
        command += [] if self.plan.facts.label is None else ["--label", self.plan.facts.label]
        command += [] if self._person is None else ["--person", self._person]
        command += ["--lineage", "trial", "--ledger", self.work / f"site-{site}.db"]
        command += ["--new-lineage"]
        command += ["--socket", self._socket(site)]
        if self.plan.facts.table is not None:
            command += ["--plan", self.work / "plan.json"]
        if self.test_seed is not None:
            command += ["--test-seed", str(self.test_seed)]
        return processes.start(f"agent-{site}", command)

    def _start_node(self, processes: Processes, site: int, port: int, server: ServerFiles) -> Child:
        private, public = node_key(self.work, f"node-{site}")
        processes.run(
            f"register-{site}",
            self._inside([tool("flwr"), "supernode", "register", public, LINK]),
            _COMMAND_SECONDS,
        )
        command = [tool("flower-supernode"), "--superlink", f"{HOST}:{port}"]
        command += ["--root-certificates", server.authority]
        command += ["--auth-supernode-private-key", private]
        command += ["--host", HOST, "--port", str(self.network.free_port())]
        command += ["--node-config", f"{AGENT_SOCKET}={json.dumps(str(self._socket(site)))}"]
        return processes.start(f"supernode-{site}", self._inside(command))

    def _follow(
        self,
        processes: Processes,
        link: Child,
        nodes: Mapping[int, Child],
        run_id: str,
        watch: Watch | None,
    ) -> Outcome:
        """Until the run is over: by the coordinator's own word, and by Flower's."""
        pids = {site: node.pid for site, node in nodes.items()}
        # How long everything goes on depends on the uploads; how long it may be quiet does not.
        quiet = self._wait_seconds + 2 * (self.round_seconds + 30.0)
        end = time.monotonic() + quiet
        next_look = time.monotonic() + _LIST_EVERY
        seen: Outcome | None = None
        while True:
            found = Outcome.read(self.release)
            if found is not None and found != seen:
                seen = found
                end = time.monotonic() + quiet
                if watch is not None:
                    watch(found, pids)
            if found is not None and found.status != RUNNING:
                break
            processes.check([link])
            if time.monotonic() > end:
                raise ChildError(f"the run has been silent for {quiet:.0f} s")
            if time.monotonic() > next_look:
                status = self._status(processes, run_id)
                if status.startswith("finished"):
                    found = Outcome.read(self.release)
                    break
                next_look = time.monotonic() + _LIST_EVERY
            time.sleep(_POLL)
        if found is None or found.status in (RUNNING, DIED):
            command = [tool("flwr"), "log", run_id, LINK, "--show"]
            said = processes.run("flwr-log", self._inside(command), _COMMAND_SECONDS).splitlines()
            raise ChildError("the run broke off (--logs keeps it all):\n" + "\n".join(said[-15:]))
        if found.status in (ENDED, STOPPED):
            lost = "".join(f"\n  site {site}: {why}" for site, why in found.lost.items())
            raise ProtocolError(f"the run ended and nothing was released: {found.reason}{lost}")
        return found

    def _status(self, processes: Processes, run_id: str) -> str:
        command = [tool("flwr"), "list", LINK, "--run-id", run_id, "--format", "json"]
        found = json.loads(processes.run("flwr-list", self._inside(command), _COMMAND_SECONDS))
        return str(found["runs"][0]["status"])


# -- small things ----------------------------------------------------------------------------------


def _network(stack: ExitStack, *, single_user: bool) -> Network:
    """Closed to other accounts, or the machine's own where there are none."""
    try:
        return stack.enter_context(Enclosure())
    except EnclosureError as error:
        if single_user:
            return SharedLoopback()
        raise InputError(
            "single_user",
            "must be said here: Flower's programs obey whoever reaches loopback, and this system"
            " does not close it to other accounts",
            value=error,
            fix="say so if nobody else has an account on this machine, or run it on another",
        ) from None


def _permissive(plan: Plan) -> Policy:
    """A policy for a trial: just what this plan asks for, on a machine that is the user's own."""
    guarantee = plan.guarantee()
    if guarantee.epsilon is None or plan.epsilon is None:
        raise InputError("epsilon", "must be finite", fix="a site agrees to no less")
    allowed = Policy(
        max_epsilon=plan.epsilon,
        max_delta=guarantee.delta,
        total_epsilon=plan.epsilon,
        least_sites=1,
        least_colluding=0,
        real_arithmetic=True,
        methods=(plan.method.kind,),
    )
    sizes: dict[str, Any] = {f"largest_{each.name}": MOST_SIZE for each in fields(Demands)}
    return replace(allowed, **sizes)


def _write_rows(rows: LabeledRows, path: Path, person: str | None = None) -> None:
    persons = {} if person is None else {person: rows.persons}
    labels = {str(rows.label_name): np.array(rows.classes)[rows.labels]}
    if rows.image_shape is not None:
        images = rows.features.reshape(-1, *rows.image_shape)
        arrays: dict[str, Any] = {"X": images, **labels, **persons}
        np.savez(path, **arrays)
        return
    if rows.table is not None:
        write_table(rows, path, person)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = dict(zip(rows.feature_names, rows.features.T, strict=True))
    pq.write_table(pa.table({**columns, **labels, **persons}), path)


def _hand_over(made: Path, out: Path) -> None:
    """Copy the release to where it was asked for: whole, by one rename."""
    out = check_output(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        shutil.copytree(made, partial, dirs_exist_ok=True)
        if out.exists():
            out.rmdir()
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _environment(work: Path) -> dict[str, str]:
    return {**environment(work / "flwr"), "TMPDIR": str(work), **_ray(work)}


def _ray(work: Path) -> dict[str, str]:
    """A Ray of this trial's own: on loopback, closed to other users, and it reports to nobody."""
    return {
        "RAY_ADDRESS": "",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Ray's only switch for loopback; its name says where it is the default.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_TMPDIR": str(work),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
