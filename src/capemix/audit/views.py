"""One run of the real pipeline, and what an observer makes of it.

A run is `site_share` at every site, and `Aggregate` for the release. What is kept of it is the
first column, in which the canary lies, as numbers whose law is known in both worlds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capemix.audit.canary import World, two_worlds
from capemix.audit.settings import Lost, View
from capemix.federation import MaskKind
from capemix.queries import Selection
from capemix.randomness.source import Source
from capemix.sums.aggregate import Aggregate
from capemix.sums.query import blocks
from capemix.sums.share import SiteShare, SourceDraws, masks_of, site_share
from capemix.zerosum.graph import PeerGraph
from capemix.zerosum.masks import (
    GaussianMasks,
    SiteKeys,
    add_masks,
    deal_keys,
    remove_own_mask,
    remove_pair_noise,
)

if TYPE_CHECKING:
    from capemix.audit.drawn import Setting

Array = npt.NDArray[Any]
Real = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Signal:
    """Numbers of one kind, one a draw: normal around ``base``, moved by ``out`` in the world
    without the canary and by ``in_`` in the world with it. Each is a pair: the move in a draw that
    leaves the canary out, and in a draw that has it, which happens with ``probability``."""

    name: str
    deviation: float
    probability: float
    base: Real
    out: tuple[Real, Real]
    in_: tuple[Real, Real]


class Observer:
    """Carries a setting out in either world, and hands back the signals of each run."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.query = setting, setting.query
        federation = self.query.federation
        if federation.peers is not None:
            raise ValueError("an audit has a complete graph of peers")
        self.worlds = two_worlds(self.query, setting.changed)
        self.masks = masks_of(self.query)
        self.masked = federation.masked and federation.sites > 1
        first, second, *_ = (*(group.draws for group in self.query.participation), 0)
        self.first, self.both = first, first == second
        self.blocks = tuple(blocks(self.query))
        self.unit = self.query.line.divisor * self.query.lattice_scale
        self.weights = self._weights()
        self.signals = self._signals()

    # -- what is known of the laws -------------------------------------------------------------

    def _weights(self) -> Real:
        """Of the honest uploads, the canary's site first: the best linear guess at its sum."""
        honest = self.setting.honest
        own_upload = np.zeros(honest)
        own_upload[0] = 1.0
        if self.setting.lost is not Lost.NO:
            return own_upload
        if self.setting.view is View.PUBLIC:
            return np.ones(honest)
        if not self.masked:
            return own_upload
        if isinstance(self.masks, GaussianMasks):
            own, pair = self.query.site_deviation**2, self.masks.pair_deviation**2
            covariance = (own + honest * pair) * np.eye(honest) - pair
            row = np.linalg.inv(covariance)[0]
            return np.asarray(row / row[0])
        return np.ones(honest)

    @property
    def deviation(self) -> float:
        """Of the noise on the best guess."""
        own = self.query.site_deviation
        masks, lost = self.masks, self.setting.lost
        if lost is Lost.MASKED and isinstance(masks, GaussianMasks):
            return math.hypot(own, masks.own_deviation)
        if isinstance(masks, GaussianMasks) and self.masked and self.setting.view is View.SERVER:
            if lost is Lost.NO:
                honest, pair = self.setting.honest, masks.pair_deviation**2
                covariance = (own**2 + honest * pair) * np.eye(honest) - pair
                return math.sqrt(self.weights @ covariance @ self.weights)
            return own
        return own * float(np.sqrt(self.weights @ self.weights))

    def _signals(self) -> tuple[Signal, ...]:
        without, with_ = self.worlds
        group = self.query.participation[0]
        fixed = group.selection is Selection.FIXED
        # Ordinary rows in a draw; with Poisson selection all of them are zero.
        draws = group.selected if fixed else 0
        groups = 2 if self.both else 1
        start = [draws * without.usual[g] for g in range(groups)]

        def moves(world: World, group: int) -> tuple[float, float]:
            usual, canary = world.usual[group], world.canary[group]
            moved = draws * usual - start[group]
            return moved, moved + canary - (usual if fixed else 0.0)

        size = self.first

        def spread(world: World, pattern: Sequence[int]) -> tuple[Real, Real]:
            each = [moves(world, group) for group in pattern]
            return (
                np.concatenate([np.full(size, move[0]) for move in each]),
                np.concatenate([np.full(size, move[1]) for move in each]),
            )

        probability = group.probability
        every = list(range(groups))
        bases = np.repeat(start, size)
        found = [
            Signal(
                "sum",
                self.deviation,
                probability,
                bases,
                spread(without, every),
                spread(with_, every),
            )
        ]
        if groups == 2:
            one = bases[:size] - bases[size:], spread(without, [0]), spread(with_, [0])
            twice = self.deviation * math.sqrt(2)
            found.append(Signal("difference", twice, probability, *one))
            if self._sees_uploads:
                own = self.query.site_deviation * math.sqrt(2)
                found.append(Signal("upload's difference", own, probability, *one))
        return tuple(found)

    @property
    def _sees_uploads(self) -> bool:
        several = self.setting.honest > 1 and self.setting.lost is Lost.NO
        return self.masked and self.setting.view is View.SERVER and several

    # -- a run ---------------------------------------------------------------------------------

    def observe(self, world: int, source: Source) -> list[Real]:
        """The signals of one run, in the order of ``signals``."""
        setting, query = self.setting, self.query
        rows = self.worlds[world].sites
        sites, present = query.federation.sites, query.federation.sites - setting.gone
        keys: tuple[SiteKeys | None, ...] = (None,) * sites
        if self.masked:
            keys = deal_keys(PeerGraph.complete(sites), source.child("keys"))
        uploads: list[Array] = []
        known: dict[int, Array] = {}
        # The server knows the colluders' uploads whole: they are not made for its view.
        needed = 1 if setting.lost is not Lost.NO else setting.honest
        for site in range(present if setting.view is View.PUBLIC else needed):
            draws = SourceDraws(query, source.child("site", site))
            if site < setting.honest:
                share = site_share(query, site, rows[site], draws, keys[site], threads=1)
            else:  # a colluder knows its own part: kept before its masks go on
                share = site_share(query, site, rows[site], draws, threads=1)
                known[site] = share.values.copy()
                if (own := keys[site]) is not None:
                    for block in self.blocks:
                        part = share.values[block.start : block.stop]
                        add_masks(part, own, self.masks, block.label)
            uploads.append(share.values)
        if setting.view is View.PUBLIC:
            guess = self._from_release(uploads, known, keys, present)
            return self._split(guess)
        stripped = [self._stripped(upload, site, keys) for site, upload in enumerate(uploads)]
        guess = self._guess(stripped)
        return self._split(guess, stripped[0] if self._sees_uploads else None)

    def _from_release(
        self,
        uploads: list[Array],
        known: dict[int, Array],
        keys: tuple[SiteKeys | None, ...],
        present: int,
    ) -> Real:
        """The released means, times what they were divided by, less what the colluders added."""
        total = Aggregate(self.query)
        for site, values in enumerate(uploads):
            total.add(SiteShare(site, values, self.query.site_deviation))
        of_site = {key.site: key for key in keys if key is not None}
        if of_site:
            own = {site: of_site[site].own for site in range(present)}
            missing = {
                (site, gone): of_site[site].pair[gone]
                for site in range(present)
                for gone in range(present, len(keys))
            }
            total.unmask(own, missing, threads=1)
        means = total.release_sums(threads=1)
        guess = means[:, 0].astype(np.float64) * self.unit
        for values in known.values():
            guess -= signed(values)[:, 0]
        return guess

    def _stripped(self, upload: Array, site: int, keys: tuple[SiteKeys | None, ...]) -> Array:
        """An honest upload without the masks that the server can take off."""
        own, setting = keys[site], self.setting
        if own is None:
            return upload
        lost = setting.lost is not Lost.NO and site == 0
        for block in self.blocks:
            part = upload[block.start : block.stop]
            if setting.lost is Lost.BARE or not lost:
                remove_own_mask(part, own.own, self.masks, block.label)
            for peer, key in own.pair.items():
                if lost or peer >= setting.honest or (peer == 0 and setting.lost is not Lost.NO):
                    remove_pair_noise(
                        part, key, self.masks, block.label, included=site, missing=peer
                    )
        return upload

    def _guess(self, stripped: list[Array]) -> Real:
        if self.query.federation.masks is MaskKind.RING and self.masked:
            total = stripped[0].copy()
            for other in stripped[1:]:
                total += other  # in the ring: what two sites share cancels
            return signed(total)[:, 0]
        columns = np.array([signed(part)[:, 0] for part in stripped])
        return np.asarray(self.weights[: len(columns)] @ columns)

    def _split(self, guess: Real, upload: Array | None = None) -> list[Real]:
        """The signals: both classes' sums, the difference of the two, and that of one upload."""
        first = self.first
        if not self.both:
            return [guess[:first]]
        found = [guess, guess[:first] - guess[first:]]
        if upload is not None:
            found.append(signed(upload[:first] - upload[first:])[:, 0])
        return found


def signed(values: Array) -> Real:
    """Words of the ring as the integers nearest to zero; real numbers as they are."""
    if values.dtype.kind == "u":
        values = values.view(values.dtype.str.replace("u", "i"))
    return values.astype(np.float64)
