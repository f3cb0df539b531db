"""The paper's problem: the least epsilon whose utility is at least theta times the real rows'.

Every trial releases rows through the whole pipeline and trains a model on them, so the search looks
at the real rows again and again, and no guarantee covers that: it is for public rows, and nothing
made here is a release.

Noise makes the curve uneven, so bisection decides by the mean over seeds and gives a bracket: the
largest epsilon that it saw fall short, and the smallest that it saw suffice.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from capemix.api import synthesize
from capemix.data.rows import LabeledRows
from capemix.data.soft_labels import SoftLabels
from capemix.errors import InputError
from capemix.evaluate import Classifier, Progress, train_and_test
from capemix.evaluate.score import NOT_CLIPPED
from capemix.plan import Plan
from capemix.randomness.source import SeededSource
from capemix.sums.rows import Preparation
from capemix.sums.steps import Normalise

_COLUMNS: Final = ("settings", "rows", "epsilon", "seed", "utility", "seconds")
_DIGITS: Final = 4
"""Of an epsilon that is tried, so that it can be read and typed."""

_CLEAR: Final = 2.0
"""Standard errors from the target that count as beyond chance."""


@dataclass(frozen=True)
class Point:
    """An epsilon, and the utility at each seed."""

    epsilon: float
    utilities: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.utilities)

    @property
    def spread(self) -> float | None:
        """The deviation between seeds; None of a single one."""
        return statistics.stdev(self.utilities) if len(self.utilities) > 1 else None

    def beyond_chance(self, target: float) -> bool:
        """Whether the seeds leave little doubt on which side of ``target`` the mean lies."""
        if self.spread is None:
            return False
        return abs(self.mean - target) > _CLEAR * self.spread / math.sqrt(len(self.utilities))


@dataclass(frozen=True)
class Frontier:
    """What was found: ``reached`` is the smallest epsilon whose mean utility was at least theta
    times the real rows', ``below`` the largest smaller one that was not; None where the range had
    none."""

    theta: float
    real: float
    points: tuple[Point, ...]
    below: float | None
    reached: float | None

    @property
    def target(self) -> float:
        return self.theta * self.real

    @property
    def falls(self) -> tuple[tuple[float, float], ...]:
        """Neighbouring epsilons between which the mean falls instead of rising."""
        pairs = zip(self.points, self.points[1:], strict=False)
        return tuple((a.epsilon, b.epsilon) for a, b in pairs if b.mean < a.mean)

    def says(self) -> str:
        """The answer in a sentence."""
        goal = f"{self.target:.3f}, {self.theta:g} of the real rows' {self.real:.3f}"
        if self.reached is None:
            return f"no epsilon up to {self.below:g} reaches {goal}"
        if self.below is None:
            return f"epsilon {self.reached:g}, the least that was tried, reaches {goal} already"
        return f"epsilon {self.reached:g} reaches {goal}; epsilon {self.below:g} does not"

    def as_json(self) -> dict[str, Any]:
        return {
            "theta": self.theta,
            "real": self.real,
            "target": self.target,
            "below": self.below,
            "reached": self.reached,
            "points": [
                {
                    "epsilon": point.epsilon,
                    "mean": point.mean,
                    "spread": point.spread,
                    "utilities": list(point.utilities),
                    "beyond_chance": point.beyond_chance(self.target),
                }
                for point in self.points
            ],
            "falls": [list(pair) for pair in self.falls],
        }


def search(
    measure: Callable[[float], Point],
    *,
    theta: float,
    real: float,
    low: float,
    high: float,
    within: float,
) -> Frontier:
    """Bisection on log epsilon between ``low`` and ``high``, until the bracket's ends are at most
    a factor of ``within`` apart."""
    target = theta * real
    seen: dict[float, Point] = {}

    def suffices(epsilon: float) -> bool:
        seen[epsilon] = measure(epsilon)
        return seen[epsilon].mean >= target

    def found(below: float | None, reached: float | None) -> Frontier:
        points = tuple(seen[epsilon] for epsilon in sorted(seen))
        return Frontier(theta, real, points, below, reached)

    if not suffices(high):
        return found(high, None)
    if suffices(low):
        return found(None, low)
    while high / low > within and low < (middle := _middle(low, high)) < high:
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return found(low, high)


def most_points(low: float, high: float, within: float) -> int:
    """How many epsilons a search may try."""
    return 2 + max(0, math.ceil(math.log2(math.log(high / low) / math.log(within))))


class Trials:
    """The utility of releases by epsilon and seed, each written to a file as it comes.

    ``settings`` is everything that a trial's utility depends on but epsilon and seed; trials of the
    same settings that the file has are not repeated.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._settings = json.dumps(settings, sort_keys=True)
        self._known = {
            (row["rows"], row["epsilon"], int(row["seed"])): float(row["utility"])
            for row in _rows_of(path)
            if row["settings"] == self._settings
        }

    def real(self, seed: int, score: Callable[[], float]) -> float:
        """The utility of real rows."""
        return self._of(("real", "", seed), score)

    def synthetic(self, epsilon: float, seed: int, score: Callable[[], float]) -> float:
        return self._of(("synthetic", repr(epsilon), seed), score)

    def _of(self, key: tuple[str, str, int], score: Callable[[], float]) -> float:
        if key not in self._known:
            started = time.monotonic()
            self._known[key] = score()
            seconds = f"{time.monotonic() - started:.2f}"
            self._write((self._settings, *key, repr(self._known[key]), seconds))
        return self._known[key]

    def _write(self, trial: tuple[object, ...]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                if not file.tell():
                    writer.writerow(_COLUMNS)
                writer.writerow(trial)
        except OSError as error:
            raise InputError(
                "--out",
                "cannot be written",
                value=self._path.parent,
                fix="name a folder you may write to",
            ) from error


@dataclass(frozen=True, eq=False)
class Task:
    """Public rows, and how releases of them are made and judged.

    ``plan`` is not calibrated yet, and declares the columns' range.
    """

    sites: Sequence[LabeledRows]
    real: LabeledRows
    test: LabeledRows
    classifier: Classifier
    plan: Plan

    def __post_init__(self) -> None:
        if self.plan.facts.normalise is None:
            raise InputError(
                "public_range",
                "must be declared: all releases of a search are judged in the same units",
                fix="give LO,HI, or 'none' for rows as they stand",
            )

    @property
    def preparation(self) -> Preparation:
        """What test rows and the real rows of the comparison go through: the same as those behind a
        release, as far as whole rows go."""
        clip, how = self.plan.row_clip, self.plan.facts.normalise
        assert isinstance(how, Normalise)  # as it was made
        return Preparation(how, NOT_CLIPPED if clip is None else clip)

    def find(
        self,
        trials: Trials,
        *,
        theta: float,
        low: float,
        high: float,
        within: float = 1.1,
        seeds: Sequence[int] = (0, 1, 2),
        progress: Callable[[float, float], None] | None = None,
    ) -> Frontier:
        """The least epsilon, by `search`; a seed decides a release's noise and its model, the same
        at every epsilon. ``progress`` is told how many trials are done, and how many may come."""
        _check(theta, low, high, within, seeds)
        draws = seeds[:1] if self.classifier.name == "logreg" else seeds
        most = len(draws) + most_points(low, high, within) * len(seeds)
        done = 0

        def tell(epoch: int, epochs: int) -> None:
            if progress is not None:
                progress(done + epoch / epochs, most)

        def counted(utility: float) -> float:
            nonlocal done
            done += 1
            tell(0, 1)
            return utility

        def measure(epsilon: float) -> Point:
            return Point(
                epsilon,
                tuple(
                    counted(
                        trials.synthetic(epsilon, seed, partial(self.utility, epsilon, seed, tell))
                    )
                    for seed in seeds
                ),
            )

        real = [
            counted(trials.real(seed, partial(self.real_utility, seed, tell))) for seed in draws
        ]
        return search(
            measure, theta=theta, real=statistics.fmean(real), low=low, high=high, within=within
        )

    def utility(self, epsilon: float, seed: int, progress: Progress | None = None) -> float:
        """Accuracy on test rows after training on one release."""
        plan = self.plan.calibrate(epsilon)
        release = synthesize(plan, self.sites, source=SeededSource(seed))
        rows = replace(
            self.real, features=release.features.astype(np.float64), labels=release.labels
        )
        return self._trained(rows, seed, progress, prepared=True, soft=release.soft_labels)

    def real_utility(self, seed: int, progress: Progress | None = None) -> float:
        """Accuracy on test rows after training on the real rows."""
        return self._trained(self.real, seed, progress, prepared=False)

    def _trained(
        self,
        rows: LabeledRows,
        seed: int,
        progress: Progress | None,
        *,
        prepared: bool,
        soft: SoftLabels | None = None,
    ) -> float:
        score = train_and_test(
            rows,
            self.test,
            self.preparation,
            model=replace(self.classifier, seed=seed),
            soft_labels=soft if self.classifier.takes_soft_labels else None,
            prepared=prepared,
            progress=progress,
        )
        return score.declared_public().accuracy


def _middle(low: float, high: float) -> float:
    return float(f"{math.sqrt(low * high):.{_DIGITS}g}")


def _check(theta: float, low: float, high: float, within: float, seeds: Sequence[int]) -> None:
    if not 0.0 < theta <= 1.0:
        raise InputError("--theta", "must be above 0 and at most 1", value=theta, fix="try 0.8")
    if not 0.0 < low < high < math.inf:
        raise InputError(
            "--from and --to",
            "must be epsilons with 0 < from < to",
            value=f"{low:g} and {high:g}",
            fix="try 0.1 and 30",
        )
    if not 1.001 <= within < math.inf:
        raise InputError("--within", "must be at least 1.001", value=within, fix="try 1.1")
    if not seeds or min(seeds) < 0:
        raise InputError("--seeds", "must be at least 1", value=len(seeds), fix="try 3")


def _rows_of(path: Path) -> list[dict[str, str]]:
    """The trials in a file; a line that was cut short is taken off it."""
    try:
        text = path.read_text() if path.exists() else ""
        if not text.endswith("\n"):
            text = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(text.splitlines())
        rows = list(reader)
        for row in rows:
            int(row["seed"]), float(row["utility"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _not_ours(path) from error
    if text and tuple(reader.fieldnames or ()) != _COLUMNS:
        raise _not_ours(path)
    if path.exists() and path.stat().st_size != len(text.encode()):
        path.write_text(text)
    return rows


def _not_ours(path: Path) -> InputError:
    return InputError(
        "--out", "holds another kind of file by this name", value=path, fix="name another folder"
    )
