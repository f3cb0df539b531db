"""What is public of a table's columns, as its owner declares it, and rows coded by it.

A column of numbers, dates or times has a range; a category has a list of values; an identifier is
made anew. Coded, a number stands as it is or as its logarithm, and a category is a block of zeros
with a 1 at its value, so that a block's norm is at most 1. Every rule looks at one cell and at what
is declared: missing is a value of its own where the owner says so. Else a value off the list is a
block of zeros; and a record without a number where one is declared counts for nothing, as one
without a listed label does. Of a table without a label all records are of one class.

A schema may be drafted from rows (`capemix.data.draft`). Then it says so, and a release by it has
no guarantee until its owner has confirmed that everything in it is public knowledge.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from capemix.data.cells import Cells, Codes, Real
from capemix.data.column import Values
from capemix.data.columns import Category, Column, Number
from capemix.data.constraints import Constraint
from capemix.data.dialect import Dialect
from capemix.data.identifiers import Identifier
from capemix.data.mending import Rules
from capemix.data.moments import Moment
from capemix.data.persons import whose
from capemix.data.rows import UNLABELLED, LabeledRows
from capemix.documents import as_json, from_json, read
from capemix.errors import InputError, quoted

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DRAFTED", "Category", "Column", "Identifier", "Moment", "Number", "Table"]

DRAFTED: Final = "what the schema says of ranges and lists"
"""What a draft that nobody has confirmed has read from rows."""

Origin = Literal[
    "nobody wrote one",
    "written by hand",
    "drafted from the rows, and confirmed by their owner as public knowledge",
    "drafted from the rows, and not confirmed",
]
"""Where a schema comes from, as it says itself."""

_GRANTED: Final[dict[str, Any]] = {"scale": "linear", "decimals": None}
"""What a schema need not say of a column: a confirmation holds whether or not it does."""


@dataclass(frozen=True)
class Table:
    """A table's columns, and the label with its classes, if it has one: all declared public.
    ``label_place``: how many columns come before the label; None: all. ``target``: of a table
    without a label, the column that models will predict. ``constraints``: what no released row
    breaks. ``drafted``: its ranges and lists were
    read from rows. ``confirmed``: the digest of what their owner said to be public knowledge; it
    holds for that alone, see `is_confirmed`. ``file``: how a text file with the table is written;
    without it, as RFC 4180 has it."""

    format: Literal["capemix-schema/1"] = field(
        default="capemix-schema/1", kw_only=True, repr=False
    )
    columns: tuple[Column, ...]
    label: Category | None = None
    label_place: int | None = field(default=None, kw_only=True)
    drafted: bool = False
    confirmed: str | None = None
    target: str | None = field(default=None, kw_only=True)
    constraints: tuple[Constraint, ...] = field(default=(), kw_only=True)
    file: Dialect | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        names = [column.name for column in self._named]
        if not self.columns or not all(type(name) is str and name for name in names):
            raise InputError(
                "schema", "must name at least one column beside the label", fix="name every column"
            )
        if not self.width:
            raise InputError(
                "schema",
                "has nothing to learn: identifiers are made anew, and constants are known",
                fix="declare at least one other column",
            )
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise InputError("schema", "has a column twice", value=twice[0], fix="leave one out")
        label = self.label
        if label is not None and label.missing:
            raise InputError(
                "schema",
                "must list the label's classes without a missing one",
                value=label.name,
                fix="rows of other classes count for nothing",
            )
        most = -1 if label is None else len(self.columns)
        if self.label_place is not None and not 0 <= self.label_place <= most:
            raise InputError(
                "schema",
                "places a label that it does not name"
                if label is None
                else f"must have the label among its {len(self.columns)} columns",
                value=self.label_place,
                fix="count the columns before it, or leave its place out",
            )
        if self.target is not None and (label is not None or self.target not in self.names):
            raise InputError(
                "target",
                "must be one of the columns of a schema without a label",
                value=self.target,
                fix="leave it out" if label is not None else f"choose one of {quoted(self.names)}",
            )
        _ = self.rules  # or a refusal
        if self.confirmed is not None and not self.drafted:
            raise InputError(
                "schema",
                "is confirmed, but says that it is no draft",
                value=self.drafted,
                fix="draft it again, and confirm it with `capemix schema confirm`",
            )

    @property
    def _named(self) -> tuple[Column, ...]:
        return self.columns if self.label is None else (*self.columns, self.label)

    @property
    def classes(self) -> tuple[str | int, ...]:
        """As the rest has them: truth values as 0 and 1, which are the same words."""
        if self.label is None:
            return UNLABELLED
        return tuple(
            int(each) if isinstance(each, bool) else each for each in self.label.categories
        )

    @property
    def class_words(self) -> tuple[str, ...]:
        """The same for people: truth values as false and true."""
        said = self.classes if self.label is None else self.label.categories
        return tuple(str(each).lower() if isinstance(each, bool) else str(each) for each in said)

    @property
    def label_name(self) -> str | None:
        return None if self.label is None else self.label.name

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read, other than the label."""
        return tuple(column.name for column in self.columns)

    @property
    def missing(self) -> tuple[str, ...]:
        """The columns that may have missing cells."""
        return tuple(column.name for column in self.columns if column.missing)

    @property
    def target_place(self) -> int | None:
        """Which of the columns the target is, if there is one."""
        return None if self.target is None else self.names.index(self.target)

    @cached_property
    def rules(self) -> Rules:
        """The constraints, put together."""
        return Rules.of(self.constraints, {column.name: column for column in self._named})

    @property
    def width(self) -> int:
        """How many numbers a coded row has."""
        return sum(column.width for column in self.columns)

    @property
    def places(self) -> tuple[slice, ...]:
        """Where each column lies in a coded row."""
        ends = np.cumsum([column.width for column in self.columns]).tolist()
        return tuple(
            slice(end - column.width, end) for end, column in zip(ends, self.columns, strict=True)
        )

    @property
    def blocks(self) -> tuple[slice, ...]:
        """Where the numbers lie of which a row has a 1 at one at most."""
        return tuple(
            slice(place.start + column.numbers, place.stop)
            for place, column in zip(self.places, self.columns, strict=True)
            if column.numbers < column.width
        )

    def digest(self) -> str:
        """Of everything that is declared: a confirmation is of this, and of nothing else. What is
        taken for granted (a linear scale, a label's type, no word of a file) is no part of it."""
        found = as_json(self)
        label = found["label"] and {name: found["label"][name] for name in ("name", "categories")}
        columns = [
            {part: said for part, said in column.items() if not _is_granted(column, part, said)}
            for column in found["columns"]
        ]
        declared = {"label": label, "columns": columns}
        more = {"label_place": self.label_place, "target": self.target}
        declared |= {name: said for name, said in more.items() if said is not None}
        if self.constraints:
            declared["constraints"] = found["constraints"]
        if self.file is not None:
            declared["file"] = found["file"]
        text = json.dumps(declared, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def is_confirmed(self) -> bool:
        """Whether this draft is what was confirmed: one that has been changed since is not."""
        return self.confirmed is not None and self.confirmed == self.digest()

    @property
    def origin(self) -> Origin:
        """Where it comes from, as it says itself."""
        if not self.drafted:
            return "written by hand"
        if self.is_confirmed:
            return "drafted from the rows, and confirmed by their owner as public knowledge"
        return "drafted from the rows, and not confirmed"

    def confirm(self) -> Table:
        """The same draft, as its owner confirms it."""
        return replace(self, confirmed=self.digest())

    @property
    def read_from_rows(self) -> tuple[str, ...]:
        """What of it was read from rows and not confirmed."""
        return (DRAFTED,) if self.drafted and not self.is_confirmed else ()

    def rows(self, cells: Cells) -> LabeledRows:
        """The records of a table, coded. Whether a record is among the rows, and what stands for
        it, depends on that record and on this schema alone."""
        if cells.person in (self.label_name, *self.names) and cells.person is not None:
            raise InputError(
                "person",
                "is a column of the schema, and would be released",
                value=cells.person,
                fix="take it out of the schema",
            )
        labels = np.zeros(cells.records, dtype=np.int64)
        if self.label is not None:
            labels = self.label.read(cells)
        columns = [column.read(cells) for column in self.columns]
        persons = None if cells.person is None else whose(cells, cells.person)
        rows = self.coded(columns, labels, persons)
        return replace(rows, unfit=rows.unfit + cells.without_value)

    def coded(
        self, cells: Sequence[Real | Codes], labels: Codes, persons: Codes | None = None
    ) -> LabeledRows:
        """Rows from what each column has read of its cells. A record with a label or a person below
        0, or with a cell that does not fit its column, counts for nothing."""
        known = labels >= 0 if persons is None else (labels >= 0) & (persons >= 0)
        for column, values in zip(self.columns, cells, strict=True):
            known = known & column.fits(values)
        features = np.zeros((int(known.sum()), self.width))
        for column, place, values in zip(self.columns, self.places, cells, strict=True):
            column.code_into(features[:, place], values[known])
        return LabeledRows(
            features=features,
            labels=labels[known],
            classes=self.classes,
            feature_names=tuple(name for column in self.columns for name in column.coded_names),
            label_name=self.label_name,
            table=self,
            unfit=int(len(labels) - known.sum()),
            read_from_rows=self.read_from_rows,
            persons=None if persons is None else persons[known],
        )

    def with_logs(self) -> Table:
        """The same, but that real numbers of a wide range above 0 are taken by their logarithm. It
        reads the ends of the ranges alone."""
        columns = tuple(column.with_log() for column in self.columns)
        return replace(self, columns=columns, confirmed=None)

    def no_rows(self) -> LabeledRows:
        """What is public of coded rows."""
        none = np.empty(0, dtype=np.int64)
        return self.coded([none] * len(self.columns), none)

    def unread(self, cells: Cells) -> dict[str, int]:
        """How many cells of each column do not fit it (private); those columns with any. A record
        with one of them counts for nothing."""
        counts = {
            column.name: int((~column.fits(column.read(cells))).sum()) for column in self.columns
        }
        return {name: count for name, count in counts.items() if count}

    def strays(self, rows: LabeledRows) -> dict[str, int]:
        """How many of these coded rows have, column by column, no listed value or a number outside
        of its range (private)."""
        return {
            column.name: int(column.strays(rows.features[:, place]).sum())
            for column, place in zip(self.columns, self.places, strict=True)
        }

    def restore(self, rows: Real) -> None:
        """In place: what was drawn, moved to what stands for declared values."""
        for column, place in zip(self.columns, self.places, strict=True):
            rows[:, place] = column.restored(rows[:, place])

    def cells(self, rows: Real, labels: Codes | None = None) -> dict[str, Values]:
        """Coded rows as columns of the table in their order, each in its own type; without
        ``labels``, those other than the label."""
        found: list[tuple[str, Values]] = [
            (column.name, column.cells(rows[:, place]))
            for column, place in zip(self.columns, self.places, strict=True)
        ]
        return self._with_label(found, labels)

    def kept(self, rows: Real, labels: Codes) -> dict[str, Values]:
        """The same, but cells as they were coded, also those with no declared value."""
        found: list[tuple[str, Values]] = [
            (column.name, column.kept(rows[:, place]))
            for column, place in zip(self.columns, self.places, strict=True)
        ]
        return self._with_label(found, labels)

    def _with_label(
        self, found: list[tuple[str, Values]], labels: Codes | None
    ) -> dict[str, Values]:
        if self.label is not None and labels is not None:
            said = [self.label.categories[code] for code in labels.tolist()]
            place = len(found) if self.label_place is None else self.label_place
            found.insert(place, (self.label.name, said))
        return dict(found)

    def arrow(self, cells: dict[str, Values]) -> pa.Table:
        """What `cells` or `kept` gave, or some of it, as it is written to a file."""
        import pyarrow as pa

        types = {column.name: column for column in self._named}
        return pa.table({name: types[name].arrow(values) for name, values in cells.items()})

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Table:
        return read(cls, Path(path), name="schema")

    @classmethod
    def of(cls, schema: Table | str | os.PathLike[str] | Mapping[str, Any]) -> Table:
        """A schema as it is given: itself, the file that it is in, or what such a file says."""
        if isinstance(schema, Table):
            return schema
        if isinstance(schema, Mapping):
            return from_json(cls, dict(schema), name="schema")
        return cls.read(schema)


def _is_granted(column: dict[str, Any], part: str, said: Any) -> bool:
    if part == "missing":  # of a category it has always been said
        return said is False and column["type"] != "category"
    return part in _GRANTED and said == _GRANTED[part]
