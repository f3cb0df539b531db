"""One site that says what is wrong ends no run and gets nobody else blamed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from capemix.methods.mixing.planning import plan_mixtures
from capemix.protocol import group, shamir, wire
from capemix.protocol.agreement import commitment
from capemix.protocol.wire import Message, ProtocolError
from capemix.randomness.source import SeededSource
from world import ASKED, World, assert_sum, counting_plan, identity, reseal, signed_request

BAD = 0
Change = Callable[[dict[str, Any]], None]
LOW_ORDER = ("00" * 32, "01" + "00" * 31)


def drive(world: World, round_: str, change: Change, **more: Any) -> Any:
    """A run in which one site answers one round with something else, and signs that."""

    def reply(site: int, at: str, raw: bytes) -> bytes:
        if (site, at) == (BAD, round_):
            return reseal(raw, change, world.plan, f"site {BAD}")
        return raw

    return world.drive(reply=reply, **more)


def everyone_but_the_bad_one(world: World) -> tuple[int, ...]:
    return tuple(site for site in range(len(world.sites)) if site != BAD)


# -- before the agreement: it is dropped -----------------------------------------------------------


def keys_of(world: World, **change: str) -> Change:
    """Other keys, which the site committed to, as it would if it were bad from the start."""

    def changed(body: dict[str, Any]) -> None:
        body.update(change)
        said = (bytes.fromhex(body[name]) for name in ("nonce", "box", "mask"))
        commit = commitment(world.run._context, BAD, *said)
        world.run._replies["plan"][BAD].body["commit"] = commit

    return changed


@pytest.mark.parametrize("federation", [(4, 1, 1), (6, 1, 1), (7, 2, 1)])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        *product(("box", "mask"), (*LOW_ORDER, "", 7)),
        *product(("mask",), ("ff" * 32, "02" + "00" * 31)),  # X25519 has a key of any such bytes
    ],
)
def test_what_is_no_key_costs_its_sender_its_place(
    tmp_path: Path, federation: tuple[int, int, int], name: str, key: Any
) -> None:
    world = World(counting_plan(*federation), tmp_path)
    change = keys_of(world, **{name: key}) if isinstance(key, str) and key else None
    found = drive(world, "keys", change or (lambda body: body.update({name: key})))
    assert_sum(found, everyone_but_the_bad_one(world))
    assert set(world.run.lost) == {BAD}


def test_a_site_with_one_key_for_two_purposes_leaves_alone(tmp_path: Path) -> None:
    world = World(counting_plan(6, 1, 1), tmp_path)
    mask = group.point_of(group.as_bytes(7)).hex()
    assert_sum(drive(world, "keys", keys_of(world, box=mask, mask=mask)), (1, 2, 3, 4, 5))
    assert world.run.lost == {BAD: "its two keys are one"}


def test_nobody_can_take_a_key_that_another_site_showed(tmp_path: Path) -> None:
    """Keys are committed to beforehand: who copies one is caught, and who is copied stays."""
    world = World(counting_plan(4, 1, 1), tmp_path)
    for site, raw in list(world.run.requests()):
        answer = world.ask(site, raw)
        assert answer is not None
        world.run.receive(site, answer)
    world.run.close()
    requests = dict(world.run.requests())
    answers = {site: world.ask(site, requests[site]) for site in (1, 2, 3, BAD)}
    for site in (1, 2, 3):
        world.run.receive(site, answers[site] or b"")
    copied = world.run._replies["keys"][1].body
    forged = reseal(answers[BAD] or b"", lambda b: b.update(copied), world.plan, f"site {BAD}")
    world.run.receive(BAD, forged)
    assert world.run.lost == {BAD: "its keys and its nonce are not those it committed to"}
    world.run.close()
    assert_sum(world.drive(), (1, 2, 3))


def test_two_that_committed_to_one_key_leave_together(tmp_path: Path) -> None:
    world = World(counting_plan(7, 1, 2), tmp_path)
    box = "09" + "00" * 31

    def reply(site: int, round_: str, raw: bytes) -> bytes:
        if round_ == "keys" and site in (0, 1):

            def change(body: dict[str, Any]) -> None:
                body["box"] = box
                said = (bytes.fromhex(body[name]) for name in ("nonce", "box", "mask"))
                commit = commitment(world.run._context, site, *said)
                world.run._replies["plan"][site].body["commit"] = commit

            return reseal(raw, change, world.plan, f"site {site}")
        return raw

    assert_sum(world.drive(reply=reply), (2, 3, 4, 5, 6))
    assert set(world.run.lost) == {0, 1}
    assert "another site has" in world.run.lost[0]


def redealt(world: World, body: dict[str, Any], holder: int, shares: tuple[Any, Any]) -> None:
    """The bad dealer gives a holder these shares in place of its own: with their points, sealed and
    signed, so that the holder has nothing to complain about."""
    dealer = world.sites[BAD]
    for kind, share in zip(("own", "pair"), shares, strict=True):
        body[kind][str(holder)] = group.point_of(share).hex()
    if holder != BAD:
        sealed = dealer._own_box.seal(holder, dealer._boxes[holder], shares)
        body["sealed"][str(holder)] = sealed.hex()
        resealed(world, body, holder)


def resealed(world: World, body: dict[str, Any], holder: int) -> None:
    """The bad dealer signs what its answer has for one holder by now."""
    deal = {name: body[name][str(holder)] for name in ("sealed", "own", "pair")}
    message = Message("deal", BAD, {"to": holder, **deal})
    body["signed"][str(holder)] = wire.sign(world.run._context, identity(f"site {BAD}"), message)


def garbled(world: World, *holders: int) -> Change:
    def change(body: dict[str, Any]) -> None:
        for holder in holders:
            body["sealed"][str(holder)] = "ab" * 80
            resealed(world, body, holder)

    return change


@pytest.mark.parametrize("federation", [(4, 1, 1), (6, 1, 1), (7, 2, 1)])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_dealer_of_shares_that_cannot_be_opened_shows_them_or_leaves(
    tmp_path: Path, federation: tuple[int, int, int], goes_on: bool
) -> None:
    world = World(counting_plan(*federation), tmp_path)
    change = garbled(world, 1)

    def silent(site: int, round_: str) -> bool:
        return (site, round_) == (BAD, "open") and not goes_on

    found = drive(world, "shares", change, drop=silent)
    if goes_on:
        assert_sum(found, tuple(range(federation[0])))
        assert world.run.lost == {}
    else:
        assert_sum(found, everyone_but_the_bad_one(world))
        assert world.run.lost == {BAD: "no answer in round open"}
    assert world.run.disputes == ((1, BAD),)


def test_a_dealer_that_shows_another_share_leaves(tmp_path: Path) -> None:
    world = World(counting_plan(4, 1, 1), tmp_path)

    def reply(site: int, round_: str, raw: bytes) -> bytes:
        if site == BAD and round_ == "shares":
            return reseal(raw, garbled(world, 1), world.plan, f"site {BAD}")
        if site == BAD and round_ == "open":
            other = group.as_bytes(5).hex() * 2
            return reseal(raw, lambda b: b["opened"].update({"1": other}), world.plan, "site 0")
        return raw

    assert_sum(world.drive(reply=reply), (1, 2, 3))
    assert world.run.lost == {BAD: "its share for site 1 is not what its point says"}


def test_more_complaints_than_may_collude_are_believed(tmp_path: Path) -> None:
    world = World(counting_plan(6, 1, 1), tmp_path)
    assert_sum(drive(world, "shares", garbled(world, 1, 2)), (1, 2, 3, 4, 5))
    assert world.run.lost == {BAD: "2 sites got wrong shares from it, and 1 may lie"}


@pytest.mark.parametrize("federation", [(4, 1, 1), (4, 1, 0), (6, 1, 1), (7, 2, 1)])
def test_who_complains_falsely_gets_nobody_dropped(
    tmp_path: Path, federation: tuple[int, int, int]
) -> None:
    """About all others at once: each shows it the share that it has already."""
    world = World(counting_plan(*federation), tmp_path)
    others = list(everyone_but_the_bad_one(world))
    found = drive(world, "check", lambda body: body.update(complaints=others))
    assert_sum(found, tuple(range(federation[0])))
    assert world.run.lost == world.run.blamed == {}
    assert world.run.disputes == tuple((BAD, dealer) for dealer in others)
    for dealer in others:
        shown = wire.parse(world.said[dealer, "open"]).body["opened"]
        assert set(shown) == {str(BAD)}
        points = wire.parse(world.said[dealer, "shares"]).body
        for at, kind in enumerate(("own", "pair")):
            share = bytes.fromhex(shown[str(BAD)])[32 * at :][:32]
            assert group.point_of(share).hex() == points[kind][str(BAD)]


def test_a_site_shows_shares_to_no_more_than_may_collude(tmp_path: Path) -> None:
    """However many sites a server has complain: with fewer shares than the threshold, and more
    than the plan says collude, it would still be too many for what the plan promises."""
    world = World(counting_plan(6, 1, 1), tmp_path)
    while world.run.round != "upload":
        for site, raw in list(world.run.requests()):
            answer = world.ask(site, raw)
            assert answer is not None
            world.run.receive(site, answer)
        world.run.close()

    shown = world.run._setting_among(())

    def asking(*holders: int, keys: str = shown) -> bytes:
        complaints = {
            str(h): wire.seal(
                world.run._context,
                identity(f"site {h}"),
                Message("check", h, {"complaints": [3], "keys": keys}),
            ).decode()
            for h in holders
        }
        return signed_request(world, "open", {"complaints": complaints})

    fork = world.fork()
    assert fork.ask(3, asking(0)) is not None
    other = world.fork()
    assert other.ask(3, asking(0, keys="00" * 32)) is None
    assert "site 0 complains, and was shown other keys" in other.refused[3]
    assert world.ask(3, asking(0, 1)) is None
    assert "2 sites complain about this one; 1 may collude" in world.refused[3]


@pytest.mark.parametrize("kind", ["own", "pair"])
def test_shares_that_do_not_belong_together_are_seen_before_anyone_masks_with_them(
    tmp_path: Path, kind: str
) -> None:
    """One holder gets a share of another polynomial, and nobody but the coordinator could see it:
    unseen, the secret that is put together in the end would be another one."""
    world = World(counting_plan(6, 1, 1), tmp_path)

    def change(body: dict[str, Any]) -> None:
        own, pair = world.sites[BAD]._dealt[2]
        other = bytearray(group.as_bytes(12345))
        redealt(world, body, 2, (other, pair) if kind == "own" else (own, other))

    assert_sum(drive(world, "shares", change), (1, 2, 3, 4, 5))
    assert "do not belong together" in world.run.lost[BAD]


def test_the_mask_keys_shares_are_of_the_key_in_use(tmp_path: Path) -> None:
    """Else a site could share another one, mask with this one, and vanish: nobody could take its
    masks off the others' uploads."""
    world = World(counting_plan(6, 1, 1), tmp_path)
    threshold = world.plan.federation.share_threshold
    other = shamir.split(group.as_bytes(99), range(6), threshold, SeededSource(1).stream("s"))

    def change(body: dict[str, Any]) -> None:
        dealer = world.sites[BAD]
        for holder, share in other.items():
            own, _ = (dealer._dealt | dealer._held)[holder]
            redealt(world, body, holder, (own, share))

    assert_sum(drive(world, "shares", change), (1, 2, 3, 4, 5))
    assert world.run.lost == {BAD: "its shares of its mask key do not belong together"}


