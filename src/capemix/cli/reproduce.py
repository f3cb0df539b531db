"""``capemix reproduce``: the paper's tables run again, shown beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.experiments.run import Progress
    from capemix.experiments.settings import Setting
    from capemix.report.compare import Compared

What = Literal[
    "table1", "table2", "figure2", "grid", "sound", "all", "truth", "complexity", "report"
]
DatasetName = Literal["mnist", "fashion-mnist"]
DeviceName = Literal["cuda", "cpu"]

_ALL = ("real", "table1", "figure2", "table2", "sound", "grid")
_SHOWN = ("table1", "figure2", "table2")
_ASSUMED = "T = 60,000, c = 1, delta = 1e-5, batch 128, labels noised, Theorem 1 as corrected"


def reproduce(
    what: Annotated[
        What,
        typer.Argument(
            help="A table or figure of the paper's; the grid over what it leaves unstated; sound "
            "(a true epsilon of 10); all of these; truth (the true epsilon of its settings), "
            "complexity (no training); report (the page, from the results)."
        ),
    ],
    dataset: Annotated[
        DatasetName | None,
        typer.Option(help="Only this one [default: both].", show_default=False),
    ] = None,
    device: Annotated[
        DeviceName, typer.Option(help="Where to train; the CPU with --quick.")
    ] = "cuda",
    seeds: Annotated[int, typer.Option(help="Models for each cell.", min=1)] = 3,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A slice for two CPU cores and three minutes; not the paper's training."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of results, gone on with if it is there [default: docs/reproduction "
            "in a source tree, else reproduction].",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Stop before this many seconds have passed.")
    ] = float("inf"),
) -> None:
    """The paper's tables run again, cell by cell beside its numbers."""
    folder = out or _default_folder(quick)
    if what == "report":
        _report(folder)
    elif what == "complexity":
        _complexity(folder, quick)
    elif what == "truth":
        _truth(folder)
    else:
        _train(what, folder, dataset, "cpu" if quick else device, seeds, quick, seconds)


def _default_folder(quick: bool) -> Path:
    if quick:
        return Path("reproduction-quick")
    in_tree = Path("docs") / "reproduction"
    return in_tree if in_tree.is_dir() else Path("reproduction")


def _report(folder: Path) -> None:
    from capemix.experiments.paper import GOLDEN
    from capemix.report.page import write_report

    typer.echo(f"written: {write_report(folder, GOLDEN)}")


def _complexity(folder: Path, quick: bool) -> None:
    from capemix.cli.show import spinner
    from capemix.experiments.complexity import measured, write_costs

    folder.mkdir(parents=True, exist_ok=True)
    with spinner("measuring T, S, l and d", quiet=False):
        write_costs(folder / "complexity.csv", measured(repeats=1 if quick else 7))
    typer.echo(f"written: {folder / 'complexity.csv'}; the report fits the exponents")


def _truth(folder: Path) -> None:
    from capemix.cli.show import spinner
    from capemix.experiments.noise import NoiseTable
    from capemix.experiments.truth import published_settings, write_truth

    noises = NoiseTable(folder / "noise.csv")
    with spinner("accounting", quiet=False):
        noises.complete(setting for _, setting in published_settings())
        write_truth(folder / "truth.csv", noises)
    typer.echo(f"written: {folder / 'truth.csv'}")


def _train(
    what: str,
    folder: Path,
    dataset: str | None,
    device: str,
    seeds: int,
    quick: bool,
    seconds: float,
) -> None:
    import time

    torch_or_refuse()
    from capemix.cli.show import spinner
    from capemix.evaluate.many import Training, device_named
    from capemix.experiments import quick as brief
    from capemix.experiments.noise import NoiseTable
    from capemix.experiments.results import Results
    from capemix.experiments.run import cells_of, run_cells

    until = time.monotonic() + seconds
    where = device_named(device)
    settings = settings_of(what, dataset, quick)
    training = Training()
    if quick:
        training = Training(epochs=brief.EPOCHS, learning_rate=brief.LEARNING_RATE)
        seeds = 1
        typer.echo(
            f"quick: MNIST, T = {brief.SAMPLES}, {brief.EPOCHS} epochs at"
            f" {brief.LEARNING_RATE:g}, one seed. This is not the paper's training: it shows the"
            " shape of a table, not its numbers."
        )
    noises = NoiseTable(folder / "noise.csv")
    with spinner("accounting for the noise", quiet=False):
        noises.complete(settings)
    cells = cells_of(settings, range(seeds))
    with _bar() as progress:
        left = run_cells(
            cells,
            noises,
            Results(folder / "runs.csv"),
            where,
            training,
            until=until,
            progress=progress,
        )
    show_beside(what, folder, quick)
    if left:
        typer.echo(f"{left} models left: run the same command again to go on.")


