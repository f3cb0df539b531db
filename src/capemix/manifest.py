"""What anyone may know of a release, as it lies beside the rows: `manifest.json`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from capemix import documents
from capemix.data.schema import Origin, Table
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.identity import Member
from capemix.private import public_text
from capemix.program_cost import BudgetLine
from capemix.queries import Participation, QueryShape
from capemix.sums.steps import Normalise, Step

if TYPE_CHECKING:  # a private value is refused by its type; documents know of no such recursion
    from capemix.private import Json
else:
    Json = Any

FORMAT: Final = "capemix-release/3"
FORMATS: Final = (FORMAT, "capemix-release/2", "capemix-release/1")
_VERSIONED: Final = ("capemix", "numpy", "scipy", "cryptography", "dp-accounting", "pyarrow")


Counted = Literal["in a ledger", "by each site in its own ledger", "in no ledger"]
Saw = Literal["every record", "no record: noisy sums over all sites alone"]
EVERY_RECORD: Final[Saw] = "every record"
NO_RECORD: Final[Saw] = "no record: noisy sums over all sites alone"


@dataclass(frozen=True, kw_only=True)
class HowMade:
    """What is said of the making, beside the plan. ``date``: the day, in UTC; None for a test
    seed's release, which repeats every byte. ``counted`` and ``lineage``: who pays, under which
    name; ``ledger_heads``: the ledger's head after each charge, which its owner can look up.
    ``schema``: where it comes from. ``curator_saw``: what whoever made the release saw of the
    records. ``read_from_rows``: facts that were neither declared nor paid for."""

    date: str | None
    counted: Counted
    lineage: str | None = None
    ledger_heads: tuple[str, ...] = ()
    schema: Origin
    curator_saw: Saw
    test_seed: bool = False
    read_from_rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """No input digest, no timing, no count of the input's rows.

    ``facts`` are those that the release was made by, ``outline`` the sums that were asked for,
    ``steps`` what was done to a record before it was added up, ``budget`` what each sum cost.
    ``clip`` is the norm to which released rows were clipped as a whole, if they were. ``rows`` are
    the synthetic ones. ``soft_labels`` names the columns that say how likely each class is.
    ``how_made`` says when and by what the release came to be, and ``signer`` whose signature is
    beside the manifest; None: nobody's.
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
    how_made: HowMade | None = None
    signer: Member | None = None
    format: Literal["capemix-release/3"] = FORMAT

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest of a release folder, of this format or of one before."""
        return cls.of(documents.load(path, name="manifest"), path)

    @classmethod
    def of(cls, found: Any, path: Path) -> Manifest:
        """The same, from the JSON that the file at ``path`` holds."""
        form = found.get("format") if isinstance(found, dict) else None
        if form == FORMATS[1]:  # which lacks only what may be left out
            found = {**found, "format": FORMAT}
        if form == FORMATS[2]:
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
