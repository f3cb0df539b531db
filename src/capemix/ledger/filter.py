"""The filter: what may still be released under a limit, when plans may depend on earlier releases.

Write L for the likelihood ratio of everything released so far between two neighbouring datasets. A
*potential* is a function of L and of what may still be charged that no release raises on average
(under the first dataset), and that is at least (1 - e^ε/L)₊ whatever is left. Then δ(ε), the mean
of (1 - e^ε/L)₊ in the end, is at most the potential at the start. What that starts from is fixed
before the first release; each release may then be chosen by all that came before
(docs/theory/proofs/filter.md).

*Gaussians alone.* While all releases are sums in which every record takes part, with 1/m² of s_1,
s_2, ..., they are a Brownian motion watched for a time of Σ s_i. With the total S fixed the
potential is E[(1 - e^ε/(L e^Z))₊], Z ~ N(r/2, r), r = S - Σ s_i: at the start the δ of one
Gaussian, exactly (Smith, Thakurta 2022).

*Anything.* Let ρ_i be the Rényi divergence of release i at one order α, whatever came before. With
the total R fixed the potential is c L^{α-1} e^{(α-1)(R - Σ ρ_i - ε)}, c = (1-1/α)^{α-1}/α: at the
start δ = e^{(α-1)(R - ε)} c, that is R = ε - κ(α, δ) (Feldman, Zrnic 2021; Canonne, Kamath, Steinke
2020, Proposition 12). A release known by its own (ε_i, δ_i) is, but for an event of probability
δ_i, one whose ratio is at most e^{ε_i} (Kairouz, Oh, Viswanath 2015): ρ_i <= ε_i at every order.

*Both at once.* δ is divided among the two, and a release is admitted as long as one of them has
held all along: (1 - e^ε/L)₊ is then at most the sum of the potentials.

*What is fixed* are the order and the parts of δ: by the limit and the first release that is charged
by its curve, of which as many repetitions as possible should fit. The first part of a release that
is charged in parts stands for the whole, which is planned before it. Releases charged by their own
epsilons before that bound L at every order, so that the order may be fixed after them; Gaussians
alone are then out.

*Set aside.* A part of δ pays for the δ_i above, for the chances that a peer graph falls apart or a
list has one record's own value, and (1 + e^ε) times over for the samplers' total variation from
their exact laws, by coupling all releases with exact ones. Drawing noise in whole numbers
multiplies any probability by at most e^(growth): epsilon is less by it, and delta by as much
(`accounting.lattice`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from capemix.accounting.cost import Cost, together
from capemix.accounting.gaussian import gaussian_epsilon, gaussian_multiplier
from capemix.errors import InputError
from capemix.queries import Relation

_ROUNDING: Final = 1e-12  # of sums of doubles, relative

_ASIDE: Final = 0.1
"""The part of delta that is set aside, unless only one release is to fit."""

_GAUSSIANS: Final = 0.95
"""The part of the rest that Gaussians alone have, where the first release is one: lineages seldom
change. The others have what is left."""

_ENOUGH: Final = 0.95
"""Of the most repetitions that would fit: terms that leave room for others may cost as much."""


def kappa(order: int, delta: float) -> float:
    """What the conversion from order α to (ε, δ) adds to the divergence."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


@dataclass(frozen=True)
class Limit:
    """What all releases of one lineage may cost together."""

    epsilon: float
    delta: float
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise InputError(
                "epsilon", "must be above 0 and finite", value=self.epsilon, fix="set a limit"
            )
        if not 0.0 < self.delta < 1.0:
            raise InputError("delta", "must be between 0 and 1", value=self.delta, fix="try 1e-5")


class Way(StrEnum):
    """How a release was charged."""

    CURVE = "curve"
    ALONE = "alone"  # by its own epsilon and delta


@dataclass(frozen=True)
class Terms:
    """What is fixed before the first release: the ``order`` of divergences, the part of delta that
    is set aside (``kept``) and, of the rest, the part that Gaussians alone have (``gaussians``)."""

    order: int
    kept: float
    gaussians: float = 0.0


