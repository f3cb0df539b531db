"""Accuracy of models trained on images from clusters.

    python -m capemix_research.experiments.images main --results docs/research/images.csv

Every release goes through the whole pipeline with its full budget paid, class sizes included; the
paper's CNN is trained on it, by its soft labels, and for the main table by its hard ones too.
``--validate`` keeps the last 10,000 training rows apart and tests on them: nothing is chosen on
test rows.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from unittest.mock import patch

import numpy as np

from capemix.kernels.machine import cores

VALIDATION: Final = 10_000
ROWS: Final = 60_000
THREADS: Final = 2
TOGETHER: Final = 6
"""Releases whose models are trained at once."""

OFF: Final = (
    *("teacher", "smooth teacher", "upright", "clusters"),
    *("texture", "shape of texture", "varied texture"),
    *("second row a record", "second texture"),
)
"""Ingredients that can be left out, one at a time."""


@dataclass(frozen=True)
class Cell:
    """One release. ``sites`` of 1 is one curator; ``off`` an ingredient left out, or empty."""

    dataset: str
    epsilon: float
    seed: int
    sites: int = 10
    split: str = "stratified"
    off: str = ""
    tested_on: str = "test"


class Made(NamedTuple):
    """A release whose rows lie in files that begin with ``path``."""

    cell: Cell
    path: str
    rows: int
    rank: int
    clusters: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Accuracies in percent (``hard`` nan where it was not asked for); seconds of making the rows,
    on ``THREADS`` cores."""

    soft: float
    hard: float
    rank: int
    clusters: int
    seconds: float


FIELDS: Final = tuple(field.name for kind in (Cell, Outcome) for field in fields(kind))


def main_cells(seeds: int) -> list[Cell]:
    return [
        Cell(dataset, epsilon, seed)
        for seed in range(seeds)
        for epsilon in (1.0, 10.0)
        for dataset in ("mnist", "fashion-mnist")
    ]


def site_cells(seeds: int) -> list[Cell]:
    """The same budget over other numbers of sites, and splits that are skewed."""
    return [
        Cell("mnist", 1.0, seed, sites, split)
        for seed in range(seeds)
        for sites, split in (
            (1, "iid"),
            (10, "stratified"),
            (10, "iid"),
            (10, "dirichlet"),
            (50, "iid"),
            (50, "dirichlet"),
        )
    ]


def ablation_cells(seeds: int) -> list[Cell]:
    return [
        Cell(dataset, epsilon, seed, off=off)
        for seed in range(seeds)
        for off in OFF
        for epsilon in (1.0, 10.0)
        for dataset in ("mnist", "fashion-mnist")
        if off != "upright" or dataset == "mnist"
    ]


KINDS: Final = {"main": main_cells, "sites": site_cells, "ablation": ablation_cells}


def released(cell: Cell, folder: str, most: int = ROWS) -> tuple[str, int, int, int, float]:
    """Make a release of a cell, of ``most`` records at most, and leave its rows in ``folder``: runs
    in a process of its own."""
    from capemix.api import config_of, synthesize
    from capemix.data import load_dataset, partition
    from capemix.data.registry import dataset_info
    from capemix.facts import Facts
    from capemix.plan import Plan, make_plan
    from capemix.randomness.source import SeededSource
    from capemix.sums.steps import PublicMap

    train, _ = load_dataset(cell.dataset)
    if cell.tested_on == "validation":
        train = train.take(np.arange(len(train)) < len(train) - VALIDATION)
    train = train.take(np.arange(len(train)) < most)
    # A test seed makes runs repeatable; the law of the noise is the same.
    source = SeededSource(cell.seed)
    sites = (
        [train]
        if cell.sites == 1
        else list(partition(train, cell.sites, cell.split, seed=cell.seed))  # type: ignore[arg-type]
    )
    info = dataset_info(cell.dataset)
    started = time.monotonic()
    with ExitStack() as stack:
        for target, name, value in _without(cell.off):
            stack.enter_context(patch.object(target, name, value))
        plan = make_plan(
            Facts.of(train, normalise=PublicMap.of_range(*info.value_range)),
            config_of(
                "image-clusters",
                soft_labels=cell.off != "teacher",
                deskew=info.handwriting and cell.off != "upright",
            ),
            scheme="central" if cell.sites == 1 else "cape",
            sites=cell.sites,
        )
        found = synthesize(plan.calibrate(cell.epsilon), sites, source=source)
    seconds = time.monotonic() - started
    path = Path(folder) / f"{abs(hash(astuple(cell)))}"
    np.save(f"{path}-rows.npy", found.features)
    np.save(f"{path}-labels.npy", found.labels)
    if found.soft_labels is not None:
        np.save(f"{path}-soft.npy", found.soft_labels)
    chosen = cast(Plan, found.plan).chosen or {}
    return str(path), len(found.features), chosen["rank"], chosen["clusters"], seconds


