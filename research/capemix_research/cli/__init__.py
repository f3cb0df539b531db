"""The laboratory's command line. Only `typer` is imported up front, so that --help is quick."""

from __future__ import annotations

from capemix.cli import run_app


def main() -> None:
    """Run a command; what the user can mend is one sentence and exit code 2."""
    from capemix_research.cli.commands import app

    run_app(app, "capemix-research")
