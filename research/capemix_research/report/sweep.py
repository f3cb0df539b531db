"""Accuracy against epsilon, a line a recipe, and what others have published beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from capemix_research.report.style import GREY, OURS, STYLE, THEIRS, THIRD
from capemix_research.sweep import Curve, Peer

_APART = 0.018
"""Of two labels, in accuracy: less, and they lie on each other."""


def _labelled(peers: Sequence[Peer]) -> Iterator[tuple[Peer, float]]:
    """Every peer with the height of its label: its own, or just below the one above it."""
    above: dict[float, float] = {}
    for peer in sorted(peers, key=lambda one: -one.accuracy):
        height = min(peer.accuracy, above.get(peer.epsilon, 2.0) - _APART)
        above[peer.epsilon] = height
        yield peer, height


def draw(
    real: float, curves: Sequence[Curve], peers: Sequence[Peer], title: str, path: Path
) -> None:
    """Means with the deviation between seeds; peers by name, in grey."""
    epsilons = [point.epsilon for point in curves[0].points]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.8), layout="constrained")
        axis = figure.subplots()
        axis.set_xscale("log")
        axis.axhline(real, color=GREY, lw=1.0, ls=":", label="trained on real rows")
        for curve, color in zip(curves, (OURS, THIRD, THEIRS), strict=False):
            axis.errorbar(
                epsilons,
                [point.mean for point in curve.points],
                [point.spread or 0.0 for point in curve.points],
                color=color,
                marker="o",
                ms=4,
                lw=1.4,
                capsize=2,
                label=curve.recipe,
            )
        axis.margins(x=0.2)
        for peer, height in _labelled(peers):
            axis.plot(peer.epsilon, peer.accuracy, "x", color=GREY, ms=4)
            axis.annotate(
                peer.method,
                (peer.epsilon, peer.accuracy),
                xytext=(peer.epsilon * 1.06, height),
                va="center",
                color=GREY,
                fontsize=7,
            )
        axis.set_xlabel("ε")
        axis.set_ylabel("accuracy on test rows")
        axis.set_title(title, loc="left")
        axis.xaxis.set_major_locator(FixedLocator(epsilons))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}"))
        axis.legend(loc="lower right")
        figure.savefig(path, metadata={"Software": None})
