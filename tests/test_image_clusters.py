"""Images from private sums: what a record adds to a head's training is bounded and its own, and the
rows are the same however they are added up."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from capemix import documents
from capemix.api import config_of, usual_method
from capemix.collector import Engine
from capemix.data import LabeledRows, partition
from capemix.data.rows import pixel_names
from capemix.engines.flower.files import plan_text, read_plan_file
from capemix.engines.flower.local import run_on_loopback
from capemix.engines.in_process import InProcessEngine
from capemix.engines.local import LocalEngine
from capemix.errors import InputError
from capemix.facts import CLASS_SIZES, Facts
from capemix.methods.gaussians import apportioned, wigner_edge
from capemix.methods.image_clusters import MOST_CLUSTERS, ImageClusters
from capemix.methods.image_clusters.clusters import (
    Clusters,
    cleaned_texture,
    found_clusters,
    moved_points,
    tuned_clusters,
)
from capemix.methods.image_clusters.estimate import CLUSTERS, LABELS, NEAREST, REPEATS
from capemix.methods.projected import NORMS_OF
from capemix.plan import Plan, make_plan
from capemix.protocol.policy import Policy
from capemix.protocol.step import ReleaseStep, fits_in_messages
from capemix.protocol.wire import MAX_MESSAGE, canonical
from capemix.randomness.source import SeededSource
from capemix.release import Release
from capemix.run import run
from capemix.statistics import remembered
from capemix.statistics.head import LENGTH, Head, softmax
from capemix.statistics.histograms import ClassCounts
from capemix.statistics.moments import Moments, NormHistogram
from capemix.statistics.pixels import smooth_directions, upright_rows
from capemix.statistics.projection import Projection
from capemix.statistics.scattering import channels, features_of, scattered
from capemix.sums.statistic import Statistic
from capemix.sums.steps import PublicMap
from conftest import Capemix
from releasing import release_of

Real = npt.NDArray[np.float64]

SHAPE = (8, 8)
WAY = PublicMap.of_range(0, 255)


def bars(count: int = 600, seed: int = 0) -> LabeledRows:
    """Two classes of images: a bar that stands and one that lies, at random places."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 40, (count, *SHAPE))
    labels = np.arange(count) % 2
    for image, label in zip(images, labels, strict=True):
        place = rng.integers(1, 6)
        bar = np.s_[1:7, place : place + 2] if label else np.s_[place : place + 2, 1:7]
        image[bar] = 255
    return LabeledRows(
        features=images.reshape(count, -1).astype(np.uint8),
        labels=labels.astype(np.int64),
        classes=("lies", "stands"),
        feature_names=tuple(f"p{n}" for n in range(64)),
        image_shape=SHAPE,
    )


def a_head(weights: Real | None = None, *, upright: bool = False, seed: int = 0) -> Head:
    rng = np.random.default_rng(seed)
    frame = Projection(
        WAY, 64, 2, centre=rng.normal(size=(1, 64 + upright)) * 0.1,
        upright=SHAPE if upright else None,
    )  # fmt: skip
    shape = (features_of(SHAPE) + 1, 2)
    weights = rng.normal(size=shape) * 0.1 if weights is None else weights
    return Head(frame, SHAPE, 40, rng.normal(size=channels()) * 0.01, np.ones(channels()), weights)


def added(features: Any, labels: Any, asked: Statistic, lattice: int | None) -> Any:
    """What these records add up to, groups by width."""
    sums = np.zeros((asked.groups, asked.width), dtype=np.float64 if lattice is None else np.int64)
    asked.add_to(sums, features, labels, lattice)
    return sums


# -- what a record adds ----------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    lattice=st.integers(1, 32_767),
    upright=st.booleans(),
    size=st.sampled_from([0.0, 1e-3, 0.1, 30.0]),
    shade=st.sampled_from(["bars", "black", "white", "noise"]),
)
def test_no_image_adds_more_to_a_head_than_is_counted(
    lattice: int, upright: bool, size: float, shade: str
) -> None:
    rng = np.random.default_rng(lattice)
    head = a_head(size * rng.normal(size=(features_of(SHAPE) + 1, 2)), upright=upright)
    rows = bars(6)
    features = {
        "bars": rows.features,
        "black": np.zeros((6, 64), np.uint8),
        "white": np.full((6, 64), 255, np.uint8),
        "noise": rng.integers(0, 256, (6, 64)).astype(np.uint8),
    }[shade]

    def summed(some: slice) -> Any:
        return added(features[some], rows.labels[some], head, lattice)

    each = np.stack([summed(slice(n, n + 1))[0] for n in range(6)])
    assert ((each.astype(object) ** 2).sum(axis=1) <= lattice**2).all()
    assert np.array_equal(summed(slice(None))[0], each.sum(axis=0))  # nobody feels another


