"""The paper's own numbers, as printed: ``golden/*.csv``, a line a cell.

``table``, ``panel``, ``row`` and ``column`` are where a number stands; ``accuracy`` is in percent,
and empty where the paper has a dash. Figure 2 has no printed values: its file holds the few that
the text gives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

GOLDEN: Final = Path(__file__).parent / "golden"
