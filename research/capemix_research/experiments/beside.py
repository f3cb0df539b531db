"""Releases of public tables, ours and others', made of the same rows and judged in the same way.

70 of 100 rows are released from, and 30 are tested on, split anew for each seed. A line of the
results is one release, or the real rows themselves. Each release is made by a process of its own,
from a CSV file and a schema to a file of rows; its CPU seconds and its most memory are those of the
whole process, start and imports included. It has `ROWS` rows: drawing them costs no budget, in any
method. A line is made once for each state of the method's source.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import capemix
from capemix import documents
from capemix.data import LabeledRows, open_data
from capemix.data.writing import write_table
from capemix.engines.flower.processes import peak_memory
from capemix.errors import InputError
from capemix.evaluate import Classifier, train_and_test
from capemix.evaluate.coding import coded
from capemix.evaluate.fidelity import fidelity
from capemix.evaluate.score import NOT_CLIPPED
from capemix.facts import map_of
from capemix.release import read_release
from capemix.sums.rows import Preparation
from capemix_research.experiments.public_tables import complete_rows
from capemix_research.experiments.results import append_line, whole_lines
from capemix_research.experiments.tables import split

FIGURES: Final = (
    *("one_way", "two_way", "three_way"),
    *("logreg", "logreg_auc", "boosting", "boosting_auc"),
)
KEY: Final = ("data", "method", "epsilon", "seed")
HEADER: Final = (
    *KEY,
    *("train_rows", "test_rows"),
    *FIGURES,
    *("cpu_seconds", "peak_mb", "provenance"),
)
REAL: Final = "real"
"""In the place of a method: models learn the training rows, and the test rows stand for a release.
Their total variation is the sampling floor."""

DELTA: Final = 1e-5
ROWS: Final = 40_000
_OTHER_ROOMS: Final = ("audit", "bench.py", "cli", "evaluate")
"""Of the package: what changes there changes no release."""

_LOOK: Final = 0.05
"""Seconds between two looks at how much memory a process has had."""


@dataclass(frozen=True)
class Cell:
    """One release: of which table, how, at which epsilon (None: real rows), of which split, and
    among how many sites the rows are dealt out at random."""

    data: str
    method: str
    epsilon: float | None
    seed: int
    sites: int = 1

    @property
    def key(self) -> tuple[str, ...]:
        epsilon = "" if self.epsilon is None else f"{self.epsilon:g}"
        method = self.method if self.sites == 1 else f"{self.method}, {self.sites} sites"
        return (self.data, method, epsilon, str(self.seed))


@dataclass(frozen=True)
class Made:
    """A release's rows, None if it was stopped or failed, and what making them took."""

    rows: LabeledRows | None
    cpu_seconds: float
    peak_bytes: int
    provenance: str


def wanted(
    tables: Sequence[str],
    epsilons: Sequence[float],
    seeds: int,
    ours: Sequence[str],
    peers: Sequence[str],
    sites: Sequence[int] = (),
) -> Iterator[Cell]:
    """All lines: what is quick first. Of ours also those of several ``sites``."""
    for seed in range(seeds):
        for data in tables:
            yield Cell(data, REAL, None, seed)
        how = [(method, count) for method in ours for count in (1, *sites)]
        for method, count in (*how, *((peer, 1) for peer in peers)):
            for epsilon in epsilons:
                for data in tables:
                    yield Cell(data, method, epsilon, seed, count)


def run(
    cells: Iterator[Cell], results: Path, peers: Mapping[str, str], *, limit: int, seconds: float
) -> Iterator[tuple[str, ...]]:
    """Make the lines that are not there yet, until ``seconds`` have passed. ``peers``: the
    interpreter of each method of others, which is stopped after ``limit`` seconds of CPU. A line of
    ours is there if it was made by the present source."""
    began, source = time.monotonic(), source_of_ours()
    known = {
        (*(row[name] for name in KEY), "" if row["method"] in peers else row["provenance"])
        for row in whole_lines(results)
    }
    for cell in cells:
        if (*cell.key, "" if cell.method in peers else source) in known:
            continue
        if time.monotonic() - began > seconds:
            return
        line = (*cell.key, *_line(cell, peers.get(cell.method), limit, source))
        append_line(results, HEADER, line)
        yield line


def source_of_ours() -> str:
    """The commit that last changed how releases are made, with a + if that has been changed since;
    outside of a repository the package's version."""
    folder = Path(capemix.__file__).parent
    rooms = [".", *(f":(exclude){room}" for room in _OTHER_ROOMS)]

    def said(*words: str) -> str:
        ran = subprocess.run(
            ["git", *words, "--", *rooms], cwd=folder, capture_output=True, text=True
        )
        return ran.stdout.strip() if ran.returncode == 0 else ""

    try:
        commit, changed = said("log", "-1", "--format=%h"), said("status", "--porcelain")
    except OSError:  # no git
        commit = changed = ""
    return f"{commit}{'+' if changed else ''}" if commit else f"capemix {version('capemix')}"


