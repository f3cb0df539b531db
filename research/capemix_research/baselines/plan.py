"""What is asked when every record is released by itself: its row and its label, each with noise.

Two older ways to publish rows, kept as baselines. A record moves one released row only, so there is
one composition and no sampling; N rows come out, so the number of records is public and neighbours
differ by one record replaced. Nobody's noise is shared: S sites release their rows side by side.

*Local perturbation* (Agrawal, Srikant 2000, "Privacy-Preserving Data Mining") adds noise to every
value. It is older than differential privacy; here the noise is calibrated.

*Random projection* (DPPro; Xu, Ren, Zhang, Qin, Ren 2017, "DPPro: Differentially Private
High-Dimensional Data Release via Random Projection") first takes the row onto k random directions
that are public. A Johnson-Lindenstrauss projection keeps norms nearly, and the projected row is
clipped again, so that its bound holds whatever the matrix is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from capemix.accounting import mint
from capemix.accounting.cost import Cost, record_cost
from capemix.accounting.gaussian import kept_probability
from capemix.errors import EpsilonError, InputError, member
from capemix.facts import Facts, unnamed_columns
from capemix.guarantee import Guarantee
from capemix.plan import BudgetLine
from capemix.queries import QueryShape, Relation
from capemix.sums.query import lattice_norm_bound
from capemix.sums.rows import LATTICE_STEP, Preparation
from capemix.sums.steps import Coverage, PublicMap, Step


class RecordMethod(StrEnum):
    """The ways to release every record by itself, as options and manifests spell them."""

    RANDOM_PROJECTION = "random-projection"  # DPPro: Xu, Ren, Zhang, Qin, Ren 2017
    LOCAL_PERTURBATION = "local-perturbation"  # Agrawal, Srikant 2000


@dataclass(frozen=True)
class Projection:
    """A random matrix that is public: ``dimensions`` directions, drawn from a published seed.

    No privacy rests on the seed.
    """

    dimensions: int
    seed: int = 0


@dataclass(frozen=True)
class RecordPlan:
    """``noise`` is the deviation of the noise on each number of a row (of its projection, if there
    is one) of norm at most ``clip``; None until calibrated.

    A record that is replaced moves its row by at most 2c. The label goes through randomised
    response, which takes ``label_share`` of epsilon; the row takes the rest, and all of delta.
    ``facts`` must declare the classes and a public map.
    """

    method: RecordMethod
    facts: Facts
    clip: float
    delta: float
    projection: Projection | None = None
    label_share: float = 0.5
    noise: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise InputError(
                "clip", "must be a positive number", value=self.clip, fix="give the norm bound"
            )
        if not 0.0 < self.delta < 1.0:
            raise InputError(
                "delta", "must be between 0 and 1", value=self.delta, fix="try 1e-5 or 1/records"
            )
        if not 0.0 <= self.label_share < 1.0:
            raise InputError(
                "label_share",
                "must be at least 0 and below 1",
                value=self.label_share,
                fix="give the part of epsilon that labels take",
            )
        if self.facts.classes is None or not isinstance(self.facts.normalise, PublicMap):
            raise InputError(
                "facts",
                "must declare the classes and a public map where every record is released by"
                " itself",
                fix="list the classes, and give a public_range",
            )
        if (self.projection is None) is (self.method is RecordMethod.RANDOM_PROJECTION):
            raise InputError(
                "projection",
                f"does not fit {self.method}",
                value=self.projection,
                fix="give it with random-projection alone",
            )
        if self.projection is not None and not 1 <= self.projection.dimensions <= self.width:
            raise InputError(
                "projection",
                f"must be from 1 to the {self.width} features",
                value=self.projection.dimensions,
                fix="give the number of directions",
            )
        if self.noise is not None and not (math.isfinite(self.noise) and self.noise >= 0):
            raise InputError("noise", "must be 0 or more", value=self.noise, fix="give it again")

    # -- what is public ------------------------------------------------------------------------

    @property
    def known(self) -> Facts:
        return self.facts

    @property
    def width(self) -> int:
        return self.facts.width

    @property
    def classes(self) -> tuple[str | int, ...]:
        return self.facts.listed

    @property
    def normalise(self) -> PublicMap:
        return self.facts.normalise  # type: ignore[return-value]  # checked when it was made

    @property
    def outline(self) -> tuple[QueryShape, ...]:
        """No sum is asked for."""
        return ()

    @property
    def row_clip(self) -> float:
        return self.clip

    # -- the path: preparation, noise on the row, randomised response on the label -------------

    @property
    def preparation(self) -> Preparation:
        return Preparation(self.normalise, self.clip)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything that is done to a record, and how it is covered."""
        projection: tuple[Step, ...] = ()
        if self.projection is not None:
            says = f"onto {self.projection.dimensions} public directions, clipped again"
            projection = (Step("projection", Coverage.PER_ROW, says),)
        label = "as it is" if len(self.classes) == 1 else f"told with {self.label_kept:.3g}"
        labels = Step("label", Coverage.PER_ROW, f"randomised response, {label}")
        return (*self.preparation.steps, *projection, LATTICE_STEP, labels)

    @property
    def columns(self) -> int:
        """How many numbers of a record are noised."""
        return self.width if self.projection is None else self.projection.dimensions

    @property
    def sensitivity(self) -> float:
        """How far a replaced record can move its row."""
        return 2.0 * self.clip

    @property
    def lattice_norm_bound(self) -> int:
        return lattice_norm_bound(self.noise_multiplier, self.columns)

    @property
    def lattice_deviation(self) -> float:
        """The noise in lattice units."""
        return self.noise_multiplier * self.lattice_norm_bound

    @property
    def noise_multiplier(self) -> float:
        """The noise over the norm of a row."""
        return self._known_noise / self.clip

    @property
    def row_epsilon(self) -> float:
        return mint.row_epsilon(self._known_noise, self.sensitivity, self.delta)

    @property
    def label_epsilon(self) -> float:
        """What the label costs: nothing where there is one class only."""
        share = self._paid_label_share
        return self.row_epsilon * share / (1.0 - share) if share else 0.0

    @property
    def label_kept(self) -> float:
        """The probability that the true label is released."""
        return 1.0 if self.noise == 0.0 else kept_probability(self.label_epsilon, len(self.classes))

    @property
    def _paid_label_share(self) -> float:
        return self.label_share if len(self.classes) > 1 else 0.0

    @property
    def _known_noise(self) -> float:
        if self.noise is None:
            raise InputError(
                "the plan", "has no noise yet", fix="call plan.calibrate(epsilon=...) first"
            )
        return self.noise

    # -- accounting --------------------------------------------------------------------------

    def guarantee(
        self, *, seeded: bool = False, sites: int = 1, read_from_rows: tuple[str, ...] = ()
    ) -> Guarantee:
        """What a release of this plan promises, the same for any number of sites;
        ``read_from_rows`` as for `Plan.guarantee`."""
        return mint.mint_recordwise(
            self._noised_record(),
            row_bound=self.clip,
            delta=self.delta,
            sites=sites,
            seeded=seeded,
            read_from_rows=read_from_rows,
        )

    def budget(self) -> tuple[BudgetLine, ...]:
        """Every look at the rows: each record once."""
        whole = self.guarantee().epsilon
        row = BudgetLine("records", "each record", self.sensitivity, 1.0, whole, whole)
        return (row,)

    def cost(self, relation: Relation | None = None) -> Cost:
        """What a release of this plan takes from a budget."""
        asked = relation or Relation.REPLACE_ONE
        return record_cost(self._noised_record(), self.delta, asked, len(self.classes))

    def _noised_record(self) -> mint.NoisedRecord:
        return mint.NoisedRecord(
            columns=self.columns,
            sensitivity=self.sensitivity,
            noise=self._known_noise,
            label_epsilon=self.label_epsilon,
        )

    def with_noise(self, noise: float) -> RecordPlan:
        return replace(self, noise=noise)

    def calibrate(self, epsilon: float) -> RecordPlan:
        """The plan with the least noise whose guarantee is at most ``epsilon``."""
        if math.isnan(epsilon) or epsilon <= 0:
            raise InputError(
                "epsilon", "must be above 0", value=epsilon, fix="give a budget, or inf for none"
            )
        most = mint.most_recordwise(self.columns, self.delta)
        if most < epsilon < math.inf:
            raise EpsilonError(epsilon, most)
        for_row = epsilon * (1.0 - self._paid_label_share)
        return self.with_noise(mint.row_noise(for_row, self.sensitivity, self.delta))


def make_record_plan(
    method: RecordMethod | str,
    facts: Facts,
    *,
    clip: float = 1.0,
    delta: float = 1e-5,
    projection: int | None = None,
    label_share: float = 0.5,
) -> RecordPlan:
    """A plan by name. A random projection has a quarter as many directions as there are features,
    unless ``projection`` says otherwise."""
    kind = member(RecordMethod, method, "method")
    projected = kind is RecordMethod.RANDOM_PROJECTION
    if projection is not None and not projected:
        raise InputError(
            "projection",
            f"has no meaning for {kind}",
            value=projection,
            fix="leave it out, or use random-projection",
        )
    directions = max(1, facts.width // 4) if projection is None else projection
    return RecordPlan(
        method=kind,
        facts=facts,
        clip=clip,
        delta=delta,
        projection=Projection(directions) if projected else None,
        label_share=label_share,
    )


def unnamed_facts(width: int, classes: int, normalise: PublicMap | None = None) -> Facts:
    """Of rows of ``width`` columns and of ``classes`` that have no names."""
    return Facts(
        features=unnamed_columns(width),
        label="label",
        classes=tuple(range(classes)),
        normalise=PublicMap() if normalise is None else normalise,
    )
