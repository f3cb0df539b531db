"""Who shares a mask with whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capemix.errors import InputError
from capemix.randomness.source import ByteStream


@dataclass(frozen=True)
class PeerGraph:
    """Undirected, without loops: ``peers[s]`` are the sites that share a key with site s."""

    peers: tuple[tuple[int, ...], ...]

    @property
    def sites(self) -> int:
        return len(self.peers)

    @classmethod
    def complete(cls, sites: int) -> PeerGraph:
        return cls(tuple(tuple(j for j in range(sites) if j != s) for s in range(sites)))

    @classmethod
    def circulant(cls, sites: int, degree: int, stream: ByteStream) -> PeerGraph:
        """Sites on a circle in uniformly random order, each tied to the degree/2 next on either
        side (Bell et al. 2020, section 3). The stream must come from all sites' randomness: a
        server that chose the order could cut a site off.
        """
        if degree % 2 or not 2 <= degree < sites:
            raise InputError(
                "peers",
                f"must be an even number from 2 to {sites - 1}",
                value=degree,
                fix="choose another degree, or leave it out",
            )
        order = list(range(sites))
        for last in range(sites - 1, 0, -1):  # Fisher-Yates; 64 bits leave a bias below 2^-50
            swap = int(stream.words(1)[0]) * (last + 1) >> 64
            order[last], order[swap] = order[swap], order[last]
        peers: list[set[int]] = [set() for _ in range(sites)]
        for place, site in enumerate(order):
            for step in range(1, degree // 2 + 1):
                other = order[(place + step) % sites]
                peers[site].add(other)
                peers[other].add(site)
        return cls(tuple(tuple(sorted(p)) for p in peers))

    def adjacency(self) -> npt.NDArray[np.bool_]:
        matrix = np.zeros((self.sites, self.sites), dtype=bool)
        for site, peers in enumerate(self.peers):
            matrix[site, list(peers)] = True
        return matrix
