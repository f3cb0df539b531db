"""The paper's problem statement as a command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from capemix_research.cli import options as opt

if TYPE_CHECKING:
    from capemix_research.frontier import Frontier

RecipeName = Literal["mixing", "redraw", "class-gaussian", "image-clusters", "soft-labels"]


def frontier(
    data: opt.Data = "digits",
    label: opt.Label = None,
    class_sizes: opt.ClassSizes = None,
    public_range: opt.PublicRange = None,
    recipe: Annotated[
        RecipeName,
        typer.Option(
            help="How rows are made: mixing; redraw (rows drawn anew from tuned mixtures); "
            "class-gaussian (tables); image-clusters, or these with soft-labels."
        ),
    ] = "mixing",
    mixture: opt.Mixture = 16,
    samples: opt.Samples = 1000,
    clip: opt.Clip = None,
    delta: opt.Delta = 1e-5,
    scheme: opt.Scheme = "central",
    sites: opt.Sites = None,
    colluding: opt.Colluding = None,
    dropouts: opt.Dropouts = 0,
    partition: opt.Partition = "stratified",
    alpha: opt.Alpha = 0.1,
    model: opt.Model = "logreg",
    epochs: opt.Epochs = None,
    learning_rate: opt.LearningRate = None,
    device: opt.Device = None,
    theta: Annotated[
        float, typer.Option(help="The part of the real rows' utility that must be kept.")
    ] = 0.8,
    low: Annotated[float, typer.Option("--from", help="The least epsilon to try.")] = 0.1,
    high: Annotated[float, typer.Option("--to", help="The largest epsilon to try.")] = 30.0,
    within: Annotated[
        float, typer.Option(help="Stop when the bracket's ends are within this factor.")
    ] = 1.1,
    seeds: Annotated[int, typer.Option(help="Releases and models at every epsilon.")] = 3,
    first_seed: opt.FirstSeed = 0,
    test: opt.Test = None,
    rows_are_public: opt.RowsArePublic = False,
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
    from dataclasses import replace

    from capemix.cli.progress import epoch_progress
    from capemix.cli.show import print_json
    from capemix.release import outside_releases
    from capemix_research.cli.show import print_frontier
    from capemix_research.frontier import Trials
    from capemix_research.sweep import method_of

    outside_releases(out)
    task, settings, handwriting = opt.public_task(
        data=data,
        label=label,
        test=test,
        rows_are_public=rows_are_public,
        class_sizes=class_sizes,
        public_range=public_range,
        clip=clip,
        mixture=mixture,
        samples=samples,
        delta=delta,
        scheme=scheme,
        sites=sites,
        colluding=colluding,
        dropouts=dropouts,
        partition=partition,
        alpha=alpha,
        seed=first_seed,
        classifier=opt.classifier_of(model, epochs, learning_rate, device),
    )
    method = method_of(recipe, task.plan.method, samples, deskew=handwriting)
    task = replace(task, plan=replace(task.plan, method=method))
    trials = Trials(out / "trials.csv", {**settings, "recipe": recipe})
    with epoch_progress(f"{model} on releases", quiet=json) as progress:
        found = task.find(
            trials,
            theta=theta,
            low=low,
            high=high,
            within=within,
            seeds=range(first_seed, first_seed + seeds),
            progress=progress,
        )
    title = f"{Path(data).name}, {scheme}, {model}"
    plot = _drawn(found, title, out / "frontier.png")
    if json:
        files = {"trials": str(out / "trials.csv"), "plot": None if plot is None else str(plot)}
        print_json({**found.as_json(), **files})
    else:
        print_frontier(found, title, out / "trials.csv", plot)


def _drawn(found: Frontier, title: str, path: Path) -> Path | None:
    try:
        from capemix_research.report.frontier import draw
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return None
    draw(found, title, path)
    return path
