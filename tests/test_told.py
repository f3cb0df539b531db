"""What cannot be told from noise is said, and something sane is taken in its place; what cannot be
meant is refused by declared numbers."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from capemix.api import Synthesizer, config_of
from capemix.collector import Collector, Origin
from capemix.data import Table
from capemix.data.rows import LabeledRows
from capemix.data.schema import Category, Number
from capemix.engines.local import LocalEngine
from capemix.errors import EpsilonError, InputError
from capemix.facts import SCALES, Facts
from capemix.methods import measured
from capemix.methods.measured import GUESS, Counted, ranges_of
from capemix.methods.mixing.planning import plan_mixtures
from capemix.methods.told import (
    CHANCE,
    more_than_noise,
    positive_mean,
    records_of,
    stands_out,
    sure,
    told_apart,
    told_sizes,
)
from capemix.plan import Plan
from capemix.randomness.source import SeededSource
from capemix.statistics.histograms import BINS, EXPONENTS, ValueSizes
from capemix.sums.query import SumQuery
from conftest import Capemix
from releasing import plan_of, release_of

Real = npt.NDArray[np.float64]

METHODS = ("class-gaussian", "mixing")


def histogram_of(values: Real) -> Real:
    """How many values each column has of each size: columns by bins."""
    asked = ValueSizes(values.shape[1])
    sums = np.zeros((1, asked.width))
    asked.add_to(sums, values, np.zeros(len(values), dtype=np.int64), None)
    return sums.reshape(values.shape[1], BINS)


def a_table(rows: int, columns: int = 20) -> LabeledRows:
    """Columns of sizes from 0.02 to 1000, each lognormal, a third of them with zeros in half of
    their rows; two classes a third of a deviation apart."""
    rng = np.random.default_rng(5)
    label = rng.integers(0, 2, rows)
    size = 2.0 ** rng.uniform(-6, 10, columns)
    features = size * np.exp(0.6 * rng.normal(size=(rows, columns)) + 0.3 * label[:, None])
    features[:, ::3] *= rng.random((rows, len(range(0, columns, 3)))) < 0.5
    return LabeledRows(
        features=features,
        labels=label,
        classes=("no", "yes"),
        feature_names=tuple(f"x{place}" for place in range(columns)),
    )


def released(
    rows: LabeledRows, epsilon: float, seed: int = 1, method: str = "class-gaussian"
) -> Any:
    return release_of(rows, method, epsilon=epsilon, source=SeededSource(seed))


# -- what noise explains: laws, and wrong laws --------------------------------------------------


def test_noise_alone_stands_out_as_seldom_as_is_said_and_more_often_where_it_is_larger() -> None:
    rng = np.random.default_rng(0)

    def often(noise: float, window: int) -> float:
        tries = noise * rng.normal(size=(4000, 33))
        return float(np.mean([stands_out(counts, 1.0, window) for counts in tries]))

    for window in (1, 4):
        assert often(1.0, window) < 1.6 * CHANCE
        assert often(1.5, window) > 5 * CHANCE
    assert stats.norm.sf(sure(33)) * 33 == pytest.approx(CHANCE)


def test_the_ranges_of_noise_alone_are_a_guess_and_wild_if_noise_is_taken_for_less() -> None:
    rng = np.random.default_rng(1)
    noisy = 100.0 * rng.normal(size=(300, 5, BINS))
    fits = [ranges_of(each, 100.0) for each in noisy]
    guessed = [found.untold == (0, 1, 2, 3, 4) and found.guessed for found in fits]
    assert np.mean(guessed) > 1 - 2 * CHANCE
    assert all((found.low[0], found.high[0]) == GUESS for found in fits if found.untold)
    wild = [float(np.abs(ranges_of(each, 50.0).high).max()) for each in noisy]
    assert np.mean(np.array(wild) > 1000.0) > 0.3


def test_columns_that_noise_hides_share_what_they_hold_together() -> None:
    rng = np.random.default_rng(2)
    values = np.where(rng.random((400, 40)) < 0.5, 0.0, rng.uniform(1.0, 3.9, size=(400, 40)))
    histogram = histogram_of(values)
    noisy = histogram + 100.0 * rng.normal(size=histogram.shape)
    found = ranges_of(noisy, 100.0, Counted(400.0))
    assert len(found.untold) > 30
    assert not found.guessed
    assert found.shared == (0.0, 4.0)
    assert found.high.max() <= 4.0
    (said,) = found.warnings([f"x{n}" for n in range(40)], 100.0)
    assert "cannot be told from noise (deviation 100 records)" in said
    assert "0 to 4, what they surely hold taken together" in said


def test_records_that_a_range_surely_lacks_are_told_and_a_few_are_not() -> None:
    def of(far: int) -> Any:
        values = np.concatenate([np.full(10_000 - far, 3.0), 2.0 ** (4 + np.arange(far) % 30)])
        return ranges_of(histogram_of(values[:, None]), 40.0, Counted(10_000.0, 50.0))

    assert of(500).short == ()
    assert of(1800).short == (0,)
    assert "more than a tenth of the records" in of(1800).warnings(["x"], 40.0)[0]


def test_zeros_alone_are_a_column_of_zeros_or_hide_what_is_missing() -> None:
    zeros = np.zeros((1, BINS))
    zeros[0, len(EXPONENTS)] = 1000.0
    assert ranges_of(zeros, 10.0, Counted(1000.0)).untold == ()
    assert ranges_of(zeros, 10.0, Counted(2000.0)).untold == (0,)


@pytest.mark.parametrize("seen", [-3.0, -0.5, 0.0, 1.0, 5.0])
def test_what_to_expect_of_a_number_that_is_not_negative(seen: float) -> None:
    cut = stats.truncnorm(-seen / 2.0, math.inf, loc=seen, scale=2.0)
    assert positive_mean(seen, 2.0) == pytest.approx(cut.mean(), rel=1e-6)
    assert positive_mean(seen, 0.0) == max(seen, 0.0)


def test_sizes_are_as_counted_unless_not_even_their_sum_stands_out() -> None:
    counts = np.array([500.0, 20.0, -30.0])
    kept, said = told_sizes(counts, np.maximum(counts, 1.0), 25.0, ("a", "b", "c"))
    assert kept.tolist() == [500.0, 20.0, 1.0]
    assert "2 of 3 cannot be told from noise" in said[0]
    assert said[0].endswith("b, c")
    even, said = told_sizes(counts, np.maximum(counts, 1.0), 400.0, ("a", "b", "c"))
    assert len(set(even.tolist())) == 1
    assert "the number of records cannot be told" in said[0]
    assert told_sizes(counts + 100, counts + 100, 5.0, ("a", "b", "c"))[1] == ()
    assert records_of(np.array([3.0, 4.0]), 0.0) == (7.0, True)


def test_class_centres_are_told_apart_by_the_noise_they_have_and_not_by_half_of_it() -> None:
    rng = np.random.default_rng(4)
    deviation = np.array([1.0, 2.0, 0.5])
    alike = rng.normal(size=10) + deviation[:, None] * rng.normal(size=(1000, 3, 10))
    assert np.mean([told_apart(each, deviation**2) for each in alike]) < 2 * CHANCE
    assert np.mean([told_apart(each, deviation**2 / 4) for each in alike]) > 0.9
    apart = alike + 3.0 * (np.arange(10) == 4) * np.array([1.0, 0.0, -1.0])[:, None]
    assert np.mean([told_apart(each, deviation**2) for each in apart]) > 0.9


def test_mixtures_are_more_than_noise_by_the_noise_they_have() -> None:
    rng = np.random.default_rng(6)
    noise = 0.3 * rng.normal(size=(400, 60, 8)).astype(np.float32)
    assert np.mean([more_than_noise(each, (30, 30), 0.3) for each in noise]) < 2.5 * CHANCE
    assert np.mean([more_than_noise(each, (30, 30), 0.25) for each in noise]) > 0.99
    moved = noise + np.repeat([0.1, -0.1], 30)[:, None].astype(np.float32)
    assert np.mean([more_than_noise(each, (30, 30), 0.3) for each in moved]) > 0.9


# -- releases ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("epsilon", [1.0, 0.1])
def test_few_rows_and_little_budget_give_sane_columns_and_say_so(
    epsilon: float, method: str
) -> None:
    """No number is beyond twice the largest of the rows, or 1: the largest was 1e9 times it."""
    rows = a_table(500)
    for seed in range(4):
        release = released(rows, epsilon, seed, method)
        assert np.abs(release.features).max() <= 2 * max(np.abs(rows.features).max(), 1.0)
        said = " ".join(release.warnings)
        assert "ranges: " in said
        records = sum(release.plan.known.class_sizes)
        hidden = 4 * release.plan.query(SCALES).deviation > records  # of half a range each
        assert hidden or epsilon == 1.0
        assert ("scales cannot be told from noise" in said) is hidden
        assert ("class sizes: " in said) is (epsilon < 1.0)


@pytest.mark.parametrize("method", ["class-gaussian", "tables"])
@pytest.mark.parametrize("sizes", [[0, 40], [0, 0]])
@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_a_class_that_is_declared_to_have_no_record_comes_out_sane(
    epsilon: float, sizes: list[int], method: str
) -> None:
    """It is paid for by then: nothing may be divided by its size."""
    table = Table((Number("x", 0.0, 1.0, missing=True),), Category("y", ("no", "yes")))
    X = {"x": np.linspace(0.0, 1.0, 40)}
    made = Synthesizer(epsilon, schema=table, method=method, class_sizes=sizes, test_seed=1)
    found, _ = made.fit(X, ["yes"] * 40).sample()
    assert len(found["x"]) == sum(max(size, 1) for size in sizes)
    assert np.isfinite(made.release_.features).all()


@pytest.mark.parametrize("method", METHODS)
def test_many_rows_and_much_budget_warn_of_nothing(method: str) -> None:
    rows = a_table(50_000)
    release = released(rows, 10.0, method=method)
    assert release.warnings == ()
    assert np.abs(release.features).max() <= 2 * np.abs(rows.features).max()


class Repeating:
    """An engine that answers each sum as it was answered the first time, whatever the rows are."""

    def __init__(self, rows: LabeledRows, seed: int, heard: dict[str, Any]) -> None:
        self._engine, self._heard = LocalEngine(rows, SeededSource(seed)), heard

    def check(self, plan: Plan) -> None:
        self._engine.check(plan)

    def origin(self, plan: Plan) -> Origin:
        return self._engine.origin(plan)

    def list_classes(self, plan: Plan, query: SumQuery, failure: float) -> dict[str, float]:
        return self._engine.list_classes(plan, query, failure)

    def sum(self, plan: Plan, query: SumQuery) -> Any:
        return self._heard.setdefault(query.name, self._engine.sum(plan, query)).copy()


def test_warnings_follow_from_noisy_sums_alone() -> None:
    """Two tables that have nothing in common, and the same noisy sums: the same is said."""
    other = a_table(9000)
    object.__setattr__(other, "features", -1e6 * other.features)
    heard: dict[str, Any] = {}
    found: list[tuple[Facts, tuple[str, ...]]] = []
    for seed, rows in enumerate((a_table(500), other), 1):
        plan = plan_of(rows, "class-gaussian", epsilon=0.2, delta=1e-6)
        sums = Collector(plan, Repeating(rows, seed, heard))
        found.append((measured.measure(sums), sums.warnings))
    assert set(heard) == {"class sizes", "ranges", "means and scales"}
    assert found[0] == found[1]
    assert found[0][1]


def test_warnings_are_in_the_manifest_and_shown(capemix: Capemix, tmp_path: Path) -> None:
    rows = a_table(500, 4)
    names = [*rows.feature_names, "y"]
    lines = [",".join(names)] + [
        ",".join([*(f"{value:.6g}" for value in row), rows.classes[label]])
        for row, label in zip(rows.features, rows.labels, strict=True)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    asked = ("synth", "--data", tmp_path / "rows.csv", "--label", "y", "--classes", "no,yes")
    asked += ("--epsilon", 0.1, "--no-ledger", "--method", "class-gaussian")
    shown = capemix(*asked, "--out", tmp_path / "one")
    assert shown.code == 0
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    # By true noise: that one column of the four stands out by chance is rare, not impossible.
    told = re.compile("ranges: [2-4] of 4 cannot be told from noise")
    assert any(map(told.match, manifest["warnings"]))
    assert re.search(f"Warning: {told.pattern}", shown.out)
    ran = capemix(*asked, "--out", tmp_path / "two", "--json")
    assert any(map(told.match, json.loads(ran.out)["warnings"]))
    fitted = Synthesizer(0.1, method="class-gaussian", classes=("no", "yes")).fit(
        rows.features, np.array(rows.classes)[rows.labels]
    )
    assert any(map(told.match, fitted.release_.warnings))


# -- what cannot be meant ------------------------------------------------------------------------


def never(*_args: Any, **_asked: Any) -> Any:
    raise AssertionError("rows were read")


@pytest.mark.parametrize(
    "config", [{"method": "class-gaussian"}, {}, {"pool": "all"}], ids=["gaussian", "mixing", "all"]
)
def test_an_epsilon_that_cannot_be_delivered_is_refused_before_rows_are_read(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = a_table(500, 3)
    asked: dict[str, Any] = {"source": SeededSource(1), **config}
    with monkeypatch.context() as patched:
        patched.setattr("capemix.engines.local.prepare_records", never)
        with pytest.raises(EpsilonError, match=r"epsilon is more than.*\(got 1000\)") as said:
            release_of(rows, epsilon=1000.0, **asked)
    most = math.floor(10 * said.value.most) / 10
    assert f"give at most {most:g}, or inf" in str(said.value)
    release = release_of(rows, epsilon=most, **asked)  # what is offered is delivered
    assert release.guarantee.epsilon == pytest.approx(most, rel=2e-3)


def test_a_plan_delivers_the_epsilon_asked_for_or_refuses_it() -> None:
    plan = plan_mixtures(width=3, class_sizes=(500, 500), samples=20, mixture=4)
    with pytest.raises(EpsilonError) as said:
        plan.calibrate(1000.0)
    for epsilon in (0.5, 5.0, 0.99 * said.value.most):
        found = plan.calibrate(epsilon).guarantee().epsilon
        assert found == pytest.approx(epsilon, rel=0.03)
        assert found <= epsilon
    with pytest.raises(EpsilonError):
        plan.calibrate(1.01 * said.value.most)


def test_a_mixture_beyond_the_declared_sizes_is_refused_before_rows_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("capemix.engines.local.prepare_records", never)
    for pool in ("class", "all"):
        with pytest.raises(InputError, match=r"^mixture is larger than.*\(got 5000\)"):
            release_of(
                a_table(500, 3),
                epsilon=1.0,
                class_sizes=(250, 250),
                mixture=5000,
                pool=pool,
                source=SeededSource(1),
            )


def test_a_mixture_beyond_the_noisy_sizes_is_said() -> None:
    for mixture, is_said in ((16, False), (5000, True)):
        release = release_of(
            a_table(3000, 3),
            epsilon=8.0,
            mixture=mixture,
            samples=20,
            source=SeededSource(1),
        )
        said = [text for text in release.warnings if "than the 5000 that a mixture takes" in text]
        assert bool(said) is is_said


UNUSED: dict[str, dict[str, Any]] = {
    "colluding": {"colluding": 2},
    "dropouts": {"dropouts": 1},
    "masks": {"masks": "gaussian"},
    "peers": {"peers": 4},
    "form": {"form": "algorithm1"},
    "printed_theorem": {"printed_theorem": True},
    "samples": {"samples": 1},
}


@pytest.mark.parametrize("field", UNUSED)
def test_a_field_that_would_be_left_unused_is_refused(field: str) -> None:
    asked = {"width": 3, "class_sizes": (50, 50), "samples": 20, "mixture": 4}
    plan_mixtures(**asked)
    with pytest.raises(InputError, match=f"^{field} "):
        plan_mixtures(**asked | UNUSED[field])


@pytest.mark.parametrize("method", ["class-gaussian", "image-clusters"])
def test_what_a_method_does_not_have_is_refused(method: str) -> None:
    with pytest.raises(InputError, match=rf"^tune has no meaning for {method} "):
        config_of(method, tune=True)


@pytest.mark.parametrize(
    ("option", "more"),
    [
        ("--public-center", ("--public-range", "none", "--public-center", "1")),
        ("--alpha", ("--alpha", "0.5")),
        ("--public-range", ("--normalise", "site-zscore", "--public-range", "0,1")),
        ("--epsilon", ()),
    ],
)
def test_the_command_refuses_what_it_would_not_use(
    option: str, more: tuple[str, ...], capemix: Capemix, tmp_path: Path
) -> None:
    epsilon = 1 if more else 1000
    ran = capemix(
        *("synth", "--data", "digits", "--epsilon", epsilon, "--no-ledger", *more),
        *("--out", tmp_path / "out"),
    )
    assert ran.code == 2
    assert f"{option} " in ran.err
    assert not (tmp_path / "out").exists()