def test_a_large_image_adds_the_same_alone() -> None:
    """Its features are more than numpy adds up in one go."""
    side = 60
    rng = np.random.default_rng(3)
    features = rng.integers(0, 256, (4, side**2)).astype(np.uint8)
    labels = np.array([0, 1, 0, 1])
    frame = Projection(WAY, side**2, 2, centre=np.zeros((1, side**2)))
    count = features_of((side, side)) + 1
    assert count > 8_192
    head = Head(
        frame, (side, side), 40, np.zeros(channels()), np.ones(channels()),
        rng.normal(size=(count, 2)),
    )  # fmt: skip

    def summed(some: slice) -> Any:
        return added(features[some], labels[some], head, 32_767)

    each = [summed(slice(n, n + 1)) for n in range(4)]
    assert np.array_equal(summed(slice(None)), sum(each))


@pytest.mark.parametrize("lattice", [None, 700])
@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e30, 1e300])
def test_no_numbers_in_a_head_can_stop_a_site(lattice: int | None, size: float) -> None:
    rows = bars(5)
    plain = a_head()
    for head in (
        replace(plain, deviation=np.full(channels(), size)),
        replace(plain, mean=np.full(channels(), -size)),
        replace(plain, weights=np.full(plain.weights.shape, size) * [[1.0, -1.0]]),
        replace(plain, frame=replace(plain.frame, centre=np.full((1, 64), size))),
    ):
        made = added(rows.features, rows.labels, head, lattice)
        assert np.isfinite(made).all()
        assert np.linalg.norm(made.astype(np.float64)) <= 5 * (lattice or 1) * (1 + 1e-9)


def test_a_heads_sums_are_exact_however_records_are_cut() -> None:
    """More records than are multiplied at once, of the largest numbers."""
    rows = bars(1_200)
    head = a_head(30.0 * np.random.default_rng(5).normal(size=(features_of(SHAPE) + 1, 2)))

    def summed(some: slice) -> Any:
        return added(rows.features[some], rows.labels[some], head, 32_767)

    for cut in (1, 500, 1_111):
        assert np.array_equal(summed(slice(None)), summed(slice(cut)) + summed(slice(cut, None)))


def test_a_heads_sums_are_gradients() -> None:
    rows, head = bars(200), a_head()
    lattice = 32_767
    sums = added(rows.features, rows.labels, head, lattice)
    found = head.gradient(sums / lattice, lattice)
    about = rows.features / 127.5 - 1.0 - head.frame.centre
    features = scattered(head.smoothed(about)).astype(np.float64).reshape(200, channels(), -1)
    features -= head.mean[None, :, None]
    features = features.reshape(200, -1)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    features = np.hstack([features, np.full((200, 1), 1 / LENGTH)])
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    residuals = special.softmax(LENGTH * features @ head.weights, axis=1)
    residuals[np.arange(200), rows.labels] -= 1.0
    residuals *= LENGTH
    residuals /= np.maximum(np.linalg.norm(residuals, axis=1, keepdims=True), 1.0)
    right = features.T @ residuals
    # Both factors are rounded to whole numbers.
    assert np.linalg.norm(found - right) < 0.05 * np.linalg.norm(right)
    wrong = features.T @ (residuals[:, ::-1])
    assert np.linalg.norm(found - wrong) > 0.5 * np.linalg.norm(right)


def test_gradients_in_real_arithmetic_are_those_of_the_finest_lattice() -> None:
    rows, head = bars(30), a_head()
    real = added(rows.features, rows.labels, head, None)
    whole = added(rows.features, rows.labels, head, 32_767)
    assert np.allclose(real, whole / 32_767)


@given(st.integers(0, 10**6))
@settings(max_examples=30)
def test_softmax_is_softmax_whoever_else_is_there(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(7, 5)) * 10.0 ** rng.integers(-3, 4)
    found = softmax(logits)
    assert np.allclose(found, special.softmax(logits, axis=1), atol=1e-14)
    for n in range(7):
        assert np.array_equal(softmax(logits[n : n + 1])[0], found[n])


