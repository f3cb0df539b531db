"""What stays up between runs: the coordinator's SuperLink and a site's SuperNode, each closed to
other accounts of its machine.

A SuperLink obeys whoever reaches it, so it runs in a network of its own. Two ways lead in: commands
of its own user, and a Unix socket for a reverse proxy that lets sites through. A SuperNode must
reach the world, so it stays on the machine's loopback: there it asks for a secret, over TLS, before
it gives a task away.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capemix import documents
from capemix.engines.flower.app_folder import PACKAGE
from capemix.engines.flower.credentials import (
    ServerFiles,
    node_key,
    server_certificate,
    write_private,
)
from capemix.engines.flower.enclosure import HOST, Enclosure, EnclosureError, joining
from capemix.engines.flower.files import (
    DIED,
    RUNNING,
    STOPPED,
    Outcome,
    ProcessMark,
    write_whole,
)
from capemix.engines.flower.processes import (
    Child,
    ChildError,
    Processes,
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
from capemix.engines.flower.relay import AGENT_SOCKET
from capemix.engines.flower.unfinished import Unfinished
from capemix.errors import InputError

_START_SECONDS: Final = 90.0
_COMMAND_SECONDS: Final = 120.0
_POLL: Final = 0.5
_DAYS: Final = 365
_REFUSED: Final = re.compile(
    r"Failed to initialize the connection to the SuperLink\.\n(.*?)\.?$", re.MULTILINE
)
"""What Flower says, before its exit code 305, of a node that is not registered: [code: 2004]."""


@dataclass(frozen=True)
class LinkFolder:
    """The coordinator's folder, of `capemix federate init`."""

    folder: Path

    @classmethod
    def of(cls, folder: Path) -> LinkFolder:
        """With its whole path, which Flower's files need."""
        return cls(folder.absolute())

    @property
    def tls(self) -> ServerFiles:
        tls = self.folder / "tls"
        return ServerFiles(tls / "ca.pem", tls / "server.pem", tls / "server.key")

    @property
    def home(self) -> Path:
        return self.folder / "flwr"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def _up(self) -> Path:
        return self.folder / "superlink.json"

    def serve(self, host: str, door: Path, group: str | None) -> None:
        """Run the SuperLink until this process is stopped, or one of its parts ends."""
        self._check()
        if not self.tls.authority.exists():
            self.tls.authority.parent.mkdir(mode=0o700, exist_ok=True)
            server_certificate(self.tls.authority.parent, host, _DAYS)
        self.logs.mkdir(mode=0o700, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(terminate_as_interrupt())
            try:
                network = stack.enter_context(Enclosure())
            except EnclosureError as error:
                raise InputError(
                    "this system",
                    "closes no network to other accounts, and a SuperLink obeys whoever reaches it",
                    value=error,
                    fix="run it as root, or allow user namespaces to this user",
                ) from None
            processes = stack.enter_context(Processes(self.logs, environment(self.home)))
            port = network.free_port()
            write_flower_config(self.home, port, self.tls)
            command = [*link_command(port, self.tls), "--enable-supernode-auth"]
            command += ["--database", self._database()]
            link = processes.start("superlink", network.joining(command))
            wait_until(
                lambda: not link.alive or network.listens(port),
                _START_SECONDS,
                "no SuperLink came up",
            )
            opener = self._open(processes, network, door, port, group)
            keeper = ProcessMark.of(network.keeper)
            write_whole(self._up, json.dumps(documents.as_json(keeper)) + "\n")
            stack.callback(self._up.unlink, missing_ok=True)
            print(f"the SuperLink is up; sites come in by {door}", flush=True)
            _stay(processes, [link, opener])

    def _open(
        self, processes: Processes, network: Enclosure, door: Path, port: int, group: str | None
    ) -> Child:
        if door.is_socket():  # of one that was killed: a living one holds the database
            door.unlink()
        opener = processes.start("door", network.door(door, port))
        wait_until(lambda: not opener.alive or door.is_socket(), _START_SECONDS, "no door came up")
        processes.check([opener])
        if group is not None:
            try:
                shutil.chown(door, group=group)
            except (LookupError, PermissionError):
                raise InputError(
                    "group",
                    "does not exist, or is none of this user's",
                    value=group,
                    fix="make it with groupadd, add the user with usermod -aG",
                ) from None
        return opener

    def _database(self) -> Path:
        """Made before Flower would, which lets every account read messages and tasks' tokens.
        What SQLite writes beside it is as closed as the file itself."""
        database = self.folder / "superlink.db"
        database.touch(mode=0o600)
        database.chmod(0o600)
        return database

    def _check(self) -> None:
        if not (self.folder / "app" / PACKAGE).is_dir():
            raise InputError(
                "DIR",
                "is not a federation's folder",
                value=self.folder,
                fix="make it with capemix federate init",
            )

    # -- commands to the SuperLink that runs -----------------------------------------------------

    def flower(self, name: str, *words: str | Path) -> str:
        """What a command of Flower's says, run where the SuperLink is."""
        self._check()
        try:
            keeper = documents.read(ProcessMark, self._up, name="superlink.json")
        except InputError:
            keeper = None
        if keeper is None or not keeper.lives:
            raise InputError(
                "the SuperLink",
                "does not run",
                value=self.folder,
                fix="start it with capemix federate serve, as this user",
            )
        self.logs.mkdir(mode=0o700, exist_ok=True)
        command = joining(keeper.pid, [tool("flwr"), *words])
        with Processes(self.logs, environment(self.home)) as processes:
            return processes.run(name, command, _COMMAND_SECONDS)

    def _asked(self, name: str, *words: str | Path) -> None:
        """Ask for something that Flower does or says why not."""
        said = self.flower(name, *words, "--format", "json")
        try:
            found = json.loads(said)
        except ValueError:
            found = {"error-message": said}
        if not found.get("success"):
            raise ChildError(
                f"Flower refused to {name}: {found.get('error-message', said).strip()}"
            )

    def register(self, public: Path) -> None:
        """Let the node with this public key in."""
        self._asked("register", "supernode", "register", public.absolute(), LINK)

    def start_run(self, out: Path, *, give_up: bool = False) -> None:
        """Begin a run, whose release will be in ``out``, or go on with the one that was begun
        there, or ``give_up`` that one; returns once its outcome is there. Sites would be charged
        for each of two runs, so one is refused while another is under way, or could be gone on
        with."""
        if give_up:
            self._check_stopped(out)
        else:
            self._check_idle(out)
        config = f"out={json.dumps(str(out))} give-up={json.dumps(give_up)}"
        before = _coordinator(out)
        self._asked("run", "run", self.folder / "app", LINK, "--run-config", config)
        wait_until(lambda: _coordinator(out) != before, _START_SECONDS, "the run does not begin")

    def _check_stopped(self, out: Path) -> None:
        found = Outcome.read(out)
        if found is not None and found.status == RUNNING and found.process is not None:
            raise InputError(
                "federation",
                "has this run under way",
                value=out.name,
                fix=f"stop its coordinator first, by `kill {found.process.pid}`",
            )

    def _check_idle(self, wanted: Path) -> None:
        for path in sorted(self.folder.glob("*.outcome.json")):
            out = path.with_name(path.name.removesuffix(".outcome.json"))
            found = Outcome.read(out)
            if found is not None and found.status == RUNNING:
                raise InputError(
                    "federation",
                    "has a run under way, and the sites would be charged for both",
                    value=out.name,
                    fix=f"wait for it; `capemix federate outcome {out}` says how far it is",
                )
            stopped = found is not None and found.status in (STOPPED, DIED)
            if stopped and out != wanted and Unfinished.begun(out):
                raise InputError(
                    "federation",
                    "has a release that was begun, and sites may have paid for it",
                    value=out.name,
                    fix=f"go on with it by --out {out}, or end it by --give-up beside that",
                )

    def next_release(self) -> Path:
        """The first of release, release-2, ... that no run has had."""
        number = 1
        while True:
            out = self.folder / ("release" if number == 1 else f"release-{number}")
            if not out.exists() and not Outcome.path(out).exists():
                return out
            number += 1


def _coordinator(out: Path) -> ProcessMark | None:
    """The process that makes the release at ``out``, or that tried to."""
    found = Outcome.read(out)
    return None if found is None else found.process


def run_node(
    superlink: str, authority: Path, key: Path, agent: Path, port: int, logs: Path | None = None
) -> None:
    """A site's SuperNode and what starts its relays, until stopped, or until one of the two ends.
    ``agent`` is the agent's socket."""
    with ExitStack() as stack:
        stack.enter_context(terminate_as_interrupt())
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="capemix-")))
        kept = work if logs is None else logs
        kept.mkdir(parents=True, exist_ok=True)
        processes = stack.enter_context(Processes(kept, environment(work / "flwr")))
        own = server_certificate(work, days=_DAYS)
        secret = work / "secret"
        write_private(secret, secrets.token_bytes(32))
        asks: list[str | Path] = ["--superexec-auth-secret-file", secret]
        command: list[str | Path] = [tool("flower-supernode"), "--superlink", superlink]
        command += ["--root-certificates", authority, "--auth-supernode-private-key", key]
        command += ["--host", HOST, "--port", str(port), "--isolation", "process", *asks]
        command += ["--ssl-certfile", own.certificate, "--ssl-keyfile", own.key]
        command += ["--ssl-ca-certfile", own.authority]
        command += ["--node-config", f"{AGENT_SOCKET}={json.dumps(str(agent))}"]
        node = processes.start("supernode", command)
        command = [tool("flower-superexec"), "--runtime-api-address", f"{HOST}:{port}", *asks]
        starter = processes.start("superexec", [*command, "--root-certificates", own.authority])
        print(f"the SuperNode starts, and asks {superlink} to let it in", flush=True)
        try:
            _stay(processes, [node, starter])
        except ChildError:
            refused = _REFUSED.search(node.tail(50))
            if refused is None:
                raise
            raise InputError(
                "the SuperLink",
                "does not let this SuperNode in",
                value=f"{superlink}: {refused[1]}",
                fix=f"have the coordinator register {key.name}.pub, and let this site's address"
                " through the proxy; then start this again",
            ) from None


def new_node_key(path: Path) -> Path:
    """A key for a SuperNode; returns the public half, for the coordinator."""
    return node_key(path.absolute().parent, path.name)[1]


def _stay(processes: Processes, children: list[Child]) -> None:
    with suppress(KeyboardInterrupt):
        while True:
            processes.check(children)
            time.sleep(_POLL)
