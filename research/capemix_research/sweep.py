"""Accuracy against epsilon for several recipes, on public rows: nothing made here is a release.

A recipe is a way from rows to released rows; each is given the same rows, budget and seeds. What it
chooses, it chooses by rule, from public numbers: the test rows are read for the score alone.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from capemix import documents
from capemix.api import config_of
from capemix.errors import InputError
from capemix.methods import Method
from capemix.methods.mixing import Mixing
from capemix_research.frontier import Point, Task, Trials

RECIPES: Final = ("mixing", "redraw", "class-gaussian", "image-clusters", "soft-labels")
"""Mixtures as they are; rows drawn anew from tuned mixtures; a Gaussian for each class; several for
each class of images, and these with soft labels."""

PEERS: Final = Path(__file__).parent / "experiments" / "golden" / "peers.csv"
"""What others have published: a line an accuracy, with its reference."""


@dataclass(frozen=True)
class Peer:
    """A published accuracy, as a part of 1."""

    method: str
    epsilon: float
    accuracy: float
    reference: str


@dataclass(frozen=True)
class Curve:
    """A recipe's accuracies: one point for every epsilon."""

    recipe: str
    points: tuple[Point, ...]


def method_of(recipe: str, mixing: Method, rows: int, *, deskew: bool = False) -> Method:
    """The method of a recipe, where ``mixing`` is how rows are mixed and ``rows`` are drawn by
    those that draw. ``deskew`` is for those that look at images."""
    if recipe == "mixing":
        return mixing
    if recipe == "redraw" and isinstance(mixing, Mixing):
        usual = Mixing()  # how many are mixed, and how often, is what tuning chooses
        return replace(mixing, samples=usual.samples, mixture=usual.mixture, redraw=rows, tune=True)
    if recipe == "class-gaussian":
        return config_of("class-gaussian", samples=rows)
    if recipe in ("image-clusters", "soft-labels"):
        soft = recipe == "soft-labels"
        return config_of("image-clusters", samples=rows, soft_labels=soft, deskew=deskew)
    raise InputError(
        "recipes", "has one that is unknown", value=recipe, fix=f"use {', '.join(RECIPES)}"
    )


def sweep(
    task: Task,
    settings: Mapping[str, Any],
    path: Path,
    *,
    methods: Mapping[str, Method],
    epsilons: Sequence[float],
    seeds: Sequence[int],
    progress: Callable[[float, float], None] | None = None,
) -> tuple[float, tuple[Curve, ...]]:
    """The real rows' accuracy, and the curve of each of the ``methods``, by the recipe's name.
    Trials that the file has are not repeated. ``progress`` is told how many trials are done, and of
    how many."""
    if not epsilons or not all(0.0 < epsilon < float("inf") for epsilon in epsilons):
        raise InputError(
            "epsilons", "must be above 0", value=list(epsilons), fix="write them as 1,10"
        )
    most = 1 + len(methods) * len(epsilons) * len(seeds)
    done = 0

    def counted(utility: float) -> float:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, most)
        return utility

    real = counted(Trials(path, settings).real(seeds[0], partial(task.real_utility, seeds[0])))
    curves = []
    for recipe, method in methods.items():
        own = replace(task, plan=replace(task.plan, method=method))
        trials = Trials(path, {**settings, "recipe": recipe, "method": documents.as_json(method)})
        points = [
            Point(
                epsilon,
                tuple(
                    counted(trials.synthetic(epsilon, seed, partial(own.utility, epsilon, seed)))
                    for seed in seeds
                ),
            )
            for epsilon in sorted(epsilons)
        ]
        curves.append(Curve(recipe, tuple(points)))
    return real, tuple(curves)


def peers_of(dataset: str, epsilons: Iterable[float]) -> list[Peer]:
    """What others have published for a dataset at these budgets."""
    wanted = set(epsilons)
    with PEERS.open(newline="") as file:
        return [
            Peer(
                row["method"], float(row["epsilon"]), float(row["accuracy"]) / 100, row["reference"]
            )
            for row in csv.DictReader(file)
            if row["dataset"] == dataset and float(row["epsilon"]) in wanted
        ]


def table_of(curves: Sequence[Curve], peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """A line for every recipe and peer, a column for every epsilon."""
    epsilons = [point.epsilon for point in curves[0].points]
    lines: list[dict[str, Any]] = []
    for curve in curves:
        line: dict[str, Any] = {"recipe": curve.recipe}
        for point in curve.points:
            spread = "" if point.spread is None else f" ± {point.spread:.3f}"
            line[f"epsilon {point.epsilon:g}"] = f"{point.mean:.3f}{spread}"
        lines.append(line)
    for method in dict.fromkeys(peer.method for peer in peers):
        found = {peer.epsilon: peer.accuracy for peer in peers if peer.method == method}
        said = {f"epsilon {e:g}": f"{found[e]:.3f}" if e in found else "-" for e in epsilons}
        lines.append({"recipe": f"{method} (published)", **said})
    return lines


def best(curves: Sequence[Curve]) -> dict[float, str]:
    """The recipe with the highest mean at each epsilon."""
    at: dict[float, list[tuple[float, str]]] = {}
    for curve in curves:
        for point in curve.points:
            at.setdefault(point.epsilon, []).append(
                (statistics.fmean(point.utilities), curve.recipe)
            )
    return {epsilon: max(found)[1] for epsilon, found in at.items()}