def test_a_label_off_the_list_adds_nothing() -> None:
    rows, head = bars(20), a_head()
    assert not added(rows.features, np.full(20, -1, dtype=np.int64), head, 500).any()


def test_features_are_kept_as_long_as_the_rows_and_no_longer() -> None:
    gc.collect()  # what earlier tests left would else go in the midst of this one
    rows, head = bars(20), a_head()
    before = len(remembered._KEPT)
    made = [added(rows.features, rows.labels, head, 900) for _ in range(2)]
    assert np.array_equal(*made)
    assert len(remembered._KEPT) > before
    other = replace(head, mean=head.mean + 0.05)
    changed = added(rows.features, rows.labels, other, 900)
    assert not np.array_equal(made[0], changed)
    del rows
    gc.collect()
    assert len(remembered._KEPT) == before


def test_features_are_kept_for_one_number_of_classes_only() -> None:
    """A longer list of classes leaves shorter features: stale ones would be too long."""
    rows = bars(10)
    few = a_head()
    many = Head(
        replace(few.frame, classes=100), SHAPE, 40, few.mean, few.deviation,
        np.zeros((features_of(SHAPE) + 1, 100)),
    )  # fmt: skip
    for head in (few, many, few):
        sums = [
            added(features, rows.labels, head, 1000)
            for features in (rows.features, rows.features.copy())
        ]
        assert np.array_equal(*sums)


@pytest.mark.parametrize(
    "bad", [{"shape": (5, 4)}, {"shape": (8.0, 8.0)}, {"shape": (-8, -8)}, {"smooth": 3.0}]
)
def test_an_odd_head_is_refused_before_any_row_is_seen(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="parts of different sizes"):
        replace(a_head(), **bad)


def test_images_that_are_too_large_are_refused_before_anything_is_paid() -> None:
    for shape, classes in (((64, 68), 2), ((64, 64), 200)):
        with pytest.raises(InputError, match="at most"):
            make_plan(facts_of(shape, tuple(range(classes))), ImageClusters())


def test_an_image_is_set_upright_by_itself_and_its_slant_is_kept() -> None:
    images = bars(9).features / 127.5 - 1.0
    whole = upright_rows(images, SHAPE, -1.0, 1.0)
    assert whole.shape == (9, 65)
    assert whole[:, :64].min() >= -1.0
    assert whole[:, :64].max() <= 1.0
    for n in range(9):
        assert np.array_equal(upright_rows(images[n : n + 1], SHAPE, -1.0, 1.0)[0], whole[n])


# -- the plan --------------------------------------------------------------------------------------


def facts_of(
    shape: tuple[int, int] = SHAPE, classes: tuple[str | int, ...] = ("lies", "stands")
) -> Facts:
    return Facts(pixel_names(shape), "label", classes, normalise=WAY, image_shape=shape)


def a_plan(
    epsilon: float = 4.0, *, soft_labels: bool = True, deskew: bool = True, **who: Any
) -> Plan:
    method = ImageClusters(samples=40, soft_labels=soft_labels, deskew=deskew)
    return make_plan(facts_of(), method, **who).calibrate(epsilon)


def chosen(plan: Plan, rank: int, clusters: int) -> Plan:
    return replace(plan, chosen={"rank": rank, "clusters": clusters})


@pytest.mark.parametrize("who", [{}, {"scheme": "cape", "sites": 4}])
def test_all_sums_of_images_cost_together_what_was_asked(who: dict[str, Any]) -> None:
    plan = a_plan(2.0, **who)
    most = plan.method.choices(plan)[-1]
    assert most == {"rank": 64, "clusters": MOST_CLUSTERS}
    for rank, clusters in ((1, 1), (5, 2), (64, MOST_CLUSTERS)):
        found = chosen(plan, rank, clusters)
        lines = found.budget()
        assert (lines[-1].epsilon_composed or 0.0) <= 2.0
        assert len([name for name in found.names if name.startswith(LABELS)]) == REPEATS[LABELS]
        assert (f"{NEAREST} 1" in found.names) == (clusters > 1)
        assert sum(line.share for line in lines) == pytest.approx(1.0)
    first = [chosen(plan, *choice).query(CLASS_SIZES).deviation for choice in ((1, 1), (9, 5))]
    assert first[0] == first[1]
    assert plan.guarantee().epsilon == pytest.approx(2.0, rel=1e-3)


