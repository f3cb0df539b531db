"""The paper's CNN, trained by Adam, one model after the other.

One 5x5x32 convolution (stride 1, padding 2), ReLU, batch normalisation, 2x2 max pooling; two dense
layers of 100 with ReLU and dropout 0.5; an output layer of 10: 639,306 parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from capemix.errors import InputError

SIDE: Final = 28
CHANNELS: Final = 32
KERNEL: Final = 5
POOLED: Final = CHANNELS * (SIDE // 2) ** 2
HIDDEN: Final = 100
CLASSES: Final = 10
DROPOUT: Final = 0.5

Progress = Callable[[int, int], None]
"""Called after every epoch with its number and how many there are."""


@dataclass(frozen=True)
class Training:
    """The paper's: Adam at 1e-5 for 100 epochs. It does not state a batch size."""

    epochs: int = 100
    learning_rate: float = 1e-5
    batch: int = 128

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise InputError("epochs", "must be at least 1", value=self.epochs, fix="try 20")
        if not 0.0 < self.learning_rate < math.inf:
            raise InputError(
                "learning_rate", "must be above 0", value=self.learning_rate, fix="try 1e-3"
            )
        if self.batch < 1:
            raise InputError("batch", "must be at least 1", value=self.batch, fix="try 128")

    def batches_of(self, rows: int) -> int:
        """How many whole batches an epoch has; refuses rows that do not fill one."""
        if rows < self.batch:
            raise InputError(
                "samples",
                f"must fill a batch of {self.batch}",
                value=rows,
                fix="release more rows",
            )
        return rows // self.batch


def device_named(name: str) -> torch.device:
    """The device to train on; refuses CUDA where there is none."""
    if name not in ("cpu", "cuda"):
        raise InputError("device", "must be cpu or cuda", value=name, fix="choose one")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "device",
            "asks for a GPU, and torch sees none",
            value=name,
            fix="use cpu, or a torch built for CUDA",
        )
    return torch.device(name)


class CNN(nn.Sequential):
    """Takes images (rows, 784), gives logits (rows, 10). Its weights come from ``seed`` alone."""

    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng([]):  # the layers draw weights too, which are replaced below
            super().__init__(
                nn.Unflatten(1, (1, SIDE, SIDE)),
                nn.Conv2d(1, CHANNELS, KERNEL, padding=KERNEL // 2),
                nn.ReLU(),
                nn.BatchNorm2d(CHANNELS),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(POOLED, HIDDEN),
                nn.ReLU(),
                nn.Dropout(DROPOUT),
                nn.Linear(HIDDEN, HIDDEN),
                nn.ReLU(),
                nn.Dropout(DROPOUT),
                nn.Linear(HIDDEN, CLASSES),
            )
        draws = torch.Generator().manual_seed(seed)
        for layer in self:
            if isinstance(layer, nn.Conv2d):
                layer.weight = nn.Parameter(_uniform(draws, KERNEL**2, *layer.weight.shape))
                layer.bias = nn.Parameter(_uniform(draws, KERNEL**2, CHANNELS))
            elif isinstance(layer, nn.Linear):
                fan_in, out = layer.in_features, layer.out_features
                layer.weight = nn.Parameter(_uniform(draws, fan_in, fan_in, out).T)
                layer.bias = nn.Parameter(_uniform(draws, fan_in, out))


def _uniform(draws: torch.Generator, fan_in: int, *shape: int) -> Tensor:
    """Within 1 / sqrt(fan in): torch's default, for weights and biases alike."""
    bound = 1.0 / math.sqrt(fan_in)
    return torch.rand(shape, generator=draws) * 2.0 * bound - bound


def train(
    rows: Tensor, labels: Tensor, seed: int, training: Training, progress: Progress | None = None
) -> CNN:
    """A model trained on ``rows`` (T, 784) and ``labels``, on their device: classes (T,), or how
    likely each class is (T, 10).

    Every epoch goes through a fresh order of the rows; what does not fill a last batch waits for
    another epoch. On a CPU, the same rows and seed give the same model, bit for bit.
    """
    batches = training.batches_of(len(rows))
    cnn = CNN(seed).to(rows.device).train()
    adam = torch.optim.Adam(cnn.parameters(), lr=training.learning_rate, fused=True)
    with torch.random.fork_rng([rows.device] if rows.is_cuda else []):
        torch.manual_seed((2**62 + seed) % 2**63)  # for orders and dropout: not the weights' seed
        torch.rand(len(rows), device=rows.device)  # unused: so a seed's model stays what it was
        for epoch in range(training.epochs):
            order = torch.rand(len(rows), device=rows.device).argsort()
            for chosen in torch.split(order[: batches * training.batch], training.batch):
                loss = functional.cross_entropy(cnn(rows[chosen]), labels[chosen])
                adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                adam.step()
            if progress is not None:
                progress(epoch + 1, training.epochs)
    return cnn.eval()


@torch.no_grad()
def predict(cnn: CNN, images: Tensor, *, classes: int = CLASSES, at_once: int = 500) -> Tensor:
    """The class of each of ``images`` (rows, 784), out of the first ``classes`` outputs."""
    parts = torch.split(images, at_once)
    return torch.cat([cnn(part)[:, :classes].argmax(1) for part in parts])


def train_and_predict(
    rows: npt.NDArray[Any],
    labels: npt.NDArray[np.int64] | npt.NDArray[np.float32],
    test: npt.NDArray[Any],
    seeds: Sequence[int],
    training: Training,
    device: torch.device,
    progress: Progress | None = None,
) -> npt.NDArray[np.int64]:
    """Each seed's classes of ``test``, after training on the same rows: (seeds, rows of ``test``).

    ``labels`` are classes, or how likely each is, as in `train`. ``progress`` counts the epochs of
    all models together.
    """
    images = torch.tensor(rows, dtype=torch.float32, device=device)
    truth = torch.tensor(labels, device=device)
    unseen = torch.tensor(test, dtype=torch.float32, device=device)
    present = labels if labels.ndim == 1 else np.flatnonzero(labels.any(axis=0))
    classes = int(present.max(initial=0)) + 1
    found: list[Tensor] = []
    for seed in seeds:

        def report(epoch: int, epochs: int, before: int = len(found)) -> None:
            if progress is not None:
                progress(before * epochs + epoch, len(seeds) * epochs)

        cnn = train(images, truth, seed, training, report)
        found.append(predict(cnn, unseen, classes=classes).cpu())
    return torch.stack(found).numpy()
