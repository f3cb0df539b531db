"""What is known of the rows before they are summed: declared public, or measured and paid for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from capemix.data.cells import are_distinct
from capemix.data.persons import check_rows_per_person
from capemix.data.rows import MAX_CLASSES, UNLABELLED, LabeledRows, UnlistedRows
from capemix.data.schema import Origin, Table
from capemix.errors import InputError
from capemix.sums.steps import ColumnMap, Normalise

MOST: int = 1 << 40
"""No width, number of rows or class size is larger: it would be a slip, or meant ill."""


CLASS_LIST: Final = "class list"
CLASS_SIZES: Final = "class sizes"
RANGES: Final = "ranges"
SCALES: Final = "means and scales"
CLIP_NORM: Final = "clip norm"


def unnamed_columns(width: int) -> tuple[str, ...]:
    """What the columns are called in a plan that knows only how many there are: it is for rows with
    columns of any names."""
    return tuple(f"column {place}" for place in range(1, width + 1))


@dataclass(frozen=True)
class Facts:
    """What is public of the rows. None: it is not known, and is measured if a method needs it.

    ``features`` and ``label`` name the columns that are read, ``label_place`` says how many come
    before the label (None: all), and ``table``, where there is one, how they are coded. Without a
    label all records are of one class. ``class_sizes`` are over all sites. ``normalise`` maps each
    value before anything is made of it. ``clip_norm`` is a norm that most normalised rows do not
    exceed. ``unpaid`` names facts that were read from the rows and that no budget paid for.

    ``rows_per_person``: the unit of privacy is a person, of whose rows so many count; which rows
    are whose, every owner of rows says. None: it is a record.
    """

    features: tuple[str, ...]
    label: str | None
    classes: tuple[str | int, ...] | None
    class_sizes: tuple[int, ...] | None = None
    normalise: Normalise | None = None
    clip_norm: float | None = None
    image_shape: tuple[int, int] | None = None
    label_place: int | None = None
    table: Table | None = None
    unpaid: tuple[str, ...] = ()
    rows_per_person: int | None = None

    def __post_init__(self) -> None:
        if not self.features or len(set(self.features)) != len(self.features):
            raise InputError("features", "must be distinct names", fix="name each column once")
        if self.classes is not None and not (self.classes and are_distinct(self.classes)):
            raise InputError(
                "classes",
                "must be at least one, and distinct: 1 and '1' are the same",
                fix="give each class once",
            )
        if self.label is None and self.classes != UNLABELLED:
            raise InputError(
                "classes",
                "must be one, of all records, where there is no label",
                value=len(self.classes or ()),
                fix="name the label",
            )
        self._check_sizes()
        if self.rows_per_person is not None:
            check_rows_per_person(self.rows_per_person)
        if self.clip_norm is not None and not 1e-100 < self.clip_norm < 1e100:
            raise InputError(
                "clip_norm", "must be a positive number", value=self.clip_norm, fix="leave it out"
            )
        table = self.table
        if table is not None and (table.names, table.label_name, table.classes) != (
            self.features,
            self.label,
            self.classes,
        ):
            raise InputError(
                "schema", "does not fit the rows", value=self.width, fix="code the rows by it"
            )
        if isinstance(self.normalise, ColumnMap) and len(self.normalise.shift) != self.width:
            raise InputError(
                "normalise",
                f"must map the {self.width} columns",
                value=len(self.normalise.shift),
                fix="give one shift, scale and range for each column",
            )
        place = self.label_place
        if place is not None and (table is not None or not 0 <= place <= len(self.features)):
            raise InputError(
                "label_place",
                f"must be among the {len(self.features)} features, and a schema says its own",
                value=place,
                fix="leave it out",
            )
        shape = self.image_shape
        if shape is not None and (
            table is not None or min(shape) < 1 or shape[0] * shape[1] != self.width
        ):
            raise InputError("image_shape", "does not fit the rows", value=shape, fix="correct it")

    def _check_sizes(self) -> None:
        sizes = self.class_sizes
        if sizes is None:
            return
        if self.classes is None:
            raise InputError("classes", "must be declared where their sizes are", fix="list them")
        if any(type(size) is not int or not 0 <= size <= MOST for size in sizes):
            raise InputError(
                "class_sizes", f"must be whole numbers up to {MOST}", fix="leave out fractions"
            )
        if len(sizes) != len(self.classes):
            raise InputError(
                "class_sizes",
                f"must be one for each of the {len(self.classes)} classes",
                value=len(sizes),
                fix="give as many sizes as classes",
            )

    @classmethod
    def of(
        cls,
        rows: LabeledRows | UnlistedRows,
        *,
        class_sizes: tuple[int, ...] | None = None,
        normalise: Normalise | None = None,
        unpaid: tuple[str, ...] = (),
        rows_per_person: int | None = None,
    ) -> Facts:
        """What is public of these rows: no row is looked at. Rows that are coded by a schema are
        mapped by the ranges that it declares."""
        classes, table = None, None
        if isinstance(rows, LabeledRows):
            classes, table = rows.classes, rows.table
        if table is not None:
            declared = map_of(table)
            if normalise not in (None, declared):
                raise InputError(
                    "public_range", "contradicts the ranges of the schema", fix="leave it out"
                )
            normalise = declared
        return cls(
            features=rows.feature_names if table is None else table.names,
            label=rows.label_name,
            classes=classes,
            class_sizes=class_sizes,
            normalise=normalise,
            image_shape=rows.image_shape,
            label_place=rows.label_place if table is None else None,
            table=table,
            unpaid=unpaid,
            rows_per_person=rows_per_person,
        )

    @property
    def read_from_rows(self) -> tuple[str, ...]:
        """Facts that are neither declared nor paid for: with one of them there is no guarantee."""
        return (*self.unpaid, *(() if self.table is None else self.table.read_from_rows))

    def undeclared(self, *, sizes: bool = False, clip: bool = False) -> tuple[str, ...]:
        """What to measure: the classes, and the columns' ranges and scales, unless they are
        declared. With ``sizes`` and ``clip`` also the classes' sizes and a norm to clip at. A list
        of classes comes with their sizes; and where ranges are measured, sizes are too: sums are
        divided by them."""
        names = []
        if self.classes is None:
            names.append(CLASS_LIST)
        elif self.class_sizes is None and (sizes or self.normalise is None):
            names.append(CLASS_SIZES)
        if self.normalise is None:
            names += [RANGES, SCALES, *([CLIP_NORM] if clip and self.clip_norm is None else [])]
        return tuple(names)

    @cached_property
    def coded_names(self) -> tuple[str, ...]:
        """One for each number of a row, as sums see it."""
        if self.table is None:
            return self.features
        return tuple(name for column in self.table.columns for name in column.coded_names)

    @property
    def columns_read(self) -> tuple[str, ...]:
        """The names of all columns that a schema asks for, or of all features."""
        label = None if self.table is None else self.label
        return (*self.features, *(() if label is None else (label,)))

    @property
    def tells_class(self) -> str:
        """What of a record tells to which class it adds."""
        return "each record" if self.label is None else "each record's label"

    @property
    def width(self) -> int:
        """How many numbers a row has, as sums see it."""
        return len(self.features) if self.table is None else self.table.width

    @property
    def schema_origin(self) -> Origin:
        """Where the schema comes from, as it says itself."""
        return "nobody wrote one" if self.table is None else self.table.origin

    @property
    def class_words(self) -> tuple[str, ...]:
        """The classes as people have them: truth values as false and true."""
        return tuple(map(str, self.listed)) if self.table is None else self.table.class_words

    @property
    def groups(self) -> int:
        """How many classes there are: as many as there may be, until they are found."""
        return MAX_CLASSES if self.classes is None else len(self.classes)

    @property
    def listed(self) -> tuple[str | int, ...]:
        """The classes, once they are known."""
        if self.classes is None:
            raise ValueError("the classes are not known yet")
        return self.classes


def map_of(table: Table) -> ColumnMap:
    """Numbers to [-1, 1] by their declared range, categories as they stand: of norm 1 at most."""
    shift, scale, low, high = [], [], [], []
    for column in table.columns:
        ends = column.ends
        middle, half = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
        numbers, others = column.numbers, column.width - column.numbers
        shift += [middle] * numbers + [0.0] * others
        scale += [half] * numbers + [1.0] * others
        low += [ends[0]] * numbers + [0.0] * others
        high += [ends[1]] * numbers + [1.0] * others
    return ColumnMap(tuple(shift), tuple(scale), tuple(low), tuple(high))
