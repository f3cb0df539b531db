"""A plan of rounds of moments: what `synthesizers.moments` asks of the rows, frozen before any."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from capemix.accounting import mint
from capemix.accounting.cost import Cost
from capemix.errors import InputError
from capemix.federation import Federation, MaskKind, Scheme
from capemix.guarantee import Guarantee
from capemix.plan.plan import BudgetLine, steps_as_json
from capemix.plan.rounds import Round, Rounds, plan_rounds
from capemix.prepare.moments import NORMS
from capemix.prepare.rows import LATTICE_STEP
from capemix.prepare.steps import ColumnMap, Coverage, PublicMap, Step, normalise_as_json
from capemix.queries import Relation

MOST_RANK: Final = 64
"""Directions of a class's own spread: more would not stand out of the noise of any sensible data,
and what a record adds grows with their square."""

MOST_COLUMNS: Final = 250
"""A record adds as many numbers as there are pairs of columns."""

SIZES: Final = "class sizes"
CENTRE: Final = "centre"
CENTRES: Final = "class centres"
SPREAD: Final = "spread"
SPREADS: Final = "class spreads"
NORMS_OF: Final = "norms for the {}"

SHARES: Final = {SIZES: 0.02, CENTRE: 0.05, CENTRES: 0.63, SPREAD: 0.30}
"""Of the budget where all classes have one spread; a norm's histogram takes `NORM_SHARE` of each.
The centres take most: a class has fewer records than all, and rows of a wrong centre are worth
nothing. Set before any data were read, and the same for all."""

OWN_SHARES: Final = {SIZES: 0.02, CENTRE: 0.05, CENTRES: 0.48, SPREAD: 0.20, SPREADS: 0.25}
"""Where classes have spreads of their own."""

NORM_SHARE: Final = 0.05


@dataclass(frozen=True)
class MomentsPlan:
    """What is asked of the rows. ``samples`` rows are drawn from the noisy moments; None: as many
    as the sizes say there are. ``multiplier`` is all rounds' noise as one; None until calibrated.
    ``rank`` is that of the classes' own spreads, None until it is chosen: see `rounds`.
    """

    width: int
    classes: tuple[str | int, ...]
    normalise: PublicMap | ColumnMap
    federation: Federation
    relation: Relation
    delta: float
    samples: int | None = None
    class_sizes: tuple[int, ...] | None = None
    multiplier: float | None = None
    rank: int | None = None
    earlier: Guarantee | None = None
    looks: tuple[BudgetLine, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 < self.delta < 1.0:
            raise InputError(
                "--delta", "must be between 0 and 1", value=self.delta, fix="try 1e-5 or 1/records"
            )
        if not self.classes or len(set(self.classes)) != len(self.classes):
            raise InputError(
                "classes", "must be at least one, and distinct", fix="give each class once"
            )
        if self.class_sizes is not None and len(self.class_sizes) != len(self.classes):
            raise InputError(
                "--class-sizes",
                f"must be one for each of the {len(self.classes)} classes",
                value=len(self.class_sizes),
                fix="give as many sizes as classes",
            )
        if self.samples is not None and self.samples < len(self.classes):
            raise InputError(
                "--samples",
                "must be at least one row for each class",
                value=self.samples,
                fix="raise it",
            )
        if self.width > MOST_COLUMNS:
            raise InputError(
                "--synthesizer",
                f"moments are for at most {MOST_COLUMNS} columns",
                value=self.width,
                fix="use --synthesizer mixing",
            )
        if self.federation.averaged and self.federation.scheme is Scheme.CAPE:
            raise InputError(
                "--form",
                "must be joint for moments",
                value=self.federation.form,
                fix="leave it out",
            )

    # -- the rounds --------------------------------------------------------------------------

    @property
    def most_rank(self) -> int:
        return min(self.width, MOST_RANK)

    def rounds(self, rank: int) -> Rounds:
        """The rounds where each class's own spread is taken in ``rank`` directions; 0: not taken.

        The rank may be chosen after the class sizes are known: all choices have the same total
        noise, fixed in advance, and the same sizes' round, so that a filter covers the choice
        (Feldman, Zrnic 2021).
        """
        if self.multiplier is None:
            raise InputError(
                "the plan", "has no noise yet", fix="call plan.calibrate(epsilon=...) first"
            )
        asked = tuple(self._asked(rank))
        return Rounds(asked, self.federation, self.relation, self.delta, self.multiplier)

    def _asked(self, rank: int) -> list[Round]:
        d, classes = self.width, len(self.classes)
        shares = OWN_SHARES if rank else SHARES
        of = {
            SIZES: ("each record's label", 1, classes),
            CENTRE: ("rows", d, 1),
            CENTRES: ("rows by class, about the centre", d, classes),
            SPREAD: ("pairs of columns, about class centres", d * (d + 1) // 2, 1),
            SPREADS: ("the same by class, in a few directions", rank * (rank + 1) // 2, classes),
        }
        rounds = []
        for name, share in shares.items():
            reads, width, groups = of[name]
            if name == SIZES and self.class_sizes is not None:
                continue
            if name != SIZES:
                norms = NORMS_OF.format(name)
                rounds.append(
                    Round(norms, "each record's norm", len(NORMS), 1.0, share * NORM_SHARE)
                )
                share *= 1.0 - NORM_SHARE
            rounds.append(Round(name, reads, width, 1.0, share, groups))
        return rounds

    def calibrate(self, epsilon: float) -> MomentsPlan:
        """The plan with the least noise whose guarantee is at most ``epsilon``, whichever rank."""
        if math.isnan(epsilon) or epsilon <= 0:
            raise InputError(
                "--epsilon", "must be above 0", value=epsilon, fix="give a budget, or inf for none"
            )
        multiplier = max(
            plan_rounds(
                self._asked(rank),
                self.federation,
                epsilon=epsilon,
                delta=self.delta,
                relation=self.relation,
            ).multiplier
            for rank in (0, self.most_rank)
        )
        return replace(self, multiplier=multiplier)

    # -- accounting --------------------------------------------------------------------------

    def guarantee(self, *, seeded: bool = False, one_process: bool = False) -> Guarantee:
        """What a release of this plan promises, whichever rank is chosen."""
        federation = self.federation
        assumptions: tuple[str, ...] = ()
        if one_process and federation.sites > 1:
            assumptions = (mint.ONE_PROCESS,)
        elif federation.masked and federation.masks is MaskKind.RING and federation.sites > 1:
            assumptions = (mint.RING_ASSUMPTION,)
        worst = max((0, self.most_rank), key=lambda rank: self.rounds(rank).epsilon())
        return self.rounds(worst).guarantee(
            seeded=seeded, assumptions=assumptions, earlier=self.earlier
        )

    def budget(self) -> tuple[BudgetLine, ...]:
        """Every look at the rows, in order."""
        before = self.earlier.epsilon or 0.0 if self.earlier is not None else 0.0

        def after_looks(line: BudgetLine) -> BudgetLine:
            composed = line.epsilon_composed
            return replace(line, epsilon_composed=None if composed is None else composed + before)

        own = self.rounds(self._some_rank).lines(1.0 - self._looks_share)
        return (*self.looks, *map(after_looks, own))

    @property
    def _some_rank(self) -> int:
        return self.most_rank if self.rank is None else self.rank

    @property
    def _looks_share(self) -> float:
        return sum(line.share for line in self.looks)

    def cost(self, relation: Relation | None = None) -> Cost:
        """What a release of this plan takes from a budget, itself alone."""
        return self.rounds(self.most_rank).cost(relation)

    @property
    def noise(self) -> float | None:
        """All rounds' noise as one, over what a record adds."""
        return self.multiplier

    @property
    def noise_multiplier(self) -> float | None:
        return self.multiplier

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything that reads rows, and how it is covered."""
        looked = {line.line for line in self.looks}
        declared = self.class_sizes is not None and SIZES not in looked
        sizes, says = (Coverage.PUBLIC, "declared") if declared else (Coverage.PAID, "noisy counts")
        paid = "ranges" in looked
        normalise = (
            Step("normalise", Coverage.PAID, "each column by its noisy mean and scale, in a range")
            if paid
            else self.normalise.step
        )
        clip = Step("clip", Coverage.PAID, "at the noisy median of the norms, in every round")
        return (normalise, clip, LATTICE_STEP, Step(SIZES, sizes, says))

    def as_json(self) -> dict[str, Any]:
        """Everything that was asked, for the manifest: declared and paid values only."""
        federation = self.federation
        return {
            "synthesizer": "moments",
            "classes": list(self.classes),
            "class_sizes": None if self.class_sizes is None else list(self.class_sizes),
            "width": self.width,
            "samples": self.samples,
            "clip": None,
            "normalise": normalise_as_json(self.normalise),
            "scheme": str(federation.scheme),
            "sites": federation.sites,
            "colluding": federation.colluding,
            "dropouts": federation.dropouts,
            "peers": federation.peers,
            "relation": str(self.relation),
            "delta": self.delta,
            "noise": self.multiplier,
            "rank": self.rank,
            "queries": [
                {"name": one.name, "groups": one.groups, "width": one.width, "share": one.share}
                for one in self.rounds(self._some_rank).rounds
            ],
            "steps": steps_as_json(self.steps),
        }
