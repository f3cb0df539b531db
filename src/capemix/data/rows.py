"""Labelled rows as every later stage reads them, and rows whose classes are not listed yet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt

from capemix.data.cells import MISSING_WORDS, Cells, Features, Words, are_distinct, places
from capemix.data.dialect import SEPARATORS
from capemix.data.persons import whose
from capemix.errors import InputError, quoted

if TYPE_CHECKING:
    from capemix.data.schema import Table

MAX_CLASSES: Final = 1000
"""A list with more values than this is of identifiers, not of classes."""

UNLABELLED: Final = ("all",)
"""The classes of records that have no label: all of them are of one."""

DEALING: Final = "which site has which record"
"""What is read from rows where this program deals them out to sites."""

CLASS_LIST: Final = "the class list"
"""What rows that are taken as they come have read from them."""


@dataclass(frozen=True, eq=False, repr=False)
class LabeledRows:
    """Feature rows with a class code each.

    ``classes``, ``feature_names`` and ``image_shape`` are public: they name what is in the table,
    never a row of it; and so is ``label_place``, how many features come before the label (None:
    all). ``features`` and ``labels`` are private and read-only. ``table``, where rows are coded by
    a declared schema, says what the coded columns stand for. ``label_name`` is None where records
    have no label.

    ``unfit`` counts the records (private) that are not among the rows: a cell that must be a number
    is none, or the label is not on the list. They add nothing to any sum. ``read_from_rows`` names
    public facts that nobody declared and no budget paid for: with any of them no release of these
    rows has a guarantee. ``dealt``: which of several sites has these rows was decided here, by all
    of them (`partition`).

    ``persons``, where a column says whose each row is, are numbers for people (private).
    """

    features: npt.NDArray[np.uint8] | npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64]
    classes: tuple[str | int, ...]
    feature_names: tuple[str, ...]
    label_name: str | None = "label"
    image_shape: tuple[int, int] | None = None
    table: Table | None = None
    unfit: int = 0
    read_from_rows: tuple[str, ...] = ()
    dealt: bool = False
    label_place: int | None = None
    persons: npt.NDArray[np.int64] | None = None

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
        if self.persons is not None and self.persons.shape != labels.shape:
            raise InputError("persons", "must be one number for each row", fix="give as many")
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
        shape = self.image_shape
        if shape is not None and (min(shape) < 1 or shape[0] * shape[1] != width):
            raise InputError(
                "image_shape",
                f"must cover the {width} columns",
                value=self.image_shape,
                fix="give height and width of the image in a row",
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
        """The rows at these positions (or under this mask), in this order; records that are not
        among the rows stay behind."""
        chosen = np.asarray(indices)
        chosen = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.intp)
        persons = None if self.persons is None else self.persons[chosen]
        rows, labels = self.features[chosen], self.labels[chosen]
        return replace(self, features=rows, labels=labels, persons=persons, unfit=0)

    def columns(self, names: tuple[str, ...]) -> LabeledRows:
        """The named features, in that order."""
        if names == self.feature_names:
            return self
        chosen = _chosen(names, self.feature_names)
        return replace(
            self,
            features=cast(Any, self.features[:, chosen]),
            feature_names=names,
            label_place=None,
            image_shape=None,
            table=None,
        )


@dataclass(frozen=True, eq=False, repr=False)
class UnlistedRows:
    """Rows of numbers with their labels' words, for classes that are declared, or found, later.

    ``features`` may hold NaN where a cell is no number: a row counts if all of the columns that are
    used have one. ``feature_names``, ``label_name`` and its place, and ``image_shape`` are public;
    records without a label have one word, that of `UNLABELLED`.
    ``without_value`` counts further records, which fit no list. ``persons`` are as in
    `LabeledRows`, and -1 where a record is nobody's: it fits no list either.
    """

    features: Features
    words: Words
    feature_names: tuple[str, ...]
    label_name: str | None = "label"
    image_shape: tuple[int, int] | None = None
    without_value: int = 0
    label_place: int | None = None
    persons: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, cells: Cells, label: str | None, but: Sequence[str] = ()) -> UnlistedRows:
        """Every column is a feature, other than the label, the persons' and those of ``but``."""
        others = (label, cells.person, *but)
        names = tuple(name for name in cells.names if name not in others)
        if not names:
            raise InputError(
                "the table", "has no feature columns", fix="give at least one besides the label"
            )
        whole = names == cells.matrix_names
        return cls(
            features=cells.numbers(names),
            words=Words(UNLABELLED, np.zeros(cells.records, dtype=np.int64))
            if label is None
            else cells.words(label),
            feature_names=names,
            label_name=label,
            label_place=label_place(cells, label, names),
            image_shape=cells.image_shape if whole else None,
            without_value=cells.without_value,
            persons=None if cells.person is None else whose(cells, cells.person),
        )

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        return f"UnlistedRows(width={self.width})"

    @property
    def width(self) -> int:
        return int(self.features.shape[1])

    def columns(self, names: tuple[str, ...]) -> UnlistedRows:
        """The named features, in that order."""
        if names == self.feature_names:
            return self
        chosen = _chosen(names, self.feature_names)
        return replace(
            self,
            features=cast(Any, self.features[:, chosen]),
            feature_names=names,
            label_place=None,
            image_shape=None,
        )

    def take(self, indices: npt.ArrayLike) -> UnlistedRows:
        """The records at these positions, in this order."""
        chosen = np.asarray(indices)
        return replace(
            self,
            features=self.features[chosen],
            words=self.words.take(chosen),
            without_value=0,
            persons=None if self.persons is None else self.persons[chosen],
        )

    def fits(self) -> npt.NDArray[np.bool_]:
        """Which records have a number in every column, and are somebody's (private)."""
        found = np.isfinite(self.features).all(axis=1)
        return np.asarray(found if self.persons is None else found & (self.persons >= 0))

    def listed(
        self, classes: tuple[str | int, ...], read_from_rows: tuple[str, ...] = ()
    ) -> LabeledRows:
        """The rows of these classes. Whether a record is among them is decided by it alone."""
        labels = self.words.codes(places(classes))
        kept = (labels >= 0) & self.fits()
        return LabeledRows(
            features=self.features[kept],
            labels=labels[kept],
            classes=classes,
            feature_names=self.feature_names,
            label_name=self.label_name,
            label_place=self.label_place,
            image_shape=self.image_shape,
            unfit=int(len(self) - kept.sum()) + self.without_value,
            read_from_rows=read_from_rows,
            persons=None if self.persons is None else self.persons[kept],
        )

    def as_they_come(self) -> LabeledRows:
        """With every label that there is as a class: for rows that are public, or stay with their
        owner. A release of them has no guarantee, and says so."""
        present = [
            word
            for word, count in zip(self.words.distinct, self.words.counts(), strict=True)
            if count and word not in MISSING_WORDS
        ]
        return self.listed(named(present), (CLASS_LIST,))


