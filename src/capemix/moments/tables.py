"""Rows of a table: a Gaussian for each class, by `synthesizers.moments`."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from capemix.data.schema import Table
from capemix.moments.taking import Taking
from capemix.plan.moments import MomentsPlan
from capemix.plan.shares import AGAIN, CENTRE, CENTRES, SPREAD, SPREADS
from capemix.prepare.frame import pieces
from capemix.prepare.moments import Spreads
from capemix.prepare.rows import denormalise_rows, normalise_rows
from capemix.randomness.gaussian import draw_normals
from capemix.randomness.source import Source
from capemix.synthesizers.moments import (
    CLIPPED_AT,
    STRENGTH,
    ClassGaussians,
    Floats,
    apportioned,
    averaged,
    clamped,
    clamped_rows,
    cleaned_spread,
    own_spread,
    root_of,
    shrunk_centres,
    strengths,
    texture_of,
    tuned_rank,
    wigner_edge,
)
from capemix.synthesizers.tables import frequencies, picked
from capemix.synthesizers.told import sure, told_apart

Real = npt.NDArray[np.float64]


def taken_moments(taking: Taking) -> ClassGaussians:
    sizes = taking.sizes()
    records, plan = float(sizes.sum()), taking.plan
    rank = tuned_rank(records, len(plan.classes), plan.most_rank, taking.noise_multiplier(SPREADS))
    taking.choose(rank)
    centre = _centre(taking, records)
    centres = _class_centres(taking, centre, sizes)
    variances, directions, flat = _spread(taking, centres, records)
    texture = texture_of(variances, directions, flat)
    for block in plan.table.blocks if plan.table is not None else ():
        texture[block] = 0.0
    spreads = np.repeat(((directions * variances) @ directions.T)[None], len(sizes), axis=0)
    if rank:
        basis, scale = directions[:, -rank:], variances[-rank:] ** -0.5
        spreads += _own_spreads(taking, centres, sizes, basis, scale)
    return ClassGaussians(sizes, centres, spreads, texture)


def _centre(taking: Taking, records: float) -> Real:
    """Of all rows; the middle of the map where noise is longer than a clipped row."""
    width = taking.plan.width
    sums, _ = taking.first(CENTRE, taking.frame(), CLIPPED_AT, apart=False)
    length = taking.deviation(CENTRE) * math.sqrt(width) / records  # in clip norms
    if length < 1.0:
        return np.asarray(sums[0] / records)
    taking.warn(
        f"centre: it cannot be told from noise, which is {length:.3g} times as long as a clipped"
        " record; the middles of the ranges, or the columns' noisy means, stand in for it"
    )
    return np.zeros(width)


def _spread(taking: Taking, centres: Real, records: float) -> tuple[Real, Real, int]:
    """Within classes, one for all: as `cleaned_spread` has it. Where not even its trace stands out
    of the noise, that of records as long as they are clipped."""
    width = taking.plan.width
    within = taking.frame(centre=centres)
    asked = Spreads(within, taking.clip(SPREAD, within, CLIPPED_AT), apart=False)
    sums, deviation = taking.second(SPREAD, asked)
    spread, noise = sums[0] / records, deviation / records
    if float(np.trace(spread)) <= sure(1) * noise * math.sqrt(width):
        taking.warn(
            "spread: the columns' variances cannot be told from noise; they are taken to be alike,"
            " of records as long as the norm they are clipped at"
        )
        return np.full(width, asked.clip**2 / width), np.eye(width), width
    variances, directions, flat = cleaned_spread(spread, wigner_edge(noise, width))
    if flat == width > 1:
        taking.warn(
            "spread: which columns go together cannot be told from noise; they are drawn as if"
            " none did, with variances alike"
        )
    # A clipped record has no more than its clip norm in any direction: beyond lies noise.
    most = max(asked.clip**2, float(variances.min()))
    return np.minimum(variances, most), directions, flat


def _class_centres(taking: Taking, centre: Real, sizes: Real) -> Real:
    """Looked at twice: about its own class's centre a row is shorter, and so is the noise that
    hides it."""
    about = taking.frame(centre=centre[None, :])
    sums, far = taking.first(CENTRES, about, CLIPPED_AT, apart=True)
    first = sums / sizes[:, None]
    found = shrunk_centres(first, (far / sizes) ** 2)
    sums, near = taking.first(AGAIN, taking.frame(centre=centre + found), CLIPPED_AT, apart=True)
    offsets, deviation = averaged(first, far, found + sums / sizes[:, None], near)
    variances = (deviation / sizes) ** 2
    if not told_apart(offsets, variances):
        taking.warn(
            "class centres: what sets the classes apart cannot be told from noise; a model trained"
            " on these rows learns next to nothing of the classes"
        )
    return centre + shrunk_centres(offsets, variances)


def _own_spreads(taking: Taking, centres: Real, sizes: Real, basis: Real, scale: Real) -> Real:
    """What each class's spread has beyond everybody's, in the largest directions."""
    rank = len(scale)
    frame = taking.frame(centre=centres, basis=basis, scale=scale)
    asked = Spreads(frame, taking.clip(SPREADS, frame, CLIPPED_AT))
    seconds, deviation = taking.second(SPREADS, asked)
    # Clipping took the same part of everybody's length: what is left of 1, on average.
    unit = float(np.trace(seconds.sum(axis=0))) / float(sizes.sum()) / rank
    unit = max(unit, 1e-6)
    out = []
    for second, size in zip(seconds, sizes, strict=True):
        edge = wigner_edge(deviation / size / unit, rank)
        own = own_spread(second / size / unit, edge) - np.eye(rank)
        back = basis / scale
        out.append(back @ own @ back.T)
    return np.stack(out)


def drawn_rows(
    plan: MomentsPlan, found: ClassGaussians, source: Source
) -> tuple[Real, npt.NDArray[np.int64]]:
    """Rows in the data's own units, with their labels: post-processing.

    Those beyond one a record have texture. It widens columns, and where columns have few values of
    their own it hides them; but trees that learn from many rows otherwise trust small differences
    that noise made.
    """
    records = round(float(found.sizes.sum()))
    wanted = plan.samples if plan.samples is not None else records
    low, high = _range(plan)
    counts = apportioned(wanted, found.sizes)
    plain = np.minimum(counts, apportioned(min(wanted, records), found.sizes))
    together, done = np.zeros((counts.sum(), plan.width)), 0
    for k, count in enumerate(counts.tolist()):
        # Enough to match centre and variances after clamping, though fewer may be kept.
        normals = np.empty((max(count, 2_000), plan.width), dtype=np.float32)
        draw_normals(normals.reshape(-1), source.stream("normals", k))
        centre, spread = found.centres[k], found.spreads[k]
        mine = together[done : done + count]
        if plan.table is None:
            mine[:] = clamped_rows(centre, spread, normals, low, high)[:count]
        else:
            fill_table_rows(mine, plan.table, centre, spread, normals)
        _add_texture(mine[plain[k] :], found.texture, low, high, source, k)
        done += count
    denormalise_rows(together, plan.normalise)
    if plan.table is not None:
        plan.table.restore(together)
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


def _range(plan: MomentsPlan) -> tuple[Real | float, Real | float]:
    """The declared or paid range, in normalised units."""
    how = plan.normalise
    if how.low is None or how.high is None:
        return -np.inf, np.inf
    ends = np.stack([np.broadcast_to(how.low, plan.width), np.broadcast_to(how.high, plan.width)])
    low, high = normalise_rows(ends, how)
    return low, high