@dataclass(frozen=True)
class Total:
    """Costs added up, each in its own kind; ``squared`` is infinite once anything else
    than a Gaussian was charged."""

    epsilon: float = 0.0
    delta: float = 0.0
    curve: dict[int, float] = field(default_factory=dict)
    squared: float = 0.0
    failure: float = 0.0
    distance: float = 0.0
    growth: float = 0.0
    charges: int = 0

    def plus(self, cost: Cost) -> Total:
        orders = self.curve.keys() & cost.curve.keys() if self.charges else cost.curve.keys()
        return Total(
            epsilon=self.epsilon + cost.epsilon,
            delta=self.delta + cost.delta,
            curve={a: self.curve.get(a, 0.0) + cost.curve[a] for a in sorted(orders)},
            squared=self.squared + (math.inf if cost.squared is None else cost.squared),
            failure=self.failure + cost.failure,
            distance=self.distance + cost.distance,
            growth=self.growth + cost.growth,
            charges=self.charges + 1,
        )

    def minus(self, cost: Cost) -> Total:
        """Without one of the costs that were added up."""
        if self.charges == 1:
            return Total()
        return Total(
            epsilon=_less(self.epsilon, cost.epsilon),
            delta=_less(self.delta, cost.delta),
            curve={a: _less(spent, cost.curve[a]) for a, spent in self.curve.items()},
            squared=_less(self.squared, math.inf if cost.squared is None else cost.squared),
            failure=_less(self.failure, cost.failure),
            distance=_less(self.distance, cost.distance),
            growth=_less(self.growth, cost.growth),
            charges=self.charges - 1,
        )


