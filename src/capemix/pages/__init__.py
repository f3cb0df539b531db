"""The report of a release: one page, made of the release's own folder and of nothing else."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

from capemix.manifest import Manifest
from capemix.pages import officer, scientist
from capemix.pages.columns import MOST_LINES
from capemix.pages.figures import shown
from capemix.pages.html import section
from capemix.pages.page import page
from capemix.pages.told import REPORT, Told

__all__ = ["REPORT", "report_of", "write_report"]

_TITLE: Final = "Report of a synthetic release"


def report_of(folder: Path, manifest: Manifest) -> str:
    """The text of `report.html`. The same folder gives the same bytes."""
    return _page(folder, Told.of(manifest))


def _page(folder: Path, told: Told) -> str:
    from pyarrow import parquet

    facts = told.facts
    statistics = {
        path.stem: parquet.read_table(path) for path in sorted(folder.glob("statistics/*.parquet"))
    }
    named = [] if facts.image_shape is not None else list(facts.features[:MOST_LINES])
    if facts.label is not None:
        named.append(facts.label)
    rows = parquet.read_table(folder / "synthetic.parquet", columns=named)
    columns = list(shown(facts, named, rows, statistics))
    first = list(officer.sections(told))
    second = list(scientist.sections(told, columns, statistics, folder))
    parts = (
        ("officer", "For the privacy officer", first),
        ("scientist", "For the data scientist", second),
    )
    contents = [
        each for key, title, own in parts for each in [(key, title), *((k, t) for k, t, _ in own)]
    ]
    return page(
        _TITLE,
        (officer.status(told), officer.cards(told)),
        contents,
        *(
            section(2, title, *(each for _, _, each in own), key=key, class_="part")
            for key, title, own in parts
        ),
    )


def write_report(folder: Path, manifest: Manifest) -> None:
    """Beside the files that the manifest describes. What was paid for is not lost to a page: where
    one cannot be made, that is said, and the release is written without it."""
    told = Told.of(manifest)  # which refuses a manifest with a private value in it
    try:
        made = _page(folder, told)
    except Exception as error:
        what = type(error).__name__
        warnings.warn(f"{REPORT} could not be made ({what}): the release has none", stacklevel=2)
        return
    (folder / REPORT).write_text(made, "utf-8")
