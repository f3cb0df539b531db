"""Every way in which up to five sites can be lost, in every round: a right sum or a clean end.

A site is lost before it answers one of the seven rounds, or after it has answered and before the
answer arrives, or with its upload announced and the chunks not sent, or never: 16 fates, 16^S
patterns. They are walked as a tree. In a round every site that is left answers once; for every
subset of answers that arrive the world is forked and goes on. Whether a missing answer was never
made or was lost on its way is the same to everybody else, who see messages only, so a fork stands
for both (the answers that were lost are looked at, and handed in late); and a run that has ended
stands for all that could still have been lost. The number of patterns that the leaves stand for is
added up, and must come to all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations, product
from pathlib import Path

import numpy as np
import pytest

from capemix.federation import Federation, MaskKind
from capemix.plan import Plan
from capemix.protocol import wire
from capemix.protocol.answering import ROUNDS as ALL_ROUNDS
from capemix.protocol.wire import ProtocolError
from world import World, assert_sum, counting_plan

ROUNDS = [round_ for round_ in ALL_ROUNDS if round_ != "open"]
"""Nobody complains about anybody here."""

FATES = 2 * len(ROUNDS) + 2


def fates_after(round_: str) -> int:
    """In how many ways a site that answered this round, and is whole, can fare from here on."""
    later = len(ROUNDS) - 1 - ROUNDS.index(round_)
    return 2 * later + 1 + (ROUNDS.index(round_) < ROUNDS.index("upload"))


def feasible(sites: int) -> list[tuple[int, int]]:
    """All (colluding, dropouts) that a plan for so many sites may ask for."""
    found = []
    for colluding, dropouts in product(range(1, sites), range(sites)):
        try:
            Federation(sites=sites, colluding=colluding, dropouts=dropouts)
        except ValueError:
            continue
        found.append((colluding, dropouts))
    return found


def should_include(plan: Plan, lost: dict[int, str]) -> tuple[int, ...] | None:
    """Who is in the sum when site s is lost in round lost[s]; None: the run must end without."""
    federation = plan.federation
    when = {**{name: at for at, name in enumerate(ROUNDS)}, "chunk": ROUNDS.index("upload")}
    last = {s: when[lost[s]] if s in lost else 9 for s in range(federation.sites)}
    upload, unmask = ROUNDS.index("upload"), ROUNDS.index("unmask")
    included = tuple(s for s in last if last[s] > upload)
    revealing = [s for s in included if last[s] > unmask]
    if len(included) < federation.sites - federation.dropouts:
        return None
    return included if len(revealing) >= federation.agreement else None


@pytest.fixture(autouse=True)
def _each_signature_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks receive the same messages; whether one is good depends on nothing else."""
    checked = cache(wire.open_message)
    monkeypatch.setattr("capemix.protocol.coordinator.open_message", checked)
    monkeypatch.setattr("capemix.protocol.answering.open_message", checked)


@dataclass
class Walk:
    plan: Plan
    atol: float
    patterns: int = 0
    released: int = 0
    ended: int = 0

    def on(self, world: World, lost: dict[int, str]) -> None:
        round_ = world.run.round
        if round_ is None:
            self.released += 1
            self.patterns += stands_for(lost)
            included = should_include(self.plan, lost)
            assert included is not None
            assert world.run.included == included
            assert_sum(np.asarray(world.run.release_sums()), included, self.atol)
            return
        answers = {site: world.ask(site, raw) for site, raw in world.run.requests()}
        assert None not in answers.values()  # nobody refuses an honest coordinator
        world.assert_nothing_is_given_away()
        for arrived in subsets(tuple(answers)):
            missing = tuple(site for site in answers if site not in arrived)
            for half in subsets(missing) if round_ == "upload" else [()]:
                self.close(world.fork(), answers, arrived, half, lost)

    def close(
        self,
        world: World,
        answers: dict[int, bytes],
        arrived: tuple[int, ...],
        half: tuple[int, ...],
        lost: dict[int, str],
    ) -> None:
        round_ = world.run.round
        assert round_ is not None
        lost = {**lost, **{site: round_ for site in answers if site not in arrived}}
        lost |= dict.fromkeys(half, "chunk")
        for site in half:
            world.run.receive(site, answers[site])  # announced, and nothing more
        for site in arrived:
            world.bring(site, answers[site])
        try:
            world.run.close()
        except ProtocolError:
            self.ended += 1
            # Those still there could be lost later in any way, and nothing would change.
            self.patterns += stands_for(lost) * fates_after(round_) ** len(arrived)
            assert should_include(self.plan, lost) is None
            with pytest.raises(ProtocolError):
                world.run.release_sums()
            return
        for site, answer in answers.items():  # late: nobody asked for it any more
            if site not in arrived:
                world.run.receive(site, answer)
        self.on(world, lost)


def stands_for(lost: dict[int, str]) -> int:
    """A missing answer was not made, or lost on its way."""
    return 2 ** sum(round_ != "chunk" for round_ in lost.values())


def subsets(of: tuple[int, ...]) -> chain[tuple[int, ...]]:
    return chain.from_iterable(combinations(of, size) for size in range(len(of) + 1))


@pytest.mark.parametrize(
    ("sites", "colluding", "dropouts", "masks"),
    [
        (sites, *adversary, masks)
        for sites in (2, 3, 4, 5)
        for adversary in feasible(sites)
        for masks in (MaskKind.RING, MaskKind.GAUSSIAN)
        if masks is MaskKind.RING or sites < 5 or adversary == (1, 1)
    ],
)
def test_every_drop_out_pattern_gives_a_right_sum_or_a_clean_end(
    tmp_path: Path, sites: int, colluding: int, dropouts: int, masks: str
) -> None:
    plan = counting_plan(sites, colluding, dropouts, masks)
    walk = Walk(plan, atol=0.03 if masks == "ring" else 0.2)
    walk.on(World(plan, tmp_path / "spool"), {})
    assert walk.patterns == FATES**sites
    assert walk.released > 0
    assert walk.ended > 0


@pytest.mark.parametrize("peers", [2, 4])
def test_every_drop_out_pattern_on_a_sparse_graph(tmp_path: Path, peers: int) -> None:
    walk = Walk(counting_plan(5, 1, 1, peers=peers), atol=0.03)
    walk.on(World(walk.plan, tmp_path / "spool"), {})
    assert walk.patterns == FATES**5
    assert walk.released > 0


def test_forks_are_the_same_as_runs_from_the_start(tmp_path: Path) -> None:
    """The tree against plain runs, for fates drawn at random."""
    rng = np.random.default_rng(1)
    plan = counting_plan(5, 1, 1)
    for trial in range(40):
        fate = {
            int(s): int(rng.integers(len(ROUNDS))) for s in rng.choice(5, trial % 3, replace=False)
        }
        made = rng.random(5) < 0.5  # an answer is made and lost on its way, or not made
        lost = {site: ROUNDS[at] for site, at in fate.items()}
        world = World(plan, tmp_path / str(trial))

        def drop(site: int, round_: str, lost: dict[int, str] = lost, made=made) -> bool:
            return lost.get(site) == round_ and not made[site]

        def reply(site: int, round_: str, raw: bytes, lost: dict[int, str] = lost) -> bytes:
            return b"lost on its way\n" if lost.get(site) == round_ else raw

        included = should_include(plan, lost)
        if included is None:
            with pytest.raises(ProtocolError):
                world.drive(drop=drop, reply=reply)
        else:
            assert_sum(world.drive(drop=drop, reply=reply), included)
        world.assert_nothing_is_given_away()
