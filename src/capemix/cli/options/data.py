"""The rows at hand, and how they are dealt out to sites."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from capemix.cli.options.facts import DeclaredFacts, parse_names
from capemix.cli.options.groups import MORE, SITES
from capemix.cli.options.names import TestSeed
from capemix.cli.options.people import People
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.data import Cells, DatasetInfo, LabeledRows, Table, UnlistedRows

DRAFT: Final = "draft"
"""In the place of a schema's file: draft one from the rows."""

SPLITS: Final = ("iid", "stratified", "dirichlet")


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """Rows at hand: all of them, and those of each site where a column says whose they are.
    ``test`` and ``info`` come with a known dataset only."""

    whole: LabeledRows | UnlistedRows
    sites: tuple[LabeledRows | UnlistedRows, ...] | None = None
    test: LabeledRows | None = None
    info: DatasetInfo | None = None

    @property
    def classes(self) -> tuple[str | int, ...] | None:
        """None where nobody has declared them."""
        return getattr(self.whole, "classes", None)

    def as_they_come(self) -> Opened:
        """With the labels that there are as classes, where nobody has declared any."""
        from capemix.data import LabeledRows

        if isinstance(self.whole, LabeledRows):
            return self
        whole = self.whole.as_they_come()
        sites = (
            None
            if self.sites is None
            else tuple(
                each
                if isinstance(each, LabeledRows)
                else each.listed(whole.classes, whole.read_from_rows)
                for each in self.sites
            )
        )
        return replace(self, whole=whole, sites=sites)

    def declared(self) -> tuple[LabeledRows, tuple[LabeledRows, ...] | None]:
        """All rows, and each site's. Several sites never find a list of classes together."""
        from capemix.data import LabeledRows

        if not isinstance(self.whole, LabeledRows):
            raise InputError(
                "classes",
                "must be declared for more than one site",
                fix="list the classes that rows may have: a,b,c",
            )
        return self.whole, cast("tuple[LabeledRows, ...] | None", self.sites)


@dataclass(frozen=True, kw_only=True)
class Dealing:
    """Whose rows are whose, where one file has those of several sites."""

    partition: Annotated[
        str,
        typer.Option(
            help="iid, stratified, dirichlet, or a column of the file, with --site-names.",
            rich_help_panel=SITES,
        ),
    ] = "stratified"
    site_names: Annotated[
        str | None,
        typer.Option(
            help="What --partition COLUMN may hold, a,b,c, a site for each. Rows with another name"
            " are at no site.",
            show_default=False,
            rich_help_panel=SITES,
        ),
    ] = None
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Of --partition dirichlet: smaller is skewer [default: 0.1].",
            show_default=False,
            rich_help_panel=SITES,
        ),
    ] = None

    def named(self) -> tuple[str | None, tuple[str | int, ...]]:
        """The column that says whose a row is, if one does, and the sites' names in it."""
        column = None if self.partition in SPLITS else self.partition
        names = parse_names("site_names", self.site_names)
        if (column is None) != (names is None):
            raise InputError(
                "site_names",
                "must be declared with --partition COLUMN" if names is None else "has no meaning",
                value=column if names is None else self.site_names,
                fix="list the sites' names: a,b,c"
                if names is None
                else "leave it out, or name the column with --partition",
            )
        if self.alpha is not None and self.partition != "dirichlet":
            raise InputError(
                "alpha",
                f"has no meaning for --partition {self.partition}",
                value=self.alpha,
                fix="leave it out, or use --partition dirichlet",
            )
        return column, names or ()

    def deal(self, opened: Opened, sites: int | None, seed: int | None) -> list[LabeledRows]:
        """Each site's rows."""
        from capemix.data import partition

        rows, parts = opened.declared()
        if parts is None:
            count, alpha = 1 if sites is None else sites, 0.1 if self.alpha is None else self.alpha
            how: Any = self.partition
            return list(partition(rows, count, how, alpha=alpha, seed=seed or 0))
        if sites is not None and sites != len(parts):
            raise InputError(
                "sites",
                f"must be {len(parts)}, as many as --site-names",
                value=sites,
                fix="leave it out, or bring it in line",
            )
        return list(parts)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """A dataset or a file, and how its cells are read."""

    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="A file, or a dataset's name.", show_default=False),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The same as FILE [default: digits].",
            show_default=False,
            rich_help_panel=MORE,
        ),
    ] = None
    label: Annotated[
        str | None, typer.Option(help="Label column of a file.", show_default=False)
    ] = None
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="What is public of a table's columns, as `capemix schema draft` writes it; without"
            " one every column must hold numbers. 'draft' drafts one from the rows, and the release"
            " then has no guarantee.",
            show_default=False,
        ),
    ] = None
    test_seed: TestSeed = None

    @property
    def source(self) -> str:
        """The dataset or the file."""
        from capemix.data import DEFAULT_DATASET

        if self.file is not None and self.data is not None:
            raise InputError(
                "data", "is given twice", value=f"{self.file} and {self.data}", fix="leave one out"
            )
        return self.file or self.data or DEFAULT_DATASET

    def open(self, facts: DeclaredFacts, dealing: Dealing, people: People) -> Opened:
        """The rows. Those of a file whose classes nobody declares are left unlisted."""
        from capemix.data import (
            DATASETS,
            by_site,
            existing_file,
            open_cells,
            open_data,
            open_table,
            with_person,
        )

        people.check()
        source, person = self.source, people.person
        column, names = dealing.named()
        classes = parse_names("classes", facts.classes)
        if self.schema is not None:
            facts.refuse_beside_schema()
        if source in DATASETS:
            if column is not None:
                raise InputError(
                    "partition",
                    f"must be one of {', '.join(SPLITS)} for the dataset {source}",
                    value=column,
                    fix="choose one, or give a file",
                )
            table = None if self.schema in (None, DRAFT) else self._table(source)
            known = open_data(source, self.label, classes=classes, table=table, person=person)
            return Opened(whole=known.train, test=known.test, info=known.info)
        declared = None if self.schema is None else self._table(source, person)
        if declared is not None:
            cells = open_table(source, declared, self.label, person=person)
        else:
            also = tuple(each for each in (column, person) if each is not None)
            cells = open_cells(existing_file(source), self.label, also)
            cells = cells if person is None else with_person(cells, person)
        return _opened(
            cells, declared, classes, column, by_site(cells, column, names) if column else None
        )

    def _table(self, source: str, person: str | None = None) -> Table:
        from capemix.data import Table, draft_table

        if self.schema != DRAFT:
            return Table.read(Path(str(self.schema)))
        return draft_table(source, self.label, person).table


def _opened(
    cells: Cells,
    declared: Table | None,
    classes: tuple[str | int, ...] | None,
    column: str | None,
    parts: list[Cells] | None,
) -> Opened:
    but = () if column is None else (column,)
    return Opened(
        whole=_rows(cells, declared, classes, but),
        sites=None
        if parts is None
        else tuple(_rows(part, declared, classes, but) for part in parts),
    )


def _rows(
    cells: Cells,
    declared: Table | None,
    classes: tuple[str | int, ...] | None,
    but: tuple[str, ...],
) -> LabeledRows | UnlistedRows:
    from capemix.data import UnlistedRows

    if declared is not None:
        return declared.rows(cells)
    rows = UnlistedRows.of(cells, cells.label, but)
    return rows if classes is None else rows.listed(classes)
