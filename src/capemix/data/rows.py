"""Labelled rows as every later stage reads them, and the coding of their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.data.schema import Table

MOST_CLASSES = 1000
"""More distinct labels than this look like an identifier, not like classes."""

_FEW_ROWS = 20
MISSING_WORDS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")
"""What a text table writes where it has no number."""


@dataclass(frozen=True, eq=False, repr=False)
class LabeledRows:
    """Feature rows with a class code each.

    ``classes``, ``feature_names``, ``image_shape`` and ``feature_dtypes`` are public: they name
    what is in the table, never a row of it. ``features`` and ``labels`` are private and read-only.
    ``table``, where rows are coded by a declared schema, says what the coded columns stand for.
    """

    features: npt.NDArray[np.uint8] | npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64]
    classes: tuple[str | int, ...]
    feature_names: tuple[str, ...]
    label_name: str = "label"
    image_shape: tuple[int, int] | None = None
    feature_dtypes: tuple[str, ...] | None = None
    table: Table | None = None

    def __post_init__(self) -> None:
        features, labels = np.asarray(self.features), np.asarray(self.labels)
        if features.ndim != 2 or features.shape[1] < 1:
            raise InputError(
                "features", "must be rows by columns", value=features.shape, fix="reshape them"
            )
        if features.dtype not in (np.uint8, np.float64):
            raise InputError(
                "features", "must be uint8 or float64", value=features.dtype, fix="convert them"
            )
        if labels.shape != (len(features),) or labels.dtype != np.int64:
            raise InputError(
                "labels",
                "must be one int64 code for each row",
                value=f"{labels.dtype} of shape {labels.shape}",
                fix="give the position of each row's class in classes",
            )
        if labels.size and not 0 <= labels.min() <= labels.max() < len(self.classes):
            raise InputError(
                "labels", "hold a code outside the classes", fix="give positions in classes"
            )
        if not _all_finite(features):
            raise InputError(
                "features", "hold NaN or infinite values", fix="drop or fill those rows"
            )
        width = features.shape[1]
        if len(self.feature_names) != width:
            raise InputError(
                "feature_names",
                f"must name the {width} columns",
                value=len(self.feature_names),
                fix="give one name for each column",
            )
        if self.image_shape is not None and self.image_shape[0] * self.image_shape[1] != width:
            raise InputError(
                "image_shape",
                f"must cover the {width} columns",
                value=self.image_shape,
                fix="give height and width of the image in a row",
            )
        if self.feature_dtypes is not None and len(self.feature_dtypes) != width:
            raise InputError(
                "feature_dtypes",
                f"must give a dtype for the {width} columns",
                value=len(self.feature_dtypes),
                fix="give one dtype for each column",
            )
        object.__setattr__(self, "features", _read_only(features))
        object.__setattr__(self, "labels", _read_only(labels))

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        """Public facts only: neither a value nor a count of rows."""
        return f"LabeledRows(width={self.width}, classes={len(self.classes)})"

    @property
    def width(self) -> int:
        """How many features a row has."""
        return int(self.features.shape[1])

    def schema(self) -> dict[str, Any]:
        """What is public of these rows, as a plan file holds it; of coded ones, uncoded."""
        names = self.feature_names if self.table is None else self.table.names
        return {
            "features": list(names),
            "label": self.label_name,
            "image_shape": list(self.image_shape) if self.image_shape else None,
        }

    def class_counts(self) -> npt.NDArray[np.int64]:
        """How many rows each class has, in the order of ``classes`` (private)."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    def take(self, indices: npt.ArrayLike) -> LabeledRows:
        """The rows at these positions (or under this mask), in this order."""
        chosen = np.asarray(indices)
        chosen = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.intp)
        return replace(self, features=self.features[chosen], labels=self.labels[chosen])

    def columns(self, names: tuple[str, ...]) -> LabeledRows:
        """The named features, in that order."""
        if names == self.feature_names:
            return self
        missing = [name for name in names if name not in self.feature_names]
        if missing:
            raise InputError(
                "rows", "lack a column", value=missing[0], fix="give rows with the same columns"
            )
        chosen = [self.feature_names.index(name) for name in names]
        dtypes = self.feature_dtypes
        return replace(
            self,
            features=cast(Any, self.features[:, chosen]),
            feature_names=names,
            image_shape=None,
            feature_dtypes=None if dtypes is None else tuple(dtypes[i] for i in chosen),
            table=None,
        )


