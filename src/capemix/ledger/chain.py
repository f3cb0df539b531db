"""The ledger's lines: canonical JSON, each with the hash of the one before."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from capemix.accounting.cost import Cost
from capemix.errors import InputError
from capemix.ledger.filter import Terms
from capemix.queries import Relation

START: Final = "0" * 64
_SHORT: Final = 16


def text_of(entry: dict[str, Any]) -> str:
    """One spelling for one entry; doubles are written so that they come back exactly."""
    return json.dumps(
        entry, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
    )


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Head:
    """How long the chain is, and the beginning of its last hash. Whoever keeps one can tell later
    whether the chain still goes through it: a chain that was cut or begun anew does not."""

    lines: int
    short: str

    def __str__(self) -> str:
        return f"{self.lines}-{self.short}"

    @classmethod
    def parse(cls, text: str) -> Head:
        lines, _, short = text.strip().partition("-")
        if lines.isdecimal() and len(short) == _SHORT and set(short) <= set("0123456789abcdef"):
            return cls(int(lines), short)
        raise InputError(
            "head", "is not a ledger's head", value=text, fix="give what `ledger head` printed"
        )


def head_at(line: int, found: str) -> Head:
    """The head of a chain that ends with this line, of this hash."""
    return Head(line, found[:_SHORT])


def head_of(hashes: Sequence[str]) -> Head:
    return head_at(len(hashes), hashes[-1] if hashes else START)


def passes(hashes: Sequence[str], head: Head) -> bool:
    """Whether the chain goes through this head."""
    return head.lines <= len(hashes) and head_of(hashes[: head.lines]) == head


def first_edited(lines: Sequence[tuple[int, str, str]]) -> int | None:
    """The first line (number, text, hash) that is not what was written, or does not follow."""
    before = START
    for place, (number, text, found) in enumerate(lines, start=1):
        # In JSON a text's own quotes are escaped, so these are the line's fields or an object's in
        # it; reading all of it as JSON would take ten times as long.
        marks = f'"previous":"{before}"', f'"line":{number},'
        follows = isinstance(text, str) and all(mark in text for mark in marks)
        if not follows or number != place or hash_of(text) != found:
            return place
        before = found
    return None


def terms_as_json(terms: Terms | None) -> dict[str, Any]:
    """What is fixed, on each line that was charged under it."""
    if terms is None:
        return {"order": None, "kept": 1.0, "gaussians": 0.0}
    return {"order": terms.order, "kept": terms.kept, "gaussians": terms.gaussians}


def terms_from_json(found: dict[str, Any]) -> Terms | None:
    if found["order"] is None:
        return None
    return Terms(found["order"], found["kept"], found.get("gaussians", 0.0))


def cost_as_json(cost: Cost) -> dict[str, Any]:
    return {
        "relation": str(cost.relation),
        "epsilon": cost.epsilon,
        "delta": cost.delta,
        "curve": {str(a): v if math.isfinite(v) else None for a, v in cost.curve.items()},
        "failure": cost.failure,
        "distance": cost.distance,
        "basis": cost.basis,
        "squared": cost.squared,
        "growth": cost.growth,
    }


def cost_from_json(found: dict[str, Any]) -> Cost:
    return Cost(
        relation=Relation(found["relation"]),
        epsilon=found["epsilon"],
        delta=found["delta"],
        curve={int(a): math.inf if v is None else v for a, v in found["curve"].items()},
        failure=found["failure"],
        distance=found["distance"],
        basis=found["basis"],
        squared=found.get("squared"),  # lines from before Gaussians were added up have neither
        growth=found.get("growth", 0.0),
    )
