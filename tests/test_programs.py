"""A program of sums over a federation: the same law and the same bits as in one process; a site
agrees to the whole or to nothing, and no sum is had twice, out of turn, or for less noise."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from capemix import documents
from capemix.accounting.cost import together
from capemix.accounting.gaussian import gaussian_epsilon
from capemix.agent import Agent, SiteState
from capemix.collector import Engine, Origin
from capemix.data import LabeledRows, load_dataset, partition
from capemix.engines.flower import exchange as exchange_module
from capemix.engines.flower.app_folder import run_config
from capemix.engines.flower.coordinator_app import main
from capemix.engines.flower.envelope import pack, pack_refusal, unpack
from capemix.engines.flower.files import RELEASED, Outcome, plan_text, read_plan_file
from capemix.engines.flower.local import _permissive, run_on_loopback
from capemix.engines.in_process import InProcessEngine
from capemix.engines.local import LocalEngine
from capemix.errors import InputError
from capemix.facts import CLASS_SIZES, CLIP_NORM, RANGES, SCALES, Facts
from capemix.identity import load_identity, new_identity
from capemix.kernels import machine
from capemix.ledger import Account, Ledger, Limit
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.class_gaussian.estimate import CENTRE, CENTRES, SPREAD, SPREADS
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.mixing import MIXTURES, Mixing
from capemix.methods.projected import NORMS_OF
from capemix.methods.tables import Tables
from capemix.plan import Plan, make_plan
from capemix.protocol.agreement import public_bytes
from capemix.protocol.chunks import LEAST_CHUNK
from capemix.protocol.coordinator import Run
from capemix.protocol.policy import Policy
from capemix.protocol.roster import Member, Roster
from capemix.protocol.step import ReleaseStep
from capemix.protocol.wire import (
    COORDINATOR,
    Context,
    Message,
    ProtocolError,
    digest,
    parse,
    seal,
)
from capemix.queries import Relation
from capemix.randomness.source import SeededSource
from capemix.release import Release
from capemix.run import run as carry_out
from capemix.statistics.cells import CellCounts, Column, PairCounts
from capemix.statistics.histograms import ClassCounts, MeansAndSquares, ValueSizes
from capemix.statistics.moments import Moments, NormHistogram, Spreads
from capemix.statistics.projection import Projection
from capemix.sums import share as share_module
from capemix.sums.query import SumQuery
from capemix.sums.rows import ClippedRows, normalise_rows
from capemix.sums.share import prepare_records
from capemix.sums.statistic import _KINDS, Statistic
from capemix.sums.steps import ColumnMap, PublicMap
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


def facts_of(**changed: Any) -> Facts:
    return replace(Facts.of(some_rows(), normalise=WAY), **changed)


def a_plan(epsilon: float = 8.0, facts: Facts | None = None, **changed: Any) -> Plan:
    """Of a Gaussian for each class, with the classes' sizes to be counted."""
    asked: dict[str, Any] = {"scheme": "cape", "sites": SITES, "colluding": 1, "dropouts": 1}
    method = changed.pop("method", ClassGaussian(samples=60))
    return make_plan(facts or facts_of(), method, **{**asked, **changed}).calibrate(epsilon)


def mixing_plan(epsilon: float = 8.0, **changed: Any) -> Plan:
    """To mix rows of which neither sizes nor ranges are declared."""
    facts = facts_of(normalise=None)
    return a_plan(epsilon, facts, **{"method": Mixing(samples=60, mixture=8), **changed})


def local(plan: Plan, rows: list[LabeledRows] | None = None) -> Release:
    return carry_out(plan, LocalEngine(rows or parts(), SeededSource(SEED)))


class Watched:
    """An engine that keeps the sums that another one makes, and stops before the sum ``stop``."""

    def __init__(self, engine: Engine, stop: int | None = None) -> None:
        self.engine, self.stop = engine, stop
        self.sums: list[Any] = []

    def check(self, plan: Plan) -> None:
        self.engine.check(plan)

    def origin(self, plan: Plan) -> Origin:
        return self.engine.origin(plan)

    def list_classes(self, plan: Plan, query: SumQuery, failure: float) -> dict[str, float]:
        return self.engine.list_classes(plan, query, failure)

    def sum(self, plan: Plan, query: SumQuery) -> Any:
        if len(self.sums) == self.stop:
            raise Stopped(ReleaseStep(bytes(16), plan, query.name, query.summed))
        self.sums.append(np.array(self.engine.sum(plan, query)))
        return self.sums[-1]


class Stopped(Exception):
    @property
    def step(self) -> ReleaseStep:
        found: ReleaseStep = self.args[0]
        return found


def next_step(plan: Plan, engine: Engine, count: int) -> ReleaseStep:
    """Carry out ``count`` sums; what the next one would be."""
    with pytest.raises(Stopped) as stopped:
        carry_out(plan, Watched(engine, count))
    return stopped.value.step


def first_step(plan: Plan) -> ReleaseStep:
    return next_step(plan, LocalEngine(parts(), SeededSource(SEED)), 0)


# -- the protocol in one process -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "facts", "changed"),
    [
        (8.0, {}, {}),
        (0.3, {}, {}),
        (8.0, {"class_sizes": (300, 300)}, {"relation": "replace-one"}),
        (8.0, {}, {"masks": "gaussian"}),
        (8.0, {"normalise": None}, {}),
        (8.0, {"normalise": None, "class_sizes": (300, 300)}, {}),
        (8.0, {"normalise": None}, {"method": Mixing(samples=60, mixture=8)}),
        (8.0, {}, {"method": Mixing(samples=60, mixture=8, clip=1.0)}),
        (8.0, {}, {"method": Mixing(redraw=50, tune=True, clip=1.0)}),
    ],
)
def test_every_message_of_a_federation_gives_the_release_of_one_process(
    epsilon: float, facts: dict[str, Any], changed: dict[str, Any]
) -> None:
    plan, rows = a_plan(epsilon, facts_of(**facts), **changed), parts()
    ways = [Watched(way(rows, SeededSource(SEED))) for way in (InProcessEngine, LocalEngine)]
    found, one = (carry_out(plan, way) for way in ways)
    if isinstance(plan.method, ClassGaussian):
        assert (found.plan.chosen["rank"] > 0) == (epsilon == 8.0)
    assert found.plan == one.plan
    assert (found.plan.measured is None) == (not plan.opening)
    assert found.guarantee == one.guarantee
    if changed.get("masks") == "gaussian":  # masks leave rounding behind
        for ours, theirs in zip(*(way.sums for way in ways), strict=True):
            assert np.allclose(ours, theirs, atol=1e-6)
    else:
        assert found.features.tobytes() == one.features.tobytes()


