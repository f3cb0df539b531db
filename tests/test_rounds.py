"""A release in rounds over a federation: the same law and the same bits as in one process; a site
agrees to the whole or to nothing, and no round is had twice, out of turn, or for less noise."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from capemix import documents
from capemix import pipeline as pipeline_module
from capemix.accounting.cost import together
from capemix.agent import Agent, Holdings, load_identity, new_identity
from capemix.data import LabeledRows, load_dataset, partition
from capemix.engines.flower import exchange as exchange_module
from capemix.engines.flower.app_folder import run_config
from capemix.engines.flower.coordinator_app import main
from capemix.engines.flower.envelope import pack, pack_refusal, unpack
from capemix.engines.flower.files import RELEASED, Outcome, plan_text, read_plan_file
from capemix.engines.flower.local import run_on_loopback
from capemix.engines.in_process import sums_in_process
from capemix.engines.local import sums_local
from capemix.errors import InputError
from capemix.guarantee import Guarantee
from capemix.kernels import memory as memory_module
from capemix.ledger import Account, Ledger, Limit
from capemix.moments import SumOf, release_moments
from capemix.sums.share import prepare_records
from capemix.plan import MomentsPlan, Plan, make_moments_plan, make_plan, moments_from_json
from capemix.plan.images import Images
from capemix.plan.shares import CENTRE, CENTRES, NORMS_OF, SIZES, SPREAD, SPREADS
from capemix.statistics.projection import Projection
from capemix.statistics.moments import Moments, NormHistogram, Spreads, sum_projected
from capemix.sums.rows import normalise_rows
from capemix.sums.steps import ColumnMap, PublicMap
from capemix.protocol.agreement import public_bytes
from capemix.protocol.chunks import LEAST_CHUNK
from capemix.protocol.coordinator import Run
from capemix.protocol.part import Part
from capemix.protocol.policy import Policy
from capemix.protocol.roster import Member, Roster
from capemix.protocol.wire import ProtocolError
from capemix.queries import Relation
from capemix.randomness.source import SeededSource
from capemix.release import Release
from conftest import Capemix

SITES, SEED = 4, 7
NAMES = ("a", "b", "c", "d", "e")
WAY = PublicMap.of_range(-4, 4)


def some_rows() -> LabeledRows:
    rng = np.random.default_rng(0)
    labels = (np.arange(600) % 2).astype(np.int64)
    return LabeledRows(
        features=rng.normal(size=(600, 5)) + labels[:, None],
        labels=labels,
        classes=("no", "yes"),
        feature_names=NAMES,
        label_name="y",
    )


def parts() -> list[LabeledRows]:
    return partition(some_rows(), SITES, "dirichlet", seed=2)


def a_plan(epsilon: float = 8.0, **changed: Any) -> MomentsPlan:
    asked: dict[str, Any] = {
        "width": 5, "classes": ("no", "yes"), "normalise": WAY, "samples": 60, "scheme": "cape",
        "sites": SITES, "colluding": 1, "dropouts": 1,
    }  # fmt: skip
    return make_moments_plan(**{**asked, **changed}).calibrate(epsilon)


def local(plan: MomentsPlan, rows: list[LabeledRows] | None = None) -> Release:
    rows = rows or parts()
    return release_moments(plan, rows[0], sums_local(rows, SeededSource(SEED)), promised)


def kept(sum_of: SumOf, seen: list[Any]) -> SumOf:
    def take(whole: MomentsPlan, name: str, plan: Plan) -> Any:
        seen.append(np.array(sum_of(whole, name, plan)))
        return seen[-1]

    return take


def promised(plan: MomentsPlan) -> Guarantee:
    return plan.guarantee(seeded=True, one_process=True)


# -- the protocol in one process -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "changed"),
    [
        (8.0, {}),
        (0.3, {}),
        (8.0, {"class_sizes": (300, 300), "relation": "replace-one"}),
        (8.0, {"masks": "gaussian"}),
    ],
)
def test_every_message_of_a_federation_gives_the_release_of_one_process(
    epsilon: float, changed: dict[str, Any]
) -> None:
    plan, rows = a_plan(epsilon, **changed), parts()
    sums: list[list[Any]] = [[], []]
    found, one = (
        release_moments(plan, rows[0], kept(way(rows, SeededSource(SEED)), seen), promised)
        for way, seen in zip((sums_in_process, sums_local), sums, strict=True)
    )
    assert (found.plan.rank > 0) == (epsilon == 8.0)
    assert found.plan == one.plan
    assert found.guarantee == one.guarantee
    if changed.get("masks") == "gaussian":  # masks leave rounding behind
        for ours, theirs in zip(*sums, strict=True):
            assert np.allclose(ours, theirs, atol=1e-6)
    else:
        assert found.features.tobytes() == one.features.tobytes()


def test_a_plan_of_rounds_comes_back_as_it_was_written() -> None:
    for plan in (
        a_plan(),
        replace(a_plan(class_sizes=(9, 9), masks="gaussian"), rank=3, clusters=1),
        a_plan(normalise=ColumnMap((0.0,) * 5, (1.0,) * 5, (-4.0,) * 5, (4.0,) * 5)),
        a_plan(relation="replace-one", samples=None),
    ):
        said = json.loads(json.dumps(plan.as_json()))
        assert moments_from_json(said) == plan
    for change in (
        {"width": 5.0},
        {"width": 0},
        {"rank": 6},
        {"rank": True},
        {"noise": -1.0},
        {"noise": 1e200},
        {"class_sizes": [1.5, 2]},
        {"normalise": {"kind": "site-zscore"}},
        {"normalise": {"kind": "columns", "shift": [0], "scale": [1], "low": [0], "high": [1]}},
        {"queries": []},
        {"sites": 0},
        {"classes": list(range(1001))},
        {"more": 1},
    ):
        with pytest.raises(InputError):
            moments_from_json({**said, **change})
    for nonsense in (None, [], {}, {"synthesizer": "moments"}):
        with pytest.raises(InputError):
            moments_from_json(nonsense)


# -- agents ----------------------------------------------------------------------------------------


def allowing(plan: MomentsPlan, **changed: Any) -> Policy:
    epsilon = plan.guarantee().epsilon
    assert epsilon is not None
    limits: dict[str, Any] = {"max_epsilon": epsilon, "total_epsilon": epsilon}
    return Policy(**{**limits, "synthesizers": ("moments",), **changed})


class Federation:
    """Agents with ledgers of their own, and a coordinator's identity."""

    def __init__(self, folder: Path, policy: Policy, rows: list[LabeledRows] | None = None) -> None:
        rows = rows or parts()
        self.folder, self.schema = folder, rows[0].schema()
        names = ["coordinator", *(f"site{s}" for s in range(SITES))]
        keys = [load_identity(new_identity(name, folder / "keys")[0]) for name in names]
        members = [
            Member(name, public_bytes(key).hex()) for name, key in zip(names, keys, strict=True)
        ]
        self.coordinator, self.roster = keys[0], Roster(members[0], tuple(members[1:]))
        self.lineages = [Ledger.open(folder / f"{s}.db").lineage("rows") for s in range(SITES)]
        self.agents = [
            Agent(Holdings(s, keys[s + 1], self.roster, policy, each, self.lineages[s], SEED))
            for s, each in enumerate(rows)
        ]
        self.runs = 0

    def run(self, plan: Plan, part: Part | None = None) -> Run:
        self.runs += 1
        spool = self.folder / f"spool{self.runs}"
        spool.mkdir()
        return Run(
            plan, self.schema, self.roster, self.coordinator,
            self.runs.to_bytes(16, "big"), spool, chunk_bytes=LEAST_CHUNK, part=part,
        )  # fmt: skip

    def to(self, run: Run, last: str | None = None) -> None:
        """All messages before the round ``last``, or all of them."""
        while run.round != last:
            for site, raw in list(run.requests()):
                run.receive(site, self.agents[site].answer(raw))
            for site, index in list(run.wanted()):
                raw = run.chunk_request(site, index)
                run.receive_chunk(site, index, self.agents[site].answer(raw))
            run.close()

    def sum_of(self, name: bytes = bytes(16)) -> Callable[..., Any]:
        def take(whole: MomentsPlan, round_: str, plan: Plan) -> Any:
            run = self.run(plan, Part(name, whole, round_))
            self.to(run)
            return run.release_sums()

        return take

    def answer(self, plan: Plan, part: Part | None) -> str | None:
        """Why site 0 declines; None if it accepts."""
        run = self.run(plan, part)
        run.receive(0, self.agents[0].answer(dict(run.requests())[0]))
        return run.lost.get(0)

    @property
    def charges(self) -> int:
        return self.lineages[0].account().total.charges


