"""Sums asked for one after the other, as the one sum that costs what they cost.

Where every record takes part once in each, and each sum's noise is fixed before the first, they
compose as Gaussians do, although later ones use what earlier ones found. With multipliers m_i,
    1/m^2 = sum_i 1/m_i^2,
one Gaussian of multiplier m costs what they cost together (docs/theory/proofs/rounds.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from capemix.accounting.mint import NoisedSum

Times = Sequence[tuple[NoisedSum, int]]
"""Noised sums, and how often each is made."""


def as_one(parts: Times, *, list_failure: float = 0.0) -> NoisedSum:
    """The one sum that costs what these cost. ``list_failure`` is the part of delta that a list
    found by a threshold takes."""
    if any(part.query.drawn for part, _ in parts):
        raise ValueError("Gaussians compose into one only where every record takes part once")
    first = parts[0][0]
    sigmas = [part.site_sigma for part, _ in parts if part.site_sigma is not None]
    numbers = sum(times * part.query.rows * part.query.width for part, times in parts)
    view = first.strongest
    whole = _multiplier([(part.view_multipliers[view], times) for part, times in parts])
    shape = replace(
        first.query,
        name="all sums",
        width=numbers,
        groups=1,
        draws=(),
        divisor=first.query.l2_norm_bound,
    )
    return replace(
        first,
        query=shape,
        view_multipliers={
            view: _multiplier([(part.view_multipliers[view], times) for part, times in parts])
            for view in first.view_multipliers
        },
        site_sigma=min(sigmas) if sigmas else None,
        replacement_factor=_replacement_factor(parts, whole),
        graph_failure=sum(times * part.graph_failure for part, times in parts),
        list_failure=list_failure,
    )


def _replacement_factor(parts: Times, whole: float) -> float:
    """How far a replaced record moves them as one: f with f^2/m^2 = sum_i f_i^2 / m_i^2."""
    if whole == 0.0:
        return max(part.replacement_factor for part, _ in parts)
    squares = (
        times * (part.replacement_factor / part.view_multipliers[part.strongest]) ** 2
        for part, times in parts
    )
    return whole * math.sqrt(sum(squares))


def _multiplier(each: Sequence[tuple[float, int]]) -> float:
    """m with 1/m^2 = sum_i t_i/m_i^2; 0 where one has no noise."""
    if min(multiplier for multiplier, _ in each) == 0.0:
        return 0.0
    return 1.0 / math.sqrt(sum(times * multiplier**-2 for multiplier, times in each))
