"""Rows made ready for a private sum: normalised, clipped, truncated onto the integer lattice.

Every rule looks at one row at a time (except the paper's z-score), so a bad row can neither stop a
site nor change what is done to the others: a row that is not finite becomes zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from capemix import kernels
from capemix.errors import InputError
from capemix.sums.statistic import PreparedRows, statistic
from capemix.sums.steps import (
    Coverage,
    DeclaredMap,
    Normalise,
    SiteZScore,
    Step,
)

MAX_LATTICE_NORM: Final = 32_767
"""Rows are stored as 16-bit integers: narrow rows move fewer bytes."""

STRETCH: Final = 1e-10
"""Of rows before they are truncated: (1 + STRETCH)^2 L^2 < L^2 + 1 for every lattice norm L."""

EXACT_RECORDS: Final = (1 << 24) // MAX_LATTICE_NORM
"""What so many records add to one number stays below 2^24: single precision is exact."""

LATTICE_STEP: Final = Step(
    "lattice", Coverage.PER_ROW, "truncated toward zero, norm checked in integers"
)

_CHUNK: Final = 4096

Real = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Preparation:
    """How rows are prepared: the same for every site, fixed before any row is read."""

    normalise: Normalise
    clip: float

    @property
    def steps(self) -> tuple[Step, ...]:
        return (
            self.normalise.step,
            Step("clip", Coverage.PER_ROW, f"l2 norm at most {self.clip:g}"),
        )

    def apply(self, features: npt.NDArray[Any]) -> Real:
        """Normalise and clip."""
        return clip_rows(normalise_rows(features, self.normalise), self.clip)


def normalise_rows(features: npt.NDArray[Any], how: Normalise) -> Real:
    rows = features.astype(np.float64)
    if not isinstance(how, DeclaredMap):
        if not len(rows):
            return rows
        deviation = rows.std(axis=0)
        rows -= rows.mean(axis=0)
        rows /= np.where(deviation > 0, deviation, 1.0)
        return rows
    with np.errstate(over="ignore", invalid="ignore"):  # such a row will count as zeros
        if how.low is not None and how.high is not None:
            np.clip(rows, _floats(how.low), _floats(how.high), out=rows)
        rows -= _floats(how.shift)
        rows /= _floats(how.scale)
    return rows


def centred_rows(
    features: npt.NDArray[Any],
    how: DeclaredMap,
    centres: Real,
    which: npt.NDArray[np.int64],
) -> Real:
    """Normalised, each less its own of the centres; a row that is not finite counts as zeros."""
    rows = np.ascontiguousarray(features, dtype=np.float64)
    out = np.empty(rows.shape)
    low, high = (-np.inf, np.inf) if how.low is None or how.high is None else (how.low, how.high)
    columns = np.empty((4, rows.shape[1]))
    for column, part in zip(columns, (low, high, how.shift, how.scale), strict=True):
        column[:] = part
    kernels.active().centred(rows, columns, np.ascontiguousarray(centres), which, out)
    return out


def _floats(values: float | tuple[float, ...]) -> Real:
    """Whole numbers too, however long."""
    return np.asarray(values, dtype=np.float64)


def denormalise_rows(rows: npt.NDArray[np.floating[Any]], how: DeclaredMap) -> None:
    """In place, back to the data's own units and inside the declared range: post-processing."""
    rows *= how.scale
    rows += how.shift
    if how.low is not None and how.high is not None:
        np.clip(rows, how.low, how.high, out=rows)


