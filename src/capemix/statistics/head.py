"""What one image adds to the training of a linear head on its scattering features.

An image x is first smoothed (what is left of it in the smoothest directions about a public centre),
as the rows are that the head will label; then its features f(x), freed of public channel means and
deviations, are scaled to norm 1 together with a constant. With weights W the head says
    p = softmax(LENGTH W^T f(x)),   and the record's gradient is   f(x) (p - e_y)^T,
of which the second factor is shortened to norm 1 / LENGTH at most and multiplied by it: so that
    |what a record adds| <= |f(x)| <= 1.
On the lattice both factors are whole numbers, of norms B1 and B2 at most with B1 B2 no more than
the sum's lattice norm bound: the sum of products is exact, and never made record by record.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from scipy import linalg

from capemix.errors import InputError
from capemix.kernels.machine import in_parallel
from capemix.statistics.pixels import smooth_directions
from capemix.statistics.projection import (
    MOST_EXACT,
    Codes,
    Projection,
    RowsOf,
    Some,
    finite_rows,
    made_once,
    pieces,
    row_by_row,
    whole_rows,
    whole_scale,
)
from capemix.statistics.remembered import key_of
from capemix.statistics.scattering import STEP, channels, features_of, scattered
from capemix.sums.rows import EXACT_RECORDS, MAX_LATTICE_NORM, Real, clip_rows, row_norms
from capemix.sums.statistic import statistic

LENGTH: Final = 20.0
"""Of the features beside the constant 1, as the head sees them: larger learns faster."""

Units = npt.NDArray[np.int16]


@statistic
@dataclass(frozen=True, eq=False)
class Head:
    """``frame`` has the centre to smooth about, ``smooth`` directions are kept of the images'
    ``shape``; ``mean`` and ``deviation`` are the channels', ``weights`` features by classes."""

    frame: Projection
    shape: tuple[int, int]
    smooth: int
    mean: np.ndarray
    deviation: np.ndarray
    weights: np.ndarray
    kind: Literal["head"] = "head"

    groups: ClassVar = 1
    l2_norm_bound: ClassVar = 1.0

    def __post_init__(self) -> None:
        sides = [type(side) is int and side > 0 and side % STEP == 0 for side in self.shape]
        whole = len(sides) == 2 and all(sides) and type(self.smooth) is int
        features = features_of(self.shape) + 1 if whole else 0
        fits = (
            whole
            and math.prod(self.shape) == self.frame.columns <= MOST_EXACT
            and self.frame.centre is not None
            and len(self.frame.centre) == 1
            and self.frame.basis is None
            and self.frame.without is None
            and self.frame.points is None
            and self.frame.scale is None
            and 0 < self.smooth <= self.frame.columns
            and self.mean.shape == self.deviation.shape == (channels(),)
            and float(self.deviation.min()) > 0
            and self.weights.shape == (features, self.frame.classes)
        )
        if not fits:
            raise InputError(
                "a head", "has parts of different sizes", value=self.shape, fix="propose it again"
            )

    @property
    def columns(self) -> int:
        return self.frame.columns

    @property
    def width(self) -> int:
        return int(self.weights.size)

    def add_to(
        self,
        sums: npt.NDArray[Any],
        features: npt.NDArray[Any],
        labels: Codes,
        lattice: int | None,
    ) -> None:
        """Add every record's gradient; a label that is no class's drops its record."""
        labels = np.where(labels < self.frame.classes, labels, -1)
        most, _ = _norms(lattice, *self.weights.shape)
        how, frame = (self.shape, self.smooth, most), self.frame
        key = key_of(how, frame.upright, frame.normalise, frame.centre, self.mean, self.deviation)
        make = self._units_of(features, lattice)
        units = made_once(features, "units", key, make, len(self.weights), np.int16)
        whole, unit = self._whole_weights(most)
        total = np.zeros(self.weights.shape[::-1], dtype=np.int64)
        lock = threading.Lock()

        def add(part: slice) -> None:
            rows, own = units(part).astype(np.float32), labels[part]
            logits = (rows @ whole).astype(np.float64) * unit
            residuals = self._residuals(logits, np.maximum(own, 0), lattice)
            residuals[own < 0] = 0
            found = residuals.T.astype(np.float32) @ rows
            with lock:
                np.add(total, found.astype(np.int64), out=total)

        in_parallel(add, pieces(len(features), EXACT_RECORDS), None)
        total = total.T
        if lattice is None:
            sums += total.reshape(1, -1) / MAX_LATTICE_NORM
        else:
            sums += total.reshape(1, -1)

    def gradient(self, sums: Real, lattice: int | None) -> Real:
        """The sum of shortened gradients that noisy sums say, features by classes."""
        most, second = _norms(lattice, *self.weights.shape)
        scale = whole_scale(most, len(self.weights)) * whole_scale(second, self.frame.classes)
        unit = (MAX_LATTICE_NORM if lattice is None else lattice) / scale
        return np.asarray(sums.reshape(self.weights.shape) * unit)

    def units(self, rows: npt.NDArray[Any], lattice: int | None) -> Units:
        """f of every row of pixels, as whole numbers: what the head is trained on, and labels."""
        make = self._units_of(rows, lattice)
        out = np.empty((len(rows), len(self.weights)), dtype=np.int16)

        def fill(piece: slice) -> None:
            out[piece] = make(piece)

        in_parallel(fill, pieces(len(rows)), None)
        return out

    def _units_of(self, rows: npt.NDArray[Any], lattice: int | None) -> RowsOf:
        most, _ = _norms(lattice, *self.weights.shape)
        seen = self.frame.seen_rows(rows)

        def make(some: Some) -> Units:
            mine = seen(some)
            with np.errstate(over="ignore", invalid="ignore"):
                nobody = np.zeros(len(mine), dtype=np.int64)
                about = finite_rows(self.frame.about(mine, nobody))
            return self._units(self.smoothed(about), most)

        return make

    def smoothed(self, about: Real) -> npt.NDArray[np.float32]:
        """Images of 0 to 1, of rows about the centre: without their finer detail."""
        pixels = self.frame.columns
        basis = smooth_directions(self.shape, self.smooth)
        blank, full = self.frame.shades
        centre = self.frame.centre
        if centre is None:
            raise ValueError("a head has a centre")
        kept = row_by_row(row_by_row(about[:, :pixels], basis), basis.T) + centre[0, :pixels]
        images = np.clip((kept - blank) / (full - blank), 0.0, 1.0)
        return np.asarray(images.reshape(-1, *self.shape), dtype=np.float32)

    def _units(self, images: npt.NDArray[np.float32], most: int) -> Units:
        found = scattered(images, threads=1).reshape(len(images), channels(), -1)
        with np.errstate(all="ignore"):  # whatever a message brought, a row counts or does not
            found -= self.mean.astype(np.float32)[None, :, None]
            found /= self.deviation.astype(np.float32)[None, :, None]
            rows = found.reshape(len(images), -1)
            norms = np.maximum(row_norms(rows), 1e-6)
        rows[~np.isfinite(norms)] = 0.0
        whole = math.hypot(1.0, 1.0 / LENGTH) * (1.0 + 1e-5)  # more than single precision loses
        rows /= np.where(np.isfinite(norms), whole * norms, 1.0).astype(np.float32)[:, None]
        constant = np.full((len(rows), 1), 1.0 / LENGTH / whole, dtype=np.float32)
        return whole_rows(np.hstack([rows, constant]), most)

    def curvature(self, units: Units, lattice: int | None, ridge: float) -> tuple[Any, bool]:
        """The mean of f f^T over some rows, and ``ridge``, as a Cholesky factor to solve with: up
        to a factor it bounds the loss's second derivative (Boehning 1992)."""
        most, _ = _norms(lattice, *self.weights.shape)
        rows = units.astype(np.float32) / np.float32(whole_scale(most, len(self.weights)))
        second = (rows.T @ rows).astype(np.float64) / max(len(rows), 1)
        second[np.diag_indices(len(second))] += ridge
        return linalg.cho_factor(second, overwrite_a=True, check_finite=False)

    def logits(self, units: Units, lattice: int | None) -> Real:
        """Of features by `units`."""
        most, _ = _norms(lattice, *self.weights.shape)
        whole, unit = self._whole_weights(most)
        out = np.empty((len(units), self.frame.classes))

        def fill(part: slice) -> None:
            out[part] = units[part].astype(np.float32) @ whole

        in_parallel(fill, pieces(len(units), EXACT_RECORDS), None)
        return out * unit

    def _whole_weights(self, most: int) -> tuple[npt.NDArray[np.float32], float]:
        """The weights as whole numbers, and what a 1 is in logits of units of norm ``most``.

        A product of whole numbers is at most the product of their norms, at every step of its sum:
        below 2^24 single precision has it exactly, in any order.
        """
        weights = np.clip(self.weights, -1e30, 1e30)
        longest = float(np.sqrt((weights**2).sum(axis=0).max()))
        room = 2.0**24 / most - math.sqrt(len(weights))  # more than rounding adds to a norm
        scale = room / max(longest, 1e-30)
        unit = LENGTH / whole_scale(most, len(weights)) / scale
        return np.rint(weights * scale).astype(np.float32), unit

    def _residuals(self, logits: Real, labels: Codes, lattice: int | None) -> Units:
        _, second = _norms(lattice, *self.weights.shape)
        residuals = softmax(logits)
        residuals[np.arange(len(labels)), labels] -= 1.0
        return whole_rows(clip_rows(residuals * LENGTH, 1.0), second)


def softmax(logits: Real) -> Real:
    """By single operations, entry by entry: a library's exp may differ in the last bit with an
    entry's place in memory, which would tell of other records."""
    below = np.maximum(logits - logits.max(axis=1, keepdims=True), -700.0)
    halvings = np.rint(below / math.log(2.0))
    rest = below - halvings * math.log(2.0)
    powers = np.ones_like(rest)
    for order in range(14, 0, -1):  # Horner's rule for the series of exp, |rest| < 0.35
        powers = 1.0 + powers * rest / order
    powers = np.ldexp(powers, halvings.astype(np.int32))
    total = powers[:, 0].copy()
    for k in range(1, powers.shape[1]):
        total += powers[:, k]
    return np.asarray(powers / total[:, None])


def _norms(lattice: int | None, features: int, classes: int) -> tuple[int, int]:
    """B1 and B2, so that rounding costs either factor the same part of its length."""
    whole = MAX_LATTICE_NORM if lattice is None else lattice
    second = max(1, math.isqrt(math.floor(whole * math.sqrt(classes / features))))
    return whole // second, second
