"""What a coordinator types: propose a plan, make the app's folder, try it all on one machine."""

from __future__ import annotations

import json as json_
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capemix.cli import options as opt
from capemix.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capemix.data import DatasetInfo, LabeledRows, Table
    from capemix.engines.flower.files import Outcome
    from capemix.plan import Asked

Federated = Annotated[
    opt.FederatedName, typer.Option(help="One sum of mixed rows, or rounds of moments.")
]

federate = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="A federation on Flower: its coordinator."
)


@federate.command()
@opt.with_options(opt.Mixing)
def plan(
    mixing: opt.Mixing,
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The file to write, for example plan.json.")],
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    sites: Annotated[int, typer.Option(help="S: sites.")],
    features: Annotated[
        str | None,
        typer.Option(
            help="Names of the columns, a,b,c; or HEIGHTxWIDTH for images.", show_default=False
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Name of the label column.", show_default=False)
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="Names of the classes, in order: a,b,c.", show_default=False),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="In place of these, what is public of a table's columns (for moments).",
            show_default=False,
        ),
    ] = None,
    class_sizes: Annotated[
        str | None,
        typer.Option(
            help="Public sizes of the classes over all sites, or one for all "
            "[default: for moments, paid for].",
            show_default=False,
        ),
    ] = None,
    synthesizer: Federated = "mixing",
    upright: opt.Upright = None,
    json: opt.Json = False,
) -> None:
    """Write down what is proposed to the sites, from public facts only."""
    from capemix.cli.show import spinner
    from capemix.engines.flower.files import plan_text

    about = _about(schema, {"features": features, "label": label, "classes": classes})
    width, kinds = about.width, about.classes
    with spinner("calibrating", quiet=json):
        made = _cape_plan(
            synthesizer,
            epsilon,
            mixing.asked(width, _map(mixing, about.table)),
            opt.given(context),
            width=width,
            classes=kinds,
            class_sizes=None if class_sizes is None else opt.parse_sizes(class_sizes, len(kinds)),
            sites=sites,
            shape=about.image_shape,
            upright=upright,
            table=about.table,
        )
    _write(out, plan_text(made, about.schema()))
    _show_guarantee(made, json, {"plan": str(out)})


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
    _show_digest(made.digest().hex(), json)


@federate.command()
def digest(
    roster: Annotated[Path, typer.Argument(metavar="ROSTER", help="roster.json.")],
    json: opt.Json = False,
) -> None:
    """What members compare with each other, by voice: the same roster has the same digest."""
    from capemix import documents
    from capemix.protocol.roster import Roster

    found = documents.read(Roster, roster, name="roster")
    _show_digest(found.digest().hex(), json)


def _show_digest(found: str, as_json: bool) -> None:
    if as_json:
        print(json_.dumps({"digest": found}))
    else:
        print("roster " + " ".join(found[at : at + 4] for at in range(0, len(found), 4)))


@federate.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Absent or empty.")],
    plan: Annotated[Path, typer.Option(help="plan.json, of `capemix federate plan`.")],
    json: opt.Json = False,
) -> None:
    """A folder to run a federation from: Flower app, roster and policy templates."""
    from capemix.engines.flower.app_folder import write_federation
    from capemix.engines.flower.files import read_plan_file

    written = write_federation(folder, *read_plan_file(plan))
    if json:
        print(json_.dumps({"files": [str(path) for path in written]}))
        return
    for path in written:
        print(path)
    print(
        "Next: the members' roster.json and your coordinator.key go there; "
        "see docs/guide/federation.md."
    )


@federate.command()
@opt.with_options(opt.Table, opt.Mixing, opt.Counted)
def local(
    table: opt.Table,
    mixing: opt.Mixing,
    counted: opt.Counted,
    context: typer.Context,
    sites: Annotated[int, typer.Option(help="S: sites.")],
    out: Annotated[Path, typer.Option(help="Folder to write: absent or empty.")],
    epsilon: Annotated[float, typer.Option(help="The budget.")] = 10.0,
    engine: Annotated[
        opt.EngineName,
        typer.Option(help="SuperNodes as at the sites, or Flower's simulation of them, on Ray."),
    ] = "deployment",
    synthesizer: Federated = "mixing",
    schema: opt.Schema = None,
    upright: opt.Upright = None,
    round_seconds: Annotated[float, typer.Option(help="How long a round waits.")] = 120.0,
    logs: Annotated[
        Path | None, typer.Option(help="Folder for what the processes say.", show_default=False)
    ] = None,
    json: opt.Json = False,
) -> None:
    """A whole federation on this machine, on loopback: agents, and a SuperLink with SuperNodes that
    prove who they are, over TLS; or with simulated ones."""
    if find_spec("flwr") is None:
        raise InputError("flwr", "is not installed", fix="pip install 'capemix[flower]'")
    from capemix.api import budget_of, check_countable
    from capemix.engines.flower.local import run_on_loopback
    from capemix.randomness.source import SeededSource
    from capemix.release import check_output

    check_output(out)
    opened = table.open(schema)
    asked = counted.asked(opened.info)
    rows, _ = opened.declared()
    width = rows.width
    parts = table.deal(opened, sites)
    made = _cape_plan(
        synthesizer,
        epsilon,
        mixing.asked(width, _map(mixing, rows.table, opened.info)),
        opt.given(context),
        width=width,
        classes=rows.classes,
        class_sizes=table.sizes(opened),
        sites=sites,
        shape=rows.image_shape,
        upright=opt.is_upright(upright, synthesizer, opened.info),
        table=rows.table,
    )
    seed = table.test_seed
    budget = budget_of(**asked, source=None if seed is None else SeededSource(seed))
    check_countable(budget, rows.read_from_rows)
    if budget is not None:  # all sites' rows are this one user's
        budget.charge("trial federation", made.cost(budget.relation))
    outcome = run_on_loopback(
        made,
        parts,
        out,
        engine=engine,
        test_seed=table.test_seed,
        round_seconds=round_seconds,
        logs=logs,
        watch=None if json else _Narrator(),
    )
    found = {"out": str(out), "included": outcome.included, "lost": outcome.lost}
    _show_guarantee(made, json, found, seeded=table.test_seed is not None)


