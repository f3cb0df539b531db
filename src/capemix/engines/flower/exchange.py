"""Requests out to nodes, replies in as they come; who is silent is silent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final

from flwr.app import Message
from flwr.serverapp import Grid

from capemix.engines.flower.envelope import MESSAGE_TYPE, Refused, pack, unpack

_POLL: Final = 0.25
_GRACE: Final = 60.0


def exchange(
    grid: Grid, requests: Iterable[tuple[int, bytes]], seconds: float
) -> Iterator[tuple[int, bytes | Refused]]:
    """Each node's reply, or why there is none, in the order of arrival; ends after ``seconds``.

    A reply is asked for by the request it answers: an error that the SuperLink makes for a dead
    node does not name it. One reply is in memory at a time.
    """
    end = time.monotonic() + seconds
    node_of: dict[str, int] = {}
    for node, raw in requests:
        message = Message(
            pack(raw), dst_node_id=node, message_type=MESSAGE_TYPE, ttl=seconds + _GRACE
        )
        for sent in grid.push_messages([message]):
            if sent:
                node_of[sent] = node
    while node_of:
        for sent in list(node_of):
            for reply in grid.pull_messages([sent]):
                yield node_of.pop(sent), _content(reply)
                break
        if time.monotonic() > end:
            return
        if node_of:
            time.sleep(_POLL)


def _content(reply: Message) -> bytes | Refused:
    if reply.has_error():
        return Refused(f"Flower's error {reply.error.code}")
    try:
        return unpack(reply.content)
    except Refused as refused:
        return refused
