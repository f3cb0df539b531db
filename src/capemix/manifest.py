"""What anyone may know of a release, as it lies beside the rows: `manifest.json`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from capemix import documents
from capemix.data.schema import Table
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.private import public_text
from capemix.program_cost import BudgetLine
from capemix.queries import Participation, QueryShape
from capemix.sums.steps import Normalise, Step

if TYPE_CHECKING:  # a private value is refused by its type; documents know of no such recursion
    from capemix.private import Json
else:
    Json = Any

FORMAT: Final = "capemix-release/2"
FORMATS: Final = (FORMAT, "capemix-release/1")
_VERSIONED: Final = ("capemix", "numpy", "scipy", "cryptography", "dp-accounting", "pyarrow")


@dataclass(frozen=True)
class Manifest:
    """No input digest, no timing, no count of the input's rows.

    ``facts`` are those that the release was made by, ``outline`` the sums that were asked for,
    ``steps`` what was done to a record before it was added up, ``budget`` what each sum cost.
    ``clip`` is the norm to which released rows were clipped as a whole, if they were. ``rows`` are
    the synthetic ones. ``soft_labels`` names the columns that say how likely each class is.
    """

    guarantee: dict[str, Json]
    plan: dict[str, Json]
    facts: Facts
    outline: tuple[QueryShape, ...]
    steps: tuple[Step, ...]
    budget: tuple[BudgetLine, ...]
    clip: float | None
    rows: int
    soft_labels: tuple[str, ...] | None
    warnings: tuple[str, ...]
    versions: dict[str, str]
    sha256: dict[str, str]
    format: Literal["capemix-release/2"] = FORMAT

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest of a release folder, of this format or of the one before."""
        found = documents.load(path, name="manifest")
        if isinstance(found, dict) and found.get("format") == FORMATS[1]:
            try:
                made = documents.as_json(_from_version_1(found))
                return documents.from_json(cls, made, name="manifest")
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                if isinstance(error, InputError):
                    raise
                raise InputError(
                    "manifest", "cannot be read", value=path, fix="get the release again"
                ) from None
        return documents.from_json(cls, found, name="manifest")

    def text(self) -> str:
        """As it is written. A private value has no place in it."""
        return public_text(documents.as_json(self))


def installed() -> dict[str, str]:
    """Which versions made a release."""
    return {name: version(name) for name in _VERSIONED}


def _from_version_1(found: dict[str, Any]) -> Manifest:
    """A manifest as it was written when every plan was one to mix rows."""
    plan, schema = found["plan"], found["schema"]
    table = None
    if plan.get("table") is not None:
        table = documents.from_json(Table, plan["table"], name="schema")
    shape, soft = schema["image_shape"], schema.get("soft_labels")
    classes = tuple(plan["classes"])
    sizes = plan.get("class_sizes")
    normalise = documents.from_json(_Map, {"of": plan["normalise"]}, name="normalise").of
    return Manifest(
        guarantee=found["guarantee"],
        plan=plan,
        facts=Facts(
            features=tuple(schema["features"]) if table is None else table.names,
            label=schema["label"],
            classes=classes,
            class_sizes=None if sizes is None else tuple(sizes),
            normalise=normalise,
            image_shape=None if shape is None else (shape[0], shape[1]),
            table=table,
        ),
        outline=tuple(_line(each, plan) for each in plan.get("queries", ())),
        steps=tuple(documents.from_json(Step, each, name="step") for each in plan["steps"]),
        budget=tuple(
            documents.from_json(BudgetLine, each, name="budget") for each in found["budget"]
        ),
        clip=plan["clip"],
        rows=schema["rows"],
        soft_labels=None if soft is None else tuple(soft["columns"]),
        warnings=tuple(found.get("warnings", ())),
        versions=found["versions"],
        sha256=found["sha256"],
    )


@dataclass(frozen=True)
class _Map:
    of: Normalise


def _line(found: dict[str, Any], plan: dict[str, Any]) -> QueryShape:
    """A sum of a version-1 plan; mixtures were over their size, and averaged over sites or not."""
    drawn = "participation" in found
    averaged = plan.get("form") == "algorithm1" or plan["scheme"] == "conventional"
    draws = tuple(Participation(**each) for each in found.get("participation", ()))
    return QueryShape(
        name=found["name"],
        reads="",
        statistic="rows" if drawn else "",
        width=found["width"],
        groups=len(draws) if drawn else found["groups"],
        l2_norm_bound=found.get("l2_norm_bound", 1.0),
        share=found["share"],
        repeats=found.get("times", 1),
        divisor=plan["mixture"] * (plan["sites"] if averaged else 1) if drawn else 1.0,
        draws=draws,
    )
