"""The only way from a method to a noisy sum."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from capemix.facts import CLASS_LIST, Facts
from capemix.plan import Plan
from capemix.queries import Relation
from capemix.randomness.source import SeededSource
from capemix.sums.query import SumQuery
from capemix.sums.statistic import Statistic

Floats = npt.NDArray[np.floating[Any]]
T = TypeVar("T")


@dataclass(frozen=True)
class Origin:
    """Where an engine's sums come from: ``seeded`` noise hides nothing; in ``one_process`` whoever
    ran it saw every row, and else each site saw its own, and counts in a ledger of its own;
    ``read_from_rows`` names public facts that nobody declared."""

    seeded: bool = False
    one_process: bool = False
    read_from_rows: tuple[str, ...] = ()


class Engine(Protocol):
    """Carries a query to where the rows are, and brings the noisy sum back."""

    def check(self, plan: Plan) -> None:
        """Refuse a plan that cannot be carried out here, before anything is charged or drawn."""
        ...

    def sum(self, plan: Plan, query: SumQuery) -> Floats:
        """The noisy sums over all sites and over the line's divisor: rows by width."""
        ...

    def list_classes(self, plan: Plan, query: SumQuery, failure: float) -> dict[str, float]:
        """The labels whose noisy counts pass a threshold, with those counts; one that a single
        record has passes with a chance of ``failure`` at most."""
        ...

    def origin(self, plan: Plan) -> Origin:
        """What the guarantee must know, once all sums are in."""
        ...