def test_a_sum_made_often_costs_what_as_many_sums_cost() -> None:
    plan = chosen(a_plan(), 4, 2)
    alone = [query.noise_multiplier for query in plan.queries()]
    assert sum(m**-2 for m in alone) ** -0.5 == pytest.approx(plan.multiplier)


def test_plans_of_images_come_back_as_they_were_written() -> None:
    for plan in (a_plan(), a_plan(soft_labels=False), chosen(a_plan(), 3, 2)):
        found = json.loads(json.dumps(documents.as_json(plan)))
        assert documents.from_json(Plan, found, name="plan") == plan
    said = documents.as_json(a_plan())
    for part, change in (
        ("facts", {"image_shape": [8, 9]}),
        ("facts", {"image_shape": 64}),
        ("method", {"deskew": 1}),
    ):
        with pytest.raises(InputError):
            documents.from_json(Plan, {**said, part: {**said[part], **change}}, name="plan")
    one = ReleaseStep(bytes(16), chosen(a_plan(), 3, 2), f"{LABELS} 7", a_head(upright=True))
    again = ReleaseStep.from_json(json.loads(json.dumps(one.as_json())))
    assert again.as_json() == one.as_json()
    rows = bars(10)
    sums = [added(rows.features, rows.labels, each.query.summed, 99) for each in (one, again)]
    assert np.array_equal(*sums)


def test_a_site_adds_nothing_else_of_its_images_than_the_release_says() -> None:
    whole = chosen(a_plan(scheme="cape", sites=4), 3, 2)

    def misfit(name: str, asked: Any) -> str | None:
        return ReleaseStep(bytes(16), whole, name, asked).misfit()

    right = a_head(upright=True)
    norms = NORMS_OF.format(CLUSTERS)
    frame = replace(right.frame, centre=None)
    assert misfit(f"{LABELS} 7", right) is None
    assert misfit(norms, NormHistogram(frame)) is None
    assert misfit(norms, NormHistogram(replace(frame, points=np.ones((2, 2, 65))))) is None
    mean = (0.5**0.5, 0.5**0.5)
    turned = replace(frame, basis=np.ones((65, 4)), points=np.ones((2, 2, 4)))
    assert misfit(CLUSTERS, Moments(turned, 1.0, mean)) is None
    many = replace(turned, points=np.ones((2, 3, 4)))
    assert "something else" in str(misfit(CLUSTERS, Moments(many, 1.0, mean)))
    longer = Moments(turned, 1.0, (1.0, 1.0))
    assert "something else" in str(misfit(CLUSTERS, longer))
    counted = Moments(replace(frame, basis=np.ones((65, right.width - 1))), 1.0, mean, apart=False)
    assert "something else" in str(misfit(f"{LABELS} 7", counted))
    smaller = Projection(WAY, 36, 2, upright=(6, 6))
    assert "other columns" in str(misfit(norms, NormHistogram(smaller)))


def test_what_are_no_images_is_refused() -> None:
    def planned(facts: Facts, **config: Any) -> Plan:
        return make_plan(facts, ImageClusters(**config))

    with pytest.raises(InputError, match="multiples of four"):
        planned(facts_of((9, 8)))
    for config in ({}, {"soft_labels": True}, {"deskew": True}):
        with pytest.raises(InputError, match="is for images"):
            planned(replace(facts_of(), image_shape=None), **config)
    with pytest.raises(InputError, match="declared range"):
        planned(replace(facts_of(), normalise=None))
    with pytest.raises(InputError, match="does not fit the rows"):
        Facts(pixel_names((6, 10)), "label", (0, 1), normalise=WAY, image_shape=SHAPE)
    with pytest.raises(InputError, match="deskew has no meaning for mixing"):
        config_of("mixing", deskew=True)
    assert usual_method(facts_of()) == "class-gaussian"  # a table will do
    assert usual_method(facts_of((28, 28))) == "image-clusters"


# -- what is made of the sums ----------------------------------------------------------------------


def test_more_noise_gives_fewer_directions_and_clusters() -> None:
    found = [tuned_clusters(60_000, 10, 96, 16, noise) for noise in (1.2, 3.0, 9.0, 100.0, 1e5)]
    assert found[0] == (79, 9)
    assert found[2] == (40, 3)
    assert found == sorted(found, reverse=True)
    assert found[-1] == (1, 1)