class Stopped(Exception):
    pass


def first_rounds(
    plan: MomentsPlan, take: Callable[..., Any], count: int
) -> tuple[MomentsPlan, str, Plan]:
    """Carry out ``count`` rounds; what the next one would be."""
    left = count

    def stop(whole: MomentsPlan, name: str, asked: Plan) -> Any:
        nonlocal left
        if not left:
            raise Stopped(whole, name, asked)
        left -= 1
        return take(whole, name, asked)

    with pytest.raises(Stopped) as stopped:
        release_moments(plan, parts()[0], stop, promised)
    whole, name, asked = stopped.value.args
    return whole, name, asked


@pytest.mark.parametrize("epsilon", [0.3, 8.0])
def test_agents_give_the_release_and_charge_every_round_within_the_limit(
    tmp_path: Path, epsilon: float
) -> None:
    """The limit is the release's own epsilon: one by one, all rounds fit, and nothing more does."""
    plan = a_plan(epsilon)
    world = Federation(tmp_path, allowing(plan))
    found = release_moments(plan, parts()[0], world.sum_of(), promised)
    assert found.features.tobytes() == local(plan).features.tobytes()
    names = [one.name for one in plan.rounds(found.plan.rank).rounds]
    lines = [line.entry for line in world.lineages[1].ledger.lines()]
    charged = [entry["what"] for entry in lines if entry["kind"] == "charge"]
    assert charged == [f"upload, site 1, {name}" for name in names]
    account = world.lineages[1].account()
    assert account.holds
    assert account.epsilon == pytest.approx(epsilon, rel=1e-3)
    whole, name, asked = first_rounds(plan, sums_local(parts(), SeededSource(SEED)), 0)
    said = world.answer(asked, Part(b"another release.", whole, name))
    assert said is not None
    assert "overspent" in said


