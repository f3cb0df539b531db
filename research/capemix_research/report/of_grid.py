"""The bounded search over what the paper leaves unstated."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from capemix_research.report.cells import Printed, Runs, Sample
from capemix_research.report.compare import NEAR, Compared
from capemix_research.report.markdown import listed, of, table

MIXTURES: Final = ("1", "4", "32", "512")
EPSILONS: Final = ("20", "10")
_UNSTATED: Final = tuple(
    product(("6000", "60000"), ("1", "5", "28"), ("True", "False"), ("printed", "theorem1"))
)
RELEASED: Final = {
    "matched": "`TAU`",
    "sites": "`sqrt(S) TAU`",
    "own": "what a site needs at its own rate",
}
"""The noise that the conventional scheme releases."""


@dataclass(frozen=True)
class Assumed:
    """One answer to everything that is not stated, for one panel."""

    panel: str
    samples: str
    clip: str
    labels_noised: str
    accountant: str
    site_noise: str = ""

    def __str__(self) -> str:
        theorem = {"printed": "theorem as printed", "theorem1": "theorem as corrected"}
        parts = [
            f"T = {self.samples}",
            f"c = {self.clip}",
            "labels noised" if self.labels_noised == "True" else "labels as they are",
            theorem.get(self.accountant, "sound at a site's own rate"),
        ]
        noise = {"matched": "released noise TAU", "sites": "released noise sqrt(S) TAU"}
        if self.site_noise in noise:
            parts.append(noise[self.site_noise])
        return ", ".join(parts)


def assumptions(panel: str) -> list[Assumed]:
    if panel == "a":
        return [Assumed("a", *unstated) for unstated in _UNSTATED]
    theorems = [Assumed("b", *u, noise) for u in _UNSTATED for noise in ("matched", "sites")]
    own = [Assumed("b", *u[:3], "sound", "own") for u in _UNSTATED if u[3] == "theorem1"]
    return theorems + own


@dataclass(frozen=True)
class Tried:
    """A set of assumptions with its cells of one column or more."""

    assumed: Assumed
    cells: tuple[Compared, ...]

    @property
    def near(self) -> int:
        return sum(cell.near for cell in self.cells)

    @property
    def error(self) -> float:
        """Mean distance from the paper's, in points."""
        apart = [cell.difference for cell in self.cells if cell.difference is not None]
        return statistics.fmean(abs(points) for points in apart)


def tried(
    runs: Runs, cells: Sequence[Printed], panel: str, epsilons: Sequence[str] = EPSILONS
) -> list[Tried]:
    """Complete sets only, nearest first."""
    wanted = _wanted(cells, panel, epsilons)
    found = []
    for assumed in assumptions(panel):
        compared = tuple(Compared(cell, _sample(runs, assumed, cell)) for cell in wanted)
        if all(cell.ours is not None for cell in compared):
            found.append(Tried(assumed, compared))
    return sorted(found, key=lambda one: (one.error, str(one.assumed)))


def _wanted(cells: Sequence[Printed], panel: str, epsilons: Sequence[str]) -> list[Printed]:
    return [
        cell
        for epsilon, mixture in product(epsilons, MIXTURES)
        for cell in cells
        if (cell.panel, cell.dataset, cell.epsilon, cell.mixture)
        == (panel, "mnist", epsilon, mixture)
    ]


def _sample(runs: Runs, assumed: Assumed, cell: Printed) -> Sample | None:
    return runs.of(
        dataset="mnist",
        method="central" if assumed.panel == "a" else "conventional",
        sites=1 if assumed.panel == "a" else 10,
        mixture=cell.mixture,
        epsilon=cell.epsilon,
        samples=assumed.samples,
        clip=assumed.clip,
        labels_noised=assumed.labels_noised,
        accountant=assumed.accountant,
        site_noise=assumed.site_noise,
    )


def least_by_noise(runs: Runs, cells: Sequence[Printed]) -> dict[str, float]:
    """The least mean distance from panel (b) for each released noise; empty until all are run."""
    found = tried(runs, cells, "b")
    if len(found) < len(assumptions("b")):
        return {}
    return {
        noise: min(one.error for one in found if one.assumed.site_noise == noise)
        for noise in RELEASED
    }


def _paid_for_labels() -> str:
    """What Theorem 1's 2c^2 + 1 adds to the noise where labels need none: its root over 2c^2's."""
    more = [(c, 100.0 * (math.sqrt(1 + 1 / (2 * c * c)) - 1)) for c in (1, 5, 28)]
    return listed([f"{percent:.0f} % at `c = {c}`" for c, percent in more])


