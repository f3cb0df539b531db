"""Many of the product's CNNs side by side: every parameter has the model as its first axis.

Models never meet: model m's loss moves model m's parameters alone, as if it were trained by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from capemix.evaluate.cnn import CHANNELS, CNN, DROPOUT, KERNEL, POOLED, SIDE

BN_EPSILON: Final = 1e-5
BN_MOMENTUM: Final = 0.1
"""Both are torch's defaults, which the product's CNN has."""


class ManyCNNs(nn.Module):
    """``len(seeds)`` of `CNN`, each with the weights of its own seed.

    On a GPU the convolution block runs ``fused``, or with torch's own layers.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, seeds: Sequence[int], *, fused: bool = True) -> None:
        super().__init__()
        self._fused = fused
        models = len(seeds)
        states = [CNN(seed).state_dict() for seed in seeds]

        def convolution(name: str, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.stack([state[name].view(shape) for state in states]))

        def dense(layer: int) -> tuple[nn.Parameter, nn.Parameter]:
            weights = torch.stack([state[f"{layer}.weight"].T for state in states])
            biases = torch.stack([state[f"{layer}.bias"][None] for state in states])
            return nn.Parameter(weights), nn.Parameter(biases)

        self.conv_weight = convolution("1.weight", CHANNELS, KERNEL * KERNEL)
        self.conv_bias = convolution("1.bias", CHANNELS)
        self.bn_weight = nn.Parameter(torch.ones(models, CHANNELS))
        self.bn_bias = nn.Parameter(torch.zeros(models, CHANNELS))
        self.weight1, self.bias1 = dense(6)
        self.weight2, self.bias2 = dense(9)
        self.weight3, self.bias3 = dense(12)
        self.register_buffer("running_mean", torch.zeros(models, CHANNELS))
        self.register_buffer("running_var", torch.ones(models, CHANNELS))

    @property
    def models(self) -> int:
        return len(self.conv_bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (models, rows, 10) of images (models, rows, 784)."""
        block = self._trained_block if self.training else self._fixed_block
        hidden = block(images)
        for weight, bias in ((self.weight1, self.bias1), (self.weight2, self.bias2)):
            hidden = functional.relu(torch.baddbmm(bias, hidden, weight))
            hidden = functional.dropout(hidden, DROPOUT, self.training)
        return torch.baddbmm(self.bias3, hidden, self.weight3)

    def _trained_block(self, images: Tensor) -> Tensor:
        parameters = (self.conv_weight, self.conv_bias, self.bn_weight, self.bn_bias)
        if images.is_cuda and self._fused:
            from capemix_research.trainer.conv_block import FusedBlock

            pooled, mean, variance = FusedBlock.apply(images, *parameters)  # type: ignore[no-untyped-call]
        else:
            pooled, mean, variance = plain_block(images, *parameters)
        count = images.shape[1] * SIDE * SIDE
        with torch.no_grad():
            self.running_mean.lerp_(mean, BN_MOMENTUM)
            self.running_var.lerp_(variance * (count / (count - 1)), BN_MOMENTUM)
        return pooled  # type: ignore[no-any-return]

    def _fixed_block(self, images: Tensor) -> Tensor:
        rectified = _convolved(images, self.conv_weight, self.conv_bias)
        return _pooled(
            functional.batch_norm(
                rectified,
                self.running_mean.reshape(-1),
                self.running_var.reshape(-1),
                self.bn_weight.reshape(-1),
                self.bn_bias.reshape(-1),
                eps=BN_EPSILON,
            ),
            images,
        )


def plain_block(
    images: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Convolution, ReLU, batch normalisation and pooling of all models, by torch's own layers:
    (models, rows, 6272), and the batch's mean and (biased) variance of each channel."""
    rectified = _convolved(images, weight, bias)
    mean, variance = torch.zeros_like(bias), torch.zeros_like(bias)
    normal = functional.batch_norm(
        rectified,
        mean.view(-1),
        variance.view(-1),
        scale.reshape(-1),
        shift.reshape(-1),
        training=True,
        momentum=1.0,  # so that torch leaves the batch's own mean and (unbiased) variance there
        eps=BN_EPSILON,
    )
    count = images.shape[1] * SIDE * SIDE
    return _pooled(normal, images), mean, variance * ((count - 1) / count)


def _convolved(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(rows, models * 32, 28, 28): one group of channels a model."""
    models, rows, _ = images.shape
    side_by_side = images.transpose(0, 1).reshape(rows, models, SIDE, SIDE)
    kernels = weight.reshape(models * CHANNELS, 1, KERNEL, KERNEL)
    padding = KERNEL // 2
    return functional.relu(
        functional.conv2d(side_by_side, kernels, bias.reshape(-1), padding=padding, groups=models)
    )


def _pooled(normal: Tensor, images: Tensor) -> Tensor:
    models, rows, _ = images.shape
    pooled = functional.max_pool2d(normal, 2)
    return pooled.reshape(rows, models, POOLED).transpose(0, 1)
