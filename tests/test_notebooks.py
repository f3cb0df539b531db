"""Every cell of the notebooks runs, in order."""

from __future__ import annotations

import ast
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[str]:
    found = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def run(code: str, known: dict[str, Any]) -> tuple[str, Any]:
    """What a cell prints, and the value of its last line."""
    parsed, said, value = ast.parse(code), StringIO(), None
    last = parsed.body.pop() if isinstance(parsed.body[-1], ast.Expr) else None
    with redirect_stdout(said):
        exec(compile(parsed, "cell", "exec"), known)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), known)
    return said.getvalue(), value


def test_there_are_three_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["budget", "people", "sites"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_runs(path: Path) -> None:
    known: dict[str, Any] = {}
    found = [run(code, known) for code in cells(path)]
    shown = [said for said, value in found if said or value is not None]
    assert len(shown) >= len(found) / 2  # a cell that shows nothing has little to say
    if "synthesizer" in known or "release" in known:
        release = known.get("release") or known["synthesizer"].release_
        assert release.guarantee.status == "guarantee"