def _line(cell: Cell, python: str | None, limit: int, source: str) -> tuple[str, ...]:
    train, test = split(complete_rows(cell.data), cell.seed)
    made = Made(train, 0.0, 0, source)
    if cell.epsilon is not None:
        with tempfile.TemporaryDirectory() as folder:
            given = _written(train, Path(folder))
            if python is None:
                made = _ours(cell, given, source)
            else:
                made = _theirs(cell, given, python, limit, train)
    shown = test if cell.epsilon is None else made.rows
    figures = ("",) * len(FIGURES)
    if made.rows is not None and shown is not None:
        figures = tuple(f"{each:.4f}" for each in _judged(made.rows, shown, train, test))
    took = (f"{made.cpu_seconds:.1f}", f"{made.peak_bytes / 1e6:.0f}")
    return (str(len(train)), str(len(test)), *figures, *took, made.provenance)


def _judged(
    taught: LabeledRows, shown: LabeledRows, train: LabeledRows, test: LabeledRows
) -> Iterator[float]:
    like = fidelity(coded(shown), coded(train))
    for distance in (like.one_way, like.two_way, like.three_way):
        yield float("nan") if distance is None else distance
    if train.table is None:
        raise ValueError("rows without a schema")
    how = Preparation(map_of(train.table), NOT_CLIPPED)
    for model in ("logreg", "boosting"):
        score = train_and_test(taught, test, how, model=Classifier(model), prepared=True)
        found = score.declared_public()
        yield found.accuracy
        yield float("nan") if found.auc is None else found.auc


# -- making releases -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Given:
    """What a method is given: files of rows and of what is declared, and a place for its own."""

    rows: Path
    schema: Path
    out: Path


def _written(train: LabeledRows, folder: Path) -> _Given:
    given = _Given(folder / "in.csv", folder / "schema.json", folder / "out")
    write_csv(train, given.rows)
    given.schema.write_text(json.dumps(documents.as_json(train.table)))
    return given


def write_csv(rows: LabeledRows, file: Path) -> None:
    """The rows of a table, as cells."""
    from pyarrow import csv, parquet

    whole = file.with_suffix(".parquet")
    write_table(rows, whole)
    csv.write_csv(parquet.read_table(whole), file)


def _ours(cell: Cell, given: _Given, source: str) -> Made:
    words = [sys.executable, "-m", "capemix", "synth", given.rows, "--schema", given.schema]
    words += ["--method", cell.method, "--epsilon", cell.epsilon, "--delta", DELTA]
    words += ["--samples", ROWS, "--no-ledger", "--out", given.out, "--json"]
    if cell.sites > 1:
        words += ["--scheme", "cape", "--sites", cell.sites, "--partition", "iid"]
    ran = _watched(words)
    if ran.code:
        raise InputError(
            "method", f"{cell.method} made no release: {ran.err[-500:]}", fix="mend it, or leave it"
        )
    return Made(read_release(given.out).rows, ran.cpu_seconds, ran.peak_bytes, source)


def _theirs(cell: Cell, given: _Given, python: str, limit: int, train: LabeledRows) -> Made:
    """-P: what lies beside the script is no package of the peer's."""
    script = Path(__file__).with_name("peer_marginals.py")
    out = given.out.with_suffix(".csv")
    words: list[Any] = [python, "-P", script, cell.method, given.rows, given.schema]
    words += [cell.epsilon, DELTA, ROWS, cell.seed, limit, out]
    ran = _watched(words)
    if ran.code == -signal.SIGXCPU:
        return Made(None, ran.cpu_seconds, ran.peak_bytes, f"{cell.method}, stopped")
    if ran.code:
        last = ran.err.strip().splitlines()[-1:] or [f"code {ran.code}"]
        said = f"{cell.method}, failed: {last[0][:100]}"
        return Made(None, ran.cpu_seconds, ran.peak_bytes, said)
    package, its_version, _ = ran.out.split()[-3:]
    rows = open_data(out, table=train.table).train
    return Made(rows, ran.cpu_seconds, ran.peak_bytes, f"{package} {its_version}")


@dataclass(frozen=True)
class _Ran:
    code: int
    out: str
    err: str
    cpu_seconds: float
    peak_bytes: int


def _watched(words: Sequence[Any]) -> _Ran:
    """Run a program on one thread. Its memory is looked at while it runs: what the system says
    after its end includes its parent's."""
    alone = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started = subprocess.Popen(
            [str(word) for word in words], stdout=out, stderr=err, env={**os.environ, **alone}
        )
        peak = 0
        while True:
            ended, status, used = os.wait4(started.pid, os.WNOHANG)
            if ended:
                break
            peak = max(peak, peak_memory(started.pid))
            time.sleep(_LOOK)
        started.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        seconds = used.ru_utime + used.ru_stime
        return _Ran(started.returncode, out.read(), err.read(), seconds, peak)
