"""What a table's owner types: draft a schema from the rows, and confirm it line by line."""

from __future__ import annotations

import json as json_
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer
from typer.core import TyperGroup

from capemix.cli import options as opt
from capemix.cli.command import Commands
from capemix.errors import InputError, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capemix.data import Table

SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        help="What is public of a table's columns, as `capemix schema draft` writes it.",
        show_default=False,
    ),
]


class Schema(TyperGroup):
    """The commands of a schema. A file in place of a command was a draft once."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from capemix.data.readers import suffix_of

            typed = args[0]
            if suffix_of(typed) is None:
                raise
            raise click.UsageError(
                f"`capemix schema {typed}` is now `capemix schema draft {typed}`.", ctx
            ) from error


schema = Commands(
    cls=Schema,
    help="What is public of a table's columns: declared, or drafted from rows and confirmed.",
)

DRAFT: str = (
    "This is a draft: its ranges and lists were read from the rows, and no budget paid for that."
    " Change it to what is known without the rows, then run `capemix schema confirm`. Until then a"
    " release by it has no guarantee."
)


@schema.command()
def draft(
    table: Annotated[str, typer.Argument(help="A .csv, .csv.gz, .tsv, .txt or .parquet file.")],
    out: Annotated[Path, typer.Option(help="JSON file to write; must not exist.")],
    label: Annotated[
        str | None, typer.Option(help="Its label column, if it has one.", show_default=False)
    ] = None,
    person: opt.Person = None,
    logs: Annotated[
        bool,
        typer.Option(
            "--logs",
            help="Take real numbers by their logarithm where their range is above 0 and wide.",
        ),
    ] = False,
    json: opt.Json = False,
) -> None:
    """Draft a table's schema. THE DRAFT READS THE ROWS, outside of any budget: it is a proposal,
    for their owner to check and confirm."""
    from capemix.cli.show import print_json
    from capemix.data import draft_table, faults_of, naming_lines
    from capemix.data.schema import Identifier, Number
    from capemix.private import PRIVATE
    from capemix.release import outside_releases

    target = outside_releases(out)
    with naming_lines():
        found = draft_table(table, label, person)
    drafted = found.table.with_logs() if logs else found.table
    faults = faults_of(table, drafted)
    try:
        with target.open("x") as file:
            file.write(schema_text(drafted))
    except OSError as error:
        raise InputError(
            "--out",
            f"cannot be written: {error.strerror}",
            value=out,
            fix="name a new file in a folder that exists",
        ) from error
    anew = [each.name for each in drafted.columns if isinstance(each, Identifier)]
    taken = [each.name for each in drafted.columns if isinstance(each, Number) and each.log]
    if json:
        facts = {"out": str(target), "columns": len(drafted.columns), "by_logarithm": taken}
        facts |= {"made_anew": anew, "left_out": found.left_out}
        facts |= {"faults": asdict(faults)}
        print_json(facts | {"says": DRAFT, "private": PRIVATE})
        return
    typer.echo(f"{target}: {len(drafted.columns)} columns")
    if drafted.file is not None:
        typer.echo(f"the file: {drafted.file}")
    for name in anew:
        typer.echo(f"made anew: {printable(name)}, since nearly every cell is different")
    for name, reason in found.left_out.items():
        typer.echo(f"left out: {printable(name)}, since {reason}")
    if str(faults):
        typer.echo(str(faults))
    if logs:
        typer.echo(f"By their logarithm: {', '.join(map(printable, taken)) or 'none'}.")
    typer.echo(DRAFT)


@schema.command()
def confirm(
    file: Annotated[Path, typer.Argument(help="A drafted schema.")],
) -> None:
    """Show what a draft would make public, line by line, and ask about each. When all of it is
    public knowledge, that is written into the file, and holds until the file is changed."""
    from capemix.data import Table

    found = Table.read(file)
    if not found.drafted:
        raise InputError(
            "FILE",
            "is no draft: whoever wrote it has declared it",
            value=file,
            fix="use it as it is",
        )
    if found.is_confirmed:
        typer.echo(f"{file} is confirmed, and has not been changed since.")
        return
    typer.echo(
        "Everything below will be public: in the release, in its manifest, and to every site.\n"
        "Say yes only to what anyone could know without having seen the rows."
    )
    for line in public_lines(found):
        if not typer.confirm(f"{line}\n  Is this public knowledge?", default=False):
            typer.echo("Nothing is confirmed. Change that line in the file, or take it out.")
            raise typer.Exit(1)
    _rewrite(file, schema_text(found.confirm()))
    typer.echo(
        f"{file} is confirmed. Releases by it say that it was drafted from the rows and that their"
        " owner confirmed it."
    )


def public_lines(table: Table) -> Iterator[str]:
    """Each thing that a schema makes public."""
    if table.label is not None:
        yield f"The label is the column '{printable(table.label.name)}'."
        yield f"Its classes are {printable(str(table.label))}."
    if table.target is not None:
        yield f"Models will predict the column '{printable(table.target)}'."
    for constraint in table.constraints:
        yield f"No released row breaks this: {printable(str(constraint))}."
    if table.file is not None:
        yield f"The file is {table.file}."
    for column in table.columns:
        yield f"There is a column '{printable(column.name)}': {printable(str(column))}."


def schema_text(table: Table) -> str:
    from capemix import documents

    return json_.dumps(documents.as_json(table), indent=1, ensure_ascii=False) + "\n"


def _rewrite(path: Path, text: str) -> None:
    """The whole file at once, or nothing of it."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(name).chmod(path.stat().st_mode)
        Path(name).replace(path)
    except OSError as error:
        raise InputError(
            "FILE", f"cannot be written: {error.strerror}", value=path, fix="check the folder"
        ) from error
