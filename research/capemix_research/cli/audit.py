"""``capemix-research audit``: the settings of ``capemix audit``, with a plot; or the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capemix.cli import audit as product
from capemix.cli import options as opt


def audit(
    out: product.Out,
    quick: product.Quick = False,
    configurations: product.Configurations = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's own accounting instead.")
    ] = False,
    runs: product.Runs = None,
    confidence: product.Confidence = 0.999,
    workers: product.Workers = None,
    test_seed: product.TestSeed = None,
    json: opt.Json = False,
) -> None:
    """Lower bounds on epsilon from canaries in real runs, beside what is claimed, with a plot."""
    from capemix.audit.configurations import sound_settings
    from capemix.audit.many import sound_tasks
    from capemix_research.audit.paper import paper_settings, paper_tasks

    folder, many = product.checked(out, quick, configurations, runs, confidence)
    if paper:
        tasks = paper_tasks(paper_settings(), many)
    else:
        tasks = sound_tasks(sound_settings(configurations), many)
    found = product.run_tasks(
        tasks, folder, seed=test_seed, workers=workers, confidence=confidence, quiet=json
    )
    drawn = _plot(folder)
    above = product.print_found(found, folder, as_json=json)
    if not drawn and not json:
        typer.echo("no plot: pip install 'capemix-research[plot]'", err=True)
    if above and not paper:
        raise typer.Exit(1)


def _plot(folder: Path) -> bool:
    try:
        from capemix_research.report.audit import draw
    except ModuleNotFoundError:
        return False
    draw(folder / "audit.csv", folder / "audit.png")
    return True
