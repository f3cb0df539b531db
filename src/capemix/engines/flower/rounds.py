"""One round over Flower: every site is asked at once, and uploads are fetched chunk by chunk."""

from __future__ import annotations

import time
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

_POLL: Final = 0.1
_PAUSE: Final = 1.0
"""Seconds before a chunk that did not come is asked for again."""

Asked = tuple[int, int | None]
"""A site, and which chunk of its upload; None for the round's own request."""


class Round:
    """The open round of a run, until every site has answered or is overdue."""

    def __init__(self, grid: Grid, run: Run, node_of: Mapping[int, int], seconds: float) -> None:
        self._run = run
        self._node_of = node_of
        self._under_way: Exchange[Asked] = Exchange(grid, seconds)
        self._seconds = seconds
        self._chunks: set[tuple[int, int]] = set()
        self._until: dict[tuple[int, int], float] = {}  # when a chunk's time is over
        self._again: dict[tuple[int, int], float] = {}  # when one is asked for again
        self.bytes_out = self.bytes_in = 0

    def conduct(self, tell: Callable[[], None]) -> None:
        """``tell`` is called whenever there may be news. Closing the round is the caller's."""
        waiting = set(self._run.waiting_for)  # of a run that is gone on with, some answers are in
        for site, raw in self._run.requests():
            if site in self._node_of and site in waiting:
                self._ask((site, None), raw)
        while self._under_way or self._again:
            for (site, index), reply in self._under_way.replies():
                if index is not None:
                    self._chunks.discard((site, index))
                self._take(site, index, reply)
                self._ask_for_chunks()
                tell()
            self._ask_for_chunks()
            if not self._under_way and self._again:
                time.sleep(_POLL)
            tell()

    def _ask(self, asked: Asked, raw: bytes, until: float | None = None) -> None:
        self._under_way.ask(asked, self._node_of[asked[0]], raw, until)
        self.bytes_out += len(raw)

    def _take(self, site: int, index: int | None, reply: bytes | Refused) -> None:
        if isinstance(reply, bytes):
            self.bytes_in += len(reply)
            if index is None:
                self._run.receive(site, reply)
            else:
                self._run.receive_chunk(site, index, reply)
        elif index is not None:
            now, which = time.monotonic(), (site, index)
            if now + _PAUSE < self._until[which]:
                self._again[which] = now + _PAUSE  # it is the same whenever it is asked for
            else:
                self._run.mark_lost(site, f"chunk {index} of its upload did not come: {reply}")
        elif not isinstance(reply, Overdue):  # the run itself says who was silent
            self._run.mark_lost(site, f"refused in round {self._run.round}: {reply}")
        if site in self._run.lost:
            useless = {asked for asked in self._chunks if asked[0] == site}
            self._under_way.drop(useless)
            self._chunks -= useless
            self._again = {asked: at for asked, at in self._again.items() if asked[0] != site}

    def _ask_for_chunks(self) -> None:
        now = time.monotonic()
        for site, index in self._run.wanted():
            which = site, index
            if len(self._chunks) == WINDOW:
                return
            if which not in self._chunks and self._again.get(which, now) <= now:
                self._again.pop(which, None)
                self._chunks.add(which)
                until = self._until.setdefault(which, now + self._seconds)
                self._ask(which, self._run.chunk_request(site, index), until)
