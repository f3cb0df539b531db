"""What sampled sums cost under the continuous Gaussian: by privacy losses, and by Rényi orders.

The noise multiplier is everywhere the deviation of the noise over the l2 norm bound of one
record's contribution to one row. That sites draw their noise in whole numbers is `lattice`'s.
Privacy losses are tight (`epsilon_pld`); Rényi orders add up over releases that are chosen on the
way (`rdp_curve`), which is what a ledger needs. Orders are integers: their divergences are sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from capemix.accounting.gaussian import gaussian_delta, gaussian_epsilon
from capemix.accounting.losses import Losses, best_tilt, compose, one_draw
from capemix.accounting.theorem1 import binomial_rdp, without_replacement_rdp
from capemix.errors import InputError
from capemix.queries import Participation, Relation, Selection

ORDERS: tuple[int, ...] = (
    *range(2, 65),
    *(round(64 * 2 ** (step / 6)) for step in range(1, 37)),  # up to 4096
)


def poisson_rdp(
    probability: float, noise_multiplier: float, orders: Sequence[int]
) -> NDArray[np.float64]:
    """RDP of one Poisson draw, add-or-remove-one (Mironov, Talwar, Zhang 2019).

    (α-1) ε(α) = log Σ_k C(α,k) q^k (1-q)^{α-k} e^{k(k-1)/2σ²}; as the weights sum to one, each
    exponential is lessened by one and nothing cancels.

    Given what the other records add, the laws are P = (1-q)R + qU and Q = R, and E_Q[(P/Q)^α] is
    this sum, growing with |x|. The reverse is no larger, D(Q‖P) <= D(P‖Q) (their Theorem 5).
    """
    if not 0 <= probability <= 1:
        raise InputError(
            "probability", "is no probability", value=probability, fix="give one from 0 to 1"
        )
    if probability == 0:
        return np.zeros(len(orders))
    if noise_multiplier == 0:
        return np.full(len(orders), np.inf)
    slope = 0.5 / noise_multiplier / noise_multiplier
    if probability == 1:
        return slope * np.asarray(orders, dtype=np.float64)
    k = np.arange(2.0, max(orders) + 1)
    exponent = slope * k * (k - 1)
    log_excess = exponent + np.log(-np.expm1(-exponent))
    log_odds = math.log(probability) - math.log1p(-probability)
    return binomial_rdp(k * log_odds + log_excess, orders, math.log1p(-probability))


def _log_antipodal_moments(noise_multiplier: float, highest: int) -> NDArray[np.float64]:
    """log E_R[(U/R - V/R)^j] for j = 2, 4, ..., highest, U and V moved by opposite unit vectors.

    It is E[(2 sinh(z/σ) e^{-1/2σ²})^j] over a standard normal z, of an even, entire, positive
    integrand: the trapezoidal rule leaves a relative error far below a double's.
    """
    z = np.arange(0.1, highest / noise_multiplier + math.sqrt(2 * highest) + 12, 0.1)
    t = z / noise_multiplier
    log_base = t + np.log(-np.expm1(-2 * t)) - 0.5 / noise_multiplier**2
    j = np.arange(2, highest + 1, 2)
    log_integrand = j[:, None] * log_base - z**2 / 2
    log_step = math.log(2 * 0.1) - 0.5 * math.log(2 * math.pi)
    moments: NDArray[np.float64] = np.logaddexp.reduce(log_integrand, axis=1) + log_step
    return moments


def poisson_replace_rdp(
    probability: float, noise_multiplier: float, orders: Sequence[int]
) -> NDArray[np.float64]:
    """RDP of one Poisson draw, a record replaced within its group: the smaller of two bounds.

    *Through the dataset without the record* (the weak triangle inequality, Mironov 2017,
    Proposition 11, with exponents (2α-1)/α and (2α-1)/(α-1)):
        D_α(P‖Q) <= 2α/(2α-1) D_{2α-1}(P‖R) + D_{2α}(R‖Q).
    At q = 1 this is the plain Gaussian moved by 2.

    *Directly.* P = (1-q)R + qU, Q = (1-q)R + qV; with u = U/R, v = V/R and d = u - v the excess
    χ = P/Q - 1 = qd/(1-q+qv) is at least -1 and has E_Q[χ] = 0. Below zero
    (1+χ)^α <= 1 + αχ + C(α,2)χ², above it is its binomial sum, and 1-q+qv >= 1-q, so
        E_Q[(P/Q)^α] <= 1 + Σ_{j=2}^α C(α,j) q^j (1-q)^{1-j} m_j,
    where m_2 >= E_R[d²] and m_j >= E_R[max(d,0)^j]. One choice for m_j, j >= 3, is
    E_R[u^j] <= e^{j(j-1)/2σ²}. The others come from convex polynomials g(d) >= max(d,0)^j. The
    mean of g falls with x·y and grows with |x| and |y| (Price's theorem: ∂²g/∂u∂v = -g'' <= 0,
    ∂²g/∂u² = ∂²g/∂v² = g'' >= 0), so it is greatest for y = -x, |x| = 1, where the odd moments of
    d vanish and the even ones are M_j. Even j: g = d^j, m_j = M_j. Odd j:
    g = A d^{j-1} + C d^j + B d^{j+1}, for which the best A, B, C leave
    m_j = sqrt(M_{j-1} M_{j+1}) / (1 + sqrt((j-2)(j+1) / (j(j-1)))).
    """
    order = np.asarray(orders, dtype=np.float64)
    without = poisson_rdp(
        probability, noise_multiplier, [n for a in orders for n in (2 * a - 1, 2 * a)]
    )
    through: NDArray[np.float64] = 2 * order / (2 * order - 1) * without[::2] + without[1::2]
    if probability in (0, 1) or noise_multiplier < 0.05:
        return through
    j = np.arange(2, max(orders) + 1)
    log_m = j * (j - 1.0) * 0.5 / noise_multiplier**2
    highest = 64
    log_even = _log_antipodal_moments(noise_multiplier, highest)
    odd = np.arange(3, highest, 2)
    log_odd = (log_even[:-1] + log_even[1:]) / 2 - np.log1p(
        np.sqrt((odd - 2) * (odd + 1) / (odd * (odd - 1)))
    )
    log_moments = np.empty(highest - 1)
    log_moments[::2], log_moments[1::2] = log_even, log_odd
    both = min(len(log_moments), len(log_m))
    log_m[:both] = np.minimum(log_m[:both], log_moments[:both])
    log_m[0] = log_even[0]
    log_miss = math.log1p(-probability)
    direct = binomial_rdp(j * math.log(probability) + (1 - j) * log_miss + log_m, orders)
    return np.minimum(through, direct)


def fixed_size_rdp(
    among: int, selected: int, noise_over_replacement: float, orders: Sequence[int]
) -> NDArray[np.float64]:
    """RDP of one draw without replacement, replace-one, noise over the change of a replacement.

    Wang, Balle, Kasiviswanathan 2019, Theorem 27 with its term by term minimum, as dp_accounting
    has it.
    """
    if noise_over_replacement == 0:
        return np.full(len(orders), np.inf)
    slope = 0.5 / noise_over_replacement / noise_over_replacement
    if selected >= among:
        return slope * np.asarray(orders, dtype=np.float64)
    return without_replacement_rdp(selected / among, slope, orders, termwise=True)


def _largest(groups: Sequence[Participation], count: int) -> list[Participation]:
    """Those that fewer than ``count`` others match or exceed in both draws and probability.

    A record of a matched group is covered by the other's: draws can be added, and drawing at a
    higher rate, then replacing the outcome by fresh noise now and then, is drawing at a lower.
    """
    ranked = sorted(groups, key=lambda group: (-group.draws, -group.probability))
    return [
        group
        for rank, group in enumerate(ranked)
        if sum(other.probability >= group.probability for other in ranked[:rank]) < count
    ]


def rdp_curve(
    participation: Sequence[Participation],
    noise_multiplier: float,
    relation: Relation,
    *,
    replacement_factor: float = 2.0,
    orders: Sequence[int] = ORDERS,
    beside: float = math.inf,
) -> NDArray[np.float64]:
    """RDP of all draws, and a Gaussian of noise ``beside`` per move, for the worst record.

    Add-or-remove-one: the worst group. Replace-one: the worse of a replacement within the worst
    group, and of a record that changes its group, a removal from one composed with an addition
    to another. Where nothing is left to chance a replaced record moves its sums by at most
    ``replacement_factor`` norm bounds. Groups of fixed size have a public size, hence know neither
    an added record nor a changed group: there the group of a record is public, and replacing one
    changes a row by at most as much.
    """
    poisson = [group for group in participation if group.selection is Selection.POISSON]
    fixed = [group for group in participation if group.selection is Selection.FIXED]
    if fixed and relation is not Relation.REPLACE_ONE:
        raise InputError(
            "relation",
            "does not fit fixed-size selection, whose group sizes are public",
            value=relation.value,
            fix="use replace-one, or Poisson selection",
        )

    def moved(group: Participation) -> NDArray[np.float64]:
        return group.draws * poisson_rdp(group.probability, noise_multiplier, orders)

    worst = np.zeros(len(orders))
    always = np.asarray(orders, dtype=np.float64) * (0.5 / beside / beside)
    if relation is Relation.ADD_REMOVE:
        for group in _largest(poisson, 1):
            worst = np.maximum(worst, moved(group))
        return worst + always
    noise = noise_multiplier / replacement_factor
    for group in _largest(poisson, 1):
        if group.always:
            replaced = poisson_rdp(1.0, noise, orders)
        else:
            replaced = poisson_replace_rdp(group.probability, noise_multiplier, orders)
        worst = np.maximum(worst, group.draws * replaced)
    for group in _largest(fixed, 1):
        replaced = fixed_size_rdp(group.among, group.selected, noise, orders)
        worst = np.maximum(worst, group.draws * replaced)
    for left, joined in combinations(_largest(poisson, 2), 2):
        worst = np.maximum(worst, moved(left) + moved(joined))
    return worst + always


def epsilon_rdp(
    participation: Sequence[Participation],
    noise_multiplier: float,
    delta: float,
    relation: Relation,
    *,
    replacement_factor: float = 2.0,
    beside: float = math.inf,
) -> float:
    """The ε of all draws at δ, by the conversion of Canonne, Kamath, Steinke 2020, Prop. 12."""
    from dp_accounting.rdp import compute_epsilon

    if noise_multiplier == 0:
        return math.inf
    drawn = (participation, noise_multiplier, relation)
    curve = rdp_curve(*drawn, replacement_factor=replacement_factor, beside=beside)
    return float(compute_epsilon(ORDERS, curve, delta)[0])


Moves = tuple[tuple[Participation, str], ...]  # what one record's change does to its groups


def _moves(groups: Sequence[Participation], relation: Relation) -> set[Moves]:
    """The changes of one record that cost most."""
    if relation is Relation.ADD_REMOVE:
        return {((group, kind),) for group in _largest(groups, 1) for kind in ("REMOVE", "ADD")}
    within: set[Moves] = {((group, "REPLACE"),) for group in _largest(groups, 1)}
    pairs = permutations(_largest(groups, 2), 2)
    return within | {((left, "REMOVE"), (joined, "ADD")) for left, joined in pairs}


def _parts(
    moves: Moves, noise_multiplier: float, delta: float, interval: float
) -> list[tuple[Losses, int]]:
    """Each move's losses, and how many times they are drawn; a 10⁻⁶th of δ may be infinite."""
    draws = sum(group.draws for group, _ in moves)
    log_tail = min(-50.0, math.log(delta) - math.log(draws) - 14)
    return [
        (one_draw(group.probability, noise_multiplier, kind, interval, log_tail), group.draws)
        for group, kind in moves
    ]


