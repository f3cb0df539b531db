"""Lower bounds on epsilon from the scores of runs with a canary and of runs without.

Whoever holds an (epsilon, delta) guarantee has, for every set A of outcomes,
P_with(A) <= e^epsilon P_without(A) + delta, and the same with the two exchanged. Three bounds,
which differ in what they take for granted:

- `clopper_pearson_epsilon`: nothing but that runs are independent. It cannot exceed `ceiling`.
- `gaussian_fit_epsilon`: that the trade-off between the two errors is a Gaussian one.
- `ratio_law_epsilon`: that a score *is* the logarithm of the ratio of the two densities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from capemix.accounting.gaussian import gaussian_epsilon
from capemix.errors import InputError
from capemix.randomness.simulation import simulation_generator

Real = npt.NDArray[np.float64]

_CANDIDATES: Final = 400
"""Thresholds that are tried on the first half of the runs."""


def at_least(successes: Any, trials: int, confidence: float) -> Any:
    """Clopper, Pearson 1934: a probability's lower confidence bound."""
    k = np.asarray(successes, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        bound = special.betaincinv(np.maximum(k, 1e-300), trials - k + 1, 1.0 - confidence)
    return np.where(k > 0, bound, 0.0)


def at_most(successes: Any, trials: int, confidence: float) -> Any:
    """Clopper, Pearson 1934: a probability's upper confidence bound."""
    return 1.0 - at_least(trials - np.asarray(successes), trials, confidence)


def epsilon_of_rates(likely: Any, unlikely: Any, delta: float) -> Any:
    """log((P(A) - delta) / Q(A)), at least 0: what no (epsilon, delta) guarantee is below."""
    gain = np.maximum(np.asarray(likely) - delta, 0.0)
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(gain) - np.log(unlikely), 0.0)


@dataclass(frozen=True)
class Test:
    """Call a run "with" if its score is above the threshold; ``reverse`` bets on "without"."""

    threshold: float
    reverse: bool = False

    def counts(self, without: Real, with_: Real) -> tuple[int, int]:
        """How often the bet is right where it should be, and where it should not."""
        if self.reverse:
            return int((without <= self.threshold).sum()), int((with_ <= self.threshold).sum())
        return int((with_ > self.threshold).sum()), int((without > self.threshold).sum())


def halves(scores: Real) -> tuple[Real, Real]:
    """The runs that choose, and the runs that count."""
    middle = len(scores) // 2
    return scores[:middle], scores[middle:]


def best_test(without: Real, with_: Real, delta: float, confidence: float) -> tuple[float, Test]:
    """The threshold and direction with the largest bound on these runs, and that bound."""
    pooled = np.concatenate([without, with_])
    levels = np.unique(np.quantile(pooled, _levels(len(pooled)), method="lower"))
    best = (-1.0, Test(math.inf))
    for reverse in (False, True):
        likely, unlikely = (without, with_) if reverse else (with_, without)
        right = np.searchsorted(np.sort(likely), levels, side="right")
        wrong = np.searchsorted(np.sort(unlikely), levels, side="right")
        if not reverse:
            right, wrong = len(likely) - right, len(unlikely) - wrong
        found = _epsilon(right, len(likely), wrong, len(unlikely), delta, confidence)
        peak = int(np.argmax(found))
        if found[peak] > best[0]:
            best = (float(found[peak]), Test(float(levels[peak]), reverse))
    return best


