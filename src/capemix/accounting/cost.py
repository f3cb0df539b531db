"""What a plan takes from a budget: its Rényi curve, and what no Rényi curve can carry."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from capemix.accounting.mint import (
    LEAST_MULTIPLIER,
    REAL,
    SAMPLER_ERROR,
    NoisedRecord,
    NoisedSum,
    recordwise_epsilon,
    sound_epsilon,
)
from capemix.accounting.sampled import ORDERS, rdp_curve
from capemix.errors import InputError
from capemix.queries import Relation

PROVED: Final = "proved"
CLAIMED: Final = "claimed in real arithmetic"


@dataclass(frozen=True)
class Cost:
    """One mechanism's cost for one record, against the strongest declared view, in two ways.

    *Alone*: (``epsilon``, ``delta``). *Composed*: the Rényi ``curve``, by integer order, of the
    mechanism as it would be with exact samplers and a peer graph that holds; ``failure`` bounds the
    probability, whatever the rows, that the graph does not hold or that a list found by a threshold
    has a record's own value; ``distance`` bounds the total
    variation between the samplers' law and the exact one.

    ``squared``: where every record takes part in every sum, they cost what one Gaussian does, and
    this is 1/m² for it: how far a record moves it, over its noise, squared. Such costs add up, also
    of sums chosen on the way, below a total fixed beforehand. None where records are drawn.
    """

    relation: Relation
    epsilon: float
    delta: float
    curve: dict[int, float]
    failure: float = 0.0
    distance: float = 0.0
    basis: str = PROVED
    squared: float | None = None
    growth: float = 0.0


def sum_cost(noised: NoisedSum, delta: float, relation: Relation) -> Cost:
    """The cost of one noised sum. The curve bounds the divergence at every integer order."""
    multiplier = noised.view_multipliers[noised.strongest]
    epsilon = sound_epsilon(noised, multiplier, delta, relation)
    _check_finite(epsilon)
    curve = rdp_curve(
        noised.query.participation,
        multiplier,
        relation,
        replacement_factor=noised.query.replacement_factor,
        beside=noised.noise_beside(multiplier, relation),
    )
    real = noised.arithmetic == REAL
    return Cost(
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        curve=_by_order(map(float, curve)),
        failure=noised.failure,
        distance=0.0 if real else noised.numbers_drawn * noised.summands * SAMPLER_ERROR,
        basis=CLAIMED if real else PROVED,
        squared=squared_shift(noised, relation),
        growth=noised.rounding_growth,
    )


def alone_cost(epsilon: float, delta: float, relation: Relation) -> Cost:
    """Of what is known by its epsilon and delta only."""
    return Cost(relation, epsilon, delta, curve=_by_order(math.inf for _ in ORDERS))


def together(costs: Sequence[Cost]) -> Cost:
    """Several as one, each part added up: never less than what they cost."""
    return Cost(
        relation=costs[0].relation,
        epsilon=sum(cost.epsilon for cost in costs),
        delta=sum(cost.delta for cost in costs),
        curve={order: sum(cost.curve[order] for cost in costs) for order in costs[0].curve},
        failure=sum(cost.failure for cost in costs),
        distance=sum(cost.distance for cost in costs),
        basis=PROVED if all(cost.basis == PROVED for cost in costs) else CLAIMED,
        squared=_of_all(sum, costs),
        growth=sum(cost.growth for cost in costs),
    )


def dearest(costs: Sequence[Cost]) -> Cost:
    """What costs no less than any of these, part by part, where one of them will be made."""
    return Cost(
        relation=costs[0].relation,
        epsilon=max(cost.epsilon for cost in costs),
        delta=max(cost.delta for cost in costs),
        curve={order: max(cost.curve[order] for cost in costs) for order in costs[0].curve},
        failure=max(cost.failure for cost in costs),
        distance=max(cost.distance for cost in costs),
        basis=PROVED if all(cost.basis == PROVED for cost in costs) else CLAIMED,
        squared=_of_all(max, costs),
        growth=max(cost.growth for cost in costs),
    )


def _of_all(fold: Callable[[list[float]], float], costs: Sequence[Cost]) -> float | None:
    squares = [cost.squared for cost in costs if cost.squared is not None]
    return fold(squares) if len(squares) == len(costs) else None


def squared_shift(noised: NoisedSum, relation: Relation) -> float | None:
    """How far one record moves a sum, over the noise, squared; None where records are drawn."""
    if not noised.query.always:
        return None
    moved = relation.moves(noised.query.replacement_factor)
    draws = max(group.draws for group in noised.query.participation)
    noise = noised.view_multipliers[noised.strongest]
    return math.inf if noise < LEAST_MULTIPLIER else draws * (moved / noise) ** 2


def record_cost(noised: NoisedRecord, delta: float, relation: Relation, answers: int) -> Cost:
    """The cost of records released by themselves: a Gaussian on the row, α/2m² for a noise of m
    sensitivities (Mironov 2017), and randomised response among ``answers`` labels."""
    if relation is not Relation.REPLACE_ONE:
        raise InputError(
            "relation",
            "does not fit records released one by one, whose number is public",
            value=relation,
            fix="use a lineage whose limit is for replace-one",
        )
    epsilon = recordwise_epsilon(noised, delta)
    _check_finite(epsilon)
    slope = 0.5 * (noised.sensitivity / noised.noise) ** 2
    return Cost(
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        curve=_by_order(
            order * slope + response_rdp(noised.label_epsilon, answers, order) for order in ORDERS
        ),
        distance=(noised.columns + 1) * SAMPLER_ERROR,
    )


def response_rdp(epsilon: float, answers: int, order: int) -> float:
    """Randomised response that tells the true of K answers with p and each other one with q:
    1/(α-1) log(p^α q^{1-α} + q^α p^{1-α} + (K-2) q), where p = e^ε q."""
    if answers < 2:
        return 0.0
    log_q = -math.log(math.exp(epsilon) + answers - 1) if epsilon < 700 else -epsilon
    high, low = log_q + order * epsilon, log_q + (1 - order) * epsilon
    rest = log_q + math.log(answers - 2) if answers > 2 else -math.inf
    total = high + math.log1p(math.exp(low - high) + math.exp(rest - high))
    return min(epsilon, max(0.0, total / (order - 1)))


def _check_finite(epsilon: float) -> None:
    if not math.isfinite(epsilon):
        raise InputError(
            "the plan", "gives no privacy, so no budget can pay for it", fix="add noise"
        )


def _by_order(values: Iterable[float]) -> dict[int, float]:
    return dict(zip(ORDERS, values, strict=True))
