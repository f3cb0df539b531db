"""One round over Flower: every site is asked at once, and uploads are fetched chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from flwr.serverapp import Grid

from capemix.engines.flower.envelope import Refused
from capemix.engines.flower.exchange import Exchange, Overdue
from capemix.protocol.coordinator import Run

WINDOW: Final = 4
"""Chunks under way at a time, over all sites. The SuperLink keeps in memory what was asked for and
not fetched yet, so this bounds it; with fewer, everybody would wait while one site's process
starts."""

Asked = tuple[int, int | None]
"""A site, and which chunk of its upload; None for the round's own request."""


class Round:
    """The open round of a run, until every site has answered or is overdue."""

    def __init__(self, grid: Grid, run: Run, node_of: Mapping[int, int], seconds: float) -> None:
        self._run = run
        self._node_of = node_of
        self._under_way: Exchange[Asked] = Exchange(grid, seconds)
        self._chunks: set[tuple[int, int]] = set()
        self.bytes_out = self.bytes_in = 0

    def conduct(self, tell: Callable[[], None]) -> None:
        """``tell`` is called whenever there may be news. Closing the round is the caller's."""
        for site, raw in self._run.requests():
            if site in self._node_of:
                self._ask((site, None), raw)
        while self._under_way:
            for (site, index), reply in self._under_way.replies():
                if index is not None:
                    self._chunks.discard((site, index))
                self._take(site, index, reply)
                self._ask_for_chunks()
                tell()
            tell()

    def _ask(self, asked: Asked, raw: bytes) -> None:
        self._under_way.ask(asked, self._node_of[asked[0]], raw)
        self.bytes_out += len(raw)

    def _take(self, site: int, index: int | None, reply: bytes | Refused) -> None:
        if isinstance(reply, bytes):
            self.bytes_in += len(reply)
            if index is None:
                self._run.receive(site, reply)
            else:
                self._run.receive_chunk(site, index, reply)
        elif index is not None:
            self._run.mark_lost(site, f"chunk {index} of its upload did not come: {reply}")
        elif not isinstance(reply, Overdue):  # the run itself says who was silent
            self._run.mark_lost(site, f"refused in round {self._run.round}: {reply}")
        if site in self._run.lost:
            useless = {asked for asked in self._chunks if asked[0] == site}
            self._under_way.drop(useless)
            self._chunks -= useless

    def _ask_for_chunks(self) -> None:
        for site, index in self._run.wanted():
            if len(self._chunks) == WINDOW:
                return
            if (site, index) not in self._chunks:
                self._chunks.add((site, index))
                self._ask((site, index), self._run.chunk_request(site, index))
