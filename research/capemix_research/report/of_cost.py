"""What it costs: the paper's complexity claim, and our trainer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from capemix_research.report.cells import Row, lines
from capemix_research.report.markdown import table

SIZES: Final = {"samples": "T", "sites": "S", "mixture": "l", "width": "d"}
MEASURES: Final = {
    "additions": "additions",
    "mixing_seconds": "time of mixing and noise",
    "mask_words": "mask words",
    "mask_seconds": "time of the masks",
}
_CLAIMED: Final = {"additions": (1, 1, 1, 1), "mask_words": (1, 2, 0, 1)}


def read(path: Path) -> list[Row]:
    return list(lines(path)) if path.is_file() else []


def exponent(rows: Sequence[Row], varied: str, measure: str) -> float:
    """The slope of log cost against log size, by least squares."""
    points = [
        (math.log(float(r[varied])), math.log(float(r[measure])))
        for r in rows
        if r["varied"] == varied
    ]
    x = sum(p[0] for p in points) / len(points)
    y = sum(p[1] for p in points) / len(points)
    over = sum((p[0] - x) * (p[1] - y) for p in points)
    return over / sum((p[0] - x) ** 2 for p in points)


def complexity(rows: Sequence[Row]) -> str:
    if {r["varied"] for r in rows} != set(SIZES):
        return ""
    base = next(r for r in rows if r["varied"] == "samples" and r["samples"] == "2000")
    body = []
    for varied, letter in SIZES.items():
        found = [f"{exponent(rows, varied, m):.2f}" for m in MEASURES]
        swept = [r[varied] for r in rows if r["varied"] == varied]
        body.append((letter, f"{swept[0]} to {swept[-1]}", *found))
    said = f"{exponent(rows, 'mixture', 'mixing_seconds'):.2f}"
    many = next(r for r in rows if r["varied"] == "sites" and r["sites"] == "32")
    times = float(many["mask_seconds"]) / float(many["mixing_seconds"])
    return f"""## The complexity claim

The paper: `O(T S l d)`, with no additional cost for the correlated noise. Measured on the product's
own path (`capemix-research reproduce complexity`; integer sums, AES noise, ring masks, one core),
one size at a time around `T` = {base["samples"]}, `S` = {base["sites"]}, `l` = {base["mixture"]}
rows from each site, `d` = {base["width"]}. Exponents are least-squares slopes of log cost against
log size; times are CPU time, medians of {base["repeats"]} runs on a machine that had other work to
do, so a tenth either way means nothing.

{table(("size", "from", *MEASURES.values()), body)}
![Cost against each size](figures/reproduction-complexity.png)

Additions grow as claimed, with exponent 1 in each. Their time grows with `l` to the power {said}
only: each number that a site uploads also needs noise, which costs the same for any `l`. The masks
between pairs of sites, which the claim leaves out, grow with the square of `S` and not with `l`:
`O(T S^2 d)`. With 32 sites they take {times:.1f} times as long as everything else ([errata
10](../theory/errata.md#10-the-cost-of-zero-sum-noise)).

"""


def trainer(rows: Sequence[Row]) -> str:
    seconds = "seconds for 100 epochs of a model"
    timed = [r for r in rows if not r["accuracies"]]
    if not timed:
        return ""
    loop = float(timed[0][seconds])
    body = [(r["way"], r["models"], r[seconds], f"{loop / float(r[seconds]):.1f}") for r in timed]
    same = [r for r in rows if r["accuracies"]]
    text = f"""## The trainer

Every cell is a network trained for 100 epochs on 60,000 rows. Many train side by side, in one CUDA
graph and with the convolution block fused; the same rows and seeds on one H200 (`python -m
capemix_research.experiments.trainer`):

{table(("how", "models at once", "seconds a model", "times the loop's speed"), body)}

"""
    if len(same) == 2:
        text += (
            f"Accuracies of four seeds with torch's layers: {same[0]['accuracies']}; fused:"
            f" {same[1]['accuracies']}.\n\n"
        )
    return text
