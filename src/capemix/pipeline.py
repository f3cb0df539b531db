"""The whole path in two functions: what a site does, and what the coordinator does.

    rows -> prepare -> select -> sum -> noise -> mask        (site_share)
    shares -> add up -> unmask -> release                    (Coordinator)

Any engine drives these two; with the same seeds they give the same release, bit for bit.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from capemix import kernels
from capemix.blocks import Block, blocks
from capemix.errors import InputError
from capemix.federation import MaskKind
from capemix.kernels.threads import in_parallel
from capemix.mix.select import Selected, select
from capemix.plan import Accountant, NoiseLaw, Plan
from capemix.prepare.moments import SummedRows, sum_contributions
from capemix.prepare.rows import PreparedRows, prepare_rows
from capemix.queries import Participation, Selection, SumQuery
from capemix.randomness.gaussian import add_gaussian
from capemix.randomness.source import Key, Source
from capemix.randomness.tables import discrete_gaussian, rounded_gaussian
from capemix.synthesizers.mixing import Pool
from capemix.zerosum.masks import (
    GaussianMasks,
    Masks,
    RingMasks,
    SiteKeys,
    add_masks,
    remove_own_mask,
    remove_pair_noise,
)

_LOG: Final = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Progress = Callable[[int], None]
"""Called with the number of query rows just finished."""


class Draws(Protocol):
    """A site's randomness: which records take part, and its own noise."""

    def select(
        self, block: Block, participation: Participation, population: int
    ) -> Iterable[Selected]: ...

    def add_noise(self, block: Block, out: Array) -> None: ...


class SourceDraws:
    """Selection and noise from a source: the only kind a release is made with."""

    def __init__(self, plan: Plan, source: Source) -> None:
        self._source = source
        self._deviation = plan.site_deviation
        self._law = plan.law

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
        law = rounded_gaussian if self._law is NoiseLaw.ROUNDED else discrete_gaussian
        law(self._deviation).add_to(flat, stream)


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


def share_dtype(plan: Plan) -> np.dtype[Any]:
    if not plan.on_lattice:
        return np.dtype(np.float64)
    return np.dtype(np.uint32 if plan.ring_bits == 32 else np.uint64)


def share_bytes(plan: Plan) -> int:
    """How long a site's upload is."""
    rows, width = plan.query.shape
    return rows * width * share_dtype(plan).itemsize


def masks_of(plan: Plan) -> Masks:
    if plan.federation.masks is MaskKind.RING:
        return RingMasks()
    # A self mask must hide at least what the other honest sites' noise would: (h-1) tau_g^2.
    honest = plan.federation.adversary.honest
    own = plan.site_deviation
    return GaussianMasks(
        pair_deviation=own * float(np.sqrt(plan.federation.pair_ratio)),
        own_deviation=own * float(np.sqrt(max(1, honest))),
    )


Prepared = PreparedRows | SummedRows
"""A site's rows by class, clipped and on the lattice; or what they add up to, where the plan takes
every record once."""


def prepare_site(plan: Plan, features: Array, labels: npt.NDArray[np.int64]) -> Prepared:
    if features.ndim != 2 or features.shape[1] != plan.columns_read:
        raise InputError(
            "rows",
            f"must have the plan's {plan.columns_read} columns",
            value=features.shape,
            fix="plan for these rows, or choose columns",
        )
    if plan.contribution is not None:
        return sum_contributions(
            features, labels, plan.contribution, lattice_norm_bound=plan.lattice_norm_bound
        )
    return prepare_to_mix(plan, features, labels)


def prepare_to_mix(plan: Plan, features: Array, labels: npt.NDArray[np.int64]) -> PreparedRows:
    return prepare_rows(
        features,
        labels,
        plan.mixing.classes,
        plan.preparation,
        label_columns=plan.mixing.label_noise,
        lattice_norm_bound=plan.lattice_norm_bound,
        one_pool=plan.mixing.pool is Pool.ALL,
    )


