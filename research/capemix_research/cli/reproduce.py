"""``capemix-research reproduce``: the paper's tables run again, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from capemix.errors import InputError
from capemix_research.cli import options as opt

if TYPE_CHECKING:
    from capemix_research.experiments.run import Progress
    from capemix_research.experiments.settings import Setting
    from capemix_research.report.cells import Printed, Runs
    from capemix_research.report.compare import Compared

What = Literal[
    "table1", "wider", "table2", "figure2", "grid", "sound", "all", "truth", "complexity", "report"
]
DatasetName = Literal["mnist", "fashion-mnist"]
DeviceName = Literal["cuda", "cpu"]

_ALL = ("real", "table1", "wider", "figure2", "table2", "sound", "grid")
_SHOWN = ("table1", "wider", "figure2", "table2")
_ASSUMED = "T = 60,000, c = 1, delta = 1e-5, batch 128, labels noised, Theorem 1 as corrected"


def reproduce(
    what: Annotated[
        What,
        typer.Argument(
            help="A table or figure of the paper's; wider (Table 1 without noise, rows clipped at "
            "5); the grid over what it leaves unstated; sound (the sound accountant's noise for "
            "10); all of these; truth (the true epsilon of its settings), complexity (no "
            "training); report (the page, from the results)."
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
            help="Folder of results, gone on with if it is there [default: "
            "docs/research/reproduction in a source tree, else reproduction].",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Stop before this many seconds have passed.", min=0)
    ] = float("inf"),
    json: opt.Json = False,
) -> None:
    """The paper's tables run again, cell by cell beside its numbers."""
    folder = out or _default_folder(quick)
    if what == "report":
        _written(_report(folder), json)
    elif what == "complexity":
        _written(_complexity(folder, quick, json), json)
    elif what == "truth":
        _written(_truth(folder, json), json)
    else:
        if not json and quick:
            _warn_quick()
        where = "cpu" if quick else device
        left = _train(what, folder, dataset, where, seeds, quick, seconds, json)
        _show(what, folder, quick, left, json)


def _default_folder(quick: bool) -> Path:
    if quick:
        return Path("reproduction-quick")
    in_tree = Path("docs") / "research" / "reproduction"
    return in_tree if in_tree.is_dir() else Path("reproduction")


def _written(path: Path, as_json: bool) -> None:
    from capemix.cli.show import print_json

    if as_json:
        print_json({"written": str(path)})
    else:
        typer.echo(f"written: {path}")


def _report(folder: Path) -> Path:
    from capemix_research.experiments.paper import GOLDEN
    from capemix_research.report.page import write_report

    return write_report(folder, GOLDEN)


def _complexity(folder: Path, quick: bool, quiet: bool) -> Path:
    from capemix.cli.progress import spinner
    from capemix_research.experiments.complexity import measured, write_costs

    folder.mkdir(parents=True, exist_ok=True)
    with spinner("measuring T, S, l and d", quiet=quiet):
        write_costs(folder / "complexity.csv", measured(repeats=1 if quick else 7))
    return folder / "complexity.csv"


def _truth(folder: Path, quiet: bool) -> Path:
    from capemix.cli.progress import spinner
    from capemix_research.experiments.noise import NoiseTable
    from capemix_research.experiments.truth import published_settings, write_truth

    noises = NoiseTable(folder / "noise.csv")
    with spinner("accounting", quiet=quiet):
        noises.complete(setting for _, setting in published_settings())
        write_truth(folder / "truth.csv", noises)
    return folder / "truth.csv"


def _train(
    what: str,
    folder: Path,
    dataset: str | None,
    device: str,
    seeds: int,
    quick: bool,
    seconds: float,
    quiet: bool,
) -> int:
    """Train what has no result yet; returns how many models are left."""
    import time

    torch_or_refuse()
    from capemix.cli.progress import spinner
    from capemix.evaluate.cnn import Training, device_named
    from capemix_research.experiments import quick as brief
    from capemix_research.experiments.noise import NoiseTable
    from capemix_research.experiments.results import Results
    from capemix_research.experiments.run import cells_of, run_cells

    until = time.monotonic() + seconds
    where = device_named(device)
    settings = settings_of(what, dataset, quick)
    training = Training()
    if quick:
        training = Training(epochs=brief.EPOCHS, learning_rate=brief.LEARNING_RATE)
        seeds = 1
    noises = NoiseTable(folder / "noise.csv")
    with spinner("accounting for the noise", quiet=quiet):
        noises.complete(settings)
    cells = cells_of(settings, range(seeds))
    with _bar() as progress:
        return run_cells(
            cells,
            noises,
            Results(folder / "runs.csv"),
            where,
            training,
            until=until,
            test_every=brief.TEST_EVERY if quick else 1,
            progress=progress,
        )


