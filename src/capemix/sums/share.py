"""What a site does for a sum: prepare its rows, select, add up, noise, mask.

    rows -> prepare -> select -> sum -> noise -> mask        (site_share)
    shares -> add up -> unmask -> noisy sums                 (aggregate.Aggregate)

Any engine drives these two; with the same seeds they give the same sums, bit for bit.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from capemix.errors import InputError
from capemix.federation import MaskKind
from capemix.kernels.machine import in_parallel
from capemix.queries import Participation, Selection
from capemix.randomness.gaussian import add_gaussian
from capemix.randomness.source import Source
from capemix.randomness.tables import rounded_gaussian
from capemix.sums.query import Block, NoiseLaw, SumQuery, blocks
from capemix.sums.select import Selected, select, sum_selected
from capemix.sums.statistic import (
    Codes,
    Prepared,
    PreparedRows,
    RowStatistic,
    SummedRows,
    WaitingRecords,
)
from capemix.zerosum.masks import GaussianMasks, Masks, RingMasks, SiteKeys, add_masks

_LOG: Final = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Progress = Callable[[int], None]
"""Called with the number of query rows just finished."""


Make = Callable[[SumQuery, Array, Codes, Codes | None], Prepared]
"""Makes some of a site's records ready for a sum, with whose they are if that matters."""


class Draws(Protocol):
    """A site's randomness: which records take part, and its own noise."""

    def select(
        self, block: Block, participation: Participation, population: int
    ) -> Iterable[Selected]: ...

    def add_noise(self, block: Block, out: Array) -> None: ...


class SourceDraws:
    """Selection and noise from a source: the only kind a release is made with."""

    def __init__(self, query: SumQuery, source: Source) -> None:
        self._source = source
        self._deviation = query.site_deviation
        self._law = query.law

    def select(
        self, block: Block, participation: Participation, population: int
    ) -> Iterable[Selected]:
        stream = self._source.stream("select", *block.label)
        return select(participation, population, block.stop - block.start, stream)

    def add_noise(self, block: Block, out: Array) -> None:
        if self._deviation == 0.0:
            return
        stream = self._source.stream("noise", *block.label)
        flat = out.reshape(-1)
        if self._law is NoiseLaw.GAUSSIAN:
            add_gaussian(flat, self._deviation, stream)
            return
        rounded_gaussian(self._deviation).add_to(flat, stream)


@dataclass(frozen=True, eq=False)
class SiteShare:
    """What a site uploads: its noised and masked sums, and the noise that is in them.

    ``values`` are words of the ring (unsigned integers), or float64 in real arithmetic.
    """

    site: int
    values: Array
    noise: float

    def __repr__(self) -> str:
        return f"SiteShare(site={self.site}, shape={self.values.shape}, noise={self.noise:g})"


def share_dtype(query: SumQuery) -> np.dtype[Any]:
    if not query.on_lattice:
        return np.dtype(np.float64)
    return np.dtype(np.uint32 if query.ring_bits == 32 else np.uint64)


def share_bytes(query: SumQuery) -> int:
    """How long a site's upload is."""
    rows, width = query.shape
    return rows * width * share_dtype(query).itemsize


def masks_of(query: SumQuery) -> Masks:
    if query.federation.masks is MaskKind.RING:
        return RingMasks()
    # A self mask must hide at least what the other honest sites' noise would: (h-1) tau_g^2.
    honest = query.federation.adversary.honest
    own = query.site_deviation
    return GaussianMasks(
        pair_deviation=own * float(np.sqrt(query.federation.pair_ratio)),
        own_deviation=own * float(np.sqrt(max(1, honest))),
    )


def prepare_site(query: SumQuery, features: Array, labels: npt.NDArray[np.int64]) -> Prepared:
    """A site's rows as the sum needs them: kept one by one where they are drawn, or added up."""
    statistic, lattice = query.summed, query.record_lattice
    if features.ndim != 2 or features.shape[1] != statistic.columns:
        raise InputError(
            "rows",
            f"must have the {statistic.columns} columns that are planned for",
            value=features.shape,
            fix="plan for these rows, or choose columns",
        )
    if query.drawn and isinstance(statistic, RowStatistic):
        return statistic.rows_by_group(features, labels, lattice)
    if query.drawn:
        if statistic.groups > 1:
            raise ValueError("records of several groups are drawn, but what each adds is not kept")
        return WaitingRecords(features, labels, statistic.l2_norm_bound, lattice)
    return _summed(query, features, labels)


