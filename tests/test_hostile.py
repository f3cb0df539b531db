"""A hostile network and a hostile server, within their limits: a right release or a clean end.

The network delays, reorders, repeats, alters, swaps and loses messages, and brings in those of
another run. The server signs whatever it likes, to every site something else, and its colluders
sign whatever it asks them to.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from capemix.methods.mixing.planning import plan_mixtures
from capemix.protocol import group, replies, wire
from capemix.protocol.agreement import (
    box_key,
    commitment,
    pair_key,
    public_bytes,
    setting_of,
)
from capemix.protocol.answering import ROUNDS
from capemix.protocol.chunks import LEAST_CHUNK
from capemix.protocol.wire import COORDINATOR, Context, Message, ProtocolError
from world import (
    ASKED,
    RUN,
    World,
    assert_sum,
    counting_plan,
    identity,
    signed_request,
    step_of,
)

CHUNKS = 3
SAMPLES = (CHUNKS * LEAST_CHUNK - 16) // 16  # all of them the same sum
FEDERATIONS = ((4, 1, 1), (5, 1, 1), (5, 2, 1), (6, 1, 2), (6, 3, 1), (7, 1, 2), (7, 2, 2))


@cache
def messages_of_another_run(federation: tuple[int, int, int]) -> tuple[tuple[bytes, ...], ...]:
    """All requests and all replies of an undisturbed run of the same plan and roster."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(
            counting_plan(*federation, samples=SAMPLES), Path(folder) / "s", seed=9, run=bytes(16)
        )
        requests: list[bytes] = []

        def note(_site: int, _round: str, raw: bytes) -> bytes:
            requests.append(raw)
            return raw

        world.drive(request=note)
    return tuple(requests), tuple(world.said.values())


def altered(raw: bytes, how: str, place: int) -> bytes:
    if not raw:
        return b"\n"
    place %= len(raw)
    return {
        "cut": raw[:place],
        "flip": raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :],
        "longer": raw + b"x",
        "empty": b"",
    }[how]


HOWS = st.sampled_from(["cut", "flip", "longer", "empty"])
PICK = st.integers(0, 999)


