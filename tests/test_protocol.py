"""The protocol: a right release or a clean end, whoever is lost, lies or tampers."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from capemix import documents
from capemix.collector import Origin
from capemix.data import LabeledRows, partition
from capemix.engines.in_process import InProcessEngine
from capemix.engines.local import LocalEngine
from capemix.errors import InputError
from capemix.methods.mixing.planning import plan_mixtures
from capemix.plan import Plan
from capemix.protocol import group, shamir, wire
from capemix.protocol.agreement import peers_among, public_bytes
from capemix.protocol.answering import ROUNDS
from capemix.protocol.chunks import DEFAULT_CHUNK, LEAST_CHUNK, MOST_CHUNK, Cut
from capemix.protocol.coordinator import Run
from capemix.protocol.roster import Member, Roster
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import COORDINATOR, Context, Message, ProtocolError
from capemix.randomness.source import SeededSource
from capemix.run import run
from capemix.sums.query import SumQuery
from capemix.sums.share import share_bytes
from world import (
    ASKED,
    RUN,
    World,
    a_document,
    a_roster,
    assert_sum,
    counting_plan,
    expected,
    identity,
    mixtures_of,
    reseal,
    signed_request,
    step_of,
)

# -- the same release as in one process ---------------------------------------------------------


class OneDrive:
    """An engine whose one sum is a drive of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def check(self, plan: Plan) -> None:
        assert plan == self.world.plan

    def origin(self, plan: Plan) -> Origin:  # noqa: ARG002
        return Origin(seeded=True, one_process=True)

    def list_classes(self, *_asked: object) -> dict[str, float]:
        raise AssertionError

    def sum(self, plan: Plan, query: SumQuery) -> np.ndarray:
        assert query == mixtures_of(plan)
        return self.world.drive()


@pytest.mark.parametrize(
    ("masks", "pool"), [("ring", "class"), ("gaussian", "class"), ("ring", "all")]
)
def test_the_protocol_gives_the_local_engines_release(
    tmp_path: Path, masks: str, pool: str
) -> None:
    rng = np.random.default_rng(0)
    rows = LabeledRows(
        features=rng.normal(size=(120, 5)),
        labels=(np.arange(120) % 2).astype(np.int64),
        classes=(0, 1),
        feature_names=tuple("abcde"),
    )
    parts = partition(rows, 4, "dirichlet", seed=1)
    plan = plan_mixtures(
        width=5,
        class_sizes=(60, 60),
        samples=40,
        mixture=6,
        pool=pool,
        scheme="cape",
        sites=4,
        colluding=1,
        dropouts=1,
        masks=masks,
    ).calibrate(5.0)
    found = run(plan, OneDrive(World(plan, tmp_path, seed=3, rows=list(parts))))
    local = run(plan, LocalEngine(parts, SeededSource(3)))
    if masks == "ring":
        assert found.features.tobytes() == local.features.tobytes()
        found.save(tmp_path / "a")
        local.save(tmp_path / "b")
        for name in ("synthetic.parquet", "manifest.json"):
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    else:
        # Real sums differ by what is rounded, and so does the order of the rows.
        ours, theirs = (made.features[np.lexsort(made.features.T)] for made in (found, local))
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


# -- drop-outs (every pattern: test_dropouts.py) ------------------------------------------------


@pytest.mark.parametrize("masks", ["ring", "gaussian"])
def test_a_site_lost_between_shares_and_upload_is_recovered(tmp_path: Path, masks: str) -> None:
    plan = counting_plan(5, 1, 1, masks)
    world = World(plan, tmp_path)
    found = world.drive(drop=lambda site, round_: site == 2 and round_ == "upload")
    np.testing.assert_allclose(found, expected((0, 1, 3, 4)), atol=0.2)


