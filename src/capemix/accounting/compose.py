"""Sums asked for one after the other, as the one sum that costs what they cost.

Where every record takes part once in each, and each sum's noise is fixed before the first, they
compose as Gaussians do, although later ones use what earlier ones found. With multipliers m_i, and
f_i how far neighbours move each, over what one record adds,
    1/m^2 = sum_i (f_i/m_i)^2,
one Gaussian of multiplier m costs what they cost together (docs/theory/proofs/rounds.md).

Where a sum is asked for again and again, each time of records drawn at a rate that was fixed before
the first sum too, its draws and that Gaussian have dominating pairs that were fixed beforehand: so
what all of it costs is their composition, in whatever order they came.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from capemix.accounting.mint import NoisedSum
from capemix.queries import Relation

Times = Sequence[tuple[NoisedSum, int]]
"""Noised sums, and how often each is made."""


def as_one(parts: Times, relation: Relation, *, list_failure: float = 0.0) -> NoisedSum:
    """The one sum that costs what these cost in ``relation``, in which their noise was shared out,
    and in another no less, however it is shared out: as if each were moved there as that one is
    which is moved furthest, over its noise. ``list_failure`` is the part of delta that a list found
    by a threshold takes."""
    drawn = [(part, times) for part, times in parts if part.query.drawn]
    if drawn:
        ((part, times),) = drawn
        rest = [each for each in parts if not each[0].query.drawn]
        beside = as_one(rest, relation, list_failure=list_failure) if rest else None
        return _again(part, times, beside)
    first = parts[0][0]
    sigmas = [part.site_sigma for part, _ in parts if part.site_sigma is not None]
    numbers = sum(times * part.query.rows * part.query.width for part, times in parts)
    factors = [part.query.replacement_factor for part, _ in parts]
    factor = min(factors) if relation is Relation.REPLACE_ONE else max(factors)
    shape = replace(
        first.query,
        name="all sums",
        width=numbers,
        groups=1,
        draws=(),
        replacement_factor=factor,
        divisor=first.query.l2_norm_bound,
    )
    return replace(
        first,
        query=shape,
        view_multipliers={
            view: _multiplier(parts, view, relation) * shape.moves(relation)
            for view in first.view_multipliers
        },
        site_sigma=min(sigmas) if sigmas else None,
        graph_failure=sum(times * part.graph_failure for part, times in parts),
        list_failure=list_failure,
    )


def _again(part: NoisedSum, times: int, beside: NoisedSum | None) -> NoisedSum:
    """A drawn sum as often as it is asked for."""
    draws = tuple(replace(group, draws=group.draws * times) for group in part.query.draws)
    return replace(
        part,
        query=replace(part.query, draws=draws, repeats=1),
        graph_failure=times * part.graph_failure,
        beside=beside,
    )


def noise_of_draws(multiplier: float, rate: float) -> float:
    """The noise sigma of one of many draws at rate q, so that each costs about what a Gaussian of
    this multiplier m does: 1/m^2 = q^2 (e^(1/sigma^2) - 1) (Bu, Dong, Long, Su 2020). What they do
    cost is worked out by their losses."""
    return 0.0 if multiplier == 0.0 else 1.0 / math.sqrt(math.log1p((multiplier * rate) ** -2))


def _multiplier(parts: Times, view: str, relation: Relation) -> float:
    """m with 1/m^2 = sum_i t_i (f_i/m_i)^2; 0 where one has no noise."""
    each = [
        (part.view_multipliers[view] / part.query.moves(relation), times) for part, times in parts
    ]
    if min(multiplier for multiplier, _ in each) == 0.0:
        return 0.0
    return 1.0 / math.sqrt(sum(times * multiplier**-2 for multiplier, times in each))
