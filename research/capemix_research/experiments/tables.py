"""What a release of a table is worth: classifiers trained on it, tested on rows it never saw.

    python -m capemix_research.experiments.tables --results docs/research/tables.csv
    python -m capemix_research.experiments.tables --results docs/research/tables-peer.csv \\
        --peer METHOD=PYTHON ...

70 of 100 rows are released from, 30 are tested on, split anew for each seed. Ranges and categories
are declared public (as wide as the whole table's, logarithms taken), all else is paid for. A line
of the results is one release and the two models trained on it; lines that are there are not made
again. The tables lie in $CAPEMIX_DATA/tables.

With ``--peer``, a line is a release by a marginal-based method of others (``peer_marginals``) and
one of ours, made just before it by the same process from the same rows. PYTHON is an interpreter
that has the method's package. A peer that spends ``--limit`` seconds of CPU is stopped, and its
line has no accuracies. Lastly the lines of the file are printed as the table of the page.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix import documents
from capemix.api import config_of, synthesize
from capemix.data import LabeledRows, Table, fitted_table, open_data
from capemix.data.registry import DATA_FOLDER
from capemix.data.schema import Category, Number
from capemix.evaluate import train_and_test
from capemix.evaluate.score import NOT_CLIPPED
from capemix.facts import Facts, map_of
from capemix.plan import make_plan
from capemix.randomness.simulation import simulation_generator
from capemix.randomness.source import SystemSource
from capemix.sums.rows import Preparation
from capemix_research.experiments.results import append_line, whole_lines

HEADER: Final = (
    *("data", "method", "epsilon", "seed", "logreg", "boosting", "cpu_seconds"),
    "provenance",
)
PEER_HEADER: Final = (
    *("data", "peer", "epsilon", "seed", "logreg", "boosting", "cpu_seconds"),
    *("our_logreg", "our_boosting", "our_cpu_seconds", "provenance"),
)
FILES: Final = {
    "adult": "income",
    "letter": "lettr",
    "credit_g": "class",
    "spam": "type",
    "shuttle": "Class",
}
UNUSED: Final = {"adult": ("split",)}
EMBEDDED: Final = ("digits", "breast_cancer")
DATA: Final = ("adult", "letter", "credit_g", *EMBEDDED)
DELTA: Final = 1e-5
SAMPLES: Final = 40_000
"""Rows of a release: drawing costs no budget, and trees learn a Gaussian slowly."""


@dataclass(frozen=True)
class Cell:
    """One release: of which data, how, at which epsilon (None: real rows), of which split."""

    data: str
    method: str
    epsilon: float | None
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        epsilon = "" if self.epsilon is None else f"{self.epsilon:g}"
        return (self.data, self.method, epsilon, str(self.seed))


def rows_of(name: str) -> LabeledRows:
    """Public rows, coded by a schema that is declared public."""
    if name in FILES:
        path = Path(os.environ.get(DATA_FOLDER, ""), "tables", f"{name}.csv.gz")
        fitted = fitted_table(path, FILES[name])
        kept = tuple(each for each in fitted.columns if each.name not in UNUSED.get(name, ()))
        return open_data(path, table=Table(kept, fitted.label).with_logs()).train
    import sklearn.datasets

    found = getattr(sklearn.datasets, f"load_{name}")()
    features: npt.NDArray[np.float64] = np.asarray(found.data, dtype=np.float64)
    low, high = features.min(axis=0), features.max(axis=0)
    if name == "digits":  # every pixel has one range
        low, high = np.zeros(64), np.full(64, 16.0)
    table = Table(
        tuple(
            Number(f"x{at}", a, b, type="integer" if name == "digits" else "number")
            for at, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True))
        ),
        Category("label", tuple(range(len(found.target_names)))),
    ).with_logs()
    return table.coded(list(features.T), np.asarray(found.target, dtype=np.int64))


def split(rows: LabeledRows, seed: int) -> tuple[LabeledRows, LabeledRows]:
    """70 and 30 of 100."""
    order = simulation_generator(seed).permutation(len(rows))
    cut = round(0.7 * len(rows))
    return rows.take(order[:cut]), rows.take(order[cut:])


def scores(train: LabeledRows, test: LabeledRows, *, rounds: int = 100) -> tuple[float, float]:
    """Test accuracy of logistic regression on coded rows, and of trees boosted for so many
    ``rounds`` on columns."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    if train.table is None:
        raise ValueError("rows without a schema")
    how = Preparation(map_of(train.table), NOT_CLIPPED)
    linear = train_and_test(train, test, how, prepared=True).declared_public().accuracy
    trees = HistGradientBoostingClassifier(random_state=0, max_iter=rounds)
    trees.fit(_columns(train), train.labels)
    return linear, float((trees.predict(_columns(test)) == test.labels).mean())


