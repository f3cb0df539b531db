"""What a plan's program of sums costs, and the noise that keeps it to what was asked.

Where every record takes part once in each sum, the opening sums and the method's own are one
Gaussian with one total, of which each line has its share. Where a method draws records, the opening
sums are one Gaussian with its share of such a total, and the drawn sum is planned after it below an
envelope that is fixed beforehand (`accounting.envelope`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from capemix.accounting import mint
from capemix.accounting.calibration import smallest_noise
from capemix.accounting.compose import Times, as_one
from capemix.accounting.cost import Cost, alone_cost, dearest, squared_shift, sum_cost
from capemix.accounting.envelope import MOST_EPSILON, Envelope, envelope
from capemix.accounting.gaussian import gaussian_multiplier
from capemix.errors import EpsilonError, InputError
from capemix.facts import CLASS_LIST
from capemix.federation import MaskKind
from capemix.guarantee import Guarantee
from capemix.methods import measured
from capemix.queries import QueryShape, Relation
from capemix.sums.query import ARITHMETIC

if TYPE_CHECKING:
    from capemix.plan import Plan

_OPENING_DELTA: Final = 0.1
"""The opening sums' part of delta, where they are added to a drawn sum and not composed with it."""

_GROWTH: Final = 1e-9
"""The part of epsilon, or of 1 if that is less, that is kept for drawing noise in whole numbers; a
thousandth of what delta keeps for the samplers pays for what it does to delta."""