def _without(off: str) -> Iterator[tuple[Any, str, Any]]:
    """What is replaced to leave an ingredient out."""
    from capemix.methods import image_clusters
    from capemix.methods.image_clusters import clusters
    from capemix.statistics.head import Head

    def unsmoothed(head: Head, about: Any) -> Any:
        blank, full = head.frame.shades
        centre = head.frame.centre
        pixels = head.frame.columns
        whole = about[:, :pixels] + (0.0 if centre is None else centre[0, :pixels])
        shades = np.clip((whole - blank) / (full - blank), 0.0, 1.0)
        return shades.reshape(-1, *head.shape).astype(np.float32)

    if off == "smooth teacher":
        yield Head, "smoothed", unsmoothed
    if off == "clusters":
        yield image_clusters, "MOST_CLUSTERS", 1
    if off == "texture":
        yield clusters, "STRENGTH", (0.0, 0.0)
    if off == "shape of texture":
        cleaned = clusters.cleaned_texture
        yield (
            *(clusters, "cleaned_texture"),
            lambda spread, _edge, *where: cleaned(spread, math.inf, *where),
        )
    if off == "varied texture":
        yield clusters, "STRENGTH", (1.5, 1.5)
    if off == "second row a record":
        yield clusters, "SMOOTH_A_RECORD", 1
    if off == "second texture":
        yield clusters, "TEXTURES", 1


def run(
    cells: list[Cell], results: Path, device: str, until: float, commit: str, processes: int
) -> int:
    """Make what the file has not; returns how many cells are left."""
    done = _read(results)
    todo = [cell for cell in dict.fromkeys(cells) if cell not in done]
    print(f"{len(todo)} of {len(cells)} cells to run", flush=True)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = str(THREADS)
    spawn = multiprocessing.get_context("spawn")
    left = len(todo)
    with tempfile.TemporaryDirectory(prefix="capemix-images-") as folder:
        places = spawn.Queue()
        for place in range(processes):
            places.put(place)
        pool = ProcessPoolExecutor(processes, spawn, _on_own_cores, (places,))
        # Kernels are compiled once, and then found by all processes.
        pool.submit(released, Cell("mnist", 10.0, 0, sites=2), folder, 400).result()
        jobs: dict[Future[Any], Cell] = {pool.submit(released, one, folder): one for one in todo}
        waiting: list[Made] = []
        try:
            while jobs or waiting:
                within = max(0.0, until - time.monotonic())
                ended, _ = wait(jobs, within, return_when=FIRST_COMPLETED)
                for job in ended:
                    cell = jobs.pop(job)
                    if problem := job.exception():  # the others go on; it stays to be made
                        print(f"failed: {cell}: {problem!r}", flush=True)
                    else:
                        waiting.append(Made(cell, *job.result()))
                if jobs and not ended:
                    print("out of time", flush=True)
                    jobs = {}
                # Models that train together take little more time than one.
                if waiting and (len(waiting) >= TOGETHER or not jobs):
                    group = _alike(waiting)
                    for made, (soft, hard) in zip(group, _trained(group, device), strict=True):
                        waiting.remove(made)
                        seconds = round(made.seconds, 1)
                        outcome = Outcome(soft, hard, made.rank, made.clusters, seconds)
                        _append(results, made.cell, outcome, commit, device)
                        left -= 1
                        print(made.cell, outcome, flush=True)
        finally:
            running = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.kill()
    return left


def _on_own_cores(places: Any) -> None:
    """A process's share of the cores, so that releases do not push one another aside."""
    place = places.get()
    if hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))
        first = place * THREADS % len(mine)
        os.sched_setaffinity(0, mine[first : first + THREADS])


