"""What is audited: a plan, an observer, and the epsilon that is claimed against that observer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Protocol

from capemix.audit.canary import Change, usual_change
from capemix.federation import Federation, Scheme
from capemix.plan import Plan


class View(StrEnum):
    PUBLIC = "public"  # the release, and what the colluding sites know of their own part
    SERVER = "server"  # every upload, every key that is revealed, and the colluding sites


class Lost(StrEnum):
    """What the server sees if it calls the canary's site lost although its upload came."""

    NO = "no"
    MASKED = "its self mask on"
    BARE = "without a self mask"  # what an upload would be if there were no self masks


def scheme_words(federation: Federation) -> str:
    if federation.scheme is Scheme.CAPE:
        return f"{federation.scheme}, {federation.form}, {federation.masks}"
    return str(federation.scheme)


class Audited(Protocol):
    """A claim of ``epsilon`` at ``delta``, and words for it."""

    @property
    def name(self) -> str: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    def describe(self) -> dict[str, object]: ...


@dataclass(frozen=True)
class Setting:
    """``colluding`` and ``missing`` sites are the plan's unless said otherwise."""

    name: str
    plan: Plan
    view: View = View.PUBLIC
    claimed: float | None = None
    colluding: int | None = None
    missing: int | None = None
    change: Change | None = None
    lost: Lost = Lost.NO
    noise_factor: float = 1.0
    reference: bool = True

    @property
    def delta(self) -> float:
        return self.plan.delta

    @property
    def colluders(self) -> int:
        return self.plan.federation.colluding if self.colluding is None else self.colluding

    @property
    def gone(self) -> int:
        return self.plan.federation.dropouts if self.missing is None else self.missing

    @property
    def honest(self) -> int:
        """Sites in the sum that tell nothing: first come these, then colluders, then missing."""
        return self.plan.federation.sites - self.colluders - self.gone

    @property
    def changed(self) -> Change:
        return usual_change(self.plan) if self.change is None else self.change

    @cached_property
    def epsilon(self) -> float:
        """What is claimed: for this view if the accountant has it, else for the release."""
        if self.claimed is not None:
            return self.claimed
        guarantee = self.plan.guarantee()
        found = guarantee.views[self.view].epsilon
        if found is None:
            found = guarantee.epsilon
        if found is None:
            raise ValueError(f"{self.name}: the plan claims nothing")
        return found

    @cached_property
    def carried_out(self) -> Plan:
        """The plan with the draws of its first class, and of a second for ``reference``: the others
        never meet the canary, and their draws are independent of it. ``noise_factor`` scales what
        is added, and leaves what is claimed."""
        mixing = self.plan.mixing
        kept = 2 if self.reference else 1
        samples = mixing.samples[:kept] + (0,) * (len(mixing.samples) - kept)
        noise = (self.plan.noise or 0.0) * self.noise_factor
        return replace(self.plan, mixing=replace(mixing, samples=samples), noise=noise)

    def describe(self) -> dict[str, object]:
        mixing, federation = self.plan.mixing, self.plan.federation
        return {
            "name": self.name,
            "scheme": scheme_words(federation),
            "view": str(self.view),
            "selection": str(mixing.selection),
            "relation": str(self.plan.relation),
            "accountant": str(self.plan.accountant),
            "law": str(self.plan.law),
            "mixture": mixing.mixture,
            "draws": mixing.samples[0],
            "rate": round(self.plan.query.participation[0].probability, 6),
            "sites": federation.sites,
            "colluding": self.colluders,
            "missing": self.gone,
            "delta": self.plan.delta,
        }
