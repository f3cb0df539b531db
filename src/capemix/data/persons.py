"""People with several rows: whose a row is, and which of a person's rows count.

Every rule here looks at one person's rows alone. So whoever joins, leaves or is replaced changes no
other person's rows, and theirs are never more than were declared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from capemix.data.cells import MISSING_WORDS, Cells
from capemix.errors import InputError

if TYPE_CHECKING:
    from capemix.data.rows import LabeledRows

Codes = npt.NDArray[np.int64]

MOST_ROWS: Final = 1000
"""No person counts with more rows: noise grows with how many there may be."""


def check_rows_per_person(rows: int) -> None:
    if type(rows) is not int or not 1 <= rows <= MOST_ROWS:
        raise InputError(
            "rows_per_person",
            f"must be a whole number from 1 to {MOST_ROWS}",
            value=rows,
            fix="say how many of a person's rows may count",
        )


def check_persons(given: bool, rows_per_person: int | None) -> None:
    """Rows that say whose they are go with a plan that bounds them, and no others do."""
    if given and rows_per_person is None:
        raise InputError(
            "rows_per_person",
            "must be declared where a column says whose a row is",
            fix="say how many of a person's rows may count",
        )
    if not given and rows_per_person is not None:
        raise InputError(
            "person",
            "is not named, and the plan is for people with several rows",
            value=rows_per_person,
            fix="name the column that says whose a row is, or plan for records",
        )


# -- whose a row is --------------------------------------------------------------------------------


def with_person(cells: Cells, column: str) -> Cells:
    """The same records, of people by this column."""
    if column not in cells.names or column == cells.label:
        raise InputError(
            "person",
            "must name a column of the file, other than the label",
            value=column,
            fix="name the column that says whose a row is",
        )
    return replace(cells, person=column)


def whose(cells: Cells, column: str) -> Codes:
    """A number for each record's person, -1 where it is nobody's. Cells are read as everywhere: 7,
    7.0 and "07" are one person, and a whole number beyond 2^53 is nobody, since a writer may round
    it to another's."""
    words = cells.words(column)
    somebody = [word not in MISSING_WORDS for word in words.distinct]
    named = np.append(np.array(somebody, dtype=np.bool_), False)
    return np.where(named[words.positions], words.positions, -1)


# -- which rows count ------------------------------------------------------------------------------


def counted(rows: LabeledRows, rows_per_person: int | None, *, one_class: bool) -> LabeledRows:
    """The rows that count: of each person at most so many, see `kept`. With ``one_class`` they are
    of the class of the person's first row. Without persons all of them."""
    check_persons(rows.persons is not None, rows_per_person)
    if rows.persons is None or rows_per_person is None:
        return rows
    chosen = kept(rows.persons, rows_per_person, rows.labels if one_class else None)
    left_out = len(rows) - len(chosen)
    return replace(rows.take(chosen), unfit=rows.unfit + left_out) if left_out else rows


def people_of(rows: LabeledRows, counting: LabeledRows) -> dict[str, int]:
    """For the rows' owner (private): how many people there are, how many rows one has at most, and
    how many rows do not count because their person has too many."""
    _, sizes = np.unique([] if rows.persons is None else rows.persons, return_counts=True)
    most = int(sizes.max(initial=0))
    return {"people": len(sizes), "most_rows": most, "beyond": len(rows) - len(counting)}


def kept(persons: Codes, most: int, labels: Codes | None = None) -> npt.NDArray[np.intp]:
    """The places of the rows that count, in their order. Of a person with k of them, more than
    ``most``, those are kept that lie evenly among them: row r (from 0) if
    ceil((r + 1) most / k) > ceil(r most / k). A code below 0 is nobody's. With ``labels`` only rows
    of the label of the person's first row are looked at."""
    places = np.flatnonzero(persons >= 0)
    by_person = places[np.argsort(persons[places], kind="stable")]
    if labels is not None:
        first = np.repeat(
            labels[by_person[_starts(persons[by_person])]], _sizes(persons[by_person])
        )
        by_person = by_person[labels[by_person] == first]
    sizes = _sizes(persons[by_person])
    count = np.repeat(sizes, sizes)
    rank = np.arange(len(by_person)) - np.repeat(_starts(persons[by_person]), sizes)
    even = -(-(rank + 1) * most // count) > -(-rank * most // count)
    return np.sort(by_person[even])


def _starts(ordered: Codes) -> npt.NDArray[np.intp]:
    """Where each person's rows begin, once they stand together."""
    return np.flatnonzero(np.diff(ordered, prepend=-1) != 0)


def _sizes(ordered: Codes) -> npt.NDArray[np.intp]:
    return np.diff(np.append(_starts(ordered), len(ordered)))


def together(parts: npt.NDArray[Any], persons: Codes) -> npt.NDArray[Any]:
    """What each person's rows add: a row for each person, in the order of their codes."""
    order = np.argsort(persons, kind="stable")
    starts = _starts(persons[order])
    if not len(starts):
        return parts[:0]
    dtype = np.int64 if parts.dtype.kind == "i" else parts.dtype
    return np.add.reduceat(parts[order].astype(dtype), starts, axis=0).astype(parts.dtype)
