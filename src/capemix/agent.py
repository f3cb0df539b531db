"""A site's agent: the one process that holds the rows, the identity, the policy and the budget.

It speaks the protocol over a Unix socket, a frame at a time, to a relay that may be hostile: the
relay can lose messages, but neither read a row nor make the agent answer in two ways. Chunks of an
upload can be had again, the same bytes each time, until the run is over or another run's upload is
made.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import socketserver
import stat
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from capemix import documents
from capemix.accounting.cost import together
from capemix.accounting.joint_view import MOST_PROPOSALS
from capemix.data.cells import places, spelled
from capemix.data.persons import counted
from capemix.data.rows import LabeledRows, UnlistedRows
from capemix.errors import BudgetError, CapemixError, InputError
from capemix.facts import Facts
from capemix.journal import Answer, Doing, Journal, now, plan_digest
from capemix.ledger import Lineage
from capemix.plan import Plan
from capemix.protocol.chunks import MOST_CHUNK
from capemix.protocol.hello import introduce, is_challenge
from capemix.protocol.policy import Policy
from capemix.protocol.refund import REFUND
from capemix.protocol.roster import Roster
from capemix.protocol.site import Site
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import ProtocolError, canonical, parse
from capemix.randomness.source import SeededSource, Source, SystemSource
from capemix.sums.query import SumQuery
from capemix.sums.share import SiteShare, SourceDraws, prepare_records, site_share
from capemix.zerosum.masks import SiteKeys

_LOG: Final = logging.getLogger(__name__)

COULD_NOT_ANSWER: Final = b"the agent could not answer; its log at the site says why"
"""All that a relay hears of what went wrong at a site, other than in the protocol."""

_MAX_FRAME: Final = MOST_CHUNK
_PATIENCE_S: Final = 120.0
_MOST_RUNS: Final = 1000
"""Runs that an agent keeps in memory, and releases."""


@dataclass(frozen=True, eq=False)
class SiteState:
    """What an agent keeps to itself. ``rows`` are rows of numbers with their labels as the file has
    them, or rows that were coded by a schema before the agent began to answer."""

    number: int
    identity: Ed25519PrivateKey
    roster: Roster
    policy: Policy
    rows: UnlistedRows | LabeledRows
    budget: Lineage
    test_seed: int | None = None

    def __repr__(self) -> str:
        return f"SiteState(number={self.number})"


class Agent:
    """Answers raw protocol messages, each run with a `Site` of its own."""

    def __init__(self, state: SiteState) -> None:
        self._state = state
        self._runs: dict[str, Site] = {}
        self._releases: dict[bytes, tuple[str, ReleaseStep | None]] = {}
        """Of each release the last run in which this site uploaded, and its sum; None if it took
        back what it paid, which ends the release here."""
        self._begun: dict[bytes, str] = {}
        """The digest of each release's plan, as its first sum had it: what is measured comes in."""
        self._used: tuple[object, LabeledRows] | None = None
        self._lock = threading.Lock()
        self.journal = Journal.beside(state.budget.ledger.path)
        state.budget.set_limit(state.policy.limit)
        self._answered(None, None)

    def answer(self, raw: bytes) -> bytes:
        state = self._state
        if is_challenge(raw):
            return introduce(raw, state.roster, state.number, state.identity)
        asked = parse(raw)
        run = asked.run
        with self._lock:
            if asked.round == "chunk":
                if run not in self._runs:
                    raise ProtocolError("this agent has no upload for that run")
                return self._runs[run].chunk(raw)
            if run in self._runs:
                reply = self._runs[run].answer(raw)
                if asked.round == REFUND:
                    self._take_back(run)
                self._answered(asked.round, run)
                return reply
            if state.budget.knows(run):
                raise ProtocolError("this site has been in that run already")
            site = self._site(run)
            try:
                reply = site.answer(raw)
            finally:
                if site.proposed:  # what anyone else sends leaves no trace
                    self._runs[run] = site
                    self._let_go()
            self._answered(asked.round, run)
            return reply

    def _answered(self, round_: str | None, run: str | None) -> None:
        """For the site's own people."""
        state = self._state
        identity = state.roster.sites[state.number].identity
        self.journal.does(identity, Doing(state.number, now(), run, round_))

    def note_error(self, what: str) -> None:
        """The same of what went wrong."""
        with suppress(InputError):
            self.journal.note("error", site=self._state.number, what=what)

    def _let_go(self) -> None:
        """The oldest of too many runs and releases. Nobody can go on with them; a run that was
        charged stays known to the ledger, and one that was not may begin again with new keys."""
        while len(self._runs) > _MOST_RUNS:
            self._runs.pop(next(iter(self._runs))).free_upload()
        while len(self._releases) > _MOST_RUNS:
            self._begun.pop(oldest := next(iter(self._releases)), None)
            del self._releases[oldest]

    def _site(self, run: str) -> Site:
        state = self._state
        keys: Source = SystemSource()
        if state.test_seed is not None:
            keys = SeededSource(state.test_seed).child("protocol", state.number)
        agreed: list[ReleaseStep] = []

        def consent(step: ReleaseStep) -> str | None:
            known = self._last(step.release)
            step = replace(step, paid=known is not None and known.paid)
            reason = step.follows(known)
            if reason is None:
                reason = state.policy.declines(step, state.budget.account())
            if reason is None:
                reason = lacking(state.rows, step.plan.facts)
            needed = step.plan.method.missing()
            if reason is None and needed is not None:
                reason = f"this site has no {needed}, which {step.plan.method.kind} needs"
            if reason is None and state.policy.plans == "ask" and not step.before:
                reason = self._awaited(step.plan)
            draws = step.plan.federation.graph_failure() > 0.0  # else no graph can be a bad one
            if reason is None and draws and not state.budget.join(run, MOST_PROPOSALS):
                reason = f"this site has joined {MOST_PROPOSALS} runs on sparse graphs already"
            agreed.append(step)
            self._note("accepted" if reason is None else "declined", run, step, reason=reason)
            return reason

        def make_share(query: SumQuery, masks: SiteKeys) -> SiteShare:
            step = agreed[-1]
            self._charge(run, step)
            for earlier in self._runs.values():
                earlier.free_upload()  # one upload is in memory at a time
            rows = self._rows(step.plan)
            prepared = prepare_records(query, rows.features, rows.labels, rows.persons)
            draws = self._draws(step.plan, query)
            try:
                return site_share(query, state.number, prepared, SourceDraws(query, draws), masks)
            finally:
                draws.erase()  # whoever has it can take the noise off the upload

        return Site(state.number, state.identity, state.roster, keys, consent, make_share)

    def _awaited(self, plan: Plan) -> str | None:
        """Why this site's people keep a plan waiting, or None: they said yes to it."""
        answer = self.journal.answer_to(plan)
        if answer is Answer.APPROVED:
            return None
        said = "have denied the plan" if answer is Answer.DENIED else "have not approved it yet"
        return f"this site's people {said} (digest {plan_digest(plan)[:16]})"

    def _note(self, event: str, run: str, step: ReleaseStep, **facts: Any) -> None:
        """A line of the audit log."""
        about = {"site": self._state.number, "run": run, "release": step.release.hex()}
        about |= {"sum": step.name, "plan": self._digest(step)}
        self.journal.note(event, **about | facts)

    def _digest(self, step: ReleaseStep) -> str:
        """Of the plan that people were asked about: whatever was measured since, a sum that goes on
        with a release has the digest of its first one."""
        last = self._last(step.release)
        follows = last is not None and step.follows(last) is None
        return self._begun[step.release] if follows else plan_digest(step.plan)

    def _rows(self, plan: Plan) -> LabeledRows:
        """The same ones for all sums of a release, so that what is made of them is kept."""
        facts, one_class = plan.known, plan.one_class
        key = facts.classes, facts.features, facts.rows_per_person, one_class
        if self._used is None or self._used[0] != key:
            rows = rows_for(self._state.rows, facts)
            self._used = key, counted(rows, facts.rows_per_person, one_class=one_class)
        return self._used[1]

    def _last(self, release: bytes) -> ReleaseStep | None:
        """The last sum of a release that this site uploaded, if the release goes on here."""
        return self._releases.get(release, ("", None))[1]

    def _charge(self, run: str, step: ReleaseStep) -> None:
        """To the ledger, before anything is made of the rows. Runs may have gone on since this one
        was agreed to: it may no longer be its turn, or within the budget."""
        state = self._state
        reason = step.follows(self._last(step.release))
        if reason is not None:
            raise ProtocolError(reason)
        costs = step.costs(state.policy.relation)
        what = f"upload, site {state.number}, {step.name}"
        instead = step.cost_alone(state.policy.relation)
        try:
            at_once = state.budget.charge(
                what, costs[0], run=run, whole=together(costs), instead=instead
            ).at_once
        except BudgetError:
            raise ProtocolError(
                "the budget over all runs would be overspent, or this run was charged already"
            ) from None
        self._begun[step.release] = digest = self._digest(step)
        self._releases[step.release] = run, replace(step, paid=step.paid or at_once)
        try:
            paid = {"epsilon": costs[0].epsilon, "delta": costs[0].delta}
            self._note("charged", run, step, plan=digest, **paid)
        except InputError as error:  # what is paid for is made: the ledger has it
            _LOG.error("%s", error)

    def _take_back(self, run: str) -> None:
        """What was charged for a run that told nothing. It may have paid for later sums, too: so
        not once one of them was uploaded, and none is from here on."""
        budget = self._state.budget
        if not budget.charged(run):
            return  # it never paid, or took it back before
        release = next((of for of, (last, _) in self._releases.items() if last == run), None)
        if release is None:
            raise ProtocolError("a later sum of the release was uploaded: what was paid stays paid")
        self._releases[release] = run, None
        budget.refund(run)
        try:
            self.journal.note("refunded", site=self._state.number, run=run, release=release.hex())
        except InputError as error:  # the ledger has it
            _LOG.error("%s", error)

    def _draws(self, plan: Plan, query: SumQuery) -> Source:
        """What the upload's noise comes from; by a test seed, what one process would draw."""
        if self._state.test_seed is None:
            return SystemSource()
        seeded = plan.source_of(query, SeededSource(self._state.test_seed))
        return seeded.child("site", self._state.number)


