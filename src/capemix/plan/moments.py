"""A plan of rounds of moments: what `synthesizers.moments` asks of the rows, frozen before any."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from capemix.accounting import mint
from capemix.accounting.cost import Cost
from capemix.data.schema import Table
from capemix.errors import InputError
from capemix.federation import Federation, MaskKind, Scheme
from capemix.guarantee import Guarantee
from capemix.plan.making import make_plan
from capemix.plan.plan import BudgetLine, steps_as_json
from capemix.plan.rounds import Round, Rounds, plan_rounds
from capemix.prepare.moments import NORMS
from capemix.prepare.rows import LATTICE_STEP
from capemix.prepare.steps import (
    ColumnMap,
    Coverage,
    PublicMap,
    SiteZScore,
    Step,
    normalise_as_json,
    normalise_from_json,
)
from capemix.queries import Relation
from capemix.synthesizers.mixing import MOST
from capemix.synthesizers.names import SynthesizerName

MOST_RANK: Final = 64
"""Directions of a class's own spread: more would not stand out of the noise of any sensible data,
and what a record adds grows with their square."""

MOST_COLUMNS: Final = 250
"""A record adds as many numbers as there are pairs of columns."""

MOST_CLASSES: Final = 1000
"""Each has a spread of its own: beyond, what a site adds up and sends would be large."""

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

_CODED: Final = Step(
    "categories", Coverage.PER_ROW, "a 1 at the declared value; one off the list counts as missing"
)


@dataclass(frozen=True)
class MomentsPlan:
    """What is asked of the rows. ``samples`` rows are drawn from the noisy moments; None: as many
    as the sizes say there are. ``multiplier`` is all rounds' noise as one; None until calibrated.
    ``rank`` is that of the classes' own spreads, None until it is chosen: see `rounds`. ``table``
    says which of the columns are coded, and how.
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
    table: Table | None = None
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
        whole = (self.width, *(self.class_sizes or ()))
        whole += tuple(number for number in (self.samples, self.rank) if number is not None)
        if any(type(number) is not int or not 0 <= number <= MOST for number in whole):
            raise InputError(
                "columns, --samples and --class-sizes",
                f"must be whole numbers up to {MOST}",
                value=self.width,
                fix="leave out fractions",
            )
        if self.width < 1 or (self.rank or 0) > self.most_rank:
            raise InputError(
                "columns",
                "must be at least one, and no fewer than the rank",
                value=self.width,
                fix="choose columns",
            )
        if isinstance(self.normalise, ColumnMap) and len(self.normalise.shift) != self.width:
            raise InputError(
                "column map",
                f"must have the {self.width} columns",
                value=len(self.normalise.shift),
                fix="give one for each column",
            )
        noise = self.multiplier
        if noise is not None and not (noise == 0 or 1e-100 < noise < 1e100):
            raise InputError("the plan's noise", "must be 0 or more", value=noise, fix="calibrate")
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
        if self.table is not None and (self.table.width, self.table.classes) != (
            self.width,
            self.classes,
        ):
            raise InputError(
                "schema", "does not fit the rows", value=self.width, fix="code the rows by it"
            )
        if self.width > MOST_COLUMNS:
            coded = self.table is not None
            raise InputError(
                "--schema" if coded else "--synthesizer",
                f"moments are for at most {MOST_COLUMNS} columns"
                + (", categories counted one by one" if coded else ""),
                value=self.width,
                fix="leave out columns or categories" if coded else "use --synthesizer mixing",
            )
        if len(self.classes) > MOST_CLASSES:
            raise InputError(
                "--synthesizer",
                f"moments are for at most {MOST_CLASSES} classes",
                value=len(self.classes),
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
    def before_rank(self) -> tuple[str, ...]:
        """Rounds that are the same whichever rank is chosen, so that it may be chosen by them."""
        return () if self.class_sizes is not None else (SIZES,)

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
        if federation.peers is not None:
            assumptions += (mint.GRAPH_ASSUMPTION,)
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
        coded = () if self.table is None else (_CODED,)
        return (*coded, normalise, clip, LATTICE_STEP, Step(SIZES, sizes, says))

    def as_json(self) -> dict[str, Any]:
        """Everything that was asked, for the manifest: declared and paid values only."""
        federation = self.federation
        return {
            "synthesizer": str(SynthesizerName.MOMENTS),
            "classes": list(self.classes),
            "class_sizes": None if self.class_sizes is None else list(self.class_sizes),
            "width": self.width,
            "samples": self.samples,
            "table": None if self.table is None else self.table.as_json(),
            "clip": None,
            "normalise": normalise_as_json(self.normalise),
            "scheme": str(federation.scheme),
            "sites": federation.sites,
            "colluding": federation.colluding,
            "dropouts": federation.dropouts,
            "masks": str(federation.masks) if federation.masked else None,
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


def make_moments_plan(
    *,
    width: int,
    classes: tuple[str | int, ...],
    normalise: PublicMap | ColumnMap | None = None,
    samples: int | None = None,
    class_sizes: tuple[int, ...] | None = None,
    table: Table | None = None,
    delta: float = 1e-5,
    relation: Relation | str | None = None,
    **who: Any,
) -> MomentsPlan:
    """A plan not yet calibrated; ``who`` takes part by the rules of `make_plan`."""
    sites = who.get("sites", 1)
    one = make_plan(
        width=1,
        class_sizes=(max(sites, 1) if type(sites) is int else 1,),  # one at every site
        samples=1,
        mixture=1,
        delta=delta,
        relation=relation,
        **who,
    )
    return MomentsPlan(
        width=width,
        classes=classes,
        normalise=PublicMap() if normalise is None else normalise,
        federation=one.federation,
        relation=one.relation,
        delta=delta,
        samples=samples,
        class_sizes=class_sizes,
        table=table,
    )


def moments_from_json(found: Any) -> MomentsPlan:
    """The plan that `MomentsPlan.as_json` wrote, where nothing was looked at before. Anything that
    does not come back the same is refused."""
    try:
        normalise, sizes = normalise_from_json(found["normalise"]), found["class_sizes"]
        if isinstance(normalise, SiteZScore):
            raise TypeError("normalise")
        plan = make_moments_plan(
            width=found["width"],
            classes=tuple(found["classes"]),
            normalise=normalise,
            samples=found["samples"],
            class_sizes=None if sizes is None else tuple(sizes),
            table=None if found["table"] is None else Table.from_json(found["table"]),
            **{name: found[name] for name in _WHO},
        )
        plan = replace(plan, multiplier=found["noise"], rank=found["rank"])
        same = plan.as_json() == found
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        same = False
    if not same:
        raise InputError(
            "the plan", "cannot be read back as it was written", fix="propose it again"
        )
    return plan


_WHO: Final = (
    *("scheme", "sites", "colluding", "dropouts", "masks", "peers"),
    *("relation", "delta"),
)
