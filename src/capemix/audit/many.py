"""Several settings, side by side, and the table of what was found."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from capemix.audit.measure import CONFIDENCE, Measured, audit
from capemix.audit.settings import Audited
from capemix.kernels.machine import cores
from capemix.randomness.source import SeededSource


@dataclass(frozen=True)
class Task:
    """A setting with the number of its runs: with the canary, and without. ``after`` adds to what
    was measured of it, given the setting, in the same process."""

    setting: Audited
    runs: int
    without: int | None = None
    after: Callable[[Measured, Any], Measured] | None = None

    @property
    def size(self) -> float:
        """About how long it takes, in no unit."""
        return self.setting.effort * (self.runs + (self.without or self.runs))


def sound_tasks(settings: Sequence[Audited], runs: int) -> list[Task]:
    """``runs`` of a single curator's plainest setting; fewer of those that take longer."""
    return [Task(setting, max(20, runs // setting.fewer)) for setting in settings]


def audit_all(
    tasks: Sequence[Task],
    *,
    seed: int | None = None,
    workers: int | None = None,
    confidence: float = CONFIDENCE,
    progress: Callable[[Measured, float], None] | None = None,
) -> list[Measured]:
    """Every task's result, in order. ``progress`` is told of each as it is there, and of about how
    many seconds are left. Without a ``seed`` randomness is the system's."""
    started, total, done = time.monotonic(), sum(task.size for task in tasks), 0.0
    found: dict[int, Measured] = {}
    for number, measured in _each(tasks, seed, workers or cores(), confidence):
        found[number] = measured
        done += tasks[number].size
        if progress is not None:
            spent = time.monotonic() - started
            progress(measured, spent * (total - done) / done)
    return [found[number] for number in range(len(tasks))]


def _each(
    tasks: Sequence[Task], seed: int | None, workers: int, confidence: float
) -> Iterator[tuple[int, Measured]]:
    if workers == 1:
        for number, task in enumerate(tasks):
            yield number, _one(task, seed, number, confidence)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        longest_first = sorted(range(len(tasks)), key=lambda number: -tasks[number].size)
        waiting = {
            pool.submit(_one, tasks[number], seed, number, confidence): number
            for number in longest_first
        }
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _one(task: Task, seed: int | None, number: int, confidence: float) -> Measured:
    source = None if seed is None else SeededSource(seed).child("setting", number)
    found = audit(
        task.setting, task.runs, without=task.without, source=source, confidence=confidence
    )
    return found if task.after is None else task.after(found, task.setting)


def write_table(measured: Sequence[Measured], path: Path) -> None:
    rows = [one.as_row() for one in measured]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
