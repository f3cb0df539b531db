"""How faithful releases of one table are, for one curator and for many sites.

    python -m capemix_research.experiments.parties --results docs/research/tables-parties.csv

The table is adult: rows without a missing value, ranges declared in round numbers, the number of
records paid for. 70 of 100 rows are released from, by the method `tables`, which draws as many;
models that are trained on these are tested on the others. Sites have the rows dealt out at random,
or in the order of age. A line of the results is one release; lines that are there are not made
again. The table lies in $CAPEMIX_DATA/tables.

Total variation is half of the sum of differences between the parts of the rows in each cell: means
over all columns, all pairs and 48 sets of three. Of a number of more than 20 values the cells are
20 equal parts of the real range.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.api import config_of, synthesize
from capemix.data import LabeledRows, Table, fitted_table, open_data, partition
from capemix.data.columns import Number
from capemix.data.registry import DATA_FOLDER
from capemix.facts import Facts
from capemix.plan import Plan, make_plan
from capemix.randomness.simulation import simulation_generator
from capemix.randomness.source import SystemSource
from capemix_research.experiments.results import append_line, whole_lines
from capemix_research.experiments.tables import split

Codes = npt.NDArray[np.int64]

RANGES: Final = {
    "age": (0, 100),
    "fnlwgt": (0, 1_500_000),
    "education_num": (0, 20),
    "capital_gain": (0, 100_000),
    "capital_loss": (0, 5_000),
    "hours_per_week": (0, 100),
}
LABEL: Final = "income"
UNUSED: Final = ("split",)
BINS: Final = 20
TRIPLES: Final = 48
ROUNDS: Final = 150
"""Of boosting."""

HEADER: Final = (
    *("epsilon", "sites", "dealt", "seed", "price"),
    *("one_way", "two_way", "three_way", "boosting_auc", "education_fits", "forty_hours"),
    *("cpu_seconds", "provenance"),
)


@dataclass(frozen=True)
class Cell:
    """One release: among how many sites, dealt out how, of which split."""

    epsilon: float
    sites: int
    dealt: str
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        return (f"{self.epsilon:g}", str(self.sites), self.dealt, str(self.seed))


def adult() -> LabeledRows:
    import pandas as pd

    path = Path(os.environ.get(DATA_FOLDER, ""), "tables", "adult.csv.gz")
    frame = pd.read_csv(path, skipinitialspace=True).drop(columns=list(UNUSED)).dropna()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "adult.csv")
        frame.to_csv(file, index=False)
        found = fitted_table(file, LABEL)
        columns = tuple(
            replace(each, low=RANGES[each.name][0], high=RANGES[each.name][1])
            if isinstance(each, Number)
            else each
            for each in found.columns
        )
        return open_data(file, table=Table(columns, found.label)).train


def dealt(rows: LabeledRows, cell: Cell) -> tuple[LabeledRows, ...]:
    if cell.sites == 1:
        return (rows,)
    if cell.dealt == "iid":
        return partition(rows, cell.sites, "iid", seed=cell.seed)
    order = np.argsort(_columns(rows)["age"], kind="stable")
    return tuple(rows.take(part) for part in np.array_split(order, cell.sites))


def planned(rows: LabeledRows, cell: Cell) -> Plan:
    who: dict[str, Any] = {"scheme": "cape", "sites": cell.sites} if cell.sites > 1 else {}
    return make_plan(Facts.of(rows), config_of("tables"), **who).calibrate(cell.epsilon)


def run(cell: Cell) -> tuple[str, ...]:
    train, test = split(adult(), cell.seed)
    start = time.process_time()
    plan = planned(train, cell)
    made = synthesize(plan, dealt(train, cell), source=SystemSource())
    seconds = time.process_time() - start
    rows = replace(train, features=made.features.astype(np.float64), labels=made.labels)
    adversary = plan.federation.adversary
    price = plan.federation.sites / adversary.honest
    found = figures(rows, train, test)
    shown = (f"{each:.4f}" for each in found)
    return (f"{price:.3f}", *shown, f"{seconds:.1f}", f"capemix {version('capemix')}")


# -- figures ---------------------------------------------------------------------------------------


def figures(made: LabeledRows, train: LabeledRows, test: LabeledRows) -> list[float]:
    real, release, fresh = (_columns(rows) for rows in (train, made, test))
    cells = coded(real, release)
    sets: list[list[tuple[int, ...]]] = [
        [(at,) for at in range(len(real))],
        list(combinations(range(len(real)), 2)),
        _triples(len(real)),
    ]
    distances = [float(np.mean([apart(*cells, some) for some in each])) for each in sets]
    pairs = set(zip(real["education"].tolist(), real["education_num"].tolist(), strict=True))
    mine = zip(release["education"].tolist(), release["education_num"].tolist(), strict=True)
    fits = float(np.mean([pair in pairs for pair in mine]))
    forty = float((release["hours_per_week"] == 40).mean())
    return [*distances, auc(release, fresh), fits, forty]


def _columns(rows: LabeledRows) -> dict[str, npt.NDArray[np.float64]]:
    """A number for each value: a category's is its place in the list."""
    table = rows.table
    if table is None:
        raise ValueError("rows without a schema")
    found: dict[str, npt.NDArray[np.float64]] = {}
    for column, place in zip(table.columns, table.places, strict=True):
        values = rows.features[:, place]
        one = values[:, 0] if column.numbers else values.argmax(axis=1)
        found[column.name] = np.asarray(one, dtype=np.float64)
    return {**found, LABEL: rows.labels.astype(np.float64)}


