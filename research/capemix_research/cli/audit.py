"""``capemix-research audit``: the settings of ``capemix audit``, with a plot; or the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capemix.errors import InputError
from capemix_research.cli import options as opt

if TYPE_CHECKING:
    from capemix.audit.measure import Measured


def audit(
    out: Annotated[Path, typer.Option(help="Folder for what is found: absent or empty.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the runs: minutes, weaker bounds.")
    ] = False,
    configurations: Annotated[
        int | None,
        typer.Option(help="How many of the settings [default: all].", show_default=False),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's own accounting instead.")
    ] = False,
    runs: Annotated[
        int | None,
        typer.Option(
            help="Runs of one curator with the canary; fewer with several sites [default: 20000].",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of every bound.")] = 0.999,
    workers: Annotated[
        int | None, typer.Option(help="Processes [default: all cores].", show_default=False)
    ] = None,
    test_seed: Annotated[
        int | None,
        typer.Option(help="Repeatable randomness [default: the system's].", show_default=False),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Lower bounds on epsilon from canaries in real runs, beside what is claimed, with a plot."""
    from capemix.audit import configurations as known
    from capemix.audit.many import audit_all, sound_tasks, write_table
    from capemix.cli.show import print_json
    from capemix.release import check_output
    from capemix_research.audit.paper import paper_settings, paper_tasks

    many = runs or (2_000 if quick else 20_000)
    _check(configurations, known.SETTINGS, confidence, many)
    folder = check_output(out)
    if paper:
        tasks = paper_tasks(paper_settings(), many)
    else:
        tasks = sound_tasks(known.sound_settings(configurations), many)

    def tell(measured: Measured, left: float) -> None:
        if not json:
            about = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min"
            typer.echo(f"{measured.says}  [about {about} left]", err=True)

    found = audit_all(tasks, seed=test_seed, workers=workers, confidence=confidence, progress=tell)
    folder.mkdir(parents=True, exist_ok=True)
    write_table(found, folder / "audit.csv")
    drawn = _plot(folder)
    above = sum(one.exceeded for one in found)
    if json:
        print_json({"settings": [one.as_row() for one in found], "above": above})
    else:
        typer.echo("\n".join(one.says for one in found))
        typer.echo(f"{above} of {len(found)} claims exceeded; written to {folder}")
        if not drawn:
            typer.echo("no plot: pip install 'capemix-research[plot]'", err=True)
    if above and not paper:
        raise typer.Exit(1)


def _check(configurations: int | None, most: int, confidence: float, runs: int) -> None:
    if configurations is not None and not 1 <= configurations <= most:
        raise InputError(
            "--configurations", f"must be from 1 to {most}", value=configurations, fix="lower it"
        )
    if not 0.5 <= confidence < 1.0:
        raise InputError(
            "--confidence", "must be at least 0.5 and below 1", value=confidence, fix="try 0.999"
        )
    if runs < 20:
        raise InputError("--runs", "must be at least 20", value=runs, fix="make thousands")


def _plot(folder: Path) -> bool:
    try:
        from capemix_research.report.audit import draw
    except ModuleNotFoundError:
        return False
    draw(folder / "audit.csv", folder / "audit.png")
    return True
