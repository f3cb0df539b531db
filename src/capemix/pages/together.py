"""How the columns of a release go together, and what was counted by class beside its noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from capemix.evaluate.coding import CodedTable
from capemix.evaluate.fidelity import associations
from capemix.pages import charts
from capemix.pages.columns import records_of
from capemix.pages.figures import Codes, Real, Shown, word
from capemix.pages.html import Html, Part, table, tag
from capemix.pages.told import Told

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_MAPPED: Final = 40
"""Columns of the map of associations."""

_MOST_PAIRS: Final = 20

_MOST_CLASSES: Final = 1_000

_CLEAR: Final = 2.0
"""Deviations of the noise above which a count stands out."""


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


def together(
    told: Told, columns: Sequence[Shown], statistics: Mapping[str, pa.Table]
) -> Iterator[Part]:
    chosen = [each for each in columns if len(each.words) > 1][:_MOST_MAPPED]
    if len(chosen) < 2 or not len(chosen[0].cells):
        return
    measured = _measured(statistics, told.facts.label)
    pairs, correlations = "pairs" in statistics, "correlations" in statistics
    if pairs:
        all_pairs = len(columns) * (len(columns) - 1) // 2
        by_class = ", and those by class in statistics/by_class.parquet"
        by_class = by_class if "by_class" in statistics else ""
        yield tag(
            "p",
            f"{len(measured)} of {all_pairs} pairs of columns were counted with noise, cell by cell"
            f": the counts are in statistics/pairs.parquet{by_class}.",
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
    yield _strongest(chosen, found, measured, statistics, records_of(told, statistics))
    if pairs:
        yield tag(
            "p",
            "“Off the counts” is the total variation between the rows and the noisy counts of the"
            " pair, in its bins; “by noise alone” is what the noise on these counts makes of it on"
            " average, however good the rows are.",
            class_="soft",
        )


def _strongest(
    columns: Sequence[Shown],
    found: Real,
    measured: set[frozenset[str]],
    statistics: Mapping[str, pa.Table],
    records: float | None,
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
        if "pairs" in statistics:
            line += _beside_counts(columns[left], columns[right], statistics, records)
        if correlated:
            line += (correlated.get(both, "-"),)
        rows.append(line)
    head = ["pair", "in the rows"]
    head += ["counted"] if measured else []
    head += ["off the counts", "by noise alone"] if "pairs" in statistics else []
    head += ["measured within classes"] if correlated else []
    return table(f"The {len(rows)} strongest pairs", head, rows, numbers=range(1, len(head)))


def _beside_counts(
    one: Shown, other: Shown, statistics: Mapping[str, pa.Table], records: float | None
) -> tuple[str, str]:
    """How far the rows are off the noisy counts of a pair, and how far noise alone would be."""
    for left, right in ((one, other), (other, one)):
        found = _counts_of(left, right, statistics)
        if found is None:
            continue
        places, (counts, errors), rows_at = found
        shape = tuple(
            int(max(a.max(), b.max(initial=0))) + 1 for a, b in zip(places, rows_at, strict=True)
        )
        rows, counted = np.zeros(shape), np.zeros(shape)
        counted[places] = counts
        np.add.at(rows, rows_at, 1.0 / max(len(rows_at[0]), 1))
        total = max(float(counts.sum()) if records is None else records, 1.0)
        apart = float(np.abs(rows - counted / total).sum() / 2)
        # Half of what a normal deviate is off on average, cell by cell.
        return f"{apart:.3f}", f"{float(errors.sum()) / total / math.sqrt(2 * math.pi):.3f}"
    return "-", "-"


def _counts_of(
    left: Shown, right: Shown, statistics: Mapping[str, pa.Table]
) -> tuple[tuple[Codes, Codes], tuple[Real, Real], tuple[Codes, Codes]] | None:
    """Of two columns, or of one and the label: the cells that were counted together, their counts
    with the errors, and the cell of each row."""
    import pyarrow.compute as pc

    if "bin" in left.joined and "bin" in right.joined:
        counts = statistics["pairs"]
        pair = pc.equal(counts["column"], left.name), pc.equal(counts["other_column"], right.name)
        own = counts.filter(pc.and_(*pair))
        cells = own["bin"].to_numpy(), own["other_bin"].to_numpy()
        rows = left.joined["bin"], right.joined["bin"]
    elif "slice" in left.joined and "by_class" in statistics:
        counts = statistics["by_class"]
        own = counts.filter(pc.equal(counts["column"], left.name))
        classes = {name: at for at, name in enumerate(right.words)}
        codes = [classes.get(str(word(each)), -1) for each in own["class"].to_pylist()]
        cells = own["slice"].to_numpy(), np.array(codes, dtype=np.int64)
        rows = left.joined["slice"], right.cells
    else:
        return None
    if not len(own) or min(map(int, cells[1])) < 0:  # nothing, or of a column that is no label
        return None
    return cells, (own["count"].to_numpy(), own["standard_error"].to_numpy()), rows


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


def classes(
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
    shown = lines[:_MOST_CLASSES]
    yield table("Classes", head, shown, numbers=range(1, len(head)))


def _slices(statistics: Mapping[str, pa.Table]) -> dict[str, tuple[str, str]]:
    """Of each class: how many counts of slices there are, and which part is above the noise."""
    if "by_class" not in statistics:
        return {}
    own = statistics["by_class"]
    names = np.array([str(each) for each in own["class"].to_pylist()], dtype=object)
    clear = own["count"].to_numpy() > _CLEAR * own["standard_error"].to_numpy()
    found: dict[str, tuple[str, str]] = {}
    for name in dict.fromkeys(names.tolist()):
        mine = names == name
        found[name] = (str(int(mine.sum())), charts.percent(float(clear[mine].mean())))
    return found
