"""Who takes part, against whom, and what of it is as the paper has it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from capemix.cli.options.groups import MORE, PAPER, SITES
from capemix.cli.options.names import (
    FormName,
    LawName,
    MasksName,
    RelationName,
    SchemeName,
    SiteNoiseName,
)

Sites = Annotated[
    int | None,
    typer.Option(
        help="Number of sites, among which rows are dealt out.",
        show_default=False,
        rich_help_panel=SITES,
    ),
]
Scheme = Annotated[
    SchemeName | None,
    typer.Option(
        help="Who adds noise: one curator, every site for itself, or all sites together"
        " [default: cape with --sites, else central].",
        show_default=False,
        rich_help_panel=SITES,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """What a federation is planned against."""

    colluding: Annotated[
        int | None,
        typer.Option(
            help="Sites that may collude with the server [default: max(1, ceil(sites/3)-1)].",
            show_default=False,
            rich_help_panel=SITES,
        ),
    ] = None
    dropouts: Annotated[
        int, typer.Option(help="Sites that may drop out.", rich_help_panel=SITES)
    ] = 0
    masks: Annotated[
        MasksName | None,
        typer.Option(
            help="Zero-sum noise between sites [default: ring].",
            show_default=False,
            rich_help_panel=SITES,
        ),
    ] = None
    peers: Annotated[
        int | None,
        typer.Option(
            help="Degree of a sparse peer graph [default: complete up to 50 sites].",
            show_default=False,
            rich_help_panel=SITES,
        ),
    ] = None

    def who(self) -> dict[str, Any]:
        """In the words of `make_federation`."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class PaperModes:
    """How the paper has it, and other choices that most people leave alone."""

    form: Annotated[
        FormName,
        typer.Option(
            help="Of --scheme cape: one draw over all sites, or Algorithm 1 as published.",
            rich_help_panel=PAPER,
        ),
    ] = "joint"
    site_noise: Annotated[
        SiteNoiseName | None,
        typer.Option(
            help="How averaged schemes scale a site's noise: sites, sqrt-sites (conventional,"
            " paper), sound (conventional, sound), matched or appendix (algorithm1).",
            show_default=False,
            rich_help_panel=PAPER,
        ),
    ] = None
    relation: Annotated[
        RelationName | None,
        typer.Option(
            help="Which datasets count as neighbours [default: as the method has it].",
            show_default=False,
            rich_help_panel=MORE,
        ),
    ] = None
    law: Annotated[
        LawName | None,
        typer.Option(
            help="Noise: Gaussians rounded to whole numbers, or floats [default: rounded, but for"
            " Gaussian masks].",
            show_default=False,
            rich_help_panel=PAPER,
        ),
    ] = None

    def who(self) -> dict[str, Any]:
        """In the words of `make_plan`."""
        return asdict(self)
