"""Whose signature a release gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capemix.cli.options.groups import MORE
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.identity import Identity


@dataclass(frozen=True, kw_only=True)
class Signed:
    """The user's own key, another one, or none."""

    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="NAME.key of `capemix keygen`, to sign the release with [default: your own, which"
            " `capemix key` shows; made the first time].",
            show_default=False,
            rich_help_panel=MORE,
        ),
    ] = None
    unsigned: Annotated[
        bool,
        typer.Option(
            "--unsigned",
            help="Sign nothing: nobody can tell later who made the release.",
            rich_help_panel=MORE,
        ),
    ] = False

    def identity(self) -> tuple[Identity | None, bool]:
        """The key, held in memory before anything is paid for: what signs cannot fail later. And
        whether it was made just now."""
        from capemix.identity import identity_at

        if self.unsigned and self.key is not None:
            raise InputError("unsigned", "contradicts --key", value=self.key, fix="leave one out")
        if self.unsigned:
            return None, False
        return (identity_at(self.key), False) if self.key is not None else own_key()


def own_key() -> tuple[Identity, bool]:
    """The user's own key, and whether it was made just now."""
    from capemix.identity import OWN, own_identity
    from capemix.ledger import default_path

    folder = default_path().parent
    try:
        return own_identity(folder)
    except InputError as error:
        raise InputError(
            "the key",
            f"to sign with cannot be had: {error.field} {error.problem}",
            value=folder / f"{OWN}.key",
            fix="name another with --key, or say --unsigned",
        ) from None
