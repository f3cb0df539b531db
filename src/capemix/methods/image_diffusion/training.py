"""The network in floating point: trained on rows that are public by now, and drawn from.

All of this is post-processing of noisy sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from capemix.randomness.gaussian import draw_normals
from capemix.randomness.source import Source
from capemix.statistics.denoiser import Floating, said, told_of
from capemix.statistics.denoising import Network, noise_of, scales_of, tables_on

Single = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int64]

BATCH: Final = 1024
"""Rows of a step of the warm start."""

RATE: Final = 1e-3
"""Of its steps, falling to a tenth."""

STEPS: Final = 24
"""From noise to an image."""

ENDS: Final = (0.002, 80.0)
"""The least and the largest level that an image goes through."""

_AT_A_TIME: Final = 4096


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def first_weights(network: Network, source: Source) -> Single:
    """By each layer's number of inputs (He et al. 2015); what ends a block is 0 at first."""
    found = []
    for layer in network.layers:
        part = np.zeros(layer.size, dtype=np.float32)
        if not layer.name.endswith(" 2") and layer.name != "out":
            draw_normals(part, source.stream("weights", layer.name))
            straight = layer.name.endswith(" past")
            part *= math.sqrt((1.0 if straight else 2.0) / (layer.side**2 * layer.inputs))
        found.append(part)
    return np.concatenate(found)


def averaging(turn: int, most: float) -> float:
    """How much of an average of weights stays at a turn: less while there are few."""
    return min(most, (1.0 + turn) / (10.0 + turn))


def warmed(
    network: Network, weights: Single, rows: Single, labels: Codes, steps: int, source: Source
) -> Single:
    """The average of the weights on their way through so many steps of Adam on rows of -1 to 1."""
    where = device()
    own = torch.from_numpy(weights.copy()).to(where).requires_grad_()
    average = own.detach().clone()
    images, codes = torch.tensor(rows), torch.tensor(labels)
    if where == "cuda" or len(rows) <= 1 << 20:
        images, codes = images.to(where), codes.to(where)
    tables, alone = tables_on(where), replace(network, noises=1)
    batch = min(BATCH, len(rows))
    chosen, keys = _words(source, "rows", steps * batch), _words(source, "noises", steps * batch)
    rule = torch.optim.Adam([own], lr=RATE, betas=(0.9, 0.99))
    for step in range(steps):
        for group in rule.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 100) * (1.0 - 0.9 * step / steps)
        turn = slice(step * batch, (step + 1) * batch)
        some = (chosen[turn] % len(rows)).to(where)
        x, y = images[some], codes[some]
        levels, normals = noise_of(keys[turn].to(where), alone, tables)
        inner, skip, outer, deviation = (part[levels][:, None] for part in tables[:4])
        noisy = x + deviation * normals
        told = told_of(network, levels, y, tables[4])
        with torch.autocast(where, dtype=torch.bfloat16, enabled=where == "cuda"):
            images_in = (inner * noisy).reshape(-1, *network.shape)
            found = said(network, Floating(network, own), images_in, told)
        target = (x - skip * noisy) / outer
        loss = (found.float().reshape(batch, -1) - target).square().mean()
        rule.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        rule.step()
        average.lerp_(own.detach(), 1.0 - averaging(step, 0.999))
    return np.asarray(average.cpu().numpy())


@dataclass(eq=False)
class Descent:
    """Adam (Kingma, Ba 2015) on noisy gradients, and the average of the weights on their way."""

    weights: Single
    rate: float
    rounds: int
    kept: float = 0.99

    def __post_init__(self) -> None:
        self._first = np.zeros(len(self.weights))
        self._second = np.zeros(len(self.weights))
        self._turn = 0
        self._own = self.weights.astype(np.float64)
        self.average = self._own.copy()

    @property
    def now(self) -> npt.NDArray[np.float64]:
        """As a message carries them, and a site reads them."""
        return self._own.astype(np.float32).astype(np.float64)

    def step(self, gradient: npt.NDArray[np.float64]) -> None:
        self._turn += 1
        self._first += 0.1 * (gradient - self._first)
        self._second += 0.01 * (gradient**2 - self._second)
        first = self._first / (1.0 - 0.9**self._turn)
        second = self._second / (1.0 - 0.99**self._turn)
        rate = self.rate * min(1.0, self._turn / 20) * (1.0 - 0.8 * self._turn / self.rounds)
        self._own -= rate * first / (np.sqrt(second) + 1e-12)
        self.average += (1.0 - averaging(self._turn, self.kept)) * (self._own - self.average)


@torch.no_grad()
def drawn(network: Network, weights: npt.NDArray[Any], labels: Codes, source: Source) -> Single:
    """An image of -1 to 1 for each label, from noise to an image by Heun's steps (Karras et al.
    2022, Algorithm 1)."""
    where = device()
    own = torch.from_numpy(weights.astype(np.float32)).to(where)
    keys, alone = _words(source, "images", len(labels)), replace(network, noises=1)
    ends = [end ** (1.0 / 7.0) for end in ENDS]
    levels = np.linspace(ends[1], ends[0], STEPS) ** 7.0
    tables = tuple(torch.from_numpy(part).to(where) for part in scales_of(levels))
    out = np.empty((len(labels), math.prod(network.shape)), dtype=np.float32)

    def cleaned(x: Tensor, y: Tensor, at: int) -> Tensor:
        place = torch.full((len(x),), at, device=where)
        inner, skip, outer = (part[at] for part in tables[:3])
        told = told_of(network, place, y, tables[4])
        with torch.autocast(where, dtype=torch.bfloat16, enabled=where == "cuda"):
            images = (inner * x).reshape(-1, *network.shape)
            found = said(network, Floating(network, own), images, told)
        return skip * x + outer * found.float().reshape(x.shape)

    for start in range(0, len(labels), _AT_A_TIME):
        y = torch.tensor(labels[start : start + _AT_A_TIME]).to(where)
        some = keys[start : start + len(y)].to(where)
        x = noise_of(some, alone, tables_on(where))[1] * ENDS[1]
        for at, level in enumerate(levels):
            following = levels[at + 1] if at + 1 < STEPS else 0.0
            slope = (x - cleaned(x, y, at)) / level
            moved = x + (following - level) * slope
            if at + 1 < STEPS:
                again = (moved - cleaned(moved, y, at + 1)) / following
                moved = x + (following - level) * (slope + again) / 2
            x = moved
        out[start : start + len(y)] = x.clamp(-1.0, 1.0).cpu().numpy()
    return out


def _words(source: Source, name: str, count: int) -> Tensor:
    """So many whole numbers, in which chance for post-processing begins."""
    return torch.from_numpy(source.stream(name).words(count).view(np.int64))
