"""The files that a federation passes around: a plan, and what came of a run."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from capemix import documents
from capemix.errors import InputError
from capemix.plan import Plan
from capemix.protocol.step import fits_in_messages

RUNNING: Final = "running"
RELEASED: Final = "released"
ENDED: Final = "ended"
"""Without a release."""
STOPPED: Final = "stopped"
"""The same, and it can be gone on with."""
DIED: Final = "died"
"""What a reader says of one that says it is running, and whose process is gone."""


def plan_text(plan: Plan) -> str:
    """What the coordinator proposes, and each site can read before it joins."""
    return json.dumps(documents.as_json(plan), indent=2) + "\n"


def read_plan_file(path: Path) -> Plan:
    found = documents.load(path, name="plan file")
    if isinstance(found, dict) and set(found) == {"plan", "schema"}:
        raise InputError(
            "plan file",
            "was written by an older version",
            value=path,
            fix="write it again with capemix federate plan",
        )
    plan = documents.from_json(Plan, found, name="plan file")
    if plan.multiplier is None or not plan.federation.masked:
        raise InputError(
            "plan file", "must hold a calibrated cape plan", value=path, fix="write it again"
        )
    check_fits(plan)
    return plan


def check_fits(plan: Plan) -> None:
    """As a site would."""
    if not fits_in_messages(plan):
        raise InputError(
            "images",
            "have too many pixels for a federation's messages",
            value=plan.facts.width,
            fix="make them smaller: 36 by 36 pixels fit",
        )
    if plan.facts.label is None and plan.facts.table is None:
        raise InputError(
            "schema", "must say that rows have no label", fix="draft one without --label"
        )


@dataclass(frozen=True, kw_only=True)
class _Round:
    """Which round it is, and of which sum where a release has several."""

    sum: str | None = None
    round: str
    number: int
    of: int

    def __str__(self) -> str:
        which = f"round {self.number} of {self.of}, {self.round}"
        return which if self.sum is None else f"{self.sum}: {which}"


@dataclass(frozen=True, kw_only=True)
class RoundOver(_Round):
    """A round that is over, and which sites it lost."""

    answered: int
    bytes_out: int
    bytes_in: int
    lost: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        return (
            f"{super().__str__()}: {self.answered} sites in, lost: {listed(self.lost)},"
            f" {_size(self.bytes_out)} out, {_size(self.bytes_in)} in, {self.seconds:.1f} s"
        )


@dataclass(frozen=True, kw_only=True)
class RoundOpen(_Round):
    """How far the open round is. ``seconds_left`` is None where nobody knows."""

    sites_in: int
    sites_waited_for: int
    sites_lost: int
    uploaded_bytes: int
    expected_bytes: int
    seconds_left: float | None

    def __str__(self) -> str:
        line = (
            f"{super().__str__()}: {self.sites_in} sites in,"
            f" {self.sites_waited_for} to come, {self.sites_lost} lost"
        )
        if self.expected_bytes:
            line += f", {_size(self.uploaded_bytes)} of {_size(self.expected_bytes)} in"
        left = self.seconds_left
        return line if left is None else f"{line}, about {left:.0f} s left"


@dataclass(frozen=True)
class ProcessMark:
    """A process of this host, told apart from a later one with its number."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessMark:
        return cls(pid, _started(pid) or "")

    @property
    def lives(self) -> bool:
        """Where the system does not tell since when a process runs, its number has to do."""
        if self.started:
            return _started(self.pid) == self.started
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def _started(pid: int) -> str | None:
    """When a process began: which boot, and how many clock ticks after it. None if it is gone."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    ended = after_name[0] in "ZX"
    return None if ended else f"{boot} {after_name[19]}"


@dataclass
class Outcome:
    """What comes of a run, for the coordinator's people: it lies beside the release, not in it."""

    status: str = RUNNING
    reason: str | None = None
    included: list[int] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    blamed: dict[str, str] = field(default_factory=dict)
    """Sites that revealed wrong shares, which were left out: their uploads are in."""
    disputes: list[tuple[int, int]] = field(default_factory=list)
    """A site, and one about whose shares it complained: one of the two lied."""
    refunded: list[int] = field(default_factory=list)
    """Sites that took back what they paid for the sum that failed."""
    paid: str | None = None
    """Of a run that failed, what stays paid, and why."""
    nodes_left_out: dict[str, str] = field(default_factory=dict)
    rounds: list[RoundOver] = field(default_factory=list)
    progress: RoundOpen | None = None
    """Of the open round, while there is one."""
    peak_memory: dict[str, int] = field(default_factory=dict)
    """Bytes, by process, where the system tells."""
    process: ProcessMark | None = None
    """Which one runs it."""

    @staticmethod
    def path(out: Path) -> Path:
        return out.with_name(f"{out.name}.outcome.json")

    def write(self, out: Path) -> None:
        write_whole(self.path(out), json.dumps(documents.as_json(self), indent=2) + "\n")

    @classmethod
    def read(cls, out: Path) -> Outcome | None:
        """What the file says, and that it died if its process is gone; None if there is no file, or
        if it is not one of ours."""
        try:
            found = documents.read(cls, cls.path(out), name="outcome")
        except InputError:
            return None
        if found.status == RUNNING and found.process is not None and not found.process.lives:
            # It may have ended well between the two looks.
            found = documents.read(cls, cls.path(out), name="outcome")
            if found.status == RUNNING:
                found.status, found.progress = DIED, None
                found.reason = "its process is gone; nothing was released"
        return found


def listed(sites: Iterable[int]) -> str:
    return ", ".join(map(str, sites)) or "none"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def write_whole(path: Path, text: str) -> None:
    """All of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
