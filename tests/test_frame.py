"""The frame: what the package imports is what it declares."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
DISTRIBUTION = {"sklearn": "scikit-learn", "dp_accounting": "dp-accounting", "nacl": "pynacl"}


def imported(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_every_import_is_of_a_declared_dependency_of_its_room() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=\[]", line)[0] for line in project["dependencies"]}
    used: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        found = imported(ast.parse(path.read_text()))
        where = path.as_posix()
        extras = {"flwr"} if "engines/flower" in where else set()
        networks = ("/evaluate/", "/image_diffusion/", "/statistics/denois")
        extras |= {"torch"} if any(room in where for room in networks) else set()
        used |= found - extras
    foreign = used - set(sys.stdlib_module_names) - {"capemix"}
    assert {DISTRIBUTION.get(name, name) for name in foreign} <= declared


def test_torch_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["torch"] == ["torch==2.13.0"]