def test_a_plan_comes_back_as_it_was_written() -> None:
    measured = carry_out(mixing_plan(), LocalEngine(parts(), SeededSource(SEED))).plan
    assert measured.measured is not None
    for plan in (
        measured,
        replace(
            a_plan(facts=facts_of(class_sizes=(9, 9)), masks="gaussian"),
            chosen={"rank": 3, "octave": 7},
        ),
        a_plan(relation="replace-one", method=ClassGaussian()),
        a_plan(
            facts=facts_of(normalise=ColumnMap((0.0,) * 5, (1.0,) * 5, (-4.0,) * 5, (4.0,) * 5))
        ),
    ):
        said = json.loads(json.dumps(documents.as_json(plan)))
        assert documents.from_json(Plan, said, name="the plan") == plan
    for inside, change in (
        ("facts", {"features": []}),
        ("facts", {"features": ["a", "a", "b", "c", "d"]}),
        (None, {"chosen": {"rank": 6, "octave": 7}}),
        (None, {"chosen": {"rank": True, "octave": 7}}),
        (None, {"chosen": {"rank": 1, "clusters": 2}}),
        (None, {"multiplier": -1.0}),
        (None, {"multiplier": 1e200}),
        (None, {"opening_multiplier": -1.0}),
        ("facts", {"class_sizes": [1.5, 2]}),
        ("facts", {"normalise": {"kind": "site-zscore"}}),
        (
            "facts",
            {"normalise": {"kind": "columns", "shift": [0], "scale": [1], "low": [0], "high": [1]}},
        ),
        (None, {"outline": []}),
        ("federation", {"sites": 0}),
        ("facts", {"classes": list(range(1001))}),
        ("method", {"kind": "another"}),
        (None, {"more": 1}),
    ):
        bent = said | change if inside is None else said | {inside: said[inside] | change}
        with pytest.raises(InputError):
            documents.from_json(Plan, bent, name="the plan")
    for nonsense in (None, [], {}, {"method": {"kind": "class-gaussian"}}):
        with pytest.raises(InputError):
            documents.from_json(Plan, nonsense, name="the plan")


# -- agents ----------------------------------------------------------------------------------------


def allowing(plan: Plan, **changed: Any) -> Policy:
    epsilon = plan.epsilon
    assert epsilon is not None
    limits: dict[str, Any] = {"max_epsilon": epsilon, "total_epsilon": epsilon}
    return Policy(**{**limits, "methods": (plan.method.kind,), **changed})


class Federation:
    """Agents with ledgers of their own, and a coordinator's identity: an engine."""

    def __init__(self, folder: Path, policy: Policy, rows: list[LabeledRows] | None = None) -> None:
        self.folder, rows = folder, rows or parts()
        names = ["coordinator", *(f"site{s}" for s in range(SITES))]
        keys = [load_identity(new_identity(name, folder / "keys")[0]) for name in names]
        members = [
            Member(name, public_bytes(key).hex()) for name, key in zip(names, keys, strict=True)
        ]
        self.coordinator, self.roster = keys[0], Roster(members[0], tuple(members[1:]))
        self.lineages = [Ledger.open(folder / f"{s}.db").lineage("rows") for s in range(SITES)]
        self.agents = [
            Agent(SiteState(s, keys[s + 1], self.roster, policy, each, self.lineages[s], SEED))
            for s, each in enumerate(rows)
        ]
        self.runs = 0
        self.release = bytes(16)

    def run(self, step: ReleaseStep) -> Run:
        self.runs += 1
        spool = self.folder / f"spool{self.runs}"
        spool.mkdir()
        return Run(
            step, self.roster, self.coordinator, self.runs.to_bytes(16, "big"), spool,
            chunk_bytes=LEAST_CHUNK,
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

    def check(self, plan: Plan) -> None: ...

    def origin(self, plan: Plan) -> Origin:  # noqa: ARG002
        return Origin(seeded=True, one_process=True)

    def list_classes(self, *_asked: object) -> dict[str, float]:
        raise AssertionError

    def sum(self, plan: Plan, query: SumQuery) -> Any:
        run = self.run(ReleaseStep(self.release, plan, query.name, query.summed))
        self.to(run)
        return run.release_sums()

    def answer(self, step: ReleaseStep) -> str | None:
        """Why site 0 declines or breaks off; None if it accepts. The coordinator signs whatever it
        is, though its own code would not propose it."""
        self.runs += 1
        run, roster, proposed = self.runs.to_bytes(16, "big"), self.roster.digest(), step.as_json()
        body = {"run": run.hex(), "roster": roster.hex(), "step": proposed}
        context = Context(run, roster, digest(proposed))
        raw = seal(context, self.coordinator, Message("plan", COORDINATOR, body))
        try:
            said = parse(self.agents[0].answer(raw)).body
        except ProtocolError as error:
            return str(error)
        return None if said["accept"] else f"declined: {said['reason']}"

    @property
    def charges(self) -> int:
        return self.lineages[0].account().total.charges

    @property
    def charged(self) -> list[str]:
        """What site 1 was charged for."""
        lines = [line.entry for line in self.lineages[1].ledger.lines()]
        return [entry["what"] for entry in lines if entry["kind"] == "charge"]


@pytest.mark.parametrize("epsilon", [0.3, 8.0])
def test_agents_give_the_release_and_charge_every_sum_within_the_limit(
    tmp_path: Path, epsilon: float
) -> None:
    """The limit is the release's own epsilon: one by one, all sums fit, and nothing more does."""
    plan = a_plan(epsilon)
    world = Federation(tmp_path, allowing(plan))
    found = carry_out(plan, world)
    assert found.features.tobytes() == local(plan).features.tobytes()
    first, *rest = (f"upload, site 1, {name}" for name in found.plan.names)
    at_once = ", and all sums after it" if plan.drawn else ""
    assert world.charged == [first + at_once, *rest]
    account = world.lineages[1].account()
    assert account.holds
    assert account.epsilon == pytest.approx(epsilon, rel=1e-3)
    said = world.answer(replace(first_step(plan), release=b"another release."))
    assert said is not None
    assert "overspent" in said


def test_each_upload_is_charged_before_it_is_made(tmp_path: Path) -> None:
    plan = a_plan()
    world = Federation(tmp_path, allowing(plan))
    counts = []

    class Counting(Watched):
        def sum(self, plan: Plan, query: SumQuery) -> Any:
            run = world.run(ReleaseStep(bytes(16), plan, query.name, query.summed))
            world.to(run, "upload")
            counts.append(world.charges)
            world.to(run)
            counts.append(world.charges)
            return run.release_sums()

    carry_out(plan, Counting(world))
    assert counts == [n // 2 for n in range(1, len(counts) + 1)]
    assert len(counts) == 2 * 11


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"methods": ("mixing",)}, "class-gaussian is not among the methods"),
        ({"methods": ()}, "class-gaussian is not among the methods"),
        ({"max_epsilon": 7.0}, "above 7 a run"),
        ({"max_delta": 1e-7}, "delta"),
        ({"total_epsilon": 7.5}, "the budget of 7.5 in all would be overspent"),
        ({"least_sites": 5}, "fewer than 5"),
        ({"columns": ("a", "b")}, "columns that are not allowed"),
        ({"classes": ("no",)}, "classes that are not allowed"),
        ({"real_arithmetic": True, "methods": ("mixing", "class-gaussian")}, None),
    ],
)
def test_a_policy_judges_the_whole_in_the_first_sum(
    tmp_path: Path, policy: dict[str, Any], says: str | None
) -> None:
    plan = a_plan()
    assert Policy().methods == ("mixing",)
    world = Federation(tmp_path, allowing(plan, **policy))
    said = world.answer(first_step(plan))
    assert (said is None) == (says is None)
    assert says is None or says in str(said)
    assert world.charges == 0