@lru_cache(maxsize=256)
def _loss_epsilon(
    moves: Moves, noise_multiplier: float, delta: float, interval: float, beside: float = math.inf
) -> float:
    """An upper bound on ε for these moves and a Gaussian, from losses on a grid so fine."""
    parts = _parts(moves, noise_multiplier, delta, interval)
    if beside < math.inf:
        log_tail = min(-50.0, math.log(delta) - 14)
        parts.append((one_draw(1.0, beside, "REMOVE", interval, log_tail), 1))
    return compose(parts, best_tilt(parts, delta=delta)).epsilon(delta)


@lru_cache(maxsize=256)
def _loss_delta(moves: Moves, noise_multiplier: float, epsilon: float, interval: float) -> float:
    """The same on δ. What may be infinite is a part of δ, which is found first on a guess."""
    guess = 1e-30
    for _ in range(2):
        parts = _parts(moves, noise_multiplier, max(guess, 1e-290), interval)
        guess = compose(parts, best_tilt(parts, epsilon=epsilon)).delta(epsilon)
    return guess


def _refined(bound: Callable[[float], float], noise_multiplier: float) -> float:
    """What a bound comes to as the grid's interval is halved, until it moves by less than 0.1%."""
    interval = 3.2e-2 * max(1.0, 0.1 / noise_multiplier**2)
    before = after = math.inf
    while before == math.inf or (interval > 1e-6 and before - after > 1e-3 * after):
        interval /= 2
        before, after = after, bound(interval)
        if after == math.inf:
            break
    return after


