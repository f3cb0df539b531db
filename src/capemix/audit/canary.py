"""Two worlds that differ in one record, chosen so that the record shows as much as it can.

Poisson selection: every other row is zero, so that nothing but noise surrounds the canary, which is
c u. Fixed-size selection: every other row of the class is -c u, so that a draw with the canary has
one of these rows less. Canaries are handed over three times too long: clipping must hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.plan import Plan
from capemix.queries import Relation, Selection
from capemix.sums.query import SumQuery
from capemix.sums.share import prepare_records
from capemix.sums.statistic import Prepared, PreparedRows, RowStatistic
from capemix.sums.steps import SiteZScore

TOO_LONG: Final = 3.0
_OUTLIER: Final = 1e6


class Change(StrEnum):
    """How the two worlds differ."""

    ADDED = "added"  # the canary is there, or not
    REPLACED = "replaced"  # c u in the place of -c u
    RELABELLED = "relabelled"  # the canary is of the first class, or of the second
    OUTLIER = "outlier"  # a huge row of another class, where rows are normalised by a z-score


def usual_change(plan: Plan) -> Change:
    if isinstance(plan.known.normalise, SiteZScore):
        return Change.OUTLIER
    return Change.ADDED if plan.relation is Relation.ADD_REMOVE else Change.REPLACED


@dataclass(frozen=True, eq=False)
class World:
    """Prepared rows of every site, the canary's site first.

    ``usual`` and ``canary``: what a draw of the first, and of the second, group of that site gains
    in the first number from an ordinary row and from the canary; 0 where there is none.
    """

    sites: tuple[Prepared, ...]
    usual: tuple[float, float]
    canary: tuple[float, float]


def two_worlds(query: SumQuery, change: Change) -> tuple[World, World]:
    """Without and with the canary (or, replaced, with the other one), for a sum of rows that are
    drawn: the first column of a row is the first number that it adds."""
    return _world(query, change, there=False), _world(query, change, there=True)


def _world(query: SumQuery, change: Change, *, there: bool) -> World:
    rows_of = query.summed
    if not isinstance(rows_of, RowStatistic):
        raise ValueError("records are drawn, but what each of them adds is not kept")
    width, length = rows_of.columns, TOO_LONG * query.l2_norm_bound
    fixed = query.participation[0].selection is Selection.FIXED
    sizes = _site_sizes(query)
    sites = []
    usual, canary = [0.0, 0.0], [0.0, 0.0]
    for site in range(query.federation.sites):
        rows = np.zeros((sum(sizes), width))
        labels = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
        own = 0
        if site == 0:
            first = labels == 0
            if change is Change.OUTLIER:
                rows[first, 0] = length
                rows[~first, 0] = -length
                rows[-1, 0] = _OUTLIER if there else -length
            elif fixed:
                rows[first, 0] = -length
            if change is Change.ADDED and there:
                own = query.line.per_person
                rows, labels = _with(rows, labels, length, 0, own)
            elif change is Change.REPLACED:
                own = query.line.per_person
                rows[:own, 0] = length if there else -length
            elif change is Change.RELABELLED:
                own = query.line.per_person
                rows, labels = _with(rows, labels, length, 0 if there else 1, own)
        persons = np.maximum(np.arange(len(rows)) - max(own - 1, 0), 0)  # the canary's come first
        made = prepare_records(query, rows, labels, persons)
        if site == 0 and isinstance(made, PreparedRows):
            for group, part in enumerate(made.by_group[:2]):
                if len(part):
                    canary[group] = float(part[0, 0])
                    usual[group] = float(part[-1, 0]) if fixed else 0.0
        sites.append(made)
    return World(tuple(sites), (usual[0], usual[1]), (canary[0], canary[1]))


def _with(
    rows: npt.NDArray[np.float64],
    labels: npt.NDArray[np.int64],
    value: float,
    label: int,
    count: int,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    own = np.zeros((count, rows.shape[1]))
    own[:, 0] = value
    return np.vstack([own, rows]), np.append(np.full(count, label, dtype=np.int64), labels)


def _site_sizes(query: SumQuery) -> Sequence[int]:
    """How many rows of each group a site has: its part of what was declared."""
    sites = 1 if query.federation.averaged else query.federation.sites
    return [group.among // sites for group in query.participation]
