"""Choices that can be typed, and options that stand alone.

Choices are written out here, not taken from the enums, so that --help needs no numerical library;
a test keeps the two in step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from capemix.cli.options.groups import MORE

SchemeName = Literal["central", "conventional", "cape"]
FormName = Literal["joint", "algorithm1"]
MasksName = Literal["ring", "gaussian"]
SiteNoiseName = Literal["sqrt-sites", "sites", "sound", "matched", "appendix"]
RelationName = Literal["add-or-remove-one", "replace-one"]
LawName = Literal["rounded", "gaussian"]
NormaliseName = Literal["public", "site-zscore"]
EngineName = Literal["deployment", "simulation"]
ModelName = Literal["logreg", "boosting", "forest", "cnn"]
DeviceName = Literal["cpu", "cuda"]
LabelsName = Literal["hard", "soft"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Epsilon = Annotated[float, typer.Option(help="The privacy budget; inf for none.")]
Out = Annotated[Path, typer.Option(help="Folder to write: absent or empty.")]
Delta = Annotated[
    float,
    typer.Option(help="Probability with which the guarantee may fail.", rich_help_panel=MORE),
]
TestSeed = Annotated[
    int | None,
    typer.Option(
        help="Reproducible noise, for tests: NOT private.",
        show_default=False,
        rich_help_panel=MORE,
    ),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        help="The ledger's file [default: ledger.db in the user's state folder].",
        show_default=False,
        rich_help_panel=MORE,
    ),
]