def test_a_policy_lists_methods_that_there_are() -> None:
    for known in (("mixing",), ("class-gaussian", "image-clusters"), ()):
        assert Policy(methods=known).methods == known
    for unknown in (("moments",), ("mixing", "")):
        with pytest.raises(InputError, match="policy methods must be a list of some of"):
            Policy(methods=unknown)


def test_a_site_that_allows_gaussians_only_mixes_nothing(tmp_path: Path) -> None:
    world = Federation(tmp_path, allowing(a_plan()))
    mixing = a_plan(1.0, facts_of(class_sizes=(300, 300)), method=Mixing(samples=10, mixture=4))
    assert "mixing is not among the methods" in str(world.answer(first_step(mixing)))


def test_a_later_sum_needs_the_earlier_ones(tmp_path: Path) -> None:
    world = Federation(tmp_path, allowing(a_plan()))
    step = next_step(a_plan(), LocalEngine(parts(), SeededSource(SEED)), 3)
    assert "not in the release's earlier sums" in str(world.answer(step))


def of(step: ReleaseStep, **changed: Any) -> ReleaseStep:
    """The same sum of another plan, also of one that nobody but a liar could make."""
    try:
        plan = replace(step.plan, **changed)
    except InputError:
        plan = object.__new__(Plan)
        for field in fields(Plan):
            value = changed.get(field.name, getattr(step.plan, field.name))
            object.__setattr__(plan, field.name, value)
    return replace(step, plan=plan)


def lying(change: str, step: ReleaseStep) -> ReleaseStep:
    """A proposal of the sum that is not quite what was agreed to."""
    plan, frame = step.plan, Projection(WAY, 5, 2)
    less = 0.9 * (plan.multiplier or 0.0)
    federation, facts = plan.federation, plan.facts
    found: dict[str, Callable[[], ReleaseStep]] = {
        "nothing": lambda: step,
        "less noise": lambda: of(step, multiplier=less),
        "more noise": lambda: of(step, multiplier=2 * (plan.multiplier or 0.0)),
        "a larger budget": lambda: of(step, epsilon=9.0, multiplier=less),
        "another delta": lambda: of(step, delta=1e-6),
        "an earlier sum": lambda: replace(step, name=CLASS_SIZES, statistic=ClassCounts(5, 2)),
        "a later sum": lambda: replace(
            step, name=CENTRES, statistic=Moments(frame, 1.0, (0.0, 1.0))
        ),
        "another rank": lambda: of(step, chosen={"rank": 0, "octave": 7}),
        "no rank": lambda: of(step, chosen=None),
        "another kind": lambda: replace(step, statistic=NormHistogram(frame)),
        "another map": lambda: replace(
            step,
            statistic=Moments(
                Projection(PublicMap.of_range(-1, 1), 5, 2), 1.0, (0.0, 1.0), apart=False
            ),
        ),
        "other classes": lambda: replace(
            step, statistic=Moments(Projection(WAY, 5, 1), 1.0, (0.0, 1.0), apart=False)
        ),
        "a larger bound": lambda: replace(
            step, statistic=Moments(frame, 1.0, (0.0, 1.001), apart=False)
        ),
        "a wider vector": lambda: replace(
            step, statistic=Moments(frame, 1.0, (0.6, 0.8), apart=False)
        ),
        "more groups": lambda: replace(step, statistic=Moments(frame, 1.0, (0.0, 1.0))),
        "fewer columns": lambda: replace(
            step,
            statistic=Moments(Projection(WAY, 4, 2), 1.0, (0.0, 1.0), apart=False),
        ),
        "rows": lambda: replace(step, statistic=ClippedRows(5, 1, WAY, 1.0)),
        "fewer honest sites": lambda: of(step, federation=replace(federation, dropouts=0)),
        "another method": lambda: of(step, method=ClassGaussian(samples=61)),
        "other facts": lambda: of(step, facts=replace(facts, normalise=PublicMap.of_range(-9, 9))),
        "another label": lambda: of(step, facts=replace(facts, label="z")),
        "declared sizes": lambda: of(step, facts=replace(facts, class_sizes=(3, 3))),
        "facts as if measured": lambda: of(step, measured=replace(facts, class_sizes=(3, 3))),
        "other columns as if measured": lambda: of(
            step, measured=replace(facts, features=("a", "b", "c", "d", "z"))
        ),
    }
    return found[change]()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("nothing", None),
        ("less noise", "not the release that was agreed to"),
        ("more noise", "not the release that was agreed to"),
        ("a larger budget", "not the release that was agreed to"),
        ("another delta", "not the release that was agreed to"),
        ("an earlier sum", "once each, in their order"),
        ("a later sum", "once each, in their order"),
        ("another rank", "what was chosen of the release cannot be changed"),
        ("no rank", "needs the method's choice to be made"),
        ("another kind", "something else than the release says"),
        ("another map", "in another way than the release"),
        ("other classes", "other classes than the release"),
        ("a larger bound", "something else than the release says"),
        ("a wider vector", "something else than the release says"),
        ("more groups", "something else than the release says"),
        ("fewer columns", "other columns than the release"),
        ("rows", "something else than the release says"),
        ("fewer honest sites", "not the release that was agreed to"),
        ("another method", "not the release that was agreed to"),
        ("other facts", "in another way than the release"),
        ("another label", "not the release that was agreed to"),
        ("declared sizes", "not the release that was agreed to"),
        ("facts as if measured", "must be the declared facts with those"),
        ("other columns as if measured", "must be the declared facts with those"),
    ],
)
def test_a_sum_that_is_not_the_next_one_agreed_to_is_declined(
    tmp_path: Path, change: str, says: str | None
) -> None:
    plan = a_plan()
    world = Federation(tmp_path, allowing(plan, max_epsilon=20.0))
    step = next_step(plan, world, 2)
    assert (step.name, (step.plan.chosen or {})["rank"]) == (CENTRE, 5)
    before = world.charges
    said = world.answer(lying(change, step))
    assert (said is None) == (says is None)
    assert says is None or says in str(said)
    assert world.charges == before == 2


