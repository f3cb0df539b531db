"""Carry a plan out: measure what is not declared, ask for the method's sums, make the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from capemix.accounting.cost import together
from capemix.collector import Collector, Engine, Floats, Origin
from capemix.data import mending
from capemix.errors import InputError
from capemix.kernels.machine import require_memory
from capemix.ledger import Head, Lineage
from capemix.manifest import EVERY_RECORD, NO_RECORD, Counted, HowMade
from capemix.methods import measured
from capemix.methods.base import SyntheticRows
from capemix.plan import Plan
from capemix.randomness.tables import LEAST_SIGMA
from capemix.release import Release
from capemix.sums.query import SumQuery


def run(
    plan: Plan,
    engine: Engine,
    ledger: Lineage | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> Release:
    """The release of a calibrated plan, by any engine.

    ``ledger`` is the lineage that pays: it is charged for the opening sums before the first of them
    is drawn, and for the method's own before the first of those. None counts nothing. ``progress``
    is called with 1 for each sum that is in.
    """
    check_installed(plan)
    check_room(plan)
    check_noise(plan)
    engine.check(plan)
    origin = engine.origin(plan)
    if ledger is not None:
        read = (*origin.read_from_rows, *plan.facts.read_from_rows)
        check_countable(ledger, read, seeded=origin.seeded)
        ledger.check(*plan.costs(ledger.relation), instead=plan.cost_alone(ledger.relation))
    charged: list[Head] = []
    sums = Collector(plan, engine, progress=progress, before=_charging(ledger, plan, charged))
    made = finished(sums)
    asked, plan, facts = plan, sums.plan, sums.plan.known
    image = facts.image_shape
    origin = engine.origin(plan)
    return Release(
        features=made.features.astype(np.float32 if image else np.float64, copy=False),
        labels=made.labels,
        plan=plan,
        guarantee=plan.guarantee(
            seeded=origin.seeded,
            one_process=origin.one_process,
            read_from_rows=origin.read_from_rows,
        ),
        soft_labels=made.soft_labels,
        mixed_labels=made.mixed_labels,
        warnings=sums.warnings,
        statistics=sums.statistics,
        sums=sums.sums,
        asked=asked,
        how_made=_how_made(plan, origin, ledger, charged),
    )


def _how_made(
    plan: Plan, origin: Origin, ledger: Lineage | None, charged: Sequence[Head]
) -> HowMade:
    """What of the making is for the manifest: the day, and no time."""
    read = dict.fromkeys((*origin.read_from_rows, *plan.facts.read_from_rows))
    if ledger is not None:
        counted: Counted = "in a ledger"
    else:
        counted = "in no ledger" if origin.one_process else "by each site in its own ledger"
    return HowMade(
        date=None if origin.seeded else datetime.now(UTC).date().isoformat(),
        counted=counted,
        lineage=None if ledger is None else ledger.name,
        ledger_heads=tuple(map(str, charged)),
        schema=plan.facts.schema_origin,
        curator_saw=EVERY_RECORD if origin.one_process else NO_RECORD,
        test_seed=origin.seeded,
        read_from_rows=tuple(read),
    )


@dataclass(frozen=True, eq=False)
class Paid:
    """Noisy sums that are there already, in the place of an engine."""

    sums: Mapping[str, Any]

    def check(self, plan: Plan) -> None:
        """There is nothing to refuse: nothing is drawn."""

    def sum(self, plan: Plan, query: SumQuery) -> Floats:  # noqa: ARG002
        return np.array(self.sums[query.name])

    def list_classes(self, plan: Plan, query: SumQuery, failure: float) -> dict[str, float]:  # noqa: ARG002
        return dict(self.sums[query.name])

    def origin(self, plan: Plan) -> Origin:  # noqa: ARG002
        return Origin()


def more(release: Release, rows: int, turn: int) -> Release | None:
    """So many other rows of the same noisy sums, which costs nothing; each ``turn`` makes others.
    None if the method's rows are the sums themselves."""
    asked = release.asked
    method = None if asked is None else asked.method.with_rows(rows)
    if asked is None or method is None:
        return None
    plan = replace(asked, method=method)
    check_room(plan)
    made = finished(Collector(plan, Paid(release.sums), turn=turn))
    return replace(
        release,
        features=made.features.astype(release.features.dtype, copy=False),
        labels=made.labels,
        soft_labels=made.soft_labels,
        mixed_labels=made.mixed_labels,
    )