@dataclass(frozen=True)
class Account:
    """Where a lineage stands.

    ``terms`` are None until they are fixed; what was set aside by then is ``gone`` from delta.
    ``squared`` adds up the Gaussians while there is nothing else, and is infinite from then on;
    ``divergence`` adds up anything. ``aside`` and ``distance`` come out of what is set aside.
    """

    limit: Limit
    terms: Terms | None = None
    gone: float = 0.0
    squared: float = 0.0
    divergence: float = 0.0
    aside: float = 0.0
    distance: float = 0.0
    growth: float = 0.0
    total: Total = Total()

    # -- what is left ------------------------------------------------------------------------

    @property
    def order(self) -> int | None:
        """The order at which divergences are added up, once it is fixed."""
        return None if self.terms is None else self.terms.order

    @property
    def _epsilon(self) -> float:
        return self.limit.epsilon - self.growth

    @property
    def _delta(self) -> float:
        return (self.limit.delta - self.gone) * math.exp(-self.growth)

    @property
    def allowed_aside(self) -> float:
        return self._delta if self.terms is None else self.terms.kept * self._delta

    @property
    def allowed_squared(self) -> float:
        """The most that Gaussians alone may add up to."""
        if self.terms is None or self.terms.gaussians == 0.0:
            return 0.0
        delta = (self._delta - self.allowed_aside) * self.terms.gaussians
        if delta <= 0.0 or self._epsilon <= 0.0:
            return 0.0
        return gaussian_multiplier(self._epsilon, delta) ** -2

    @property
    def allowed(self) -> float:
        """The most divergence that keeps the limit."""
        terms = self.terms
        if terms is None:
            return self._epsilon
        delta = (self._delta - self.allowed_aside) * (1.0 - terms.gaussians)
        if delta <= 0.0:  # as after a lowered limit
            return -math.inf
        return self._epsilon - kappa(terms.order, delta)

    @property
    def _paid_aside(self) -> float:
        return self.aside + _coupling(self.limit) * self.distance

    @property
    def _used(self) -> tuple[float, float]:
        """The parts of what may be released that are gone: of the better of the two ways, and of
        what is set aside."""
        anything = _part(self.divergence, self.allowed)
        gaussians = _part(self.squared, self.allowed_squared)
        return min(anything, gaussians), _part(self._paid_aside, self.allowed_aside)

    @property
    def holds(self) -> bool:
        return max(self._used) <= 1.0 + _ROUNDING

    @property
    def used(self) -> float:
        """The part of the limit that is gone; above 1 nothing fits, as after a lowered limit."""
        return max(self._used) if self.total.charges else 0.0

    @property
    def epsilon(self) -> float:
        """What was released so far costs at the limit's delta, had all of it been planned in
        advance: as one Gaussian, by the best order, or by adding up."""
        total, delta = self.total, self.limit.delta
        found = total.epsilon if total.delta <= delta * (1 + _ROUNDING) else math.inf
        left = delta - total.failure - _coupling(self.limit) * total.distance
        left *= math.exp(-total.growth)
        if left > 0.0 and total.charges:
            by_order = (cost + kappa(a, left) for a, cost in total.curve.items())
            found = min(found, max(0.0, min(by_order, default=math.inf)) + total.growth)
            if 0.0 < total.squared < math.inf:
                exact = gaussian_epsilon(total.squared**-0.5, left)
                found = min(found, exact + total.growth)
        return found

    # -- charging ----------------------------------------------------------------------------

    def fixed(self, terms: Terms | None) -> Account:
        """With these terms from now on; terms that are fixed stay."""
        if terms is None or self.terms is not None:
            return self
        squared = 0.0 if self.total.charges == 0 else math.inf
        return replace(self, terms=terms, gone=self.aside, aside=0.0, squared=squared)

    def charged(self, cost: Cost, way: Way) -> Account:
        after = replace(self, total=self.total.plus(cost), growth=self.growth + cost.growth)
        if way is Way.ALONE:
            return replace(
                after,
                squared=math.inf,
                divergence=self.divergence + cost.epsilon,
                aside=self.aside + cost.delta,
            )
        if self.terms is None:
            raise ValueError("the terms are fixed before a curve is charged")
        return replace(
            after,
            squared=self.squared + (math.inf if cost.squared is None else cost.squared),
            divergence=self.divergence + cost.curve.get(self.terms.order, math.inf),
            aside=self.aside + cost.failure,
            distance=self.distance + cost.distance,
        )

    def refunded(self, cost: Cost, way: Way, terms: Terms | None) -> Account:
        """Without a charge whose release was never made; ``terms`` are those it was made under.

        What is fixed stays so: the terms, what was set aside by then, and that anything but a
        Gaussian was charged.
        """
        after = replace(self, total=self.total.minus(cost), growth=_less(self.growth, cost.growth))
        if way is Way.ALONE:
            is_gone = terms is None and self.terms is not None
            return replace(
                after,
                divergence=_less(self.divergence, cost.epsilon),
                aside=self.aside if is_gone else _less(self.aside, cost.delta),
            )
        if terms is None:
            raise ValueError("a curve is charged under terms")
        return replace(
            after,
            squared=_less(self.squared, math.inf if cost.squared is None else cost.squared),
            divergence=_less(self.divergence, cost.curve.get(terms.order, math.inf)),
            aside=_less(self.aside, cost.failure),
            distance=_less(self.distance, cost.distance),
        )

    def admit(
        self, cost: Cost, *, whole: Cost | None = None, instead: Cost | None = None
    ) -> tuple[Account, Way, Cost] | None:
        """The account after this release, how it was charged and for what; None if it does not fit.

        ``whole``: what this is the first part of, planned before any of it; terms that are not
        fixed yet are those that suit the whole. ``instead``: the cost of the whole by its own
        epsilon and delta; it is charged at once, for all parts, where the whole does not fit part
        by part.
        """
        if cost.relation is not self.limit.relation:
            raise InputError(
                "relation",
                f"must be {self.limit.relation}, as of the limit",
                value=cost.relation,
                fix="plan in that relation",
            )
        by_curve = self if self.terms is not None else self._fitted(whole or cost)
        if by_curve is not None:
            after = by_curve.charged(cost, Way.CURVE)
            if after.holds and (
                instead is None or by_curve.charged(whole or cost, Way.CURVE).holds
            ):
                return after, Way.CURVE, cost
        paid = cost if instead is None else instead
        after = self.charged(paid, Way.ALONE)
        return (after, Way.ALONE, paid) if after.holds else None

    def after(self, costs: Sequence[Cost], *, instead: Cost | None = None) -> Account | None:
        """The account after these, one after the other; None if they do not fit."""
        account, whole = self, together(costs)
        for cost in costs:
            admitted = account.admit(cost, whole=whole, instead=instead)
            if admitted is None:
                return None
            account, way, _ = admitted
            if instead is not None and way is Way.ALONE:
                return account
            instead = None
        return account

    def admits(self, costs: Sequence[Cost], *, instead: Cost | None = None) -> bool:
        """Whether these fit, one after the other."""
        return self.after(costs, instead=instead) is not None

    def _fitted(self, cost: Cost) -> Account | None:
        """This account with the terms at which most repetitions of the release would fit, or nearly
        as many and others beside them. None if not even one fits; or if it costs nothing, as a sum
        that was paid for with an earlier one, which every term would suit."""
        if not any(cost.curve.values()):
            return None
        delta = self.limit.delta - self.aside
        each = cost.failure + _coupling(self.limit) * cost.distance
        found: list[tuple[float, Terms]] = []
        for kept in (_ASIDE * delta, each):
            if kept < each or kept >= delta:
                continue
            room = _times(kept, each)
            parts = (0.0,) if cost.squared is None else (_GAUSSIANS, 1.0)
            for gaussians in parts if self.total.charges == 0 else (0.0,):
                fits, terms = self._best_terms(cost, kept / delta, delta, gaussians)
                found.append((min(fits, room), terms))
        most = max((fits for fits, _ in found), default=0.0)
        for fits, terms in found:
            if fits >= max(1.0, _ENOUGH * most):
                return self.fixed(terms)
        return None

    def _best_terms(
        self, cost: Cost, kept: float, delta: float, gaussians: float
    ) -> tuple[float, Terms]:
        """How often the release fits beside what was charged, and the terms at which it does."""
        left = delta * (1 - kept) * math.exp(-cost.growth)
        epsilon = self.limit.epsilon - self.divergence - cost.growth
        anything = left * (1.0 - gaussians)
        orders = [
            (_times(epsilon - kappa(a, max(anything, 1e-300)), spent), a)
            for a, spent in cost.curve.items()
        ]
        fits, order = max(orders)
        if gaussians > 0.0 and cost.squared is not None and epsilon > 0.0:
            most = gaussian_multiplier(epsilon, left * gaussians) ** -2
            fits = max(fits, _times(most * (1 + _ROUNDING), cost.squared))
        return fits, Terms(order, kept, gaussians)


