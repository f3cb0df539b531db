"""Tables in memory as their owner has them: frames of pandas or polars, or columns by name.

A release comes back in the kind that came in. Of which dtype a column is follows from the schema
alone: what pandas made of one record's missing cell is not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from capemix.data.schema import Table

KINDS: Final = ("pandas", "polars")


def kind_of(columns: Any) -> str | None:
    """Of which library a frame is; None for columns by name."""
    library = type(columns).__module__.partition(".")[0]
    return library if library in KINDS else None


def frame_of(found: pa.Table, table: Table, kind: str) -> Any:
    """An Arrow table of these columns as a frame."""
    if kind == "polars":
        import polars

        return polars.from_arrow(found)
    import pandas
    import pyarrow as pa

    # Whole numbers and truth values have no missing ones but in these types.
    dtypes = {pa.int64(): pandas.Int64Dtype(), pa.bool_(): pandas.BooleanDtype()}
    frame = found.to_pandas()
    for column in table.columns:
        if column.missing and found.schema.field(column.name).type in dtypes:
            frame[column.name] = found.column(column.name).to_pandas(types_mapper=dtypes.get)
    return frame