def test_each_upload_is_charged_before_it_is_made(tmp_path: Path) -> None:
    plan = a_plan()
    world = Federation(tmp_path, allowing(plan))
    counts = []

    def watched(whole: MomentsPlan, name: str, asked: Plan) -> Any:
        run = world.run(asked, Part(bytes(16), whole, name))
        world.to(run, "upload")
        counts.append(world.charges)
        world.to(run)
        counts.append(world.charges)
        return run.release_sums()

    release_moments(plan, parts()[0], watched, promised)
    assert counts == [n // 2 for n in range(1, len(counts) + 1)]
    assert len(counts) == 2 * 11


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"synthesizers": ("mixing",)}, "moments is not among the synthesizers"),
        ({"max_epsilon": 7.0}, "above 7 a run"),
        ({"max_delta": 1e-7}, "delta"),
        ({"total_epsilon": 7.5}, "the budget of 7.5 in all would be overspent"),
        ({"least_sites": 5}, "fewer than 5"),
        ({"columns": ("a", "b")}, "columns that are not allowed"),
        ({"classes": ("no",)}, "classes that are not allowed"),
        ({"real_arithmetic": True, "synthesizers": ("mixing", "moments")}, None),
    ],
)
def test_a_policy_judges_the_whole_in_the_first_round(
    tmp_path: Path, policy: dict[str, Any], says: str | None
) -> None:
    plan = a_plan()
    assert Policy().synthesizers == ("mixing",)
    world = Federation(tmp_path, allowing(plan, **policy))
    whole, name, asked = first_rounds(plan, sums_local(parts(), SeededSource(SEED)), 0)
    said = world.answer(asked, Part(bytes(16), whole, name))
    assert (said is None) == (says is None)
    assert says is None or says in str(said)
    assert world.charges == 0


def test_a_site_that_allows_moments_only_mixes_nothing(tmp_path: Path) -> None:
    world = Federation(tmp_path, allowing(a_plan()))
    mixing = make_plan(
        width=5, class_sizes=(300, 300), classes=("no", "yes"), samples=10, mixture=4,
        scheme="cape", sites=SITES,
    ).calibrate(1.0)  # fmt: skip
    assert "mixing is not among" in str(world.answer(mixing, None))


def test_a_sum_of_moments_needs_its_release(tmp_path: Path) -> None:
    world = Federation(tmp_path, allowing(a_plan(), synthesizers=("mixing", "moments")))
    whole, name, asked = first_rounds(a_plan(), sums_local(parts(), SeededSource(SEED)), 3)
    assert "with its release" in str(world.answer(asked, None))
    assert "not in the release's earlier rounds" in str(
        world.answer(asked, Part(bytes(16), whole, name))
    )