@pytest.mark.parametrize("lost", [(), (3,), (3, 11)])
def test_a_sparse_graph_carries_the_sum_and_its_losses(
    tmp_path: Path, lost: tuple[int, ...]
) -> None:
    plan = plan_mixtures(
        **{**ASKED, "sites": 14, "colluding": 2, "dropouts": 2, "clip": 2.0**14},
        peers=8,
        noise=0.0,
    )
    for round_ in ("upload", "unmask"):
        world = World(plan, tmp_path)
        found = world.drive(drop=lambda site, at, when=round_: site in lost and at == when)
        assert all(len(peers) == 8 for peers in world.run._peers.values())
        gone = lost if round_ == "upload" else ()
        included = tuple(s for s in range(14) if s not in gone)
        assert world.run.included == included
        np.testing.assert_allclose(found, expected(included), atol=14.0)


def test_the_sparse_graph_comes_from_every_sites_nonce() -> None:
    plan = plan_mixtures(**{**ASKED, "sites": 14, "colluding": 2}, peers=8, noise=0.0)
    nonces = {s: bytes([s]) * 32 for s in range(14)}
    drawn = peers_among(plan.federation, nonces)
    for site in range(14):
        other = peers_among(plan.federation, {**nonces, site: bytes(32) if site else b"x" * 32})
        assert other != drawn


def test_a_late_upload_stays_out_and_stays_masked(tmp_path: Path) -> None:
    plan = counting_plan(4, 1, 1)
    world = World(plan, tmp_path)
    late: list[bytes] = []

    def hold(site: int, round_: str, raw: bytes) -> bytes:
        if site == 3 and round_ == "upload":
            late.append(raw)
            return b"lost on the way\n"
        return raw

    found = world.drive(reply=hold)
    assert_sum(found, (0, 1, 2))
    # Its pair keys are known to the server by now; the self mask still hides the upload.
    values = world.uploads[3].values.astype(np.uint64)
    for peer in (0, 1, 2):
        own = world.run._revealed.secret("pair", 3)
        from capemix.protocol.agreement import pair_key
        from capemix.zerosum.masks import RingMasks, remove_pair_noise

        other = bytes.fromhex(world.run._replies["keys"][peer].body["mask"])
        key = pair_key(world.run._context, own, other, 3, peer)
        remove_pair_noise(values, key, RingMasks(), ("mixtures", 0), included=3, missing=peer)
    unit = mixtures_of(plan).lattice_scale
    assert np.abs(values.view(np.int64) / unit - [8.0, 1.0]).min() > 1e6
    assert "3" not in json.dumps(sorted(world.run._replies["unmask"][0].body["own"]))


# -- an upload in chunks --------------------------------------------------------------------------

CHUNKS = 4