def test_a_sum_in_more_directions_than_there_are_columns_is_declined(tmp_path: Path) -> None:
    plan = a_plan()
    world = Federation(tmp_path, allowing(plan))
    step = next_step(plan, world, 1)
    assert step.name == NORMS_OF.format(CENTRE)
    wide = NormHistogram(Projection(WAY, 5, 2, basis=np.ones((5, 6))))
    assert "more directions than there are columns" in str(
        world.answer(replace(step, statistic=wide))
    )
    assert world.answer(step) is None


def test_a_sum_that_depends_on_the_choice_needs_it(tmp_path: Path) -> None:
    """Where sizes are declared, the shares of all sums go by the choice that they lead to."""
    plan = a_plan(facts=facts_of(class_sizes=(300, 300)))
    world = Federation(tmp_path, allowing(plan))
    says = "needs the method's choice to be made"
    for count, name in enumerate(plan.names[:6]):
        step = next_step(plan, LocalEngine(parts(), SeededSource(SEED)), count)
        assert step.name == name
        assert says in str(world.answer(of(step, chosen=None)))
        assert says not in str(world.answer(step))


def test_a_choice_that_would_have_made_earlier_sums_noisier_is_declined() -> None:
    """The centre's share is the same for all extremes of the choice, and for others it is not: to
    have it with one share and the rest as if it had another is more than the whole."""
    listed, columns = tuple(range(1000)), tuple(f"c{place}" for place in range(36))
    plan = a_plan(facts=Facts(columns, "y", listed, normalise=WAY), method=ClassGaussian())
    at = plan.names.index(CENTRE)
    known = replace(ReleaseStep.first_of(plan), name=plan.names[at])
    for octave, says in ((10, None), (40, "would have had other noise")):
        step = replace(known, name=plan.names[at + 1])
        said = of(step, chosen={"rank": 0, "octave": octave}).follows(known)
        assert said is None if says is None else says in str(said)


def test_another_release_under_a_known_name_is_declined(tmp_path: Path) -> None:
    plan = a_plan(4.0)
    world = Federation(tmp_path, allowing(a_plan(8.0)))
    next_step(plan, world, 1)
    other = replace(plan, method=ClassGaussian(samples=61))
    step = next_step(other, LocalEngine(parts(), SeededSource(SEED)), 1)
    assert "not the release that was agreed to" in str(world.answer(step))


def test_one_sum_agreed_to_twice_is_uploaded_and_charged_once(tmp_path: Path) -> None:
    plan = a_plan()
    world = Federation(tmp_path, allowing(plan))
    step = next_step(plan, world, 1)
    runs = [world.run(step) for _ in range(2)]
    for run in runs:
        world.to(run, "upload")
    world.to(runs[0])
    before = world.charges
    for site, raw in runs[1].requests():
        with pytest.raises(ProtocolError, match="once each"):
            world.agents[site].answer(raw)
    assert world.charges == before == 2


def test_a_sum_whose_budget_went_elsewhere_is_declined(tmp_path: Path) -> None:
    plan = a_plan()
    world = Federation(tmp_path, allowing(plan))
    step = next_step(plan, world, 3)
    (cost,) = a_plan(1.0).costs(Relation.ADD_REMOVE)
    world.lineages[0].charge("something else", cost)
    assert "overspent" in str(world.answer(step))


def test_what_an_agent_says_to_a_sum_does_not_depend_on_its_rows(tmp_path: Path) -> None:
    """Not even on how many there are: a site that declined for their number would tell it."""
    for number, plan in enumerate((a_plan(), mixing_plan())):
        step, said = first_step(plan), []
        for fill in (600, 0):
            world = Federation(tmp_path / f"{number} {fill}", allowing(plan))
            kept = replace(world.agents[0]._state, rows=some_rows().take(np.arange(fill)))
            world.agents[0]._state = kept
            said.append(world.answer(step))
        assert said == [None, None]


def test_steps_that_were_not_written_by_us_are_refused() -> None:
    good = first_step(a_plan()).as_json()
    assert ReleaseStep.from_json(good).as_json() == good
    for bad in (
        [],
        {},
        good | {"more": 1},
        good | {"sum": "another"},
        good | {"sum": ["class sizes"]},
        good | {"release": "00"},
        good | {"release": 7},
        good | {"plan": None},
        good | {"plan": good["plan"] | {"multiplier": None}},
        good | {"statistic": None},
        good | {"statistic": {"kind": "another"}},
        good | {"statistic": good["statistic"] | {"more": 1}},
    ):
        with pytest.raises((ProtocolError, InputError)):
            ReleaseStep.from_json(bad)
    uncalibrated = documents.as_json(mixing_plan()) | {"opening_multiplier": None}
    with pytest.raises(ProtocolError, match="calibrated"):
        ReleaseStep.from_json(good | {"plan": uncalibrated})


# -- what a site works out itself ------------------------------------------------------------------


def rows_step(**changed: Any) -> ReleaseStep:
    method = changed.pop("method", Mixing(samples=20, mixture=8, clip=1.0))
    facts = facts_of(class_sizes=(300, 300))
    return first_step(a_plan(1.0, facts, method=method, **changed))


def test_the_noise_rates_groups_and_bounds_of_a_sum_are_the_plans_alone() -> None:
    """A proposal has no place for any of them, and a site's query is the plan's own."""
    step = rows_step()
    proposed = step.as_json()
    assert set(proposed) == {"release", "plan", "sum", "statistic"}
    assert "outline" not in proposed["plan"]
    assert "noise_multiplier" not in json.dumps(proposed)
    found = ReleaseStep.from_json(json.loads(json.dumps(proposed)))
    assert found.query == step.plan.query(MIXTURES, step.statistic)
    assert found.misfit() is None
    (line,) = step.plan.body
    assert found.query.line == line
    assert [p.probability for p in found.query.participation] == [8 / 300] * 2
    for name in ("participation", "noise_multiplier", "l2_norm_bound", "line"):
        for inside in ("plan", None):
            bent = proposed | {name: 1}
            if inside is not None:
                bent = proposed | {inside: proposed[inside] | {name: 1}}
            with pytest.raises((ProtocolError, InputError)):
                ReleaseStep.from_json(bent)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"clip": 0.5}, "something else"),
        ({"clip": 1.0 + 1e-9}, "something else"),
        ({"clip": 2.0}, "something else"),
        ({"clip": -1.0}, "a positive norm"),
        ({"clip": -1e6}, "a positive norm"),
        ({"clip": 0.0}, "a positive norm"),
        ({"label_columns": True}, "something else"),
        ({"one_pool": True}, "something else"),
        ({"classes": 3}, "something else"),
        ({"columns": 4}, "other columns"),
        ({"normalise": PublicMap()}, "in another way"),
    ],
)
@pytest.mark.parametrize("masks", ["ring", "gaussian"])
def test_rows_are_clipped_as_the_plan_says_or_not_at_all(
    change: dict[str, Any], says: str | None, masks: str
) -> None:
    step = rows_step(masks=masks)
    bent = json.loads(json.dumps(step.as_json()))
    bent["statistic"] |= documents.as_json(change)
    try:
        found = ReleaseStep.from_json(bent).misfit()
    except ProtocolError as error:
        found = str(error)
    assert (found is None) == (says is None)
    assert says is None or says in str(found)