def lying(change: str, whole: MomentsPlan, name: str, asked: Plan) -> tuple[Plan, Part]:
    """A proposal of the round ``name`` that is not quite what was agreed to."""
    part = Part(bytes(16), whole, name)
    rounds = whole.rounds(whole.rank or 0)
    if change == "less noise":
        asked = asked.with_noise(0.9 * (asked.noise or 0.0))
    elif change == "less noise in the whole":
        less = replace(whole, multiplier=0.9 * (whole.multiplier or 0.0))
        asked = less.rounds(less.rank or 0).plan(
            name, classes=whole.classes, contribution=asked.contribution
        )
        part = replace(part, whole=less)
    elif change == "an earlier round":
        part = replace(part, name=SIZES)
        sizes = Moments(Projection(WAY, 5, 2), 1.0, (1.0, 0.0))
        asked = rounds.plan(SIZES, classes=whole.classes, contribution=sizes)
    elif change == "a later round":
        part = replace(part, name=CENTRES)
        asked = rounds.plan(
            CENTRES,
            classes=whole.classes,
            contribution=Moments(Projection(WAY, 5, 2), 1.0, (0.0, 1.0)),
        )
    elif change == "another rank":
        other = replace(whole, rank=0, clusters=1)
        asked = other.rounds(0).plan(name, classes=whole.classes, contribution=asked.contribution)
        part = replace(part, whole=other)
    elif change == "no rank":
        part = replace(part, whole=replace(whole, rank=None, clusters=None))
    elif change == "another sum":
        norms = NormHistogram(Projection(WAY, 5, 2))
        asked = rounds.plan(NORMS_OF.format(CENTRE), classes=whole.classes, contribution=norms)
    elif change == "another map":
        how = Projection(PublicMap.of_range(-1, 1), 5, 2)
        asked = rounds.plan(name, classes=whole.classes, contribution=Moments(
            how, 1.0, (0.0, 1.0), apart=False))  # fmt: skip
    elif change == "too many directions":
        wide = NormHistogram(Projection(WAY, 5, 2, basis=np.ones((5, 6))))
        asked = rounds.plan(NORMS_OF.format(CENTRE), classes=whole.classes, contribution=wide)
    elif change == "fewer honest sites":
        asked = replace(asked, federation=replace(asked.federation, dropouts=0))
    elif change == "rows":
        asked = make_plan(
            width=5, class_sizes=(300, 300), classes=("no", "yes"), samples=10, mixture=4,
            scheme="cape", sites=SITES, noise=9.0,
        )  # fmt: skip
    return asked, part


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("nothing", None),
        ("less noise", "not planned as the release says"),
        ("less noise in the whole", "not the release that was agreed to"),
        ("an earlier round", "once each, in their order"),
        ("a later round", "once each, in their order"),
        ("another rank", "rank was chosen already"),
        ("no rank", "rank was chosen already"),
        ("another sum", "something else than the release says"),
        ("another map", "in another way than the release"),
        ("too many directions", "more directions than there are columns"),
        ("fewer honest sites", "not planned as the release says"),
        ("rows", "not a sum of moments"),
    ],
)
def test_a_round_that_is_not_the_next_one_agreed_to_is_declined(
    tmp_path: Path, change: str, says: str | None
) -> None:
    plan = a_plan()
    world = Federation(tmp_path, allowing(plan))
    whole, name, asked = first_rounds(plan, world.sum_of(), 2)
    assert (name, whole.rank) == (CENTRE, 5)
    before = world.charges
    said = world.answer(*lying(change, whole, name, asked))
    assert (said is None) == (says is None)
    assert says is None or says in str(said)
    assert world.charges == before == 2


def test_a_first_round_that_depends_on_the_rank_needs_it(tmp_path: Path) -> None:
    plan = a_plan(class_sizes=(300, 300))
    world = Federation(tmp_path, allowing(plan))
    whole, name, asked = first_rounds(plan, sums_local(parts(), SeededSource(SEED)), 0)
    part = Part(bytes(16), whole, name)
    open_ = replace(part, whole=replace(whole, rank=None, clusters=None))
    assert "needs the rank to be chosen" in str(world.answer(asked, open_))
    assert world.answer(asked, part) is None


def test_another_release_under_a_known_name_is_declined(tmp_path: Path) -> None:
    plan = a_plan(4.0)
    world = Federation(tmp_path, allowing(a_plan(8.0)))
    first_rounds(plan, world.sum_of(), 1)
    other = replace(plan, samples=61)
    whole, name, asked = first_rounds(other, sums_local(parts(), SeededSource(SEED)), 1)
    said = world.answer(asked, Part(bytes(16), whole, name))
    assert "not the release that was agreed to" in str(said)


