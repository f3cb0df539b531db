"""Tables in memory as their owner has them: frames of pandas or polars, or columns by name.

A release comes back in the kind that came in. Of which dtype a column is follows from the schema
alone: what pandas made of one record's missing cell is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

KINDS: Final = ("pandas", "polars")


def kind_of(columns: Any) -> str | None:
    """Of which library a frame is; None for columns by name."""
    library = type(columns).__module__.partition(".")[0]
    return library if library in KINDS else None


def frame_of(found: pa.Table, missing: Sequence[str], kind: str) -> Any:
    """An Arrow table as a frame; ``missing`` names the columns that may have missing cells."""
    if kind == "pandas":
        return pandas_of(found, missing)
    import polars

    return polars.from_arrow(found)


def pandas_of(found: pa.Table, missing: Sequence[str]) -> pandas.DataFrame:
    """The same for pandas, which has missing whole numbers and truth values in types of their
    own."""
    import pandas
    import pyarrow as pa

    dtypes = {pa.int64(): pandas.Int64Dtype(), pa.bool_(): pandas.BooleanDtype()}
    frame: pandas.DataFrame = found.to_pandas()
    for name in missing:
        if found.schema.field(name).type in dtypes:
            frame[name] = found.column(name).to_pandas(types_mapper=dtypes.get)
    return frame