def pixel_names(shape: tuple[int, int]) -> tuple[str, ...]:
    """The column names of a flattened image."""
    return tuple(f"pixel_{row}_{column}" for row in range(shape[0]) for column in range(shape[1]))


def code_labels(
    distinct: Sequence[object],
    positions: npt.NDArray[np.integer],
    *,
    field: str,
    text: bool = False,
) -> tuple[tuple[str | int, ...], npt.NDArray[np.int64]]:
    """Sorted classes, and each row's code.

    ``positions`` points from each row into ``distinct``. Whole numbers become int (with ``text``,
    also those spelled as text, as in a CSV file), every other scalar becomes str.
    """
    missing = np.array([_is_missing(value) for value in distinct], dtype=bool)
    if text:
        missing |= _missing_words(distinct, missing)
    without = int(missing[positions].sum()) if len(distinct) else 0
    if without:
        raise InputError(
            field, f"has {without} missing value(s)", fix="fill them, or drop those rows"
        )
    if not len(positions):
        raise InputError(field, "has no values", fix="give at least one row")
    named = _class_values(distinct, field=field, text=text)
    ints = sorted({value for value in named if isinstance(value, int)})
    strings = sorted({value for value in named if isinstance(value, str)})
    classes: tuple[str | int, ...] = (*ints, *strings)
    rows = len(positions)
    if len(classes) > MOST_CLASSES or (len(classes) == rows > _FEW_ROWS):
        raise InputError(
            field,
            f"has {len(classes)} distinct values in {rows} rows and looks like an identifier"
            " or a continuous column",
            fix=f"choose a column with at most {MOST_CLASSES} distinct values",
        )
    code_of = {value: code for code, value in enumerate(classes)}
    codes = np.array([code_of[value] for value in named], dtype=np.int64)
    return classes, codes[positions]


def _class_values(
    distinct: Sequence[object], *, field: str, text: bool
) -> list[str] | list[int] | list[str | int]:
    for value in distinct:
        if isinstance(value, (list, tuple, dict, set)):
            raise InputError(
                field,
                "must hold one scalar for each row",
                value=type(value).__name__,
                fix="choose a column of plain values",
            )
    if text and all(whole_text(value) for value in distinct):
        return [int(str(value).split(".")[0]) for value in distinct]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in distinct):
        numbers = [value for value in distinct if isinstance(value, (int, float))]
        if all(float(value).is_integer() for value in numbers):
            return [int(value) for value in numbers]
    return [
        value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        for value in distinct
    ]


def _is_missing(value: object) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or value != value


def _missing_words(
    distinct: Sequence[object], missing: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Words such as NA, but only among numbers: "None" may well be a class among words."""
    words = np.array([str(value).strip() in MISSING_WORDS for value in distinct], dtype=bool)
    others = [value for value, out in zip(distinct, words | missing, strict=True) if not out]
    return words if all(whole_text(value) for value in others) else np.zeros_like(words)


def whole_text(value: object) -> bool:
    """Whether text spells a whole number in the one usual way (so not 007)."""
    whole, _, zeros = str(value).partition(".")
    digits = whole.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18 or zeros.strip("0"):
        return False
    return whole == str(int(whole))


def _all_finite(values: npt.NDArray[Any]) -> bool:
    if values.dtype == np.uint8:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        quick = bool(np.isfinite(values.sum()))
    return quick or bool(np.isfinite(values).all())


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    fixed = np.ascontiguousarray(values).view()
    fixed.setflags(write=False)
    return fixed
