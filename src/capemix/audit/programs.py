"""All sums of a release that have every record once, audited as they are carried out: what it
measures first, and then whatever its method asks for.

What a record adds to a sum depends on what was found before, which the observer knows: so each
noisy sum is scored given the ones before, and a run's score is the log of the ratio of the two
worlds' densities. The observer knows all other records, and takes off what colluding sites added.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.audit.settings import Scores, View, claimed_by, described, scheme_words
from capemix.audit.views import signed
from capemix.collector import Collector, Origin
from capemix.data.rows import LabeledRows
from capemix.engines.local import LocalEngine, counted_rows
from capemix.plan import Plan
from capemix.queries import Selection
from capemix.randomness.source import SeededSource, Source, SystemSource
from capemix.run import rows_from
from capemix.sums.query import SumQuery
from capemix.sums.share import SourceDraws, added_up, prepare_records, site_share
from capemix.sums.statistic import RowStatistic

Real = npt.NDArray[np.float64]

FAR: Final = 1e6
"""A canary's first column: beyond every norm that a sum may be clipped at."""

_CORNERS: Final = 6
"""Records of each class at every corner. In four columns that is 96, of which the sizes' noise
leaves enough for the classes' own spreads to be asked for."""

_TOO_MANY: Final = 2
"""Rows of a canary beyond those that count."""

_EFFORT: Final = 1500.0
"""Of one sum at one site."""

_MANY: Final = 12
"""Sums of a program of the usual length."""


