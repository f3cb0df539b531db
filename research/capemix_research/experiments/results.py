"""Results as a small CSV file that grows a line at a time, so that a stopped run goes on."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from capemix_research.experiments.settings import COLUMNS, Setting

if TYPE_CHECKING:
    from capemix.evaluate.cnn import Training

_TRAINING: Final = ("epochs", "learning_rate", "batch")
_HEADER: Final = (*COLUMNS, "seed", *_TRAINING, "noise", "accuracy", "seconds", "provenance")


@dataclass(frozen=True)
class Result:
    """One trained model. ``accuracy`` is in percent, ``seconds`` its share of the group's time."""

    setting: Setting
    seed: int
    training: Training
    noise: float
    accuracy: float
    seconds: float
    provenance: str

    def line(self) -> tuple[str, ...]:
        return (
            *_key(self.setting, self.seed, self.training),
            f"{self.noise:.6g}",
            f"{self.accuracy:.2f}",
            f"{self.seconds:.3f}",
            self.provenance,
        )


def _key(setting: Setting, seed: int, training: Training) -> tuple[str, ...]:
    trained = (f"{getattr(training, name):g}" for name in _TRAINING)
    return (*setting.text(), str(seed), *trained)


class Results:
    """The file, and what it holds so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[tuple[str, ...]] = set()
        keys = len(COLUMNS) + 1 + len(_TRAINING)
        for row in whole_lines(path):
            self._known.add(tuple(row[name] for name in _HEADER[:keys]))

    def has(self, setting: Setting, seed: int, training: Training) -> bool:
        return _key(setting, seed, training) in self._known

    def add(self, result: Result) -> None:
        append_line(self._path, _HEADER, result.line())
        self._known.add(_key(result.setting, result.seed, result.training))

    def rows(self) -> Iterator[tuple[Setting, dict[str, str]]]:
        for row in whole_lines(self._path):
            yield Setting.from_text(row), row


def append_line(path: Path, header: Sequence[str], line: Sequence[object]) -> None:
    """Under ``header`` where there is no file yet, and on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _drop_cut_line(path)
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not file.tell():
            writer.writerow(header)
        writer.writerow(line)
        file.flush()
        os.fsync(file.fileno())


def whole_lines(path: Path) -> Iterator[dict[str, str]]:
    """A line that was cut off when a run was stopped is as good as none, and so is no file."""
    whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
    for row in csv.DictReader(whole.splitlines()):
        if None not in row and None not in row.values() and row["provenance"]:
            yield row


def _drop_cut_line(path: Path) -> None:
    """So that the next line does not continue what a stopped run left unfinished."""
    if path.exists():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)
