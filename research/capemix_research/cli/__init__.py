"""The laboratory's command line. Only `typer` is imported up front, so that --help is quick."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer import Typer

    from capemix.errors import CapemixError


def main() -> None:
    """Run a command; what the user can mend is one sentence and exit code 2."""
    from capemix.errors import CapemixError
    from capemix_research.cli.commands import app

    try:
        app(prog_name="capemix-research")
    except CapemixError as error:
        print(f"capemix-research: {_spoken(error, app)}", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print("capemix-research: the machine has too little memory for this.", file=sys.stderr)
        sys.exit(2)


def _spoken(error: CapemixError, app: Typer) -> str:
    """The error's sentence; what the library calls by a field's name, by the option's."""
    from typer.main import get_command

    text, field = str(error), str(getattr(error, "field", ""))
    option, waiting = f"--{field.replace('_', '-')}", [get_command(app)]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        if any(option in parameter.opts for parameter in command.params):
            return option + text.removeprefix(field)
    return text
