"""``capemix-research sweep``: recipes beside each other, at several budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capemix.cli import options as opt
from capemix.errors import InputError
from capemix_research.cli.frontier import public_task


@opt.with_options(opt.Table, opt.Mixing, opt.Method, opt.Trained)
def sweep(
    table: opt.Table,
    mixing: opt.Mixing,
    method: opt.Method,
    trained: opt.Trained,
    context: typer.Context,
    epsilons: Annotated[str, typer.Option(help="Budgets, e1,e2,...")] = "1,10",
    recipes: Annotated[
        str,
        typer.Option(
            help="Of mixing (as asked for), redraw (rows drawn anew from tuned mixtures), moments "
            "(a Gaussian for each class; of wide images, several), moments+teacher (images)."
        ),
    ] = "mixing,redraw,moments",
    rows: Annotated[
        int | None,
        typer.Option(
            help="Rows that redraw and moments draw [default: as many as the class sizes say].",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Releases and models at every epsilon.", min=1)] = 5,
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
        Path, typer.Option(help="Folder for trials.csv, which is read again, and sweep.png.")
    ] = Path("sweep"),
    json: opt.Json = False,
) -> None:
    """Accuracy against epsilon for several recipes, with what others have published.

    Every trial makes a release and trains a model on it: that reads the real rows outside of any
    budget, so it is for public rows. Recipes choose by rule, never by test rows.
    """
    from capemix.cli.show import epoch_progress, print_json, print_table
    from capemix.release import outside_releases
    from capemix_research.sweep import best, peers_of, table_of
    from capemix_research.sweep import sweep as swept

    if method.synthesizer != "mixing" or mixing.redraw is not None or method.tune is not None:
        raise InputError(
            "--recipes",
            "says which synthesizers are compared",
            value=recipes,
            fix="leave --synthesizer, --redraw and --tune out",
        )
    outside_releases(out)
    task, settings = public_task(
        table,
        method,
        trained,
        test,
        rows_are_public,
        lambda opened: {
            **method.asked(table, mixing, opened, opt.given(context)),
            "upright": bool(opt.is_upright(method.upright, "moments", opened.info)),
        },
    )
    first = table.test_seed or 0
    sizes = task.asked.get("class_sizes")
    drawn = rows if rows is not None else sum(sizes) if sizes else 1000
    with epoch_progress(f"{trained.model} on releases", quiet=json) as progress:
        real, curves = swept(
            task,
            settings,
            out / "trials.csv",
            recipes=[name.strip() for name in recipes.split(",")],
            epsilons=_budgets(epsilons),
            seeds=range(first, first + seeds),
            rows=drawn,
            progress=progress,
        )
    peers = peers_of(table.data, [point.epsilon for point in curves[0].points])
    title = f"{Path(table.data).name}, {method.scheme}, {trained.model}"
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


def _budgets(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            "--epsilons", "must be numbers", value=text, fix="write them as 1,10"
        ) from None
