"""The page: written from files alone, the same files giving the same page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from capemix.errors import InputError
from capemix_research.report import compare, of_cost, of_grid, of_privacy, of_sites, of_tables
from capemix_research.report.cells import PAPERS_TRAINING, Printed, Row, Runs, lines, printed
from capemix_research.report.compare import NEAR, pick, within
from capemix_research.report.markdown import NAMES, listed, of, wrapped

TABLES: Final = ("table1", "figure2", "table2")


def write_report(results: Path, golden: Path) -> Path:
    """Write ``<results>.md`` beside the folder of results, and its figures; returns the page."""
    try:
        from capemix_research.report.figures import draw
    except ModuleNotFoundError:
        raise InputError(
            "matplotlib",
            "is not installed, and the report has figures",
            fix="install it with pip install 'capemix-research[plot]'",
        ) from None

    page = results.parent / f"{results.name}.md"
    page.write_text(page_text(results, golden))
    runs = Runs.read(results / "runs.csv", PAPERS_TRAINING)
    numbers = {table: printed(golden, table) for table in TABLES}
    draw(runs, numbers, of_cost.read(results / "complexity.csv"), results.parent / "figures")
    return page


def page_text(results: Path, golden: Path) -> str:
    runs = Runs.read(results / "runs.csv", PAPERS_TRAINING)
    numbers = {table: printed(golden, table) for table in TABLES}
    truths = of_privacy.truths(results / "truth.csv")
    sections = (
        _head(runs),
        _in_short(runs, numbers),
        _ASSUMED,
        of_tables.without_noise(runs, numbers["table1"], _if_there(results / "preparation.csv")),
        of_tables.table1(runs, numbers["table1"]),
        of_sites.figure2(runs, numbers["figure2"]),
        of_tables.table2(runs, numbers["table2"]),
        of_grid.grid(runs, numbers["table1"]),
        of_privacy.true_epsilons(truths),
        of_privacy.accuracy_at_sound_ten(runs, numbers["table1"]),
        of_cost.complexity(of_cost.read(results / "complexity.csv")),
        of_cost.trainer(of_cost.read(results / "trainer.csv")),
    )
    return wrapped("".join(sections)).rstrip("\n") + "\n"


def _if_there(path: Path) -> list[Row]:
    return list(lines(path)) if path.is_file() else []


def _head(runs: Runs) -> str:
    by = Counter(row["provenance"] for row in runs.rows)
    where = "; ".join(f"{count} at commit {name}" for name, count in sorted(by.items()))
    minutes = sum(float(row["seconds"]) for row in runs.rows) / 60
    return f"""# The paper, reproduced and judged

Written by `capemix-research reproduce report` from the files in [reproduction/](reproduction/): do
not edit it. The paper's numbers are in files such as
[table1.csv](../../research/capemix_research/experiments/golden/table1.csv), a line a cell.
Accuracies are in percent, on the test images; *a ± b* is a mean over seeds and their standard
deviation, a number alone is one seed, and a dash is not there. *Difference* is ours less the
paper's, in points, bold beyond {NEAR:.0f}.

Lines of `runs.csv` and `preparation.csv` say at which commit, with which torch and on which device
they were made. `noise.csv` and `truth.csv` are the accountants' and can be computed again anywhere.
`complexity.csv` and `trainer.csv` were measured once, by the commands that their sections name;
they say neither commit nor machine.

{len(runs.rows)} models, {minutes:.0f} minutes of training ({where}). To run it again, or on:

    capemix-research reproduce all --device cuda --seeds 3
    capemix-research reproduce report

"""


def _in_short(runs: Runs, numbers: dict[str, list[Printed]]) -> str:
    every = compare.table1(runs, numbers["table1"])
    noiseless = pick(every, epsilon="inf")
    figure2 = compare.figure2(runs, numbers["figure2"])
    written = compare.table1(runs, numbers["table1"], "algorithm1")
    text = f"""## In short

- **Without noise {of(*within(noiseless))} cells of Table 1 are within {NEAR:.0f} points.**
- **Panel (a) of Table 1 is consistent with central mixing, not with Algorithm 1.** Without noise,
Algorithm 1 as written is near panel (a) in
  {of(*within(pick(written, epsilon="inf", panel="a")))} cells and near panel (b) in
  {of(*within(pick(every, epsilon="inf", panel="b")))}; central mixing is near (a) in
  {of(*within(pick(every, epsilon="inf", panel="a")))}.
- **With noise few are**, under `T = 60000`, `c = 1`, labels noised and the theorem as corrected:
  {of(*within([c for c in every if c.paper.epsilon != "inf"]))} cells of Table 1,
  {of(*within([c for c in figure2 if c.paper.epsilon != "inf"]))} values of Figure 2's text and
  {of(*within(compare.table2(runs, numbers["table2"])))} cells of Table 2.
"""
    columns = [
        (panel, epsilon, of_grid.tried(runs, numbers["table1"], panel, (epsilon,)))
        for panel in "ab"
        for epsilon in of_grid.EPSILONS
    ]
    if all(len(found) == len(of_grid.assumptions(panel)) for panel, _, found in columns):
        reached = [
            f"({panel}) at {epsilon}"
            for panel, epsilon, found in columns
            if any(one.near == len(one.cells) for one in found)
        ]
        said = listed(reached) if reached else "none"
        text += (
            f"- **What is unstated, searched**: of the four noisy columns on MNIST, {said} can be\n"
            "  brought within reach by a set of assumptions of the search.\n"
        )
    best = {d: of_privacy.best_at_sound_ten(runs, d) for d in NAMES}
    tops = [f"{top.accuracy:.1f} on {NAMES[d]}" for d, top in best.items() if top is not None]
    if tops:
        tried = of_privacy.tried_at_sound_ten(list(best.values()))
        text += (
            "- **With the sound accountant's noise for 10** (a record added or removed, the server"
            " and\n"
            f"  3 of 10 sites) the joint form reaches {listed(tops)}: the best on the test images\n"
            f"  out of {tried}. The sites' own normalisation is not paid for, so none of this has"
            " a\n  true epsilon of 10 as a whole.\n"
        )
    return text + "\n"


_ASSUMED: Final = """## What is assumed

The paper gives the network, Adam at 1e-5, 100 epochs, `S`, `l` and epsilon. Ours, where it is
silent: `T = 60000` rows, the last incomplete batch of 128 left to another epoch, delta 1e-5,
`c = 1` after z-scores by each site's own mean and deviation, classes dealt out evenly over sites,
test images normalised by the pooled training images and clipped alike. With noise: labels noised
and decoded as the paper says, Theorem 1 with `B(2 ceil(j/2))` ([errata
12](../theory/errata.md#12-the-second-factor-under-the-root)), its `TAU` on the
released row for CAPE and
`sqrt(S) TAU` for the conventional scheme ([errata
9](../theory/errata.md#9-the-noise-of-the-conventional-scheme)). The randomness is
torch's, on public data:
nothing here is a release.

"""
