"""Theorem 1 of the paper as an accountant: T mixtures of l rows drawn without replacement.

The bound is that of Wang, Balle, Kasiviswanathan, "Subsampled Rényi Differential Privacy and
Analytical Moments Accountant" (AISTATS 2019; Theorem 27 of arXiv:1808.00087), for a mechanism
whose Rényi divergence grows linearly, ε(α) = slope · α.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from itertools import accumulate
from operator import sub

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

HIGHEST_ORDER = 512  # of Theorem 1's search
HIGHEST_MOMENT = 256  # of the term by term minimum
_HIGHEST_SLOPE = 1e9  # above it no order costs less than 1e9


def _alternating_sums(slope: float, highest: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """log |B(n)| and B(n) >= 0 for n = 0..highest, B(n) = Σ_i (-1)^i C(n,i) e^{slope i (i-1)}.

    (-1)^n B(n) is the n-th forward difference at 0 of f(i) = e^{slope i (i-1)}, and for even n
    the moment E_Q[(P/Q - 1)^n] >= max(B(2)^{n/2}, (‖P/Q‖_n - 1)^n). That lower bound tells how
    many digits the differences can lose; they are taken in decimals that have as many to spare.
    """
    n = highest + highest % 2
    smallest = max(
        n / 2 * math.log(math.expm1(min(2 * slope, 700))),
        n * (n - 1) * slope + n * math.log(-math.expm1(-(n - 1) * slope)),
    )
    lost = (n * math.log(2) + n * (n - 1) * slope - smallest) / math.log(10)
    logs, signs = [], []
    with localcontext(Context(prec=28 + math.ceil(lost), Emax=MAX_EMAX, Emin=MIN_EMIN)):
        value = growth = Decimal(1)
        ratio = (2 * Decimal(slope)).exp()
        differences: list[Decimal] = []
        for i in range(highest + 1):
            differences = list(accumulate(differences, sub, initial=value))
            b = differences[-1] * (-1) ** i
            signs.append(b >= 0)
            exponent = b.adjusted() if b else 0
            mantissa = abs(float(b.scaleb(-exponent)))
            logs.append(math.log(mantissa) + exponent * math.log(10) if b else -math.inf)
            value *= growth
            growth *= ratio
    return np.array(logs), np.array(signs)


def binomial_rdp(
    log_terms: NDArray[np.float64], orders: Sequence[int], log_miss: float = 0.0
) -> NDArray[np.float64]:
    """log(1 + Σ_{k=2}^α C(α,k) t_k (1-q)^α) / (α-1), given log t_2, log t_3, ... and log(1-q)."""
    log_factorial = gammaln(np.arange(1.0, max(orders) + 2))
    k = np.arange(2, max(orders) + 1)
    result = []
    for order in orders:
        i = k[: order - 1]
        log_choose = log_factorial[order] - log_factorial[i] - log_factorial[order - i]
        log_each = log_choose + log_terms[: order - 1]
        total = peak = float(np.max(log_each))
        if math.isfinite(peak):
            total += math.log(float(np.sum(np.exp(log_each - peak))))
        result.append(float(np.logaddexp(0.0, total + order * log_miss)) / (order - 1))
    return np.array(result)


def without_replacement_rdp(
    rate: float,
    slope: float,
    orders: Sequence[int],
    *,
    printed: bool = False,
    termwise: bool = False,
) -> NDArray[np.float64]:
    """RDP of one draw at the given rate, replace-one (Wang, Balle, Kasiviswanathan 2019).

    (α-1) ε'(α) = log(1 + p² C(α,2) min{4(e^{ε(2)}-1), 2e^{ε(2)}} + 4 Σ_{j=3}^α p^j C(α,j) β_j),
    β_j = sqrt(B(2⌊j/2⌋) B(2⌈j/2⌉)). ``printed`` puts B(⌈j/2⌉) for the second factor; where it is
    negative the order says nothing (inf). ``termwise`` takes the smaller of 4 β_j and their
    general 2 e^{(j-1)ε(j)} in every term, the latter alone where j exceeds ``HIGHEST_MOMENT``.
    """
    if slope == 0:
        return np.zeros(len(orders))
    if slope > _HIGHEST_SLOPE:
        return np.full(len(orders), np.inf)
    highest = max(orders)
    j = np.arange(2, highest + 1)
    known = j[: HIGHEST_MOMENT - 1] if termwise else j
    log_b, positive = _alternating_sums(slope, int(known[-1]) + 1)
    low, high = 2 * (known // 2), (known + 1) // 2 * (1 if printed else 2)
    log_terms = np.full(len(j), np.inf)
    log_terms[: len(known)] = np.where(
        positive[low] & positive[high], math.log(4) + (log_b[low] + log_b[high]) / 2, np.inf
    )
    log_general = math.log(2) + slope * j * (j - 1.0)
    if termwise:
        log_terms = np.minimum(log_terms, log_general)
    log_terms[0] = min(math.log(4) + 2 * slope + math.log(-math.expm1(-2 * slope)), log_general[0])
    return binomial_rdp(log_terms + j * math.log(rate), orders)


@dataclass(frozen=True)
class Theorem1:
    """Theorem 1: ``samples`` = T mixtures of ``mixture`` = l rows of norm at most ``clip`` = c.

    ``rate`` is p = lK/N. The noise is the deviation on a released mixture, label included:
    ε(α) = α (2c² + 1) / (l² noise²). ``printed`` evaluates the theorem with the paper's
    B(⌈j/2⌉), which is negative under the root from order 5 on.
    """

    samples: int
    rate: float
    mixture: int
    clip: float
    printed: bool = False

    def rdp(self, noise: float, orders: Sequence[int]) -> NDArray[np.float64]:
        """ε'(α) of one mixture."""
        scaled = self.mixture * noise
        if scaled == 0:
            return np.full(len(orders), np.inf)
        slope = (2 * self.clip**2 + 1) / scaled / scaled
        return without_replacement_rdp(self.rate, slope, orders, printed=self.printed)

    def epsilon(self, noise: float, delta: float) -> float:
        """min over α >= 3 of T ε'(α) + log(1/δ)/(α-1) (Mironov 2017, Proposition 3).

        ε' does not fall with α, so the search ends once T ε'(α) alone exceeds the best so far.
        """
        best, first, last = math.inf, 3, 16
        while first <= HIGHEST_ORDER:
            orders = range(first, last + 1)
            cost = self.samples * self.rdp(noise, orders)
            best = min(best, float(np.min(cost - math.log(delta) / (np.array(orders) - 1))))
            if cost[-1] >= best:
                break
            first, last = last + 1, 2 * last
        return best
