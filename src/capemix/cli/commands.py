"""Every command, by its name."""

from __future__ import annotations

from typing import Annotated

import typer

from capemix.cli.audit import attack, audit
from capemix.cli.begin import init
from capemix.cli.bench import bench
from capemix.cli.calibrate import DeclaredCommand, account, calibrate
from capemix.cli.command import Commands, MethodCommand
from capemix.cli.coordinate import outcome, register, run, serve
from capemix.cli.data import describe
from capemix.cli.doctor import doctor
from capemix.cli.evaluate import evaluate
from capemix.cli.federate import federate
from capemix.cli.journal import approve, deny, pending, status
from capemix.cli.ledger import ledger
from capemix.cli.methods import methods
from capemix.cli.moved import add_moved
from capemix.cli.report import report
from capemix.cli.sample import sample
from capemix.cli.schema import schema
from capemix.cli.site import keygen, site
from capemix.cli.synth import synth
from capemix.cli.verify import certificate, key, verify

app = Commands(
    pretty_exceptions_enable=False,
    help="Differentially private synthetic data from sites that may not pool their rows.",
)

app.command()(init)
app.command(cls=MethodCommand)(synth)
app.command()(sample)
app.command()(evaluate)
app.command()(verify)
app.command()(certificate)
app.command()(key)
app.command()(report)
app.command()(methods)
app.command("data")(describe)
app.add_typer(schema, name="schema")
app.add_typer(ledger, name="ledger")
app.command(cls=DeclaredCommand)(calibrate)
app.command(cls=DeclaredCommand)(account)
for _of_the_coordinator in (serve, register, run, outcome):
    federate.command()(_of_the_coordinator)
app.add_typer(federate, name="federate")
for _of_the_journal in (pending, approve, deny, status):
    site.command()(_of_the_journal)
app.add_typer(site, name="site")
app.command()(keygen)
app.command()(audit)
app.command()(attack)
app.command()(bench)
app.command()(doctor)
add_moved(app, "reproduce", "sweep", "frontier")
add_moved(federate, "measure", "splits", before="federate ")


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"capemix {installed('capemix')}")
        raise typer.Exit