def _summed(
    query: SumQuery, features: Array, labels: Codes, _whose: Codes | None = None
) -> SummedRows:
    """What some records add up to, groups by width: whoever they are of."""
    statistic, lattice = query.summed, query.record_lattice
    shape = (statistic.groups, statistic.width)
    sums = np.zeros(shape, dtype=np.float64 if lattice is None else np.int64)
    statistic.add_to(sums, features, labels, lattice)
    count = query.line.per_person
    bound = None if lattice is None else count * lattice
    return SummedRows(sums, count * statistic.l2_norm_bound, bound)


def prepare_records(
    query: SumQuery, features: Array, labels: Codes, persons: Codes | None = None
) -> Prepared:
    """As `prepare_site`, but what goes wrong with a record costs that record and no other: it adds
    nothing, and the others add what they would without it. What a plan is wrong in is said at once,
    whatever the records are and however many. ``persons`` says whose each row is: no more than the
    sum is planned for are one's, and where records are drawn they are one's own row."""
    most = query.line.per_person
    if most > 1 and persons is None:
        raise ValueError("the sum is of people with several rows, but nothing says whose these are")
    whose = persons if query.drawn and most > 1 else None
    made = _made_ready(_ready, query, features, labels, whose)
    return made if whose is None else _kept(made).of_persons(most)


def added_up(query: SumQuery, features: Array, labels: Codes) -> SummedRows:
    """What all of these records add up to, each of them once, as `prepare_records` has it."""
    made = _made_ready(_summed, query, features, labels, None)
    if not isinstance(made, SummedRows):
        raise ValueError("records that are added up once are kept apart")
    return made


def _kept(made: Prepared) -> PreparedRows:
    if not isinstance(made, PreparedRows):
        raise ValueError("people are drawn, but what each of their records adds is not kept")
    return made


def _ready(query: SumQuery, features: Array, labels: Codes, whose: Codes | None) -> Prepared:
    """With whose each row is, if it is asked: the rows of a group stand as their records do."""
    if whose is None:
        return prepare_site(query, features, labels)
    made = _kept(prepare_site(query, features, labels))
    groups = [labels >= 0] if len(made.by_group) == 1 else None
    groups = groups or [labels == group for group in range(len(made.by_group))]
    persons = tuple(whose[group] for group in groups)
    if any(len(rows) != len(of) for rows, of in zip(made.by_group, persons, strict=True)):
        raise ValueError("a record adds no row, or several")
    return replace(made, persons=persons)


def _made_ready(
    make: Make, query: SumQuery, features: Array, labels: Codes, whose: Codes | None
) -> Prepared:
    none = make(query, features[:0], labels[:0], None if whose is None else whose[:0])
    failed: Counter[str] = Counter()
    parts = _parts_made_ready(make, query, features, labels, whose, failed)
    made = _together(next(parts, None) or none, parts)
    for name, count in failed.items():  # the error's own text may hold a value
        _LOG.error("%d records could not be made ready (%s): they add nothing", count, name)
    return made


def _add_drawn(query: SumQuery, rows: WaitingRecords, selected: Selected, out: Array) -> None:
    """What each draw's records add up to, made ready now; each fails for itself alone."""
    for draw in range(len(selected.starts) - 1):
        some = selected.indices[selected.starts[draw] : selected.starts[draw + 1]]
        made = added_up(query, rows.features[some], rows.labels[some])
        out[selected.first + draw] += made.sums[0].astype(out.dtype)


def _parts_made_ready(
    make: Make,
    query: SumQuery,
    features: Array,
    labels: Codes,
    whose: Codes | None,
    failed: Counter[str],
) -> Iterator[Prepared]:
    """All at once; or if that fails by halves, down to the records that it fails for."""
    try:
        made = make(query, features, labels, whose)
    except Exception as error:
        if len(features) <= 1:
            failed[type(error).__name__] += 1
            return
    else:
        yield made
        return
    half = len(features) // 2
    for part in (slice(half), slice(half, None)):
        of = None if whose is None else whose[part]
        yield from _parts_made_ready(make, query, features[part], labels[part], of, failed)


