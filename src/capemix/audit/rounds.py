"""A whole release made of rounds of sums, audited: `release_moments` as it is carried out.

Ordinary records are the corners of a cube, enough of them for every round to be taken. The canary
is so far away that it is clipped in every round, whatever centre, scale and clip were found. The
observer sees every noisy sum, knows all other records, and takes off what colluding sites added.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.audit import sums
from capemix.audit.measure import Scores
from capemix.audit.settings import View
from capemix.audit.views import signed
from capemix.data.rows import LabeledRows, pixel_names
from capemix.engines.local import sum_local
from capemix.guarantee import Guarantee
from capemix.moments import release_moments
from capemix.plan import MomentsPlan, Plan
from capemix.plan.images import Images
from capemix.plan.moments import make_moments_plan
from capemix.randomness.source import SeededSource, Source
from capemix.statistics.moments import sum_projected
from capemix.sums.share import SourceDraws, prepare_records, site_share
from capemix.sums.steps import PublicMap

Real = npt.NDArray[np.float64]

FAR: Final = 1e6
"""The canary's first column: beyond every norm that a round may clip at."""

_CORNERS: Final = 6
"""Records of each class at every corner. In four columns that is 96, of which the sizes' noise
leaves enough for the classes' own spreads to be asked for."""


@dataclass(frozen=True)
class RoundSetting:
    """A plan of rounds, the ``records`` of which the last is the canary, and the ``release`` that
    carries the plan out."""

    name: str
    plan: MomentsPlan
    records: LabeledRows
    release: Callable[..., Any] = release_moments
    view: View = View.PUBLIC

    @cached_property
    def guarantee(self) -> Guarantee:
        return self.plan.guarantee()

    @property
    def epsilon(self) -> float:
        found = self.guarantee.views[self.view].epsilon
        if found is None:
            raise ValueError(f"{self.name}: the plan claims nothing")
        return found

    @property
    def delta(self) -> float:
        return self.plan.delta

    @property
    def honest(self) -> int:
        """Sites that tell nothing: these come first, then the colluders."""
        return self.plan.federation.sites - self.plan.federation.colluding

    @cached_property
    def worlds(self) -> tuple[list[LabeledRows], list[LabeledRows]]:
        """Every site's rows, without the canary and with it at the first site."""
        last, sites = len(self.records) - 1, self.plan.federation.sites
        dealt = [np.arange(site, last, sites) for site in range(sites)]
        first, *others = (self.records.take(places) for places in dealt)
        met = self.records.take(np.append(dealt[0], last))
        return [first, *others], [met, *others]

    def describe(self) -> dict[str, object]:
        plans = self.plan.chosen_rounds().plans
        return sums.describe_sums(self.name, self.view, next(iter(plans.values())), len(plans))


def moments_setting(name: str, epsilon: float, delta: float, **who: Any) -> RoundSetting:
    """Two classes in four columns, the fewest at which classes have spreads of their own."""
    plan = make_moments_plan(width=4, classes=(0, 1), samples=2, delta=delta, **who)
    return RoundSetting(name, plan.calibrate(epsilon), corners(plan))


def corners(plan: MomentsPlan) -> LabeledRows:
    """Ordinary records of every class at the corners of a cube; the canary is of the first."""
    cube = np.array(list(itertools.product((-1.0, 1.0), repeat=plan.width)) * _CORNERS)
    far = np.zeros((1, plan.width))
    far[0, 0] = FAR
    labels = np.repeat(np.arange(len(plan.classes)), len(cube))
    return LabeledRows(
        features=np.vstack([*[cube] * len(plan.classes), far]),
        labels=np.append(labels, 0).astype(np.int64),
        classes=plan.classes,
        feature_names=tuple(f"x{column}" for column in range(plan.width)),
    )


def teacher_setting(name: str, epsilon: float, delta: float, **who: Any) -> RoundSetting:
    """Two classes of the smallest images, nearly grey; the canary is white."""
    plan = make_moments_plan(
        width=16,
        classes=(0, 1),
        normalise=PublicMap.of_range(-1, 1),
        images=Images((4, 4), teacher=True),
        samples=2,
        delta=delta,
        **who,
    )
    cube = np.array(list(itertools.product((-0.1, 0.1), repeat=4)) * _CORNERS)
    grey = np.hstack([cube, np.zeros((len(cube), 12))])
    records = LabeledRows(
        features=np.vstack([grey, grey, np.ones((1, 16))]),
        labels=np.append(np.repeat([0, 1], len(grey)), 0).astype(np.int64),
        classes=plan.classes,
        feature_names=pixel_names((4, 4)),
        image_shape=(4, 4),
    )
    return RoundSetting(name, plan.calibrate(epsilon), records)


@dataclass(frozen=True, eq=False)
class Seen:
    """A round as the observer has it: its plan, with what a record adds to it, and the noisy sum
    over the honest sites in lattice units."""

    name: str
    plan: Plan
    noisy: Real


def score_rounds(setting: RoundSetting, runs: int, *, source: Source | None = None) -> Scores:
    """Log ratios of ``runs`` releases without the canary and of as many with it: of all rounds
    together and, should one have less noise than planned, of each by itself."""
    names = tuple(setting.plan.chosen_rounds().plans)

    def score(world: int, source: Source) -> list[float]:
        seen = {one.name: log_ratio(setting, one) for one in carried_out(setting, world, source)}
        return [sum(seen.values()), *(seen.get(name, 0.0) for name in names)]

    return sums.score_sums(("rounds", *names), score, runs, source)


def carried_out(setting: RoundSetting, world: int, source: Source) -> list[Seen]:
    """One release from the first noisy sum to the rows, and everything seen on the way."""
    sites = setting.worlds[world]
    # Twice from one key: whatever the colluders drew they know, and can work out again.
    key = int.from_bytes(source.key("release"), "big")
    drawn, known = SeededSource(key), SeededSource(key)
    seen = []

    def sum_of(_whole: MomentsPlan, name: str, plan: Plan) -> npt.NDArray[np.floating[Any]]:
        noisy = sum_local(plan, sites, source=drawn.child("round", name), threads=1)
        honest = noisy.astype(np.float64) * (plan.mixing.divisor * plan.query.lattice_scale)
        own = known.child("round", name)
        for site in range(setting.honest, len(sites)):
            honest -= _upload(plan, site, sites[site], own.child("site", site))
        seen.append(Seen(name, plan, honest))
        return noisy

    setting.release(setting.plan, sites[0], sum_of, lambda _plan: setting.guarantee)
    return seen


def log_ratio(setting: RoundSetting, seen: Seen) -> float:
    """Of one round, given what was found before."""
    without, with_ = (added(seen.plan, sites[: setting.honest]) for sites in setting.worlds)
    deviation = seen.plan.site_deviation * math.sqrt(setting.honest)
    return sums.log_ratio(seen.noisy, without, with_, deviation)


def added(plan: Plan, sites: Sequence[LabeledRows]) -> Real:
    """What these sites' records add up to, in lattice units."""
    if plan.contribution is None:
        raise ValueError("a round of sums says what a record adds")
    bound = plan.lattice_norm_bound
    parts = [
        sum_projected(rows.features, rows.labels, plan.contribution, lattice_norm_bound=bound)
        for rows in sites
    ]
    return np.asarray(sum(part.sums for part in parts), dtype=np.float64)


def _upload(plan: Plan, site: int, rows: LabeledRows, source: Source) -> Real:
    """What a site sends, before its masks go on."""
    prepared = prepare_records(plan, rows.features, rows.labels)
    return signed(site_share(plan, site, prepared, SourceDraws(plan, source), threads=1).values)
