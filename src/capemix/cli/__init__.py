"""The command line. Only `typer` is imported up front, so that --help is quick."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer import Typer


def main() -> None:
    """Run a command; what the user can mend is one sentence and exit code 2."""
    try:
        from capemix.cli.commands import app
    except KeyboardInterrupt:
        sys.exit(130)
    run_app(app, "capemix")


def run_app(app: Typer, name: str) -> None:
    """Run the command line of a program called ``name``."""
    from capemix.errors import CapemixError, StoppedError, printable

    try:
        app(prog_name=name)
    except (StoppedError, KeyboardInterrupt) as error:
        print(f"{name}: {str(error) or 'stopped.'}", file=sys.stderr)
        sys.exit(130)  # 128 and the number of the signal, as shells have it
    except CapemixError as error:
        lines = str(error).splitlines()  # some are others' words
        print(f"{name}: " + "\n".join(map(printable, lines)), file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print(
            f"{name}: the machine has too little memory for this; lower --samples.",
            file=sys.stderr,
        )
        sys.exit(2)
