"""Utility against epsilon, with theta's line and the bracket around the least epsilon."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from capemix_research.frontier import Frontier
from capemix_research.report.style import GREY, OURS, STYLE, THEIRS


def draw(frontier: Frontier, title: str, path: Path) -> None:
    """Every seed a dot, means joined, the spread shaded; the bracket is the grey band."""
    points = frontier.points
    epsilons = [point.epsilon for point in points]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        axis = figure.subplots()
        axis.set_xscale("log")
        if frontier.below is not None and frontier.reached is not None:
            bracket = (frontier.below, frontier.reached)
            axis.axvspan(*bracket, color=GREY, alpha=0.25, lw=0, label="bracket")
        axis.axhline(frontier.real, color=THEIRS, lw=1.2)
        axis.axhline(frontier.target, color=THEIRS, lw=1.2, ls="--")
        theta = f"θ = {frontier.theta:g} of it"
        for height, text, off in (
            (frontier.real, "trained on real rows", 3),
            (frontier.target, theta, -11),
        ):
            axis.annotate(
                text,
                (0.01, height),
                xycoords=("axes fraction", "data"),
                xytext=(0, off),
                textcoords="offset points",
                color=THEIRS,
            )
        spread = [(point.spread or 0.0) for point in points]
        means = [point.mean for point in points]
        axis.fill_between(
            epsilons,
            [mean - off for mean, off in zip(means, spread, strict=True)],
            [mean + off for mean, off in zip(means, spread, strict=True)],
            color=OURS,
            alpha=0.2,
            lw=0,
            label="deviation between seeds",
        )
        axis.plot(epsilons, means, color=OURS, lw=1.4, label="mean")
        for point in points:
            axis.plot(
                [point.epsilon] * len(point.utilities),
                point.utilities,
                ".",
                color=OURS,
                ms=4,
                label="one release" if point is points[0] else None,
            )
        axis.set_xlabel("ε")
        axis.set_ylabel("accuracy on test rows")
        axis.set_title(title, loc="left")
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.legend(loc="lower right")
        figure.savefig(path, metadata={"Software": None})
