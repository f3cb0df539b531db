"""What a plan's program of sums costs, and the noise that keeps it to what was asked.

Where every record takes part once in each sum, the opening sums and the method's own compose as one
Gaussian. Where a method draws records, its one drawn sum has a part of epsilon and delta of its
own, and what the opening cost is added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from capemix.accounting import mint
from capemix.accounting.calibration import smallest_noise
from capemix.accounting.compose import Times, as_one
from capemix.accounting.cost import Cost, dearest, sum_cost
from capemix.errors import EpsilonError, InputError
from capemix.facts import CLASS_LIST
from capemix.federation import MaskKind
from capemix.guarantee import Guarantee
from capemix.methods import measured
from capemix.queries import QueryShape, Relation
from capemix.sums.query import ARITHMETIC, NoiseLaw

if TYPE_CHECKING:
    from capemix.plan import Plan

_FOREIGN_COLUMN: Final = (
    "the column type {} is of the package {}: what it makes of a record depends on that record"
    " alone, and lies between its ends"
)


@dataclass(frozen=True)
class BudgetLine:
    """One sum, or several of one kind, and what it costs: against the strongest view, alone and
    together with the lines before it. None: not bounded."""

    line: str
    reads: str
    sensitivity: float
    share: float
    epsilon_alone: float | None
    epsilon_composed: float | None


@dataclass(frozen=True, eq=False)
class ProgramCost:
    """The cost of one plan's sums, by its noise or by another that is tried."""

    plan: Plan

    @cached_property
    def part(self) -> float:
        """The part of the budget that is set aside for the opening sums."""
        return measured.budget_part(self.plan.opening)

    @property
    def opening_delta(self) -> float:
        return self.plan.delta * self.part

    @property
    def own_delta(self) -> float:
        """A method that draws records has its own part of delta; otherwise all sums are one. The
        two parts are no more than the whole, rounding included."""
        delta = self.plan.delta
        if not self.plan.drawn:
            return delta
        own = delta * (1 - self.part)
        while own + self.opening_delta > delta:
            own = math.nextafter(own, 0.0)
        return own

    @property
    def list_failure(self) -> float:
        """The part of delta that a list of classes found by a threshold takes."""
        return measured.list_failure(self.plan.opening, self.opening_delta)

    @property
    def apart(self) -> bool:
        """Whether the opening sums are accounted by themselves."""
        return self.plan.drawn and bool(self.plan.opening)

    def _noised(self, lines: Sequence[QueryShape], multiplier: float) -> Times:
        """Each of these lines, which have all of the noise of ``multiplier`` between them."""
        return [(self._one(line, lines, multiplier), line.repeats) for line in lines]

    def _one(
        self, line: QueryShape, among: Sequence[QueryShape], multiplier: float
    ) -> mint.NoisedSum:
        return self.plan.query_of(line, among, multiplier).noised()

    def opened(self, multiplier: float) -> mint.NoisedSum:
        """The opening sums as one."""
        parts = self._noised(self.plan.opening, multiplier)
        return as_one(parts, list_failure=self.list_failure)

    def whole(self, multiplier: float) -> mint.NoisedSum:
        """What is accounted as one: all sums, or if records are drawn the drawn one."""
        plan = self.plan
        if plan.drawn:
            (line,) = plan.body
            return self._one(line, plan.body, multiplier)
        opening: Times = ()
        if plan.opening:
            opening = self._noised(plan.opening, known(plan.opening_multiplier))
        parts = [*opening, *self._noised(plan.body, multiplier)]
        return as_one(parts, list_failure=self.list_failure)

    def epsilon(self, noised: mint.NoisedSum, delta: float) -> float:
        """What is proved of a sum against the strongest view."""
        strongest = noised.view_multipliers[noised.strongest]
        return mint.sound_epsilon(noised, strongest, delta, self.plan.relation)

    # -- noise ---------------------------------------------------------------------------------

    def least_opening(self, epsilon: float) -> float:
        """The least multiplier of the opening sums, for their part of ``epsilon``."""
        with _part_of(epsilon, self.part):
            return smallest_noise(
                lambda noise: self.epsilon(self.opened(noise), self.opening_delta),
                epsilon * self.part,
                start=8.0,
            )

    def least(self, epsilon: float) -> float:
        """The least multiplier of the method's sums."""
        plan = self.plan

        def reached(noise: float) -> float:
            return self.epsilon(self.whole(noise), self.own_delta)

        if not plan.drawn:
            return smallest_noise(reached, epsilon, start=8.0)
        federation = plan.federation
        root = math.sqrt(federation.sites)
        start = min(federation.view_factors().values())
        start *= root if federation.averaged else 1.0 / root
        if plan.law is not NoiseLaw.ROUNDED:
            return smallest_noise(reached, epsilon, start=start)
        # PLD is slow, and never above Rényi accounting: start from the latter's answer.
        renyi = ProgramCost(replace(plan, law=NoiseLaw.DISCRETE))
        try:
            start = renyi.least(epsilon)
        except EpsilonError as error:
            start = renyi.least(0.9 * error.most)
        return smallest_noise(reached, epsilon, start=start, step=1.25, relative_tolerance=2e-4)

    # -- what is said of it --------------------------------------------------------------------

    @property
    def choices(self) -> list[ProgramCost]:
        """The program as it stands, and as it is after each choice that its method may make."""
        plan = self.plan
        others = (choice for choice in plan.method.choices(plan) if choice != plan.chosen)
        return [self, *(ProgramCost(replace(plan, chosen=choice)) for choice in others)]

    def worst(self, multiplier: float) -> mint.NoisedSum:
        """What is accounted as one, after the choice that costs most."""
        wholes = [each.whole(multiplier) for each in self.choices]
        return max(wholes, key=lambda whole: self.epsilon(whole, self.own_delta))

    def costs(self, relation: Relation) -> list[Cost]:
        """What the opening sums cost, if they are accounted by themselves, and the others; the
        latter no less than after any choice."""
        plan = self.plan
        multiplier = known(plan.multiplier)
        wholes = [each.whole(multiplier) for each in self.choices]
        own = dearest([sum_cost(whole, self.own_delta, relation) for whole in wholes])
        if not self.apart:
            return [own]
        opened = self.opened(known(plan.opening_multiplier))
        return [sum_cost(opened, self.opening_delta, relation), own]

    def opening_guarantee(self, *, seeded: bool) -> Guarantee:
        """Of the opening sums by themselves."""
        plan = self.plan
        return mint.mint_sound(
            self.opened(known(plan.opening_multiplier)),
            unit=1.0,
            delta=self.opening_delta,
            relation=plan.relation,
            adversary=plan.federation.adversary,
            seeded=seeded,
            reference=False,
        )

    def budget(self) -> Iterator[BudgetLine]:
        """What each sum costs, in order."""
        plan = self.plan
        if not plan.countable:
            claimed = plan.guarantee().epsilon
            for line in plan.body:
                yield BudgetLine(line.name, line.reads, line.l2_norm_bound, 1.0, claimed, claimed)
            return
        before: list[tuple[mint.NoisedSum, int]] = []
        spent = 0.0
        if plan.opening:
            noise = known(plan.opening_multiplier)
            delta = self.opening_delta if self.apart else self.own_delta
            yield from self._lines(plan.opening, noise, delta, before, spent)
            if self.apart:
                spent, before = self.epsilon(self.opened(noise), delta), []
        yield from self._lines(plan.body, known(plan.multiplier), self.own_delta, before, spent)

    def _lines(
        self,
        lines: Sequence[QueryShape],
        noise: float,
        delta: float,
        before: list[tuple[mint.NoisedSum, int]],
        spent: float,
    ) -> Iterator[BudgetLine]:
        """The opening's lines, or the method's. Those ``before`` compose with them, and ``spent``
        is added."""
        part = self.part if lines is self.plan.opening else 1.0 - self.part
        for line in lines:
            own = (self._one(line, lines, noise), line.repeats)
            before.append(own)
            alone = self.epsilon(own[0] if line.drawn else self._as_one([own]), delta)
            total = spent + self.epsilon(own[0] if line.drawn else self._as_one(before), delta)
            yield BudgetLine(
                line.name if line.repeats == 1 else f"{line.name}, {line.repeats} times",
                line.reads,
                line.l2_norm_bound,
                part * line.share / sum(each.share for each in lines),
                alone if math.isfinite(alone) else None,
                total if math.isfinite(total) else None,
            )

    def _as_one(self, parts: Times) -> mint.NoisedSum:
        """Some of the sums as one, with what a list of classes takes of delta if it is of them."""
        has_list = any(part.query.name == CLASS_LIST for part, _ in parts)
        return as_one(parts, list_failure=self.list_failure if has_list else 0.0)


