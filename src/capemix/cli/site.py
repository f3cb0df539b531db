"""What a site's people type: make a key, look at their rows, serve their agent."""

from __future__ import annotations

import json as json_
import signal
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capemix.cli import options as opt
from capemix.cli.command import Commands
from capemix.errors import InputError, printable

if TYPE_CHECKING:
    from capemix.agent import SiteState
    from capemix.data import Cells, Dialect, LabeledRows, Table, UnlistedRows
    from capemix.ledger import Lineage
    from capemix.plan import Plan

site = Commands(help="A site of a federation: its rows and agent.")

Data = Annotated[
    str, typer.Option(help="The site's rows: a .csv, .tsv, .txt, .parquet or .npz file.")
]
LabelColumn = Annotated[str | None, typer.Option(help="Label column.", show_default=False)]
Written = Annotated[
    Path | None,
    typer.Option(
        "--written-as",
        metavar="SCHEMA",
        help="A schema, as `capemix schema draft` writes it of this site's file, that says how the"
        " file is written; nothing else of it is used [default: the plan's].",
        show_default=False,
    ),
]


def keygen(
    name: Annotated[str, typer.Option(help="The organisation's name.")],
    out: Annotated[Path, typer.Option(help="Folder for NAME.key and NAME.json.")],
    json: opt.Json = False,
) -> None:
    """A new identity: NAME.key to keep, NAME.json for the roster."""
    from capemix import documents
    from capemix.identity import new_identity
    from capemix.protocol.roster import Member

    if not name or any(c in name for c in "/\\\0") or name.startswith("."):
        raise InputError("--name", "must be a plain file name", value=name, fix="use letters")
    private, public = new_identity(name, out)
    identity = documents.read(Member, public, name="member").identity
    if json:
        print(json_.dumps({"key": str(private), "public": str(public), "identity": identity}))
    else:
        print(f"{private} (keep it to yourself)\n{public}\nidentity {identity}")


