"""A slice of each table for two CPU cores and three minutes. Not the paper's training: 2,000 rows,
a few epochs, a hundred times the learning rate, a fifth of the test images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from capemix_research.experiments.settings import TABLES, Setting

SAMPLES: Final = 2_000
EPOCHS: Final = 4
TEST_EVERY: Final = 5
LEARNING_RATE: Final = 1e-3
_MIXTURES: Final = (1, 4, 64)
_SITES: Final = (5, 50)


def slice_of(table: str) -> Iterator[Setting]:
    """MNIST, no noise and epsilon 10, three mixing orders, few and many sites. ``all`` takes a
    part of this of the three that the paper has."""
    if table == "all":
        yield from (s for s in slice_of("table1") if math.isinf(s.epsilon) and s.mixture > 1)
        yield from (s for s in slice_of("figure2") if math.isinf(s.epsilon) and s.sites == 50)
        yield from slice_of("table2")
        return
    for setting in TABLES[table]():
        noiseless = math.isinf(setting.epsilon)
        shown = ("central", "conventional") if noiseless else ("joint", "conventional")
        kept = {
            "table1": setting.mixture in _MIXTURES and setting.method in shown,
            "wider": setting.mixture in _MIXTURES,
            "figure2": setting.sites in _SITES,
            "sound": setting.mixture in _MIXTURES and setting.samples == 6_000,
            "grid": setting.mixture == 4 and setting.samples == 6_000 and setting.clip == 1.0,
        }.get(table, True)
        if kept and setting.dataset == "mnist" and setting.epsilon in (math.inf, 10.0):
            yield replace(setting, samples=SAMPLES)
