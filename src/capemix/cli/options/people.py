"""People with several rows: whose a row is, and how many of a person's count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from capemix.cli.options.groups import MORE

RowsPerPerson = Annotated[
    int | None,
    typer.Option(
        help="How many rows of a person count: the guarantee is for a person with all of these"
        " [default: for a record].",
        show_default=False,
        rich_help_panel=MORE,
    ),
]
Person = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column that says whose a row is, for people with several rows. It is not released.",
        show_default=False,
        rich_help_panel=MORE,
    ),
]


@dataclass(frozen=True, kw_only=True)
class People:
    """The unit of privacy, where it is not a record."""

    person: Person = None
    rows_per_person: RowsPerPerson = None

    def check(self) -> None:
        """Both are said, or neither."""
        if self.person is None and self.rows_per_person is None:
            return
        from capemix.data.persons import check_persons

        check_persons(self.person is not None, self.rows_per_person)
