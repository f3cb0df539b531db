"""The ledger on disk: one SQLite file, a line for every limit, every charge, every refund and every
run that was joined on a graph that may fall apart, never changed.

A charge is one transaction that takes the write lock before it reads, so that two processes cannot
both spend what is left; it is in the write-ahead log and synced before `charge` returns, so that
whatever is made afterwards has been counted. A charge is taken back for one reason alone: its run
in a federation has told nothing, and never will (`protocol.refund`).
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from capemix import documents
from capemix.accounting.cost import Cost, together
from capemix.errors import BudgetError, InputError
from capemix.ledger import chain
from capemix.ledger.chain import Head
from capemix.ledger.filter import Account, Limit, Way
from capemix.queries import Relation

_APPLICATION: Final = 0x63706D78
_PATIENCE_S: Final = 60.0
_LONGEST_NAME: Final = 100
_LIMIT: Final = "limit"
_CHARGE: Final = "charge"
_REFUND: Final = "refund"
_JOINED: Final = "joined"
_POLICY: Final = "policy"
_SCHEMA: Final = (
    "CREATE TABLE entries (line INTEGER PRIMARY KEY, text TEXT NOT NULL, hash TEXT NOT NULL)"
)
"""All that a ledger's file defines. A view or a trigger from elsewhere would be somebody's code."""


def default_path() -> Path:
    """The ledger of this user: ledger.db in the state folder."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return folder / "capemix" / "ledger.db"


@dataclass(frozen=True)
class Charged:
    """What came of a charge: the ledger's head with its line, and whether it paid for all parts of
    the release ``at_once``."""

    head: Head
    at_once: bool


@dataclass(frozen=True)
class Line:
    """A line as written, and the account of its lineage after it."""

    entry: dict[str, Any]
    account: Account
    cost: Cost | None = None  # of a charge

    @property
    def lineage(self) -> str:
        return str(self.entry["lineage"])


@dataclass
class _Walked:
    """How far this process has read the chain, and where the lineages stood there."""

    lines: int = 0
    hash: str = chain.START
    accounts: dict[str, Account] = field(default_factory=dict)
    runs: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    """Of each lineage's runs: in which line it was joined, charged or refunded."""
    joined: Counter[str] = field(default_factory=Counter)
    """How often each lineage joined a graph that may fall apart."""

    def passes(self, written: Sequence[tuple[int, str, str]]) -> bool:
        """Whether the chain still goes through the hash where this ends."""
        at = self.lines
        return at == 0 or (at <= len(written) and written[at - 1][2] == self.hash)

    def advance(self, written: Sequence[tuple[int, str, str]]) -> list[Line]:
        """Read on to the end of the chain, of which this is all."""
        lines = []
        for number, text, found in written[self.lines :]:
            line = self._read(documents.parse(text, name="the ledger"), written)
            self.lines, self.hash = number, found
            self.accounts[line.lineage] = line.account
            run, kind = line.entry.get("run"), line.entry["kind"]
            if run is not None:
                self.runs.setdefault((line.lineage, run), {})[kind] = number
            self.joined[line.lineage] += kind == _JOINED
            lines.append(line)
        return lines

    def _read(self, entry: dict[str, Any], written: Sequence[tuple[int, str, str]]) -> Line:
        """What a line did to its lineage, by what it says itself of order and way."""
        name = entry["lineage"]
        if entry["kind"] == _LIMIT:
            limit = Limit(entry["epsilon"], entry["delta"], Relation(entry["relation"]))
            return Line(entry, replace(self.accounts.get(name, Account(limit)), limit=limit))
        account = self.accounts[name]
        if entry["kind"] == _JOINED:
            return Line(entry, account)
        if entry["kind"] == _REFUND:
            of = self.refundable(name, entry["run"])
            if of is None or of != entry["of"]:
                raise ValueError("a refund of what was not charged, or was refunded before")
            charge = documents.parse(written[of - 1][1], name="the ledger")
            terms, way = chain.terms_from_json(charge), Way(charge["way"])
            return Line(entry, account.refunded(chain.cost_from_json(charge), way, terms))
        cost = chain.cost_from_json(entry)
        fixed = account.fixed(chain.terms_from_json(entry))
        return Line(entry, fixed.charged(cost, Way(entry["way"])), cost)

    def refundable(self, lineage: str, run: str) -> int | None:
        """The line in which the run was charged, unless it was refunded."""
        known = self.runs.get((lineage, run), {})
        return None if _REFUND in known else known.get(_CHARGE)


