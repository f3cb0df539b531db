"""Privacy losses on a grid, composed by a tilted FFT whose rounding is bounded and counted.

A law of losses L, in nats, has δ(ε) = E[(1 - e^{ε-L})₊]. The laws here are upper bounds: their
δ(ε) is at least the true one at every ε, hence so is that of their sums (Zhu, Dong, Wang 2022).

*Tilting.* An FFT errs in proportion to the whole law, by 10⁻¹³ or so of it, and a δ below that is
lost in it. So each mass is first multiplied by e^{θL}/Z, where Z = E[e^{θL}]: that moves the bulk
of the law to the losses that decide δ. What is composed is multiplied by Z^T e^{-θL} in the end.
An error of ρ in the tilted sum, in l1 norm, is an error in δ(ε) of at most
    ρ Z^T max_{L>ε} (1 - e^{ε-L}) e^{-θL} = ρ Z^T e^{-θε} θ^θ / (1+θ)^{1+θ},
that is ρ times the Rényi bound on δ(ε) of order 1+θ (Canonne, Kamath, Steinke 2020, Prop. 12).

*Rounding.* `rounding` bounds ρ. `one_draw` and `compose` round every other number up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr, ndtr, ndtri_exp

Real = NDArray[np.float64]

UNIT: Final = 2.0**-53
"""The unit roundoff of a double."""

_NORMAL_ERROR: Final = 2.0**-42
"""What a computed tail of the mixtures may be off by, over the tail: 2048 roundings. It allows for
scipy's 10⁻¹⁴, for arguments up to 38 deviations, whose rounding counts by their square, and for
logarithms down to -700."""

_LEAST_TAIL: Final = 1e-300
"""Added to every tail: below it doubles have few digits, or none."""

_OUTSIDE: Final = 1e-17
"""The mass of the tilted sum that may lie outside of the grid that it is composed on."""

_WEIGHT_ERROR: Final = 4 * UNIT
"""What an FFT's roots of unity may be off by."""


@dataclass(frozen=True, eq=False)
class Losses:
    """One draw: the mass of the loss (first + i) · interval nats, and of an infinite one."""

    interval: float
    first: int
    masses: Real
    infinite: float

    @property
    def values(self) -> Real:
        return (
            np.arange(self.first, self.first + len(self.masses), dtype=np.float64) * self.interval
        )


@dataclass(frozen=True, eq=False)
class Composed:
    """The sum of many draws: the mass of the loss (first + i) · interval nats is
    ``tilted[i]`` · e^(``log_scale`` - ``tilt`` · loss), up to ``error`` of the tilted law."""

    interval: float
    first: int
    tilted: Real
    tilt: float
    log_scale: float
    infinite: float
    error: float

    def delta(self, epsilon: float) -> float:
        """An upper bound on δ at this ε."""
        above = max(0, math.floor(epsilon / self.interval) - 1 - self.first)
        loss = np.arange(self.first + above, self.first + len(self.tilted)) * self.interval
        gain = -np.expm1(np.minimum(epsilon - loss, 0.0))
        # A tilt that is far too large for this ε ends in a bound of 1, as it should.
        mass = np.exp(np.minimum(self.log_scale - self.tilt * loss, 700.0))
        tail = float(np.sum(self.tilted[above:] * mass * gain))
        renyi = self.log_scale - self.tilt * epsilon + _log_conversion(self.tilt)
        lost = self.error * math.exp(min(renyi, 700.0))
        # Sums of positive numbers and exponents up to 10⁶ are right to 10⁻⁹.
        return min(1.0, (self.infinite + max(tail, 0.0) + lost) * (1 + 1e-9))

    def deltas(self, epsilons: Real) -> Real:
        """The same at many ε at once: δ(ε) = sum of m - e^ε sum of m e^-L, over all L > ε."""
        loss = np.arange(self.first, self.first + len(self.tilted)) * self.interval
        mass = self.tilted * np.exp(np.minimum(self.log_scale - self.tilt * loss, 700.0))
        base = float(epsilons.min())
        sums = np.zeros((3, len(loss) + 1))
        np.cumsum(mass[::-1], out=sums[0, 1:])
        np.cumsum((mass * np.exp(np.minimum(base - loss, 0.0)))[::-1], out=sums[1, 1:])
        np.cumsum(np.abs(mass[::-1]), out=sums[2, 1:])
        above = len(loss) - np.searchsorted(loss, epsilons, side="right")
        tail = sums[0, above] - np.exp(epsilons - base) * sums[1, above]
        renyi = self.log_scale - self.tilt * epsilons + _log_conversion(self.tilt)
        lost = self.error * np.exp(np.minimum(renyi, 700.0))
        # The two sums are right to 10⁻¹² of themselves, and their difference to as much of the
        # first.
        found = self.infinite + np.maximum(tail, 0.0) + 1e-11 * sums[2, above] + lost
        return np.asarray(np.minimum(found * (1 + 1e-9), 1.0))

    def epsilon(self, delta: float) -> float:
        """An ε at which the bound on δ is kept, the smallest but for 10⁻⁹; infinite if none is."""
        if self.infinite >= delta:
            return math.inf
        low, high = 0.0, 1.0
        if self.delta(low) <= delta:
            return low
        while self.delta(high) > delta:
            low, high = high, 2 * high
            if high > 1e6:
                return math.inf
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high


