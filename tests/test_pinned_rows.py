"""Seeded releases have the rows that they had when they were written down: by the library, by its
commands and by the protocol's messages. (What Flower carries has the bytes of one process:
tests/test_flower.py.)

A test seed makes a release repeatable, so whatever moves inside the library, its rows may only
change on purpose. ``python tests/test_pinned_rows.py`` writes golden/rows.json anew. Numbers are
compared to six significant digits. Rows that are drawn along eigenvectors are not pinned, since the
signs of those are the machine's: of the methods that draw such rows, the noisy sums are that they
ask for before they come to an eigenvector.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from capemix.collector import Collector
from capemix.data import LabeledRows, open_data, partition
from capemix.engines.in_process import InProcessEngine
from capemix.engines.local import LocalEngine
from capemix.facts import Facts
from capemix.methods import Method
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import ImageClusters
from capemix.methods.mixing import Mixing, Pool
from capemix.methods.mixing.planning import usual_mixing
from capemix.plan import Plan, make_plan
from capemix.randomness.source import SeededSource
from capemix.run import rows_from, run
from capemix.sums.steps import PublicMap
from capemix_research.cli import main as laboratory

GOLDEN = Path(__file__).parent / "golden" / "rows.json"

SYNTH = ("synth", "--data", "digits", "--no-ledger", "--json", "--test-seed", "7")
MIXED = ("--method", "mixing", "--epsilon", "10", "--mixture", "16", "--samples", "60")
SITES = ("--scheme", "cape", "--sites", "4")

COMMANDS: dict[str, tuple[str, ...]] = {
    "mixing, one curator": (*SYNTH, *MIXED),
    "mixing, four sites": (*SYNTH, *MIXED, *SITES),
    "mixing, every site for itself": (*SYNTH, *MIXED, "--scheme", "conventional", "--sites", "4"),
    "mixing, as published": (*SYNTH, *MIXED, *SITES, "--form", "algorithm1"),
    "dp-mix": (*SYNTH, *MIXED, "--pool", "all", "--label-noise"),
}  # fmt: skip
LABORATORY: dict[str, tuple[str, ...]] = {
    "records one by one": (
        "baseline", "--method", "local-perturbation", "--data", "digits", "--no-ledger", "--json",
        "--test-seed", "7", "--epsilon", "5",
    ),
}  # fmt: skip


def digest(folder: Path) -> str:
    """Of a release's rows, in their order."""
    table = pq.read_table(folder / "synthetic.parquet")
    found = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.to_numpy(zero_copy_only=False)
        text = (
            ",".join(f"{value:.6g}" for value in values.tolist())
            if values.dtype.kind == "f"
            else ",".join(map(str, values.tolist()))
        )
        found.update(f"{name}:{text}\n".encode())
    return found.hexdigest()


def released(run: Callable[..., Any], words: tuple[str, ...], folder: Path) -> str:
    run(*words, "--out", folder)
    return digest(folder)


# -- by the library --------------------------------------------------------------------------------

CAPE: dict[str, Any] = {"scheme": "cape", "sites": 4}
MIXING = Mixing(samples=60, mixture=16)
PLANS: dict[str, tuple[Method, dict[str, Any]]] = {
    "mixing, one curator": (MIXING, {}),
    "mixing, four sites": (MIXING, CAPE),
    "mixing, every site for itself": (MIXING, {"scheme": "conventional", "sites": 4}),
    "mixing, as published": (
        usual_mixing(samples=60, mixture=16, scheme="cape", form="algorithm1"),
        {**CAPE, "form": "algorithm1"},
    ),
    "dp-mix": (Mixing(samples=60, mixture=16, pool=Pool.ALL, label_noise=True), {}),
    "mixing, by messages": (MIXING, CAPE),
}
SUMS: dict[str, tuple[Method, dict[str, Any]]] = {
    "class Gaussians, sums": (ClassGaussian(), {}),
    "class Gaussians, sums of four sites": (ClassGaussian(), CAPE),
    "image clusters, sums": (ImageClusters(deskew=True), {}),
    "image clusters, sums of four sites": (ImageClusters(deskew=True), CAPE),
}


