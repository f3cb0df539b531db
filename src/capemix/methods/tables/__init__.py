"""Tables whose columns, and pairs of columns, are distributed as the records' are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from capemix.errors import InputError
from capemix.kernels.machine import products_on_one_thread
from capemix.methods import method
from capemix.methods.base import Choice, Method, SyntheticRows
from capemix.methods.class_gaussian import (
    CODED,
    MOST_CLASSES,
    MOST_COLUMNS,
    MOST_RANK,
    check_classes,
    check_joint,
    check_samples,
    clipped_steps,
)
from capemix.methods.projected import ProjectedSums
from capemix.methods.tables.program import (
    choice_for,
    choices_of,
    is_possible,
    lines_of,
    message_bytes_of,
)
from capemix.methods.tables.release import rows_by_gaussians, rows_by_pairs
from capemix.statistics.projection import MOST_KEPT
from capemix.sums.steps import DeclaredMap, Step

if TYPE_CHECKING:
    from capemix.collector import Collector
    from capemix.facts import Facts
    from capemix.plan import Plan
    from capemix.queries import QueryShape


@method
@dataclass(frozen=True)
class Tables(Method):
    """``samples`` rows are drawn; None: as many as there are records, by their noisy count."""

    summary: ClassVar[str] = "Columns and their pairs as they are counted, for tables."
    kind: Literal["tables"] = "tables"
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
        how = facts.normalise
        if how is not None and (not isinstance(how, DeclaredMap) or how.low is None):
            raise InputError(
                "public_range",
                "must be declared for tables, whose cells are laid in it",
                fix="write LO,HI, or use class-gaussian",
            )
        if facts.width > MOST_COLUMNS:
            raise InputError(
                "schema" if facts.table is not None else "method",
                f"tables is for at most {MOST_COLUMNS} columns, categories counted one by one",
                value=facts.width,
                fix="leave out columns or categories, or use image-clusters for images",
            )
        check_classes(plan, MOST_CLASSES, self.kind)
        if plan.chosen is not None and not is_possible(plan.chosen, facts, self.most_rank(facts)):
            raise InputError(
                "chosen", "is not possible", value=plan.chosen, fix="propose the plan again"
            )

    def most_rank(self, facts: Facts) -> int:
        return min(facts.width, MOST_RANK)

    def choices(self, plan: Plan) -> tuple[Choice | None, ...]:
        """All may be chosen after the class sizes are known: every choice has the same total noise,
        fixed in advance, and the same lines up to there (see `ClassGaussian.choices`)."""
        return choices_of(plan.known, self.most_rank(plan.known))

    def foreseen(self, plan: Plan) -> Choice | None:
        sizes, known = plan.facts.class_sizes, plan.facts.normalise is not None
        return self.chosen(plan, float(sum(sizes))) if sizes is not None and known else None

    def chosen(self, plan: Plan, records: float) -> Choice:
        """For so many records, as declared or counted with noise."""
        most = self.most_rank(plan.known)
        return choice_for(plan.known, plan.record_noise, records, most, plan.relation)

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        likely = choices_of(plan.known, self.most_rank(plan.known))[0]
        return lines_of(plan, plan.chosen or likely)

    def release(self, sums: Collector) -> SyntheticRows:
        with products_on_one_thread():  # the same bits on any number of cores
            taking = ProjectedSums(sums)
            sizes = taking.sizes()
            chosen = self.chosen(sums.plan, float(sizes.sum()))
            sums.choose(**chosen)
            if chosen["pairs"]:
                return SyntheticRows(*rows_by_pairs(sums, sizes, self.samples))
            return SyntheticRows(*rows_by_gaussians(taking, sizes, self.samples))

    def with_rows(self, rows: int) -> Self:
        return replace(self, samples=rows)

    def rows_made(self, plan: Plan) -> int:
        return sum(plan.known.class_sizes or ()) if self.samples is None else self.samples

    def kept_bytes(self, plan: Plan) -> int:  # noqa: ARG002
        return MOST_KEPT  # rows, turned

    def message_bytes(self, plan: Plan) -> int:
        return message_bytes_of(plan.known)

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        coded = () if plan.facts.table is None else (CODED,)
        steps = clipped_steps(plan, "the noisy median of the norms")
        if (plan.chosen or {}).get("pairs"):  # a record adds ones: nothing is cut to a length
            steps = tuple(step for step in steps if step.name != "clip")
        return (*coded, *steps)