def lacking(rows: UnlistedRows | LabeledRows, facts: Facts) -> str | None:
    """Why a plan is not about these rows, or None: by their columns' names, and by the schema that
    they were coded by before the agent began to answer. No row is looked at."""
    coded_by = rows.table if isinstance(rows, LabeledRows) else None
    own, asked = (canonical(documents.as_json(table)) for table in (coded_by, facts.table))
    if own != asked:  # as text, where true is not 1
        started = "without --plan" if coded_by is None else "with another plan's schema"
        should = "without --plan" if facts.table is None else "with this --plan"
        return (
            "this site's rows are not coded by the plan's schema: its agent was started"
            f" {started}, and must be started {should}"
        )
    if (rows.persons is None) != (facts.rows_per_person is None):
        if rows.persons is None:
            return (
                "this site's rows do not say whose they are: its agent was started without"
                " --person, and must be started with it"
            )
        return "this site's rows are of people, and the plan does not bound how many are one's"
    if coded_by is None and not set(facts.features) <= set(rows.feature_names):
        return "this site does not have the plan's columns"
    return None


def rows_for(rows: UnlistedRows | LabeledRows, facts: Facts) -> LabeledRows:
    """The plan's columns and classes, in the plan's order. Rows of other classes, or without a
    number in one of the columns, are dropped, each by itself. Rows that are coded by the plan's
    schema have its columns."""
    if isinstance(rows, UnlistedRows):
        return rows.columns(facts.features).listed(facts.listed)
    listed = places(facts.listed)
    codes = [listed.get(spelled(each) or "", -1) for each in rows.classes]
    labels = np.array(codes, dtype=np.int64)[rows.labels]
    known = labels >= 0
    kept = (rows if rows.table is not None else rows.columns(facts.features)).take(known)
    return replace(
        kept,
        labels=labels[known],
        classes=facts.listed,
        unfit=rows.unfit + int(len(rows) - known.sum()),
    )


