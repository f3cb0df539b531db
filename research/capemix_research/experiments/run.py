"""Run settings in groups of models that train side by side, and write down each as it comes."""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from capemix.errors import InputError
from capemix.evaluate.cnn import Training
from capemix_research.experiments.memory import check_memory
from capemix_research.experiments.noise import NoiseOf
from capemix_research.experiments.results import Result, Results
from capemix_research.experiments.rows import Records, training_rows
from capemix_research.experiments.settings import Setting
from capemix_research.trainer.many import models_that_fit, predict, train_many

Cell = tuple[Setting, int]
"""A setting and a seed: one model."""

Progress = Callable[[int, int, str], None]
"""Called after every group: models done, of how many, and a line of text."""


def cells_of(settings: Iterable[Setting], seeds: Sequence[int]) -> list[Cell]:
    """Every setting once for each seed, the first seed of all of them first."""
    once = list(dict.fromkeys(settings))
    return [(setting, seed) for seed in seeds for setting in once]


def run_cells(
    cells: Sequence[Cell],
    noise_of: NoiseOf,
    results: Results,
    device: torch.device,
    training: Training,
    *,
    until: float = float("inf"),
    at_once: int = 64,
    test_every: int = 1,
    progress: Progress = lambda _done, _of, _text: None,
) -> int:
    """Train a model for every cell that has no result yet; stops at ``time.monotonic() > until``.

    ``test_every`` is the distance between the test images that are asked about. Returns how many
    cells are left.
    """
    waiting = [cell for cell in dict.fromkeys(cells) if not results.has(*cell, training)]
    provenance = provenance_of(device)
    done = 0
    pace = 0.0
    records = _loaded(waiting, device)  # what is missing is said before any work is announced
    progress(0, len(waiting), f"{len(waiting)} of {len(cells)} models to train")
    for group in _groups(waiting, device, at_once):
        dataset, samples, clip = _kind(group[0])
        if time.monotonic() + pace * samples * len(group) > until:
            return len(waiting) - done
        started = time.monotonic()
        try:
            accuracies = _train(group, noise_of, records[dataset], clip, training, test_every)
        except torch.OutOfMemoryError:
            raise InputError(
                "--device",
                f"ran out of memory with {len(group)} models of {samples} rows",
                value=str(device),
                fix="end what else runs there and start again: finished models are kept",
            ) from None
        seconds = time.monotonic() - started
        pace = max(pace, seconds / (samples * len(group)))
        for (setting, seed), accuracy in zip(group, accuracies, strict=True):
            results.add(
                Result(
                    setting,
                    seed,
                    training,
                    noise=noise_of(setting),
                    accuracy=accuracy,
                    seconds=seconds / len(group),
                    provenance=provenance,
                )
            )
        done += len(group)
        each = f"{seconds / len(group):.2f} s each ({dataset}, {samples} rows)"
        progress(done, len(waiting), f"{done} of {len(waiting)} models, {each}")
    return 0


def _loaded(cells: Sequence[Cell], device: torch.device) -> dict[str, Records]:
    """The datasets of the cells, where there is the memory for the first cell of each."""
    records: dict[str, Records] = {}
    for setting, _ in cells:
        if setting.dataset not in records:
            check_memory(setting, device)
            records[setting.dataset] = Records.load(setting.dataset, device)
    return records


def _kind(cell: Cell) -> tuple[str, int, float]:
    """Cells of one kind have the same test rows and the same number of training rows."""
    return cell[0].dataset, cell[0].samples, cell[0].clip


def _groups(cells: Sequence[Cell], device: torch.device, at_once: int) -> Iterator[list[Cell]]:
    """Cells of one kind side by side, as many as fit, in the order asked for."""
    filling: dict[tuple[str, int, float], list[Cell]] = defaultdict(list)
    for cell in cells:
        group = filling[_kind(cell)]
        group.append(cell)
        if len(group) >= models_that_fit(cell[0].samples, 784, device, at_once):
            yield filling.pop(_kind(cell))
    yield from filling.values()


def _train(
    group: Sequence[Cell],
    noise_of: NoiseOf,
    records: Records,
    clip: float,
    training: Training,
    test_every: int,
) -> list[float]:
    made = [training_rows(setting, noise_of(setting), records, seed) for setting, seed in group]
    rows = torch.stack([rows for rows, _ in made])
    labels = torch.stack([labels for _, labels in made])
    del made
    cnns = train_many(rows, labels, [seed for _, seed in group], training)
    predicted = predict(cnns, records.test_rows(clip)[::test_every])
    hits = (predicted == records.test_labels[::test_every]).float().mean(1)
    return [100.0 * float(hit) for hit in hits]


def provenance_of(device: torch.device) -> str:
    """Commit, torch and device, for the results file."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{_commit()}; torch {torch.__version__}; {name}"


def _commit() -> str:
    if given := os.environ.get("CAPEMIX_COMMIT"):
        return given
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or "unknown commit"
