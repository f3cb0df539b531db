"""What an audit of a given size would have seen: how far a claim must be exceeded to be caught.

The noise of a setting is scaled, in simulation: the law of the scores is known, so no run of the
pipeline is needed. Where nine of ten such audits just find more than is claimed, by the law of the
scores, the epsilon that holds for the two worlds is the least that the audit *would have caught*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from capemix.accounting.sampled import epsilon_pld
from capemix.audit import bounds
from capemix.audit.drawn import Setting
from capemix.audit.views import Observer
from capemix.queries import Participation, Relation
from capemix.randomness.simulation import simulation_generator

Real = npt.NDArray[np.float64]

WANTED: Final = 0.9
_AUDITS: Final = 400
"""Audits that are simulated, each with runs drawn from as many as one has, or `_POOL`."""
_POOL: Final = 4000
_NUMBERS: Final = 1 << 22
"""Numbers in memory at once."""
_NEAR: Final = 1.01
_LEAST: Final = 1e-3


@dataclass(frozen=True)
class Caught:
    """The noise, as a part of what the setting has, at which an audit catches the setting with
    probability `WANTED`; and the epsilon that holds there."""

    noise: float
    epsilon: float


@dataclass(frozen=True)
class Pair:
    """Two worlds of ``draws``: N(0,1) each, or moved by ``move`` with ``probability``."""

    participation: Participation
    move: float

    @classmethod
    def of(cls, setting: Setting) -> Pair | None:
        """None where the canary changes draws that it is not in."""
        observer = Observer(setting)
        signal, group = observer.signals[0], observer.query.participation[0]
        moved = signal.in_[1]
        if any(part.any() for part in (*signal.out, signal.in_[0])) or np.ptp(moved) != 0.0:
            return None
        poisson = Participation(len(moved), group.selected, group.among)
        return cls(poisson, float(abs(moved[0])) / signal.deviation)

    def with_noise(self, factor: float) -> Pair:
        return Pair(self.participation, self.move / factor)

    def epsilon(self, delta: float) -> float:
        """What holds for these two worlds, from losses composed on a grid."""
        found = epsilon_pld((self.participation,), 1.0 / self.move, delta, Relation.ADD_REMOVE)
        return math.inf if found is None else found

    def log_ratios(self, runs: int, seed: int = 0) -> Real:
        """Of runs with the canary, simulated."""
        generator, draws = simulation_generator(seed), self.participation.draws
        rate, move = self.participation.probability, self.move
        found = np.empty(runs)
        step = max(1, _NUMBERS // draws)
        for start in range(0, runs, step):
            size = (min(step, runs - start), draws)
            value = generator.standard_normal(size)
            value += move * (generator.random(size) < rate)
            value *= move
            value -= move**2 / 2
            with np.errstate(divide="ignore"):
                ratio = np.logaddexp(np.log1p(-rate), math.log(rate) + value)
            found[start : start + step] = ratio.sum(axis=1)
        return found


def chance_to_catch(
    pair: Pair, runs: int, claimed: float, delta: float, confidence: float, seed: int = 0
) -> float:
    """How many of many audits of ``runs`` with the canary find more than ``claimed``."""
    excess = bounds.excess(pair.log_ratios(max(runs, _POOL), seed), claimed)
    generator = simulation_generator(seed + 1)
    above = 0
    for _ in range(_AUDITS):
        picked = excess[generator.integers(0, len(excess), runs)]
        above += bounds.mean_at_least(picked, confidence) > delta
    return above / _AUDITS


def would_catch(
    pair: Pair, runs: int, claimed: float, delta: float, confidence: float
) -> Caught | None:
    """The most noise at which an audit of ``runs`` would have caught the claim, by bisection; None
    if none is small enough."""

    def catches(factor: float) -> bool:
        chance = chance_to_catch(pair.with_noise(factor), runs, claimed, delta, confidence)
        return chance >= WANTED

    if catches(1.0):
        low, high = 1.0, 2.0
        while catches(high):
            low, high = high, 2 * high
    else:
        low, high = 0.5, 1.0
        while not catches(low):
            low, high = low / 2, low
            if low < _LEAST:
                return None
    while high / low > _NEAR:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if catches(middle) else (low, middle)
    return Caught(low, pair.with_noise(low).epsilon(delta))