@pytest.mark.parametrize("round_", ["plan", "keys", "shares", "check", "upload", "unmask"])
def test_what_an_answer_carries_beside_itself_goes_to_nobody(tmp_path: Path, round_: str) -> None:
    """It could make the message with which it travels on too long for every other site."""
    world = World(counting_plan(5, 1, 1), tmp_path)
    found = drive(world, round_, lambda body: body.update(more="x" * 100_000))
    included = range(5) if round_ == "unmask" else everyone_but_the_bad_one(world)
    assert_sum(found, tuple(included))
    assert world.run.lost == {BAD: "it has other fields than this version's"}


def test_a_site_that_says_its_noise_is_seeded_leaves_the_others_alone(tmp_path: Path) -> None:
    """They would refuse to go on with it."""
    world = World(counting_plan(4, 1, 1), tmp_path)

    def reply(site: int, round_: str, raw: bytes) -> bytes:
        if round_ == "plan" and site != BAD:  # as from the system's source
            return reseal(raw, lambda b: b.update(seeded=False), world.plan, f"site {site}")
        return raw

    for site, raw in list(world.run.requests()):
        answer = world.ask(site, raw)
        assert answer is not None
        world.run.receive(site, reply(site, "plan", answer))
    world.run.close()
    assert world.run.lost == {BAD: "it draws from a test seed, and others do not"}


