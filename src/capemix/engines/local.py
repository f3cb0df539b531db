"""All sites in one process: the same two functions that a federation drives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from capemix.data.rows import DEALING, LabeledRows, read_from_rows_of
from capemix.errors import InputError
from capemix.federation import Scheme
from capemix.moments import SumOf
from capemix.pipeline import Coordinator, SourceDraws, check_site, prepare_records, site_share
from capemix.plan import MomentsPlan, Plan
from capemix.queries import Selection
from capemix.randomness.source import SeededSource, Source, SystemSource
from capemix.release import Release
from capemix.zerosum.graph import PeerGraph
from capemix.zerosum.masks import SiteKeys, deal_keys


def sum_local(
    plan: Plan,
    sites: Sequence[LabeledRows],
    *,
    source: Source | None = None,
    progress: Callable[[int], None] | None = None,
    threads: int | None = None,
    before: Callable[[], None] | None = None,
) -> npt.NDArray[np.floating[Any]]:
    """Every site's share, added up and unmasked: the noisy sums over the plan's divisor.
    ``progress`` counts rows over all sites; ``before`` is called once the rows fit the plan, before
    anything is drawn from them."""
    federation = plan.federation
    if len(sites) != federation.sites:
        raise InputError(
            "sites",
            f"must be {federation.sites} for this plan",
            value=len(sites),
            fix="repartition",
        )
    for rows in sites:
        if rows.classes != plan.classes:
            raise InputError(
                "rows",
                f"must have the plan's {len(plan.classes)} classes",
                value=len(rows.classes),
                fix="plan with classes=rows.classes",
            )
    source = SystemSource() if source is None else source
    if type(source) not in (SystemSource, SeededSource):
        raise TypeError("noise comes from a SystemSource, or a SeededSource in tests")
    keys: dict[int, SiteKeys] = {}
    if federation.scheme is Scheme.CAPE and federation.sites > 1:
        graph = (
            PeerGraph.complete(federation.sites)
            if federation.peers is None
            else PeerGraph.circulant(federation.sites, federation.peers, source.stream("graph"))
        )
        keys = {site.site: site for site in deal_keys(graph, source)}
    for rows in sites:
        check_site(plan, rows.labels)
    if before is not None:
        before()
    coordinator = Coordinator(plan)
    for index, rows in enumerate(sites):
        prepared = prepare_records(plan, rows.features, rows.labels)
        draws = SourceDraws(plan, source.child("site", index))
        coordinator.add(
            site_share(
                plan, index, prepared, draws, keys.get(index), progress=progress, threads=threads
            )
        )
    if keys:
        coordinator.unmask({s: k.own for s, k in keys.items()}, {}, threads=threads)
        for one in keys.values():
            one.erase()
    return coordinator.release_sums(divisor=plan.mixing.divisor, threads=threads)


def read_from_rows(plan: Plan, sites: Sequence[LabeledRows]) -> tuple[str, ...]:
    """The public facts that were read from the sites' rows: among them who is at which site, where
    rows were dealt out here and it matters who shares a site with whom."""
    fixed = plan.mixing.selection is Selection.FIXED
    dealt = (DEALING,) if fixed and any(rows.dealt for rows in sites) else ()
    return read_from_rows_of(sites) + dealt


def sums_local(sites: Sequence[LabeledRows], source: Source) -> SumOf:
    """The rounds of a release, each with a source of its own."""

    def sum_of(_whole: MomentsPlan, name: str, plan: Plan) -> npt.NDArray[np.floating[Any]]:
        return sum_local(plan, sites, source=source.child("round", name))

    return sum_of


def run_local(
    plan: Plan,
    sites: Sequence[LabeledRows],
    *,
    source: Source | None = None,
    progress: Callable[[int], None] | None = None,
    threads: int | None = None,
    before: Callable[[], None] | None = None,
    reference: bool = True,
) -> Release:
    """The release of `sum_local`; ``reference`` asks for the guarantee's PLD figure."""
    source = SystemSource() if source is None else source
    means = sum_local(plan, sites, source=source, progress=progress, threads=threads, before=before)
    return Release.from_means(
        plan,
        means,
        plan.guarantee(
            seeded=isinstance(source, SeededSource),
            one_process=True,
            reference=reference,
            read_from_rows=read_from_rows(plan, sites),
        ),
        schema_of=sites[0],
    )
