"""How one budget is shared out over the sums of a release: by public numbers alone.

All sums are one Gaussian of 1/m^2, of which sum i has the part s_i, and so noise of m / sqrt(s_i).
Where noise enters what is estimated, the error it makes falls as 1/s_i. The sum of such errors,
    E = sum_i a_i^2 / s_i,     is least at     s_i = a_i / sum_j a_j,
so a sum's share is in proportion to the root of the error that its noise would make with the whole
budget. Below, a record's vector has d columns, of variance 1 within its class and so of norm
sqrt(d), there are n records in K classes, and q = m / n.

Class centres. A mean of n/K vectors has noise of sqrt(d) K q on each of d columns: a = d K q.

The spread. Its entries have noise of d q. What matters of it is a few directions, of d entries
each: a = d^(3/2) q, which is sqrt(d)/K of the centres' a. But no error is larger than that of a
spread of which nothing but the trace is known. The noise's largest eigenvalue is sqrt(2) d u with
u = sqrt(d) q, and even one direction with all the variance has no more than d. So the more u comes
to, the less a share is worth: it is divided by 1 + (u / `FLAT`)^2. What is left tells the trace.

A class's own spread, in r directions: entries have noise of r K q, and so a = r^(3/2) K q, which is
r^(3/2)/d of the centres' a.

The centre of all rows cancels out of the classes' centres; but its noise lengthens the rows, and so
the norm at which the classes' are clipped, in parts of about u^2. Of E (1 + u^2 / s) the best s is
in proportion to u.

Class centres, twice. About all rows' centre rows are longer, by what sets the classes apart, than
about their class's, if that is found well enough. Let both be of one length. With t = sqrt(d) K q
the noise on the first look, the second is worth 1 - 2 t^2 / p of what it would be about the true
centres, if the first has the part p: so p = 2 t is best, and no more than half.

Norms. The quantile of a histogram is off by about 4 m / sqrt(s) records (noise on some 16 of its
groups); for a tenth of the records s = (`QUANTILE` q)^2. Beyond a few hundredths it is not worth
it: too little is left for what is clipped.

Class sizes. Every sum of a class is divided by its size. A class's centre, sqrt(d) from that of all
if classes differ as records do, is off by sqrt(d) K q: a = sqrt(d) K q, which is 1/sqrt(d) of the
centres' a. How many records there are is not known then, so this share does not depend on it.

The constants in capitals were fitted on training rows that were held out, and frozen
(docs/research/tables.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from capemix.facts import CLIP_NORM, RANGES, SCALES
from capemix.queries import QueryShape

SIZES: Final = 0.5
"""Times 1/sqrt(d): the share of class sizes."""

MOST_SIZES: Final = 0.1

COLUMNS: Final = {RANGES: 0.06, SCALES: 0.04, CLIP_NORM: 0.02}
"""The shares of what is measured of columns. Noise on them does not end up in what is estimated:
it decides whether they can be told at all, and rows in a range that is too wide or too short."""

FLAT: Final = 0.03
"""The noise u at which half of what is spent on the spread is lost."""

WORTH: Final = 0.4
"""The root of what the error of a spread costs, where one of a centre costs 1."""

TRACE: Final = 0.05
"""Of the centres' part, what the spread has at least: so much tells its trace."""

QUANTILE: Final = 40.0

NORMS: Final = (0.001, 0.03)
"""A histogram's share, at least and at most."""

CENTRE: Final = (0.002, 0.05)
"""The share of the centre of all rows, at least and at most."""

FIRST: Final = (0.05, 0.5)
"""The first look's part of the class centres, at least and at most."""

CENTRES: Final = 20.0
"""Of images: directions that their class centres are worth, beside those of clusters."""

_GRAIN: Final = 2.0**-40
"""Of which shares are multiples, so that they are added without rounding."""

OCTAVES: Final = 41
"""Shares go by the power of two below n/m = 1/q, its octave: they need no more."""


@dataclass(frozen=True)
class GaussianShares:
    """The parts of the whole: of ``norms``, those of one histogram; ``first`` and ``again`` are the
    two looks at class centres. They sum to 1 with a histogram for each sum but the sizes."""

    sizes: float
    norms: float
    centre: float
    first: float
    again: float
    spread: float
    own: float


def sizes_share(columns: int) -> float:
    """Of class sizes, before anything is known of the number of records."""
    return min(MOST_SIZES, SIZES / math.sqrt(columns))


def opening_share(name: str, columns: int) -> float:
    """Of a sum that measures what is not declared, by its name in `facts`."""
    return COLUMNS[name] if name in COLUMNS else sizes_share(columns)


def gaussian_shares(columns: int, classes: int, octave: int, rank: int) -> GaussianShares:
    """For a Gaussian for each class, with ``rank`` directions of its own spread."""
    q = 2.0 ** -(octave + 0.5)  # in the middle
    u = math.sqrt(columns) * q
    sizes = sizes_share(columns)
    norms = _within(NORMS, (QUANTILE * q) ** 2)
    centre = _within(CENTRE, u)
    spread = WORTH * math.sqrt(columns) / classes / (1.0 + (u / FLAT) ** 2) + TRACE
    own = WORTH * rank**1.5 / columns
    rest = 1.0 - sizes - centre - norms * (5 if rank else 4)
    centres = rest / (1.0 + spread + own)
    first = centres * _within(FIRST, 2.0 * u * classes)
    return GaussianShares(
        sizes, norms, centre, first, centres - first, centres * spread, centres * own
    )


def centres_part(rank: int, clusters: int) -> float:
    """Of what images' class centres and clusters have together, the part of the centres, where a
    class has so many clusters of so many directions."""
    return 1.0 / (1.0 + rank * clusters / CENTRES)


def octave_of(records: float, noise: float) -> int:
    """Of so many records under sums with noise of multiplier ``noise`` as one."""
    most = OCTAVES - 1
    if records <= noise:
        return 0
    return most if noise <= records * 2.0**-most else math.floor(math.log2(records / noise))


def exactly(lines: Sequence[QueryShape]) -> tuple[QueryShape, ...]:
    """The lines with shares that add up to 1 to the last bit, whatever they are: a sum that is
    asked for before a choice has the same noise after it."""
    parts = [round(each.share / _GRAIN) * _GRAIN for each in lines[:-1]]
    parts.append(1.0 - sum(parts))
    return tuple(replace(each, share=part) for each, part in zip(lines, parts, strict=True))


def _within(ends: tuple[float, float], value: float) -> float:
    return min(max(value, ends[0]), ends[1])
