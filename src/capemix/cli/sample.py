"""`capemix sample`: rows of a release, as many as asked and as conditions choose them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capemix.cli import options as opt
from capemix.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


def sample(
    release: Annotated[Path, typer.Argument(help="A release folder.")],
    out: Annotated[Path, typer.Option(help="A new .csv or .parquet file.")],
    rows: Annotated[
        int | None, typer.Option(help="How many rows [default: all that fit].", show_default=False)
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Which rows: 'age >= 50', 'sex = F', 'price < 12.5'; once for each condition, and"
            " all must hold.",
            show_default=False,
        ),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Choose rows of a release, evenly spread over those that fit. It reads the release and nothing
    else, so it costs nothing."""
    import numpy as np

    from capemix.cli.show import print_json
    from capemix.data import Cells
    from capemix.release import outside_releases, read_release, released_table
    from capemix.where import Condition, evenly, matching, names_of

    if rows is not None and rows < 1:
        raise InputError("--rows", "must be at least 1", value=rows, fix="ask for one row or more")
    target = outside_releases(out)
    write = _writer(target)
    facts = read_release(release).manifest.facts
    table = released_table(release)
    columns = {name: table[name].combine_chunks() for name in names_of(facts)}
    asked = [Condition.parse(text, names_of(facts)) for text in where or ()]
    fit = matching(facts, Cells(len(table), columns, facts.label), asked)
    if not fit.any():
        raise InputError(
            "--where",
            "is met by no row of the release",
            value=", ".join(where or ()),
            fix="leave a condition out, or make the release with more --samples",
        )
    chosen = evenly(np.flatnonzero(fit), rows)
    write(table.take(chosen), target)
    found = {"rows": len(chosen), "fit": int(fit.sum()), "of": len(fit), "out": str(target)}
    if json:
        print_json(found)
        return
    typer.echo(f"{target}: {len(chosen)} rows, of {found['fit']} that fit among {len(fit)}")
    if rows is not None and rows > len(chosen):
        typer.echo(
            f"There are no more than {len(chosen)}. More rows cost nothing when a release is made:"
            " `capemix synth --samples`."
        )


def _writer(target: Path) -> Any:
    """How a file of this name is written, if it can be."""
    import pyarrow.csv
    import pyarrow.parquet

    of = {".csv": pyarrow.csv.write_csv, ".parquet": pyarrow.parquet.write_table}
    if target.suffix not in of:
        raise InputError(
            "--out", "has an unknown suffix", value=target, fix=f"name a {' or '.join(of)} file"
        )
    if target.exists() or not target.parent.is_dir():
        raise InputError(
            "--out",
            "is there already" if target.exists() else "lies in no folder that there is",
            value=target,
            fix="name a new file in a folder that exists",
        )

    def write(table: pa.Table, path: Path) -> None:
        try:
            of[path.suffix](table, path)
        except OSError as error:
            raise InputError(
                "--out",
                f"cannot be written: {error.strerror}",
                value=path,
                fix="name a file in a folder that you may write to",
            ) from error

    return write