def test_a_bound_below_nothing_would_let_rows_through_at_full_length() -> None:
    """The wrong law: why a bound must be above 0. In real arithmetic nothing else would notice."""
    step = rows_step(masks="gaussian")
    longer = replace(step.statistic)  # type: ignore[type-var]
    object.__setattr__(longer, "clip", -1e6)  # as if nothing checked it
    forged = replace(step, statistic=longer)
    rows = some_rows()
    made = longer.rows_by_group(rows.features, rows.labels, None)
    assert max(np.linalg.norm(part, axis=1).max() for part in made.by_group) > 1e5
    assert forged.misfit() is not None


def test_no_statistic_that_looks_at_several_records_reaches_a_site() -> None:
    """Rows by a site's own mean and deviation are known to the paper's accountant in one process;
    no message can carry them."""
    step = rows_step()
    rows = documents.as_json(step.statistic)
    for kind in ("z-scored rows", "class list", "rows by rank"):
        for said in ({"kind": kind}, {"kind": kind, "rows": rows}, rows | {"kind": kind}):
            with pytest.raises(ProtocolError):
                ReleaseStep.from_json(step.as_json() | {"statistic": said})
    for way in ({"kind": "site-zscore"}, None):
        with pytest.raises(ProtocolError):
            ReleaseStep.from_json(step.as_json() | {"statistic": rows | {"normalise": way}})


def test_what_each_kind_of_statistic_adds_is_a_function_of_each_record_alone() -> None:
    """Of every kind that a message can carry: what two parts of the rows add is the whole's."""
    frame, rows = Projection(WAY, 5, 2), some_rows()
    asked: tuple[Statistic, ...] = (
        ClippedRows(5, 2, WAY, 1.0),
        ClassCounts(5, 2),
        ValueSizes(5),
        MeansAndSquares(5, WAY),
        CellCounts(5, 2, (Column(0, (0.0,)), Column(4))),
        PairCounts(5, 2, (Column(0), Column(4)), (Column(0, (0.0,)), Column(4)), (2, 1), (2, 1)),
        Moments(frame, 1.0, (0.6, 0.8)),
        Spreads(frame, 1.0),
        NormHistogram(frame),
    )
    kinds = {each.kind for each in asked}  # type: ignore[attr-defined]
    # The head of images is held to it in test_statistics, gradients in test_image_diffusion.
    assert kinds | {"head"} == set(_KINDS) - {"denoising gradients"}
    for each in asked:
        sums = []
        for part in (slice(None), slice(0, 250), slice(250, None)):
            sums.append(np.zeros((each.groups, each.width), dtype=np.int64))
            each.add_to(sums[-1], rows.features[part], rows.labels[part], 1000)
        assert np.array_equal(sums[0], sums[1] + sums[2])


# -- facts that are measured -----------------------------------------------------------------------


@pytest.mark.parametrize("method", [Mixing(samples=60, mixture=8), ClassGaussian(samples=60)])
@pytest.mark.parametrize("epsilon", [0.3, 8.0])
def test_agents_measure_what_nobody_declared_within_the_limit(
    tmp_path: Path, method: Any, epsilon: float
) -> None:
    """Neither sizes nor ranges are declared, and the limit of every site is the plan's epsilon."""
    plan = mixing_plan(epsilon, method=method)
    world = Federation(tmp_path, allowing(plan))
    found = carry_out(plan, world)
    one = local(plan)
    assert found.features.tobytes() == one.features.tobytes()
    assert found.plan == one.plan
    assert found.guarantee == one.guarantee
    assert found.plan.measured is not None
    assert found.plan.measured.class_sizes is not None
    opened = [CLASS_SIZES, RANGES, SCALES, *([CLIP_NORM] if method.kind == "mixing" else [])]
    assert list(found.plan.names[: len(opened)]) == opened
    first, *rest = (f"upload, site 1, {name}" for name in found.plan.names)
    at_once = ", and all sums after it" if plan.drawn else ""
    assert world.charged == [first + at_once, *rest]
    account = world.lineages[1].account()
    assert account.holds
    assert 0.5 * epsilon < account.epsilon <= epsilon * (1 + 1e-9)
    said = world.answer(replace(first_step(plan), release=b"another release."))
    assert "overspent" in str(said)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("sizes", [(8, 8), (30, 30), (300, 300), (10, 5000), (20_000, 20_000)])
def test_a_limit_of_the_plans_epsilon_pays_whatever_sizes_are_found(
    epsilon: float, ranges: bool, sizes: tuple[int, int]
) -> None:
    """What is paid for the opening sums and for the draws cannot both wait for the sizes."""
    plan = mixing_plan(epsilon)
    if ranges:
        plan = a_plan(epsilon, method=Mixing(samples=60, mixture=8, clip=1.0))
    way = ColumnMap((0.0,) * 5, (1.0,) * 5, (-4.0,) * 5, (4.0,) * 5)
    known = replace(plan.facts, class_sizes=sizes, normalise=plan.facts.normalise or way)
    later = replace(plan, measured=replace(known, clip_norm=None if ranges else 2.0)).settled()
    account, at_once = Account(Limit(epsilon, plan.delta)), False
    for name in plan.names:
        step = ReleaseStep(bytes(16), later if name == MIXTURES else plan, name, ClassCounts(5, 2))
        step = replace(step, paid=at_once)
        assert step.fits(account)
        costs, instead = step.costs(Relation.ADD_REMOVE), step.cost_alone(Relation.ADD_REMOVE)
        admitted = account.admit(costs[0], whole=together(costs), instead=instead)
        assert admitted is not None
        account = admitted[0]
        at_once = at_once or admitted[2] is instead
    assert account.holds
    assert at_once  # all of it with the first sum
    assert account.total.epsilon == epsilon
    assert not first_step(plan).fits(account)


