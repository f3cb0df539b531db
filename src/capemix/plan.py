"""What is asked, frozen before any row is read: the facts, a method, who takes part, the budget.

A plan can neither request nor carry a noise seed: where the noise comes from is decided where it is
drawn, and shows in the release's status.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from capemix.accounting import mint
from capemix.accounting.calibration import smallest_noise
from capemix.accounting.compose import as_one
from capemix.accounting.cost import Cost, sum_cost
from capemix.errors import EpsilonError, InputError, member
from capemix.facts import Facts
from capemix.federation import CENTRAL, Federation, MaskKind, make_federation
from capemix.guarantee import Guarantee
from capemix.methods import measured
from capemix.methods.base import Choice, Method
from capemix.queries import QueryShape, Relation
from capemix.sums.query import ARITHMETIC, NoiseLaw, SumQuery
from capemix.sums.statistic import Statistic
from capemix.sums.steps import Coverage, Step

if TYPE_CHECKING:
    from collections.abc import Iterator


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


@dataclass(frozen=True)
class Plan:
    """The only kind of plan there is: a program of sums, and its noise.

    ``facts`` are declared; those that a method needs and that are not declared are measured first,
    by the program's opening sums. Once they are, ``measured`` has them. ``chosen`` is what the
    method chose on the way.

    ``epsilon`` is what was asked for, infinite for no privacy. ``opening_multiplier`` is the noise
    of all opening sums as one, over what a record adds, as the strongest view has it, and
    ``multiplier`` that of the method's own sums; None until calibrated.
    """

    facts: Facts
    method: Method
    federation: Federation = CENTRAL
    relation: Relation = Relation.ADD_REMOVE
    delta: float = 1e-5
    law: NoiseLaw = NoiseLaw.DISCRETE
    epsilon: float | None = None
    multiplier: float | None = None
    opening_multiplier: float | None = None
    measured: Facts | None = None
    chosen: Choice | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.delta < 1.0:
            raise InputError(
                "delta", "must be between 0 and 1", value=self.delta, fix="try 1e-5 or 1/records"
            )
        for noise in (self.multiplier, self.opening_multiplier):
            if noise is not None and not (noise == 0 or 1e-100 < noise < 1e100):
                raise InputError("noise", "must be 0 or more", value=noise, fix="calibrate it")
        if self.multiplier != 0.0 and self.federation.graph_failure() >= self.delta:
            raise InputError(
                "peers",
                "leaves more chance of failure than delta allows",
                value=self.federation.peers,
                fix="raise it, or leave it out for the degree that the adversary asks for",
            )
        self._check_law()
        self.method.check(self)
        if self.multiplier != 0.0 and self.method.claim(self) is None:
            for step in self.steps:
                if step.coverage is Coverage.NOT_COVERED:
                    raise InputError(
                        step.name,
                        "is not covered by a sound guarantee",
                        value=step.says,
                        fix="declare it, or use the paper's accountant",
                    )

    def _check_law(self) -> None:
        federation = self.federation
        if self.law is NoiseLaw.ROUNDED and federation.sites > 1:
            raise InputError(
                "law",
                "is for a single curator: rounded noises do not add up to one",
                value=self.law,
                fix="use discrete",
            )
        gaussian = federation.masks is MaskKind.GAUSSIAN
        if federation.masked and gaussian != (self.law is NoiseLaw.GAUSSIAN):
            raise InputError(
                "law",
                f"does not fit {federation.masks} masks",
                value=self.law,
                fix="ring masks go with the lattice, Gaussian masks with Gaussian noise",
            )

    # -- the program ---------------------------------------------------------------------------

    @property
    def known(self) -> Facts:
        """The facts: declared, and measured as far as they are."""
        return self.facts if self.measured is None else self.measured

    @cached_property
    def opening(self) -> tuple[QueryShape, ...]:
        """The sums that measure what is not declared."""
        return measured.lines(self)

    @cached_property
    def body(self) -> tuple[QueryShape, ...]:
        """The method's own sums."""
        return self.method.outline(self)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of every sum, in the order in which they are asked for."""
        return tuple(name for line in self.outline for name in line.names)

    @property
    def outline(self) -> tuple[QueryShape, ...]:
        """Every sum that may be asked for, in order."""
        return (*self.opening, *self.body)

    @property
    def row_clip(self) -> float | None:
        """The norm to which whole rows are clipped, if released rows were so."""
        return self.method.row_clip(self)

    @property
    def drawn(self) -> bool:
        """Whether the method draws records, so that its sums do not fold into one Gaussian."""
        return any(line.drawn for line in self.body)

    def query(self, name: str, statistic: Statistic | None = None) -> SumQuery:
        """One sum of the program by its name, with its noise; of a statistic, if one is given."""
        for lines, multiplier in (
            (self.opening, self.opening_multiplier),
            (self.body, self.multiplier),
        ):
            for line in lines:
                if name in line.names:
                    found = self._query(name, line, lines, _known(multiplier))
                    return found if statistic is None else found.of(statistic)
        raise InputError(
            "the sum", "is not in the plan's outline", value=name, fix="ask for what was planned"
        )

    def queries(self) -> tuple[SumQuery, ...]:
        """Every sum, once for each time that it is asked for."""
        return tuple(self.query(name) for name in self.names)

    def _query(
        self, name: str, line: QueryShape, among: Sequence[QueryShape], multiplier: float
    ) -> SumQuery:
        share = line.share / line.repeats / sum(each.share for each in among)
        own = multiplier / math.sqrt(share)  # as the strongest view has it
        federation = self.federation
        seen = min(federation.view_factors().values()) * (1.0 / math.sqrt(federation.sites))
        return SumQuery(name, line, federation, self.law, own / seen)

    def _noised(
        self, lines: Sequence[QueryShape], multiplier: float, among: Sequence[QueryShape]
    ) -> list[tuple[mint.NoisedSum, int]]:
        return [
            (self._query(line.names[0], line, among, multiplier).noised(), line.repeats)
            for line in lines
        ]

    # -- accounting ----------------------------------------------------------------------------

    @property
    def _part(self) -> float:
        """The part of the budget that is set aside for the opening sums."""
        return measured.budget_part(self.opening)

    @property
    def _body_delta(self) -> float:
        """A method that draws records has its own part of delta; otherwise all sums are one."""
        return self.delta * (1 - self._part) if self.drawn else self.delta

    def _opened(self, multiplier: float) -> mint.NoisedSum:
        """The opening sums as one."""
        parts = self._noised(self.opening, multiplier, self.opening)
        failure = measured.list_failure(self.opening, self.delta * self._part)
        return as_one(parts, list_failure=failure)

    def _whole(self, multiplier: float) -> mint.NoisedSum:
        """What is accounted as one: all sums, or if records are drawn the drawn one."""
        if self.drawn:
            (line,) = self.body
            return self._query(line.name, line, self.body, multiplier).noised()
        parts = self._noised(self.body, multiplier, self.body)
        failure = 0.0
        if self.opening:
            parts = [
                *self._noised(self.opening, _known(self.opening_multiplier), self.opening),
                *parts,
            ]
            failure = measured.list_failure(self.opening, self.delta * self._part)
        return as_one(parts, list_failure=failure)

    def _sound_epsilon(self, noised: mint.NoisedSum, delta: float) -> float:
        strongest = noised.view_multipliers[noised.strongest]
        return mint.sound_epsilon(noised, strongest, delta, self.relation)

    def calibrate(self, epsilon: float) -> Plan:
        """The plan with the least noise whose guarantee is at most ``epsilon``, whatever the method
        chooses on the way. The opening sums have their part of it, and the method what is left."""
        if math.isnan(epsilon) or epsilon <= 0:
            raise InputError(
                "epsilon", "must be above 0", value=epsilon, fix="give a budget, or inf for none"
            )
        plan = replace(self, epsilon=epsilon)
        if math.isinf(epsilon):
            return replace(plan, multiplier=0.0, opening_multiplier=0.0)
        claim = self.method.claim(self)
        if claim is not None:
            return replace(plan, multiplier=self._claimed_multiplier(claim, epsilon))
        if self.opening:
            part = self._part
            with _part_of(epsilon, part):
                opening = smallest_noise(
                    lambda noise: self._sound_epsilon(self._opened(noise), self.delta * part),
                    epsilon * part,
                    start=8.0,
                )
            plan = replace(plan, opening_multiplier=opening)
        return plan.settled()

    def settled(self) -> Plan:
        """The plan with the method's noise, by the facts that are known by now."""
        if self.epsilon is None:
            raise ValueError("no budget was given")
        plan = replace(self, method=self.method.settled(self), multiplier=None)
        left = self.epsilon
        if plan.drawn:
            left *= 1 - self._part
        noises, most = [], []
        for choice in plan.method.choices(plan):
            try:
                noises.append(replace(plan, chosen=choice)._least(left))
            except EpsilonError as error:
                most.append(error.most * self.epsilon / left)
        if most:
            raise EpsilonError(self.epsilon, min(most))
        return replace(plan, multiplier=max(noises))

    def _least(self, epsilon: float) -> float:
        """The least multiplier of the method's sums."""
        delta = self._body_delta

        def reached(noise: float) -> float:
            return self._sound_epsilon(self._whole(noise), delta)

        if not self.drawn:
            return smallest_noise(reached, epsilon, start=8.0)
        federation = self.federation
        root = math.sqrt(federation.sites)
        start = min(federation.view_factors().values())
        start *= root if federation.averaged else 1.0 / root
        if self.law is not NoiseLaw.ROUNDED:
            return smallest_noise(reached, epsilon, start=start)
        # PLD is slow, and never above Rényi accounting: start from the latter's answer.
        renyi = replace(self, law=NoiseLaw.DISCRETE)
        try:
            start = renyi._least(epsilon)
        except EpsilonError as error:
            start = renyi._least(0.9 * error.most)
        return smallest_noise(reached, epsilon, start=start, step=1.25, relative_tolerance=2e-4)

    def _claimed_multiplier(self, claim: mint.PublishedClaim, epsilon: float) -> float:
        """By a published theorem: ``claim`` is that of a multiplier of 1."""
        theorem = claim.theorem
        noise = smallest_noise(lambda tau: theorem.epsilon(tau, self.delta), epsilon)
        return noise / claim.theorem_noise

    @property
    def seen_multiplier(self) -> float:
        """The method's noise as one, over what a record adds, as the strongest view has it."""
        return _known(self.multiplier)

    def guarantee(
        self,
        *,
        seeded: bool = False,
        one_process: bool = False,
        reference: bool = True,
        read_from_rows: tuple[str, ...] = (),
    ) -> Guarantee:
        """What a release of this plan promises, whatever the method chooses on the way.

        ``seeded``: its noise comes from a test seed. ``one_process``: whoever ran it held all
        sites' rows, so there was no server to hide them from. ``reference``: with the PLD figure of
        a drawn sum beside it, which can take long. ``read_from_rows``: public facts that were
        neither declared nor paid for.
        """
        adversary, multiplier = self.federation.adversary, _known(self.multiplier)
        claim = self.method.claim(self)
        if claim is not None:
            return mint.mint_paper(
                claim,
                delta=self.delta,
                adversary=adversary,
                arithmetic=ARITHMETIC[self.law],
                seeded=seeded,
            )
        table = self.facts.table
        drafted: tuple[str, ...] = ()
        if table is not None:
            drafted = tuple(fact for fact in table.read_from_rows if fact not in read_from_rows)
        every = [self, *(replace(self, chosen=choice) for choice in self.method.choices(self))]
        wholes = [plan._whole(multiplier) for plan in every]
        worst = max(wholes, key=lambda whole: self._sound_epsilon(whole, self._body_delta))
        return mint.mint_sound(
            worst,
            unit=worst.query.l2_norm_bound / worst.query.divisor,
            delta=self._body_delta,
            relation=self.relation,
            adversary=adversary,
            seeded=seeded,
            assumptions=self._assumptions(one_process),
            read_from_rows=read_from_rows + drafted,
            earlier=self._opening_guarantee(seeded) if self.drawn and self.opening else None,
            reference=reference and self.drawn,
        )

    def _opening_guarantee(self, seeded: bool) -> Guarantee:
        return mint.mint_sound(
            self._opened(_known(self.opening_multiplier)),
            unit=1.0,
            delta=self.delta * self._part,
            relation=self.relation,
            adversary=self.federation.adversary,
            seeded=seeded,
            reference=False,
        )

    def _assumptions(self, one_process: bool) -> tuple[str, ...]:
        federation, found = self.federation, self.method.assumptions(self)
        ring = federation.masked and federation.masks is MaskKind.RING
        table = self.facts.table
        return (
            *((mint.ONE_PROCESS,) if one_process and federation.sites > 1 else ()),
            *((mint.RING_ASSUMPTION,) if not one_process and ring and federation.sites > 1 else ()),
            *((mint.GRAPH_ASSUMPTION,) if federation.peers is not None else ()),
            *found,
            *((mint.CONFIRMED_DRAFT,) if table is not None and table.is_confirmed else ()),
        )

    @property
    def countable(self) -> bool:
        """Whether a ledger can count it: a published claim bounds nothing."""
        return self.method.claim(self) is None

    def costs(self, relation: Relation | None = None) -> list[Cost]:
        """What a release of this plan takes from a budget: the opening sums and then the method's,
        where records are drawn; and else all of them as one."""
        if not self.countable:
            raise InputError(
                "accountant",
                "must be sound to be counted: a paper claim bounds nothing",
                fix="use the sound accountant, or count nothing",
            )
        relation = relation or self.relation
        multiplier = _known(self.multiplier)
        last = replace(self, chosen=self.method.choices(self)[-1])
        own = sum_cost(last._whole(multiplier), self._body_delta, relation)
        if not (self.drawn and self.opening):
            return [own]
        opened = self._opened(_known(self.opening_multiplier))
        return [sum_cost(opened, self.delta * self._part, relation), own]

    def costs_from(self, name: str, relation: Relation) -> list[Cost]:
        """Of one sum and of each that follows, as a site counts them."""
        names = self.names[self.names.index(name) :]
        found: dict[QueryShape, Cost] = {}
        for query in map(self.query, names):
            if query.line not in found:
                found[query.line] = sum_cost(query.noised(), self.delta, relation)
        return [found[self.query(each).line] for each in names]

    def budget(self) -> tuple[BudgetLine, ...]:
        """What each sum costs, in order."""
        if self.method.claim(self) is None:
            return tuple(self._budget_lines())
        claimed = self.guarantee().epsilon
        return tuple(
            BudgetLine(line.name, line.reads, line.l2_norm_bound, 1.0, claimed, claimed)
            for line in self.body
        )

    def _budget_lines(self) -> Iterator[BudgetLine]:
        before: list[tuple[mint.NoisedSum, int]] = []
        spent = 0.0
        part = self._part if self.opening else 0.0
        for lines, noise, of, delta in (
            (self.opening, self.opening_multiplier, part, self.delta * part),
            (self.body, self.multiplier, 1.0 - part, self._body_delta),
        ):
            if self.drawn and lines is self.body:
                before = []
            for line in lines:
                own = self._noised([line], _known(noise), lines)
                before += own
                noised = own[0][0] if line.drawn else as_one(own)
                composed = noised if line.drawn else as_one(before)
                alone = self._sound_epsilon(noised, delta)
                total = spent + self._sound_epsilon(composed, delta)
                share = of * line.share / sum(each.share for each in lines)
                yield BudgetLine(
                    line.name if line.repeats == 1 else f"{line.name}, {line.repeats} times",
                    line.reads,
                    line.l2_norm_bound,
                    share,
                    alone if math.isfinite(alone) else None,
                    total if math.isfinite(total) else None,
                )
            if self.drawn and lines is self.opening and lines:
                spent = self._sound_epsilon(self._opened(_known(noise)), delta)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything that touches a record before it is added up, and how it is covered."""
        return self.method.steps(self)


def _known(multiplier: float | None) -> float:
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


def make_plan(
    facts: Facts,
    method: Method,
    *,
    relation: Relation | str | None = None,
    law: NoiseLaw | str | None = None,
    delta: float = 1e-5,
    multiplier: float | None = None,
    **who: Any,
) -> Plan:
    """A plan, not yet calibrated unless its ``multiplier`` is given, with the defaults that go with
    the scheme: ``who`` takes part by the rules of `make_federation`."""
    claimed = method.claimed
    federation = make_federation(delta=delta, published=claimed, **who)
    if law is None:
        gaussian = federation.masked and federation.masks is MaskKind.GAUSSIAN
        law = NoiseLaw.GAUSSIAN if gaussian else NoiseLaw.DISCRETE
    return Plan(
        facts=facts,
        method=method,
        federation=federation,
        relation=member(Relation, relation or method.usual_relation, "relation"),
        delta=delta,
        law=member(NoiseLaw, law, "law"),
        multiplier=multiplier,
    )
