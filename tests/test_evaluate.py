"""What a release is worth: accuracy, by class, confusion, beside the same model on real rows."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capemix.api import config_of, synthesize
from capemix.data import load_dataset
from capemix.errors import InputError
from capemix.evaluate import Classifier, Predicted, Score, preparation_of, recoded, train_and_test
from capemix.facts import Facts
from capemix.methods.mixing.planning import plan_mixtures
from capemix.plan import make_plan
from capemix.randomness.source import SeededSource
from capemix.release import Release, read_release
from capemix.sums.rows import Preparation
from capemix.sums.steps import PublicMap
from conftest import Capemix
from world import labeled_rows


@pytest.fixture(scope="module")
def digits_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    train, _ = load_dataset("digits")
    sizes = tuple(train.class_counts().tolist())
    facts = Facts.of(train, class_sizes=sizes, normalise=PublicMap.of_range(0, 16))
    plan = make_plan(facts, config_of("mixing", clip=4.0, samples=300)).calibrate(10.0)
    release = synthesize(plan, train, source=SeededSource(0))
    return release.save(tmp_path_factory.mktemp("digits") / "release")


def bars(path: Path, rows: int, *, classes: int = 4, side: int = 28, seed: int = 0) -> Path:
    """An array file of images with a bar whose place is the class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    images = rng.uniform(0, 0.3, (rows, side, side))
    for row, label in enumerate(labels):
        images[row, 2 * label + 3 : 2 * label + 6] = 1.0
    np.savez(path, X=images, y=labels)
    return path


# -- the command -----------------------------------------------------------------------------------


def test_the_scores_agree_with_the_confusion_matrix(capemix: Capemix, digits_release: Path) -> None:
    found = capemix("evaluate", digits_release, "--json").json
    assert found["model"] == "logreg"
    assert (found["public_rows"], found["private"]) == (True, None)
    _, test = load_dataset("digits")
    for kind in ("synthetic", "real"):
        confusion = np.array(found[kind]["confusion"])
        assert confusion.sum(axis=1).tolist() == test.class_counts().tolist()
        assert found[kind]["accuracy"] == pytest.approx(np.trace(confusion) / len(test))
        by_class = confusion.diagonal() / confusion.sum(axis=1)
        assert found[kind]["per_class"] == pytest.approx(by_class.tolist())
        assert found[kind]["accuracies"] == [found[kind]["accuracy"]]
        assert found[kind]["spread"] is None
    assert found["ratio"] == pytest.approx(
        found["synthetic"]["accuracy"] / found["real"]["accuracy"]
    )
    alone = capemix("evaluate", digits_release, "--no-compare", "--json").json
    assert alone["real"] is None
    assert alone["synthetic"] == found["synthetic"]


def test_the_terminal_shows_both_confusion_matrices(capemix: Capemix, digits_release: Path) -> None:
    shown = capemix("evaluate", digits_release).out
    for words in ("trained on real rows", "accuracy by class", "release: true class", "real rows:"):
        assert words in shown
    assert "keep it to yourself" not in shown


def test_several_seeds_give_a_spread(capemix: Capemix, digits_release: Path) -> None:
    words = ["--model", "forest", "--seeds", 2, "--no-compare"]
    found = capemix("evaluate", digits_release, *words, "--json").json["synthetic"]
    assert len(found["accuracies"]) == 2
    assert found["accuracy"] == pytest.approx(np.mean(found["accuracies"]))
    assert found["spread"] == pytest.approx(np.std(found["accuracies"], ddof=1))
    assert np.sum(found["confusion"]) == 2 * 355
    assert "2 seeds" in capemix("evaluate", digits_release, *words).out


