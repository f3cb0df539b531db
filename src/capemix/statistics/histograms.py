"""What records add where a fact about them is measured: their class, the size of their values, and
the values with their squares.

Each is a function of one record and of public numbers; none looks at another record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from capemix.queries import COUNTED
from capemix.sums.rows import bounded_rows, normalise_rows
from capemix.sums.statistic import statistic
from capemix.sums.steps import DeclaredMap

Codes = npt.NDArray[np.int64]

EXPONENTS: Final = range(-20, 41)
"""Powers of two between which the size of a value is looked for."""

BINS: Final = 2 * len(EXPONENTS) + 1
"""Of a column: negative from large to small, nothing, positive from small to large."""

_AT_ONCE: Final = 1 << 20
"""Numbers that are gone through at a time."""


@statistic
@dataclass(frozen=True)
class ClassCounts:
    """A 1 for each record, in the group of its class."""

    columns: int
    classes: int
    kind: Literal["class counts"] = "class counts"

    width: ClassVar = 1
    l2_norm_bound: ClassVar = 1.0
    replacement_factor: ClassVar = COUNTED

    @property
    def groups(self) -> int:
        return self.classes

    def add_to(
        self,
        sums: npt.NDArray[Any],
        features: npt.NDArray[Any],  # noqa: ARG002
        labels: Codes,
        lattice: int | None,
    ) -> None:
        known = labels[(labels >= 0) & (labels < self.classes)]
        counts = np.bincount(known, minlength=self.classes)
        sums[:, 0] += counts * bounded_rows(np.ones((1, 1)), 1.0, lattice)[0, 0]


@statistic
@dataclass(frozen=True)
class ValueSizes:
    """For each of a record's values a 1 at its sign and power of two: `BINS` for each column."""

    columns: int
    kind: Literal["value sizes"] = "value sizes"

    groups: ClassVar = 1
    replacement_factor: ClassVar = COUNTED

    @property
    def width(self) -> int:
        return self.columns * BINS

    @property
    def l2_norm_bound(self) -> float:
        return math.sqrt(self.columns)

    def add_to(
        self,
        sums: npt.NDArray[Any],
        features: npt.NDArray[Any],
        labels: Codes,
        lattice: int | None,
    ) -> None:
        one = bounded_rows(np.ones((1, self.columns)), self.l2_norm_bound, lattice)[0, 0]
        first = BINS * np.arange(self.columns)
        for rows in _pieces(features[labels >= 0]):
            places = (bins_of(rows) + first).ravel()
            sums[0] += np.bincount(places, minlength=self.width) * one


@statistic
@dataclass(frozen=True)
class MeansAndSquares:
    """Each record's values and their squares, mapped into [-1, 1] by ``normalise`` first."""

    columns: int
    normalise: DeclaredMap
    kind: Literal["means and squares"] = "means and squares"

    groups: ClassVar = 1

    @property
    def width(self) -> int:
        return 2 * self.columns

    @property
    def l2_norm_bound(self) -> float:
        return math.sqrt(2 * self.columns)

    def add_to(
        self,
        sums: npt.NDArray[Any],
        features: npt.NDArray[Any],
        labels: Codes,
        lattice: int | None,
    ) -> None:
        for rows in _pieces(features[labels >= 0]):
            scaled = normalise_rows(rows, self.normalise)
            with np.errstate(over="ignore", invalid="ignore"):  # such a record counts as zeros
                both = np.hstack([scaled, scaled**2])
            added = bounded_rows(both, self.l2_norm_bound, lattice)
            sums[0] += added.sum(axis=0, dtype=sums.dtype)


def bins_of(features: npt.NDArray[Any]) -> Codes:
    """Each value's place among the `BINS` of its column."""
    values = np.nan_to_num(features.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    first, count = EXPONENTS[0], len(EXPONENTS)
    exponent = np.frexp(np.abs(values))[1] - 1  # 2^e <= |x| < 2^(e+1)
    step = np.where(values == 0, 0, np.clip(exponent - first + 1, 0, count))
    return np.asarray(count + np.sign(values).astype(np.int64) * step)


def _pieces(features: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    step = max(1, _AT_ONCE // max(features.shape[1], 1))
    return [features[start : start + step] for start in range(0, len(features), step)]