def test_one_round_agreed_to_twice_is_uploaded_and_charged_once(tmp_path: Path) -> None:
    plan = a_plan()
    world = Federation(tmp_path, allowing(plan))
    whole, name, asked = first_rounds(plan, world.sum_of(), 1)
    part = Part(bytes(16), whole, name)
    runs = [world.run(asked, part) for _ in range(2)]
    for run in runs:
        world.to(run, "upload")
    world.to(runs[0])
    before = world.charges
    for site, raw in runs[1].requests():
        with pytest.raises(ProtocolError, match="once each"):
            world.agents[site].answer(raw)
    assert world.charges == before == 2


def test_a_round_whose_budget_went_elsewhere_is_declined(tmp_path: Path) -> None:
    plan = a_plan()
    world = Federation(tmp_path, allowing(plan))
    whole, name, asked = first_rounds(plan, world.sum_of(), 3)
    other = make_plan(
        width=5, class_sizes=(300, 300), classes=("no", "yes"), samples=10, mixture=4,
        scheme="cape", sites=SITES,
    ).calibrate(1.0)  # fmt: skip
    world.lineages[0].charge("something else", other.cost(Relation.ADD_REMOVE))
    said = world.answer(asked, Part(bytes(16), whole, name))
    assert "overspent" in str(said)


def test_what_an_agent_says_to_a_round_does_not_depend_on_its_rows(tmp_path: Path) -> None:
    """Not even on how many there are: a site that declined for their number would tell it."""
    plan = a_plan()
    whole, name, asked = first_rounds(plan, sums_local(parts(), SeededSource(SEED)), 0)
    said = []
    for fill in (600, 0):
        world = Federation(tmp_path / str(fill), allowing(plan))
        kept = replace(world.agents[0]._holdings, rows=some_rows().take(np.arange(fill)))
        world.agents[0]._holdings = kept
        said.append(world.answer(asked, Part(bytes(16), whole, name)))
    assert said == [None, None]


def test_parts_that_were_not_written_by_us_are_refused() -> None:
    good = Part(bytes(16), a_plan(), SIZES).as_json()
    assert Part.from_json(good).as_json() == good
    uncalibrated = replace(a_plan(), multiplier=1.0).as_json() | {"noise": None}
    for bad in (
        [],
        {},
        good | {"more": 1},
        good | {"round": "another"},
        good | {"round": ["class sizes"]},
        good | {"release": "00"},
        good | {"release": 7},
        good | {"whole": None},
        good | {"whole": uncalibrated},
    ):
        with pytest.raises((ProtocolError, InputError)):
            Part.from_json(bad)


# -- what a site holds and adds up -----------------------------------------------------------------


@pytest.mark.parametrize("lattice", [None, 1000])
@pytest.mark.parametrize("size", [1e-300, 1e300])
@pytest.mark.parametrize("clip", [1e-100, 1.0, 1e300])
def test_no_numbers_in_a_round_can_stop_a_site(
    lattice: int | None, size: float, clip: float
) -> None:
    frame = Projection(
        WAY, 5, 2, centre=np.full((2, 5), size), basis=np.full((5, 3), -size),
        without=np.full((5, 2), size),
        scale=np.full(3, size),
    )  # fmt: skip
    points = np.full((2, 2, 3), size)
    rows = some_rows()
    for asked in (
        Moments(frame, clip, (1.0, 1.0)),
        Moments(replace(frame, points=points), clip, (1.0, 1.0)),
        Spreads(frame, clip),
        NormHistogram(frame),
    ):
        made = sum_projected(rows.features, rows.labels, asked, lattice_norm_bound=lattice)
        assert np.isfinite(made.sums).all()


def test_a_frame_of_another_width_is_refused() -> None:
    with pytest.raises(InputError, match="parts of different sizes"):
        Projection(ColumnMap((0.0,) * 3, (1.0,) * 3, (0.0,) * 3, (1.0,) * 3), 5, 2)


def test_memory_does_not_grow_with_a_sites_rows() -> None:
    asked = Spreads(Projection(PublicMap(), 60, 1), 1.0, apart=False)
    peaks = []
    for count in (40_000, 120_000):
        rows, labels = np.ones((count, 60)), np.zeros(count, dtype=np.int64)
        tracemalloc.start()
        sum_projected(rows, labels, asked, lattice_norm_bound=100)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] < 250e6