def test_the_whole_opening_is_paid_for_before_its_first_upload(tmp_path: Path) -> None:
    """Whoever stops after the first sum has paid for all that open the release; and where the limit
    has room for no more than the release, for all of it."""
    plan = mixing_plan(1.0)
    world = Federation(tmp_path, allowing(plan))
    next_step(plan, world, 1)
    total = world.lineages[0].account().total
    assert (total.charges, total.epsilon) == (1, 1.0)
    other = Federation(tmp_path / "other", allowing(plan))
    next_step(plan, other, 3)
    total = other.lineages[0].account().total
    assert (total.charges, total.epsilon) == (3, 1.0)


def lying_about_facts(change: str, step: ReleaseStep) -> ReleaseStep:
    """A proposal of the mixtures, once sizes and ranges are measured."""
    plan, known, noise = step.plan, step.plan.measured, step.plan.multiplier
    assert known is not None
    assert noise is not None
    other = replace(known, class_sizes=(5000, 5000))

    def settled(facts: Facts, **changed: Any) -> ReleaseStep:
        planned = replace(plan, measured=facts, **changed).settled()
        assert isinstance(planned.method, Mixing)
        return replace(step, plan=planned, statistic=planned.method.statistic(planned))

    found: dict[str, Callable[[], ReleaseStep]] = {
        "nothing": lambda: step,
        "more noise": lambda: of(step, multiplier=1.1 * noise),
        "less noise": lambda: of(step, multiplier=0.9 * noise),
        "a little less noise": lambda: of(step, multiplier=0.99 * noise),
        "less noise by other sizes": lambda: of(
            step, measured=known, multiplier=settled(other).plan.multiplier
        ),
        "noise of a larger budget": lambda: settled(known, epsilon=2.0),
        "less noise in the opening": lambda: of(step, opening_multiplier=0.1),
        "other columns": lambda: of(step, measured=replace(known, features=tuple("abcdz"))),
        "other classes": lambda: of(step, measured=replace(known, classes=("no", "maybe"))),
        "another label": lambda: of(step, measured=replace(known, label="z")),
        "nothing measured": lambda: of(step, measured=None),
        "a method": lambda: settled(known, method=Mixing(samples=61, mixture=8)),
        "a mixture": lambda: settled(known, method=Mixing(samples=60, mixture=2)),
    }
    return found[change]()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("nothing", None),
        ("more noise", None),
        ("less noise", "the plan gives no privacy"),
        ("a little less noise", "the plan gives no privacy"),
        ("less noise by other sizes", "the plan gives no privacy"),
        ("noise of a larger budget", "not the release that was agreed to"),
        ("less noise in the opening", "not the release that was agreed to"),
        ("other columns", "must be the declared facts with those"),
        ("other classes", "must be the declared facts with those"),
        ("another label", "must be the declared facts with those"),
        ("nothing measured", "needs the facts to be measured first"),
        ("a method", "not the release that was agreed to"),
        ("a mixture", "not the release that was agreed to"),
    ],
)
def test_the_noise_after_measured_facts_keeps_the_plans_epsilon_or_is_declined(
    tmp_path: Path, change: str, says: str | None
) -> None:
    plan = mixing_plan(1.0)
    world = Federation(tmp_path, allowing(plan, max_epsilon=20.0, total_epsilon=20.0))
    step = next_step(plan, world, 4)
    assert step.name == MIXTURES
    assert step.plan.multiplier != plan.multiplier
    said = world.answer(lying_about_facts(change, step))
    assert (said is None) == (says is None)
    assert says is None or says in str(said)
    assert world.charges == 4


def test_facts_that_were_measured_cannot_be_measured_again(tmp_path: Path) -> None:
    """Of a method with sums after them; and between opening sums that were told of them early."""
    plan = mixing_plan(8.0, method=ClassGaussian(samples=60))
    world = Federation(tmp_path / "later", allowing(plan))
    step = next_step(plan, world, 4)
    assert step.plan.measured is not None
    other = replace(step.plan.measured, class_sizes=(299, 299))
    assert world.answer(of(step, measured=other)) == (
        "declined: what was measured of the release cannot be changed"
    )
    assert world.answer(step) is None
    plan = mixing_plan(1.0)
    way = ColumnMap((0.0,) * 5, (1.0,) * 5, (-4.0,) * 5, (4.0,) * 5)
    early = replace(plan.facts, class_sizes=(300, 300), normalise=way, clip_norm=2.0)
    world = Federation(tmp_path / "early", allowing(plan))
    step = first_step(plan)
    told = replace(step, plan=replace(plan, measured=early).settled())
    world.to(world.run(told))
    second = replace(told, name=RANGES, statistic=ValueSizes(5))
    other = replace(plan, measured=replace(early, class_sizes=(30_000, 30_000))).settled()
    for later in (plan, other):
        said = world.answer(replace(second, plan=later))
        assert "what was measured of the release cannot be changed" in str(said)
    assert world.answer(second) is None


def test_a_policy_of_columns_holds_for_what_is_said_to_be_measured(tmp_path: Path) -> None:
    """A plan for columns that are allowed, and measured facts that name one that is not."""
    rows = [replace(each, feature_names=("a", "b", "c", "d", "secret")) for each in parts()]
    plan = make_plan(
        Facts(features=("a", "b"), label="y", classes=("no", "yes"), normalise=WAY),
        Mixing(samples=60, mixture=8, clip=1.0),
        scheme="cape",
        sites=SITES,
        dropouts=1,
    ).calibrate(1.0)
    world = Federation(tmp_path, allowing(plan, columns=("a", "b")), rows)
    asked = ReleaseStep(bytes(16), plan, CLASS_SIZES, ClassCounts(2, 2))
    world.to(world.run(asked))
    honest = replace(plan, measured=replace(plan.facts, class_sizes=(300, 300))).settled()
    assert isinstance(honest.method, Mixing)
    step = ReleaseStep(bytes(16), honest, MIXTURES, honest.method.statistic(honest))
    known = replace(plan.facts, features=("a", "secret"), class_sizes=(300, 300))
    said = world.answer(of(step, measured=known))
    assert "must be the declared facts with those" in str(said)
    assert world.answer(step) is None


def test_a_policys_epsilon_is_in_its_own_relation(tmp_path: Path) -> None:
    """What costs 1 for a record that is added may cost 2 for one that is replaced."""
    plan = a_plan(1.0)
    allowed = allowing(plan, max_epsilon=1.0, total_epsilon=20.0)
    assert Federation(tmp_path / "same", allowed).answer(first_step(plan)) is None
    other = replace(allowed, relation=Relation.REPLACE_ONE)
    said = Federation(tmp_path / "other", other).answer(first_step(plan))
    assert "is above 1 a run" in str(said)


def test_a_trials_policy_pays_for_facts_that_are_measured(tmp_path: Path) -> None:
    for number, plan in enumerate((mixing_plan(0.5), a_plan(0.5))):
        world = Federation(tmp_path / str(number), _permissive(plan))
        assert carry_out(plan, world).features.tobytes() == local(plan).features.tobytes()


