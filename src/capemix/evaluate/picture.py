"""What `Measures` say, as a picture: each column, each pair of columns, and what goes together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from capemix.evaluate.measures import Measures

_RELEASE, _FLOOR = "#1f6f8b", "#bbbbbb"
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a column may be called what it likes
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "capemix",  # the same figures give the same bytes
}
_MOST_NAMED: Final = 40
"""Columns whose names can be read beside each other."""


def draw(found: Measures, file: Path, note: str | None = None) -> None:
    """Write an SVG file, by matplotlib. ``note`` stands under the picture."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    release = found.release.fidelity
    floor = None if found.floor is None else found.floor.fidelity
    names = list(release.names)
    side = 2.2 + 0.16 * min(len(names), _MOST_NAMED)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(3 * side + 1.5, side + 0.8), layout="constrained")
        bars, pairs, together = figure.subplots(1, 3)
        places = np.arange(len(names))
        bars.barh(places, release.columns, color=_RELEASE, height=0.7, label="release")
        if floor is not None:
            bars.barh(places, floor.columns, color=_FLOOR, height=0.3, label="real rows")
            bars.legend(frameon=False, loc="lower right")
        bars.set(title="each column: total variation", xlim=(0, None))
        bars.set_yticks(places, names)
        bars.invert_yaxis()
        # Below the diagonal the release, above it the floor, so that like is beside like.
        both = np.tril(np.array(release.pairs))
        title = "pairs: total variation"
        if floor is not None:
            both += np.triu(np.array(floor.pairs))
            title = "pairs: below the release, above real rows"
        shade = pairs.imshow(both, cmap="magma_r", vmin=0.0, aspect="auto")
        figure.colorbar(shade, ax=pairs, shrink=0.7)
        pairs.set(title=title)
        apart = np.array(release.associations)
        most = max(0.1, float(np.abs(apart).max()))
        shade = together.imshow(apart, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
        figure.colorbar(shade, ax=together, shrink=0.7)
        together.set(title="correlations: release less real rows")
        for axis in (pairs, together):
            if len(names) <= _MOST_NAMED:
                axis.set_xticks(places, names, rotation=90, fontsize=7)
                axis.set_yticks(places, names, fontsize=7)
        if len(names) > _MOST_NAMED:
            bars.set_yticks([])
        if note is not None:
            figure.supxlabel(note, fontsize=8)
        # No date: the same figures give the same bytes.
        figure.savefig(file, format="svg", metadata={"Date": None})
