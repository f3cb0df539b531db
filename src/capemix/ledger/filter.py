"""The filter: what may still be released under a limit, when plans may depend on earlier releases.

Write L for the likelihood ratio of everything released so far between two neighbouring datasets,
and ρ_i(α) for the Rényi divergence that bounds release i at order α, given what came before.

*At one order.* M = L^{α-1} e^{-(α-1) Σ ρ_i(α)} is a non-negative supermartingale that starts at 1,
whatever later plans make of earlier outputs (Feldman, Zrnic 2021, "Individual Privacy Accounting
via a Rényi Filter"). For all x > 0, 1 - e^ε/x <= c x^{α-1} with
c = e^{-(α-1)ε} (1-1/α)^{α-1} / α (Canonne, Kamath, Steinke 2020, Proposition 12). So while
Σ ρ_i(α) <= ε - κ(α, δ), where
    κ(α, δ) = log(1-1/α) - log(α δ) / (α-1),
the hockey-stick divergence E[(1 - e^ε/L)_+] is at most E[δ M] <= δ.

*Which order.* It must not be chosen by what was released: M at an order that depends on the outputs
need not have mean 1, and to stop only when *every* order of a set is exhausted can be shown to cost
no more than the size of the set, as a factor of δ, which is too much. Here the order is fixed by
the limit and the first release that is charged by its curve, both decided before that release: the
order at which most repetitions of it would fit. A release whose own epsilon is the limit therefore
fits, and repetitions compose as tightly as by Rényi accounting of plans fixed in advance. The first
part of a release that is charged in parts stands for the whole, which is planned before it.

*By its own epsilon.* An (ε_i, δ_i)-private release is, but for an event of probability δ_i, one
whose ratio is at most e^{ε_i} (Kairouz, Oh, Viswanath 2015): ρ_i(α) <= ε_i at every order, and δ_i
set aside. After such releases M <= 1 for all orders at once, so the order may be fixed after them:
a preliminary count does not fix the order for what it prepares.

*Set aside.* The part of δ that κ gets is fixed with the order: were it what the others happen to
leave, it would depend on the outputs. From the rest are paid: the δ_i above; the probabilities that
a peer graph falls apart; and (1 + e^ε) times the samplers' total variation from their exact laws,
by coupling all releases with exact ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from capemix.accounting.cost import Cost, together
from capemix.errors import InputError
from capemix.queries import Relation

_ROUNDING: Final = 1e-12  # of sums of doubles, relative
_KEPT_ASIDE: Final = (0.9, 0.5, 0.1, 1e-2, 1e-3, 1e-6)
"""Parts of delta that may be kept for what no curve carries: the largest that costs nothing."""


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
class Total:
    """Costs added up, each in its own kind."""

    epsilon: float = 0.0
    delta: float = 0.0
    curve: dict[int, float] = field(default_factory=dict)
    failure: float = 0.0
    distance: float = 0.0
    charges: int = 0

    def plus(self, cost: Cost) -> Total:
        orders = self.curve.keys() & cost.curve.keys() if self.charges else cost.curve.keys()
        return Total(
            epsilon=self.epsilon + cost.epsilon,
            delta=self.delta + cost.delta,
            curve={a: self.curve.get(a, 0.0) + cost.curve[a] for a in sorted(orders)},
            failure=self.failure + cost.failure,
            distance=self.distance + cost.distance,
            charges=self.charges + 1,
        )


@dataclass(frozen=True)
class Account:
    """Where a lineage stands. ``divergence`` adds up what was charged at ``order``; ``aside`` and
    ``distance`` come out of ``kept``, the part of delta that the conversion does not have. Until
    they are fixed there is no order and all of delta is kept; what was set aside by then is
    ``gone``."""

    limit: Limit
    order: int | None = None
    kept: float = 1.0
    gone: float = 0.0
    divergence: float = 0.0
    aside: float = 0.0
    distance: float = 0.0
    total: Total = Total()

    # -- what is left ------------------------------------------------------------------------

    @property
    def allowed(self) -> float:
        """The most divergence that keeps the limit."""
        if self.order is None:
            return self.limit.epsilon
        if not self.allowed_aside < self._delta:  # as after a lowered limit
            return -math.inf
        return self.limit.epsilon - kappa(self.order, self._delta - self.allowed_aside)

    @property
    def allowed_aside(self) -> float:
        return self.kept * self._delta

    @property
    def _delta(self) -> float:
        return self.limit.delta - self.gone

    @property
    def _paid_aside(self) -> float:
        return self.aside + _coupling(self.limit) * self.distance

    @property
    def holds(self) -> bool:
        rounding = _ROUNDING * self.limit.delta
        return (
            self.divergence <= self.allowed + _ROUNDING * self.limit.epsilon
            and self._paid_aside <= self.allowed_aside + rounding
        )

    @property
    def used(self) -> float:
        """The part of the limit that is gone; above 1 nothing fits, as after a lowered limit."""
        if not self.total.charges:
            return 0.0
        paid = [(self.divergence, self.allowed), (self._paid_aside, self.allowed_aside)]
        return max(
            (s / most if most > 0.0 else math.inf for s, most in paid if s > 0.0), default=0.0
        )

    @property
    def epsilon(self) -> float:
        """What was released so far costs at the limit's delta, had all of it been planned in
        advance: by the best order, or by adding up."""
        total, delta = self.total, self.limit.delta
        found = total.epsilon if total.delta <= delta * (1 + _ROUNDING) else math.inf
        left = delta - total.failure - _coupling(self.limit) * total.distance
        if left > 0.0 and total.charges:
            by_order = (cost + kappa(a, left) for a, cost in total.curve.items())
            found = min(found, max(0.0, min(by_order, default=math.inf)))
        return found

    # -- charging ----------------------------------------------------------------------------

    def fixed(self, order: int | None, kept: float) -> Account:
        """With this order from now on; an order that is fixed stays."""
        if order is None or self.order is not None:
            return self
        return replace(self, order=order, kept=kept, gone=self.aside, aside=0.0)

    def charged(self, cost: Cost, way: Way) -> Account:
        total = self.total.plus(cost)
        if way is Way.ALONE:
            return replace(
                self,
                divergence=self.divergence + cost.epsilon,
                aside=self.aside + cost.delta,
                total=total,
            )
        if self.order is None:
            raise ValueError("the order is fixed before a curve is charged")
        return replace(
            self,
            divergence=self.divergence + cost.curve.get(self.order, math.inf),
            aside=self.aside + cost.failure,
            distance=self.distance + cost.distance,
            total=total,
        )

    def admit(
        self, cost: Cost, *, preliminary: bool = False, whole: Cost | None = None
    ) -> tuple[Account, Way] | None:
        """The account after this release, and how it was charged; None if it does not fit.

        ``preliminary``: charged by its own epsilon as long as no order is fixed. ``whole``: what
        this is the first part of, planned before any of it; an order that is not fixed yet is the
        one that suits the whole.
        """
        if cost.relation is not self.limit.relation:
            raise InputError(
                "relation",
                f"must be {self.limit.relation}, as of the limit",
                value=cost.relation,
                fix="plan in that relation",
            )
        by_curve: Account | None = self
        if self.order is None:
            by_curve = None if preliminary else self._fitted(whole or cost)
        after = None if by_curve is None else by_curve.charged(cost, Way.CURVE)
        if after is not None and after.holds:
            return after, Way.CURVE
        after = self.charged(cost, Way.ALONE)
        return (after, Way.ALONE) if after.holds else None

    def admits(self, costs: Sequence[Cost]) -> bool:
        """Whether these fit, one after the other."""
        account, whole = self, together(costs)
        for cost in costs:
            admitted = account.admit(cost, whole=whole)
            if admitted is None:
                return False
            account, _ = admitted
        return True

    def _fitted(self, cost: Cost) -> Account | None:
        """This account with the order at which most repetitions of the release would fit, and with
        as much kept aside as costs next to none of them. None if not even one fits."""
        delta = self.limit.delta - self.aside
        each = cost.failure + _coupling(self.limit) * cost.distance
        found = []
        for kept in (*(part * delta for part in _KEPT_ASIDE), each):
            left = delta - kept
            if kept < each or left <= 0.0:
                continue
            fits, order = max(
                (_times(self.limit.epsilon - self.divergence - kappa(a, left), spent), a)
                for a, spent in cost.curve.items()
            )
            found.append((min(fits, _times(kept, each)), order, kept / delta))
        most = max((fits for fits, _, _ in found), default=0.0)
        for fits, order, kept in found:
            if fits >= max(1.0, 0.999 * most):
                return self.fixed(order, kept)
        return None


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
    if account.order is None or not account.holds:
        return 0
    each = cost.failure + _coupling(account.limit) * cost.distance
    spent = cost.curve.get(account.order, math.inf)
    by_order = _times(account.allowed - account.divergence, spent)
    return int(min(by_order, _times(account.allowed_aside - account._paid_aside, each)))
