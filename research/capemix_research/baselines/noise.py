"""The noise of every baseline at one budget, for experiments: declared numbers in, numbers out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from capemix.methods.mixing import spread
from capemix.methods.mixing.planning import mixture_sum, plan_mixtures
from capemix_research.baselines.plan import RecordMethod, make_record_plan, unnamed_facts


class Baseline(StrEnum):
    CENTRAL = "dp-cda"  # Saha, Tonoy, Imtiaz 2024: one curator
    CONVENTIONAL = "conventional"  # every site mixes and noises for itself
    DP_MIX = "dp-mix"
    RANDOM_PROJECTION = RecordMethod.RANDOM_PROJECTION
    LOCAL_PERTURBATION = RecordMethod.LOCAL_PERTURBATION


@dataclass(frozen=True)
class Noise:
    """``row``: deviation on each number of a released row (before a projection is taken back);
    ``label``: deviation on each entry of a released one-hot label, None if it is not noised so;
    ``label_kept``: the probability that the true label is told, 1 unless by randomised response.
    """

    row: float
    label: float | None
    label_kept: float


def noise_of(
    baseline: Baseline | str,
    *,
    epsilon: float,
    delta: float = 1e-5,
    clip: float = 1.0,
    records: int = 60_000,
    classes: int = 10,
    samples: int = 60_000,
    mixture: int = 4,
    width: int = 784,
    accountant: str = "paper",
    **asked: Any,
) -> Noise:
    """The noise that keeps (``epsilon``, ``delta``).

    For mixtures: ``samples`` = T of ``mixture`` = l of ``records`` = N records in balanced
    ``classes``, by the paper's accountant (Theorem 1; p = lK/N, and l/N for DP-Mix) or the sound
    one; ``asked`` goes to `plan_mixtures` (conventional: ``sites``, ``site_noise``), and ``row`` is
    the deviation after averaging. The others do not depend on N, T and l; there ``asked`` may hold
    ``projection`` and ``label_share``, and the accountant is the analytic Gaussian mechanism.
    """
    kind = Baseline(baseline)
    if kind in (Baseline.RANDOM_PROJECTION, Baseline.LOCAL_PERTURBATION):
        plan = make_record_plan(
            kind.value, unnamed_facts(width, classes), clip=clip, delta=delta, **asked
        ).calibrate(epsilon)
        return Noise(plan.noise or 0.0, None, plan.label_kept)
    mixed = plan_mixtures(
        width=width,
        class_sizes=spread(records, classes),
        samples=samples,
        mixture=mixture,
        pool="all" if kind is Baseline.DP_MIX else "class",
        scheme="conventional" if kind is Baseline.CONVENTIONAL else "central",
        clip=clip,
        delta=delta,
        accountant=accountant,
        **asked,
    ).calibrate(epsilon)
    query = mixture_sum(mixed)
    noised = query.width > width  # one-hot labels beside the row
    return Noise(query.deviation, query.deviation if noised else None, 1.0)
