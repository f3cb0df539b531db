"""More rows of the same noisy sums: `Synthesizer.sample` and `capemix.run.more`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import capemix
from capemix import InputError, Release, Synthesizer, Table, documents, open_data
from capemix.data.schema import Category, Number
from capemix.ledger import Ledger, Limit
from capemix.run import more


@pytest.fixture(scope="module")
def fitted() -> Synthesizer:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 800)
    rows = np.clip(rng.normal(0.4 + 0.2 * labels[:, None], 0.1, (800, 3)), 0, 1)
    return Synthesizer(epsilon=5.0, public_range=(0, 1), classes=["a", "b"], test_seed=1).fit(
        rows, np.array(["a", "b"])[labels]
    )


@pytest.mark.parametrize("method", ["tables", "class-gaussian"])
def test_the_released_rows_are_what_their_sums_make(method: str) -> None:
    """So new rows come of what was released, and of nothing else."""
    rows = open_data("digits").train
    release = (
        Synthesizer(5.0, method=method, public_range=(0, 16), samples=300, test_seed=2)
        .fit(rows.features[:, 10:20], rows.labels)
        .release_
    )
    same = more(release, 300, turn=0)
    assert same is not None
    assert np.array_equal(same.features, release.features)
    assert np.array_equal(same.labels, release.labels)
    other = more(release, 300, turn=1)
    assert other is not None
    assert not np.array_equal(other.features, release.features)


def test_new_rows_follow_the_law_of_the_released_ones(fitted: Synthesizer) -> None:
    released, _ = fitted.sample()
    many, labels = fitted.sample(4_000)
    assert np.array_equal(many[: len(released)], released)
    new = many[len(released) :]
    assert len(np.unique(new, axis=0)) == len(new)  # none is a copy
    noise = np.sqrt(released.var(axis=0) * (1 / len(released) + 1 / len(new)))
    assert (np.abs(new.mean(axis=0) - released.mean(axis=0)) < 5 * noise).all()
    assert set(labels) == {"a", "b"}


def test_more_rows_are_not_charged(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    ledger = Ledger.open(tmp_path / "ledger")
    ledger.lineage("people").set_limit(Limit(2.0, 1e-5))
    synthesizer = Synthesizer(
        1.0, public_range=(0, 1), ledger=ledger, lineage="people", classes=["a", "b"]
    )
    synthesizer.fit(rng.random((500, 2)), np.repeat(["a", "b"], 250))
    lines = (tmp_path / "ledger").read_bytes()
    synthesizer.sample(5_000)
    assert (tmp_path / "ledger").read_bytes() == lines


def test_rows_that_are_sums_are_repeated() -> None:
    rng = np.random.default_rng(5)
    synthesizer = Synthesizer(
        2.0, method="mixing", mixture=8, samples=40, public_range=(0, 1), test_seed=1
    ).fit(rng.random((400, 3)), np.repeat(["a", "b"], 200))
    few, many = synthesizer.sample()[0], synthesizer.sample(100)[0]
    assert len(many) == 100
    assert len(np.unique(many, axis=0)) == len(np.unique(few, axis=0))


def test_a_condition_that_hardly_any_row_meets_says_how_many_did(fitted: Synthesizer) -> None:
    assert isinstance(fitted.release_, Release)
    names = fitted.release_.facts.features
    with pytest.raises(InputError, match=r"is met by \d+ of [\d,]+ rows that were drawn"):
        fitted.sample(10, where={names[0]: (0.9999999, 1.0), names[1]: (0.0, 1e-9)})


def test_a_schema_may_be_a_file_or_what_it_says(tmp_path: Path) -> None:
    table = Table((Number("a", 0, 1),), Category("y", ("n", "y")))
    said = documents.as_json(table)
    (tmp_path / "schema.json").write_text(json.dumps(said))
    columns = {"a": np.linspace(0, 1, 300), "y": np.repeat(["n", "y"], 150)}
    found = [
        Synthesizer(2.0, schema=schema, test_seed=1).fit(columns).sample()[0]["a"]
        for schema in (table, said, tmp_path / "schema.json", str(tmp_path / "schema.json"))
    ]
    assert all(np.array_equal(each, found[0]) for each in found)
    with pytest.raises(InputError, match="schema"):
        Synthesizer(2.0, schema={"columns": []}).fit(columns)


def test_the_package_shows_its_names() -> None:
    assert set(dir(capemix)) == set(capemix.__all__)
    assert {"Synthesizer", "Release", "Guarantee"} <= set(dir(capemix))