@given(st.integers(3, 5000), st.lists(st.floats(0.0, 1e5), min_size=1, max_size=3))
@settings(max_examples=60)
def test_rows_are_dealt_out_in_proportion_and_to_the_last(total: int, sizes: list[float]) -> None:
    given_ = np.array(sizes) + 1e-3
    found = apportioned(total, given_)
    assert found.sum() == total
    assert (found >= 1).all()
    exact = (total - len(sizes)) * given_ / given_.sum() + 1
    assert (np.abs(found - exact) < 1.0 + 1e-6).all()


def test_points_move_to_their_records_and_start_anew_without() -> None:
    points = np.array([[[0.0], [10.0], [50.0]]])
    counts, totals = np.array([[40.0, 60.0, 0.4]]), np.array([[[80.0], [-60.0], [9.0]]])
    found = moved_points(points, counts, totals, np.full((1, 3, 1), -7.0))
    assert found.ravel() == pytest.approx([2.0, 9.0, -7.0])


def test_clusters_are_found_and_no_noise_makes_one_flat() -> None:
    """Sums of two classes' two clusters with their own spreads; then the same behind noise."""
    rng = np.random.default_rng(4)
    r, n = 5, 4000
    turns = rng.normal(size=(2, 2, r, r)) * 0.2 + np.eye(r)
    means = rng.normal(size=(2, 2, r))
    rows = means[:, :, None] + np.einsum("kjnc,kjdc->kjnd", rng.normal(size=(2, 2, n, r)), turns)
    counts, totals = np.full((2, 2), float(n)), rows.sum(axis=2)
    seconds = np.einsum("kjnc,kjnd->kjcd", rows, rows)

    def covariances(found: Clusters) -> Real:
        return np.asarray(np.einsum("kjab,kjcb->kjac", found.roots, found.roots))

    plain = found_clusters(counts, totals, seconds, 0.0)
    assert np.allclose(plain.means, means, atol=0.1)
    assert np.allclose(covariances(plain), np.einsum("kjab,kjcb->kjac", turns, turns), atol=0.2)
    noisy = found_clusters(counts, totals, seconds + 1e5 * _symmetric(rng, (2, 2), r), 0.0)
    assert (np.linalg.eigvalsh(covariances(noisy)) > 1e-6).all()
    drowned = found_clusters(counts, totals, seconds, 1e9)
    assert np.abs(drowned.means).max() < 1e-3


def _symmetric(rng: np.random.Generator, shape: tuple[int, ...], r: int) -> Real:
    noise = rng.normal(size=(*shape, r, r))
    return np.asarray((noise + np.swapaxes(noise, -1, -2)) / 2)


def test_texture_has_the_spread_that_stands_out_and_the_rest_pixel_by_pixel() -> None:
    rng = np.random.default_rng(4)
    seen = smooth_directions(SHAPE, 64)
    loud = np.zeros((64, 3))
    loud[rng.choice(64, 24, replace=False).reshape(8, 3), [0, 1, 2]] = 8**-0.5
    spread = seen.T @ (loud @ np.diag([3.0, 2.0, 1.0]) @ loud.T + 0.01 * np.eye(64)) @ seen
    noise = 0.02 * _symmetric(rng, (), 64)
    edge = wigner_edge(0.02, 64)
    found = cleaned_texture(spread + noise, edge, seen, SHAPE)
    assert found.root.shape[1] == 3
    told = found.root @ found.root.T
    assert np.linalg.norm(told - loud @ np.diag([3.0, 2.0, 1.0]) @ loud.T, 2) < edge
    assert found.white.mean() == pytest.approx(0.01, abs=0.01)
    drowned = cleaned_texture(spread + noise, 100.0, seen, SHAPE)
    assert drowned.root.shape[1] == 0
    assert drowned.white.sum() == pytest.approx(np.trace(spread), rel=0.3)


# -- the whole -------------------------------------------------------------------------------------