def _alike(waiting: list[Made]) -> list[Made]:
    """Up to `TOGETHER` releases, of about as many rows as the first."""
    return [made for made in waiting if 0.98 < made.rows / waiting[0].rows < 1.02][:TOGETHER]


def _trained(group: list[Made], device: str) -> list[tuple[float, float]]:
    """The accuracies of the paper's CNN, by soft labels and, of whole releases of ten sites, by
    hard ones. Of each release as many rows are trained on as the smallest has, at random."""
    import torch

    from capemix.evaluate.cnn import Training, device_named
    from capemix_research.trainer.many import predict, train_many

    on = device_named(device)
    count = min(made.rows for made in group)
    images, labels, seeds, unseen, truth = [], [], [], [], []
    for made in group:
        pixels, kinds = _left_rows(made, count)
        test, right = _unseen(made.cell)
        for kind in kinds:
            images.append(pixels.to(on) / 255.0)
            labels.append(kind.to(on))
            seeds.append(made.cell.seed)
            unseen.append(test.to(on).float() / 255.0)
            truth.append(right)
    training = Training(epochs=20, learning_rate=1e-3)
    models = train_many(torch.stack(images), torch.stack(labels), seeds, training)
    said = predict(models, torch.stack(unseen)).cpu()
    scores = iter(((said == torch.stack(truth)).float().mean(1) * 100.0).tolist())
    return [
        (round(next(scores), 2), round(next(scores), 2) if _by_hard_too(made.cell) else math.nan)
        for made in group
    ]


def _by_hard_too(cell: Cell) -> bool:
    return cell in main_cells(cell.seed + 1) or cell.tested_on == "validation"


def _left_rows(made: Made, count: int) -> tuple[Any, list[Any]]:
    """``count`` of a release's rows at random, and their labels of each kind; what `released` left
    is deleted."""
    import torch

    path = made.path
    chosen = torch.randperm(made.rows, generator=torch.Generator().manual_seed(made.cell.seed))
    chosen = chosen[:count]
    pixels = torch.from_numpy(np.load(f"{path}-rows.npy"))[chosen]
    labels = torch.from_numpy(np.load(f"{path}-labels.npy"))
    hard = torch.nn.functional.one_hot(labels, 10)[chosen].float()
    soft = Path(f"{path}-soft.npy")
    kinds = [torch.from_numpy(np.load(soft))[chosen] if soft.exists() else hard]
    if _by_hard_too(made.cell):
        kinds.append(hard)
    for file in Path(path).parent.glob(f"{Path(path).name}-*.npy"):
        file.unlink()
    return pixels, kinds


def _unseen(cell: Cell) -> tuple[Any, Any]:
    """The rows that a cell is tested on, and their labels."""
    import torch

    from capemix.data import load_dataset

    train, test = load_dataset(cell.dataset)
    if cell.tested_on == "validation":
        test = train.take(np.arange(len(train)) >= len(train) - VALIDATION)
    return torch.from_numpy(test.features), torch.from_numpy(test.labels)


def _read(results: Path) -> dict[Cell, dict[str, str]]:
    if not results.exists():
        return {}
    with results.open(newline="") as file:
        rows = list(csv.DictReader(file))
    kinds = {"epsilon": float, "seed": int, "sites": int}
    names = [field.name for field in fields(Cell)]
    return {Cell(**{n: kinds.get(n, str)(row[n]) for n in names}): row for row in rows}


def _append(results: Path, cell: Cell, outcome: Outcome, commit: str, device: str) -> None:
    fresh = not results.exists()
    with results.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow((*FIELDS, "commit", "device"))
        writer.writerow((*astuple(cell), *astuple(outcome), commit, device))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+", choices=sorted(KINDS))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=86_400.0)
    parser.add_argument("--processes", type=int, default=max(1, cores() // THREADS))
    parser.add_argument("--validate", action="store_true")
    asked = parser.parse_args()
    cells = [cell for kind in asked.kinds for cell in KINDS[kind](asked.seeds)]
    if asked.validate:
        cells = [replace(cell, tested_on="validation") for cell in cells]
    left = run(
        cells,
        asked.results,
        asked.device,
        time.monotonic() + asked.seconds,
        os.environ.get("CAPEMIX_COMMIT", ""),
        asked.processes,
    )
    print(f"{left} cells left")


if __name__ == "__main__":
    main()