class Collector:
    """Noisy sums, asked for one after the other: each once, and the next of the plan's outline.
    Once a charge or a draw has failed, nothing more can be asked for.

    ``plan`` has what was measured and chosen on the way; ``warnings`` what could not be told from
    noise; ``statistics`` what the sums say by themselves, as tables by name; ``sums`` the noisy
    sums by their names. ``before`` is called with the plan before its first sum is drawn, and
    before the first of the method's own. Another ``turn`` makes other rows of the same sums.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        *,
        progress: Callable[[int], None] | None = None,
        before: Callable[[Plan], None] | None = None,
        turn: int = 0,
    ) -> None:
        self._plan, self._engine = plan, engine
        self._progress, self._before = progress, before
        self._asked: list[SumQuery] = []
        self._failed: str | None = None
        self._seen = hashlib.sha256(f"turn {turn}".encode() if turn else b"")
        self._sums: dict[str, Any] = {}
        self._said: list[str] = []
        self._offered: dict[str, Mapping[str, Any]] = {}

    @property
    def plan(self) -> Plan:
        """As it is by now."""
        return self._plan

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._said)

    def warn(self, *said: str) -> None:
        self._said += said

    @property
    def statistics(self) -> dict[str, Mapping[str, Any]]:
        return dict(self._offered)

    @property
    def sums(self) -> dict[str, Any]:
        return dict(self._sums)

    def offer(self, name: str, table: Mapping[str, Any]) -> None:
        """A table of noisy figures with their standard errors, as columns by name: it is released
        beside the rows, so it must be made of noisy sums and public numbers alone."""
        self._offered[name] = table

    def ask(self, name: str, statistic: Statistic) -> npt.NDArray[Any]:
        """The noisy sum of a statistic over all sites, over the line's divisor: of each group one
        row, or one for each draw."""
        query = self._next(name).of(statistic)
        sums = self._drawn(query, lambda: self._engine.sum(self.plan, query))
        self._seen.update(np.ascontiguousarray(sums).data)
        if query.drawn:  # large, and released as they are
            return sums
        return np.array(sums, dtype=np.float64)

    def list_classes(self, name: str) -> dict[str, float]:
        """The labels whose noisy counts stand out, with those counts."""
        query = self._next(name)
        if query.line.statistic != CLASS_LIST:
            raise ValueError(f"the sum {name!r} is no list of classes")
        failure = self.plan.list_failure
        return self._drawn(query, lambda: self._engine.list_classes(self.plan, query, failure))

    def check_whole(self) -> None:
        """Refuse to go on once a sum has failed, whatever a method made of its error."""
        if self._failed is not None:
            raise ValueError(f"the sum {self._failed!r} failed, so no other can be asked for")

    def _next(self, name: str) -> SumQuery:
        self.check_whole()
        names, place = self.plan.names, len(self._asked)
        if names[place : place + 1] != (name,):
            coming = names[place] if place < len(names) else None
            raise ValueError(f"the sum {name!r} is not the next of the outline: {coming!r} is")
        if place >= self._opening_sums and self.plan.opening and self.plan.measured is None:
            raise ValueError(f"the sum {name!r} needs the facts to be measured first")
        return self.plan.query(name)

    @property
    def _opening_sums(self) -> int:
        return sum(line.repeats for line in self.plan.opening)

    def _drawn(self, query: SumQuery, draw: Callable[[], T]) -> T:
        """The sum, charged and drawn. What comes of a failure is not known, noise may have been
        drawn and shares sent: so it is the end."""
        self._failed = query.name
        if self._before is not None and len(self._asked) in (0, self._opening_sums):
            self._before(self.plan)
        self._asked.append(query.planned)
        found = draw()
        if not query.drawn:  # which are large, and released as they are
            self._sums[query.name] = found
        self._failed = None
        if self._progress is not None:
            self._progress(1)
        return found

    def measured(self, facts: Facts) -> None:
        """Go on with what the opening sums have found. Draws depend on the sizes that were found,
        and so does their noise; that of all other sums was fixed beforehand, which is what lets
        them count as one."""
        if self.plan.measured is not None or len(self._asked) != self._opening_sums:
            raise ValueError("facts are measured once, by the opening sums")
        known = replace(self.plan, measured=facts)
        self._go_on(known.settled() if known.drawn and known.multiplier != 0.0 else known)

    def choose(self, **chosen: int) -> None:
        """What the method chooses, once, by noisy sums or public numbers."""
        if self.plan.chosen is not None:
            raise ValueError("a choice is made once")
        self._go_on(replace(self.plan, chosen=chosen))

    def _go_on(self, plan: Plan) -> None:
        asked = tuple(query.name for query in self._asked)
        same = plan.names[: len(asked)] == asked
        if not same or any(plan.query(query.name) != query for query in self._asked):
            raise ValueError("what was asked for already cannot be changed")
        if plan.drawn != self._plan.drawn:  # which decides what was charged, and what it promises
            raise ValueError("whether records are drawn cannot depend on what is found or chosen")
        if not plan.drawn and _dearer(plan, self._plan):
            raise ValueError("no choice may cost more than those that were planned for")
        self._plan = plan

    def noise_on(self, name: str) -> float:
        """The deviation of the noise on each number that `ask` returns."""
        return self.plan.query(name).deviation

    def noise_multiplier(self, name: str) -> float:
        """A sum's noise over what a record adds, as the strongest view has it."""
        query = self.plan.query(name)
        noised = query.noised()
        return noised.view_multipliers[noised.strongest] * query.line.per_person

    def lattice(self, name: str) -> int | None:
        """How many lattice units the norm bound of a record's part is; None in real arithmetic."""
        return self.plan.query(name).record_lattice

    def source(self) -> SeededSource:
        """Chance for post-processing, from the noisy sums so far: it hides nothing, and whoever has
        them draws the same."""
        return SeededSource(int.from_bytes(self._seen.digest()[:16], "big"))


def _dearer(plan: Plan, before: Plan) -> bool:
    """Whether sums that are one Gaussian promise less than was promised before: in the plan's
    relation, or in another, in which a ledger may have been charged. (Draws that wait for facts are
    held against what was asked for by themselves.)"""
    return any(plan.epsilon_in(each) > before.epsilon_in(each) * (1 + 1e-9) for each in Relation)