# -- the socket -----------------------------------------------------------------------------------


def _read(stream: socket.socket, count: int, until: float | None = None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if until is not None:
            stream.settimeout(max(1e-3, until - time.monotonic()))
        part = stream.recv(min(1 << 20, count - len(parts)))
        if not part:
            raise ProtocolError("the connection ended inside a frame")
        parts += part
    return bytes(parts)


def _read_frame(stream: socket.socket, until: float | None = None) -> bytes:
    length = int.from_bytes(_read(stream, 8, until), "big")
    if length > _MAX_FRAME:
        raise ProtocolError("a frame is too long")
    return _read(stream, length, until)


class _Server(socketserver.UnixStreamServer):
    def __init__(self, path: Path, agent: Agent) -> None:
        self.agent = agent
        self.lock = ExitStack()
        self._path, self._inode = path, 0
        super().__init__(str(path), _Handler)
        self._inode = path.stat().st_ino

    def server_close(self) -> None:
        """Nothing of this server is left, and nothing of another one's is touched."""
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        super().server_close()
        self.lock.close()


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        try:
            # One connection at a time: whoever drips bytes, or does not read, is cut off.
            until = time.monotonic() + _PATIENCE_S
            status, reply = self._reply(until)
            self.request.settimeout(_PATIENCE_S)
            self.request.sendall(bytes([status]) + len(reply).to_bytes(8, "big"))
            self.request.sendall(reply)
        except OSError:
            return

    def _reply(self, until: float) -> tuple[int, bytes]:
        agent: Agent = self.server.agent  # type: ignore[attr-defined]
        try:
            return 0, agent.answer(_read_frame(self.request, until))
        except ProtocolError as error:
            return 1, str(error).encode()
        except OSError:
            raise
        except Exception as error:  # its text may name files: it is for the site's own log
            known = isinstance(error, CapemixError)
            _LOG.error("could not answer: %s", error, exc_info=None if known else error)
            # A library's own words may quote a cell, and more people read the audit log.
            agent.note_error(str(error) if known else type(error).__name__)
            return 1, COULD_NOT_ANSWER


def serve(state: SiteState, path: Path, group: str | None = None) -> _Server:
    """A server on a socket that only this user, and a group if one is named, may open; call
    ``serve_forever`` on it. One agent an identity: while it runs, another one is refused."""
    with ExitStack() as stack:
        journal = Journal.beside(state.budget.ledger.path)
        stack.enter_context(journal.alone(state.roster.sites[state.number].identity))
        _check_free(path)
        before = os.umask(0o177)
        try:
            server = _Server(path, Agent(state))
        except OSError as error:
            raise InputError(
                "socket",
                f"cannot be listened on: {error.strerror or error}",
                value=path,
                fix="name a file with a short path, in a folder that this user may write to",
            ) from None
        finally:
            os.umask(before)
        server.lock = stack.pop_all()
    if group is not None:
        try:
            shutil.chown(path, group=group)
            path.chmod(0o660)
        except (LookupError, PermissionError) as error:
            server.server_close()
            unknown = isinstance(error, LookupError)
            raise InputError(
                "group",
                "does not exist" if unknown else "must be one of this user's groups",
                value=group,
                fix="make it with groupadd" if unknown else "add the user with usermod -aG",
            ) from None
    return server


def _check_free(path: Path) -> None:
    """Nothing is taken away but a socket at which nobody listens any more."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise InputError(
            "socket", "is the name of something else", value=path, fix="name a file that is absent"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        try:
            stream.settimeout(_PATIENCE_S)
            stream.connect(str(path))
        except ConnectionRefusedError:  # its agent was killed
            path.unlink()
            return
        except OSError:
            pass
    raise InputError("socket", "is another agent's", value=path, fix="stop it, or name another")


def ask(path: Path | str, raw: bytes) -> bytes:
    """One question to an agent, as a relay asks it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect(str(path))
        stream.sendall(len(raw).to_bytes(8, "big") + raw)
        status = _read(stream, 1)
        reply = _read_frame(stream)
    if status != b"\0":
        raise ProtocolError(reply.decode("utf-8", "replace"))
    return reply
