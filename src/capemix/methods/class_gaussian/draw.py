"""Rows of each class, drawn from what was estimated: post-processing."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.data.schema import Table
from capemix.facts import Facts
from capemix.methods.class_gaussian.categories import frequencies, picked
from capemix.methods.gaussians import (
    STRENGTH,
    ClassGaussians,
    Floats,
    apportioned,
    clamped,
    clamped_rows,
    root_of,
    strengths,
)
from capemix.randomness.gaussian import draw_normals
from capemix.randomness.source import Source
from capemix.statistics.projection import pieces
from capemix.sums.rows import denormalise_rows, normalise_rows
from capemix.sums.steps import DeclaredMap

Real = npt.NDArray[np.float64]

_RARE: Final = 0.02
"""A part of values from which what is summed of them is counted, in a ratio."""

_LEAST: Final = 1e-4
"""Of a variance, as `cleaned_spread` has it."""


def drawn_rows(
    facts: Facts, found: ClassGaussians, samples: int | None, source: Source
) -> tuple[Real, npt.NDArray[np.int64]]:
    """``samples`` rows in the data's own units, with their labels; None: as many as there are
    records. Those of a schema have values that it declares."""
    rows, labels = gaussian_rows(facts, found, samples, source)
    if facts.table is not None:
        facts.table.restore(rows)
    return rows, labels


def gaussian_rows(
    facts: Facts, found: ClassGaussians, samples: int | None, source: Source
) -> tuple[Real, npt.NDArray[np.int64]]:
    """The same rows before they are moved to declared values.

    Those beyond one a record have texture. It widens columns, and where columns have few values of
    their own it hides them; but trees that learn from many rows otherwise trust small differences
    that noise made.
    """
    records = round(float(found.sizes.sum()))
    wanted = records if samples is None else samples
    how, table = facts.normalise, facts.table
    if not isinstance(how, DeclaredMap):
        raise ValueError("the columns' ranges are not known yet")
    low, high = _range(how, facts.width)
    counts = apportioned(wanted, found.sizes)
    plain = np.minimum(counts, apportioned(min(wanted, records), found.sizes))
    together, done = np.zeros((counts.sum(), facts.width)), 0
    for k, count in enumerate(counts.tolist()):
        # Enough to match centre and variances after clamping, though fewer may be kept.
        normals = np.empty((max(count, 2_000), facts.width), dtype=np.float32)
        draw_normals(normals.reshape(-1), source.stream("normals", k))
        centre, spread = found.centres[k], found.spreads[k]
        mine = together[done : done + count]
        if table is None:
            mine[:] = clamped_rows(centre, spread, normals, low, high)[:count]
        else:
            fill_table_rows(mine, table, centre, spread, normals)
        _add_texture(mine[plain[k] :], found.texture, low, high, source, k)
        done += count
    denormalise_rows(together, how)
    return together, np.repeat(np.arange(len(counts)), counts)


def _add_texture(
    rows: Real, texture: Real, low: Real | float, high: Real | float, source: Source, k: int
) -> None:
    """Of a strength of each row's own, within the range; in place."""
    columns = np.flatnonzero(texture)
    if not rows.size or not columns.size:
        return
    normals = np.empty((len(rows), len(columns)), dtype=np.float32)
    draw_normals(normals.reshape(-1), source.stream("texture", k))
    normals *= strengths(source.stream("strength", k).words(len(rows)), STRENGTH)[:, None]
    low, high = (np.broadcast_to(end, len(texture))[columns] for end in (low, high))
    rows[:, columns] = np.clip(rows[:, columns] + normals * texture[columns], low, high)


def fill_table_rows(rows: Real, table: Table, centre: Real, spread: Real, normals: Floats) -> None:
    """Rows of one class of a coded table in place of zeros, in normalised units: numbers clamped to
    [-1, 1], in every block one category. Of the ``normals``, which may be more than the rows, the
    deviations are made where they lie."""
    centre, spread = of_values(table, centre, spread)
    root = root_of(spread).astype(normals.dtype)
    for piece in pieces(len(normals)):
        normals[piece] = normals[piece] @ root
    every, numbers = np.arange(len(rows)), np.ones(table.width, dtype=bool)
    for block in table.blocks:
        numbers[block] = False
        category = picked(normals[:, block], frequencies(centre[block]))
        rows[every, block.start + category[: len(rows)]] = 1.0
    deviations = normals[:, numbers].astype(np.float64)
    made = clamped(centre[numbers], np.diag(spread)[numbers], deviations, -1.0, 1.0)
    rows[:, numbers] = made[: len(rows)]


def of_values(table: Table, centre: Real, spread: Real) -> tuple[Real, Real]:
    """The same, but for a number that may be missing, of those values alone that are there. It was
    summed as 0 where it is missing: with a part p of values, of mean m and variance v,
        p m is its mean,   p (v + m^2) - p^2 m^2 its variance,   p times the covariance with another
    column is theirs. Whether a value is there is drawn apart from what it is."""
    centre, spread = centre.copy(), spread.copy()
    for column, place in zip(table.columns, table.places, strict=True):
        if not 0 < column.numbers < column.width:
            continue
        others = slice(place.start + column.numbers, place.stop)
        part = max(float(frequencies(centre[others])[0]), _RARE)
        for at in range(place.start, others.start):
            square = (spread[at, at] + centre[at] ** 2) / part
            centre[at] = np.clip(centre[at] / part, -1.0, 1.0)
            spread[at], spread[:, at] = spread[at] / part, spread[:, at] / part
            spread[at, others] = spread[others, at] = 0.0
            most = 1.0 - centre[at] ** 2  # of values from -1 to 1
            spread[at, at] = np.clip(square - centre[at] ** 2, _LEAST, max(most, _LEAST))
    return centre, spread


def _range(how: DeclaredMap, width: int) -> tuple[Real | float, Real | float]:
    """The declared or paid range, in normalised units."""
    if how.low is None or how.high is None:
        return -np.inf, np.inf
    ends = np.stack([np.broadcast_to(how.low, width), np.broadcast_to(how.high, width)])
    low, high = normalise_rows(ends, how)
    return low, high
