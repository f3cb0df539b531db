"""Several settings, side by side, and the table of what was found."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from capemix.audit.configurations import AnySetting
from capemix.audit.looks import LookSetting, score_looks
from capemix.audit.measure import CONFIDENCE, Measured, audit, measure
from capemix.audit.rounds import RoundSetting, score_rounds
from capemix.audit.settings import Setting
from capemix.kernels.threads import cores
from capemix.randomness.source import SeededSource

_LOOKS_SIZE: Final = 4000.0
_ROUNDS_SIZE: Final = 15_000.0
_ROUNDS: Final = 9


@dataclass(frozen=True)
class Task:
    """A setting with the number of its runs: with the canary, and without. ``after`` adds to what
    was measured of it, in the same process."""

    setting: AnySetting
    runs: int
    without: int | None = None
    after: Callable[[Measured, Setting], Measured] | None = None

    @property
    def size(self) -> float:
        """About how long it takes, in no unit: numbers drawn, and a fixed cost for every run."""
        setting = self.setting
        if isinstance(setting, LookSetting):
            return 2 * self.runs * _LOOKS_SIZE
        if isinstance(setting, RoundSetting):
            often = len(setting.plan.chosen_rounds().names) / _ROUNDS
            return 2 * self.runs * often * _ROUNDS_SIZE * setting.plan.federation.sites
        sites = setting.plan.federation.sites
        uploads = sites if setting.view == "public" else setting.honest
        masks = sites if setting.plan.federation.masked else 1
        draws = setting.plan.mixing.samples[0] * (1 + setting.plan.mixing.mixture / 8)
        runs = self.runs + (self.runs if self.without is None else self.without)
        return runs * uploads * (300 + draws + masks * setting.plan.mixing.samples[0] / 4)


def sound_tasks(settings: Sequence[AnySetting], runs: int) -> list[Task]:
    """``runs`` of a single curator; with S sites a run costs S times as much, so fewer, and looks
    and rounds are several runs each."""

    def fewer(setting: AnySetting) -> int:
        if isinstance(setting, LookSetting):
            return 4
        sites = setting.plan.federation.sites
        if isinstance(setting, RoundSetting):
            taught = setting.plan.images is not None  # then there are several times as many sums
            return (16 if taught else 4) * min(2, sites)
        return min(5, sites)

    return [Task(setting, max(20, runs // fewer(setting))) for setting in settings]


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
    setting, runs = task.setting, task.runs
    if isinstance(setting, LookSetting):
        return measure(setting, score_looks(setting, runs, source=source), confidence=confidence)
    if isinstance(setting, RoundSetting):
        return measure(setting, score_rounds(setting, runs, source=source), confidence=confidence)
    found = audit(setting, runs, without=task.without, source=source, confidence=confidence)
    return found if task.after is None else task.after(found, setting)


def write_table(measured: Sequence[Measured], path: Path) -> None:
    rows = [one.as_row() for one in measured]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
