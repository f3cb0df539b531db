"""Facts that a method needs and that nobody declared, measured and paid for: which classes there
are and how many records each has, each column's range, its mean and scale, and the norm to clip at.

They are the opening sums of any program, through the same path as all others. What is made of the
noisy sums is post-processing: it knows the law of their noise, and says what it could not tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from capemix.data.rows import named
from capemix.errors import InputError
from capemix.facts import CLASS_LIST, CLASS_SIZES, CLIP_NORM, RANGES, SCALES, Facts
from capemix.methods.gaussians import shrunk_sizes
from capemix.methods.told import listed, records_of, stands_out, sure, told_sizes
from capemix.queries import COUNTED, SIGNED, QueryShape
from capemix.statistics.histograms import (
    BINS,
    EXPONENTS,
    ClassCounts,
    MeansAndSquares,
    ValueSizes,
)
from capemix.statistics.moments import NORMS, NormHistogram
from capemix.statistics.projection import Projection
from capemix.sums.query import NoiseLaw
from capemix.sums.steps import ColumnMap, Coverage, DeclaredMap, Step

if TYPE_CHECKING:
    from capemix.collector import Collector
    from capemix.plan import Plan

Real = npt.NDArray[np.float64]


FINDS: Final = {
    CLASS_LIST: ("classes", "class_sizes"),
    CLASS_SIZES: ("class_sizes",),
    RANGES: (),
    SCALES: ("normalise",),
    CLIP_NORM: ("clip_norm",),
}
"""Which facts each sum finds; ranges and scales make one map."""

LIST_FAILURE: Final = 0.005
"""The part of delta that bounds the chance of a label that one record alone has: small enough for
a list each month within what a ledger sets aside in a year."""

MOST_COLUMNS: Final = 250
"""Columns whose ranges are measured. Beyond, it is not worth its noise, which grows with their
root, nor its histograms, a hundred numbers a value."""

GUESS: Final = (-1.0, 1.0)
"""A column's range where nothing shows any."""

_COVERED: Final = 0.9
"""The part of the rows that the clip norm should leave as they are."""

_SURE: Final = 4.0
"""Noise deviations of a second moment that a variance is taken to be at least."""

_MEAN: Final = 1.0 / math.sqrt(3.0)
"""What a column's mean is known to vary by beforehand, in half ranges: as if even between the
ends."""


def check(declared: Facts, found: Facts, opening: Sequence[QueryShape]) -> None:
    """Refuse facts that are not the declared ones with what the opening sums find."""
    parts = {name: getattr(found, name) for line in opening for name in FINDS[line.name]}
    mapped = isinstance(parts.get("normalise"), ColumnMap) or "normalise" not in parts
    known = all(part is not None for part in parts.values())
    if not (parts and mapped and known and replace(declared, **parts) == found):
        raise InputError(
            "measured",
            "must be the declared facts with those that the opening sums find",
            value=", ".join(parts) or "no opening sums",
            fix="measure what is not declared, and nothing else",
        )


def lines(plan: Plan) -> tuple[QueryShape, ...]:
    """The opening sums of a plan."""
    facts, names = plan.facts, tuple(plan.method.measures(plan.facts))
    _check_names(names, facts)
    width, classes = facts.width, len(facts.classes or ())
    if CLASS_LIST in names and plan.federation.sites > 1:
        raise InputError(
            "classes",
            "must be declared for more than one site",
            value=plan.federation.sites,
            fix="list them, or give a schema",
        )
    if CLASS_LIST in names and plan.law is NoiseLaw.GAUSSIAN:
        raise InputError(
            "classes",
            "must be declared for Gaussian noise: a list is found on the lattice",
            value=plan.law,
            fix="list them, or use another law",
        )
    if RANGES in names and width > MOST_COLUMNS:
        raise InputError(
            "public_range",
            f"must be declared for more than {MOST_COLUMNS} columns",
            value=width,
            fix="give LO,HI, or 'none' for rows as they stand",
        )
    root = math.sqrt(width)
    of = {
        CLASS_LIST: ("each record's label", "class list", 1, 1, 1.0),
        CLASS_SIZES: (facts.tells_class, "class counts", 1, classes, 1.0),
        RANGES: ("the size of each value", "value sizes", width * BINS, 1, root),
        SCALES: (
            "values and their squares",
            "means and squares",
            2 * width,
            1,
            math.sqrt(2 * width),
        ),
        CLIP_NORM: ("each record's norm", "norms", 1, len(NORMS), 1.0),
    }
    return tuple(
        QueryShape(
            name,
            reads,
            kind,
            numbers,
            groups,
            bound,
            plan.method.opening_share(name, width),
            replacement_factor=SIGNED if name == SCALES else COUNTED,
        )
        for name, (reads, kind, numbers, groups, bound) in ((name, of[name]) for name in names)
    )


