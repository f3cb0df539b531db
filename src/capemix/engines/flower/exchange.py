"""Requests out to nodes, replies in as they come; who is silent is silent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from capemix.engines.flower.envelope import MESSAGE_TYPE, Refused, pack, unpack

_LEAST_POLL: Final = 0.02
_POLL: Final = 0.25
"""Looked for soon at first: of a release in rounds, most replies are made in less."""

_GRACE: Final = 60.0

Name = TypeVar("Name")


class Overdue(Refused):
    """No reply came in time."""


class Exchange(Generic[Name]):
    """Requests that are under way, each by a name of the caller's, and for ``seconds`` at most.

    A reply is asked for by the request it answers: an error that the SuperLink makes for a dead
    node does not name it. One reply is in memory at a time.
    """

    def __init__(self, grid: Grid, seconds: float) -> None:
        self._grid = grid
        self._seconds = seconds
        self._under_way: dict[str, tuple[Name, float]] = {}
        self._failed: set[str] = set()
        self._pause = _LEAST_POLL

    def __len__(self) -> int:
        return len(self._under_way)

    def ask(self, name: Name, node: int, raw: bytes, until: float | None = None) -> None:
        """``until`` is a moment of the monotonic clock, if it is not to be waited for longer."""
        end = time.monotonic() + self._seconds if until is None else until
        message = Message(
            pack(raw), dst_node_id=node, message_type=MESSAGE_TYPE, ttl=self._seconds + _GRACE
        )
        for sent in self._grid.push_messages([message]):
            if sent:
                self._under_way[sent] = name, end

    def drop(self, names: Iterable[Name]) -> None:
        """Wait for these no longer."""
        unwanted = set(names)
        kept = {sent: asked for sent, asked in self._under_way.items() if asked[0] not in unwanted}
        self._under_way = kept

    def replies(self) -> Iterator[tuple[Name, bytes | Refused]]:
        """What has come by now, or why it will not; after a moment, if nothing has."""
        came = False
        for sent in list(self._under_way):
            if sent not in self._under_way:
                continue
            name, end = self._under_way[sent]
            for reply in self._pull(sent):
                came = True
                del self._under_way[sent]
                yield name, _content(reply)
                break
            else:
                if time.monotonic() > end:
                    del self._under_way[sent]
                    yield name, Overdue(f"no answer within {self._seconds:.0f} s")
        if self._under_way and not came:
            time.sleep(self._pause)
        self._pause = _LEAST_POLL if came else min(2 * self._pause, _POLL)

    def _pull(self, sent: str) -> list[Message]:
        """Flower raises anything at all if a node sent what it cannot read. By then its SuperLink
        has let go of that, and says so when it is asked again; one that is gone fails again."""
        try:
            return list(self._grid.pull_messages([sent]))
        except Exception:
            if sent in self._failed:
                raise
            self._failed.add(sent)
            return []


def exchange(
    grid: Grid, requests: Iterable[tuple[int, bytes]], seconds: float
) -> Iterator[tuple[int, bytes | Refused]]:
    """Each node's reply, or its refusal, in the order of arrival; ends after ``seconds``."""
    under_way: Exchange[int] = Exchange(grid, seconds)
    for node, raw in requests:
        under_way.ask(node, node, raw)
    while under_way:
        for node, reply in under_way.replies():
            if not isinstance(reply, Overdue):
                yield node, reply


def _content(reply: Message) -> bytes | Refused:
    try:
        if reply.has_error():
            return Refused(f"Flower's error {reply.error.code}")
        return unpack(reply.content)
    except Refused as refused:
        return refused
    except Exception:  # neither content nor an error
        return Refused("the reply is not a message")