def torch_or_refuse() -> None:
    try:
        import capemix.evaluate.many  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError(
            "torch",
            "is not installed, and the paper's network is trained with it",
            fix="install it with pip install 'capemix[torch]'",
        ) from None


def settings_of(what: str, dataset: str | None, quick: bool) -> list[Setting]:
    """What is to be run. The grid is on MNIST alone, as is everything quick."""
    from capemix.experiments.quick import slice_of
    from capemix.experiments.settings import DATASETS, TABLES

    if quick:
        if dataset not in (None, "mnist"):
            raise InputError(
                "--dataset", "must be mnist with --quick", value=dataset, fix="leave it out"
            )
        return list(slice_of(what))
    names = _ALL if what == "all" else (what,)
    kept = DATASETS if dataset is None else (dataset,)
    found = [s for name in names for s in TABLES[name]() if s.dataset in kept]
    if not found:
        raise InputError(
            "--dataset", f"has nothing in {what}", value=dataset, fix="use --dataset mnist"
        )
    return found


@contextmanager
def _bar() -> Iterator[Progress]:
    """Models done and time left, on a terminal; a line a group elsewhere."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _done, _of, text: typer.echo(text, err=True)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("models", total=None)
        yield lambda done, of, text: bar.update(task, completed=done, total=of, description=text)


def show_beside(what: str, folder: Path, quick: bool) -> None:
    """Ours beside the paper's, a line a cell; what was not run is left out."""
    from rich.console import Console
    from rich.table import Table

    from capemix.report.compare import NEAR, within

    for name in _SHOWN if what == "all" else (what,):
        cells = compared(name, folder, quick)
        if not cells:
            continue
        shown = Table(title=f"{name}: test accuracy, %", title_justify="left")
        for head in ("dataset", "the paper's method", "epsilon", "S", "l"):
            shown.add_column(head)
        for head in ("ours", "seeds", "paper", "difference"):
            shown.add_column(head, justify="right")
        for cell in cells:
            assert cell.ours is not None
            difference = "-" if cell.difference is None else f"{cell.difference:+.1f}"
            colour = "green" if cell.near else "red" if cell.difference is not None else "dim"
            paper, printed = cell.paper, cell.paper.accuracy
            shown.add_row(
                paper.dataset,
                f"({paper.panel}) {paper.method.split()[0]}" if paper.panel else paper.method,
                paper.epsilon,
                paper.sites or "-",
                paper.mixture or "4",
                str(cell.ours),
                str(cell.ours.seeds),
                "-" if printed is None else f"{printed:.1f}",
                f"[{colour}]{difference}[/{colour}]",
            )
        console = Console()
        console.print(shown)
        near, both = within(cells)
        assumed = _ASSUMED.replace("60,000", "2,000") if quick else _ASSUMED
        console.print(f"{near} of {both} within {NEAR:.0f} points. Assumed: {assumed}.")


def compared(table: str, folder: Path, quick: bool) -> list[Compared]:
    """The cells of a table that have a result."""
    from capemix.experiments.paper import GOLDEN
    from capemix.experiments.quick import SAMPLES
    from capemix.report import compare
    from capemix.report.cells import PAPERS_TRAINING, Runs, printed

    finders = {"table1": compare.table1, "figure2": compare.figure2, "table2": compare.table2}
    path = folder / "runs.csv"
    if table not in finders or not path.is_file():
        return []
    runs = Runs.read(path, None if quick else PAPERS_TRAINING)
    if quick:  # what stands for T = 60,000
        runs = Runs([{**r, "samples": "60000"} for r in runs.rows if r["samples"] == f"{SAMPLES}"])
    found = finders[table](runs, printed(GOLDEN, table))
    return [cell for cell in found if cell.ours is not None]
