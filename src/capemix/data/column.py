"""What a type of column is: all that the rest asks of a table's column is a method of `Column`.

What a schema file says of it, how a cell is read, which records count, how what was read is coded
as numbers, and how numbers become cells of its own type again. Every rule looks at one cell and at
what is declared. A cell that cannot be read costs its own record or counts as missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from capemix.data.cells import Cells, Codes, Real
from capemix.documents import enlist, family, load_plugins

if TYPE_CHECKING:
    import pyarrow as pa

Value = str | int | bool
Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[Any] | Sequence[Any]


class Column(ABC):
    """A column of a table, as its owner declares it. A type of column is a frozen dataclass with
    `column_type`; its fields are what a schema file says of such a column.

    A coded row has ``width`` numbers for the column, and a *block* is these numbers of some rows:
    an array of rows by ``width``. A column of which nothing is summed has a width of 0.
    """

    name: str
    missing = False
    """Whether a declared cell may be missing."""

    @abstractmethod
    def __str__(self) -> str:
        """What is declared, in words: their owner is asked whether it is public knowledge."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers of a coded row are its."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """How many of these, the first ones, are drawn as numbers: they are mapped from ``ends`` to
        [-1, 1]. Of the others, if there are any, a row has a 1 at one at most, and zeros else; they
        are summed as they stand, and one of them is drawn. A column with both has a 1 at the first
        of the others where there is a value, and at the last where it is missing; there the numbers
        are the middle of ``ends``."""

    @property
    @abstractmethod
    def coded_names(self) -> tuple[str, ...]:
        """What all of these are called, each by a name of its own."""

    @property
    @abstractmethod
    def ends(self) -> tuple[float, float]:
        """The range, low < high, into which each of the ``numbers`` is moved before it is summed.
        If there are none, it says nothing."""

    @property
    def step(self) -> float | None:
        """How far declared values lie apart, in the units in which they are coded; None if a number
        may have any value of the range."""
        return None

    @abstractmethod
    def read(self, cells: Cells) -> Real | Codes:
        """What each record's cell says, one number a record. It looks at one cell at a time, and
        fails for none: what says nothing has a number of its own, NaN or -1 say."""

    @abstractmethod
    def fits(self, read: Real | Codes) -> Mask:
        """Which records count, by what was read of each. The others count for nothing."""

    @abstractmethod
    def code_into(self, block: Real, read: Real | Codes) -> None:
        """Write what was read of records that fit, coded as finite numbers, in place of zeros."""

    @abstractmethod
    def strays(self, block: npt.NDArray[Any]) -> Mask:
        """Which rows have no declared value here: none of the list, or one outside of the range. Of
        a column of width 0 nobody can tell, and it has none."""

    @abstractmethod
    def kept(self, block: Real) -> Values:
        """One cell a row, as it was coded, strays included: read again, it is coded the same."""

    @abstractmethod
    def restored(self, block: Real) -> Real:
        """A drawn block, moved to the nearest that stands for a declared value."""

    @abstractmethod
    def cells(self, block: Real) -> Values:
        """One declared value a row, in the column's own type, None for missing; of any numbers
        that were drawn and restored."""

    @abstractmethod
    def arrow(self, cells: Values) -> pa.Array:
        """What `cells` or `kept` gave as it is written to a file, in a type that does not depend
        on which values there are."""

    def with_log(self) -> Column:
        """The same, taken by its logarithm where what is declared suits that."""
        return self


_TYPES: dict[str, type[Column]] = {}
C = TypeVar("C", bound=type[Column])


def column_type(cls: C) -> C:
    """Make a type of column known by the names that its field ``type`` may have in a schema."""
    enlist(_TYPES, cls, word="types of column", tag="type")
    return cls


def column_types() -> tuple[type[Column], ...]:
    """Each type of column that is known, once."""
    load_plugins()
    return tuple(dict.fromkeys(_TYPES.values()))


family(Column, column_types, tag="type")
