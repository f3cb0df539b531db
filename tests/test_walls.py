"""The walls of the house: a method and an engine of somebody else's, each in a few lines of this
file, do all that the built-in ones do; and how many files one has to read to follow a release."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from agents import AgentsEngine, allowing
from capemix import documents
from capemix.api import Synthesizer
from capemix.collector import Origin
from capemix.data import LabeledRows, load_dataset, partition
from capemix.data.rows import pixel_names
from capemix.engines.in_process import InProcessEngine
from capemix.engines.local import LocalEngine
from capemix.errors import BudgetError, InputError
from capemix.evaluate import preparation_of, train_and_test
from capemix.facts import Facts
from capemix.federation import Scheme
from capemix.guarantee import Status
from capemix.ledger import Ledger, Limit
from capemix.methods import BUILT_IN, Method, SyntheticRows, method
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.image_diffusion import ImageDiffusion
from capemix.methods.mixing import Mixing, Pool
from capemix.methods.tables import Tables
from capemix.plan import Plan, make_plan
from capemix.protocol.step import ReleaseStep
from capemix.queries import QueryShape
from capemix.randomness.source import SeededSource, Source, SystemSource
from capemix.release import read_release
from capemix.run import run
from capemix.sums.aggregate import Aggregate
from capemix.sums.query import SumQuery
from capemix.sums.rows import ClippedRows, denormalise_rows
from capemix.sums.share import SourceDraws, prepare_records, site_share
from capemix.sums.steps import DeclaredMap, PublicMap
from capemix.zerosum.graph import PeerGraph
from capemix.zerosum.masks import deal_keys
from conftest import Capemix

WALK = Path(__file__).parents[1] / "tools" / "walk.py"

if TYPE_CHECKING:
    from capemix.collector import Collector

SITES = 3
RANGE = PublicMap.of_range(0, 16)


# -- a method --------------------------------------------------------------------------------------


@method
@dataclass(frozen=True)
class ClassMeans(Method):
    """Nothing but the mean of each class, ``copies`` times."""

    kind: Literal["means-of-classes"] = "means-of-classes"
    clip: float = field(default=8.0, metadata={"help": "The l2 norm to which rows are clipped."})
    copies: int = field(default=1, metadata={"help": "Rows of each class."})

    def measures(self, facts: Facts) -> tuple[str, ...]:
        return facts.undeclared(sizes=True)

    def outline(self, plan: Plan) -> tuple[QueryShape, ...]:
        facts = plan.known
        groups = 2 if facts.classes is None else len(facts.classes)
        return (QueryShape("rows", "rows by class", "rows", facts.width, groups, self.clip),)

    def release(self, sums: Collector) -> SyntheticRows:
        facts = sums.plan.known
        how = facts.normalise
        assert isinstance(how, DeclaredMap)
        asked = ClippedRows(facts.width, len(facts.listed), how, self.clip)
        means = sums.ask("rows", asked) / np.array(facts.class_sizes)[:, None]
        denormalise_rows(means, how)
        labels = np.repeat(np.arange(len(means)), self.copies)
        return SyntheticRows(means[labels], labels)


def test_the_method_is_short() -> None:
    assert len(inspect.getsource(ClassMeans).splitlines()) <= 60


def digits() -> tuple[LabeledRows, LabeledRows]:
    train, test = load_dataset("digits")
    return replace(train, image_shape=None), replace(test, image_shape=None)


def planned(epsilon: float = 4.0, *, measured: bool = False, **who: Any) -> Plan:
    facts = Facts.of(digits()[0], normalise=None if measured else RANGE)
    return make_plan(facts, ClassMeans(copies=20), **who).calibrate(epsilon)


THREE: dict[str, Any] = {"scheme": "cape", "sites": SITES, "colluding": 1}


def test_a_new_method_finds_the_means_of_the_classes() -> None:
    train, _ = digits()
    release = run(planned(40.0), LocalEngine(train, SeededSource(1)))
    true = np.stack([train.features[train.labels == k].mean(axis=0) for k in range(10)])
    found = release.features[np.argsort(release.labels)[::20]]
    assert np.sqrt(((found - true) ** 2).mean()) < 0.2  # of 16
    assert release.guarantee.epsilon == pytest.approx(40.0, rel=1e-2)


@pytest.mark.parametrize("measured", [False, True])
def test_a_new_method_gives_the_same_bits_by_every_engine(tmp_path: Path, measured: bool) -> None:
    """Sites' shares added up here, by every message, and by agents with policies and ledgers."""
    train, _ = digits()
    parts, plan = partition(train, SITES, "iid", seed=1), planned(measured=measured, **THREE)
    agents = AgentsEngine(tmp_path / "agents", allowing(plan, least_sites=3), parts, seed=5)
    made = [
        run(plan, engine)
        for engine in (
            LocalEngine(parts, SeededSource(5)),
            InProcessEngine(parts, SeededSource(5)),
            agents,
        )
    ]
    assert len({release.features.tobytes() for release in made}) == 1
    assert agents.lineages[0].account().total.charges == len(plan.names)
    assert 0.9 < agents.lineages[0].account().used <= 1.0


