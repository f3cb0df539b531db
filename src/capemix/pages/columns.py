"""What the columns of a release are like, beside the noise that is known of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from capemix.pages import charts
from capemix.pages.figures import Real, Shown
from capemix.pages.html import Html, Part, details, table, tag
from capemix.pages.told import Told

if TYPE_CHECKING:
    import pyarrow as pa

MOST_CHARTS: Final = 80
"""Columns that are drawn; of the others there is a line of figures."""

MOST_LINES: Final = 1_000
"""Columns of which there is a line."""

_MOST_WORDS: Final = 24
"""Of a list that are drawn; the others are added up."""

_LONGEST: Final = 100
"""Of what is declared, in a line."""

_REACH: Final = 2.0
"""Deviations of the noise that a band reaches either way: it holds 95 of 100."""


def records_of(told: Told, statistics: Mapping[str, pa.Table]) -> float | None:
    """How many records there are: as counted with noise, or as declared."""
    for name in ("classes", "records"):
        if name in statistics:
            return float(statistics[name]["count"].to_numpy().sum())
    sizes = told.facts.class_sizes
    return None if sizes is None else float(sum(sizes))


def bars_of(column: Shown, records: float | None) -> charts.Bars:
    """Parts of all rows; and of all records, as counted."""
    rows = column.rows / max(len(column.cells), 1)
    if column.counted is None:
        return charts.Bars(rows)
    total = column.counted.count.sum() if records is None else records
    all_of_them = max(float(total), 1.0)
    return charts.Bars(
        rows, column.counted.count / all_of_them, _REACH * column.counted.error / all_of_them
    )


def columns_of(
    told: Told, columns: Sequence[Shown], statistics: Mapping[str, pa.Table]
) -> Iterator[Part]:
    facts = told.facts
    if facts.image_shape is not None:
        yield tag("p", f"The {len(facts.features)} pixels are columns, too: see the images.")
    if not columns:
        return
    records = records_of(told, statistics)
    counted = any(each.counted is not None for each in columns)
    swatches = [("rows", "synthetic rows")]
    if counted:
        swatches += [
            ("counts", "noisy counts of the records, which the rows were made of"),
            ("reach", "the noise on them: in 95 of 100 cases the truth lies in the band"),
        ]
    yield tag(
        "ul",
        *(
            tag("li", tag("i", class_=colour, aria_hidden="true"), said)
            for colour, said in swatches
        ),
        class_="key",
    )
    if not counted and facts.image_shape is None:
        yield tag(
            "p",
            f"The method {told.method} counts no cells of columns, so there are no noisy counts to"
            " show beside the rows.",
        )
    elif counted:
        yield tag(
            "p",
            "Heights and lengths are parts of all rows. Cells of numbers were joined for these"
            " drawings; the finest are in statistics/columns.parquet.",
            class_="soft",
        )
    drawn = columns[:MOST_CHARTS]
    yield tag("div", *(_figure(each, records) for each in drawn), class_="grid")
    if len(columns) > MOST_CHARTS:
        yield tag(
            "p",
            f"{MOST_CHARTS} of {len(columns)} columns are drawn. The figures of all are in the"
            " table below.",
        )
    listed = [facts.label] if facts.label is not None else []
    total = len(facts.features) + len(listed)
    if total > len(columns) and len(columns) < MOST_LINES:
        there = {each.name for each in columns}
        made = [name for name in facts.features if name not in there]
        if made and facts.image_shape is None:
            yield tag(
                "p",
                f"Columns of which nothing was summed, and which tell nothing: {', '.join(made)}.",
            )
    rows = [_line(each) for each in columns[:MOST_LINES]]
    caption = "Every column in figures" if len(rows) == total else "Columns in figures"
    head = ("column", "declared", "synthetic rows", "missing", "cells", "noise on a cell")
    shown = table(caption, head, rows, numbers=(3, 4, 5))
    yield shown if len(columns) > MOST_CHARTS else details(caption, shown)


def _figure(column: Shown, records: float | None) -> Html:
    bars = bars_of(column, records)
    title = tag("h4", column.name)
    if not column.words:
        return tag("figure", title, tag("figcaption", "No row has a value."))
    noise = ""
    if bars.reach is not None and len(bars.reach):
        noise = f" Noise reaches {charts.percent(float(np.median(bars.reach)))} either way."
    says = f"{column.name}: {_in_words(column)}.{noise}"
    if column.numeric:
        drawn = charts.histogram(bars, _ticks(column), says)
    else:
        bars, words = _largest(bars, column.words)
        drawn = charts.columns_of_words(bars, words, says)
    return tag(
        "figure",
        title,
        drawn,
        tag("figcaption", f"{_in_words(column)}.{noise}"),
        details("Figures", _cells(column, records)),
    )


def _largest(bars: charts.Bars, words: Sequence[str]) -> tuple[charts.Bars, Sequence[str]]:
    """The words that most rows have, and all others together."""
    if len(words) <= _MOST_WORDS:
        return bars, words
    order = np.argsort(-bars.drawn, kind="stable")
    kept, rest = np.sort(order[: _MOST_WORDS - 1]), order[_MOST_WORDS - 1 :]

    def joined(parts: Real | None, *, squares: bool = False) -> Real | None:
        if parts is None:
            return None
        other = np.sqrt((parts[rest] ** 2).sum()) if squares else parts[rest].sum()
        return np.append(parts[kept], other)

    drawn = joined(bars.drawn)
    assert drawn is not None
    made = charts.Bars(drawn, joined(bars.counted), joined(bars.reach, squares=True))
    return made, [*(words[i] for i in kept), f"{len(rest)} others"]


def _ticks(column: Shown) -> list[tuple[float, str]]:
    """A few starts of cells, where they are, and the missing ones."""
    count = len(column.words) - column.missing
    places = [0, count // 2] if count > 8 else [0]
    found = [(float(at), column.words[at].split(" to ")[0].removeprefix("from ")) for at in places]
    if count > 2:
        found.append(
            (float(count), column.words[count - 1].split(" to ")[-1].removeprefix("from "))
        )
    if column.missing:
        found = [*found[:-1], (float(len(column.words)), "missing")] if count > 2 else found
    return found


def _in_words(column: Shown) -> str:
    """What the rows of a column are like, in a sentence."""
    missing = _missing(column)
    absent = f"; {charts.percent(missing)} missing" if column.missing else ""
    if column.values is None:
        rows = column.rows
        if not len(rows):
            return "no values"
        at = int(rows.argmax())
        part = charts.percent(float(rows[at]) / max(len(column.cells), 1))
        return (
            f"{len(rows) - column.missing} values, most often “{column.words[at]}” ({part}){absent}"
        )
    known = column.values[np.isfinite(column.values)]
    if not len(known):
        return "no values"
    at = int(np.argmax(column.rows[: len(column.words) - column.missing]))
    part = charts.percent(float(column.rows[at]) / max(len(column.cells), 1))
    return f"most often {column.words[at]} ({part}){absent}"


def _missing(column: Shown) -> float:
    if not column.missing:
        return 0.0
    return float((column.cells == len(column.words) - 1).mean()) if len(column.cells) else 0.0


def _cells(column: Shown, records: float | None) -> Html:
    """The figures of a drawing."""
    bars = bars_of(column, records)
    shown = range(len(column.words))
    if len(column.words) > 2 * _MOST_WORDS:
        shown = sorted(np.argsort(-bars.drawn, kind="stable")[: 2 * _MOST_WORDS].tolist())  # type: ignore[assignment]
    head, numbers = ["value", "synthetic rows"], [1]
    if column.counted is not None:
        head, numbers = [*head, "counted", "noise"], [1, 2, 3]
    rows = []
    for i in shown:
        line = [column.words[i], charts.percent(float(bars.drawn[i]))]
        if column.counted is not None:
            line += [f"{column.counted.count[i]:.0f}", f"± {column.counted.error[i]:.2g}"]
        rows.append(line)
    most = "" if len(rows) == len(column.words) else f"; the {len(rows)} most frequent"
    return table(f"{column.name}: figures{most}", head, rows, numbers=numbers)


def _line(column: Shown) -> tuple[Part, ...]:
    noise: Part = "-"
    if column.counted is not None and len(column.counted.error):
        noise = f"± {float(np.median(column.counted.error)):.3g}"
    missing = charts.percent(_missing(column)) if column.missing else "-"
    declared = column.declared if len(column.declared) <= _LONGEST else "a longer list"
    return column.name, declared or "-", _in_words(column), missing, len(column.words), noise
