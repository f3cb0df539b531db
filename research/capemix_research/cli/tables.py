"""``capemix-research tables``: releases of tables, ours beside those of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capemix.errors import InputError
from capemix_research.cli import options as opt


def tables(
    results: Annotated[Path, typer.Option(help="CSV file, gone on with if it is there.")] = Path(
        "tables-beside.csv"
    ),
    data: Annotated[
        str | None,
        typer.Option(
            help="Some of the tables, a,b,c: adult, letter, credit_g, spam and shuttle in"
            " $CAPEMIX_DATA/tables; digits, breast_cancer, wine and diabetes of scikit-learn"
            " [default: all].",
            show_default=False,
        ),
    ] = None,
    epsilons: Annotated[str, typer.Option(help="Budgets, e1,e2,...")] = "0.3,1,10",
    seeds: Annotated[int, typer.Option(help="Splits of each table.", min=1)] = 1,
    methods: Annotated[str, typer.Option(help="Ours, a,b,c.")] = "tables,class-gaussian",
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD=PYTHON",
            help="A method of others (dpmm-mst, dpmm-aim, dpmm-priv-bayes, mbi-mst, mbi-aim) and"
            " an interpreter that has its package; may be given several times.",
            show_default=False,
        ),
    ] = None,
    sites: Annotated[
        str | None,
        typer.Option(
            help="Also our releases of so many sites together, S1,S2,...", show_default=False
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="CPU seconds of a release of others.")] = 900,
    seconds: Annotated[
        float, typer.Option(help="Start no release after so many seconds.", min=0)
    ] = float("inf"),
    json: opt.Json = False,
) -> None:
    """Releases of public tables by our methods and by others': how faithful they are, what models
    learn from them, and what they cost. Then where ours are ahead, level or behind."""
    from capemix.cli.show import print_json
    from capemix_research.experiments.beside import KEY, run, wanted
    from capemix_research.experiments.public_tables import TABLES
    from capemix_research.experiments.results import whole_lines
    from capemix_research.report import of_beside

    chosen = TABLES if data is None else tuple(data.split(","))
    if not set(chosen) <= set(TABLES):
        raise InputError(
            "--data", "must be tables that are known", value=data, fix=f"of {','.join(TABLES)}"
        )
    pythons = opt.interpreters("--peer", peer or [])
    ours = [name for name in methods.split(",") if name]
    several = opt.counts("--sites", sites)
    cells = wanted(chosen, opt.budgets(epsilons), seeds, ours, list(pythons), several)
    for line in run(cells, results, pythons, limit=limit, seconds=seconds):
        typer.echo(" ".join(line[: len(KEY)]) + ": " + line[-1], err=True)
    lines = list(whole_lines(results))
    others = of_beside.peers_of(lines)
    if json:
        print_json({"lines": of_beside.latest(lines), "results": str(results)})
        return
    parts = (
        of_beside.figures_table(lines),
        of_beside.verdicts_table(lines, ours, others),
        of_beside.tally_table(lines, ours, others),
        of_beside.sites_table(lines),
        of_beside.stopped_table(lines),
    )
    typer.echo("\n".join(part for part in parts if part))