def test_the_largest_plan_keeps_a_round_small() -> None:
    plan = make_moments_plan(
        width=250, classes=tuple(range(1000)), scheme="cape", sites=SITES
    ).calibrate(1.0)
    largest = max(one.width * one.groups for one in plan.rounds(plan.most_rank).rounds)
    assert 8 * largest < 34e6
    plan = make_moments_plan(
        width=784,
        classes=tuple(range(100)),
        normalise=PublicMap.of_range(0, 255),
        images=Images((28, 28), upright=True, teacher=True),
        scheme="cape",
        sites=SITES,
    ).calibrate(1.0)
    most = plan.rounds(plan.most_rank, plan.most_clusters)
    assert 120e6 < 8 * max(one.width * one.groups for one in most.rounds) < 121e6
    with pytest.raises(InputError, match="at most 1000 classes"):
        make_moments_plan(width=2, classes=tuple(range(1001)), scheme="cape", sites=SITES)


# -- the budget ------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 20.0])
def test_rounds_one_by_one_fit_the_limit_that_the_whole_fits(epsilon: float) -> None:
    plan = a_plan(epsilon)
    guarantee = plan.guarantee()
    assert guarantee.epsilon is not None
    for rank in (0, plan.most_rank):
        costs = [one.cost() for one in plan.rounds(rank).plans.values()]
        whole, all_rounds = together(costs), plan.rounds(rank).cost()
        for order, cost in all_rounds.curve.items():
            assert whole.curve[order] == pytest.approx(cost, rel=1e-9)
        assert Account(Limit(guarantee.epsilon, guarantee.delta)).admits(costs)
        less = Account(Limit(0.98 * guarantee.epsilon, guarantee.delta))
        assert not less.admits(costs)


def test_the_order_is_the_wholes_from_the_first_round_on(tmp_path: Path) -> None:
    plan = a_plan(1.0)
    costs = [one.cost() for one in plan.rounds(0).plans.values()]
    lineage = Ledger.open(tmp_path / "ledger.db").lineage("rows")
    lineage.set_limit(Limit(1.0, 1e-5))
    whole = lineage.account().admit(together(costs))
    assert whole is not None
    for cost in costs:
        lineage.charge("round", cost, whole=together(costs))
        assert lineage.account().order == whole[0].order


# -- the coordinator -------------------------------------------------------------------------------


class AgentsGrid:
    """A network straight to the agents, nodes 100, 101, ...; ``lose`` says which messages are."""

    def __init__(self, world: Federation, lose: Callable[[int, int], bool]) -> None:
        self.world, self.lose = world, lose
        self.sent: dict[str, tuple[int, bytes]] = {}
        self.asked = [0] * SITES

    def get_node_ids(self) -> Iterable[int]:
        return [100 + site for site in range(SITES)]

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        for message in messages:
            name = f"m{len(self.sent)}"
            self.sent[name] = message.metadata.dst_node_id - 100, unpack(message.content)
            yield name

    def pull_messages(self, ids: Iterable[str]) -> Iterable[Any]:
        for name in ids:
            site, raw = self.sent[name]
            if self.lose(site, self.asked[site]):
                continue
            self.asked[site] += 1
            try:
                content = pack(self.world.agents[site].answer(raw))
            except ProtocolError as error:
                content = pack_refusal(str(error))
            yield SimpleNamespace(content=content, has_error=lambda: False)


@pytest.fixture
def coordinated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The coordinator's app, on a network made of this test."""

    def message(content: Any, *, dst_node_id: int, **_more: Any) -> Any:
        return SimpleNamespace(content=content, metadata=SimpleNamespace(dst_node_id=dst_node_id))

    monkeypatch.setattr(exchange_module, "Message", message)

    def conduct(
        plan: MomentsPlan,
        lose: Callable[[int, int], bool],
        rows: list[LabeledRows] | None = None,
    ) -> tuple[Path, AgentsGrid]:
        world = Federation(tmp_path / "world", allowing(plan), rows)
        (tmp_path / "plan.json").write_text(plan_text(plan, world.schema))
        (tmp_path / "roster.json").write_text(json.dumps(documents.as_json(world.roster)))
        config = run_config(
            plan=tmp_path / "plan.json",
            roster=tmp_path / "roster.json",
            identity=tmp_path / "world" / "keys" / "coordinator.key",
            out=tmp_path / "out",
            round_seconds=0.5,
        )
        grid: Any = AgentsGrid(world, lose)
        context: Any = SimpleNamespace(run_config=config)
        main(grid, context)
        return tmp_path / "out", grid

    return conduct


