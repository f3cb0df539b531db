"""The second part of a report: what the rows are like, beside the noise in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from capemix.evaluate.coding import CodedTable
from capemix.evaluate.fidelity import associations
from capemix.report import charts
from capemix.report.figures import Real, Shown
from capemix.report.html import Html, Part, details, section, table, tag
from capemix.report.pictures import images
from capemix.report.told import Told

if TYPE_CHECKING:
    import pyarrow as pa

MOST_CHARTS: Final = 80
"""Columns that are drawn; of the others there is a line of figures."""

MOST_LINES: Final = 1_000
"""Columns of which there is a line."""

_MOST_WORDS: Final = 24
"""Of a list that are drawn; the others are added up."""

_MOST_MAPPED: Final = 40
"""Columns of the map of associations."""

_MOST_PAIRS: Final = 20

_REACH: Final = 2.0
"""Deviations of the noise that a band reaches either way: it holds 95 of 100."""


def sections(
    told: Told, columns: Sequence[Shown], statistics: Mapping[str, pa.Table], folder: Path
) -> Iterator[tuple[str, str, Html]]:
    """Keys, titles and sections, in order; those that have nothing to say are left out."""
    records = _records(told, statistics)
    made = [
        ("images", "Images by class", images(folder, told.facts)),
        ("columns", "Columns", _columns(told, columns, records)),
        ("pairs", "How columns go together", _together(told, columns, statistics)),
        ("classes", "Noise against signal, by class", _classes(told, columns, statistics)),
    ]
    for key, title, parts in made:
        found = list(parts)
        if found:
            yield key, title, section(3, title, *found, key=key)


def _records(told: Told, statistics: Mapping[str, pa.Table]) -> float | None:
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


def _columns(told: Told, columns: Sequence[Shown], records: float | None) -> Iterator[Part]:
    facts = told.facts
    if facts.image_shape is not None:
        yield tag("p", f"The {len(facts.features)} pixels are columns, too: see the images.")
    if not columns:
        return
    counted = any(each.counted is not None for each in columns)
    swatches = [("accent", "synthetic rows")]
    if counted:
        swatches += [
            ("noise", "noisy counts of the records, which the rows were made of"),
            ("band", "the noise on them: in 95 of 100 cases the truth lies in the band"),
        ]
    yield tag(
        "ul",
        *(
            tag("li", tag("i", style=f"background:var(--{colour})", aria_hidden="true"), said)
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
            "Cells of numbers were joined for these drawings; the finest are in"
            " statistics/columns.parquet.",
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
    head = ("column", "synthetic rows", "missing", "cells", "noise on a cell")
    shown = table(caption, head, rows, numbers=(2, 3, 4))
    yield shown if len(columns) > MOST_CHARTS else details(caption, shown)


def _figure(column: Shown, records: float | None) -> Html:
    bars, words = bars_of(column, records), column.words
    title = tag("h4", column.name)
    if not words:
        return tag("figure", title, tag("figcaption", "No row has a value."))
    noise = ""
    if bars.reach is not None and len(bars.reach):
        noise = f" Noise reaches {charts.percent(float(np.median(bars.reach)))} either way."
    says = f"{column.name}: {_in_words(column)}.{noise}"
    if column.numeric:
        drawn = charts.histogram(bars, _ticks(column), says)
    else:
        bars, words = _largest(bars, words)
        drawn = charts.columns_of_words(bars, words, says)
    return tag(
        "figure",
        title,
        drawn,
        tag("figcaption", f"{_in_words(column)}.{noise}"),
        details("Figures", _cells(column, records)),
    )


def _largest(bars: charts.Bars, words: Sequence[str]) -> tuple[charts.Bars, list[str]]:
    """The words that most rows have, and all others together."""
    if len(words) <= _MOST_WORDS:
        return bars, list(words)
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
    return column.name, _in_words(column), missing, len(column.words), noise


def _table_of(columns: Sequence[Shown]) -> CodedTable:
    """The rows as they are compared."""
    return CodedTable(
        names=tuple(each.name for each in columns),
        sizes=tuple(max(len(each.words), 1) + 1 for each in columns),
        numeric=tuple(each.numeric for each in columns),
        cells=np.column_stack([each.cells for each in columns]),
        values=np.column_stack(
            [each.cells.astype(float) if each.values is None else each.values for each in columns]
        ),
    )


def _together(
    told: Told, columns: Sequence[Shown], statistics: Mapping[str, pa.Table]
) -> Iterator[Part]:
    chosen = [each for each in columns if len(each.words) > 1][:_MOST_MAPPED]
    if len(chosen) < 2 or not len(chosen[0].cells):
        return
    measured = _measured(statistics, told.facts.label)
    pairs, correlations = "pairs" in statistics, "correlations" in statistics
    if pairs:
        all_pairs = len(columns) * (len(columns) - 1) // 2
        yield tag(
            "p",
            f"{len(measured)} of {all_pairs} pairs of columns were counted with noise, cell by cell"
            ": the counts are in statistics/pairs.parquet, and those by class in"
            " statistics/by_class.parquet.",
        )
    elif correlations:
        yield tag(
            "p",
            "No pairs were counted. Correlations were measured with noise, within classes; they"
            " are in statistics/correlations.parquet.",
        )
    else:
        yield tag("p", "No pair of columns was counted by itself for this release.")
    found = associations(_table_of(chosen))
    names = [each.name for each in chosen]
    values = found.copy()
    np.fill_diagonal(values, np.nan)
    says = (
        f"Map of how {len(names)} columns go together in the synthetic rows; the strongest pairs"
        " are in the table below"
    )
    caption = (
        "Associations in the synthetic rows: of two numbers the correlation (blue above 0, violet"
        " below), of others Cramér's V, from 0 to 1. The darker, the stronger."
    )
    if len(columns) > len(chosen):
        caption += f" {len(chosen)} of {len(columns)} columns are shown."
    yield tag("figure", charts.shades(names, values, says), tag("figcaption", caption))
    yield _strongest(chosen, found, measured, statistics)


def _strongest(
    columns: Sequence[Shown],
    found: Real,
    measured: set[frozenset[str]],
    statistics: Mapping[str, pa.Table],
) -> Html:
    pairs = list(itertools.combinations(range(len(columns)), 2))
    pairs.sort(key=lambda pair: -abs(float(found[pair])))
    names = [each.name for each in columns]
    correlated = _correlations(statistics)
    rows: list[tuple[Part, ...]] = []
    for left, right in pairs[:_MOST_PAIRS]:
        both = frozenset((names[left], names[right]))
        line: tuple[Part, ...] = (
            f"{names[left]} and {names[right]}",
            f"{found[left, right]:.2f}",
        )
        if measured:
            line += ("yes" if both in measured else "no",)
        if correlated:
            line += (correlated.get(both, "-"),)
        rows.append(line)
    head = ["pair", "in the rows"]
    head += ["counted"] if measured else []
    head += ["measured within classes"] if correlated else []
    return table(f"The {len(rows)} strongest pairs", head, rows, numbers=range(1, len(head)))


def _measured(statistics: Mapping[str, pa.Table], label: str | None) -> set[frozenset[str]]:
    """Pairs of columns whose values were counted together, those with the label among them."""
    found: set[frozenset[str]] = set()
    if "pairs" in statistics:
        own = statistics["pairs"].group_by(["column", "other_column"]).aggregate([])
        both = zip(own["column"].to_pylist(), own["other_column"].to_pylist(), strict=True)
        found |= {frozenset(pair) for pair in both}
    if "by_class" in statistics and label is not None:
        by_class = dict.fromkeys(statistics["by_class"]["column"].to_pylist())
        found |= {frozenset((name, label)) for name in by_class}
    return found


def _correlations(statistics: Mapping[str, pa.Table]) -> dict[frozenset[str], str]:
    """Of columns as they are summed, where they are called as they are in the file."""
    if "correlations" not in statistics:
        return {}
    own = statistics["correlations"].to_pylist()
    return {
        frozenset((each["column"], each["other_column"])): (
            f"{each['correlation']:.2f} ± {each['standard_error']:.2f}"
        )
        for each in own
        if each["correlation"] is not None and each["correlation"] == each["correlation"]
    }


def _classes(
    told: Told, columns: Sequence[Shown], statistics: Mapping[str, pa.Table]
) -> Iterator[Part]:
    facts = told.facts
    label = next((each for each in columns if each.name == facts.label), None)
    if label is None:
        return
    rows = label.rows
    counted = label.counted
    slices = _slices(statistics)
    lines: list[tuple[Part, ...]] = []
    for at, name in enumerate(label.words):
        line: tuple[Part, ...] = (name, f"{rows[at]:,.0f}")
        if counted is not None:
            count, error = float(counted.count[at]), float(counted.error[at])
            part = charts.percent(error / count) if count > error else "all of it"
            line += (f"{count:,.0f}", f"± {error:.3g}", part)
        if slices:
            line += slices.get(name, ("-", "-"))
        lines.append(line)
    head = ["class", "synthetic rows"]
    if counted is not None:
        head += ["records, as counted", "noise", "noise in it"]
    else:
        yield tag(
            "p",
            "The sizes of the classes were declared, so nothing was measured of them."
            if facts.class_sizes is not None
            else "No counts by class were released.",
        )
    if slices:
        head += ["values counted by class", "of which stand out"]
        yield tag(
            "p",
            "Each column's values were also counted by class. A count stands out if it is more than"
            " two deviations of the noise above zero.",
        )
    shown = lines[:MOST_LINES]
    yield table("Classes", head, shown, numbers=range(1, len(head)))


def _slices(statistics: Mapping[str, pa.Table]) -> dict[str, tuple[str, str]]:
    """Of each class: how many counts of slices there are, and which part is above the noise."""
    if "by_class" not in statistics:
        return {}
    own = statistics["by_class"]
    names = np.array([str(each) for each in own["class"].to_pylist()], dtype=object)
    clear = own["count"].to_numpy() > _REACH * own["standard_error"].to_numpy()
    found: dict[str, tuple[str, str]] = {}
    for name in dict.fromkeys(names.tolist()):
        mine = names == name
        found[name] = (str(int(mine.sum())), charts.percent(float(clear[mine].mean())))
    return found