def rounding(length: int, draws: int) -> float:
    """How far, in l1 norm, the FFT puts a law composed of ``draws`` draws on ``length`` points.

    For n = 2^t points an FFT's relative error in l2 norm is at most E = tη/(1-tη), with
    η = μ + γ₄(√2 + μ), γ₄ = 4u/(1-4u), and roots of unity off by μ (Higham 2002, Theorem 24.2).
    That is for radix 2; a pass of radix 4 or 8 does the work of two or three with fewer roundings.

    A draw v has |v|₁ <= 1, so |v|₂ <= 1, its transform f is in the unit disc and |f|₂ <= √n. The
    computed f is off by E√n, and moving it into the disc moves it no further from the exact one.
    There x -> x^T multiplies no distance by more than T. Each product of two complex numbers is off
    by √2γ₂ < 3u of itself (Higham 2002, Lemma 3.5), and T draws take T-1 of them in effect; 8u
    leave room for the disc and for the product of two groups. The inverse FFT divides by √n and
    adds E. So the sum is off by (draws + 2)(E + 8u) in l2 norm, and by √n times that in l1 norm.
    """
    stages = math.log2(length)
    gamma = 4 * UNIT / (1 - 4 * UNIT)
    stage = _WEIGHT_ERROR + gamma * (math.sqrt(2) + _WEIGHT_ERROR)
    transform = stages * stage / (1 - stages * stage)
    return 1.01 * math.sqrt(length) * (draws + 2) * (transform + 8 * UNIT)


def _loss(x: Real, probability: float, noise: float) -> Real:
    """log of (1-q)N(0) + qN(1) over N(0), at x."""
    with np.errstate(divide="ignore"):
        missed, taken = np.log1p(-probability), math.log(probability)
    return np.logaddexp(missed, taken + (x - 0.5) / noise**2)


def _threshold(epsilon: Real, probability: float, noise: float) -> Real:
    """The x at which `_loss` is ε, for ε above log(1-q)."""
    small = np.minimum(epsilon, 1.0)
    large = np.maximum(epsilon, 1.0)
    exponent = np.where(
        epsilon < 1,
        np.log1p(np.maximum(np.expm1(small) / probability, -1.0)),
        large - math.log(probability) + np.log1p(-(1 - probability) * np.exp(-large)),
    )
    return noise**2 * exponent + 0.5