def chunked(folder: Path, dropouts: int = 1, sites: int = 4) -> World:
    """Uploads of four chunks each, the last one shorter."""
    plan = counting_plan(sites, 1, dropouts, samples=(CHUNKS * LEAST_CHUNK - 16) // 16)
    return World(plan, folder)


def until_announced(world: World) -> None:
    """Every upload announced, and no chunk sent."""
    while True:
        for site, raw in list(world.run.requests()):
            world.run.receive(site, world.sites[site].answer(raw))
        if world.run.round == "upload":
            return
        world.run.close()


def fetch(world: World, site: int, index: int) -> bytes:
    return world.sites[site].chunk(world.run.chunk_request(site, index))


def test_uploads_in_many_chunks_give_the_sum(tmp_path: Path) -> None:
    world = chunked(tmp_path)
    assert_sum(world.drive()[:1], (0, 1, 2, 3))
    other = chunked(tmp_path)
    found = World(other.plan, tmp_path, chunk_bytes=DEFAULT_CHUNK).drive()
    assert found.tobytes() == other.drive().tobytes()
    assert list(tmp_path.iterdir()) == []


def test_an_upload_is_in_when_its_last_chunk_is(tmp_path: Path) -> None:
    world = chunked(tmp_path)
    until_announced(world)
    run = world.run
    assert list(run.wanted()) == [(s, i) for i in range(CHUNKS) for s in range(4)]
    whole = run.uploaded[1]
    assert run.uploaded == (0, 4 * (CHUNKS * LEAST_CHUNK - 16))
    for site, index in reversed(list(run.wanted())):  # any order will do
        assert site in run.waiting_for
        assert site not in run.included
        run.receive_chunk(site, index, fetch(world, site, index))
    assert run.waiting_for == ()
    assert run.answered == run.included == (0, 1, 2, 3)
    assert run.uploaded == (whole, whole)
    run.close()
    assert_sum(world.drive()[:1], (0, 1, 2, 3))


@pytest.mark.parametrize("came", range(CHUNKS))
def test_half_an_upload_never_counts(tmp_path: Path, came: int) -> None:
    world = chunked(tmp_path)
    sent: list[int] = []

    def lost(site: int, moment: str) -> bool:
        if site != 2 or moment != "chunk":
            return False
        sent.append(site)
        return len(sent) > came

    found = world.drive(drop=lost)
    for row in (found[:1], found[-1:]):
        assert_sum(row, (0, 1, 3))
    assert world.run.included == (0, 1, 3)
    assert world.run.lost == {2: f"only {came} of its upload's {CHUNKS} chunks came"}
    sent.clear()
    with pytest.raises(ProtocolError, match=f"only {came} of its upload's 4 chunks came"):
        chunked(tmp_path, dropouts=0).drive(drop=lost)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda chunk, _other: chunk[:-1], "has 4095 bytes, not 4096"),
        (lambda chunk, _other: chunk + b"x", "has 4097 bytes, not 4096"),
        (lambda _chunk, _other: b"", "has 0 bytes, not 4096"),
        (lambda chunk, _other: bytes([chunk[0] ^ 1]) + chunk[1:], "not the one that it announced"),
        (lambda _chunk, other: other, "not the one that it announced"),
    ],
    ids=["cut", "longer", "empty", "altered", "swapped"],
)
def test_a_wrong_chunk_loses_the_site(
    tmp_path: Path, spoil: Callable[[bytes, bytes], bytes], says: str
) -> None:
    world = chunked(tmp_path)
    until_announced(world)
    chunk, other = (fetch(world, 1, index) for index in (0, 1))
    world.run.receive_chunk(1, 0, spoil(chunk, other))
    assert world.run.lost[1].startswith("chunk 0 of its upload")
    assert says in world.run.lost[1]
    assert 1 not in {site for site, _ in world.run.wanted()}
    world.run.receive_chunk(1, 0, chunk)  # too late
    assert not (tmp_path / "1.upload").exists()
    for site, index in world.run.wanted():
        world.run.receive_chunk(site, index, fetch(world, site, index))
    assert world.run.included == (0, 2, 3)
    world.run.close()
    assert_sum(world.drive()[:1], (0, 2, 3))


def test_a_chunk_comes_once_whatever_is_sent_again(tmp_path: Path) -> None:
    world = chunked(tmp_path)
    until_announced(world)
    run = world.run
    for site, index in list(run.wanted()):
        data = fetch(world, site, index)
        assert fetch(world, site, index) == data
        run.receive_chunk(site, index, data)
        run.receive_chunk(site, index, data)
        run.receive_chunk(site, index, b"something else")
        run.receive_chunk(site, CHUNKS, data)
    assert run.lost == {}
    run.close()
    assert_sum(world.drive()[:1], (0, 1, 2, 3))


