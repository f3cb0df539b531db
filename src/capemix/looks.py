"""What a plan must know of the rows and was not told, paid for: which classes there are and how
many rows each has, each column's range, its mean and scale, and the norm to clip at.

Each look is a private sum like the mixtures, through the same federated path, and a round of
`plan.rounds`: together they cost what one Gaussian costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from capemix.accounting.cost import Cost
from capemix.data.cells import MISSING_WORDS, Words
from capemix.data.rows import MAX_CLASSES, LabeledRows, UnlistedRows, named
from capemix.engines.local import sum_local
from capemix.errors import InputError
from capemix.federation import Federation
from capemix.guarantee import Guarantee
from capemix.plan import BudgetLine, NoiseLaw, Plan
from capemix.plan.rounds import Round, Rounds, plan_rounds
from capemix.plan.shares import CLASS_LIST
from capemix.prepare.rows import normalise_rows, row_norms
from capemix.prepare.steps import ColumnMap
from capemix.queries import Relation
from capemix.randomness.source import Source
from capemix.randomness.tables import discrete_gaussian, rounded_gaussian
from capemix.synthesizers.moments import shrunk_sizes
from capemix.synthesizers.told import listed, records_of, stands_out, sure, told_sizes

Real = npt.NDArray[np.float64]
Contribution = Callable[[LabeledRows], npt.NDArray[Any]]

EXPONENTS: Final = range(-20, 41)
"""Powers of two between which the size of a value is looked for."""

_BINS: Final = 2 * len(EXPONENTS) + 1
"""Of a column: negative from large to small, nothing, positive from small to large."""

NORMS: Final = tuple(2.0 ** (step / 4) for step in range(-16, 17))
"""Norms to clip at, over the square root of the width."""

_COVERED: Final = 0.9
"""The part of the rows that the clip norm should leave as they are."""

_SURE: Final = 4.0
"""Noise deviations of a second moment that a variance is taken to be at least."""

_MEAN: Final = 1.0 / math.sqrt(3.0)
"""What a column's mean is known to vary by beforehand, in half ranges: as if even between the
ends."""

_OCTAVE: Final = 4
"""Steps of `NORMS` to a factor of 2: rows whose norms can be told have many within one."""

GUESS: Final = (-1.0, 1.0)
"""A column's range where nothing shows any."""

MOST_COLUMNS: Final = 250
"""Columns whose ranges are looked for. Beyond, the look is not worth its noise, which grows with
their root, nor its histograms, a hundred numbers a value."""

SHARES: Final = {"class sizes": 0.2, "ranges": 0.4, "means and scales": 0.3, "clip norm": 0.1}

LIST_FAILURE: Final = 0.25
"""The part of the looks' delta that bounds the chance of a label that one record alone has."""


@dataclass(frozen=True)
class Looked:
    """What was found, or declared (classes, sizes); None where nothing was looked for.
    ``warnings`` say what could not be told from noise, and what was taken in its place."""

    classes: tuple[str | int, ...]
    class_sizes: tuple[int, ...]
    normalise: ColumnMap | None
    clip: float | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Seen:
    """A look as whoever sees all sums has it: the noisy sum, and what a record adds to it, which
    depends on what earlier looks found."""

    name: str
    adds: Contribution
    noisy: Real


