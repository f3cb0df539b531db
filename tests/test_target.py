"""A column that is not the label can be predicted: a category as a label is, a number by
regression; beside the same models trained on real rows, and for their owner's eyes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from capemix import documents
from capemix.api import synthesize
from capemix.data import LabeledRows, Table
from capemix.data.arrays import cells_of_arrays, cells_of_columns
from capemix.data.rows import UNLABELLED, UnlistedRows
from capemix.data.schema import Category, Number
from capemix.errors import InputError
from capemix.evaluate import Target, regress_and_test, train_and_test
from capemix.facts import Facts
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.tables import Tables
from capemix.methods.tables.program import PAIRS
from capemix.plan import make_plan
from capemix.randomness.source import SeededSource
from capemix.release import read_release
from capemix.sums.steps import PublicMap, SiteZScore
from conftest import Capemix

FLATS = Table(
    columns=(
        Number("size", 10.0, 200.0),
        Category("lift", (False, True)),
        Category("place", ("centre", "edge"), missing=True),
        Number("rent", 0.0, 4000.0),
    )
)


def flats(records: int = 2000, seed: int = 0) -> pd.DataFrame:
    """Rent is 15 for each unit of size, 600 more in the centre; a lift goes with the centre."""
    rng = np.random.default_rng(seed)
    centre, size = rng.random(records) < 0.5, rng.uniform(20, 150, records)
    return pd.DataFrame(
        {
            "size": size.round(1),
            "lift": rng.random(records) < 0.1 + 0.8 * centre,
            "place": np.where(centre, "centre", np.where(rng.random(records) < 0.1, "?", "edge")),
            "rent": np.clip(15 * size + 600 * centre + rng.normal(0, 100, records), 0, 4000),
        }
    )


def coded(frame: pd.DataFrame, table: Table = FLATS) -> LabeledRows:
    return table.rows(cells_of_columns(frame, table.names, table.label_name))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without noise to speak of, by a schema whose target is the rent."""
    rows = coded(flats(), replace(FLATS, target="rent"))
    plan = make_plan(Facts.of(rows), ClassGaussian()).calibrate(20.0)
    folder = tmp_path_factory.mktemp("flats") / "release"
    return synthesize(plan, rows, source=SeededSource(1)).save(folder)


@pytest.fixture
def test_file(tmp_path: Path) -> Path:
    flats(500, 1).to_csv(tmp_path / "test.csv", index=False)
    return tmp_path / "test.csv"


def test_a_number_is_predicted_beside_real_rows(
    capemix: Capemix, release: Path, test_file: Path, tmp_path: Path
) -> None:
    train = tmp_path / "train.csv"
    flats(1000, 2).to_csv(train, index=False)
    words = ("evaluate", release, "--test", test_file, "--train", train)
    found = capemix(*words, "--json").json  # the schema's target
    assert found["target"] == "rent"
    assert found["private"] is not None
    for kind in ("synthetic", "real"):
        assert 0.9 < found[kind]["ridge"]["r2"] <= found["real"]["ridge"]["r2"] + 0.01
        assert 50 < found[kind]["ridge"]["error"] < 300  # in the column's own units
        assert set(found[kind]) == {"ridge", "boosting"}
    shown = " ".join(capemix(*words).out.split())
    assert "ridge trained on the release: R2 0.9" in shown
    assert "boosting trained on the release" in shown
    assert "trained on real rows: R2 0.9" in shown
    assert "keep it to yourself" in shown
    alone = capemix(*words, "--no-compare", "--rows-are-public", "--json").json
    assert (alone["real"], alone["private"]) == (None, None)


def test_a_category_is_predicted_as_a_label_is(
    capemix: Capemix, release: Path, test_file: Path
) -> None:
    found = capemix("evaluate", release, "--test", test_file, "--target", "lift", "--json").json
    assert found["classes"] == ["False", "True"]
    assert found["synthetic"]["accuracy"] > 0.8
    missing = capemix("evaluate", release, "--test", test_file, "--target", "place", "--json").json
    assert missing["classes"] == ["centre", "edge"]
    tested = np.array(missing["synthetic"]["confusion"]).sum()
    assert tested == (flats(500, 1)["place"] != "?").sum()  # no value, nothing to predict


def test_the_label_is_a_column_like_any_other_to_another_target() -> None:
    labelled = Table(columns=FLATS.columns[:1] + FLATS.columns[2:], label=Category("lift", (0, 1)))
    rows = coded(flats(), labelled)
    facts = Facts.of(rows)
    aimed = Target(facts, "place")
    turned = aimed.labelled(rows)
    assert turned.feature_names == ("size", "rent", "lift=0", "lift=1")
    assert turned.features[:, 2:].sum(axis=1).tolist() == [1.0] * len(turned)
    score = train_and_test(turned, turned, aimed.preparation).declared_public()
    assert score.accuracy > 0.9
    [ridge, _] = regress_and_test(Target(facts, "rent"), rows, rows).declared_public().values()
    assert ridge.r2 > 0.96  # 0.975 by the law of the rows


