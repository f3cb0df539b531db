"""Releases by the methods of others that noise every record by itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from capemix.errors import InputError
from capemix_research.cli import options as opt

if TYPE_CHECKING:
    from capemix.data import DatasetInfo, LabeledRows, UnlistedRows
    from capemix_research.baselines import RecordPlan

MethodName = Literal["random-projection", "local-perturbation"]


def baseline(
    method: Annotated[
        MethodName,
        typer.Option(help="Noise on k random directions (DPPro), or on every value as it is."),
    ],
    epsilon: Annotated[float, typer.Option(help="The budget; inf for none.")],
    out: Annotated[Path, typer.Option(help="Folder to write: absent or empty.")],
    data: opt.Data = "digits",
    label: opt.Label = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Classes that rows of a file may have, a,b,c: declared public. Other records are "
            "released as rows of zeros and the first class, with noise.",
            show_default=False,
        ),
    ] = None,
    delta: opt.Delta = 1e-5,
    clip: opt.Clip = None,
    public_range: opt.PublicRange = None,
    projection: Annotated[
        int | None,
        typer.Option(
            help="K: directions of random-projection [default: a quarter of the features].",
            show_default=False,
        ),
    ] = None,
    sites: Annotated[
        int | None,
        typer.Option(
            help="S: sites that release side by side [default: one curator].", show_default=False
        ),
    ] = None,
    partition: Annotated[
        opt.SplitName | None,
        typer.Option(
            help="How rows are dealt out to --sites [default: stratified].", show_default=False
        ),
    ] = None,
    lineage: Annotated[
        str | None,
        typer.Option(
            help="Name of the data whose budget pays, as given to `capemix ledger set-limit`.",
            show_default=False,
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="The ledger's file [default: ledger.db in the user's state folder].",
            show_default=False,
        ),
    ] = None,
    no_ledger: Annotated[
        bool, typer.Option("--no-ledger", help="Count nothing, for rows that are not private.")
    ] = False,
    test_seed: opt.TestSeed = None,
    json: opt.Json = False,
) -> None:
    """Every record with noise of its own, as a release that `capemix evaluate` reads.

    As many rows come out as there are records, so their number is public.
    """
    from capemix.cli.progress import row_progress, spinner
    from capemix.cli.show import print_json
    from capemix.randomness.source import SeededSource, SystemSource
    from capemix.release import check_output
    from capemix_research.baselines import baseline_of
    from capemix_research.cli.show import print_records, records_as_json

    if math.isnan(epsilon) or epsilon <= 0:  # before any row is read
        raise InputError("--epsilon", "must be above 0", value=epsilon, fix="give a budget, or inf")
    if partition is not None and sites is None:
        raise InputError(
            "--partition",
            "has no meaning for one curator",
            value=partition,
            fix="leave it out, or say how many --sites",
        )
    check_output(out)
    rows, info = _opened(data, label, classes, as_they_come=math.isinf(epsilon))
    _check_counted(lineage, ledger, no_ledger, test_seed, known=info is not None)
    how = opt.public_map(public_range, info)
    with row_progress(len(rows), quiet=json) as progress:
        release = baseline_of(
            method,
            rows if sites is None else _dealt(rows, sites, partition or "stratified", test_seed),
            epsilon=epsilon,
            source=SystemSource() if test_seed is None else SeededSource(test_seed),
            progress=progress,
            delta=delta,
            clip=opt.usual_clip(clip, rows.width, how),
            normalise=how,
            projection=projection,
            ledger=ledger,
            lineage=lineage,
        )
    plan = cast("RecordPlan", release.plan)
    with spinner("writing the release", quiet=json):
        folder = release.save(out)
    if json:
        print_json({**records_as_json(plan, release.guarantee), "out": str(folder)})
    else:
        print_records(plan, release, folder)


def _opened(
    data: str, label: str | None, classes: str | None, *, as_they_come: bool
) -> tuple[LabeledRows | UnlistedRows, DatasetInfo | None]:
    """The rows, unlisted where nobody declares their classes and something is promised of them; and
    what is public of a dataset that is known by its name."""
    from capemix.data import DATASETS, UnlistedRows, existing_file, open_cells, open_data

    names = opt.names_of(classes, "--classes")
    if data in DATASETS or names is not None or as_they_come:
        opened = open_data(data, label, classes=names)
        return opened.train, opened.info
    cells = open_cells(existing_file(data), label)
    return UnlistedRows.of(cells, cells.label), None


def _dealt(
    rows: LabeledRows | UnlistedRows, sites: int, how: opt.SplitName, seed: int | None
) -> list[LabeledRows]:
    from capemix.data import LabeledRows

    if not isinstance(rows, LabeledRows):
        raise InputError(
            "--classes", "must be declared for more than one site", fix="list them: a,b,c"
        )
    return opt.dealt(rows, sites, how, seed=seed or 0)


def _check_counted(
    lineage: str | None, ledger: Path | None, no_ledger: bool, test_seed: int | None, *, known: bool
) -> None:
    """Rows of the user's own are counted, or not, by name."""
    if no_ledger and (lineage is not None or ledger is not None):
        raise InputError("--no-ledger", "contradicts --lineage and --ledger", fix="leave one out")
    if lineage is not None and test_seed is not None:
        raise InputError(
            "--test-seed",
            "makes noise that is not private, so no budget can pay for it",
            fix="leave it out, or count nothing",
        )
    if lineage is None and not no_ledger and not known:
        raise InputError(
            "--lineage",
            "is needed, so that what is released of these rows is counted",
            fix="name the data after `capemix ledger set-limit NAME --epsilon E`, or say"
            " --no-ledger",
        )
