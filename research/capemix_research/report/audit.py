"""The audit's plot: what is claimed and what was measured, setting by setting."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_BOUNDS: Final = (
    ("epsilon", "at least: nothing assumed", "o", "#1f6f8b"),
    ("epsilon_ratio", "at least: noise law as stated", "D", "#7a9e4b"),
    ("epsilon_fit", "Gaussian fit", "x", "#666666"),
)


def draw(table: Path, figure: Path) -> None:
    """A row for every setting of the table; a log scale if the figures are far apart."""
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))[::-1]
    heights = range(len(rows))
    shown, axis = plt.subplots(figsize=(8, 1.6 + 0.3 * len(rows)), layout="constrained")
    claimed = [float(row["claimed"]) for row in rows]
    axis.barh(heights, claimed, height=0.62, color="#f0dcd6", label="claimed", zorder=1)
    axis.scatter(claimed, heights, marker="|", s=150, color="#c8553d", zorder=2)
    for name, label, marker, colour in _BOUNDS:
        values = [float(row[name]) for row in rows]
        marks = axis.scatter(values, heights, marker=marker, s=28, color=colour, label=label)
        marks.set(zorder=3, clip_on=False)  # a mark at 0 is shown whole
    axis.set_yticks(list(heights), [row["name"] for row in rows], fontsize=8)
    axis.set_xlabel("epsilon")
    if max(float(row["epsilon_ratio"]) for row in rows) > 10 * max(claimed):
        axis.set_xscale("symlog", linthresh=10)
    most = max(float(row[name]) for row in rows for name in ("claimed", *(b[0] for b in _BOUNDS)))
    # room for the last mark: more of it where the scale is logarithmic
    axis.set_xlim(0, most * (1.6 if axis.get_xscale() == "symlog" else 1.05))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2, frameon=False, fontsize=8)
    shown.savefig(figure, dpi=130, facecolor="white", metadata={"Software": None})
    plt.close(shown)
