"""What a method is: a frozen config, the sums that it may ask for, and a function from noisy sums
to rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from capemix.accounting.mint import PublishedClaim
from capemix.facts import Facts
from capemix.methods.shares import opening_share
from capemix.queries import QueryShape, Relation
from capemix.sums.steps import Step

if TYPE_CHECKING:
    from capemix.collector import Collector
    from capemix.plan import Plan

Choice = dict[str, int]
"""What a method chooses on the way, by name: a rank, say."""


@dataclass(frozen=True, eq=False)
class SyntheticRows:
    """What a method makes: rows in the data's own units (coded, where a schema codes them), and the
    place of each row's class in the list.

    ``soft_labels`` say how likely each class is, rows by classes. ``mixed_labels``, where records
    of all classes are mixed, are the noisy mixed one-hot labels.
    """

    features: npt.NDArray[np.floating[Any]]
    labels: npt.NDArray[np.int64]
    soft_labels: npt.NDArray[np.floating[Any]] | None = None
    mixed_labels: npt.NDArray[np.floating[Any]] | None = None

    def take(self, places: npt.NDArray[np.intp]) -> SyntheticRows:
        """The rows at these places, in this order."""
        soft, mixed = self.soft_labels, self.mixed_labels
        return SyntheticRows(
            self.features[places],
            self.labels[places],
            None if soft is None else soft[places],
            None if mixed is None else mixed[places],
        )


class Method(ABC):
    """A way from noisy sums to rows. A subclass is a frozen dataclass: its fields are its config,
    from which the command line makes options; ``kind``, whose type is a `Literal`, is its name.
    ``summary`` says in one line what it is for."""

    summary: ClassVar[str] = ""
    needs: ClassVar[str | None] = None
    """A package that is an extra of this one, and that every site needs for this method."""
    kind: str

    @classmethod
    def usual(cls, *, scheme: str, form: str, **config: Any) -> Self:  # noqa: ARG003
        """The config whose parts are ``config``, and what is not said as it goes with the scheme
        and its form."""
        return cls(**config)

    @abstractmethod
    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        """The sums that are asked for, in order, by public numbers alone: of ``plan.known`` and
        ``plan.chosen``. Where a fact is not measured yet, a likely one stands in."""

    @abstractmethod
    def release(self, sums: Collector) -> SyntheticRows:
        """Ask for the sums of the outline, and make rows of them. Nothing here sees a row."""

    def check(self, plan: Plan) -> None:  # noqa: B027
        """Refuse a plan that this method cannot carry out."""

    @property
    def usual_relation(self) -> Relation:
        """Which datasets count as neighbours, unless it is said."""
        return Relation.ADD_REMOVE

    @property
    def claimed(self) -> bool:
        """Whether a published theorem stands in for sound accounting: see `claim`."""
        return False

    def measures(self, facts: Facts) -> tuple[str, ...]:
        """The facts that are not declared and must be measured first, by the names in `facts`."""
        return facts.undeclared()

    def opening_share(self, name: str, columns: int) -> float:
        """The share of the whole budget of a sum that measures what is not declared, by its name in
        `facts`."""
        return opening_share(name, columns)

    def choices(self, plan: Plan) -> tuple[Choice | None, ...]:  # noqa: ARG002
        """Between them lies every choice that the method may make on the way, in how many numbers
        it asks for and in what noise. All have the same lines up to where it is made."""
        return (None,)

    def foreseen(self, plan: Plan) -> Choice | None:  # noqa: ARG002
        """What will be chosen on the way, where declared numbers alone decide it; so that what each
        sum costs can be said beforehand. None: noisy sums decide it, or nothing is chosen."""
        return None

    def claim(self, plan: Plan) -> PublishedClaim | None:  # noqa: ARG002
        """A published theorem that stands in for sound accounting, if the config asks for one."""
        return None

    def assumptions(self, plan: Plan) -> tuple[str, ...]:  # noqa: ARG002
        """What the guarantee rests on beyond what every guarantee does."""
        return ()

    def steps(self, plan: Plan) -> tuple[Step, ...]:  # noqa: ARG002
        """What this method does to a record before it is added up, and how it is covered."""
        return ()

    def row_clip(self, plan: Plan) -> float | None:  # noqa: ARG002
        """The norm to which whole rows are clipped, if released rows were so."""
        return None

    def settled(self, plan: Plan) -> Method:  # noqa: ARG002
        """The config with everything decided that public numbers decide, once facts are known."""
        return self

    def with_rows(self, rows: int) -> Method | None:  # noqa: ARG002
        """The config that makes so many rows of the same sums; None if the rows are sums, or
        if they are made once."""
        return None

    def missing(self) -> str | None:
        """The package that it needs and that is not installed here, if there is one."""
        return None if self.needs is None or find_spec(self.needs) else self.needs

    def rows_made(self, plan: Plan) -> int:  # noqa: ARG002
        """How many rows come out, as far as is known: what memory is set aside for."""
        return 0

    def bytes_a_number(self, plan: Plan) -> int:  # noqa: ARG002
        """Memory that is needed for each number of the rows that come out."""
        return 40

    def kept_bytes(self, plan: Plan) -> int:  # noqa: ARG002
        """What a site keeps of all its records between sums, at most."""
        return 0

    def message_bytes(self, plan: Plan) -> int:  # noqa: ARG002
        """How long the arrays are that a statistic carries to the sites, at most."""
        return 0
