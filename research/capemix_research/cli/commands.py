"""The laboratory's commands: experiments on public rows, and the paper's tables run again."""

from __future__ import annotations

from typing import Annotated

import typer

from capemix_research.cli.audit import audit
from capemix_research.cli.baseline import baseline
from capemix_research.cli.frontier import frontier
from capemix_research.cli.judge import judge
from capemix_research.cli.measure import measure
from capemix_research.cli.reproduce import reproduce
from capemix_research.cli.splits import splits
from capemix_research.cli.sweep import sweep
from capemix_research.cli.tables import tables

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Experiments with capemix: the paper's tables run again, and what the documents measure.",
)
federate = typer.Typer(no_args_is_help=True, help="What a federation costs, and what skew does.")

app.command()(reproduce)
app.command()(sweep)
app.command()(tables)
app.command()(judge)
app.command()(frontier)
app.command()(audit)
app.command()(baseline)
federate.command()(measure)
federate.command()(splits)
app.add_typer(federate, name="federate")


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"capemix-research {installed('capemix-research')}")
        raise typer.Exit
