"""A secret does not survive a fork: the child is refused, the parent goes on."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capemix.errors import CapemixError, ForkError
from capemix.randomness import source as sources
from capemix.randomness import tables
from capemix.randomness.gaussian import add_gaussian
from capemix.randomness.source import ByteStream, Process, SeededSource, SystemSource
from capemix.zerosum.graph import PeerGraph
from capemix.zerosum.masks import RingMasks, add_masks, deal_keys
from world import World, assert_sum, counting_plan

Act = Callable[[], bytes]
REFUSED = b"refused: "


def reported(act: Act) -> bytes:
    try:
        return act()
    except ForkError as error:
        return REFUSED + str(error).encode()
    except BaseException as error:  # whatever it is, the parent is to see it
        return f"failed: {error!r}".encode()


def in_a_child(act: Act) -> bytes:
    """What ``act`` gives in a forked child, or how it was refused."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.write(write, reported(act))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        found = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return found


def two_words(stream: ByteStream) -> bytes:
    return stream.words(2).tobytes()


def drawing(kind: str) -> Act:
    """Draws from a secret that is made here and now, of each kind that there is."""
    source = SystemSource()
    seeded, child, stream = SeededSource(3), source.child("site", 0), source.stream("noise")
    tied, given = source.stream("tied"), ByteStream(bytes(32))
    tied.tie_words(1)
    keys = deal_keys(PeerGraph.complete(3), source.child("keys"))[0]
    law, block = tables.rounded_gaussian(4.0), np.zeros(8, dtype=np.uint32)

    def noise() -> bytes:
        return law.draw(stream, 8).tobytes()

    def floats() -> bytes:
        out = np.zeros(8)
        add_gaussian(out, 1.0, stream)
        return out.tobytes()

    def masked() -> bytes:
        add_masks(block, keys, RingMasks(), ("block", 0))
        return block.tobytes()

    acts: dict[str, Act] = {
        "a stream": lambda: two_words(stream),
        "its ties": lambda: tied.tie_words(2).tobytes(),
        "ties not yet opened": lambda: stream.tie_words(2).tobytes(),
        "a system source": lambda: two_words(source.stream("later")),
        "its key": lambda: bytes(source.key("later")),
        "its child": lambda: two_words(source.child("later").stream("noise")),
        "a child made before": lambda: two_words(child.stream("noise")),
        "a seeded source": lambda: two_words(seeded.stream("noise")),
        "noise on the lattice": noise,
        "noise in floats": floats,
        "mask keys": masked,
        "a stream of a given key": lambda: two_words(given),
    }
    return acts[kind]


KINDS = (
    "a stream",
    "its ties",
    "ties not yet opened",
    "a system source",
    "its key",
    "its child",
    "a child made before",
    "a seeded source",
    "noise on the lattice",
    "noise in floats",
    "mask keys",
    "a stream of a given key",
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_is_refused_and_its_parent_goes_on(kind: str) -> None:
    act = drawing(kind)
    found = in_a_child(act)
    assert found.startswith(REFUSED), found
    assert b"forked" in found
    assert b"make a new one in each process" in found
    assert len(act()) >= 16


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_guard_both_would_draw_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong law: what a fork does to keys that do not know their process."""
    monkeypatch.setattr(Process, "check", lambda *_: None)
    act = drawing(kind)
    found = in_a_child(act)
    assert len(found) >= 16
    assert found == act()


def test_a_child_may_make_its_own_and_they_differ() -> None:
    def fresh() -> bytes:
        return two_words(SystemSource().stream("noise"))

    found = in_a_child(fresh)
    assert len(found) == 16
    assert found != fresh()


def test_a_childs_own_secrets_are_refused_to_its_child_in_turn() -> None:
    def nested() -> bytes:
        act = drawing("a stream")
        refused = in_a_child(act)
        return refused if len(act()) == 16 else b"failed: the parent could not go on"

    assert in_a_child(nested).startswith(REFUSED)


def test_a_process_id_given_again_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    act, own = drawing("a stream"), os.getpid()

    def as_the_parent() -> bytes:
        monkeypatch.setattr(sources.os, "getpid", lambda: own)
        return act()

    assert in_a_child(as_the_parent).startswith(REFUSED)


def test_a_fork_that_python_does_not_see_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    act = drawing("a stream")

    def uncounted() -> bytes:
        monkeypatch.setattr(sources._Forks, "count", 0)
        return act()

    monkeypatch.setattr(sources._Forks, "count", 0)
    assert in_a_child(uncounted).startswith(REFUSED)


def _put(queue: Any, act: Act) -> None:
    queue.put(reported(act))


def test_a_process_of_multiprocessing_is_refused() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    act = drawing("a system source")
    process = context.Process(target=_put, args=(queue, act))
    process.start()
    found = queue.get()
    process.join()
    assert found.startswith(REFUSED), found
    assert len(act()) == 16


def test_threads_are_one_process() -> None:
    act, found = drawing("a stream"), []
    thread = threading.Thread(target=lambda: found.append(reported(act)))
    thread.start()
    thread.join()
    assert len(found[0]) == 16


def test_a_child_may_erase_what_it_was_given() -> None:
    source = SystemSource()

    def erased() -> bytes:
        source.erase()
        return b"kept" if any(source._key) else b"gone"

    assert in_a_child(erased) == b"gone"
    assert any(source._key)


def test_a_site_answers_in_its_own_process_only(tmp_path: Path) -> None:
    """Two of one site could be told of different sets of sites, and give up both secrets: so not in
    the last rounds either, in which nothing is drawn any more."""
    world = World(counting_plan(4, 1, 1), tmp_path)
    tried: list[str] = []

    def in_a_child_first(site: int, round_: str, raw: bytes) -> bytes:
        if site == 0 and round_ != "chunk":
            assert in_a_child(lambda: world.sites[site].answer(raw)).startswith(REFUSED)
            tried.append(round_)
        return raw

    assert_sum(world.drive(request=in_a_child_first), (0, 1, 2, 3))
    assert tried[-2:] == ["agree", "unmask"]


def test_a_refusal_is_an_error_of_ours() -> None:
    assert issubclass(ForkError, CapemixError)
    assert issubclass(ForkError, RuntimeError)