def test_rows_of_numbers_need_no_schema_for_a_target(tmp_path: Path, capemix: Capemix) -> None:
    frame = flats()[["size", "rent"]]
    cells = cells_of_arrays(frame.to_numpy())
    rows = UnlistedRows.of(cells, None).listed(UNLABELLED)
    rows = replace(rows, feature_names=("size", "rent"))
    facts = Facts.of(rows, normalise=PublicMap.of_range(0, 4000))
    made = synthesize(make_plan(facts, ClassGaussian()).calibrate(20.0), rows)
    folder = made.save(tmp_path / "release")
    assert read_release(folder).rows.classes == UNLABELLED
    frame.to_csv(tmp_path / "test.csv", index=False)
    words = ("evaluate", folder, "--test", tmp_path / "test.csv", "--target", "rent", "--json")
    assert capemix(*words).json["synthetic"]["ridge"]["r2"] > 0.5


def test_what_cannot_be_predicted_is_refused_by_name(
    capemix: Capemix, release: Path, test_file: Path, tmp_path: Path
) -> None:
    words = ("evaluate", release, "--test", test_file)
    ran = capemix(*words, "--target", "salary")
    assert ran.code != 0
    assert "--target is no column of the release" in ran.err
    assert "choose one of 'size', 'lift', 'place', 'rent'" in " ".join(ran.err.split())
    ran = capemix(*words, "--model", "forest")
    assert "--model has no meaning for a column of numbers" in ran.err
    empty = tmp_path / "empty.csv"
    flats(1).to_csv(empty, index=False)
    ran = capemix("evaluate", release, "--test", empty)
    assert "fewer than two rows with a number to predict" in " ".join(ran.err.split())
    rows = coded(flats(100))
    scores = replace(Facts.of(rows), table=None, normalise=SiteZScore())
    with pytest.raises(InputError, match="each site's own units"):
        Target(scores, "rent")


def test_without_a_label_and_a_target_it_is_said_how_like_the_rows_are(
    capemix: Capemix, test_file: Path, tmp_path: Path
) -> None:
    rows = coded(flats(300))
    made = synthesize(make_plan(Facts.of(rows), ClassGaussian()).calibrate(9.0), rows)
    folder = made.save(tmp_path / "plain")
    words = ("evaluate", folder, "--test", test_file, "--train", test_file)
    found = capemix(*words, "--json").json
    assert "accuracy" not in found
    assert found["likeness"]["against"] == "train"
    shown = capemix(*words).out
    assert "2-way" in shown
    assert "keep it to yourself" in shown
    needed = "--target is needed: the release has no label to predict"
    assert needed in capemix(*words, "--model", "forest").err
    numbers = LabeledRows(rows.features, rows.labels, UNLABELLED, tuple("abcdefg"), None)
    plan = make_plan(Facts.of(numbers, normalise=PublicMap.of_range(0, 4000)), ClassGaussian())
    folder = synthesize(plan.calibrate(9.0), numbers).save(tmp_path / "numbers")
    pd.DataFrame(numbers.features, columns=list("abcdefg")).to_csv(tmp_path / "n.csv", index=False)
    assert needed in capemix("evaluate", folder, "--test", tmp_path / "n.csv").err


# -- declared --------------------------------------------------------------------------------------


def test_a_declared_target_is_one_of_the_columns_and_part_of_what_is_confirmed() -> None:
    aimed = replace(FLATS, target="rent")
    assert aimed.target_place == 3
    assert aimed.digest() != FLATS.digest()
    assert documents.from_json(Table, documents.as_json(aimed), name="schema") == aimed
    for wrong in ({"target": "salary"}, {"target": "rent", "label": Category("y", (0, 1))}):
        with pytest.raises(InputError, match="target must be one of the columns"):
            replace(FLATS, **wrong)


def test_pairs_with_a_declared_target_weigh_more_within_the_same_budget() -> None:
    sized = {"class_sizes": (10**6,)}
    plain, aimed = (
        make_plan(Facts.of(coded(flats(50), table), **sized), Tables()).calibrate(1.0)
        for table in (FLATS, replace(FLATS, target="rent"))
    )
    norms = [next(line for line in plan.body if line.name == PAIRS) for plan in (plain, aimed)]
    assert [line.l2_norm_bound for line in norms] == pytest.approx([6**0.5, 9**0.5])
    assert plain.guarantee().epsilon == pytest.approx(aimed.guarantee().epsilon)
    assert json.dumps(documents.as_json(aimed.facts)).count('"target": "rent"') == 1