def test_a_tuned_method_is_held_to_what_the_sizes_make_of_it(tmp_path: Path) -> None:
    plan = a_plan(1.0, method=Mixing(redraw=50, tune=True, clip=1.0))
    world = Federation(tmp_path, allowing(plan))
    step = next_step(plan, world, 1)
    tuned = step.plan.method
    assert isinstance(tuned, Mixing)
    assert not tuned.tune
    other = replace(step.plan, method=replace(tuned, samples=2 * tuned.draws(step.plan)[0] + 20))
    said = world.answer(replace(step, plan=other.settled()))
    assert "not the release that was agreed to" in str(said)
    assert world.answer(step) is None


# -- what a site holds and adds up -----------------------------------------------------------------


def sums_of(asked: Statistic, features: Any, labels: Any, lattice: int | None) -> Any:
    """What records add to a statistic's sums, before noise."""
    sums = np.zeros((asked.groups, asked.width), dtype=np.float64 if lattice is None else np.int64)
    asked.add_to(sums, features, labels, lattice)
    return sums


@pytest.mark.parametrize("lattice", [None, 1000])
@pytest.mark.parametrize("size", [1e-300, 1e300])
@pytest.mark.parametrize("clip", [1e-100, 1.0, 1e300])
def test_no_numbers_in_a_sum_can_stop_a_site(lattice: int | None, size: float, clip: float) -> None:
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
        assert np.isfinite(sums_of(asked, rows.features, rows.labels, lattice)).all()


def test_a_frame_of_another_width_is_refused() -> None:
    with pytest.raises(InputError, match="parts of different sizes"):
        Projection(ColumnMap((0.0,) * 3, (1.0,) * 3, (0.0,) * 3, (1.0,) * 3), 5, 2)


def test_memory_does_not_grow_with_a_sites_rows() -> None:
    asked = Spreads(Projection(PublicMap(), 60, 1), 1.0, apart=False)
    peaks = []
    for count in (40_000, 120_000):
        rows, labels = np.ones((count, 60)), np.zeros(count, dtype=np.int64)
        tracemalloc.start()
        sums_of(asked, rows, labels, 100)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] < 250e6


def most_numbers(plan: Plan) -> int:
    return max(line.width * line.groups for line in plan.body)


def test_the_largest_plan_keeps_a_sum_small() -> None:
    def asked(width: int, classes: int, method: Any, **known: Any) -> Plan:
        names = tuple(f"column {place}" for place in range(width))
        facts = Facts(names, "y", tuple(range(classes)), normalise=PublicMap.of_range(0, 255))
        who = {"scheme": "cape", "sites": SITES}
        return make_plan(replace(facts, **known), method, **who).calibrate(1.0)

    plan = asked(250, 1000, ClassGaussian())
    assert 8 * most_numbers(plan) < 34e6
    images = ImageClusters(soft_labels=True, deskew=True)
    plan = asked(784, 100, images, image_shape=(28, 28))
    assert 120e6 < 8 * most_numbers(plan) < 121e6
    with pytest.raises(InputError, match="at most 1000 classes"):
        asked(2, 1001, ClassGaussian())


# -- the budget ------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 20.0])
def test_sums_one_by_one_fit_the_limit_that_the_whole_fits(epsilon: float) -> None:
    plan = a_plan(epsilon)
    guarantee = plan.guarantee()
    assert guarantee.epsilon is not None
    for choice in plan.method.choices(plan):
        chosen = replace(plan, chosen=choice)
        costs = chosen.costs_from(chosen.names[0], plan.relation)
        assert len(costs) == len(chosen.names)
        whole = together(costs)
        (all_sums,) = chosen.costs() if choice == plan.method.choices(plan)[-1] else [None]
        if all_sums is not None:
            for order, cost in all_sums.curve.items():
                assert whole.curve[order] == pytest.approx(cost, rel=1e-9)
        assert Account(Limit(guarantee.epsilon, guarantee.delta)).admits(costs)
        less = Account(Limit(0.98 * guarantee.epsilon, guarantee.delta))
        assert not less.admits(costs)


def test_a_site_agrees_to_no_sum_whose_release_its_limit_may_not_pay_for_after_a_choice() -> None:
    """Where records are replaced, Gaussians cost more of a plan for added ones than pairs do."""
    plan = a_plan(1.0, method=Tables(samples=60))
    assert plan.chosen is None
    costs = [
        together(replace(plan, chosen=choice).costs_from(CLASS_SIZES, Relation.REPLACE_ONE))
        for choice in plan.method.choices(plan)
    ]
    least, *_, most = sorted((cost.squared or 0.0) ** -0.5 for cost in costs)[::-1]
    assert most < 0.9 * least
    limits = [gaussian_epsilon(noise, plan.delta) * 1.01 for noise in (least, most)]
    step = ReleaseStep.first_of(plan)
    for limit, fits in zip(limits, (False, True), strict=True):
        assert step.fits(Account(Limit(limit, plan.delta, Relation.REPLACE_ONE))) is fits


def test_the_order_is_the_wholes_from_the_first_sum_on(tmp_path: Path) -> None:
    plan = a_plan(1.0)
    costs = plan.costs_from(plan.names[0], plan.relation)
    lineage = Ledger.open(tmp_path / "ledger.db").lineage("rows")
    lineage.set_limit(Limit(1.0, 1e-5))
    whole = lineage.account().admit(together(costs))
    assert whole is not None
    for cost in costs:
        lineage.charge("sum", cost, whole=together(costs))
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
        plan: Plan,
        lose: Callable[[int, int], bool],
        rows: list[LabeledRows] | None = None,
    ) -> tuple[Path, AgentsGrid]:
        world = Federation(tmp_path / "world", allowing(plan), rows)
        (tmp_path / "plan.json").write_text(plan_text(plan))
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


