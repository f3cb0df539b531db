"""Soft labels: how likely each class is, for every row, in columns beside the label."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from capemix.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

SoftLabels = npt.NDArray[np.float32]
"""Rows by classes: each row's probabilities, in the order of the classes."""

_MARK: Final = {b"capemix": b"soft label"}
_OFF_ONE: Final = 1e-3


def checked_soft_labels(
    found: npt.ArrayLike, rows: int, classes: int, *, field: str = "soft_labels"
) -> SoftLabels:
    """Probabilities of ``classes`` for each of ``rows``; anything else is refused."""
    given = np.asarray(found)
    if given.dtype.kind != "f" or given.shape != (rows, classes):
        raise InputError(
            field,
            f"must be floats of shape ({rows}, {classes}), rows by classes",
            value=f"{given.dtype} of shape {given.shape}",
            fix="give each row a probability for every class",
        )
    bad = int((~np.isfinite(given)).sum())
    if bad:
        raise InputError(field, "hold NaN or infinite values", value=bad, fix="give probabilities")
    if given.min(initial=0.0) < 0:
        raise InputError(
            field, "must not be below 0", value=float(given.min()), fix="give probabilities"
        )
    totals = given.sum(axis=1, dtype=np.float64)
    off = np.abs(totals - 1.0)
    if off.max(initial=0.0) > _OFF_ONE:
        raise InputError(
            field,
            "must sum to 1 in every row",
            value=float(totals[off.argmax()]),
            fix="divide each row by its sum",
        )
    return given.astype(np.float32, copy=False)


def soft_label_columns(
    label: str, classes: Sequence[str | int], taken: Collection[str] = ()
) -> tuple[str, ...]:
    """A column for each class; none may be named like one of ``taken``, or like another class's."""
    names = tuple(f"{label}={each}" for each in classes)
    for at, name in enumerate(names):
        if name in taken or name in names[:at]:
            raise InputError(
                "soft_labels",
                "need a column whose name another one has",
                value=name,
                fix="rename that column, or the label",
            )
    return names


def with_soft_labels(table: pa.Table, columns: Sequence[str], soft_labels: SoftLabels) -> pa.Table:
    """The table with these columns last, marked so that a reader takes them for no features."""
    import pyarrow as pa

    for name, values in zip(columns, soft_labels.T, strict=True):
        marked = pa.field(name, pa.float32(), metadata=_MARK)
        table = table.append_column(marked, pa.array(values))
    return table


def is_soft_label(field: pa.Field) -> bool:
    """Whether a column is one that `with_soft_labels` added."""
    return (field.metadata or {}).items() >= _MARK.items()


def read_soft_labels(path: Path, columns: Sequence[str]) -> npt.NDArray[Any]:
    """What `with_soft_labels` added to a Parquet file, as it stands there."""
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as opened:
            marked = [field.name for field in opened.schema_arrow if is_soft_label(field)]
            table = opened.read(columns=marked)
        found = [table.column(name).to_numpy() for name in columns]
        return np.stack(found, axis=1)
    except Exception:  # a tampered file can raise anything
        raise InputError(
            str(path), "lacks the soft labels of its manifest", fix="get the release again"
        ) from None
