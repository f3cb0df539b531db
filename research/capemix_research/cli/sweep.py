"""``capemix-research sweep``: recipes beside each other, at several budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capemix_research.cli import options as opt


def sweep(
    data: opt.Data = "digits",
    label: opt.Label = None,
    class_sizes: opt.ClassSizes = None,
    public_range: opt.PublicRange = None,
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
    epsilons: Annotated[str, typer.Option(help="Budgets, e1,e2,...")] = "1,10",
    recipes: Annotated[
        str | None,
        typer.Option(
            help="Of mixing (as asked for), redraw (rows drawn anew from tuned mixtures), "
            "class-gaussian (tables), image-clusters, soft-labels (image clusters with them) "
            "[default: the first two, and the usual method for such rows].",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            help="Rows that are drawn, but for mixing [default: as many as the class sizes say].",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Releases and models at every epsilon.", min=1)] = 5,
    first_seed: opt.FirstSeed = 0,
    test: opt.Test = None,
    rows_are_public: opt.RowsArePublic = False,
    out: Annotated[
        Path, typer.Option(help="Folder for trials.csv, which is read again, and sweep.png.")
    ] = Path("sweep"),
    json: opt.Json = False,
) -> None:
    """Accuracy against epsilon for several recipes, with what others have published.

    Every trial makes a release and trains a model on it: that reads the real rows outside of any
    budget, so it is for public rows. Recipes choose by rule, never by test rows.
    """
    from capemix.api import usual_method
    from capemix.cli.progress import epoch_progress
    from capemix.cli.show import print_json, print_table
    from capemix.release import outside_releases
    from capemix_research.sweep import best, method_of, peers_of, table_of
    from capemix_research.sweep import sweep as swept

    outside_releases(out)
    budgets = opt.budgets(epsilons)
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
    facts = task.plan.facts
    drawn = rows if rows is not None else sum(facts.class_sizes or ()) or 1000
    names = ["mixing", "redraw", usual_method(facts)]
    if recipes is not None:
        names = [name.strip() for name in recipes.split(",")]
    methods = {name: method_of(name, task.plan.method, drawn, deskew=handwriting) for name in names}
    with epoch_progress(f"{model} on releases", quiet=json) as progress:
        real, curves = swept(
            task,
            settings,
            out / "trials.csv",
            methods=methods,
            epsilons=budgets,
            seeds=range(first_seed, first_seed + seeds),
            progress=progress,
        )
    peers = peers_of(data, [point.epsilon for point in curves[0].points])
    title = f"{Path(data).name}, {scheme}, {model}"
    plot = out / "sweep.png"
    try:
        from capemix_research.report.sweep import draw

        draw(real, curves, peers, title, plot)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        plot = None  # type: ignore[assignment]
    lines = table_of(curves, peers)
    if json:
        print_json(
            {
                "real": real,
                "table": lines,
                "best": {f"{epsilon:g}": recipe for epsilon, recipe in best(curves).items()},
                "trials": str(out / "trials.csv"),
                "plot": None if plot is None else str(plot),
            }
        )
        return
    print_table(f"{title}; trained on real rows: {real:.3f}; {seeds} seeds", lines)
    typer.echo(f"trials: {out / 'trials.csv'}")
    typer.echo("no plot: it needs matplotlib" if plot is None else f"plot: {plot}")
