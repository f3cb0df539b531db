"""How far a command is, on a terminal's error stream alone, and gone when it is done. The time that
is left is said where the work goes on evenly, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from capemix.cli.command import is_quiet
from capemix.engines.local import LocalEngine

if TYPE_CHECKING:
    import numpy.typing as npt

    from capemix.engines.local import Rows
    from capemix.plan import Plan
    from capemix.randomness.source import Source
    from capemix.sums.query import SumQuery

_SETTLED_S: Final = 2.0
"""So long a piece of work goes on before a pace is made of it."""

Clock = Callable[[], float]


class Pace:
    """The time that is left of work that goes on evenly, by what has been done of it so far."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock, self._begun = clock, clock()

    def left(self, done: float, of: float) -> str:
        """In words; nothing is said of the first seconds."""
        spent = self._clock() - self._begun
        if spent < _SETTLED_S or not 0 < done < of:
            return ""
        return f"about {in_words(spent * (of - done) / done)} left"


def in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


class Told:
    """A line on the terminal: what is done, how much of it, for how long, and how long yet."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task("", total=None, left="")
        self._pace, self._done = Pace(), 0.0

    def begin(self, what: str) -> None:
        """Another piece of work; how long it takes nobody knows."""
        self._pace, self._done = Pace(), 0.0
        self._show(description=what, completed=0, total=None, left="")

    def tell(self, done: float, of: float) -> None:
        """How much of it is done: it goes on evenly."""
        self._show(completed=done, total=of, left=self._pace.left(done, of))

    def more(self, done: float, of: float) -> None:
        """So much more is done."""
        self._done += done
        self.tell(self._done, of)

    def _show(self, **found: Any) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, **found)


@contextmanager
def told(what: str, *, quiet: bool) -> Iterator[Told]:
    """What is going on, if there is a terminal to say it on."""
    console = Console(stderr=True)
    if quiet or is_quiet() or not console.is_terminal:
        yield Told(None)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        found = Told(bar)
        found.begin(what)
        yield found


class ToldEngine(LocalEngine):
    """An engine that says which sum it makes. The rows of a drawn one are made evenly; of others,
    and of what a method makes of them, nobody knows how long they take."""

    def __init__(self, rows: Rows, source: Source | None, line: Told) -> None:
        super().__init__(rows, source, progress=self._more)
        self._line = line
        self._drawn = 0

    def sum(self, plan: Plan, query: SumQuery) -> npt.NDArray[Any]:
        number, of = plan.names.index(query.name) + 1, len(plan.names)
        which = "the private sum" if of == 1 else f"private sum {number} of {of}"
        self._line.begin(f"{which}: {query.name}")
        self._drawn = query.line.rows * plan.federation.sites if query.drawn else 0
        found = super().sum(plan, query)
        self._line.begin("making rows of the sums" if number == of else "reading the sum")
        return found

    def _more(self, done: int) -> None:
        if self._drawn:
            self._line.more(done, self._drawn)


@contextmanager
def row_progress(total: int, *, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Of rows that are made evenly."""
    with told("synthetic rows", quiet=quiet) as line:
        yield lambda done: line.more(done, total)


@contextmanager
def epoch_progress(text: str, *, quiet: bool) -> Iterator[Callable[[float, float], None] | None]:
    """Of epochs, or of tasks that take as long as each other."""
    with told(text, quiet=quiet) as line:
        yield line.tell


@contextmanager
def spinner(text: str, *, quiet: bool) -> Iterator[None]:
    with told(text, quiet=quiet):
        yield