def test_the_coordinator_takes_one_round_after_the_other_and_writes_the_release(
    coordinated: Callable[..., Any], tmp_path: Path
) -> None:
    plan = a_plan()
    out, _ = coordinated(plan, lambda _site, _asked: False)
    local(plan).save(tmp_path / "local")
    ours, theirs = ((folder / "synthetic.parquet") for folder in (out, tmp_path / "local"))
    assert ours.read_bytes() == theirs.read_bytes()
    outcome = Outcome.read(out)
    assert outcome is not None
    assert outcome.included == [0, 1, 2, 3]
    sums = [done.sum for done in outcome.rounds]
    assert sums[::6] == [one.name for one in plan.rounds(5).rounds]
    assert [done.number for done in outcome.rounds] == [1, 2, 3, 4, 5, 6] * 11
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["plan"]["rank"] == 5
    assert "X25519" in " ".join(manifest["guarantee"]["assumptions"])
    assert not list(out.parent.glob(".out.spool*"))


def test_a_site_lost_in_one_round_is_out_of_those_that_follow(
    coordinated: Callable[..., Any],
) -> None:
    """After 20 messages, that is in its third sum, site 2 is silent."""
    out, grid = coordinated(a_plan(), lambda site, asked: site == 2 and asked >= 20)
    outcome = Outcome.read(out)
    assert outcome is not None
    assert outcome.status == RELEASED
    assert outcome.included == [0, 1, 3]
    assert set(outcome.lost) == {"2"}
    assert sum(bool(done.lost) for done in outcome.rounds if done["round"] != "plan") == 1
    assert sum(site == 2 for site, _ in grid.sent.values()) == 21  # asked, and not again
    assert [line.lost for line in outcome.rounds[18::6]] == [(2,)] * 8


def test_with_more_sites_lost_than_allowed_in_all_nothing_is_released(
    coordinated: Callable[..., Any], tmp_path: Path
) -> None:
    """One after the other: each round by itself would have enough."""
    with pytest.raises(ProtocolError, match="2 of 4 sites are left"):
        coordinated(
            a_plan(), lambda site, asked: (site == 2 and asked >= 20) or (site == 1 and asked >= 40)
        )
    outcome = Outcome.read(tmp_path / "out")
    assert outcome is not None
    assert outcome.status == "ended"
    assert set(outcome.lost) == {"1", "2"}
    assert not (tmp_path / "out").exists()


def test_a_coordinator_without_the_memory_for_the_rows_asks_no_site(
    coordinated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory_module, "memory", lambda: 1e6)
    plan = a_plan(samples=5_001)
    with pytest.raises(InputError, match="--samples asks for more rows"):
        coordinated(plan, lambda _site, _asked: pytest.fail("a site was asked"))
    assert not (tmp_path / "out").exists()


# -- Flower ----------------------------------------------------------------------------------------


def test_rounds_through_flower_give_the_bytes_of_one_process(tmp_path: Path) -> None:
    """Digits, counted classes and a spread for each: every round there is, simulated."""
    train, _ = load_dataset("digits")
    rows = partition(train, SITES, "stratified", seed=SEED)
    plan = make_moments_plan(
        width=train.width, classes=train.classes, normalise=PublicMap.of_range(0, 16), samples=200,
        scheme="cape", sites=SITES, dropouts=1,
    ).calibrate(10.0)  # fmt: skip
    outcome = run_on_loopback(
        plan, rows, tmp_path / "out", engine="simulation", test_seed=SEED, round_seconds=60.0
    )
    assert outcome.included == [0, 1, 2, 3]
    one = local(plan, rows)
    one.save(tmp_path / "local")
    named = [one.name for one in plan.rounds(one.plan.rank).rounds]
    assert named[0] == SIZES
    assert named[-2:] == [NORMS_OF.format(SPREADS), SPREADS]
    assert SPREAD in named
    assert [done.sum for done in outcome.rounds[::6]] == named
    ours, theirs = ((tmp_path / name / "synthetic.parquet") for name in ("out", "local"))
    assert ours.read_bytes() == theirs.read_bytes()


# -- commands --------------------------------------------------------------------------------------


