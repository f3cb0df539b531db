"""What one record adds to a private sum of moments: how many, where on average, how spread.

A record x of class k is normalised, taken about a centre, turned into a public basis and scaled:
    v = scale * basis^T (normalise(x) - centre_k),   clipped to norm c,
and adds, to the sums of its group (its class, its nearest of some points, or everybody),
    (a0, a1 v/c, a2 u(v)/c^2),   |.|^2 <= a0^2 + a1^2 + a2^2,
where u(v) is the upper triangle of v v^T with off-diagonal entries times sqrt(2), so |u(v)| = |v|^2
and noise on it is the same in every direction. Centre, basis, scale and points are public by the
time they are used: declared, or made of noisy sums.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.errors import InputError
from capemix.prepare.rows import Real, clip_rows, normalise_rows, truncate_rows
from capemix.prepare.steps import (
    ColumnMap,
    PublicMap,
    SiteZScore,
    normalise_as_json,
    normalise_from_json,
)

NORMS: Final = tuple(2.0 ** (step / 4) for step in range(-24, 17))
"""Norms to clip at, over the square root of the dimensions."""

_MOST_NUMBERS: Final = 1 << 24
"""In an array that a message brings: more would be a slip, or meant ill."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Where records are looked at from: v above, before clipping.

    ``centre`` has a row for every class, or one for all; ``basis`` a column for every direction
    kept (None: all columns as they are); ``scale`` a factor for each direction.
    """

    normalise: PublicMap | ColumnMap
    columns: int
    classes: int
    centre: Real | None = None
    basis: Real | None = None
    scale: Real | None = None

    def __post_init__(self) -> None:
        whole = type(self.columns) is int and type(self.classes) is int
        d = self.columns
        fits = whole and min(d, self.classes) > 0
        if fits and isinstance(self.normalise, ColumnMap):
            fits = len(self.normalise.shift) == d
        if fits and self.centre is not None:
            fits = self.centre.shape in ((1, d), (self.classes, d))
        if fits and self.basis is not None:
            fits = self.basis.ndim == 2 and self.basis.shape[0] == d
        if fits and self.scale is not None:
            fits = self.scale.shape == (self.directions,)
        if not fits:
            raise InputError(
                "a frame", "has parts of different sizes", value=d, fix="propose it again"
            )

    @property
    def directions(self) -> int:
        return self.columns if self.basis is None else self.basis.shape[1]

    def vectors(self, features: npt.NDArray[Any], labels: npt.NDArray[np.int64]) -> Real:
        rows = finite_rows(normalise_rows(features, self.normalise))
        with np.errstate(over="ignore", invalid="ignore"):
            if self.centre is not None:
                rows -= self.centre[0] if len(self.centre) == 1 else self.centre[labels]
            if self.basis is not None:
                rows = row_by_row(rows, self.basis)
            if self.scale is not None:
                rows *= self.scale
        return finite_rows(rows)


_BITS: Final = 20


def row_by_row(rows: Real, matrix: Real) -> Real:
    """rows @ matrix, in which no row's result depends on the others.

    A matrix product in floating point adds in an order that depends on how many rows there are: the
    last bit of a row would then tell of the others, and truncation makes a lattice unit of it. So
    both are first rounded to whole numbers of 20 bits, each row by its own largest entry; of up to
    4096 of them every partial sum is below 2^53, and exact in any order.
    """
    if len(matrix) > 4096:
        raise ValueError(f"a product over {len(matrix)} columns is not exact")
    by_row = _exponents(np.abs(rows).max(axis=1, initial=0.0))[:, None]
    by_matrix = _exponents(np.abs(matrix).max(initial=0.0))
    whole = np.rint(np.ldexp(rows, _BITS - by_row)) @ np.rint(np.ldexp(matrix, _BITS - by_matrix))
    return np.asarray(np.ldexp(whole, by_row + by_matrix - 2 * _BITS))


def _exponents(largest: Any) -> Any:
    """e with |x| < 2^e."""
    return np.frexp(largest)[1]


def finite_rows(rows: Real) -> Real:
    """A row that is not finite counts as zeros."""
    return np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)


@dataclass(frozen=True, eq=False)
class Moments:
    """Counts (a0), means (a1) and second moments (a2) of ``frame``'s vectors clipped to ``clip``.

    ``points``, classes by points by directions: groups are then a class's nearest points, and
    vectors are taken about them. Without, ``by_class`` says whether classes are kept apart.
    """

    frame: Frame
    clip: float
    weights: tuple[float, float, float]
    by_class: bool = True
    points: Real | None = None

    def __post_init__(self) -> None:
        sound = len(self.weights) == 3 and all(
            type(number) in (int, float) and math.isfinite(number) and number >= 0
            for number in (self.clip, *self.weights)
        )
        if not sound or self.clip <= 0 or max(self.weights) <= 0:
            raise InputError(
                "moments",
                "need a positive clip norm and weights of 0 or more",
                value=f"{self.clip}, {self.weights}",
                fix="propose them again",
            )
        points = self.points
        if points is not None and (points.ndim != 3 or len(points) != self.frame.classes):
            raise InputError(
                "points", "must be given for every class", value=points.shape, fix="propose again"
            )
        if points is not None and points.shape[2] != self.frame.directions:
            raise InputError(
                "points",
                f"must have the frame's {self.frame.directions} directions",
                value=points.shape[2],
                fix="propose them again",
            )

    @property
    def groups(self) -> int:
        if self.points is not None:
            return len(self.points) * len(self.points[0])
        return self.frame.classes if self.by_class else 1

    @property
    def width(self) -> int:
        count, mean, second = (weight > 0 for weight in self.weights)
        r = self.frame.directions
        return count + mean * r + second * (r * (r + 1) // 2)

    @property
    def bound(self) -> float:
        """The norm of what one record adds, at most."""
        return math.hypot(*self.weights)

    def group_of(self, features: npt.NDArray[Any], labels: npt.NDArray[np.int64]) -> Any:
        if self.points is None:
            return labels if self.by_class else np.where(labels >= 0, 0, -1)
        return self._nearest(self.frame.vectors(features, labels), labels)

    def _nearest(self, vectors: Real, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if self.points is None:
            raise ValueError("no points to be near to")
        out = np.full(len(labels), -1, dtype=np.int64)
        each = self.points.shape[1]
        for k, points in enumerate(self.points):
            mine = labels == k
            with np.errstate(over="ignore", invalid="ignore"):
                near = (points**2).sum(1) - 2.0 * row_by_row(vectors[mine], points.T)
            out[mine] = k * each + near.argmin(axis=1)
        return out

    def vectors(
        self,
        features: npt.NDArray[Any],
        labels: npt.NDArray[np.int64],
        group: npt.NDArray[np.int64],
    ) -> Real:
        v = self.frame.vectors(features, labels)
        if self.points is not None:
            v -= self.points.reshape(-1, v.shape[1])[group]
        v = clip_rows(v, self.clip) / self.clip
        a0, a1, a2 = self.weights
        parts = []
        if a0 > 0:
            parts.append(np.full((len(v), 1), a0))
        if a1 > 0:
            parts.append(a1 * v)
        if a2 > 0:
            parts.append(a2 * upper(v))
        return np.hstack(parts)

    def counts(self, sums: Real) -> Real:
        """From noisy sums, groups by width: how many records each group has."""
        if not self.weights[0]:
            raise ValueError("nothing was counted")
        return np.asarray(sums[:, 0] / self.weights[0])

    def totals(self, sums: Real) -> Real:
        """Sums of v, groups by directions."""
        start = int(self.weights[0] > 0)
        part = sums[:, start : start + self.frame.directions]
        return np.asarray(part * (self.clip / self.weights[1]))

    def seconds(self, sums: Real) -> Real:
        """Sums of v v^T, groups by directions by directions."""
        r = self.frame.directions
        part = sums[:, self.width - r * (r + 1) // 2 :]
        return square(part * (self.clip**2 / self.weights[2]), r)


@dataclass(frozen=True, eq=False)
class NormHistogram:
    """A 1 at the least of `NORMS`, times the root of the directions, that a record's vector does
    not exceed: what a norm to clip at is chosen by."""

    frame: Frame
    weights: tuple[float, float, float] = field(default=(1.0, 0.0, 0.0), init=False)
    groups: int = field(default=1, init=False)
    width: int = field(default=len(NORMS), init=False)
    bound: float = field(default=1.0, init=False)

    def group_of(self, _features: npt.NDArray[Any], labels: npt.NDArray[np.int64]) -> Any:
        return np.where(labels >= 0, 0, -1)

    def vectors(
        self,
        features: npt.NDArray[Any],
        labels: npt.NDArray[np.int64],
        _group: npt.NDArray[np.int64],
    ) -> Real:
        v = self.frame.vectors(features, labels)
        with np.errstate(over="ignore"):
            norms = np.sqrt(np.einsum("ij,ij->i", v, v) / v.shape[1])
        place = np.minimum(np.searchsorted(NORMS, norms), len(NORMS) - 1)
        return np.asarray(np.eye(len(NORMS))[place])

    def quantile(self, sums: Real, part: float) -> float:
        """The norm up to which ``part`` of the records lie, between the steps as if evenly."""
        counts = np.maximum(sums[0], 0.0)
        upto = np.cumsum(counts)
        if upto[-1] <= 0:
            return math.sqrt(self.frame.directions)
        place = int(np.searchsorted(upto, part * upto[-1]))
        before = upto[place] - counts[place]
        within = (part * upto[-1] - before) / max(counts[place], 1e-300)
        low = NORMS[place - 1] if place else 0.0
        return float(math.sqrt(self.frame.directions) * (low + within * (NORMS[place] - low)))


Contribution = Moments | NormHistogram

_NUMBERS: Final = 1 << 21
"""Held at a time while records are gone through, however many there are."""


@dataclass(frozen=True, eq=False)
class SummedRows:
    """What a site's records add up to, groups by width: integers, each record's part of norm
    ``lattice_norm_bound`` at most; or in real arithmetic, ``l2_norm_bound``."""

    sums: npt.NDArray[Any]
    l2_norm_bound: float
    lattice_norm_bound: int | None

    def __repr__(self) -> str:
        return f"SummedRows(shape={self.sums.shape}, l2_norm_bound={self.l2_norm_bound})"


def sum_contributions(
    features: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    asked: Contribution,
    *,
    lattice_norm_bound: int | None,
) -> SummedRows:
    """Everything that a site's records add. Memory grows with the sums, not with the records."""
    dtype = np.float64 if lattice_norm_bound is None else np.int64
    sums = np.zeros((asked.groups, asked.width), dtype=dtype)
    for group, rows in contributions(features, labels, asked, lattice_norm_bound):
        order = np.argsort(group, kind="stable")
        present, starts = np.unique(group[order], return_index=True)
        if len(present):
            sums[present] += np.add.reduceat(rows[order], starts, axis=0, dtype=dtype)
    return SummedRows(sums, asked.bound, lattice_norm_bound)


