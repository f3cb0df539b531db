"""What a site's people type while their agent runs: which plans wait, yes or no, how it stands."""

from __future__ import annotations

import json as json_
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capemix.cli import options as opt
from capemix.errors import printable

if TYPE_CHECKING:
    from capemix.journal import Answer, Journal
    from capemix.ledger import Ledger
    from capemix.plan import Plan

Digest = Annotated[
    str, typer.Argument(metavar="DIGEST", help="Of the plan; at least 12 digits of a pending one.")
]


def pending(ledger: opt.LedgerFile = None, json: opt.Json = False) -> None:
    """The plans that were proposed and wait for `site approve`, and the answers so far."""
    found = [
        {
            "digest": each.digest,
            "answer": str(each.answer),
            "plan": None if each.plan is None else _described(each.plan),
        }
        for each in _journal(ledger)[0].plans()
    ]
    if json:
        print(json_.dumps({"plans": found}))
        return
    for each in found:
        print(f"{each['answer']}  {each['digest']}")
        if each["plan"] is not None:
            print(f"  {each['plan']}")
    if not found:
        print("no plan was proposed or answered")


def approve(digest: Digest, ledger: opt.LedgerFile = None, json: opt.Json = False) -> None:
    """Say yes to a plan: its releases may be made, as long as the policy and the budget allow."""
    from capemix.journal import Answer

    _answer(digest, Answer.APPROVED, ledger, json)


def deny(digest: Digest, ledger: opt.LedgerFile = None, json: opt.Json = False) -> None:
    """Say no to a plan: no new release of it is joined. One that is under way goes on."""
    from capemix.journal import Answer

    _answer(digest, Answer.DENIED, ledger, json)


def status(ledger: opt.LedgerFile = None, json: opt.Json = False) -> None:
    """Whether the agent runs, the round that it answered last, the budget left, the last error."""
    journal, opened = _journal(ledger)
    agents = []
    for identity, doing in journal.agents():
        said = {"site": doing.site, "runs": journal.runs(identity), "time": doing.time}
        agents.append(said | {"round": doing.round, "run": doing.run})
    events = journal.events()
    report: dict[str, Any] = {
        "agents": agents,
        "budgets": [_budget(name, account) for name, account in opened.accounts().items()],
        "waiting": sum(each.answer == "pending" for each in journal.plans()),
        "last_event": events[-1] if events else None,
        "last_error": next((e for e in reversed(events) if e["event"] == "error"), None),
        "log": str(journal.log),
    }
    if json:
        print(json_.dumps(report))
        return
    for each in agents:
        runs = "runs" if each["runs"] else "does not run"
        last = f"; answered {each['round']} at {each['time']}" if each["round"] else ""
        print(f"agent of site {each['site']}: {runs}{last}")
    for each in report["budgets"]:
        left = "nothing" if each["left"] is None else f"{each['left']:.1%}"
        print(f"budget of {each['lineage']}: {left} left of epsilon {each['epsilon']:g}")
    if report["waiting"]:
        print(f"plans that wait for an answer: {report['waiting']} (capemix site pending)")
    for what in ("last_event", "last_error"):
        if report[what] is not None:
            print(f"{what.replace('_', ' ')}: {_line(report[what])}")
    print(f"log: {journal.log}")


def _journal(place: Any) -> tuple[Journal, Ledger]:
    from capemix.journal import Journal
    from capemix.ledger import Ledger

    opened = Ledger.open(place, create=False)
    return Journal.beside(opened.path), opened


def _answer(digest: str, answer: Answer, ledger: Any, json: bool) -> None:
    found = _journal(ledger)[0].answer(digest, answer)
    print(json_.dumps({"digest": found, "answer": str(answer)}) if json else f"{answer}  {found}")


def _described(plan: Plan) -> str:
    federation, facts = plan.federation, plan.facts
    columns = ", ".join(facts.features[:8]) + (", ..." if len(facts.features) > 8 else "")
    return printable(
        f"{plan.method.kind}, epsilon {plan.epsilon:g}, delta {plan.delta:g}, {plan.relation};"
        f" {federation.sites} sites, {federation.colluding} colluding, {federation.dropouts}"
        f" dropouts; columns {columns};"
        f" {'no label' if facts.label is None else f'label {facts.label}'}"
    )


def _budget(name: str, account: Any) -> dict[str, Any]:
    used = account.used
    left = max(0.0, 1.0 - used) if math.isfinite(used) else None
    return {"lineage": name, "epsilon": account.limit.epsilon, "left": left}


def _line(event: dict[str, Any]) -> str:
    about = [f"{name} {value}" for name, value in event.items() if name not in ("time", "event")]
    return printable(f"{event['time']} {event['event']} " + ", ".join(about))