def _together(first: Prepared, others: Iterable[Prepared]) -> Prepared:
    """Some records of a site and the ones after them."""
    if isinstance(first, SummedRows):
        for other in others:
            if isinstance(other, SummedRows):
                np.add(first.sums, other.sums, out=first.sums)
        return first
    if isinstance(first, WaitingRecords):
        return first
    parts = [first, *(other for other in others if isinstance(other, PreparedRows))]
    if len(parts) == 1:
        return first
    groups = zip(*(part.by_group for part in parts), strict=True)
    made = replace(first, by_group=tuple(np.concatenate(group) for group in groups))
    if first.persons is None:
        return made
    persons = zip(*(part.persons or () for part in parts), strict=True)
    return replace(made, persons=tuple(np.concatenate(group) for group in persons))


def check_site(query: SumQuery, labels: npt.NDArray[np.int64], *, sound: bool = True) -> None:
    """Refuse, in front of the site's own people and before it joins, what a sum cannot be made of.

    Poisson selection never refuses. Fixed-size selection needs as many rows of each group as were
    declared (a ``sound`` guarantee rests on that), or at least as many as a draw takes.
    """
    if all(group.selection is not Selection.FIXED for group in query.participation):
        return
    counts = np.bincount(labels, minlength=query.line.groups)
    owned = counts.tolist() if query.line.groups > 1 else [len(labels)]
    for place, (own, group) in enumerate(zip(owned, query.participation, strict=True)):
        needed = group.among if sound else group.selected
        if own < needed:
            raise InputError(
                "the data" if query.line.groups == 1 else f"class number {place + 1}",
                f"has fewer rows at a site than fixed-size selection needs ({needed})",
                value=own,
                fix="lower 'mixture' or class_sizes, use fewer sites, or Poisson selection",
            )


def site_share(
    query: SumQuery,
    site: int,
    rows: Prepared,
    draws: Draws,
    keys: SiteKeys | None = None,
    *,
    progress: Progress | None = None,
    threads: int | None = None,
    out: Array | None = None,
) -> SiteShare:
    """What a site does: select, sum, noise, mask; a block at a time, never a row in the clear.

    ``out``, of the share's shape and type, is overwritten and becomes the share's memory.
    """
    if not _fits(query, rows):
        raise ValueError("the prepared rows are not this sum's")
    if rows.lattice_norm_bound != query.lattice_norm_bound:
        raise ValueError("the rows were prepared for another lattice")
    if not query.on_lattice and rows.l2_norm_bound > query.l2_norm_bound:
        raise ValueError("the rows were clipped to a larger norm than the sum's")
    values = np.empty(query.shape, dtype=share_dtype(query)) if out is None else out
    if values.shape != query.shape or values.dtype != share_dtype(query):
        raise ValueError("the memory given does not fit the share")
    # Sums are taken in signed words of the same width: in the ring they are the same bits.
    signed = values.view(values.dtype.str.replace("u", "i")) if query.on_lattice else values
    masks = masks_of(query) if keys is not None else None

    def fill(block: Block) -> None:
        out = signed[block.start : block.stop]
        if isinstance(rows, SummedRows):
            out[:] = rows.sums[block.start : block.stop]
        else:
            participation, out[:] = query.participation[block.group], 0
            own = rows.features if isinstance(rows, WaitingRecords) else rows.by_group[block.group]
            for selected in draws.select(block, participation, len(own)):
                if isinstance(rows, WaitingRecords):
                    _add_drawn(query, rows, selected, out)
                else:
                    sum_selected(own, selected, out)
        draws.add_noise(block, out)
        if keys is not None and masks is not None:
            add_masks(values[block.start : block.stop], keys, masks, block.label)
        if progress is not None:
            progress(block.stop - block.start)

    numbers = None
    if isinstance(rows, SummedRows):  # its noise, and a mask for itself and for each peer
        numbers = values.size * (1 if keys is None else 2 + len(keys.pair))
    in_parallel(fill, blocks(query), threads, numbers=numbers)
    return SiteShare(site, values, query.site_deviation)


def _fits(query: SumQuery, rows: Prepared) -> bool:
    if isinstance(rows, SummedRows):
        return rows.sums.shape == query.shape
    if isinstance(rows, WaitingRecords):
        return query.drawn
    return len(rows.by_group) == len(query.participation) and all(
        part.shape[1] == query.width for part in rows.by_group
    )