def _check_names(names: tuple[str, ...], facts: Facts) -> None:
    """Refuse a list that `measure` cannot follow: it asks for facts that are not declared, in the
    order of `FINDS`, and for all that it needs to read one of them."""
    possible = facts.undeclared(sizes=True, clip=True)
    if isinstance(facts.normalise, DeclaredMap) and facts.clip_norm is None:
        possible += (CLIP_NORM,)
    asked = {CLASS_LIST, *names}
    if facts.normalise is None and asked & {RANGES, SCALES, CLIP_NORM}:
        asked |= set(facts.undeclared())
    wanted = tuple(name for name in possible if name in asked)
    if names != wanted:
        raise InputError(
            "what the method measures",
            "must be facts that are not declared, in their order, with those that they need",
            value=", ".join(names) or "nothing",
            fix=f"have `measures` return {wanted}, or facts.undeclared() with what it needs",
        )


def budget_part(plan: Plan) -> float:
    """The share of a plan's whole 1/m^2 that its opening sums have."""
    return sum(line.share for line in plan.opening)


def list_failure(opening: Sequence[QueryShape], delta: float) -> float:
    """The part of ``delta`` that a list of classes found by a threshold takes."""
    return LIST_FAILURE * delta if any(line.name == CLASS_LIST for line in opening) else 0.0


def measure(sums: Collector) -> Facts:
    """Ask for the opening sums, and read the facts from them."""
    plan = sums.plan
    names, facts = {line.name for line in plan.opening}, plan.facts
    counts: Real = np.array(facts.class_sizes or (), dtype=np.float64)
    noise = 0.0
    if CLASS_LIST in names:
        found = sums.list_classes(CLASS_LIST)
        if not found:
            raise InputError(
                "the class list",
                "could not be found: no label has enough records to stand out of the noise",
                value=f"noise of deviation {sums.noise_on(CLASS_LIST):.3g}",
                fix="declare the classes, or raise epsilon; if a column holds text, every record"
                " counts for nothing: see `capemix data`",
            )
        classes = named(list(found))
        counts, noise = np.array([found[str(each)] for each in classes]), sums.noise_on(CLASS_LIST)
        facts = replace(facts, classes=classes, class_sizes=_whole(counts))
    elif CLASS_SIZES in names:
        counts, noise = class_counts(sums, facts), sums.noise_on(CLASS_SIZES)
        told, said = told_sizes(counts, shrunk_sizes(counts, noise), noise, facts.class_words)
        sums.warn(*said)
        facts = replace(facts, class_sizes=_whole(told))
    if RANGES in names:
        records = Counted(records_of(counts, noise)[0], noise * math.sqrt(len(counts)))
        facts = replace(facts, normalise=_columns(sums, facts, records))
    if CLIP_NORM in names:
        facts = replace(facts, clip_norm=_norm(sums, facts))
    return facts


def counts_of(facts: Facts) -> ClassCounts:
    """The statistic that counts records by class."""
    return ClassCounts(facts.width, len(facts.listed))


def class_counts(sums: Collector, facts: Facts) -> Real:
    """Ask for the noisy counts of records by class, and offer them as they are."""
    counts = sums.ask(CLASS_SIZES, counts_of(facts))[:, 0]
    error = np.full(len(counts), sums.noise_on(CLASS_SIZES))
    table = {"count": counts, "standard_error": error}
    named = {} if facts.label is None else {"class": np.array(class_names(facts))}
    sums.offer("classes" if named else "records", named | table)
    return counts