def row_norms(rows: npt.NDArray[np.floating[Any]]) -> npt.NDArray[Any]:
    """Each row's l2 norm, which is its own to the last bit."""
    rows = np.ascontiguousarray(rows)
    out = np.empty(len(rows), dtype=rows.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        kernels.active().squared_norms(rows, out)
        return np.asarray(np.sqrt(out))


def clip_rows(rows: Real, bound: float) -> Real:
    """x * min(1, bound / |x|): no row's l2 norm exceeds ``bound``, rounding included."""
    slack = 1.0 - max(1e-12, 4e-16 * rows.shape[1])  # more than the rounding of norm and product
    out = np.empty(rows.shape)
    kernels.active().clipped(np.ascontiguousarray(rows, dtype=np.float64), bound * slack, out)
    return out


def truncate_rows(
    rows: Real, *, l2_norm_bound: float, lattice_norm_bound: int
) -> npt.NDArray[np.int16]:
    """Toward zero onto the lattice, after a stretch by 1 + `STRETCH`: the norm does not pass the
    bound, since its square is whole and less than bound^2 + 1. Checked in integers all the same.

    A number that clipping or rounding left just under a whole one counts as that, so that a record
    of exactly the bound adds all of it (up to 250,000 columns, where clipping takes more off).
    """
    scale = lattice_norm_bound / l2_norm_bound * (1.0 + STRETCH)
    whole = np.empty(rows.shape, dtype=np.int16)
    # Too long is unreachable for clipped rows; a row over its bound must not count.
    rows = np.ascontiguousarray(rows, dtype=np.float64)
    kernels.active().truncated(rows, scale, lattice_norm_bound, whole)
    return whole


@statistic
@dataclass(frozen=True)
class ClippedRows:
    """Each record's row, normalised and clipped to norm ``clip``; for each of ``classes`` apart, or
    with ``one_pool`` for all together.

    ``label_columns`` appends the one-hot label (as DP-CDA was published). A label off the list of
    classes drops its row.
    """

    columns: int
    classes: int
    normalise: DeclaredMap
    clip: float
    label_columns: bool = False
    one_pool: bool = False
    kind: Literal["rows"] = "rows"

    def __post_init__(self) -> None:
        if not 1e-100 < self.clip < 1e100 or min(self.columns, self.classes) < 1:
            raise InputError(
                "rows",
                "need columns, classes and a positive norm to be clipped to",
                value=f"{self.columns}, {self.classes}, {self.clip:g}",
                fix="propose them again",
            )

    @property
    def groups(self) -> int:
        return 1 if self.one_pool else self.classes

    @property
    def width(self) -> int:
        return self.columns + (self.classes if self.label_columns else 0)

    @property
    def l2_norm_bound(self) -> float:
        return float(np.sqrt(self.clip**2 + 1.0)) if self.label_columns else self.clip

    @property
    def replacement_factor(self) -> float:
        return replaced_rows(self.clip, labelled=self.label_columns)

    def rows_by_group(
        self, features: npt.NDArray[Any], labels: npt.NDArray[np.int64], lattice: int | None
    ) -> PreparedRows:
        per_chunk, bound = Preparation(self.normalise, self.clip), self.l2_norm_bound
        by_group: list[npt.NDArray[Any]] = []
        codes = np.arange(self.classes)
        for group in [codes] if self.one_pool else codes[:, None]:
            members = np.flatnonzero(np.isin(labels, group))
            dtype = np.float64 if lattice is None else np.int16
            out: npt.NDArray[Any] = np.empty((len(members), self.width), dtype=dtype)
            for start in range(0, len(members), _CHUNK):
                chunk = members[start : start + _CHUNK]
                rows = per_chunk.apply(features[chunk])
                if self.label_columns:
                    rows = np.hstack([rows, np.eye(self.classes)[labels[chunk]]])
                out[start : start + len(rows)] = (
                    rows
                    if lattice is None
                    else truncate_rows(rows, l2_norm_bound=bound, lattice_norm_bound=lattice)
                )
            by_group.append(out)
        return PreparedRows(tuple(by_group), bound, lattice)

    def add_to(
        self,
        sums: npt.NDArray[Any],
        features: npt.NDArray[Any],
        labels: npt.NDArray[np.int64],
        lattice: int | None,
    ) -> None:
        for total, rows in zip(
            sums, self.rows_by_group(features, labels, lattice).by_group, strict=True
        ):
            total += rows.sum(axis=0, dtype=sums.dtype)


def replaced_rows(clip: float, *, labelled: bool) -> float:
    """How far a replaced record moves a sum of rows, over their norm bound: from one end to the
    other; with labels the row does and one label takes another's place, and each may be as much
    longer as rounding lets it."""
    if not labelled:
        return 2.0
    return min(math.sqrt(4 * clip**2 + 2) / math.hypot(clip, 1.0) * (1.0 + STRETCH), 2.0)


@dataclass(frozen=True)
class ZScoredRows:
    """The paper's: rows normalised by the mean and deviation of all of a site's rows, and only then
    clipped, as ``rows`` says. What one record adds depends on the others: no sound guarantee covers
    it, and no message carries it to a site."""

    rows: ClippedRows
    kind: Literal["z-scored rows"] = "z-scored rows"

    @property
    def columns(self) -> int:
        return self.rows.columns

    @property
    def groups(self) -> int:
        return self.rows.groups

    @property
    def width(self) -> int:
        return self.rows.width

    @property
    def l2_norm_bound(self) -> float:
        return self.rows.l2_norm_bound

    @property
    def replacement_factor(self) -> float:
        return self.rows.replacement_factor

    def rows_by_group(
        self, features: npt.NDArray[Any], labels: npt.NDArray[np.int64], lattice: int | None
    ) -> PreparedRows:
        return self.rows.rows_by_group(normalise_rows(features, SiteZScore()), labels, lattice)

    def add_to(
        self,
        sums: npt.NDArray[Any],
        features: npt.NDArray[Any],
        labels: npt.NDArray[np.int64],
        lattice: int | None,
    ) -> None:
        self.rows.add_to(sums, normalise_rows(features, SiteZScore()), labels, lattice)


def bounded_rows(rows: Real, bound: float, lattice: int | None) -> npt.NDArray[Any]:
    """Rows of norm ``bound`` at most, on the lattice if there is one: whatever was computed before,
    no record adds more."""
    rows = clip_rows(rows, bound)
    if lattice is None:
        return rows
    return truncate_rows(rows, l2_norm_bound=bound, lattice_norm_bound=lattice)
