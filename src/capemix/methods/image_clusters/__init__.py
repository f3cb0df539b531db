"""Gaussian clusters of each class, for images: from private sums of moments; and labels by a head
that private gradients have trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self

from capemix.errors import InputError
from capemix.facts import CLASS_SIZES
from capemix.methods import method
from capemix.methods.base import Choice, Method, SyntheticRows
from capemix.methods.class_gaussian import (
    check_classes,
    check_joint,
    check_samples,
    clipped_steps,
)
from capemix.methods.image_clusters.clusters import (
    SMOOTH_A_RECORD,
    TEXTURES,
    tuned_clusters,
)
from capemix.methods.image_clusters.estimate import (
    CENTRE,
    CENTRES,
    CLUSTER_SPREADS,
    CLUSTERS,
    LABELS,
    NEAREST,
    REPEATS,
    SPREAD,
    TEXTURE,
    WEIGHTS,
    image_rows,
)
from capemix.methods.projected import line
from capemix.methods.shares import centres_part, exactly, sizes_share
from capemix.queries import COUNTED, QueryShape
from capemix.statistics.moments import replaced_moments
from capemix.statistics.projection import MOST_EXACT, MOST_KEPT
from capemix.statistics.scattering import features_of
from capemix.sums.steps import Coverage, PublicMap, Step

if TYPE_CHECKING:
    from capemix.collector import Collector
    from capemix.plan import Plan

MOST_RANK: Final = 96
"""Directions that clusters are looked at in."""

MOST_CLASSES: Final = 100
"""Each has clusters of its own."""

MOST_CLUSTERS: Final = 16
"""Of a class."""

SMOOTH: Final = 160
"""Directions of the cosine transform in which images are looked at, from the smoothest on."""

MOST_PIXELS: Final = 1024
"""Of images whose texture is looked at pixel by pixel; a record adds a number for every pair."""

TEXTURED: Final = 640
"""Of larger ones, in so many directions of the cosine transform, from the smoothest on."""

SHARES: Final = {
    CENTRE: 0.01,
    SPREAD: 0.045,
    TEXTURE: 0.035,
    NEAREST: 0.10,
    CLUSTERS: 0.20,
    CLUSTER_SPREADS: 0.30,
    LABELS: 0.25,
}
"""Of the budget, in parts of all; chosen on training rows that were held out
(docs/research/images.md). Of what clusters have, the classes' centres take their part."""

_CLUSTERED: Final = (NEAREST, CLUSTERS, CLUSTER_SPREADS)

_NORMS: Final = 0.05
"""Of a sum's share, what finds the norm to clip at."""

_WITHOUT_NORMS: Final = (CLASS_SIZES, CLUSTER_SPREADS, LABELS)
"""Nothing to clip; the clusters' norm serves; shortened to 1 as it is."""


