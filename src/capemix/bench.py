"""How fast: the whole secure path beside the obvious loop and beside merely copying the output.

All three in one run on the same rows, so that only ratios are quoted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from capemix.api import config_of
from capemix.facts import Facts, unnamed_columns
from capemix.plan import make_plan
from capemix.randomness.simulation import simulation_generator
from capemix.randomness.source import SystemSource
from capemix.sums.aggregate import Aggregate
from capemix.sums.reference import mixtures_by_loop
from capemix.sums.rows import ClippedRows
from capemix.sums.share import SourceDraws, prepare_site, site_share
from capemix.sums.statistic import PreparedRows
from capemix.sums.steps import PublicMap

WIDTH: Final = 784
CLASSES: Final = 10
_MAP: Final = PublicMap.of_range(0, 255)


@dataclass(frozen=True)
class Timing:
    """``times_loop``: how many times faster than the loop. ``times_copy``: how many times as long
    as copying the released rows."""

    mixture: int
    records: int
    samples: int
    times_loop: float
    times_copy: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    mixture: int,
    *,
    records: int = 60_000,
    samples: int = 60_000,
    repeats: int = 3,
    loop_part: int = 1,
    threads: int | None = None,
) -> Timing:
    """Time central mixing with secure lattice noise at eps = 10, rows already prepared.

    The loop is timed on 1/``loop_part`` of the draws and scaled up: it costs the same each draw.
    """
    generator = simulation_generator(0)
    features = generator.integers(0, 256, (records, WIDTH), dtype=np.uint8)
    labels = np.repeat(np.arange(CLASSES, dtype=np.int64), records // CLASSES)
    facts = Facts(
        features=unnamed_columns(WIDTH),
        label="label",
        classes=tuple(range(CLASSES)),
        class_sizes=(records // CLASSES,) * CLASSES,
        normalise=_MAP,
    )
    method = config_of("mixing", samples=samples, mixture=mixture, clip=1.0)
    plan = make_plan(facts, method, epsilon=10.0)
    query = plan.query(plan.names[0], ClippedRows(WIDTH, CLASSES, _MAP, 1.0))
    rows = prepare_site(query, features, labels)
    if not isinstance(rows, PreparedRows):
        raise ValueError("a mixture is a sum of rows that are drawn")
    unit = np.float32(query.lattice_scale)
    by_class = [part.astype(np.float32) / unit for part in rows.by_group]
    noise = query.deviation
    draws = [max(1, samples // CLASSES // loop_part)] * CLASSES

    def loop() -> None:
        mixtures_by_loop(by_class, draws, mixture, noise, generator)

    source = SystemSource()
    released = np.ones((samples, WIDTH), dtype=np.uint32)  # memory that was touched before
    copied = np.ones_like(released)
    runs = iter(range(1_000_000))

    def fast() -> None:
        draws = SourceDraws(query, source.child("run", next(runs)))
        total = Aggregate(query)
        total.add(site_share(query, 0, rows, draws, threads=threads, out=released))
        total.release_sums(threads=threads)

    scale = samples / sum(draws)
    fast()  # compile, build the noise table, touch the memory
    ratios_loop, ratios_copy = [], []
    for _ in range(repeats):
        a, b = _seconds(loop), _typical_seconds(fast)
        c = _typical_seconds(lambda: np.copyto(copied, released))
        ratios_loop.append(a * scale / b)
        ratios_copy.append(b / c)
    return Timing(
        mixture, records, samples, statistics.median(ratios_loop), statistics.median(ratios_copy)
    )


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _typical_seconds(work: Callable[[], None]) -> float:
    """The median of up to seven runs within a second or so: the loop is long enough to average."""
    times = [_seconds(work)]
    while len(times) < 7 and sum(times) < 1.0:
        times.append(_seconds(work))
    return statistics.median(times)
