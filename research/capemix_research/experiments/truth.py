"""The true epsilon of each published setting: the paper's noise, under the sound accountant."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from capemix.data.registry import dataset_info
from capemix.methods.mixing.planning import plan_mixtures, with_noise
from capemix_research.experiments.noise import NoiseOf
from capemix_research.experiments.settings import (
    DATASETS,
    DELTA,
    EPSILONS,
    MIXTURES,
    Setting,
    of_scheme,
)

HEADER: Final = ("dataset", "reading", "mixture", "claimed", "noise", "epsilon")

READINGS: Final[dict[str, tuple[str, int, dict[str, Any]]]] = {
    "central": ("central", 1, {"scheme": "central"}),
    "algorithm1": ("algorithm1", 10, {"scheme": "cape", "form": "algorithm1", "sites": 10}),
    "conventional": ("conventional", 10, {"scheme": "conventional", "sites": 10}),
}
"""How Table 1 can be read: the setting that has the noise, its sites, and the plan it is."""


@dataclass(frozen=True)
class Truth:
    """``epsilon`` is None where nothing is proved."""

    dataset: str
    reading: str
    mixture: int
    claimed: float
    noise: float
    epsilon: float | None


def published_settings() -> list[tuple[str, Setting]]:
    return [
        (reading, of_scheme(dataset, scheme, sites, mixture, epsilon))
        for dataset in DATASETS
        for reading, (scheme, sites, _) in READINGS.items()
        for epsilon in EPSILONS[1:]
        for mixture in MIXTURES
    ]


def true_epsilons(noise_of: NoiseOf) -> Iterator[Truth]:
    """Fixed-size draws, one record replaced, labels noised; against the strongest view."""
    for reading, setting in published_settings():
        plan = plan_mixtures(
            width=784,
            class_sizes=dataset_info(setting.dataset).class_sizes,
            samples=setting.samples,
            mixture=setting.mixture,
            clip=setting.clip,
            label_noise=True,
            selection="fixed-size",
            relation="replace-one",
            delta=DELTA,
            **READINGS[reading][2],
        )
        noise = noise_of(setting)
        found = with_noise(plan, noise).guarantee().epsilon
        yield Truth(setting.dataset, reading, setting.mixture, setting.epsilon, noise, found)


def write_truth(path: Path, noise_of: NoiseOf) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        for t in true_epsilons(noise_of):
            found = "" if t.epsilon is None else f"{t.epsilon:.4g}"
            writer.writerow(
                (t.dataset, t.reading, t.mixture, f"{t.claimed:g}", f"{t.noise:.6g}", found)
            )
