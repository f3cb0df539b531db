"""Private sums asked for one after the other, each with a share of one budget.

In each of them every record takes part once, and its noise is fixed before the first: so they
compose as Gaussians do, although later ones use what earlier ones found. With multipliers m_i,
    1/m^2 = sum_i 1/m_i^2,
one Gaussian of multiplier m costs what they cost together. A round's share is its part of that sum.
What is made of the noisy sums afterwards is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from capemix.accounting import mint
from capemix.accounting.calibration import smallest_noise
from capemix.accounting.cost import Cost, sum_cost
from capemix.federation import Federation, Scheme
from capemix.guarantee import Guarantee
from capemix.plan.making import make_plan
from capemix.plan.plan import BudgetLine, NoiseLaw, Plan
from capemix.queries import Relation


@dataclass(frozen=True)
class Round:
    """A sum over records for each of ``groups``: ``width`` numbers, to which a record adds a vector
    of norm ``bound`` at most, in one group. ``share`` is in parts of all the rounds' shares; a
    round that is made several ``times`` has an even part of it each time."""

    name: str
    reads: str
    width: int
    bound: float
    share: float
    groups: int = 1
    times: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """One for each time."""
        if self.times == 1:
            return (self.name,)
        return tuple(f"{self.name} {turn}" for turn in range(1, self.times + 1))


@dataclass(frozen=True)
class Rounds:
    """Planned rounds; ``multiplier`` is the noise of the one Gaussian that costs what they cost,
    as the strongest view has it, over what a record adds. ``law`` is of all their noise; None: as
    the federation has it. ``list_failure`` is the part of delta that a list found by a threshold
    takes."""

    rounds: tuple[Round, ...]
    federation: Federation
    relation: Relation
    delta: float
    multiplier: float
    law: NoiseLaw | None = None
    list_failure: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Of every sum, in order."""
        return tuple(name for one in self.rounds for name in one.names)

    def share(self, name: str) -> float:
        """One sum's part of the budget, all of them being 1."""
        one = self._named(name)
        return one.share / one.times / sum(each.share for each in self.rounds)

    def plan(self, name: str, **asked: Any) -> Plan:
        """The plan of one sum, with its noise; ``asked`` goes to `make_plan`."""
        given = (self._named(name), self.federation, self.relation, self.delta, self.law)
        plan, strongest = _at_noise_1(*given) if not asked else _made_at_noise_1(*given, **asked)
        own = self.multiplier / math.sqrt(self.share(name))
        return plan.with_noise(own / strongest)

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """Every sum's plan, by its name: the same for all times of a round."""
        first = {one: self.plan(one.names[0]) for one in self.rounds}
        return {name: first[one] for one in self.rounds for name in one.names}

    def noised(self, upto: int | None = None, since: int = 0) -> mint.NoisedSum:
        """All of them, or some, as the one sum that costs what they cost."""
        some = self.rounds[since:upto]
        parts = [self.plan(one.names[0]).noised_sum() for one in some]
        times = [one.times for one in some]
        if any(p.probability != 1.0 for part in parts for p in part.query.participation):
            raise ValueError("Gaussians compose into one only where every record takes part")
        first = parts[0]
        sigmas = [part.site_sigma for part in parts if part.site_sigma is not None]
        return replace(
            first,
            query=replace(
                first.query,
                name="rounds",
                width=sum(
                    often * math.prod(part.query.shape)
                    for often, part in zip(times, parts, strict=True)
                ),
                participation=first.query.participation[:1],
            ),
            view_multipliers={
                view: _as_one([part.view_multipliers[view] for part in parts], times)
                for view in first.view_multipliers
            },
            site_sigma=min(sigmas) if sigmas else None,
            graph_failure=sum(
                often * part.graph_failure for often, part in zip(times, parts, strict=True)
            ),
            list_failure=self.list_failure,
        )

    def epsilon(self, upto: int | None = None, since: int = 0) -> float:
        """What they cost, or some of them, against the strongest view."""
        noised = self.noised(upto, since)
        strongest = noised.view_multipliers[noised.strongest]
        return mint.sound_epsilon(noised, strongest, self.delta, self.relation)

    def cost(self, relation: Relation | None = None) -> Cost:
        """What they take from a budget."""
        return sum_cost(self.noised(), self.delta, relation or self.relation)

    def guarantee(
        self,
        *,
        seeded: bool,
        assumptions: tuple[str, ...] = (),
        read_from_rows: tuple[str, ...] = (),
        earlier: Guarantee | None = None,
    ) -> Guarantee:
        return mint.mint_sound(
            self.noised(),
            unit=1.0,
            delta=self.delta,
            relation=self.relation,
            adversary=self.federation.adversary,
            seeded=seeded,
            assumptions=assumptions,
            read_from_rows=read_from_rows,
            earlier=earlier,
            reference=False,
        )

    def lines(self, part: float = 1.0) -> tuple[BudgetLine, ...]:
        """Their lines of the budget, of which they are ``part``."""

        def bounded(epsilon: float) -> float | None:
            return epsilon if math.isfinite(epsilon) else None

        return tuple(
            BudgetLine(
                one.name if one.times == 1 else f"{one.name}, {one.times} times",
                one.reads,
                one.bound,
                part * one.times * self.share(one.names[0]),
                bounded(self.epsilon(place + 1, place)),
                bounded(self.epsilon(place + 1)),
            )
            for place, one in enumerate(self.rounds)
        )

    def _named(self, name: str) -> Round:
        return next(one for one in self.rounds if name in one.names)


def _made_at_noise_1(
    one: Round,
    federation: Federation,
    relation: Relation,
    delta: float,
    law: NoiseLaw | None,
    **asked: Any,
) -> tuple[Plan, float]:
    """A round's plan with a noise of 1, and the strongest view's multiplier then."""
    averaged = federation.sites if federation.scheme is Scheme.CONVENTIONAL else 1
    plan = make_plan(
        width=one.width,
        class_sizes=(averaged,) * one.groups,  # the constant of a rate of 1
        samples=one.groups,
        mixture=1,
        clip=one.bound,
        scheme=federation.scheme,
        form="joint",
        sites=federation.sites,
        colluding=federation.colluding,
        dropouts=federation.dropouts,
        masks=federation.masks,
        peers=federation.peers,
        relation=relation,
        delta=delta,
        noise=1.0,
        law=law,
        **asked,
    )
    noised = plan.noised_sum()
    return plan, noised.view_multipliers[noised.strongest]


_at_noise_1 = lru_cache(maxsize=64)(_made_at_noise_1)  # calibration asks for it at every step


def _as_one(multipliers: Sequence[float], times: Sequence[int]) -> float:
    """m with 1/m^2 = sum_i t_i/m_i^2; 0 where one has no noise."""
    if min(multipliers) == 0.0:
        return 0.0
    total = sum(often * m**-2 for often, m in zip(times, multipliers, strict=True))
    return 1.0 / math.sqrt(total)


def plan_rounds(
    rounds: Sequence[Round],
    federation: Federation,
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    law: NoiseLaw | None = None,
    list_failure: float = 0.0,
) -> Rounds:
    """The rounds with the least noise that together cost ``epsilon``; none for an infinite one."""

    def at(multiplier: float) -> Rounds:
        return Rounds(tuple(rounds), federation, relation, delta, multiplier, law, list_failure)

    if math.isinf(epsilon):
        return at(0.0)
    return at(smallest_noise(lambda multiplier: at(multiplier).epsilon(), epsilon, start=8.0))
