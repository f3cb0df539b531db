"""What a release of a table is worth: classifiers trained on it, tested on rows it never saw.

    python -m capemix_research.experiments.tables --results docs/research/tables.csv

70 of 100 rows are released from, 30 are tested on, split anew for each seed. Ranges and categories
are declared public (as wide as the whole table's, logarithms taken), all else is paid for. A line
of the results is one release and the two models trained on it; lines that are there are not made
again. The tables lie in $CAPEMIX_DATA/tables.

`capemix-research tables` has other methods beside ours.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.api import config_of, synthesize
from capemix.data import LabeledRows, Table, fitted_table, open_data
from capemix.data.schema import Category
from capemix.evaluate import train_and_test
from capemix.evaluate.score import NOT_CLIPPED
from capemix.facts import Facts, map_of
from capemix.plan import make_plan
from capemix.randomness.simulation import simulation_generator
from capemix.randomness.source import SystemSource
from capemix.sums.rows import Preparation
from capemix_research.experiments.public_tables import FILES, UNUSED, embedded, file_of
from capemix_research.experiments.results import append_line, whole_lines

HEADER: Final = (
    *("data", "method", "epsilon", "seed", "logreg", "boosting", "cpu_seconds"),
    "provenance",
)
DATA: Final = ("adult", "letter", "credit_g", "digits", "breast_cancer")
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
        path = file_of(name)
        fitted = fitted_table(path, FILES[name])
        kept = tuple(each for each in fitted.columns if each.name not in UNUSED.get(name, ()))
        return open_data(path, table=Table(kept, fitted.label).with_logs()).train
    table, columns, labels = embedded(name)
    return table.with_logs().coded(columns, labels)


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


def _provenance() -> str:
    return f"capemix {version('capemix')}"


def _text(found: tuple[float, float], seconds: float) -> tuple[str, ...]:
    return (*(f"{each:.4f}" for each in found), f"{seconds:.2f}")


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
    asked = parser.parse_args(words)
    known = {tuple(row[name] for name in HEADER[:4]) for row in whole_lines(asked.results)}
    for cell in cells(asked.data, asked.epsilon, asked.seeds):
        if cell.key not in known:
            found = run(cell)
            append_line(asked.results, HEADER, (*cell.key, *found))
            print(*cell.key, *found, file=sys.stderr)


if __name__ == "__main__":
    main()