class _Narrator:
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


def _cape_plan(
    synthesizer: str, epsilon: float, asked: dict[str, Any], typed: list[str], **facts: Any
) -> Asked:
    """``typed`` are the options that were given."""
    from capemix.engines.flower.files import check_fits
    from capemix.moments import check_room
    from capemix.plan import make_moments_plan, make_plan
    from capemix.plan.images import Images
    from capemix.synthesizers.names import SynthesizerName

    if not 0 < epsilon < float("inf"):
        raise InputError("--epsilon", "must be above 0 and finite", value=epsilon, fix="set one")
    shape, upright = facts.pop("shape"), bool(facts.pop("upright"))
    table = facts.pop("table")
    if table is not None and synthesizer != SynthesizerName.MOMENTS:
        raise InputError(
            "--schema",
            "needs a synthesizer that restores categories",
            value=synthesizer,
            fix="use --synthesizer moments",
        )
    if synthesizer != "mixing":
        facts["table"] = table
        facts["images"] = Images.of(
            SynthesizerName.named(synthesizer),
            facts["width"],
            None if shape is None else tuple(shape),
            upright,
        )
        for name in ("mixture", "clip", "redraw"):
            if name in typed:
                raise InputError(
                    f"--{name}", "has no meaning for moments", value=asked[name], fix="leave it out"
                )
            del asked[name]
        if "samples" not in typed:
            del asked["samples"]
        made = make_moments_plan(scheme="cape", **asked, **facts)
        check_fits(made)
        check_room(made)
        return made.calibrate(epsilon)
    if facts["class_sizes"] is None:
        raise InputError("--class-sizes", "must be declared to mix rows", fix="give public sizes")
    return make_plan(scheme="cape", **asked, **facts).calibrate(epsilon)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError:
        raise InputError("--out", "cannot be written", value=path, fix="name a file") from None


def _map(mixing: opt.Mixing, table: Table | None, info: DatasetInfo | None = None) -> Any:
    """By the ranges that a schema declares, or by one for all columns."""
    from capemix.synthesizers.tables import map_of

    if table is None:
        return mixing.public_map(info)
    for option, given in (("range", mixing.public_range), ("center", mixing.public_center)):
        if given is not None:
            raise InputError(
                f"--public-{option}", "is the schema's to say", value=given, fix="leave it out"
            )
    return map_of(table)


def _about(schema: Path | None, named: dict[str, str | None]) -> LabeledRows:
    """What is public of the rows that a plan is for: as a schema says, or as ``named``."""
    import numpy as np

    from capemix.data import LabeledRows, Table

    for option, given in named.items():
        if (given is None) == (schema is None):
            raise InputError(
                f"--{option}",
                "must be given, or a schema" if schema is None else "is the schema's to say",
                value=given,
                fix="write it, or give --schema" if schema is None else "leave it out",
            )
    if schema is not None:
        return Table.read(schema).no_rows()
    names, shape = _features(str(named["features"]))
    return LabeledRows(
        features=np.empty((0, len(names))),
        labels=np.empty(0, dtype=np.int64),
        classes=opt.parse_names("--classes", str(named["classes"])) or (),
        feature_names=tuple(names),
        label_name=str(named["label"]),
        image_shape=None if shape is None else (shape[0], shape[1]),
    )


def _features(text: str) -> tuple[list[str], list[int] | None]:
    from capemix.data.rows import pixel_names

    height, by, width = text.partition("x")
    if by and height.isdigit() and width.isdigit() and int(height) and int(width):
        return list(pixel_names((int(height), int(width)))), [int(height), int(width)]
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise InputError(
            "--features", "must be distinct names", value=text, fix="write a,b,c or 28x28"
        )
    return names, None


def _show_guarantee(
    made: Asked, as_json: bool, found: dict[str, Any], *, seeded: bool = False
) -> None:
    guarantee = made.guarantee(seeded=seeded)
    facts = {
        **found,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "relation": str(guarantee.relation),
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
