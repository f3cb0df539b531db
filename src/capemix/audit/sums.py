"""What looks and rounds have in common: an observer who sees every noisy sum, one after the other.

What a record adds to a sum depends on what was found before, which the observer knows; so each sum
is scored given the ones before, and a run's score is the log of the ratio of the two densities.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from capemix.audit.measure import Scores
from capemix.audit.settings import View, scheme_words
from capemix.plan import Plan
from capemix.randomness.source import Source, SystemSource

Real = npt.NDArray[np.float64]


def log_ratio(seen: Real, without: Real, with_: Real, deviation: float) -> float:
    """Of one noisy sum: ((x - a)(b - a) - |b - a|^2/2) / deviation^2, where a and b are the sums of
    the two worlds, in lattice units."""
    move = with_ - without
    return float((((seen - without) * move).sum() - (move**2).sum() / 2) / deviation**2)


def score_sums(
    attacks: tuple[str, ...],
    score: Callable[[int, Source], list[float]],
    runs: int,
    source: Source | None = None,
) -> Scores:
    """``score``, one number an attack, of ``runs`` runs in the world without the canary (0) and of
    as many in the world with it (1)."""
    source = SystemSource() if source is None else source
    scores = [
        np.array([score(world, source.child("run", world, run)) for run in range(runs)])
        for world in (0, 1)
    ]
    return Scores(attacks, *scores)


def describe_sums(name: str, view: View, plan: Plan, sums: int) -> dict[str, object]:
    """The words of `Audited.describe` for ``sums`` sums like ``plan``, each of all records."""
    return {
        "name": name,
        "scheme": scheme_words(plan.federation),
        "view": str(view),
        "selection": str(plan.mixing.selection),
        "relation": str(plan.relation),
        "accountant": str(plan.accountant),
        "law": str(plan.law),
        "mixture": 1,
        "draws": sums,
        "rate": 1.0,
        "sites": plan.federation.sites,
        "colluding": plan.federation.colluding,
        "missing": plan.federation.dropouts,
        "delta": plan.delta,
    }