_FITS: Final = 1 + 1e-9
"""How far rounding may put a drawn sum above the envelope that it was planned below."""

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
    """The cost of one plan's sums, by the noise that the plan has: in the relation that its noise
    was shared out in, unless it is asked for in another."""

    plan: Plan
    asked: Relation | None = None

    @property
    def relation(self) -> Relation:
        """In which the cost is."""
        return self.asked or self.plan.relation

    @cached_property
    def part(self) -> float:
        """The opening sums' share of the whole 1/m^2."""
        return measured.budget_part(self.plan)

    @property
    def list_failure(self) -> float:
        """The part of delta that a list of classes found by a threshold takes."""
        return measured.list_failure(self.plan.opening, self.plan.delta)

    @property
    def apart(self) -> bool:
        """Whether the opening sums are one thing, and a drawn sum that is planned after them
        another."""
        return self.plan.drawn and bool(self.plan.opening)

    @property
    def adaptive(self) -> bool:
        """Whether what is drawn depends on what the opening sums find: how often a fixed number of
        records is drawn is declared."""
        return self.apart and all(line.poisson for line in self.plan.body)

    # -- sums as one ---------------------------------------------------------------------------

    def _noised(self, lines: Sequence[QueryShape], multiplier: float) -> Times:
        """Each of these lines, which have all of the noise of ``multiplier`` between them."""
        return [(self._one(line, lines, multiplier), line.repeats) for line in lines]

    def _one(
        self, line: QueryShape, among: Sequence[QueryShape], multiplier: float
    ) -> mint.NoisedSum:
        return self.plan.query_of(line, among, multiplier).noised()

    @cached_property
    def opened(self) -> mint.NoisedSum:
        """The opening sums as one."""
        plan = self.plan
        parts = self._noised(plan.opening, known(plan.opening_multiplier))
        return as_one(parts, plan.relation, list_failure=self.list_failure)

    @cached_property
    def whole(self) -> mint.NoisedSum:
        """All sums as one; or if records are drawn, the drawn one."""
        plan, multiplier = self.plan, known(self.plan.multiplier)
        if plan.drawn:
            (line,) = plan.body
            return self._one(line, plan.body, multiplier)
        opening: Times = ()
        if plan.opening:
            opening = self._noised(plan.opening, known(plan.opening_multiplier))
        parts = [*opening, *self._noised(plan.body, multiplier)]
        return as_one(parts, plan.relation, list_failure=self.list_failure)

    def epsilon(self, noised: mint.NoisedSum, delta: float) -> float:
        """What is proved of a sum by itself against the strongest view."""
        strongest = noised.view_multipliers[noised.strongest]
        return mint.sound_epsilon(noised, strongest, delta, self.relation)

    # -- a drawn sum after the opening ones ----------------------------------------------------

    @property
    def envelope(self) -> Envelope | None:
        """What the drawn sum stays below, whatever was measured: fixed by the budget that was asked
        for and by the opening sums. None without a budget, or where the opening sums leave none."""
        plan, opened = self.plan, self.opened
        failure = opened.failure + plan.federation.graph_failure()
        delta = mint.less_samplers(plan.delta - failure)
        squared = squared_shift(opened, plan.relation)
        if plan.epsilon is None or squared is None or delta <= 0.0:
            return None
        epsilon = plan.epsilon * (1.0 - _GROWTH)
        if epsilon > MOST_EPSILON:
            return None
        return envelope(epsilon, delta, squared, plan.relation)

    def below(self, found: Envelope) -> float:
        """How much the drawn sum is of the envelope, at most."""
        plan, whole = self.plan, self.whole
        multiplier = whole.view_multipliers[whole.strongest]
        if multiplier < mint.LEAST_MULTIPLIER or plan.epsilon is None:
            return math.inf
        growth = self.opened.rounding_growth + whole.rounding_growth
        if growth > _GROWTH * min(plan.epsilon, 1.0) or not mint.samplers_fit(
            plan.epsilon, plan.delta - self.opened.failure - whole.failure, self.opened, whole
        ):
            return math.inf
        return found.excess(whole.query.participation, multiplier, self.plan.relation)

    @cached_property
    def added(self) -> float:
        """What is proved of both by adding up: for another relation than the plan's, and where
        nothing is planned by what was measured, or no budget was asked for."""
        delta = self.plan.delta * _OPENING_DELTA
        rest = math.nextafter(self.plan.delta - delta, 0.0)
        return self.epsilon(self.opened, delta) + self.epsilon(self.whole, rest)

    @cached_property
    def proved(self) -> float:
        """The epsilon that is proved of all sums, at the plan's delta. With a budget there is one
        proof for a drawn sum, whatever was measured: two to choose from would prove neither. The
        envelope is of the plan's own relation."""
        plan = self.plan
        if not self.apart:
            return self.epsilon(self.whole, plan.delta)
        if plan.epsilon is None or not self.adaptive or self.relation is not plan.relation:
            return self.added
        found = self.envelope
        fits = found is not None and self.below(found) <= _FITS
        return plan.epsilon if fits else math.inf

    @property
    def conservative(self) -> float:
        """The same by Rényi accounting, the opening sums added to a drawn one."""
        parts = [(self.whole, 1.0)]
        if self.apart:
            parts = [(self.opened, _OPENING_DELTA), (self.whole, 1.0 - _OPENING_DELTA)]
        return sum(
            mint.renyi_epsilon(
                noised,
                noised.view_multipliers[noised.strongest],
                self.plan.delta * part - noised.failure,
                self.relation,
            )
            for noised, part in parts
        )

    # -- noise ---------------------------------------------------------------------------------

    def least_whole(self, epsilon: float) -> float:
        """The least multiplier of all sums as one."""
        return smallest_noise(
            lambda noise: ProgramCost(shared(self.plan, noise)).proved, epsilon, start=8.0
        )

    def least_drawn(self, epsilon: float) -> float:
        """The least multiplier of the method's one drawn sum."""
        plan = self.plan
        federation = plan.federation
        root = math.sqrt(federation.sites)
        start = min(federation.view_factors().values())
        start *= root if federation.averaged else 1.0 / root

        def with_noise(noise: float) -> ProgramCost:
            return ProgramCost(replace(plan, multiplier=noise))

        if not self.adaptive:
            return smallest_noise(lambda noise: with_noise(noise).proved, epsilon, start=start)
        first = with_noise(start)
        most = min(mint.most_fitting(plan.delta, first.opened, first.whole), MOST_EPSILON)
        if epsilon > most:
            raise EpsilonError(epsilon, most)
        found = first.envelope
        if found is None:
            raise InputError(
                "epsilon",
                "leaves nothing for the drawn sum once facts are measured",
                value=epsilon,
                fix="raise it, lower delta, or declare what would be measured",
            )
        return smallest_noise(
            lambda noise: with_noise(noise).below(found), 1.0, start=start, stalls=False
        )

    # -- what is said of it --------------------------------------------------------------------

    @property
    def choices(self) -> list[ProgramCost]:
        """The program as it stands, and as it is after each choice that its method may make; and
        where its sums are one Gaussian, all of that as it was before facts were measured. What is
        promised was fixed then: facts that make it cheap do not make it less."""
        plan = self.plan
        choices = (choice for choice in plan.method.choices(plan) if choice != plan.chosen)
        others = (replace(plan, chosen=choice) for choice in choices)
        found = [self, *(ProgramCost(other, self.asked) for other in others)]
        if plan.measured is not None and not plan.drawn:
            before = replace(plan, measured=None, chosen=None)
            found += ProgramCost(before, self.asked).choices
        return found

    @cached_property
    def worst(self) -> ProgramCost:
        """The program after the choice that costs most."""
        return max(self.choices, key=lambda each: each.proved)

    def costs(self) -> list[Cost]:
        """What the opening sums cost, if they are accounted by themselves, and the others; the
        latter no less than after any choice."""
        delta, relation = self.plan.delta, self.relation
        if not self.apart:
            return [dearest([sum_cost(each.whole, delta, relation) for each in self.choices])]
        part = delta * _OPENING_DELTA
        rest = math.nextafter(delta - part, 0.0)
        own = dearest([sum_cost(each.whole, rest, relation) for each in self.choices])
        return [sum_cost(self.opened, part, relation), own]

    def cost_alone(self) -> Cost | None:
        """All sums together, by their own epsilon and delta, where no curve carries what they cost
        together: the opening ones are accounted by themselves, or draws are made beside other
        sums. None in another relation than the plan's."""
        plan = self.plan
        own = self.relation is plan.relation
        together = self.apart or plan.mixed
        if not (together and own and math.isfinite(self.worst.proved)):
            return None
        return alone_cost(self.worst.proved, plan.delta, plan.relation)

    def budget(self) -> Iterator[BudgetLine]:
        """What each sum costs, in order; after the choice that the method will make, if declared
        numbers decide it."""
        plan = self.plan
        foreseen = plan.method.foreseen(plan) if plan.chosen is None else None
        if foreseen is not None:
            yield from ProgramCost(replace(plan, chosen=foreseen)).budget()
            return
        if not plan.countable:
            claimed = plan.guarantee().epsilon
            for line in plan.body:
                yield BudgetLine(line.name, line.reads, line.l2_norm_bound, 1.0, claimed, claimed)
            return
        before: list[tuple[mint.NoisedSum, int]] = []
        for lines, noise in (
            (plan.opening, plan.opening_multiplier),
            (plan.body, plan.multiplier),
        ):
            for line in lines:
                yield self._line(line, lines, known(noise), before)

    def _line(
        self,
        line: QueryShape,
        among: Sequence[QueryShape],
        noise: float,
        before: list[tuple[mint.NoisedSum, int]],
    ) -> BudgetLine:
        """One line of these; those ``before`` compose with it."""
        own, delta = (self._one(line, among, noise), line.repeats), self.plan.delta
        before.append(own)
        alone = self.epsilon(self._as_one([own]), delta)
        whole = line.drawn and self.plan.drawn  # with the opening, by what is fixed beforehand
        total = self.proved if whole else self.epsilon(self._as_one(before), delta)
        part = self.part if among is self.plan.opening else 1.0 - self.part
        return BudgetLine(
            line.name if line.repeats == 1 else f"{line.name}, {line.repeats} times",
            line.reads,
            line.l2_norm_bound,
            part * line.share / sum(each.share for each in among),
            alone if math.isfinite(alone) else None,
            total if math.isfinite(total) else None,
        )

    def _as_one(self, parts: Times) -> mint.NoisedSum:
        """Some of the sums as one, with what a list of classes takes of delta if it is of them."""
        has_list = any(part.query.name == CLASS_LIST for part, _ in parts)
        failure = self.list_failure if has_list else 0.0
        return as_one(parts, self.plan.relation, list_failure=failure)


