"""The command line. Only `typer` is imported up front, so that --help is quick."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a command; what the user can mend is one sentence and exit code 2."""
    from capemix.cli.commands import app
    from capemix.errors import CapemixError

    try:
        app(prog_name="capemix")
    except CapemixError as error:
        print(f"capemix: {error}", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print(
            "capemix: the machine has too little memory for this; lower --samples.",
            file=sys.stderr,
        )
        sys.exit(2)
