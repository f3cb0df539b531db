"""Pairwise zero-sum noise and self masks, expanded from 32-byte keys.

A pair's noise is added by the lower-numbered site and subtracted by the other, so it cancels in
the sum over both. The self mask hides a site's upload even from those who know its pair keys;
it is taken off once the site is included. In ring mode masks are uniform in Z_2^w and cancel bit
for bit; in Gaussian mode (CAPE as published) they cancel to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from capemix.randomness.gaussian import add_gaussian
from capemix.randomness.source import ByteStream, Key, Label, Process, Source, derive_key, erase
from capemix.zerosum.graph import PeerGraph


@dataclass(frozen=True, eq=False, repr=False)
class SiteKeys:
    """One site's mask keys: its own, and one for each peer. They serve in one process: the same
    masks on two uploads would bare the difference of what they hide."""

    site: int
    own: bytearray
    pair: Mapping[int, bytearray]
    born: Process = field(default_factory=Process.current)

    def erase(self) -> None:
        """Once the masks are on, nobody at the site needs these."""
        erase(self.own, *self.pair.values())


def _stream(key: Key, kind: str, label: tuple[Label, ...]) -> ByteStream:
    """The keystream of one mask on one block."""
    derived = derive_key(key, kind, *label)
    try:
        return ByteStream(derived)
    finally:
        erase(derived)


@dataclass(frozen=True)
class RingMasks:
    """Masks uniform in the ring of the block's own unsigned words."""

    def add(self, block: npt.NDArray[Any], key: Key, label: tuple[Label, ...], sign: int) -> None:
        words = np.empty_like(block)
        _stream(key, "ring", label).fill(words)
        if sign > 0:
            block += words
        else:
            block -= words

    add_pair = add
    add_own = add


@dataclass(frozen=True)
class GaussianMasks:
    """Gaussian masks of the given deviations, in the units of the share."""

    pair_deviation: float
    own_deviation: float

    def add_pair(
        self, block: npt.NDArray[Any], key: Key, label: tuple[Label, ...], sign: int
    ) -> None:
        stream = _stream(key, "gaussian", label)
        add_gaussian(block.reshape(-1), self.pair_deviation, stream, sign=sign)

    def add_own(
        self, block: npt.NDArray[Any], key: Key, label: tuple[Label, ...], sign: int
    ) -> None:
        stream = _stream(key, "gaussian", label)
        add_gaussian(block.reshape(-1), self.own_deviation, stream, sign=sign)


Masks = RingMasks | GaussianMasks


def add_masks(
    block: npt.NDArray[Any], keys: SiteKeys, masks: Masks, label: tuple[Label, ...]
) -> None:
    """Add to ``block`` the site's self mask and its side of every pair's noise."""
    keys.born.check("this set of mask keys")
    masks.add_own(block, keys.own, ("own", *label), 1)
    for peer, key in keys.pair.items():
        masks.add_pair(block, key, ("pair", *label), 1 if keys.site < peer else -1)


def remove_own_mask(
    block: npt.NDArray[Any], own_key: Key, masks: Masks, label: tuple[Label, ...]
) -> None:
    """Take an *included* site's self mask off the sum."""
    masks.add_own(block, own_key, ("own", *label), -1)


def remove_pair_noise(
    block: npt.NDArray[Any],
    pair_key: Key,
    masks: Masks,
    label: tuple[Label, ...],
    *,
    included: int,
    missing: int,
) -> None:
    """Take off the sum what an included site shares with a *missing* one."""
    masks.add_pair(block, pair_key, ("pair", *label), -1 if included < missing else 1)


def deal_keys(graph: PeerGraph, source: Source) -> tuple[SiteKeys, ...]:
    """Keys for a run inside one process, where nobody needs to agree on them."""
    pair = {
        (s, j): source.key("pair", s, j)
        for s in range(graph.sites)
        for j in graph.peers[s]
        if s < j
    }
    return tuple(
        SiteKeys(
            site=s,
            own=source.key("own", s),
            pair={j: pair[min(s, j), max(s, j)] for j in graph.peers[s]},
        )
        for s in range(graph.sites)
    )