def test_a_new_method_is_measured_for_and_charged_before_it_draws(tmp_path: Path) -> None:
    train, _ = digits()
    ledger = Ledger.open(tmp_path / "ledger.db")
    lineage = ledger.lineage("digits")
    lineage.set_limit(Limit(5.0, 2e-5))
    release = run(planned(4.0, measured=True), LocalEngine(train), lineage)
    assert release.guarantee.status is Status.GUARANTEE
    assert [line.line for line in release.plan.budget()] == [
        "class sizes",
        "ranges",
        "means and scales",
        "rows",
    ]
    assert 3.5 < lineage.account().epsilon <= 4.0
    with pytest.raises(BudgetError):
        run(planned(4.0, measured=True), LocalEngine(train, SystemSource()), lineage)
    assert lineage.account().total.charges == 1


def test_a_new_methods_rows_are_written_read_and_evaluated(tmp_path: Path) -> None:
    train, test = digits()
    release = run(planned(10.0), LocalEngine(train, SeededSource(2)))
    saved = read_release(release.save(tmp_path / "out"))
    assert saved.manifest.plan["method"]["kind"] == "means-of-classes"
    how = preparation_of(saved.manifest)
    score = train_and_test(saved.rows, test, how, prepared=True).declared_public()
    assert score.accuracy > 0.8


def test_a_new_methods_plan_comes_back_from_a_document() -> None:
    for plan in (planned(), planned(measured=True), planned(**THREE)):
        assert documents.from_json(Plan, documents.as_json(plan), name="plan") == plan
    asked = ClippedRows(64, 10, RANGE, 8.0)
    step = ReleaseStep(bytes(16), planned(**THREE), "class sizes", asked)
    assert "something else" in str(step.misfit())
    bent = documents.as_json(planned())
    bent["method"]["copys"] = 3
    with pytest.raises(InputError):
        documents.from_json(Plan, bent, name="plan")


def test_the_guarantee_says_whose_method_it_is() -> None:
    (said,) = [line for line in planned().guarantee().assumptions if "means-of-classes" in line]
    assert said.startswith(f"the method means-of-classes is of the package {__name__}: it keeps")
    ours = make_plan(planned().facts, ClassGaussian()).calibrate(1.0)
    assert not any("of the package" in line for line in ours.guarantee().assumptions)


def test_a_new_method_goes_by_its_name_in_python() -> None:
    train, _ = digits()
    labels = np.array(train.classes)[train.labels]
    made = Synthesizer(8.0, method="means-of-classes", copies=2, test_seed=1, public_range=(0, 16))
    rows, found = made.fit(train.features, labels).sample()
    assert rows.shape == (20, 64)
    assert sorted(set(found)) == list(range(10))
    with pytest.raises(InputError, match="mixture has no meaning for means-of-classes"):
        Synthesizer(8.0, method="means-of-classes", mixture=2).fit(train.features, labels)


