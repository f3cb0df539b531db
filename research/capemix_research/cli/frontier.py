"""The paper's problem statement as a command."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capemix.cli import options as opt
from capemix.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from capemix.data import LabeledRows
    from capemix_research.frontier import Frontier, Task


@opt.with_options(opt.Table, opt.Mixing, opt.Method, opt.Trained)
def frontier(
    table: opt.Table,
    mixing: opt.Mixing,
    method: opt.Method,
    trained: opt.Trained,
    context: typer.Context,
    theta: Annotated[
        float, typer.Option(help="The part of the real rows' utility that must be kept.")
    ] = 0.8,
    low: Annotated[float, typer.Option("--from", help="The least epsilon to try.")] = 0.1,
    high: Annotated[float, typer.Option("--to", help="The largest epsilon to try.")] = 30.0,
    within: Annotated[
        float, typer.Option(help="Stop when the bracket's ends are within this factor.")
    ] = 1.1,
    seeds: Annotated[int, typer.Option(help="Releases and models at every epsilon.")] = 3,
    test: Annotated[
        str | None,
        typer.Option(
            help="File of rows to test on [default: the dataset's test part].", show_default=False
        ),
    ] = None,
    rows_are_public: Annotated[
        bool, typer.Option("--rows-are-public", help="Needed for a file: see above.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for trials.csv, which is read again, and frontier.png.")
    ] = Path("frontier"),
    json: opt.Json = False,
) -> None:
    """The least epsilon whose utility is at least theta times the real rows'.

    Bisects on epsilon: at each, releases are made through the whole pipeline and a model is trained
    on each. That reads the real rows many times outside of any budget, so the epsilon found is
    itself a private fact of private rows: search on public rows (the datasets that are known by
    name, or a file of your own that you declare public), not on those you will protect.
    """
    from capemix.cli.show import epoch_progress, print_json
    from capemix.release import outside_releases
    from capemix_research.cli.show import print_frontier
    from capemix_research.frontier import Trials

    outside_releases(out)
    task, settings = public_task(
        table,
        method,
        trained,
        test,
        rows_are_public,
        lambda opened: method.asked(table, mixing, opened, opt.given(context)),
    )
    first = table.test_seed or 0
    trials = Trials(out / "trials.csv", settings)
    with epoch_progress(f"{trained.model} on releases", quiet=json) as progress:
        found = task.find(
            trials,
            theta=theta,
            low=low,
            high=high,
            within=within,
            seeds=range(first, first + seeds),
            progress=progress,
        )
    title = f"{Path(table.data).name}, {method.scheme}, {trained.model}"
    plot = _drawn(found, title, out / "frontier.png")
    if json:
        files = {"trials": str(out / "trials.csv"), "plot": None if plot is None else str(plot)}
        print_json({**found.as_json(), **files})
    else:
        print_frontier(found, title, out / "trials.csv", plot)


def public_task(
    table: opt.Table,
    method: opt.Method,
    trained: opt.Trained,
    test: str | None,
    rows_are_public: bool,
    asked_of: Callable[[opt.Opened], dict[str, Any]],
) -> tuple[Task, dict[str, Any]]:
    """Public rows and how releases of them are judged, with all that a trial's result depends on.
    Rows that are not known to be public are refused before any is read."""
    from importlib.metadata import version

    from capemix.api import PAID
    from capemix.data import DATASETS
    from capemix.evaluate.score import NOT_CLIPPED
    from capemix.sums.rows import Preparation
    from capemix_research.frontier import Task

    classifier = trained.classifier()
    known = table.data in DATASETS
    own = None if known else table.data
    if own is None and test is not None and test not in DATASETS:
        own = test
    if own is not None and not rows_are_public:
        raise InputError(
            "--data" if own == table.data else "--test",
            "is a file, and a search would read its rows many times outside of any budget",
            value=own,
            fix="search on a public dataset, or say --rows-are-public if anyone may see these rows",
        )
    if not known and test is None:
        raise InputError(
            "--test", "is not given, and a file has no test part", fix="name a file of test rows"
        )
    opened = table.open().as_they_come()
    asked = asked_of(opened)
    real, _ = opened.declared()
    if asked["normalise"] == PAID:
        raise InputError(
            "--public-range",
            "must be declared: all releases of a search are judged in the same units",
            fix="give LO,HI, or 'none' for rows as they stand",
        )
    clip = asked.get("clip")
    task = Task(
        sites=[real] if method.scheme == "central" else table.deal(opened, method.sites),
        real=real,
        test=_test_rows(opened, real, test, table.label),
        preparation=Preparation(asked["normalise"], NOT_CLIPPED if clip is None else clip),
        classifier=classifier,
        asked=asked,
    )
    settings = {
        "capemix": version("capemix"),
        "data": table.data if known else _digest(table.data),
        "test": "" if test is None else _digest(test),
        "partition": [table.partition, table.alpha, table.test_seed or 0, method.sites],
        "asked": {name: _plain(value) for name, value in asked.items() if value is not None},
        "classifier": classifier.as_json(),
    }
    return task, settings


def _test_rows(
    opened: opt.Opened, real: LabeledRows, test: str | None, label: str | None
) -> LabeledRows:
    from capemix.data import DATASETS, open_data

    if test is None:
        return opened.test or real
    known = open_data(test, label) if test in DATASETS else None
    found = known or open_data(test, label, classes=real.classes)
    return found.train.columns(real.feature_names)


def _drawn(found: Frontier, title: str, path: Path) -> Path | None:
    try:
        from capemix_research.report.frontier import draw
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return None
    draw(found, title, path)
    return path


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, tuple)) else repr(value)