def test_the_cnn_learns_from_a_release_of_images(capemix: Capemix, tmp_path: Path) -> None:
    train, test = bars(tmp_path / "train.npz", 240), bars(tmp_path / "test.npz", 60, seed=1)
    out = tmp_path / "release"
    made = capemix(
        *("synth", "--data", train, "--public-range", "0,1", "--epsilon", "inf", "--no-ledger"),
        *("--method", "mixing", "--mixture", 2, "--samples", 120, "--out", out, "--json"),
    )
    assert made.code == 0, made.err
    words = ["--model", "cnn", "--epochs", 4, "--learning-rate", 3e-3, "--test", test]
    ran = capemix("evaluate", out, *words, "--train", train, "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["epochs"], ran.json["learning_rate"]) == (4, 3e-3)
    assert ran.json["synthetic"]["accuracy"] > 0.5
    assert ran.json["real"]["accuracy"] > 0.5
    assert ran.json["public_rows"] is False
    said = capemix("evaluate", out, *words, "--no-compare", "--seeds", 2).out
    assert "keep it to yourself" in said
    assert "2 seeds" in said


def test_a_file_is_not_public_because_the_other_rows_are(
    capemix: Capemix, digits_release: Path, tmp_path: Path
) -> None:
    train, _ = load_dataset("digits")
    np.savez(tmp_path / "own.npz", X=train.features.reshape(-1, 8, 8)[:200], y=train.labels[:200])
    words = ["evaluate", digits_release, "--train", tmp_path / "own.npz", "--json"]
    ran = capemix(*words)
    assert ran.code == 0, ran.err
    assert ran.json["public_rows"] is False
    assert "keep it to yourself" in ran.json["private"]
    declared = capemix(*words, "--rows-are-public").json
    assert (declared["public_rows"], declared["private"]) == (True, None)
    assert declared["synthetic"] == ran.json["synthetic"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "cnn"], "is for images of 28 x 28 (got 8 x 8)"),
        (["--epochs", 3], "--epochs has no meaning for logreg"),
        (["--model", "forest", "--device", "cuda"], "--device has no meaning for forest"),
        (["--seeds", 3], "--seeds has no meaning for logreg"),
        (["--model", "forest", "--seeds", 0], "--seeds must be at least 1"),
    ],
)
def test_what_a_model_does_not_have_is_one_sentence(
    capemix: Capemix, digits_release: Path, words: list[object], says: str
) -> None:
    ran = capemix("evaluate", digits_release, *words)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("option", ["--test", "--train"])
def test_images_of_another_size_are_refused(
    capemix: Capemix, digits_release: Path, tmp_path: Path, option: str
) -> None:
    """Their corner has pixels of the same names, and would be scored."""
    others = bars(tmp_path / "others.npz", 40)
    ran = capemix("evaluate", digits_release, option, others)
    assert (ran.code, ran.out) == (2, "")
    assert f"{option} must have images of the release's size, 8 x 8 (got 28 x 28)" in ran.err
    assert ran.err.count("\n") == 1


# -- the library -----------------------------------------------------------------------------------


def test_a_manifest_says_how_rows_were_prepared(digits_release: Path) -> None:
    manifest = read_release(digits_release).manifest
    assert preparation_of(manifest) == Preparation(PublicMap.of_range(0, 16), 4.0)
    found = preparation_of(replace(manifest, clip=None))  # rows were not clipped as a whole
    rows = np.full((2, 64), 1e9)
    assert np.array_equal(found.apply(rows), Preparation(found.normalise, 1e300).apply(rows))


IDENTITY = Preparation(PublicMap(), 1e6)


def test_classes_of_real_rows_are_matched_by_name() -> None:
    rows = labeled_rows(np.eye(4), ["d", "b", "a", "x"])
    kept = recoded(rows, ("a", "b", "c", "d"))
    assert kept.labels.tolist() == [3, 1, 0]
    assert np.array_equal(kept.features, np.eye(4)[:3])
    assert recoded(kept, ("a", "b", "c", "d")) is kept


def test_test_rows_of_unknown_classes_are_left_out() -> None:
    train = labeled_rows([[0.0], [0.1], [5.0], [5.1]], ["a", "a", "c", "c"])
    test = labeled_rows([[0.0], [5.0], [9.0]], ["a", "c", "z"])
    score = train_and_test(train, test, IDENTITY).declared_public()
    assert score.confusion == ((1, 0), (0, 1))
    with pytest.raises(InputError, match="none of the release's classes"):
        train_and_test(train, labeled_rows([[0.0]], ["z"]), IDENTITY)
    with pytest.raises(InputError, match="all of one class"):
        train_and_test(train.take([0, 1]), test, IDENTITY)


def test_a_private_score_shows_to_its_owner_alone() -> None:
    rows = labeled_rows([[0.0], [0.1], [5.0], [5.1]], ["a", "a", "c", "c"])
    score = train_and_test(rows, rows, IDENTITY)
    for text in (repr(score), str(score), f"{score}", repr([score])):
        assert "1.0" not in text
        assert "Private(...)" in text
    with pytest.raises(AttributeError):
        score.accuracy  # type: ignore[attr-defined]  # noqa: B018
    for write in (copy.deepcopy, pickle.dumps, lambda found: found.__getstate__()):
        with pytest.raises(TypeError, match="private"):
            write(score)
    seen: list[Score] = []
    assert score.for_owner(seen.append) is None  # type: ignore[func-returns-value]
    assert seen == [score.declared_public()]