def test_a_new_method_is_audited() -> None:
    """By the scorer of any program; and with a sixth of its noise it is caught."""
    programs = pytest.importorskip("capemix.audit.programs")
    from capemix.audit.measure import measure

    features, labels = np.random.default_rng(0).normal(size=(41, 2)), np.arange(41) % 2
    features[-1] = 4.0
    records = LabeledRows(features, labels, (0, 1), ("a", "b"), "y")
    facts = Facts.of(records, class_sizes=(20, 20), normalise=PublicMap.of_range(-4, 4))
    plan = make_plan(facts, ClassMeans(clip=1.0)).calibrate(2.0)
    setting = programs.Program.with_canary("class means", plan, records)
    found = measure(setting, setting.scores(800, source=SeededSource(3)))
    assert found.epsilon <= found.claimed <= 2.0
    loud = programs.Program.with_canary(
        "class means", replace(plan, multiplier=(plan.multiplier or 0.0) / 6), records
    )
    caught = measure(setting, loud.scores(800, source=SeededSource(3)))
    assert caught.epsilon > caught.claimed


def test_a_new_method_goes_by_its_name_on_the_command_line(
    tmp_path: Path, capemix: Capemix
) -> None:
    ran = capemix(
        *("synth", "digits", "--method", "means-of-classes", "--copies", 3, "--clip", 6),
        *("--epsilon", 8, "--no-ledger", "--out", tmp_path / "out", "--json"),
    )
    assert ran.code == 0, ran.err
    assert ran.json["method"] == "means-of-classes"
    saved = read_release(tmp_path / "out")
    assert len(saved.rows) == 30
    assert saved.manifest.plan["method"] == {"kind": "means-of-classes", "clip": 6.0, "copies": 3}
    assert "means-of-classes" in capemix("methods").out
    scored = capemix("evaluate", tmp_path / "out", "--test", "digits", "--json")
    assert scored.json["synthetic"]["accuracy"] > 0.5
    refused = capemix(
        *("synth", "digits", "--method", "means-of-classes", "--mixture", 3, "--epsilon", 8),
        *("--no-ledger", "--out", tmp_path / "no"),
    )
    assert refused.code == 2
    assert "--mixture" in refused.err


MODULE = """
from __future__ import annotations
from dataclasses import dataclass, field
from typing import Literal
import numpy as np
from capemix.methods import Method, SyntheticRows, method
from capemix.queries import QueryShape
from capemix.sums.rows import ClippedRows, denormalise_rows
from capemix.sums.steps import DeclaredMap

"""


def test_a_new_method_is_carried_by_flowers_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them have the method installed; here, by a module that is always imported."""
    from capemix.engines.flower.local import run_on_loopback

    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "class_means.py").write_text(MODULE + inspect.getsource(ClassMeans))
    (tmp_path / "hook" / "sitecustomize.py").write_text("import class_means\n")
    path = [str(tmp_path / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    train, _ = digits()
    parts, plan = partition(train, SITES, "iid", seed=1), planned(**THREE)
    outcome = run_on_loopback(
        plan, parts, tmp_path / "out", engine="simulation", test_seed=5, round_seconds=60.0
    )
    assert outcome.included == [0, 1, 2]
    run(plan, LocalEngine(parts, SeededSource(5))).save(tmp_path / "local")
    ours, theirs = (tmp_path / name / "synthetic.parquet" for name in ("out", "local"))
    assert ours.read_bytes() == theirs.read_bytes()


# -- an engine -------------------------------------------------------------------------------------


class Backwards:
    """Adds up the sites' shares from the last to the first, and notes which sums were asked for."""

    def __init__(self, sites: Sequence[LabeledRows], source: Source) -> None:
        self._sites, self._source = sites, source
        self.asked: list[str] = []

    def check(self, plan: Plan) -> None:
        self._source.check_unused()
        if len(self._sites) != plan.federation.sites:
            raise InputError("sites", "are not the plan's", value=len(self._sites), fix="plan anew")

    def origin(self, plan: Plan) -> Origin:  # noqa: ARG002
        return Origin(seeded=isinstance(self._source, SeededSource), one_process=True)

    def list_classes(self, *_asked: object) -> dict[str, float]:
        raise InputError("classes", "must be declared", fix="list them")

    def sum(self, plan: Plan, query: SumQuery) -> npt.NDArray[Any]:
        self.asked.append(query.name)
        source = plan.source_of(query, self._source)
        masked = plan.federation.scheme is Scheme.CAPE and plan.federation.sites > 1
        keys = deal_keys(PeerGraph.complete(len(self._sites)), source) if masked else []
        own = {each.site: each for each in keys}
        total = Aggregate(query)
        for site, rows in reversed(list(enumerate(self._sites))):
            draws = SourceDraws(query, source.child("site", site))
            prepared = prepare_records(query, rows.features, rows.labels)
            total.add(site_share(query, site, prepared, draws, own.get(site)))
        if masked:
            total.unmask({site: each.own for site, each in own.items()}, {})
        return total.release_sums()


