"""All sites in one process: the same two functions that a federation drives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from capemix.collector import Origin
from capemix.data.cells import MISSING_WORDS, Words
from capemix.data.persons import check_persons, counted, kept
from capemix.data.rows import (
    DEALING,
    MAX_CLASSES,
    LabeledRows,
    UnlistedRows,
    named,
    read_from_rows_of,
)
from capemix.errors import InputError
from capemix.facts import unnamed_columns
from capemix.federation import Scheme
from capemix.plan import Plan
from capemix.queries import Selection
from capemix.randomness.source import SeededSource, Source, SystemSource
from capemix.randomness.tables import rounded_gaussian
from capemix.sums.aggregate import Aggregate
from capemix.sums.query import SumQuery
from capemix.sums.share import SourceDraws, check_site, prepare_records, site_share
from capemix.zerosum.graph import PeerGraph
from capemix.zerosum.masks import SiteKeys, deal_keys

Rows = LabeledRows | UnlistedRows | Sequence[LabeledRows]


class LocalEngine:
    """The rows of one curator, or of every site, and where the noise comes from.

    ``progress`` is called with the number of rows of a drawn sum just finished, over all sites.
    """

    def __init__(
        self,
        rows: Rows,
        source: Source | None = None,
        *,
        progress: Callable[[int], None] | None = None,
        threads: int | None = None,
    ) -> None:
        self._source = checked_source(source)
        self._unlisted = rows if isinstance(rows, UnlistedRows) else None
        self._sites: list[LabeledRows] = []
        if isinstance(rows, LabeledRows):
            self._sites = [rows]
        elif not isinstance(rows, UnlistedRows):
            self._sites = list(rows)
        self._counted: tuple[object, list[LabeledRows]] | None = None
        self._progress, self._threads = progress, threads

    def check(self, plan: Plan) -> None:
        self._source.check_unused()
        if self._unlisted is None:
            check_sites(plan, self._sites)
            return
        _check_persons(plan, self._unlisted)
        if plan.facts.classes is not None:
            raise InputError(
                "rows", "have no list of classes", fix="list the classes that the plan declares"
            )
        _check_columns(plan, self._unlisted.feature_names)

    def origin(self, plan: Plan) -> Origin:
        return origin_of(plan, self._sites, self._source)

    def list_classes(self, plan: Plan, query: SumQuery, failure: float) -> dict[str, float]:
        rows = self._unlisted
        if rows is None or plan.federation.sites > 1:
            raise InputError("classes", "must be declared for these rows", fix="list them")
        words = rows.take(_listing(rows, plan)).words
        found = listed_words(words, query, failure, self._source.child("round", query.name))
        self._sites = [rows.listed(named(list(found)))] if found else []
        self._counted = None
        return found

    def sum(self, plan: Plan, query: SumQuery) -> npt.NDArray[np.floating[Any]]:
        source = plan.source_of(query, self._source)
        rows = self.counted(plan)
        return sum_shares(query, rows, source, progress=self._progress, threads=self._threads)

    def counted(self, plan: Plan) -> list[LabeledRows]:
        """Each site's rows that count: the same ones for all sums of a release, so that what is
        made of them is kept."""
        how = plan.facts.rows_per_person, plan.one_class
        if self._counted is None or self._counted[0] != how:
            self._counted = how, counted_rows(plan, self._sites)
        return self._counted[1]


def counted_rows(plan: Plan, sites: Sequence[LabeledRows]) -> list[LabeledRows]:
    """Each site's rows that count, by a rule that looks at one person alone."""
    for rows in sites:
        _check_persons(plan, rows)
    most = plan.facts.rows_per_person
    if most is None:
        return list(sites)
    return [counted(rows, most, one_class=plan.one_class) for rows in sites]


def _check_persons(plan: Plan, rows: LabeledRows | UnlistedRows) -> None:
    if (rows.persons is None) != (plan.facts.rows_per_person is None):
        check_persons(rows.persons is not None, plan.facts.rows_per_person)


def _listing(rows: UnlistedRows, plan: Plan) -> npt.NDArray[np.intp]:
    """The records that count for a list of classes."""
    most = plan.facts.rows_per_person
    fit = np.flatnonzero(rows.fits())
    if rows.persons is None or most is None:
        return fit
    labels = rows.words.positions[fit] if plan.one_class else None
    return fit[kept(rows.persons[fit], most, labels)]


def checked_source(source: Source | None) -> Source:
    """The system's, unless a test has a seed: no other kind makes noise."""
    if source is None:
        return SystemSource()
    if type(source) not in (SystemSource, SeededSource):
        raise TypeError("noise comes from a SystemSource, or a SeededSource in tests")
    return source


def origin_of(plan: Plan, sites: Sequence[LabeledRows], source: Source) -> Origin:
    """Of sums that one process made of all sites' rows. Which site has which record counts as read
    from the rows if they were dealt out here and it matters who shares a site with whom."""
    fixed = any(
        group.selection is Selection.FIXED for line in plan.body for group in line.participation
    )
    dealt = (DEALING,) if fixed and any(rows.dealt for rows in sites) else ()
    return Origin(
        seeded=isinstance(source, SeededSource),
        one_process=True,
        read_from_rows=read_from_rows_of(sites) + dealt,
    )


