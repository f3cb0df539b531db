"""Pieces of a page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from capemix_research.report.cells import Sample
from capemix_research.report.compare import Compared

NOTHING = "-"
NAMES = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def said(sample: Sample | None) -> str:
    return NOTHING if sample is None else str(sample)


def difference(cell: Compared) -> str:
    """Signed, in points; bold where it is not near."""
    if cell.difference is None:
        return NOTHING
    text = f"{cell.difference:+.1f}"
    return text if cell.near else f"**{text}**"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


def of(near: int, both: int) -> str:
    return f"{near} of {both}"


def budget(epsilon: str) -> str:
    return "infinity" if epsilon == "inf" else epsilon


def seeds(cells: Iterable[Sample | None]) -> str:
    """How many seeds the cells that are there have."""
    found = sorted({cell.seeds for cell in cells if cell is not None})
    if not found:
        return "no seed yet"
    most = f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"
    return f"{most} seed" + ("" if found == [1] else "s")


def listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def wrapped(page: str) -> str:
    """Paragraphs and list items broken at 100 characters; all else is left as it is."""
    done = []
    for part in page.split("\n\n"):
        if part.lstrip("\n")[:1] in ("|", "#", "!") or part.lstrip("\n").startswith("    "):
            done.append(part)
            continue
        items = part.replace("\n  ", " ").split("\n- ") if part.startswith("- ") else [part]
        items = [item if not i else f"- {item}" for i, item in enumerate(items)]
        done.append("\n".join(_filled(item) for item in items))
    return "\n\n".join(done)


def _filled(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    # Code and the words of a link stay on one line.
    text = re.sub(
        r"`[^`]*`|\[[^\]]*\]\(", lambda m: "\0".join(m[0].split()), " ".join(text.split())
    )
    filled = textwrap.fill(
        text,
        100,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\0", " ")
