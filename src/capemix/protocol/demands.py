"""What a plan asks of a site's machine, by the plan's declared numbers alone.

No row is looked at, and no count of rows: a site with one row is asked for the same as a site with
a million. So whether a plan is too large says nothing about anybody's rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from capemix.pipeline import share_bytes
from capemix.plan import Asked, MomentsPlan, Plan
from capemix.prepare.frame import MOST_KEPT
from capemix.prepare.moments import MOST_UNDER_WAY

A_CORE: Final = 1 << 26
"""Bytes for what one core works on: a block of draws, its noise and masks, a piece of a selection.
How many cores there are is the site's business, and not the plan's: one is counted."""

_TABLES: Final = 1 << 27
"""Bytes of the tables that noise and selection are drawn by."""


@dataclass(frozen=True)
class Demands:
    """``upload_bytes`` is one upload, of several rounds the largest. ``memory_bytes`` is held at a
    time at most on one core, beside the rows themselves and two bytes for each of their numbers.
    ``work`` is how many numbers are drawn or added up in all rounds, where classes have the
    declared sizes. ``draws`` is how many draws one record takes part in, on average: it bounds the
    time that each of a site's records takes, whatever sizes were declared."""

    upload_bytes: int
    memory_bytes: int
    work: int
    draws: int


def demands_of(asked: Asked) -> Demands:
    """Of one sum, or of all rounds of a release together."""
    if isinstance(asked, Plan):
        return _of_sum(asked, summed=asked.contribution is not None)
    plans = asked.chosen_rounds().plans.values()
    each = [_of_sum(plan, summed=True) for plan in plans]
    return Demands(
        upload_bytes=max(one.upload_bytes for one in each),
        memory_bytes=max(one.memory_bytes for one in each) + _kept(asked),
        work=sum(one.work for one in each),
        draws=sum(one.draws for one in each),
    )


def _of_sum(plan: Plan, *, summed: bool) -> Demands:
    rows, width = plan.query.shape
    numbers, upload = rows * width, share_bytes(plan)
    federation = plan.federation
    peers = federation.sites - 1 if federation.peers is None else federation.peers
    # Records that all take part are added up first, in 64 bits, some of them at a time.
    sums = 8 * numbers + max(8 * numbers, MOST_UNDER_WAY) if summed else 0
    return Demands(
        upload_bytes=upload,
        memory_bytes=upload + sums + A_CORE + _TABLES,
        work=numbers * (2 + peers + plan.mixing.mixture),  # noise, a mask of its own, pairs, rows
        draws=max(-(-p.draws * p.selected // p.among) for p in plan.query.participation),
    )


def _kept(whole: MomentsPlan) -> int:
    """Bytes of what is made of all records once, at most: turned; of images also set upright, and
    their features."""
    return MOST_KEPT * (1 if whole.images is None else 3)
