"""The primitive: a private sum over records of bounded vectors.

Accounting, noise and masks speak of sum queries alone. What the sums are *for* (mixtures, counts,
moments) is known only to the synthesizer that asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Relation(StrEnum):
    """Which two datasets count as neighbours."""

    ADD_REMOVE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"


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


@dataclass(frozen=True)
class SumQuery:
    """One private sum: ``sum over groups of draws`` rows, each a vector of ``width`` numbers.

    ``l2_norm_bound`` bounds what one record adds to one row, in the query's own units;
    ``lattice_norm_bound`` is the same bound in whole lattice units (None in real arithmetic), so
    a unit has ``lattice_scale`` lattice units; ``share`` is the part of the budget that pays.
    """

    name: str
    width: int
    l2_norm_bound: float
    lattice_norm_bound: int | None
    share: float
    participation: tuple[Participation, ...]

    @property
    def rows(self) -> int:
        return sum(group.draws for group in self.participation)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.rows, self.width)

    @property
    def lattice_scale(self) -> float:
        """Lattice units per unit; 1 in real arithmetic."""
        if self.lattice_norm_bound is None:
            return 1.0
        return self.lattice_norm_bound / self.l2_norm_bound