def test_a_site_that_says_its_noise_is_not_seeded_leaves_the_others_alone(tmp_path: Path) -> None:
    world = World(counting_plan(4, 1, 1), tmp_path)
    assert_sum(drive(world, "plan", lambda body: body.update(seeded=False)), (1, 2, 3))
    assert world.run.lost == {BAD: "it does not draw from a test seed, and others do"}


# -- after it: only what is wrong is left out ------------------------------------------------------


def wrong_share(body: dict[str, Any]) -> None:
    for kind in ("own", "pair"):
        for dealer, share in body[kind].items():
            moved = (int.from_bytes(bytes.fromhex(share), "little") + 1) % group.ORDER
            body[kind][dealer] = group.as_bytes(moved).hex()


@pytest.mark.parametrize("federation", [(4, 1, 1), (6, 1, 1), (7, 2, 1)])
@pytest.mark.parametrize(
    "change", [lambda b: b["own"].update({"2": "00" * 32}), wrong_share], ids=["zero", "all moved"]
)
def test_wrong_shares_at_the_end_are_left_out_and_their_sender_is_named(
    tmp_path: Path, federation: tuple[int, int, int], change: Change
) -> None:
    world = World(counting_plan(*federation), tmp_path)
    found = drive(world, "unmask", change)
    assert_sum(found, tuple(range(federation[0])))
    assert world.run.lost == {}
    assert set(world.run.blamed) == {BAD}
    assert "it revealed a wrong share of the self mask of site" in world.run.blamed[BAD]


