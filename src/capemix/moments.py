"""The rounds of a `MomentsPlan` carried out: noisy sums, what they say, and rows drawn from it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from capemix.data.rows import LabeledRows
from capemix.data.schema import Table
from capemix.guarantee import Guarantee
from capemix.plan import Plan
from capemix.plan.moments import (
    CENTRE,
    CENTRES,
    NORMS_OF,
    SIZES,
    SPREAD,
    SPREADS,
    MomentsPlan,
)
from capemix.prepare.moments import Contribution, Frame, Moments, NormHistogram
from capemix.prepare.rows import denormalise_rows, normalise_rows
from capemix.randomness.gaussian import add_gaussian
from capemix.randomness.source import SeededSource, Source
from capemix.release import Release
from capemix.synthesizers.moments import (
    CLIPPED_AT,
    ClassGaussians,
    clamped,
    clamped_rows,
    cleaned_spread,
    own_spread,
    shrunk_centres,
    tuned_rank,
    turned,
    wigner_edge,
)
from capemix.synthesizers.tables import frequencies, picked

Real = npt.NDArray[np.float64]

SumOf = Callable[[MomentsPlan, str, Plan], npt.NDArray[np.floating[Any]]]
"""The way to a noisy sum: of which release (with its rank, once it is chosen), which of its rounds
by name, and that round's plan. What comes back is over the plan's divisor."""


def release_moments(
    plan: MomentsPlan,
    schema_of: LabeledRows,
    sum_of: SumOf,
    guarantee: Callable[[MomentsPlan], Guarantee],
    *,
    progress: Callable[[int], None] | None = None,
) -> Release:
    """Carry out a calibrated plan: one sum after the other, then rows drawn from what they say.

    Of ``schema_of`` only the public schema is read. ``guarantee`` is asked once all sums are in.
    The chance in the rows comes from the noisy sums: it hides nothing, and whoever has them draws
    the same rows.
    """
    taken = _Taking(plan, sum_of, progress)
    found = taken.moments()
    plan = replace(plan, rank=taken.rank)
    rows, labels = drawn_rows(plan, found, SeededSource(taken.digest))
    return Release(
        features=rows.astype(np.float32 if schema_of.image_shape else np.float64, copy=False),
        labels=labels,
        plan=plan,
        guarantee=guarantee(plan),
        feature_names=schema_of.feature_names,
        label_name=schema_of.label_name,
        image_shape=schema_of.image_shape,
        table=plan.table,
    )


class _Taking:
    """One round after the other; each is planned with what the ones before it found."""

    def __init__(
        self,
        plan: MomentsPlan,
        sum_of: SumOf,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._plan, self._sum_of = replace(plan, rank=None), sum_of
        self._progress = progress
        self._rounds = plan.rounds(0)
        self.rank = 0
        self._seen = hashlib.sha256()
        self._frame = Frame(plan.normalise, plan.width, len(plan.classes))

    @property
    def digest(self) -> int:
        """Of all noisy sums so far."""
        return int.from_bytes(self._seen.digest()[:16], "big")

    def moments(self) -> ClassGaussians:
        sizes = self._sizes()
        records = float(sizes.sum())
        self._choose_rank(records)
        centre = self._first(CENTRE, self._frame, by_class=False)[0][0] / records
        about = self._framed(centre=centre[None, :])
        offsets, deviation = self._first(CENTRES, about, by_class=True)
        offsets = shrunk_centres(offsets / sizes[:, None], (deviation / sizes) ** 2)
        centres = centre + offsets
        within = self._framed(centre=centres)
        spread, deviation = self._second(SPREAD, within, by_class=False)
        edge = wigner_edge(deviation / records, self._plan.width)
        variances, directions = cleaned_spread(spread[0] / records, edge)
        spreads = np.repeat(((directions * variances) @ directions.T)[None], len(sizes), axis=0)
        if self.rank:
            spreads += self._own_spreads(centres, sizes, variances, directions)
        return ClassGaussians(sizes, centres, spreads)

    def _sizes(self) -> Real:
        declared = self._plan.class_sizes
        if declared is not None:
            return np.array(declared, dtype=np.float64)
        asked = Moments(self._frame, 1.0, (1.0, 0.0, 0.0))
        return np.maximum(asked.counts(self._sum(SIZES, asked)), 1.0)

    def _choose_rank(self, records: float) -> None:
        widest = self._plan.rounds(self._plan.most_rank)
        multiplier = widest.multiplier / math.sqrt(widest.share(SPREADS))
        self.rank = tuned_rank(records, len(self._plan.classes), self._plan.most_rank, multiplier)
        self._rounds = self._plan.rounds(self.rank)
        self._plan = replace(self._plan, rank=self.rank)

    def _own_spreads(self, centres: Real, sizes: Real, variances: Real, directions: Real) -> Real:
        """What each class's spread has beyond everybody's, in the largest directions."""
        basis, scale = directions[:, -self.rank :], variances[-self.rank :] ** -0.5
        frame = self._framed(centre=centres, basis=basis, scale=scale)
        seconds, deviation = self._second(SPREADS, frame, by_class=True)
        # Clipping took the same part of everybody's length: what is left of 1, on average.
        unit = float(np.trace(seconds.sum(axis=0))) / float(sizes.sum()) / self.rank
        unit = max(unit, 1e-6)
        out = []
        for second, size in zip(seconds, sizes, strict=True):
            edge = wigner_edge(deviation / size / unit, self.rank)
            own = own_spread(second / size / unit, edge) - np.eye(self.rank)
            back = basis / scale
            out.append(back @ own @ back.T)
        return np.stack(out)

    def _framed(self, **parts: Any) -> Frame:
        return Frame(self._plan.normalise, self._plan.width, len(self._plan.classes), **parts)

    def _clip(self, name: str, frame: Frame) -> float:
        asked = NormHistogram(frame)
        found = asked.quantile(self._sum(NORMS_OF.format(name), asked), CLIPPED_AT)
        return max(found, 1e-6)

    def _first(self, name: str, frame: Frame, *, by_class: bool) -> tuple[Real, float]:
        """Sums of the clipped vectors, and the deviation of the noise on each number."""
        asked = Moments(frame, self._clip(name, frame), (0.0, 1.0, 0.0), by_class)
        return asked.totals(self._sum(name, asked)), self._deviation(name) * asked.clip

    def _second(self, name: str, frame: Frame, *, by_class: bool) -> tuple[Real, float]:
        """Sums of their squares, and the deviation of the noise on the diagonal."""
        asked = Moments(frame, self._clip(name, frame), (0.0, 0.0, 1.0), by_class)
        return asked.seconds(self._sum(name, asked)), self._deviation(name) * asked.clip**2

    def _sum(self, name: str, asked: Contribution) -> Real:
        plan = self._rounds.plan(name, classes=self._plan.classes, contribution=asked)
        sums = self._sum_of(self._plan, name, plan)
        self._seen.update(np.ascontiguousarray(sums).tobytes())
        if self._progress is not None:
            self._progress(1)
        return np.asarray(sums, dtype=np.float64) * plan.mixing.sites_averaged

    def _deviation(self, name: str) -> float:
        plan = self._rounds.plan(name)
        return float(plan.noise or 0.0) * plan.mixing.sites_averaged


def drawn_rows(
    plan: MomentsPlan, found: ClassGaussians, source: Source
) -> tuple[Real, npt.NDArray[np.int64]]:
    """Rows in the data's own units, with their labels: post-processing."""
    total = float(found.sizes.sum())
    wanted = plan.samples if plan.samples is not None else round(total)
    low, high = _range(plan)
    rows, labels = [], []
    for k, size in enumerate(found.sizes):
        count = max(1, round(wanted * float(size) / total))
        # Enough to match centre and variances after clamping, though fewer may be kept.
        normals = np.zeros((max(count, 2_000), plan.width))
        add_gaussian(normals.reshape(-1), 1.0, source.stream("normals", k))
        centre, spread = found.centres[k], found.spreads[k]
        made = (
            clamped_rows(centre, spread, normals, low, high)
            if plan.table is None
            else table_rows(plan.table, centre, spread, normals)
        )
        rows.append(made[:count])
        labels.append(np.full(count, k, dtype=np.int64))
    together = np.vstack(rows)
    denormalise_rows(together, plan.normalise)
    if plan.table is not None:
        plan.table.restore(together)
    return together, np.concatenate(labels)


def table_rows(table: Table, centre: Real, spread: Real, normals: Real) -> Real:
    """Rows of one class of a coded table, in normalised units: numbers clamped to [-1, 1], in every
    block one category."""
    deviations = turned(spread, normals)
    rows = np.empty_like(deviations)
    numbers = np.ones(table.width, dtype=bool)
    for block in table.blocks:
        numbers[block] = False
        rows[:, block] = picked(deviations[:, block], frequencies(centre[block]))
    variance = np.diag(spread)[numbers]
    rows[:, numbers] = clamped(centre[numbers], variance, deviations[:, numbers], -1.0, 1.0)
    return rows


def _range(plan: MomentsPlan) -> tuple[Real | float, Real | float]:
    """The declared or paid range, in normalised units."""
    how = plan.normalise
    if how.low is None or how.high is None:
        return -np.inf, np.inf
    ends = np.stack([np.broadcast_to(how.low, plan.width), np.broadcast_to(how.high, plan.width)])
    low, high = normalise_rows(ends, how)
    return low, high
