"""What is asked, frozen before any row is read; `calibrate` turns a budget into noise.

A plan can neither request nor carry a noise seed: where the noise comes from is decided where it
is drawn, and shows in the release's status.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from capemix.accounting import mint
from capemix.accounting.calibration import smallest_noise
from capemix.accounting.cost import Cost, sum_cost
from capemix.accounting.theorem1 import Theorem1
from capemix.data.cells import are_distinct
from capemix.errors import EpsilonError, InputError
from capemix.federation import (
    Federation,
    MaskKind,
    Scheme,
)
from capemix.guarantee import Guarantee
from capemix.plan.shares import CLASS_LIST, SIZES
from capemix.prepare.moments import Contribution, contribution_as_json
from capemix.prepare.rows import LATTICE_STEP, MAX_LATTICE_NORM, Preparation
from capemix.prepare.steps import Coverage, Normalise, SiteZScore, Step, normalise_as_json
from capemix.queries import Relation, Selection, SumQuery
from capemix.randomness.tables import MAX_SIGMA
from capemix.synthesizers.mixing import MOST, Mixing, Pool


class Accountant(StrEnum):
    SOUND = "sound"
    PAPER = "paper"


class NoiseLaw(StrEnum):
    DISCRETE = "discrete"  # discrete Gaussian on the lattice; sums over sites
    ROUNDED = "rounded"  # round(N(0, s^2)): a single curator only; PLD is exact
    GAUSSIAN = "gaussian"  # floating point


ARITHMETIC: Final = {
    NoiseLaw.DISCRETE: mint.LATTICE,
    NoiseLaw.ROUNDED: mint.ROUNDED,
    NoiseLaw.GAUSSIAN: mint.REAL,
}

_SIGMA_AIM: Final = 1024.0
"""A site's noise in lattice units: large, so that truncation is small beside it, and with a table
that still fits the cache."""


LISTED_STEP: Final = Step(CLASS_LIST, Coverage.PAID, "labels whose noisy counts stand out")


@dataclass(frozen=True)
class BudgetLine:
    """One look at the rows, or the release itself, and what it costs: against the strongest view,
    alone and together with the lines before it. None: not bounded."""

    line: str
    reads: str
    sensitivity: float
    share: float
    epsilon_alone: float | None
    epsilon_composed: float | None


@dataclass(frozen=True)
class Plan:
    """What is asked of the rows. ``noise`` is TAU, the deviation of the noise on a released
    mixture when all sites are in; None until calibrated."""

    mixing: Mixing
    federation: Federation
    normalise: Normalise
    accountant: Accountant
    relation: Relation
    law: NoiseLaw
    delta: float
    printed_theorem: bool = False
    noise: float | None = None
    classes: tuple[str | int, ...] = ()
    sizes: Coverage = Coverage.PUBLIC
    earlier: Guarantee | None = None
    looks: tuple[BudgetLine, ...] = ()
    contribution: Contribution | None = None
    """What a record adds, where it is not its row: then ``mixing`` has its groups and width."""
    redraw: int | None = None
    """Rows to draw anew from what the mixtures say of their classes; None: release the mixtures."""

    def __post_init__(self) -> None:
        if not 0.0 < self.delta < 1.0:
            raise InputError(
                "--delta", "must be between 0 and 1", value=self.delta, fix="try 1e-5 or 1/records"
            )
        if self.noise is not None and not (self.noise == 0 or 1e-100 < self.noise < 1e100):
            raise InputError("--noise", "must be 0 or more", value=self.noise, fix="give TAU")
        groups = self.mixing.classes if self.contribution is None else len(self.classes)
        if not are_distinct(self.classes):
            raise InputError(
                "classes",
                "must be distinct: 1 and '1' are the same",
                fix="give each class once",
            )
        if len(self.classes) != groups:
            raise InputError(
                "--class-sizes",
                f"must be one for each of the {len(self.classes)} classes",
                value=self.mixing.classes,
                fix="give as many sizes as classes",
            )
        if self.contribution is not None and not self._fits(self.contribution):
            raise InputError(
                "the plan", "does not fit what a record is said to add", fix="propose it again"
            )
        if (self.sizes is Coverage.PAID or bool(self.looks)) != (self.earlier is not None):
            raise InputError(
                "class sizes, or other looks,",
                "are paid for exactly when an earlier release of them is counted",
                value=self.sizes,
                fix="use capemix.release_of",
            )
        if self.redraw is not None:
            self._check_redraw(self.redraw)
        if self.noise != 0.0 and self.federation.graph_failure() >= self.delta:
            raise InputError(
                "--peers",
                "leaves more chance of failure than delta allows",
                value=self.federation.peers,
                fix="raise it, or leave it out for the degree that the adversary asks for",
            )
        fixed = self.mixing.selection is Selection.FIXED
        joint = self.federation.scheme is Scheme.CAPE and not self.federation.averaged
        if fixed and joint:
            raise InputError(
                "--selection",
                "cannot be fixed-size in the joint form: it would need a dealer",
                value=self.mixing.selection,
                fix="use poisson, or --form algorithm1",
            )
        if fixed and self.relation is Relation.ADD_REMOVE:
            raise InputError(
                "--relation",
                "must be replace-one with fixed-size selection",
                value=self.relation,
                fix="use --relation replace-one, or --selection poisson",
            )
        if self.accountant is Accountant.SOUND and self.noise != 0.0:
            for step in self.steps:
                if step.coverage is Coverage.NOT_COVERED:
                    raise InputError(
                        step.name,
                        "is not covered by a sound guarantee",
                        value=step.says,
                        fix="declare a --public-range, or use --accountant paper",
                    )
        if self.law is NoiseLaw.ROUNDED and self.federation.sites > 1:
            raise InputError(
                "--law",
                "is for a single curator: rounded noises do not add up to one",
                value=self.law,
                fix="use --law discrete",
            )
        gaussian_masks = self.federation.masked and self.federation.masks is MaskKind.GAUSSIAN
        if gaussian_masks != (self.law is NoiseLaw.GAUSSIAN) and self.federation.masked:
            raise InputError(
                "--law",
                f"does not fit --masks {self.federation.masks}",
                value=self.law,
                fix="ring masks go with the lattice, Gaussian masks with Gaussian noise",
            )

    def _check_redraw(self, rows: int) -> None:
        mixing = self.mixing
        if type(rows) is not int or not mixing.classes <= rows <= MOST:
            raise InputError(
                "--redraw",
                f"must be a number of rows from {mixing.classes}, one for each class",
                value=rows,
                fix="say how many rows to draw",
            )
        if mixing.pool is Pool.ALL or mixing.label_noise or isinstance(self.normalise, SiteZScore):
            raise InputError(
                "--redraw",
                "needs classes mixed apart, labels as they are and a public map",
                value=rows,
                fix="leave it out, or use --accountant sound and --synthesizer mixing",
            )
        if min(mixing.samples) < 2:
            raise InputError(
                "--samples",
                "must be two mixtures of every class or more, to draw rows anew",
                value=min(mixing.samples),
                fix="raise it",
            )

    # -- the path: preparation, sums, noise ---------------------------------------------------

    @property
    def preparation(self) -> Preparation:
        return Preparation(self.normalise, self.mixing.clip)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything that reads rows before the sums, and how it is covered."""
        says = {
            Coverage.PUBLIC: "declared",
            Coverage.PAID: "noisy counts",
        }.get(self.sizes, "the true counts, without a budget")
        lattice = (LATTICE_STEP,) if self.on_lattice else ()
        normalise, clip = self.preparation.steps
        looked = {line.line for line in self.looks}
        if "ranges" in looked:
            noisy = "each column by its noisy mean and scale, in a noisy range"
            normalise = replace(normalise, coverage=Coverage.PAID, says=noisy)
        if "clip norm" in looked:
            clip = replace(clip, coverage=Coverage.PAID, says=f"{clip.says}, a noisy quantile")
        listed = (LISTED_STEP,) if CLASS_LIST in looked else ()
        return (*listed, normalise, clip, *lattice, Step(SIZES, self.sizes, says))

    @property
    def on_lattice(self) -> bool:
        return self.law is not NoiseLaw.GAUSSIAN

    @property
    def site_multiplier(self) -> float:
        """One site's own noise over what one record can add to its share."""
        return (
            self._known_noise * self.federation.site_factor * self.mixing.mixture
        ) / self.mixing.row_bound

    @property
    def lattice_norm_bound(self) -> int | None:
        """The norm bound in lattice units: fine enough that truncation is small beside the noise,
        coarse enough for 16-bit rows and a noise table that fits the cache."""
        if not self.on_lattice:
            return None
        return lattice_norm_bound(self.site_multiplier, self.mixing.columns)

    @property
    def query(self) -> SumQuery:
        return self.mixing.query(self.lattice_norm_bound)

    @property
    def columns_read(self) -> int:
        """Columns that a site's rows must have."""
        return self.mixing.width if self.contribution is None else self.contribution.frame.columns

    def _fits(self, asked: Contribution) -> bool:
        """Whether the sum is of what records add: once each, and no more than is counted."""
        mixing = self.mixing
        return (
            (mixing.classes, mixing.width) == (asked.groups, asked.width)
            and asked.bound <= mixing.clip * (1 + 1e-12)
            and not mixing.label_noise
            and mixing.selection is Selection.POISSON
            and mixing.pool is Pool.CLASS
            and set(mixing.samples) == {1}
            and set(mixing.pool_sizes) == {mixing.mixture}
            and asked.frame.classes == len(self.classes)
        )

    @property
    def site_deviation(self) -> float:
        """One site's own noise on its share: in lattice units, or in real ones off the lattice."""
        return self.site_multiplier * (self.lattice_norm_bound or self.mixing.row_bound)

    @property
    def site_noise(self) -> float:
        """One site's own noise on a mixture (the paper's tau_g)."""
        return self._known_noise * self.federation.site_factor

    @property
    def ring_bits(self) -> int:
        """Wide enough that no sum wraps: 32, or 64 for very large mixtures and plain counts."""
        if any(p.selected >= p.among for p in self.query.participation):
            return 64  # every record takes part, however many there are
        count = self.mixing.sites_averaged * (
            self.mixing.mixture + 14 * math.sqrt(self.mixing.mixture) + 100
        )
        reach = count * (self.lattice_norm_bound or 1)
        reach += 13 * self.federation.sites * (self.site_deviation + 1)
        return 32 if reach < 2**31 else 64

    @property
    def _known_noise(self) -> float:
        if self.noise is None:
            raise InputError(
                "the plan", "has no noise yet", fix="call plan.calibrate(epsilon=...) first"
            )
        return self.noise

    # -- accounting --------------------------------------------------------------------------

    @property
    def theorem(self) -> Theorem1:
        """Theorem 1 as a reader would compute it: p = lK/N, as if classes were balanced; for one
        pool of all records, where it has T draws in all of them, p = l/N."""
        return Theorem1(
            samples=sum(self.mixing.samples),
            rate=self.mixing.mixture * self.mixing.pools / sum(self.mixing.class_sizes),
            mixture=self.mixing.mixture,
            clip=self.mixing.clip,
            printed=self.printed_theorem,
        )

    def noised_sum(self) -> mint.NoisedSum:
        """The query as it is carried out, for the accountant."""
        multiplier = self.site_multiplier
        return mint.NoisedSum(
            query=self.query,
            view_multipliers={
                view: factor * multiplier for view, factor in self.federation.view_factors().items()
            },
            arithmetic=ARITHMETIC[self.law],
            site_sigma=self.site_deviation if self.on_lattice else None,
            summands=self.federation.adversary.honest,
            replacement_factor=self.mixing.replacement_factor,
            graph_failure=self.federation.graph_failure(),
        )

    def guarantee(
        self,
        *,
        seeded: bool = False,
        one_process: bool = False,
        reference: bool = True,
        read_from_rows: tuple[str, ...] = (),
    ) -> Guarantee:
        """What a release of this plan promises.

        ``seeded``: its noise comes from a test seed. ``one_process``: whoever ran it held all
        sites' rows, so there was no server to hide them from. ``reference``: with the PLD figure
        beside it, which can take long. ``read_from_rows``: public facts that were neither declared
        nor paid for.
        """
        adversary = self.federation.adversary
        if self.accountant is Accountant.PAPER:
            return mint.mint_paper(
                self.theorem,
                noise=self._known_noise,
                theorem_noise=self._known_noise / self.federation.theorem_factor,
                multiplier=self.noise_multiplier,
                delta=self.delta,
                adversary=adversary,
                arithmetic=ARITHMETIC[self.law],
                seeded=seeded,
            )
        assumptions: tuple[str, ...] = ()
        federation = self.federation
        if one_process and adversary.sites > 1:
            assumptions += (mint.ONE_PROCESS,)
        elif federation.masked and federation.masks is MaskKind.RING and adversary.sites > 1:
            assumptions += (mint.RING_ASSUMPTION,)
        if self.federation.peers is not None:
            assumptions += (mint.GRAPH_ASSUMPTION,)
        if self.mixing.selection is Selection.FIXED:
            by_class = self.mixing.pool is Pool.CLASS
            assumptions += (mint.FIXED_SIZE_ASSUMPTION if by_class else mint.FIXED_POOL_ASSUMPTION,)
        return mint.mint_sound(
            self.noised_sum(),
            unit=self.mixing.row_bound / self.mixing.divisor,
            delta=self.delta,
            relation=self.relation,
            adversary=adversary,
            seeded=seeded,
            assumptions=assumptions,
            read_from_rows=read_from_rows,
            earlier=self.earlier,
            reference=reference,
        )

    def budget(self) -> tuple[BudgetLine, ...]:
        """Every look at the rows, in order, the release last."""
        whole = self.guarantee(reference=False).epsilon
        spent = _spent(self.earlier)
        alone = None if whole is None else whole - spent
        own = BudgetLine(
            self.query.name,
            "rows, drawn and clipped",
            self.mixing.row_bound,
            1.0 if not whole or alone is None else alone / whole,
            alone,
            whole,
        )
        return (*self.looks, own)

    @property
    def poisson(self) -> bool:
        """Whether records are drawn independently, so that either relation can be counted."""
        return self.mixing.selection is Selection.POISSON

    def cost(self, relation: Relation | None = None) -> Cost:
        """What a release of this plan takes from a budget, itself alone: an ``earlier`` one has
        been paid for. Poisson draws can be counted in either relation."""
        if self.accountant is Accountant.PAPER:
            raise InputError(
                "--accountant",
                "must be sound to be counted: a paper claim bounds nothing",
                value=self.accountant,
                fix="use --accountant sound, or say --no-ledger",
            )
        return sum_cost(self.noised_sum(), self.delta, relation or self.relation)

    @property
    def noise_multiplier(self) -> float:
        """TAU l / c: the released noise over what one record adds to a mixture."""
        return self._known_noise * self.mixing.mixture / self.mixing.clip

    def with_noise(self, noise: float) -> Plan:
        return replace(self, noise=noise)

    def calibrate(self, epsilon: float) -> Plan:
        """The plan with the least noise whose guarantee is at most ``epsilon``."""
        if math.isnan(epsilon) or epsilon <= 0:
            raise InputError(
                "--epsilon", "must be above 0", value=epsilon, fix="give a budget, or inf for none"
            )
        if math.isinf(epsilon):
            return self.with_noise(0.0)
        if self.accountant is Accountant.PAPER:
            theorem = self.theorem
            noise = smallest_noise(lambda tau: theorem.epsilon(tau, self.delta), epsilon)
            return self.with_noise(noise * self.federation.theorem_factor)

        def sound_epsilon(noise: float) -> float:
            noised = self.with_noise(noise).noised_sum()
            strongest = noised.view_multipliers[noised.strongest]
            return mint.sound_epsilon(noised, strongest, self.delta, self.relation)

        start, step, tolerance = self.mixing.row_bound / self.mixing.mixture, 2.0, 2e-5
        if self.law is NoiseLaw.ROUNDED:
            # PLD is slow, and never above Rényi accounting: start from the latter's answer.
            start = _noise_by_renyi(self, epsilon) or start
            step, tolerance = 1.25, 2e-4
        noise = smallest_noise(
            sound_epsilon, epsilon, start=start, step=step, relative_tolerance=tolerance
        )
        return self.with_noise(noise)

    def as_json(self) -> dict[str, Any]:
        """Everything that was asked, for the manifest: declared values only."""
        federation, mixing = self.federation, self.mixing
        query = self.query
        return {
            "classes": list(self.classes),
            "class_sizes": list(mixing.class_sizes),
            "samples": list(mixing.samples),
            "mixture": mixing.mixture,
            "pool": str(mixing.pool),
            "clip": mixing.clip,
            "width": mixing.width,
            "selection": str(mixing.selection),
            "label_noise": mixing.label_noise,
            "normalise": normalise_as_json(self.normalise),
            "scheme": str(federation.scheme),
            "form": str(federation.form) if federation.scheme is Scheme.CAPE else None,
            "sites": federation.sites,
            "colluding": federation.colluding,
            "dropouts": federation.dropouts,
            "masks": str(federation.masks) if federation.masked else None,
            "peers": federation.peers,
            "site_noise": str(federation.site_noise) if federation.averaged else None,
            "sizes": str(self.sizes),
            "printed_theorem": self.printed_theorem,
            "law": str(self.law),
            "accountant": str(self.accountant),
            "relation": str(self.relation),
            "delta": self.delta,
            "noise": self.noise,
            "queries": [
                {
                    "name": query.name,
                    "rows": query.rows,
                    "width": query.width,
                    "l2_norm_bound": query.l2_norm_bound,
                    "lattice_norm_bound": query.lattice_norm_bound,
                    "share": query.share,
                    "participation": [
                        {"draws": p.draws, "selected": p.selected, "among": p.among}
                        for p in query.participation
                    ],
                }
            ],
            "steps": steps_as_json(self.steps),
            "redraw": self.redraw,
            "contribution": None
            if self.contribution is None
            else contribution_as_json(self.contribution),
        }


