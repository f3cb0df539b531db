"""The noise on a released row of each setting, by the accountant that the setting names."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from capemix.data.registry import dataset_info
from capemix.errors import InputError
from capemix_research.experiments.settings import COLUMNS, DELTA, RECORDS, Setting

if TYPE_CHECKING:
    from capemix.plan import Plan

NoiseOf = Callable[[Setting], float]
"""The deviation of the noise on a released value."""


class NoiseTable:
    """The noise of every setting in a CSV file, so that a machine that only trains need not
    account."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[Setting, float] = {}
        if path.exists():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    self._known[Setting.from_text(row)] = float(row["noise"])

    def __call__(self, setting: Setting) -> float:
        if math.isinf(setting.epsilon):
            return 0.0
        if setting not in self._known:
            raise InputError(
                "noise",
                f"is not in {self._path.name} for this setting",
                value="/".join(setting.text()),
                fix="run capemix-research reproduce where the accountants are installed",
            )
        return self._known[setting]

    def complete(self, settings: Iterable[Setting]) -> None:
        """Account for the settings that are not there yet, and write the file."""
        missing = [s for s in settings if not math.isinf(s.epsilon) and s not in self._known]
        if not missing:
            return
        for setting in missing:
            self._known[setting] = float(f"{released_noise(setting):.6g}")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow((*COLUMNS, "noise"))
            for setting in sorted(self._known):
                writer.writerow((*setting.text(), f"{self._known[setting]:.6g}"))


def released_noise(setting: Setting) -> float:
    """The deviation of the noise on a value of a released row (TAU)."""
    if math.isinf(setting.epsilon):
        return 0.0
    if setting.accountant == "gaussian":
        return _record_noise(setting)
    if setting.accountant == "sound":
        return _sound(setting)
    classes = 1 if setting.method == "dp-mix" else 10
    one_curator = _theorem(
        setting.samples,
        setting.mixture * classes / RECORDS,
        setting.mixture,
        setting.clip,
        setting.accountant == "printed",
        setting.epsilon,
    )
    factor = {"sites": 1.0, "appendix": -1.0}.get(setting.site_noise, 0.0)
    return one_curator * math.pow(setting.sites, factor / 2)


@cache
def _theorem(
    samples: int, rate: float, mixture: int, clip: float, printed: bool, epsilon: float
) -> float:
    from capemix.accounting.calibration import smallest_noise
    from capemix.accounting.theorem1 import Theorem1

    theorem = Theorem1(samples=samples, rate=rate, mixture=mixture, clip=clip, printed=printed)
    return smallest_noise(lambda tau: theorem.epsilon(tau, DELTA), epsilon)


def _sound(setting: Setting) -> float:
    """By Rényi orders alone, as in all runs on file: `Plan.calibrate` needs less."""
    from capemix.accounting.calibration import smallest_noise
    from capemix.methods.mixing.planning import mixture_sum

    plan = sound_plan(setting)
    noise = smallest_noise(
        lambda tried: replace(plan, multiplier=tried).conservative_epsilon(),
        setting.epsilon,
        start=plan.calibrate(setting.epsilon).multiplier or 1.0,
        relative_tolerance=1e-6,
    )
    return mixture_sum(replace(plan, multiplier=noise)).deviation


def sound_plan(setting: Setting) -> Plan:
    from capemix.methods.mixing.planning import plan_mixtures

    averaged = setting.method == "conventional"
    return plan_mixtures(
        width=784,
        class_sizes=dataset_info(setting.dataset).class_sizes,
        samples=setting.samples,
        mixture=setting.mixture,
        clip=setting.clip,
        scheme="conventional" if averaged else "cape",
        sites=setting.sites,
        label_noise=setting.labels_noised,
        delta=DELTA,
    )


def _record_noise(setting: Setting) -> float:
    from capemix_research.baselines import noise_of

    return noise_of(setting.method, epsilon=setting.epsilon, delta=DELTA, clip=setting.clip).row
