"""Sums of what records look like in a projection, each clipped at a quantile of their norms that a
sum of its own finds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.collector import Collector
from capemix.facts import CLASS_SIZES
from capemix.methods.gaussians import shrunk_sizes
from capemix.methods.measured import class_counts
from capemix.methods.told import listed, stands_out, told_sizes
from capemix.queries import COUNTED, SIGNED, QueryShape
from capemix.statistics.moments import NORMS, Moments, NormHistogram, Spreads
from capemix.statistics.projection import Projection
from capemix.sums.steps import DeclaredMap

Real = npt.NDArray[np.float64]

NORMS_OF: Final = "norms for the {}"


def line(
    name: str,
    reads: str,
    statistic: str,
    width: int,
    groups: int,
    share: float,
    *,
    norms: float = 0.0,
    repeats: int = 1,
    replacement_factor: float | None = None,
) -> tuple[QueryShape, ...]:
    """A sum's line of the outline, and before it, if it has a share of ``norms``, that of the norm
    it is clipped at. A replaced record moves sums of moments from one end to the other, and counts
    and products by less, unless ``replacement_factor`` says it."""
    if replacement_factor is None:
        replacement_factor = COUNTED if statistic in ("spreads", "class counts") else SIGNED
    found: tuple[QueryShape, ...] = ()
    if norms:
        found += (
            QueryShape(
                NORMS_OF.format(name),
                "each record's norm",
                "norms",
                1,
                len(NORMS),
                share=norms,
                replacement_factor=COUNTED,
            ),
        )
    own = QueryShape(
        name,
        reads,
        statistic,
        width,
        groups,
        share=share,
        repeats=repeats,
        replacement_factor=replacement_factor,
    )
    return (*found, own)


@dataclass(eq=False)
class ProjectedSums:
    """Asks a collector for sums in projections of its plan's rows. ``upright`` is the shape of
    images that are set upright first."""

    sums: Collector
    upright: tuple[int, int] | None = None
    _norms_untold: list[str] = field(default_factory=list)

    def projection(self, **parts: Any) -> Projection:
        """How rows are looked at: ``parts`` are a `Projection`'s."""
        facts = self.sums.plan.known
        if not isinstance(facts.normalise, DeclaredMap):
            raise ValueError("the columns' ranges are not known yet")
        return Projection(
            facts.normalise, facts.width, len(facts.listed), upright=self.upright, **parts
        )

    def sizes(self) -> Real:
        """Each class's size: declared, measured by the opening, or counted now. At least 1, since
        sums are divided by them."""
        facts = self.sums.plan.known
        if facts.class_sizes is not None:
            return np.maximum(np.array(facts.class_sizes, dtype=np.float64), 1.0)
        counts = class_counts(self.sums, facts)
        deviation = self.sums.noise_on(CLASS_SIZES)
        shrunk = shrunk_sizes(counts, deviation)
        sizes, said = told_sizes(counts, shrunk, deviation, facts.class_words)
        self.sums.warn(*said)
        return sizes

    def clip(self, name: str, frame: Projection, part: float) -> float:
        """The norm that ``part`` of the records do not exceed, from a sum of its own."""
        asked, norms = NormHistogram(frame), NORMS_OF.format(name)
        found = self.sums.ask(norms, asked)
        if not stands_out(found[:, 0], self.sums.noise_on(norms), asked.octave):
            self._norms_untold.append(name)
            return math.sqrt(frame.directions)
        return max(asked.quantile(found, part), 1e-6)

    def first(
        self, name: str, frame: Projection, part: float, *, apart: bool
    ) -> tuple[Real, float]:
        """Sums of the clipped vectors, and the deviation of the noise on each number."""
        asked = Moments(frame, self.clip(name, frame, part), (0.0, 1.0), apart)
        return asked.totals(self.sums.ask(name, asked)), self.sums.noise_on(name) * asked.clip

    def second(self, name: str, asked: Spreads) -> tuple[Real, float]:
        """Sums of their products, and the deviation of the noise on the diagonal."""
        lattice = self.sums.lattice(name)
        found = asked.seconds(self.sums.ask(name, asked), lattice)
        return found, self.sums.noise_on(name) * asked.unit(lattice)

    def warn_of_norms(self) -> None:
        """Say which norms could not be told from noise."""
        if self._norms_untold:
            self.sums.warn(
                f"norms: for the {listed(self._norms_untold)} they cannot be told from noise;"
                " the root of the number of directions stands in for a quantile of them"
            )
