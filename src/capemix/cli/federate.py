"""What a coordinator types: propose a plan, make the app's folder, try it all on one machine."""

from __future__ import annotations

import json as json_
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from capemix.cli import options as opt
from capemix.cli.calibrate import parse_features
from capemix.cli.command import Commands, MethodCommand, is_quiet, method_asked
from capemix.cli.synth import facts_of
from capemix.errors import InputError, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capemix.engines.flower.files import Outcome
    from capemix.facts import Facts
    from capemix.ledger import Lineage
    from capemix.methods import Method
    from capemix.plan import Plan
    from capemix.protocol.roster import Roster

Sites = Annotated[int, typer.Option(help="Number of sites.")]


class FederatedCommand(MethodCommand):
    """A federation is planned against who may collude and drop out: its help says so."""

    shown: ClassVar[tuple[str | None, ...]] = (None, opt.SITES)


federate = Commands(help="A federation on Flower: its coordinator.")


@federate.command(cls=FederatedCommand)
@opt.with_options(opt.MethodName, opt.DeclaredFacts, opt.Adversary)
def plan(
    _named: opt.MethodName,
    declared: opt.DeclaredFacts,
    adversary: opt.Adversary,
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The file to write, for example plan.json.")],
    epsilon: Annotated[float, typer.Option(help="The privacy budget.")],
    sites: Sites,
    features: Annotated[
        str | None,
        typer.Option(
            help="Names of the columns, a,b,c; or HEIGHTxWIDTH for images.", show_default=False
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Name of the label column.", show_default=False)
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="In place of these, what is public of a table's columns.", show_default=False
        ),
    ] = None,
    rows_per_person: opt.RowsPerPerson = None,
    delta: opt.Delta = 1e-5,
    json: opt.Json = False,
) -> None:
    """Write down what is proposed to the sites, from public facts only."""
    from capemix.cli.progress import spinner
    from capemix.engines.flower.files import plan_text
    from capemix.journal import plan_digest

    facts = _declared_facts(schema, features, label, declared, rows_per_person)
    method = method_asked(context).method(facts, scheme="cape")
    with spinner("calibrating", quiet=json):
        made = _cape_plan(facts, method, epsilon, sites=sites, delta=delta, **adversary.who())
    _write(out, plan_text(made))
    _show_guarantee(made, json, {"plan": str(out), "digest": plan_digest(made)})


@federate.command()
def roster(
    coordinator: Annotated[Path, typer.Option(help="The coordinator's NAME.json, of keygen.")],
    site: Annotated[list[Path], typer.Option(help="A site's NAME.json; one for each, in order.")],
    out: Annotated[Path, typer.Option(help="The file to write, for example roster.json.")],
    json: opt.Json = False,
) -> None:
    """Put the members' public keys together, in the order that numbers the sites."""
    from capemix import documents
    from capemix.protocol.roster import Member, Roster

    first, *others = (
        documents.read(Member, path, name=f"member {path.name}") for path in (coordinator, *site)
    )
    made = Roster(first, tuple(others))
    _write(out, json_.dumps(documents.as_json(made), indent=2) + "\n")
    _show_roster(made, json)


@federate.command()
def digest(
    roster: Annotated[Path, typer.Argument(metavar="ROSTER", help="roster.json.")],
    json: opt.Json = False,
) -> None:
    """What members compare with each other, by voice: the same members have the same digest."""
    from capemix import documents
    from capemix.protocol.roster import Roster

    _show_roster(documents.read(Roster, roster, name="roster"), json)


def _show_roster(found: Roster, as_json: bool) -> None:
    """The digest, and all that it covers."""
    digest = found.digest().hex()
    members = {"coordinator": found.coordinator}
    members |= {f"site {number}": member for number, member in enumerate(found.sites)}
    if as_json:
        covers = {who: {"name": m.name, "identity": m.identity} for who, m in members.items()}
        print(json_.dumps({"digest": digest, "members": covers}))
        return
    print("roster " + " ".join(digest[at : at + 4] for at in range(0, len(digest), 4)))
    print(f"of {len(found.sites)} sites:")
    for who, member in members.items():
        print(f"  {who}: {printable(member.name)}, {member.identity}")