def contributions(
    features: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    asked: Contribution,
    lattice_norm_bound: int | None,
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]]:
    """Some records at a time: the group of each, and what it adds. A label below 0 drops its
    record."""
    each = max(asked.width, asked.frame.columns, asked.frame.directions, asked.groups)
    step = max(1, _NUMBERS // each)
    for start in range(0, len(labels), step):
        piece = slice(start, start + step)
        group = np.asarray(asked.group_of(features[piece], labels[piece]))
        kept = np.flatnonzero(group >= 0) + start
        group = group[kept - start]
        rows = asked.vectors(features[kept], labels[kept], group)
        rows = clip_rows(rows, asked.bound)  # whatever was computed, this is what it may be
        if lattice_norm_bound is None:
            yield group, rows
        else:
            yield (
                group,
                truncate_rows(
                    rows, l2_norm_bound=asked.bound, lattice_norm_bound=lattice_norm_bound
                ),
            )


def upper(v: Real) -> Real:
    """u(v) for every row: the upper triangle of v v^T, off the diagonal times sqrt(2)."""
    r = v.shape[1]
    out = np.empty((len(v), r * (r + 1) // 2))
    twice, start = v * math.sqrt(2.0), 0
    for i in range(r):  # a row of the triangle is a slice: no gather
        np.multiply(v[:, i : i + 1], twice[:, i:], out=out[:, start : start + r - i])
        out[:, start] = v[:, i] ** 2
        start += r - i
    return out


def square(triangles: Real, r: int) -> Real:
    """The symmetric matrices whose `upper` the rows are."""
    i, j = np.triu_indices(r)
    out = np.zeros((len(triangles), r, r))
    out[:, i, j] = triangles / np.where(i == j, 1.0, math.sqrt(2.0))
    out[:, j, i] = out[:, i, j]
    return out


# -- as messages carry it -----------------------------------------------------------------------


def contribution_as_json(asked: Contribution) -> dict[str, Any]:
    frame = asked.frame
    said: dict[str, Any] = {
        "kind": "norms",
        "frame": {
            "normalise": normalise_as_json(frame.normalise),
            "columns": frame.columns,
            "classes": frame.classes,
            **{name: array_as_json(getattr(frame, name)) for name in _ARRAYS},
        },
    }
    if isinstance(asked, Moments):
        said |= {
            "kind": "moments",
            "clip": asked.clip,
            "weights": list(asked.weights),
            "by_class": asked.by_class,
            "points": array_as_json(asked.points),
        }
    return said


def contribution_from_json(found: dict[str, Any]) -> Contribution:
    """What `contribution_as_json` wrote."""
    given = found["frame"]
    normalise = normalise_from_json(given["normalise"])
    if isinstance(normalise, SiteZScore):
        raise InputError(
            "normalise", "must be public in a sum of moments", value="site-zscore", fix="declare it"
        )
    arrays = {name: array_from_json(given[name]) for name in _ARRAYS}
    frame = Frame(normalise, given["columns"], given["classes"], **arrays)
    if found["kind"] == "norms":
        return NormHistogram(frame)
    return Moments(
        frame,
        clip=found["clip"],
        weights=tuple(found["weights"]),
        by_class=found["by_class"],
        points=array_from_json(found["points"]),
    )


_ARRAYS: Final = ("centre", "basis", "scale")


def array_as_json(values: Real | None) -> dict[str, Any] | None:
    if values is None:
        return None
    data = base64.b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode()
    return {"shape": list(values.shape), "f8": data}


def array_from_json(found: Any) -> Real | None:
    """Numbers that are finite and as many as the shape says, or an `InputError`."""
    if found is None:
        return None
    try:
        shape = tuple(found["shape"])
        if not all(type(n) is int and n > 0 for n in shape) or math.prod(shape) > _MOST_NUMBERS:
            raise ValueError("shape")
        data = base64.b64decode(found["f8"], validate=True)
        values = np.frombuffer(data, dtype="<f8").reshape(shape).astype(np.float64)
        if not np.isfinite(values).all():
            raise ValueError("not finite")
    except (KeyError, TypeError, ValueError):
        raise InputError(
            "a plan's array", "cannot be read back as it was written", fix="propose it again"
        ) from None
    return values
