"""A failed run costs nothing once so many sites erased their shares that it stays masked."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from capemix.errors import InputError
from capemix.federation import Federation, MaskKind
from capemix.protocol import wire
from capemix.protocol.refund import erased_by, erasures_needed, refundable
from capemix.protocol.wire import Message, ProtocolError
from world import World, assert_sum, counting_plan, identity, signed_request


def up_to(round_: str, world: World) -> World:
    while world.run.round != round_:
        for site, raw in list(world.run.requests()):
            answer = world.ask(site, raw)
            assert answer is not None
            world.bring(site, answer)
        world.run.close()
    return world


def erased(world: World, *sites: int) -> dict[str, str]:
    """The signatures of sites that were asked to erase their shares."""
    request = signed_request(world, "erase", {})
    found = {}
    for site in sites:
        answer = world.sites[site].answer(request)
        assert world.sites[site].answer(request) == answer
        found[str(site)] = wire.parse(answer).signature.hex()
    return found


@pytest.mark.parametrize("federation", [(4, 1, 1), (5, 2, 1), (7, 2, 2)])
@pytest.mark.parametrize("round_", ["upload", "agree", "unmask"])
def test_a_run_that_failed_is_refunded_once_enough_sites_erased_their_shares(
    tmp_path: Path, federation: tuple[int, int, int], round_: str
) -> None:
    world = up_to(round_, World(counting_plan(*federation), tmp_path))
    plan = world.plan.federation
    needed = erasures_needed(plan)
    assert needed is not None
    signed = erased(world, *range(needed))
    for site in range(needed):
        own = world.sites[site]
        assert not any(any(share) for shares in own._held.values() for share in shares)
        for raw in dict(world.run.requests()).values():
            with pytest.raises(ProtocolError, match="left the run"):
                own.answer(raw)
    few = dict(list(signed.items())[:-1])
    with pytest.raises(ProtocolError, match="what was paid stays paid"):
        world.sites[0].answer(signed_request(world, "refund", {"erased": few}))
    assert not world.sites[0].refunded
    for site in range(needed):
        world.sites[site].answer(signed_request(world, "refund", {"erased": signed}))
        assert world.sites[site].refunded
    assert refundable(world.run._context, world.roster, plan, signed)
    assert not refundable(world.run._context, world.roster, plan, few)


def test_who_revealed_signs_no_erasure_and_who_erased_reveals_nothing(tmp_path: Path) -> None:
    world = up_to("unmask", World(counting_plan(5, 1, 1), tmp_path))
    requests = dict(world.run.requests())
    assert world.ask(0, requests[0]) is not None
    with pytest.raises(ProtocolError, match="has revealed its shares"):
        erased(world, 0)
    erased(world, 1)
    assert world.ask(1, requests[1]) is None
    assert not [holder for _, _, holder in world.revealed() if holder == 1]


def test_a_site_that_did_not_erase_takes_no_refund(tmp_path: Path) -> None:
    world = up_to("agree", World(counting_plan(4, 1, 1), tmp_path))
    signed = erased(world, 1, 2, 3)
    with pytest.raises(ProtocolError, match="what was paid stays paid"):
        world.sites[0].answer(signed_request(world, "refund", {"erased": signed}))


def test_nobody_but_the_coordinator_makes_a_site_erase(tmp_path: Path) -> None:
    world = up_to("agree", World(counting_plan(4, 1, 1), tmp_path))
    forged = wire.seal(world.run._context, identity("site 3"), Message("erase", -1, {}))
    with pytest.raises(ProtocolError, match="signature"):
        world.sites[0].answer(forged)
    fresh = World(counting_plan(4, 1, 1), tmp_path)
    with pytest.raises(ProtocolError, match="knows of no such run"):
        fresh.sites[0].answer(signed_request(world, "erase", {}))
    assert_sum(world.drive(), (0, 1, 2, 3))


def test_signatures_count_once_for_their_signer_and_their_run(tmp_path: Path) -> None:
    world = up_to("agree", World(counting_plan(4, 1, 1), tmp_path))
    plan, context = world.plan.federation, world.run._context
    signed: dict[str, Any] = erased(world, 0, 1, 2)
    assert refundable(context, world.roster, plan, signed)
    assert not refundable(replace(context, run=bytes(16)), world.roster, plan, signed)
    for change in ({"2": signed["1"]}, {"2": None}, {"2": "00"}, {"2": "00" * 64}, {"2": 7}):
        assert not refundable(context, world.roster, plan, {**signed, **change})
    other = {"3": wire.sign(context, identity("site 2"), erased_by(3))}
    assert not refundable(context, world.roster, plan, {"0": signed["0"], **other})


def federations(most: int) -> list[Federation]:
    found = []
    for sites, colluding, dropouts in product(range(2, most), range(1, most), range(most)):
        try:
            found.append(Federation(sites=sites, colluding=colluding, dropouts=dropouts))
        except InputError:
            continue
    return found


def test_what_is_left_after_enough_erasures_is_one_share_too_few_for_any_liars() -> None:
    """Of the sites that signed, as many as may collude lied; nobody else signed."""
    for federation in federations(30):
        needed = erasures_needed(federation)
        assert needed is not None
        assert needed <= federation.sites - federation.dropouts  # those who are left can do it
        left = federation.sites - (needed - federation.colluding)
        assert left == federation.share_threshold - 1


def test_one_erasure_fewer_could_leave_enough_shares() -> None:
    """Every choice of who erased and who lied, in small federations, against the shares."""
    for federation in federations(7):
        needed = erasures_needed(federation)
        assert needed is not None
        for enough in (True, False):
            worst = max(
                federation.sites - len(set(signers) - set(liars))
                for signers in combinations(range(federation.sites), needed - (not enough))
                for liars in combinations(range(federation.sites), federation.colluding)
            )
            assert (worst < federation.share_threshold) == enough


def test_gaussian_masks_are_never_refunded_and_sparse_graphs_only_by_all() -> None:
    gaussian = Federation(sites=4, colluding=1, dropouts=1, masks=MaskKind.GAUSSIAN)
    assert erasures_needed(gaussian) is None
    sparse = Federation(sites=60, colluding=10, dropouts=2, peers=20)
    assert erasures_needed(sparse) == 60
