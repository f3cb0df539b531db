"""A coordinator that dies goes on where it was, and never signs a second list of the included."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from capemix.engines.flower import coordinator_app
from capemix.engines.flower import exchange as exchange_module
from capemix.engines.flower.coordinator_app import FlowerEngine
from capemix.engines.flower.envelope import pack, pack_refusal, unpack
from capemix.engines.flower.files import Outcome
from capemix.engines.flower.unfinished import Unfinished
from capemix.errors import InputError
from capemix.protocol import wire
from capemix.protocol.answering import ROUNDS
from capemix.protocol.chunks import LEAST_CHUNK
from capemix.protocol.coordinator import Run
from capemix.protocol.journal import Journal
from capemix.protocol.wire import ProtocolError
from world import RUN, World, assert_sum, counting_plan, identity, mixtures_of, reseal, step_of

CHUNKS = 3
SAMPLES = (CHUNKS * LEAST_CHUNK - 16) // 16


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Five sites, of which one may be missing, and a coordinator that keeps a journal."""
    plan = counting_plan(5, 1, 1, samples=SAMPLES)
    found = World(plan, tmp_path / "spool", journal=tmp_path / "journal")
    yield found
    assert found.journal is not None
    found.journal.close()


def one_wrong_share(body: dict[str, Any]) -> None:
    body["own"]["1"] = "00" * 32


class Dying:
    """Drives a world whose coordinator dies, and begins again, after every ``every``-th step."""

    def __init__(self, world: World, every: int) -> None:
        self.world, self.every, self.steps, self.deaths = world, every, 0, 0
        self.sent: dict[tuple[int, str], set[bytes]] = {}

    def step(self) -> None:
        self.steps += 1
        if self.steps % self.every == 0:
            self.deaths += 1
            self.world.run = self.world.coordinator()

    def requests(self) -> list[tuple[int, bytes]]:
        found = list(self.world.run.requests())
        for site, raw in found:
            self.sent.setdefault((site, str(self.world.run.round)), set()).add(raw)
        return found

    def drive(
        self,
        gone: tuple[int, str] | None = None,
        bad: dict[tuple[int, str], Callable[[dict[str, Any]], None]] | None = None,
    ) -> np.ndarray:
        """``gone`` never answers a round; ``bad`` changes what a site answers to one."""
        world = self.world
        while (round_ := world.run.round) is not None:
            for site, raw in self.requests():
                if site not in world.run.waiting_for or (site, round_) == gone:
                    continue
                answer = world.ask(site, raw)
                assert answer is not None
                change = (bad or {}).get((site, round_))
                if change is not None:
                    answer = reseal(answer, change, world.plan, f"site {site}")
                world.run.receive(site, answer)
                self.step()
            while wanted := [one for one in world.run.wanted() if (one[0], "chunk") != gone]:
                site, index = wanted[0]
                data = world.chunk(site, world.run.chunk_request(site, index))
                assert data is not None
                world.run.receive_chunk(site, index, data)
                self.step()
            self.requests()
            world.run.close()
            self.step()
        return np.asarray(world.run.release_sums())


@pytest.mark.parametrize("every", [1, 2, 3, 7])
@pytest.mark.parametrize("gone", [None, (2, "keys"), (2, "upload"), (2, "chunk"), (2, "agree")])
def test_a_coordinator_may_die_at_any_step(
    tmp_path: Path, world: World, every: int, gone: tuple[int, str] | None
) -> None:
    dying = Dying(world, every)
    found = dying.drive(gone)
    included = (0, 1, 2, 3, 4)
    if gone is not None and gone[1] != "agree":
        included = (0, 1, 3, 4)
    assert dying.deaths >= 5
    assert_sum(found[:1], included)
    assert_sum(found[-1:], included)
    assert all(len(of) == 1 for of in dying.sent.values())  # no second message of any round
    assert list((tmp_path / "spool").iterdir()) == []


def test_who_was_blamed_stays_so(world: World) -> None:
    dying = Dying(world, 1)
    assert_sum(dying.drive(bad={(3, "unmask"): one_wrong_share})[:1], (0, 1, 2, 3, 4))
    assert world.run.blamed == {3: "it revealed a wrong share of the self mask of site 1"}


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("shown", [True, False])
def test_a_complaint_and_what_came_of_it_outlast_the_coordinator(
    world: World, every: int, shown: bool
) -> None:
    dying = Dying(world, every)
    found = dying.drive(
        None if shown else (4, "open"),
        bad={(2, "check"): lambda body: body.update(complaints=[1, 4])},
    )
    assert_sum(found[:1], (0, 1, 2, 3, 4) if shown else (0, 1, 2, 3))
    assert world.run.disputes == ((2, 1), (2, 4))
    assert all(len(of) == 1 for of in dying.sent.values())


