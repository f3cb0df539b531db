"""Attacks on what capemix makes: `capemix audit` on its pipeline, `capemix attack` on a release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capemix.cli import options as opt
from capemix.cli.command import is_quiet
from capemix.errors import InputError
from capemix.private import PRIVATE

if TYPE_CHECKING:
    from capemix.audit.many import Task
    from capemix.audit.measure import Measured
    from capemix.audit.membership import Attack
    from capemix.data.rows import LabeledRows

ALONE = "It bounds these attacks alone; others may do better."


Out = Annotated[Path, typer.Option(help="Folder for what is found: absent or empty.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="A tenth of the runs: minutes, weaker bounds.")
]
Configurations = Annotated[
    int | None,
    typer.Option(help="How many of the settings [default: all].", show_default=False),
]
Runs = Annotated[
    int | None,
    typer.Option(
        help="Runs of one curator with the canary; fewer with several sites [default: 20000].",
        show_default=False,
    ),
]
Confidence = Annotated[float, typer.Option(help="Of every bound.")]
Workers = Annotated[
    int | None, typer.Option(help="Processes [default: all cores].", show_default=False)
]
TestSeed = Annotated[
    int | None,
    typer.Option(help="Repeatable randomness [default: the system's].", show_default=False),
]


def audit(
    out: Out,
    quick: Quick = False,
    configurations: Configurations = None,
    paper: Annotated[bool, typer.Option("--paper", hidden=True)] = False,
    runs: Runs = None,
    confidence: Confidence = 0.999,
    workers: Workers = None,
    test_seed: TestSeed = None,
    json: opt.Json = False,
) -> None:
    """Lower bounds on epsilon from canaries in real runs, beside what is claimed."""
    from capemix.audit.configurations import sound_settings
    from capemix.audit.many import sound_tasks
    from capemix.cli.moved import moved

    if paper:
        raise moved("audit --paper")
    folder, many = checked(out, quick, configurations, runs, confidence)
    tasks = sound_tasks(sound_settings(configurations), many)
    found = run_tasks(
        tasks, folder, seed=test_seed, workers=workers, confidence=confidence, quiet=json
    )
    if print_found(found, folder, as_json=json):
        raise typer.Exit(1)


def checked(
    out: Path, quick: bool, configurations: int | None, runs: int | None, confidence: float
) -> tuple[Path, int]:
    """The folder to write to, and the number of runs; what cannot be is refused."""
    from capemix.audit.configurations import SETTINGS
    from capemix.release import check_output

    if configurations is not None and not 1 <= configurations <= SETTINGS:
        raise InputError(
            "configurations",
            f"must be from 1 to {SETTINGS}",
            value=configurations,
            fix="lower it",
        )
    if not 0.5 <= confidence < 1.0:
        raise InputError(
            "confidence", "must be at least 0.5 and below 1", value=confidence, fix="try 0.999"
        )
    many = runs or (2_000 if quick else 20_000)
    if many < 20:
        raise InputError("runs", "must be at least 20", value=many, fix="make thousands")
    return check_output(out), many


def run_tasks(
    tasks: list[Task],
    folder: Path,
    *,
    seed: int | None,
    workers: int | None,
    confidence: float,
    quiet: bool,
) -> list[Measured]:
    """What is found of each task, with a line as each is done; ``audit.csv`` holds it all."""
    from capemix.audit.many import audit_all, write_table

    def tell(measured: Measured, left: float) -> None:
        if not (quiet or is_quiet()):
            typer.echo(f"{_line(measured)}  [about {_time(left)} left]", err=True)

    found = audit_all(tasks, seed=seed, workers=workers, confidence=confidence, progress=tell)
    folder.mkdir(parents=True, exist_ok=True)
    write_table(found, folder / "audit.csv")
    return found


def print_found(found: list[Measured], folder: Path, *, as_json: bool) -> int:
    """Show what was found; returns how many claims are exceeded."""
    from capemix.cli.show import print_json

    above = sum(one.violated or one.epsilon_ratio > one.claimed for one in found)
    if as_json:
        print_json({"settings": [one.as_row() for one in found], "above": above})
    else:
        typer.echo("\n".join(_line(one) for one in found))
        typer.echo(f"{above} of {len(found)} claims exceeded; written to {folder}")
    return above


def _line(one: Measured) -> str:
    return (
        f"{one.setting.name}: claimed {one.claimed:.3g}; at least {one.epsilon:.3g}"
        f" (could show {one.most:.3g}), {one.epsilon_ratio:.3g} by its law,"
        f" {one.epsilon_fit:.3g} by a Gaussian fit"
    )


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def attack(
    release: Annotated[Path, typer.Argument(help="A release folder.")],
    members: Annotated[
        str, typer.Option(help="Rows it was made from: a file, or a dataset for its train part.")
    ],
    non_members: Annotated[
        str, typer.Option(help="Rows like them that it was not: a file, or a dataset's test part.")
    ],
    label: Annotated[str | None, typer.Option(help="Label column of the files.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the private result, outside the release.", show_default=False),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Membership inference on a finished release; reads private rows, for their owner only."""
    import json as json_

    from capemix.audit.membership import Target
    from capemix.audit.membership import attack as run
    from capemix.cli.show import print_json, print_table
    from capemix.release import outside_releases, read_release

    if out is not None and outside_releases(out).exists():
        raise InputError("out", "is in use", value=out, fix="name a file that is absent")
    saved = read_release(release)
    label = label or saved.manifest.facts.label
    target = Target(saved.rows, saved.manifest)
    found = run(
        target,
        _rows(members, label, saved.rows, test=False),
        _rows(non_members, label, saved.rows, test=True),
    )

    def show(attacks: list[Attack]) -> None:
        result: dict[str, Any] = {
            "private": f"{PRIVATE} {ALONE}",
            "release": str(release),
            "epsilon": saved.manifest.guarantee["epsilon"],
            "attacks": [one.as_json() for one in attacks],
        }
        if out is not None:
            out.write_text(json_.dumps(result, indent=2) + "\n")
        if json:
            print_json(result)
        else:
            print_table("membership inference, with 95% intervals", _attack_rows(attacks))
            typer.echo(f"{PRIVATE} {ALONE}")

    found.for_owner(show)


def _attack_rows(attacks: list[Attack]) -> list[dict[str, Any]]:
    return [
        {
            "attack": one.name,
            "AUC": f"{one.auc:.3f} ({one.low:.3f} to {one.high:.3f})",
            **{
                f"members caught at {100 * c.false_alarms:g}% false alarms": (
                    f"{100 * c.members:.2f}% ({100 * c.low:.2f} to {100 * c.high:.2f})"
                )
                for c in one.caught
            },
        }
        for one in attacks
    ]


def _rows(name: str, label: str | None, released: LabeledRows, *, test: bool) -> LabeledRows:
    """Rows of the release's classes, coded by its schema where it has one."""
    from capemix.data import DATASETS, open_data

    if name in DATASETS:
        loaded = open_data(name)
    elif released.table is not None:
        loaded = open_data(name, label, table=released.table)
    else:
        names = None if released.image_shape else released.feature_names  # all, by size
        loaded = open_data(name, label, classes=released.classes, features=names)
    return loaded.test if test and loaded.test is not None else loaded.train
