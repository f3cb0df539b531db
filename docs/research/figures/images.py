"""Draw images.png: rows of seeded releases of MNIST and FashionMNIST, beside real ones."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from capemix import Facts, PublicMap, make_plan, synthesize
from capemix.data import load_dataset
from capemix.data.registry import dataset_info
from capemix.methods.image_clusters import ImageClusters
from capemix.randomness.source import SeededSource
from capemix_research.report.style import STYLE

EACH = 6


def sheet(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The first few of every class, class by class."""
    picked = [rows[np.flatnonzero(labels == k)[:EACH]].reshape(-1, 28, 28) for k in range(10)]
    return np.vstack([np.hstack([one[n] for one in picked]) for n in range(EACH)])


def main() -> None:
    panels = []
    for name in ("mnist", "fashion-mnist"):
        train, _ = load_dataset(name)
        info = dataset_info(name)
        for epsilon in (1.0, 10.0):
            facts = Facts.of(train, normalise=PublicMap.of_range(*info.value_range))
            method = ImageClusters(samples=200, deskew=info.handwriting)
            plan = make_plan(facts, method).calibrate(epsilon)
            found = synthesize(plan, train, source=SeededSource(1))
            panels.append((f"{name}, epsilon {epsilon:g}", sheet(found.features, found.labels)))
        panels.append((f"{name}, real rows", sheet(train.features, train.labels)))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained")
        for axis, (title, image) in zip(figure.subplots(2, 3).flat, panels, strict=True):
            axis.imshow(image, cmap="gray_r", vmin=0, vmax=255)
            axis.set_title(title, fontsize=8)
            axis.axis("off")
        figure.savefig(Path(__file__).with_name("images.png"), dpi=110)


if __name__ == "__main__":
    main()
