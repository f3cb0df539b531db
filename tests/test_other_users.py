"""Another account on the machine: it can start no code as whoever runs a federation, and reads no
row. Most of these tests need root, to be several users."""

from __future__ import annotations

import encodings.idna  # noqa: F401  # which a stranger could not load later
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from capemix.engines.flower import local
from capemix.engines.flower import standing as standing_commands
from capemix.engines.flower.app_folder import write_federation
from capemix.engines.flower.enclosure import Enclosure, EnclosureError, SharedLoopback, listening
from capemix.errors import InputError
from standing import a_proxy_for
from test_agent import a_plan

ROOT, OWNER, STRANGER = 0, 54321, 54322
PRIVATE_OF_A_PROCESS = ("environ", "mem", "fd", "root")

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can be several users: run this as root to see it"
)


def knock(ports: Iterable[int]) -> list[str]:
    """The ports of loopback at which somebody opens."""
    opened = []
    for port in ports:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            opened.append(str(port))
    return opened


def pry(folder: Path, pids: Iterable[int]) -> list[str]:
    """What can be read of a folder and of processes, and which of their networks can be entered."""
    found = []
    looked_at = [folder, *(f"/proc/{pid}/{name}" for pid in pids for name in PRIVATE_OF_A_PROCESS)]
    with suppress(OSError):
        looked_at += [*folder.glob("*"), *folder.glob("keys/*")]
    for path in map(Path, looked_at):
        with suppress(OSError):
            _ = list(path.iterdir()) if path.is_dir() else path.open("rb").read(1)
            found.append(f"read {path}")
    for pid in pids:
        for kind in ("user", "net"):
            with suppress(OSError):
                os.close(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY))
                found.append(f"may enter {kind} of {pid}")
    return found


def as_user(user: int, look: Callable[..., list[str]], *words: object) -> list[str]:
    """What this user finds. By a fork alone: other users may not be let to this interpreter."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            try:
                found = look(*words)
            except Exception as error:  # a surprise is a finding too
                found = [repr(error)]
            os.write(writing, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        found = said.read()
    os.waitpid(child, 0)
    return [str(each) for each in json.loads(found)]


def processes_of(folder: Path) -> list[int]:
    """Those whose variables name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder).encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def may_run_python(user: int) -> bool:
    def look() -> list[str]:
        return [sys.executable] if os.access(sys.executable, os.X_OK) else []

    return bool(as_user(user, look))


@pytest.fixture(params=[ROOT, OWNER], ids=["root", "another user"])
def owner(request: pytest.FixtureRequest) -> int:
    """Who runs the trial: root closes a network in one way, and others in another."""
    user = int(request.param)
    if not may_run_python(user):
        pytest.skip(f"other users are not let to {sys.executable}: a trial of theirs is not tried")
    return user


@pytest.fixture
def owners_folder(owner: int) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp"))
    os.chown(folder, owner, owner)
    folder.chmod(0o755)  # what is in it must be closed by itself
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_an_enclosed_loopback_is_another_one() -> None:
    """A process in it listens; its own user reaches it there, and nobody does outside."""
    serve = "import socket; s = socket.create_server(('127.0.0.1', 8765)); s.accept(); s.accept()"
    call = "import socket; socket.create_connection(('127.0.0.1', 8765), timeout=20)"
    try:
        with Enclosure() as enclosure:
            assert not enclosure.listens(8765)
            server = subprocess.Popen(enclosure.joining([sys.executable, "-c", serve]))
            end = time.monotonic() + 60
            while not enclosure.listens(8765):
                assert time.monotonic() < end
                assert server.poll() is None
                time.sleep(0.05)
            inside = subprocess.run(enclosure.joining([sys.executable, "-c", call]), check=False)
            outside = knock([8765])
            server.kill()
            server.wait()
    except EnclosureError as error:
        pytest.skip(f"this system makes no network of a process's own: {error}")
    assert inside.returncode == 0
    assert outside == []


@needs_root
def test_a_stranger_reaches_nothing_of_a_trial(owner: int, owners_folder: Path) -> None:
    rows = owners_folder / "rows.csv"
    rows.write_text("a,b,y\n" + "0.1,0.2,yes\n0.3,0.4,no\n" * 40)
    command = [sys.executable, "-c", "from capemix.cli import main; main()", "federate", "local"]
    command += [str(rows), "--label", "y", "--classes", "no,yes", "--public-range", "0,1"]
    command += ["--class-sizes", "40,40", "--method", "mixing", "--samples", "100"]
    command += ["--sites", "2", "--no-ledger", "--out", str(owners_folder / "out")]
    trial = subprocess.Popen(
        command,
        user=owner,
        group=owner,
        extra_groups=[],
        cwd="/",
        env={**os.environ, "HOME": str(owners_folder), "TMPDIR": str(owners_folder)},
        start_new_session=True,
    )
    try:
        outer = Path("/proc/self/ns/net").readlink()
        ports: set[int] = set()
        end = time.monotonic() + 300
        while len(ports) < 3:  # a SuperLink and two SuperNodes
            assert trial.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)
            for pid in processes_of(owners_folder):
                with suppress(OSError):
                    if Path(f"/proc/{pid}/ns/net").readlink() != outer:
                        ports |= listening(pid)
        (work,) = owners_folder.glob("capemix-*")
        pids = processes_of(owners_folder)
        assert as_user(STRANGER, knock, sorted(ports - listening(os.getpid()))) == []
        assert as_user(STRANGER, pry, work, pids) == []
        # The same eyes see what is open to them, and what is their own.
        with socket.create_server(("127.0.0.1", 0)) as open_one:
            port = open_one.getsockname()[1]
            assert as_user(STRANGER, knock, [port]) == [str(port)]
        seen = as_user(owner, pry, work, pids)
        assert {f"read {work / 'rows-0.parquet'}", f"may enter net of {trial.pid}"} <= set(seen)
    finally:
        trial.send_signal(signal.SIGINT)
        trial.wait(60)
    assert processes_of(owners_folder) == []


