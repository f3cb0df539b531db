"""Many runs, a score for each, and the bounds that the scores support."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.audit import bounds
from capemix.audit.settings import Audited, Setting
from capemix.audit.views import Observer, Signal
from capemix.errors import InputError
from capemix.randomness.source import Source, SystemSource

Real = npt.NDArray[np.float64]

CONFIDENCE: Final = 0.999
_PILOT: Final = 1000
"""Runs of each kind, beside the others, from which `learned_rates` learns."""

LEARNED: Final = "learned draws"


def log_ratio(values: Real, signal: Signal, rates: Real | float | None = None) -> float:
    """The log of the density with the canary over the density without, summed over the draws.

    Each density is (1-q) N(move) + q N(move with the canary); both are taken over that of
    N(base): log N(base + m)/N(base) = ((x - base) m - m^2/2) / deviation^2, on the lattice too.
    """
    rate = np.asarray(signal.probability if rates is None else rates, dtype=np.float64)
    offset, variance = values - signal.base, signal.deviation**2
    with np.errstate(divide="ignore"):
        log_miss, log_hit = np.log1p(-rate), np.log(rate)

    def density(moves: tuple[Real, Real]) -> Real:
        miss, hit = ((offset * move - move**2 / 2) / variance for move in moves)
        return np.asarray(np.logaddexp(log_miss + miss, log_hit + hit))

    return float(np.sum(density(signal.in_) - density(signal.out)))


def learned_rates(without: Real, with_: Real, signal: Signal) -> Real:
    """How often each draw has the canary, learned from runs (runs by draws): the same everywhere
    if selection is secret, near 0 or 1 if it repeats."""
    move = signal.in_[1] - signal.out[1]
    step = np.where(move == 0.0, 1.0, move)
    seen = (with_.mean(axis=0) - without.mean(axis=0)) / step
    return np.where(move == 0.0, signal.probability, np.clip(seen, 1e-3, 1 - 1e-3))


@dataclass(frozen=True, eq=False)
class Scores:
    """A row a run, a column an attack; the first is the exact log ratio of the observer's sum."""

    attacks: tuple[str, ...]
    without: Real
    with_: Real


def score_runs(
    setting: Setting,
    runs: int,
    *,
    without: int | None = None,
    source: Source | None = None,
    progress: Callable[[int], None] | None = None,
) -> Scores:
    """``runs`` with the canary and as many (or ``without``) without it. With the system's
    randomness unless a test's source is given."""
    if runs < 20:
        raise InputError("--runs", "are too few", value=runs, fix="make thousands")
    source = SystemSource() if source is None else source
    observer = Observer(setting)
    bare = runs if without is None else without
    pilot = min(_PILOT, runs // 4, bare // 4)
    first, second = (
        np.array(
            [
                observer.observe(world, source.child("pilot", world, run))[0]
                for run in _counted(pilot, progress)
            ]
        )
        for world in (0, 1)
    )
    learned = learned_rates(first, second, observer.signals[0])

    def score(world: int, run: int) -> list[float]:
        seen = observer.observe(world, source.child("run", world, run))
        found = [log_ratio(*pair) for pair in zip(seen, observer.signals, strict=True)]
        return [*found, log_ratio(seen[0], observer.signals[0], learned)]

    scores = [
        np.array([score(world, run) for run in _counted(count, progress)])
        for world, count in enumerate((bare, runs))
    ]
    names = (*(signal.name for signal in observer.signals), LEARNED)
    return Scores(names, *scores)


def runs_in_all(runs: int, without: int | None = None) -> int:
    """How often `score_runs` calls ``progress``."""
    bare = runs if without is None else without
    return runs + bare + 2 * min(_PILOT, runs // 4, bare // 4)


def _counted(runs: int, progress: Callable[[int], None] | None) -> Iterator[int]:
    for run in range(runs):
        yield run
        if progress is not None:
            progress(1)


@dataclass(frozen=True)
class Measured:
    """A setting's claim and the bounds from below, each with the confidence.

    ``epsilon`` assumes nothing; it cannot exceed ``most``. ``epsilon_ratio`` assumes that the law
    of the observer's sum is the stated one; ``epsilon_fit`` that the trade-off is Gaussian.
    ``power``: the chance that another such audit finds more than is claimed, by ``epsilon`` and by
    ``epsilon_ratio``. ``exact`` is what holds for the two worlds, and ``caught`` what would have to
    hold for nine of ten such audits to find more than is claimed, where that was calculated.
    """

    setting: Audited
    claimed: float
    epsilon: float
    epsilon_ratio: float
    epsilon_fit: float
    most: float
    attack: str
    power: float
    power_ratio: float
    runs: int
    runs_without: int
    confidence: float
    exact: float | None = None
    caught: float | None = None

    @property
    def violated(self) -> bool:
        """Whether the bound that assumes nothing is above the claim."""
        return self.epsilon > self.claimed

    def as_row(self) -> dict[str, object]:
        return {
            **self.setting.describe(),
            "claimed": round(self.claimed, 3),
            "epsilon": round(self.epsilon, 3),
            "epsilon_ratio": round(self.epsilon_ratio, 3),
            "epsilon_fit": round(self.epsilon_fit, 3),
            "most": round(self.most, 3),
            "attack": self.attack,
            "power": round(self.power, 3),
            "power_ratio": round(self.power_ratio, 3),
            "runs": self.runs,
            "runs_without": self.runs_without,
            "confidence": self.confidence,
            "exact": None if self.exact is None else round(self.exact, 3),
            "caught": None if self.caught is None else round(self.caught, 3),
        }


def measure(setting: Audited, scores: Scores, *, confidence: float = CONFIDENCE) -> Measured:
    """The first halves of the runs choose attack and test; the second halves count."""
    delta, claimed = setting.delta, setting.epsilon
    tried = []
    for column in range(len(scores.attacks)):
        choose_out = bounds.halves(scores.without[:, column])[0]
        choose_in = bounds.halves(scores.with_[:, column])[0]
        tried.append(bounds.best_test(choose_out, choose_in, delta, confidence))
    best = max(range(len(tried)), key=lambda column: tried[column][0])
    without, with_ = scores.without[:, best], scores.with_[:, best]
    found = bounds.clopper_pearson_epsilon(without, with_, delta, confidence, tried[best][1])
    fit, _ = bounds.gaussian_fit_epsilon(without, with_, delta, confidence)
    ratios = scores.with_[:, 0]
    return Measured(
        setting=setting,
        claimed=claimed,
        epsilon=found.epsilon,
        epsilon_ratio=bounds.ratio_law_epsilon(ratios, delta, confidence),
        epsilon_fit=fit if math.isfinite(fit) else 0.0,
        most=bounds.ceiling(len(without), len(with_), delta, confidence),
        attack=scores.attacks[best],
        power=bounds.power(found, claimed, delta, confidence),
        power_ratio=bounds.ratio_law_power(ratios, claimed, delta, confidence),
        runs=len(with_),
        runs_without=len(without),
        confidence=confidence,
    )


def audit(
    setting: Setting,
    runs: int,
    *,
    without: int | None = None,
    source: Source | None = None,
    confidence: float = CONFIDENCE,
    progress: Callable[[int], None] | None = None,
) -> Measured:
    """Runs with and without the canary, and what they show."""
    scores = score_runs(setting, runs, without=without, source=source, progress=progress)
    return measure(setting, scores, confidence=confidence)
