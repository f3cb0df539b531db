"""The reproduction: the paper's numbers, runs that go on, the page, the command, its refusals."""

from __future__ import annotations

import builtins
import csv
import hashlib
import math
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from capemix.cli import reproduce as command
from capemix.data.registry import DATA_FOLDER
from capemix.errors import InputError
from capemix.experiments import memory, truth
from capemix.experiments.complexity import SWEEPS, Size, cost_of
from capemix.experiments.noise import NoiseTable, released_noise
from capemix.experiments.paper import GOLDEN
from capemix.experiments.quick import slice_of
from capemix.experiments.settings import COLUMNS, TABLES, Setting
from capemix.report import compare, of_cost, of_grid
from capemix.report.cells import PAPERS_TRAINING, Printed, Runs, Sample, printed
from capemix.report.markdown import wrapped
from capemix.report.page import page_text, write_report
from conftest import Capemix

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "reproduction"
HEADER = (*COLUMNS, "seed", "epochs", "learning_rate", "batch", "noise", "accuracy", "seconds")


def a_run(setting: Setting, accuracy: float, seed: int = 0, **trained: str) -> dict[str, str]:
    training = {**PAPERS_TRAINING, **trained}
    rest = {"noise": "0", "accuracy": f"{accuracy}", "seconds": "1", "provenance": "here"}
    return {
        **dict(zip(COLUMNS, setting.text(), strict=True)),
        "seed": str(seed),
        **training,
        **rest,
    }


