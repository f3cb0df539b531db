"""`capemix init`: from a file to the command that makes its first release, question by question."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capemix.cli import options as opt
from capemix.cli.schema import public_lines, schema_text
from capemix.errors import InputError, printable

if TYPE_CHECKING:
    from capemix.data import Table
    from capemix.data.schema import Column

_ANYONE = "could say without having seen the rows"


def init(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Your file of records.")],
    label: Annotated[
        str | None,
        typer.Option(help="The column to predict, if there is one.", show_default=False),
    ] = None,
    schema: Annotated[Path, typer.Option(help="The schema to write; must not exist.")] = Path(
        "schema.json"
    ),
    lineage: Annotated[
        str | None,
        typer.Option(help="A name for the data [default: the file's].", show_default=False),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(help="Epsilon that all releases of it together may cost.", show_default=False),
    ] = None,
    public: Annotated[
        bool,
        typer.Option(
            "--public", help="You have read the file: everything that the draft says is public."
        ),
    ] = False,
    place: opt.LedgerFile = None,
    json: opt.Json = False,
) -> None:
    """Prepare a file's first release: what is public of it, line by line, and its limit. Asks what
    no option says, if somebody is there to ask.

    The first look READS THE ROWS, outside of any budget. Nothing of it is released.
    """
    from capemix.cli.show import print_json
    from capemix.data import draft_table, naming_lines
    from capemix.release import outside_releases

    target, asks = outside_releases(schema, "schema"), not json and sys.stdin.isatty()
    if target.exists():
        raise InputError("schema", "exists already", value=schema, fix="name a new file")
    if limit is not None and not limit > 0:
        raise InputError("limit", "must be above 0", value=limit, fix="1 is strong, 10 is weak")
    with naming_lines():
        table = draft_table(file, label or (_asked_label(file) if asks else None)).table
    if asks and not public:
        table, sure = _asked_columns(table)
    else:
        sure = public
        for line in () if json else public_lines(table):
            print(line)
    table = table.confirm() if sure else table
    name = lineage or Path(file).name.partition(".")[0]
    if limit is None and asks:
        limit = typer.prompt(_LIMIT.format(name), type=float, default=5.0)
    counted = None if limit is None else _limited(name, limit, place)
    with target.open("x", encoding="utf-8") as out:
        out.write(schema_text(table))
    steps = list(_next(file, schema, name, place, sure=sure, counted=counted is not None))
    if json:
        print_json({"schema": str(target), "confirmed": sure, "lineage": name, "limit": counted,
                    "next": steps})  # fmt: skip
        return
    print(f"\n{target} is written{', and confirmed' if sure else ''}.")
    if counted is not None:
        print(f"All releases of {name} together may cost epsilon {counted:g}.")
    print("Next:" if len(steps) == 1 else "Next, one after the other:")
    for step in steps:
        print(f"    {step}")


_LIMIT = (
    "\nEvery release gives something away; what all of {0} may give away together is its limit.\n"
    "1 is a strong promise, 10 a weak one. Decide before you see a release. Limit"
)


def _asked_label(file: str) -> str | None:
    found: str = typer.prompt(
        f"Which column of {file} will people want to predict? (none: just Enter)",
        default="",
        show_default=False,
    )
    return found.strip() or None


def _asked_columns(table: Table) -> tuple[Table, bool]:
    """The draft as its owner corrects it, and whether all of it is public knowledge."""
    print(f"\nEverything below will be public. Keep only what anyone {_ANYONE}.")
    print("For each column: y if what it says is public; or write it anew; or - to leave it out.")
    columns, label = [], table.label
    for column in table.columns:
        kept = _asked(column, may_leave=True)
        if kept is not None:
            columns.append(kept)
    if label is not None:
        label = _asked(label, may_leave=False)
    made = replace(table, columns=tuple(columns), label=label, label_place=None, confirmed=None)
    print("\nSo this will be public:")
    for line in public_lines(made):
        print(f"  {line}")
    return made, typer.confirm("Is all of it public knowledge?", default=False)


def _asked(column: Any, *, may_leave: bool) -> Any:
    """The column as it is, as it is written anew, or None."""
    while True:
        said: str = typer.prompt(
            f"\n{printable(column.name)}: {printable(str(column))}\n  public? ({_how(column)})"
        ).strip()
        if said.lower() in ("y", "yes"):
            return column
        if said == "-" and may_leave:
            return None
        try:
            return _anew(column, said)
        except (ValueError, TypeError) as error:
            text = str(error) if isinstance(error, InputError) else "that cannot be read."
            print(f"  {printable(text)}")


def _how(column: Column) -> str:
    """What can be written in its place."""
    if hasattr(column, "low"):
        return "y, or LOWEST,HIGHEST"
    listed = hasattr(column, "categories") and not isinstance(column.categories[0], bool)
    return "y, or A,B,C" if listed else "y"


def _anew(column: Any, said: str) -> Any:
    parts = [part.strip() for part in said.split(",")]
    if hasattr(column, "low"):
        low, high = parts
        kind = str if isinstance(column.low, str) else _number
        return replace(column, low=kind(low), high=kind(high))
    if hasattr(column, "categories") and all(parts):
        first = type(column.categories[0])
        if first is bool:
            raise ValueError
        return replace(column, categories=tuple(map(first, parts)))
    raise ValueError


def _number(said: str) -> int | float:
    try:
        return int(said)
    except ValueError:
        return float(said)


def _limited(name: str, epsilon: float, place: Path | None) -> float:
    """The limit that the ledger has for this name: one that stands is left."""
    from capemix.ledger import Ledger, Limit
    from capemix.queries import Relation

    ledger = Ledger.open(place)
    known = ledger.accounts().get(name)
    if known is None:
        ledger.set_limit(name, Limit(epsilon, 1e-5, Relation.ADD_REMOVE))
        return epsilon
    if known.limit.epsilon != epsilon:
        raise InputError(
            "limit",
            f"of {name} is epsilon {known.limit.epsilon:g} already",
            value=epsilon,
            fix="say --lineage with another name, or change it with `capemix ledger set-limit`",
        )
    return epsilon


def _next(
    file: str, schema: Path, name: str, place: Path | None, *, sure: bool, counted: bool
) -> list[str]:
    """What is to be typed after this."""
    at = [] if place is None else ["--ledger", str(place)]
    steps = []
    if not sure:
        steps.append(["capemix", "schema", "confirm", str(schema)])
    if not counted:
        steps.append(["capemix", "ledger", "set-limit", name, "--epsilon", "5", *at])
    steps.append(["capemix", "synth", file, "--schema", str(schema), "--epsilon", "1",
                  "--lineage", name, *at, "--out", "release"])  # fmt: skip
    return [shlex.join(step) for step in steps]