@dataclass(frozen=True)
class Looks:
    """Planned looks, with the noise of each; nothing has been read yet. ``class_sizes`` are
    those that were declared."""

    class_sizes: tuple[int, ...] | None
    rounds: Rounds

    @property
    def plans(self) -> dict[str, Plan]:
        return self.rounds.plans

    def cost(self, relation: Relation) -> Cost:
        """What they take from a budget."""
        return self.rounds.cost(relation)

    def guarantee(self, *, seeded: bool) -> Guarantee:
        return self.rounds.guarantee(seeded=seeded)

    def lines(self, part: float) -> tuple[BudgetLine, ...]:
        """Their lines of the budget, of which they are ``part``."""
        return self.rounds.lines(part)

    def take(
        self,
        sites: Sequence[LabeledRows] | UnlistedRows,
        source: Source,
        before: Callable[[], None] | None = None,
    ) -> Looked:
        """Look. ``before`` is called once, before anything is drawn."""
        return self.carried_out(sites, source, before)[0]

    def carried_out(
        self,
        sites: Sequence[LabeledRows] | UnlistedRows,
        source: Source,
        before: Callable[[], None] | None = None,
    ) -> tuple[Looked, tuple[Seen, ...]]:
        """What was found, and everything that was seen on the way."""
        if before is not None:
            before()
        counts: Real
        if isinstance(sites, UnlistedRows):
            classes, counts = self._listed(sites.take(sites.fits()).words, source)
            sites = [sites.listed(classes)]
        else:
            classes = sites[0].classes
        width, names = sites[0].width, sites[0].feature_names
        taken = _Taken(sites, self.plans, source)
        counted = 0.0  # noise on a count
        if CLASS_LIST in self.plans:
            sizes = tuple(round(size) for size in counts.tolist())
            counted = taken.deviation(CLASS_LIST)
        elif self.class_sizes is None:
            one_hot = np.eye(len(classes))
            counts = taken.sum("class sizes", lambda rows: one_hot[rows.labels]).ravel()
            counted = taken.deviation("class sizes")
            told, said = told_sizes(counts, shrunk_sizes(counts, counted), counted, classes)
            sizes = tuple(round(size) for size in told.tolist())
            taken.warnings += said
        else:
            counts = np.array(self.class_sizes, dtype=np.float64)
            sizes = tuple(max(1, size) for size in self.class_sizes)
        normalise, clip = None, None
        if "ranges" in self.plans:
            records = Counted(records_of(counts, counted)[0], counted * math.sqrt(len(counts)))
            normalise = _columns(taken, names, records)
        if "clip norm" in self.plans and normalise is not None:
            clip = _norm(taken, width, normalise)
        found = Looked(classes, sizes, normalise, clip, tuple(taken.warnings))
        return found, tuple(taken.seen)

    def _listed(self, words: Words, source: Source) -> tuple[tuple[str | int, ...], Real]:
        """The labels whose noisy counts stand out, and those counts."""
        plan = self.plans[CLASS_LIST]
        found = listed_words(
            words, plan, self.rounds.list_failure, source.child("look", CLASS_LIST)
        )
        if not found:
            raise InputError(
                "the class list",
                "could not be found: no label has enough records to stand out of the noise",
                value=f"noise of deviation {float(plan.noise or 0.0):.3g}",
                fix="declare the classes, or raise epsilon",
            )
        classes = named(list(found))
        return classes, np.array([found[str(each)] for each in classes])


def listed_words(words: Words, plan: Plan, failure: float, source: Source) -> dict[str, float]:
    """Words with their noisy counts, of those whose counts pass a threshold.

    A record adds 1 to the count of its own word (L lattice units), and every word that there is has
    its count noised by itself. Where the word is there without the record too, that is one Gaussian
    with a shift of 1. Where it is not, the word shows only if L + Z reaches the threshold, and
    otherwise nothing differs: the chance of that, at most ``failure`` / 2, is taken out of delta
    (twice, for a record that is replaced by one with another word). Z is below m with probability
    at least P(N < m - 1) for the discrete Gaussian (Canonne, Kamath, Steinke 2020, Proposition 25)
    and for the rounded one, so the threshold is L + 1 + ceil(sigma z), z the normal quantile.
    """
    unit, deviation = plan.lattice_norm_bound, plan.site_deviation
    if unit is None or plan.law is NoiseLaw.GAUSSIAN:
        raise ValueError("a list is found on the lattice")
    counted = zip(words.distinct, words.counts().tolist(), strict=True)
    counts = {word: count for word, count in counted if count and word not in MISSING_WORDS}
    present = sorted(counts)
    noisy = np.array([counts[word] for word in present], dtype=np.int64) * unit
    law = rounded_gaussian if plan.law is NoiseLaw.ROUNDED else discrete_gaussian
    law(deviation).add_to(noisy, source.stream("noise"))
    passed = noisy >= list_threshold(unit, deviation, failure)
    kept = sorted(np.flatnonzero(passed).tolist(), key=lambda at: -noisy[at])[:MAX_CLASSES]
    return {present[at]: float(noisy[at]) / unit for at in kept}


def list_threshold(unit: int, deviation: float, failure: float) -> int:
    """In lattice units: what the noisy count of a listed word is at least."""
    return unit + 1 + math.ceil(deviation * float(norm.isf(failure / 2)))


def plan_looks(
    width: int,
    classes: int | None,
    federation: Federation,
    *,
    columns: bool,
    epsilon: float,
    delta: float,
    relation: Relation,
    class_sizes: tuple[int, ...] | None = None,
    clip: float | None = None,
) -> Looks:
    """Look at the class sizes unless they are declared, and for the classes too where they are not
    (None, for one curator); with ``columns`` at ranges, means and scales, and at norms unless a
    ``clip`` is declared."""
    looks = []
    if classes is None:
        if federation.sites > 1:
            raise InputError(
                "classes",
                "must be declared for more than one site",
                value=federation.sites,
                fix="list them, or give a schema",
            )
        looks.append(Round(CLASS_LIST, "each record's label", 1, 1.0, SHARES["class sizes"]))
    elif class_sizes is None:
        looks.append(_look("class sizes", "each record's label", classes, 1.0))
    if columns and width > MOST_COLUMNS:
        raise InputError(
            "--public-range",
            f"must be declared for more than {MOST_COLUMNS} columns",
            value=width,
            fix="give LO,HI, or 'none' for rows as they stand",
        )
    if columns:
        looks += [
            _look("ranges", "the size of each value", width * _BINS, math.sqrt(width)),
            _look("means and scales", "values and their squares", 2 * width, math.sqrt(2 * width)),
        ]
    if columns and clip is None:
        looks.append(_look("clip norm", "each record's norm", len(NORMS), 1.0))
    planned = plan_rounds(
        looks,
        federation,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        list_failure=LIST_FAILURE * delta if classes is None else 0.0,
    )
    return Looks(class_sizes, planned)