def _tails(epsilon: Real, probability: float, noise: float, kind: str) -> tuple[Real, Real]:
    """How likely a loss above ε is under the upper law, and the log of that under the lower.

    REMOVE: (1-q)N(0)+qN(1) against N(0); ADD: the other way round; REPLACE: the former against
    (1-q)N(0)+qN(-1). The losses grow with x, for ADD they fall.
    """
    missed, taken = np.log1p(-probability), math.log(probability)
    if kind == "REPLACE":
        # The loss at x is ε where x = σ²(ε/2 + asinh(α sinh(ε/2))), α = e^{1/2σ²}(1-q)/q.
        half = np.abs(epsilon) / 2
        log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        log_ratio = 0.5 / noise**2 + missed - taken + log_sinh
        spread = np.logaddexp(log_ratio, np.logaddexp(0.0, 2 * log_ratio) / 2)
        x = noise**2 * np.sign(epsilon) * (half + spread)
        upper = (1 - probability) * ndtr(-x / noise) + probability * ndtr((1 - x) / noise)
        lower = np.logaddexp(missed + log_ndtr(-x / noise), taken + log_ndtr((-1 - x) / noise))
    elif kind == "REMOVE":
        x = np.where(epsilon > missed, _threshold(epsilon, probability, noise), -np.inf)
        upper = (1 - probability) * ndtr(-x / noise) + probability * ndtr((1 - x) / noise)
        lower = log_ndtr(-x / noise)
    else:
        x = np.where(-epsilon > missed, _threshold(-epsilon, probability, noise), -np.inf)
        upper = ndtr(x / noise)
        lower = np.logaddexp(missed + log_ndtr(x / noise), taken + log_ndtr((x - 1) / noise))
    return upper, lower


@lru_cache(maxsize=8)
def one_draw(
    probability: float, noise: float, kind: str, interval: float, log_tail: float
) -> Losses:
    """Losses of one Poisson draw on a grid, bounding its δ(ε) from above at every ε.

    δ is a convex function of e^ε, so the chords between its values on a grid lie above it, and they
    are the δ of a law on that grid (Doroshenko et al. 2022, "Connect the Dots"). Values are rounded
    up first, by `_NORMAL_ERROR` of their tail. The masses are second differences of the values;
    they are rounded up too, and one below zero is raised to zero, which raises δ(ε) everywhere.
    ``log_tail``: the grid ends where less than e^log_tail is left.
    """
    reach = -float(ndtri_exp(log_tail)) * noise
    ends = np.array([-reach, 1 + reach])
    loss = _loss(ends, probability, noise)
    if kind == "ADD":
        loss = -loss
    elif kind == "REPLACE":
        loss = loss - _loss(-ends, probability, noise)
    first, last = math.floor(loss.min() / interval), math.ceil(loss.max() / interval)
    last = max(last, first + 2)
    epsilon = np.arange(first, last + 1) * interval
    with np.errstate(divide="ignore"):
        upper, log_lower = _tails(epsilon, probability, noise, kind)
    delta = np.maximum(upper - np.exp(epsilon + log_lower), 0.0)
    delta = np.minimum(delta + _NORMAL_ERROR * upper + _LEAST_TAIL, 1.0)
    # The true values fall, so the least so far is above them still.
    delta = np.minimum.accumulate(delta)
    step = np.diff(delta)
    grown = math.expm1(interval)
    masses = np.empty_like(delta)
    masses[0] = 1 - delta[0] + step[0] / grown
    masses[1:-1] = (step[1:] - step[:-1] * math.exp(interval)) / grown
    masses[-1] = step[-1] / math.expm1(-interval)
    masses = np.maximum(masses, 0.0)
    rounded = np.abs(np.append(step, 0.0)) + math.exp(interval) * np.abs(np.append(0.0, step))
    masses += 8 * UNIT * rounded / grown
    masses[0] += 8 * UNIT
    return Losses(interval, first, masses, float(delta[-1]))


def _log_conversion(tilt: float) -> float:
    """log max_{t>0} (1 - e^-t) e^(-θt)."""
    return tilt * math.log(tilt) - (1 + tilt) * math.log1p(tilt) if tilt > 0 else 0.0


def _log_moment(losses: Losses, tilt: float) -> float:
    """log E[e^(θL)] of the finite losses."""
    exponent = tilt * losses.values
    highest = float(exponent.max())
    return highest + math.log(float(np.sum(losses.masses * np.exp(exponent - highest))))