def _warn_quick() -> None:
    from capemix_research.experiments import quick as brief

    typer.echo(
        f"quick: MNIST, T = {brief.SAMPLES}, {brief.EPOCHS} epochs at {brief.LEARNING_RATE:g},"
        f" one test image in {brief.TEST_EVERY}, one seed. This is not the paper's training:"
        " it shows the shape of a table, not its numbers."
    )


def torch_or_refuse() -> None:
    try:
        import capemix_research.trainer.many  # noqa: F401
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
    from capemix_research.experiments.quick import slice_of
    from capemix_research.experiments.settings import DATASETS, TABLES

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


def _show(what: str, folder: Path, quick: bool, left: int, as_json: bool) -> None:
    from dataclasses import asdict

    from capemix.cli.show import print_json

    if as_json:
        found = [c for t in _SHOWN if what in (t, "all") for c in compared(t, folder, quick)]
        cells = [
            {
                "paper": asdict(cell.paper),
                "ours": cell.ours.values if cell.ours else None,
                "difference": cell.difference,
            }
            for cell in found
        ]
        print_json({"cells": cells, "left": left, "results": str(folder / "runs.csv")})
        return
    show_beside(what, folder, quick)
    typer.echo(f"results: {folder / 'runs.csv'}")
    if left:
        typer.echo(f"{left} models left: run the same command again to go on.")


def show_beside(what: str, folder: Path, quick: bool) -> None:
    """Ours beside the paper's, a line a cell; what was not run is left out."""
    from rich.console import Console
    from rich.table import Table

    from capemix_research.report.compare import NEAR, within

    console = Console()
    for name in _SHOWN if what == "all" else (what,):
        cells = compared(name, folder, quick)
        if not cells:
            continue
        for dataset in dict.fromkeys(cell.paper.dataset for cell in cells):
            shown = Table(title=f"{name}, {dataset}: test accuracy, %", title_justify="left")
            for head in ("the paper's", "epsilon", "S", "l"):
                shown.add_column(head)
            for head in ("ours", "seeds", "paper", "apart"):
                shown.add_column(head, justify="right")
            for cell in cells:
                if cell.paper.dataset == dataset:
                    shown.add_row(*_line(cell))
            console.print(shown)
        near, both = within(cells)
        assumed = _ASSUMED.replace("60,000", "2,000") if quick else _ASSUMED
        if name == "wider":
            assumed = assumed.replace("c = 1", "c = 5")
        console.print(f"{near} of {both} within {NEAR:.0f} points. Assumed: {assumed}.")


def _line(cell: Compared) -> tuple[str, ...]:
    """Narrow enough for a terminal of 80 columns."""
    paper, printed = cell.paper, cell.paper.accuracy
    method = paper.method
    if "CAPE" in method or "onventional" in method:
        method = "CAPE" if "CAPE" in method else "conventional"
    colour = "green" if cell.near else "red" if cell.difference is not None else "dim"
    apart = "-" if cell.difference is None else f"{cell.difference:+.1f}"
    assert cell.ours is not None
    return (
        f"({paper.panel}) {method}" if paper.panel else method,
        paper.epsilon,
        paper.sites or "-",
        paper.mixture or "4",
        str(cell.ours),
        str(cell.ours.seeds),
        "-" if printed is None else f"{printed:.1f}",
        f"[{colour}]{apart}[/{colour}]",
    )


def compared(table: str, folder: Path, quick: bool) -> list[Compared]:
    """The cells of a table that have a result."""
    from capemix_research.experiments.paper import GOLDEN
    from capemix_research.experiments.quick import SAMPLES
    from capemix_research.report import compare
    from capemix_research.report.cells import PAPERS_TRAINING, Runs, printed

    finders: dict[str, Callable[[Runs, list[Printed]], list[Compared]]] = {
        "table1": compare.table1,
        "wider": partial(compare.table1, clip="5"),
        "figure2": compare.figure2,
        "table2": compare.table2,
    }
    path = folder / "runs.csv"
    if table not in finders or not path.is_file():
        return []
    runs = Runs.read(path, None if quick else PAPERS_TRAINING)
    if quick:  # what stands for T = 60,000
        runs = Runs([{**r, "samples": "60000"} for r in runs.rows if r["samples"] == f"{SAMPLES}"])
    found = finders[table](runs, printed(GOLDEN, "table1" if table == "wider" else table))
    return [cell for cell in found if cell.ours is not None]