def finished(sums: Collector) -> SyntheticRows:
    """The rows as they are released."""
    return shuffled(mended(rows_from(sums), sums), sums)


def rows_from(sums: Collector) -> SyntheticRows:
    """Ask for every sum of the collector's plan, in order, and make the rows of them. Then the
    collector's plan has what was measured and chosen on the way."""
    if sums.plan.opening:
        sums.measured(measured.measure(sums))
    made = sums.plan.method.release(sums)
    sums.check_whole()
    return made


def mended(made: SyntheticRows, sums: Collector) -> SyntheticRows:
    """The same rows, of which none breaks a constraint that a schema declares."""
    table = sums.plan.known.table
    if table is None or not table.constraints:
        return made

    def chance(name: str, count: int) -> npt.NDArray[np.float64]:
        words = sums.source().stream(name, 0).words(count)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    rows, labels = mending.mended(table, made.features.astype(np.float64), made.labels, chance)
    return replace(made, features=rows, labels=labels)


def shuffled(made: SyntheticRows, sums: Collector) -> SyntheticRows:
    """The same rows in an order of chance: methods make them class by class."""
    chance = sums.source().stream("shuffled rows", 0).words(len(made.labels))
    return made.take(np.argsort(chance, kind="stable"))


def _charging(
    ledger: Lineage | None, asked: Plan, heads: list[Head]
) -> Callable[[Plan], None] | None:
    """What charges the ledger: once for the opening sums, if they are accounted by themselves, and
    once for the rest, unless all of it was paid at once. ``heads`` gets the ledger's after each."""
    if ledger is None:
        return None
    charged: list[str] = []

    def charge(plan: Plan) -> None:
        costs = plan.costs(ledger.relation)
        if not charged:
            parts = len(costs) > 1
            what = ", ".join(line.name for line in asked.opening) if parts else "release"
            found = ledger.charge(
                what, costs[0], whole=together(costs), instead=asked.cost_alone(ledger.relation)
            )
            charged.append("release" if found.at_once or not parts else "opening")
            heads.append(found.head)
        elif "release" not in charged:
            heads.append(ledger.charge("release", costs[-1]).head)
            charged.append("release")

    return charge


def check_installed(plan: Plan) -> None:
    """Refuse, before anything is charged, a method that needs a package that is not here."""
    lacking = plan.method.missing()
    if lacking is not None:
        raise InputError(
            "method",
            f"needs {lacking}, which is not installed",
            value=plan.method.kind,
            fix=f"pip install 'capemix[{lacking}]', here and at every site",
        )


def check_room(plan: Plan) -> None:
    """Refuse, before anything is charged, more rows than there is memory for, as far as is known
    beforehand."""
    method = plan.method
    numbers = method.bytes_a_number(plan)
    require_memory("samples", method.rows_made(plan), plan.known.width, numbers)


def check_noise(plan: Plan) -> None:
    """Refuse noise that there is no table for, before any row is read. It promises nothing."""
    for query in plan.queries():
        if query.on_lattice and 0.0 < query.site_deviation < LEAST_SIGMA:
            raise InputError(
                "noise",
                "is too little to be drawn in whole numbers",
                value=f"{query.site_deviation:.3g} units at a site, for {query.name}",
                fix="ask for more noise, or for none at all with an epsilon of inf",
            )


def check_countable(
    budget: Lineage, read_from_rows: tuple[str, ...], *, seeded: bool = False
) -> None:
    """Refuse to count a release that no budget pays for."""
    if seeded:
        raise InputError(
            "test_seed",
            "makes noise that is not private, so no budget can pay for it",
            fix="leave it out, or count nothing",
        )
    if read_from_rows:
        raise InputError(
            "lineage",
            f"cannot pay: {read_from_rows[0]} was read from the rows",
            value=budget.name,
            fix="confirm the schema with `capemix schema confirm`, declare what is public, or count"
            " nothing",
        )
