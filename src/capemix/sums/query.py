"""One private sum as it is carried out, and its noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from capemix.accounting import mint
from capemix.errors import InputError
from capemix.federation import Federation
from capemix.queries import Participation, QueryShape
from capemix.randomness.tables import MAX_SIGMA
from capemix.sums.rows import MAX_LATTICE_NORM
from capemix.sums.statistic import Statistic, kind_of, replacement_factor_of


class NoiseLaw(StrEnum):
    ROUNDED = "rounded"  # round(N(0, s^2)) at each site, in whole numbers
    GAUSSIAN = "gaussian"  # floating point


ARITHMETIC: Final = {
    NoiseLaw.ROUNDED: mint.ROUNDED,
    NoiseLaw.GAUSSIAN: mint.REAL,
}

_BLOCK_NUMBERS: Final = 1 << 20
"""Of a block. It is part of the format, not a performance setting: streams of randomness are
labelled by block, so changing it changes every seeded release."""

_BLOCK_LABEL: Final = "mixtures"
"""The word that starts a label; part of the format too. Which sum it is, the source says: each has
one of its own."""

_SIGMA_AIM: Final = 1024.0
"""A site's noise in lattice units: large, so that truncation is small beside it, and with a table
that still fits the cache."""


@dataclass(frozen=True)
class SumQuery:
    """One sum: its line of the outline, who takes part, and its noise.

    ``name`` is the line's, or one of its names where it is asked for several times.
    ``noise_multiplier`` is the deviation of the noise on the sum over all sites, over what one
    record can add, or all of one person's. ``statistic`` is what a record adds; None while the sum
    is only planned.
    """

    name: str
    line: QueryShape
    federation: Federation
    law: NoiseLaw
    noise_multiplier: float
    statistic: Statistic | None = None

    def of(self, statistic: Statistic) -> SumQuery:
        """This sum of a statistic, if it is one that the outline has room for."""
        line = self.line
        said = kind_of(statistic), statistic.groups, statistic.width
        bound = line.l2_norm_bound / line.per_person
        if said != (line.statistic, line.groups, line.width) or not (
            abs(statistic.l2_norm_bound - bound) <= 1e-12 * bound
        ):
            raise InputError(
                f"the sum {self.name!r}",
                f"must be of kind {line.statistic}, for {line.groups} groups of {line.width}"
                f" numbers with a norm bound of {bound:g}",
                value=f"{said[0]}, {said[1]}, {said[2]}, {statistic.l2_norm_bound:g}",
                fix="ask for what the outline says",
            )
        if replacement_factor_of(statistic) > line.replacement_factor:
            raise InputError(
                f"the sum {self.name!r}",
                "may change by more when a record is replaced than its outline says",
                value=replacement_factor_of(statistic),
                fix="say the statistic's own replacement_factor in the outline",
            )
        return replace(self, statistic=statistic)

    @property
    def planned(self) -> SumQuery:
        """This sum, whatever it is of."""
        return replace(self, statistic=None)

    @property
    def summed(self) -> Statistic:
        """What a record adds."""
        if self.statistic is None:
            raise ValueError(f"the sum {self.name!r} is only planned: nothing says what to add up")
        return self.statistic

    @property
    def participation(self) -> tuple[Participation, ...]:
        return self.line.participation

    @property
    def drawn(self) -> bool:
        return self.line.drawn

    @property
    def width(self) -> int:
        return self.line.width

    @property
    def l2_norm_bound(self) -> float:
        return self.line.l2_norm_bound

    @property
    def shape(self) -> tuple[int, int]:
        """Of the array of sums."""
        return (self.line.rows, self.line.width)

    # -- noise ---------------------------------------------------------------------------------

    @property
    def deviation(self) -> float:
        """Of the noise on each number that is handed on: of the sum over all sites, over the line's
        divisor, in the statistic's units."""
        return self.noise_multiplier * self.l2_norm_bound / self.line.divisor

    @property
    def site_multiplier(self) -> float:
        """One site's own noise over what one record, or person, can add."""
        return self.noise_multiplier * (1.0 / math.sqrt(self.federation.sites))

    @property
    def on_lattice(self) -> bool:
        return self.law is not NoiseLaw.GAUSSIAN

    @property
    def record_lattice(self) -> int | None:
        """The norm bound of one record's part in lattice units: fine enough that truncation is
        small beside the noise, coarse enough for 16-bit rows (where records are drawn, a person's
        are one) and a noise table that fits the cache. None in real arithmetic."""
        if not self.on_lattice:
            return None
        count = self.line.per_person
        fine = lattice_norm_bound(self.site_multiplier * count, self.width)
        return min(fine, MAX_LATTICE_NORM // count) if self.drawn else fine

    @property
    def lattice_norm_bound(self) -> int | None:
        """The line's norm bound in lattice units: that of all records of a person."""
        each = self.record_lattice
        return None if each is None else each * self.line.per_person

    @property
    def lattice_scale(self) -> float:
        """Lattice units per unit; 1 in real arithmetic."""
        bound = self.lattice_norm_bound
        return 1.0 if bound is None else bound / self.l2_norm_bound

    @property
    def site_deviation(self) -> float:
        """One site's own noise on its share: in lattice units, or in real ones off the lattice."""
        return self.site_multiplier * (self.lattice_norm_bound or self.l2_norm_bound)

    @property
    def ring_bits(self) -> int:
        """Wide enough that no sum wraps: 32, or 64 for very large draws and plain counts."""
        if any(group.always for group in self.participation):
            return 64  # every record takes part, however many there are
        most = max(group.selected for group in self.participation)
        averaged = self.federation.sites if self.federation.averaged else 1
        count = averaged * (most + 14 * math.sqrt(most) + 100)
        reach = count * (self.lattice_norm_bound or 1)
        reach += 13 * self.federation.sites * (self.site_deviation + 1)
        return 32 if reach < 2**31 else 64

    def noised(self) -> mint.NoisedSum:
        """The sum as it is carried out, for the accountant."""
        return mint.NoisedSum(
            query=self.line,
            view_multipliers={
                view: factor * self.site_multiplier
                for view, factor in self.federation.view_factors().items()
            },
            arithmetic=ARITHMETIC[self.law],
            site_sigma=self.site_deviation if self.on_lattice else None,
            summands=self.federation.adversary.honest,
            graph_failure=self.federation.graph_failure(),
        )


def lattice_norm_bound(multiplier: float, columns: int) -> int:
    """The norm bound of a row in lattice units, for noise of ``multiplier`` norm bounds."""
    if multiplier == 0.0:
        return MAX_LATTICE_NORM
    if multiplier > MAX_SIGMA:
        raise InputError(
            "epsilon",
            "asks for more noise than the lattice holds",
            value=f"{multiplier:.3g} times a row",
            fix="raise it; of mixtures, fewer samples need less",
        )
    fine = max(_SIGMA_AIM / multiplier, 32.0 * math.sqrt(columns))
    bound = max(1, math.floor(min(fine, MAX_LATTICE_NORM, MAX_SIGMA / multiplier)))
    return bound if bound * multiplier <= MAX_SIGMA else bound - 1  # by rounding alone


@dataclass(frozen=True)
class Block:
    """Rows [start, stop) of a sum, all of one group."""

    group: int
    index: int
    start: int
    stop: int

    @property
    def label(self) -> tuple[str, int]:
        return (_BLOCK_LABEL, self.index)


def blocks(query: SumQuery) -> Iterator[Block]:
    """A sum's rows in blocks that are summed, noised and masked one by one, in parallel."""
    length = max(1, _BLOCK_NUMBERS // query.width)
    index = first = 0
    for group, participation in enumerate(query.participation):
        last = first + participation.draws
        for start in range(first, last, length):
            yield Block(group, index, start, min(start + length, last))
            index += 1
        first = last