def test_a_plan_of_moments_is_written_checked_and_set_up(capemix: Capemix, tmp_path: Path) -> None:
    words = ("federate", "plan", "--synthesizer", "moments", "--epsilon", 3, "--sites", 4)
    words += ("--label", "y", "--classes", "no,yes", "--features", "a,b", "--public-range", "0,9")
    words += ("--out", tmp_path / "plan.json")
    assert capemix(*words, "--json").json["epsilon"] == pytest.approx(3, rel=1e-3)
    plan, schema = read_plan_file(tmp_path / "plan.json")
    assert isinstance(plan, MomentsPlan)
    assert (plan.class_sizes, plan.samples, schema["features"]) == (None, None, ["a", "b"])
    sizes = capemix(*words, "--class-sizes", "50,60", "--samples", 30, "--json")
    assert sizes.code == 0
    plan, _ = read_plan_file(tmp_path / "plan.json")
    assert isinstance(plan, MomentsPlan)
    assert (plan.class_sizes, plan.samples) == ((50, 60), 30)
    for bad in (("--mixture", 4), ("--clip", 1.0)):
        ran = capemix(*words, *bad)
        assert ran.code == 2
        assert f"{bad[0]} has no meaning for moments" in ran.err
    assert "--class-sizes must be declared" in capemix(*words, "--synthesizer", "mixing").err
    table = tmp_path / "rows.csv"
    table.write_text("a,b,y\n" + "1,2,yes\n3,4,no\n5,6,unsure\n" * 5)
    asked = ("site", "check", "--data", table, "--label", "y", "--plan", tmp_path / "plan.json")
    assert capemix(*asked, "--json").json["used"] == 10
    init = ("federate", "init", tmp_path / "fed", "--plan", tmp_path / "plan.json")
    assert capemix(*init).code == 0
    policy = documents.read(Policy, tmp_path / "fed" / "policy.json", name="policy")
    assert policy.synthesizers == ("moments",)


# -- what a refusal would tell ---------------------------------------------------------------------


def test_rows_that_cannot_be_made_ready_are_counted_as_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever went wrong depends on the rows: whoever asks sees an upload like any other."""
    rows = some_rows()
    asked = Moments(Projection(WAY, 5, 2), 1.0, (1.0, 0.0))
    plan = a_plan().rounds(0).plan(SIZES, classes=rows.classes, contribution=asked)
    whole = prepare_records(plan, rows.features, rows.labels)
    assert whole.sums.sum() > 0
    real = pipeline_module.prepare_site

    def stumbling(plan: Plan, features: Any, labels: Any) -> Any:
        if len(features):
            raise IndexError(f"a private value: {features[0, 0]}")
        return real(plan, features, labels)

    monkeypatch.setattr(pipeline_module, "prepare_site", stumbling)
    none = prepare_records(plan, rows.features, rows.labels)
    assert none.sums.shape == whole.sums.shape
    assert not none.sums.any()
    assert "IndexError" in caplog.text
    assert "private value" not in caplog.text


@pytest.mark.parametrize("scale", [1e-306, 1e-200, 1e200])
def test_a_map_in_which_one_rows_quotient_is_infinite_is_refused(scale: float) -> None:
    with pytest.raises(InputError, match="public map"):
        PublicMap(127.5, scale, 0, 255)
    with pytest.raises(InputError, match="column map"):
        ColumnMap((0.0,), (scale,), (0.0,), (1.0,))


@pytest.mark.parametrize("ends", [(0, None), (None, 1.0), (1.0, 1.0), (2.0, 1.0), (True, 3)])
def test_a_map_needs_both_ends_of_its_range(ends: Any) -> None:
    with pytest.raises(InputError, match="both ends"):
        PublicMap(0.0, 1.0, *ends)


def test_whole_numbers_of_any_length_in_a_map_stop_nobody() -> None:
    rows = np.array([[3.0, 2.0]])
    how = ColumnMap((0, 2**70), (1, 1), (0, 0), (2**70, 1))
    assert np.isfinite(normalise_rows(rows, how)).all()


@pytest.mark.parametrize("upright", [(16,), (-4, -4), (2, 8.0), (4, 8)])
def test_a_frame_of_odd_images_is_refused_before_any_row_is_seen(upright: Any) -> None:
    with pytest.raises(InputError, match="parts of different sizes"):
        Projection(PublicMap.of_range(0, 1), 16, 2, upright=upright)
    with pytest.raises(InputError, match="declared range"):
        Projection(PublicMap(), 16, 2, upright=(4, 4))
    with pytest.raises(InputError, match="parts of different sizes"):
        Projection(PublicMap(), 5000, 2, basis=np.ones((5000, 2)))


def test_what_is_kept_of_rows_is_kept_for_one_frame_only() -> None:
    """Arrays whose bytes follow each other in two ways are two keys."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(20, 3)), np.zeros(20, dtype=np.int64)
    parts = rng.normal(size=(2, 3))
    one = Projection(PublicMap(), 3, 1, centre=parts[:1], basis=parts[1:].T.copy())
    two = Projection(PublicMap(), 3, 1, basis=parts.reshape(3, 2).copy())
    for frame in (one, two, one):
        made = sum_projected(rows, labels, Spreads(frame, 1.0), lattice_norm_bound=50).sums
        again = sum_projected(
            rows.copy(), labels, Spreads(frame, 1.0), lattice_norm_bound=50
        ).sums
        assert np.array_equal(made, again)
