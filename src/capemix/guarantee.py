"""What is promised to a person whose record is in the data: a value that only accounting mints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from enum import StrEnum
from typing import Final

from capemix.queries import Relation


class Status(StrEnum):
    GUARANTEE = "guarantee"
    REAL_ARITHMETIC = "real-arithmetic claim"  # proved for real numbers, computed in floats
    PAPER = "paper claim"  # Theorem 1 as published
    SEEDED = "seeded: not private"  # noise from a test seed
    NO_PRIVACY = "no privacy"  # epsilon is infinite
    FROM_ROWS = (
        "facts read from rows: no guarantee"  # something public was neither declared nor paid
    )


RECORD: Final = "one record"


def unit_of(rows_per_person: int | None) -> str:
    """Whose data neighbours differ by."""
    if rows_per_person is None:
        return RECORD
    rows = "1 row" if rows_per_person == 1 else f"{rows_per_person} rows"
    return f"one person with at most {rows}"


def whose(unit: str) -> str:
    """The same in a word."""
    return "record" if unit == RECORD else "person"


@dataclass(frozen=True)
class ViewCost:
    """The cost against one kind of observer. None: not bounded by this accountant.
    ``noise_multiplier``: the noise over the most that one record changes it by; of drawn rows, over
    what one adds."""

    noise: float
    noise_multiplier: float
    epsilon: float | None


@dataclass(frozen=True)
class Adversary:
    """Sites in all, how many of them may collude with the server, how many may be missing."""

    sites: int
    colluding: int
    dropouts: int

    @property
    def honest(self) -> int:
        return self.sites - self.colluding - self.dropouts

    @property
    def price(self) -> float:
        """The price of trusting nobody, as a factor in variance."""
        return self.sites / self.honest


SEAL: Final = object()
"""Held by `capemix.accounting.mint` alone."""


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy for one ``unit``, against the strongest declared view.

    ``epsilon`` is None when infinite.
    """

    epsilon: float | None
    delta: float
    relation: Relation
    adversary: Adversary
    view: str
    views: Mapping[str, ViewCost]
    accountant: str
    arithmetic: str
    status: Status
    assumptions: tuple[str, ...]
    unit: str = RECORD
    seal: InitVar[object] = None

    def __post_init__(self, seal: object) -> None:
        if seal is not SEAL:
            raise TypeError("a Guarantee is minted by capemix.accounting.mint, never made by hand")
        if self.epsilon is not None and not math.isfinite(self.epsilon):
            raise ValueError("an infinite epsilon is None")

    def __str__(self) -> str:
        """As people read it: the promise, what kind of statement it is, and what it rests on."""
        epsilon = "infinite" if self.epsilon is None else f"{self.epsilon:.4g}"
        lines = [
            f"epsilon {epsilon}, delta {self.delta:.3g} ({self.relation}, {self.accountant}"
            " accountant)",
            f"of: {self.unit}",
            f"status: {self.status}",
        ]
        if self.adversary.sites > 1:
            who = self.adversary
            lines.append(
                f"against: the server, with {who.colluding} of {who.sites} sites colluding and"
                f" {who.dropouts} missing"
            )
        return "\n".join([*lines, "rests on:", *(f"- {each}" for each in self.assumptions)])