def shared(plan: Plan, multiplier: float) -> Plan:
    """The plan with noise that makes all its sums as one Gaussian of this multiplier: the opening
    sums have their share of 1/m^2, and the method's own the rest."""
    part = ProgramCost(plan).part
    opening = multiplier / math.sqrt(part) if plan.opening else None
    return replace(plan, opening_multiplier=opening, multiplier=multiplier / math.sqrt(1.0 - part))


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
    if plan.drawn:
        return settled(replace(plan, opening_multiplier=_opening_noise(plan, epsilon)))
    return _for_all_choices(plan, lambda each: each.least_whole(epsilon), shared)


def _opening_noise(plan: Plan, epsilon: float) -> float | None:
    """That of the opening sums before a drawn one: their share of the one Gaussian's 1/m^2 that the
    whole budget buys."""
    if not plan.opening:
        return None
    return gaussian_multiplier(epsilon, plan.delta) / math.sqrt(ProgramCost(plan).part)


def settled(plan: Plan) -> Plan:
    """See `Plan.settled`."""
    asked = plan.epsilon
    if asked is None:
        raise ValueError("no budget was given")
    plan = replace(plan, multiplier=None)
    plan = replace(plan, method=plan.method.settled(plan))
    return _for_all_choices(
        plan,
        lambda each: each.least_drawn(asked),
        lambda found, noise: replace(found, multiplier=noise),
    )


def _for_all_choices(
    plan: Plan,
    least: Callable[[ProgramCost], float],
    with_noise: Callable[[Plan, float], Plan],
) -> Plan:
    """The plan with the least noise that will do whatever the method chooses."""
    noises, most = [], []
    for choice in plan.method.choices(plan):
        try:
            noises.append(least(ProgramCost(replace(plan, chosen=choice))))
        except EpsilonError as error:
            most.append(error)
    if most:
        raise min(most, key=lambda error: error.most)
    return with_noise(plan, max(noises))


def guaranteed(
    plan: Plan, *, seeded: bool, one_process: bool, read_from_rows: tuple[str, ...]
) -> Guarantee:
    """See `Plan.guarantee`."""
    known(plan.multiplier)
    adversary, claim = plan.federation.adversary, plan.method.claim(plan)
    if claim is not None:
        return mint.mint_paper(
            claim,
            delta=plan.delta,
            adversary=adversary,
            arithmetic=ARITHMETIC[plan.law],
            seeded=seeded,
        )
    worst = ProgramCost(plan).worst
    return mint.mint_sound(
        worst.whole,
        unit=worst.whole.query.l2_norm_bound / worst.whole.query.divisor,
        delta=plan.delta,
        relation=plan.relation,
        adversary=adversary,
        seeded=seeded,
        assumptions=_assumptions(plan, one_process=one_process),
        read_from_rows=tuple(dict.fromkeys((*read_from_rows, *plan.facts.read_from_rows))),
        proved=worst.proved if worst.apart else None,
        rows_per_person=plan.facts.rows_per_person,
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