def label_place(cells: Cells, label: str | None, names: Sequence[str]) -> int | None:
    """How many of these columns come before the label; None: all, or there is none."""
    if label is None:
        return None
    before = cells.names[: cells.names.index(label)]
    place = sum(name in before for name in names)
    return None if place == len(names) else place


def read_from_rows_of(sites: Sequence[LabeledRows]) -> tuple[str, ...]:
    """What was read from any site's rows, each fact once."""
    return tuple(dict.fromkeys(fact for rows in sites for fact in rows.read_from_rows))


def named(words: Sequence[str]) -> tuple[str | int, ...]:
    """Classes by their words, sorted: as whole numbers where all of them are."""
    return tuple(sorted(as_numbers(words)))


def as_numbers(words: Sequence[str]) -> tuple[str | int, ...]:
    """As whole numbers, where all of them are."""
    if all(re.fullmatch("0|-?[1-9][0-9]{0,17}", word) for word in words):
        return tuple(int(word) for word in words)
    return tuple(words)


def check_classes(classes: Sequence[object], field: str = "classes") -> tuple[str | int, ...]:
    """A declared list: text or whole numbers, each value in one spelling."""
    if not all(type(each) in (str, int) for each in classes):
        raise InputError(field, "must be text or whole numbers", fix="write them out")
    given = tuple(cast(Sequence[str | int], classes))
    if not 1 <= len(given) <= MAX_CLASSES:
        raise InputError(
            field,
            f"must be from 1 to {MAX_CLASSES}",
            value=len(given),
            fix="list each class that rows may have",
        )
    if not are_distinct(given):
        raise InputError(
            field,
            "has a value twice, in two spellings, or one that is empty",
            value=f"{len(given)} classes",
            fix="list each value once: 1, 1.0 and '1' are the same",
        )
    return given


def pixel_names(shape: tuple[int, int]) -> tuple[str, ...]:
    """The column names of a flattened image."""
    return tuple(f"pixel_{row}_{column}" for row in range(shape[0]) for column in range(shape[1]))


def check_names(field: str, names: Sequence[str]) -> None:
    """Refuse columns without a name of their own."""
    if "" in names:
        raise InputError(
            field,
            f"has a column without a name, number {names.index('') + 1}",
            fix="name it, or leave it out (a saved index is no feature)",
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(field, f"has columns of the same name: {quoted(twice)}", fix="rename them")


def check_written(field: str, wanted: str, names: Sequence[str]) -> None:
    """A header that is not as the reader expects it may be written in another dialect."""
    others = set(
        b"".join(SEPARATORS.values()).decode() + "\0"
    )  # UTF-16 has a NUL in each plain character
    if wanted not in names and not others.isdisjoint("".join(names)):
        raise InputError(
            field,
            "names no column of the file, whose header may have other separators than expected, or"
            " another encoding",
            value=wanted,
            fix="draft a schema with `capemix schema draft`, which says how the file is written",
        )


def check_column(field: str, wanted: str, names: Sequence[str]) -> None:
    """Refuse the name of a column that is not there."""
    if wanted in names:
        return
    if any(_is_number(name) for name in names):  # then these may be cells, so do not quote them
        fix = "check the name, and that the first line of the file names the columns"
    else:
        fix = f"choose one of {quoted(names)}"
    raise InputError(field, "names no column of the file", value=wanted, fix=fix)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _chosen(wanted: tuple[str, ...], names: tuple[str, ...]) -> list[int]:
    """Where the wanted columns are."""
    missing = [name for name in wanted if name not in names]
    if missing:
        raise InputError(
            "rows", "lack a column", value=missing[0], fix="give rows with the same columns"
        )
    return [names.index(name) for name in wanted]


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