def _look(name: str, reads: str, width: int, bound: float) -> Round:
    return Round(name, reads, width, bound, SHARES[name])


class _Taken:
    """The looks as they are carried out."""

    def __init__(
        self, sites: Sequence[LabeledRows], plans: dict[str, Plan], source: Source
    ) -> None:
        self._sites, self._plans, self._source = sites, plans, source
        self.seen: list[Seen] = []
        self.warnings: list[str] = []

    def sum(self, name: str, adds: Contribution) -> Real:
        """The noisy sum over all sites of what ``adds`` makes of their rows."""
        plan = self._plans[name]
        width = plan.mixing.width
        given = [
            LabeledRows(
                features=adds(rows).reshape(len(rows), width),
                labels=np.zeros(len(rows), dtype=np.int64),
                classes=(0,),
                feature_names=tuple(str(place) for place in range(width)),
            )
            for rows in self._sites
        ]
        source = self._source.child("look", name)
        (total,) = sum_local(plan, given, source=source, threads=1)  # one draw
        noisy = np.asarray(total, dtype=np.float64) * plan.mixing.sites_averaged
        self.seen.append(Seen(name, adds, noisy))
        return noisy

    def deviation(self, name: str) -> float:
        """Of the noise on each of its numbers."""
        plan = self._plans[name]
        return float(plan.noise or 0.0) * plan.mixing.sites_averaged


@dataclass(frozen=True)
class Counted:
    """How many records there are, and the deviation of the noise on that; 0 where declared."""

    records: float
    deviation: float = 0.0


def _columns(taken: _Taken, names: Sequence[str], counted: Counted) -> ColumnMap:
    width, records = len(names), counted.records
    histogram = taken.sum("ranges", lambda rows: one_hot_sizes(rows.features))
    found = ranges_of(histogram.reshape(width, _BINS), taken.deviation("ranges"), counted)
    taken.warnings += found.warnings(names, taken.deviation("ranges"))
    low, high = found.low, found.high
    middle, half = (low + high) / 2, (high - low) / 2
    within = _map(middle, half, low, high)

    def moments(rows: LabeledRows) -> Real:
        scaled = _finite(normalise_rows(rows.features, within))
        return np.hstack([scaled, scaled**2])

    first, second = taken.sum("means and scales", moments).reshape(2, width) / records
    noise = taken.deviation("means and scales") / records
    taken.warnings += _untold_means(noise)
    mean = np.clip(first, -1.0, 1.0) * (_MEAN**2 / (_MEAN**2 + noise**2))  # Wiener's factor
    variance = np.clip(second - mean**2, min(1.0, max(_SURE * noise, 1e-6)), 1.0)
    return _map(middle + mean * half, half * np.sqrt(variance), low, high)


def _untold_means(noise: float) -> tuple[str, ...]:
    """``noise``: the deviation on a mean and on a mean square, in half ranges."""
    if _SURE * noise < 1.0:
        return ()
    what = "means and scales" if noise > _MEAN else "scales"
    instead = "the ranges' middles and halves" if noise > _MEAN else "the ranges' halves"
    return (
        f"means and scales: the columns' {what} cannot be told from noise (deviation {noise:.3g}"
        f" half ranges); {instead} stand in for them",
    )


def _norm(taken: _Taken, width: int, normalise: ColumnMap) -> float:
    def norms(rows: LabeledRows) -> Real:
        return one_hot_norms(_finite(normalise_rows(rows.features, normalise)))

    counts = taken.sum("clip norm", norms)
    place = quantile_of(counts, _COVERED)
    if not stands_out(counts.ravel(), taken.deviation("clip norm"), _OCTAVE):
        place = NORMS.index(1.0)
        taken.warnings.append(
            "clip norm: the records' norms cannot be told from noise (deviation"
            f" {taken.deviation('clip norm'):.3g} records); the root of the number of columns"
            " stands in for a quantile of them"
        )
    return float(math.sqrt(width) * NORMS[place])


def _map(*parts: Real) -> ColumnMap:
    return ColumnMap(*(tuple(part.tolist()) for part in parts))


def _finite(rows: Real) -> Real:
    """A row that is not finite counts as zeros."""
    return np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)


# -- what a record adds, and what is made of the sums: pure functions ------------------------------