@federate.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Absent or empty.")],
    plan: Annotated[Path, typer.Option(help="plan.json, of `capemix federate plan`.")],
    roster: Annotated[
        Path | None,
        typer.Option(help="roster.json, of `capemix federate roster`.", show_default=False),
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option(help="The coordinator's NAME.key, which is copied.", show_default=False),
    ] = None,
    json: opt.Json = False,
) -> None:
    """A folder to run a federation from: plan, roster, key, Flower app, and a policy for sites to
    start from."""
    from capemix import documents
    from capemix.engines.flower.app_folder import write_federation
    from capemix.engines.flower.files import read_plan_file
    from capemix.protocol.roster import Roster

    made = read_plan_file(plan)
    members = None if roster is None else documents.read(Roster, roster, name="roster")
    written = write_federation(folder, made, members, identity)
    if json:
        print(json_.dumps({"files": [str(path) for path in written]}))
        return
    for path in written:
        print(path)
    missing = [
        name for name, at in (("roster.json", roster), ("coordinator.key", identity)) if not at
    ]
    if missing:
        print(f"Next: {' and '.join(missing)} go there; see docs/guide/federation.md.")


@federate.command(cls=FederatedCommand)
@opt.with_options(
    opt.DataOptions,
    opt.People,
    opt.MethodName,
    opt.DeclaredFacts,
    opt.Counted,
    opt.Adversary,
    opt.Dealing,
)
def local(
    data: opt.DataOptions,
    people: opt.People,
    _named: opt.MethodName,
    declared: opt.DeclaredFacts,
    counted: opt.Counted,
    adversary: opt.Adversary,
    dealing: opt.Dealing,
    context: typer.Context,
    sites: Sites,
    out: opt.Out,
    epsilon: Annotated[float, typer.Option(help="The privacy budget.")] = 10.0,
    engine: Annotated[
        opt.EngineName,
        typer.Option(help="SuperNodes as at the sites, or Flower's simulation of them, on Ray."),
    ] = "deployment",
    delta: opt.Delta = 1e-5,
    round_seconds: Annotated[
        float, typer.Option(help="How long a round waits.", rich_help_panel=opt.SITES)
    ] = 120.0,
    logs: Annotated[
        Path | None,
        typer.Option(
            help="Folder for what the processes say.",
            show_default=False,
            rich_help_panel=opt.SITES,
        ),
    ] = None,
    single_user: Annotated[
        bool,
        typer.Option(
            "--single-user",
            help="Nobody else has an account on this machine: needed where the system cannot close"
            " loopback to others.",
            rich_help_panel=opt.SITES,
        ),
    ] = False,
    json: opt.Json = False,
) -> None:
    """A whole federation on this machine, on loopback: agents, and a SuperLink with SuperNodes that
    prove who they are, over TLS; or with simulated ones."""
    check_flower()
    from capemix.engines.flower.local import run_on_loopback
    from capemix.release import check_output, read_release

    check_output(out)
    opened = data.open(declared, dealing, people)
    rows, _ = opened.declared()
    parts = dealing.deal(opened, sites, data.test_seed)
    facts = facts_of(opened, declared, people)
    known: dict[str, Any] = {} if opened.info is None else {"deskew": opened.info.handwriting}
    method = method_asked(context).method(facts, scheme="cape", **known)
    made = _cape_plan(facts, method, epsilon, sites=sites, delta=delta, **adversary.who())
    lineage = counted.account(known=opened.info is not None, ask=not json)
    seeded = data.test_seed is not None
    if lineage is not None:  # all sites' rows are this one user's
        _charge(lineage, made, rows.read_from_rows, seeded=seeded)
    outcome = run_on_loopback(
        made,
        parts,
        out,
        engine=engine,
        test_seed=data.test_seed,
        round_seconds=round_seconds,
        logs=logs,
        watch=None if json or is_quiet() else Narrator(),
        single_user=single_user,
    )
    found = {"out": str(out), "included": outcome.included, "lost": outcome.lost}
    warnings = read_release(out).manifest.warnings
    _show_guarantee(
        made, json, found | {"warnings": list(warnings)} if json else found, seeded=seeded
    )
    for warning in () if json else warnings:
        typer.echo(f"Warning: {warning}.")


