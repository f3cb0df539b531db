"""What a plan asks of a site's machine, by the plan's declared numbers alone.

No row is looked at, and no count of rows: a site with one row is asked for the same as a site with
a million. So whether a plan is too large says nothing about anybody's rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from capemix.plan import Plan
from capemix.statistics.moments import MOST_UNDER_WAY
from capemix.sums.query import SumQuery
from capemix.sums.share import share_bytes

A_CORE: Final = 1 << 26
"""Bytes for what one core works on: a block of draws, its noise and masks, a piece of a selection.
How many cores there are is the site's business, and not the plan's: one is counted."""

_TABLES: Final = 1 << 27
"""Bytes of the tables that noise and selection are drawn by."""


@dataclass(frozen=True)
class Demands:
    """``upload_bytes`` is one upload, of several sums the largest. ``memory_bytes`` is held at a
    time at most on one core, beside the rows themselves and two bytes for each of their numbers.
    ``work`` is how many numbers are drawn or added up in all sums, where classes have the
    declared sizes. ``draws`` is how many draws one record takes part in, on average: it bounds the
    time that each of a site's records takes, whatever sizes were declared."""

    upload_bytes: int
    memory_bytes: int
    work: int
    draws: int


def demands_of(plan: Plan) -> Demands:
    """Of all sums of a release together."""
    each = [_of_sum(query) for query in plan.queries()]
    return Demands(
        upload_bytes=max(one.upload_bytes for one in each),
        memory_bytes=max(one.memory_bytes for one in each) + plan.method.kept_bytes(plan),
        work=sum(one.work for one in each),
        draws=sum(one.draws for one in each),
    )


def _of_sum(query: SumQuery) -> Demands:
    rows, width = query.shape
    numbers, upload = rows * width, share_bytes(query)
    federation = query.federation
    peers = federation.sites - 1 if federation.peers is None else federation.peers
    # Records that all take part are added up first, in 64 bits, some of them at a time.
    sums = 0 if query.drawn else 8 * numbers + max(8 * numbers, MOST_UNDER_WAY)
    selected = max(group.selected for group in query.participation)
    return Demands(
        upload_bytes=upload,
        memory_bytes=upload + sums + A_CORE + _TABLES,
        work=numbers * (2 + peers + selected),  # noise, a mask of its own, pairs, rows
        draws=max(-(-p.draws * p.selected // p.among) for p in query.participation),
    )
