"""The bounds that the scores of many runs support."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from capemix.audit import bounds
from capemix.audit.settings import Audited, Scores
from capemix.randomness.source import Source

CONFIDENCE: Final = 0.999


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

    @property
    def exceeded(self) -> bool:
        """The same of that bound, or of the one by the stated law."""
        return self.violated or self.epsilon_ratio > self.claimed

    @property
    def says(self) -> str:
        """What was found, in a line."""
        return (
            f"{self.setting.name}: claimed {self.claimed:.3g}; at least {self.epsilon:.3g}"
            f" (could show {self.most:.3g}), {self.epsilon_ratio:.3g} by its law,"
            f" {self.epsilon_fit:.3g} by a Gaussian fit"
        )

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
    setting: Audited,
    runs: int,
    *,
    without: int | None = None,
    source: Source | None = None,
    confidence: float = CONFIDENCE,
) -> Measured:
    """Runs with and without the canary, and what they show."""
    scores = setting.scores(runs, without=without, source=source)
    return measure(setting, scores, confidence=confidence)
