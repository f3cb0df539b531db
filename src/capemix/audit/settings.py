"""What is audited: a claim against an observer, and runs that are scored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from capemix.federation import Federation, Scheme
from capemix.plan import Plan
from capemix.randomness.source import Source

Real = npt.NDArray[np.float64]


class View(StrEnum):
    PUBLIC = "public"  # the release, and what the colluding sites know of their own part
    SERVER = "server"  # every upload, every key that is revealed, and the colluding sites


class Lost(StrEnum):
    """What the server sees if it calls the canary's site lost although its upload came."""

    NO = "no"
    MASKED = "its self mask on"
    BARE = "without a self mask"  # what an upload would be if there were no self masks


@dataclass(frozen=True, eq=False)
class Scores:
    """A row a run, a column an attack; the first is the exact log ratio of what is observed."""

    attacks: tuple[str, ...]
    without: Real
    with_: Real


class Audited(Protocol):
    """A claim of ``epsilon`` at ``delta``, two worlds that differ in one record, and words for it.

    ``effort`` is about how long a run takes, in no unit. An audit of all settings makes ``fewer``
    times fewer runs of this one than of one curator's plainest.
    """

    @property
    def name(self) -> str: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def effort(self) -> float: ...
    @property
    def fewer(self) -> int: ...
    def describe(self) -> dict[str, object]: ...

    def scores(
        self, runs: int, *, without: int | None = None, source: Source | None = None
    ) -> Scores:
        """Of ``runs`` with the canary and as many (or ``without``) without it. The randomness is
        the system's unless a test's source is given."""
        ...


def claimed_by(name: str, plan: Plan, view: View) -> float:
    """What a plan claims against this view; where it says nothing of the view, of the release."""
    guarantee = plan.guarantee()
    found = guarantee.views[view].epsilon
    if found is None:
        found = guarantee.epsilon
    if found is None:
        raise ValueError(f"{name}: the plan claims nothing")
    return found


def described(plan: Plan) -> dict[str, object]:
    """What all settings have in common of `Audited.describe`."""
    return {
        "relation": str(plan.relation),
        "accountant": "paper" if plan.method.claimed else "sound",
        "law": str(plan.law),
    }


def scheme_words(federation: Federation) -> str:
    if federation.scheme is Scheme.CAPE:
        return f"{federation.scheme}, {federation.form}, {federation.masks}"
    return str(federation.scheme)
