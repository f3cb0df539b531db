"""Sums of records that are drawn again and again, audited: by the release, or by the server.

The method is not asked which it is: what is audited is the sum of drawn rows that it asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from capemix.audit.canary import Change, usual_change
from capemix.audit.settings import (
    Lost,
    Scores,
    View,
    claimed_by,
    described,
    scheme_words,
)
from capemix.audit.views import Observer, Signal
from capemix.collector import Collector, Origin
from capemix.errors import InputError
from capemix.plan import Plan
from capemix.randomness.source import Source, SystemSource
from capemix.sums.query import SumQuery

Real = npt.NDArray[np.float64]

_PILOT: Final = 1000
"""Runs of each kind, beside the others, from which `learned_rates` learns."""

LEARNED: Final = "learned draws"


@dataclass(frozen=True)
class Setting:
    """A plan whose method asks for one sum of rows that are drawn, all facts declared.

    ``colluding`` and ``missing`` sites are the plan's unless said otherwise. With ``reference`` a
    second group of draws, which never meets the canary, is observed too. ``noise_factor`` scales
    what is added, and leaves what is claimed.
    """

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
        return claimed_by(self.name, self.plan, self.view)

    @cached_property
    def query(self) -> SumQuery:
        """The sum as it is carried out, with the draws of its first group, and of a second for
        ``reference``: the others never meet the canary, and their draws are independent of it."""
        asked = asked_first(self.plan)
        kept = 2 if self.reference else 1
        groups = tuple(
            group if place < kept else replace(group, draws=0)
            for place, group in enumerate(asked.participation)
        )
        return replace(
            asked,
            line=replace(asked.line, draws=groups),
            noise_multiplier=asked.noise_multiplier * self.noise_factor,
        )

    @property
    def effort(self) -> float:
        """Numbers drawn, and a fixed cost for every upload."""
        federation, group = self.plan.federation, self.query.participation[0]
        uploads = federation.sites if self.view is View.PUBLIC else self.honest
        masks = federation.sites if federation.masked else 1
        mixed = group.draws * (1 + group.selected / 8)
        return uploads * (300 + mixed + masks * group.draws / 4)

    @property
    def fewer(self) -> int:
        return min(5, self.plan.federation.sites)

    def describe(self) -> dict[str, object]:
        group = self.query.participation[0]
        return {
            "name": self.name,
            "scheme": scheme_words(self.plan.federation),
            "view": str(self.view),
            "selection": str(group.selection),
            **described(self.plan),
            "mixture": group.selected,
            "draws": group.draws,
            "rate": round(group.probability, 6),
            "sites": self.plan.federation.sites,
            "colluding": self.colluders,
            "missing": self.gone,
            "delta": self.plan.delta,
        }

    def scores(
        self, runs: int, *, without: int | None = None, source: Source | None = None
    ) -> Scores:
        """Of the observer's sum, of what else is observed, and with the draws learned."""
        if runs < 20:
            raise InputError("runs", "are too few", value=runs, fix="make thousands")
        source = SystemSource() if source is None else source
        observer = Observer(self)
        bare = runs if without is None else without
        pilot = min(_PILOT, runs // 4, bare // 4)
        first, second = (
            np.array(
                [
                    observer.observe(world, source.child("pilot", world, run))[0]
                    for run in range(pilot)
                ]
            )
            for world in (0, 1)
        )
        learned = learned_rates(first, second, observer.signals[0])

        def score(world: int, run: int) -> list[float]:
            seen = observer.observe(world, source.child("run", world, run))
            found = [log_ratio(*pair) for pair in zip(seen, observer.signals, strict=True)]
            return [*found, log_ratio(seen[0], observer.signals[0], learned)]

        scores = [
            np.array([score(world, run) for run in range(count)])
            for world, count in enumerate((bare, runs))
        ]
        names = (*(signal.name for signal in observer.signals), LEARNED)
        return Scores(names, *scores)


class _Asked(Exception):
    """A sum was asked for."""

    def __init__(self, query: SumQuery) -> None:
        super().__init__(query.name)
        self.query = query


class _Listener:
    """An engine that hands back the first sum that is asked for, and carries out none."""

    def check(self, plan: Plan) -> None:
        del plan

    def sum(self, plan: Plan, query: SumQuery) -> NoReturn:
        del plan
        raise _Asked(query)

    def list_classes(self, *_asked: Any) -> NoReturn:
        raise InputError("classes", "must be declared for an audit", fix="list them")

    def origin(self, plan: Plan) -> Origin:
        del plan
        return Origin()


def asked_first(plan: Plan) -> SumQuery:
    """The first sum that a plan's method asks for, with what a record adds to it."""
    if plan.opening:
        raise InputError(
            "facts",
            "must all be declared where draws are audited",
            value=plan.opening[0].name,
            fix="declare class sizes, ranges and the clip norm",
        )
    try:
        plan.method.release(Collector(plan, _Listener()))
    except _Asked as asked:
        return asked.query
    raise ValueError("the method asks for nothing")


def log_ratio(values: Real, signal: Signal, rates: Real | float | None = None) -> float:
    """The log of the density with the canary over the density without, summed over the draws.

    Each density is (1-q) N(move) + q N(move with the canary); both are taken over that of
    N(base): log N(base + m)/N(base) = ((x - base) m - m^2/2) / deviation^2, on the lattice too.
    """
    rate = np.asarray(signal.probability if rates is None else rates, dtype=np.float64)
    offset, variance = values - signal.base, signal.deviation**2
    with np.errstate(divide="ignore"):
        log_miss, log_hit = np.log1p(-rate), np.log(rate)

    def density(moves: tuple[Real, Real]) -> Real:
        miss, hit = ((offset * move - move**2 / 2) / variance for move in moves)
        return np.asarray(np.logaddexp(log_miss + miss, log_hit + hit))

    return float(np.sum(density(signal.in_) - density(signal.out)))


def learned_rates(without: Real, with_: Real, signal: Signal) -> Real:
    """How often each draw has the canary, learned from runs (runs by draws): the same everywhere
    if selection is secret, near 0 or 1 if it repeats."""
    move = signal.in_[1] - signal.out[1]
    step = np.where(move == 0.0, 1.0, move)
    seen = (with_.mean(axis=0) - without.mean(axis=0)) / step
    return np.where(move == 0.0, signal.probability, np.clip(seen, 1e-3, 1 - 1e-3))