def a_plan(method: Method, sites: dict[str, Any]) -> tuple[Plan, list[LabeledRows]]:
    """For digits; those that are mixed have their class sizes declared."""
    train = open_data("digits").train
    mixed = isinstance(method, Mixing)
    sizes = tuple(train.class_counts().tolist()) if mixed else None
    facts = Facts.of(train, class_sizes=sizes, normalise=PublicMap.of_range(0, 16))
    plan = make_plan(facts, method, **sites).calibrate(10.0)
    parts = partition(train, 4, "stratified", seed=7) if sites else [train]
    return plan, list(parts)


def by_library(name: str, folder: Path) -> str:
    method, sites = PLANS[name]
    plan, parts = a_plan(method, sites)
    if name == "mixing, by messages":
        sized = replace(plan.facts, class_sizes=(140,) * 10)
        plan = replace(plan, facts=sized).calibrate(10.0)
        made = run(plan, InProcessEngine(parts, SeededSource(7)))
    else:
        made = run(plan, LocalEngine(parts, SeededSource(7)))
    return digest(made.save(folder))


class _EnoughError(Exception):
    """What is asked for next depends on eigenvectors."""


class Recorded(Collector):
    """Sums up to the first that is taken along eigenvectors."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.found = hashlib.sha256()

    def ask(self, name: str, statistic: Any) -> Any:
        if name == "norms for the spread":
            raise _EnoughError
        sums = super().ask(name, statistic)
        text = ",".join(f"{value:.6g}" for value in sums.ravel().tolist())
        self.found.update(f"{name}:{text}\n".encode())
        return sums


def by_sums(name: str, *, messages: bool = False) -> str:
    plan, parts = a_plan(*SUMS[name])
    engine = InProcessEngine if messages else LocalEngine
    sums = Recorded(plan, engine(parts, SeededSource(7)))
    with pytest.raises(_EnoughError):
        rows_from(sums)
    return sums.found.hexdigest()


def pinned() -> dict[str, str]:
    found: dict[str, str] = json.loads(GOLDEN.read_text())
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_a_seeded_release_has_the_rows_that_were_pinned(
    name: str, capemix: Any, tmp_path: Path
) -> None:
    assert released(capemix, COMMANDS[name], tmp_path / "out") == pinned()[name]


@pytest.mark.parametrize("name", LABORATORY)
def test_so_has_one_of_the_laboratory(name: str, research: Any, tmp_path: Path) -> None:
    assert released(research, LABORATORY[name], tmp_path / "out") == pinned()[name]


@pytest.mark.parametrize("name", PLANS)
def test_the_library_makes_the_rows_that_were_pinned(name: str, tmp_path: Path) -> None:
    assert by_library(name, tmp_path / "out") == pinned()[name]


@pytest.mark.parametrize("name", SUMS)
def test_noisy_sums_are_those_that_were_pinned(name: str) -> None:
    assert by_sums(name) == pinned()[name]


@pytest.mark.parametrize("name", [name for name in SUMS if "four sites" in name])
def test_so_are_noisy_sums_by_messages(name: str) -> None:
    assert by_sums(name, messages=True) == pinned()[name]


def test_every_pinned_release_is_made() -> None:
    assert set(pinned()) == {*COMMANDS, *LABORATORY, *PLANS, *SUMS}


def test_a_row_that_moves_is_found(tmp_path: Path) -> None:
    import pyarrow as pa

    values = np.array([0.5, 1.25])
    for at, wanted in ((0.0, True), (1e-9, True), (1e-4, False)):
        folder = tmp_path / str(at)
        folder.mkdir()
        pq.write_table(pa.table({"a": values + at}), folder / "synthetic.parquet")
        assert (digest(folder) == digest(tmp_path / "0.0")) is wanted


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:

        def by_command(*words: object) -> None:
            sys.argv = ["", *map(str, words)]
            with pytest.raises(SystemExit) as stopped:
                laboratory()
            if stopped.value.code:
                raise RuntimeError(words)

        rows = {name: by_library(name, Path(place) / str(at)) for at, name in enumerate(PLANS)}
        rows |= {
            name: released(by_command, words, Path(place) / name)
            for name, words in LABORATORY.items()
        }
        rows |= {name: by_sums(name) for name in SUMS}
    GOLDEN.write_text(json.dumps(rows, indent=1) + "\n")
