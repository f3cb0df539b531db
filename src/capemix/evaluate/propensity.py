"""Can a model tell which rows are synthetic? Snoke, Raab, Nowok, Dibben and Slavkovic (2018)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from capemix.evaluate.coding import CodedTable
from capemix.randomness.simulation import simulation_generator

MOST_ROWS: Final = 5_000
"""Of each table, that a model learns from: enough to see what a reader could, and quick."""

_PARTS: Final = 3
_ROUNDS: Final = 50


@dataclass(frozen=True)
class Propensity:
    """``mse`` is the mean square of a row's chance to be synthetic, less a half: 0 where nothing
    tells rows apart, 0.25 where everything does. ``auc`` is how often a synthetic row looks more
    synthetic than a real one. ``rows`` of each table were compared."""

    mse: float
    auc: float
    rows: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def propensity(one: CodedTable, other: CodedTable, *, rows: int = MOST_ROWS) -> Propensity:
    """As many rows of each, and boosted trees that are trained on some of them and asked about the
    others, in turn. ``rows``: so many of each, if there are."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    count = min(len(one), len(other), rows)
    draws = simulation_generator(2)
    chosen = [draws.permutation(len(each))[:count] for each in (one, other)]
    values = np.concatenate([one.values[chosen[0]], other.values[chosen[1]]])
    whose = np.repeat([1, 0], count)
    model = HistGradientBoostingClassifier(max_iter=_ROUNDS, early_stopping=False, random_state=0)
    parts = StratifiedKFold(_PARTS, shuffle=True, random_state=0)
    found = cross_val_predict(model, values, whose, cv=parts, method="predict_proba")[:, 1]
    return Propensity(float(np.mean((found - 0.5) ** 2)), float(roc_auc_score(whose, found)), count)