def test_soft_labelled_rows_look_like_their_class_and_carry_its_labels() -> None:
    rows = bars(3000)
    agree, stands = [], []
    for seed in range(4):
        found = release_of(
            rows,
            "image-clusters",
            epsilon=16.0,
            soft_labels=True,
            normalise=WAY,
            samples=500,
            source=SeededSource(seed),
        )
        assert found.features.shape == (500, 64)
        assert found.features.dtype == np.float32
        assert found.features.min() >= 0.0
        assert found.features.max() <= 255.0
        assert found.soft_labels is not None
        assert np.allclose(found.soft_labels.sum(axis=1), 1.0, atol=1e-5)
        assert found.guarantee.epsilon <= 16.0
        assert documents.as_json(found.plan)["method"]["kind"] == "image-clusters"
        agree.append((found.soft_labels.argmax(axis=1) == found.labels).mean())
        images = found.features.reshape(-1, *SHAPE)
        # A bar that stands varies across, one that lies varies down.
        across, down = images.mean(axis=1).var(axis=1), images.mean(axis=2).var(axis=1)
        stands.append(((across > down) == (found.labels == 1)).mean())
    assert np.mean(agree) > 0.9
    assert np.min(stands) > 0.9


@pytest.mark.parametrize(
    ("samples", "smooth"), [(None, 1200), (1201, 1200), (1200, 1200), (3000, 1500), (7, 7)]
)
def test_rows_beyond_two_a_record_are_smooth_rows_with_another_texture(
    samples: int | None, smooth: int
) -> None:
    found = release_of(
        bars(600),
        "image-clusters",
        epsilon=8.0,
        soft_labels=True,
        normalise=WAY,
        class_sizes=(300, 300),
        samples=samples,
        source=SeededSource(3),
    )
    wanted = samples or 2400
    assert len(found.features) == len(found.labels) == wanted
    assert found.soft_labels is not None
    alike = np.unique(found.soft_labels, axis=0, return_counts=True)[1]
    assert len(alike) == pytest.approx(smooth, abs=1)
    assert alike.max() == (2 if wanted > smooth else 1)
    assert len(np.unique(found.features, axis=0)) == wanted
    assert np.bincount(found.labels) == pytest.approx([wanted / 2] * 2, abs=0.5)


@pytest.mark.parametrize("split", ["iid", "dirichlet"])
def test_images_of_any_split_and_by_every_message_are_the_same(split: Any) -> None:
    rows = replace(bars(120), feature_names=pixel_names(SHAPE))
    plan = a_plan(8.0, scheme="cape", sites=3)
    made: list[Release] = []
    for way, how, seed in (
        (LocalEngine, "iid", 1),
        (LocalEngine, split, 2),
        (InProcessEngine, split, 2),
    ):
        engine: Engine = way(list(partition(rows, 3, how, seed=seed)), SeededSource(5))
        made.append(run(plan, engine))
    for other in made[1:]:
        assert other.features.tobytes() == made[0].features.tobytes()
        assert other.soft_labels is not None
        assert made[0].soft_labels is not None
        assert other.soft_labels.tobytes() == made[0].soft_labels.tobytes()