def calibrated(plan: Plan, epsilon: float) -> Plan:
    """See `Plan.calibrate`."""
    if math.isnan(epsilon) or epsilon <= 0:
        raise InputError(
            "epsilon", "must be above 0", value=epsilon, fix="give a budget, or inf for none"
        )
    plan = replace(plan, epsilon=epsilon, multiplier=None, opening_multiplier=None)
    if math.isinf(epsilon):
        return replace(plan, multiplier=0.0, opening_multiplier=0.0)
    claim = plan.method.claim(plan)
    if claim is not None:  # that of a multiplier of 1
        noise = smallest_noise(lambda tau: claim.theorem.epsilon(tau, plan.delta), epsilon)
        return replace(plan, multiplier=noise / claim.theorem_noise)
    most = math.inf
    if plan.opening:
        try:
            opening = ProgramCost(plan).least_opening(epsilon)
        except EpsilonError as error:  # what the method can deliver may be less
            most, opening = error.most, ProgramCost(plan).least_opening(0.9 * error.most)
        plan = replace(plan, opening_multiplier=opening)
    try:
        found = settled(plan)
    except EpsilonError as error:
        raise EpsilonError(epsilon, min(most, error.most)) from None
    if most < math.inf:
        raise EpsilonError(epsilon, most)
    return found


