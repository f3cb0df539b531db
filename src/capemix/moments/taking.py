"""Noisy sums taken one after the other, each planned with what the ones before it found."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from capemix.plan import Plan
from capemix.plan.moments import MomentsPlan
from capemix.plan.shares import NORMS_OF, SIZES
from capemix.prepare.frame import Frame
from capemix.prepare.moments import Contribution, Moments, NormHistogram, Spreads
from capemix.synthesizers.moments import shrunk_sizes
from capemix.synthesizers.told import listed, stands_out, told_sizes

Real = npt.NDArray[np.float64]

SumOf = Callable[[MomentsPlan, str, Plan], npt.NDArray[np.floating[Any]]]
"""The way to a noisy sum: of which release (with its rank, once it is chosen), which of its rounds
by name, and that round's plan. What comes back is over the plan's divisor."""


class Taking:
    """The rounds of a release, up to where they are taken. ``plan`` has what is chosen on the way;
    ``digest`` is one of all noisy sums so far, ``warnings`` what could not be told from noise."""

    def __init__(
        self,
        plan: MomentsPlan,
        sum_of: SumOf,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.plan = replace(plan, rank=None, clusters=None)
        self._sum_of, self._progress = sum_of, progress
        self._rounds = self.plan.chosen_rounds()
        self._seen = hashlib.sha256()
        self._said: list[str] = []
        self._norms_untold: list[str] = []

    @property
    def warnings(self) -> tuple[str, ...]:
        norms: tuple[str, ...] = ()
        if self._norms_untold:
            norms = (
                f"norms: for the {listed(self._norms_untold)} they cannot be told from noise;"
                " the root of the number of directions stands in for a quantile of them",
            )
        return (*self._said, *norms)

    def warn(self, *said: str) -> None:
        self._said += said

    @property
    def digest(self) -> int:
        return int.from_bytes(self._seen.digest()[:16], "big")

    def sizes(self) -> Real:
        """Each class's, declared or counted."""
        declared = self.plan.class_sizes
        if declared is not None:
            return np.array(declared, dtype=np.float64)
        asked = Moments(self.frame(), 1.0, (1.0, 0.0))
        counts, deviation = asked.counts(self.sum(SIZES, asked)), self.deviation(SIZES)
        shrunk = shrunk_sizes(counts, deviation)
        sizes, said = told_sizes(counts, shrunk, deviation, self.plan.classes)
        self.warn(*said)
        return sizes

    def choose(self, rank: int, clusters: int = 1) -> None:
        """Once, after the sizes."""
        self.plan = replace(self.plan, rank=rank, clusters=clusters)
        self._rounds = self.plan.chosen_rounds()

    def noise_multiplier(self, name: str) -> float:
        """Of a round's sum, over what a record adds; as the strongest view has it."""
        return float(self._rounds.multiplier / self._rounds.share(name) ** 0.5)

    def frame(self, **parts: Any) -> Frame:
        plan = self.plan
        if plan.images is not None and plan.images.upright:
            parts["upright"] = plan.images.shape
        return Frame(plan.normalise, plan.width, len(plan.classes), **parts)

    def clip(self, name: str, frame: Frame, part: float) -> float:
        """The norm that ``part`` of the records do not exceed, from a round of its own."""
        asked, norms = NormHistogram(frame), NORMS_OF.format(name)
        sums = self.sum(norms, asked)
        if not stands_out(sums[:, 0], self.deviation(norms), asked.octave):
            self._norms_untold.append(name)
            return math.sqrt(frame.directions)
        return max(asked.quantile(sums, part), 1e-6)

    def first(self, name: str, frame: Frame, part: float, *, apart: bool) -> tuple[Real, float]:
        """Sums of the clipped vectors, and the deviation of the noise on each number."""
        asked = Moments(frame, self.clip(name, frame, part), (0.0, 1.0), apart)
        return asked.totals(self.sum(name, asked)), self.deviation(name) * asked.clip

    def second(self, name: str, asked: Spreads) -> tuple[Real, float]:
        """Sums of their products, and the deviation of the noise on the diagonal."""
        lattice = self.lattice(name)
        found = asked.seconds(self.sum(name, asked), lattice)
        return found, self.deviation(name) * asked.unit(lattice)

    def sum(self, name: str, asked: Contribution) -> Real:
        plan = self._rounds.plan(name, classes=self.plan.classes, contribution=asked)
        sums = self._sum_of(self.plan, name, plan)
        self._seen.update(np.ascontiguousarray(sums).tobytes())
        if self._progress is not None:
            self._progress(1)
        return np.asarray(sums, dtype=np.float64) * plan.mixing.sites_averaged

    def deviation(self, name: str) -> float:
        """Of the noise on a sum's numbers, in what `sum` returns."""
        plan = self._rounds.plans[name]
        return float(plan.noise or 0.0) * plan.mixing.sites_averaged

    def lattice(self, name: str) -> int | None:
        return self._rounds.plans[name].lattice_norm_bound
