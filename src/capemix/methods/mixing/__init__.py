"""DP-CDA: class-wise random mixtures (Saha, Tonoy, Imtiaz 2024), as sums asked for + a
post-processing from noisy sums to rows.

A mixture of class k is (1/l) times the sum of the class-k rows that were drawn. The labels of a
class-k mixture are k before any row is read, so by default they are released as they are; with
``label_noise`` the one-hot label is mixed and noised along with the row, as the paper has it.

DP-Mix (Lee, Kim, Lee, Suh, Ramchandran 2019, "Synthesizing Differentially Private Datasets using
Random Mixing") is the same with one pool of all records: a mixture averages rows of any class and
their one-hot labels, so a record takes part in all T draws, at rate l/N, and the label that is
released is the largest entry of the noisy mixed label.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from capemix.accounting import mint
from capemix.errors import InputError, member
from capemix.facts import CLASS_SIZES, CLIP_NORM, MOST, Facts
from capemix.methods import method
from capemix.methods.base import Method, SyntheticRows
from capemix.methods.mixing import paper
from capemix.methods.mixing.redraw import check_redraw, redrawn_rows
from capemix.methods.mixing.tuning import check_tune, tuned
from capemix.methods.shares import COLUMNS
from capemix.methods.told import listed, more_than_noise
from capemix.queries import Participation, QueryShape, Relation, Selection
from capemix.sums.rows import (
    LATTICE_STEP,
    ClippedRows,
    ZScoredRows,
    denormalise_rows,
    replaced_rows,
)
from capemix.sums.statistic import RowStatistic
from capemix.sums.steps import Coverage, DeclaredMap, PublicMap, SiteZScore, Step

if TYPE_CHECKING:
    from capemix.collector import Collector
    from capemix.plan import Plan

MIXTURES: Final = "mixtures"

SIZES_SHARE: Final = 0.01
"""Of the budget, where class sizes are measured."""

COLUMNS_PART: Final = 0.3
"""Of what other methods spend on ranges, scales and the clip norm."""

_LIKELY: Final = 100
"""Mixtures that a class is taken to have records for until its size is measured."""


class Pool(StrEnum):
    """Which records are mixed with each other."""

    CLASS = "class"  # those of one class: DP-CDA
    ALL = "all"  # any: DP-Mix


class Accountant(StrEnum):
    SOUND = "sound"
    PAPER = "paper"


@method
@dataclass(frozen=True)
class Mixing(Method):
    """``samples`` mixtures over all classes (or of each, where they are listed), of ``mixture``
    rows each (in expectation, if Poisson).

    With ``redraw`` so many rows are drawn anew from what the mixtures say of each class; with
    ``tune`` the number of mixtures and their size are chosen for that by the noise they will have.
    """

    summary: ClassVar[str] = "Noisy averages of random rows of a class (DP-CDA, DP-Mix)."
    kind: Literal["mixing"] = "mixing"
    samples: int | tuple[int, ...] = field(
        default=1000, metadata={"help": "Synthetic rows, over all classes."}
    )
    mixture: int = field(default=16, metadata={"help": "Rows mixed into one synthetic row."})
    clip: float | None = field(
        default=None,
        metadata={
            "help": "The l2 norm to which rows are clipped, after the map [default: half of"
            " sqrt(features) with a declared range, measured without]."
        },
    )
    redraw: int | None = field(
        default=None,
        metadata={
            "help": "Rows to draw anew from what the mixtures say of each class, freed of their"
            " noise [default: release the mixtures]."
        },
    )
    tune: bool = field(
        default=False,
        metadata={
            "help": "Choose samples and mixture for redraw by the noise they will have, from public"
            " numbers alone."
        },
    )
    pool: Pool = field(
        default=Pool.CLASS, metadata={"help": "Mix records of one class, or of all (DP-Mix)."}
    )
    label_noise: bool = field(
        default=False, metadata={"help": "Mix and noise one-hot labels, as the paper does."}
    )
    selection: Selection = field(
        default=Selection.POISSON, metadata={"help": "How rows are drawn.", "group": "paper"}
    )
    accountant: Accountant = field(
        default=Accountant.SOUND,
        metadata={"help": "What is promised, or Theorem 1 as published.", "group": "paper"},
    )
    printed_theorem: bool = field(
        default=False,
        metadata={"help": "Theorem 1 with B(ceil(j/2)) as printed.", "group": "paper"},
    )

    def __post_init__(self) -> None:
        for name, kind in (("pool", Pool), ("selection", Selection), ("accountant", Accountant)):
            object.__setattr__(self, name, member(kind, getattr(self, name), name))
        samples = self.samples if isinstance(self.samples, tuple) else (self.samples,)
        whole = (self.mixture, *samples, *(() if self.redraw is None else (self.redraw,)))
        if any(type(number) is not int or not 0 <= number <= MOST for number in whole):
            raise InputError(
                "mixture, samples and redraw",
                f"must be whole numbers up to {MOST}",
                value=f"{self.mixture}, {samples[0]}",
                fix="leave out fractions",
            )
        if self.mixture < 1:
            raise InputError("mixture", "must be at least 1", value=self.mixture, fix="raise it")
        if sum(samples) < 1:
            raise InputError("samples", "must be at least 1", value=sum(samples), fix="raise it")
        if self.clip is not None and not 1e-100 < self.clip < 1e100:
            raise InputError(
                "clip", "must be a positive number", value=self.clip, fix="give the norm bound"
            )
        if self.pool is Pool.ALL and not self.label_noise:
            raise InputError(
                "label_noise",
                "cannot be left out when classes are mixed: the mixed label tells of the records",
                fix="ask for it, or mix by class",
            )
        if self.printed_theorem and self.accountant is Accountant.SOUND:
            raise InputError(
                "printed_theorem",
                "has no meaning for the sound accountant",
                fix="leave it out, or use the paper's accountant",
            )
        if self.tune:
            check_tune(self)

    @classmethod
    def usual(cls, **config: Any) -> Mixing:
        from capemix.methods.mixing.planning import usual_mixing

        return usual_mixing(**config)

    # -- public numbers ------------------------------------------------------------------------

    @property
    def usual_relation(self) -> Relation:
        fixed = self.selection is Selection.FIXED
        return Relation.REPLACE_ONE if fixed or self.claimed else Relation.ADD_REMOVE

    @property
    def claimed(self) -> bool:
        return self.accountant is Accountant.PAPER

    def measures(self, facts: Facts) -> tuple[str, ...]:
        return facts.undeclared(sizes=True, clip=self.clip is None)

    def pools(self, plan: Plan) -> int:
        """How many groups of records are mixed apart: the classes, or one of all."""
        return 1 if self.pool is Pool.ALL else self._classes(plan.known)

    def _classes(self, facts: Facts) -> int:
        return 2 if facts.classes is None else len(facts.classes)  # until they are found

    def sites_averaged(self, plan: Plan) -> int:
        """1 when the sites' shares add up to a mixture, and S when each of S sites mixes rows of
        its own and the average is released: then a site's class has a size of n_k / S."""
        return plan.federation.sites if plan.federation.averaged else 1

    def class_sizes(self, plan: Plan) -> tuple[int, ...]:
        """Declared, or noisy and large enough for a mixture; likely ones until then."""
        facts, averaged = plan.known, self.sites_averaged(plan)
        if facts.class_sizes is None:
            return (_LIKELY * self.mixture * averaged,) * self._classes(facts)
        if plan.facts.class_sizes is not None:
            return facts.class_sizes
        least = self._least_size(plan)
        return tuple(max(size, least) for size in facts.class_sizes)

    def _least_size(self, plan: Plan) -> int:
        """Of a class that mixtures are made of; if all classes are mixed, of their average."""
        least = self.mixture * self.sites_averaged(plan)
        return math.ceil(least / self._classes(plan.known)) if self.pool is Pool.ALL else least

    def pool_sizes(self, plan: Plan) -> tuple[int, ...]:
        """The sizes from which one site's (or the joint) draw selects."""
        sizes = self.class_sizes(plan)
        pools = sizes if self.pool is Pool.CLASS else (sum(sizes),)
        return tuple(size // self.sites_averaged(plan) for size in pools)

    def draws(self, plan: Plan) -> tuple[int, ...]:
        """Mixtures of each pool."""
        if isinstance(self.samples, tuple):
            return self.samples
        return spread(self.samples, self.pools(plan))

    def clip_norm(self, facts: Facts) -> float:
        if self.clip is not None:
            return self.clip
        if facts.clip_norm is not None:
            return facts.clip_norm
        declared = getattr(facts.normalise, "low", None) is not None
        return 0.5 * math.sqrt(facts.width) if declared else 1.0

    def row_clip(self, plan: Plan) -> float | None:
        return self.clip_norm(plan.known)

    def row_bound(self, plan: Plan) -> float:
        """What one record adds to a sum: its clipped row, and its one-hot label if noised."""
        clip = self.clip_norm(plan.known)
        return math.hypot(clip, 1.0) if self.label_noise else clip

    def divisor(self, plan: Plan) -> int:
        """From sums to mixtures: l, times S where S sites' mixtures are averaged."""
        return self.mixture * self.sites_averaged(plan)

    # -- the sum that is asked for -------------------------------------------------------------

    def check(self, plan: Plan) -> None:
        if plan.facts.table is not None:
            raise InputError(
                "schema",
                "needs a method that restores categories",
                value=self.kind,
                fix="use tables",
            )
        draws, pools = self.draws(plan), self.pools(plan)
        if len(draws) != pools or not sum(draws):
            raise InputError(
                "samples",
                "must give every class a number of mixtures",
                value=len(draws),
                fix=f"there are {pools} classes",
            )
        if min(draws) < 1 and not isinstance(self.samples, tuple):
            raise InputError(
                "samples",
                f"must be at least one mixture for each of the {pools} classes",
                value=self.samples,
                fix="raise it",
            )
        smallest = min(self.pool_sizes(plan))
        if self.mixture > smallest:
            where = " at a site" if self.sites_averaged(plan) > 1 else ""
            what = "the smallest class" if self.pool is Pool.CLASS else "the records there are"
            raise InputError(
                "mixture",
                f"is larger than {what}{where} ({smallest})",
                value=self.mixture,
                fix="lower it, or declare larger class sizes if they are true",
            )
        if self.redraw is not None:
            check_redraw(self, plan)
        if self.tune:
            check_tune(self, plan)
        if self.selection is Selection.FIXED:
            paper.check_fixed(self, plan)

    def statistic(self, plan: Plan) -> RowStatistic:
        facts = plan.known
        if facts.normalise is None:
            raise ValueError("the columns' ranges are not known yet")
        declared = isinstance(facts.normalise, DeclaredMap)
        rows = ClippedRows(
            facts.width,
            self._classes(facts),
            facts.normalise if isinstance(facts.normalise, DeclaredMap) else PublicMap(),
            self.clip_norm(facts),
            label_columns=self.label_noise,
            one_pool=self.pool is Pool.ALL,
        )
        return rows if declared else ZScoredRows(rows)

    def opening_share(self, name: str, columns: int) -> float:
        """Class sizes decide how often a record is drawn, and no more: one that is off makes its
        class's mixtures as much too long or too short, all alike. Little of the budget will do.
        Columns have less than elsewhere: what is measured before a drawn sum is paid for by an
        envelope, which on small tables wastes the more the more that costs."""
        if name == CLASS_SIZES:
            return SIZES_SHARE
        part = COLUMNS_PART if name in COLUMNS else 1.0
        return part * super().opening_share(name, columns)

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        facts = plan.known
        labels = self._classes(facts) if self.label_noise else 0
        line = QueryShape(
            name=MIXTURES,
            reads="rows, drawn and clipped",
            statistic="z-scored rows" if isinstance(facts.normalise, SiteZScore) else "rows",
            width=facts.width + labels,
            groups=self.pools(plan),
            l2_norm_bound=self.row_bound(plan),
            replacement_factor=replaced_rows(self.clip_norm(facts), labelled=self.label_noise),
            divisor=self.divisor(plan),
            draws=tuple(
                Participation(draws, self.mixture, size, self.selection)
                for draws, size in zip(self.draws(plan), self.pool_sizes(plan), strict=True)
            ),
        )
        return (line,)

    def settled(self, plan: Plan) -> Mixing:
        if not self.tune or plan.known.class_sizes is None:
            return self
        draws, mixture = tuned(self, plan)
        return replace(self, samples=draws * self.pools(plan), mixture=mixture, tune=False)

    def noise(self, plan: Plan) -> float:
        """TAU: the deviation of the noise on a released mixture."""
        return plan.query(MIXTURES).deviation

    # -- rows ----------------------------------------------------------------------------------

    def rows_made(self, plan: Plan) -> int:
        return max(sum(self.draws(plan)), self.redraw or 0)

    def bytes_a_number(self, plan: Plan) -> int:  # noqa: ARG002
        return 16 if self.redraw is None else 40

    def release(self, sums: Collector) -> SyntheticRows:
        plan = sums.plan
        sums.warn(*self._raised(plan))
        means: npt.NDArray[np.floating[Any]] = sums.ask(MIXTURES, self.statistic(plan))
        width, tau = plan.known.width, sums.noise_on(MIXTURES)
        rows = means[:, :width]
        if not more_than_noise(rows, self.draws(plan), tau):
            sums.warn(
                f"mixtures: they cannot be told from noise alone, of deviation {tau:.3g} on each"
                f" number of a row whose norm is at most {self.clip_norm(plan.known):.3g}"
            )
        if self.redraw is not None:
            return SyntheticRows(*redrawn_rows(self, plan, rows))
        if isinstance(plan.known.normalise, DeclaredMap):
            denormalise_rows(rows, plan.known.normalise)
        if not self.label_noise:
            labels = np.repeat(np.arange(self.pools(plan), dtype=np.int64), self.draws(plan))
            return SyntheticRows(rows, labels)
        mixed = means[:, width:]
        every = mixed if self.pool is Pool.ALL else None
        return SyntheticRows(rows, mixed.argmax(axis=1), mixed_labels=every)

    def _raised(self, plan: Plan) -> tuple[str, ...]:
        """What is said where a class, as counted with noise, is smaller than a mixture."""
        facts, least = plan.known, self._least_size(plan)
        if plan.facts.class_sizes is not None or facts.class_sizes is None:
            return ()
        sizes = zip(facts.listed, facts.class_sizes, strict=True)
        small = [name for name, size in sizes if size < least]
        if not small:
            return ()
        return (
            f"class sizes: {len(small)} of {len(facts.listed)} classes have fewer records, as"
            f" counted with noise, than the {least} that a mixture takes: {listed(small)}; every"
            " record of theirs is in every mixture, and the mixtures are nearer to 0 than the rows",
        )

    # -- what is promised ----------------------------------------------------------------------

    def assumptions(self, plan: Plan) -> tuple[str, ...]:  # noqa: ARG002
        if self.selection is not Selection.FIXED:
            return ()
        by_class = self.pool is Pool.CLASS
        return (mint.FIXED_SIZE_ASSUMPTION if by_class else mint.FIXED_POOL_ASSUMPTION,)

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        facts = plan.known
        says = f"l2 norm at most {self.clip_norm(facts):g}"
        clip = Step("clip", Coverage.PER_ROW, says)
        if any(line.name == CLIP_NORM for line in plan.opening):
            clip = Step("clip", Coverage.PAID, f"{says}, a noisy quantile")
        lattice = (LATTICE_STEP,) if plan.law != "gaussian" else ()
        return (clip, *lattice)

    def claim(self, plan: Plan) -> mint.PublishedClaim | None:
        return paper.claim(self, plan) if self.claimed else None


def spread(total: int, parts: int) -> tuple[int, ...]:
    """``total`` over ``parts`` as evenly as whole numbers allow."""
    each, rest = divmod(total, parts)
    return tuple(each + (i < rest) for i in range(parts))
