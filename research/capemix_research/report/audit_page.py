"""The audit's tables for the documents, from its CSV files alone."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

_SOUND: Final = {
    "setting": "{name}",
    "scheme": "{scheme}",
    "l": "{mixture}",
    "T_k": "{draws}",
    "q": "{rate}",
    "S": "{sites}",
    "colluding, missing": "{colluding}, {missing}",
    "delta": "{delta}",
    "claimed": "{claimed}",
    "at least": "{epsilon}",
    "by its law": "{epsilon_ratio}",
    "Gaussian fit": "{epsilon_fit}",
    "runs": "{runs}",
}
_PAPER: Final = {
    "setting": "{name}",
    "claimed": "{claimed}",
    "at least": "{epsilon}",
    "the most that counts could show": "{most}",
    "by its law": "{epsilon_ratio}",
    "Gaussian fit": "{epsilon_fit}",
    "holds": "{exact}",
    "power": "{power_ratio}",
    "would catch": "{caught}",
    "runs with, without": "{runs}, {runs_without}",
}
_ROUNDED: Final = (
    "claimed",
    "epsilon",
    "epsilon_ratio",
    "epsilon_fit",
    "most",
    "power_ratio",
    "rate",
    "exact",
    "caught",
)


def sound_table(path: Path) -> str:
    return _table(path, _SOUND)


def paper_table(path: Path) -> str:
    return _table(path, _PAPER)


def _table(path: Path, columns: dict[str, str]) -> str:
    with path.open(newline="") as file:
        rows = [_rounded(row) for row in csv.DictReader(file)]
    lines = [list(columns), ["---"] * len(columns)]
    lines += [[cell.format(**row) for cell in columns.values()] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _rounded(row: dict[str, str]) -> dict[str, str]:
    return row | {name: f"{float(row[name]):.3g}" if row[name] else "-" for name in _ROUNDED}
