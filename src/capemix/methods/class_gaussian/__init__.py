"""A Gaussian for each class, for tables: how many records there are, where each class lies and how
it is spread, from private sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self

from capemix.errors import InputError
from capemix.facts import CLASS_SIZES, MOST
from capemix.kernels.machine import products_on_one_thread
from capemix.methods import method
from capemix.methods.base import Choice, Method, SyntheticRows
from capemix.methods.class_gaussian.draw import drawn_rows
from capemix.methods.class_gaussian.estimate import (
    CENTRE,
    CENTRES,
    REFINED,
    SPREAD,
    SPREADS,
    estimate_class_gaussians,
)
from capemix.methods.gaussians import tuned_rank
from capemix.methods.projected import ProjectedSums, line
from capemix.methods.shares import (
    OCTAVES,
    exactly,
    gaussian_shares,
    octave_of,
)
from capemix.queries import COUNTED, SIGNED, QueryShape, Relation
from capemix.statistics.projection import MOST_KEPT
from capemix.sums.rows import LATTICE_STEP
from capemix.sums.steps import Coverage, SiteZScore, Step

if TYPE_CHECKING:
    from capemix.collector import Collector
    from capemix.plan import Plan

MOST_COLUMNS: Final = 250
"""Of a table, whose records add as many numbers as there are pairs of columns."""

MOST_CLASSES: Final = 1000
"""Each has a spread of its own: beyond, what a site adds up and sends would be large."""

MOST_RANK: Final = 64
"""Directions of a class's own spread: more would not stand out of the noise of any sensible data,
and what a record adds grows with their square."""

_OWN: Final = 0.25
"""The part of the budget by which it is told how many directions of a class's own spread will stand
out of their noise."""

_LIKELY: Final = 10
"""The octave that is shown until records are counted: a few thousand of them, at epsilon 1."""

CODED: Final = Step(
    "schema",
    Coverage.PER_ROW,
    "each category becomes a 1 in a column of its own, and a value that is not listed counts as"
    " missing; a number is taken by its logarithm where that is declared",
)


@method
@dataclass(frozen=True)
class ClassGaussian(Method):
    """``samples`` rows are drawn; None: as many as there are records, by their noisy count."""

    summary: ClassVar[str] = "A Gaussian for each class, for tables of up to 250 columns."
    kind: Literal["class-gaussian"] = "class-gaussian"
    samples: int | None = field(
        default=None,
        metadata={
            "help": "Synthetic rows, over all classes [default: as many as there are records, by"
            " their noisy count]."
        },
    )

    def check(self, plan: Plan) -> None:
        facts = plan.known
        check_samples(self.samples, plan)
        check_joint(plan)
        if isinstance(facts.normalise, SiteZScore):
            raise InputError(
                "normalise", "must be a public map", value="site-zscore", fix="declare a range"
            )
        if facts.width > MOST_COLUMNS:
            coded = facts.table is not None
            raise InputError(
                "schema" if coded else "method",
                f"class-gaussian is for at most {MOST_COLUMNS} columns"
                + (", categories counted one by one" if coded else ""),
                value=facts.width,
                fix="leave out columns or categories"
                if coded
                else ("use mixing" if facts.image_shape is None else "use image-clusters"),
            )
        check_classes(plan, MOST_CLASSES, self.kind)
        chosen = plan.chosen or {"rank": 0, "octave": 0}
        rank, octave = (chosen.get(name, -1) for name in ("rank", "octave"))
        if len(chosen) != 2 or not 0 <= rank <= self.most_rank(plan):
            raise InputError("chosen rank", "is not possible", value=rank, fix="propose it again")
        if not 0 <= octave < OCTAVES:
            raise InputError(
                "chosen octave", "is not possible", value=octave, fix="propose it again"
            )

    def most_rank(self, plan: Plan) -> int:
        return min(plan.known.width, MOST_RANK)

    def choices(self, plan: Plan) -> tuple[Choice | None, ...]:
        """Both may be chosen after the class sizes are known: they have the same total noise, fixed
        in advance, and the same lines up to there, so that a filter covers the choice (Feldman,
        Zrnic 2021)."""
        return {"rank": 0, "octave": 0}, {"rank": self.most_rank(plan), "octave": OCTAVES - 1}

    def foreseen(self, plan: Plan) -> Choice | None:
        sizes = plan.facts.class_sizes
        return None if sizes is None else self.chosen(plan, float(sum(sizes)))

    def chosen(self, plan: Plan, records: float) -> Choice:
        """For so many records, as declared or counted with noise."""
        most = self.most_rank(plan)
        return rank_and_octave(records, plan.known.groups, most, plan.record_noise, plan.relation)

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        facts = plan.known
        chosen = plan.chosen or {"rank": self.most_rank(plan), "octave": _LIKELY}
        share = gaussian_shares(facts.width, facts.groups, chosen["octave"], chosen["rank"])
        sizes = QueryShape(
            CLASS_SIZES,
            facts.tells_class,
            "class counts",
            1,
            facts.groups,
            share=share.sizes,
            replacement_factor=COUNTED,
        )
        lines = exactly((sizes, *gaussian_lines(facts.width, facts.groups, chosen)))
        return lines[1:] if plan.opening or facts.class_sizes is not None else lines

    def release(self, sums: Collector) -> SyntheticRows:
        with products_on_one_thread():  # small ones, and the same bits on any number of cores
            taking = ProjectedSums(sums)
            sizes = taking.sizes()
            sums.choose(**self.chosen(sums.plan, float(sizes.sum())))
            found = estimate_class_gaussians(taking, sizes)
            return SyntheticRows(*drawn_rows(sums.plan.known, found, self.samples, sums.source()))

    def with_rows(self, rows: int) -> Self:
        return replace(self, samples=rows)

    def rows_made(self, plan: Plan) -> int:
        return sum(plan.known.class_sizes or ()) if self.samples is None else self.samples

    def kept_bytes(self, plan: Plan) -> int:
        images = plan.known.image_shape is not None  # which a proposal may ask to be set upright
        return (1 + images) * MOST_KEPT  # rows, turned

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        coded = () if plan.facts.table is None else (CODED,)
        return (*coded, *clipped_steps(plan, "the noisy median of the norms"))


def rank_and_octave(
    records: float, classes: int, most_rank: int, multiplier: float, relation: Relation
) -> Choice:
    """For so many records, as declared or counted with noise, under sums with noise of
    ``multiplier`` as one. A class's own spread is of products, and most of the others of means; a
    single class has no spread of its own beside that of all."""
    on_spread, on_mean = (relation.moves(factor) * multiplier for factor in (COUNTED, SIGNED))
    on_own = on_spread / math.sqrt(_OWN)
    rank = tuned_rank(records, classes, most_rank, on_own) if classes > 1 else 0
    return {"rank": rank, "octave": octave_of(records, on_mean)}


def gaussian_lines(width: int, classes: int, chosen: Choice) -> tuple[QueryShape, ...]:
    """What is asked for once class sizes are known."""
    rank = chosen["rank"]
    share = gaussian_shares(width, classes, chosen["octave"], rank)
    in_class, again = "rows by class, about the centre", "rows by class, about class centres"
    pairs = "pairs of columns, about class centres"
    asked = [
        (CENTRE, "rows", "moments", width, 1, share.centre),
        (CENTRES, in_class, "moments", width, classes, share.first),
        (REFINED, again, "moments", width, classes, share.again),
        (SPREAD, pairs, "spreads", width**2, 1, share.spread),
    ]
    if rank:
        says = "the same by class, in a few directions"
        asked.append((SPREADS, says, "spreads", rank**2, classes, share.own))
    return tuple(each for parts in asked for each in line(*parts, norms=share.norms))


def clipped_steps(plan: Plan, at: str) -> tuple[Step, ...]:
    """How facts, clipping and rounding are covered, where each sum finds its own norm."""
    clip = Step("clip", Coverage.PAID, f"at {at}, sum by sum")
    sizes: tuple[Step, ...] = ()
    if not plan.opening and plan.known.class_sizes is None:
        sizes = (Step(CLASS_SIZES, Coverage.PAID, "noisy counts"),)
    return (*sizes, clip, LATTICE_STEP)


def check_samples(samples: int | None, plan: Plan) -> None:
    if samples is None:
        return
    if type(samples) is not int or not 0 < samples <= MOST:
        raise InputError(
            "samples", "must be a whole number above 0", value=samples, fix="give 1000, say"
        )
    if samples < len(plan.facts.classes or ()):  # classes that are found may be left without rows
        raise InputError(
            "samples", "must be at least one row for each class", value=samples, fix="raise it"
        )


def check_joint(plan: Plan) -> None:
    if plan.federation.masked and plan.federation.averaged:
        raise InputError(
            "form", "must be joint", value=plan.federation.form, fix="leave it out, or mix rows"
        )


def check_classes(plan: Plan, most: int, name: str) -> None:
    if len(plan.known.classes or ()) > most:
        raise InputError(
            "method",
            f"{name} is for at most {most} classes",
            value=len(plan.known.classes or ()),
            fix="use mixing",
        )
