"""Soft labels: written with a release, read back, noticed when changed, learnt by the CNN."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from capemix.api import config_of, synthesize
from capemix.data import LabeledRows, draft_table, open_data
from capemix.data.rows import pixel_names
from capemix.data.schema import Category, Number, Table
from capemix.errors import InputError
from capemix.evaluate import Classifier, cnn
from capemix.facts import Facts
from capemix.methods.mixing.planning import with_noise
from capemix.plan import make_plan
from capemix.randomness.source import SeededSource
from capemix.release import Release, read_release
from capemix.sums.steps import PublicMap
from conftest import Capemix
from world import labeled_rows

CLASSES = ("a.b", "a")  # a name that starts like the other's, and a dot, as nested columns have


def some_release(names: tuple[str, ...] = ("p", "q", "r", "s"), **asked: Any) -> Release:
    classes = asked.pop("classes", CLASSES)
    rows = LabeledRows(
        np.arange(24, dtype=np.float64).reshape(6, 4),
        np.array([0, 1] * 3, dtype=np.int64),
        classes,
        names,
        **asked,
    )
    facts = Facts.of(rows, class_sizes=(3, 3), normalise=PublicMap())
    plan = make_plan(facts, config_of("mixing", samples=4, mixture=1, clip=1.0))
    return synthesize(with_noise(plan, 1.0), rows, source=SeededSource(1))


def probabilities(rows: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(classes), rows).astype(np.float32)


def soft(release: Release) -> Release:
    made = probabilities(len(release), len(release.facts.listed))
    return replace(release, soft_labels=made)


def table_release() -> Release:
    table = Table((Number("x", 0.0, 10.0), Category("w", ("u", "v"))), Category("y", ("n", "m")))
    cells = [np.linspace(0, 10, 40), np.arange(40) % 2]
    rows = table.coded(cells, np.arange(40) % 2)
    plan = make_plan(Facts.of(rows), config_of("class-gaussian", samples=20)).calibrate(8.0)
    return synthesize(plan, rows, source=SeededSource(0))


# -- there and back --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["columns", "images", "table"])
def test_soft_labels_come_back_from_every_file(tmp_path: Path, kind: str) -> None:
    if kind == "table":
        release = soft(table_release())
    else:
        shape = (2, 2) if kind == "images" else None
        release = soft(some_release(image_shape=shape))
    folder = release.save(tmp_path / "release")
    saved = read_release(folder)
    assert saved.soft_labels is not None
    assert saved.soft_labels.dtype == np.float32
    assert saved.rows.classes == release.facts.listed
    np.testing.assert_array_equal(saved.soft_labels, release.soft_labels)
    np.testing.assert_array_equal(saved.rows.labels, release.labels)
    np.testing.assert_array_equal(saved.rows.features, release.features)
    columns = [f"{release.facts.label}={name}" for name in release.facts.listed]
    assert parquet.read_table(folder / "synthetic.parquet").column_names[-3:] == [
        release.facts.label,
        *columns,
    ]
    assert saved.manifest.soft_labels == tuple(columns)
    if kind == "images":
        with np.load(folder / "synthetic.npz") as arrays:
            np.testing.assert_array_equal(arrays["soft_labels"], release.soft_labels)


def test_a_release_without_them_says_nothing_of_them(tmp_path: Path) -> None:
    saved = read_release(some_release().save(tmp_path / "release"))
    assert saved.soft_labels is None
    assert saved.manifest.soft_labels is None


def test_soft_labels_are_no_features(tmp_path: Path) -> None:
    folder = soft(some_release(image_shape=(2, 2))).save(tmp_path / "release")
    table = open_data(folder / "synthetic.parquet", "label").train
    assert table.feature_names == tuple("pqrs")
    assert open_data(folder / "synthetic.npz").train.width == 4
    drafted = draft_table(folder / "synthetic.parquet", "label").table
    assert [column.name for column in drafted.columns] == list("pqrs")


# -- refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.full((4, 3), 1 / 3), r"must be floats of shape \(4, 2\).*\(4, 3\)"),
        (np.full((3, 2), 0.5), "must be floats of shape"),
        (np.array([[1, 0]] * 4), "must be floats of shape.*int64"),
        (np.array([[0.5, np.nan]] * 4), "NaN or infinite"),
        (np.array([[0.5, np.inf]] * 4), "NaN or infinite"),
        (np.array([[1.1, -0.1]] * 4), "must not be below 0"),
        (np.array([[0.5, 0.5]] * 3 + [[0.5, 0.52]]), r"must sum to 1 in every row \(got 1.02"),
    ],
)
def test_what_are_no_probabilities_is_refused(bad: np.ndarray, words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(some_release(), soft_labels=bad)


def test_sums_may_be_off_by_rounding() -> None:
    made = replace(some_release(), soft_labels=np.array([[0.5, 0.5004]] * 4))
    assert made.soft_labels is not None
    assert made.soft_labels.dtype == np.float32


def test_names_that_another_column_has_are_refused() -> None:
    with pytest.raises(InputError, match=r"name another one has \(got label=a\)"):
        soft(some_release(("p", "label=a", "r", "s")))
    with pytest.raises(InputError, match="1 and '1' are the same"):
        some_release(classes=(1, "1"))


# -- changed ---------------------------------------------------------------------------------------


def rewritten(folder: Path, change: Any, *, digest: bool) -> None:
    """The table changed; with ``digest``, by somebody who can write the manifest as well."""
    path = folder / "synthetic.parquet"
    parquet.write_table(change(parquet.read_table(path)), path)
    if digest:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(manifest))


def with_last(*values: float | None) -> Any:
    def change(table: pa.Table) -> pa.Table:
        last = table.num_columns - 1
        return table.set_column(last, table.field(last), pa.array(values, pa.float32()))

    return change


def unmarked(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([field.remove_metadata() for field in table.schema]))


def test_a_changed_soft_label_is_noticed(tmp_path: Path, capemix: Capemix) -> None:
    folder = soft(some_release()).save(tmp_path / "release")
    rewritten(folder, with_last(0.1, 0.2, 0.3, 0.4), digest=False)
    with pytest.raises(InputError, match="does not match its manifest"):
        read_release(folder)
    assert "does not match its manifest" in capemix("evaluate", folder).err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_last(0.1, 2.0, 0.3, 0.4), "must sum to 1"),
        (with_last(0.1, None, 0.3, 0.4), "NaN or infinite"),
        (lambda table: table.drop_columns(["label=a"]), "lacks the soft labels"),
        (lambda table: table.append_column(table.field(5), table.column(5)), "lacks the soft"),
        (unmarked, "lacks the soft labels"),
    ],
)
def test_what_is_no_soft_label_is_not_read_under_a_true_digest(
    tmp_path: Path, change: Any, words: str
) -> None:
    folder = soft(some_release()).save(tmp_path / "release")
    rewritten(folder, change, digest=True)
    with pytest.raises(InputError, match=words):
        read_release(folder)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (["label=a", "label=a.b"], "names other soft labels"),
        (["label=a"], "names other soft labels"),
        ({}, "no readable manifest"),
        ("label=a", "no readable manifest"),
    ],
)
def test_a_manifest_names_one_column_for_each_class(tmp_path: Path, said: Any, words: str) -> None:
    folder = soft(some_release()).save(tmp_path / "release")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["soft_labels"] = said
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=words):
        read_release(folder)


# -- learnt ----------------------------------------------------------------------------------------


def bars(rows: int, seed: int) -> LabeledRows:
    """Images with a bar whose place is the class."""
    labels = np.arange(rows) % 10
    images = np.random.default_rng(seed).uniform(0, 0.3, (rows, 28, 28))
    for row, label in enumerate(labels):
        images[row, 2 * label + 3 : 2 * label + 6] = 1.0
    return replace(
        labeled_rows(images.reshape(rows, 784), labels),
        image_shape=(28, 28),
        feature_names=pixel_names((28, 28)),
    )


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A release of images whose soft labels are sure of the next class, and rows to test on."""
    folder = tmp_path_factory.mktemp("bars")
    rows = bars(200, 0)
    sizes = tuple(rows.class_counts().tolist())
    facts = Facts.of(rows, class_sizes=sizes, normalise=PublicMap.of_range(0, 1))
    plan = make_plan(facts, config_of("mixing", mixture=1, samples=16, clip=28.0))
    release = synthesize(plan.calibrate(float("inf")), rows, source=SeededSource(0))
    sure = np.eye(10, dtype=np.float32)[(release.labels + 1) % 10]
    unseen = bars(80, 1)
    np.savez(folder / "test.npz", X=unseen.features.reshape(-1, 28, 28), y=unseen.labels)
    return replace(release, soft_labels=sure).save(folder / "release"), folder / "test.npz"