def _columns(rows: LabeledRows) -> npt.NDArray[np.float64]:
    """A number for each column of the table: a category's is its place in the list."""
    table = rows.table
    if table is None:
        raise ValueError("rows without a schema")
    return np.stack(
        [
            rows.features[:, place].argmax(axis=1)
            if isinstance(column, Category)
            else rows.features[:, place.start]
            for column, place in zip(table.columns, table.places, strict=True)
        ],
        axis=1,
    ).astype(np.float64)


def released(train: LabeledRows, epsilon: float) -> tuple[LabeledRows, float]:
    """Rows drawn from a Gaussian for each class, and the CPU seconds that it took."""
    start = time.process_time()
    method = config_of("class-gaussian", samples=SAMPLES)
    plan = make_plan(Facts.of(train), method, delta=DELTA, law="rounded").calibrate(epsilon)
    made = synthesize(plan, train, source=SystemSource())
    seconds = time.process_time() - start
    rows = LabeledRows(
        made.features.astype(np.float64),
        made.labels,
        train.classes,
        train.feature_names,
        train.label_name,
        table=train.table,
    )
    return rows, seconds


def peer(
    train: LabeledRows, cell: Cell, python: str, limit: int
) -> tuple[LabeledRows | None, float, str]:
    """The same by a method of others, and its package: no rows if it was stopped at the limit."""
    import pyarrow as pa
    from pyarrow import csv

    table = train.table
    if table is None:
        raise ValueError("rows without a schema")
    with tempfile.TemporaryDirectory() as folder:
        given, schema, out = (Path(folder, name) for name in ("in.csv", "schema.json", "out.csv"))
        cells = table.cells(train.features.astype(np.float64), train.labels)
        csv.write_csv(pa.table(cells), given)
        schema.write_text(json.dumps(documents.as_json(table)))
        script = Path(__file__).with_name("peer_marginals.py")
        # -P: what lies beside the script is no package of the peer's.
        words = [python, "-P", script, cell.method, given, schema]
        words += [cell.epsilon, DELTA, SAMPLES, cell.seed, limit, out]
        ran = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if ran.returncode == -signal.SIGXCPU:
            return None, float(limit), f"{cell.method.partition('-')[0]}, stopped"
        if ran.returncode:
            raise RuntimeError(f"{cell.method}: {ran.stderr[-2000:]}")
        package, its_version, seconds = ran.stdout.split()[-3:]
        return open_data(out, table=table).train, float(seconds), f"{package} {its_version}"


def cells(names: Sequence[str], epsilons: Sequence[float], seeds: int) -> list[Cell]:
    out = []
    for seed in range(seeds):
        for name in names:
            out.append(Cell(name, "real", None, seed))
            out += [Cell(name, "moments", epsilon, seed) for epsilon in epsilons]
    return out


def run(cell: Cell) -> tuple[str, ...]:
    """Both accuracies, the CPU seconds of making the rows, and by what."""
    train, test = split(rows_of(cell.data), cell.seed)
    made, seconds = train, 0.0
    if cell.epsilon is not None:
        made, seconds = released(train, cell.epsilon)
    return (*_text(scores(made, test), seconds), _provenance())


