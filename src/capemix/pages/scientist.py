"""The second part of a report: what the rows are like, beside the noise in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from capemix.pages.columns import columns_of
from capemix.pages.figures import Shown
from capemix.pages.html import Html, section
from capemix.pages.pictures import images
from capemix.pages.together import classes, together
from capemix.pages.told import Told

if TYPE_CHECKING:
    import pyarrow as pa


def sections(
    told: Told, columns: Sequence[Shown], statistics: Mapping[str, pa.Table], folder: Path
) -> Iterator[tuple[str, str, Html]]:
    """Keys, titles and sections, in order; those that have nothing to say are left out."""
    made = [
        ("images", "Images by class", images(folder, told.facts)),
        ("columns", "Columns", columns_of(told, columns, statistics)),
        ("pairs", "How columns go together", together(told, columns, statistics)),
        ("classes", "Noise against signal, by class", classes(told, columns, statistics)),
    ]
    for key, title, parts in made:
        found = list(parts)
        if found:
            yield key, title, section(3, title, *found, key=key)
