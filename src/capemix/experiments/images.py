"""Accuracy of models trained on images from moments: ``python -m capemix.experiments.images``.

Every release goes through the whole pipeline with its full budget paid, class sizes included; the
paper's CNN is trained on it, by its soft labels and by its hard ones. ``--validate`` keeps the last
10,000 training rows apart and tests on them: nothing is chosen on test rows.
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
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np

VALIDATION: Final = 10_000
ROWS: Final = 60_000
THREADS: Final = 2

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


@dataclass(frozen=True)
class Outcome:
    """Accuracies in percent; seconds of making the rows, on ``THREADS`` threads."""

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


def released(cell: Cell, folder: str, most: int = ROWS) -> tuple[str, int, int, float]:
    """Make a release of a cell, of ``most`` records at most, and leave its rows in ``folder``: runs
    in a process of its own."""
    from capemix.api import release_of
    from capemix.data import load_dataset, partition
    from capemix.data.registry import dataset_info
    from capemix.prepare.steps import PublicMap
    from capemix.randomness.source import SeededSource

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
        found = release_of(
            sites[0] if cell.sites == 1 else sites,
            epsilon=cell.epsilon,
            synthesizer="moments" if cell.off == "teacher" else "moments+teacher",
            normalise=PublicMap.of_range(*info.value_range),
            upright=info.handwriting and cell.off != "upright",
            scheme="central" if cell.sites == 1 else "cape",
            source=source,
        )
    seconds = time.monotonic() - started
    path = Path(folder) / f"{abs(hash(astuple(cell)))}"
    np.save(f"{path}-rows.npy", found.features)
    np.save(f"{path}-labels.npy", found.labels)
    if found.soft_labels is not None:
        np.save(f"{path}-soft.npy", found.soft_labels)
    plan: Any = found.plan
    return str(path), plan.rank, plan.clusters, seconds


def _without(off: str) -> Iterator[tuple[Any, str, Any]]:
    """What is replaced to leave an ingredient out."""
    from capemix.plan import moments as plan
    from capemix.prepare.head import Head
    from capemix.synthesizers import images

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
        yield plan, "MOST_CLUSTERS", 1
    if off == "texture":
        yield images, "STRENGTH", (0.0, 0.0)
    if off == "shape of texture":
        cleaned = images.cleaned_texture
        yield (
            *(images, "cleaned_texture"),
            lambda spread, _edge, *where: cleaned(spread, math.inf, *where),
        )
    if off == "varied texture":
        yield images, "STRENGTH", (1.5, 1.5)
    if off == "second row a record":
        yield images, "SMOOTH_A_RECORD", 1
    if off == "second texture":
        yield images, "TEXTURES", 1


def run(
    cells: list[Cell], results: Path, device: str, until: float, commit: str, processes: int
) -> int:
    """Make what the file has not; returns how many cells are left."""
    done = _read(results)
    todo = [cell for cell in cells if cell not in done]
    print(f"{len(todo)} of {len(cells)} cells to run", flush=True)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = str(THREADS)
    spawn = multiprocessing.get_context("spawn")
    left = len(todo)
    with tempfile.TemporaryDirectory(prefix="capemix-images-") as folder:
        pool = ProcessPoolExecutor(processes, mp_context=spawn)
        # Kernels are compiled once, and then found by all processes.
        pool.submit(released, Cell("mnist", 10.0, 0, sites=2), folder, 400).result()
        jobs: dict[Future[Any], Cell] = {pool.submit(released, one, folder): one for one in todo}
        try:
            for job in as_completed(jobs, timeout=max(1.0, until - time.monotonic())):
                cell = jobs[job]
                path, rank, clusters, seconds = job.result()
                soft, hard = _trained(cell, path, device)
                outcome = Outcome(soft, hard, rank, clusters, round(seconds, 1))
                _append(results, cell, outcome, commit, device)
                left -= 1
                print(cell, outcome, flush=True)
        except TimeoutError:
            print("out of time", flush=True)
        finally:
            running = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.kill()
    return left


def _trained(cell: Cell, path: str, device: str) -> tuple[float, float]:
    """The accuracy of the paper's CNN, by soft labels and by hard ones."""
    import torch

    from capemix.data import load_dataset
    from capemix.evaluate.many import Training, device_named, predict, train_many

    on = device_named(device)
    train, test = load_dataset(cell.dataset)
    if cell.tested_on == "validation":
        test = train.take(np.arange(len(train)) >= len(train) - VALIDATION)
    images = torch.from_numpy(np.load(f"{path}-rows.npy")).to(on) / 255.0
    hard = torch.nn.functional.one_hot(torch.from_numpy(np.load(f"{path}-labels.npy")), 10)
    labels = [hard.float()]
    if Path(f"{path}-soft.npy").exists():
        labels.append(torch.from_numpy(np.load(f"{path}-soft.npy")))
    for file in Path(path).parent.glob(f"{Path(path).name}-*.npy"):
        file.unlink()
    models = train_many(
        torch.stack([images] * len(labels)),
        torch.stack(labels).to(on),
        [cell.seed] * len(labels),
        Training(epochs=20, learning_rate=1e-3),
    )
    said = predict(models, torch.from_numpy(test.features).to(on).float() / 255.0)
    right = (said.cpu() == torch.from_numpy(test.labels)).float().mean(1) * 100.0
    return round(float(right[-1]), 2), round(float(right[0]), 2)


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
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // THREADS))
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