@site.command()
def check(
    data: Data,
    plan: Annotated[Path, typer.Option(help="plan.json, as the coordinator proposes it.")],
    label: LabelColumn = None,
    person: opt.Person = None,
    written: Written = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="What this site agrees to: would it take part?", show_default=False),
    ] = None,
    ledger: opt.LedgerFile = None,
    lineage: Annotated[
        str | None,
        typer.Option(
            help="Name of these rows in the ledger, if something was counted already.",
            show_default=False,
        ),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Look at the site's own rows against the public schema, and at the plan against its policy,
    before it joins."""
    from capemix.agent import rows_for
    from capemix.data import Faults, faults_of, naming_lines, unread
    from capemix.data.persons import check_persons, counted, people_of
    from capemix.engines.flower.files import read_plan_file
    from capemix.journal import plan_digest
    from capemix.private import PRIVATE

    proposed = read_plan_file(plan)
    facts, digest = proposed.facts, plan_digest(proposed)
    declined = None if policy is None else _declined(proposed, policy, ledger, lineage)
    table = facts.table
    dialect = _dialect(written)
    with naming_lines():
        check_persons(person is not None, facts.rows_per_person)
        cells = _cells(data, label, person, table, dialect)
        fit = rows_for(_coded(cells, table), facts)
        used = counted(fit, facts.rows_per_person, one_class=proposed.one_class)
        faults = Faults() if table is None else faults_of(data, table, dialect)
    lost = unread(cells, table)
    lost = {name: count for name, count in lost.items() if name in facts.features}
    counts = dict(zip(facts.class_words, used.class_counts().tolist(), strict=True))
    rows = len(used) + used.unfit
    report = {"rows": rows, "used": len(used), "private": PRIVATE}
    if used.persons is not None:
        report |= people_of(fit, used)
    if facts.label is not None:
        report |= {"classes": counts}
    report |= {"cells_that_are_no_number": lost, "digest": digest}
    if declined is not None:
        report["declined"] = declined
    if table is not None:
        report |= {"label": table.label_name, "outside_schema": table.strays(used)}
        report |= {"faults": asdict(faults)}
    if json:
        print(json_.dumps(report))
        return
    if facts.label is None:
        print(f"{rows} rows, of which {len(used)} count")
    else:
        where = "" if table is None else f", in '{printable(facts.label)}'"
        print(f"{rows} rows, of which {len(used)} have a class of the plan{where}:")
        for name, count in counts.items():
            print(f"  {printable(name)}: {count}")
    _show_columns(used)
    if used.persons is not None:
        print(
            f"{report['people']} people; none has more than {report['most_rows']} rows;"
            f" {report['beyond']} rows are beyond those that count of a person"
        )
    if fit.unfit:
        off_list = "" if facts.label is None else "their label is not on the plan's list, or "
        print(
            f"{fit.unfit} rows count for nothing: {off_list}a cell that must have a value has none"
        )
    for name, count in lost.items():
        print(f"  {printable(name)}: {count} cells have no value")
    if str(faults):
        print(faults)
    if table is not None and table.drafted:
        said = "confirmed by its owner" if table.is_confirmed else "NOT confirmed: decline it"
        print(f"The plan's schema was drafted from rows, and {said}.")
    if table is not None:
        print(f"The plan has a schema: start the agent with --plan {plan}, or it is declined.")
    print(f"plan {digest}")
    if declined is not None:
        _show_declined(declined)
    print("(for the site's own people; nothing of this is sent)")


def _declined(proposed: Plan, policy: Path, ledger: Path | None, lineage: str | None) -> list[str]:
    """Everything that this site's agent would hold against the plan."""
    from capemix import documents
    from capemix.ledger import Account, Ledger
    from capemix.protocol.policy import Policy
    from capemix.protocol.step import ReleaseStep

    limits = documents.read(Policy, policy, name="policy")
    account = Account(limits.limit)
    if lineage is not None:
        account = Ledger.open(ledger, create=False).lineage(lineage).account()
    return list(limits.objections(ReleaseStep.first_of(proposed), account))


def _show_declined(reasons: list[str]) -> None:
    print("The policy allows the plan." if not reasons else "The policy declines the plan:")
    for reason in reasons:
        print(f"  {printable(reason)}")


def _show_columns(rows: LabeledRows) -> None:
    """What the schema says of each column, and how many values it does not know."""
    if rows.table is None:
        return
    strays = rows.table.strays(rows)
    print("columns, as the plan's schema says, and how many values are none of these:")
    for column in rows.table.columns:
        print(f"  {printable(column.name)}: {printable(str(column))} ({strays[column.name]})")


@site.command()
def serve(
    number: Annotated[int, typer.Option(help="This site's place in the roster, from 0.")],
    identity: Annotated[Path, typer.Option(help="This site's NAME.key.")],
    roster: Annotated[Path, typer.Option(help="The roster, verified with the other sites.")],
    policy: Annotated[Path, typer.Option(help="What this site agrees to.")],
    data: Data,
    lineage: Annotated[
        str, typer.Option(help="Name of these rows in the ledger; the policy limits their budget.")
    ],
    socket: Annotated[Path, typer.Option(help="Unix socket to listen on.")],
    label: LabelColumn = None,
    person: opt.Person = None,
    written: Written = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="plan.json, if it codes rows by a schema: they are coded so, and for no other "
            "[default: rows of numbers].",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Group that may open the socket too, the SuperNode's [default: this user alone].",
            show_default=False,
        ),
    ] = None,
    ledger: opt.LedgerFile = None,
    new_lineage: Annotated[
        bool,
        typer.Option(
            "--new-lineage",
            help="Nothing of these rows was ever released: begin their budget, and a ledger.",
        ),
    ] = False,
    test_seed: Annotated[
        int | None, typer.Option(help="Reproducible noise, for tests: NOT private.")
    ] = None,
) -> None:
    """Hold the rows and answer the protocol, until stopped."""
    from capemix import documents
    from capemix.agent import SiteState
    from capemix.agent import serve as listen
    from capemix.identity import load_identity
    from capemix.protocol.agreement import public_bytes
    from capemix.protocol.policy import Policy
    from capemix.protocol.roster import Roster

    key, members = load_identity(identity), documents.read(Roster, roster, name="roster")
    if not 0 <= number < len(members.sites):
        raise InputError(
            "--number",
            f"must be from 0 to {len(members.sites) - 1}",
            value=number,
            fix="look it up",
        )
    if public_bytes(key) != members.sites[number].key:
        raise InputError(
            "--identity", "is not the roster's key for this site", value=number, fix="check both"
        )
    budget = _budget(ledger, lineage, new=new_lineage)
    state = SiteState(
        number=number,
        identity=key,
        roster=members,
        policy=documents.read(Policy, policy, name="policy"),
        rows=_rows(data, label, person, None if plan is None else _schema(plan), _dialect(written)),
        budget=budget,
        test_seed=test_seed,
    )
    print(f"ledger head {budget.ledger.head()}", flush=True)
    _warn_of_memory(state)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as a service is stopped
    server = listen(state, socket, group)
    try:
        which = "without a schema (one with a schema needs --plan)"
        if plan is not None:
            which = f"with the schema of {plan}, and no others"
        print(f"site {number} listens on {socket}, for plans {which}", flush=True)
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


