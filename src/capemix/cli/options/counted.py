"""Which budget pays for a release."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capemix.cli.options.names import LedgerFile
from capemix.errors import InputError, StoppedError

if TYPE_CHECKING:
    from capemix.ledger import Ledger, Lineage


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The lineage of the rows, or nothing."""

    lineage: Annotated[
        str | None,
        typer.Option(
            help="Name of the data whose budget pays, as given to `capemix ledger set-limit`.",
            show_default=False,
        ),
    ] = None
    no_ledger: Annotated[
        bool, typer.Option("--no-ledger", help="Count nothing, for rows that are not private.")
    ] = False
    ledger: LedgerFile = None

    def account(self, *, known: bool, ask: bool) -> Lineage | None:
        """The lineage that is charged; None: nothing is counted.

        Rows of the user's own are counted, or not, by name: where neither is said, and somebody is
        there to ask (``ask``), they are asked. Datasets that are ``known`` to be public need not
        be.
        """
        from capemix.api import lineage_of

        if self.no_ledger and (self.lineage is not None or self.ledger is not None):
            raise InputError("no_ledger", "contradicts --lineage and --ledger", fix="leave one out")
        if self.lineage is not None or self.no_ledger or known:
            return lineage_of(self.ledger, self.lineage)
        if not (ask and sys.stdin.isatty() and sys.stderr.isatty()):
            raise InputError(
                "lineage",
                "is needed, with a limit: all that is released of the same rows adds up",
                fix="type `capemix ledger set-limit NAME --epsilon E` once, with a name for the"
                " data, and then this command with --lineage NAME; or say --no-ledger if the rows"
                " are not private",
            )
        name = _ask_name()
        if not name:
            return None
        return _ask_limit(_opened(self.ledger), name)


@contextmanager
def saying_what_was_charged(account: Lineage | None) -> Iterator[Lineage | None]:
    """The same lineage, for a release within: one that is stopped says whether it was charged."""
    from dataclasses import fields

    from capemix.ledger import Lineage
    from capemix.ledger.ledger import Charged

    asked: list[str] = []
    done: list[Charged] = []

    class Watched(Lineage):
        def charge(self, what: str, *args: Any, **how: Any) -> Charged:
            asked.append(what)
            done.append(super().charge(what, *args, **how))
            return done[-1]

    watched = account
    if account is not None:
        watched = Watched(**{each.name: getattr(account, each.name) for each in fields(account)})
    try:
        yield watched
    except KeyboardInterrupt:
        said = "nothing was released"
        if account is not None and not asked:
            said += f", and nothing was charged to {account.name}"
        elif account is not None and len(asked) == len(done):
            said += f"; {account.name} was charged (ledger head {done[-1].head})"
        elif account is not None:
            said += f"; whether {account.name} was charged says `capemix ledger show`"
        raise StoppedError(f"stopped: {said}.") from None


def _opened(place: Path | None) -> Ledger:
    from capemix.ledger import Ledger

    return Ledger.open(place)


def _ask_name() -> str:
    typer.echo(
        "What is released of the same rows adds up. Name the data, and capemix counts it against a"
        " limit of yours; leave the name empty to count nothing.",
        err=True,
    )
    found: str = typer.prompt("Name of the data", default="", show_default=False, err=True)
    return found.strip()


def _ask_limit(ledger: Ledger, name: str) -> Lineage:
    """The lineage of this name, with a limit that is asked for unless it has one."""
    from capemix.ledger import Limit
    from capemix.queries import Relation

    if name not in ledger.accounts():
        said = f"Epsilon that all releases of {name} together may cost"
        epsilon: float = typer.prompt(said, type=float, err=True)
        ledger.set_limit(name, Limit(epsilon, 1e-5, Relation.ADD_REMOVE))
    return ledger.lineage(name)
