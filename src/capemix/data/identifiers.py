"""The type of column for identifiers: nothing of it is read, and those of a release are new."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from capemix.data.cells import LARGEST_WHOLE, Cells, Codes, Real
from capemix.data.column import Column, Mask, Values, column_type
from capemix.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_COUNTED: Final = re.compile(r"(.*?)([0-9]{1,15})", re.DOTALL)


@column_type
@dataclass(frozen=True)
class Identifier(Column):
    """Names or numbers of records, made anew: the rows of a release have ``first`` and those that
    count on from it, text or whole numbers as it is. What a record's cell says is not looked at."""

    name: str
    type: Literal["identifier"] = field(default="identifier", kw_only=True)
    first: str | int = "id-000001"

    width = 0
    numbers = 0
    coded_names = ()
    ends = (0.0, 1.0)

    def __post_init__(self) -> None:
        whole = type(self.first) is int and 0 <= self.first <= LARGEST_WHOLE // 2
        text = type(self.first) is str and _COUNTED.fullmatch(self.first) is not None
        if not (whole or text):
            raise InputError(
                f"column '{self.name}'",
                "must have a first identifier that can be counted on from",
                value=self.first,
                fix="give a whole number, or a text that ends in digits, such as id-000001",
            )

    def read(self, cells: Cells) -> Real:
        return np.zeros(cells.records)

    def fits(self, read: Real | Codes) -> Mask:
        return np.ones(len(read), dtype=bool)

    def code_into(self, block: Real, read: Real | Codes) -> None:
        pass

    def strays(self, block: npt.NDArray[Any]) -> Mask:
        return np.zeros(len(block), dtype=bool)

    def restored(self, block: Real) -> Real:
        return block

    def cells(self, block: Real) -> Values:
        if isinstance(self.first, int):
            return np.arange(self.first, self.first + len(block))
        found = _COUNTED.fullmatch(self.first)
        if found is None:
            raise ValueError(self.first)
        text, digits = found.groups()
        start, wide = int(digits), len(digits)
        return [f"{text}{number:0{wide}d}" for number in range(start, start + len(block))]

    def kept(self, block: Real) -> Values:
        return self.cells(block)

    def arrow(self, cells: Values) -> pa.Array:
        import pyarrow as pa

        return pa.array(cells, pa.int64() if isinstance(self.first, int) else pa.string())

    def __str__(self) -> str:
        first = json.dumps(self.first, ensure_ascii=False)
        return f"identifiers, made anew from {first} on; nothing of the records' own is read"
