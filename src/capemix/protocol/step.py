"""A run of the protocol is one sum of a release: it is proposed with the whole plan, so that a site
agrees to all of its sums or to none.

From the plan a site works out itself how many sums there are, who takes part in each, how much
noise it has and what it costs. Only what a record adds (the statistic) comes with each sum, since
it may depend on earlier ones: one of the kind, size and bound that the plan says, of rows as the
plan maps them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, cast

from capemix.accounting.cost import Cost
from capemix.accounting.sampled import ORDERS
from capemix.documents import as_json, from_json
from capemix.errors import InputError
from capemix.facts import map_of
from capemix.ledger import Account
from capemix.plan import Plan
from capemix.protocol.wire import MAX_MESSAGE, ProtocolError, bytes_of
from capemix.queries import Relation, Selection
from capemix.statistics.projection import Projection
from capemix.sums.query import SumQuery
from capemix.sums.statistic import Statistic

_REST: Final = 1 << 20
"""Room for what is not an array in a proposal."""


def fits_in_messages(plan: Plan) -> bool:
    """Whether a proposal has room for the largest arrays that a statistic carries. If not, a
    release would break off after sums that were paid for."""
    return plan.method.message_bytes(plan) + _REST <= MAX_MESSAGE


@dataclass(frozen=True, eq=False)
class ReleaseStep:
    """``release`` names the release in the proposals of all its sums; ``name`` is this sum's, and
    ``statistic`` what a record adds to it. ``plan`` has what was measured and chosen so far.
    ``paid``: this site's ledger was charged for the whole release with its first sum."""

    release: bytes
    plan: Plan
    name: str
    statistic: Statistic
    paid: bool = False

    @classmethod
    def first_of(cls, plan: Plan) -> ReleaseStep:
        """The first sum of a plan that nobody has proposed yet, for whoever judges the plan: its
        name, its cost and what follows. What a record adds to it is not said."""
        return cls(bytes(16), plan, plan.names[0], cast(Statistic, None))

    @cached_property
    def query(self) -> SumQuery:
        return self.plan.query(self.name, self.statistic)

    def as_json(self) -> dict[str, Any]:
        return {
            "release": self.release.hex(),
            "plan": as_json(self.plan),
            "sum": self.name,
            "statistic": as_json(self.statistic),
        }

    @classmethod
    def from_json(cls, found: Any) -> ReleaseStep:
        if not isinstance(found, dict) or set(found) != {"release", "plan", "sum", "statistic"}:
            raise ProtocolError("a proposal must have a release, its plan, a sum and a statistic")
        try:
            said = from_json(_Said, {"statistic": found["statistic"]}, name="the statistic")
            plan = from_json(Plan, found["plan"], name="the plan")
        except InputError as error:
            raise ProtocolError(f"the proposal cannot be read: {error}") from None
        step = cls(bytes_of(found, "release", 16), plan, str(found["sum"]), said.statistic)
        if plan.multiplier is None or (plan.opening and plan.opening_multiplier is None):
            raise ProtocolError("a proposal must be of a calibrated plan")
        if step.name not in plan.names:
            raise ProtocolError("a proposal must be of a sum that its plan has")
        return step

    @property
    def before(self) -> tuple[str, ...]:
        """The sums that come before this one."""
        return self.plan.names[: self.plan.names.index(self.name)]

    @property
    def opens(self) -> bool:
        """Whether this sum measures a fact, and all such sums are paid for apart from the others:
        where records are drawn, their noise waits for what is measured, and so does the order at
        which a ledger composes it."""
        return self.plan.drawn and self.name in {line.name for line in self.plan.opening}

    def costs(self, relation: Relation) -> list[Cost]:
        """Of this sum and of each that follows. What opens a release of drawn records is paid for
        with the first sum, all of it: the ones after that cost nothing more."""
        if self.paid:
            return [_nothing(relation)]
        if self.plan.mixed:  # one composition, which no sum of single costs comes near
            return [_nothing(relation)] if self.before else self.plan.costs(relation)
        if not (self.plan.drawn and self.plan.opening):
            return self.plan.costs_from(self.name, relation)
        opened, own = self.plan.costs(relation)
        if not self.opens:
            return [own]
        return [_nothing(relation) if self.before else opened, own]

    def cost_alone(self, relation: Relation) -> Cost | None:
        """What may be charged with the first sum instead, for the whole release; see
        `Account.admit`."""
        first = (self.opens or self.plan.mixed) and not self.before
        return self.plan.cost_alone(relation) if first else None

    def fits(self, account: Account) -> bool:
        """Whether this sum and all that follow fit a site's budget, whatever is chosen on the way:
        by an account's own relation, or by the sums' number, one choice may cost more than another.
        """
        relation = account.limit.relation
        return all(
            account.admits(each.costs(relation), instead=each.cost_alone(relation))
            for each in self._after_choices()
        )

    def _after_choices(self) -> list[ReleaseStep]:
        """This sum in the plan as it is after each choice that is left."""
        plan, place = self.plan, len(self.before)
        left = plan.method.choices(plan) if plan.chosen is None else (plan.chosen,)
        plans = (replace(plan, chosen=choice) for choice in left)
        return [replace(self, plan=each, name=each.names[place]) for each in plans]

    def misfit(self) -> str | None:
        """Why this is no sum of its plan, or None. Looks at no row."""
        plan = self.plan
        if not fits_in_messages(plan):
            return "the release has sums that no message has room for"
        facts = plan.facts
        if facts.table is not None and facts.normalise != map_of(facts.table):
            return "the release maps columns in another way than its schema says"
        if any(
            group.selection is not Selection.POISSON
            for line in plan.body
            for group in line.participation
        ):
            # Its cost rests on declared class sizes, and a site with fewer rows could not answer.
            return "in a federation records are drawn by Poisson selection"
        opening = {line.name for line in plan.opening}
        if opening and plan.measured is None and self.name not in opening:
            return f"the sum {self.name!r} needs the facts to be measured first"
        if plan.chosen is None and not self._before_choice():
            return f"the sum {self.name!r} needs the method's choice to be made"
        if self.statistic.columns != plan.known.width:
            return "the sum reads other columns than the release"
        try:
            self.query  # noqa: B018
        except InputError:
            return "the sum adds up something else than the release says"
        return self._seen_otherwise()

    def _seen_otherwise(self) -> str | None:
        """Why the sum looks at records in another way than the release, or None."""
        asked, plan = self.statistic, self.plan
        # A bound below 0 is within any, and whatever is clipped to it is as long as it likes.
        if not asked.l2_norm_bound > 0.0 or not getattr(asked, "clip", 1.0) > 0.0:
            return "the sum's bound must be above 0"
        opens = self.name in {line.name for line in plan.opening}
        frame = getattr(asked, "frame", None)
        if not isinstance(frame, Projection):
            how = None if opens else getattr(asked, "normalise", None)
        else:
            how = frame.normalise
            # What is made of all records is kept between sums: a method counts on no more.
            if frame.upright not in (None, plan.known.image_shape):
                return "the sum sets images of another shape upright than the release"
            if opens and not frame.is_plain:
                return "a sum that measures a fact looks at records as they are"
            if frame.directions > frame.seen:
                return "the sum looks in more directions than there are columns"
            if frame.classes != len(plan.known.listed):
                return "the sum has other classes than the release"
        if None not in (how, plan.known.normalise) and how != plan.known.normalise:
            return "the sum normalises rows in another way than the release"
        return None

    def _before_choice(self) -> bool:
        """Whether this sum is the same whatever the method chooses."""
        own, upto = self.plan.query(self.name), self.plan.names.index(self.name) + 1
        for choice in self.plan.method.choices(self.plan):
            other = replace(self.plan, chosen=choice)
            same = other.names[:upto] == self.plan.names[:upto]
            if not same or other.query(self.name) != own:
                return False
        return True

    def becomes(self, plan: Plan) -> bool:
        """Whether this is the plan that was agreed to, with what was measured and chosen since."""
        later = replace(self, plan=plan)
        return _agreed(self.plan) == _agreed(later._as_agreed(self.plan))

    def follows(self, known: ReleaseStep | None) -> str | None:
        """Why it is not this sum's turn, or None; ``known`` is the last sum of this release that
        the site took part in."""
        if known is None:
            return "this site was not in the release's earlier sums" if self.before else None
        if not known.becomes(self.plan):
            return "this is not the release that was agreed to"
        for fixed in ("measured", "chosen"):
            before, now = getattr(known.plan, fixed), getattr(self.plan, fixed)
            if before is not None and (
                before != now or known.plan.multiplier != self.plan.multiplier
            ):
                return f"what was {fixed} of the release cannot be changed"
        if self.before != (*known.before, known.name):
            return "a release's sums are made once each, in their order"
        if any(known.plan.query(name) != self.plan.query(name) for name in self.before):
            return "the sums that were made would have had other noise"
        return None

    def _as_agreed(self, known: Plan) -> Plan:
        """This plan with the method that was agreed to, if its own is what facts that are measured
        by now make of that one."""
        if known.measured is not None or self.plan.measured is None:
            return self.plan
        try:
            before = replace(self.plan, method=known.method)
            settled = known.method.settled(before)
        except ValueError:  # no such plan
            return self.plan
        return before if settled == self.plan.method else self.plan


def _nothing(relation: Relation) -> Cost:
    """Of a sum that was paid for with an earlier one."""
    return Cost(relation, epsilon=0.0, delta=0.0, curve=dict.fromkeys(ORDERS, 0.0), squared=0.0)


def _agreed(plan: Plan) -> Plan:
    """What no later sum may change. Noise of drawn records waits for the sizes that are measured;
    what it may cost is fixed by the plan's epsilon."""
    later = plan.drawn and bool(plan.opening)
    return replace(plan, measured=None, chosen=None, multiplier=None if later else plan.multiplier)


@dataclass(frozen=True, eq=False)
class _Said:
    statistic: Statistic
