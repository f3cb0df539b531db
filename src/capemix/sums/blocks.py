"""A sum's rows in blocks that are summed, noised and masked one by one, in parallel.

The block length is part of the format, not a performance setting: streams of randomness are
labelled by block, so changing it changes every seeded release. So is the word that starts a label;
which sum it is, the source says (each has one of its own).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from capemix.sums.query import SumQuery

_NUMBERS: Final = 1 << 20
_LABEL: Final = "mixtures"


@dataclass(frozen=True)
class Block:
    """Rows [start, stop) of a sum, all of one group."""

    group: int
    index: int
    start: int
    stop: int

    @property
    def label(self) -> tuple[str, int]:
        return (_LABEL, self.index)


def blocks(query: SumQuery) -> Iterator[Block]:
    length = max(1, _NUMBERS // query.width)
    index = first = 0
    for group, participation in enumerate(query.participation):
        last = first + participation.draws
        for start in range(first, last, length):
            yield Block(group, index, start, min(start + length, last))
            index += 1
        first = last