class Ledger:
    """All lineages that are counted in one file.

    Every line's hash is computed anew each time. What the lines say is added up once in a process:
    the sums of a chain that is still there are kept, and only what follows is read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._walked = _Walked()

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None, *, create: bool = True) -> Ledger:
        """The ledger in this file, by default the user's own; made if it is not there."""
        target = default_path() if path is None else Path(path).resolve()
        if not target.exists():
            if not create:
                raise InputError(
                    "the ledger",
                    "does not exist",
                    value=target,
                    fix="begin it with `capemix ledger set-limit`",
                )
            _make(target)
        ledger = cls(target)
        with ledger._connected():
            return ledger

    def lineage(self, name: str) -> Lineage:
        return Lineage(self, name)

    # -- reading -----------------------------------------------------------------------------

    def lines(self) -> list[Line]:
        """Every line with where it left its lineage; raises at the first one that was edited."""
        with self._connected() as database:
            return self._advanced(_Walked(), self._checked(_read(database)))

    def head(self) -> Head:
        with self._connected() as database:
            return chain.head_of([found for _, _, found in _read(database)])

    def verify(self, head: Head | None = None) -> Head:
        """Walk the chain; raises at the first edited line, or if it misses ``head``."""
        with self._connected() as database:
            written = self._checked(_read(database))
        self._advanced(_Walked(), written)
        hashes = [found for _, _, found in written]
        if head is not None and not chain.passes(hashes, head):
            raise InputError(
                "the ledger",
                "does not go through that head: it was cut, replaced or written anew",
                value=f"{head}; it now ends at {chain.head_of(hashes)}",
                fix="restore the copy that does",
            )
        return chain.head_of(hashes)

    def accounts(self) -> dict[str, Account]:
        with self._connected() as database:
            return dict(self._standing(database).accounts)

    def knows(self, lineage: str, run: str) -> bool:
        """Whether this run was joined or charged, perhaps by a process that is no more."""
        with self._connected() as database:
            return (lineage, run) in self._standing(database).runs

    def charged(self, lineage: str, run: str) -> bool:
        """Whether this run was charged, and not refunded."""
        with self._connected() as database:
            return self._standing(database).refundable(lineage, run) is not None

    # -- writing -----------------------------------------------------------------------------

    def set_limit(self, lineage: str, limit: Limit, *, by_policy: bool = False) -> Account:
        """Declare a lineage, or lower or raise its limit. The relation stays once something was
        charged, and so does the order of the filter. ``by_policy``: no person typed it; a policy
        has this limit, and may have another one as long as nothing was charged."""
        _check_name(lineage)
        with self._writing() as (database, standing):
            account = standing.accounts.get(lineage, Account(limit))
            if account.total.charges and account.limit.relation is not limit.relation:
                raise InputError(
                    "relation",
                    f"must stay {account.limit.relation}: releases were counted in it",
                    value=limit.relation,
                    fix="leave it, or declare a lineage for other rows",
                )
            said = {"by": _POLICY} if by_policy else {}
            self._append(database, {**_limit_as_json(lineage, limit), **said})
            return replace(account, limit=limit)

    def follows_policy(self, lineage: str) -> bool:
        """Whether nothing was charged to this lineage, and its limit is a policy's."""
        lines = [line for line in self.lines() if line.lineage == lineage]
        limits = [line.entry for line in lines if line.entry["kind"] == _LIMIT]
        charged = any(line.cost is not None for line in lines)
        return not charged and bool(limits) and limits[-1].get("by") == _POLICY

    def charge(
        self,
        lineage: str,
        what: str,
        cost: Cost,
        *,
        run: str | None = None,
        whole: Cost | None = None,
        instead: Cost | None = None,
    ) -> Charged:
        """Count a release before it exists. It is on disk when this returns; if it does not fit,
        or this run was charged, `BudgetError`, and nothing is written. ``whole`` and ``instead``
        are as for `Account.admit`; the latter, if it was charged, pays for all parts of the
        release."""
        with self._writing() as (database, standing):
            account = _declared(standing.accounts, lineage)
            if run is not None and _CHARGE in standing.runs.get((lineage, run), ()):
                raise BudgetError(
                    "the run", "was charged already", value=run, fix="begin another run"
                )
            admitted = account.admit(cost, whole=whole, instead=instead)
            if admitted is None:
                raise _overspent(lineage, account, cost)
            after, way, paid = admitted
            head = self._append(
                database,
                {
                    "kind": _CHARGE,
                    "lineage": lineage,
                    "what": what if paid is cost else f"{what}, and all sums after it",
                    "run": run or secrets.token_hex(8),
                    "way": str(way),
                    **chain.terms_as_json(after.terms),
                    **chain.cost_as_json(paid),
                },
            )
            return Charged(head, paid is instead)

    def refund(self, lineage: str, run: str) -> None:
        """Take back what was charged for a run of which nothing was told and nothing can be: that
        this is so, the caller has to know. At most once a charge, which is on disk when this
        returns; otherwise `BudgetError`, and nothing is written."""
        with self._writing() as (database, standing):
            charged = standing.refundable(lineage, run)
            if charged is None:
                raise BudgetError(
                    "the run",
                    "was not charged, or was refunded already",
                    value=run,
                    fix="leave it as it is",
                )
            entry = {"kind": _REFUND, "lineage": lineage, "run": run, "of": charged}
            self._append(database, entry)

    def join(self, lineage: str, run: str, most: int) -> bool:
        """Write down that a run whose graph may fall apart was joined, unless ``most`` were before:
        what a release pays for bad graphs covers so many draws. It is on disk when this returns.
        """
        with self._writing() as (database, standing):
            _declared(standing.accounts, lineage)
            if standing.joined[lineage] >= most:
                return False
            self._append(database, {"kind": _JOINED, "lineage": lineage, "run": run})
            return True

    def _append(self, database: sqlite3.Connection, entry: dict[str, Any]) -> Head:
        last = database.execute("SELECT line, hash FROM entries ORDER BY line DESC").fetchone()
        number, before = last or (0, chain.START)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        text = chain.text_of({**entry, "line": number + 1, "previous": before, "time": now})
        row = (number + 1, text, chain.hash_of(text))
        database.execute("INSERT INTO entries VALUES (?, ?, ?)", row)
        return chain.head_at(number + 1, row[2])

    # -- the file ----------------------------------------------------------------------------

    def _checked(self, written: Sequence[tuple[int, str, str]]) -> Sequence[tuple[int, str, str]]:
        """These lines, if nobody edited one."""
        edited = chain.first_edited(written)
        if edited is not None:
            raise InputError(
                "the ledger",
                "was edited",
                value=f"line {edited} of {self.path}",
                fix="restore a copy whose head you know",
            )
        return written

    def _advanced(self, known: _Walked, written: Sequence[tuple[int, str, str]]) -> list[Line]:
        try:
            return known.advance(written)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _unreadable(self.path) from None

    def _standing(self, database: sqlite3.Connection) -> _Walked:
        """Where all lineages stand. What was added up before counts as long as the chain, all of
        which is checked, still goes through its hash."""
        written, known = self._checked(_read(database)), self._walked
        if not known.passes(written):
            known = _Walked()
        self._advanced(known, written)
        self._walked = known
        return known

    @contextmanager
    def _writing(self) -> Iterator[tuple[sqlite3.Connection, _Walked]]:
        """All lineages under the write lock; committed and synced at the end, or left alone."""
        with self._connected() as database:
            database.execute("BEGIN IMMEDIATE")
            yield database, self._standing(database)
            database.execute("COMMIT")  # closing without it rolls back

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        where = f"{self.path.as_uri()}?mode=rw"
        try:
            with closing(
                sqlite3.connect(where, timeout=_PATIENCE_S, isolation_level=None, uri=True)
            ) as database:
                database.execute("PRAGMA synchronous = FULL")
                (application,) = database.execute("PRAGMA application_id").fetchone()
                defined = database.execute("SELECT sql FROM sqlite_schema").fetchall()
                if application != _APPLICATION or defined != [(_SCHEMA,)]:
                    raise _unreadable(self.path)
                yield database
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise InputError(
                    "the ledger",
                    "cannot be written: its disk is full, or fails",
                    value=self.path,
                    fix="make room; nothing was counted",
                ) from error
            if code != sqlite3.SQLITE_BUSY:
                raise _unreadable(self.path) from error
            raise InputError(
                "the ledger", "is in use elsewhere", value=self.path, fix="try again"
            ) from error
        except sqlite3.Error as error:
            raise _unreadable(self.path) from error


