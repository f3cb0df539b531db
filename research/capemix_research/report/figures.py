"""The page's figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import TwoSlopeNorm

from capemix_research.report import compare, of_cost, of_grid
from capemix_research.report.cells import Printed, Row, Runs, Sample
from capemix_research.report.compare import NEAR, Compared, pick
from capemix_research.report.markdown import NAMES
from capemix_research.report.of_privacy import at_sound_ten
from capemix_research.report.of_sites import SITES
from capemix_research.report.of_tables import EPSILONS, MIXTURES
from capemix_research.report.style import GREY, OURS, STYLE, THEIRS, THIRD

_BUDGET: Final = {"inf": "ε = ∞", "20": "ε = 20", "10": "ε = 10"}
_FAR: Final = 30.0
"""Points at which the colour of a difference is full."""


def draw(runs: Runs, golden: dict[str, list[Printed]], costs: Sequence[Row], folder: Path) -> None:
    """All figures that the results allow."""
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        _save(_rows_mixed(runs, golden["table1"]), folder, "rows-mixed")
        for dataset in NAMES:
            _save(_table1(runs, golden["table1"], dataset), folder, f"table1-{dataset}")
        _save(_figure2(runs, golden["figure2"]), folder, "figure2")
        _save(_sound(runs, golden["table1"]), folder, "sound")
        if grid := _grid(runs, golden["table1"]):
            _save(grid, folder, "grid")
        if {row["varied"] for row in costs} == set(of_cost.SIZES):
            _save(_complexity(costs), folder, "complexity")


def _save(figure: Any, folder: Path, name: str) -> None:
    # No version or date in the file: the same results give the same bytes.
    figure.savefig(folder / f"reproduction-{name}.png", metadata={"Software": None})
    plt.close(figure)


def _line(axis: Any, xs: Sequence[float], samples: Sequence[Sample | None], **style: Any) -> None:
    """Means joined, with a bar from the lowest seed to the highest."""
    there = [(x, s) for x, s in zip(xs, samples, strict=True) if s is not None]
    if not there:
        return
    means = [s.mean for _, s in there]
    below = [s.mean - min(s.values) for _, s in there]
    above = [max(s.values) - s.mean for _, s in there]
    axis.errorbar([x for x, _ in there], means, (below, above), capsize=2, lw=1.4, **style)


def _legend(axis: Any, on: Any = None, **where: Any) -> None:
    """Ours first, then the paper's."""
    shown = list(zip(*axis.get_legend_handles_labels(), strict=True))
    shown.sort(key=lambda one: one[1].startswith("the paper's"))
    (on or axis).legend(*zip(*shown, strict=True), **where)


def _rows_mixed(runs: Runs, cells: Sequence[Printed]) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.7), layout="constrained")
    every = pick(compare.table1(runs, cells), epsilon="inf")
    for axis, (dataset, name) in zip(axes, NAMES.items(), strict=True):
        for panel, times, colour, label in (
            ("a", 1, OURS, "one mixture of l rows"),
            ("b", 10, THEIRS, "average of ten sites' mixtures"),
        ):
            part = pick(every, dataset=dataset, panel=panel)
            xs = [times * int(c.paper.mixture) for c in part]
            _line(axis, xs, [c.ours for c in part], color=colour, marker="o", ms=3, label=label)
            paper = [c.paper.accuracy for c in part]
            shown = f"the paper's panel ({panel})"
            axis.plot(xs, paper, "x", color=colour, ms=6, mew=1.3, label=shown)
        axis.set(xscale="log", title=name, xlabel="rows mixed into a released row")
    axes[0].set_ylabel("test accuracy without noise, %")
    _legend(axes[0])
    return figure


def _table1(runs: Runs, cells: Sequence[Printed], dataset: str) -> Any:
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 5.4), layout="constrained", sharey=True)
    normal, written = compare.table1(runs, cells), compare.table1(runs, cells, "algorithm1")
    panels = (
        ("Panel (a) against central (∞), joint form", pick(normal, dataset=dataset, panel="a")),
        ("Panel (a) against Algorithm 1 as written", pick(written, dataset=dataset, panel="a")),
        ("Panel (b) against averages", pick(normal, dataset=dataset, panel="b")),
    )
    shade: Any = None
    for axis, (title, part) in zip(axes, panels, strict=True):
        columns = [pick(part, epsilon=epsilon) for epsilon in EPSILONS]
        shade = _heat(axis, [list(row) for row in zip(*columns, strict=True)])
        axis.set_title(title)
        axis.set_xticks(range(3), [_BUDGET[e] for e in EPSILONS])
        axis.set_yticks(range(len(MIXTURES)), MIXTURES)
    axes[0].set_ylabel("l, rows in a mixture")
    bar = figure.colorbar(shade, ax=axes, shrink=0.7, aspect=30, extend="both")
    bar.set_label("ours less the paper's, points")
    figure.suptitle(
        f"{NAMES[dataset]}: our accuracy, under it the paper's; bold within {NEAR:.0f} points",
        fontsize=10,
    )
    return figure


def _heat(axis: Any, rows: Sequence[Sequence[Compared]]) -> Any:
    values = [[float("nan") if c.difference is None else c.difference for c in r] for r in rows]
    norm = TwoSlopeNorm(0.0, -_FAR, _FAR)
    shade = axis.imshow(values, cmap="RdBu", norm=norm, aspect="auto", alpha=0.85)
    for y, row in enumerate(rows):
        for x, cell in enumerate(row):
            far = cell.difference is not None and abs(cell.difference) > 0.7 * _FAR
            colour = "white" if far else "black"
            ours = "not run" if cell.ours is None else f"{cell.ours.mean:.1f}"
            weight = "bold" if cell.near else "normal"
            at = {"ha": "center", "color": colour}
            axis.text(x, y - 0.05, ours, va="bottom", fontsize=9, fontweight=weight, **at)
            paper = "-" if cell.paper.accuracy is None else f"{cell.paper.accuracy:.1f}"
            axis.text(x, y + 0.05, paper, va="top", fontsize=7.5, **at)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return shade