def test_asking_for_chunks_changes_nothing_at_a_site(tmp_path: Path) -> None:
    world = chunked(tmp_path)
    run, site = world.run, world.sites[0]
    with pytest.raises(ProtocolError, match="no upload"):
        fetch(world, 0, 0)
    until_announced(world)
    made = world.uploads[0].values.tobytes()
    assert b"".join(fetch(world, 0, index) for index in range(CHUNKS)) == made
    forged = run.chunk_request(0, 0)[:-10] + b"x" * 9 + b"\n"
    upload = wire.seal(run._context, identity("coordinator"), Message("upload", COORDINATOR, {}))
    by_a_site = wire.seal(run._context, identity("site 1"), Message("chunk", 1, {"index": 0}))
    for bad in (run.chunk_request(0, CHUNKS), run.chunk_request(0, -1), forged, upload, by_a_site):
        with pytest.raises(ProtocolError):
            site.chunk(bad)
    for index in (None, "0", 0.0, True):
        body = {"index": index}
        message = Message("chunk", COORDINATOR, body)
        with pytest.raises(ProtocolError, match="no chunk"):
            site.chunk(wire.seal(run._context, identity("coordinator"), message))
    assert set(world.uploads) == {0, 1, 2, 3}
    for whom, index in run.wanted():
        run.receive_chunk(whom, index, fetch(world, whom, index))
    run.close()
    assert_sum(world.drive()[:1], (0, 1, 2, 3))


def test_an_upload_is_let_go_when_the_run_is_over_or_broken(tmp_path: Path) -> None:
    world = chunked(tmp_path)
    until_announced(world)
    assert world.ask(3, signed_request(world, "agree", {})) is None
    with pytest.raises(ProtocolError, match="no upload"):
        fetch(world, 3, 0)
    for site, index in world.run.wanted():
        if site != 3:
            world.run.receive_chunk(site, index, fetch(world, site, index))
    world.run.close()
    world.drive()
    for site in range(4):
        with pytest.raises(ProtocolError, match="no upload"):
            fetch(world, site, 0)


@pytest.mark.parametrize("size", [None, True, "4096", 4096.0, -1, 0, LEAST_CHUNK - 1, 2**28 + 1])
def test_a_site_refuses_chunks_of_another_size_and_uploads_nothing(
    tmp_path: Path, size: Any
) -> None:
    world = chunked(tmp_path)

    def ask(site: int, round_: str, raw: bytes) -> bytes:
        if round_ == "upload" and site == 0:
            return reseal(raw, lambda b: b.update(chunk_bytes=size), world.plan, "coordinator")
        return raw

    assert_sum(world.drive(request=ask)[:1], (1, 2, 3))
    assert "chunk_bytes must be between 4096 and 268435456" in world.refused[0]
    assert 0 not in world.uploads
    if isinstance(size, int):
        with pytest.raises(InputError, match="chunk_bytes must be between"):
            World(world.plan, tmp_path, chunk_bytes=size)


def test_the_bounds_themselves_are_allowed(tmp_path: Path) -> None:
    plan = counting_plan(4, 1, 1)
    for size in (LEAST_CHUNK, MOST_CHUNK):
        assert_sum(World(plan, tmp_path, chunk_bytes=size).drive(), (0, 1, 2, 3))
    assert not Cut(1 << 30, LEAST_CHUNK).allowed  # the announcement would be too long a message