@dataclass(frozen=True, eq=False)
class Program:
    """A plan, and every site's rows in the two worlds: ``without`` the canary and ``with_`` it, at
    the first site. Any method will do whose sums have every record once; and one that draws records
    beside other sums, where the canary is the only one."""

    name: str
    plan: Plan
    without: tuple[LabeledRows, ...]
    with_: tuple[LabeledRows, ...]

    @classmethod
    def with_canary(cls, name: str, plan: Plan, records: LabeledRows) -> Program:
        """The last of the ``records`` is the canary; the others are dealt out to the sites. Where
        people have several rows, the canary is a person with more of them than count, all alike."""
        last, sites = len(records) - 1, plan.federation.sites
        dealt = [np.arange(site, last, sites) for site in range(sites)]
        own, most = 1, plan.facts.rows_per_person
        if most is not None:
            records, own = replace(records, persons=np.arange(len(records))), most + _TOO_MANY
        first, *others = (records.take(places) for places in dealt)
        met = records.take(np.append(dealt[0], np.full(own, last)))
        return cls(name, plan, (first, *others), (met, *others))

    @cached_property
    def worlds(self) -> tuple[list[LabeledRows], list[LabeledRows]]:
        """Every site's rows that count, without the canary and with it."""
        return counted_rows(self.plan, self.without), counted_rows(self.plan, self.with_)

    @cached_property
    def epsilon(self) -> float:
        return claimed_by(self.name, self.plan, View.PUBLIC)

    @property
    def delta(self) -> float:
        return self.plan.delta

    @property
    def honest(self) -> int:
        """Sites that tell nothing: these come first, then the colluders."""
        return self.plan.federation.sites - self.plan.federation.colluding

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of every sum that may be asked for, whatever the method chooses."""
        choices = self.plan.method.choices(self.plan)
        plans = [replace(self.plan, chosen=choice) for choice in choices]
        return tuple(dict.fromkeys(name for plan in plans for name in plan.names))

    @property
    def effort(self) -> float:
        return _EFFORT * len(self.names) * self.plan.federation.sites

    @property
    def fewer(self) -> int:
        return 4 * min(2, self.plan.federation.sites) * max(1, round(len(self.names) / _MANY))

    def describe(self) -> dict[str, object]:
        federation = self.plan.federation
        return {
            "name": self.name,
            "scheme": scheme_words(federation),
            "view": str(View.PUBLIC),
            "selection": str(Selection.POISSON),
            **described(self.plan),
            "mixture": 1,
            "draws": len(self.names),
            "rate": 1.0,
            "sites": federation.sites,
            "colluding": federation.colluding,
            "missing": federation.dropouts,
            "delta": self.delta,
        }

    def scores(
        self, runs: int, *, without: int | None = None, source: Source | None = None
    ) -> Scores:
        """Of all sums together and, should one have less noise than planned, of each by itself."""
        origin = SystemSource() if source is None else source

        def score(world: int, run: int) -> list[float]:
            seen = carried_out(self, world, origin.child("run", world, run))
            ratios = {one.query.name: log_ratio(self, one) for one in seen}
            return [sum(ratios.values()), *(ratios.get(name, 0.0) for name in self.names)]

        bare = runs if without is None else without
        scores = [
            np.array([score(world, run) for run in range(count)])
            for world, count in enumerate((bare, runs))
        ]
        return Scores(("all sums", *self.names), *scores)


@dataclass(frozen=True, eq=False)
class Seen:
    """A sum as the observer has it: what a record adds to it, and the noisy sum over the honest
    sites in lattice units."""

    query: SumQuery
    noisy: Real


class Watched:
    """An engine all of whose sums are seen: the local one, with its own functions.

    ``source`` is asked for one key. Both the sites' draws and the observer's copy of what the
    colluders drew come from it: whatever they drew they know, and can work out again.
    """

    def __init__(self, sites: Sequence[LabeledRows], honest: int, source: Source) -> None:
        key = int.from_bytes(source.key("release"), "big")
        self._sites, self._honest = sites, honest
        self._engine = LocalEngine(sites, SeededSource(key), threads=1)
        self._known = SeededSource(key)
        self.seen: list[Seen] = []

    def check(self, plan: Plan) -> None:
        self._engine.check(plan)

    def origin(self, plan: Plan) -> Origin:
        return self._engine.origin(plan)

    def list_classes(self, plan: Plan, query: SumQuery, failure: float) -> dict[str, float]:
        return self._engine.list_classes(plan, query, failure)

    def sum(self, plan: Plan, query: SumQuery) -> npt.NDArray[np.floating[Any]]:
        if query.drawn and isinstance(query.summed, RowStatistic):
            raise ValueError(f"the records of {query.name!r} are drawn: that is another audit")
        noisy = self._engine.sum(plan, query)
        honest = noisy.astype(np.float64) * (query.line.divisor * query.lattice_scale)
        own = self._known.child("round", query.name)
        for site in range(self._honest, len(self._sites)):
            rows = self._engine.counted(plan)[site]
            honest -= _upload(query, site, rows, own.child("site", site))
        self.seen.append(Seen(query, honest))
        return noisy


class _OverError(Exception):
    """The last sum is in: whoever has the sums can make the rows of them."""


def carried_out(setting: Program, world: int, source: Source) -> list[Seen]:
    """One release from the first noisy sum to the last, and everything seen on the way."""
    sites = (setting.without, setting.with_)[world]
    engine = Watched(sites, setting.honest, source)

    def counted(_: int) -> None:
        if len(engine.seen) == len(sums.plan.names):
            raise _OverError

    sums = Collector(setting.plan, engine, progress=counted)
    with contextlib.suppress(_OverError):
        rows_from(sums)
    return engine.seen


def log_ratio(setting: Program, seen: Seen) -> float:
    """Of one noisy sum x, given what was found before: ((x - a)(b - a) - |b - a|^2/2) / deviation^2
    where a and b are what the two worlds' records add up to, in lattice units. Where the canary
    alone is drawn, it is there at its rate."""
    without, with_ = (added(seen.query, sites[: setting.honest]) for sites in setting.worlds)
    move = with_ - without
    variance = setting.honest * seen.query.site_deviation**2
    ratio = float((((seen.noisy - without) * move).sum() - (move**2).sum() / 2) / variance)
    if not seen.query.drawn:
        return ratio
    if any(len(rows) for rows in setting.worlds[0][: setting.honest]):
        raise ValueError(f"others than the canary are drawn for {seen.query.name!r}")
    (group,) = seen.query.participation
    return float(np.logaddexp(math.log1p(-group.probability), math.log(group.probability) + ratio))


def added(query: SumQuery, sites: Sequence[LabeledRows]) -> Real:
    """What these sites' records add up to, in lattice units."""
    total = np.zeros(query.shape)
    for rows in sites:
        total += added_up(query, rows.features, rows.labels).sums
    return total


def _upload(query: SumQuery, site: int, rows: LabeledRows, source: Source) -> Real:
    """What a site sends, before its masks go on."""
    prepared = prepare_records(query, rows.features, rows.labels, rows.persons)
    share = site_share(query, site, prepared, SourceDraws(query, source), threads=1)
    return signed(share.values)


def corners(plan: Plan, each: int = _CORNERS) -> LabeledRows:
    """So many ordinary records of every class at each corner of a cube; the canary is of the first
    class, and so far away that it is clipped in every sum, whatever centre, scale and clip were
    found."""
    facts = plan.facts
    cube = np.array(list(itertools.product((-1.0, 1.0), repeat=facts.width)) * each)
    far = np.zeros((1, facts.width))
    far[0, 0] = FAR
    labels = np.repeat(np.arange(len(facts.listed)), len(cube))
    return LabeledRows(
        features=np.vstack([*[cube] * len(facts.listed), far]),
        labels=np.append(labels, 0).astype(np.int64),
        classes=facts.listed,
        feature_names=facts.features,
        label_name=facts.label,
    )
