"""The files that a federation passes around: a plan with its schema, and what came of a run."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from capemix.errors import InputError
from capemix.plan import Asked, MomentsPlan, asked_from_json
from capemix.protocol.part import fits_in_messages

RUNNING: Final = "running"
RELEASED: Final = "released"
ENDED: Final = "ended"
"""Without a release."""


def plan_text(plan: Asked, schema: dict[str, Any]) -> str:
    """What the coordinator proposes, and each site can read before it joins."""
    return json.dumps({"plan": plan.as_json(), "schema": schema}, indent=2) + "\n"


def read_plan_file(path: Path) -> tuple[Asked, dict[str, Any]]:
    try:
        found = json.loads(path.read_text())
        proposed, schema = found["plan"], found["schema"]
        if not isinstance(proposed, dict) or not isinstance(schema, dict):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            "plan file",
            "does not hold a plan and a schema",
            value=path,
            fix="write it with capemix federate plan",
        ) from None
    plan = asked_from_json(proposed)
    if plan.noise is None or not plan.federation.masked:
        raise InputError(
            "plan file", "must hold a calibrated cape plan", value=path, fix="write it again"
        )
    check_fits(plan)
    return plan, schema


def check_fits(plan: Asked) -> None:
    """As a site would."""
    if isinstance(plan, MomentsPlan) and not fits_in_messages(plan):
        raise InputError(
            "images",
            "have too many pixels for a federation's messages",
            value=plan.width,
            fix="make them smaller: 36 by 36 pixels fit",
        )


@dataclass
class Outcome:
    """What comes of a run, for the coordinator's people: it lies beside the release, not in it."""

    status: str = RUNNING
    reason: str | None = None
    included: list[int] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    nodes_left_out: dict[str, str] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    progress: dict[str, Any] | None = None
    """Of the open round, while there is one."""
    peak_memory: dict[str, int] = field(default_factory=dict)
    """Bytes, by process, where the system tells."""

    @staticmethod
    def path(out: Path) -> Path:
        return out.with_name(f"{out.name}.outcome.json")

    def write(self, out: Path) -> None:
        write_whole(self.path(out), json.dumps(vars(self), indent=2) + "\n")

    @classmethod
    def read(cls, out: Path) -> Outcome | None:
        """What the file says; None if there is none, or if it is not one of ours."""
        try:
            found = cls(**json.loads(cls.path(out).read_text()))
            for done in found.rounds:
                describe_round(done)
            if found.progress is not None:
                describe_progress(found.progress)
            whole = (
                isinstance(found.status, str)
                and isinstance(found.reason, str | None)
                and isinstance(found.rounds, list)
                and all(type(site) is int for site in found.included)
                and all(
                    isinstance(each, dict)
                    for each in (found.lost, found.nodes_left_out, found.peak_memory)
                )
            )
        except (OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
            return None
        return found if whole else None


def describe_round(done: dict[str, Any]) -> str:
    """A round that is over, in a line."""
    return (
        f"{_which(done)}: {done['answered']} sites in,"
        f" lost: {listed(done['lost'])}, {_size(done['bytes_out'])} out,"
        f" {_size(done['bytes_in'])} in, {done['seconds']:.1f} s"
    )


def describe_progress(now: dict[str, Any]) -> str:
    """The open round, in a line."""
    line = (
        f"{_which(now)}: {now['sites_in']} sites in,"
        f" {now['sites_waited_for']} to come, {now['sites_lost']} lost"
    )
    if now["expected_bytes"]:
        line += f", {_size(now['uploaded_bytes'])} of {_size(now['expected_bytes'])} in"
    left = now["seconds_left"]
    return line if left is None else f"{line}, about {left:.0f} s left"


def _which(done: dict[str, Any]) -> str:
    """Which round it is, and of which sum where a release has several."""
    which = f"round {done['number']} of {done['of']}, {done['round']}"
    name = done.get("sum")
    return which if name is None else f"{name}: {which}"


def listed(sites: list[int]) -> str:
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
