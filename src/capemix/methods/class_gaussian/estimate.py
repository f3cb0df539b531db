"""What is drawn from, estimated by noisy sums: each class's size, centre and spread.

The sums, in order, each about what the ones before it found: class sizes; the centre of all rows;
the classes' centres, and once more about those; the spread within classes, one for all; and in its
largest directions each class's own spread. Before each but the first comes a histogram of norms, by
whose median rows are clipped.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.facts import Facts
from capemix.methods.gaussians import (
    CLIPPED_AT,
    ClassGaussians,
    averaged,
    cleaned_spread,
    own_spread,
    shrunk_centres,
    texture_of,
    wigner_edge,
)
from capemix.methods.projected import ProjectedSums
from capemix.methods.told import sure, told_apart
from capemix.statistics.moments import Spreads
from capemix.sums.steps import DeclaredMap

Real = npt.NDArray[np.float64]

CENTRE: Final = "centre"
CENTRES: Final = "class centres"
REFINED: Final = "class centres again"
SPREAD: Final = "spread"
SPREADS: Final = "class spreads"


def estimate_class_gaussians(taking: ProjectedSums, sizes: Real) -> ClassGaussians:
    """Ask for the sums of the outline after the class sizes, and estimate what the classes look
    like. ``rank`` was chosen before."""
    plan = taking.sums.plan
    facts, rank = plan.known, (plan.chosen or {"rank": 0})["rank"]
    records = float(sizes.sum())
    centre = _centre(taking, records)
    centres = _class_centres(taking, centre, sizes)
    variances, directions, flat = _spread(taking, centres, records)
    texture = texture_of(variances, directions, flat)
    for block in facts.table.blocks if facts.table is not None else ():
        texture[block] = 0.0
    spreads = np.repeat(((directions * variances) @ directions.T)[None], len(sizes), axis=0)
    if rank:
        basis, scale = directions[:, -rank:], variances[-rank:] ** -0.5
        spreads += _own_spreads(taking, centres, sizes, basis, scale)
    taking.warn_of_norms()
    return ClassGaussians(sizes, centres, spreads, texture)


def _centre(taking: ProjectedSums, records: float) -> Real:
    """Of all rows; the middle of the map where noise is longer than a clipped row."""
    width = taking.sums.plan.known.width
    sums, _ = taking.first(CENTRE, taking.projection(), CLIPPED_AT, apart=False)
    length = taking.sums.noise_on(CENTRE) * math.sqrt(width) / records  # in clip norms
    if length < 1.0:
        return np.asarray(sums[0] / records)
    taking.sums.warn(
        f"centre: it cannot be told from noise, which is {length:.3g} times as long as a clipped"
        " record; the middles of the ranges, or the columns' noisy means, stand in for it"
    )
    return np.zeros(width)


def _spread(taking: ProjectedSums, centres: Real, records: float) -> tuple[Real, Real, int]:
    """Within classes, one for all: as `cleaned_spread` has it. Where not even its trace stands out
    of the noise, that of records as long as they are clipped."""
    width = taking.sums.plan.known.width
    within = taking.projection(centre=centres)
    asked = Spreads(within, taking.clip(SPREAD, within, CLIPPED_AT), apart=False)
    sums, deviation = taking.second(SPREAD, asked)
    spread, noise = sums[0] / records, deviation / records
    taking.sums.offer("correlations", correlations_of(taking.sums.plan.known, spread, noise))
    if float(np.trace(spread)) <= sure(1) * noise * math.sqrt(width):
        taking.sums.warn(
            "spread: the columns' variances cannot be told from noise; they are taken to be alike,"
            " of records as long as the norm they are clipped at"
        )
        return np.full(width, asked.clip**2 / width), np.eye(width), width
    variances, directions, flat = cleaned_spread(spread, wigner_edge(noise, width))
    if flat == width > 1:
        taking.sums.warn(
            "spread: which columns go together cannot be told from noise; they are drawn as if"
            " none did, with variances alike"
        )
    # A clipped record has no more than its clip norm in any direction: beyond lies noise.
    most = max(asked.clip**2, float(variances.min()))
    return np.minimum(variances, most), directions, flat


def correlations_of(facts: Facts, spread: Real, noise: float) -> dict[str, Any]:
    """Of each two of the coded columns, within classes, from a noisy covariance whose diagonal has
    noise of ``noise``, and half its variance off it (`Spreads`): the covariance c and c over the
    root of both variances v, with the errors that this noise makes,
        dr^2 = noise^2 (1/(2 v v') + r^2 (1/v^2 + 1/v'^2) / 4).
    Where a variance cannot be told from noise there is no correlation."""
    one, other = np.triu_indices(len(spread), 1)
    names, cov, var = np.array(facts.coded_names), spread[one, other], spread.diagonal()
    told = np.where(var > sure(1) * noise, var, np.nan)
    product = told[one] * told[other]
    r = cov / np.sqrt(product)
    error = noise * np.sqrt(0.5 / product + r**2 * (told[one] ** -2 + told[other] ** -2) / 4)
    how = facts.normalise
    scales = np.array(how.scale if isinstance(how, DeclaredMap) else 1.0)
    scale = np.broadcast_to(scales, len(spread))
    unit = scale[one] * scale[other]
    return {
        "column": names[one],
        "other_column": names[other],
        "covariance": cov * unit,
        "covariance_error": noise / math.sqrt(2.0) * unit,
        "correlation": _where_told(r),
        "standard_error": _where_told(error),
    }


def _where_told(values: Real) -> npt.NDArray[Any]:
    return np.array([None if np.isnan(each) else each for each in values.tolist()], dtype=object)


def _class_centres(taking: ProjectedSums, centre: Real, sizes: Real) -> Real:
    """Looked at twice: about its own class's centre a row is shorter, and so is the noise that
    hides it."""
    about = taking.projection(centre=centre[None, :])
    sums, far = taking.first(CENTRES, about, CLIPPED_AT, apart=True)
    first = sums / sizes[:, None]
    found = shrunk_centres(first, (far / sizes) ** 2)
    sums, near = taking.first(
        REFINED, taking.projection(centre=centre + found), CLIPPED_AT, apart=True
    )
    offsets, deviation = averaged(first, far, found + sums / sizes[:, None], near)
    variances = (deviation / sizes) ** 2
    if not told_apart(offsets, variances):
        taking.sums.warn(
            "class centres: what sets the classes apart cannot be told from noise; a model trained"
            " on these rows learns next to nothing of the classes"
        )
    return centre + shrunk_centres(offsets, variances)


def _own_spreads(
    taking: ProjectedSums, centres: Real, sizes: Real, basis: Real, scale: Real
) -> Real:
    """What each class's spread has beyond everybody's, in the largest directions."""
    rank = len(scale)
    frame = taking.projection(centre=centres, basis=basis, scale=scale)
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
