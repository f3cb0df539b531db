"""What one record adds to a private sum of moments: how many, where on average, how spread.

Of its vector v in a `Projection`, clipped to norm c, it adds to the sums of its group (its class,
its point, or everybody) one of
    (a0, a1 v/c),  |.|^2 <= a0^2 + a1^2            counts and means
    v v^T / c^2,   |.| = |v|^2/c^2 <= 1            spreads
    a 1 at the least norm that v does not exceed   norms
Both halves of v v^T get noise of their own, so that their average has half the variance off the
diagonal. A projection is public by the time it is used: declared, or made of noisy sums.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from capemix import kernels
from capemix.errors import InputError
from capemix.kernels.machine import cores, in_parallel
from capemix.queries import COUNTED
from capemix.statistics.projection import (
    Codes,
    Projection,
    pieces,
    whole_rows,
    whole_scale,
)
from capemix.sums.rows import EXACT_RECORDS, STRETCH, Real, clip_rows, row_norms, truncate_rows
from capemix.sums.statistic import statistic

LEAST: Final = 1e-100
"""Of a clip norm, and of a weight that is not 0: what is divided by them stays finite."""

NORMS: Final = tuple(2.0 ** (step / 4) for step in range(-24, 17))
"""Norms to clip at, over the square root of the dimensions."""


MOST_UNDER_WAY: Final = 1 << 28
"""Bytes of sums that are under way at once, at most."""

_FEW, _MANY = 1 << 17, 1 << 20
"""Numbers held at a time while records are gone through, however many there are. Few stay near a
core; but sums are gone through each time as well."""


class _Projected:
    """A statistic of records' vectors in a projection."""

    frame: Projection

    @property
    def by_place(self) -> bool:
        """Whether each class, or each of its points, is a group of its own."""
        return False

    @property
    def columns(self) -> int:
        return self.frame.columns

    def add(self, sums: npt.NDArray[Any], v: Real, group: Codes, lattice: int | None) -> None:
        """Add what these vectors add, each to its group."""
        raise NotImplementedError

    def add_to(
        self,
        sums: npt.NDArray[Any],
        features: npt.NDArray[Any],
        labels: Codes,
        lattice: int | None,
    ) -> None:
        """Some records at a time: memory grows with the sums, and not with the records beyond what
        is kept of them (`made_once`). A label that is no class's drops its record."""
        classes, frame = self.frame.classes, self.frame
        if len(labels) and not -1 <= labels.min() <= labels.max() < classes:
            labels = np.where((labels >= 0) & (labels < classes), labels, -1)
        look, kept = frame.looking(features, labels), np.flatnonzero(labels >= 0)
        every = len(kept) == len(labels)
        lock = threading.Lock()

        def add(piece: slice) -> None:
            v, place = look(piece if every else kept[piece])
            some = np.zeros_like(sums)
            self.add(some, v, place if self.by_place else np.zeros_like(place), lattice)
            with lock:
                np.add(sums, some, out=sums)

        numbers, at_once = _MANY, 1
        if lattice is not None:
            # Whole numbers add up to the same in any order, real ones in that of the records only.
            numbers = min(max(_FEW, sums.size), _MANY)
            at_once = min(cores(), max(1, MOST_UNDER_WAY // max(sums.nbytes, 1)))
        step = max(1, numbers // max(frame.columns, frame.places, len(NORMS)))
        in_parallel(add, pieces(len(kept), step), at_once, numbers=len(kept) * frame.columns)


@statistic
@dataclass(frozen=True, eq=False)
class Moments(_Projected):
    """Counts (a0) and means (a1) of ``frame``'s vectors clipped to ``clip``, for every place, or
    without ``apart`` for all together."""

    frame: Projection
    clip: float
    weights: tuple[float, float]
    apart: bool = True
    kind: Literal["moments"] = "moments"

    def __post_init__(self) -> None:
        _check_clip(self.clip, *self.weights)
        if len(self.weights) != 2 or max(self.weights) <= 0:
            raise InputError(
                "moments",
                "need a weight of the count and one of the mean, not both 0",
                value=self.weights,
                fix="propose them again",
            )

    @property
    def by_place(self) -> bool:
        return self.apart

    @property
    def groups(self) -> int:
        return self.frame.places if self.apart else 1

    @property
    def width(self) -> int:
        count, mean = (weight > 0 for weight in self.weights)
        return count + mean * self.frame.directions

    @property
    def l2_norm_bound(self) -> float:
        """The norm of what one record adds, at most."""
        return math.hypot(*self.weights)

    @property
    def replacement_factor(self) -> float:
        return replaced_moments(self.weights)

    def add(self, sums: npt.NDArray[Any], v: Real, group: Codes, lattice: int | None) -> None:
        a0, a1 = self.weights
        parts = []
        if a0 > 0:
            parts.append(np.full((len(v), 1), a0))
        if a1 > 0:
            mean = clip_rows(v, self.clip)
            mean /= self.clip
            mean *= a1
            parts.append(mean)
        rows = parts[0] if len(parts) == 1 else np.hstack(parts)
        _add_rows(sums, _bounded(rows, self.l2_norm_bound, lattice), group)

    def counts(self, sums: Real) -> Real:
        """From noisy sums, groups by width: how many records each group has."""
        if not self.weights[0]:
            raise ValueError("nothing was counted")
        return np.asarray(sums[:, 0] / self.weights[0])

    def totals(self, sums: Real) -> Real:
        """Sums of v, groups by directions."""
        return np.asarray(sums[:, int(self.weights[0] > 0) :] * (self.clip / self.weights[1]))


@statistic
@dataclass(frozen=True, eq=False)
class Spreads(_Projected):
    """v v^T of ``frame``'s vectors clipped to ``clip``, for every place or for all together.

    On the lattice v/c is rounded to whole numbers of norm B at most, B^2 being the sum's lattice
    norm bound: the sum of products is then one product of whole numbers, which is exact.
    """

    frame: Projection
    clip: float
    apart: bool = True
    kind: Literal["spreads"] = "spreads"

    def __post_init__(self) -> None:
        _check_clip(self.clip)

    replacement_factor: ClassVar = COUNTED

    @property
    def l2_norm_bound(self) -> float:
        return 1.0

    @property
    def by_place(self) -> bool:
        return self.apart

    @property
    def groups(self) -> int:
        return self.frame.places if self.apart else 1

    @property
    def width(self) -> int:
        return self.frame.directions**2

    def add(self, sums: npt.NDArray[Any], v: Real, group: Codes, lattice: int | None) -> None:
        if v.shape[1] != self.frame.directions:
            raise ValueError("vectors of another frame")
        unit: npt.NDArray[Any] = clip_rows(v, self.clip) / self.clip
        if lattice is None:
            unit = clip_rows(unit, self.l2_norm_bound)
        else:
            unit = whole_rows(unit, math.isqrt(lattice)).astype(np.float32)
        for place in np.unique(group):
            mine = unit[group == place]
            for some in pieces(len(mine), EXACT_RECORDS):
                sums[place] += (mine[some].T @ mine[some]).ravel().astype(sums.dtype)

    def unit(self, lattice: int | None) -> float:
        """What a 1 in the sums is, of v v^T."""
        if lattice is None:
            return self.clip**2
        return self.clip**2 * lattice / whole_scale(math.isqrt(lattice), self.frame.directions) ** 2

    def seconds(self, sums: Real, lattice: int | None) -> Real:
        """Sums of v v^T, groups by directions by directions."""
        r = self.frame.directions
        squares = sums.reshape(-1, r, r) * self.unit(lattice)
        return np.asarray((squares + squares.transpose(0, 2, 1)) / 2)


@statistic
@dataclass(frozen=True, eq=False)
class NormHistogram(_Projected):
    """A 1 in the group of the least of `NORMS`, times the root of the directions, that a record's
    vector does not exceed: what a norm to clip at is chosen by. Not one vector of them all, whose
    lattice would be finer than counts need, and its noise tables long."""

    frame: Projection
    kind: Literal["norms"] = "norms"

    groups: ClassVar = len(NORMS)
    width: ClassVar = 1
    l2_norm_bound: ClassVar = 1.0
    replacement_factor: ClassVar = COUNTED
    octave: ClassVar = 4
    """Neighbouring groups whose norms are within a factor of 2."""

    def add(self, sums: npt.NDArray[Any], v: Real, _group: Codes, lattice: int | None) -> None:
        norms = row_norms(v) / math.sqrt(v.shape[1])
        place = np.minimum(np.searchsorted(NORMS, norms), len(NORMS) - 1)
        one = _bounded(np.ones((1, 1)), 1.0, lattice)
        _add_rows(sums, np.repeat(one, len(place), axis=0), place)

    def quantile(self, sums: Real, part: float) -> float:
        """The norm up to which ``part`` of the records lie, between the steps as if evenly."""
        counts = np.maximum(sums[:, 0], 0.0)
        upto = np.cumsum(counts)
        if upto[-1] <= 0:
            return math.sqrt(self.frame.directions)
        place = int(np.searchsorted(upto, part * upto[-1]))
        before = upto[place] - counts[place]
        within = (part * upto[-1] - before) / max(counts[place], 1e-300)
        low = NORMS[place - 1] if place else 0.0
        return float(math.sqrt(self.frame.directions) * (low + within * (NORMS[place] - low)))


def replaced_moments(weights: tuple[float, float]) -> float:
    """How far a replaced record moves counts and means, over their norm bound: within its group the
    count stays and its mean goes from one end to the other, as long as rounding lets it be; or it
    goes to another group."""
    within = 2.0 * weights[1] * (1.0 + STRETCH) / math.hypot(*weights)
    return min(max(within, COUNTED), 2.0)


def _check_clip(clip: float, *weights: float) -> None:
    numbers = (clip, *weights)
    sound = all(type(n) in (int, float) and (n == 0 or LEAST <= n < math.inf) for n in numbers)
    if not sound or clip <= 0:
        raise InputError(
            "moments",
            "need a positive clip norm and weights of 0 or more",
            value=f"{clip}, {weights}",
            fix="propose them again",
        )


def _bounded(rows: Real, bound: float, lattice: int | None) -> npt.NDArray[Any]:
    """Whatever was computed, it may be no more: clipped again, or on the lattice counted."""
    if lattice is None:
        return clip_rows(rows, bound)
    return truncate_rows(rows, l2_norm_bound=bound, lattice_norm_bound=lattice)


def _add_rows(sums: npt.NDArray[Any], added: npt.NDArray[Any], group: Codes) -> None:
    if sums.dtype == np.int64:
        kernels.active().add_by_group(added, group, sums)
        return
    order = np.argsort(group, kind="stable")
    present, starts = np.unique(group[order], return_index=True)
    if len(present):
        sums[present] += np.add.reduceat(added[order], starts, axis=0)