class HostileWorld(RuleBasedStateMachine):
    """Whatever happens to its victims, the run gives the right sum over those it calls included,
    or nothing. While the victims are no more than may be missing, it gives the sum."""

    @initialize(
        federation=st.sampled_from(FEDERATIONS),
        few=st.booleans(),
        order=st.permutations(range(7)),
        calm=st.integers(0, len(ROUNDS) - 1),
    )
    def begin(
        self, federation: tuple[int, int, int], few: bool, order: list[int], calm: int
    ) -> None:
        sites, colluding, dropouts = federation
        order = [site for site in order if site < sites]
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(counting_plan(*federation, samples=SAMPLES), self.folder / "spool")
        self.requests_elsewhere, self.replies_elsewhere = messages_of_another_run(federation)
        self.colluding = tuple(order[-colluding:])
        self.few = few
        self.victims = order[:dropouts] if few else order
        self.asked: list[bytes] = []
        self.replied: list[tuple[int, bytes]] = []
        self.on_the_way: list[tuple[int, bytes]] = []
        self.ended = False
        self.released = False
        for _ in range(calm):
            self.do_round(with_victims=True)

    def victim(self, pick: int) -> int:
        return self.victims[pick % len(self.victims)]

    def request(self, site: int) -> bytes | None:
        """The true request of the open round."""
        if self.ended or self.world.run.round is None:
            return None
        return dict(self.world.run.requests()).get(site)

    def ask(self, site: int, raw: bytes) -> None:
        self.asked.append(raw)
        answer = self.world.ask(site, raw)
        if answer is not None:
            self.replied.append((site, answer))
            self.on_the_way.append((site, answer))

    # -- what is ordinary ------------------------------------------------------------------------

    def do_round(self, with_victims: bool) -> None:
        run = self.world.run
        if self.ended or run.round is None:
            return
        answered = {site for site, round_ in self.world.said if round_ == run.round}
        for site, raw in list(run.requests()):
            if site not in answered and (with_victims or site not in self.victims):
                self.ask(site, raw)
        for site, answer in self.on_the_way:
            if with_victims or site not in self.victims:
                self.world.bring(site, answer)
        self.on_the_way = [
            (site, answer)
            for site, answer in self.on_the_way
            if not with_victims and site in self.victims
        ]
        try:
            run.close()
        except ProtocolError:
            self.ended = True
            assert not self.few, run.lost
        if run.round is None:
            self.released = True
            try:
                found = np.asarray(run.release_sums())
            except ProtocolError:
                self.ended = True
                assert not self.few
                return
            assert len(run.included) >= len(self.world.sites) - self.plan.dropouts
            assert_sum(found, run.included, atol=0.05)

    @property
    def plan(self) -> Any:
        return self.world.plan.federation

    @rule()
    def a_round_goes_as_it_should(self) -> None:
        self.do_round(with_victims=True)

    @rule()
    def a_round_is_closed_before_the_victims_are_heard(self) -> None:
        self.do_round(with_victims=False)

    @rule(pick=PICK)
    def a_victim_is_asked_early(self, pick: int) -> None:
        raw = self.request(self.victim(pick))
        if raw is not None:
            self.ask(self.victim(pick), raw)

    @precondition(lambda self: self.on_the_way)
    @rule(pick=PICK)
    def any_answer_on_the_way_arrives(self, pick: int) -> None:
        self.world.bring(*self.on_the_way.pop(pick % len(self.on_the_way)))

    # -- the network -----------------------------------------------------------------------------

    @precondition(lambda self: self.asked)
    @rule(pick=PICK, which=PICK)
    def a_request_of_any_round_and_site_comes_again(self, pick: int, which: int) -> None:
        self.ask(self.victim(pick), self.asked[which % len(self.asked)])

    @precondition(lambda self: self.replied)
    @rule(pick=PICK, which=PICK)
    def an_answer_of_any_round_and_site_passes_for_the_victims(self, pick: int, which: int) -> None:
        self.world.bring(self.victim(pick), self.replied[which % len(self.replied)][1])

    @precondition(lambda self: len(self.on_the_way) > 1)
    @rule()
    def two_victims_answers_change_places(self) -> None:
        (one, first), (two, second) = self.on_the_way[-2:]
        if one in self.victims and two in self.victims:
            self.on_the_way[-2:] = [(one, second), (two, first)]

    @rule(pick=PICK, how=HOWS, place=st.integers(0, 1 << 20))
    def a_request_is_altered(self, pick: int, how: str, place: int) -> None:
        raw = self.request(self.victim(pick))
        if raw is not None:
            self.ask(self.victim(pick), altered(raw, how, place))

    @precondition(lambda self: any(site in self.victims for site, _ in self.on_the_way))
    @rule(how=HOWS, place=st.integers(0, 1 << 20))
    def an_answer_is_altered(self, how: str, place: int) -> None:
        for at, (site, raw) in enumerate(self.on_the_way):
            if site in self.victims:
                self.on_the_way[at] = (site, altered(raw, how, place))
                return

    @precondition(lambda self: any(site in self.victims for site, _ in self.on_the_way))
    @rule()
    def an_answer_is_lost(self) -> None:
        at = [site in self.victims for site, _ in self.on_the_way].index(True)
        del self.on_the_way[at]

    @rule(
        pick=PICK,
        fates=st.lists(
            st.sampled_from(["right", "again", "altered", "another's", "the first", "lost"]),
            min_size=CHUNKS,
            max_size=CHUNKS,
        ),
        backwards=st.booleans(),
    )
    def a_victims_chunks_are_meddled_with(
        self, pick: int, fates: list[str], backwards: bool
    ) -> None:
        site, run = self.victim(pick), self.world.run
        announced = self.world.said.get((site, "upload"))
        if announced is None or run.round != "upload":
            return
        run.receive(site, announced)
        for index in sorted(range(CHUNKS), reverse=backwards):
            source = {"another's": (site + 1) % len(self.world.sites)}.get(fates[index], site)
            place = 0 if fates[index] == "the first" else index
            data = self.world.chunk(source, run.chunk_request(source, place))
            if data is None or fates[index] == "lost":
                continue
            run.receive_chunk(
                site, index, altered(data, "flip", pick) if fates[index] == "altered" else data
            )
            if fates[index] == "again":
                run.receive_chunk(site, index, altered(data, "cut", pick))

    @rule(pick=PICK, which=PICK)
    def a_request_of_another_run_comes_in(self, pick: int, which: int) -> None:
        self.ask(self.victim(pick), self.requests_elsewhere[which % len(self.requests_elsewhere)])

    @rule(pick=PICK, which=PICK)
    def an_answer_of_another_run_comes_in(self, pick: int, which: int) -> None:
        raw = self.replies_elsewhere[which % len(self.replies_elsewhere)]
        self.world.bring(self.victim(pick), raw)

    # -- the server ------------------------------------------------------------------------------

    @rule(pick=PICK, out=PICK, more=st.booleans(), go_on=st.booleans())
    def the_server_leaves_sites_out_of_what_it_tells(
        self, pick: int, out: int, more: bool, go_on: bool
    ) -> None:
        """Other accepts, keys, members, included or signatures than the others are told."""
        site = self.victim(pick)
        raw = self.request(site)
        if raw is None:
            return
        others = [s for s in range(len(self.world.sites)) if s != site]
        gone = {others[(out + step) % len(others)] for step in range(1 + more)}
        body = without(wire.parse(raw).body, gone)
        self.ask(site, signed_request(self.world, self.world.run.round or "", body))
        if go_on:
            self.do_round(with_victims=True)

    @rule(pick=PICK)
    def the_server_proposes_another_plan(self, pick: int) -> None:
        sites = len(self.world.sites)
        other = plan_mixtures(**{**ASKED, "sites": sites, "clip": 50.0, "noise": 0.5})
        roster, proposed = self.world.roster.digest(), step_of(other).as_json()
        body = {"run": RUN.hex(), "roster": roster.hex(), "step": proposed}
        context = Context(RUN, roster, wire.digest(proposed))
        message = Message("plan", COORDINATOR, body)
        self.ask(self.victim(pick), wire.seal(context, identity("coordinator"), message))

    @rule(pick=PICK, who=PICK, go_on=st.booleans())
    def a_colluder_tells_one_site_something_else(self, pick: int, who: int, go_on: bool) -> None:
        site = self.victim(pick)
        raw = self.request(site)
        if raw is None:
            return
        colluder = self.colluding[who % len(self.colluding)]
        body = json.loads(json.dumps(wire.parse(raw).body))
        for field in body.values():
            if isinstance(field, dict) and str(colluder) in field:
                field[str(colluder)] = self.signed_otherwise(colluder, site, field[str(colluder)])
        self.ask(site, signed_request(self.world, self.world.run.round or "", body))
        if go_on:
            self.do_round(with_victims=True)

    def signed_otherwise(self, colluder: int, site: int, raw: Any) -> Any:
        if isinstance(raw, dict):  # its deal for this site
            said = {**raw, "sealed": raw["sealed"][::-1]}
            del said["signed"]
            deal = Message("deal", colluder, {"to": site, **said})
            key = identity(f"site {colluder}")
            return {**said, "signed": wire.sign(self.world.run._context, key, deal)}
        try:
            message = wire.parse(raw.encode())
        except ProtocolError:
            return raw[::-1]  # a signature: any bytes will do
        body = {
            name: hashlib.sha256(value.encode()).hexdigest() if isinstance(value, str) else value
            for name, value in message.body.items()
        }
        return wire.seal(
            self.world.run._context,
            identity(f"site {colluder}"),
            Message(message.round, colluder, body),
        ).decode()

    @precondition(lambda self: not self.ended and self.world.run.round == "check")
    @rule(who=PICK, about=st.sets(st.integers(0, 6)))
    def a_colluder_complains_about_others(self, who: int, about: set[int]) -> None:
        """Its complaints are false. They cost nobody anything."""
        site = self.colluding[who % len(self.colluding)]
        raw = self.request(site)
        run = self.world.run
        if raw is None or (site, "check") in self.world.said or site in run._answers:
            return
        self.ask(site, raw)
        if self.on_the_way and self.on_the_way[-1][0] == site:
            del self.on_the_way[-1]
            false = sorted(about & set(run._dealers(site)))
            body = {"complaints": false, "keys": run._setting_among(())}
            message = Message("check", site, body)
            run.receive(site, wire.seal(run._context, identity(f"site {site}"), message))

    @rule(pick=PICK)
    def the_server_pushes_a_site_to_reveal(self, pick: int) -> None:
        """Every signature there is on the set that the site signed, and the colluders'."""
        site = self.victim(pick)
        if (site, "agree") in self.world.said:
            self.ask(site, push(self.world, site, self.colluding))

    # -- what must hold --------------------------------------------------------------------------

    @invariant()
    def nothing_is_given_away(self) -> None:
        if hasattr(self, "world"):
            self.world.assert_nothing_is_given_away(self.colluding)

    @invariant()
    def no_upload_is_left_lying_about_after_a_release(self) -> None:
        if hasattr(self, "world") and self.released and not self.ended:
            assert not list((self.folder / "spool").iterdir())

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for _ in ROUNDS:  # it comes to an end: at most six more rounds
            self.do_round(with_victims=True)
        assert self.ended or self.world.run.round is None
        if self.few:  # as many victims as may be missing do not stop a run
            assert self.released
            assert set(range(len(self.world.sites))) - set(self.victims) <= set(
                self.world.run.included
            )
        for site, raw in self.replied:  # nothing can happen any more
            self.world.bring(site, raw)
        self.world.assert_nothing_is_given_away(self.colluding)
        shutil.rmtree(self.folder)


