"""The tables of docs/research/images.md, from the experiment's CSV file alone."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from capemix_research.report.markdown import NAMES, table

COLUMNS: Final = tuple((data, epsilon) for data in NAMES for epsilon in ("1.0", "10.0"))
HEADS: Final = tuple(f"{NAMES[data]}, epsilon {float(eps):g}" for data, eps in COLUMNS)

Row = Mapping[str, str]


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main_table(rows: Sequence[Row], peers: Sequence[Row]) -> str:
    """Ours by soft and by hard labels, and what others have published."""
    ours = [row for row in rows if _plain(row) and row["split"] == "stratified"]
    lines = [
        ("**moments+teacher**, its soft labels", *(_mean(ours, "soft", *at) for at in COLUMNS)),
        ("the same rows, hard labels", *(_mean(ours, "hard", *at) for at in COLUMNS)),
    ]
    for method in dict.fromkeys(peer["method"] for peer in peers):
        known = {
            (peer["dataset"], f"{float(peer['epsilon'])}"): peer["accuracy"]
            for peer in peers
            if peer["method"] == method
        }
        lines.append((method, *(known.get(at, "-") for at in COLUMNS)))
    return table(("trained on", *HEADS), lines)


def site_table(rows: Sequence[Row]) -> str:
    """MNIST at epsilon 1 over other numbers of sites and other splits."""
    lines = []
    for sites, split in (
        *((1, "iid"), (10, "stratified"), (10, "iid")),
        *((10, "dirichlet"), (50, "iid"), (50, "dirichlet")),
    ):
        found = [
            row
            for row in rows
            if not row["off"]
            and (row["sites"], row["split"]) == (str(sites), split)
            and row["tested_on"] == "test"
        ]
        if any(row["dataset"] == "mnist" and row["epsilon"] == "1.0" for row in found):
            said = "one curator" if sites == 1 else f"{sites}, {split}"
            lines.append((said, _mean(found, "soft", "mnist", "1.0")))
    return table(("sites", "MNIST, epsilon 1"), lines)


def ablation_table(rows: Sequence[Row]) -> str:
    """Each ingredient left out, beside the whole at the same seeds."""
    left_out = dict.fromkeys(row["off"] for row in rows if row["off"])
    seeds = {row["seed"] for row in rows if row["off"]}
    lines = []
    for off in ("", *left_out):
        found = [
            row
            for row in rows
            if (row["off"], row["split"]) == (off, "stratified") and row["seed"] in seeds
        ]
        lines.append(
            (f"without {off}" if off else "whole", *(_mean(found, "soft", *at) for at in COLUMNS))
        )
    return table(("trained on", *HEADS), lines)


def _plain(row: Row) -> bool:
    return not row["off"] and row["sites"] == "10" and row["tested_on"] == "test"


def _mean(rows: Iterable[Row], column: str, dataset: str, epsilon: str) -> str:
    """Over seeds, with their deviation and their number."""
    found = [
        float(row[column]) for row in rows if (row["dataset"], row["epsilon"]) == (dataset, epsilon)
    ]
    if not found:
        return "-"
    mean = f"{statistics.mean(found):.1f}"
    if len(found) == 1:
        return f"{mean} (1 seed)"
    return f"{mean} ± {statistics.stdev(found):.1f} ({len(found)})"
