"""A plan of rounds of moments: what `synthesizers.moments` asks of the rows, frozen before any."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from capemix import documents
from capemix.accounting import mint
from capemix.accounting.cost import Cost
from capemix.data.cells import are_distinct
from capemix.data.schema import Table
from capemix.errors import EpsilonError, InputError
from capemix.federation import Federation, MaskKind, Scheme
from capemix.guarantee import Guarantee
from capemix.plan.images import MOST_COLUMNS, Images
from capemix.plan.making import make_plan
from capemix.plan.plan import LISTED_STEP, BudgetLine, NoiseLaw, steps_as_json
from capemix.plan.rounds import Round, Rounds, plan_rounds
from capemix.plan.shares import (
    AGAIN,
    CENTRE,
    CENTRES,
    CLASS_LIST,
    CLUSTER_SPREADS,
    CLUSTERS,
    IMAGE_SHARES,
    LABELS,
    NEAREST,
    NORM_SHARE,
    NORMS_OF,
    OWN_SHARES,
    SHARES,
    SIZES,
    SPREAD,
    SPREADS,
    TEXTURE,
    TIMES,
    WITHOUT_NORMS,
)
from capemix.prepare.frame import MOST_EXACT
from capemix.prepare.moments import NORMS
from capemix.prepare.rows import LATTICE_STEP
from capemix.prepare.scattering import features_of
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

MOST_IMAGE_RANK: Final = 96
"""Directions that images' clusters are looked at in."""

MOST_CLASSES: Final = 1000
"""Each has a spread of its own: beyond, what a site adds up and sends would be large."""

MOST_IMAGE_CLASSES: Final = 100
"""Each has clusters of its own."""

MOST_CLUSTERS: Final = 16
"""A class's."""

_CODED: Final = Step(
    "schema",
    Coverage.PER_ROW,
    "a 1 at a category's declared value, one off the list counts as missing;"
    " a number by its logarithm where declared",
)


