"""What the terminal shows of an experiment: one screen."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from capemix import documents
from capemix.guarantee import Guarantee, Status

if TYPE_CHECKING:
    from capemix.release import Release
    from capemix_research.baselines import RecordPlan
    from capemix_research.frontier import Frontier


def print_frontier(found: Frontier, title: str, trials: Path, plot: Path | None) -> None:
    """Every epsilon that was tried, then the answer, and how sure it is."""
    console = Console(markup=False, highlight=False)
    table = Table(title=title, title_justify="left")
    for name in ("epsilon", "accuracy", "deviation", "of real rows'", f"theta {found.theta:g}"):
        table.add_column(name, justify="right")
    for point in found.points:
        side = "reached" if point.mean >= found.target else "missed"
        sure = "" if point.beyond_chance(found.target) else ", within noise"
        table.add_row(
            f"{point.epsilon:g}",
            f"{point.mean:.3f}",
            "-" if point.spread is None else f"{point.spread:.3f}",
            f"{point.mean / found.real:.3f}",
            side + sure,
        )
    console.print(table)
    seeds = len(found.points[0].utilities)
    console.print(f"{found.says()} (means of {seeds} seeds).", soft_wrap=True)
    for low, high in found.falls:
        console.print(
            f"The mean falls from epsilon {low:g} to {high:g}: the bracket is one crossing of a"
            " curve that is not monotone, or noise; more --seeds tell.",
            soft_wrap=True,
        )
    console.print(
        "The search read real rows outside of any budget: on private rows, pay for a validation"
        " score instead, or keep what was found to yourself.",
        soft_wrap=True,
    )
    console.print(f"trials: {trials}", soft_wrap=True)
    if plot is None:
        console.print("no plot: it needs matplotlib; pip install 'capemix-research[plot]'")
    else:
        console.print(f"plot: {plot}", soft_wrap=True)


def records_as_json(plan: RecordPlan, guarantee: Guarantee) -> dict[str, Any]:
    """What is promised of records that are released one by one, and by what noise."""
    said = documents.as_json(guarantee)
    kept = ("epsilon", "delta", "relation", "accountant", "status", "arithmetic", "view", "views")
    return {
        **{name: said[name] for name in kept},
        "noise": plan.noise,
        "noise_multiplier": plan.noise_multiplier,
        "method": str(plan.method),
        "label_kept": plan.label_kept,
    }


def print_records(plan: RecordPlan, release: Release, folder: Path) -> None:
    """The one-screen summary of such a release."""
    from capemix.cli.show import print_table

    guarantee = release.guarantee
    epsilon = "infinite" if guarantee.epsilon is None else f"{guarantee.epsilon:.4g}"
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row(
        "guarantee",
        f"epsilon {epsilon}, delta {guarantee.delta:.3g}, {guarantee.relation}"
        f" ({guarantee.accountant} accountant)",
    )
    table.add_row("status", str(guarantee.status))
    on = f"on a row of norm {plan.clip:.3g} ({guarantee.arithmetic})"
    table.add_row("noise", f"{plan.noise or 0.0:.5g} {on}")
    for step in plan.steps:
        table.add_row(step.name, f"{step.says} [{step.coverage}]")
    table.add_row("rows", f"{len(release)} rows, one a record, {len(plan.classes)} classes")
    table.add_row("files", str(folder))
    console = Console(markup=False, highlight=False)
    console.print(table)
    print_table("budget", [asdict(line) for line in plan.budget()])
    if guarantee.status is not Status.GUARANTEE:
        console.print(f"Note: {guarantee.status}. Do not publish this as a private release.")
