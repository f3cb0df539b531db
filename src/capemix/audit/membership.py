"""Membership inference on a finished release: is this record among those it was made from?

Two attacks score a record by its nearest synthetic row of the same class, and by how much likelier
the class's mixtures are with the record than without. Both know the release and its manifest only.
What they achieve bounds nothing but these attacks: a better one may do better. They are measured on
real rows without a budget, so the figures are private to the rows' owner.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import stats

from capemix.audit.bounds import at_least, at_most
from capemix.data.rows import LabeledRows
from capemix.errors import InputError
from capemix.evaluate.score import mapped, preparation_of
from capemix.manifest import Manifest
from capemix.private import Private
from capemix.queries import QueryShape, Selection

Real = npt.NDArray[np.float64]

NEAREST: Final = "nearest neighbour"

ALARMS: Final = (0.001, 0.01)
"""Shares of non-members that may be called members."""

PARTS: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of all records, at which scores are told."""

_ROWS_AT_ONCE: Final = 256


@dataclass(frozen=True)
class Caught:
    """The share of members above a threshold that a share of the non-members exceeds."""

    false_alarms: float
    members: float
    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    """Of each of the ``parts`` of the members, and of the others, the score that so many do not
    exceed; empty where no record has one."""

    parts: tuple[float, ...]
    members: tuple[float, ...]
    others: tuple[float, ...]

    @classmethod
    def of(cls, members: Real, others: Real) -> Scores:
        def at(scores: Real) -> tuple[float, ...]:
            known = scores[np.isfinite(scores)]
            return tuple(np.quantile(known, PARTS).tolist()) if len(known) else ()

        return cls(PARTS, at(members), at(others))


@dataclass(frozen=True)
class Attack:
    """How well one attack tells members from others; ``low`` and ``high`` are confidence bounds.
    ``scores`` are what it told them by: of the nearest neighbour, minus the distance to it."""

    name: str
    auc: float
    low: float
    high: float
    caught: tuple[Caught, ...]
    scores: Scores

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Target:
    """What an attacker knows: the synthetic rows, and the manifest beside them."""

    rows: LabeledRows
    manifest: Manifest

    def synthetic(self) -> Real:
        """The rows in prepared units."""
        return mapped(self.rows.features, preparation_of(self.manifest))

    @property
    def mixed(self) -> QueryShape | None:
        """The sum whose rows these are, if each is a sum of drawn records with its noise: not drawn
        anew from such sums, nor from other ones."""
        drawn = [line for line in self.manifest.outline if line.drawn]
        if len(drawn) == 1 and drawn[0].rows == self.manifest.rows:
            return drawn[0]
        return None


def attack(
    target: Target, members: LabeledRows, others: LabeledRows, *, confidence: float = 0.95
) -> Private[list[Attack]]:
    """Both attacks (the second where rows are sums of drawn records)."""
    parts = [_prepared(target, rows) for rows in (members, others)]
    for name, (features, _) in zip(("members", "non_members"), parts, strict=True):
        if len(features) < 2:
            raise InputError(
                name, "has fewer than two rows of the release's classes", fix="give more rows"
            )
    scorers = {NEAREST: nearest_scores}
    if target.mixed is not None:
        scorers["likelihood ratio"] = ratio_scores
    return Private(
        [
            judge(name, *(scorer(target, *part) for part in parts), confidence=confidence)
            for name, scorer in scorers.items()
        ]
    )


def _prepared(target: Target, rows: LabeledRows) -> tuple[Real, npt.NDArray[np.int64]]:
    """The records as the pipeline would prepare them, and their classes."""
    rows = rows.columns(target.rows.feature_names)
    position = {name: code for code, name in enumerate(target.rows.classes)}
    codes = np.array([position.get(name, -1) for name in rows.classes], dtype=np.int64)[rows.labels]
    return preparation_of(target.manifest).apply(rows.features)[codes >= 0], codes[codes >= 0]


def nearest_scores(target: Target, records: Real, codes: npt.NDArray[np.int64]) -> Real:
    """Minus the distance to the nearest synthetic row of the record's class."""
    synthetic, scores = target.synthetic(), np.full(len(records), -np.inf)
    for code in np.unique(codes):
        there = synthetic[target.rows.labels == code]
        if not len(there):
            continue
        squares = (there**2).sum(axis=1)
        for start, part in _chunks(np.flatnonzero(codes == code)):
            del start
            cross = records[part] @ there.T
            own = (records[part] ** 2).sum(axis=1)
            squared = (squares - 2 * cross).min(axis=1) + own
            scores[part] = -np.sqrt(np.maximum(squared, 0.0))
    return scores


def ratio_scores(target: Target, records: Real, codes: npt.NDArray[np.int64]) -> Real:
    """log prod_t [(1-q) + q N(z_t; m + s, v) / N(z_t; m, v)] over the mixtures z_t of the class.

    m and v are the mixtures' own mean and variance, column by column; a draw with the record moves
    by s, x/l with Poisson selection and (x - m)/l in the place of another row.
    """
    line, synthetic = target.mixed, target.synthetic()
    if line is None:
        raise ValueError("the rows are no sums of drawn records")
    scores = np.zeros(len(records))
    for code in np.unique(codes):
        there = synthetic if line.groups == 1 else synthetic[target.rows.labels == code]
        if len(there) < 2:
            continue
        group = line.participation[0 if line.groups == 1 else code]
        rate = group.probability
        mean, variance = there.mean(axis=0), np.maximum(there.var(axis=0), 1e-12)
        centred = (there - mean) / variance
        for _, chosen in _chunks(np.flatnonzero(codes == code)):
            moves = records[chosen]
            if group.selection is Selection.FIXED:
                moves = moves - mean
            moves = moves / line.divisor
            exponent = centred @ moves.T - (moves**2 / variance).sum(axis=1) / 2
            miss = np.log1p(-rate) if rate < 1 else -np.inf
            scores[chosen] = np.logaddexp(miss, np.log(rate) + exponent).sum(axis=0)
    return scores


def _chunks(indices: npt.NDArray[np.int64]) -> list[tuple[int, npt.NDArray[np.int64]]]:
    return [
        (start, indices[start : start + _ROWS_AT_ONCE])
        for start in range(0, len(indices), _ROWS_AT_ONCE)
    ]


def judge(name: str, members: Real, others: Real, *, confidence: float) -> Attack:
    """The area under the curve with DeLong's (1988) interval, and the members caught at few false
    alarms with Clopper and Pearson's, the threshold taken as given."""
    ranks = stats.rankdata(np.concatenate([members, others]))
    n, m = len(members), len(others)
    above = (ranks[:n] - stats.rankdata(members)) / m  # share of others below each member
    below = 1.0 - (ranks[n:] - stats.rankdata(others)) / n
    auc = float(above.mean())
    deviation = float(np.sqrt(above.var(ddof=1) / n + below.var(ddof=1) / m))
    reach = float(stats.norm.ppf(0.5 + confidence / 2)) * deviation
    each = 0.5 + confidence / 2
    caught = []
    for alarms in ALARMS:
        allowed = int(alarms * m)
        threshold = np.sort(others)[m - 1 - allowed]
        hits = int((members > threshold).sum())
        caught.append(
            Caught(alarms, hits / n, float(at_least(hits, n, each)), float(at_most(hits, n, each)))
        )
    low, high = max(0.0, auc - reach), min(1.0, auc + reach)
    return Attack(name, auc, low, high, tuple(caught), Scores.of(members, others))
