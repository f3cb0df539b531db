"""The least epsilon for a utility: the search, its file of trials, and the command."""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from capemix.api import config_of
from capemix.data import load_dataset
from capemix.errors import InputError
from capemix.evaluate import Classifier
from capemix.facts import Facts
from capemix.plan import make_plan
from capemix.sums.rows import Preparation
from capemix.sums.steps import PublicMap
from capemix_research.frontier import Point, Task, Trials, most_points, search
from conftest import Capemix

QUICK: list[object] = ["--samples", 100, "--seeds", 2, "--from", 0.1, "--to", 8, "--within", 2]


# -- the search ------------------------------------------------------------------------------------


def curve(epsilon: float) -> Point:
    """Half of the utility at epsilon 1, three quarters at 3."""
    utility = epsilon / (1 + epsilon)
    return Point(epsilon, (utility - 0.001, utility + 0.001))


@pytest.mark.parametrize("within", [1.01, 1.1, 2.0])
def test_the_bracket_holds_the_least_epsilon_and_is_as_narrow_as_asked(within: float) -> None:
    tried: list[float] = []

    def measure(epsilon: float) -> Point:
        tried.append(epsilon)
        return curve(epsilon)

    found = search(measure, theta=0.75, real=1.0, low=0.1, high=30, within=within)
    assert found.below is not None
    assert found.reached is not None
    assert found.below < 3 <= found.reached
    assert found.reached / found.below <= within
    assert len(tried) == len(set(tried)) <= most_points(0.1, 30, within)
    assert [point.epsilon for point in found.points] == sorted(tried)
    assert found.falls == ()
    assert f"epsilon {found.reached:g} reaches 0.750" in found.says()


def test_an_end_of_the_range_can_be_the_answer() -> None:
    none = search(curve, theta=0.99, real=1.0, low=0.1, high=30, within=1.1)
    assert (none.below, none.reached, len(none.points)) == (30, None, 1)
    assert "no epsilon up to 30 reaches" in none.says()
    already = search(curve, theta=0.05, real=1.0, low=0.1, high=30, within=1.1)
    assert (already.below, already.reached, len(already.points)) == (None, 0.1, 2)
    assert "the least that was tried" in already.says()


def test_theta_is_a_part_of_the_real_utility() -> None:
    found = search(curve, theta=0.5, real=0.8, low=0.1, high=30, within=1.01)
    assert found.target == pytest.approx(0.4)
    assert found.reached == pytest.approx(2 / 3, rel=0.02)  # e / (1 + e) = 0.4


def test_a_curve_that_falls_is_reported_and_its_bracket_is_a_crossing() -> None:
    def measure(epsilon: float) -> Point:
        return Point(epsilon, (curve(epsilon).mean + 0.2 * math.sin(6 * math.log(epsilon)),))

    found = search(measure, theta=0.6, real=1.0, low=0.1, high=30, within=1.05)
    assert found.falls
    by_epsilon = {point.epsilon: point.mean for point in found.points}
    assert found.reached is not None
    assert found.below is not None
    assert by_epsilon[found.below] < found.target <= by_epsilon[found.reached]


def test_what_chance_could_have_done() -> None:
    assert Point(1.0, (0.5, 0.52, 0.48)).beyond_chance(0.6)
    assert not Point(1.0, (0.5, 0.52, 0.48)).beyond_chance(0.51)
    assert not Point(1.0, (0.5,)).beyond_chance(0.9)  # one seed tells nothing of its spread
    assert Point(1.0, (0.5,)).spread is None


def test_progress_counts_trials_and_never_runs_back(tmp_path: Path) -> None:
    train, test = load_dataset("digits")
    task = Task(
        sites=[train],
        real=train,
        test=test,
        classifier=Classifier("forest"),
        plan=make_plan(
            Facts.of(
                train,
                class_sizes=tuple(train.class_counts().tolist()),
                normalise=PublicMap.of_range(0, 16),
            ),
            config_of("mixing", samples=50, mixture=4, clip=4.0),
        ),
    )
    assert task.preparation == Preparation(PublicMap.of_range(0, 16), 4.0)
    undeclared = replace(task.plan, facts=Facts.of(train))
    with pytest.raises(InputError, match="public_range must be declared"):
        replace(task, plan=undeclared)
    told: list[tuple[float, float]] = []

    class Quick(Trials):
        def real(self, seed: int, score: object) -> float:  # noqa: ARG002
            return 0.9

    found = task.find(
        Quick(tmp_path / "trials.csv", {}),
        theta=0.01,
        low=5,
        high=20,
        within=1.5,
        seeds=[0],
        progress=lambda done, of: told.append((done, of)),
    )
    assert found.reached == 5
    assert told == [(1, 5), (2, 5), (3, 5)]  # real rows, the two ends; two more were possible


# -- trials on file --------------------------------------------------------------------------------