HostileWorld.TestCase.settings = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    max_examples=250,
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
)
TestHostileWorld = HostileWorld.TestCase


def without(body: dict[str, Any], gone: set[int]) -> dict[str, Any]:
    """A request in which some sites do not occur."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: one for key, one in value.items() if key not in map(str, gone)}
        if isinstance(value, list):
            return [one for one in value if one not in gone]
        return value

    return {name: cut(value) for name, value in body.items()}


def push(world: World, site: int, colluding: tuple[int, ...]) -> bytes:
    body = wire.parse(world.said[site, "agree"]).body
    agreed = {
        str(s): wire.parse(raw).signature.hex()
        for (s, round_), raw in world.said.items()
        if round_ == "agree" and wire.parse(raw).body == body
    }
    for colluder in colluding:
        message = Message("agree", colluder, body)
        name = identity(f"site {colluder}")
        agreed[str(colluder)] = wire.sign(world.run._context, name, message)
    return signed_request(world, "unmask", {"agreed": agreed})


# -- equivocation, enumerated ------------------------------------------------------------------


def up_to(round_: str, federation: tuple[int, int, int], folder: Path) -> World:
    world = World(counting_plan(*federation), folder / "spool")
    while world.run.round != round_:
        for site, raw in list(world.run.requests()):
            answer = world.ask(site, raw)
            assert answer is not None
            world.bring(site, answer)
        world.run.close()
    return world


@pytest.mark.parametrize("federation", [(4, 1, 1), (5, 1, 1), (5, 2, 1), (6, 2, 1), (7, 2, 2)])
def test_however_the_sites_are_split_over_two_included_sets_one_secret_stays(
    tmp_path: Path, federation: tuple[int, int, int]
) -> None:
    """The server tells every site one of two included sets or nothing, lets its colluders sign
    both, and shows everyone all signatures on what it signed."""
    sites, colluding, _ = federation
    world = up_to("agree", federation, tmp_path)
    true = next(iter(world.run.requests()))[1]
    bodies = [
        wire.parse(true).body,
        without(wire.parse(true).body, {sites - 1}),  # called lost, though its upload is there
    ]
    colluders = tuple(range(colluding))
    honest = range(colluding, sites)
    revealed = 0
    for told in product((0, 1, None), repeat=len(honest)):
        fork = world.fork()
        for site, which in zip(honest, told, strict=True):
            if which is not None:
                fork.ask(site, signed_request(fork, "agree", bodies[which]))
        for site in honest:
            if (site, "agree") in fork.said:
                fork.ask(site, push(fork, site, colluders))
        fork.assert_nothing_is_given_away(colluders)
        revealed += any(True for _ in fork.revealed())
    assert revealed > 0


@pytest.mark.parametrize("federation", [(6, 1, 2), (7, 1, 2)])
def test_whoever_is_told_of_other_members_is_not_unmasked_with_the_rest(
    tmp_path: Path, federation: tuple[int, int, int]
) -> None:
    """Some honest sites are told that two others did not share, and so mask only against the
    rest; then two of that rest are called missing, and their pair keys would be revealed. If the
    others helped, the few would be left with one another's noise alone: with seven sites, one
    colluding and two missing, two honest sites' noise where the plan promises four's."""
    sites, colluding, dropouts = federation
    world = up_to("upload", federation, tmp_path)
    colluders, honest = tuple(range(colluding)), range(colluding, sites)
    for size in (1, 2, 3):
        for few in combinations(honest, size):
            rest = [site for site in honest if site not in few]
            hidden, missing = set(rest[:dropouts]), set(rest[-dropouts:])
            fork = world.fork()
            settings = {}
            for site, raw in list(fork.run.requests()):
                body = wire.parse(raw).body
                told = without(body, hidden) if site in few else body
                answer = fork.ask(site, signed_request(fork, "upload", told))
                assert answer is not None
                settings[str(site)] = wire.parse(answer).body["setting"]
            request = signed_request(
                fork, "agree", without({"included": settings}, missing - set(few))
            )
            for site in honest:
                fork.ask(site, request)
            for site in honest:
                if (site, "agree") in fork.said:
                    fork.ask(site, push(fork, site, colluders))
            fork.assert_nothing_is_given_away(colluders)
            assert not list(fork.revealed())


# -- one lie at a time: each check of a site, and who notices -------------------------------------

SMALL = (5, 1, 1)
COLLUDER = 4


def go_on(world: World) -> None:
    """A round as it should go, of those who are left."""
    for site, raw in list(world.run.requests()):
        answer = world.ask(site, raw)
        assert answer is not None
        world.bring(site, answer)
    world.run.close()


def true_body(world: World, site: int) -> dict[str, Any]:
    return json.loads(json.dumps(wire.parse(dict(world.run.requests())[site]).body))


def resigned(world: World, raw: str, who: int, **change: Any) -> str:
    """A colluder's message with something else in it."""
    message = wire.parse(raw.encode())
    other = Message(message.round, who, {**message.body, **change})
    return wire.seal(world.run._context, identity(f"site {who}"), other).decode()


