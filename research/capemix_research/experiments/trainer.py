"""What the trainer is worth, on a GPU.

    python -m capemix_research.experiments.trainer --out FILE

The same rows and seeds, trained one model at a time as a plain loop, one at a time as a graph, a
few side by side with torch's own layers, and many side by side in fused kernels.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from functools import partial
from pathlib import Path

from capemix.evaluate.cnn import Training, device_named
from capemix_research.experiments.rows import Records, training_rows
from capemix_research.experiments.settings import Setting
from capemix_research.trainer.many import predict, train_many

_WAYS = {
    "loop, one model": {"models": 1, "epochs": 3, "fused": False, "graph": False},
    "graph, one model": {"models": 1, "epochs": 4, "fused": False, "graph": True},
    "graph, ten models, torch's layers": {"models": 10, "epochs": 3, "fused": False, "graph": True},
    "graph, ten models, fused": {"models": 10, "epochs": 6, "fused": True, "graph": True},
    "graph, 64 models, fused": {"models": 64, "epochs": 6, "fused": True, "graph": True},
    "accuracy: torch's layers": {"models": 4, "epochs": 100, "fused": False, "graph": True},
    "accuracy: fused": {"models": 4, "epochs": 100, "fused": True, "graph": True},
}


def _mark(marks: list[float], _epoch: int, _of: int) -> None:
    marks.append(time.monotonic())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    device = device_named("cuda")
    records = Records.load("mnist", device)
    setting = Setting("mnist", "central", 1, 512, math.inf, labels_noised=False, accountant="none")
    rows, labels = training_rows(setting, 0.0, records, 0)
    test = records.test_rows(setting.clip)
    with asked.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("way", "models", "seconds for 100 epochs of a model", "accuracies"))
        for way, how in _WAYS.items():
            models, epochs = how["models"], how["epochs"]
            marks: list[float] = []
            cnns = train_many(
                rows.expand(models, -1, -1).contiguous(),
                labels.expand(models, -1).contiguous(),
                range(models),
                Training(epochs=epochs),
                partial(_mark, marks),
                fused=bool(how["fused"]),
                graph=bool(how["graph"]),
            )
            seconds = 100.0 * (marks[-1] - marks[0]) / (epochs - 1) / models
            found = (predict(cnns, test) == records.test_labels).float().mean(1) * 100
            said = " ".join(f"{value:.2f}" for value in found.tolist()) if epochs == 100 else ""
            writer.writerow((way, models, f"{seconds:.2f}", said))
            file.flush()
            print(f"{way}: {seconds:.2f} s {said}", flush=True)
            del cnns


if __name__ == "__main__":
    main()
