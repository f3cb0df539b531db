"""Images, labels, and the paper's network in torch's modules, for tests of what is trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_images(models: int, rows: int, seed: int = 0) -> Tensor:
    return torch.rand(models, rows, 784, generator=generator(seed)) * 2 - 1


def some_labels(models: int, rows: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 10, (models, rows), generator=generator(seed))


def written_out(dropout: float = 0.5) -> nn.Sequential:
    """Appendix A in torch's modules, independent of ours."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, 1, 2),
        nn.ReLU(),
        nn.BatchNorm2d(32),
        nn.MaxPool2d(2, 2),
        nn.Flatten(),
        nn.Linear(6272, 100),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(100, 100),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(100, 10),
    )


def bars(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images with a bright bar whose place is the class, in noise."""
    draws = generator(seed)
    labels = torch.randint(0, 10, (rows,), generator=draws)
    images = 0.3 * torch.randn(rows, 28, 28, generator=draws)
    for row, label in enumerate(labels.tolist()):
        images[row, 2 * label + 3 : 2 * label + 5] += 1.0
    return images.flatten(1), labels
