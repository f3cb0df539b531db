"""Tables in memory as their owner has them: frames of pandas or polars, or columns by name.

A release comes back in the kind that came in. Of which dtype a column is follows from the schema
alone: what pandas made of one record's missing cell is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa


def kind_of(columns: Any) -> type | None:
    """Of which type a frame is; None for columns by name."""
    library = type(columns).__module__.partition(".")[0]
    return type(columns) if library in ("pandas", "polars") else None


def frame_of(found: pa.Table, missing: Sequence[str], kind: type) -> Any:
    """An Arrow table as a frame; ``missing`` names the columns that may have missing cells."""
    if kind.__module__.startswith("pandas"):
        return pandas_of(found, missing)
    return kind(found)  # a frame of polars is made of such a table


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