def test_where_loopback_stays_open_to_others_nothing_is_started_unless_someone_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_to_all() -> Enclosure:
        raise EnclosureError("no user namespaces")

    for module in (local, standing_commands):
        monkeypatch.setattr(module, "Enclosure", open_to_all)
    with ExitStack() as stack:
        with pytest.raises(InputError, match=r"single_user must be said.*no user namespaces"):
            local._network(stack, single_user=False)
        assert isinstance(local._network(stack, single_user=True), SharedLoopback)
    write_federation(tmp_path / "federation", a_plan())
    link = standing_commands.LinkFolder.of(tmp_path / "federation")
    with pytest.raises(InputError, match="closes no network to other accounts"):
        link.serve("localhost", tmp_path / "door", None)
    assert not (tmp_path / "door").exists()


# -- the set-up of docs/guide/federation.md -------------------------------------------------------


def claim(port: int, authority: Path) -> list[str]:
    """What a SuperNode says to somebody without its secret who asks for a task, and for the input
    of one."""
    trusted = ssl.create_default_context(cafile=str(authority))
    heard = []
    for path in ("acquire-task", "pull-task-input", "pull-messages"):
        asked = (
            f"POST /v1/runtime/{path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            "content-type: application/protobuf\r\ncontent-length: 0\r\n\r\n"
        )
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
            trusted.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
        ):
            stream.sendall(asked.encode())
            heard.append(f"{path} {stream.recv(4096).split()[1].decode()}")
    return heard


@pytest.fixture
def proxy(owners_folder: Path) -> Iterator[int]:
    with a_proxy_for(owners_folder / "door", owners_folder / "federation" / "tls") as port:
        yield port


@pytest.fixture
def started(owners_folder: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts commands of capemix's as a user; they are stopped in the end, the last one first."""
    running: list[subprocess.Popen[bytes]] = []

    def start(user: int, *words: object) -> subprocess.Popen[bytes]:
        code = "from capemix.cli import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, words)],
            user=user,
            group=user,
            extra_groups=[],
            cwd="/",
            env={**os.environ, "HOME": str(owners_folder), "TMPDIR": str(owners_folder)},
        )
        running.append(process)
        return process

    yield start
    for process in reversed(running):
        process.send_signal(signal.SIGINT)
        process.wait(60)


def until(done: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 240
    while not done():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.2)


@needs_root
def test_a_stranger_starts_nothing_at_a_superlink_and_claims_nothing_at_a_site(
    owner: int,
    owners_folder: Path,
    proxy: int,
    started: Callable[..., subprocess.Popen[bytes]],
) -> None:
    folder, door = owners_folder / "federation", owners_folder / "door"
    write_federation(folder, a_plan())
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, owner, owner)
    link = started(owner, "federate", "serve", folder, "--host", "localhost", "--door", door)
    until((folder / "superlink.json").exists, link)

    node_port = SharedLoopback().free_port()
    node_words = ("--superlink", f"localhost:{proxy}", "--port", node_port)
    node_words += ("--authority", folder / "tls" / "ca.pem", "--key", owners_folder / "node")
    node_words += ("--socket", owners_folder / "agent.socket", "--logs", owners_folder / "logs")
    assert started(owner, "site", "node", *node_words).wait(120) == 0
    public = owners_folder / "node.pub"
    assert started(owner, "federate", "register", folder, public).wait(120) == 0
    node = started(owner, "site", "node", *node_words)
    until(lambda: node_port in listening(os.getpid()), node)

    pids = processes_of(owners_folder)
    outer = Path("/proc/self/ns/net").readlink()
    inner = {pid: listening(pid) for pid in pids if Path(f"/proc/{pid}/ns/net").readlink() != outer}
    ports = set().union(*inner.values())
    assert ports
    assert as_user(STRANGER, knock, sorted(ports - listening(os.getpid()))) == []
    assert as_user(STRANGER, come_in, door) == []
    assert as_user(owner, come_in, door) == ["came in"]
    assert as_user(STRANGER, pry, folder / "tls", inner) == []
    for state in folder.glob("superlink.db*"):  # messages, and tokens of tasks
        assert as_user(STRANGER, pry, state, ()) == []
    (own,) = owners_folder.glob("capemix-*/ca.pem")
    authority = owners_folder / "nodes-ca.pem"
    authority.write_bytes(own.read_bytes())  # which is no secret
    refused = ["acquire-task 401", "pull-task-input 401", "pull-messages 401"]
    assert as_user(STRANGER, claim, node_port, authority) == refused


def come_in(door: Path) -> list[str]:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as stream:
        stream.connect(str(door))
        return ["came in"]
    return []