def refuses(world: World, site: int, body: dict[str, Any], why: str) -> None:
    assert world.run.round is not None
    assert world.ask(site, signed_request(world, world.run.round, body)) is None
    assert why in world.refused[site]


@pytest.mark.parametrize("round_", ["keys", "shares", "upload", "agree"])
def test_a_site_goes_on_with_as_few_others_as_the_plan_allows_and_not_one_fewer(
    tmp_path: Path, round_: str
) -> None:
    world = up_to(round_, SMALL, tmp_path)
    body = true_body(world, 0)
    fork = world.fork()
    assert fork.ask(0, signed_request(fork, round_, without(body, {1}))) is not None
    refuses(world, 0, without(body, {1, 2}), "of 5 sites are left")


@pytest.mark.parametrize(
    ("round_", "why"), [("keys", "left this site out"), ("shares", "left this site out")]
)
def test_a_site_that_is_left_out_itself_stops(tmp_path: Path, round_: str, why: str) -> None:
    world = up_to(round_, SMALL, tmp_path)
    refuses(world, 0, without(true_body(world, 0), {0}), why)


def test_members_are_among_those_whose_keys_were_shown(tmp_path: Path) -> None:
    world = up_to("shares", SMALL, tmp_path)
    told = signed_request(world, "shares", without(true_body(world, 0), {1}))
    assert world.ask(0, told) is not None
    for site, raw in list(world.run.requests()):
        if site != 0:
            answer = world.ask(site, raw)
            assert answer is not None
            world.bring(site, answer)
    world.run.close()
    deals = without(world.run._deals_for(0), {1})
    assert world.ask(0, signed_request(world, "check", deals)) is not None
    go_on(world)
    body = {**true_body(world, 1), "members": [0, 1, 2, 3, 4]}
    refuses(world, 0, body, "not those whose keys were shown")


