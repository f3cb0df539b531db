"""Draw method.png beside this file: one mixture on its way through the protocol.

    .venv/bin/python docs/theory/figures/method.py

Four sites hold the digits; the noise comes from a test seed, since this picture is not a release.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch

from capemix.data import load_dataset, partition
from capemix.methods.mixing.planning import plan_mixtures
from capemix.randomness.source import SeededSource
from capemix.sums.aggregate import Aggregate
from capemix.sums.query import SumQuery
from capemix.sums.share import SourceDraws, prepare_site, site_share
from capemix.sums.steps import PublicMap
from capemix.zerosum.graph import PeerGraph
from capemix.zerosum.masks import deal_keys

SITES, DIGIT, SEED = 4, 3, 5


class Stage(SourceDraws):
    """A site's draws, with its own noise left out on request."""

    def __init__(self, query: SumQuery, site: int, noisy: bool) -> None:
        super().__init__(query, SeededSource(SEED).child("site", site))
        self.noisy = noisy

    def add_noise(self, block, out) -> None:
        if self.noisy:
            super().add_noise(block, out)


def main() -> None:
    train, _ = load_dataset("digits")
    parts = partition(train, SITES, "stratified", seed=1)
    plan = plan_mixtures(
        width=64,
        class_sizes=tuple(train.class_counts().tolist()),
        samples=10,
        mixture=48,
        clip=4.0,
        scheme="cape",
        sites=SITES,
        normalise=PublicMap.of_range(0, 16),
    ).calibrate(2.0)
    query = plan.query("mixtures", plan.method.statistic(plan))
    keys = deal_keys(PeerGraph.complete(SITES), SeededSource(SEED).child("keys"))
    rows = [prepare_site(query, part.features, part.labels) for part in parts]

    def picture(values: np.ndarray) -> np.ndarray:
        signed = values.view(np.int32)[DIGIT].astype(float)
        return signed.reshape(8, 8)

    plain, noised, masked = [], [], []
    for site in range(SITES):
        for kept, noisy, key in (
            (plain, False, None),
            (noised, True, None),
            (masked, True, keys[site]),
        ):
            share = site_share(query, site, rows[site], Stage(query, site, noisy), key)
            kept.append(picture(share.values.copy()))
    total, clean = Aggregate(query), sum(plain)
    for site in range(SITES):
        total.add(site_share(query, site, rows[site], Stage(query, site, True), keys[site]))
    still_masked = picture(total._total().copy())
    total.unmask({k.site: k.own for k in keys}, {})
    released = picture(total._total().copy())
    assert (released == sum(noised)).all()

    figure = plt.figure(figsize=(13.5, 6.2))
    grid = figure.add_gridspec(
        4, 7, width_ratios=[1, 1, 1, 0.45, 1.45, 1.45, 1.45], wspace=0.22, hspace=0.3
    )
    limit = np.abs(clean).max()
    styles = {"cmap": "gray", "vmin": -limit, "vmax": limit}
    site_styles = {"cmap": "gray", "vmin": -limit / SITES, "vmax": limit / SITES}
    columns = (
        ("sum of the site's\nselected rows", plain, site_styles),
        ("+ own noise", noised, site_styles),
        ("+ masks\n= what is uploaded", masked, {"cmap": "gray", "vmin": -(2**31), "vmax": 2**31}),
    )
    for column, (title, pictures, style) in enumerate(columns):
        for site in range(SITES):
            axes = figure.add_subplot(grid[site, column])
            axes.imshow(pictures[site], **style)
            axes.set_xticks([])
            axes.set_yticks([])
            if column == 0:
                axes.set_ylabel(f"site {site + 1}", fontsize=11)
            if site == 0:
                axes.set_title(title, fontsize=11)
    finals = (
        ("sum of the uploads:\npair masks cancel,\nself masks remain", still_masked, columns[2][2]),
        ("self masks taken off\n= the release", released, styles),
        ("the same rows\nwithout any noise", clean, styles),
    )
    for column, (title, values, style) in enumerate(finals):
        axes = figure.add_subplot(grid[1:3, 4 + column])
        axes.imshow(values, **style)
        axes.set_title(title, fontsize=11)
        axes.set_xticks([])
        axes.set_yticks([])
    for height in (0.755, 0.6, 0.42, 0.265):
        figure.add_artist(
            FancyArrowPatch(
                (0.43, height), (0.475, 0.5), arrowstyle="-|>", mutation_scale=13, color="0.35"
            )
        )
    figure.text(
        0.265, 0.99, "(a) generation: at the sites", ha="center", fontsize=13, weight="bold"
    )
    figure.text(
        0.7, 0.99, "(b) cancellation: at the coordinator", ha="center", fontsize=13, weight="bold"
    )
    figure.text(
        0.69,
        0.2,
        f"one mixture of the digit {DIGIT}: 48 rows in expectation, epsilon 2 for the whole\n"
        "release of 10 mixtures, 4 sites of which 1 may collude with the server",
        ha="center",
        fontsize=10,
        color="0.25",
    )
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
