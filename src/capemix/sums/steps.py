"""What is done to a row before it is summed, and what each step costs in privacy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from capemix.documents import family
from capemix.errors import InputError


class Coverage(StrEnum):
    """How the guarantee treats a step that touches rows."""

    PUBLIC = "public"  # uses declared constants only
    PER_ROW = "per-row"  # depends on the row alone
    PER_PERSON = "per-person"  # depends on one person's rows alone
    PAID = "paid for"  # reads other rows, within the budget
    NOT_COVERED = "not covered"  # reads other rows, with no budget


@dataclass(frozen=True)
class Step:
    name: str
    coverage: Coverage
    says: str


MOST: Final = 1e100
"""In size, of what a map is made of; scales are no smaller than its inverse. Beyond, a difference
or a quotient of two of them could be infinite for one row and not for another."""


def _sound(numbers: Iterable[float], scales: Iterable[float]) -> bool:
    given = [*numbers, *scales]
    return (
        all(isinstance(n, int | float) and not isinstance(n, bool) for n in given)
        and all(abs(n) <= MOST for n in given)
        and all(scale >= 1 / MOST for scale in scales)
    )


class Normalise:
    """How rows are normalised before anything is made of them."""

    @property
    def step(self) -> Step:
        raise NotImplementedError


class DeclaredMap(Normalise):
    """x -> (x - shift) / scale by numbers that are public, or were paid for."""

    shift: float | tuple[float, ...]
    scale: float | tuple[float, ...]
    low: float | tuple[float, ...] | None
    high: float | tuple[float, ...] | None


@dataclass(frozen=True)
class PublicMap(DeclaredMap):
    """x -> (x - shift) / scale with constants declared public; the identity by default.

    With ``low`` and ``high`` set, values outside that declared range are moved to its ends, and
    released values too.
    """

    shift: float = 0.0
    scale: float = 1.0
    low: float | None = None
    high: float | None = None
    kind: Literal["public"] = "public"

    def __post_init__(self) -> None:
        if not _sound([self.shift], [self.scale]):
            raise InputError(
                "public map",
                "needs a finite shift and a positive scale",
                value=f"{self.shift},{self.scale}",
                fix=f"give numbers up to {MOST:g}",
            )
        if self.low is None and self.high is None:
            return
        if self.low is None or self.high is None or not _sound([self.low, self.high], []):
            bad = True
        else:
            bad = self.low >= self.high
        if bad:
            raise InputError(
                "public map",
                "needs both ends of a range, LO < HI",
                value=f"{self.low},{self.high}",
                fix=f"give numbers up to {MOST:g}",
            )

    @classmethod
    def of_range(cls, low: float, high: float, *, center: float | None = None) -> PublicMap:
        """Map the declared range so that ``center`` (its middle by default) goes to 0 and half
        the range to 1."""
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(
                "public_range",
                "must be two finite numbers LO < HI",
                value=f"{low:g},{high:g}",
                fix="give the smallest and largest value that a feature can take",
            )
        middle = (low + high) / 2 if center is None else center
        return cls(shift=middle, scale=(high - low) / 2, low=low, high=high)

    @property
    def step(self) -> Step:
        if self == PublicMap():
            return Step("normalise", Coverage.PUBLIC, "rows as they stand (no range declared)")
        bounds = "" if self.low is None else f", declared range [{self.low:g}, {self.high:g}]"
        return Step("normalise", Coverage.PUBLIC, f"(x - {self.shift:g}) / {self.scale:g}{bounds}")


@dataclass(frozen=True)
class ColumnMap(DeclaredMap):
    """The same for each column by itself: with constants that were measured and paid for, or
    declared public.

    Values are moved into ``low`` to ``high`` first, and released values too.
    """

    shift: tuple[float, ...]
    scale: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    kind: Literal["columns"] = "columns"

    def __post_init__(self) -> None:
        parts = (self.shift, self.scale, self.low, self.high)
        numbers = all(type(value) in (int, float) for part in parts for value in part)
        if (
            len({len(part) for part in parts}) != 1
            or not numbers
            or not _sound([*self.shift, *self.low, *self.high], self.scale)
            or not all(low <= high for low, high in zip(self.low, self.high, strict=True))
        ):
            raise InputError(
                "column map",
                "needs a finite shift, a positive scale and a range for every column",
                value=f"{len(self.shift)} columns",
                fix="let the plan measure it",
            )

    @property
    def step(self) -> Step:
        return Step("normalise", Coverage.PUBLIC, "each column by a declared shift and scale")


@dataclass(frozen=True)
class SiteZScore(Normalise):
    """The paper's normalisation: each site's own mean and deviation, per feature.

    These are statistics of private rows for which the paper's accounting pays nothing, so no
    sound guarantee can be given for them.
    """

    kind: Literal["site-zscore"] = "site-zscore"

    @property
    def step(self) -> Step:
        return Step(
            "normalise",
            Coverage.NOT_COVERED,
            "z-score by the site's own mean and deviation (statistics of private rows)",
        )


family(DeclaredMap, lambda: (PublicMap, ColumnMap))
family(Normalise, lambda: (PublicMap, ColumnMap, SiteZScore))
