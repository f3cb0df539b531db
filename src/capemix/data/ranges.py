"""Columns whose values lie between two declared ends: what numbers, dates and times have in common.

A value is coded as one number. Where it may be missing, two more say whether there is one: so a
record with an empty cell counts, and values are missing as often as they should be. A range of a
single value takes no number at all.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from capemix.data.cells import Codes, Real
from capemix.data.column import Column, Mask, Values


class Ranged(Column):
    """``missing``: a cell that cannot be read counts as missing; else it costs its record."""

    missing: bool

    @property
    @abstractmethod
    def span(self) -> tuple[float, float]:
        """The lowest and the highest value, as numbers."""

    @abstractmethod
    def typed(self, values: Real) -> Values:
        """Values in the column's own type, None or none of its kind for NaN."""

    def coded(self, values: Real) -> Real:
        """What stands for the values, those outside of the range told apart from those inside."""
        return values

    def values(self, coded: Real) -> Real:
        """The values that stand behind the codes, also outside of the range."""
        return coded

    def declared(self, values: Real) -> Real:
        """The nearest that are declared."""
        return np.asarray(np.clip(values, *self.span))

    @property
    def numbers(self) -> int:
        return int(self.span[0] < self.span[1])

    @property
    def width(self) -> int:
        return self.numbers + 2 * self.missing

    @property
    def coded_names(self) -> tuple[str, ...]:
        both = (f"{self.name}=(given)", f"{self.name}=(missing)")
        return (*[self.name] * self.numbers, *(both if self.missing else ()))

    @property
    def ends(self) -> tuple[float, float]:
        if not self.numbers:
            return 0.0, 1.0
        low, high = self.coded(np.array(self.span, dtype=np.float64))
        return float(low), float(high)

    def fits(self, read: Real | Codes) -> Mask:
        return np.isfinite(read) | self.missing

    def code_into(self, block: Real, read: Real | Codes) -> None:
        there = np.isfinite(read)
        if self.numbers:
            values = np.where(there, read, self.span[0]).astype(np.float64, copy=False)
            block[:, 0] = np.where(there, self.coded(values), self._middle)
        if self.missing:
            block[:, -2], block[:, -1] = there, ~there

    def strays(self, block: npt.NDArray[Any]) -> Mask:
        low, high = self.ends
        outside = np.zeros(len(block), dtype=bool)
        if self.numbers:
            outside |= (block[:, 0] < low) | (block[:, 0] > high)
        return outside | self._absent(block)

    def kept(self, block: Real) -> Values:
        return self.typed(self._values(block))

    def restored(self, block: Real) -> Real:
        out = np.array(block, dtype=np.float64)
        if self.numbers:
            there = self.coded(self.declared(self.values(out[:, 0])))
            out[:, 0] = np.where(self._absent(out), self._middle, there)
        return out

    def cells(self, block: Real) -> Values:
        return self.typed(self.declared(self._values(block)))

    @property
    def _middle(self) -> float:
        low, high = self.ends
        return low / 2 + high / 2  # of the largest doubles, too

    def _values(self, block: Real) -> Real:
        """NaN for missing."""
        low = np.full(len(block), self.span[0])
        values = self.values(block[:, 0]) if self.numbers else low
        return np.where(self._absent(block), np.nan, values) if self.missing else values

    def _absent(self, block: npt.NDArray[Any]) -> Mask:
        return np.asarray(block[:, -1] > 0) if self.missing else np.zeros(len(block), dtype=bool)

    def _or_missing(self, said: str) -> str:
        return said + (", or missing" if self.missing else "")


def or_none(values: npt.NDArray[Any], absent: Mask) -> npt.NDArray[Any]:
    """Plain values as Python has them, None for those that are absent."""
    found = values.astype(object)
    found[absent] = None
    return found