def test_a_wrong_share_of_a_missing_sites_key_is_left_out_too(tmp_path: Path) -> None:
    world = World(counting_plan(6, 1, 1), tmp_path)
    found = drive(
        world,
        "unmask",
        lambda body: body["pair"].update({"5": "07" + "00" * 31}),
        drop=lambda site, round_: (site, round_) == (5, "upload"),
    )
    assert_sum(found, (0, 1, 2, 3, 4))
    assert world.run.blamed == {BAD: "it revealed a wrong share of the mask key of site 5"}


@pytest.mark.parametrize("federation", [(4, 1, 1), (5, 1, 1), (6, 1, 2), (7, 2, 2)])
def test_after_the_agreement_a_liar_costs_what_a_missing_site_costs(
    tmp_path: Path, federation: tuple[int, int, int]
) -> None:
    """Liars and missing sites, in any mixture, up to S - t: the sum. With one more: an end that
    names the liars."""
    sites = federation[0]
    plan = counting_plan(*federation)
    spare = sites - plan.federation.agreement
    assert spare >= federation[2]
    for liars, missing in product(range(spare + 2), repeat=2):
        if liars + missing > spare + 1:
            continue
        world = World(plan, tmp_path / f"{liars}-{missing}")

        def reply(
            site: int, round_: str, raw: bytes, world: World = world, n: int = liars
        ) -> bytes:
            if round_ == "unmask" and site < n:
                return reseal(raw, wrong_share, world.plan, f"site {site}")
            return raw

        def gone(site: int, round_: str, n: int = missing) -> bool:
            return round_ == "unmask" and site >= sites - n

        if liars + missing <= spare:
            assert_sum(world.drive(reply=reply, drop=gone), tuple(range(sites)))
        else:
            with pytest.raises(ProtocolError, match="are needed"):
                world.drive(reply=reply, drop=gone)
        assert set(world.run.blamed) == set(range(liars))


@pytest.mark.parametrize("round_", ["shares", "check", "unmask"])
def test_on_a_sparse_graph_a_bad_site_costs_what_a_missing_one_costs(
    tmp_path: Path, round_: str
) -> None:
    """Beside it one site is missing, and two may be: a secret has nine holders and needs six."""
    plan = plan_mixtures(
        **{**ASKED, "sites": 14, "colluding": 2, "dropouts": 2, "clip": 2.0**14},
        peers=8,
        noise=0.0,
    )
    world = World(plan, tmp_path)

    def change(body: dict[str, Any]) -> None:
        if round_ == "shares":
            garbled(world, *sorted(world.run._peers[BAD])[:3])(body)
        elif round_ == "check":
            body.update(complaints=world.run._dealers(BAD))
        else:
            wrong_share(body)

    found = drive(world, round_, change, drop=lambda site, at: (site, at) == (11, "upload"))
    out = {11, BAD} if round_ == "shares" else {11}
    included = tuple(site for site in range(14) if site not in out)
    assert_sum(found, included, atol=14.0)
    assert set(world.run.lost) == out
    assert set(world.run.blamed) == ({BAD} if round_ == "unmask" else set())


# -- the points ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("holders", "threshold"), [(2, 1), (4, 3), (7, 4), (9, 9), (1, 1)])
def test_points_tell_one_polynomial_from_none(holders: int, threshold: int) -> None:
    secret = group.as_bytes(4711)
    shares = shamir.split(secret, range(holders), threshold, SeededSource(0).stream("s"))
    points = {h: group.point_of(share) for h, share in shares.items()}
    points[shamir.SECRET_AT] = group.point_of(secret)
    assert shamir.on_one_polynomial(points, threshold)
    for place in points:
        for other in (group.point_of(group.as_bytes(5)), group.NEUTRAL, bytes(32), b"\xff" * 32):
            assert not shamir.on_one_polynomial({**points, place: other}, threshold)
    if threshold > 1:
        assert not shamir.on_one_polynomial(points, threshold - 1)
    assert shamir.on_one_polynomial(points, threshold + 1) or threshold + 1 > len(points)


def test_the_weights_that_points_are_tried_with_are_orthogonal_to_every_polynomial() -> None:
    """In the field itself, without the group: Lagrange's distances against powers of the places."""
    places = [0, 1, 2, 5, 9]
    for degree in range(len(places)):
        total = sum(
            pow(x, degree, group.ORDER) * pow(shamir._distances(x, places), -1, group.ORDER)
            for x in places
        )
        assert (total % group.ORDER == 0) == (degree < len(places) - 1)
