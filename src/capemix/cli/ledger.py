"""What a data owner types to see and to limit what releases of the same data cost together."""

from __future__ import annotations

import json as json_
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capemix.cli import options as opt
from capemix.cli.command import Commands
from capemix.errors import InputError, printable

if TYPE_CHECKING:
    from capemix.ledger.ledger import Line

ledger = Commands(help="The budget ledger of your own data.")


@ledger.command("set-limit")
def set_limit(
    lineage: Annotated[str, typer.Argument(help="A name for the data, edited rows and all.")],
    epsilon: Annotated[float, typer.Option(help="What all its releases may cost together.")],
    delta: opt.Delta = 1e-5,
    relation: Annotated[
        opt.RelationName, typer.Option(help="Which two datasets count as neighbours.")
    ] = "add-or-remove-one",
    place: opt.LedgerFile = None,
    json: opt.Json = False,
) -> None:
    """Declare data, or lower or raise its limit. Decide on it before you look at a release."""
    from capemix.ledger import Ledger, Limit
    from capemix.queries import Relation

    limit = Limit(epsilon, delta, Relation(relation))
    opened = Ledger.open(place)
    account = opened.set_limit(lineage, limit)
    if json:
        found = {"lineage": lineage, "epsilon": epsilon, "delta": delta, "relation": relation}
        print(json_.dumps({**found, **_standing(account), "head": str(opened.head())}))
        return
    print(f"{lineage}: epsilon {epsilon:g}, delta {delta:g}, {relation}; {account.used:.1%} used")


@ledger.command()
def show(
    lineage: Annotated[
        str | None, typer.Argument(help="One lineage; all by default.", show_default=False)
    ] = None,
    place: opt.LedgerFile = None,
    json: opt.Json = False,
) -> None:
    """Every limit, charge and refund, every run joined on a sparse graph, and what is left."""
    from capemix.cli.show import print_json, print_ledger
    from capemix.ledger import Ledger
    from capemix.ledger.filter import repetitions

    lines = Ledger.open(place, create=False).lines()
    shown = [line for line in lines if lineage in (None, line.lineage)]
    if lineage is not None and not shown:
        known = ", ".join(sorted({line.lineage for line in lines})) or "none"
        raise InputError("lineage", "is not in the ledger", value=lineage, fix=f"known: {known}")
    rows = [_row(line) for line in shown]
    if json:
        print_json({"lines": rows})
        return
    print_ledger(rows)
    charged = {line.lineage: line for line in shown if line.cost is not None}
    accounts = {line.lineage: line.account for line in shown}
    for name, line in charged.items():
        if line.cost is not None:
            more = repetitions(accounts[name], line.cost)
            print(f"{name}: releases like the last one that still fit: {more}")


@ledger.command()
def verify(
    head: Annotated[
        str | None,
        typer.Option(help="A head kept from earlier: is it on the chain?", show_default=False),
    ] = None,
    place: opt.LedgerFile = None,
    json: opt.Json = False,
) -> None:
    """Walk the hash chain; name the first line that was edited."""
    from capemix.ledger import Head, Ledger

    kept = None if head is None else Head.parse(head)
    found = Ledger.open(place, create=False).verify(kept)
    if json:
        print(json_.dumps({"lines": found.lines, "head": str(found), "passes": head}))
        return
    through = "" if head is None else f", and goes through {head}"
    print(f"the chain is whole: {found.lines} lines, head {found}{through}")
    if head is None:
        print("(a ledger put back to an earlier day looks whole, too: give a --head that you kept)")


@ledger.command("head")
def show_head(place: opt.LedgerFile = None, json: opt.Json = False) -> None:
    """A short head, to be kept by peers or by a person: it shows later whether lines are gone."""
    from capemix.ledger import Ledger

    found = Ledger.open(place, create=False).head()
    print(json_.dumps({"head": str(found), "lines": found.lines}) if json else found)


def _standing(account: Any) -> dict[str, Any]:
    used = account.used if math.isfinite(account.used) else None
    return {"used": used, "left": None if used is None else max(0.0, 1.0 - used)}


def _what(entry: dict[str, Any]) -> str:
    """Of a line that charges nothing."""
    kind = str(entry["kind"])
    return f"{kind} of line {entry['of']}" if "of" in entry else kind


def _row(line: Line) -> dict[str, Any]:
    entry, account = line.entry, line.account
    charge = line.cost is not None
    so_far = account.epsilon
    return {
        "line": entry["line"],
        "time": entry["time"],
        "lineage": printable(line.lineage),
        "what": printable(entry["what"] if charge else _what(entry)),
        "run": entry.get("run"),
        "epsilon": entry["epsilon"] if charge else None,
        "delta": entry["delta"] if charge else None,
        "epsilon_so_far": so_far if math.isfinite(so_far) else None,
        "limit_epsilon": account.limit.epsilon,
        "limit_delta": account.limit.delta,
        "relation": str(account.limit.relation),
        "charged": entry["way"] if charge else None,
        "order": account.order,
        "basis": entry["basis"] if charge else None,
        **_standing(account),
    }