@pytest.mark.parametrize(
    "change",
    [
        {"chunks": []},
        {"chunks": ["00" * 32] * (CHUNKS + 1)},
        {"chunks": ["00" * 31] * CHUNKS},
        {"chunks": [7] * CHUNKS},
        {"chunks": "00" * 32},
        {"shape": [1, 2]},
        {"dtype": "<f8"},
        {"more": 1},
    ],
)
def test_an_announcement_of_another_form_loses_the_site(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    world = chunked(tmp_path)

    def alter(site: int, round_: str, raw: bytes) -> bytes:
        if round_ == "upload" and site == 1:
            return reseal(raw, lambda b: b.update(change), world.plan, "site 1")
        return raw

    assert_sum(world.drive(reply=alter)[:1], (0, 2, 3))
    assert 1 in world.run.lost


def test_memory_for_the_sum_does_not_grow_with_the_sites(tmp_path: Path) -> None:
    peaks, size = [], 0
    for sites in (4, 12):
        plan = plan_mixtures(**{**ASKED, "sites": sites, "width": 64, "samples": 40_000}, noise=0.0)
        size = share_bytes(mixtures_of(plan))
        rows = LabeledRows(
            features=np.ones((1, 64)),
            labels=np.zeros(1, dtype=np.int64),
            classes=(0,),
            feature_names=tuple(map(str, range(64))),
        )
        world = World(plan, tmp_path, rows=[rows] * sites, chunk_bytes=1 << 20)
        sums = world.run.release_sums

        def measured(sums: Any = sums, world: World = world) -> np.ndarray:
            world.uploads.clear()
            tracemalloc.start()
            try:
                return np.asarray(sums())
            finally:
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()

        world.run.release_sums = measured  # type: ignore[method-assign]
        world.drive()
    # The sum, a piece of an upload, and for each thread a block's mask: never a second upload.
    assert peaks[1] < 1.1 * peaks[0]
    assert peaks[1] < 2 * size


# -- lies ------------------------------------------------------------------------------------------


def test_a_server_that_shows_two_sites_different_survivor_sets_learns_nothing(
    tmp_path: Path,
) -> None:
    plan = counting_plan(5, 1, 1)
    world = World(plan, tmp_path)

    def split(site: int, round_: str, raw: bytes) -> bytes:
        if round_ == "agree" and site < 2:
            return reseal(raw, lambda b: b["included"].pop("4"), plan, "coordinator")
        return raw

    with pytest.raises(ProtocolError):
        world.drive(request=split)
    for site in world.sites:  # nobody ever answered the last round
        assert site._answered <= ROUNDS.index("unmask")


def test_signatures_on_two_sets_never_reach_the_threshold_together(tmp_path: Path) -> None:
    """The server collects what signatures it can on both sets and tries both on everyone."""
    plan = counting_plan(5, 1, 1)
    world = World(plan, tmp_path)
    signed: dict[int, str] = {}

    def split(site: int, round_: str, raw: bytes) -> bytes:
        if round_ == "agree" and site in (0, 1):
            return reseal(raw, lambda b: b["included"].pop("4"), plan, "coordinator")
        return raw

    def keep(site: int, round_: str, raw: bytes) -> bytes:
        if round_ == "agree":
            signed[site] = raw.decode()
        return raw

    with pytest.raises(ProtocolError, match="agreed"):
        world.drive(request=split, reply=keep)
    message = Message("unmask", COORDINATOR, {"agreed": {str(s): raw for s, raw in signed.items()}})
    request = wire.seal(world.run._context, identity("coordinator"), message)
    for site in world.sites:
        with pytest.raises(ProtocolError, match="signed the same"):
            site.answer(request)


def test_no_site_reveals_both_secrets_of_anyone(tmp_path: Path) -> None:
    plan = counting_plan(5, 1, 1)
    world = World(plan, tmp_path)
    world.drive(drop=lambda site, round_: site == 4 and round_ == "upload")
    for message in world.run._replies["unmask"].values():
        assert set(message.body["own"]) == {"0", "1", "2", "3"}
        assert set(message.body["pair"]) == {"4"}


@pytest.mark.parametrize("name", ["box", "mask"])
def test_a_server_that_swaps_a_key_is_caught(tmp_path: Path, name: str) -> None:
    plan = counting_plan(4, 1, 1)
    world = World(plan, tmp_path)

    def swap(site: int, round_: str, raw: bytes) -> bytes:
        if round_ != "shares" or site != 0:
            return raw

        def change(body: dict[str, Any]) -> None:
            header = json.loads(body["keys"]["1"])
            header["body"][name] = bytes(31).hex() + "09"
            body["keys"]["1"] = wire.canonical(header).decode() + "\n"

        return reseal(raw, change, plan, "coordinator")

    world.drive(request=swap)
    assert "signature of 1" in world.refused[0]


def test_a_server_that_alters_the_plan_for_one_site_is_caught(tmp_path: Path) -> None:
    plan = counting_plan(4, 1, 1)
    world = World(plan, tmp_path)
    other = plan_mixtures(**{**ASKED, "clip": 50.0, "noise": 0.5})

    def alter(site: int, round_: str, raw: bytes) -> bytes:
        if round_ == "plan" and site == 2:
            proposed = step_of(other).as_json()
            context = Context(RUN, world.roster.digest(), wire.digest(proposed))
            body = {**wire.parse(raw).body, "step": proposed}
            return wire.seal(context, identity("coordinator"), Message("plan", COORDINATOR, body))
        return raw

    assert_sum(world.drive(request=alter), (0, 1, 3))  # the odd one out is lost, not obeyed
    assert world.run.lost[2].startswith("the signature of 2")


def test_another_roster_is_refused(tmp_path: Path) -> None:
    plan = counting_plan(4, 1, 1)
    world = World(plan, tmp_path)
    puppets = Roster(
        world.roster.coordinator,
        (*world.roster.sites[:3], Member("puppet", public_bytes(identity("puppet")).hex())),
    )
    run = Run(step_of(plan), puppets, identity("coordinator"), RUN, tmp_path)
    _, raw = next(iter(run.requests()))
    with pytest.raises(ProtocolError, match="roster"):
        world.sites[0].answer(raw)


def test_what_is_said_twice_is_answered_alike_and_nothing_else_is(tmp_path: Path) -> None:
    """In every round: the request again, one without a signature, one of a site's, another one that
    the coordinator signed, and one of another round. The run then ends as if nothing had been."""
    world = World(counting_plan(4, 1, 1), tmp_path)
    made: list[int] = []

    def ask(site: int, round_: str, raw: bytes) -> bytes:
        if round_ == "chunk":
            return raw
        message = wire.parse(raw)
        context, own = world.run._context, world.sites[site]
        junk = wire.canonical({**json.loads(raw), "signature": "00" * 64}) + b"\n"
        forged = wire.seal(context, identity("site 3"), Message(round_, COORDINATOR, message.body))
        early = {"agree": "shares", "unmask": "agree"}.get(round_, "unmask")
        ahead = wire.seal(context, identity("coordinator"), Message(early, COORDINATOR, {}))
        for bad in (b"nonsense\n", junk, forged, ahead):
            with pytest.raises(ProtocolError):
                own.answer(bad)
        first = own.answer(raw)
        other = wire.seal(context, identity("coordinator"), Message(round_, COORDINATOR, {}))
        for bad in (junk, forged, ahead, other):
            with pytest.raises(ProtocolError):
                own.answer(bad)
        assert own.answer(raw) == first
        made.append(site)
        return raw

    assert_sum(world.drive(request=ask), (0, 1, 2, 3))
    assert len(made) == 4 * (len(ROUNDS) - 1)
    assert world.run.lost == {}
    assert set(world.uploads) == {0, 1, 2, 3}


def test_a_request_of_a_round_that_is_over_gets_its_old_answer_or_none(tmp_path: Path) -> None:
    world = World(counting_plan(4, 1, 1), tmp_path)
    asked: list[bytes] = []

    def note(site: int, round_: str, raw: bytes) -> bytes:
        if site == 0 and round_ != "chunk":
            asked.append(raw)
        return raw

    assert_sum(world.drive(request=note), (0, 1, 2, 3))
    for raw in asked:
        round_ = wire.parse(raw).round
        assert world.sites[0].answer(raw) == world.said[0, round_]
        with pytest.raises(ProtocolError, match=f"has answered another {round_} message"):
            world.sites[0].answer(signed_request(world, round_, {}))


def test_the_last_request_has_a_signature_of_each_site_and_no_list(tmp_path: Path) -> None:
    """With the list of the included in each signer's message it grows with the square of the
    sites: of 873 MB that 500 of them sent and got, 536 were this."""
    sites = 12
    world = World(counting_plan(sites, 1, 1), tmp_path)
    last: list[bytes] = []

    def note(_site: int, round_: str, raw: bytes) -> bytes:
        last.extend([raw] * (round_ == "unmask"))
        return raw

    world.drive(request=note)
    assert len(last) == len(world.run.included) == sites
    assert max(map(len, last)) < sites * (2 * wire.SIGNATURE_BYTES + 10) + 500
    agreed = wire.parse(world.said[0, "agree"]).body
    assert [len(bytes.fromhex(found)) for found in agreed.values()] == [32]


def test_a_message_of_another_run_is_refused(tmp_path: Path) -> None:
    plan = counting_plan(4, 1, 1)
    first, second = World(plan, tmp_path / "a"), World(plan, tmp_path / "b", seed=1)
    second.run._context = Context(bytes(16), second.roster.digest(), first.run._context.plan)
    for world in (first, second):
        for site, raw in list(world.run.requests()):
            world.run.receive(site, world.sites[site].answer(raw))
        world.run.close()
    foreign = dict(second.run.requests())
    with pytest.raises(ProtocolError, match="this run"):
        first.sites[0].answer(foreign[0])
    header = json.loads(foreign[1])
    header["run"] = RUN.hex()  # even if the header claims the right run
    with pytest.raises(ProtocolError, match="signature"):
        first.sites[1].answer(wire.canonical(header) + b"\n")


def test_a_policy_says_no_without_looking_at_rows(tmp_path: Path) -> None:
    plan = counting_plan(4, 1, 1)

    def consent(site: int, step: ReleaseStep) -> str | None:
        return "too few sites" if site == 1 and step.plan.federation.sites < 10 else None

    world = World(plan, tmp_path, consent=consent)
    assert_sum(world.drive(), (0, 2, 3))
    assert world.run.lost[1] == "declined: too few sites"
    both = World(plan, tmp_path, consent=lambda _s, _p: "no")
    with pytest.raises(ProtocolError, match="declined: no"):
        both.drive()


@settings(max_examples=150)
@given(data=st.data())
def test_a_network_that_cuts_repeats_swaps_and_alters_yields_a_right_sum_or_none(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan = counting_plan(4, 1, 1)
    world = World(plan, tmp_path_factory.mktemp("net"))
    seen: list[bytes] = [b"", b"{}\n"]

    def meddle(_site: int, _round: str, raw: bytes) -> bytes:
        seen.append(raw)
        kind = data.draw(st.sampled_from(["pass"] * 12 + ["cut", "flip", "replay", "extend"]))
        if kind == "cut":
            return raw[: data.draw(st.integers(0, len(raw) - 1))]
        if kind == "flip":
            place = data.draw(st.integers(0, len(raw) - 1))
            return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        if kind == "replay":
            return data.draw(st.sampled_from(seen))
        if kind == "extend":
            return raw + b"x"
        return raw

    try:
        found = world.drive(request=meddle, reply=meddle)
    except ProtocolError:
        return
    assert len(world.run.included) >= 3
    assert_sum(found, world.run.included)


# -- the parts ------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(1, group.ORDER - 1), st.integers(1, 9), st.integers(1, 9), st.integers(0))
def test_any_threshold_of_shares_gives_the_secret_back(
    number: int, threshold: int, holders: int, seed: int
) -> None:
    secret = group.as_bytes(number)
    if threshold > holders:
        threshold, holders = holders, threshold
    numbers = [3 * h for h in range(holders)]
    shares = shamir.split(secret, numbers, threshold, SeededSource(seed).stream("s"))
    for chosen in (numbers[:threshold], numbers[-threshold:]):
        assert shamir.combine({h: shares[h] for h in chosen}) == secret
    if threshold > 1:
        assert shamir.combine({h: shares[h] for h in numbers[: threshold - 1]}) != secret


def test_a_share_alone_is_uniform_whatever_the_secret() -> None:
    for secret in (group.as_bytes(1), group.as_bytes(group.ORDER - 1)):
        lowest = [
            shamir.split(secret, [0, 1], 2, SeededSource(seed).stream("s"))[0][1]
            for seed in range(4000)
        ]
        assert stats.chisquare(np.bincount(np.array(lowest), minlength=256)).pvalue > 1e-6


@pytest.mark.parametrize("text", ["AB" * 32, "a " * 32, "ab" * 31 + " a", "ab" * 31, "é" * 64])
def test_a_field_of_bytes_has_one_spelling(text: str) -> None:
    with pytest.raises(ProtocolError, match="field key"):
        wire.bytes_of({"key": text}, "key", 32)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_protocol_error(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.parse(raw)


@pytest.mark.parametrize("asked", [{}, {"masks": "gaussian"}, {"relation": "replace-one"}])
def test_a_plan_comes_back_from_its_json(asked: dict[str, Any]) -> None:
    plan = plan_mixtures(**{**ASKED, **asked, "noise": 0.5})
    found = json.loads(json.dumps(documents.as_json(plan)))
    assert documents.from_json(Plan, found, name="the plan") == plan
    for inside, change in (
        ("method", {"clip": -1.0}),
        (None, {"multiplier": "none"}),
        (None, {"outline": []}),
        ("federation", {"sites": 2, "colluding": 2}),
        (None, {"extra": 1}),
        ("facts", {"extra": 1}),
    ):
        bent = found | change if inside is None else found | {inside: found[inside] | change}
        with pytest.raises(InputError):
            documents.from_json(Plan, bent, name="the plan")


def test_a_roster_is_checked() -> None:
    roster = a_roster(3)
    assert a_document(Roster, json.dumps(documents.as_json(roster))) == roster
    assert roster.digest() != a_roster(4).digest()
    twice = Member("site 9", roster.sites[0].identity)
    with pytest.raises(InputError, match="twice"):
        Roster(roster.coordinator, (*roster.sites, twice))
    for text in ("", "[]", "{}", '{"coordinator": 1, "sites": []}'):
        with pytest.raises(InputError):
            a_document(Roster, text)


# -- in one process, message by message ------------------------------------------------------------


def test_the_whole_protocol_in_one_process_gives_the_local_release() -> None:
    rng = np.random.default_rng(0)
    rows = LabeledRows(
        features=rng.normal(size=(90, 40)),
        labels=(np.arange(90) % 2).astype(np.int64),
        classes=(0, 1),
        feature_names=tuple(map(str, range(40))),
    )
    parts = partition(rows, 5, "stratified", seed=1)
    plan = plan_mixtures(
        width=40, class_sizes=(45, 45), samples=60, mixture=6, scheme="cape", sites=5
    ).calibrate(5.0)
    engine = InProcessEngine(parts, SeededSource(3), chunk_bytes=LEAST_CHUNK)
    found, stages = run(plan, engine), engine.stages
    local = run(plan, LocalEngine(parts, SeededSource(3)))
    assert found.features.tobytes() == local.features.tobytes()
    assert found.guarantee == local.guarantee
    assert [stage.name for stage in stages] == [*(r for r in ROUNDS if r != "open"), "sum"]
    upload = next(stage for stage in stages if stage.name == "upload")
    assert upload.bytes_in > 5 * share_bytes(mixtures_of(plan)) > 10 * LEAST_CHUNK
    assert sum(stage.bytes_in for stage in stages) < 2 * upload.bytes_in
    with pytest.raises(InputError, match="must be 5"):
        run(plan, InProcessEngine(parts[:4]))