def run_beside(cell: Cell, python: str, limit: int) -> tuple[str, ...]:
    """The same of a peer and of our release of the same rows, the one after the other."""
    train, test = split(rows_of(cell.data), cell.seed)
    if cell.epsilon is None:
        raise ValueError("a peer without an epsilon")
    # What the first release loads is not timed, as the peer's imports are not: other rows, and
    # another epsilon, so that nothing is calibrated ahead.
    released(test, 1.5 * cell.epsilon)
    ours, our_seconds = released(train, cell.epsilon)
    theirs, seconds, package = peer(train, cell, python, limit)
    found = None if theirs is None else scores(theirs, test)
    both = (*_text(found, seconds), *_text(scores(ours, test), our_seconds))
    return (*both, f"{_provenance()}, {package}")


def _provenance() -> str:
    return f"capemix {version('capemix')}"


def _text(found: tuple[float, float] | None, seconds: float) -> tuple[str, ...]:
    accuracies = ["", ""] if found is None else [f"{each:.4f}" for each in found]
    return (*accuracies, f"{seconds:.2f}")


def splits_table(lines: Iterable[dict[str, str]]) -> str:
    """Lines of releases and of real rows as a table of means over splits."""
    groups: dict[str, dict[str, list[dict[str, str]]]] = {}
    for line in lines:
        groups.setdefault(line["data"], {}).setdefault(line["epsilon"], []).append(line)
    rows = [["data", "splits", "epsilon 1", "epsilon 10", "real rows"], ["---"] * 5]
    for name, by_epsilon in groups.items():
        found = [_means(by_epsilon[epsilon], "logreg", "boosting") for epsilon in ("1", "10", "")]
        rows.append([name, str(len(by_epsilon["1"])), *found])
    return markdown(rows)


def beside_table(lines: Iterable[dict[str, str]]) -> str:
    """Lines of peers as a table of means over splits; stopped ones apart."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line in lines:
        end = "" if line["logreg"] else "stopped"
        groups.setdefault((line["data"], line["epsilon"], line["peer"], end), []).append(line)
    order = sorted(groups, key=lambda key: (key[0], float(key[1]), key[2:]))
    head = "data, epsilon, peer, splits, accuracy of the peer, ours, times our CPU seconds"
    rows = [head.split(", "), ["---"] * 7]
    for key in order:
        group = groups[key]
        times = np.mean([float(x["cpu_seconds"]) / float(x["our_cpu_seconds"]) for x in group])
        ratio, ours = f"{times:.0f}", _means(group, "our_logreg", "our_boosting")
        if key[3]:
            found, ratio = f"stopped at {float(group[0]['cpu_seconds']):.0f} s", f"over {ratio}"
        else:
            found = _means(group, "logreg", "boosting")
        rows.append([*key[:3], str(len(group)), found, ours, ratio])
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace(" --- ", "---")


def _means(lines: Sequence[dict[str, str]], *names: str) -> str:
    return " / ".join(f"{np.mean([float(line[name]) for line in lines]):.3f}" for name in names)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=DATA)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peer", nargs="+", default=[], metavar="METHOD=PYTHON")
    parser.add_argument("--limit", type=int, default=600, help="a peer's CPU seconds")
    asked = parser.parse_args(words)
    peers = dict(each.split("=", 1) for each in asked.peer)
    header = PEER_HEADER if peers else HEADER
    known = {tuple(row[name] for name in header[:4]) for row in whole_lines(asked.results)}
    wanted = cells(asked.data, asked.epsilon, asked.seeds)
    if peers:
        ours = [each for each in wanted if each.epsilon is not None]
        wanted = [replace(each, method=name) for each in ours for name in peers]
    for cell in wanted:
        if cell.key in known:
            continue
        found = run_beside(cell, peers[cell.method], asked.limit) if peers else run(cell)
        append_line(asked.results, header, (*cell.key, *found))
        print(*cell.key, *found, file=sys.stderr)
    if peers:
        print(beside_table(whole_lines(asked.results)), end="")


if __name__ == "__main__":
    main()
