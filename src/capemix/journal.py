"""What an agent writes down for its site's own people, beside the ledger: an audit log, which plans
wait for a person's word, and what it did last. Nothing in it is about a record."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from capemix import documents
from capemix.errors import InputError
from capemix.plan import Plan
from capemix.protocol.wire import digest

_LOG: Final = logging.getLogger(__name__)
_DIGITS: Final = re.compile("[0-9a-f]{64}")
_SHOWN: Final = 16
"""Digits of an identity that name its files."""

_MOST_PENDING: Final = 100
"""Plans that wait. If a coordinator proposes more, they are declined and not kept."""

_LEAST_DIGITS: Final = 12
"""Of a digest that is given by its beginning."""


class Answer(StrEnum):
    """What the site's people say to a plan."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"


@dataclass(frozen=True)
class PlanAsked:
    """A plan that was proposed to this site, and what its people said."""

    digest: str
    answer: Answer
    plan: Plan | None
    """None where it was answered before it was proposed."""


@dataclass(frozen=True)
class Doing:
    """What an agent did last: its site's number, and the round that it answered."""

    site: int
    time: str
    run: str | None = None
    round: str | None = None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def plan_digest(plan: Plan) -> str:
    """What a plan is approved by: the same plan has the same digest."""
    return digest(documents.as_json(plan)).hex()


class Journal:
    """The folder LEDGER.site, for its owner's eyes only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plans = folder / "plans"
        self.log = folder / "audit.jsonl"

    @classmethod
    def beside(cls, ledger: Path) -> Journal:
        return cls(ledger.with_name(f"{ledger.name}.site"))

    # -- one agent an identity -------------------------------------------------------------------

    @contextmanager
    def alone(self, identity: str) -> Iterator[None]:
        """Refuses a second agent with this identity on this ledger, as long as the first runs: the
        system ends a lock with its process."""
        with self._lock_file(identity).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    "identity",
                    "has an agent already, on the same ledger",
                    value=identity[:_SHOWN],
                    fix="stop that one first",
                ) from None
            yield

    def runs(self, identity: str) -> bool:
        """Whether an agent with this identity runs now."""
        try:
            with self.alone(identity):
                return False
        except InputError:
            return True

    def _lock_file(self, identity: str) -> Path:
        return self._made(self._folder) / f"{identity[:_SHOWN]}.lock"

    # -- the audit log ---------------------------------------------------------------------------

    def note(self, event: str, **facts: Any) -> None:
        """A line at the end of the audit log."""
        self._made(self._folder)
        said = {name: fact for name, fact in facts.items() if fact is not None}
        line = json.dumps({"time": now(), "event": event, **said}) + "\n"
        try:
            with os.fdopen(
                os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w"
            ) as file:
                file.write(line)
        except OSError as error:
            raise self._unwritable(error) from None

    def events(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        lines = self.log.read_text().splitlines()
        return [documents.parse(line, name=f"audit log {self.log}") for line in lines]

    # -- plans that wait for a person -------------------------------------------------------------

    def answer_to(self, plan: Plan) -> Answer:
        """What this site's people said; a plan that is new to them is put before them."""
        found = plan_digest(plan)
        for answer in Answer:
            if self._file(found, answer).exists():
                return answer
        if len(list(self._plans.glob(f"*.{Answer.PENDING}.json"))) < _MOST_PENDING:
            self._keep(found, Answer.PENDING, json.dumps(documents.as_json(plan), indent=2) + "\n")
            self.note("asked", plan=found)
        return Answer.PENDING

    def plans(self) -> list[PlanAsked]:
        found = []
        for path in sorted(self._plans.glob("*.json")):
            name, _, answer = path.stem.partition(".")
            if _DIGITS.fullmatch(name) and answer in tuple(Answer):
                empty = path.stat().st_size == 0
                plan = None if empty else documents.read(Plan, path, name="plan")
                found.append(PlanAsked(name, Answer(answer), plan))
        return found

    def answer(self, asked: str, answer: Answer) -> str:
        """A person's word on the plan with this digest, or with the one pending digest that begins
        so. A plan may be answered before it is proposed."""
        wanted = "".join(asked.split()).lower()
        if not _DIGITS.fullmatch(wanted):
            known = [each.digest for each in self.plans() if each.digest.startswith(wanted)]
            if len(wanted) < _LEAST_DIGITS or len(known) != 1:
                raise InputError(
                    "digest",
                    "is not the digest of one plan",
                    value=asked,
                    fix="give all 64 digits, as capemix site pending and site check print them",
                )
            (wanted,) = known
        before = [each for each in Answer if self._file(wanted, each).exists()]
        if not before:
            self._keep(wanted, answer, "")
        for each in before:
            self._file(wanted, each).replace(self._file(wanted, answer))
        self.note(answer, plan=wanted)
        return wanted

    def _file(self, found: str, answer: Answer) -> Path:
        return self._plans / f"{found}.{answer}.json"

    def _keep(self, found: str, answer: Answer, text: str) -> None:
        self._made(self._plans)
        self._write(self._file(found, answer), text)

    # -- what it does -----------------------------------------------------------------------------

    def agents(self) -> list[tuple[str, Doing]]:
        """What the agents on this ledger did last, by the beginning of their identity."""
        paths = sorted(self._folder.glob("*.json"))
        return [(path.stem, documents.read(Doing, path, name="status")) for path in paths]

    def does(self, identity: str, doing: Doing) -> None:
        """For `capemix site status`. That it cannot be written stops no run."""
        try:
            self._made(self._folder)
            text = json.dumps(documents.as_json(doing)) + "\n"
            self._write(self._folder / f"{identity[:_SHOWN]}.json", text)
        except InputError as error:
            _LOG.error("%s", error)

    # -- files ------------------------------------------------------------------------------------

    def _made(self, folder: Path) -> Path:
        try:
            for each in (self._folder, folder):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None
        return folder

    def _write(self, path: Path, text: str) -> None:
        """All of it or nothing."""
        partial = path.with_suffix(".part")
        try:
            with os.fdopen(
                os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
            ) as file:
                file.write(text)
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(
            "the agent's folder",
            f"cannot be written: {error.strerror}",
            value=self._folder,
            fix="make room, or let this user write there",
        )