@site.command()
def node(
    superlink: Annotated[str, typer.Option(help="The coordinator's address, HOST:PORT.")],
    authority: Annotated[Path, typer.Option(help="The coordinator's ca.pem.")],
    key: Annotated[
        Path, typer.Option(help="This SuperNode's key; made, with KEY.pub, if it is not there.")
    ],
    socket: Annotated[Path, typer.Option(help="The agent's socket.")],
    port: Annotated[int, typer.Option(help="A free port of loopback.")] = 9094,
    logs: Annotated[
        Path | None,
        typer.Option(help="Folder for what Flower's programs say.", show_default=False),
    ] = None,
) -> None:
    """Run the site's SuperNode, which relays to the agent, until stopped. It asks other accounts of
    this machine for a secret before it tells them anything."""
    if find_spec("flwr") is None:
        raise InputError("flwr", "is not installed", fix="pip install 'capemix[flower]'")
    from capemix.engines.flower.standing import new_node_key, run_node

    if not key.exists():
        public = new_node_key(key)
        print(f"{public} is for the coordinator; once it is registered, start this again")
        return
    run_node(superlink, authority.absolute(), key.absolute(), socket.absolute(), port, logs)


def _warn_of_memory(state: SiteState) -> None:
    """For the site's own people: a plan that does not fit fails after it is charged, and by how
    many rows there are."""
    from capemix.kernels.machine import memory

    rows = state.rows.features.nbytes
    most = state.policy.largest_memory_bytes + 3 * rows  # as read, by the plan, on the lattice
    if most > memory():
        typer.echo(
            f"warning: the rows and the largest plan that the policy allows may take"
            f" {most / 1e9:.3g} GB, and this machine has {memory() / 1e9:.3g} GB; lower the"
            " policy's largest_memory_bytes",
            err=True,
        )


def _rows(
    data: str,
    label: str | None,
    person: str | None,
    table: Table | None,
    dialect: Dialect | None,
) -> UnlistedRows | LabeledRows:
    """A site's file: coded by a schema, or as numbers with labels whose list the plan will have."""
    return _coded(_cells(data, label, person, table, dialect), table)


def _cells(
    data: str,
    label: str | None,
    person: str | None,
    table: Table | None,
    dialect: Dialect | None,
) -> Cells:
    from capemix.data import open_cells, open_table, with_person

    if table is not None:
        return open_table(data, table, label, dialect, person)
    also = () if person is None else (person,)
    cells = open_cells(data, label, also, dialect)
    return cells if person is None else with_person(cells, person)


def _coded(cells: Cells, table: Table | None) -> UnlistedRows | LabeledRows:
    from capemix.data import UnlistedRows

    return UnlistedRows.of(cells, cells.label) if table is None else table.rows(cells)


def _dialect(schema: Path | None) -> Dialect | None:
    """How the site's own file is written, if a schema of its own says so."""
    from capemix.data import Table

    if schema is None:
        return None
    found = Table.read(schema).file
    if found is None:
        raise InputError(
            "--written-as",
            "does not say how a file is written",
            value=schema,
            fix="draft a schema of the site's file, or leave the option out",
        )
    return found


def _schema(plan: Path) -> Table:
    """What the agent codes its rows by. Its people have read it: it takes part by no other."""
    from capemix.engines.flower.files import read_plan_file

    found = read_plan_file(plan).facts.table
    if found is None:
        raise InputError(
            "--plan", "has no schema to code rows by", value=plan, fix="leave the option out"
        )
    return found


def _budget(ledger: Path | None, name: str, *, new: bool) -> Lineage:
    """The lineage that the agent charges. One that is not there would be a fresh budget: a file
    that was deleted, or a name mistyped, must not pass for a beginning."""
    from capemix.ledger import Ledger
    from capemix.ledger.ledger import default_path

    where = default_path() if ledger is None else ledger
    known = where.exists() and name in Ledger.open(where).accounts()
    if not known and not new:
        raise InputError(
            "--lineage",
            f"is not in the ledger {where}" if where.exists() else f"has no ledger at {where}",
            value=name,
            fix="put the ledger back, or say --new-lineage if nothing was ever counted",
        )
    if known and new:
        raise InputError(
            "--new-lineage",
            "is for rows that the ledger does not know yet",
            value=name,
            fix="leave it out, and out of whatever starts the agent",
        )
    return Ledger.open(ledger).lineage(name)