def test_the_coordinator_takes_one_sum_after_the_other_and_writes_the_release(
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
    assert sums[::7] == list(replace(plan, chosen={"rank": 5, "octave": 7}).names)
    assert [done.number for done in outcome.rounds] == [1, 2, 3, 4, 5, 6, 7] * 11
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["plan"]["chosen"]["rank"] == 5
    assert "X25519" in " ".join(manifest["guarantee"]["assumptions"])
    assert not list(out.parent.glob(".out.unfinished*"))


def test_the_coordinator_measures_what_nobody_declared(
    coordinated: Callable[..., Any], tmp_path: Path
) -> None:
    plan = mixing_plan(1.0)
    out, _ = coordinated(plan, lambda _site, _asked: False)
    local(plan).save(tmp_path / "local")
    ours, theirs = ((folder / "synthetic.parquet") for folder in (out, tmp_path / "local"))
    assert ours.read_bytes() == theirs.read_bytes()
    outcome = Outcome.read(out)
    assert outcome is not None
    assert [done.sum for done in outcome.rounds[::7]] == [
        CLASS_SIZES, RANGES, SCALES, CLIP_NORM, MIXTURES,
    ]  # fmt: skip
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["plan"]["facts"]["class_sizes"] is None
    assert len(manifest["plan"]["measured"]["class_sizes"]) == 2
    assert manifest["guarantee"]["epsilon"] <= 1.0


def test_a_site_lost_in_one_sum_is_out_of_those_that_follow(
    coordinated: Callable[..., Any],
) -> None:
    """After 20 messages, that is in its third sum, site 2 is silent."""
    out, grid = coordinated(a_plan(), lambda site, asked: site == 2 and asked >= 20)
    outcome = Outcome.read(out)
    assert outcome is not None
    assert outcome.status == RELEASED
    assert outcome.included == [0, 1, 3]
    assert set(outcome.lost) == {"2"}
    assert sum(bool(done.lost) for done in outcome.rounds if done.round != "plan") == 1
    assert sum(site == 2 for site, _ in grid.sent.values()) == 21  # asked, and not again
    assert [line.lost for line in outcome.rounds[21::7]] == [(2,)] * 8


def test_with_more_sites_lost_than_allowed_in_all_nothing_is_released(
    coordinated: Callable[..., Any], tmp_path: Path
) -> None:
    """One after the other: each round by itself would have enough."""
    with pytest.raises(ProtocolError, match="2 of 4 sites are left"):
        coordinated(
            a_plan(), lambda site, asked: (site == 2 and asked >= 20) or (site == 1 and asked >= 44)
        )
    outcome = Outcome.read(tmp_path / "out")
    assert outcome is not None
    assert outcome.status == "ended"
    assert set(outcome.lost) == {"1", "2"}
    assert not (tmp_path / "out").exists()


def test_a_coordinator_without_the_memory_for_the_rows_asks_no_site(
    coordinated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "memory", lambda: 1e6)
    plan = a_plan(method=ClassGaussian(samples=5_001))
    with pytest.raises(InputError, match="samples asks for more rows"):
        coordinated(plan, lambda _site, _asked: pytest.fail("a site was asked"))
    assert not (tmp_path / "out").exists()


# -- Flower ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "known"),
    [
        (ClassGaussian(samples=200), {"normalise": PublicMap.of_range(0, 16)}),
        (Mixing(samples=200, mixture=8), {}),
    ],
)
def test_sums_through_flower_give_the_bytes_of_one_process(
    tmp_path: Path, method: Any, known: dict[str, Any]
) -> None:
    """Digits, simulated: counted classes and a spread for each, every sum there is; and mixtures of
    which neither sizes nor ranges are declared."""
    train, _ = load_dataset("digits")
    rows = partition(train, SITES, "stratified", seed=SEED)
    facts = Facts.of(train, **known)
    plan = make_plan(facts, method, scheme="cape", sites=SITES, dropouts=1).calibrate(10.0)
    outcome = run_on_loopback(
        plan, rows, tmp_path / "out", engine="simulation", test_seed=SEED, round_seconds=60.0
    )
    assert outcome.included == [0, 1, 2, 3]
    one = local(plan, rows)
    one.save(tmp_path / "local")
    named = list(one.plan.names)
    assert named[0] == CLASS_SIZES
    if known:
        assert named[-2:] == [NORMS_OF.format(SPREADS), SPREADS]
        assert SPREAD in named
    else:
        assert named == [CLASS_SIZES, RANGES, SCALES, CLIP_NORM, MIXTURES]
    assert [done.sum for done in outcome.rounds[::7]] == named
    ours, theirs = ((tmp_path / name / "synthetic.parquet") for name in ("out", "local"))
    assert ours.read_bytes() == theirs.read_bytes()


# -- commands --------------------------------------------------------------------------------------


def test_a_plan_of_gaussians_is_written_checked_and_set_up(
    capemix: Capemix, tmp_path: Path
) -> None:
    words = ("federate", "plan", "--method", "class-gaussian", "--epsilon", 3, "--sites", 4)
    words += ("--label", "y", "--classes", "no,yes", "--features", "a,b", "--public-range", "0,9")
    words += ("--out", tmp_path / "plan.json")
    assert capemix(*words, "--json").json["epsilon"] == pytest.approx(3, rel=1e-3)
    plan = read_plan_file(tmp_path / "plan.json")
    assert plan.method == ClassGaussian()
    assert (plan.facts.class_sizes, plan.facts.features) == (None, ("a", "b"))
    sizes = capemix(*words, "--class-sizes", "50,60", "--samples", 30, "--json")
    assert sizes.code == 0
    plan = read_plan_file(tmp_path / "plan.json")
    assert plan.method == ClassGaussian(samples=30)
    assert plan.facts.class_sizes == (50, 60)
    for bad in (("--mixture", 4), ("--clip", 1.0)):
        ran = capemix(*words, *bad)
        assert ran.code == 2
        assert bad[0] in ran.err
    assert capemix(*words, "--method", "mixing").code == 0  # sizes are measured
    assert read_plan_file(tmp_path / "plan.json").opening
    assert capemix(*words).code == 0
    table = tmp_path / "rows.csv"
    table.write_text("a,b,y\n" + "1,2,yes\n3,4,no\n5,6,unsure\n" * 5)
    asked = ("site", "check", "--data", table, "--label", "y", "--plan", tmp_path / "plan.json")
    assert capemix(*asked, "--json").json["used"] == 10
    init = ("federate", "init", tmp_path / "fed", "--plan", tmp_path / "plan.json")
    assert capemix(*init).code == 0
    policy = documents.read(Policy, tmp_path / "fed" / "policy.json", name="policy")
    assert policy.methods == ("class-gaussian",)


# -- what a refusal would tell ---------------------------------------------------------------------


def test_rows_that_cannot_be_made_ready_are_counted_as_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever went wrong depends on the rows: whoever asks sees an upload like any other."""
    rows = some_rows()
    query = a_plan().query(CLASS_SIZES, ClassCounts(5, 2))
    whole: Any = prepare_records(query, rows.features, rows.labels)
    assert whole.sums.sum() > 0
    real = share_module.prepare_site

    def stumbling(query: SumQuery, features: Any, labels: Any) -> Any:
        if len(features):
            raise IndexError(f"a private value: {features[0, 0]}")
        return real(query, features, labels)

    monkeypatch.setattr(share_module, "prepare_site", stumbling)
    none: Any = prepare_records(query, rows.features, rows.labels)
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
        made, again = (
            sums_of(Spreads(frame, 1.0), each, labels, 50) for each in (rows, rows.copy())
        )
        assert np.array_equal(made, again)
