"""As good as a subsample of how many of the real rows: a figure for people who know what half of
their rows, or a hundredth, would be worth to them."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from capemix.evaluate.coding import CodedTable
from capemix.evaluate.fidelity import total_variation
from capemix.randomness.simulation import simulation_generator

PARTS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
"""Of the real rows: each is held against the rest."""

_MOST_PAIRS: Final = 200
"""Pairs of columns that are compared, evenly among them all."""

_LEAST_ROWS: Final = 3


@dataclass(frozen=True)
class Subsample:
    """``part`` of the real rows, drawn at random, are as far from the rest of them as the release
    is from all, in the mean total variation of pairs of columns (of columns, where there is one).
    At an end of the ``parts`` that were tried, so many or beyond: ``bound`` says which. ``errors``
    are what each part has, and ``release`` what the release has."""

    part: float
    bound: str | None
    release: float
    parts: tuple[float, ...]
    errors: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        part = f"{100 * self.part:.2g}%"
        return part if self.bound is None else f"{self.bound} {part}"


def as_good_as(release: CodedTable, real: CodedTable) -> Subsample | None:
    """None where there are too few rows to draw some of them."""
    rows = len(real)
    parts = tuple(part for part in PARTS if part * rows >= _LEAST_ROWS)
    if not parts:
        return None
    chosen = _pairs(len(real.names))
    own = _mean(release, real, chosen)
    order = simulation_generator(2).permutation(rows)
    errors = []
    for part in parts:
        few = round(part * rows)
        errors.append(_mean(real.take(order[:few]), real.take(order[few:]), chosen))
    # More rows are never further off but by chance: the curve is made to fall.
    falling = tuple(np.minimum.accumulate(errors).tolist())
    if own >= falling[0]:
        return Subsample(parts[0], "less than" if own > falling[0] else None, own, parts, falling)
    if own <= falling[-1]:
        return Subsample(parts[-1], "at least", own, parts, falling)
    part = np.interp(np.log(own), np.log(falling[::-1]), np.log(parts[::-1]))
    return Subsample(float(np.exp(part)), None, own, parts, falling)


def _pairs(columns: int) -> list[tuple[int, ...]]:
    pairs: list[tuple[int, ...]] = list(itertools.combinations(range(columns), 2)) or [(0,)]
    places = np.arange(min(_MOST_PAIRS, len(pairs))) * len(pairs) // min(_MOST_PAIRS, len(pairs))
    return [pairs[at] for at in places.tolist()]


def _mean(one: CodedTable, other: CodedTable, chosen: list[tuple[int, ...]]) -> float:
    return float(np.mean([total_variation(one, other, columns) for columns in chosen]))
