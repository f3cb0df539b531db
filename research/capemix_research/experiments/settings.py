"""What is run for each table and figure: a setting is one way to make training rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, Final

DATASETS: Final = ("mnist", "fashion-mnist")
MIXTURES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
EPSILONS: Final = (math.inf, 20.0, 10.0)
DELTA: Final = 1e-5
RECORDS: Final = 60_000


@dataclass(frozen=True, order=True)
class Setting:
    """One way to make training rows, with everything that the paper states or leaves unstated.

    ``method``: ``real`` rows; ``central`` (l rows of a class drawn without replacement, one
    curator); ``joint`` (the sites' Poisson draws add up to one mixture); ``algorithm1`` and
    ``conventional`` (every site mixes l rows of its own and the average is released); ``dp-mix``
    (l rows of all classes); ``random-projection`` and ``local-perturbation`` (a noised row for
    every record). ``site_noise`` says how much noise an averaging method releases: ``matched`` TAU,
    ``sites`` sqrt(S) TAU, ``appendix`` TAU / sqrt(S), TAU being what the accountant asks of one
    curator; ``own`` where a site is accounted for by itself.
    """

    dataset: str
    method: str
    sites: int
    mixture: int
    epsilon: float
    samples: int = 60_000
    clip: float = 1.0
    labels_noised: bool = True
    accountant: str = "theorem1"
    site_noise: str = ""

    def text(self) -> tuple[str, ...]:
        """As a results file has it."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(f"{v:g}" if isinstance(v, float) else str(v) for v in values)

    @classmethod
    def from_text(cls, row: dict[str, str]) -> Setting:
        kinds: dict[str, Callable[[str], Any]] = {
            "int": int,
            "float": float,
            "bool": lambda text: text == "True",
            "str": str,
        }
        return cls(**{field.name: kinds[str(field.type)](row[field.name]) for field in fields(cls)})


COLUMNS: Final = tuple(field.name for field in fields(Setting))


def _noiseless(dataset: str, method: str, sites: int, mixture: int) -> Setting:
    return Setting(
        dataset, method, sites, mixture, math.inf, labels_noised=False, accountant="none"
    )


def of_scheme(dataset: str, scheme: str, sites: int, mixture: int, epsilon: float) -> Setting:
    """The stated assumption set: T = 60,000, c = 1, labels noised, the theorem as corrected."""
    if math.isinf(epsilon):
        # Without noise Algorithm 1 and the conventional scheme are one and the same.
        method = "conventional" if scheme == "algorithm1" else scheme
        return _noiseless(dataset, method, sites, mixture)
    noise = {"algorithm1": "appendix", "conventional": "sites"}.get(scheme, "")
    return Setting(dataset, scheme, sites, mixture, epsilon, site_noise=noise)


def table1(datasets: tuple[str, ...] = DATASETS) -> Iterator[Setting]:
    """(a) CAPE and (b) conventional; S = 10. Central mixing is what (a) turns out to be."""
    for dataset, epsilon, mixture in product(datasets, EPSILONS, MIXTURES):
        if math.isinf(epsilon):
            yield of_scheme(dataset, "central", 1, mixture, epsilon)
        for scheme in ("joint", "algorithm1", "conventional"):
            if not (scheme == "algorithm1" and math.isinf(epsilon)):
                yield of_scheme(dataset, scheme, 10, mixture, epsilon)


def noiseless(datasets: tuple[str, ...] = DATASETS) -> Iterator[Setting]:
    """Table 1's columns without noise: central mixing against (a), averaging against (b)."""
    for setting in table1(datasets):
        if math.isinf(setting.epsilon) and setting.method in ("central", "conventional"):
            yield setting


def wider(datasets: tuple[str, ...] = DATASETS) -> Iterator[Setting]:
    """The same with rows clipped at 5 instead of 1, which the paper does not state."""
    for setting in noiseless(datasets):
        yield replace(setting, clip=5.0)


FIGURE2_SITES: Final = (5, 10, 20, 50)


def figure2(datasets: tuple[str, ...] = DATASETS) -> Iterator[Setting]:
    """l = 4, more and more sites."""
    for dataset, epsilon, sites in product(datasets, EPSILONS, FIGURE2_SITES):
        for scheme in ("joint", "conventional"):
            yield of_scheme(dataset, scheme, sites, 4, epsilon)


TABLE2_METHODS: Final = (
    "random-projection",
    "local-perturbation",
    "dp-mix",
    "central",
    "conventional",
    "joint",
)


def table2(datasets: tuple[str, ...] = DATASETS) -> Iterator[Setting]:
    """Six methods; mixtures of 4 rows, where Table 1 is at its best."""
    for dataset, epsilon, method in product(datasets, EPSILONS[1:], TABLE2_METHODS):
        if method in ("random-projection", "local-perturbation"):
            yield Setting(dataset, method, 1, 0, epsilon, accountant="gaussian")
        elif method == "dp-mix":
            yield Setting(dataset, method, 1, 4, epsilon)
        else:
            yield of_scheme(dataset, method, 1 if method == "central" else 10, 4, epsilon)


def sound(datasets: tuple[str, ...] = DATASETS) -> Iterator[Setting]:
    """The same mixtures with the sound accountant's noise for 10: a record added or removed, ten
    sites, of which three may collude."""
    for dataset, samples, mixture in product(datasets, (60_000, 6_000), MIXTURES):
        yield Setting(
            dataset,
            "joint",
            10,
            mixture,
            10.0,
            samples=samples,
            labels_noised=False,
            accountant="sound",
        )


def real(datasets: tuple[str, ...] = DATASETS) -> Iterator[Setting]:
    for dataset in datasets:
        yield Setting(dataset, "real", 1, 0, math.inf, labels_noised=False, accountant="none")


GRID_MIXTURES: Final = (1, 4, 32, 512)


def grid() -> Iterator[Setting]:
    """What the paper leaves unstated, on MNIST: T, c, label noise, which theorem, which
    conventional noise. Cheap ones first."""
    for samples, mixture, epsilon, clip, noised, theorem in product(
        (6_000, 60_000), GRID_MIXTURES, EPSILONS[1:], (1.0, 5.0, 28.0), (True, False), (True, False)
    ):
        accountant = "printed" if theorem else "theorem1"
        base = Setting(
            "mnist",
            "central",
            1,
            mixture,
            epsilon,
            samples=samples,
            clip=clip,
            labels_noised=noised,
            accountant=accountant,
        )
        yield base
        for noise in ("matched", "sites"):
            yield replace(base, method="conventional", sites=10, site_noise=noise)
        if not theorem:
            yield replace(
                base, method="conventional", sites=10, accountant="sound", site_noise="own"
            )


TABLES: Final = {
    "table1": table1,
    "noiseless": noiseless,
    "wider": wider,
    "figure2": figure2,
    "table2": table2,
    "sound": sound,
    "real": real,
    "grid": grid,
}
