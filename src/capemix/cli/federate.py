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

    from capemix.engines.flower.files import Outcome
    from capemix.plan import Plan

federate = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="A federation on Flower: its coordinator."
)

Clip = Annotated[
    float | None,
    typer.Option(
        help="C: l2 norm to which rows are clipped, after the public map "
        "[default: half of sqrt(features) with a range, else 1].",
        show_default=False,
    ),
]
PublicRange = Annotated[
    str | None,
    typer.Option(
        help="LO,HI: values a feature can take, declared public.",
        show_default=False,
    ),
]


@federate.command()
def plan(
    out: Annotated[Path, typer.Option(help="The file to write, for example plan.json.")],
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    sites: Annotated[int, typer.Option(help="S: sites.")],
    features: Annotated[
        str, typer.Option(help="Names of the columns, a,b,c; or HEIGHTxWIDTH for images.")
    ],
    label: Annotated[str, typer.Option(help="Name of the label column.")],
    classes: Annotated[str, typer.Option(help="Names of the classes, in order: a,b,c.")],
    class_sizes: Annotated[
        str, typer.Option(help="Public sizes of the classes over all sites, or one for all.")
    ],
    delta: opt.Delta = 1e-5,
    mixture: opt.Mixture = 16,
    samples: opt.Samples = 1000,
    clip: Clip = None,
    colluding: opt.Colluding = None,
    dropouts: opt.Dropouts = 0,
    public_range: PublicRange = None,
    json: opt.Json = False,
) -> None:
    """Write down what is proposed to the sites, from public facts only."""
    from capemix.cli.show import spinner
    from capemix.engines.flower.files import plan_text

    names, shape = _features(features)
    kinds = _classes(classes)
    with spinner("calibrating", quiet=json):
        made = _cape_plan(
            epsilon,
            width=len(names),
            classes=kinds,
            class_sizes=opt.parse_sizes(class_sizes, len(kinds)),
            sites=sites,
            delta=delta,
            mixture=mixture,
            samples=samples,
            clip=clip,
            colluding=colluding,
            dropouts=dropouts,
            public_range=_range(public_range),
        )
    schema = {"features": names, "label": label, "image_shape": shape}
    try:
        out.write_text(plan_text(made, schema))
    except OSError:
        raise InputError("--out", "cannot be written", value=out, fix="name a file") from None
    _show_guarantee(made, json, {"plan": str(out)})


@federate.command()
def roster(
    coordinator: Annotated[Path, typer.Option(help="The coordinator's NAME.json, of keygen.")],
    site: Annotated[list[Path], typer.Option(help="A site's NAME.json; one for each, in order.")],
    out: Annotated[Path, typer.Option(help="The file to write, for example roster.json.")],
    json: opt.Json = False,
) -> None:
    """Put the members' public keys together, in the order that numbers the sites."""
    from capemix.protocol.roster import Roster

    def member(path: Path) -> Any:
        try:
            return json_.loads(path.read_text())
        except (OSError, ValueError, RecursionError):
            raise InputError(
                "member", "cannot be read", value=path, fix="name the NAME.json of keygen"
            ) from None

    found = {"coordinator": member(coordinator), "sites": [member(path) for path in site]}
    made = Roster.from_json(json_.dumps(found))
    try:
        out.write_text(json_.dumps(made.as_json(), indent=2) + "\n")
    except OSError:
        raise InputError("--out", "cannot be written", value=out, fix="name a file") from None
    _show_digest(made.digest().hex(), json)


@federate.command()
def digest(
    roster: Annotated[Path, typer.Argument(metavar="ROSTER", help="roster.json.")],
    json: opt.Json = False,
) -> None:
    """What members compare with each other, by voice: the same roster has the same digest."""
    from capemix.protocol.roster import Roster

    try:
        text = roster.read_text()
    except (OSError, ValueError):
        raise InputError("ROSTER", "cannot be read", value=roster, fix="name a file") from None
    _show_digest(Roster.from_json(text).digest().hex(), json)


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
        "Next: the members' roster.json and your coordinator.key go there; see docs/federation.md."
    )


