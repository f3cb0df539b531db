"""What a manifest says, in the words of a report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from capemix import documents
from capemix.facts import Facts
from capemix.guarantee import Status
from capemix.manifest import Manifest
from capemix.queries import Relation

REPORT: Final = "report.html"


@dataclass(frozen=True)
class Told:
    """A manifest as JSON, with the digest of the report itself left out: a report cannot name it,
    and is made again of the same folder byte for byte."""

    json: dict[str, Any]
    facts: Facts

    @classmethod
    def of(cls, manifest: Manifest) -> Told:
        said = documents.as_json(manifest)
        said["sha256"] = {name: each for name, each in said["sha256"].items() if name != REPORT}
        return cls(said, manifest.facts)

    @property
    def guarantee(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["guarantee"]
        return found

    @property
    def epsilon(self) -> float | None:
        found = self.guarantee["epsilon"]
        return None if found is None else float(found)

    @property
    def delta(self) -> float:
        return float(self.guarantee["delta"])

    @property
    def status(self) -> str:
        return str(self.guarantee["status"])

    @property
    def holds(self) -> bool:
        """Whether it is a guarantee."""
        return self.status == Status.GUARANTEE

    @property
    def unit(self) -> str:
        return str(self.guarantee.get("unit", "one record"))

    @property
    def change(self) -> str:
        """What neighbouring data differ by."""
        if self.guarantee["relation"] == Relation.ADD_REMOVE:
            return f"{self.unit} is added or left out"
        return f"{self.unit} is replaced by another"

    @property
    def undone(self) -> str:
        """The same of what did not happen."""
        if self.guarantee["relation"] == Relation.ADD_REMOVE:
            return "had been added or left out"
        return "had been another"

    @property
    def sites(self) -> int:
        return int(self.guarantee["adversary"]["sites"])

    @property
    def colluding(self) -> int:
        return int(self.guarantee["adversary"]["colluding"])

    @property
    def missing(self) -> int:
        return int(self.guarantee["adversary"]["dropouts"])

    @property
    def one_process(self) -> bool:
        """Whether whoever made it saw every row: one curator, or sites that were simulated."""
        assumed = self.guarantee["assumptions"]
        return self.sites < 2 or any("one process" in each for each in assumed)

    @property
    def plan(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["plan"]
        return found

    @property
    def method(self) -> str:
        """By its name; the plan of a release from elsewhere may say no more of it."""
        found = self.plan.get("method", "mixing")
        return str(found.get("kind") if isinstance(found, dict) else found)

    @property
    def scheme(self) -> str:
        found = self.plan.get("federation", self.plan)
        return str(found.get("scheme", "central") if isinstance(found, dict) else found)

    @property
    def how_made(self) -> dict[str, Any]:
        """Date, ledger and schema, where the manifest says so."""
        return self.json.get("how_made") or {}

    @property
    def signer(self) -> str | None:
        """Whom the manifest names as its signer."""
        found = self.json.get("signer")
        if found is None:
            return None
        key = str(found["identity"])
        groups = " ".join(key[at : at + 4] for at in range(0, len(key), 4))
        return f"{found['name']}, whose key is {groups}"


def number(value: float | None) -> str:
    """A figure for people."""
    if value is None:
        return "not bounded"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1e9 or abs(value) < 0.001:
        return f"{value:.3g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def odds(before: float, epsilon: float) -> float:
    """How sure of a statement about one record somebody can be afterwards who gave it the
    probability ``before``: odds grow by e^epsilon at most."""
    return before / (before + (1 - before) * math.exp(-epsilon))
