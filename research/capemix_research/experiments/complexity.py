"""What the paper's O(T S l d) is in practice: the product on one core, one size varied at a time.

Additions, noise values and mask words are counted as they are made; times are medians of CPU time.
The masks between pairs of sites, which the paper's count leaves out, are timed by themselves.
"""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from capemix.methods.mixing.planning import mixture_sum, plan_mixtures
from capemix.queries import Participation
from capemix.randomness.simulation import simulation_generator
from capemix.randomness.source import SystemSource
from capemix.sums.aggregate import Aggregate
from capemix.sums.query import Block, SumQuery, blocks
from capemix.sums.select import Selected
from capemix.sums.share import SourceDraws, masks_of, prepare_site, site_share
from capemix.sums.steps import PublicMap
from capemix.zerosum.graph import PeerGraph
from capemix.zerosum.masks import SiteKeys, add_masks, deal_keys

_CLASSES: Final = 2
_RECORDS: Final = 16_384
_NOISE: Final = 0.05


@dataclass(frozen=True)
class Size:
    """T released rows, S sites, l rows in a site's mixture, d numbers in a row."""

    samples: int = 2_000
    sites: int = 8
    mixture: int = 64
    width: int = 784


SWEEPS: Final[dict[str, tuple[int, ...]]] = {
    "samples": (500, 1_000, 2_000, 4_000, 8_000),
    "sites": (2, 4, 8, 16, 32),
    "mixture": (8, 32, 64, 128, 512),
    "width": (98, 196, 392, 784, 1_568),
}


@dataclass(frozen=True)
class Cost:
    """CPU seconds, medians of ``repeats`` runs on one core; operations were counted in one."""

    varied: str
    samples: int
    sites: int
    mixture: int
    width: int
    mixing_seconds: float
    mask_seconds: float
    additions: int
    noise_values: int
    mask_words: int
    repeats: int


class _Counted(SourceDraws):
    """A site's draws that count what they cause."""

    def __init__(self, query: SumQuery, source: SystemSource) -> None:
        super().__init__(query, source)
        self.selected = self.noised = 0

    def select(
        self, block: Block, participation: Participation, population: int
    ) -> Iterator[Selected]:
        for selected in super().select(block, participation, population):
            self.selected += len(selected.indices)
            yield selected

    def add_noise(self, block: Block, out: Any) -> None:
        super().add_noise(block, out)
        self.noised += out.size


def measured(repeats: int = 5, sweeps: dict[str, tuple[int, ...]] = SWEEPS) -> Iterator[Cost]:
    for varied, values in sweeps.items():
        for value in values:
            yield cost_of(replace(Size(), **{varied: value}), varied, repeats)


def cost_of(size: Size, varied: str = "", repeats: int = 5) -> Cost:
    """Every site mixes l rows of its own on average, noises and masks them; all are added up."""
    plan = plan_mixtures(
        width=size.width,
        class_sizes=(_RECORDS // _CLASSES,) * _CLASSES,
        samples=size.samples,
        mixture=size.sites * size.mixture,  # l rows from every site, as Algorithm 1 has it
        scheme="cape",
        sites=size.sites,
        normalise=PublicMap.of_range(0, 255),
        noise=_NOISE,
    )
    query = mixture_sum(plan)
    generator = simulation_generator(0)
    own = _RECORDS // size.sites
    features = generator.integers(0, 256, (own, size.width), dtype=np.uint8)
    labels = np.arange(own, dtype=np.int64) % _CLASSES
    rows = prepare_site(query, features, labels)  # every site holds the same: it costs the same
    keys = deal_keys(PeerGraph.complete(size.sites), SystemSource())
    counted: list[_Counted] = []

    def mix() -> None:
        counted.clear()
        total = Aggregate(query)
        for site in range(size.sites):
            counted.append(_Counted(query, SystemSource().child("site", site)))
            total.add(site_share(query, site, rows, counted[-1], threads=1))
        total.release_sums(threads=1)

    words = np.zeros(query.shape, dtype=np.uint32)

    def mask() -> None:
        for site in keys:
            _mask(query, site, words)

    mix()  # compile, and build the tables of the noise
    timed = [(_seconds(mix), _seconds(mask)) for _ in range(repeats)]
    return Cost(
        varied=varied,
        **asdict(size),
        mixing_seconds=statistics.median(mixing for mixing, _ in timed),
        mask_seconds=statistics.median(masking for _, masking in timed),
        additions=size.width * sum(site.selected for site in counted),
        noise_values=sum(site.noised for site in counted),
        mask_words=words.size * sum(1 + len(site.pair) for site in keys),
        repeats=repeats,
    )


def _mask(query: SumQuery, keys: SiteKeys, words: np.ndarray[Any, Any]) -> None:
    for block in blocks(query):
        add_masks(words[block.start : block.stop], keys, masks_of(query), block.label)


def _seconds(work: Callable[[], None]) -> float:
    start = time.process_time()  # not the clock: other work on the machine is not ours
    work()
    return time.process_time() - start


def write_costs(path: Path, costs: Iterator[Cost]) -> None:
    """A line at a time. Times are kept to four digits, which is more than they are good for."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Cost)])
        for cost in costs:
            line = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in astuple(cost))
            writer.writerow(line)
            file.flush()