def test_a_site_that_declined_cannot_be_listed(tmp_path: Path) -> None:
    world = up_to("keys", SMALL, tmp_path)
    body = true_body(world, 0)
    body["accepts"]["4"] = resigned(world, body["accepts"]["4"], COLLUDER, accept=False)
    refuses(world, 0, body, "declined")


def test_a_nonce_that_was_not_committed_to_is_refused_by_site_and_coordinator(
    tmp_path: Path,
) -> None:
    """Or a colluder could choose its nonce, and with it a sparse graph, after all others'."""
    world = up_to("shares", SMALL, tmp_path)
    body = true_body(world, 0)
    body["keys"]["4"] = resigned(world, body["keys"]["4"], COLLUDER, nonce="00" * 32)
    refuses(world, 0, body, "nonce of site 4")
    other = up_to("keys", SMALL, tmp_path)
    answer = other.ask(COLLUDER, dict(other.run.requests())[COLLUDER])
    assert answer is not None
    forged = resigned(other, answer.decode(), COLLUDER, nonce="00" * 32)
    other.run.receive(COLLUDER, forged.encode())
    assert "committed" in other.run.lost[COLLUDER]


@pytest.mark.parametrize("name", ["box", "mask"])
def test_a_colluder_with_anothers_key_is_refused(tmp_path: Path, name: str) -> None:
    """It committed to another one, if it told all sites the same; and if not, because the server
    colludes, too, the site that is shown the key twice stops."""
    world = up_to("keys", SMALL, tmp_path)
    fork = world.fork()
    go_on(fork)
    body = true_body(fork, 0)
    key = wire.parse(body["keys"]["1"].encode()).body[name]
    body["keys"]["4"] = resigned(fork, body["keys"]["4"], COLLUDER, **{name: key})
    refuses(fork, 0, body, "not those it committed to")
    shown = told_of_other_keys(world, **{name: key})
    refuses(world, 0, shown, "two sites have one key")


