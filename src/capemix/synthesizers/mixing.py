"""DP-CDA: class-wise random mixtures (Saha, Tonoy, Imtiaz 2024), as sums asked for + a
post-processing from noisy sums to rows.

A mixture of class k is (1/l) times the sum of the class-k rows that were drawn. The labels of a
class-k mixture are k before any row is read, so by default they are released as they are; with
``label_noise`` the one-hot label is mixed and noised along with the row, as the paper has it.

DP-Mix (Lee, Kim, Lee, Suh, Ramchandran 2019, "Synthesizing Differentially Private Datasets using
Random Mixing") is the same with one pool of all records: a mixture averages rows of any class and
their one-hot labels, so a record takes part in all T draws, at rate l/N, and the label that is
released is the largest entry of the noisy mixed label.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.errors import InputError
from capemix.mix.select import Selected
from capemix.mix.sums import sum_selected
from capemix.prepare.rows import STRETCH, PreparedRows
from capemix.queries import Participation, Selection, SumQuery

MOST: Final = 1 << 40
"""No width, number of mixtures or class size is larger: it would be a slip, or meant ill."""


class Pool(StrEnum):
    """Which records are mixed with each other."""

    CLASS = "class"  # those of one class: DP-CDA
    ALL = "all"  # any: DP-Mix


@dataclass(frozen=True)
class Mixing:
    """``samples[k]`` mixtures of class k, of ``mixture`` rows each (in expectation, if Poisson);
    with one pool of all records ``samples`` is one number, the mixtures in all.

    ``class_sizes`` are declared or noisy sizes that fix the sampling rates. ``sites_averaged``
    is 1 when the sites' shares add up to a mixture, and S when each of S sites mixes rows of its
    own and the average is released: then a site's class is taken to have size n_k / S.
    """

    width: int
    class_sizes: tuple[int, ...]
    samples: tuple[int, ...]
    mixture: int
    clip: float
    selection: Selection = Selection.POISSON
    label_noise: bool = False
    sites_averaged: int = 1
    pool: Pool = Pool.CLASS

    def __post_init__(self) -> None:
        whole = (self.width, self.mixture, *self.samples, *self.class_sizes)
        if any(not isinstance(number, int) or isinstance(number, bool) for number in whole):
            raise InputError(
                "--mixture, --samples and --class-sizes",
                "must be whole numbers",
                value=f"{self.mixture}, {sum(self.samples)}",
                fix="leave out fractions",
            )
        if max(whole) > MOST:
            raise InputError(
                "--mixture, --samples and --class-sizes",
                f"must be at most {MOST}",
                value=max(whole),
                fix="lower them",
            )
        if self.mixture < 1:
            raise InputError("--mixture", "must be at least 1", value=self.mixture, fix="raise it")
        if not 1e-100 < self.clip < 1e100:
            raise InputError(
                "--clip", "must be a positive number", value=self.clip, fix="give the norm bound"
            )
        if not self.class_sizes:
            raise InputError("classes", "are none", fix="declare at least one class")
        if self.pool is Pool.ALL and not self.label_noise:
            raise InputError(
                "--label-noise",
                "cannot be left out when classes are mixed: the mixed label tells of the records",
                fix="leave --no-label-noise out, or mix by class",
            )
        if len(self.samples) != self.pools or min(self.samples) < 0:
            raise InputError(
                "--samples",
                "must give every class a number of mixtures",
                value=len(self.samples),
                fix=f"there are {self.pools} classes"
                if self.pool is Pool.CLASS
                else "give one number when classes are mixed",
            )
        if sum(self.samples) < 1:
            raise InputError(
                "--samples", "must be at least 1", value=sum(self.samples), fix="raise it"
            )
        smallest = min(self.pool_sizes)
        if self.mixture > smallest:
            where = " at a site" if self.sites_averaged > 1 else ""
            what = "the smallest class" if self.pool is Pool.CLASS else "the records there are"
            raise InputError(
                "--mixture",
                f"is larger than {what}{where} ({smallest})",
                value=self.mixture,
                fix="lower --mixture, or declare larger class sizes if they are true",
            )

    @property
    def classes(self) -> int:
        return len(self.class_sizes)

    @property
    def pools(self) -> int:
        """How many groups of records are mixed apart: the classes, or one of all."""
        return self.classes if self.pool is Pool.CLASS else 1

    @property
    def pool_sizes(self) -> tuple[int, ...]:
        """The sizes from which one site's (or the joint) draw selects."""
        sizes = self.class_sizes if self.pool is Pool.CLASS else (sum(self.class_sizes),)
        return tuple(size // self.sites_averaged for size in sizes)

    @property
    def row_bound(self) -> float:
        """What one record adds to a sum: its clipped row, and its one-hot label if noised."""
        return math.hypot(self.clip, 1.0) if self.label_noise else self.clip

    @property
    def replacement_factor(self) -> float:
        """The largest change by a replaced row and label, over ``row_bound``: rounding included, by
        which each part may be as much longer as `STRETCH` says."""
        if self.label_noise:
            return math.sqrt(4 * self.clip**2 + 2) / self.row_bound * (1.0 + STRETCH)
        return 2.0

    @property
    def columns(self) -> int:
        return self.width + (self.classes if self.label_noise else 0)

    def query(self, lattice_norm_bound: int | None) -> SumQuery:
        """The private sum that mixing asks for."""
        return SumQuery(
            name="mixtures",
            width=self.columns,
            l2_norm_bound=self.row_bound,
            lattice_norm_bound=lattice_norm_bound,
            share=1.0,
            participation=tuple(
                Participation(draws, self.mixture, size, self.selection)
                for draws, size in zip(self.samples, self.pool_sizes, strict=True)
            ),
        )

    def add_block(
        self, rows: PreparedRows, group: int, selected: Selected, out: npt.NDArray[Any]
    ) -> None:
        """Add to ``out``, a block of draws of pool ``group``, the un-noised sums of some."""
        sum_selected(rows.by_class[group], selected, out)

    @property
    def divisor(self) -> int:
        """From sums to mixtures: l, times S where S sites' mixtures are averaged."""
        return self.mixture * self.sites_averaged

    def rows_from_means(
        self, means: npt.NDArray[np.floating[Any]]
    ) -> tuple[npt.NDArray[np.floating[Any]], npt.NDArray[np.int64]]:
        """Mixtures and labels from the noisy sums over ``divisor``: post-processing."""
        if self.label_noise:
            return means[:, : self.width], means[:, self.width :].argmax(axis=1)
        return means, np.repeat(np.arange(self.classes, dtype=np.int64), self.samples)

    def mixed_labels_from_means(
        self, means: npt.NDArray[np.floating[Any]]
    ) -> npt.NDArray[np.floating[Any]] | None:
        """The noisy mixed labels whose largest entry is the label, where classes are mixed."""
        return means[:, self.width :] if self.pool is Pool.ALL else None


def spread(total: int, parts: int) -> tuple[int, ...]:
    """``total`` over ``parts`` as evenly as whole numbers allow."""
    each, rest = divmod(total, parts)
    return tuple(each + (i < rest) for i in range(parts))
