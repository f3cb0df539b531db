"""The primitive: a private sum over records of bounded vectors, as it is known before any row is
read.

Accounting, noise and masks speak of sums alone. What they are *for* (mixtures, counts, moments) is
known only to the method that asks for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from capemix.errors import InputError


class Relation(StrEnum):
    """Which two datasets count as neighbours."""

    ADD_REMOVE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"

    def moves(self, replacement_factor: float) -> float:
        """How far neighbours move a sum that every record joins, over its norm bound, at most."""
        return replacement_factor if self is Relation.REPLACE_ONE else 1.0


class Selection(StrEnum):
    """How records are drawn into a row of a query."""

    POISSON = "poisson"  # every record independently
    FIXED = "fixed-size"  # exactly `selected` of the group, without replacement


@dataclass(frozen=True)
class Participation:
    """How often a record of one group takes part: ``draws`` times, at rate selected / among.

    A record belongs to exactly one group. The rate is a constant of the plan, kept as a ratio of
    integers so that it can be sampled exactly; ``among`` is a declared or noisy size, never the
    true count. With fixed-size selection ``among`` must be a public lower bound on the group.
    """

    draws: int
    selected: int
    among: int
    selection: Selection = Selection.POISSON

    @property
    def probability(self) -> float:
        return self.selected / self.among

    @property
    def always(self) -> bool:
        """Whether every record takes part in every draw."""
        return self.selected >= self.among


ALL_ONCE: Final = Participation(1, 1, 1)
"""Every record takes part, once."""


SIGNED: Final = 2.0
"""The `QueryShape.replacement_factor` of vectors that may point either way: from one end to the
other."""

COUNTED: Final = math.sqrt(2.0)
"""The `QueryShape.replacement_factor` of counts, of histograms and of products v v^T: no two
records add vectors of which the inner product is below 0, so a change is no longer than a removal
and an addition at a right angle."""


@dataclass(frozen=True)
class QueryShape:
    """A sum that a method may ask for: one line of its outline.

    A record belongs to one of ``groups``, and adds to each row of that group in which it takes
    part a vector of ``width`` numbers whose l2 norm is at most ``l2_norm_bound``. Every record
    takes part once, unless records are drawn: then ``draws`` has an entry for each group. ``reads``
    says in words what is added, and ``statistic`` which kind of statistic does it. ``share`` is
    this line's part of the budget, in parts of all the outline's shares; a line that is asked for
    several times has an even part of it each time. ``replacement_factor`` is the largest change
    when a record is replaced, over the norm bound: `SIGNED`, or `COUNTED` where no two records add
    vectors that point away from each other. It is no less, since a record may
    leave one group for another. The noisy sums are handed on over ``divisor``.

    Where the unit of privacy is a person with several records, ``per_person`` is the most of them
    that count, and all that is said of one record's part is true of theirs together: see
    `of_persons`.
    """

    name: str
    reads: str
    statistic: str
    width: int
    groups: int = 1
    l2_norm_bound: float = 1.0
    share: float = 1.0
    repeats: int = 1
    replacement_factor: float = SIGNED
    divisor: float = 1.0
    draws: tuple[Participation, ...] = ()
    per_person: int = 1

    def __post_init__(self) -> None:
        if self.draws and len(self.draws) != self.groups:
            raise ValueError("draws are said of each group, or of none")
        if min(self.width, self.groups, self.repeats, self.per_person) < 1:
            raise ValueError(f"the sum {self.name!r} is of nothing: {self.groups} x {self.width}")
        for part in ("share", "l2_norm_bound", "replacement_factor", "divisor"):
            if not 1e-100 < getattr(self, part) < 1e100:
                raise InputError(
                    f"the {part} of the sum {self.name!r}",
                    "must be a positive number",
                    value=getattr(self, part),
                    fix="correct it in the method's outline",
                )

    def of_persons(self, records: int) -> QueryShape:
        """This sum where a person has so many records at most: what they add together is no longer
        than all of their bounds end to end, and moves no further when the person is replaced
        (docs/theory/proofs/persons.md). Nothing else depends on how many there are."""
        return replace(self, l2_norm_bound=records * self.l2_norm_bound, per_person=records)

    @property
    def participation(self) -> tuple[Participation, ...]:
        """How often a record takes part, for each group."""
        return self.draws or (ALL_ONCE,) * self.groups

    @property
    def rows(self) -> int:
        return sum(group.draws for group in self.participation)

    @property
    def drawn(self) -> bool:
        """Whether records are drawn, rather than each of them added once. What is said of the draws
        decides, not how many records there turn out to be."""
        return bool(self.draws)

    @property
    def poisson(self) -> bool:
        """Whether no group is drawn in a fixed size."""
        return all(group.selection is Selection.POISSON for group in self.participation)

    @property
    def always(self) -> bool:
        """Whether nothing is left to chance: every record takes part in every row of its group."""
        return self.poisson and all(group.always for group in self.participation)

    def moves(self, relation: Relation) -> float:
        """How far neighbours move the sum, over what one record adds. What one record adds to a
        drawn row is all that is said of it: how likely it is there decides the rest."""
        return 1.0 if self.drawn else relation.moves(self.replacement_factor)

    @property
    def names(self) -> tuple[str, ...]:
        """What the sum is called, each time that it is asked for."""
        if self.repeats == 1:
            return (self.name,)
        return tuple(f"{self.name} {turn}" for turn in range(1, self.repeats + 1))