def check_sites(plan: Plan, sites: Sequence[LabeledRows]) -> None:
    """Whether these are rows that the plan is for: as many sites, the same columns and classes, and
    as many rows as fixed-size draws need."""
    if len(sites) != plan.federation.sites:
        raise InputError(
            "sites",
            f"must be {plan.federation.sites} for this plan",
            value=len(sites),
            fix="pool them for the central scheme, or repartition",
        )
    for rows in sites:
        if rows.classes != plan.facts.classes:
            raise InputError(
                "rows",
                f"must have the plan's {len(plan.facts.classes or ())} classes",
                value=len(rows.classes),
                fix="plan with the facts of these rows",
            )
        _check_persons(plan, rows)
        if rows.table != plan.facts.table:
            raise InputError("schema", "must be the same at every site", fix="code all rows by one")
        _check_columns(plan, rows.feature_names)
    for query in plan.queries():
        for rows in sites:
            check_site(query, rows.labels, sound=plan.countable)


def _check_columns(plan: Plan, names: Sequence[str]) -> None:
    """Columns are added up by their places, so they must be the plan's, in its order."""
    planned = plan.facts.coded_names
    if len(names) != len(planned):
        raise InputError(
            "rows",
            f"must have the plan's {len(planned)} columns",
            value=len(names),
            fix="plan for these rows, or choose columns",
        )
    if planned == unnamed_columns(len(planned)):
        return
    for place, (name, wanted) in enumerate(zip(names, planned, strict=True), 1):
        if name != wanted:
            raise InputError(
                "rows",
                f"must have the plan's columns in its order: column {place} is {wanted!r}",
                value=name,
                fix="choose them by name, as `rows.columns(plan.facts.features)` does",
            )


def sum_shares(
    query: SumQuery,
    sites: Sequence[LabeledRows],
    source: Source,
    *,
    progress: Callable[[int], None] | None = None,
    threads: int | None = None,
) -> npt.NDArray[np.floating[Any]]:
    """Every site's share, added up and unmasked."""
    federation = query.federation
    keys: dict[int, SiteKeys] = {}
    if federation.scheme is Scheme.CAPE and federation.sites > 1:
        graph = (
            PeerGraph.complete(federation.sites)
            if federation.peers is None
            else PeerGraph.circulant(federation.sites, federation.peers, source.stream("graph"))
        )
        keys = {site.site: site for site in deal_keys(graph, source)}
    total = Aggregate(query)
    for index, rows in enumerate(sites):
        prepared = prepare_records(query, rows.features, rows.labels, rows.persons)
        draws = SourceDraws(query, source.child("site", index))
        own = keys.get(index)
        total.add(
            site_share(query, index, prepared, draws, own, progress=progress, threads=threads)
        )
    if keys:
        total.unmask({s: k.own for s, k in keys.items()}, {}, threads=threads)
        for one in keys.values():
            one.erase()
    return total.release_sums(threads=threads)


def listed_words(words: Words, query: SumQuery, failure: float, source: Source) -> dict[str, float]:
    """Words with their noisy counts, of those whose counts pass a threshold.

    A record adds 1 to the count of its own word (L lattice units), and every word that there is has
    its count noised by itself. Where the word is there without the record too, that is one Gaussian
    with a shift of 1. Where it is not, the word shows only if L + Z reaches the threshold, and
    otherwise nothing differs: the chance of that, at most ``failure`` / 2, is taken out of delta
    (twice, for a record that is replaced by one with another word). Z, a rounded Gaussian, is below
    m with probability at least P(N < m - 1), so the threshold is L + 1 + ceil(sigma z), z the
    normal quantile.

    A person with up to r records adds up to r to the counts, all of which is one Gaussian with a
    shift of r at most; and has up to r words that nobody else has, of which each shows with a
    chance of ``failure`` / 2r at most by a threshold of r L + 1 + ceil(sigma z).
    """
    unit, deviation = query.record_lattice, query.site_deviation
    count = query.line.per_person
    if unit is None:
        raise InputError(
            "classes",
            "must be declared for Gaussian noise: a list is found on the lattice",
            fix="list them: a,b,c",
        )
    counted = zip(words.distinct, words.counts().tolist(), strict=True)
    counts = {word: count for word, count in counted if count and word not in MISSING_WORDS}
    present = sorted(counts)
    noisy = np.array([counts[word] for word in present], dtype=np.int64) * unit
    rounded_gaussian(deviation).add_to(noisy, source.stream("noise"))
    passed = noisy >= list_threshold(count * unit, deviation, failure / count)
    kept = sorted(np.flatnonzero(passed).tolist(), key=lambda at: -noisy[at])[:MAX_CLASSES]
    return {present[at]: float(noisy[at]) / unit for at in kept}


def list_threshold(unit: int, deviation: float, failure: float) -> int:
    """In lattice units: what the noisy count of a listed word is at least."""
    return unit + 1 + math.ceil(deviation * float(norm.isf(failure / 2)))
