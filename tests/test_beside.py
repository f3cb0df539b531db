"""Our releases of tables beside those of others: made once, and compared by one rule."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capemix.data import LabeledRows, Table
from capemix.data.schema import Category, Number
from capemix.randomness.simulation import simulation_generator
from capemix.randomness.source import SeededSource
from capemix_research.experiments import beside, public_tables
from capemix_research.experiments.results import append_line, whole_lines
from capemix_research.experiments.tables import split
from capemix_research.report import of_beside
from conftest import Capemix
from releasing import release_of

PEER = """
class Copies:
    def __init__(self, **asked):
        assert asked["disable_processing"], asked["delta"]

    def fit(self, codes, domain, random_state):
        assert (codes.max() < codes.columns.map(domain)).all()
        assert (codes.min() >= 0).all()
        self.codes = codes

    def generate(self, n_records, random_state):
        return self.codes.sample(n_records, replace=True, random_state=random_state)


class Endless(Copies):
    def generate(self, n_records, random_state):
        while True:
            pass


PIPELINE_DICT = {"copies": Copies, "endless": Endless}
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[beside.Cell]:
    """Our releases are copies of some rows; which were made."""
    made: list[beside.Cell] = []

    def copies(cell: beside.Cell, _given: Any, source: str) -> beside.Made:
        made.append(cell)
        train, _ = split(public_tables.complete_rows(cell.data), cell.seed)
        some = simulation_generator(0).integers(0, len(train), 200)
        return beside.Made(train.take(some), 1.0, 2_000_000, source)

    monkeypatch.setattr(beside, "_ours", copies)
    return made


def lines_of(*cells: tuple[str, str, str, str, float]) -> list[dict[str, str]]:
    """Lines where every distance is one number, and every score 0.9 less it."""
    found = []
    for data, method, epsilon, seed, apart in cells:
        distances = dict.fromkeys(("one_way", "two_way", "three_way"), str(apart))
        scores = dict.fromkeys(beside.FIGURES[3:], str(0.9 - apart))
        key = dict(zip(beside.KEY, (data, method, epsilon, seed), strict=True))
        rows = {"train_rows": "2100", "test_rows": "900", "cpu_seconds": "2", "peak_mb": "300"}
        found.append({**key, **rows, **distances, **scores, "provenance": "abc"})
    return found


# -- the rule --------------------------------------------------------------------------------------


def test_ahead_level_and_behind_by_hand() -> None:
    # Real rows are 0.05 apart, and have 0.85: chance moves that by 0.0119 on 900 test rows.
    real = ("a", "real", "", "0", 0.05)
    for own, says in ((0.07, "ahead"), (0.096, "level"), (0.104, "level"), (0.12, "behind")):
        lines = lines_of(real, ("a", "ours", "1", "0", own), ("a", "peer", "1", "0", 0.1))
        (group,) = of_beside.groups(lines)
        found = list(group.verdicts("ours", ["peer"]))
        assert [each.says for each in found] == [says] * 4, own
        assert [each.measure for each in found] == ["2-way", "3-way", "accuracy", "AUC"]
    lines = lines_of(real, ("a", "ours", "1", "0", 0.05), ("a", "peer", "1", "0", 0.02))
    (group,) = of_beside.groups(lines)
    # Both at the floor: neither is told from real rows. Scores differ by more than chance.
    assert [each.says for each in group.verdicts("ours", ["peer"])] == [
        *("level", "level"),
        *("behind", "behind"),
    ]


def test_the_best_peer_is_chosen_for_each_measure() -> None:
    lines = lines_of(
        ("a", "real", "", "0", 0.01),
        ("a", "ours", "1", "0", 0.2),
        ("a", "near", "1", "0", 0.1),
        ("a", "wise", "1", "0", 0.3),
    )
    lines[3] |= {"boosting": "0.95"}
    (group,) = of_beside.groups(lines)
    peers = [each.peer for each in group.verdicts("ours", ["near", "wise", "absent"])]
    assert peers == ["near", "near", "wise", "near"]
    tally = of_beside.tally_table(lines, ["ours"], ["near", "wise"]).splitlines()[-1]
    assert tally == (
        "| 1 | ours | 0 of 1 | a 2-way (near), a 3-way (near), a accuracy (wise), a AUC (near) |"
    )


def test_the_last_line_of_a_release_counts_and_means_are_over_splits() -> None:
    lines = lines_of(
        ("a", "real", "", "0", 0.05),
        ("a", "real", "", "1", 0.07),
        ("a", "ours", "1", "0", 0.9),
        ("a", "ours", "1", "1", 0.3),
        ("a", "ours", "1", "0", 0.1),
    )
    (group,) = of_beside.groups(lines)
    assert group.means["ours"]["two_way"] == pytest.approx(0.2)
    assert group.splits == {"ours": 2}
    assert group.real["two_way"] == pytest.approx(0.06)


