"""What is asked, frozen before any row is read: the facts, a method, who takes part, the budget.

A plan can neither request nor carry a noise seed: where the noise comes from is decided where it is
drawn, and shows in the release's status.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from capemix import program_cost
from capemix.accounting.compose import noise_of_draws
from capemix.accounting.cost import Cost, sum_cost
from capemix.errors import InputError, member
from capemix.facts import Facts
from capemix.federation import CENTRAL, Federation, MaskKind, make_federation
from capemix.guarantee import Guarantee
from capemix.methods import measured
from capemix.methods.base import Choice, Method
from capemix.program_cost import BudgetLine, ProgramCost, known
from capemix.queries import SIGNED, QueryShape, Relation
from capemix.randomness.source import Source
from capemix.sums.query import NoiseLaw, SumQuery
from capemix.sums.statistic import Statistic
from capemix.sums.steps import Coverage, Step

__all__ = ["BudgetLine", "Plan", "make_plan"]


@dataclass(frozen=True)
class Plan:
    """The only kind of plan there is: a program of sums, and its noise.

    ``facts`` are declared; those that a method needs and that are not declared are measured first,
    by the program's opening sums. Once they are, ``measured`` has them. ``chosen`` is what the
    method chose on the way.

    ``epsilon`` is what was asked for, infinite for no privacy. ``relation`` says which datasets
    count as neighbours: it fixes how noise is shared out over sums. What they cost in another is
    asked for by name, and is the cost of the same noise. ``opening_multiplier`` is the noise of all
    opening sums as one, over the most that neighbours move them by, as the strongest view has it,
    and ``multiplier`` that of the method's own sums; of drawn rows, over what a record adds. None
    until calibrated.
    """

    facts: Facts
    method: Method
    federation: Federation = CENTRAL
    relation: Relation = Relation.ADD_REMOVE
    delta: float = 1e-5
    law: NoiseLaw = NoiseLaw.ROUNDED
    epsilon: float | None = None
    multiplier: float | None = None
    opening_multiplier: float | None = None
    measured: Facts | None = None
    chosen: Choice | None = None

    def __post_init__(self) -> None:
        if self.multiplier == 0.0 and self.epsilon is None:
            object.__setattr__(self, "epsilon", math.inf)  # which JSON has no word for
        if self.epsilon is not None and not self.epsilon > 0.0:
            raise InputError(
                "epsilon", "must be above 0", value=self.epsilon, fix="give a budget, or inf"
            )
        if not 0.0 < self.delta < 1.0:
            raise InputError(
                "delta", "must be between 0 and 1", value=self.delta, fix="try 1e-5 or 1/records"
            )
        for noise in (self.multiplier, self.opening_multiplier):
            if noise is not None and not (noise == 0 or 1e-100 < noise < 1e100):
                raise InputError("noise", "must be 0 or more", value=noise, fix="calibrate it")
        self._check_law()
        self._check_measured()
        self.method.check(self)  # before its choices and sums are asked for
        self._check_choice()
        self._check_persons()
        self._check_sums()
        # Each sum has a graph of its own.
        failure = self.federation.graph_failure()
        if self.multiplier != 0.0 and failure and failure * len(self.names) >= self.delta:
            raise InputError(
                "peers",
                "leaves more chance of failure than delta allows",
                value=self.federation.peers,
                fix="raise it, or leave it out for the degree that the adversary asks for",
            )
        if self._promises and self.method.claim(self) is None:
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
        gaussian = federation.masks is MaskKind.GAUSSIAN
        if federation.masked and gaussian != (self.law is NoiseLaw.GAUSSIAN):
            raise InputError(
                "law",
                f"does not fit {federation.masks} masks",
                value=self.law,
                fix="ring masks go with the lattice, Gaussian masks with Gaussian noise",
            )

    @property
    def _promises(self) -> bool:
        """Whether there is noise, or a budget that asks for some."""
        noisy = self.multiplier is not None and self.multiplier > 0.0
        return noisy or (self.epsilon is not None and math.isfinite(self.epsilon))

    def _check_measured(self) -> None:
        """Whether the facts are those that this program could come to."""
        opening = self.opening  # or a refusal
        if self.method.claimed and self._promises and opening:
            raise InputError(
                "accountant",
                f"cannot pay for {opening[0].name}: a published claim covers none",
                value="paper",
                fix="declare what is not known, or use the sound accountant",
            )
        if self.measured is not None:
            measured.check(self.facts, self.measured, opening)

    def _check_choice(self) -> None:
        """Whether the choice is one that this program could come to."""
        possible = self.method.choices(self)[0] or {}
        if self.chosen is not None and not set(self.chosen) == set(possible) != set():
            raise InputError(
                "chosen",
                f"has no meaning for {self.method.kind}",
                value=", ".join(self.chosen),
                fix=f"choose {', '.join(possible)}" if possible else "leave it out",
            )

    def _check_persons(self) -> None:
        """Whether what a person's rows add together is bounded as what one row adds."""
        if self.facts.rows_per_person is None:
            return
        if self.method.claimed or not all(line.poisson for line in self.body):
            raise InputError(
                "rows_per_person",
                "needs sound accounting and records that are drawn independently: published claims"
                " and draws of a fixed size are of single records",
                value=self.facts.rows_per_person,
                fix="use another method, or Poisson selection and the sound accountant",
            )

    def _check_sums(self) -> None:
        """Whether the sums can be told apart and accounted for together; only a checked method has
        an outline."""
        twice = sorted(name for name, count in Counter(self.names).items() if count > 1)
        if twice:
            raise InputError(
                "the method",
                "asks for two sums of one name",
                value=twice[0],
                fix="name each line otherwise, and none as a measured fact is called",
            )
        drawn = [line for line in self.body if line.drawn]
        if len(drawn) > 1 or (self.mixed and not drawn[0].poisson):
            raise InputError(
                "the method",
                "asks for two drawn sums, or draws a fixed number of records beside other sums",
                value=self.method.kind,
                fix="ask for one drawn sum, by Poisson selection where there are others",
            )
        if self.mixed and (self.measured or self.chosen) is not None:
            before = replace(self, measured=None, chosen=None)
            if before._draws != self._draws:
                raise InputError(
                    "the method",
                    "draws records otherwise, beside other sums, by what they find",
                    value=self.method.kind,
                    fix="have rates, rounds and shares of drawn sums follow from declared numbers",
                )
        waits = self.drawn and self.opening and self.measured is None
        if waits and self.multiplier and self.epsilon is None:
            raise InputError(
                "epsilon",
                "must be given: the noise of drawn sums is chosen once facts are measured",
                fix="calibrate the plan, or declare the facts",
            )

    # -- the program ---------------------------------------------------------------------------

    @property
    def known(self) -> Facts:
        """The facts: declared, and measured as far as they are."""
        return self.facts if self.measured is None else self.measured

    @cached_property
    def opening(self) -> tuple[QueryShape, ...]:
        """The sums that measure what is not declared."""
        return self._of_persons(measured.lines(self))

    @cached_property
    def body(self) -> tuple[QueryShape, ...]:
        """The method's own sums."""
        return self._of_persons(self.method.outline(self))

    def _of_persons(self, lines: Sequence[QueryShape]) -> tuple[QueryShape, ...]:
        """As a method says them of records, for the unit of privacy: the only place where it is
        told how many records a person may have."""
        records = self.facts.rows_per_person
        return tuple(lines if records is None else (line.of_persons(records) for line in lines))

    @property
    def one_class(self) -> bool:
        """Whether only a person's records of one class count: classes are drawn apart, and a
        person takes part in one group."""
        return any(line.drawn and line.groups > 1 for line in self.body)

    @property
    def record_noise(self) -> float:
        """The noise of all of the method's sums as one, over the most that one record adds; 0 until
        calibrated. It decides what can be told of so many records."""
        return (self.multiplier or 0.0) * (self.facts.rows_per_person or 1)

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
        """Whether the method asks for one sum of drawn records alone. How often a record is drawn
        may wait for facts, and the noise with it."""
        return bool(self.body) and all(line.drawn for line in self.body)

    @property
    def mixed(self) -> bool:
        """Whether it asks for drawn records and for other sums. Then all rates are fixed before the
        first sum, and all sums are one composition."""
        return not self.drawn and any(line.drawn for line in self.body)

    @property
    def _draws(self) -> list[tuple[QueryShape, float]]:
        """The drawn sums, and how much noise they have of that of all sums."""
        return [
            (line, self.query_of(line, self.body, 1.0).noise_multiplier)
            for line in self.body
            if line.drawn
        ]

    def query(self, name: str, statistic: Statistic | None = None) -> SumQuery:
        """One sum of the program by its name, with its noise; of a statistic, if one is given."""
        for lines, multiplier in (
            (self.opening, self.opening_multiplier),
            (self.body, self.multiplier),
        ):
            for line in lines:
                if name in line.names:
                    found = self.query_of(line, lines, known(multiplier), name)
                    return found if statistic is None else found.of(statistic)
        raise InputError(
            "the sum", "is not in the plan's outline", value=name, fix="ask for what was planned"
        )

    def source_of(self, query: SumQuery, source: Source) -> Source:
        """A sum's own part of an engine's source: the one drawn sum of a plan has all of it."""
        return source if self.drawn and query.drawn else source.child("round", query.name)

    def queries(self) -> tuple[SumQuery, ...]:
        """Every sum, once for each time that it is asked for."""
        return tuple(self.query(name) for name in self.names)

    def query_of(
        self,
        line: QueryShape,
        among: Sequence[QueryShape],
        multiplier: float,
        name: str | None = None,
    ) -> SumQuery:
        """A sum of ``line``, which has its share of the 1/m^2 that ``multiplier`` gives to all the
        lines ``among`` which it is, as the strongest view has it: the most that neighbours move it
        by, over its noise, squared. So the whole is the same, whatever the shares. Draws beside
        other sums have the noise at which they cost about what a Gaussian of their share does."""
        share = line.share / line.repeats / sum(each.share for each in among)
        own = multiplier / math.sqrt(share) * line.moves(self.relation)
        if line.drawn and len(among) > 1:
            rate = max(group.probability for group in line.draws)
            own = noise_of_draws(own, rate * self.relation.moves(SIGNED))
        federation = self.federation
        seen = min(federation.view_factors().values()) * (1.0 / math.sqrt(federation.sites))
        return SumQuery(name or line.names[0], line, federation, self.law, own / seen)

    # -- accounting: see `program_cost` ------------------------------------------------------------

    def calibrate(self, epsilon: float) -> Plan:
        """The plan with the least noise whose guarantee is at most ``epsilon``, whatever the method
        chooses on the way. The opening sums have their part of it, and the method what is left."""
        return program_cost.calibrated(self, epsilon)

    def settled(self) -> Plan:
        """The plan with the method's noise, by the facts that are known by now."""
        return program_cost.settled(self)

    @property
    def list_failure(self) -> float:
        """The part of delta that a list of classes found by a threshold takes."""
        return ProgramCost(self).list_failure

    def guarantee(
        self,
        *,
        seeded: bool = False,
        one_process: bool = False,
        read_from_rows: tuple[str, ...] = (),
    ) -> Guarantee:
        """What a release of this plan promises, whatever the method chooses on the way.

        ``seeded``: its noise comes from a test seed. ``one_process``: whoever ran it held all
        sites' rows, so there was no server to hide them from. ``read_from_rows``: public facts that
        were neither declared nor paid for.
        """
        return program_cost.guaranteed(
            self, seeded=seeded, one_process=one_process, read_from_rows=read_from_rows
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
        return ProgramCost(self, relation).costs()

    def cost_alone(self, relation: Relation) -> Cost | None:
        """All of a release of this plan, by its own epsilon and delta, where its opening sums are
        accounted by themselves; None in another relation than the plan's."""
        return ProgramCost(self, relation).cost_alone()

    def costs_from(self, name: str, relation: Relation) -> list[Cost]:
        """Of one sum and of each that follows, as a site counts them."""
        names = self.names[self.names.index(name) :]
        found: dict[QueryShape, Cost] = {}
        for query in map(self.query, names):
            if query.line not in found:
                found[query.line] = sum_cost(query.noised(), self.delta, relation)
        return [found[self.query(each).line] for each in names]

    def epsilon_in(self, relation: Relation) -> float:
        """What the plan's noise costs in a relation, whatever the method chooses on the way."""
        return ProgramCost(self, relation).worst.proved

    def conservative_epsilon(self) -> float:
        """What the plan's noise costs by Rényi accounting, whatever the method chooses: a looser
        bound than the guarantee's."""
        return max(each.conservative for each in ProgramCost(self).choices)

    def budget(self) -> tuple[BudgetLine, ...]:
        """What each sum costs, in order."""
        return tuple(ProgramCost(self).budget())

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything that touches a record before it is added up, and how it is covered."""
        return (*self._steps_of_persons, *measured.steps(self), *self.method.steps(self))

    @property
    def _steps_of_persons(self) -> tuple[Step, ...]:
        most = self.facts.rows_per_person
        if most is None:
            return ()
        of = "of the class of the first of them, " if self.one_class else ""
        says = f"{of}at most {most} rows count, evenly among all of theirs"
        return (Step("people", Coverage.PER_PERSON, says),)


def make_plan(
    facts: Facts,
    method: Method,
    *,
    relation: Relation | str | None = None,
    law: NoiseLaw | str | None = None,
    delta: float = 1e-5,
    epsilon: float | None = None,
    multiplier: float | None = None,
    **who: Any,
) -> Plan:
    """A plan with the defaults that go with the scheme: ``who`` takes part by the rules of
    `make_federation`. It is calibrated to ``epsilon``, if that is given, or has the noise of
    ``multiplier``; an infinite epsilon promises nothing, so that nothing need be covered."""
    claimed = method.claimed
    federation = make_federation(delta=delta, published=claimed, **who)
    if law is None:
        gaussian = federation.masked and federation.masks is MaskKind.GAUSSIAN
        law = NoiseLaw.GAUSSIAN if gaussian else NoiseLaw.ROUNDED
    noise = 0.0 if epsilon == math.inf else None
    plan = Plan(
        facts=facts,
        method=method,
        federation=federation,
        relation=member(Relation, relation or method.usual_relation, "relation"),
        delta=delta,
        law=member(NoiseLaw, law, "law"),
        multiplier=multiplier if noise is None else noise,
        opening_multiplier=noise,
    )
    return plan if epsilon is None else plan.calibrate(epsilon)