def epsilon_pld(
    participation: Sequence[Participation],
    noise_multiplier: float,
    delta: float,
    relation: Relation,
    *,
    replacement_factor: float = 2.0,
    beside: float = math.inf,
) -> float | None:
    """The ε of all draws under the *continuous* Gaussian, from its privacy loss distribution.

    An upper bound, its rounding included (`losses`), refined until it moves by less than 0.1%; or
    the Rényi bound where that is smaller or rounding leaves nothing else. The dominating pairs are
    (1-q)N(0)+qN(1) against N(0), both ways, and for a replacement (1-q)N(0)+qN(1) against
    (1-q)N(0)+qN(-1): the worst of all moves by Price's theorem, as in `poisson_replace_rdp`, for
    every f-divergence. Where nothing is left to chance it is one Gaussian, and exact; a replaced
    record moves it by ``replacement_factor``. A Gaussian made ``beside`` the draws is one more
    loss. None for fixed-size selection, for which no such pair is known.
    """
    if any(group.selection is Selection.FIXED for group in participation):
        return None
    groups = [group for group in participation if group.draws and group.selected]
    if not groups:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    if all(group.selected >= group.among for group in groups):
        noise = noise_multiplier / _moved(groups, relation, replacement_factor)
        return gaussian_epsilon(noise / math.hypot(1.0, noise / beside), delta)
    found = _refined(
        lambda interval: max(
            _loss_epsilon(moves, noise_multiplier, delta, interval, beside)
            for moves in _moves(groups, relation)
        ),
        min(noise_multiplier, beside),
    )
    return min(found, epsilon_rdp(groups, noise_multiplier, delta, relation, beside=beside))


