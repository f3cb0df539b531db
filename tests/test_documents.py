"""Every document comes back as it was written; what is not meant so is refused, with its place."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from capemix import documents
from capemix.data import LabeledRows, Table, load_dataset
from capemix.data.schema import Category, Number
from capemix.errors import InputError
from capemix.plan import Plan
from capemix.sums.steps import PublicMap, SiteZScore
from releasing import plan_of

PIXELS = PublicMap.of_range(0, 16)


def digits() -> LabeledRows:
    return load_dataset("digits")[0]


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


def test_what_a_part_may_be_is_said_at_any_depth() -> None:
    found = documents.as_json(Facts(TABLE))
    found["table"]["format"] = "none"
    with pytest.raises(InputError, match=r"facts table format .*write capemix-schema/1"):
        documents.from_json(Facts, found, name="facts")
    found = documents.as_json(TABLE) | {"format": "none"}
    with pytest.raises(InputError, match=r"schema format .*write capemix-schema/1"):
        documents.from_json(Table, found, name="schema")


# -- plans -----------------------------------------------------------------------------------------

PLANS = {
    "class-gaussian": plan_of(digits(), "class-gaussian", normalise=PIXELS, samples=50),
    "class-gaussian, measured": plan_of(digits(), "class-gaussian"),
    "class-gaussian, rounded": plan_of(
        digits(), "class-gaussian", normalise=PIXELS, law="rounded", relation="replace-one"
    ),
    "image-clusters": plan_of(
        digits(), "image-clusters", normalise=PIXELS, soft_labels=True, deskew=True,
        scheme="cape", sites=4, dropouts=1,
    ),
    "mixing": plan_of(
        digits(), normalise=PIXELS, class_sizes=(100,) * 10, clip=3.0, samples=20, mixture=4,
        scheme="cape", sites=5, masks="gaussian",
    ),
    "mixing, measured": plan_of(digits(), samples=20, mixture=4),
    "mixing, as published": plan_of(
        digits(), normalise=SiteZScore(), class_sizes=(100,) * 10, clip=3.0, samples=20, mixture=4,
        accountant="paper",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_comes_back_with_its_noise_its_facts_and_its_choices(kind: str) -> None:
    plan = PLANS[kind]
    assert again(plan) == plan
    calibrated = plan.calibrate(4.0)
    assert again(calibrated) == calibrated
    assert again(calibrated).names == calibrated.names
    for choice in plan.method.choices(plan):
        made = replace(calibrated, chosen=choice)
        assert again(made) == made


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ((), {"epsilons": 1.0}),
        ((), {"multiplier": "1"}),
        ((), {"multiplier": -1.0}),
        ((), {"delta": 0}),
        ((), {"law": "none"}),
        ((), {"chosen": {"rank": -1, "octave": 7}}),
        ((), {"chosen": {"rank": 1, "clusters": 1}}),
        ((), {"chosen": {}}),
        (("method",), {"kind": "none"}),
        (("method",), {"sample": 3}),
        (("method",), {"samples": 3.5}),
        (("facts",), {"classes": [1, "1"]}),
        (("facts",), {"features": []}),
        (("facts", "normalise"), {"scale": 0.0}),
        (("federation",), {"sites": 0}),
    ],
    ids=str,
)
def test_a_plan_that_was_bent_is_refused(part: tuple[str, ...], change: dict[str, Any]) -> None:
    found = documents.as_json(PLANS["class-gaussian"].calibrate(4.0))
    assert documents.from_json(Plan, found, name="plan")
    place = found
    for step in part:
        place = place[step]
    place.update(change)
    with pytest.raises(InputError):
        documents.from_json(Plan, found, name="plan")


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity"])
def test_a_number_that_is_not_finite_is_refused_however_it_is_written(number: str) -> None:
    with pytest.raises(InputError, match="is not readable JSON"):
        documents.parse(f'{{"a": {number}}}', name="x")
    assert documents.parse('{"a": 1e300}', name="x") == {"a": 1e300}
