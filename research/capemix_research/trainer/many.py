"""Train many small CNNs at once: one step of all of them is one CUDA graph.

A single small model leaves a GPU idle between kernels; side by side they share every launch, and
the fused block of `conv_block` moves a tenth of the bytes. On a CPU nothing is gained by company:
the models train one after the other, with torch's own layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from capemix.errors import InputError
from capemix.evaluate.cnn import POOLED, Progress, Training
from capemix_research.trainer.cnns import ManyCNNs

_STEPS: Final = 4
"""The most steps in one graph: enough to hide the cost of a replay."""


def models_that_fit(rows: int, width: int, device: torch.device, most: int = 32) -> int:
    """How many models of so many rows fit into the device's free memory, up to ``most``."""
    if device.type != "cuda":
        return 1
    parameters = 16 * 640_000 + 6 * 4 * 128 * POOLED
    each = 2 * 4 * rows * width + parameters
    free = torch.cuda.mem_get_info(device)[0]
    fit = int(0.8 * free // each)
    if fit < 1:
        raise InputError(
            "--device",
            f"has too little free memory: {each / 1e9:.1f} GB are needed for one model",
            value=f"{free / 1e9:.1f} GB free",
            fix="end what else runs there, or train on fewer rows",
        )
    return min(fit, most)


def train_many(
    rows: Tensor,
    labels: Tensor,
    seeds: Sequence[int],
    training: Training,
    progress: Progress | None = None,
    *,
    fused: bool = True,
    graph: bool = True,
) -> ManyCNNs:
    """One model for each of ``rows`` (models, T, 784) and ``labels``, on their device: classes
    (models, T), or how likely each class is (models, T, 10).

    Every epoch goes through a fresh order of each model's rows; what does not fill a last batch
    waits for another epoch. ``fused`` and ``graph`` are how a GPU does it, and can be turned off
    to see what they are worth. On a CPU, each is the model that `capemix.evaluate.cnn.train` gives
    for the same rows and seed.
    """
    device = rows.device
    if device.type == "cpu" and len(seeds) > 1:
        return _one_after_the_other(rows, labels, seeds, training, progress)
    batches = training.batches_of(rows.shape[1])
    cnns = ManyCNNs(seeds, fused=fused).to(device).train()
    with _seeded(_order_seed(seeds, device), device):
        step = _Step(cnns, rows, labels, training)
        run = step.captured() if device.type == "cuda" and graph else step.run
        for epoch in range(training.epochs):
            step.shuffle()
            for _ in range(batches // step.per_run):
                run()
            if progress is not None:
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                progress(epoch + 1, training.epochs)
    return cnns.eval()


def _one_after_the_other(
    rows: Tensor,
    labels: Tensor,
    seeds: Sequence[int],
    training: Training,
    progress: Progress | None,
) -> ManyCNNs:
    together = ManyCNNs(seeds)
    for k, seed in enumerate(seeds):

        def report(epoch: int, epochs: int, before: int = k) -> None:
            if progress is not None:
                progress(before * epochs + epoch, len(seeds) * epochs)

        alone = train_many(rows[k : k + 1], labels[k : k + 1], [seed], training, report)
        for name, value in together.state_dict().items():
            value[k] = alone.state_dict()[name][0]
    return together.eval()


@torch.no_grad()
def predict(cnns: ManyCNNs, images: Tensor, *, at_once: int = 500) -> Tensor:
    """Every model's class for each of ``images`` (rows, 784), or (models, rows, 784)."""
    if images.ndim == 2:
        images = images.expand(cnns.models, *images.shape)
    parts = torch.split(images, at_once, dim=1)
    return torch.cat([cnns(part).argmax(2) for part in parts], dim=1)


class _Step:
    """A step of every model on its next batch, with all that it reads at fixed addresses."""

    def __init__(self, cnns: ManyCNNs, rows: Tensor, labels: Tensor, training: Training) -> None:
        on_gpu = rows.is_cuda
        self._cnns, self._batch = cnns, training.batch
        self._rows, self._labels = rows.flatten(0, 1), labels.flatten(0, 1)
        models, self._count = labels.shape[:2]
        self._first = torch.arange(models, device=rows.device)[:, None] * self._count
        self._lanes = torch.arange(training.batch, device=rows.device)
        shape = (models, self._count)
        self._order = torch.empty(shape, dtype=torch.long, device=rows.device)
        self._next = torch.zeros((), dtype=torch.long, device=rows.device)
        batches = self._count // training.batch
        # As many steps in one go as leave no batch of an epoch out.
        self.per_run = max(k for k in range(1, _STEPS + 1) if batches % k == 0) if on_gpu else 1
        self._adam = torch.optim.Adam(
            cnns.parameters(), lr=training.learning_rate, fused=True, capturable=on_gpu
        )
        self.shuffle()

    def shuffle(self) -> None:
        self._order.copy_(torch.rand_like(self._order, dtype=torch.float32).argsort(1))
        self._next.zero_()

    def run(self) -> None:
        for _ in range(self.per_run):
            lanes = self._lanes + self._next * self._batch
            chosen = self._order.index_select(1, lanes) + self._first
            logits = self._cnns(self._rows[chosen])
            # A mean for every model, and their sum: no model's gradient has another's in it.
            losses = functional.cross_entropy(
                logits.flatten(0, 1), self._labels[chosen].flatten(0, 1), reduction="sum"
            )
            self._adam.zero_grad(set_to_none=True)
            (losses / self._batch).backward()  # type: ignore[no-untyped-call]
            self._adam.step()
            self._next.add_(1)

    def captured(self) -> Callable[[], None]:
        """The same as a CUDA graph. Capturing needs a few steps taken; they are undone."""
        state = {name: value.clone() for name, value in self._cnns.state_dict().items()}
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                self.run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run()
        self._cnns.load_state_dict(state)
        for moments in self._adam.state.values():
            for value in moments.values():
                value.zero_()
        return graph.replay


def _order_seed(seeds: Sequence[int], device: torch.device) -> int:
    """Of orders and dropout; on a CPU, where weights come from the same generator, not theirs."""
    apart = 2**62 if device.type == "cpu" else 0
    mixed: int = sum(seed * 1_000_003**k for k, seed in enumerate(seeds))
    return (apart + mixed) % 2**63


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Orders and dropout from a seed, and matrix products in tf32; both put back afterwards."""
    before = torch.get_float32_matmul_precision()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