@federate.command()
def local(
    sites: Annotated[int, typer.Option(help="S: sites.")],
    out: Annotated[Path, typer.Option(help="Folder to write: absent or empty.")],
    epsilon: Annotated[float, typer.Option(help="The budget.")] = 10.0,
    data: Annotated[
        str, typer.Option(help="digits, mnist, fashion-mnist, or a .csv, .parquet or .npz file.")
    ] = "digits",
    label: Annotated[
        str | None, typer.Option(help="Label column of a file.", show_default=False)
    ] = None,
    delta: opt.Delta = 1e-5,
    mixture: opt.Mixture = 16,
    samples: opt.Samples = 1000,
    clip: Clip = None,
    colluding: opt.Colluding = None,
    dropouts: opt.Dropouts = 0,
    masks: opt.Masks = None,
    public_range: PublicRange = None,
    class_sizes: opt.ClassSizes = None,
    partition: Annotated[str, typer.Option(help="iid, stratified or dirichlet.")] = "stratified",
    alpha: Annotated[float, typer.Option(help="Dirichlet parameter: smaller is skewer.")] = 0.1,
    engine: Annotated[
        opt.EngineName,
        typer.Option(help="SuperNodes as at the sites, or Flower's simulation of them, on Ray."),
    ] = "deployment",
    round_seconds: Annotated[float, typer.Option(help="How long a round waits.")] = 120.0,
    logs: Annotated[
        Path | None, typer.Option(help="Folder for what the processes say.", show_default=False)
    ] = None,
    test_seed: Annotated[
        int | None,
        typer.Option(help="Reproducible noise, for tests: NOT private.", show_default=False),
    ] = None,
    json: opt.Json = False,
) -> None:
    """A whole federation on this machine, on loopback: agents, and a SuperLink with SuperNodes that
    prove who they are, over TLS; or with simulated ones."""
    if find_spec("flwr") is None:
        raise InputError("flwr", "is not installed", fix="pip install 'capemix[flower]'")
    from capemix.data import open_data
    from capemix.data import partition as deal
    from capemix.engines.flower.local import run_on_loopback
    from capemix.release import check_output

    check_output(out)
    loaded = open_data(data, label)
    rows = loaded.train
    if class_sizes is not None:
        sizes = opt.parse_sizes(class_sizes, len(rows.classes))
    elif loaded.info is not None:
        sizes = loaded.info.class_sizes
    else:
        raise InputError("--class-sizes", "must be declared for a file", fix="give public sizes")
    value_range = _range(public_range)
    if value_range is None and loaded.info is not None:
        value_range = loaded.info.value_range
    parts = deal(rows, sites, partition, alpha=alpha, seed=test_seed or 0)  # type: ignore[arg-type]
    made = _cape_plan(
        epsilon,
        width=rows.width,
        classes=rows.classes,
        class_sizes=sizes,
        sites=sites,
        delta=delta,
        mixture=mixture,
        samples=samples,
        clip=clip,
        colluding=colluding,
        dropouts=dropouts,
        masks=masks,
        public_range=value_range,
    )
    outcome = run_on_loopback(
        made,
        parts,
        out,
        engine=engine,
        test_seed=test_seed,
        round_seconds=round_seconds,
        logs=logs,
        watch=None if json else _Narrator(),
    )
    found = {"out": str(out), "included": outcome.included, "lost": outcome.lost}
    _show_guarantee(made, json, found, seeded=test_seed is not None)


class _Narrator:
    """A line for each round, as it ends."""

    def __init__(self) -> None:
        self._told = -1

    def __call__(self, outcome: Outcome, _nodes: Mapping[int, int]) -> None:
        from capemix.engines.flower.files import describe_round

        if self._told < 0:
            typer.echo("the coordinator is up and waits for the sites", err=True)
            self._told = 0
        for done in outcome.rounds[self._told :]:
            typer.echo(describe_round(done), err=True)
        self._told = len(outcome.rounds)


# -- from options to values ------------------------------------------------------------------------


def _cape_plan(
    epsilon: float,
    *,
    width: int,
    clip: float | None,
    public_range: tuple[float, float] | None,
    **asked: Any,
) -> Plan:
    from capemix.plan import make_plan
    from capemix.prepare.steps import PublicMap

    if not 0 < epsilon < float("inf"):
        raise InputError("--epsilon", "must be above 0 and finite", value=epsilon, fix="set one")
    if clip is None:
        clip = 1.0 if public_range is None else 0.5 * width**0.5
    normalise = PublicMap() if public_range is None else PublicMap.of_range(*public_range)
    made = make_plan(scheme="cape", width=width, clip=clip, normalise=normalise, **asked)
    return made.calibrate(epsilon)


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            "--public-range", "must be two numbers", value=text, fix="write LO,HI"
        ) from None
    return low, high


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


def _classes(text: str) -> tuple[str | int, ...]:
    """Whole numbers are numbers if all of them are, as when rows are read."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise InputError("--classes", "must be distinct names", value=text, fix="write a,b,c")
    try:
        return tuple(int(name) for name in names)
    except ValueError:
        return tuple(names)


def _show_guarantee(
    made: Plan, as_json: bool, found: dict[str, Any], *, seeded: bool = False
) -> None:
    guarantee = made.guarantee(seeded=seeded)
    facts = {
        **found,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "status": str(guarantee.status),
        "sites": made.federation.sites,
        "colluding": made.federation.colluding,
        "dropouts": made.federation.dropouts,
    }
    if as_json:
        print(json_.dumps(facts))
    else:
        from capemix.cli.show import print_facts

        print_facts(facts)
