"""Images drawn by a small network that private sums of gradients have taught to take noise off."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from capemix.errors import InputError
from capemix.methods import method
from capemix.methods.base import Choice, Method, SyntheticRows
from capemix.methods.class_gaussian import check_samples
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.image_clusters.estimate import LABELS
from capemix.methods.image_diffusion.settings import (
    CLIP,
    CLUSTERS_PART,
    GRADIENTS,
    LABELS_PART,
    RATE,
    ROUNDS,
    between,
)
from capemix.methods.shares import exactly
from capemix.queries import QueryShape
from capemix.statistics.denoising import Network
from capemix.sums.steps import Coverage, Step

if TYPE_CHECKING:
    from capemix.collector import Collector
    from capemix.plan import Plan


@method
@dataclass(frozen=True)
class ImageDiffusion(Method):
    """``samples`` images; None: twice as many as there are records, by their noisy count. Half of
    them, and with more budget nine tenths, are drawn by the network, and the rest from the clusters
    that it began with."""

    summary: ClassVar[str] = "A network that takes noise off, for images that look real (GPU)."
    needs: ClassVar[str | None] = "torch"
    kind: Literal["image-diffusion"] = "image-diffusion"
    samples: int | None = field(
        default=None,
        metadata={
            "help": "Synthetic rows, over all classes [default: twice as many as there are"
            " records, by their noisy count]."
        },
    )
    deskew: bool | None = field(
        default=None,
        metadata={
            "help": "Begin with images set upright by their own slant, for handwriting [default:"
            " for a dataset that is known to be handwriting]."
        },
    )
    rounds: int | None = field(
        default=None,
        metadata={"help": "Sums of gradients [default: 300 at epsilon 1, 600 at epsilon 10]."},
    )
    channels: int = field(
        default=64, metadata={"help": "Of the network on its finer grid, which says its size."}
    )
    noises: int = field(
        default=4, metadata={"help": "Noises that an image is looked at with, each time."}
    )
    warm_steps: int = field(
        default=4000, metadata={"help": "Steps of training on images drawn from the clusters."}
    )

    def __post_init__(self) -> None:
        numbers = (self.rounds or 1, self.channels, self.noises, self.warm_steps)
        if any(type(number) is not int or not 1 <= number <= 100_000 for number in numbers):
            raise InputError(
                "rounds, channels, noises and warm_steps",
                "must be whole numbers from 1 to 100,000",
                value=", ".join(map(str, numbers)),
                fix="leave them out",
            )
        if self.channels % 4:
            raise InputError(
                "channels", "must be a multiple of four", value=self.channels, fix="try 64"
            )

    # -- public numbers ------------------------------------------------------------------------

    @cached_property
    def clusters(self) -> ImageClusters:
        """What it begins with, and the teacher."""
        return ImageClusters(samples=self.samples, soft_labels=True, deskew=self.deskew)

    def network(self, plan: Plan) -> Network:
        shape = self.clusters.shape(plan)
        return Network(
            shape,
            max(2, len(plan.known.classes or ())),
            self.channels,
            2 * self.channels,
            self.noises,
        )

    def rounds_of(self, plan: Plan) -> int:
        if self.rounds is not None:
            return self.rounds
        return round(math.exp(between(plan, *map(math.log, ROUNDS))))

    def check(self, plan: Plan) -> None:
        if plan.facts.rows_per_person is not None:
            raise InputError(
                "rows_per_person",
                "has no meaning for image-diffusion, which draws records one by one",
                value=plan.facts.rows_per_person,
                fix="leave it out, with one image a person, or use image-clusters",
            )
        self.clusters.check(plan)
        self.network(plan)
        check_samples(self.samples, plan)

    def choices(self, plan: Plan) -> tuple[Choice | None, ...]:
        return self.clusters.choices(plan)

    def foreseen(self, plan: Plan) -> Choice | None:
        return self.clusters.foreseen(plan)

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        lines = self.clusters.outline(plan)
        opening = between(plan, *CLUSTERS_PART)
        own = sum(line.share for line in lines if line.name != LABELS)
        scaled = [replace(line, share=line.share * opening / own) for line in lines[:-1]]
        network = self.network(plan)
        gradients = QueryShape(
            GRADIENTS,
            "gradients of a network on images, drawn and shortened",
            "denoising gradients",
            network.weights,
            l2_norm_bound=CLIP,
            share=1.0 - opening - LABELS_PART,
            repeats=self.rounds_of(plan),
            draws=(RATE,),
        )
        return exactly([*scaled, gradients, replace(lines[-1], share=LABELS_PART)])

    def release(self, sums: Collector) -> SyntheticRows:
        from capemix.methods.image_diffusion.rounds import diffused_rows

        return diffused_rows(self, sums)

    def rows_made(self, plan: Plan) -> int:
        if self.samples is not None:
            return self.samples
        return 2 * sum(plan.known.class_sizes or ())

    def bytes_a_number(self, plan: Plan) -> int:
        return self.clusters.bytes_a_number(plan)

    def kept_bytes(self, plan: Plan) -> int:
        """What the clusters and the teacher keep, and some gradients."""
        return self.clusters.kept_bytes(plan) + 400 * self.network(plan).weights

    def message_bytes(self, plan: Plan) -> int:
        weights = self.network(plan).weights * 8 * 4 // 3
        return max(self.clusters.message_bytes(plan), weights)

    def steps(self, plan: Plan) -> tuple[Step, ...]:
        shortened = Step(
            "gradients", Coverage.PER_ROW, f"l2 norm at most {CLIP:g}, in whole numbers"
        )
        return (*self.clusters.steps(plan), shortened)