def _levels(count: int) -> Real:
    """Quantiles to try: even ones, and ever finer ones toward both ends."""
    fine = np.geomspace(1.0 / count, 0.25, _CANDIDATES // 4)
    return np.unique(np.concatenate([np.linspace(0, 1, _CANDIDATES // 2), fine, 1.0 - fine]))


def _epsilon(
    right: Any, likely: int, wrong: Any, unlikely: int, delta: float, confidence: float
) -> Any:
    each = 1.0 - (1.0 - confidence) / 2  # both rates must be within their bounds
    return epsilon_of_rates(at_least(right, likely, each), at_most(wrong, unlikely, each), delta)


@dataclass(frozen=True)
class Found:
    """A bound, the test that gave it, and how often that test was right and wrong."""

    epsilon: float
    test: Test
    right: int
    right_of: int
    wrong: int
    wrong_of: int


def clopper_pearson_epsilon(
    without: Real, with_: Real, delta: float, confidence: float, test: Test | None = None
) -> Found:
    """The bound that assumes nothing of the law: the first halves choose the test (if none is
    given), the second halves count its successes."""
    check_runs(without, with_)
    (choose_out, out), (choose_in, in_) = halves(without), halves(with_)
    if test is None:
        _, test = best_test(choose_out, choose_in, delta, confidence)
    right, wrong = test.counts(out, in_)
    right_of, wrong_of = (len(out), len(in_)) if test.reverse else (len(in_), len(out))
    epsilon = float(_epsilon(right, right_of, wrong, wrong_of, delta, confidence))
    return Found(epsilon, test, right, right_of, wrong, wrong_of)


def ceiling(without: int, with_: int, delta: float, confidence: float) -> float:
    """The largest epsilon that `clopper_pearson_epsilon` can show with so many runs: every one of
    the second halves told apart."""
    out, in_ = without - without // 2, with_ - with_ // 2
    forward = _epsilon(in_, in_, 0, out, delta, confidence)
    return float(max(forward, _epsilon(out, out, 0, in_, delta, confidence)))


def gaussian_fit_epsilon(
    without: Real, with_: Real, delta: float, confidence: float
) -> tuple[float, float]:
    """(epsilon, mu) if the trade-off is that of N(0,1) against N(mu,1) (Dong, Roth, Su 2022).

    mu = z(1 - false alarms) + z(1 - misses) at any threshold (Nasr et al. 2023), here with both
    rates at their Clopper-Pearson bounds: confident in mu, a fit in everything beyond.
    """
    check_runs(without, with_)
    (choose_out, out), (choose_in, in_) = halves(without), halves(with_)
    each = 1.0 - (1.0 - confidence) / 2

    def mu_at(threshold: Any, out: Real, in_: Real) -> Any:
        alarms = len(out) - np.searchsorted(np.sort(out), threshold, side="right")
        misses = np.searchsorted(np.sort(in_), threshold, side="right")
        return -stats.norm.ppf(at_most(alarms, len(out), each)) - stats.norm.ppf(
            at_most(misses, len(in_), each)
        )

    pooled = np.concatenate([choose_out, choose_in])
    levels = np.unique(np.quantile(pooled, np.linspace(0.01, 0.99, 199)))
    threshold = levels[int(np.argmax(mu_at(levels, choose_out, choose_in)))]
    mu = max(0.0, float(mu_at(threshold, out, in_)))
    return (gaussian_epsilon(1.0 / mu, delta) if mu > 0 else 0.0), mu


def mean_at_least(values: Real, confidence: float) -> float:
    """A lower confidence bound on the mean of numbers in [0, 1]: the least m that Chernoff's
    inequality allows, kl(mean, m) <= log(1/alpha)/n."""
    mean, allowed = float(values.mean()), -math.log(1.0 - confidence) / len(values)

    def divergence(m: float) -> float:
        return float(special.rel_entr(mean, m) + special.rel_entr(1.0 - mean, 1.0 - m))

    low, high = 0.0, mean
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if divergence(middle) > allowed else (low, middle)
    return low


def excess(log_ratios: Real, epsilon: float) -> Real:
    """(1 - e^{epsilon - L})+: its mean over runs with the canary is delta(epsilon)."""
    return np.asarray(-np.expm1(np.minimum(epsilon - log_ratios, 0.0)))


def ratio_law_epsilon(log_ratios: Real, delta: float, confidence: float) -> float:
    """The bound from runs *with* the canary alone, if their scores are exact log ratios L.

    delta(epsilon) = E_with[(1 - e^{epsilon - L})+] falls as epsilon grows, run by run, so one
    confidence bound serves the whole search.
    """
    low, high = 0.0, max(0.0, float(log_ratios.max()))
    if mean_at_least(excess(log_ratios, low), confidence) <= delta:
        return 0.0
    while high - low > 1e-4 * max(1.0, high):
        middle = 0.5 * (low + high)
        shown = mean_at_least(excess(log_ratios, middle), confidence) > delta
        low, high = (middle, high) if shown else (low, middle)
    return low


def power(found: Found, claimed: float, delta: float, confidence: float) -> float:
    """The chance that another audit like this one finds more than ``claimed``: the test's two
    rates as they were found, drawn anew."""
    generator, repeats = simulation_generator(0), 2000
    right = generator.binomial(found.right_of, found.right / found.right_of, repeats)
    wrong = generator.binomial(found.wrong_of, found.wrong / found.wrong_of, repeats)
    epsilons = _epsilon(right, found.right_of, wrong, found.wrong_of, delta, confidence)
    return float((epsilons > claimed).mean())


def ratio_law_power(log_ratios: Real, claimed: float, delta: float, confidence: float) -> float:
    """The same for `ratio_law_epsilon`, the mean of other runs taken to be normal."""
    found = excess(log_ratios, claimed)
    low, high = delta, 1.0
    allowed = -math.log(1.0 - confidence) / len(found)
    for _ in range(60):  # the mean that would be enough
        mean = 0.5 * (low + high)
        divergence = special.rel_entr(mean, delta) + special.rel_entr(1.0 - mean, 1.0 - delta)
        low, high = (low, mean) if divergence > allowed else (mean, high)
    spread = max(float(found.std()), 1e-300) / math.sqrt(len(found))
    return float(stats.norm.sf((high - float(found.mean())) / spread))


def check_runs(without: Real, with_: Real) -> None:
    if min(len(without), len(with_)) < 10:
        raise InputError(
            "runs",
            "are too few to bound anything",
            value=min(len(without), len(with_)),
            fix="make at least 10, better thousands",
        )
