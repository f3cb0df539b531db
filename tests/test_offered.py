"""The noisy figures beside a release's rows: what they say, how far off they are, and what becomes
of them on disk."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from capemix.api import synthesize
from capemix.data import partition
from capemix.data.arrays import cells_of_columns
from capemix.data.columns import Category, Number
from capemix.data.moments import Moment
from capemix.data.rows import LabeledRows
from capemix.data.schema import Table
from capemix.errors import InputError
from capemix.facts import Facts
from capemix.methods import method_named
from capemix.methods.class_gaussian.estimate import correlations_of
from capemix.methods.mixing import Mixing
from capemix.plan import make_plan
from capemix.randomness.source import SeededSource
from capemix.release import Release, read_release
from capemix.statistics.cells import CellCounts, Column, PairCounts
from capemix.statistics.check import added
from capemix.sums.steps import PublicMap

RNG = np.random.default_rng

PEOPLE = Table(
    columns=(
        Number("age", 20, 60, type="integer", missing=True),
        Number("price", 0.0, 5.0, decimals=1),
        Number("size", 1.0, 1000.0, scale="log"),
        Moment("born", type="date", low="2020-01-01", high="2020-01-31"),
        Number("same", 3, 3, type="integer"),
        Category("job", ("office", "field", "home"), missing=True),
    ),
    label=Category("ill", (False, True)),
)


def cells(count: int, seed: int = 0) -> dict[str, Any]:
    rng = RNG(seed)
    ill = rng.random(count) < 0.3
    age = rng.integers(20, 61, count).astype(object)
    age[rng.random(count) < 0.1] = None
    days = np.datetime64("2020-01-01") + rng.integers(0, 31, count)
    job = np.where(ill, "home", rng.choice(["office", "field", ""], count)).astype(object)
    return {
        "age": age,
        "price": np.rint(rng.uniform(0, 5, count) * 10) / 10,
        "size": np.exp(rng.uniform(0, math.log(1000), count)),
        "born": days.astype(str).astype(object),
        "same": np.full(count, 3),
        "job": job,
        "ill": ill,
    }


def people(count: int, seed: int = 0) -> LabeledRows:
    found = cells(count, seed)
    ill = found.pop("ill")
    return PEOPLE.rows(cells_of_columns(found, PEOPLE.names, "ill", ill))


def released(rows: LabeledRows, epsilon: float, seed: int = 1, name: str = "tables") -> Release:
    plan = make_plan(Facts.of(rows), method_named(name)(samples=20)).calibrate(epsilon)
    return synthesize(plan, rows, source=SeededSource(seed))


def frames(release: Release) -> dict[str, pd.DataFrame]:
    return {
        name: pd.DataFrame({key: pd.Series(each, dtype=each.dtype) for key, each in table.items()})
        for name, table in release.statistics.items()
    }


def cell_of(given: pd.DataFrame, columns: pd.DataFrame, name: str) -> np.ndarray:
    """Of each record the fine cell that its value lies in, going by what the file says of cells."""
    mine, values = columns[columns["column"] == name], given[name]
    found = np.full(len(given), -1)
    for cell, (first, last) in enumerate(zip(mine["from"], mine["to"], strict=True)):
        if first is None:
            inside = values.isna()
        elif name == "job":
            inside = values == first
        elif name == "born":
            inside = (values >= first) & (values <= last)
        elif name == "size":  # which may have any value: the last is where the next cell begins
            inside = values >= float(first)
        else:
            inside = (values.astype(float) - float(first) > -1e-9) & (
                values.astype(float) - float(last) < 1e-9
            )
        found[inside.to_numpy(dtype=bool)] = cell
    assert (found >= 0).all(), name
    return found


def z_scores(found: dict[str, pd.DataFrame], count: int, *, scaled: bool = True) -> np.ndarray:
    """How far each count is from what one counts by hand in the file, in standard errors."""
    given = pd.DataFrame(cells(count))
    given["job"] = given["job"].where(given["job"] != "")
    columns = found["columns"]
    names = list(columns["column"].unique())
    fine = {name: cell_of(given, columns, name) for name in names}
    ill = given["ill"].to_numpy(dtype=np.int64)
    off = []

    def compare(table: pd.DataFrame, shape: tuple[int, ...], *places: np.ndarray) -> None:
        expected = np.zeros(shape)
        np.add.at(expected, places, 1.0)
        difference = table["count"].to_numpy() - expected.ravel()
        off.append(difference / table["standard_error"].to_numpy() if scaled else difference)

    def joined(name: str, to: str) -> tuple[int, np.ndarray]:
        of = columns[columns["column"] == name][to].to_numpy()
        return int(of.max()) + 1, of[fine[name]]

    for name in names:
        table = columns[columns["column"] == name]
        compare(table, (len(table),), fine[name])
    compare(found["classes"], (2,), ill)
    if "pairs" in found:
        for (one, other), table in found["pairs"].groupby(["column", "other_column"]):
            (rows, place), (width, across) = joined(one, "bin"), joined(other, "bin")
            compare(table, (rows, width), place, across)
        for one, table in found["by_class"].groupby("column"):
            rows, place = joined(one, "slice")
            compare(table, (rows, 2), place, ill)
    return np.concatenate(off)


@pytest.mark.parametrize(
    ("count", "epsilon", "has", "seeds"), [(8000, 2.0, True, 1), (2000, 0.5, False, 24)]
)
def test_counts_are_off_by_their_standard_errors_and_not_by_10_percent_more(
    count: int, epsilon: float, has: bool, seeds: int
) -> None:
    """All of them over seeds, whatever was joined on the way: their mean is that of no bias."""
    rows = people(count)
    made = [frames(released(rows, epsilon, seed)) for seed in range(seeds)]
    assert all(("pairs" in found) == has for found in made)
    z = np.concatenate([z_scores(found, count) for found in made])
    doubt = 4.5 * math.sqrt(2.0 / len(z))
    assert abs(z.mean()) < 4.5 / math.sqrt(len(z))
    assert abs((z**2).mean() - 1.0) < doubt
    assert abs(((z / 1.1) ** 2).mean() - 1.0) > doubt  # of a wrong law


@pytest.mark.parametrize("kind", ["cells", "pairs"])
def test_what_the_lattice_cuts_off_is_known(kind: str) -> None:
    at = (Column(0, (0.0,)), Column(1, (0.0,)), Column(2, (0.0,)))
    rows, labels = RNG(0).normal(size=(300, 3)), RNG(1).integers(0, 2, 300)
    if kind == "cells":
        asked: Any = CellCounts(3, 2, at)
        whole, unit = 3 * 300.0, asked.unit(29)
    else:
        asked = PairCounts(3, 2, at, at, (2, 2, 2), (2, 2, 2))
        pairs, by_class = asked.units(29)
        whole, unit = 300.0, 3 * pairs[0, 1] + 3 * by_class
    found = added(asked, rows, labels, 29).sum() * asked.l2_norm_bound / 29
    assert found == pytest.approx(whole * unit)
    assert found < 0.999 * added(asked, rows, labels, None).sum()


def test_without_noise_every_count_is_exact() -> None:
    found = frames(released(people(3000), math.inf))
    assert np.abs(z_scores(found, 3000, scaled=False)).max() < 1e-6
    assert all((found[name]["standard_error"] == 0).all() for name in ("columns", "pairs"))


def test_cells_are_in_the_columns_own_units() -> None:
    found = frames(released(people(8000), 10.0))["columns"].set_index("column")
    assert found.loc["age"].iloc[[0, -2, -1]][["from", "to"]].to_numpy().tolist() == [
        ["20", "20"], ["60", "60"], [None, None],
    ]  # fmt: skip
    assert found.loc["born"]["from"].tolist()[:2] == ["2020-01-01", "2020-01-02"]
    assert found.loc["price"]["to"].tolist()[:3] == ["0.0", "0.1", "0.2"]
    assert found.loc["job"]["from"].tolist() == ["office", "field", "home", None]
    size = found.loc["size"]["from"].astype(float).to_numpy()
    assert (size[0], size[-1]) == (1.0, pytest.approx(1000))
    assert np.ptp(np.diff(np.log(size[2:-2]))) < 0.2  # even in the logarithm
    assert "same" not in found.index  # a constant is not measured


def test_correlations_are_off_by_their_standard_errors() -> None:
    facts = Facts.of(people(1))
    width, rng = facts.width, RNG(3)
    root = rng.normal(size=(width, width)) / math.sqrt(width) + 2 * np.eye(width)
    spread, noise = root @ root.T, 0.02
    exact = correlations_of(facts, spread, 0.0)
    deviation = np.sqrt(spread.diagonal())
    one, other = np.triu_indices(width, 1)
    np.testing.assert_allclose(
        exact["correlation"].astype(float), (spread / np.outer(deviation, deviation))[one, other]
    )
    z = []
    for _ in range(200):
        raw = rng.normal(scale=noise, size=spread.shape)
        found = correlations_of(facts, spread + (raw + raw.T) / 2, noise)
        # Both halves have noise; their average has that of each on the diagonal.
        z += [
            (found[what] - exact[what]).astype(float) / found[error].astype(float)
            for what, error in (
                ("correlation", "standard_error"),
                ("covariance", "covariance_error"),
            )
        ]
    assert np.std(z) == pytest.approx(1.0, abs=0.03)
    assert abs(np.mean(z)) < 0.05
    hidden = correlations_of(facts, np.zeros((width, width)), 1.0)
    assert set(hidden["correlation"]) == {None}


def test_class_gaussians_offer_class_sizes_and_correlations_of_shortened_records() -> None:
    rng = RNG(5)
    base, labels = rng.normal(size=(20_000, 2)), (rng.random(20_000) < 0.3).astype(np.int64)
    features = np.column_stack([base, 0.8 * base[:, 0] + 0.6 * base[:, 1]]) + labels[:, None]
    rows = LabeledRows(features, labels, (0, 1), ("a", "b", "c"))
    facts = Facts.of(rows, normalise=PublicMap.of_range(-6, 6))
    plan = make_plan(facts, method_named("class-gaussian")(samples=20)).calibrate(5.0)
    found = frames(synthesize(plan, rows, source=SeededSource(1)))
    assert set(found) == {"classes", "correlations"}
    sizes, table = found["classes"], found["correlations"]
    off = (sizes["count"] - rows.class_counts()) / sizes["standard_error"]
    assert np.abs(off).max() < 5
    about = features - np.array([features[labels == each].mean(axis=0) for each in (0, 1)])[labels]
    norms = np.linalg.norm(about, axis=1, keepdims=True)
    short = about * np.minimum(1.0, np.median(norms) / norms)
    one, other = np.triu_indices(3, 1)
    for what, error, expected in (
        ("correlation", "standard_error", np.corrcoef(short.T)),
        ("covariance", "covariance_error", np.cov(short.T)),
    ):
        wrong = table[what].astype(float) - expected[one, other]
        assert np.abs(wrong).max() < 5 * table[error].astype(float).max() + 0.02, what
    assert abs(np.corrcoef(features.T - labels)[0, 1]) < 0.02 < -np.corrcoef(short.T)[0, 1]


def test_a_method_that_measures_nothing_of_the_kind_offers_nothing(tmp_path: Path) -> None:
    labels = np.arange(400) % 2
    rows = LabeledRows(RNG(0).normal(size=(400, 2)), labels, (0, 1), ("a", "b"))
    facts = Facts.of(rows, class_sizes=(200, 200), normalise=PublicMap.of_range(-4, 4))
    plan = make_plan(facts, Mixing(mixture=8, samples=12)).calibrate(4.0)
    made = synthesize(plan, rows, source=SeededSource(1))
    assert made.statistics == {}
    folder = made.save(tmp_path / "out")
    assert not (folder / "statistics").exists()
    assert read_release(folder).statistics == {}


def test_sites_have_the_figures_of_one_curator() -> None:
    rows = people(4000)
    facts = Facts.of(rows)
    one = synthesize(make_plan(facts, method_named("tables")()).calibrate(math.inf), rows)
    plan = make_plan(facts, method_named("tables")(), scheme="cape", sites=5, colluding=1)
    many = synthesize(plan.calibrate(math.inf), partition(rows, 5, "dirichlet", seed=1))
    assert frames(one).keys() == frames(many).keys() == {"classes", "columns", "pairs", "by_class"}
    for name, table in frames(one).items():
        pd.testing.assert_frame_equal(table, frames(many)[name])


@pytest.fixture(scope="module")
def made() -> Release:
    return released(people(3000), 5.0)


def test_figures_come_back_from_their_folder(made: Release, tmp_path: Path) -> None:
    folder = made.save(tmp_path / "out", csv=True)
    saved = read_release(folder)
    assert set(saved.statistics) == set(made.statistics)
    for name, table in frames(made).items():
        assert saved.statistics[name].to_pydict() == table.to_dict("list")
        text = pd.read_csv(folder / "statistics" / f"{name}.csv")
        np.testing.assert_allclose(text["standard_error"], table["standard_error"])
    told = json.loads((folder / "manifest.json").read_text())["sha256"]
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(told) == files - {"manifest.json"}


@pytest.mark.parametrize("how", ["changed", "gone", "added"])
def test_changed_figures_are_noticed(made: Release, how: str, tmp_path: Path) -> None:
    folder = made.save(tmp_path / "out")
    path = folder / "statistics" / "columns.parquet"
    if how == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    elif how == "gone":
        path.unlink()
    else:
        (path.parent / "more.parquet").write_bytes(path.read_bytes())
    with pytest.raises(InputError, match="manifest"):
        read_release(folder)


def test_what_lies_under_a_true_digest_and_is_no_table_is_refused(
    made: Release, tmp_path: Path
) -> None:
    folder = made.save(tmp_path / "out")
    (folder / "statistics" / "columns.parquet").write_bytes(b"none")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["statistics/columns.parquet"] = hashlib.sha256(b"none").hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="cannot be read"):
        read_release(folder)