def test_what_was_stopped_is_named_and_compared_with_nothing() -> None:
    lines = lines_of(
        ("a", "real", "", "0", 0.05), ("a", "ours", "1", "0", 0.1), ("a", "slow", "1", "0", 0.1)
    )
    lines[2] |= {**dict.fromkeys(beside.FIGURES, ""), "provenance": "slow, stopped"}
    (group,) = of_beside.groups(lines)
    assert list(group.verdicts("ours", ["slow"])) == []
    assert "| a | 1 | slow, stopped | 2 |" in of_beside.stopped_table(lines)
    assert of_beside.stopped_table(lines[:2]) == ""


def test_releases_of_several_sites_stand_beside_one_curators_and_are_no_peers() -> None:
    lines = lines_of(
        ("a", "real", "", "0", 0.05),
        ("a", "tables", "1", "0", 0.1),
        ("a", "tables, 25 sites", "1", "0", 0.125),
        ("b", "real", "", "0", 0.05),
        ("b", "tables", "1", "0", 0.2),
        ("b", "tables, 5 sites", "1", "0", 0.3),
        ("b", "dpmm-mst", "1", "0", 0.3),
    )
    assert of_beside.peers_of(lines) == ["dpmm-mst"]
    assert of_beside.sites_table(lines).splitlines()[2:] == [
        "| a | 1 | tables | 0.100 / 0.800 | - | 0.125 / 0.775 |",
        "| b | 1 | tables | 0.200 / 0.700 | 0.300 / 0.600 | - |",
    ]
    assert of_beside.sites_table(lines[:2]) == ""


def test_the_page_has_the_tables_of_the_recorded_lines() -> None:
    shelf = Path(__file__).parents[1] / "docs" / "research"
    page, lines = (shelf / "tables.md").read_text(), list(whole_lines(shelf / "tables-beside.csv"))
    ours, peers = ["tables", "class-gaussian"], of_beside.peers_of(lines)
    for found in (
        of_beside.figures_table(lines),
        of_beside.verdicts_table(lines, ours, peers),
        of_beside.tally_table(lines, ours, peers),
        of_beside.sites_table(lines),
    ):
        assert found in page


# -- the run ---------------------------------------------------------------------------------------


