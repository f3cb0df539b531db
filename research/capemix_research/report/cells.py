"""Results and the paper's numbers as they lie in CSV files."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capemix.errors import InputError

Row = dict[str, str]

PAPERS_TRAINING: Final = {"epochs": "100", "learning_rate": "1e-05", "batch": "128"}
"""Adam at 1e-5 for 100 epochs as the paper says, and a batch size, which it does not say."""

STATED: Final = {"samples": "60000", "clip": "1"}
"""T and c of every table but the grid's."""


@dataclass(frozen=True)
class Sample:
    """Accuracies of one setting in percent, one a seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """From the lowest seed to the highest."""
        return max(self.values) - min(self.values)

    @property
    def seeds(self) -> int:
        return len(self.values)

    def __str__(self) -> str:
        if self.seeds == 1:
            return f"{self.mean:.1f}"
        deviation = statistics.stdev(self.values)
        return f"{self.mean:.1f} ± {deviation:.1f}"


class Runs:
    """Every result of one kind of training, found by its setting."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self._by: dict[tuple[tuple[str, str], ...], list[Row]] = defaultdict(list)
        for row in rows:
            self._by[_key(row)].append(row)

    @classmethod
    def read(cls, path: Path, training: dict[str, str] | None = None) -> Runs:
        """``training`` leaves out what was trained otherwise."""
        kept = training or {}
        rows = [row for row in lines(path) if all(row[name] == kept[name] for name in kept)]
        return cls(rows)

    def of(self, **setting: object) -> Sample | None:
        """The sample of exactly this setting; None while nothing is there."""
        wanted = {name: str(value) for name, value in setting.items()}
        rows = self._by.get(_key({**_DEFAULTS, **wanted}), [])
        values = {row["seed"]: float(row["accuracy"]) for row in rows}
        return Sample(tuple(values[seed] for seed in sorted(values, key=int))) if values else None


_SETTING: Final = (
    "dataset",
    "method",
    "sites",
    "mixture",
    "epsilon",
    "samples",
    "clip",
    "labels_noised",
    "accountant",
    "site_noise",
)
_DEFAULTS: Final = {**STATED, "labels_noised": "True", "accountant": "theorem1", "site_noise": ""}


def _key(row: Row) -> tuple[tuple[str, str], ...]:
    return tuple((name, row[name]) for name in _SETTING)


@dataclass(frozen=True)
class Printed:
    """A number of the paper's, and where it stands. ``accuracy`` is None where it has a dash."""

    table: str
    panel: str
    dataset: str
    method: str
    mixture: str
    epsilon: str
    sites: str
    accuracy: float | None
    where: str


def printed(folder: Path, table: str) -> list[Printed]:
    return [
        Printed(
            **{k: row[k] for k in ("table", "panel", "dataset", "method")},
            **{k: row[k] for k in ("mixture", "epsilon", "sites", "where")},
            accuracy=float(row["accuracy"]) if row["accuracy"] else None,
        )
        for row in lines(folder / f"{table}.csv")
    ]


def lines(path: Path) -> Iterator[Row]:
    """Whole lines of a CSV file; one that was cut off when a run was stopped is left out."""
    if not path.is_file():
        raise InputError(
            "results",
            "are not there",
            value=path,
            fix="run capemix-research reproduce first, or mend --out",
        )
    whole, _, _ = path.read_text().rpartition("\n")
    for row in csv.DictReader(whole.splitlines()):
        if None not in row and None not in row.values():
            yield row
