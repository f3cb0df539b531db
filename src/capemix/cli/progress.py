"""How far a command is, on a terminal's error stream alone, and gone when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from capemix.plan import Plan


@contextmanager
def progress_of(
    plan: Plan, *, quiet: bool
) -> Iterator[tuple[Callable[[int], None] | None, Callable[[int], None] | None]]:
    """Two ways to tell how far a release is: by the rows of a drawn sum, or by sums. A bar on the
    terminal's error stream shows the one that goes with the plan, and is gone when it is done."""
    rows = sum(line.rows for line in plan.body) * plan.federation.sites
    total, what = (rows, "synthetic rows") if plan.drawn else (len(plan.names), "private sums")
    with row_progress(total, what, quiet=quiet) as advance:
        yield (advance, None) if plan.drawn else (None, advance)


@contextmanager
def row_progress(
    total: int, what: str = "synthetic rows", *, quiet: bool
) -> Iterator[Callable[[int], None] | None]:
    """A bar on the terminal's error stream, gone when the work is done."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def epoch_progress(text: str, *, quiet: bool) -> Iterator[Callable[[float, float], None] | None]:
    """A bar with the time left, once what is done is told; a spinner until then."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def spinner(text: str, *, quiet: bool) -> Iterator[None]:
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(text):
        yield