def told_of_other_keys(world: World, **change: str) -> dict[str, Any]:
    """Site 0 is shown a colluder that committed to other keys than the rest are shown; what it is
    then told of the keys."""
    true = wire.parse(world.fork().ask(COLLUDER, requests_of(world)[COLLUDER]) or b"").body
    said = {name: bytes.fromhex(value) for name, value in {**true, **change}.items()}
    commit = commitment(world.run._context, COLLUDER, said["nonce"], said["box"], said["mask"])
    accepts = true_body(world, 0)
    accepts["accepts"]["4"] = resigned(world, accepts["accepts"]["4"], COLLUDER, commit=commit)
    for site, raw in requests_of(world).items():
        answer = world.ask(site, signed_request(world, "keys", accepts) if site == 0 else raw)
        assert answer is not None
        world.bring(site, answer)
    world.run.close()
    body = true_body(world, 0)
    body["keys"]["4"] = resigned(world, body["keys"]["4"], COLLUDER, **change)
    return body


def requests_of(world: World) -> dict[int, bytes]:
    return dict(world.run.requests())


def test_a_site_that_shared_nothing_cannot_be_called_included(tmp_path: Path) -> None:
    """Even if, colluding, it signs the others' setting."""
    world = up_to("shares", SMALL, tmp_path)
    for site, raw in list(world.run.requests()):
        if site != COLLUDER:
            answer = world.ask(site, raw)
            assert answer is not None
            world.bring(site, answer)
    world.run.close()
    go_on(world)
    go_on(world)
    body = true_body(world, 0)
    setting = Message("setting", COLLUDER, {"setting": world.run._setting})
    key = identity(f"site {COLLUDER}")
    body["included"]["4"] = wire.sign(world.run._context, key, setting)
    refuses(world, 0, body, "shared nothing")