def _less(added_up: float, one: float) -> float:
    """A sum without one of the numbers in it; an infinite one stays so."""
    return math.inf if math.isinf(added_up) else max(0.0, added_up - one)


def _part(spent: float, most: float) -> float:
    """The part of ``most`` that is spent."""
    if spent <= 0.0:
        return 0.0
    return spent / most if most > 0.0 else math.inf


def _times(room: float, each: float) -> float:
    """How often ``each`` goes into ``room``, at most a billion times."""
    if room <= 0.0:
        return 0.0
    return min(room / each, 1e9) if each > 0.0 else 1e9


def _coupling(limit: Limit) -> float:
    """1 + e^ε: what a total variation of the laws costs in delta."""
    return 1.0 + math.exp(min(limit.epsilon, 700.0))


def repetitions(account: Account, cost: Cost) -> int:
    """How often a release like this one still fits, charged by its curve."""
    terms = account.terms
    if terms is None or not account.holds:
        return 0
    each = cost.failure + _coupling(account.limit) * cost.distance
    spent = cost.curve.get(terms.order, math.inf)
    fits = _times(account.allowed - account.divergence, spent)
    if cost.squared is not None:
        fits = max(fits, _times(account.allowed_squared - account.squared, cost.squared))
    return int(min(fits, _times(account.allowed_aside - account._paid_aside, each)))