def settled(plan: Plan) -> Plan:
    """See `Plan.settled`."""
    asked = plan.epsilon
    if asked is None:
        raise ValueError("no budget was given")
    left = asked * (1 - ProgramCost(plan).part) if plan.drawn else asked
    plan = replace(plan, multiplier=None)
    plan = replace(plan, method=plan.method.settled(plan))
    noises, most = [], []
    for choice in plan.method.choices(plan):
        try:
            noises.append(ProgramCost(replace(plan, chosen=choice)).least(left))
        except EpsilonError as error:
            most.append(error.most * asked / left)
    if most:
        raise EpsilonError(asked, min(most))
    return replace(plan, multiplier=max(noises))


def guaranteed(
    plan: Plan,
    *,
    seeded: bool,
    one_process: bool,
    reference: bool,
    read_from_rows: tuple[str, ...],
) -> Guarantee:
    """See `Plan.guarantee`."""
    adversary, multiplier = plan.federation.adversary, known(plan.multiplier)
    claim, cost = plan.method.claim(plan), ProgramCost(plan)
    if claim is not None:
        return mint.mint_paper(
            claim,
            delta=plan.delta,
            adversary=adversary,
            arithmetic=ARITHMETIC[plan.law],
            seeded=seeded,
        )
    worst = cost.worst(multiplier)
    return mint.mint_sound(
        worst,
        unit=worst.query.l2_norm_bound / worst.query.divisor,
        delta=cost.own_delta,
        relation=plan.relation,
        adversary=adversary,
        seeded=seeded,
        assumptions=_assumptions(plan, one_process=one_process),
        read_from_rows=tuple(dict.fromkeys((*read_from_rows, *plan.facts.read_from_rows))),
        earlier=cost.opening_guarantee(seeded=seeded) if cost.apart else None,
        reference=reference and plan.drawn,
    )


def _assumptions(plan: Plan, *, one_process: bool) -> tuple[str, ...]:
    federation, table = plan.federation, plan.facts.table
    ring = federation.masked and federation.masks is MaskKind.RING
    return (
        *((mint.ONE_PROCESS,) if one_process and federation.sites > 1 else ()),
        *((mint.RING_ASSUMPTION,) if not one_process and ring and federation.sites > 1 else ()),
        *((mint.GRAPH_ASSUMPTION,) if federation.peers is not None else ()),
        *plan.method.assumptions(plan),
        *_foreign(plan),
        *((mint.CONFIRMED_DRAFT,) if table is not None and table.is_confirmed else ()),
    )


def known(multiplier: float | None) -> float:
    """The noise of a calibrated plan."""
    if multiplier is None:
        raise InputError(
            "the plan", "has no noise yet", fix="call plan.calibrate(epsilon=...) first"
        )
    return multiplier


@contextmanager
def _part_of(epsilon: float, part: float) -> Iterator[None]:
    """What cannot be delivered of a part of the budget, said of the whole that was asked for."""
    try:
        yield
    except EpsilonError as error:
        raise EpsilonError(epsilon, error.most / part) from None


def _foreign(plan: Plan) -> tuple[str, ...]:
    """What is said of a method and of types of column that are not ours: nobody here has checked
    what they make of a record."""
    table = plan.facts.table
    columns = () if table is None else table.columns
    used: list[tuple[str, str, type]] = [(mint.FOREIGN, plan.method.kind, type(plan.method))]
    used += [(_FOREIGN_COLUMN, getattr(each, "type", each.name), type(each)) for each in columns]
    packages = [(text, kind, of.__module__.partition(".")[0]) for text, kind, of in used]
    said = (text.format(kind, of) for text, kind, of in packages if of != "capemix")
    return tuple(dict.fromkeys(said))
