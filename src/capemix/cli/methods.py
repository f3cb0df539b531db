"""`capemix methods`: how rows can be made, and each method's options."""

from __future__ import annotations

import typer

from capemix.cli import options as opt
from capemix.cli.method_options import MethodOptions


def methods(json: opt.Json = False) -> None:
    """List the methods, with a line each and their options."""
    from capemix.cli.show import print_json
    from capemix.methods import methods as known

    found, options = known(), MethodOptions(known())
    if json:
        listed = [
            {
                "name": name,
                "summary": cls.summary,
                "options": [
                    {"option": each.words, "help": each.help} for each in options.by_method[name]
                ],
            }
            for name, cls in found.items()
        ]
        print_json({"methods": listed})
        return
    for name, cls in found.items():
        typer.echo(f"{name}: {cls.summary}" if cls.summary else name)
        words = ", ".join(each.words for each in options.by_method[name])
        typer.echo(f"    options: {words or 'none'}")
    typer.echo("`capemix synth --method NAME --help` says what each option does.")