def test_what_was_not_yet_kept_may_be_lost_and_nothing_that_was_sent_changes(
    tmp_path: Path, world: World
) -> None:
    """The journal is cut at every place after the last round's end: what it held of the open round
    comes again, and the messages of the open round are the same."""
    path, other = tmp_path / "journal", tmp_path / "other"
    while world.run.round is not None:
        begun = path.stat().st_size
        true = dict(world.run.requests())
        for site, raw in true.items():
            answer = world.ask(site, raw)
            assert answer is not None
            world.bring(site, answer)
        assert world.journal is not None
        world.journal.keep()
        whole = path.read_bytes()
        for cut in range(begun, len(whole), max(1, (len(whole) - begun) // 40)):
            other.write_bytes(whole[:cut])
            spool = tmp_path / "other spool"
            shutil.copytree(world.run._spool.folder, spool)
            journal = Journal(other)
            again = Run(
                step_of(world.plan),
                world.roster,
                identity("coordinator"),
                RUN,
                spool,
                chunk_bytes=LEAST_CHUNK,
                journal=journal,
            )
            assert again.round == world.run.round
            assert dict(again.requests()) == true
            journal.close()
            shutil.rmtree(spool)
        world.run.close()
    assert_sum(world.run.release_sums()[:1], (0, 1, 2, 3, 4))


def test_a_round_is_kept_before_anything_of_the_next_is_said(tmp_path: Path, world: World) -> None:
    while world.run.round is not None:
        for site, raw in list(world.run.requests()):
            answer = world.ask(site, raw)
            assert answer is not None
            world.bring(site, answer)
        world.run.close()
        with (tmp_path / "journal").open("rb") as file:
            last = file.read().splitlines()[-1]
        assert b'"closed":' in last


def test_a_journal_is_of_one_run_and_for_one_coordinator_at_a_time(
    tmp_path: Path, world: World
) -> None:
    assert world.journal is not None
    assert world.journal.run == RUN
    with pytest.raises(InputError, match="another coordinator goes on with this run"):
        Journal(tmp_path / "journal")
    world.journal.close()
    journal = Journal(tmp_path / "journal")
    for run, chunk_bytes in ((bytes(16), LEAST_CHUNK), (RUN, 2 * LEAST_CHUNK)):
        with pytest.raises(InputError, match="is of another run"):
            Run(
                step_of(world.plan),
                world.roster,
                identity("coordinator"),
                run,
                tmp_path / "spool",
                chunk_bytes=chunk_bytes,
                journal=journal,
            )
    journal.close()


def test_a_journal_that_was_spoilt_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"run":"00"}\n\0\0\0\n{"closed":"plan"}\n')
    with pytest.raises(InputError, match="cannot be read"):
        Journal(path)


def test_a_journal_holds_no_secret_of_the_coordinators(tmp_path: Path, world: World) -> None:
    key = identity("coordinator").private_bytes_raw()
    world.drive()
    held = (tmp_path / "journal").read_bytes()
    assert key not in held
    assert key.hex().encode() not in held


# -- the release over Flower -----------------------------------------------------------------------


class MortalGrid:
    """Sites behind nodes of their own numbers. The coordinator dies at the ``last``-th message."""

    def __init__(self, world: World, last: int) -> None:
        self.world, self.left = world, last
        self.under_way: dict[str, tuple[int, bytes]] = {}
        self.sent: list[tuple[int, bytes]] = []

    def push_messages(self, messages: Any) -> Any:
        for message in messages:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            name = f"m{len(self.sent)}"
            self.under_way[name] = message.dst_node_id, unpack(message.content)
            self.sent.append(self.under_way[name])
            yield name

    def pull_messages(self, ids: Any) -> Any:
        for sent in ids:
            site, raw = self.under_way.pop(sent)
            try:
                is_chunk = wire.parse(raw).round == "chunk"
                own = self.world.sites[site]
                content = pack(own.chunk(raw) if is_chunk else own.answer(raw))
            except ProtocolError as error:
                content = pack_refusal(str(error))
            yield SimpleNamespace(content=content, has_error=lambda: False)


@pytest.fixture
def no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own messages can only be made inside one of its tasks."""
    monkeypatch.setattr(
        exchange_module,
        "Message",
        lambda content, **more: SimpleNamespace(content=content, **more),
    )
    monkeypatch.setattr(coordinator_app, "_say", lambda _text: None)


@pytest.mark.usefixtures("no_task")
@pytest.mark.parametrize("last", [0, 3, 4, 6, 10, 14, 17, 22, 27, 30, 34, 37, 39])
def test_an_engine_that_is_begun_again_makes_the_sum_of_the_same_run(
    tmp_path: Path, last: int
) -> None:
    """Killed after so many messages, of 40: the sites are asked nothing new."""
    plan = counting_plan(4, 1, 0, samples=SAMPLES)
    world = World(plan, tmp_path / "unused")
    out = tmp_path / "release"
    settings: Any = SimpleNamespace(
        out=out, chunk_bytes=LEAST_CHUNK, round_seconds=20.0, give_up=False
    )

    def sum_with(grid: Any) -> np.ndarray:
        unfinished = Unfinished(out, plan, world.roster)
        nodes = {site: site for site in range(4)}
        engine = FlowerEngine(
            grid, settings, Outcome(), world.roster, identity("coordinator"), nodes, unfinished
        )
        return np.asarray(engine.sum(plan, mixtures_of(plan)))

    first, second = MortalGrid(world, last), MortalGrid(world, 1000)
    with pytest.raises(KeyboardInterrupt):
        sum_with(first)
    begun = Unfinished(out, plan, world.roster)
    assert begun.goes_on
    assert_sum(sum_with(second)[:1], (0, 1, 2, 3))
    asked: dict[tuple[int, str, str], set[bytes]] = {}
    for site, raw in (*first.sent, *second.sent):
        message = wire.parse(raw)
        which = str(message.body["index"]) if message.round == "chunk" else ""
        asked.setdefault((site, message.round, which), set()).add(raw)
    assert all(len(of) == 1 for of in asked.values())
    order = [ROUNDS.index(wire.parse(raw).round) for _, raw in first.sent if b'"index"' not in raw]
    again = [ROUNDS.index(wire.parse(raw).round) for _, raw in second.sent if b'"index"' not in raw]
    assert not order or min(again, default=9) >= max(order)  # no round that was over
    third = MortalGrid(world, 0)  # and once it is made, nobody is asked at all
    assert_sum(sum_with(third)[:1], (0, 1, 2, 3))
    with pytest.raises(InputError, match="unfinished release of another plan"):
        Unfinished(out, counting_plan(4, 1, 1), world.roster)
    begun.remove()
    assert not list(tmp_path.glob(".release*"))