def prepare_records(plan: Plan, features: Array, labels: npt.NDArray[np.int64]) -> Prepared:
    """As `prepare_site`, but what goes wrong with a record costs that record and no other: it adds
    nothing, and the others add what they would without it. What a plan is wrong in is said at once,
    whatever the records are and however many."""
    none = features[:0], labels[:0]
    prepare_site(plan, *none)
    failed: Counter[str] = Counter()
    parts = _parts_made_ready(plan, features, labels, failed)
    made = _together(next(parts, None) or prepare_site(plan, *none), parts)
    for name, count in failed.items():  # the error's own text may hold a value
        _LOG.error("%d records could not be made ready (%s): they add nothing", count, name)
    return made


def _parts_made_ready(
    plan: Plan, features: Array, labels: npt.NDArray[np.int64], failed: Counter[str]
) -> Iterator[Prepared]:
    """All at once; or if that fails by halves, down to the records that it fails for."""
    try:
        made = prepare_site(plan, features, labels)
    except Exception as error:
        if len(features) <= 1:
            failed[type(error).__name__] += 1
            return
    else:
        yield made
        return
    half = len(features) // 2
    for part in (slice(half), slice(half, None)):
        yield from _parts_made_ready(plan, features[part], labels[part], failed)


def _together(first: Prepared, others: Iterable[Prepared]) -> Prepared:
    """Some records of a site and the ones after them."""
    if isinstance(first, SummedRows):
        for other in others:
            if isinstance(other, SummedRows):
                np.add(first.sums, other.sums, out=first.sums)
        return first
    parts = [first, *(other for other in others if isinstance(other, PreparedRows))]
    if len(parts) == 1:
        return first
    groups = zip(*(part.by_class for part in parts), strict=True)
    return replace(first, by_class=tuple(np.concatenate(group) for group in groups))


def check_site(plan: Plan, labels: npt.NDArray[np.int64]) -> None:
    """Refuse, in front of the site's own people and before it joins, what a plan cannot do.

    Poisson selection never refuses. Fixed-size selection needs as many rows as were declared.
    """
    if plan.mixing.selection is not Selection.FIXED or plan.contribution is not None:
        return
    counts = np.bincount(labels, minlength=len(plan.classes))
    by_class = plan.mixing.pool is Pool.CLASS
    names = [f"class {label}" for label in plan.classes] if by_class else ["the data"]
    owned = counts.tolist() if by_class else [len(labels)]
    for name, own, declared in zip(names, owned, plan.mixing.pool_sizes, strict=True):
        needed = declared if plan.accountant is Accountant.SOUND else plan.mixing.mixture
        if own < needed:
            raise InputError(
                name,
                f"has fewer rows at a site than fixed-size selection needs ({needed})",
                value=own,
                fix="lower --mixture or --class-sizes, use fewer sites, or --selection poisson",
            )