def coded(real: dict[str, Any], other: dict[str, Any]) -> tuple[Codes, Codes]:
    """The cells of both, columns by rows."""
    codes = []
    for name, values in real.items():
        distinct = np.unique(values)
        if len(distinct) > BINS:
            edges = np.linspace(distinct[0], distinct[-1], BINS + 1)[1:-1]
        else:
            edges = (distinct[1:] + distinct[:-1]) / 2
        codes.append([np.searchsorted(edges, each, "right") for each in (values, other[name])])
    return np.stack([one for one, _ in codes]), np.stack([two for _, two in codes])


def apart(one: Codes, other: Codes, columns: Sequence[int]) -> float:
    whole = np.hstack([one[list(columns)], other[list(columns)]])
    place = np.unique(whole, axis=1, return_inverse=True)[1].ravel()
    count, here = int(place.max()) + 1, one.shape[1]
    parts = [np.bincount(each, minlength=count) for each in (place[:here], place[here:])]
    return 0.5 * float(np.abs(parts[0] / here - parts[1] / other.shape[1]).sum())


def _triples(columns: int) -> list[tuple[int, ...]]:
    draws = simulation_generator(0)
    return [tuple(draws.choice(columns, 3, replace=False).tolist()) for _ in range(TRIPLES)]


def auc(train: dict[str, Any], test: dict[str, Any]) -> float:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    features = [np.column_stack([each[name] for name in train if name != LABEL])
                for each in (train, test)]  # fmt: skip
    trees = HistGradientBoostingClassifier(max_iter=ROUNDS, random_state=0)
    trees.fit(features[0], train[LABEL])
    return float(roc_auc_score(test[LABEL], trees.predict_proba(features[1])[:, 1]))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0])
    parser.add_argument("--sites", nargs="+", type=int, default=[1, 5, 25, 100])
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args(words)
    known = {tuple(row[name] for name in HEADER[:4]) for row in whole_lines(asked.results)}
    for seed in range(asked.seeds):
        for epsilon in asked.epsilon:
            for sites in asked.sites:
                for how in ("iid", "by age") if sites > 1 else ("",):
                    cell = Cell(epsilon, sites, how, seed)
                    if cell.key in known:
                        continue
                    found = run(cell)
                    append_line(asked.results, HEADER, (*cell.key, *found))
                    print(*cell.key, *found, file=sys.stderr)


if __name__ == "__main__":
    main()
