"""What a release of a table is worth: classifiers trained on it, tested on rows it never saw.

    python -m capemix.experiments.tables --results docs/tables.csv [--peer PYTHON]

70 of 100 rows are released from, 30 are tested on, split anew for each seed. Ranges and categories
are declared public (as drafted from the whole table), and everything else is paid for. A line of
the results is one release and the two models trained on it; lines that are there are not made
again. The tables lie in $CAPEMIX_DATA/tables. ``--peer`` names an interpreter that has dpmm, whose
MST is then measured on the same rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.api import release_of
from capemix.data import LabeledRows, Table, draft_table, load_table
from capemix.data.registry import DATA_FOLDER
from capemix.data.schema import Category, Number
from capemix.evaluate import train_and_test
from capemix.experiments.results import append_line, whole_lines
from capemix.prepare.rows import Preparation
from capemix.randomness.simulation import simulation_generator
from capemix.randomness.source import SystemSource
from capemix.synthesizers.tables import map_of

HEADER: Final = (
    *("data", "method", "epsilon", "seed", "logreg", "boosting", "cpu_seconds"),
    "provenance",
)
FILES: Final = {"adult": "income", "letter": "lettr", "credit_g": "class"}
UNUSED: Final = {"adult": ("split",)}
EMBEDDED: Final = ("digits", "breast_cancer")
PEERED: Final = ("adult", "credit_g")
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
        drafted = draft_table(path, FILES[name])
        kept = tuple(each for each in drafted.columns if each.name not in UNUSED.get(name, ()))
        return load_table(path, Table(kept, drafted.label)).rows
    import sklearn.datasets

    found = getattr(sklearn.datasets, f"load_{name}")()
    features: npt.NDArray[np.float64] = np.asarray(found.data, dtype=np.float64)
    low, high = features.min(axis=0), features.max(axis=0)
    if name == "digits":  # every pixel has one range
        low, high = np.zeros(64), np.full(64, 16.0)
    whole = name == "digits"
    table = Table(
        tuple(
            Number(f"x{at}", float(a), float(b), whole=whole)
            for at, (a, b) in enumerate(zip(low, high, strict=True))
        ),
        Category("label", tuple(range(len(found.target_names)))),
    )
    return table.coded(list(features.T), np.asarray(found.target, dtype=np.int64))


def split(rows: LabeledRows, seed: int) -> tuple[LabeledRows, LabeledRows]:
    """70 and 30 of 100."""
    order = simulation_generator(seed).permutation(len(rows))
    cut = round(0.7 * len(rows))
    return rows.take(order[:cut]), rows.take(order[cut:])


def scores(train: LabeledRows, test: LabeledRows) -> tuple[float, float]:
    """Test accuracy of logistic regression on coded rows, and of boosted trees on columns."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    if train.table is None:
        raise ValueError("rows without a schema")
    how = Preparation(map_of(train.table), 1e30)
    linear = train_and_test(train, test, how, prepared=True).declared_public().accuracy
    trees = HistGradientBoostingClassifier(random_state=0)
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
    """Rows drawn from moments, and the CPU seconds that it took."""
    start = time.process_time()
    made = release_of(
        train,
        epsilon=epsilon,
        delta=DELTA,
        synthesizer="moments",
        samples=SAMPLES,
        source=SystemSource(),
    )
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


def peer(train: LabeledRows, epsilon: float, seed: int, python: str) -> tuple[LabeledRows, float]:
    """The same by dpmm's MST."""
    import pyarrow as pa
    from pyarrow import csv

    table = train.table
    if table is None:
        raise ValueError("rows without a schema")
    with tempfile.TemporaryDirectory() as folder:
        given, schema, out = (Path(folder, name) for name in ("in.csv", "schema.json", "out.csv"))
        cells = table.cells(train.features.astype(np.float64))
        cells[train.label_name] = np.array(train.classes)[train.labels]
        csv.write_csv(pa.table(cells), given)
        schema.write_text(json.dumps(table.as_json()))
        script = Path(__file__).with_name("peer_dpmm.py")
        # -P: what lies beside the script is no package of the peer's.
        words = [python, "-P", script, given, schema, epsilon, DELTA, seed, out]
        ran = subprocess.run(
            [str(word) for word in words], check=True, capture_output=True, text=True
        )
        return load_table(out, table).rows, float(ran.stdout.split()[-1])


def cells(names: Sequence[str], epsilons: Sequence[float], seeds: int, peered: bool) -> list[Cell]:
    out = []
    for seed in range(seeds):
        for name in names:
            out.append(Cell(name, "real", None, seed))
            for epsilon in epsilons:
                out.append(Cell(name, "moments", epsilon, seed))
                if peered and name in PEERED:
                    out.append(Cell(name, "dpmm-mst", epsilon, seed))
    return out


def run(cell: Cell, python: str | None) -> tuple[float, float, float]:
    """Both accuracies, and the CPU seconds of making the rows."""
    train, test = split(rows_of(cell.data), cell.seed)
    made, seconds = train, 0.0
    if cell.method == "moments" and cell.epsilon is not None:
        made, seconds = released(train, cell.epsilon)
    elif cell.epsilon is not None and python is not None:
        made, seconds = peer(train, cell.epsilon, cell.seed, python)
    return (*scores(made, test), seconds)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=[*FILES, *EMBEDDED])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peer", help="an interpreter that has dpmm")
    asked = parser.parse_args(words)
    known = {tuple(row[name] for name in HEADER[:4]) for row in whole_lines(asked.results)}
    provenance = f"capemix {version('capemix')}"
    for cell in cells(asked.data, asked.epsilon, asked.seeds, asked.peer is not None):
        if cell.key in known:
            continue
        logreg, boosting, seconds = run(cell, asked.peer)
        found: tuple[Any, ...] = (f"{logreg:.4f}", f"{boosting:.4f}", f"{seconds:.2f}")
        append_line(asked.results, HEADER, (*cell.key, *found, provenance))
        print(*cell.key, *found, file=sys.stderr)


if __name__ == "__main__":
    main()
