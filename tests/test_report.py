"""A release's report: one page of the release's own folder, that loads nothing and escapes all."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import shutil
import struct
import zlib
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capemix.api import synthesize
from capemix.data import open_data, partition
from capemix.data.arrays import cells_of_columns
from capemix.data.columns import Category, Number
from capemix.data.moments import Moment
from capemix.data.rows import LabeledRows
from capemix.data.schema import Table
from capemix.facts import Facts
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.mixing import Mixing
from capemix.methods.tables import Tables
from capemix.pages import REPORT, report_of
from capemix.pages.columns import MOST_CHARTS, bars_of
from capemix.pages.figures import MOST_BARS, shown
from capemix.pages.html import tag, text
from capemix.pages.nist import answers
from capemix.pages.told import Told
from capemix.plan import make_plan
from capemix.randomness.source import SeededSource
from capemix.release import Release, read_release
from capemix.sums.steps import PublicMap
from conftest import Capemix

HOSTILE = "<script>alert('a')</script>"
WORD = '"></td><img src=x onerror=alert(1)>&amp;'

TABLE = Table(
    (
        Number(HOSTILE, 0, 200, type="integer"),
        Category("word", (WORD, "plain", "rare"), missing=True),
        Moment("day", "2020-01-01", "2020-12-31", type="date"),
        Number("part", 0.0, 1.0, missing=True),
    ),
    Category("outcome", ("no & never", "yes")),
)


def people(count: int, seed: int = 0) -> LabeledRows:
    draws = np.random.default_rng(seed)
    whole = draws.integers(0, 201, count)
    days = np.datetime64("2020-01-01") + draws.integers(0, 366, count)
    part = draws.random(count)
    part[draws.random(count) < 0.1] = np.nan
    words = np.array([WORD, "plain", "rare", None], dtype=object)
    columns = {
        HOSTILE: whole,
        "word": words[draws.choice(4, count, p=[0.5, 0.3, 0.1, 0.1])],
        "day": days.astype("datetime64[D]").astype(str),
        "part": part,
        "outcome": np.where(whole + draws.normal(0, 40, count) > 100, "yes", "no & never"),
    }
    return TABLE.rows(cells_of_columns(columns, TABLE.names, TABLE.label_name))


@dataclass
class Page(HTMLParser):
    """What is in a page: tags with their attributes, and the text by where it stands."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    @classmethod
    def of(cls, source: str) -> Page:
        page = cls()
        page.feed(source)
        assert page.open == []
        return page

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attrs)))
        if name not in ("meta", "img", "path", "circle"):
            self.open.append(name)

    def handle_startendtag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attrs)))

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for each, attributes in self.tags if each == name]

    def said(self, name: str) -> list[str]:
        return [data for each, data in self.texts if each == name]

    @property
    def words(self) -> str:
        return " ".join(data for name, data in self.texts if name != "style")


TAGS = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "nav", "main", "footer",
    "section", "h1", "h2", "h3", "h4", "p", "strong", "ul", "li", "i", "dl", "dt", "dd", "div",
    "span", "table", "caption", "thead", "tbody", "tr", "th", "td", "code", "pre", "details",
    "summary", "figure", "figcaption", "svg", "path", "circle", "text",
}  # fmt: skip


@pytest.fixture(scope="module")
def made() -> Release:
    rows = people(4000)
    plan = make_plan(Facts.of(rows), Tables(samples=3000)).calibrate(3.0)
    return synthesize(plan, rows, source=SeededSource(1))


