"""Which method, by its name of today or by its old one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class MethodName:
    """Read before all other options are parsed: see `capemix.cli.command.MethodCommand`."""

    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How rows are made; `capemix methods` lists them [default: tables for tables,"
            " class-gaussian for small images, image-clusters for larger ones, mixing for other"
            " rows of many columns].",
            show_default=False,
        ),
    ] = None
    synthesizer: Annotated[str | None, typer.Option(hidden=True)] = None


@dataclass(frozen=True, kw_only=True)
class DeclaredMethodName:
    """The same where no rows are read."""

    method: Annotated[
        str, typer.Option(metavar="NAME", help="How rows are made; see `capemix methods`.")
    ] = "mixing"
    synthesizer: Annotated[str | None, typer.Option(hidden=True)] = None
