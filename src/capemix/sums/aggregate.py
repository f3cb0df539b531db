"""What the coordinator does with the sites' shares: add them up, take the masks off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from capemix import kernels
from capemix.kernels.machine import in_parallel
from capemix.randomness.source import Key
from capemix.sums.query import Block, SumQuery, blocks
from capemix.sums.share import SiteShare, masks_of, share_dtype
from capemix.zerosum.masks import remove_own_mask, remove_pair_noise

Array = npt.NDArray[Any]


class Aggregate:
    """The sum of shares as they come; then without its masks."""

    def __init__(self, query: SumQuery) -> None:
        self._query = query
        self._sum: Array | None = None
        self._included: list[int] = []

    @property
    def included(self) -> tuple[int, ...]:
        return tuple(self._included)

    def add(self, share: SiteShare) -> None:
        """Add a share; its array is this sum's from then on."""
        if share.site in self._included:
            raise ValueError(f"site {share.site} is included already")
        shape, dtype = self._query.shape, share_dtype(self._query)
        if share.values.shape != shape or share.values.dtype != dtype:
            raise ValueError(f"the share of site {share.site} does not fit the sum")
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
            self._sum = np.zeros(self._query.shape, dtype=share_dtype(self._query))
        self._included.append(site)
        flat, done = self._sum.reshape(-1), 0
        for piece in pieces:
            if piece.dtype != flat.dtype or done + len(piece) > len(flat):
                raise ValueError(f"the share of site {site} does not fit the sum")
            flat[done : done + len(piece)] += piece
            done += len(piece)
        if done != len(flat):
            raise ValueError(f"the share of site {site} does not fit the sum")

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
        masks, total = masks_of(self._query), self._total()
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

    def release_sums(self, *, threads: int | None = None) -> npt.NDArray[np.floating[Any]]:
        """The noisy sums over the line's divisor, in the statistic's units; hands over the memory.

        Words of 32 bits become 32-bit floats where they lie: what is lost, if a sum has more than
        24 bits, is post-processing.
        """
        total, divisor = self._total(), self._query.line.divisor
        self._sum = None
        if not self._query.on_lattice:
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