@pytest.fixture(scope="module")
def folder(made: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.save(tmp_path_factory.mktemp("report") / "release")


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page.of((folder / REPORT).read_text("utf-8"))


def test_a_report_loads_nothing_and_runs_nothing(page: Page, folder: Path) -> None:
    assert {name for name, _ in page.tags} <= TAGS
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert not {"src", "srcset", "action", "xlink:href"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
        assert "url(" not in (attributes.get("style") or "")
    [style] = page.said("style")
    assert not re.search(r"url\(|@import|http", style)
    assert "http" not in (folder / REPORT).read_text("utf-8").replace("http-equiv", "")


def test_names_and_categories_are_text(page: Page) -> None:
    assert HOSTILE in page.said("h4")
    assert WORD in page.said("th")
    assert any(WORD[:10] in said for said in page.said("text"))
    assert text("a\x00\x1b[31m\x85\ud800<") == "a[31m?&lt;"
    assert tag("p", "<", title='"') == '<p title="&quot;">&lt;</p>'


def test_a_reader_finds_their_way_without_eyes(page: Page) -> None:
    levels = [int(name[1]) for name, _ in page.tags if re.fullmatch("h[1-6]", name)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(later <= before + 1 for before, later in itertools.pairwise(levels))
    keys = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(keys) == len(set(keys))
    links = [str(each["href"])[1:] for each in page.named("a")]
    assert set(links) <= set(keys)
    assert all(each["aria-labelledby"] in keys for each in page.named("section"))
    assert [len(page.named(name)) for name in ("header", "nav", "main", "footer")] == [1, 1, 1, 1]
    assert len(page.named("caption")) == len(page.named("table"))
    assert all(each["role"] == "img" and each["aria-label"] for each in page.named("svg"))
    assert page.named("html")[0]["lang"] == "en"


def test_figures_are_those_of_the_manifest(page: Page, folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    cards = dict(zip(page.said("dt"), page.said("dd"), strict=False))
    assert float(cards["epsilon"]) == pytest.approx(manifest["guarantee"]["epsilon"], rel=1e-3)
    assert float(cards["delta"]) == manifest["guarantee"]["delta"]
    assert cards["synthetic rows"] == "3,000"
    assert f"Status: {manifest['guarantee']['status']}." in page.words
    assert "This is not a guarantee" in page.words  # of a test seed
    for each in manifest["budget"]:
        assert any(said.endswith(f". {each['line']}") for said in page.said("th"))
    for assumed in manifest["guarantee"]["assumptions"]:
        assert any(said[1:] == f"{assumed[1:]}." for said in page.said("li"))
    digests = {k: v for k, v in manifest["sha256"].items() if k != REPORT}
    assert len(digests) == 5
    assert set(digests.values()) <= set(page.said("td"))
    report = hashlib.sha256((folder / REPORT).read_bytes()).hexdigest()
    assert manifest["sha256"][REPORT] == report


def test_a_guarantee_is_called_one_and_nothing_else_is(folder: Path) -> None:
    manifest = read_release(folder).manifest
    sound = replace(manifest, guarantee={**manifest.guarantee, "status": "guarantee"})
    words = Page.of(report_of(folder, sound)).words
    assert "Status: guarantee." in words
    assert "not a guarantee" not in words
    none = replace(manifest, guarantee={**manifest.guarantee, "epsilon": None})
    words = Page.of(report_of(folder, none)).words
    assert "nothing is promised" in words
    assert "Epsilon is infinite" in words


def test_every_point_of_the_guidelines_has_an_answer(folder: Path) -> None:
    told = Told.of(read_release(folder).manifest)
    found = dict(answers(told))
    about = (
        "epsilon and delta", "Unit of privacy", "Trust model", "Mechanism", "Correctness",
        "Composition over releases", "Utility", "Bias", "Side channels", "access control",
        "Exposure of the collected data",
    )  # fmt: skip
    assert all(any(part in point for point in found) for part in about)
    assert f"{told.delta:g}" in found["Parameters: epsilon and delta"]
    assert all(said.endswith(".") and len(said) > 20 for said in found.values())


def test_every_column_is_drawn_with_its_noise(made: Release, page: Page, folder: Path) -> None:
    names = [*TABLE.names, "outcome"]
    assert page.said("h4") == names
    saved = read_release(folder)
    rows = pq.read_table(folder / "synthetic.parquet")
    counts = saved.statistics["columns"].to_pandas()
    for column in shown(saved.manifest.facts, names, rows, saved.statistics):
        assert column.rows.sum() == len(made)
        assert column.counted is not None
        bars = bars_of(column, None)
        assert bars.reach is not None
        assert (bars.reach > 0).all()
        if column.name == "outcome":
            continue
        own = counts[counts["column"] == column.name]
        assert len(column.words) <= MOST_BARS + 1
        assert column.counted.count.sum() == pytest.approx(own["count"].sum())
        assert (column.counted.error**2).sum() == pytest.approx((own["standard_error"] ** 2).sum())
    by_name = {
        each.name: each for each in shown(saved.manifest.facts, names, rows, saved.statistics)
    }
    # The rows were made of these counts, so they lie about them: a cell in the wrong place is seen.
    for column in by_name.values():
        bars = bars_of(column, 4000)
        assert bars.counted is not None
        assert bars.reach is not None
        assert np.abs(bars.drawn - bars.counted).max() < 0.05
    values = np.array(rows[HOSTILE].to_pylist())
    assert by_name[HOSTILE].words[0] == "0 to 4"
    assert by_name[HOSTILE].rows[0] == (values <= 4).sum()


def test_rows_are_as_far_off_the_counts_of_pairs_as_noise_alone_makes_them(page: Page) -> None:
    cells = page.said("td")
    start = cells.index("yes") - 1
    lines = [cells[at : at + 4] for at in range(start, start + 40, 4)]
    assert len(lines) == 10  # of five columns
    for _, counted, apart, noise in lines:
        assert counted == "yes"
        # Rows are drawn too, and smoothed: they are not nearer than noise, nor much further.
        assert 0.3 * float(noise) < float(apart) < 2 * float(noise) + 0.02


def test_figures_of_a_wrong_kind_are_one_sentence(
    capemix: Capemix, folder: Path, tmp_path: Path
) -> None:
    """From somebody who has the digests right."""
    release = shutil.copytree(folder, tmp_path / "release")
    table = release / "statistics" / "columns.parquet"
    pq.write_table(pa.table({"column": [1, 2], "from": [True, False]}), table)
    manifest = json.loads((release / "manifest.json").read_text())
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    manifest["sha256"]["statistics/columns.parquet"] = digest
    (release / "manifest.json").write_text(json.dumps(manifest))
    ran = capemix("report", release, "--out", tmp_path / "page.html")
    assert (ran.code, ran.out) == (2, "")
    assert "has figures that no report can be made of" in ran.err
    assert not (tmp_path / "page.html").exists()


def test_a_report_is_made_again_of_the_folder_alone(
    capemix: Capemix, folder: Path, tmp_path: Path
) -> None:
    alone = shutil.copytree(folder, tmp_path / "elsewhere")
    again = tmp_path / "again.html"
    ran = capemix("report", alone, "--out", again, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["same"] is True
    assert again.read_bytes() == (folder / REPORT).read_bytes()
    (alone / REPORT).unlink()
    ran = capemix("report", alone, "--out", tmp_path / "anew.html", "--json")
    assert (tmp_path / "anew.html").read_bytes() == again.read_bytes()
    assert ran.json["same"] is False


@pytest.mark.parametrize(
    ("out", "problem"),
    [
        ("page.txt", "--out must end in .html"),
        ("there.html", "--out is in use"),
        ("release/page.html", "--out lies in a release"),
        ("nowhere/page.html", "--out lies in no folder"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused(
    capemix: Capemix, folder: Path, tmp_path: Path, out: str, problem: str
) -> None:
    release = shutil.copytree(folder, tmp_path / "release")
    (tmp_path / "there.html").touch()
    ran = capemix("report", release, "--out", tmp_path / out)
    assert ran.code == 2
    assert problem in ran.err


def test_what_was_paid_for_is_not_lost_to_a_page(
    made: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> str:
        raise ZeroDivisionError("private?")

    monkeypatch.setattr("capemix.pages._page", fails)
    with pytest.warns(UserWarning, match=r"report.html could not be made \(ZeroDivisionError\)"):
        out = made.save(tmp_path / "out")
    assert not (out / REPORT).exists()
    assert REPORT not in read_release(out).manifest.sha256


def images() -> Release:
    rows = open_data("digits").train
    facts = Facts.of(rows, normalise=PublicMap.of_range(0, 16))
    plan = make_plan(facts, ImageClusters(samples=60, soft_labels=True)).calibrate(4.0)
    return synthesize(plan, rows, source=SeededSource(1))


def grey(address: str) -> np.ndarray:
    """The pixels of an image that is in a page."""
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    wide, tall = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT") + 4
    [length] = struct.unpack(">I", data[start - 8 : start - 4])
    lines = zlib.decompress(data[start : start + length])
    return np.frombuffer(lines, dtype=np.uint8).reshape(tall, wide + 1)[:, 1:]


def test_images_are_the_release_s_own_class_by_class(tmp_path: Path) -> None:
    release = images()
    page = Page.of((release.save(tmp_path / "out") / REPORT).read_text("utf-8"))
    drawn = page.named("img")
    assert len(drawn) == 10
    assert all(str(each["src"]).startswith("data:image/png;base64,") for each in drawn)
    assert all("synthetic images, class" in str(each["alt"]) for each in drawn)
    [first] = [each for each in drawn if str(each["alt"]).endswith("class 3")]
    own = release.features[release.labels == 3][0].reshape(8, 8)
    np.testing.assert_array_equal(
        grey(str(first["src"]))[:, :8], np.round(np.clip(own / 16, 0, 1) * 255)
    )


def of_numbers(width: int, *, sites: int = 1, method: Any = None) -> Release:
    draws = np.random.default_rng(3)
    rows = LabeledRows(
        features=draws.random((60, width)),
        labels=draws.integers(0, 2, 60),
        classes=("a", "b"),
        feature_names=tuple(f"column {at}" for at in range(width)),
    )
    facts = Facts.of(rows, class_sizes=(30, 30), normalise=PublicMap.of_range(0, 1))
    who: dict[str, Any] = {"scheme": "cape", "sites": sites} if sites > 1 else {}
    plan = make_plan(facts, method or Mixing(samples=40, mixture=2), **who)
    parts: Any = rows if sites == 1 else partition(rows, sites, "iid", seed=1)
    return synthesize(plan.calibrate(5.0), parts, source=SeededSource(1))


def test_a_wide_table_has_a_report_of_a_sane_size(tmp_path: Path) -> None:
    made = of_numbers(784).save(tmp_path / "out") / REPORT
    page = Page.of(made.read_text("utf-8"))
    assert made.stat().st_size < 3_000_000
    assert len(page.said("h4")) == MOST_CHARTS
    assert f"{MOST_CHARTS} of 785 columns are drawn" in page.words
    assert {f"column {at}" for at in range(784)} <= set(page.said("th"))


def test_several_sites_are_told_what_the_server_sees(tmp_path: Path) -> None:
    release = of_numbers(3, sites=4, method=ClassGaussian(samples=40))
    page = Page.of((release.save(tmp_path / "out") / REPORT).read_text("utf-8"))
    views = release.guarantee.views
    assert "the server with 1 colluding of 4 sites" in page.said("th")
    assert page.said("td").count(f"{views['server'].noise_multiplier:.4g}") >= 2
    assert "every record: all sites ran in one process" in page.said("td")
    assert "1.333 times the variance" in page.words


def test_a_table_without_a_label_says_nothing_of_classes(tmp_path: Path) -> None:
    table = Table(TABLE.columns[:2])
    whole = np.arange(300) % 200
    cells = cells_of_columns({HOSTILE: whole, "word": ["plain"] * 300}, table.names, None)
    rows = table.rows(cells)
    plan = make_plan(Facts.of(rows), Tables(samples=50)).calibrate(1.0)
    release = synthesize(plan, rows, source=SeededSource(1))
    page = Page.of((release.save(tmp_path / "out") / REPORT).read_text("utf-8"))
    assert page.said("h4") == [HOSTILE, "word"]
    assert "Noise against signal, by class" not in page.words