@dataclass(frozen=True)
class Lineage:
    """One lineage of data: the name that its owner gave, whatever its rows are today."""

    ledger: Ledger
    name: str

    def account(self) -> Account:
        return _declared(self.ledger.accounts(), self.name)

    @property
    def relation(self) -> Relation:
        return self.account().limit.relation

    def knows(self, run: str) -> bool:
        """Whether this run was joined or charged, perhaps by a process that is no more."""
        return self.ledger.knows(self.name, run)

    def charged(self, run: str) -> bool:
        """Whether this run was charged, and not refunded."""
        return self.ledger.charged(self.name, run)

    def refund(self, run: str) -> None:
        """See `Ledger.refund`."""
        self.ledger.refund(self.name, run)

    def join(self, run: str, most: int) -> bool:
        """See `Ledger.join`."""
        return self.ledger.join(self.name, run, most)

    def set_limit(self, limit: Limit) -> None:
        """Write a policy's limit down unless it, or a lower one that the owner set, stands already.
        Before the first charge it follows the policy up, too."""
        known = self.ledger.accounts().get(self.name)
        if known is not None and self.ledger.follows_policy(self.name):
            if known.limit != limit:
                self.ledger.set_limit(self.name, limit, by_policy=True)
            return
        if known is not None and known.limit.relation is not limit.relation:
            raise InputError(
                "the policy's relation",
                f"is not the one in which the lineage's limit was set ({known.limit.relation})",
                value=limit.relation,
                fix="bring the two in line with capemix ledger set-limit, or mend the policy",
            )
        if known is not None:
            limit = replace(
                limit,
                epsilon=min(limit.epsilon, known.limit.epsilon),
                delta=min(limit.delta, known.limit.delta),
            )
        if known is None or known.limit != limit:
            self.ledger.set_limit(self.name, limit, by_policy=True)

    def check(self, *costs: Cost, instead: Cost | None = None) -> None:
        """Raise `BudgetError` if these do not fit, one after the other, nor ``instead`` of all."""
        account = self.account()
        if not account.admits(costs, instead=instead):
            raise _overspent(self.name, account, together(costs) if instead is None else instead)

    def charge(
        self,
        what: str,
        cost: Cost,
        *,
        run: str | None = None,
        whole: Cost | None = None,
        instead: Cost | None = None,
    ) -> Charged:
        """See `Ledger.charge`."""
        return self.ledger.charge(self.name, what, cost, run=run, whole=whole, instead=instead)