def test_a_line_is_made_once_for_each_state_of_the_source(
    quick: list[beside.Cell], research: Capemix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lines.csv"
    monkeypatch.setattr(beside, "source_of_ours", lambda: "abc")
    words = ["tables", "--results", file, "--data", "wine", "--methods", "tables"]
    ran = research(*words, "--epsilons", 1)
    assert ran.code == 0, ran.err
    real, ours = whole_lines(file)
    assert [line["method"] for line in (real, ours)] == ["real", "tables"]
    assert (ours["cpu_seconds"], ours["peak_mb"], ours["provenance"]) == ("1.0", "2", "abc")
    # 200 copies of 125 rows are as near to them as they can be, and teach as much.
    assert float(ours["two_way"]) < float(real["two_way"])
    assert all(float(line["boosting_auc"]) > 0.95 for line in (real, ours))
    assert "| wine | 1 | tables | 1 |" in ran.out
    research(*words, "--epsilons", "1,10")
    assert [cell.epsilon for cell in quick] == [1.0, 10.0]  # none twice
    monkeypatch.setattr(beside, "source_of_ours", lambda: "def")
    research(*words, "--epsilons", 1)
    assert [cell.epsilon for cell in quick] == [1.0, 10.0, 1.0]
    research(*words, "--epsilons", 1, "--sites", "5,25")
    assert [cell.sites for cell in quick[3:]] == [5, 25]
    research(*words, "--epsilons", 0.3, "--seconds", 0)
    assert len(quick) == 5
    assert [line["method"] for line in whole_lines(file)][-1] == "tables, 25 sites"


def test_a_peers_line_is_made_once(quick: list[beside.Cell], tmp_path: Path) -> None:
    file, cell = tmp_path / "lines.csv", beside.Cell("wine", "dpmm-mst", 1.0, 0)
    line = [*cell.key, *["1"] * (len(beside.HEADER) - 5), "dpmm 7"]
    append_line(file, beside.HEADER, line)
    asked: dict[str, Any] = {"limit": 1, "seconds": 60.0}
    assert list(beside.run(iter([cell]), file, {"dpmm-mst": "/nowhere"}, **asked)) == []
    assert not quick


@pytest.mark.parametrize("name", public_tables.EMBEDDED)
def test_tables_that_come_along_are_coded_whole(name: str) -> None:
    rows: LabeledRows = public_tables.complete_rows(name)
    assert rows.unfit == 0
    assert rows.class_counts().min() > 40
    assert rows.table is not None
    assert not any(rows.table.strays(rows).values())
    assert replace(rows.table, confirmed=None).with_logs().width == rows.table.width


def test_what_is_not_there_is_one_sentence(
    research: Capemix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPEMIX_DATA", str(tmp_path))
    words = ["tables", "--results", tmp_path / "lines.csv"]
    for more, says in (
        (["--data", "moon"], "--data must be tables that are known"),
        (["--data", "adult"], "--data is not there"),
        (["--peer", "dpmm-mst"], "--peer must be NAME=PYTHON"),
        (["--epsilons", "one"], "--epsilons must be numbers"),
        (["--sites", "5,1"], "--sites must be numbers of at least 2"),
    ):
        ran = research(*words, *more)
        assert (ran.code, ran.out) == (2, "")
        assert says in ran.err
        assert ran.err.count("\n") == 1


JUDGES = {
    "sdmetrics/__init__.py": "",
    "sdmetrics/reports/__init__.py": "",
    "sdmetrics/reports/single_table.py": """
class QualityReport:
    def generate(self, real, made, known, verbose):
        kinds = {name: column["sdtype"] for name, column in known["columns"].items()}
        assert kinds == {"age": "numerical", "work": "categorical", "income": "categorical"}
        assert real["age"].mean() > 10 and set(made["work"]) <= {"a", "NA"}
        self.rows = len(real), len(made)

    def get_properties(self):
        return {"Property": ["rows"], "Score": [self.rows[1]]}

    def get_score(self):
        return float("nan")
""",
    "syntheval/__init__.py": """
class SynthEval:
    def __init__(self, real, holdout_dataframe, cat_cols, verbose):
        assert cat_cols == ["work", "income"]
        self.rows = len(real), len(holdout_dataframe)

    def evaluate(self, made, label, **metrics):
        print("a picture of text")
        open("picture.png", "w").close()
        return {"metric": [label, *metrics], "val": [len(made), *range(len(metrics))]}
""",
}


def test_judges_of_others_judge_a_release_and_real_rows(
    research: Capemix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins for the packages, that say how many rows they were given."""
    for name, text in JUDGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("sdmetrics", "syntheval"):
        about = tmp_path / f"{name}-7.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 7\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    table = Table(
        (Number("age", 0, 99), Category("work", ("a", "NA"))), Category("income", ("high", "low"))
    )
    labels = np.arange(60) % 2
    rows = table.coded([np.arange(60.0) % 50 + 5, labels], labels)
    made = release_of(rows, "class-gaussian", epsilon=4.0, samples=50, source=SeededSource(3))
    made.save(tmp_path / "release")
    for name, part in (("train", rows), ("test", rows.take(range(30)))):
        beside.write_csv(part, tmp_path / f"{name}.csv")
    here = set(Path.cwd().iterdir())
    words: list[Any] = ["judge", tmp_path / "release"]
    words += ["--train", tmp_path / "train.csv", "--test", tmp_path / "test.csv"]
    both = [f"{name}={sys.executable}" for name in ("sdmetrics", "syntheval")]
    ran = research(*words, "--judge", both[0], "--judge", both[1], "--json")
    assert ran.code == 0, ran.err
    said = {(each["judge"], each["of"]): each["figures"] for each in ran.json["judged"]}
    assert said["sdmetrics", "release"] == {"rows": 50.0}  # a figure that is none is left out
    assert said["sdmetrics", "test"] == {"rows": 30.0}
    assert said["syntheval", "release"]["income"] == 50.0
    assert said["syntheval", "test"]["p_mse"] == said["syntheval", "release"]["p_mse"] == 3.0
    assert "sdmetrics 7" in research(*words, "--judge", both[0]).out
    assert set(Path.cwd().iterdir()) == here  # what they leave behind goes
    ran = research(*words, "--judge", "mostlyai=python")
    assert (ran.code, ran.out) == (2, "")
    assert "--judge must be of those that are known" in ran.err
    (tmp_path / "syntheval" / "__init__.py").unlink()
    ran = research(*words, "--judge", both[1])
    assert (ran.code, ran.out) == (2, "")
    assert "--judge syntheval failed: " in ran.err


@pytest.mark.long
def test_a_peer_is_measured_beside_us_and_stopped_at_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, research: Capemix
) -> None:
    """A stand-in for the package: one method that copies rows, and one that does not end."""
    for name, text in {
        "dpmm/__init__.py": "",
        "dpmm/pipelines.py": PEER,
        "dpmm-7.dist-info/METADATA": "Metadata-Version: 2.1\nName: dpmm\nVersion: 7\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    file = tmp_path / "lines.csv"
    words: list[Any] = ["tables", "--results", file, "--data", "breast_cancer", "--epsilons", 10]
    words += ["--methods", "class-gaussian", "--limit", 10]
    for name in ("copies", "endless", "other"):
        words += ["--peer", f"dpmm-{name}={sys.executable}"]
    ran = research(*words)
    assert ran.code == 0, ran.err
    real, ours, copied, stopped, failed = whole_lines(file)
    assert float(ours["logreg"]) > 0.88
    assert 1 < float(ours["cpu_seconds"]) < 60
    assert 100 < float(ours["peak_mb"]) < 2000
    assert float(copied["logreg"]) > 0.9
    assert float(copied["two_way"]) < float(real["two_way"])
    assert copied["provenance"] == "dpmm 7"
    assert (stopped["one_way"], stopped["provenance"]) == ("", "dpmm-endless, stopped")
    assert float(stopped["cpu_seconds"]) == pytest.approx(10, abs=1)
    assert failed["provenance"].startswith("dpmm-other, failed: KeyError")
    assert "| breast_cancer | 10 | dpmm-endless, stopped |" in ran.out