def test_a_trial_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "trials.csv"
    calls: list[str] = []

    def score(name: str, value: float) -> float:
        calls.append(name)
        return value

    for _ in range(2):
        trials = Trials(path, {"data": "digits", "mixture": 16})
        assert trials.real(0, lambda: score("real", 0.9)) == 0.9
        assert trials.synthetic(1.5, 0, lambda: score("first", 1 / 3)) == 1 / 3
        assert trials.synthetic(1.5, 1, lambda: score("second", 0.4)) == 0.4
    assert calls == ["real", "first", "second"]
    other = Trials(path, {"data": "digits", "mixture": 32})
    assert other.synthetic(1.5, 0, lambda: score("other", 0.5)) == 0.5
    with path.open() as file:
        assert len(list(csv.DictReader(file))) == 4


def test_a_line_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    for seed in range(2):
        Trials(path, {"a": 1}).synthetic(1.0, seed, lambda: 0.25)
    whole = path.read_text()
    path.write_text(whole[:-9])
    again = Trials(path, {"a": 1})
    assert again.synthetic(1.0, 0, lambda: 0.75) == 0.25
    assert again.synthetic(1.0, 1, lambda: 0.75) == 0.75
    assert path.read_text().count("\n") == 3


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    for text in ("name,age\nann,3\n", "name,age\nann", "settings,seed,utility\na,b,c\n"):
        path.write_text(text)
        with pytest.raises(InputError, match="another kind of file"):
            Trials(path, {})
        assert path.read_text() == text


# -- the command -----------------------------------------------------------------------------------


def test_the_least_epsilon_on_the_digits(research: Capemix, tmp_path: Path) -> None:
    out = tmp_path / "found"
    ran = research("frontier", "--theta", 0.7, *QUICK, "--out", out, "--json")
    assert ran.code == 0, ran.err
    found = ran.json
    assert found["real"] > 0.9
    assert 0.1 <= found["below"] < found["reached"] <= 8
    assert found["reached"] / found["below"] <= 2
    by_epsilon = {point["epsilon"]: point["mean"] for point in found["points"]}
    assert by_epsilon[found["below"]] < found["target"] <= by_epsilon[found["reached"]]
    assert (out / "frontier.png").read_bytes().startswith(b"\x89PNG")
    before = (out / "trials.csv").read_text()
    assert before.count("\n") == 1 + 1 + 2 * len(found["points"])  # header, real rows, releases
    shown = research("frontier", "--theta", 0.7, *QUICK, "--out", out).out
    assert (out / "trials.csv").read_text() == before
    assert f"epsilon {found['reached']:g} reaches" in shown
    assert "outside of any budget" in shown
    assert "means of 2 seeds" in shown


def test_sites_and_the_plot_are_optional(
    research: Capemix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "capemix_research.report.frontier", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["--scheme", "cape", "--sites", 3, "--theta", 0.01, "--seeds", 1, "--samples", 50]
    ran = research("frontier", *words, "--from", 5, "--to", 20, "--out", tmp_path)
    assert ran.code == 0, ran.err
    assert "the least that was tried" in ran.out
    assert "no plot" in ran.out
    assert [path.name for path in tmp_path.iterdir()] == ["trials.csv"]


def test_a_file_is_searched_only_if_it_is_said_to_be_public(
    research: Capemix, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        labels = np.arange(200) % 2
        np.savez(tmp_path / f"{name}.npz", X=rng.normal(labels[:, None] * 2.0, 0.5), y=labels)
    out = tmp_path / "out"
    words = ["frontier", "--data", tmp_path / "train.npz", *QUICK, "--out", out]
    words += ["--public-range", "-2,4"]
    ran = research(*words)
    assert (ran.code, ran.out) == (2, "")
    assert "--rows-are-public" in ran.err
    ran = research(*words, "--rows-are-public")
    assert ran.code == 2
    assert "--test is not given" in ran.err
    assert not out.exists()
    words += ["--rows-are-public", "--test", tmp_path / "test.npz", "--theta", 0.6]
    ran = research(*words, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["real"] > 0.9


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--theta", 0], "--theta must be above 0 and at most 1"),
        (["--theta", 1.5], "--theta must be above 0 and at most 1"),
        (["--from", 5, "--to", 5], "must be epsilons with 0 < from < to"),
        (["--to", "inf"], "must be epsilons with 0 < from < to"),
        (["--within", 1], "--within must be at least 1.001"),
        (["--seeds", 0], "--seeds must be at least 1"),
        (["--epochs", 2], "--epochs has no meaning for logreg"),
        (["--model", "cnn"], "is for images of 28 x 28 (got 8 x 8)"),
    ],
)
def test_a_search_that_makes_no_sense_is_one_sentence_and_leaves_nothing(
    research: Capemix, tmp_path: Path, words: list[object], says: str
) -> None:
    out = tmp_path / "out"
    ran = research("frontier", *words, "--out", out)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert not out.exists()