def test_a_private_score_has_no_way_into_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever forgets that it is private is told when the release is written, and nothing is."""
    rows = labeled_rows([[0.0], [0.1], [5.0], [5.1]], ["a", "a", "c", "c"])
    score = train_and_test(rows, rows, IDENTITY)
    plan = plan_mixtures(width=1, classes=("a", "c"), class_sizes=(2, 2), samples=2, mixture=1)
    release = synthesize(plan.calibrate(1.0), rows)
    honest = release.manifest({})

    def boasting(said: Any) -> Any:
        return replace(honest, plan={**honest.plan, "score": said})

    boasts: tuple[Any, ...] = (score, [score], {"accuracy": score})
    for manifest in (*map(boasting, boasts), replace(honest, warnings=(score,))):  # type: ignore[arg-type]
        monkeypatch.setattr(Release, "manifest", lambda *_, said=manifest: said)
        with pytest.raises(TypeError, match="a Private has no place in a document"):
            release.save(tmp_path / "release")
        assert not list(tmp_path.iterdir())
    declared = boasting(score.declared_public().as_json())
    monkeypatch.setattr(Release, "manifest", lambda *_: declared)
    assert '"accuracy": 1.0' in (release.save(tmp_path / "release") / "manifest.json").read_text()


MANIFESTS = """
from dataclasses import replace

from capemix.evaluate import Score
from capemix.identity import Member
from capemix.manifest import Manifest
from capemix.private import Private
from capemix.release import Release

class Boasting(Release):
    score: Private[Score]

    def manifest(self, digests: dict[str, str], signer: Member | None = None) -> Manifest:
        found = super().manifest(digests)
        found.plan["score"] = self.score  # refused
        found.plan["score"] = [self.score]  # refused
        found.plan["score"] = {"test": self.score}  # refused
        found.plan["score"] = self.score.accuracy  # refused
        found.plan["score"] = self.score.as_json()  # refused
        found.guarantee["score"] = self.score.for_owner(print)  # refused
        found.guarantee["score"] = self.score.beside(None, lambda one, _: one)  # refused
        found.plan["score"] = self.score.declared_public()  # refused: a score alone is not JSON
        found.plan["score"] = self.score.declared_public().accuracy
        found.plan["score"] = self.score.declared_public().as_json()
        found = replace(found, clip=self.score)  # refused
        found = replace(found, warnings=(self.score,))  # refused
        return replace(found, score=self.score)  # refused: there is no such part
"""


def test_mypy_refuses_a_private_score_in_a_manifest(tmp_path: Path) -> None:
    snippet = tmp_path / "boasting.py"
    snippet.write_text(MANIFESTS)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--no-error-summary", snippet],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "MYPYPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    refused = {int(line) for line in re.findall(r"boasting\.py:(\d+): error", ran.stdout)}
    lines = enumerate(MANIFESTS.splitlines(), start=1)
    assert refused == {number for number, line in lines if "# refused" in line}, ran.stdout


def test_a_score_of_several_seeds() -> None:
    said = Predicted(np.array([[0, 1, 1], [0, 0, 1]]))
    score = Score.of(np.array([0, 0, 1]), said, 3)
    assert score.accuracies == pytest.approx((2 / 3, 1.0))
    assert score.accuracy == pytest.approx(5 / 6)
    assert score.per_class == (0.75, 1.0, None)
    assert score.confusion == ((3, 1, 0), (0, 2, 0), (0, 0, 0))


def test_the_cnn_refuses_what_it_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = np.zeros((12, 784))
    with pytest.raises(InputError, match=r"28 x 28 \(got 1 x 100\)"):
        Classifier("cnn").predictions(wide[:, :100], np.zeros(12, np.int64), wide[:, :100])
    with pytest.raises(InputError, match=r"10 outputs.*12 classes"):
        Classifier("cnn").predictions(wide, np.arange(12), wide)
    with pytest.raises(InputError, match="model is unknown"):
        Classifier("svm")
    for name in [name for name in sys.modules if name.startswith("capemix.evaluate.")]:
        if name.rpartition(".")[2] == "cnn":
            monkeypatch.delitem(sys.modules, name)
    import capemix.evaluate

    monkeypatch.delattr(capemix.evaluate, "cnn", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"needs torch; install it: pip install 'capemix\[torch\]"):
        Classifier("cnn").predictions(wide, np.zeros(12, np.int64), wide, image_shape=(28, 28))