def _figure2(runs: Runs, cells: Sequence[Printed]) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained", sharey=True)
    colours = dict(zip(EPSILONS, (OURS, THIRD, THEIRS), strict=True))
    aside = dict(zip(EPSILONS, (1.0, 0.96, 1.04), strict=True))  # bars do not hide each other
    for axis, (dataset, name) in zip(axes, NAMES.items(), strict=True):
        for epsilon in EPSILONS:
            for scheme, line in (("joint", "-"), ("conventional", "--")):
                found = [compare.of_scheme(runs, scheme, dataset, s, 4, epsilon) for s in SITES]
                label = f"{scheme}, {_BUDGET[epsilon]}"
                style = {"color": colours[epsilon], "ls": line, "marker": "o", "ms": 3}
                _line(axis, [aside[epsilon] * s for s in SITES], found, label=label, **style)
        for scheme, marker in ((compare.CAPE, "x"), ("Conv", "+")):
            printed = [c for c in cells if c.dataset == dataset and c.method.startswith(scheme)]
            said = "CAPE" if scheme == compare.CAPE else "conventional"
            for epsilon in EPSILONS:
                part = [c for c in printed if c.epsilon == epsilon]
                xs = [aside[epsilon] * int(c.sites) for c in part]
                ys = [c.accuracy for c in part]
                axis.plot(xs, ys, marker, color=colours[epsilon], ms=8, mew=1.4, zorder=5)
            if printed:
                axis.plot([], [], marker, color=GREY, ms=7, label=f"the paper's text, {said}")
        axis.set(xscale="log", title=name, xlabel="S, sites", ylim=(0, 100))
        axis.set_xticks(SITES, [str(s) for s in SITES])
        axis.minorticks_off()
    axes[0].set_ylabel("test accuracy at l = 4, %")
    _legend(axes[0], figure, loc="outside right center")
    return figure


def _sound(runs: Runs, cells: Sequence[Printed]) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained", sharey=True)
    xs = [int(mixture) for mixture in MIXTURES]
    every = compare.table1(runs, cells)
    for axis, (dataset, name) in zip(axes, NAMES.items(), strict=True):
        for samples, line in (("60000", "-"), ("6000", "--")):
            found = [at_sound_ten(runs, dataset, mixture, samples) for mixture in MIXTURES]
            label = f"sound noise for 10, T = {samples}"
            _line(axis, xs, found, color=OURS, ls=line, marker="o", ms=3, label=label)
        part = pick(every, dataset=dataset, panel="a", epsilon="10")
        label = "Theorem 1's noise for 10"
        _line(axis, xs, [c.ours for c in part], color=THEIRS, marker="o", ms=3, label=label)
        paper = [c.paper.accuracy for c in part]
        axis.plot(
            xs, paper, "x", color=THEIRS, ms=6, mew=1.3, label="the paper's panel (a), ε = 10"
        )
        axis.set(xscale="log", title=name, xlabel="l, rows in a mixture", ylim=(0, 100))
        axis.set_xticks(xs, MIXTURES)
        axis.minorticks_off()
    axes[0].set_ylabel("test accuracy, %")
    _legend(axes[0], loc="lower center")
    return figure


def _grid(runs: Runs, cells: Sequence[Printed]) -> Any:
    found = [of_grid.tried(runs, cells, panel)[:12] for panel in "ab"]
    if max(len(part) for part in found) < 2:
        return None
    height = 0.42 * sum(len(part) for part in found) + 1.6
    figure, axes = plt.subplots(
        2,
        1,
        figsize=(10.5, height),
        layout="constrained",
        height_ratios=[max(1, len(part)) for part in found],
    )
    for axis, panel, part in zip(axes, "ab", found, strict=True):
        axis.set_title(f"Panel ({panel}): the {len(part)} nearest of those that were run")
        if not part:
            axis.axis("off")
            continue
        _heat(axis, [one.cells for one in part])
        heads = [f"ε = {c.paper.epsilon}\nl = {c.paper.mixture}" for c in part[0].cells]
        axis.set_xticks(range(len(heads)), heads)
        axis.set_yticks(range(len(part)), [str(one.assumed) for one in part], fontsize=8)
    return figure


def _complexity(rows: Sequence[Row]) -> Any:
    figure, axes = plt.subplots(1, 4, figsize=(11, 3.2), layout="constrained", sharey=True)
    for axis, (varied, letter) in zip(axes, of_cost.SIZES.items(), strict=True):
        part = [row for row in rows if row["varied"] == varied]
        xs = [float(row[varied]) for row in part]
        slopes: list[str] = []
        for measure, colour, label in (
            ("mixing_seconds", OURS, "mixing and noise"),
            ("mask_seconds", THEIRS, "masks between sites"),
        ):
            ys = [float(row[measure]) for row in part]
            axis.plot(xs, ys, "o-", color=colour, ms=3, lw=1.4, label=label)
            slopes.append(f"{letter}^{of_cost.exponent(rows, varied, measure):.2f}")
        axis.set(xscale="log", yscale="log", xlabel=letter)
        axis.set_title("mixing {}, masks {}".format(*slopes), fontsize=9)
        axis.set_xticks(xs, [f"{x:g}" for x in xs])
        axis.minorticks_off()
    axes[0].set_ylabel("CPU seconds")
    _legend(axes[0], figure, loc="outside lower center", ncols=2)
    return figure
