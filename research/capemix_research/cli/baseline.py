"""Releases by the methods of others that noise every record by itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from capemix.cli import options as opt
from capemix.errors import InputError

MethodName = Literal["random-projection", "local-perturbation"]
PartitionName = Literal["iid", "stratified", "dirichlet"]


@opt.with_options(opt.Counted)
def baseline(
    counted: opt.Counted,
    method: Annotated[
        MethodName,
        typer.Option(help="Noise on k random directions (DPPro), or on every value as it is."),
    ],
    epsilon: Annotated[float, typer.Option(help="The budget; inf for none.")],
    out: Annotated[Path, typer.Option(help="Folder to write: absent or empty.")],
    data: Annotated[
        str, typer.Option(help="digits, mnist, fashion-mnist, or a .csv, .parquet or .npz file.")
    ] = "digits",
    label: Annotated[
        str | None, typer.Option(help="Label column of a file.", show_default=False)
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Classes that rows of a file may have, a,b,c: declared public. Other records are "
            "released as rows of zeros and the first class, with noise.",
            show_default=False,
        ),
    ] = None,
    delta: opt.Delta = 1e-5,
    clip: Annotated[
        float | None,
        typer.Option(
            help="C: l2 norm to which rows are clipped, after the map "
            "[default: half of sqrt(features) with a range, 1 without].",
            show_default=False,
        ),
    ] = None,
    public_range: Annotated[
        str | None,
        typer.Option(
            help="LO,HI: values a feature can take, declared public; 'none' for rows as they stand "
            "[default: a dataset's own; of a file, none].",
            show_default=False,
        ),
    ] = None,
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
        PartitionName | None,
        typer.Option(
            help="How rows are dealt out to --sites [default: stratified].", show_default=False
        ),
    ] = None,
    test_seed: Annotated[
        int | None,
        typer.Option(help="Reproducible noise, for tests: NOT private.", show_default=False),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Every record with noise of its own, as a release that `capemix evaluate` reads.

    As many rows come out as there are records, so their number is public.
    """
    from capemix.cli.show import account_of, print_json, print_release, row_progress, spinner
    from capemix.randomness.source import SeededSource, SystemSource
    from capemix.release import check_output
    from capemix_research.baselines import RecordPlan, baseline_of

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
    table = opt.Table(
        data=data,
        label=label,
        classes=classes,
        partition=partition or "stratified",
        test_seed=test_seed,
    )
    opened = table.open()
    if math.isinf(epsilon):  # nothing is promised of any row
        opened = opened.as_they_come()
    budget = counted.asked(opened.info)
    rows = opened.whole if sites is None else table.deal(opened, sites)
    declared = opt.Mixing(delta=delta, clip=clip, public_range=public_range)
    how = declared.public_map(opened.info)
    asked = declared.asked(opened.whole.width, how)
    with row_progress(len(opened.whole), quiet=json) as progress:
        release = baseline_of(
            method,
            rows,
            epsilon=epsilon,
            source=SystemSource() if test_seed is None else SeededSource(test_seed),
            progress=progress,
            delta=delta,
            clip=asked["clip"],
            normalise=how,
            projection=projection,
            **budget,
        )
    plan = release.plan
    assert isinstance(plan, RecordPlan)
    with spinner("writing the release", quiet=json):
        folder = release.save(out)
    if json:
        print_json(
            {
                **account_of(plan, release.guarantee),
                "method": str(plan.method),
                "label_kept": plan.label_kept,
                "out": str(folder),
            }
        )
    else:
        print_release(release, folder, f"on a row of norm {plan.clip:.3g}")
