"""What an installed package brings is found wherever a document names it: nothing is imported by
hand."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from capemix.data import open_data
from capemix.data.schema import Category, Number, Table
from capemix.errors import InputError
from capemix.facts import Facts, map_of
from capemix.methods.class_gaussian import ClassGaussian
from capemix.plan import make_plan
from capemix.release import read_release
from releasing import release_of
from test_columns import Boolean

MODULE = """
from __future__ import annotations
from dataclasses import dataclass, field
from typing import Any, Literal
import numpy as np
import pyarrow as pa
from capemix.data.cells import Cells, Codes, Real
from capemix.data.columns import Column, Mask, Values, column_type

"""

Command = Any


@pytest.fixture
def installed(tmp_path: Path) -> Command:
    """Run a command of capemix, in a process of its own, where a package with a type of column is
    installed."""
    site = tmp_path / "site"
    metadata = site / "truths-1.dist-info"
    metadata.mkdir(parents=True)
    (site / "truths.py").write_text(MODULE + inspect.getsource(Boolean))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: truths\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[capemix.methods]\ntruths = truths\n")
    path = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}

    def run(*words: object) -> str:
        command = [sys.executable, "-m", "capemix", *map(str, words)]
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


SCHEMA = {
    "format": "capemix-schema/1",
    "columns": [
        {"name": "in", "type": "boolean"},
        {"name": "size", "type": "number", "low": 0, "high": 1},
    ],
    "label": {"name": "y", "type": "category", "categories": ["no", "yes"]},
}


def test_a_column_of_another_package_is_read_by_every_command(
    installed: Command, tmp_path: Path
) -> None:
    rows = "".join(f"{at % 2},{at / 400},{'no' if at % 3 else 'yes'}\n" for at in range(400))
    (tmp_path / "rows.csv").write_text("in,size,y\n" + rows)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    installed(
        *("synth", "rows.csv", "--schema", "schema.json", "--epsilon", 8),
        *("--no-ledger", "--out", "out"),
    )
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert any(
        line.startswith("the column type boolean is of the package truths")
        for line in manifest["guarantee"]["assumptions"]
    )
    assert json.loads(installed("evaluate", "out", "--test", "rows.csv", "--json"))
    installed(
        *("federate", "plan", "--schema", "schema.json", "--epsilon", 4, "--sites", 3),
        *("--out", "plan.json"),
    )
    checked = installed("site", "check", "--data", "rows.csv", "--plan", "plan.json")
    assert "400 rows" in checked


def test_the_guarantee_says_whose_columns_they_are() -> None:
    table = Table(
        (Boolean("in"), Boolean("out"), Number("size", 0, 1)), Category("y", ("no", "yes"))
    )
    facts = Facts(table.names, "y", table.classes, normalise=map_of(table), table=table)
    said = make_plan(facts, ClassGaussian()).calibrate(1.0).guarantee().assumptions
    (line,) = [each for each in said if "of the package" in each]
    assert line.startswith(f"the column type boolean is of the package {Boolean.__module__}: ")


def test_a_release_with_a_column_of_an_unknown_type_says_what_to_install(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    table = Table((Number("size", 0, 1),), Category("y", ("no", "yes")))
    (tmp_path / "rows.csv").write_text("size,y\n0.5,no\n0.25,yes\n" * 50)
    release_of(
        open_data(tmp_path / "rows.csv", table=table).train, method="class-gaussian", epsilon=9.0
    ).save(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["facts"]["table"]["columns"][0]["type"] = "weekday"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        InputError, match=r"column 'size' has an unknown type \(got weekday\).*install the package"
    ):
        read_release(folder)
    with pytest.raises(InputError, match=r"has no readable manifest.json \(got .*name a release"):
        read_release(tmp_path)