@pytest.mark.long
def test_images_through_flower_give_the_bytes_of_one_process(tmp_path: Path) -> None:
    """Every sum there is, simulated: moments, points and heads as messages of a federation."""
    rows = replace(bars(120), feature_names=pixel_names(SHAPE))  # as a file of images names them
    sites = partition(rows, 3, "dirichlet", seed=2)
    plan = a_plan(8.0, scheme="cape", sites=3)
    outcome = run_on_loopback(
        plan, sites, tmp_path / "out", engine="simulation", test_seed=5, round_seconds=60.0
    )
    assert outcome.included == [0, 1, 2]
    one = run(plan, LocalEngine(sites, SeededSource(5)))
    one.save(tmp_path / "local")
    assert [done.sum for done in outcome.rounds[::7]] == list(one.plan.names)
    for name in ("synthetic.parquet", "synthetic.npz"):
        ours, theirs = (tmp_path / folder / name for folder in ("out", "local"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_images_that_no_message_has_room_for_are_refused_before_any_sum(tmp_path: Path) -> None:
    """The largest array comes in the middle of a release, when budget is spent."""

    def planned(side: int, classes: int) -> Plan:
        facts = facts_of((side, side), tuple(range(classes)))
        return make_plan(facts, ImageClusters(deskew=True), scheme="cape", sites=4)

    for side, classes, fits in ((36, 100, True), (48, 2, False), (60, 2, False)):
        plan = planned(side, classes)
        assert fits_in_messages(plan) == fits
        d = side**2 + 1
        method = plan.method
        assert isinstance(method, ImageClusters)
        frame = Projection(
            WAY, side**2, classes, centre=np.full((classes, d), 0.1), upright=(side, side),
            basis=np.full((d, method.textured(plan) or 0), 0.1),
            without=np.full((d, method.most_rank(plan) + 1), 0.1),
        )  # fmt: skip
        said = canonical(
            {"plan": documents.as_json(NormHistogram(frame)), "names": ["pixel_10_10"] * d}
        )
        assert (len(said) < MAX_MESSAGE - (1 << 19)) == fits
    plan = planned(48, 2).calibrate(1.0)
    (tmp_path / "plan.json").write_text(plan_text(plan))
    with pytest.raises(InputError, match="too many pixels"):
        read_plan_file(tmp_path / "plan.json")
    declined = ReleaseStep(bytes(16), plan, CLASS_SIZES, ClassCounts(2304, 2)).misfit()
    assert declined is not None
    assert "no message has room for" in declined


def test_the_command_plans_no_images_that_no_message_has_room_for(
    capemix: Capemix, tmp_path: Path
) -> None:
    words = ("federate", "plan", "--method", "image-clusters", "--soft-labels", "--epsilon", 3)
    words += ("--sites", 4, "--features", "48x48", "--label", "y", "--classes", "a,b")
    ran = capemix(*words, "--public-range", "0,1", "--out", tmp_path / "plan.json")
    assert ran.code == 2
    assert "too many pixels for a federation's messages (got 2304)" in ran.err


def test_a_plan_of_images_is_written_checked_and_set_up(capemix: Capemix, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    made = capemix(
        *("federate", "plan", "--method", "image-clusters", "--soft-labels", "--epsilon", 3),
        *("--sites", 4, "--features", "8x8", "--label", "y", "--classes", "lies,stands"),
        *("--public-range", "0,255", "--deskew", "--out", file, "--json"),
    )
    assert made.json["epsilon"] == pytest.approx(3, rel=1e-3)
    plan = read_plan_file(file)
    assert plan.method == ImageClusters(soft_labels=True, deskew=True)
    assert plan.facts.image_shape == SHAPE
    capemix("federate", "init", tmp_path / "fed", "--plan", file, "--json")
    policy = documents.read(Policy, tmp_path / "fed" / "policy.json", name="policy")
    assert policy.methods == ("image-clusters",)
    rows = bars(20)
    np.savez(
        tmp_path / "rows.npz",
        X=rows.features.reshape(-1, *SHAPE),
        y=np.array(rows.classes)[rows.labels],
    )
    words = ("site", "check", "--data", tmp_path / "rows.npz", "--plan", file)
    assert capemix(*words, "--json").json["classes"] == {"lies": 10, "stands": 10}


def test_the_page_shows_what_was_measured() -> None:
    from capemix_research.report.images_page import ablation_table, main_table, read, site_table
    from capemix_research.sweep import PEERS

    shelf = Path(__file__).parents[1] / "docs" / "research"
    rows, peers = read(shelf / "images.csv"), read(PEERS)
    sites = read(shelf / "images-sites.csv")
    page = (shelf / "images.md").read_text()
    for shown in (main_table(rows, peers), site_table(sites), ablation_table(rows)):
        assert shown in page


def test_images_with_soft_labels_from_the_command_line(tmp_path: Path, capemix: Capemix) -> None:
    out = tmp_path / "out"
    ran = capemix(
        *("synth", "--data", "digits", "--method", "image-clusters", "--soft-labels"),
        *("--epsilon", "10", "--samples", "500", "--no-ledger", "--out", out, "--json"),
    )
    assert ran.json["method"] == "image-clusters"
    assert ran.json["epsilon"] == pytest.approx(10.0, rel=1e-3)
    manifest = json.loads((out / "manifest.json").read_text())
    assert len(manifest["soft_labels"]) == 10
    scored = capemix("evaluate", out, "--test", "digits", "--json")
    assert scored.json["synthetic"]["accuracy"] > 0.85
    refused = capemix(
        *("synth", "--data", "digits", "--method", "mixing", "--deskew", "--epsilon", "1"),
        *("--no-ledger", "--out", tmp_path / "none"),
    )
    assert refused.code != 0
    assert "--deskew is no option of the method mixing" in refused.err
