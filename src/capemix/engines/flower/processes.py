"""Children that are sure to end: each in a process group of its own, stopped whatever happens."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

from capemix.errors import CapemixError

_TERMINATE_SECONDS: Final = 8.0
_STRAGGLE_SECONDS: Final = 3.0
_POLL: Final = 0.1
_MARK: Final = "CAPEMIX_TRIAL"


class ChildError(CapemixError):
    """A process that was started for a federation ended, or did not come up."""


@dataclass(frozen=True)
class Child:
    """A process that was started; its messages are in ``log``, its output beside it."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        # It is not reaped here, so that its number (and its group's) stays its own.
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    @property
    def output(self) -> str:
        return self.log.with_suffix(".out").read_text(errors="replace")

    def tail(self, lines: int = 15) -> str:
        """The end of what it said."""
        said = self.output + self.log.read_text(errors="replace")
        return "\n".join(said.splitlines()[-lines:])


class Processes:
    """Everything that was started, until the end of a ``with``."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self._mark = secrets.token_hex(16)
        self._environment = {**environment, _MARK: self._mark}
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _undisturbed():
            self.stop()

    def start(self, name: str, command: Sequence[str | Path]) -> Child:
        log = self._logs / f"{name}.log"
        with log.with_suffix(".out").open("wb") as output, log.open("wb") as errors:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=self._environment,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def run(self, name: str, command: Sequence[str | Path], seconds: float) -> str:
        """A command that ends by itself: its standard output, or `ChildError`."""
        child = self.start(name, command)
        wait_until(lambda: not child.alive, seconds, f"{name} takes too long")
        self._children.remove(child)
        if self._stop(child) != 0:
            raise ChildError(f"{name} failed:\n{child.tail()}")
        return child.output

    def check(self, children: Sequence[Child]) -> None:
        for child in children:
            if not child.alive:
                raise ChildError(f"{child.name} ended:\n{child.tail()}")

    def stop(self) -> None:
        """Ask every group to end, the last one started first; insist after a while."""
        children = self._children[::-1]
        groups = _groups(_marked(self._mark))
        for child in children:
            _signal(child.pid, signal.SIGTERM)
        end = time.monotonic() + _TERMINATE_SECONDS
        while time.monotonic() < end and any(child.alive for child in children):
            time.sleep(_POLL)
        for child in children:
            self._stop(child)
            self._children.remove(child)
        self._stop_stragglers(groups)

    def _stop_stragglers(self, groups: set[int]) -> None:
        """Grandchildren that made groups of their own: they have our mark, or (some write over it)
        are in a group with those that had, and they end too."""
        end = time.monotonic() + _STRAGGLE_SECONDS
        while (
            groups := {g for g in groups | _groups(_marked(self._mark)) if _signal(g, 0)}
        ) and time.monotonic() < end:
            time.sleep(_POLL)
        for group in groups:
            _signal(group, signal.SIGKILL)

    @staticmethod
    def _stop(child: Child) -> int:
        """Nothing of the group is left after this."""
        _signal(child.pid, signal.SIGKILL)
        return child.process.wait()


def peak_memory(pid: int | None = None) -> int:
    """The most memory that a process has had so far, in bytes; 0 where /proc does not tell.

    Not getrusage: there a child starts with its parent's figure.
    """
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{'self' if pid is None else pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    return 0


def _marked(mark: str) -> list[int]:
    """The processes of this user with our mark in their environment, where /proc tells."""
    wanted, found = f"{_MARK}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def _groups(pids: list[int]) -> set[int]:
    found = set()
    for pid in pids:
        with suppress(ProcessLookupError):
            found.add(os.getpgid(pid))
    return found


def _signal(group: int, number: int) -> bool:
    """Whether there was anybody to hear it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def wait_until(done: Callable[[], bool], seconds: float, complaint: str) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise ChildError(complaint)
        time.sleep(_POLL)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not stop the stopping."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """A polite kill ends the same way as Ctrl-C: everything is stopped first.

    Ctrl-C is asked for too: a process that a shell put into the background is born deaf to it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {s: signal.signal(s, interrupt) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
