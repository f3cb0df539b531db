"""What lies beside a release's rows comes back as it was written, and releases of the format before
are read too."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capemix import documents
from capemix.api import synthesize
from capemix.data.arrays import cells_of_columns
from capemix.data.schema import Category, Number, Table
from capemix.errors import InputError
from capemix.evaluate import train_and_test
from capemix.facts import Facts
from capemix.manifest import FORMAT, Manifest
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.mixing import Mixing
from capemix.plan import Plan, make_plan
from capemix.private import Private
from capemix.randomness.source import SeededSource
from capemix.release import Release, outside_releases, read_release
from capemix.sums.rows import Preparation
from capemix.sums.steps import ColumnMap, Coverage, PublicMap
from world import labeled_rows

BEFORE = Path(__file__).parent / "golden" / "release-1"
TABLE = Table((Number("a", -4, 5), Category("b", ("u", "v", "w"))), Category("y", ("no", "yes")))


def released(name: str) -> Release:
    rng = np.random.default_rng(0)
    label = np.arange(400) % 2
    features = rng.normal(size=(400, 3)) + label[:, None]
    rows = labeled_rows(features, np.array(["no", "yes"])[label], ("no", "yes"))
    method: Any = ClassGaussian(samples=12)
    facts = Facts.of(rows)
    if name == "mixing":
        method = Mixing(mixture=8, samples=12)
    elif name == "dp-mix":
        method = Mixing(mixture=8, samples=12, pool="all", label_noise=True)  # type: ignore[arg-type]
    elif name == "table":
        columns = {"a": features[:, 0].tolist(), "b": ["uvw"[at % 3] for at in range(400)]}
        rows = TABLE.rows(
            cells_of_columns(columns, TABLE.names, "y", np.array(["no", "yes"])[label])
        )
        facts = Facts.of(rows)
    elif name == "images":
        images = rng.uniform(0, 16, size=(200, 64))
        rows = labeled_rows(images, label[:200], (0, 1))
        names = tuple(map(str, range(64)))
        rows = type(rows)(rows.features, rows.labels, (0, 1), names, image_shape=(8, 8))
        facts = Facts.of(rows, normalise=PublicMap.of_range(0, 16))
        method = ImageClusters(samples=12, soft_labels=True)
    plan = make_plan(facts, method).calibrate(4.0)
    return synthesize(plan, rows, source=SeededSource(1))


NAMES = ("mixing", "dp-mix", "class Gaussians", "table", "images")


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_comes_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    release = released(name)
    saved = read_release(release.save(tmp_path / "out"))
    manifest = saved.manifest
    assert manifest == release.manifest(manifest.sha256)
    assert manifest.format == FORMAT
    assert manifest.facts == release.facts
    assert manifest.outline == release.plan.outline
    assert manifest.budget == release.plan.budget()
    assert manifest.rows == len(release) == len(saved.rows) == 12
    assert (saved.soft_labels is None) is (release.soft_labels is None)
    # The plan is in it, whole: whoever has the manifest can account for the release anew.
    plan = documents.from_json(Plan, manifest.plan, name="the plan")
    assert plan == release.plan
    assert plan.guarantee(seeded=True).epsilon == manifest.guarantee["epsilon"]
    assert Manifest.read(tmp_path / "out" / "manifest.json") == manifest


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_holds_nothing_of_the_input(name: str, tmp_path: Path) -> None:
    folder = released(name).save(tmp_path / "out")
    text = (folder / "manifest.json").read_text()
    found = json.loads(text)
    assert set(found) == {
        "guarantee", "plan", "facts", "outline", "steps", "budget", "clip", "rows", "soft_labels",
        "warnings", "versions", "sha256", "how_made", "signer", "format",
    }  # fmt: skip
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(found["sha256"]) == files - {"manifest.json"}
    assert not re.search(r"(?<![\d.])400(?![\d.])", json.dumps(found["facts"]))


def test_a_private_value_has_no_place_in_a_manifest() -> None:
    manifest = released("mixing").manifest({"rows": Private("a digest")})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        manifest.text()


@pytest.mark.parametrize(
    ("name", "normalise", "clip", "sums", "covered"),
    [
        ("mixing", ColumnMap, 8.23906857562847, 1, Coverage.PAID),
        ("moments", PublicMap, None, 9, Coverage.PUBLIC),
        ("table", ColumnMap, None, 11, None),
    ],
)
def test_a_release_of_the_format_before_is_read(
    name: str, normalise: type, clip: float | None, sums: int, covered: Coverage | None
) -> None:
    saved = read_release(BEFORE / name)
    manifest, written = saved.manifest, json.loads((BEFORE / name / "manifest.json").read_text())
    assert written["format"] == "capemix-release/1"
    assert len(saved.rows) == manifest.rows == 12
    assert manifest.guarantee == written["guarantee"]
    assert manifest.guarantee["epsilon"] <= 4.0
    assert manifest.facts.classes == ("no", "yes")
    assert isinstance(manifest.facts.normalise, normalise)
    assert manifest.clip == clip
    assert len(manifest.outline) == sums
    assert [line.line for line in manifest.budget] == [each["line"] for each in written["budget"]]
    steps = {step.name: step.coverage for step in manifest.steps}
    assert covered is None or steps["normalise"] is covered
    assert manifest.warnings == tuple(written.get("warnings", ()))
    if name == "mixing":
        [line] = manifest.outline
        assert line.drawn
        assert (line.divisor, [group.draws for group in line.participation]) == (8, [6, 6])
        assert line.l2_norm_bound == clip
    if name == "table":
        assert manifest.facts.table == TABLE
        assert manifest.facts.features == ("a", "b")


@pytest.mark.parametrize("name", ["mixing", "moments", "table"])
def test_a_release_of_the_format_before_is_evaluated(name: str) -> None:
    saved = read_release(BEFORE / name)
    how = Preparation(saved.manifest.facts.normalise or PublicMap(), saved.manifest.clip or 1e30)
    score = train_and_test(saved.rows, saved.rows, how, model="forest", prepared=False)
    assert score.declared_public().accuracy > 0.5


def test_what_lies_beside_a_release_of_either_format_is_refused(tmp_path: Path) -> None:
    now = released("mixing").save(tmp_path / "now")
    for folder in (now, BEFORE / "mixing"):
        with pytest.raises(InputError, match="lies in a release"):
            outside_releases(folder / "more")


@pytest.mark.parametrize("name", ["mixing", "moments", "now"])
def test_a_manifest_that_was_meddled_with_is_one_sentence(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    if name == "now":
        released("mixing").save(folder)
    else:
        shutil.copytree(BEFORE / name, folder)
    place = folder / "manifest.json"
    written = json.loads(place.read_text())
    changes: list[dict[str, Any]] = [{"format": "capemix-release/4"}, {"format": None}]
    changes += [{key: None} for key in ("plan", "sha256", "budget", "guarantee")]
    changes += [{key: 7} for key in ("plan", "sha256", "budget")]
    changes += [{"schema": {}}] if name != "now" else [{"facts": {}}, {"more": 1}]
    for change in changes:
        place.write_text(json.dumps({**written, **change}))
        with pytest.raises(InputError):
            read_release(folder)
    place.write_text(json.dumps({**written, "sha256": {"synthetic.parquet": "0" * 64}}))
    with pytest.raises(InputError, match="does not match its manifest"):
        read_release(folder)
