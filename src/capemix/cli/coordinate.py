"""What a coordinator types while a federation stands: the SuperLink, who is let in, a run."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from capemix.cli import options as opt
from capemix.cli.command import is_quiet
from capemix.cli.federate import Narrator, check_flower
from capemix.errors import InputError, printable

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The federation's folder, of `federate init`.")
]


def serve(
    folder: Folder,
    host: Annotated[str, typer.Option(help="The name by which the sites reach this host.")],
    door: Annotated[
        Path, typer.Option(help="Unix socket for the reverse proxy that lets the sites in.")
    ],
    group: Annotated[
        str | None,
        typer.Option(
            help="Group that may open the door, the proxy's [default: this user alone].",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the SuperLink, closed to other accounts of this machine, until stopped; the first time,
    make its certificate."""
    check_flower()
    from capemix.engines.flower.standing import LinkFolder

    LinkFolder.of(folder).serve(host, door.absolute(), group)


def register(
    folder: Folder,
    node: Annotated[list[Path], typer.Argument(help="A site's node.pub; several, one by one.")],
) -> None:
    """Let sites' SuperNodes in, by the public halves of their keys."""
    check_flower()
    from capemix.engines.flower.standing import LinkFolder

    for public in node:
        LinkFolder.of(folder).register(public)
        print(f"{public} is registered")


def run(
    folder: Folder,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the release [default: DIR/release, and then DIR/release-2, ...].",
            show_default=False,
        ),
    ] = None,
    give_up: Annotated[
        bool,
        typer.Option(
            "--give-up",
            help="End the release that was begun at --out; sites take back what they can.",
        ),
    ] = False,
    json: opt.Json = False,
) -> None:
    """Propose the plan to the sites, and wait for the release or the reason why there is none. A
    release that was begun at --out is gone on with."""
    check_flower()
    if give_up and out is None:
        raise InputError("out", "must be given", fix="name the release that is given up")
    import time

    from capemix.engines.flower.files import RUNNING, Outcome
    from capemix.engines.flower.standing import LinkFolder

    link = LinkFolder.of(folder)
    target = link.next_release() if out is None else out.absolute()
    link.start_run(target, give_up=give_up)
    tell = None if json or is_quiet() else Narrator()
    while (found := Outcome.read(target)) is not None and found.status == RUNNING:
        if tell is not None:
            tell(found, {})
        time.sleep(1.0)
    outcome(target, json=json)


def outcome(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="The run's OUT folder.")],
    json: opt.Json = False,
) -> None:
    """How far a run is, or how it ended; exits with 0 where it released or still runs."""
    from capemix import documents
    from capemix.engines.flower.files import DIED, RELEASED, RUNNING, STOPPED, Outcome, listed
    from capemix.engines.flower.unfinished import Unfinished

    found = Outcome.read(release)
    if found is None:
        raise InputError(
            "RELEASE",
            "has no outcome",
            value=Outcome.path(release),
            fix="name the folder that the run was given as out",
        )
    if json:
        print(json_.dumps({"out": str(release), **documents.as_json(found)}))
    else:
        why = "" if found.reason is None else f": {found.reason}"
        lines = [f"{release}: {found.status}{why}"]
        lines += [f"in: {listed(found.included)}"] if found.included else []
        lines += [f"lost: site {site}: {why}" for site, why in found.lost.items()]
        lines += [f"refunded: {listed(found.refunded)}"] if found.refunded else []
        lines += [f"stays paid: {found.paid}"] if found.paid else []
        lines += [f"left out: node {node}: {why}" for node, why in found.nodes_left_out.items()]
        lines += [str(found.progress)] if found.progress else []
        if found.status in (STOPPED, DIED) and Unfinished.begun(release):
            again = f"capemix federate run {release.parent} --out {release}"
            lines += [f"go on with it: {again}", f"or end it: {again} --give-up"]
        for line in lines:
            print(printable(line))
    if found.status not in (RELEASED, RUNNING):
        raise typer.Exit(1)
