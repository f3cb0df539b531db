"""The rounds of a `MomentsPlan` carried out: noisy sums, what they say, and rows drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from capemix.data.rows import LabeledRows
from capemix.guarantee import Guarantee
from capemix.kernels.memory import require_memory
from capemix.kernels.threads import products_on_one_thread
from capemix.moments.images import image_rows
from capemix.moments.tables import drawn_rows, taken_moments
from capemix.moments.taking import SumOf, Taking
from capemix.plan.moments import MomentsPlan
from capemix.randomness.source import SeededSource
from capemix.release import Release
from capemix.synthesizers.images import SMOOTH_A_RECORD, TEXTURES

__all__ = ["SumOf", "check_room", "drawn_rows", "release_moments"]


def check_room(plan: MomentsPlan) -> None:
    """Whether whoever draws the rows has the memory for them, as far as is known beforehand: for so
    many as are asked for, or as declared sizes say."""
    option, rows = "--samples", plan.samples
    if rows is None:
        option, rows = "--class-sizes", sum(plan.class_sizes or ())
        rows *= 1 if plan.images is None else TEXTURES * SMOOTH_A_RECORD
    require_memory(option, rows, plan.width, 40 if plan.images is None else 16)


def release_moments(
    plan: MomentsPlan,
    schema_of: LabeledRows,
    sum_of: SumOf,
    guarantee: Callable[[MomentsPlan], Guarantee],
    *,
    progress: Callable[[int], None] | None = None,
) -> Release:
    """Carry out a calibrated plan: one sum after the other, then rows drawn from what they say.

    Of ``schema_of`` only the public schema is read. ``guarantee`` is asked once all sums are in.
    The chance in the rows comes from the noisy sums: it hides nothing, and whoever has them draws
    the same rows.
    """
    taking = Taking(plan, sum_of, progress)
    rows: npt.NDArray[np.floating[Any]]
    soft = None
    if plan.images is None:
        with products_on_one_thread():  # small ones, and the same bits on any number of cores
            found = taken_moments(taking)
            rows, labels = drawn_rows(taking.plan, found, SeededSource(taking.digest))
    else:
        rows, labels, soft = image_rows(taking)
    return Release(
        features=rows.astype(np.float32 if schema_of.image_shape else np.float64, copy=False),
        labels=labels,
        plan=taking.plan,
        guarantee=guarantee(taking.plan),
        feature_names=schema_of.feature_names,
        label_name=schema_of.label_name,
        image_shape=schema_of.image_shape,
        table=plan.table,
        soft_labels=soft,
        warnings=taking.warnings,
    )
