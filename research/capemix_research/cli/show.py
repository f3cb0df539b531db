"""What the terminal shows of an experiment: one screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
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
