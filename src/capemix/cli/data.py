"""`capemix data`: the datasets there are, and what a file looks like."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from capemix.cli import options as opt
from capemix.cli.schema import SchemaFile

_SCHEMA = (
    "Columns of text or dates, and cells that may be missing, need a schema: `capemix schema draft`"
    " proposes one."
)


def describe(
    name: Annotated[
        str | None, typer.Argument(help="A dataset or a file; all datasets by default.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Label column of a file.")] = None,
    classes: Annotated[
        str | None, typer.Option(help="Classes that rows may have: a,b,c.", show_default=False)
    ] = None,
    schema: SchemaFile = None,
    person: opt.Person = None,
    rows_per_person: opt.RowsPerPerson = None,
    json: opt.Json = False,
) -> None:
    """The datasets there are, or what a file looks like to capemix (shown to its owner only): how
    many records count, and which columns make others count for nothing."""
    from capemix.cli.show import print_facts, print_json, print_table
    from capemix.data import (
        DATASETS,
        Table,
        existing_file,
        find_dialect,
        open_cells,
        open_data,
        open_table,
        unread,
        with_person,
    )
    from capemix.data.persons import MOST_ROWS, counted, people_of
    from capemix.private import PRIVATE

    if name is None:
        found = [
            {
                "name": info.name,
                "features": info.width,
                "classes": len(info.classes),
                "range": list(info.value_range),
                "records": sum(info.class_sizes),
                "source": info.source,
            }
            for info in DATASETS.values()
        ]
        if json:
            print_json({"datasets": found})
        else:
            print_table("datasets", found)
        return
    table = None if schema is None else Table.read(schema)
    listed = opt.parse_names("classes", classes)
    dialect = None if table is None else table.file
    if name not in DATASETS and table is None:
        _, dialect = find_dialect(existing_file(name), label)
    if rows_per_person is not None:
        opt.People(person=person, rows_per_person=rows_per_person).check()
    loaded = open_data(
        name, label, classes=listed, table=table, dialect=dialect, person=person
    ).train
    most = MOST_ROWS if person is not None and rows_per_person is None else rows_per_person
    rows = counted(loaded, most, one_class=False)
    facts: dict[str, Any] = {
        "name": name,
        "features": rows.width,
        "records": len(rows),
        "count_for_nothing": rows.unfit,
    }
    if rows.persons is not None:
        facts |= people_of(loaded, rows)
    if rows.label_name is not None:
        said = rows.classes if table is None or table.label is None else table.label.categories
        facts |= {"classes": list(said), "class_sizes": rows.class_counts().tolist()}
    if name not in DATASETS:
        cells = (
            open_cells(name, rows.label_name, dialect=dialect)
            if table is None
            else open_table(name, table)
        )
        cells = cells if person is None else with_person(cells, person)
        if dialect is not None:
            facts["file"] = str(dialect)
        facts["cells_that_are_no_number"] = unread(cells, table)
    if json:
        print_json(facts if name in DATASETS else facts | {"private": PRIVATE})
    else:
        print_facts(facts)
        if name not in DATASETS:
            if table is None and facts["cells_that_are_no_number"]:
                typer.echo(_SCHEMA)
            typer.echo(PRIVATE)