def _noise_by_renyi(plan: Plan, epsilon: float) -> float | None:
    """Near to the noise that rounded Gaussians need: or to the least that anything is proved of."""
    discrete = replace(plan, law=NoiseLaw.DISCRETE)
    try:
        return discrete.calibrate(epsilon).noise
    except EpsilonError as error:
        return discrete.calibrate(0.9 * error.most).noise


def lattice_norm_bound(multiplier: float, columns: int) -> int:
    """The norm bound of a row in lattice units, for noise of ``multiplier`` norm bounds."""
    if multiplier == 0.0:
        return MAX_LATTICE_NORM
    if multiplier > MAX_SIGMA:
        raise InputError(
            "--epsilon",
            "asks for more noise than the lattice holds",
            value=f"{multiplier:.3g} times a row",
            fix="raise it; of mixtures, fewer --samples need less",
        )
    fine = max(_SIGMA_AIM / multiplier, 32.0 * math.sqrt(columns))
    bound = max(1, math.floor(min(fine, MAX_LATTICE_NORM, MAX_SIGMA / multiplier)))
    return bound if bound * multiplier <= MAX_SIGMA else bound - 1  # by rounding alone


def steps_as_json(steps: tuple[Step, ...]) -> list[dict[str, str]]:
    return [{"name": s.name, "coverage": str(s.coverage), "says": s.says} for s in steps]


def _spent(earlier: Guarantee | None) -> float:
    return 0.0 if earlier is None or earlier.epsilon is None else earlier.epsilon
