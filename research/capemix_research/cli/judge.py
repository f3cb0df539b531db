"""``capemix-research judge``: what judges of others say of a release, beside what ours say."""

from __future__ import annotations

import json as json_
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capemix.errors import InputError
from capemix_research.cli import options as opt

if TYPE_CHECKING:
    from capemix.data import LabeledRows

JUDGES = ("sdmetrics", "syntheval")


def judge(
    release: Annotated[Path, typer.Argument(help="A release folder of a table with a schema.")],
    train: Annotated[Path, typer.Option(help="Public rows that it was made from.")],
    test: Annotated[Path, typer.Option(help="Other public rows of their kind.")],
    judges: Annotated[
        list[str],
        typer.Option(
            "--judge",
            metavar="JUDGE=PYTHON",
            help="sdmetrics or syntheval, and an interpreter that has it; may be given twice.",
        ),
    ],
    json: opt.Json = False,
) -> None:
    """Have a release judged by sdmetrics and syntheval, and the test rows in its place: nothing can
    be asked for that these do not have. For public rows."""
    from capemix.cli.show import print_json, print_table
    from capemix.data import open_data
    from capemix.release import read_release

    pythons = opt.interpreters("--judge", judges)
    if not set(pythons) <= set(JUDGES):
        raise InputError(
            "--judge", "must be of those that are known", value=judges, fix=f"use {JUDGES}"
        )
    made = read_release(release).rows
    table = made.table
    if table is None:
        raise InputError(
            "release", "must be of a table with a schema", value=release, fix="name another"
        )
    parts = {name: open_data(file, table=table).train
             for name, file in (("train", train), ("test", test))}  # fmt: skip
    found = []
    with tempfile.TemporaryDirectory() as folder:
        files = {name: _written(rows, Path(folder, f"{name}.csv"))
                 for name, rows in {**parts, "release": made}.items()}  # fmt: skip
        schema = Path(folder, "schema.json")
        schema.write_text(_schema(made))
        for name, python in pythons.items():
            for whose in ("release", "test"):
                given = [files["train"], files["test"], files[whose], schema]
                said = _asked(name, python, given, Path(folder))
                found.append({"of": whose, **said})
    if json:
        print_json({"judged": found})
        return
    for name in pythons:
        own, real = (each for each in found if each["judge"] == name)
        lines = [
            {"figure": figure, "release": value, "test rows": real["figures"].get(figure)}
            for figure, value in own["figures"].items()
        ]
        print_table(f"{name} {own['version']}", lines)


def _schema(rows: LabeledRows) -> str:
    from capemix import documents

    return json_.dumps(documents.as_json(rows.table))


def _written(rows: LabeledRows, file: Path) -> Path:
    from capemix_research.experiments.beside import write_csv

    write_csv(rows, file)
    return file


def _asked(judge: str, python: str, files: list[Path], folder: Path) -> dict[str, Any]:
    """In a ``folder`` that will be gone: some leave pictures where they are."""
    from capemix_research.experiments import outside_judges

    # -P: what lies beside the script is no package of the judge's.
    words = [python, "-P", str(Path(outside_judges.__file__).resolve()), judge, *map(str, files)]
    ran = subprocess.run(words, capture_output=True, text=True, cwd=folder)
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or [f"code {ran.returncode}"]
        raise InputError("--judge", f"{judge} failed: {last[0][:200]}", fix="see what it needs")
    said: dict[str, Any] = json_.loads(ran.stdout.strip().splitlines()[-1])
    return said