def write_runs(folder: Path, rows: list[dict[str, str]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, (*HEADER, "provenance"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return folder


# -- the paper's numbers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cells", "numbers", "digest"),
    [
        ("table1", 120, 120, "4695e64d9cd2d738"),
        ("table2", 24, 18, "1011e405ff5b8b76"),
        ("figure2", 14, 14, "734eda8aaa684f91"),
    ],
)
def test_the_papers_numbers_are_all_there(name: str, cells: int, numbers: int, digest: str) -> None:
    found = printed(GOLDEN, name)
    assert len(found) == cells
    assert sum(cell.accuracy is not None for cell in found) == numbers
    assert all(cell.table == name and cell.where.startswith("Section 4") for cell in found)
    content = (GOLDEN / f"{name}.csv").read_bytes()
    assert hashlib.sha256(content).hexdigest().startswith(digest)


@pytest.mark.parametrize(
    ("table", "wanted", "accuracy"),
    [
        ("table1", {"panel": "a", "dataset": "mnist", "mixture": "1", "epsilon": "inf"}, 98.85),
        ("table1", {"panel": "a", "dataset": "mnist", "mixture": "512", "epsilon": "10"}, 15.75),
        (
            "table1",
            {"panel": "b", "dataset": "fashion-mnist", "mixture": "512", "epsilon": "10"},
            34.90,
        ),
        ("table2", {"dataset": "mnist", "method": "DP-Mix", "epsilon": "20"}, 80.0),
        ("table2", {"dataset": "fashion-mnist", "method": "DP-Mix", "epsilon": "20"}, None),
        ("figure2", {"method": "Conventional Federated DP-CDA", "sites": "50"}, 78.73),
    ],
)
def test_known_cells_stand_where_the_paper_has_them(
    table: str, wanted: dict[str, str], accuracy: float | None
) -> None:
    found = [
        cell
        for cell in printed(GOLDEN, table)
        if all(getattr(cell, name) == wanted[name] for name in wanted)
    ]
    assert [cell.accuracy for cell in found] == [accuracy]


def test_every_setting_of_a_table_stands_against_a_cell_and_every_cell_against_a_setting() -> None:
    """Each of the paper's cells finds a result once every table is run."""
    tables = ("table1", "figure2", "table2")
    rows = [a_run(s, 50.0) for name in tables for s in TABLES[name]()]
    runs = Runs(rows)
    for name in tables:
        cells = getattr(compare, name)(runs, printed(GOLDEN, name))
        assert all(cell.ours is not None for cell in cells), name
    assert all(c.ours for c in compare.table1(runs, printed(GOLDEN, "table1"), "algorithm1"))


def test_the_papers_numbers_are_packed_with_the_package() -> None:
    assert GOLDEN.parent.name == "experiments"
    assert GOLDEN.is_relative_to(ROOT / "src" / "capemix") or not (ROOT / "src").exists()


# -- comparing -----------------------------------------------------------------------------------


def a_cell(accuracy: float | None) -> Printed:
    return Printed("table1", "a", "mnist", "CAPE", "4", "10", "10", accuracy, "here")


@pytest.mark.parametrize(
    ("ours", "paper", "near"), [(80.0, 77.0, True), (80.0, 76.9, False), (73.9, 77.0, False)]
)
def test_a_cell_is_near_within_three_points(ours: float, paper: float, near: bool) -> None:
    assert compare.Compared(a_cell(paper), Sample((ours,))).near is near


def test_what_has_not_been_run_is_no_difference() -> None:
    cells = [
        compare.Compared(a_cell(77.0), None),
        compare.Compared(a_cell(None), Sample((77.0,))),
        compare.Compared(a_cell(77.0), Sample((76.0, 79.0))),
    ]
    assert [cell.difference for cell in cells] == [None, None, 0.5]
    assert compare.within(cells) == (1, 1)


def test_a_sample_says_its_spread_and_a_single_seed_none() -> None:
    assert str(Sample((70.0, 72.0, 74.0))) == "72.0 ± 2.0"
    assert str(Sample((70.0,))) == "70.0"
    assert Sample((70.0, 74.0)).spread == 4.0


def test_other_training_is_left_out(tmp_path: Path) -> None:
    setting = next(iter(TABLES["noiseless"]()))
    rows = [a_run(setting, 90.0), a_run(setting, 10.0, seed=1, epochs="8")]
    folder = write_runs(tmp_path, rows)
    runs = Runs.read(folder / "runs.csv", PAPERS_TRAINING)
    assert [row["accuracy"] for row in runs.rows] == ["90.0"]


# -- the search ----------------------------------------------------------------------------------


def test_the_grid_of_the_report_is_the_grid_that_is_run() -> None:
    """With every cell run, every set of assumptions is complete, and the best is named."""
    cells = printed(GOLDEN, "table1")
    paper = {(c.panel, c.epsilon, c.mixture): c.accuracy for c in cells if c.dataset == "mnist"}
    rows = []
    for s in TABLES["grid"]():
        panel = "a" if s.method == "central" else "b"
        accuracy = 0.0
        if panel == "a" and (s.samples, s.clip, s.labels_noised) == (6_000, 5.0, False):
            accuracy = (paper[panel, f"{s.epsilon:g}", str(s.mixture)] or 0.0) + 1.0
        rows.append(a_run(s, accuracy))
    assert len({tuple(row[name] for name in COLUMNS) for row in rows}) == 672
    runs = Runs(rows)
    for panel in "ab":
        assert len(of_grid.tried(runs, cells, panel)) == len(of_grid.assumptions(panel))
    best = of_grid.tried(runs, cells, "a")[0]
    assert best.error == pytest.approx(1.0)
    assert (best.near, len(best.cells)) == (8, 8)
    text = of_grid.grid(runs, cells)
    assert "T = 6000, c = 5, labels as they are" in text
    assert "(a) at 20 by 2" in text
    assert "no set of the search does: (b) at 20 and (b) at 10." in text


# -- the page ------------------------------------------------------------------------------------


def test_the_page_is_what_the_results_give() -> None:
    """docs/reproduction.md is generated: `capemix reproduce report` brings it in step."""
    assert (ROOT / "docs" / "reproduction.md").read_text() == page_text(RESULTS, GOLDEN)


def test_the_readme_counts_what_the_results_count() -> None:
    runs = Runs.read(RESULTS / "runs.csv", PAPERS_TRAINING)
    cells = compare.table1(runs, printed(GOLDEN, "table1"))
    near, both = compare.within(c for c in cells if c.paper.epsilon == "inf")
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"Without noise {near} of {both} cells of Table 1 are within 3 points" in readme


def test_the_page_can_be_written_from_few_results(tmp_path: Path) -> None:
    import_module("matplotlib")
    settings = [s for s in TABLES["noiseless"]() if s.mixture == 4]
    results = write_runs(tmp_path / "few", [a_run(s, 94.0) for s in settings])
    page = write_report(results, GOLDEN)
    text = page.read_text()
    assert page == tmp_path / "few.md"
    assert text == page_text(results, GOLDEN)
    assert "Not run yet" in text
    assert "94.0" in text
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert "reproduction-table1-mnist.png" in drawn
    assert not any("complexity" in name or "grid" in name for name in drawn)


def test_the_page_names_every_cell_without_noise_that_is_far(tmp_path: Path) -> None:
    cells = printed(GOLDEN, "table1")
    rows = []
    for s in TABLES["noiseless"]():
        panel = "a" if s.method == "central" else "b"
        paper = next(
            c.accuracy
            for c in cells
            if (c.panel, c.dataset, c.mixture, c.epsilon)
            == (panel, s.dataset, str(s.mixture), "inf")
        )
        assert paper is not None
        far = (panel, s.dataset, s.mixture) == ("b", "mnist", 16)
        rows += [a_run(s, paper - (10.0 if far else 0.5), seed) for seed in range(3)]
    text = page_text(write_runs(tmp_path / "r", rows), GOLDEN)
    assert "39 of 40 cells within 3 points" in text
    assert "1 in MNIST panel (b): l = 16 (68.9, seeds 0.0 apart; paper 78.9)" in text


def test_a_page_without_results_is_refused(tmp_path: Path, capemix: Capemix) -> None:
    ran = capemix("reproduce", "report", "--out", tmp_path / "none")
    assert ran.code == 2
    assert "run capemix reproduce first" in ran.err


def test_paragraphs_are_wrapped_and_tables_left_alone() -> None:
    text = "# head\n\n" + "word " * 40 + "`some code` end\n\n| a | b |\n| - | - |\n\n- one\n- two"
    lines = wrapped(text).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[-4:] == ["| - | - |", "", "- one", "- two"]


# -- what it costs -------------------------------------------------------------------------------


def test_operations_are_counted_as_the_claim_has_them() -> None:
    base = Size(samples=40, sites=4, mixture=16, width=8)
    cost = cost_of(base, repeats=1)
    expected = 40 * 4 * 16 * 8
    assert cost.additions == pytest.approx(expected, rel=0.2)
    assert cost.noise_values == 40 * 4 * 8
    assert cost.mask_words == 40 * 8 * 4 * (1 + 3)
    doubled = cost_of(replace(base, sites=8), repeats=1)
    assert doubled.mask_words == 40 * 8 * 8 * (1 + 7)


def test_exponents_are_slopes() -> None:
    rows = [{"varied": "sites", "sites": str(s), "cost": str(3.0 * s**2)} for s in (2, 4, 32)]
    assert of_cost.exponent(rows, "sites", "cost") == pytest.approx(2.0)
    measured = of_cost.read(RESULTS / "complexity.csv")
    assert Counter(r["varied"] for r in measured) == {k: len(v) for k, v in SWEEPS.items()}
    assert of_cost.exponent(measured, "mixture", "additions") == pytest.approx(1.0, abs=0.01)
    assert of_cost.exponent(measured, "sites", "mask_words") == pytest.approx(2.0, abs=0.01)


# -- noise and truth -----------------------------------------------------------------------------


def test_the_noise_file_is_what_the_accountants_give() -> None:
    table = NoiseTable(RESULTS / "noise.csv")
    base = next(s for s in TABLES["table1"]() if s.method == "joint" and s.epsilon == 10.0)
    scaled = [
        replace(base, method="conventional", site_noise="sites"),
        replace(base, method="algorithm1", site_noise="appendix"),
    ]
    noise = released_noise(base)
    assert table(base) == pytest.approx(noise, rel=1e-5)
    assert table(scaled[0]) == pytest.approx(noise * math.sqrt(10), rel=1e-5)
    assert table(scaled[1]) == pytest.approx(noise / math.sqrt(10), rel=1e-5)
    for setting in (s for name in TABLES for s in TABLES[name]()):
        assert table(setting) >= 0.0  # raises where one is missing


def test_a_setting_without_noise_in_the_file_is_refused(tmp_path: Path) -> None:
    table = NoiseTable(tmp_path / "noise.csv")
    setting = next(s for s in TABLES["table1"]() if s.epsilon == 10.0)
    with pytest.raises(InputError, match="is not in noise"):
        table(setting)
    table.complete([setting])
    assert NoiseTable(tmp_path / "noise.csv")(setting) == table(setting) > 0


def test_the_true_epsilons_on_file_are_the_accountants() -> None:
    with (RESULTS / "truth.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(truth.published_settings()) == 120
    found = truth.true_epsilons(NoiseTable(RESULTS / "noise.csv"))
    for row, one in zip(rows[:3], found, strict=False):
        assert (row["dataset"], row["mixture"]) == (one.dataset, str(one.mixture))
        assert float(row["epsilon"]) == pytest.approx(one.epsilon or 0.0, rel=1e-3)
    central = [r for r in rows if r["reading"] == "central"]
    assert all(float(r["epsilon"]) < float(r["claimed"]) for r in central)


# -- running -------------------------------------------------------------------------------------


class Trained:
    """Stands in for training: an accuracy that tells the cell, and what was asked for."""

    def __init__(self) -> None:
        self.groups: list[list[Any]] = []

    def __call__(self, group: list[Any], *_: object) -> list[float]:
        self.groups.append(list(group))
        return [10.0 * seed + setting.mixture / 100 for setting, seed in group]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    import_module("torch")
    from capemix.experiments import rows, run

    stand_in = Trained()
    monkeypatch.setattr(run, "_train", stand_in)
    monkeypatch.setattr(rows.Records, "load", lambda *_: None)
    return stand_in


def cells(seeds: int, mixtures: tuple[int, ...] = (1, 2, 4)) -> list[tuple[Setting, int]]:
    from capemix.experiments.run import cells_of

    base = next(iter(TABLES["noiseless"]()))
    return cells_of([replace(base, mixture=m) for m in mixtures], range(seeds))


def run(path: Path, seeds: int = 2, **asked: Any) -> int:
    import torch

    from capemix.evaluate.many import Training
    from capemix.experiments.results import Results
    from capemix.experiments.run import run_cells

    device = torch.device("cpu")
    return run_cells(cells(seeds), lambda _: 0.0, Results(path), device, Training(), **asked)


def test_the_first_seed_of_all_cells_comes_first(trained: Trained, tmp_path: Path) -> None:
    assert run(tmp_path / "runs.csv") == 0
    asked = [cell for group in trained.groups for cell in group]
    assert [seed for _, seed in asked] == [0, 0, 0, 1, 1, 1]
    assert [setting.mixture for setting, _ in asked] == [1, 2, 4, 1, 2, 4]


def test_a_stopped_run_goes_on_where_it_stopped(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    assert run(path, until=-math.inf) == 6
    assert not path.exists()
    assert run(path, seeds=1) == 0
    first = path.read_text()
    assert run(path, seeds=2) == 0
    assert path.read_text().startswith(first)
    assert len(trained.groups) == 6
    assert run(path, seeds=2) == 0
    assert len(trained.groups) == 6


@pytest.mark.parametrize("lost", [1, 5, 20, 40])
def test_a_line_that_was_cut_off_is_run_again(trained: Trained, tmp_path: Path, lost: int) -> None:
    path = tmp_path / "runs.csv"
    run(path)
    whole = path.read_text()
    path.write_text(whole[:-lost])
    assert len(Runs.read(path).rows) == 5
    assert run(path) == 0
    assert len(trained.groups) == 7
    rows = Runs.read(path).rows
    assert len(rows) == 6
    assert [(r["mixture"], r["seed"], r["accuracy"]) for r in rows] == [
        (str(m), str(s), f"{10 * s + m / 100:.2f}") for s in (0, 1) for m in (1, 2, 4)
    ]


def test_groups_hold_cells_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = import_module("torch")
    from capemix.experiments import run as running

    monkeypatch.setattr(running, "models_that_fit", lambda *_: 2)
    base = cells(1)
    mixed = [c for s, k in base for c in ((s, k), (replace(s, samples=6_000), k))]
    groups = list(running._groups(mixed, torch.device("cpu"), 64))
    assert sorted(map(len, groups)) == [1, 1, 2, 2]
    assert all(len({running._kind(cell) for cell in group}) == 1 for group in groups)
    assert sorted(c for group in groups for c in group) == sorted(mixed)


def test_results_say_where_they_are_from(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPEMIX_COMMIT", "abc1234")
    run(tmp_path / "runs.csv", seeds=1)
    rows = Runs.read(tmp_path / "runs.csv").rows
    assert all(row["provenance"].startswith("abc1234; torch ") for row in rows)
    assert all(row["provenance"].endswith("; cpu") for row in rows)
    assert trained.groups


# -- the command ---------------------------------------------------------------------------------


def test_quick_shows_ours_beside_the_papers(
    trained: Trained, tmp_path: Path, capemix: Capemix
) -> None:
    ran = capemix("reproduce", "table1", "--quick", "--out", tmp_path)
    assert ran.code == 0, ran.err
    assert "not the paper's training" in ran.out
    assert "T = 2,000" in " ".join(ran.out.split())
    assert "78.1" in ran.out  # the paper's cell at l = 4, epsilon 10
    asked = [setting for group in trained.groups for setting, _ in group]
    assert len(asked) == 12
    assert {(s.dataset, s.samples) for s in asked} == {("mnist", 2_000)}
    again = capemix("reproduce", "table1", "--quick", "--out", tmp_path)
    assert again.code == 0
    assert len(trained.groups) == 12


def test_the_cells_come_as_json(trained: Trained, tmp_path: Path, capemix: Capemix) -> None:
    found = capemix("reproduce", "figure2", "--quick", "--out", tmp_path, "--json").json
    assert found["left"] == 0
    assert len(found["cells"]) == 6  # of the text's values, those at S = 5 and 50, inf and 10
    assert {cell["paper"]["sites"] for cell in found["cells"]} == {"5", "50"}
    assert len(trained.groups) == 8


def test_a_time_limit_leaves_the_rest_for_later(
    trained: Trained, tmp_path: Path, capemix: Capemix
) -> None:
    words = ("reproduce", "figure2", "--quick", "--out", tmp_path, "--seconds", "-1")
    ran = capemix(*words)
    assert ran.code == 0
    assert "8 models left: run the same command again" in ran.out
    assert not trained.groups


@pytest.mark.parametrize("what", ["table1", "figure2", "table2", "sound", "grid", "all"])
def test_a_quick_slice_is_small(what: str) -> None:
    settings = list(slice_of(what))
    assert 3 <= len(set(settings)) == len(settings) <= 16


def test_all_is_every_table_and_a_dataset_can_be_chosen() -> None:
    every = command.settings_of("all", None, quick=False)
    assert set(every) == {s for name in TABLES for s in TABLES[name]()}
    half = command.settings_of("table1", "fashion-mnist", quick=False)
    assert 2 * len(half) == len(command.settings_of("table1", None, quick=False))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("table1", "--quick", "--dataset", "fashion-mnist"), "must be mnist with --quick"),
        (("grid", "--device", "cpu", "--dataset", "fashion-mnist"), "has nothing in grid"),
    ],
)
def test_what_cannot_be_run_is_refused(
    words: tuple[str, ...], said: str, tmp_path: Path, capemix: Capemix
) -> None:
    import_module("torch")
    ran = capemix("reproduce", *words, "--out", tmp_path)
    assert ran.code == 2
    assert said in ran.err


def test_no_gpu_is_one_sentence(
    tmp_path: Path, capemix: Capemix, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = import_module("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = capemix("reproduce", "table1", "--out", tmp_path)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert "torch sees none" in ran.err
    assert "--device cpu" in ran.err


def test_a_missing_dataset_is_one_sentence(
    tmp_path: Path, capemix: Capemix, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_module("torch")
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    ran = capemix("reproduce", "table1", "--quick", "--out", tmp_path / "out")
    assert ran.code == 2
    assert "has no file mnist/" in ran.err
    assert f"unset {DATA_FOLDER}" in ran.err


def test_too_little_memory_is_one_sentence(
    tmp_path: Path, capemix: Capemix, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_module("torch")
    monkeypatch.setattr(memory, "free_bytes", lambda: 10**8)
    ran = capemix("reproduce", "table1", "--device", "cpu", "--out", tmp_path)
    assert ran.code == 2
    assert "memory is too little" in ran.err
    assert "use --quick" in ran.err


def test_a_gpu_that_fills_up_is_one_sentence(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from capemix.experiments import run as running

    def full(*_: object) -> list[float]:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(running, "_train", full)
    with pytest.raises(InputError, match="finished models are kept"):
        run(tmp_path / "runs.csv")
    assert not trained.groups


@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [
        ("torch", ("table1", "--quick"), "capemix[torch]"),
        ("matplotlib", ("report",), "capemix[plot]"),
    ],
)
def test_a_missing_extra_is_named(
    missing: str,
    words: tuple[str, ...],
    extra: str,
    tmp_path: Path,
    capemix: Capemix,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    load = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return load(name, *rest, **more)

    for module in ("capemix.evaluate.many", "capemix.evaluate.cnn", "capemix.report.figures"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    write_runs(tmp_path, [])
    ran = capemix("reproduce", *words, "--out", tmp_path)
    assert ran.code == 2
    assert extra in ran.err


def test_memory_that_is_needed_grows_with_the_rows() -> None:
    full, few = (replace(next(iter(TABLES["table1"]())), samples=t) for t in (60_000, 2_000))
    assert memory.needed_bytes(full) > memory.needed_bytes(few) > 4 * 784 * 60_000
    free = memory.free_bytes()
    assert free is None or free > 0
