"""Rows made ready for a private sum: normalised, clipped, truncated onto the integer lattice.

Every rule looks at one row at a time (except the paper's z-score), so a bad row can neither stop a
site nor change what is done to the others: a row that is not finite becomes zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix import kernels
from capemix.prepare.steps import ColumnMap, Coverage, Normalise, PublicMap, SiteZScore, Step

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


@dataclass(frozen=True, eq=False)
class PreparedRows:
    """One site's rows by class (or in one group of all), none longer than its bound.

    On the lattice ``by_class`` holds int16 arrays and the bound is ``lattice_norm_bound`` units;
    in real arithmetic it holds float64 arrays, bounded by ``l2_norm_bound``.
    """

    by_class: tuple[npt.NDArray[Any], ...]
    l2_norm_bound: float
    lattice_norm_bound: int | None

    def __repr__(self) -> str:
        return f"PreparedRows(classes={len(self.by_class)}, l2_norm_bound={self.l2_norm_bound})"


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
    if isinstance(how, SiteZScore):
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
    how: PublicMap | ColumnMap,
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


def denormalise_rows(rows: npt.NDArray[np.floating[Any]], how: PublicMap | ColumnMap) -> None:
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


def prepare_rows(
    features: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    classes: int,
    preparation: Preparation,
    *,
    label_columns: bool,
    lattice_norm_bound: int | None,
    one_pool: bool = False,
) -> PreparedRows:
    """One site's rows by class, or with ``one_pool`` in one group of all.

    ``label_columns`` appends the one-hot label (the paper's form). A label off the list of classes
    drops its row.
    """
    normalise = preparation.normalise
    if isinstance(normalise, SiteZScore):
        features, normalise = normalise_rows(features, normalise), PublicMap()
    per_chunk = Preparation(normalise, preparation.clip)
    width = features.shape[1] + (classes if label_columns else 0)
    bound = float(np.sqrt(preparation.clip**2 + 1.0)) if label_columns else preparation.clip
    by_class: list[npt.NDArray[Any]] = []
    codes = np.arange(classes)
    for group in [codes] if one_pool else codes[:, None]:
        members = np.flatnonzero(np.isin(labels, group))
        dtype = np.float64 if lattice_norm_bound is None else np.int16
        out: npt.NDArray[Any] = np.empty((len(members), width), dtype=dtype)
        for start in range(0, len(members), _CHUNK):
            chunk = members[start : start + _CHUNK]
            rows = per_chunk.apply(features[chunk])
            if label_columns:
                rows = np.hstack([rows, np.eye(classes)[labels[chunk]]])
            out[start : start + len(rows)] = (
                rows
                if lattice_norm_bound is None
                else truncate_rows(rows, l2_norm_bound=bound, lattice_norm_bound=lattice_norm_bound)
            )
        by_class.append(out)
    return PreparedRows(tuple(by_class), bound, lattice_norm_bound)