def test_a_colluder_that_shows_two_sites_different_keys_splits_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a site masked with is in its setting, so the two are never unmasked together. An honest
    coordinator sees it a round before, and this one does not look."""
    world = up_to("keys", SMALL, tmp_path)
    body = told_of_other_keys(world, mask=group.point_of(group.as_bytes(3)).hex())
    for site, raw in list(world.run.requests()):
        told = signed_request(world, "shares", body) if site == 0 else raw
        answer = world.ask(site, told)
        assert answer is not None
        world.bring(site, answer)
    world.run.close()
    honest = world.fork()
    go_on(honest)
    assert honest.run.lost == {0: "it was shown other keys"}
    monkeypatch.setattr(replies, "check_complaints", lambda *_: None)
    go_on(world)
    for site, raw in list(world.run.requests()):
        answer = world.ask(site, raw)
        assert answer is not None
        world.bring(site, answer)
    assert world.run.lost == {0: "it masked its upload among other keys or members"}
    world.run.close()
    body = true_body(world, 1)
    body["included"]["0"] = wire.parse(world.said[0, "upload"]).body["setting"]
    refuses(world, 1, body, "site 0 masked its upload among other keys or members")


def test_a_setting_is_of_all_keys_and_members() -> None:
    keys = {s: {"box": f"b{s}", "mask": f"m{s}", "nonce": f"n{s}"} for s in range(4)}
    found = {setting_of(keys, range(4)), setting_of(keys, range(3))}
    found.add(setting_of({s: keys[s] for s in range(3)}, range(3)))
    for site, name in product(keys, ("box", "mask", "nonce")):
        found.add(setting_of({**keys, site: {**keys[site], name: "other"}}, range(4)))
    assert len(found) == 3 + 12


def test_the_keys_of_a_pair_are_for_one_purpose_run_roster_plan_and_pair() -> None:
    boxes = [X25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2)]
    scalars = [group.as_bytes(n) for n in (1, 2)]
    kinds: Any = (
        (box_key, boxes, [public_bytes(key) for key in boxes]),
        (pair_key, scalars, [group.point_of(key) for key in scalars]),
    )
    context = Context(b"r" * 16, b"o" * 32, b"p" * 32)
    made = {
        bytes(make(where, own[0], public[1], *pair))
        for make, own, public in kinds
        for where in (
            context,
            replace(context, run=b"x" * 16),
            replace(context, roster=b"x" * 32),
            replace(context, plan=b"x" * 32),
        )
        for pair in ((0, 1), (0, 2), (1, 2))
    }
    assert len(made) == 2 * 4 * 3
    for make, own, public in kinds:
        there = make(context, own[0], public[1], 0, 1)
        assert make(context, own[1], public[0], 1, 0) == there


def test_a_signature_is_for_one_run_roster_plan_round_sender_and_body() -> None:
    context = Context(b"r" * 16, b"o" * 32, b"p" * 32)
    message = Message("agree", 2, {"included": [0, 1]})
    raw, key = wire.seal(context, identity("site 2"), message), public_bytes(identity("site 2"))
    assert wire.open_message(context, raw, key, round="agree", sender=2).body == message.body
    for where in (replace(context, roster=b"x" * 32), replace(context, plan=b"x" * 32)):
        with pytest.raises(ProtocolError, match="signature"):
            wire.open_message(where, raw, key, round="agree", sender=2)
    for name, value, asked in (
        ("run", "78" * 16, {"context": replace(context, run=b"x" * 16)}),
        ("round", "unmask", {"round": "unmask"}),
        ("sender", 3, {"sender": 3}),
        ("body", {"included": [0]}, {}),
    ):
        moved = wire.canonical({**json.loads(raw), name: value}) + b"\n"
        where = {"context": context, "round": "agree", "sender": 2, **asked}
        with pytest.raises(ProtocolError, match="signature"):
            wire.open_message(
                where["context"], moved, key, round=where["round"], sender=where["sender"]
            )
