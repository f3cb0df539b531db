"""Rows drawn anew from noisy mixtures: the class's own centre and spread come back, noise does
not, and nothing is read but the release."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from capemix import documents
from capemix.api import synthesize
from capemix.data import load_dataset, partition
from capemix.engines.in_process import InProcessEngine
from capemix.errors import InputError
from capemix.evaluate import train_and_test
from capemix.facts import Facts
from capemix.methods.mixing import Mixing
from capemix.methods.mixing.denoise import class_moments, freed_of_noise, noise_edge
from capemix.methods.mixing.planning import plan_mixtures
from capemix.methods.mixing.tuning import DRAWS, MIXTURES, tuned
from capemix.plan import Plan, make_plan
from capemix.queries import Selection
from capemix.randomness.source import SeededSource
from capemix.run import run
from capemix.sums.rows import Preparation
from capemix.sums.steps import PublicMap
from conftest import Capemix
from world import labeled_rows

Real = npt.NDArray[np.float64]


def a_class(rows: int = 4000, columns: int = 12) -> Real:
    """Far from the origin, two directions wider than the others."""
    rng = np.random.default_rng(0)
    scale = np.full(columns, 0.2)
    scale[:2] = 2.0, 1.0
    return np.asarray(rng.normal(size=(rows, columns)) * scale + np.linspace(-1.0, 1.0, columns))


def mixed(rows: Real, draws: int, mixture: int, noise: float, *, poisson: bool) -> Real:
    rng = np.random.default_rng(1)
    out = np.empty((draws, rows.shape[1]))
    for t in range(draws):
        if poisson:
            chosen = rng.random(len(rows)) < mixture / len(rows)
        else:
            chosen = rng.permutation(len(rows)) < mixture
        out[t] = rows[chosen].sum(axis=0) / mixture
    return out + noise * rng.normal(size=out.shape)


@pytest.mark.parametrize("poisson", [True, False])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_centre_and_spread_of_a_class_come_back_from_its_mixtures(
    poisson: bool, noise: float
) -> None:
    rows = a_class()
    found = mixed(rows, 4000, 40, noise, poisson=poisson)
    centre, spread = class_moments(found, rows_mixed=40, rate=0.01, noise=noise, poisson=poisson)
    true = np.cov(rows.T)
    assert centre == pytest.approx(rows.mean(axis=0), abs=0.02)
    assert spread[0, 0] == pytest.approx(true[0, 0], rel=0.1)
    assert spread[1, 1] == pytest.approx(true[1, 1], rel=0.15)
    assert np.trace(spread) == pytest.approx(np.trace(true), rel=0.15)
    # The other law's formula is off by the centre's own square, and another noise by its trace.
    _, wrong = class_moments(found, rows_mixed=40, rate=0.01, noise=noise, poisson=not poisson)
    assert np.linalg.norm(wrong - true) > 2.5 * np.linalg.norm(spread - true)
    _, louder = class_moments(found, rows_mixed=40, rate=0.01, noise=noise + 0.05, poisson=poisson)
    assert np.trace(louder) < 0.9 * np.trace(spread)


def test_noise_alone_ends_at_the_edge_and_leaves_nothing() -> None:
    rng = np.random.default_rng(2)
    for draws, columns in ((400, 100), (60, 200)):
        noise = rng.normal(size=(draws, columns)) * 0.3
        about = noise - noise.mean(axis=0)
        found = np.sort(np.linalg.eigvalsh(about.T @ about / (draws - 1)))[::-1]
        edge = noise_edge(0.09, columns, draws)
        assert found[0] == pytest.approx(edge, rel=0.1)
        freed = freed_of_noise(found, 0.09 * 1.1, columns, draws)
        assert freed.sum() < 0.02 * found.sum()
        assert freed.min() >= 0.0


def test_what_stands_out_is_given_its_variance_back() -> None:
    """The inverse of what noise does to a spike, in a setting with fewer draws than columns."""
    rng = np.random.default_rng(3)
    draws, columns, noise = 150, 300, 0.04
    rows = math.sqrt(noise) * rng.normal(size=(draws, columns))
    rows[:, 0] += rng.normal(size=draws) * 2.0
    about = rows - rows.mean(axis=0)
    found = np.sort(np.linalg.eigvalsh(about.T @ about / (draws - 1)))[::-1]
    own = float(np.var(rows[:, 0]))
    freed = freed_of_noise(found, noise, columns, draws)
    assert freed[0] == pytest.approx(own - noise, rel=0.05)
    assert found[0] > own * 1.01  # as it stands it has noise of all columns in it


# -- releases --------------------------------------------------------------------------------------


def a_plan(**asked: Any) -> Plan:
    train, _ = load_dataset("digits")
    return plan_mixtures(
        **{
            "width": 64,
            "classes": train.classes,
            "class_sizes": tuple(train.class_counts().tolist()),
            "samples": 500,
            "mixture": 8,
            "clip": 4.0,
            "normalise": PublicMap.of_range(0, 16),
            **asked,
        }
    )


def test_rows_drawn_anew_cost_nothing_and_are_as_many_as_wanted() -> None:
    train, _ = load_dataset("digits")
    raw, drawn = (a_plan(redraw=redraw).calibrate(4.0) for redraw in (None, 777))
    assert raw.multiplier == drawn.multiplier
    assert raw.guarantee() == drawn.guarantee()
    assert raw.costs() == drawn.costs()
    release = synthesize(drawn, train, source=SeededSource(1))
    assert len(release) == 777
    assert np.ptp(np.bincount(release.labels, minlength=10)) <= 1
    assert 0.0 <= release.features.min() <= release.features.max() <= 16.0
    again = synthesize(drawn, train, source=SeededSource(1))
    assert np.array_equal(release.features, again.features)
    other = synthesize(drawn, train, source=SeededSource(2))
    assert not np.array_equal(release.features, other.features)


def test_every_engine_draws_the_same_rows() -> None:
    train, _ = load_dataset("digits")
    parts = partition(train, 3, "iid", seed=0)
    plan = a_plan(scheme="cape", sites=3, redraw=200).calibrate(4.0)
    local = synthesize(plan, parts, source=SeededSource(5))
    protocol = run(plan, InProcessEngine(parts, SeededSource(5)))
    assert np.array_equal(local.features, protocol.features)


def test_rows_drawn_anew_tell_classes_apart_by_their_spread() -> None:
    """Two classes about one centre, one wide where the other is narrow: mixtures of 64 rows lie
    within an eighth of that, all in one place; rows drawn anew are as wide as the classes."""
    rng = np.random.default_rng(6)

    def of_both(count: int) -> tuple[Real, npt.NDArray[np.int64]]:
        labels = np.arange(2 * count) % 2
        scale = np.where(labels[:, None] == 0, [0.4, 0.05], [0.05, 0.4])
        return np.clip(rng.normal(size=(2 * count, 2)) * scale, -1, 1), labels

    train, test = (labeled_rows(*of_both(count), (0, 1)) for count in (20_000, 1000))
    how = Preparation(PublicMap.of_range(-1, 1), 1e30)
    scores = {}
    for redraw in (None, 2000):
        facts = Facts.of(train, class_sizes=(20_000, 20_000), normalise=PublicMap.of_range(-1, 1))
        method = Mixing(mixture=64, samples=800, clip=0.8, redraw=redraw)
        plan = make_plan(facts, method).calibrate(10.0)
        release = synthesize(plan, train, source=SeededSource(0))
        made = labeled_rows(release.features, release.labels, (0, 1))
        found = train_and_test(made, test, how, model="forest", prepared=True)
        scores[redraw] = found.declared_public().accuracy
    assert scores[None] < 0.8 < 0.85 < scores[2000]


def test_a_plan_with_rows_drawn_anew_comes_back_from_its_text() -> None:
    plan = a_plan(redraw=100).calibrate(2.0)
    assert documents.from_json(Plan, documents.as_json(plan), name="the plan") == plan


def test_what_cannot_be_drawn_anew_is_refused() -> None:
    with pytest.raises(InputError, match="redraw must be a number of rows from 10"):
        a_plan(redraw=9)
    for rows in (-1, 2**50):
        with pytest.raises(InputError, match="redraw must be whole numbers up to"):
            a_plan(redraw=rows)
    with pytest.raises(InputError, match="classes mixed apart"):
        a_plan(redraw=100, pool="all")
    with pytest.raises(InputError, match="classes mixed apart"):
        a_plan(redraw=100, accountant="paper")
    with pytest.raises(InputError, match="two mixtures of every class"):
        a_plan(redraw=100, samples=10)
    fixed = a_plan(redraw=100, selection=Selection.FIXED, relation="replace-one").method
    assert isinstance(fixed, Mixing)
    assert fixed.redraw == 100


# -- choosing without looking ----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_the_choice_has_the_lowest_edge_of_all_that_are_tried(epsilon: float) -> None:
    def edge(draws: int, mixture: int) -> float:
        plan = a_plan(samples=10 * draws, mixture=mixture).calibrate(epsilon)
        return noise_edge(plan.query("mixtures").deviation ** 2 * mixture, 64, draws)

    def chosen(size: int) -> tuple[int, int]:
        plan = replace(a_plan(mixture=1, class_sizes=(size,) * 10), epsilon=epsilon)
        return tuned(Mixing(clip=4.0, redraw=100, tune=True), plan)

    draws, mixture = chosen(140)
    tried = {(t, m): edge(t, m) for t in DRAWS for m in MIXTURES if 2 * m <= 140}
    assert min(tried, key=lambda pair: tried[pair]) == (draws, mixture)
    assert edge(draws, mixture) < 0.7 * edge(1600, 4)
    with pytest.raises(InputError, match="nothing to choose from"):
        chosen(7)


def test_the_choice_reads_no_row() -> None:
    train, _ = load_dataset("digits")
    other = replace(train, features=np.zeros_like(train.features), labels=train.labels[::-1])
    sizes = tuple(train.class_counts().tolist())
    plans = []
    for rows in (train, other):
        facts = Facts.of(rows, class_sizes=sizes, normalise=PublicMap.of_range(0, 16))
        plan = make_plan(facts, Mixing(clip=4.0, redraw=100, tune=True)).calibrate(4.0)
        plans.append(synthesize(plan, rows, source=SeededSource(0)).plan)
    assert plans[0] == plans[1]
    assert isinstance(plans[0], Plan)
    assert isinstance(plans[0].method, Mixing)
    assert not plans[0].method.tune


@pytest.mark.parametrize("given", [{"samples": 50}, {"mixture": 8}])
def test_what_is_tuned_is_not_given_too(given: dict[str, int]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(given))} is chosen by 'tune'"):
        Mixing(redraw=100, tune=True, **given)  # type: ignore[arg-type]


def test_nothing_is_tuned_where_there_is_no_noise() -> None:
    train, _ = load_dataset("digits")
    facts = Facts.of(train, class_sizes=(140,) * 10, normalise=PublicMap.of_range(0, 16))
    with pytest.raises(InputError, match="tune chooses mixtures by the noise"):
        make_plan(facts, Mixing(redraw=100, tune=True)).calibrate(math.inf)


def test_tuning_by_command(tmp_path: Any, capemix: Capemix) -> None:
    asked = ("synth", "--data", "digits", "--method", "mixing", "--epsilon", 4, "--no-ledger")
    asked += ("--tune",)
    ran = capemix(*asked, "--redraw", 300, "--out", tmp_path / "out", "--json")
    assert ran.code == 0, ran.err
    assert '"redraw": 300' in (tmp_path / "out" / "manifest.json").read_text()
    ran = capemix(*asked, "--out", tmp_path / "no")
    assert "redraw" in ran.err
    ran = capemix(*asked, "--redraw", 300, "--mixture", 4, "--out", tmp_path / "no")
    assert "mixture is chosen by" in ran.err
    assert not (tmp_path / "no").exists()
