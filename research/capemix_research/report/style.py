"""How all figures look."""

from __future__ import annotations

from typing import Any, Final

OURS, THEIRS, THIRD, GREY = "#1f6f8b", "#c8553d", "#7a9e4b", "#666666"
STYLE: Final[dict[Any, Any]] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "savefig.dpi": 130,
    "savefig.facecolor": "white",
}
