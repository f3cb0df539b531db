"""Would another preparation of the images explain cells that are not near the paper's?

    python -m capemix_research.experiments.preparation \\
        --results docs/research/reproduction/preparation.csv

Mixtures of FashionMNIST by one curator, without noise: the network is trained on mixtures prepared
in one way or another, and asked for the classes of test images prepared in one way or another. A
stopped run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Final

import torch

from capemix.evaluate.cnn import Training, device_named
from capemix_research.experiments.results import append_line, whole_lines
from capemix_research.experiments.rows import (
    Normalise,
    Records,
    by_all_pixels,
    by_pixel,
    clipped,
    training_rows,
)
from capemix_research.experiments.run import provenance_of
from capemix_research.experiments.settings import Setting
from capemix_research.trainer.many import predict, train_many

MIXTURES: Final = (64, 128, 256, 512)
HEADER: Final = ("trained", "tested", "mixture", "seed", "accuracy", "provenance")

TRAINED: Final[dict[str, tuple[Normalise, float, int]]] = {
    "each pixel's z-score, c = 1": (by_pixel, 1.0, 60_000),
    "each pixel's z-score, c = 5": (by_pixel, 5.0, 60_000),
    "each pixel's z-score, c = 28": (by_pixel, 28.0, 60_000),
    "one z-score for all pixels, c = 1": (by_all_pixels, 1.0, 60_000),
    "one z-score for all pixels, c = 28": (by_all_pixels, 28.0, 60_000),
    "each pixel's z-score, c = 1, T = 6000": (by_pixel, 1.0, 6_000),
}
TESTED: Final = ("as trained", "by the test images' own mean and deviation", "not clipped")


def tests_of(records: Records, normalise: Normalise, clip: float) -> list[torch.Tensor]:
    """The test images in each of the ways of `TESTED`."""
    by_train = normalise(records.test, records.train)
    return [
        clipped(by_train, clip),
        clipped(normalise(records.test, records.test), clip),
        by_train,
    ]


def accuracies(
    records: Records, trained: str, seed: int, training: Training
) -> Iterator[tuple[str, int, float]]:
    """How the images were tested, rows in a mixture, and the accuracy in percent."""
    normalise, clip, samples = TRAINED[trained]
    made = [
        training_rows(
            Setting(
                "fashion-mnist",
                "central",
                1,
                mixture,
                math.inf,
                samples=samples,
                clip=clip,
                labels_noised=False,
                accountant="none",
            ),
            0.0,
            records,
            seed,
            normalise,
        )
        for mixture in MIXTURES
    ]
    rows = torch.stack([rows for rows, _ in made])
    labels = torch.stack([labels for _, labels in made])
    cnns = train_many(rows, labels, [seed] * len(MIXTURES), training)
    for tested, images in zip(TESTED, tests_of(records, normalise, clip), strict=True):
        hits = (predict(cnns, images) == records.test_labels).float().mean(1)
        for mixture, hit in zip(MIXTURES, hits, strict=True):
            yield tested, mixture, 100.0 * float(hit)


def complete(
    path: Path, records: Records, seeds: int, training: Training, device: torch.device
) -> Iterator[tuple[object, ...]]:
    """Train what the file does not have yet; yields each line that it gets."""
    keys = ("trained", "tested", "mixture", "seed")
    known = {tuple(line[name] for name in keys) for line in whole_lines(path)}
    for seed, trained in product(range(seeds), TRAINED):
        asked = product((trained,), TESTED, map(str, MIXTURES), (str(seed),))
        if known.issuperset(asked):
            continue
        for tested, mixture, hit in accuracies(records, trained, seed, training):
            if (trained, tested, str(mixture), str(seed)) not in known:
                line = (trained, tested, mixture, seed, f"{hit:.2f}", provenance_of(device))
                append_line(path, HEADER, line)
                yield line


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    device = device_named(asked.device)
    records = Records.load("fashion-mnist", device)
    for line in complete(asked.results, records, asked.seeds, Training(), device):
        print(*line[:5], flush=True)


if __name__ == "__main__":
    main()