def site_share(
    plan: Plan,
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
    query = plan.query
    if not _fits(query, rows):
        raise ValueError("the prepared rows are not this plan's")
    if rows.lattice_norm_bound != query.lattice_norm_bound:
        raise ValueError("the rows were prepared for another lattice")
    if not plan.on_lattice and rows.l2_norm_bound > query.l2_norm_bound:
        raise ValueError("the rows were clipped to a larger norm than the plan's")
    values = np.empty(query.shape, dtype=share_dtype(plan)) if out is None else out
    if values.shape != query.shape or values.dtype != share_dtype(plan):
        raise ValueError("the memory given does not fit the plan's share")
    # Sums are taken in signed words of the same width: in the ring they are the same bits.
    signed = values.view(values.dtype.str.replace("u", "i")) if plan.on_lattice else values
    masks = masks_of(plan) if keys is not None else None

    def fill(block: Block) -> None:
        out = signed[block.start : block.stop]
        if isinstance(rows, SummedRows):
            out[:] = rows.sums[block.start : block.stop]
        else:
            participation, out[:] = query.participation[block.group], 0
            population = len(rows.by_class[block.group])
            for selected in draws.select(block, participation, population):
                plan.mixing.add_block(rows, block.group, selected, out)
        draws.add_noise(block, out)
        if keys is not None and masks is not None:
            add_masks(values[block.start : block.stop], keys, masks, block.label)
        if progress is not None:
            progress(block.stop - block.start)

    numbers = None
    if isinstance(rows, SummedRows):  # its noise, and a mask for itself and for each peer
        numbers = values.size * (1 if keys is None else 2 + len(keys.pair))
    in_parallel(fill, blocks(query), threads, numbers=numbers)
    return SiteShare(site, values, plan.site_deviation)


def _fits(query: SumQuery, rows: Prepared) -> bool:
    if isinstance(rows, SummedRows):
        return rows.sums.shape == query.shape
    return len(rows.by_class) == len(query.participation) and all(
        part.shape[1] == query.width for part in rows.by_class
    )


class Coordinator:
    """What the coordinator does: adds shares up as they come, then takes the masks off."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._query = plan.query
        self._sum: Array | None = None
        self._included: list[int] = []

    @property
    def included(self) -> tuple[int, ...]:
        return tuple(self._included)

    def add(self, share: SiteShare) -> None:
        """Add a share; its array is the coordinator's from then on."""
        if share.site in self._included:
            raise ValueError(f"site {share.site} is included already")
        shape, dtype = self._query.shape, share_dtype(self._plan)
        if share.values.shape != shape or share.values.dtype != dtype:
            raise ValueError(f"the share of site {share.site} does not fit the plan")
        self._included.append(share.site)
        if self._sum is None:
            self._sum = share.values
        else:
            self._sum += share.values

    def add_pieces(self, site: int, pieces: Iterable[Array]) -> None:
        """Add a share that comes as flat pieces, in order: one of them is in memory at a time."""
        if site in self._included:
            raise ValueError(f"site {site} is included already")
        if self._sum is None:
            self._sum = np.zeros(self._query.shape, dtype=share_dtype(self._plan))
        self._included.append(site)
        flat, done = self._sum.reshape(-1), 0
        for piece in pieces:
            if piece.dtype != flat.dtype or done + len(piece) > len(flat):
                raise ValueError(f"the share of site {site} does not fit the plan")
            flat[done : done + len(piece)] += piece
            done += len(piece)
        if done != len(flat):
            raise ValueError(f"the share of site {site} does not fit the plan")

    def unmask(
        self,
        own_keys: Mapping[int, Key],
        missing_pairs: Mapping[tuple[int, int], Key],
        *,
        threads: int | None = None,
    ) -> None:
        """Take off the included sites' self masks, and what they share with missing sites.

        ``missing_pairs`` maps (included site, missing site) to the pair's key. Nobody's own key
        and pair keys may both be revealed.
        """
        masks, total = masks_of(self._plan), self._total()
        gone = {missing for _, missing in missing_pairs}
        if set(own_keys) != set(self._included) or gone & set(self._included):
            raise ValueError("self masks are revealed for included sites, pairs for missing ones")

        def clear(block: Block) -> None:
            part = total[block.start : block.stop]
            for key in own_keys.values():
                remove_own_mask(part, key, masks, block.label)
            for (included, missing), key in missing_pairs.items():
                remove_pair_noise(part, key, masks, block.label, included=included, missing=missing)

        in_parallel(clear, blocks(self._query), threads)

    def release_sums(
        self, *, divisor: float = 1.0, threads: int | None = None
    ) -> npt.NDArray[np.floating[Any]]:
        """The noisy sums over ``divisor``, in the query's own units; hands over the memory.

        Words of 32 bits become 32-bit floats where they lie: what is lost, if a sum has more than
        24 bits, is post-processing.
        """
        total = self._total()
        self._sum = None
        if not self._plan.on_lattice:
            total /= divisor
            return total
        signed = total.view(total.dtype.str.replace("u", "i"))
        floats = total.view(total.dtype.str.replace("u", "f"))
        unit = 1.0 / (self._query.lattice_scale * divisor)

        def convert(block: Block) -> None:
            part = slice(block.start, block.stop)
            kernels.active().to_float(signed[part].reshape(-1), unit, floats[part].reshape(-1))

        in_parallel(convert, blocks(self._query), threads, numbers=floats.size)
        return floats

    def _total(self) -> Array:
        if self._sum is None:
            raise ValueError("no share has been added")
        return self._sum