def _searched(runs: Runs, cells: Sequence[Printed]) -> str:
    """How many settings of the search have been run, and on how many seeds."""
    ours = [
        _sample(runs, assumed, cell)
        for panel in "ab"
        for assumed in assumptions(panel)
        for cell in _wanted(cells, panel, EPSILONS)
    ]
    run = [sample for sample in ours if sample is not None]
    more = sum(sample.seeds > 1 for sample in run)
    also = f" ({more} of them, which other tables have as well, on more)" if more else ""
    return f"{of(len(run), len(ours))} settings run, on one seed{also}"


def grid(runs: Runs, cells: Sequence[Printed]) -> str:
    intro = f"""## What is not stated, searched

On MNIST: `T` in {{6000, 60000}}, `c` in {{1, 5, 28}}, labels noised or not, the theorem as printed
or as corrected, at `l` in {{1, 4, 32, 512}}. Panel (a) is central mixing here, so that draws are of
a fixed size as in the paper; panel (b) is averages of ten sites' mixtures, with three noises on the
released row ({listed(list(RELEASED.values()))}). {_searched(runs, cells)}.

Labels left as they are need no noise, yet with either theorem they keep the noise that pays for
them, the 1 in `2c^2 + 1`: {_paid_for_labels()} more than needed. A site's own noise is without it,
and goes with Poisson draws.

"""
    columns = [(p, e, tried(runs, cells, p, (e,))) for p, e in product("ab", EPSILONS)]
    if not any(found for _, _, found in columns):
        return intro + "Not run yet.\n\n"
    lines = []
    for panel, epsilon, found in columns:
        if not found:
            continue
        whole = sum(1 for one in found if one.near == len(one.cells))
        best = found[0]
        said = ", ".join(
            f"{c.ours.mean:.1f} ({c.paper.accuracy:.1f})" for c in best.cells if c.ours is not None
        )
        lines.append(
            (
                f"({panel}) {epsilon}",
                f"{len(found)} of {len(assumptions(panel))}",
                whole,
                max(one.near for one in found),
                best.assumed,
                f"{best.error:.1f}",
                said,
            )
        )
    head = (
        "column",
        "sets run",
        f"sets with all four within {NEAR:.0f}",
        "most within",
        "nearest set",
        "mean distance",
        "its cells at l = 1, 4, 32, 512 (paper's)",
    )
    text = intro + table(head, lines) + "\n" + _verdict(columns)
    both = [tried(runs, cells, panel) for panel in "ab"]
    if max(len(found) for found in both) > 1:
        text += "![The search, nearest sets first](figures/reproduction-grid.png)\n\n"
    if all(len(f) == len(assumptions(p)) for p, f in zip("ab", both, strict=True)):
        text += _by_assumption(both)
    for panel, found in zip("ab", both, strict=True):
        if len(found) > 1:
            best = found[0]
            text += (
                f"For both budgets of panel ({panel}) together the nearest set is: {best.assumed};"
                f" {best.near} of {len(best.cells)} cells within {NEAR:.0f} points,"
                f" {best.error:.1f} away on average.\n"
            )
    return text + "\n"


_NAMED: Final = {
    "samples": "T",
    "clip": "c",
    "labels_noised": "labels noised",
    "accountant": "accountant",
    "site_noise": "released noise",
}


def _by_assumption(both: Sequence[Sequence[Tried]]) -> str:
    """What each answer alone does: the mean distance of all sets that have it, and the least."""
    lines = []
    for name, said in _NAMED.items():
        values = {getattr(one.assumed, name) for found in both for one in found}
        for value in sorted(values, key=lambda v: (int(v) if v.isdigit() else 0, v)):
            cells = []
            for found in both:
                errors = [one.error for one in found if getattr(one.assumed, name) == value]
                shown = f"{statistics.fmean(errors):.1f} ({min(errors):.1f})" if errors else "-"
                cells.append(shown)
            if value:
                lines.append((said, value, *cells))
    head = ("assumption", "value", "(a): mean distance (least)", "(b): mean distance (least)")
    return "Each answer alone, over both budgets:\n\n" + table(head, lines) + "\n"


def _verdict(columns: Sequence[tuple[str, str, list[Tried]]]) -> str:
    """Of the columns for which the search is finished."""
    columns = [c for c in columns if len(c[2]) == len(assumptions(c[0]))]
    if not columns:
        return "The search is not finished for any column yet.\n\n"
    brought = [
        f"({panel}) at {epsilon} by {sum(1 for one in found if one.near == len(one.cells))}"
        for panel, epsilon, found in columns
        if any(one.near == len(one.cells) for one in found)
    ]
    unreached = [
        f"({panel}) at {epsilon}"
        for panel, epsilon, found in columns
        if not any(one.near == len(one.cells) for one in found)
    ]
    text = ""
    if brought:
        text += (
            f"Columns that some set of assumptions brings within {NEAR:.0f} points in every cell:"
        )
        text += f" {listed(brought)}.\n"
    if unreached:
        text += f"Columns that no set of the search does: {listed(unreached)}.\n"
    return text + "\n"