def one_hot_sizes(features: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """For every value a 1 at its sign and power of two; rows by columns times bins."""
    values = np.nan_to_num(features.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    first, count = EXPONENTS[0], len(EXPONENTS)
    exponent = np.frexp(np.abs(values))[1] - 1  # 2^e <= |x| < 2^(e+1)
    step = np.where(values == 0, 0, np.clip(exponent - first + 1, 0, count))
    place = count + np.sign(values).astype(np.int64) * step
    out = np.zeros((*values.shape, _BINS), dtype=np.uint8)
    np.put_along_axis(out, place[..., None], 1, axis=2)
    return out.reshape(len(values), values.shape[1] * _BINS)


@dataclass(frozen=True, eq=False)
class Ranges:
    """Each column's. ``untold`` columns are those of which noise hides where their values lie: they
    have the range ``shared``, which is what they surely hold taken together, or a guess. ``short``
    ones surely have more than a tenth of their records beyond the range that was found."""

    low: Real
    high: Real
    untold: tuple[int, ...] = ()
    shared: tuple[float, float] = GUESS
    guessed: bool = False
    short: tuple[int, ...] = ()

    def warnings(self, names: Sequence[str], deviation: float) -> tuple[str, ...]:
        said, noise = [], f"noise (deviation {deviation:.3g} records)"
        if self.untold:
            low, high = self.shared
            by = "a guess" if self.guessed else "what they surely hold taken together"
            said.append(
                f"ranges: {len(self.untold)} of {len(names)} cannot be told from {noise}:"
                f" {listed(names[column] for column in self.untold)};"
                f" they are taken as {low:g} to {high:g}, {by}"
            )
        if self.short:
            said.append(
                f"ranges: of {len(self.short)} of {len(names)} columns more than a tenth of the"
                f" records lies beyond what stands out of {noise}, and is moved into the range:"
                f" {listed(names[column] for column in self.short)}"
            )
        return tuple(said)


def ranges_of(histogram: Real, deviation: float, counted: Counted | None = None) -> Ranges:
    """A column's range: from the lowest to the highest bin that surely holds records. Where no bin
    does, or none but that of zeros, though records are surely missing there: from the lowest to the
    highest that all such columns together surely hold. So but for a chance of `CHANCE` no end of a
    range is more than twice as large as a value that such a column has, or 1."""
    columns, bins = histogram.shape
    edges = 2.0 ** np.arange(EXPONENTS[0], EXPONENTS[-1] + 2)
    lower = np.concatenate([-edges[1:][::-1], [0.0], edges[:-1]])
    upper = np.concatenate([-edges[:-1][::-1], [0.0], edges[1:]])
    clear = sure((columns + 1) * bins) * deviation  # of the columns, and of some together
    low, high = np.tile(GUESS, (columns, 1)).T.copy()
    untold, short = [], []
    for column, counts in enumerate(histogram):
        held = np.flatnonzero(counts > clear)
        if not len(held):
            untold.append(column)
            continue
        least, most = lower[held[0]], upper[held[-1]]
        missing = _surely_missing(counts[held[0] : held[-1] + 1], deviation, counted, columns)
        if least < most:
            low[column], high[column] = least, most
            short += [column] * missing
        else:  # nothing but zeros, which any range holds
            untold += [column] * missing
    together = histogram[untold].sum(axis=0)
    held = np.flatnonzero(together > clear * math.sqrt(len(untold))) if untold else np.array([])
    shown = len(held) > 0 and lower[held[0]] < upper[held[-1]]
    shared = (float(lower[held[0]]), float(upper[held[-1]])) if shown else GUESS
    low[untold], high[untold] = shared
    return Ranges(low, high, tuple(untold), shared, not shown, tuple(short))


def _surely_missing(within: Real, deviation: float, counted: Counted | None, columns: int) -> bool:
    """Whether noisy counts surely lack more than a tenth of the records."""
    if counted is None:
        return False
    lacking = _COVERED * counted.records - float(within.sum())
    noise = math.hypot(deviation * math.sqrt(len(within)), _COVERED * counted.deviation)
    return lacking > sure(columns) * noise


def one_hot_norms(rows: Real) -> Real:
    """For every row a 1 at the least of `NORMS` that is no less than its own."""
    norms = row_norms(rows) / math.sqrt(rows.shape[1])
    place = np.minimum(np.searchsorted(NORMS, norms), len(NORMS) - 1)
    return np.asarray(np.eye(len(NORMS))[place])


def quantile_of(counts: Real, part: float) -> int:
    """The first place up to which at least ``part`` of the counts lie, negative ones as none."""
    upto = np.cumsum(np.maximum(counts, 0.0))
    return int(np.searchsorted(upto, part * upto[-1])) if upto[-1] > 0 else len(counts) // 2