def check_flower() -> None:
    if find_spec("flwr") is None:
        raise InputError("flwr", "is not installed", fix="pip install 'capemix[flower]'")


def _charge(lineage: Lineage, made: Plan, read_from_rows: tuple[str, ...], *, seeded: bool) -> None:
    """All of its sums, before the first is asked for: what is drawn after facts were measured,
    whose curve is not known yet, by the plan's own epsilon."""
    from capemix.accounting.cost import together
    from capemix.run import check_countable

    check_countable(lineage, read_from_rows, seeded=seeded)
    whole = made.cost_alone(lineage.relation) or together(made.costs(lineage.relation))
    lineage.charge("trial federation", whole)


class Narrator:
    """A line for each round, as it ends, and now and then one for the round that is open."""

    def __init__(self) -> None:
        self._told = -1
        self._quiet_until = 0.0

    def __call__(self, outcome: Outcome, _nodes: Mapping[int, int]) -> None:
        import time

        if self._told < 0:
            typer.echo("the coordinator is up and waits for the sites", err=True)
            self._told = 0
        for done in outcome.rounds[self._told :]:
            typer.echo(str(done), err=True)
        self._told = len(outcome.rounds)
        if outcome.progress is not None and time.monotonic() > self._quiet_until:
            self._quiet_until = time.monotonic() + 10.0
            typer.echo(str(outcome.progress), err=True)


# -- from options to values ------------------------------------------------------------------------


def _cape_plan(facts: Facts, method: Method, epsilon: float, **who: Any) -> Plan:
    """A calibrated plan that sites can carry out."""
    from capemix.engines.flower.files import check_fits
    from capemix.plan import make_plan
    from capemix.run import check_room

    if not 0 < epsilon < float("inf"):
        raise InputError("epsilon", "must be above 0 and finite", value=epsilon, fix="set one")
    made = make_plan(facts, method, scheme="cape", **who)
    check_fits(made)
    check_room(made)
    return made.calibrate(epsilon)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError:
        raise InputError("out", "cannot be written", value=path, fix="name a file") from None


def _declared_facts(
    schema: Path | None,
    features: str | None,
    label: str | None,
    declared: opt.DeclaredFacts,
    rows_per_person: int | None,
) -> Facts:
    """What is public of the rows that a plan is for: as a schema says, or by names."""
    from capemix.data import Table
    from capemix.facts import Facts

    named = {"features": features, "label": label, "classes": declared.classes}
    for field, given in named.items():
        if (given is None) == (schema is None):
            raise InputError(
                field,
                "must be given, or a schema" if schema is None else "is the schema's to say",
                value=given,
                fix="write it, or give --schema" if schema is None else "leave it out",
            )
    if schema is not None:
        declared.refuse_beside_schema()
        rows = Table.read(schema).no_rows()
        sizes = declared.sizes(rows.classes)
        return Facts.of(rows, class_sizes=sizes, rows_per_person=rows_per_person)
    names, shape = parse_features(str(features))
    classes = opt.parse_names("classes", declared.classes)
    return Facts(
        features=names,
        label=str(label),
        classes=classes,
        class_sizes=declared.sizes(classes),
        normalise=declared.public_map(),
        image_shape=shape,
        rows_per_person=rows_per_person,
    )


def _show_guarantee(
    made: Plan, as_json: bool, found: dict[str, Any], *, seeded: bool = False
) -> None:
    guarantee = made.guarantee(seeded=seeded)
    facts = {
        **found,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "relation": str(guarantee.relation),
        "unit": guarantee.unit,
        "status": str(guarantee.status),
        "sites": made.federation.sites,
        "colluding": made.federation.colluding,
        "dropouts": made.federation.dropouts,
        "price": guarantee.adversary.price,
    }
    if as_json:
        print(json_.dumps(facts))
    else:
        from capemix.cli.show import print_facts

        print_facts(facts)
