"""Every record released by itself: clip, project, noise the row, answer at random for the label.

Released rows come in random order and have the full width: a projected row is taken back by the
matrix's pseudo-inverse, so that the same models train on it; its k numbers can be had again with
the manifest's seed. Values are not moved into the declared range, which would bias them. What is
done after the noise is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from capemix.api import LedgerPlace, lineage_of
from capemix.data.rows import LabeledRows, UnlistedRows, read_from_rows_of
from capemix.engines.local import checked_source
from capemix.errors import InputError, member
from capemix.facts import Facts
from capemix.randomness.source import SeededSource, Source
from capemix.randomness.tables import response_shift, rounded_gaussian
from capemix.release import Release
from capemix.run import check_countable
from capemix.sums.rows import clip_rows, denormalise_rows, truncate_rows
from capemix.sums.steps import PublicMap
from capemix_research.baselines.plan import RecordMethod, RecordPlan, make_record_plan
from capemix_research.baselines.projection import back, project, public_matrix

_BLOCK: Final = 4096  # records; part of the format, since streams are labelled by block

Real = npt.NDArray[np.float64]


def baseline_of(
    method: RecordMethod | str,
    rows: LabeledRows | UnlistedRows | Sequence[LabeledRows],
    *,
    epsilon: float,
    normalise: PublicMap | None = None,
    source: Source | None = None,
    progress: Callable[[int], None] | None = None,
    ledger: LedgerPlace = None,
    lineage: str | None = None,
    **asked: Any,
) -> Release:
    """Plan, calibrate and release one curator's rows, or those of several sites, mapped by
    ``normalise`` (as they stand by default). ``asked`` goes to `make_record_plan`; ``ledger`` and
    ``lineage`` are as for `release_records`."""
    kind = member(RecordMethod, method, "method")
    if isinstance(rows, UnlistedRows):
        raise InputError(
            "classes",
            f"must be declared for {kind}, which releases every record's own",
            fix="list them: a,b,c",
        )
    sites = [rows] if isinstance(rows, LabeledRows) else list(rows)
    first = sites[0]
    if first.table is not None:
        raise InputError(
            "rows",
            f"must have no schema for {kind}, which restores no categories",
            fix="use capemix synth",
        )
    facts = Facts.of(first, normalise=PublicMap() if normalise is None else normalise)
    plan = make_record_plan(kind, facts, **asked)
    return release_records(
        plan.calibrate(epsilon),
        sites,
        source=source,
        progress=progress,
        ledger=ledger,
        lineage=lineage,
    )


def release_records(
    plan: RecordPlan,
    sites: Sequence[LabeledRows],
    *,
    source: Source | None = None,
    progress: Callable[[int], None] | None = None,
    ledger: LedgerPlace = None,
    lineage: str | None = None,
) -> Release:
    """The sites' noised records in random order: where a record stood says nothing.

    With a ``lineage``, the release is charged to it once the rows fit the plan and before any noise
    is drawn; ``ledger`` is a ledger or its file, the user's own by default. Without, nothing is
    counted.
    """
    source = checked_source(source)
    budget, seeded = lineage_of(ledger, lineage), isinstance(source, SeededSource)
    if budget is not None:
        check_countable(budget, read_from_rows_of(sites), seeded=seeded)
    for rows in sites:
        if rows.width != plan.width or rows.classes != plan.classes:
            raise InputError(
                "rows",
                f"must have the plan's {plan.width} columns and {len(plan.classes)} classes",
                value=f"{rows.width} and {len(rows.classes)}",
                fix="plan for these rows",
            )
    if budget is not None:
        budget.charge("release", plan.cost(budget.relation))
    features, labels = [], []
    for index, rows in enumerate(sites):
        own = source.child("site", index)
        given, answers = every_record(plan, rows)
        features.append(noised_rows(plan, given, own.child("rows"), progress))
        labels.append(answered_labels(plan, answers, own))
    order = random_order(sum(map(len, labels)), source)
    released = np.concatenate(features)[order]
    denormalise_rows(released, replace(plan.normalise, low=None, high=None))
    image = plan.facts.image_shape
    return Release(
        features=released.astype(np.float32 if image else np.float64, copy=False),
        labels=np.concatenate(labels)[order],
        plan=plan,
        guarantee=plan.guarantee(
            seeded=seeded,
            sites=len(sites),
            read_from_rows=read_from_rows_of(sites),
        ),
    )


def random_order(count: int, source: Source) -> npt.NDArray[np.intp]:
    """Any order alike, up to ties of 128 random bits."""
    words = source.stream("order").words(2 * count).reshape(2, count)
    return np.lexsort(tuple(words))


def every_record(
    plan: RecordPlan, rows: LabeledRows
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The rows, and one that the public map sends to zero for each record that is not among them:
    the number of records is public, so each of them must be released."""
    if not rows.unfit:
        return rows.features, rows.labels
    middle = np.broadcast_to(np.asarray(plan.normalise.shift, dtype=np.float64), (plan.width,))
    given = np.vstack([rows.features, np.tile(middle, (rows.unfit, 1))])
    return given, np.append(rows.labels, np.zeros(rows.unfit, dtype=np.int64))


def noised_rows(
    plan: RecordPlan,
    features: npt.NDArray[Any],
    source: Source,
    progress: Callable[[int], None] | None = None,
) -> Real:
    """Rows with noise, in the units of the public map, of the full width."""
    matrix = None if plan.projection is None else public_matrix(plan.projection, plan.width)
    out = np.empty((len(features), plan.width))
    for block, start in enumerate(range(0, len(features), _BLOCK)):
        rows = plan.preparation.apply(features[start : start + _BLOCK])
        if matrix is not None:
            rows = clip_rows(project(rows, matrix), plan.clip)
        noised = _add_noise(plan, rows, source, block)
        out[start : start + len(rows)] = noised if matrix is None else back(noised, matrix)
        if progress is not None:
            progress(len(rows))
    return out


def _add_noise(plan: RecordPlan, rows: Real, source: Source, block: int) -> Real:
    """Integers plus round(N(0, s²)), which is round(integers + N(0, s²))."""
    bound = plan.lattice_norm_bound
    units = truncate_rows(rows, l2_norm_bound=plan.clip, lattice_norm_bound=bound)
    units = units.astype(np.int32)
    if plan.noise:
        law = rounded_gaussian(plan.lattice_deviation)
        law.add_to(units.reshape(-1), source.stream("noise", block))
    return np.asarray(units * (plan.clip / bound))


def answered_labels(
    plan: RecordPlan, labels: npt.NDArray[np.int64], source: Source
) -> npt.NDArray[np.int64]:
    """Randomised response: the true label shifted by a random step modulo the classes."""
    if not plan.noise or len(plan.classes) == 1:
        return labels.copy()
    law = response_shift(plan.label_epsilon, len(plan.classes))
    return (labels + law.draw(source.stream("labels"), len(labels))) % len(plan.classes)