def class_names(facts: Facts) -> tuple[str | int, ...]:
    """The classes as they were declared."""
    label = None if facts.table is None else facts.table.label
    return facts.listed if label is None else label.categories


def _whole(sizes: Real) -> tuple[int, ...]:
    return tuple(max(1, round(size)) for size in sizes.tolist())


@dataclass(frozen=True)
class Counted:
    """How many records there are, and the deviation of the noise on that; 0 where declared."""

    records: float
    deviation: float = 0.0


def _columns(sums: Collector, facts: Facts, counted: Counted) -> ColumnMap:
    width, records, names = facts.width, counted.records, facts.coded_names
    histogram, deviation = sums.ask(RANGES, ValueSizes(width)), sums.noise_on(RANGES)
    found = ranges_of(histogram.reshape(width, BINS), deviation, counted)
    sums.warn(*found.warnings(names, deviation))
    low, high = found.low, found.high
    middle, half = (low + high) / 2, (high - low) / 2
    asked = MeansAndSquares(width, _map(middle, half, low, high))
    first, second = sums.ask(SCALES, asked).reshape(2, width) / records
    noise = sums.noise_on(SCALES) / records
    sums.warn(*_untold_scales(noise))
    mean = np.clip(first, -1.0, 1.0) * (_MEAN**2 / (_MEAN**2 + noise**2))  # Wiener's factor
    variance = np.clip(second - mean**2, min(1.0, max(_SURE * noise, 1e-6)), 1.0)
    return _map(middle + mean * half, half * np.sqrt(variance), low, high)


def _untold_scales(noise: float) -> tuple[str, ...]:
    """``noise``: the deviation on a mean and on a mean square, in half ranges."""
    if _SURE * noise < 1.0:
        return ()
    what = "means and scales" if noise > _MEAN else "scales"
    instead = "the ranges' middles and halves" if noise > _MEAN else "the ranges' halves"
    return (
        f"means and scales: the columns' {what} cannot be told from noise (deviation {noise:.3g}"
        f" half ranges); {instead} stand in for them",
    )


def _norm(sums: Collector, facts: Facts) -> float:
    if not isinstance(facts.normalise, DeclaredMap):
        raise ValueError("norms are measured of rows that a public map normalised")
    asked = NormHistogram(Projection(facts.normalise, facts.width, len(facts.listed)))
    counts, noise = sums.ask(CLIP_NORM, asked), sums.noise_on(CLIP_NORM)
    if stands_out(counts[:, 0], noise, asked.octave):
        return asked.quantile(counts, _COVERED)
    sums.warn(
        f"clip norm: the records' norms cannot be told from noise (deviation {noise:.3g} records);"
        " the root of the number of columns stands in for a quantile of them"
    )
    return math.sqrt(facts.width)


def _map(*parts: Real) -> ColumnMap:
    shift, scale, low, high = (tuple(part.tolist()) for part in parts)
    return ColumnMap(shift, scale, low, high)


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


def steps(plan: Plan) -> tuple[Step, ...]:
    """How the facts are covered: declared, or paid for."""
    facts, names = plan.known, {line.name for line in plan.opening}
    found = []
    if CLASS_LIST in names:
        found.append(Step(CLASS_LIST, Coverage.PAID, "labels whose noisy counts stand out"))
    if RANGES in names:
        says = "each column by its noisy mean and scale, in a noisy range"
        found.append(Step("normalise", Coverage.PAID, says))
    elif facts.normalise is not None:
        found.append(facts.normalise.step)
    if CLASS_SIZES in facts.unpaid:
        says = "the true counts, without a budget"
        found.append(Step(CLASS_SIZES, Coverage.NOT_COVERED, says))
    elif {CLASS_LIST, CLASS_SIZES} & names:
        found.append(Step(CLASS_SIZES, Coverage.PAID, "noisy counts"))
    elif facts.class_sizes is not None:
        found.append(Step(CLASS_SIZES, Coverage.PUBLIC, "declared"))
    return tuple(found)