def test_the_engine_is_short() -> None:
    assert len(inspect.getsource(Backwards).splitlines()) <= 80


METHODS: dict[str, tuple[Method, str]] = {
    "means-of-classes": (ClassMeans(), "declared"),
    "means-of-classes, measured": (ClassMeans(), "measured"),
    "mixing": (Mixing(samples=40, mixture=4), "declared"),
    "mixing, measured": (Mixing(samples=40, mixture=4), "measured"),
    "mixing, all classes": (
        Mixing(samples=40, mixture=4, pool=Pool.ALL, label_noise=True),
        "declared",
    ),
    "mixing, drawn anew": (Mixing(samples=40, mixture=4, redraw=50), "declared"),
    "class-gaussian": (ClassGaussian(samples=60), "declared"),
    "class-gaussian, measured": (ClassGaussian(samples=60), "measured"),
    "tables": (Tables(samples=60), "declared"),
    "tables, measured": (Tables(samples=60), "measured"),
    "image-clusters": (ImageClusters(samples=60, soft_labels=True), "images"),
    "image-diffusion": (
        ImageDiffusion(samples=60, rounds=2, channels=4, noises=1, warm_steps=2),
        "images",
    ),
}


def test_every_method_is_carried_by_the_engine() -> None:
    assert {each.kind for each, _ in METHODS.values()} == {ClassMeans.kind, *BUILT_IN}


@pytest.mark.parametrize("sites", [1, SITES])
@pytest.mark.parametrize("name", METHODS)
def test_a_new_engine_carries_every_method_with_the_same_release(name: str, sites: int) -> None:
    asked, facts_are = METHODS[name]
    train = digits()[0].take(range(300))
    if facts_are == "images":
        train = replace(train, image_shape=(8, 8), feature_names=pixel_names((8, 8)))
    facts = Facts.of(train, normalise=None if facts_are == "measured" else RANGE)
    plan = make_plan(facts, asked, **(THREE if sites > 1 else {})).calibrate(8.0)
    parts = list(partition(train, sites, "iid", seed=1)) if sites > 1 else [train]
    engine = Backwards(parts, SeededSource(5))
    ours, theirs = run(plan, engine), run(plan, LocalEngine(parts, SeededSource(5)))
    assert ours.features.tobytes() == theirs.features.tobytes()
    assert ours.labels.tobytes() == theirs.labels.tobytes()
    assert ours.warnings == theirs.warnings
    assert ours.manifest({}).text() == theirs.manifest({}).text()
    made = ours.plan
    assert isinstance(made, Plan)
    assert engine.asked == list(made.names)
    if ours.soft_labels is not None and theirs.soft_labels is not None:
        assert ours.soft_labels.tobytes() == theirs.soft_labels.tobytes()


# -- the walk --------------------------------------------------------------------------------------

FILES = {"curator": 46, "sites": 47}
"""Source files that one enters on the way from a file to its release."""


@pytest.mark.parametrize("name", FILES)
def test_a_release_is_followed_through_few_files(name: str) -> None:
    """In a process of its own, where nothing is remembered from another test."""
    command = [sys.executable, WALK, name]
    walked = subprocess.run(command, check=True, capture_output=True, text=True)
    said, *files = walked.stdout.splitlines()
    assert said == f"{name}: {len(files)} files"
    assert 20 < len(files) <= FILES[name]