# -- small things ----------------------------------------------------------------------------------


def _make(target: Path) -> None:
    """A whole, empty ledger under a name of its own, then one link: nobody sees half of one."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise _unwritable(target) from error
    partial = Path(name)
    try:
        with closing(sqlite3.connect(partial, isolation_level=None)) as database:
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute("PRAGMA journal_mode = WAL")  # stays with the file
            database.execute("PRAGMA synchronous = FULL")
            database.execute(_SCHEMA)
        try:
            os.link(partial, target)
        except FileExistsError:
            return  # someone else was quicker
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, sqlite3.Error) as error:
        raise _unwritable(target) from error
    finally:
        partial.unlink(missing_ok=True)


def _read(database: sqlite3.Connection) -> list[tuple[int, str, str]]:
    return database.execute("SELECT line, text, hash FROM entries ORDER BY line").fetchall()


def _limit_as_json(lineage: str, limit: Limit) -> dict[str, Any]:
    return {
        "kind": _LIMIT,
        "lineage": lineage,
        "epsilon": limit.epsilon,
        "delta": limit.delta,
        "relation": str(limit.relation),
    }


def _declared(accounts: dict[str, Account], lineage: str) -> Account:
    if lineage in accounts:
        return accounts[lineage]
    raise InputError(
        "lineage",
        "has no limit yet",
        value=lineage,
        fix=f"set one with `capemix ledger set-limit {lineage} --epsilon E`",
    )


def _check_name(lineage: str) -> None:
    if not lineage.strip() or not lineage.isprintable() or len(lineage) > _LONGEST_NAME:
        raise InputError(
            "lineage",
            f"must be 1 to {_LONGEST_NAME} printable characters",
            value=repr(lineage[:_LONGEST_NAME]),
            fix="name the data, for example admissions-2026",
        )


def _overspent(lineage: str, account: Account, cost: Cost) -> BudgetError:
    limit = account.limit
    return BudgetError(
        f"the budget of {lineage}",
        "would be overspent",
        value=f"{account.used:.1%} of epsilon {limit.epsilon:g}, delta {limit.delta:g} is used;"
        f" this alone is epsilon {cost.epsilon:.4g}, delta {cost.delta:.3g}",
        fix="ask for less, or promise less: raise the limit with `capemix ledger set-limit`",
    )


def _unreadable(path: Path) -> InputError:
    return InputError(
        "the ledger", "cannot be read", value=path, fix="restore it from a copy whose head you know"
    )


def _unwritable(path: Path) -> InputError:
    return InputError("ledger", "cannot be written", value=path, fix="name a file you may write to")
