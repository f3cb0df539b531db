"""Seeded releases have the rows that they had when they were written down, in one process and by
messages. (What Flower carries has the bytes of one process: tests/test_flower.py.)

A test seed makes a release repeatable, so whatever moves inside the library, its rows may only
change on purpose. ``python tests/test_pinned_rows.py`` writes golden/rows.json anew. Numbers are
compared to six significant digits. Rows that are drawn along eigenvectors are not pinned: the signs
of those are the machine's.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from capemix.cli import main
from capemix_research.cli import main as laboratory

GOLDEN = Path(__file__).parent / "golden" / "rows.json"

SYNTH = ("synth", "--data", "digits", "--no-ledger", "--json", "--test-seed", "7")
MIXED = ("--epsilon", "10", "--mixture", "16", "--samples", "60")
SITES = ("--scheme", "cape", "--sites", "4")

COMMANDS: dict[str, tuple[str, ...]] = {
    "mixing, one curator": (*SYNTH, *MIXED),
    "mixing, four sites": (*SYNTH, *MIXED, *SITES),
    "mixing, every site for itself": (*SYNTH, *MIXED, "--scheme", "conventional", "--sites", "4"),
    "mixing, as published": (*SYNTH, *MIXED, *SITES, "--form", "algorithm1"),
    "dp-mix": (*SYNTH, *MIXED, "--synthesizer", "dp-mix"),
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


def in_process(folder: Path) -> dict[str, str]:
    """The same releases by all messages of the protocol, without a network."""
    from capemix.data import open_data, partition
    from capemix.engines.in_process import run_in_process
    from capemix.plan import make_plan
    from capemix.randomness.source import SeededSource
    from capemix.sums.steps import PublicMap

    train = open_data("digits").train
    plan = make_plan(
        width=64, class_sizes=(140,) * 10, samples=60, mixture=16, clip=4.0, scheme="cape", sites=4,
        normalise=PublicMap.of_range(0, 16),
    ).calibrate(10.0)  # fmt: skip
    parts = partition(train, 4, "stratified", seed=7)
    release, _ = run_in_process(plan, parts, source=SeededSource(7))
    return {"mixing, by messages": digest(release.save(folder))}


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


def test_so_has_one_by_messages(tmp_path: Path) -> None:
    found = in_process(tmp_path / "out")
    assert found == {name: pinned()[name] for name in found}


def test_every_pinned_release_is_made() -> None:
    assert set(pinned()) == {*COMMANDS, *LABORATORY, "mixing, by messages"}


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

        def run(*words: object) -> None:
            sys.argv = ["", *map(str, words)]
            with pytest.raises(SystemExit) as stopped:
                laboratory() if words[0] == "baseline" else main()
            if stopped.value.code:
                raise RuntimeError(words)

        rows = {
            name: released(run, words, Path(place) / str(at))
            for at, (name, words) in enumerate((COMMANDS | LABORATORY).items())
        }
        rows |= in_process(Path(place) / "messages")
    GOLDEN.write_text(json.dumps(rows, indent=1) + "\n")
