"""Spoiled inputs, each with the command that meets it: `python tests/spoiled.py` writes the page
that shows what is said of them, and with `--print` prints it."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "messages.md"
HEAD = """# What is said of spoiled input

Each line is a command and what it answers where `people.csv`, `schema.json` or an option is spoiled
in one way. A message says what is wrong, the value if it is no private one, and how to mend it.
Nothing is written and nothing is charged. `python tests/spoiled.py` writes this page, and a test
runs every line of it.

"""

GOOD = "age,region,ill\n" + "".join(
    f"{20 + at % 60},{'north' if at % 3 else 'south'},{'yes' if at % 2 else 'no'}\n"
    for at in range(400)
)
SCHEMA: dict[str, Any] = {
    "format": "capemix-schema/1",
    "columns": [
        {"name": "age", "type": "integer", "low": 0, "high": 120},
        {"name": "region", "type": "category", "categories": ["north", "south"], "missing": False},
    ],
    "label": {"name": "ill", "categories": ["no", "yes"]},
}
SYNTH = "capemix synth people.csv --schema schema.json --epsilon 1 --no-ledger --out release"


@dataclass(frozen=True)
class Spoiled:
    """What is spoiled, how it is made so in a folder of good files, and the command that is run."""

    what: str
    spoil: Callable[[], object]
    command: str = SYNTH


def text(content: str, name: str = "people.csv") -> Callable[[], object]:
    return lambda: Path(name).write_text(content)


def raw(content: bytes, name: str = "people.csv") -> Callable[[], object]:
    return lambda: Path(name).write_bytes(content)


def schema(**parts: Any) -> Callable[[], object]:
    return lambda: Path("schema.json").write_text(json.dumps(SCHEMA | parts))


def nothing() -> None:
    """The option is what is spoiled."""


def age(**parts: Any) -> Callable[[], object]:
    return schema(columns=[SCHEMA["columns"][0] | parts, SCHEMA["columns"][1]])


def region(**parts: Any) -> Callable[[], object]:
    return schema(columns=[SCHEMA["columns"][0], SCHEMA["columns"][1] | parts])


def pickled() -> None:
    np.savez("people.npz", features=np.array([{}], dtype=object), labels=np.array(["a"]))


LABEL = "capemix synth people.csv --label ill --epsilon 1 --no-ledger --out release"
CASES = (
    Spoiled("no such file", lambda: Path("people.csv").unlink()),
    Spoiled("a file of nothing", text("")),
    Spoiled(
        "a folder in the place of a file",
        lambda: (Path("people.csv").unlink(), Path("people.csv").mkdir()),
    ),
    Spoiled("a program named .csv", raw(b"\x7fELF\x02\x01\x01" + bytes(200))),
    Spoiled("a spreadsheet named .csv", raw(b"PK\x03\x04" + bytes(range(256)))),
    Spoiled(
        "another kind of file",
        lambda: Path("people.csv").rename("people.xlsx"),
        SYNTH.replace("people.csv", "people.xlsx"),
    ),
    Spoiled(
        "a Parquet file that broke off",
        raw(b"PAR1" + bytes(90), "people.parquet"),
        SYNTH.replace("people.csv", "people.parquet"),
    ),
    Spoiled(
        "an array of Python objects",
        pickled,
        "capemix synth people.npz --epsilon 1 --no-ledger --out release",
    ),
    Spoiled("a column twice", text(GOOD.replace("age,region,ill", "age,age,ill", 1)), LABEL),
    Spoiled("no column of the label's name", nothing, LABEL.replace("ill", "outcome")),
    Spoiled("no label named", nothing, LABEL.replace("--label ill ", "")),
    Spoiled("a column that the file lacks", text(GOOD.replace("region", "county", 1))),
    Spoiled("a schema that is not there", lambda: Path("schema.json").unlink()),
    Spoiled("a schema that is no JSON", text("{", "schema.json")),
    Spoiled(
        "a key twice in the schema",
        text('{"format": "capemix-schema/1", "format": "x"}', "schema.json"),
    ),
    Spoiled("a schema of another format", schema(format="capemix-schema/99")),
    Spoiled("a schema with an unknown part", schema(colour="blue")),
    Spoiled("a range that ends before it begins", age(low=120, high=0)),
    Spoiled("a range that has no end", age(high=None)),
    Spoiled("an unknown type of column", age(type="whole")),
    Spoiled("a category twice", region(categories=["north", "north"])),
    Spoiled("a list without categories", region(categories=[])),
    Spoiled("a column twice in the schema", age(name="region")),
    Spoiled("the label among the columns", age(name="ill")),
    Spoiled("an epsilon of 0", nothing, SYNTH.replace("--epsilon 1", "--epsilon 0")),
    Spoiled("an epsilon that is no number", nothing, SYNTH.replace("--epsilon 1", "--epsilon one")),
    Spoiled("a delta of 1", nothing, SYNTH + " --delta 1"),
    Spoiled("no epsilon", nothing, SYNTH.replace("--epsilon 1 ", "")),
    Spoiled(
        "a folder that is in use",
        lambda: (Path("release").mkdir(), Path("release/notes.txt").touch()),
    ),
    Spoiled("a method that there is not", nothing, SYNTH + " --method gan"),
    Spoiled("an option of another method", nothing, SYNTH + " --method tables --mixture 16"),
    Spoiled("an option mistyped", nothing, SYNTH + " --epsillon 2"),
    Spoiled("fewer rows than classes", nothing, SYNTH + " --samples 1"),
    Spoiled("class sizes of other classes", nothing, SYNTH + " --class-sizes 100,200,100"),
    Spoiled(
        "more colluding sites than there are",
        nothing,
        SYNTH + " --scheme cape --sites 4 --colluding 4",
    ),
    Spoiled("a lineage without a limit", nothing, SYNTH.replace("--no-ledger", "--lineage people")),
    Spoiled("a schema and a label beside it", nothing, SYNTH + " --label region"),
    Spoiled("a range that is no range", nothing, LABEL + " --public-range 5"),
    Spoiled("a release that is none", nothing, "capemix sample people.csv --rows 5 --out some.csv"),
    Spoiled(
        "a release that is not there",
        nothing,
        "capemix evaluate release --test people.csv --label ill",
    ),
)


def answer(case: Spoiled, folder: Path, run: Callable[[list[str]], tuple[int, str, str]]) -> str:
    """What the command says, in a folder of its own; it must refuse, and leave the folder as it
    was."""
    with chdir(folder):
        Path("people.csv").write_text(GOOD)
        Path("schema.json").write_text(json.dumps(SCHEMA))
        case.spoil()
        before = contents(folder)
        code, out, err = run(shlex.split(case.command)[1:])
        if code == 0 or out or "Traceback" in err:
            raise AssertionError(f"{case.what}: code {code}\n{out}\n{err}")
        if contents(folder) != before:
            raise AssertionError(f"{case.what}: something was left behind")
    said = " ".join(err.replace(str(folder), ".").split())
    return re.sub(r"^Usage: .*?(?=Error|error)", "", said)


def contents(folder: Path) -> list[tuple[str, bytes]]:
    """Every file below a folder, hidden ones, too."""
    every = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in every]


def page(run: Callable[[list[str]], tuple[int, str, str]]) -> str:
    rows = ["| what is spoiled | command | what is said |", "|---|---|---|"]
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            said = answer(case, Path(folder).resolve(), run)
        rows.append(f"| {case.what} | {shown(case.command)} | {plain(said)} |")
    return f"{HEAD}The usual command is `{SYNTH}`.\n\n" + "\n".join(rows) + "\n"


def shown(command: str) -> str:
    if command == SYNTH:
        return "the usual one"
    added = command.removeprefix(SYNTH)
    return f"`{command}`" if added == command else f"and `{added.strip()}`"


def plain(said: str) -> str:
    return said.replace("|", "&#124;").replace("<", "&lt;")


def in_this_process(words: list[str]) -> tuple[int, str, str]:
    from capemix.cli import main

    out, err = StringIO(), StringIO()
    sys.argv = ["capemix", *words]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp()
    printed = "--print" in sys.argv
    made = page(in_this_process)
    if printed:
        print(made, end="")
    else:
        PAGE.write_text(made)
