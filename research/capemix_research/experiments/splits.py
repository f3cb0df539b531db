"""Does it matter which site holds which rows? The same release from rows split in three ways."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from capemix.api import synthesize
from capemix.data import DatasetInfo, LabeledRows, partition
from capemix.evaluate.score import train_and_test
from capemix.methods.mixing.planning import plan_mixtures
from capemix.sums.rows import Preparation
from capemix.sums.steps import PublicMap

SPLITS: Final = ("iid", "dirichlet 0.1", "a class missing")
SCHEMES: Final = ("cape", "conventional")


@dataclass(frozen=True)
class SplitScore:
    """Test accuracies of a model trained on releases of one split, a release for each seed."""

    scheme: str
    split: str
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracies)

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0


def split_rows(rows: LabeledRows, sites: int, how: str, seed: int) -> Sequence[LabeledRows]:
    """``a class missing``: as iid, but the first site has no row of the first class."""
    if how == "dirichlet 0.1":
        return partition(rows, sites, "dirichlet", alpha=0.1, seed=seed)
    if how == "iid":
        return partition(rows, sites, "iid", seed=seed)
    codes = np.arange(len(rows)) % sites
    moved = np.flatnonzero((codes == 0) & (rows.labels == 0))
    codes[moved] = 1 + np.arange(len(moved)) % (sites - 1)
    return tuple(rows.take(np.flatnonzero(codes == code)) for code in np.unique(codes))


def compare_splits(
    info: DatasetInfo,
    train: LabeledRows,
    test: LabeledRows,
    *,
    sites: int,
    epsilon: float,
    mixture: int,
    samples: int,
    clip: float,
    seeds: int,
    progress: Callable[[str], None] = lambda _text: None,
) -> Iterator[SplitScore]:
    """Logistic regression on releases at one budget: each scheme, each split, ``seeds`` times.

    A seed fixes the split; the noise is drawn anew, as in any release.
    """
    low, high = info.value_range
    how = Preparation(PublicMap.of_range(float(low), float(high)), clip)
    for scheme in SCHEMES:
        plan = plan_mixtures(
            width=train.width,
            class_sizes=info.class_sizes,
            classes=train.classes,
            samples=samples,
            mixture=mixture,
            clip=clip,
            normalise=how.normalise,
            scheme=scheme,
            sites=sites,
        ).calibrate(epsilon)
        for split in SPLITS:
            found = []
            for seed in range(seeds):
                progress(f"{scheme}, {split}, seed {seed}")
                release = synthesize(plan, split_rows(train, sites, split, seed))
                made = replace(
                    train, features=release.features.astype(np.float64), labels=release.labels
                )
                score = train_and_test(made, test, how, prepared=True)
                found.append(score.declared_public().accuracy)
            yield SplitScore(scheme, split, tuple(found))
