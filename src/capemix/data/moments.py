"""The types of column for dates, moments and times of day: numbers of days or of seconds, written
as ISO 8601 has them.

Moments are read in UTC: one with a zone is moved there, and one without is taken to be there. So a
file's writer may give all of a column the zone of one. What a cell has beyond whole days, or whole
seconds, is cut off.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from capemix.data.cells import Cells, Real
from capemix.data.column import Values, column_type
from capemix.data.ranges import Ranged, or_none
from capemix.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SECOND: Final = dt.timedelta(seconds=1)
_ENDS: Final = tuple(
    float((end.replace(tzinfo=dt.UTC) - _FIRST) // _SECOND)
    for end in (dt.datetime.min, dt.datetime.max)
)
"""Of the calendar."""
DAY: Final = 86_400


def days_of(word: str) -> float:
    """From 1970 to a date, or to a moment's date in UTC; NaN for any other word."""
    return seconds_of(word) // DAY


def seconds_of(word: str) -> float:
    """From 1970 to a moment, or to the beginning of a date, in UTC; to the calendar's end, where a
    zone moves it beyond."""
    if word[4:5] != "-":  # other ways to write a date are numbers, too
        return math.nan
    try:
        moment = dt.datetime.fromisoformat(word)
        zoned = moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment
        return min(max(float((zoned - _FIRST) // _SECOND), _ENDS[0]), _ENDS[1])
    except (ValueError, OverflowError):
        return math.nan


def seconds_of_day(word: str) -> float:
    """From midnight to a time of day without a zone."""
    if word[2:3] != ":":
        return math.nan
    try:
        time = dt.time.fromisoformat(word)
    except ValueError:
        return math.nan
    if time.tzinfo is not None:
        return math.nan
    return float(time.hour * 3600 + time.minute * 60 + time.second)


READ: Final[dict[str, Callable[[str], float]]] = {
    "date": days_of,
    "datetime": seconds_of,
    "time": seconds_of_day,
}
"""What a word says, by the name of the type: a whole number, or NaN if it is of another type."""


@column_type
@dataclass(frozen=True)
class Moment(Ranged):
    """Dates, moments or times of day between ``low`` and ``high``, which are such words. With
    ``missing``, what is none counts as missing. With a ``zone`` a release's moments say that they
    are in UTC; without, they are all the same, and do not."""

    name: str
    type: Literal["date", "datetime", "time"] = field(kw_only=True)
    low: str
    high: str
    missing: bool = field(default=False, kw_only=True)
    zone: Literal["UTC"] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.zone is not None and self.type != "datetime":
            raise InputError(
                f"column '{self.name}'",
                "may have a zone if it is of type datetime",
                value=self.zone,
                fix="leave the zone out",
            )
        low, high = self.span
        if not low <= high:  # NaN, too
            usual = {"date": "2020-01-31", "datetime": "2020-01-31 18:30:00", "time": "18:30:00"}
            raise InputError(
                f"column '{self.name}'",
                f"must have two ends of type {self.type}, low <= high",
                value=f"{self.low}, {self.high}",
                fix=f"write them as {usual[self.type]}",
            )

    @property
    def span(self) -> tuple[float, float]:
        read = READ[self.type]
        return read(self.low.strip()), read(self.high.strip())

    @property
    def step(self) -> float | None:
        return 1.0

    def read(self, cells: Cells) -> Real:
        words = cells.words(self.name)
        found = [READ[self.type](word) for word in words.distinct]
        return np.array([*found, math.nan])[words.positions]

    def declared(self, values: Real) -> Real:
        return np.rint(super().declared(values)) + 0.0

    def typed(self, values: Real) -> Values:
        """Dates, moments or times as Python has them, None for NaN."""
        absent = np.isnan(values)
        whole = np.where(absent, 0, np.rint(values)).astype(np.int64)
        unit = "D" if self.type == "date" else "s"
        found: Any = whole.astype(f"M8[{unit}]").astype(object)
        if self.zone is not None:
            found = np.array([each.replace(tzinfo=dt.UTC) for each in found], dtype=object)
        if self.type == "time":
            found = np.array([each.time() for each in found] + [None], dtype=object)[:-1]
        return or_none(found, absent)

    def arrow(self, cells: Values) -> pa.Array:
        import pyarrow as pa

        moment = pa.timestamp("us", self.zone)
        kinds = {"date": pa.date32(), "datetime": moment, "time": pa.time64("us")}
        return pa.array(cells, kinds[self.type])

    def __str__(self) -> str:
        always = f"always {self.low}"
        said = f"{self.type} from {self.low} to {self.high}" if self.numbers else always
        return self._or_missing(said + (", in UTC" if self.zone else ""))