def best_tilt(
    parts: Sequence[tuple[Losses, int]],
    *,
    delta: float | None = None,
    epsilon: float | None = None,
) -> float:
    """The θ of the least Rényi bound on ε at this δ, or on δ at this ε. Any θ is sound; this one
    leaves the least to rounding."""

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        total = sum(times * _log_moment(losses, tilt) for losses, times in parts)
        total += _log_conversion(tilt)
        if delta is not None:
            return (total - math.log(delta)) / tilt
        return total - tilt * (epsilon or 0.0)

    # Where e^(θL) passes a double's range nothing is left to gain.
    largest = max(float(np.abs(losses.values).max()) for losses, _ in parts)
    bounds = (math.log(1e-3), math.log(min(1e5, max(1e-2, 1e5 / largest))))
    found = minimize_scalar(bound, bounds=bounds, method="bounded", options={"xatol": 0.02})
    return math.exp(float(found.x))


def _window(parts: Sequence[tuple[Losses, int]], tilt: float) -> tuple[int, int]:
    """First and last index that leave out at most `_OUTSIDE` of the tilted sum, by Chernoff."""
    first = sum(times * losses.first for losses, times in parts)
    last = first + sum(times * (len(losses.masses) - 1) for losses, times in parts)
    interval = parts[0][0].interval
    at = sum(times * _log_moment(losses, tilt) for losses, times in parts)
    variance = 0.0
    for losses, times in parts:
        exponent = tilt * losses.values
        weight = losses.masses * np.exp(exponent - exponent.max())
        weight /= weight.sum()
        middle = float(weight @ losses.values)
        variance += times * float(weight @ (losses.values - middle) ** 2)
    deviation = max(math.sqrt(variance), interval)
    log_part = math.log(2 / _OUTSIDE)
    low, high = first, last
    for order in (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0):
        for sign in (1, -1):
            more = sign * order / deviation
            moved = sum(times * _log_moment(losses, tilt + more) for losses, times in parts)
            end = (moved - at + log_part) / more / interval
            if sign > 0:
                high = min(high, math.ceil(end))
            else:
                low = max(low, math.floor(end))
    return low, high


def _power(base: NDArray[np.complex128], times: int) -> NDArray[np.complex128]:
    """base^times by squaring: times - 1 roundings in effect, which a library's pow does not say."""
    result = None
    while times:
        if times & 1:
            result = base.copy() if result is None else result * base
        times >>= 1
        if times:
            base = base * base
    return np.ones_like(base) if result is None else result


def compose(parts: Sequence[tuple[Losses, int]], tilt: float) -> Composed:
    """The law of all losses together: each draw so many times, all on one grid."""
    interval = parts[0][0].interval
    low, high = _window(parts, tilt)
    length = 1 << max(1, (high - low).bit_length())
    total = np.ones(length, dtype=np.complex128)
    first, log_scale, infinite = 0, 0.0, 0.0
    for losses, times in parts:
        exponent = tilt * losses.values
        highest = float(exponent.max())
        weights = losses.masses * np.exp(exponent - highest)
        norm = float(weights.sum())
        # No tilted mass is off by more, over itself: products, exponentials, the sum.
        off = UNIT * (64 + 8 * float(np.abs(exponent).max()))
        weights *= (1 - off) / norm
        folded = np.zeros(-(-len(weights) // length) * length, dtype=np.complex128)
        folded[: len(weights)] = weights
        transform = np.fft.fft(folded.reshape(-1, length).sum(axis=0))
        transform /= np.maximum(1.0, np.abs(transform))
        total *= _power(transform, times)
        first += times * losses.first
        log_scale += times * (highest + math.log(norm) + 3 * off)
        infinite += times * losses.infinite
    tilted = np.fft.ifft(total).real
    draws = sum(times for _, times in parts)
    return Composed(
        interval=interval,
        first=low,
        tilted=np.roll(tilted, (first - low) % length),
        tilt=tilt,
        log_scale=log_scale,
        infinite=infinite,
        error=rounding(length, draws) + 10 * _OUTSIDE,
    )
