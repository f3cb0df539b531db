"""The Python interface mirrors the command line."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from capemix import (
    Facts,
    InputError,
    PublicMap,
    Synthesizer,
    make_plan,
    open_data,
    partition,
    synthesize,
)
from capemix.accounting.gaussian import gaussian_epsilon, gaussian_multiplier
from capemix.api import as_they_stand, config_of, usual_method
from capemix.data import LabeledRows, Table, UnlistedRows
from capemix.data.arrays import cells_of_arrays
from capemix.data.schema import Category, Number
from capemix.engines.local import LocalEngine
from capemix.federation import MaskKind
from capemix.guarantee import Status
from capemix.methods import Method
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.measured import LIST_FAILURE
from capemix.methods.mixing import Mixing, Pool
from capemix.methods.mixing.planning import plan_mixtures
from capemix.methods.tables import Tables
from capemix.program_cost import ProgramCost
from capemix.queries import Relation
from capemix.randomness.source import SeededSource
from capemix.release import Release
from capemix.sums.steps import Coverage
from measuring import measured_facts

LEVELS = ("low", "mid", "top")


def blobs(count: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    X = np.clip(rng.normal(0.3 + 0.2 * y[:, None], 0.05, (count, 4)), 0, 1)
    return X, np.array(["low", "mid", "top"])[y]


def test_a_synthesizer_fits_and_samples_like_scikit_learn() -> None:
    X, y = blobs()
    synthesizer = Synthesizer(
        epsilon=5.0, method="mixing", mixture=8, samples=90, public_range=(0, 1)
    )
    assert synthesizer.fit(X, y) is synthesizer
    rows, labels = synthesizer.sample()
    assert rows.shape == (90, 4)
    assert set(labels) == {"low", "mid", "top"}
    assert 0 <= rows.min() <= rows.max() <= 1
    assert synthesizer.guarantee_.status is Status.GUARANTEE
    assert synthesizer.guarantee_.epsilon == pytest.approx(5.0, rel=1e-3)
    _, few_labels = synthesizer.sample(30)
    assert sorted(set(few_labels)) == ["low", "mid", "top"]
    assert len(synthesizer.sample(200)[0]) == 200
    assert "epsilon" in synthesizer.get_params()
    assert synthesizer.get_params()["mixture"] == 8
    assert synthesizer.set_params(epsilon=1.0, mixture=9).epsilon == 1.0
    assert synthesizer.get_params()["mixture"] == 9
    with pytest.raises(InputError):
        synthesizer.set_params(nonsense=1)
    with pytest.raises(InputError, match="fit"):
        Synthesizer().sample()


def test_what_is_learned_survives_the_release() -> None:
    X, y = blobs(3000)
    rows, labels = (
        Synthesizer(
            epsilon=5.0,
            method="mixing",
            mixture=50,
            samples=300,
            clip=1.0,
            public_range=(0, 1),
            test_seed=1,
        )
        .fit(X, y)
        .sample()
    )
    for name in ("low", "mid", "top"):
        assert np.abs(rows[labels == name].mean() - X[y == name].mean()) < 0.05


def test_bad_arrays_are_refused() -> None:
    X, y = blobs(30)
    for bad in ((X[:, 0], y), (X, y[:-1])):
        with pytest.raises(InputError, match=r"X must be rows|y must be one label"):
            Synthesizer(method="mixing", mixture=2, samples=9, classes=LEVELS).fit(*bad)


def test_a_record_that_cannot_be_read_counts_for_nothing() -> None:
    X, y = blobs(300)
    odd = X.astype(object), y.astype(object)
    odd[0][0, 0], odd[0][1, 1], odd[0][2, 2] = np.nan, "a word", None
    odd[1][3], odd[1][4] = "off the list", None

    def released(*given: np.ndarray) -> bytes:
        made = Synthesizer(
            5.0, method=Mixing(mixture=8, samples=9), public_range=(0, 1), classes=LEVELS,
            test_seed=3,
        )  # fmt: skip
        return made.fit(*given).release_.features.tobytes()

    assert released(*odd) == released(X[5:], y[5:])
    assert released(*odd) != released(X, y)


def test_no_rows_at_all_are_released_like_any() -> None:
    X, y = blobs(30)
    method = Mixing(mixture=8, samples=9)
    made = Synthesizer(5.0, method=method, public_range=(0, 1), classes=LEVELS)
    assert len(made.fit(X[:0], y[:0]).sample()[0]) == 9
    assert made.guarantee_.epsilon == pytest.approx(5.0, rel=1e-3)


def test_classes_that_enough_records_have_are_found_and_paid_for() -> None:
    X, y = blobs(900)
    y = np.append(y[:-1], "one record's own")
    method = Mixing(mixture=8, samples=90)
    fitted = Synthesizer(5.0, method=method, public_range=(0, 1)).fit(X, y)
    assert fitted.classes_.tolist() == list(LEVELS)
    assert fitted.guarantee_.status is Status.GUARANTEE
    assert fitted.guarantee_.epsilon == pytest.approx(5.0, rel=1e-3)
    lines = {line.line: line for line in fitted.release_.plan.budget()}
    share = method.opening_share("class list", 2)
    assert lines["class list"].share == pytest.approx(share)
    noise = gaussian_multiplier(5.0, 1e-5) / math.sqrt(share)
    alone = gaussian_epsilon(noise, (1 - LIST_FAILURE) * 1e-5)
    assert lines["class list"].epsilon_composed == pytest.approx(alone, rel=1e-4)
    steps = {step.name: step.coverage for step in fitted.release_.plan.steps}
    assert steps["class list"] is Coverage.PAID


METHODS: dict[str, Method] = {
    "mixing": Mixing(),
    "class-gaussian": ClassGaussian(),
    "dp-mix": Mixing(pool=Pool.ALL, label_noise=True),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_labels_taken_as_they_come_leave_no_guarantee(method: Method) -> None:
    """With no budget there is none to pay for a list."""
    X, y = blobs(300)
    rows = UnlistedRows.of(cells_of_arrays(X, y), "label")

    def released(rows: LabeledRows, epsilon: float) -> Release:
        facts = Facts.of(rows, normalise=PublicMap.of_range(0, 1))
        return synthesize(make_plan(facts, method).calibrate(epsilon), rows)

    free = Synthesizer(math.inf, method=method, public_range=(0, 1)).fit(X, y).release_
    assert free.facts.classes == LEVELS
    assert free.guarantee.status is Status.NO_PRIVACY
    found = released(rows.as_they_come(), 5.0)
    assert found.guarantee.status is Status.FROM_ROWS
    assert "the class list was read from the rows" in " ".join(found.guarantee.assumptions)
    declared = released(rows.listed(LEVELS), 5.0)
    assert declared.guarantee.status is Status.GUARANTEE


def test_what_cannot_find_classes_wants_them_declared() -> None:
    X, y = blobs(300)
    with pytest.raises(InputError, match="must be declared where their sizes are"):
        Synthesizer(class_sizes=(100, 100, 100)).fit(X, y)
    rows = UnlistedRows.of(cells_of_arrays(X, y), "label")
    for method in METHODS.values():
        with pytest.raises(InputError, match="must be declared for Gaussian noise"):
            make_plan(Facts.of(rows), method, law="gaussian").calibrate(5.0)
    with pytest.raises(InputError, match="are the schema's to say"):
        Synthesizer(schema=Table((Number("a", 0, 1),), Category("y", LEVELS)), classes=LEVELS).fit(
            {"a": X[:, 0]}, y
        )


def test_a_plan_of_ones_own() -> None:
    train = open_data("digits").train
    plan = plan_mixtures(
        width=train.width,
        class_sizes=(140,) * 10,
        samples=50,
        mixture=16,
        clip=4.0,
        scheme="cape",
        sites=5,
        normalise=PublicMap.of_range(0, 16),
    ).calibrate(8.0)
    release = synthesize(plan, partition(train, 5, "iid", seed=0))
    assert len(release) == 50
    assert release.guarantee == plan.guarantee(one_process=True)
    assert "one process" in " ".join(release.guarantee.assumptions)
    with pytest.raises(InputError, match="sites"):
        synthesize(plan, partition(train, 4, "iid", seed=0))
    with pytest.raises(InputError, match="calibrate"):
        synthesize(plan_mixtures(width=64, class_sizes=(140,) * 10, samples=50, mixture=16), train)


def test_rows_that_do_not_fit_the_plan_are_refused() -> None:
    train = open_data("digits").train
    for changed in ({"width": 63}, {"width": 65}):
        plan = plan_mixtures(
            **{"width": 64, "class_sizes": (140,) * 10, "samples": 20, "mixture": 8, **changed},
            noise=0.1,
        )
        with pytest.raises(InputError, match="columns"):
            synthesize(plan, train)
    plan = plan_mixtures(width=64, class_sizes=(140,) * 9, samples=20, mixture=8, noise=0.1)
    with pytest.raises(InputError, match="classes"):
        synthesize(plan, train)
    X, y = blobs()
    with pytest.raises(InputError, match="one for each of the 3 classes"):
        Synthesizer(classes=LEVELS, class_sizes=(100, 100)).fit(X, y)


def test_fixed_size_selection_needs_the_rows_that_were_declared() -> None:
    train = open_data("digits").train
    asked = {"width": 64, "samples": 20, "mixture": 8, "selection": "fixed-size", "noise": 0.1}
    assert len(synthesize(plan_mixtures(class_sizes=(140,) * 10, **asked), train)) == 20
    with pytest.raises(InputError, match="fewer rows"):
        synthesize(plan_mixtures(class_sizes=(145,) * 10, **asked), train)


def test_paid_class_sizes_keep_the_relation() -> None:
    X, y = blobs()
    method = Mixing(mixture=8, samples=30)
    fitted = Synthesizer(5.0, method=method, relation="replace-one").fit(X, y)
    assert fitted.guarantee_.relation is Relation.REPLACE_ONE
    assert fitted.guarantee_.epsilon == pytest.approx(5.0, rel=1e-3)


def test_noise_takes_a_source_of_the_right_type_only() -> None:
    train = open_data("digits").train
    plan = plan_mixtures(width=64, class_sizes=(140,) * 10, samples=20, mixture=8, noise=0.1)
    for wrong in (7, np.random.default_rng(0)):
        with pytest.raises(TypeError, match="SystemSource"):
            synthesize(plan, train, source=wrong)  # type: ignore[arg-type]
    assert synthesize(plan, train).guarantee.status is Status.GUARANTEE
    seeded = synthesize(plan, train, source=SeededSource(1))
    assert seeded.guarantee.status is Status.SEEDED


@pytest.mark.parametrize("masks", [MaskKind.RING, MaskKind.GAUSSIAN])
def test_class_sizes_are_a_private_sum_over_sites(masks: MaskKind) -> None:
    rng = np.random.default_rng(0)
    sites = []
    for _ in range(4):
        labels = rng.integers(0, 3, 2000)
        sites.append(
            LabeledRows(
                features=np.zeros((2000, 2)),
                labels=labels.astype(np.int64),
                classes=(0, 1, 2),
                feature_names=("a", "b"),
            )
        )
    true = np.sum([site.class_counts() for site in sites], axis=0)
    facts = Facts.of(sites[0], normalise=PublicMap())
    plan = make_plan(
        facts, Mixing(), delta=1e-5, scheme="cape", sites=4, colluding=1, masks=masks
    ).calibrate(5.0)
    errors = []
    for seed in range(60):
        sizes = measured_facts(plan, LocalEngine(sites, SeededSource(seed))).class_sizes
        errors += list(np.array(sizes) - true)
    # A hundredth of the one Gaussian that the whole budget buys.
    multiplier = 10 * gaussian_multiplier(5.0, 1e-5)
    views = ProgramCost(plan).opened.view_multipliers
    assert min(views.values()) == pytest.approx(multiplier)
    multiplier = views["public"]
    claimed = multiplier * np.sqrt(4 / 3)  # all four sites' noise is in, one colluder's comes off
    # 180 errors: their deviation is within 25% of the claim, not within 25% of half of it.
    assert np.std(errors) == pytest.approx(claimed, rel=0.25)
    assert np.std(errors) != pytest.approx(claimed / 2, rel=0.25)


def test_private_values_do_not_show_in_a_repr() -> None:
    X, y = blobs(50)
    method = Mixing(mixture=4, samples=9)
    made = Synthesizer(method=method, public_range=(0, 1), classes=LEVELS)
    synthesizer = made.fit(X, y)
    cells = cells_of_arrays(X, y)
    unlisted = UnlistedRows.of(cells, "label")
    rows = unlisted.listed(LEVELS)
    things = (cells, unlisted, unlisted.words, rows, synthesizer.release_.plan)
    for thing in (*things, synthesizer.guarantee_):
        assert str(X[0, 0])[:6] not in repr(thing)
    assert repr(rows) == "LabeledRows(width=4, classes=3)"
    assert repr(unlisted) == "UnlistedRows(width=4)"


# -- what is not said ------------------------------------------------------------------------------


def facts_of(width: int, image_shape: tuple[int, int] | None = None) -> Facts:
    names = tuple(map(str, range(width)))
    return Facts(names, "label", LEVELS, normalise=PublicMap(), image_shape=image_shape)


def test_the_usual_method_is_the_one_for_such_rows() -> None:
    for how in (None, PublicMap.of_range(0, 1)):
        assert usual_method(replace(facts_of(250), normalise=how)) == "tables"
    assert usual_method(replace(facts_of(250), normalise=None), measured=False) == "class-gaussian"
    assert usual_method(facts_of(250)) == "class-gaussian"  # as they stand, without a range
    assert usual_method(facts_of(64, (8, 8))) == "class-gaussian"
    assert usual_method(facts_of(251)) == "mixing"
    assert usual_method(facts_of(784, (28, 28))) == "image-clusters"
    X, y = blobs(300)
    for epsilon, asked, method in (
        (5.0, {"public_range": (0, 1)}, Tables()),
        (5.0, {}, Tables()),
        (math.inf, {"public_range": (0, 1)}, Tables()),
        (math.inf, {}, ClassGaussian()),
    ):
        fitted = Synthesizer(epsilon, classes=LEVELS, **asked).fit(X, y)
        assert fitted.release_.plan.method == method  # type: ignore[attr-defined]


def test_a_config_says_what_its_method_knows() -> None:
    assert config_of("mixing", samples=5, mixture=None) == Mixing(samples=5)
    with pytest.raises(InputError, match="mixture has no meaning for class-gaussian"):
        config_of("class-gaussian", mixture=5)
    with pytest.raises(InputError, match="method is unknown"):
        config_of("magic")
    X, y = blobs(30)
    with pytest.raises(InputError, match="samples is the method's to say"):
        Synthesizer(method=Mixing(), samples=5).fit(X, y)


def test_without_a_promise_facts_are_read_from_the_rows_and_said_to_be_unpaid() -> None:
    X, y = blobs(300)
    rows = UnlistedRows.of(cells_of_arrays(X, y), "label").as_they_come()
    facts = as_they_stand(Facts.of(rows), [rows])
    assert facts.class_sizes == tuple(rows.class_counts().tolist())
    assert facts.unpaid == ("class sizes",)
    assert facts.normalise == PublicMap()
    with pytest.raises(InputError, match="class sizes is not covered"):
        make_plan(facts, Mixing()).calibrate(5.0)
    for method in (Mixing(accountant="paper", label_noise=True), ClassGaussian()):  # type: ignore[arg-type]
        epsilon = 5.0 if method.claimed else math.inf
        fitted = Synthesizer(epsilon, method=method).fit(X, y)
        wanted = Status.PAPER if method.claimed else Status.NO_PRIVACY
        assert fitted.guarantee_.status is wanted
        assert fitted.release_.facts.unpaid == ("class sizes",)
