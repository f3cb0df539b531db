"""Every document comes back as it was written; what is not meant so is refused, with its place."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from capemix import documents
from capemix.data import Table
from capemix.data.schema import Category, Number


@dataclass(frozen=True)
class Facts:
    """A document with another inside."""

    table: Table | None
    rows: int = 3


TABLE = Table(
    (
        Number("age", 0, 90, type="integer"),
        Number("cost", 0.5, 1e16, scale="log"),
        Number("w", -0.25, 2.0),
        Category("work", ("é", "none"), missing=True),
        Category("smokes", (False, True)),
    ),
    Category("ill", ("no", "yes")),
    drafted=True,
)

KEPT: dict[str, Any] = {
    "format": "capemix-schema/1",
    "label": {"name": "ill", "categories": ["no", "yes"]},
    "columns": [
        {"name": "age", "type": "integer", "low": 0, "high": 90},
        {"name": "cost", "type": "number", "low": 0.5, "high": 1e16, "scale": "log"},
        {"name": "w", "type": "number", "low": -0.25, "high": 2.0},
        {"name": "work", "type": "category", "categories": ["é", "none"], "missing": True},
        {"name": "smokes", "type": "category", "categories": [False, True], "missing": False},
    ],
    "drafted": True,
    "confirmed": "94390245c5571df7d38c95bac57337ce5e26c04fa34609f760a79973829ac5dc",
}
"""A schema file with what has a default left out, confirmed by its owner."""


def again(value: Any) -> Any:
    """Through a text and back."""
    text = json.dumps(documents.as_json(value))
    return documents.from_json(type(value), documents.parse(text, name="text"), name="document")


# -- schemas ---------------------------------------------------------------------------------------


def test_a_file_that_its_owner_confirmed_stays_confirmed(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(KEPT))
    found = Table.read(tmp_path / "schema.json")
    assert found.is_confirmed
    assert found == TABLE.confirm()
    assert not replace(found, label=Category("ill", ("no", "yes", "maybe"))).is_confirmed


@pytest.mark.parametrize("table", [TABLE, TABLE.confirm(), replace(TABLE, drafted=False), None])
def test_a_schema_comes_back_inside_of_another_document(table: Table | None) -> None:
    found = again(Facts(table))
    assert found == Facts(table)
    if table is not None:
        assert found.table.is_confirmed == table.is_confirmed
        assert [type(each.low) for each in found.table.columns[:2]] == [int, float]
        assert [type(each) for each in found.table.columns[4].categories] == [bool, bool]


def test_a_confirmed_draft_that_is_changed_inside_of_a_document_is_a_draft_again() -> None:
    found = documents.as_json(Facts(TABLE.confirm()))
    found["table"]["columns"][0]["high"] = 91
    table = documents.from_json(Facts, found, name="facts").table
    assert table is not None
    assert not table.is_confirmed
    assert table.read_from_rows