@pytest.fixture
def learnt(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The labels that CNNs are trained on, each time that some are."""
    train, seen = cnn.train_and_predict, []

    def watched(rows: np.ndarray, labels: np.ndarray, *rest: Any) -> np.ndarray:
        seen.append(labels)
        return train(rows, labels, *rest)

    monkeypatch.setattr(cnn, "train_and_predict", watched)
    return seen


def test_the_cnn_learns_soft_labels_unless_told_not_to(
    capemix: Capemix, shifted: tuple[Path, Path], learnt: list[np.ndarray]
) -> None:
    release, test = shifted
    saved = read_release(release)
    words = ["evaluate", release, "--test", test, "--model", "cnn", "--epochs", 1, "--json"]
    for asked, name, expected in (
        ([], "soft", saved.soft_labels),
        (["--labels", "soft"], "soft", saved.soft_labels),
        (["--labels", "hard"], "hard", saved.rows.labels),
    ):
        ran = capemix(*words, *asked)
        assert ran.code == 0, ran.err
        assert ran.json["labels"] == name
        np.testing.assert_array_equal(learnt.pop(), expected)
    assert not learnt


def test_classes_that_a_release_does_not_have_are_unlikely(learnt: list[np.ndarray]) -> None:
    rows, made = bars(8, 0), probabilities(8, 3)
    asked = Classifier("cnn", epochs=1)
    asked.predictions(rows.features, rows.labels, rows.features, soft_labels=made)
    np.testing.assert_array_equal(learnt[0][:, :3], made)
    assert learnt[0].shape == (8, 10)
    assert not learnt[0][:, 3:].any()


def test_other_models_learn_hard_labels(capemix: Capemix, shifted: tuple[Path, Path]) -> None:
    release, test = shifted
    ran = capemix("evaluate", release, "--test", test, "--json")
    assert ran.json["labels"] == "hard"
    assert ran.json["synthetic"]["accuracy"] > 0.5  # the soft labels would make it 0
    ran = capemix("evaluate", release, "--test", test, "--labels", "soft")
    assert "--labels must be hard for logreg" in ran.err


def test_soft_labels_that_are_not_there_are_refused(capemix: Capemix, tmp_path: Path) -> None:
    folder = some_release().save(tmp_path / "release")
    ran = capemix("evaluate", folder, "--labels", "soft")
    assert "--labels asks for labels that the release does not have (got soft)" in ran.err


def test_the_cnn_has_ten_outputs_for_soft_labels_too() -> None:
    wide = np.zeros((12, 784))
    with pytest.raises(InputError, match="11 classes"):
        Classifier("cnn").predictions(
            wide, np.zeros(12, np.int64), wide, soft_labels=probabilities(12, 11)
        )


def test_the_text_says_what_was_learnt(capemix: Capemix, shifted: tuple[Path, Path]) -> None:
    release, test = shifted
    words = ["evaluate", release, "--test", test, "--model", "cnn", "--epochs", 1]
    assert "cnn trained on the release's soft labels:" in capemix(*words).out


def test_a_release_with_soft_labels_can_be_attacked(
    capemix: Capemix, shifted: tuple[Path, Path]
) -> None:
    release, test = shifted
    words = ["--members", test, "--non-members", test, "--label", "y", "--json"]
    ran = capemix("attack", release, *words)
    assert ran.code == 0, ran.err
    assert ran.json["attacks"]