@dataclass(frozen=True)
class MomentsPlan:
    """What is asked of the rows. ``samples`` rows are drawn from the noisy moments; None: as many
    as the sizes say there are, of images four times as many. ``multiplier`` is all rounds' noise as
    one; None until calibrated. ``rank`` is that of the classes' own spreads, and ``clusters`` a
    class's number of them (of images), None until they are chosen: see `rounds`. ``table`` says
    which of the columns are coded, and how; ``images`` that they are pixels. ``law`` is of all
    rounds' noise; None: as the federation has it.
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
    clusters: int | None = None
    table: Table | None = None
    images: Images | None = None
    law: NoiseLaw | None = None
    earlier: Guarantee | None = None
    looks: tuple[BudgetLine, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 < self.delta < 1.0:
            raise InputError(
                "--delta", "must be between 0 and 1", value=self.delta, fix="try 1e-5 or 1/records"
            )
        if not self.classes or not are_distinct(self.classes):
            raise InputError(
                "classes", "must be at least one, and distinct", fix="give each class once"
            )
        whole = (self.width, *(self.class_sizes or ()))
        chosen = (self.samples, self.rank, self.clusters)
        whole += tuple(number for number in chosen if number is not None)
        odd = [number for number in whole if type(number) is not int or not 0 <= number <= MOST]
        if odd:
            raise InputError(
                "columns, --samples and --class-sizes",
                f"must be whole numbers up to {MOST}",
                value=odd[0],
                fix="leave out fractions",
            )
        if (self.rank is None) != (self.clusters is None):
            raise InputError("rank and clusters", "are chosen together", fix="propose it again")
        if self.clusters is not None and not 1 <= self.clusters <= self.most_clusters:
            raise InputError(
                "clusters", "are too many", value=self.clusters, fix="propose it again"
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
        if self.images is not None:
            self._check_images(self.images)
        elif self.width > MOST_COLUMNS:
            coded = self.table is not None
            raise InputError(
                "--schema" if coded else "--synthesizer",
                f"moments are for at most {MOST_COLUMNS} columns"
                + (", categories counted one by one" if coded else ""),
                value=self.width,
                fix="leave out columns or categories" if coded else "use --synthesizer mixing",
            )
        most = MOST_CLASSES if self.images is None else MOST_IMAGE_CLASSES
        if len(self.classes) > most:
            raise InputError(
                "--synthesizer",
                f"moments are for at most {most} classes",
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

    def _check_images(self, images: Images) -> None:
        if math.prod(images.shape) != self.width or self.table is not None:
            raise InputError(
                "images", "do not fit the rows", value=images.shape, fix="give their shape"
            )
        numbers = (features_of(images.shape) + 1) * len(self.classes)
        if self.width + images.upright > MOST_EXACT or numbers > 1 << 20:
            raise InputError(
                "images",
                f"must have at most {MOST_EXACT} pixels, fewer with very many classes",
                value=images.shape,
                fix="make them smaller, or use --synthesizer mixing",
            )
        if not isinstance(self.normalise, PublicMap) or None in (
            self.normalise.low,
            self.normalise.high,
        ):
            raise InputError(
                "images", "need one declared range of pixels", fix="give --public-range LO,HI"
            )

    # -- the rounds --------------------------------------------------------------------------

    @property
    def before_rank(self) -> tuple[str, ...]:
        """Rounds that are the same whichever rank is chosen, so that it may be chosen by them."""
        return () if self.class_sizes is not None else (SIZES,)

    @property
    def most_rank(self) -> int:
        return min(self.width, MOST_RANK if self.images is None else MOST_IMAGE_RANK)

    @property
    def most_clusters(self) -> int:
        return 1 if self.images is None else MOST_CLUSTERS

    def rounds(self, rank: int, clusters: int = 1) -> Rounds:
        """The rounds where each class's own spread is taken in ``rank`` directions; 0: not taken;
        and of images, for each of a class's ``clusters``.

        Both may be chosen after the class sizes are known: all choices have the same total noise,
        fixed in advance, and the same sizes' round, so that a filter covers the choice (Feldman,
        Zrnic 2021).
        """
        if self.multiplier is None:
            raise InputError(
                "the plan", "has no noise yet", fix="call plan.calibrate(epsilon=...) first"
            )
        asked = tuple(self._asked(rank, clusters))
        return Rounds(asked, self.federation, self.relation, self.delta, self.multiplier, self.law)

    def chosen_rounds(self) -> Rounds:
        """Those of the rank and clusters that are chosen, or until then of the most."""
        if self.rank is None or self.clusters is None:
            return self.rounds(self.most_rank, self.most_clusters)
        return self.rounds(self.rank, self.clusters)

    @property
    def _choices(self) -> list[tuple[int, int]]:
        """Between them every choice lies, in how many numbers it asks for and in what noise."""
        if self.images is None:
            return [(0, 1), (self.most_rank, 1)]
        return [(rank, j) for rank in (1, self.most_rank) for j in (1, self.most_clusters)]

    def _asked(self, rank: int, clusters: int) -> list[Round]:
        shares, of = (
            self._of_tables(rank) if self.images is None else self._of_images(rank, clusters)
        )
        rounds = []
        for name, share in shares.items():
            if name not in of or (name == SIZES and self.class_sizes is not None):
                continue
            reads, width, groups = of[name]
            if name not in WITHOUT_NORMS:
                norms = NORMS_OF.format(name)
                own = share * NORM_SHARE
                rounds.append(Round(norms, "each record's norm", 1, 1.0, own, len(NORMS)))
                share *= 1.0 - NORM_SHARE
            rounds.append(Round(name, reads, width, 1.0, share, groups, TIMES.get(name, 1)))
        return rounds

    def _of_tables(self, rank: int) -> tuple[dict[str, float], dict[str, tuple[str, int, int]]]:
        d, classes = self.width, len(self.classes)
        of = {
            SIZES: ("each record's label", 1, classes),
            CENTRE: ("rows", d, 1),
            CENTRES: ("rows by class, about the centre", d, classes),
            AGAIN: ("rows by class, about class centres", d, classes),
            SPREAD: ("pairs of columns, about class centres", d**2, 1),
        }
        if not rank:
            return SHARES, of
        of[SPREADS] = ("the same by class, in a few directions", rank**2, classes)
        return OWN_SHARES, of

    def _of_images(
        self, rank: int, clusters: int
    ) -> tuple[dict[str, float], dict[str, tuple[str, int, int]]]:
        images, classes = self.images, len(self.classes)
        if images is None:
            raise ValueError("these are not images")
        d, r, groups = self.width + images.upright, rank + images.upright, classes * clusters
        texture = images.textured or d
        of = {
            SIZES: ("each record's label", 1, classes),
            CENTRE: ("images", d, 1),
            CENTRES: ("images by class, about the centre", d, classes),
            SPREAD: ("pairs of smooth directions, about class centres", images.smooth**2, 1),
            TEXTURE: ("pairs of pixels or directions, of what is left", texture**2, 1),
            CLUSTERS: ("counts and means by nearest point", 1 + r, groups),
            CLUSTER_SPREADS: ("pairs of directions by nearest point", r**2, groups),
        }
        shares = dict(IMAGE_SHARES)
        if clusters > 1:
            of[NEAREST] = ("counts and means by nearest point", 1 + r, groups)
        else:  # whatever is chosen, the rounds before it have the same part
            shares[CLUSTERS] += shares.pop(NEAREST)
        if images.teacher:
            features = features_of(images.shape) + 1
            of[LABELS] = ("gradients of a head on features", features * classes, 1)
        return shares, of

    def calibrate(self, epsilon: float) -> MomentsPlan:
        """The plan with the least noise whose guarantee is at most ``epsilon``, whichever rank."""
        if math.isnan(epsilon) or epsilon <= 0:
            raise InputError(
                "--epsilon", "must be above 0", value=epsilon, fix="give a budget, or inf for none"
            )
        multipliers, most = [], []
        for rank, clusters in self._choices:
            try:
                planned = plan_rounds(
                    self._asked(rank, clusters),
                    self.federation,
                    epsilon=epsilon,
                    delta=self.delta,
                    relation=self.relation,
                    law=self.law,
                )
            except EpsilonError as error:
                most.append(error.most)
            else:
                multipliers.append(planned.multiplier)
        if most:
            raise EpsilonError(epsilon, min(most))
        return replace(self, multiplier=max(multipliers))

    # -- accounting --------------------------------------------------------------------------

    def guarantee(
        self,
        *,
        seeded: bool = False,
        one_process: bool = False,
        read_from_rows: tuple[str, ...] = (),
    ) -> Guarantee:
        """What a release of this plan promises, whichever rank is chosen; see `Plan.guarantee`."""
        federation = self.federation
        assumptions: tuple[str, ...] = ()
        if one_process and federation.sites > 1:
            assumptions = (mint.ONE_PROCESS,)
        elif federation.masked and federation.masks is MaskKind.RING and federation.sites > 1:
            assumptions = (mint.RING_ASSUMPTION,)
        if federation.peers is not None:
            assumptions += (mint.GRAPH_ASSUMPTION,)
        every = [self.chosen_rounds(), *(self.rounds(*choice) for choice in self._choices)]
        worst = max(every, key=lambda rounds: rounds.epsilon())
        if self.table is not None:
            drafted = self.table.read_from_rows
            read_from_rows += tuple(fact for fact in drafted if fact not in read_from_rows)
            assumptions += (mint.CONFIRMED_DRAFT,) * self.table.is_confirmed
        return worst.guarantee(
            seeded=seeded,
            assumptions=assumptions,
            read_from_rows=read_from_rows,
            earlier=self.earlier,
        )

    def budget(self) -> tuple[BudgetLine, ...]:
        """Every look at the rows, in order."""
        before = self.earlier.epsilon or 0.0 if self.earlier is not None else 0.0

        def after_looks(line: BudgetLine) -> BudgetLine:
            composed = line.epsilon_composed
            return replace(line, epsilon_composed=None if composed is None else composed + before)

        own = self.chosen_rounds().lines(1.0 - self._looks_share)
        return (*self.looks, *map(after_looks, own))

    @property
    def _looks_share(self) -> float:
        return sum(line.share for line in self.looks)

    def cost(self, relation: Relation | None = None) -> Cost:
        """What a release of this plan takes from a budget, itself alone."""
        return self.rounds(self.most_rank, self.most_clusters).cost(relation)

    @property
    def synthesizer(self) -> SynthesizerName:
        taught = self.images is not None and self.images.teacher
        return SynthesizerName.MOMENTS_TEACHER if taught else SynthesizerName.MOMENTS

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
        declared = self.class_sizes is not None and not {SIZES, CLASS_LIST} & looked
        sizes, says = (Coverage.PUBLIC, "declared") if declared else (Coverage.PAID, "noisy counts")
        paid = "ranges" in looked
        normalise = (
            Step("normalise", Coverage.PAID, "each column by its noisy mean and scale, in a range")
            if paid
            else self.normalise.step
        )
        quantile = "median" if self.images is None else "quantiles"
        clip = Step("clip", Coverage.PAID, f"at noisy {quantile} of the norms, round by round")
        coded = () if self.table is None else (_CODED,)
        seen = () if self.images is None else _seen(self.images)
        listed = (LISTED_STEP,) if CLASS_LIST in looked else ()
        return (*coded, *listed, normalise, *seen, clip, LATTICE_STEP, Step(SIZES, sizes, says))

    def as_json(self) -> dict[str, Any]:
        """Everything that was asked, for the manifest: declared and paid values only."""
        federation = self.federation
        return {
            "synthesizer": str(self.synthesizer),
            "classes": list(self.classes),
            "class_sizes": None if self.class_sizes is None else list(self.class_sizes),
            "width": self.width,
            "samples": self.samples,
            "table": documents.as_json(self.table),
            "images": None if self.images is None else self.images.as_json(),
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
            "law": None if self.law is None else str(self.law),
            "noise": self.multiplier,
            "rank": self.rank,
            "clusters": self.clusters,
            "queries": [
                {
                    "name": one.name,
                    "groups": one.groups,
                    "width": one.width,
                    "share": one.share,
                    "times": one.times,
                }
                for one in self.chosen_rounds().rounds
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
    images: Images | None = None,
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
        images=images,
        law=None if who.get("law") is None else one.law,
    )


def _seen(images: Images) -> tuple[Step, ...]:
    upright = Step("upright", Coverage.PER_ROW, "each image by its own slant")
    features = Step("features", Coverage.PER_ROW, "scattering by fixed wavelets, for the teacher")
    return (upright,) * images.upright + (features,) * images.teacher


def moments_from_json(found: Any) -> MomentsPlan:
    """The plan that `MomentsPlan.as_json` wrote, where nothing was looked at before. Anything that
    does not come back the same is refused."""
    try:
        normalise, sizes = normalise_from_json(found["normalise"]), found["class_sizes"]
        seen = found["images"]
        if isinstance(normalise, SiteZScore):
            raise TypeError("normalise")
        plan = make_moments_plan(
            width=found["width"],
            classes=tuple(found["classes"]),
            normalise=normalise,
            samples=found["samples"],
            class_sizes=None if sizes is None else tuple(sizes),
            table=None
            if found["table"] is None
            else documents.from_json(Table, found["table"], name="schema"),
            images=None if seen is None else Images(**{**seen, "shape": tuple(seen["shape"])}),
            **{name: found[name] for name in _WHO},
        )
        plan = replace(
            plan, multiplier=found["noise"], rank=found["rank"], clusters=found["clusters"]
        )
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
    *("relation", "delta", "law"),
)