@method
@dataclass(frozen=True)
class ImageClusters(Method):
    """``samples`` images are drawn; None: four times as many as there are records, by their noisy
    count."""

    summary: ClassVar[str] = "Gaussian clusters of each class, for images."
    kind: Literal["image-clusters"] = "image-clusters"
    samples: int | None = field(
        default=None,
        metadata={
            "help": "Synthetic rows, over all classes [default: four times as many as there are"
            " records, by their noisy count]."
        },
    )
    soft_labels: bool = field(
        default=False,
        metadata={"help": "Train a private head, and label each image with its probabilities."},
    )
    deskew: bool | None = field(
        default=None,
        metadata={
            "help": "Set each image upright by its own slant, for handwriting [default: for a"
            " dataset that is known to be handwriting]."
        },
    )

    # -- public numbers ------------------------------------------------------------------------

    def shape(self, plan: Plan) -> tuple[int, int]:
        shape = plan.facts.image_shape
        if shape is None:
            raise InputError("method", "is for images", value=self.kind, fix="use tables")
        return shape

    def upright(self, plan: Plan) -> tuple[int, int] | None:
        """The shape of images that are set upright; None: they are taken as they are."""
        return self.shape(plan) if self.deskew else None

    def smooth(self, plan: Plan) -> int:
        """Smooth directions in which images are looked at."""
        return min(SMOOTH, math.prod(self.shape(plan)))

    def textured(self, plan: Plan) -> int | None:
        """Smooth directions in which texture is looked at; None: at every pixel."""
        return TEXTURED if math.prod(self.shape(plan)) > MOST_PIXELS else None

    def most_rank(self, plan: Plan) -> int:
        return min(plan.known.width, MOST_RANK)

    def check(self, plan: Plan) -> None:
        facts, shape = plan.known, self.shape(plan)
        if any(side < 4 or side % 4 for side in shape):
            raise InputError(
                "images",
                "must have sides that are multiples of four",
                value=shape,
                fix="pad them, or use mixing",
            )
        numbers = (features_of(shape) + 1) * len(facts.classes or ())
        if facts.width + bool(self.deskew) > MOST_EXACT or numbers > 1 << 20:
            raise InputError(
                "images",
                f"must have at most {MOST_EXACT} pixels, fewer with very many classes",
                value=shape,
                fix="make them smaller, or use mixing",
            )
        how = plan.facts.normalise
        if not isinstance(how, PublicMap) or None in (how.low, how.high):
            raise InputError(
                "images", "need one declared range of pixels", fix="give public_range LO,HI"
            )
        check_samples(self.samples, plan)
        check_joint(plan)
        check_classes(plan, MOST_CLASSES, self.kind)
        self._check_choice(plan)

    def _check_choice(self, plan: Plan) -> None:
        if plan.chosen is None:
            return
        rank, clusters = (plan.chosen.get(name, 0) for name in ("rank", "clusters"))
        fits = 1 <= rank <= self.most_rank(plan) and 1 <= clusters <= MOST_CLUSTERS
        if len(plan.chosen) != 2 or not fits:
            raise InputError(
                "chosen rank and clusters",
                "are not possible",
                value=f"{rank} and {clusters}",
                fix="propose them again",
            )

    # -- the sums that are asked for -----------------------------------------------------------

    def choices(self, plan: Plan) -> tuple[Choice | None, ...]:
        """Each may be chosen after the class sizes are known: all have the same total noise, fixed
        in advance, and the same lines up to there, so that a filter covers the choice (Feldman,
        Zrnic 2021)."""
        return tuple(
            {"rank": rank, "clusters": clusters}
            for rank in (1, self.most_rank(plan))
            for clusters in (1, MOST_CLUSTERS)
        )

    def chosen(self, plan: Plan, records: float) -> Choice:
        """For so many records, as declared or counted with noise."""
        rank, clusters = tuned_clusters(
            records,
            len(plan.known.listed),
            min(self.most_rank(plan), self.smooth(plan)),
            MOST_CLUSTERS,
            plan.relation.moves(COUNTED) * plan.record_noise / math.sqrt(SHARES[CLUSTER_SPREADS]),
        )
        return {"rank": rank, "clusters": clusters}

    def foreseen(self, plan: Plan) -> Choice | None:
        sizes = plan.facts.class_sizes
        return None if sizes is None else self.chosen(plan, float(sum(sizes)))

    def shares(self, plan: Plan, *, rank: int, clusters: int) -> dict[str, float]:
        """Of everything, in the order in which sums are asked for."""
        sizes = sizes_share(plan.known.width)
        rest = {name: SHARES[name] for name in SHARES if name != LABELS or self.soft_labels}
        whole = sum(rest.values())
        rest = {name: share * (1.0 - sizes) / whole for name, share in rest.items()}
        if clusters == 1:
            rest[CLUSTERS] += rest.pop(NEAREST)
        found = {CLASS_SIZES: sizes, CENTRE: rest.pop(CENTRE), CENTRES: 0.0}
        part = centres_part(rank, clusters)
        for name, share in rest.items():
            clustered = name in _CLUSTERED
            found[name] = share * (1.0 - part) if clustered else share
            found[CENTRES] += share * part if clustered else 0.0
        return found

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        facts, deskewed = plan.known, bool(self.deskew)
        chosen = plan.chosen or {"rank": self.most_rank(plan), "clusters": MOST_CLUSTERS}
        classes = MOST_CLASSES if facts.classes is None else len(facts.classes)
        d, r, clusters = facts.width + deskewed, chosen["rank"] + deskewed, chosen["clusters"]
        groups, texture = classes * clusters, self.textured(plan) or d
        of = {
            CLASS_SIZES: (facts.tells_class, "class counts", 1, classes),
            CENTRE: ("images", "moments", d, 1),
            CENTRES: ("images by class, about the centre", "moments", d, classes),
            SPREAD: (
                "pairs of smooth directions, about class centres",
                "spreads",
                self.smooth(plan) ** 2,
                1,
            ),
            TEXTURE: ("pairs of pixels or directions, of what is left", "spreads", texture**2, 1),
            NEAREST: ("counts and means by nearest point", "moments", 1 + r, groups),
            CLUSTERS: ("counts and means by nearest point", "moments", 1 + r, groups),
            CLUSTER_SPREADS: ("pairs of directions by nearest point", "spreads", r**2, groups),
        }
        shares = self.shares(plan, rank=chosen["rank"], clusters=clusters)
        if self.soft_labels:
            features = features_of(self.shape(plan)) + 1
            of[LABELS] = ("gradients of a head on features", "head", features * classes, 1)
        norms = {name: 0.0 if name in _WITHOUT_NORMS else _NORMS * shares[name] for name in shares}
        lines = exactly(
            [
                each
                for name, share in shares.items()
                for each in line(
                    name,
                    *of[name],
                    share - norms[name],
                    norms=norms[name],
                    repeats=REPEATS.get(name, 1),
                    replacement_factor=replaced_moments(WEIGHTS[name]) if name in WEIGHTS else None,
                )
            ]
        )
        return lines[1:] if plan.opening or facts.class_sizes is not None else lines

    def release(self, sums: Collector) -> SyntheticRows:
        return image_rows(self, sums)

    def with_rows(self, rows: int) -> Self:
        return replace(self, samples=rows)

    def rows_made(self, plan: Plan) -> int:
        if self.samples is not None:
            return self.samples
        return TEXTURES * SMOOTH_A_RECORD * sum(plan.known.class_sizes or ())

    def bytes_a_number(self, plan: Plan) -> int:  # noqa: ARG002
        return 16

    def kept_bytes(self, plan: Plan) -> int:  # noqa: ARG002
        return 3 * MOST_KEPT  # images turned, set upright, and their features

    def message_bytes(self, plan: Plan) -> int:
        """Directions and the classes' centres, eight bytes each, in base64."""
        directions = self.most_rank(plan) + 1 + max(self.textured(plan) or 0, self.smooth(plan))
        columns = plan.known.width + bool(self.deskew)
        return columns * (directions + len(plan.known.classes or ())) * 8 * 4 // 3

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        upright = Step("deskew", Coverage.PER_ROW, "each image by its own slant")
        features = Step("features", Coverage.PER_ROW, "scattering by fixed wavelets, for the head")
        return (
            *((upright,) if self.deskew else ()),
            *((features,) if self.soft_labels else ()),
            *clipped_steps(plan, "noisy quantiles of the norms"),
        )
