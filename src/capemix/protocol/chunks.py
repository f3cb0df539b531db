"""How an upload travels: cut into chunks, so that nobody on its way has to hold it whole.

The size of a chunk is a setting of the coordinator's. It decides who needs how much memory, and
nothing about what is uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEAST_CHUNK: Final = 4 << 10
MOST_CHUNK: Final = 256 << 20
DEFAULT_CHUNK: Final = 32 << 20
MOST_CHUNKS: Final = 1 << 17
"""A manifest of as many digests is half as long as a message may be."""


@dataclass(frozen=True)
class Cut:
    """An upload of ``size`` bytes in chunks of ``chunk_bytes``; the last one has what is left."""

    size: int
    chunk_bytes: int

    @property
    def chunks(self) -> int:
        return -(-self.size // self.chunk_bytes)

    def span(self, index: int) -> slice:
        """The bytes of a chunk."""
        start = index * self.chunk_bytes
        return slice(start, min(start + self.chunk_bytes, self.size))

    def length(self, index: int) -> int:
        span = self.span(index)
        return int(span.stop - span.start)

    @property
    def allowed(self) -> bool:
        """What either side insists on."""
        return LEAST_CHUNK <= self.chunk_bytes <= MOST_CHUNK and self.chunks <= MOST_CHUNKS