def delta_pld(
    participation: Sequence[Participation],
    noise_multiplier: float,
    epsilon: float,
    relation: Relation,
    *,
    replacement_factor: float = 2.0,
) -> float | None:
    """The δ of all draws at this ε, bounded as in `epsilon_pld`; None where that is."""
    if any(group.selection is Selection.FIXED for group in participation):
        return None
    groups = [group for group in participation if group.draws and group.selected]
    if not groups:
        return 0.0
    if noise_multiplier == 0:
        return 1.0
    if all(group.selected >= group.among for group in groups):
        moved = _moved(groups, relation, replacement_factor)
        return gaussian_delta(epsilon, noise_multiplier / moved)
    return _refined(
        lambda interval: max(
            _loss_delta(moves, noise_multiplier, epsilon, interval)
            for moves in _moves(groups, relation)
        ),
        noise_multiplier,
    )


def delta_profile(
    participation: Sequence[Participation],
    noise_multiplier: float,
    epsilons: NDArray[np.float64],
    relation: Relation,
) -> NDArray[np.float64]:
    """An upper bound on δ at each of these rising ε, of Poisson draws; 1 where ε is not above 0."""
    groups = [group for group in participation if group.draws and group.selected]
    if not groups:
        return np.zeros(len(epsilons))
    if all(group.always for group in groups):
        noise = noise_multiplier / _moved(groups, relation, 2.0)
        return np.array([gaussian_delta(epsilon, noise) for epsilon in epsilons.tolist()])
    # A tilt keeps the rounding small about the ε that it was chosen for.
    about = [max(float(epsilons[place]), 1e-3) for place in (0, len(epsilons) // 2)]

    def at(interval: float) -> NDArray[np.float64]:
        each = []
        for moves in _moves(groups, relation):
            parts = _parts(moves, noise_multiplier, 1e-20, interval)
            tilts = (best_tilt(parts, epsilon=epsilon) for epsilon in about)
            found = [compose(parts, tilt).deltas(epsilons) for tilt in tilts]
            each.append(np.where(epsilons > 0.0, np.min(found, axis=0), 1.0))
        return np.asarray(np.max(each, axis=0))

    interval = 1.6e-2 * max(1.0, 0.1 / noise_multiplier**2)
    profile = at(interval)
    while interval > 1e-6:
        interval /= 2
        before, profile = profile, at(interval)
        where = len(epsilons) // 2
        if before[where] - profile[where] <= 3e-3 * profile[where]:
            break
    return profile


def _moved(groups: Sequence[Participation], relation: Relation, replacement_factor: float) -> float:
    """How far a record moves the one Gaussian that it is when no draw is left to chance: once a
    draw, and a replaced one by as many norm bounds."""
    return relation.moves(replacement_factor) * math.sqrt(max(group.draws for group in groups))


def sampler_delta(epsilon: float, coordinates: int, summands: int, eta: float) -> float:
    """What an imperfect sampler adds to δ: (1 + e^ε) · coordinates · summands · η, at most 1.

    η bounds the total variation distance of one noise draw from its law.
    """
    draws = coordinates * summands
    if draws == 0 or eta == 0:
        return 0.0
    log_delta = float(np.logaddexp(0.0, epsilon)) + math.log(draws) + math.log(eta)
    return math.exp(min(0.0, log_delta))
