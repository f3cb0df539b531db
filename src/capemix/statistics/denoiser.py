"""A small network that takes noise off images: in floating point, to be trained and drawn from, and
in whole numbers, where what it makes of a record is that record's own to the last bit.

An image x with noise of deviation s on each pixel is looked at as c_in (x + s e), and the network
says (x - c_skip (x + s e)) / c_out (Karras et al. 2022). It works on squares of two by two pixels,
then on squares of four by four and back, without biases and without normalisation: a constant goes
in beside the image, and beside the noise level and the class.

*In whole numbers.* Each layer's input is rounded to whole numbers of -`most` to `most`, by its
record's own largest entry, and its weights to whole numbers too, so that no sum of products passes
2^23: single precision has every partial sum exactly, in any order, on any machine. So has the sum
for a gradient. What lies between is done entry by entry, one rounded operation after another.
"""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from capemix.statistics.denoising import FREQUENCIES, Layer, Network

EXACT: Final = float(1 << 23)
"""What no partial sum of whole numbers exceeds: half of what single precision has exactly."""

MOST: Final = 127
"""Of the whole numbers that a layer's input is rounded to: eight bits have it."""

_MOST_WEIGHT: Final = 255


class Arithmetic(Protocol):
    """How a network's layers are computed. Images are (count, height, width, channels)."""

    def layer(self, name: str, a: Tensor) -> Tensor:
        """The products of ``a`` with a layer's weights."""
        ...

    def onto(self, images: Tensor, told: Tensor) -> Tensor:
        """``told``, a vector for each image, added to all of its points."""
        ...


def said(network: Network, how: Arithmetic, noisy: Tensor, told: Tensor) -> Tensor:
    """What the network says of images (count, height, width) of variance 1 about, of which ``told``
    has the level's waves, the class and a constant."""
    about = told[:, None, None, :]
    about = _bent(how.layer("told", about))
    about = _bent(how.layer("told again", about))
    first = how.layer("first", _with_constant(_folded(noisy)))
    fine = _block(how, "fine", first, about)
    coarse = _block(how, "coarse", _halved(fine), about)
    middle = _block(how, "middle", coarse, about)
    back = _block(how, "back", torch.cat([middle, coarse], 3), about)
    last = _block(how, "last", torch.cat([_doubled(back), fine], 3), about)
    return _unfolded(how.layer("out", _bent(last)), network.shape)


def _block(how: Arithmetic, name: str, a: Tensor, about: Tensor) -> Tensor:
    bent = _bent(a)
    inner = how.onto(how.layer(f"{name} 1", bent), how.layer(f"{name} told", about))
    inner = how.layer(f"{name} 2", _bent(inner))
    straight = a if a.shape[3] == inner.shape[3] else how.layer(f"{name} past", a)
    return straight + inner


def _bent(a: Tensor) -> Tensor:
    """x min(max(x + 3, 0), 6) / 6 (Howard et al. 2019): no exponential, of which libraries differ
    in the last bit by an entry's place."""
    return functional.hardswish(a)


def _folded(images: Tensor) -> Tensor:
    """Squares of two by two pixels, as four channels of one point."""
    count, height, width = images.shape
    found = images.reshape(count, height // 2, 2, width // 2, 2).permute(0, 1, 3, 2, 4)
    return found.reshape(count, height // 2, width // 2, 4)


def _unfolded(a: Tensor, shape: tuple[int, int]) -> Tensor:
    count, height, width, _ = a.shape
    found = a.reshape(count, height, width, 2, 2).permute(0, 1, 3, 2, 4)
    return found.reshape(count, *shape)


def _with_constant(a: Tensor) -> Tensor:
    return torch.cat([a, a.new_ones(*a.shape[:3], 1)], 3)


def _halved(a: Tensor) -> Tensor:
    """Means of squares of two by two points, added in one order."""
    upper, lower = a[:, ::2], a[:, 1::2]
    return ((upper[:, :, ::2] + upper[:, :, 1::2]) + (lower[:, :, ::2] + lower[:, :, 1::2])) * 0.25


def _doubled(a: Tensor) -> Tensor:
    """Each point four times; backwards, as `_halved` adds."""
    found: Tensor = _Doubled.apply(a)  # type: ignore[no-untyped-call]
    return found


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:  # noqa: ARG004
        return a.repeat_interleave(2, 1).repeat_interleave(2, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return _halved(gradients[0]) * 4.0


class Floating:
    """Layers in floating point, with weights that may be trained."""

    def __init__(self, network: Network, weights: Tensor) -> None:
        self._layers = {layer.name: layer for layer in network.layers}
        parts = torch.split(weights, [layer.size for layer in network.layers])
        self._weights = dict(zip(self._layers, parts, strict=True))

    def layer(self, name: str, a: Tensor) -> Tensor:
        layer = self._layers[name]
        weights = self._weights[name].view(layer.outputs, layer.side, layer.side, layer.inputs)
        images = a.permute(0, 3, 1, 2)
        found = functional.conv2d(images, weights.permute(0, 3, 1, 2), padding=layer.side // 2)
        return found.permute(0, 2, 3, 1)

    def onto(self, images: Tensor, told: Tensor) -> Tensor:
        return images + told


class Whole:
    """Layers in whole numbers, for ``records`` of several images each; a backward pass leaves each
    record's own gradient in ``gradients``, by the layers' names: whole numbers, records by weights,
    and what a 1 is for each record."""

    def __init__(self, network: Network, weights: npt.NDArray[np.float32], device: str) -> None:
        self._device = device
        self._layers = {layer.name: layer for layer in network.layers}
        ends = np.cumsum([layer.size for layer in network.layers])[:-1]
        parts = np.split(weights, ends)
        points = network.shape[0] * network.shape[1] // 4 * network.noises
        self.most = min(MOST, math.isqrt(int(EXACT) // points))
        self._forward, self._back = {}, {}
        for layer, part in zip(network.layers, parts, strict=True):
            forward = part.reshape(layer.outputs, layer.side, layer.side, layer.inputs)
            back = np.ascontiguousarray(forward[:, ::-1, ::-1].transpose(3, 1, 2, 0))
            self._forward[layer.name] = self._rounded(forward.reshape(layer.outputs, -1))
            self._back[layer.name] = self._rounded(back.reshape(layer.inputs, -1))
        self.records = 0
        self.gradients: dict[str, tuple[Tensor, Tensor]] = {}
        self._leaf = torch.zeros((), requires_grad=True, device=device)

    def begin(self, records: int) -> None:
        self.records = records
        self.gradients = {}

    def layer(self, name: str, a: Tensor) -> Tensor:
        found: Tensor = _WholeLayer.apply(a, self._leaf, self, name)  # type: ignore[no-untyped-call]
        return found

    def onto(self, images: Tensor, told: Tensor) -> Tensor:
        found: Tensor = _Onto.apply(images, told, self)  # type: ignore[no-untyped-call]
        return found

    def _rounded(self, rows: npt.NDArray[np.float32]) -> tuple[Tensor, Tensor]:
        """Rows of weights as whole numbers, a column for each, and what a 1 is. Of whole inputs of
        ``most`` at most, no partial sum of products passes `EXACT`, by their norms."""
        terms = rows.shape[1]
        exact = rows.astype(np.float64)
        norms = np.sqrt((exact**2).sum(axis=1))
        room = EXACT / (self.most * math.sqrt(terms)) - math.sqrt(terms)
        largest = np.abs(exact).max(axis=1)
        scale = np.minimum(
            room / np.maximum(norms, 1e-30), _MOST_WEIGHT / np.maximum(largest, 1e-30)
        )
        whole = np.rint(exact * scale[:, None]).astype(np.float32)
        unit = (1.0 / scale).astype(np.float32)
        return self._moved(np.ascontiguousarray(whole.T)), torch.from_numpy(unit).to(self._device)

    def _moved(self, whole: npt.NDArray[np.float32]) -> Tensor:
        return self._small(torch.from_numpy(whole).to(self._device))

    def _small(self, whole: Tensor) -> Tensor:
        """Whole numbers of up to 256 as the matrix units take them."""
        return whole.bfloat16() if self._device == "cuda" else whole

    def whole(self, a: Tensor, edge: int) -> tuple[Tensor, Tensor]:
        """Each record's entries as whole numbers, with ``edge`` points of zeros about each image;
        and what a 1 is, a number for each record."""
        flat = a.reshape(self.records, -1)
        largest = torch.linalg.vector_norm(flat, math.inf, dim=1)
        largest = torch.where(largest > 0.0, largest, torch.ones_like(largest))
        scaled = (flat * (self.most / largest)[:, None]).round_().reshape(a.shape)
        count, height, width, channels = a.shape
        found = torch.zeros(
            (count, height + 2 * edge, width + 2 * edge, channels),
            dtype=torch.bfloat16 if self._device == "cuda" else torch.float32,
            device=a.device,
        )
        found[:, edge : edge + height, edge : edge + width] = scaled
        return found, largest / self.most

    def product(self, patches: Tensor, unit: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
        """Rows of patches, as many for each record, times whole weights."""
        whole, units = weights
        found = _multiplied(patches, whole).reshape(self.records, -1, whole.shape[1])
        return found.mul_(unit[:, None, None] * units)

    def forward_of(self, name: str, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What a layer gives, and what it was given: as rows of patches, and what a 1 is there."""
        layer = self._layers[name]
        whole, unit = self.whole(a, layer.side // 2)
        patches = _patches(whole, layer.side)
        found = self.product(patches, unit, self._forward[name])
        return found.reshape(*a.shape[:3], layer.outputs), patches, unit

    def back_of(
        self, name: str, gradient: Tensor, patches: Tensor, own_unit: Tensor, *, wanted: bool
    ) -> Tensor | None:
        """The gradient of a layer's input, from that of what it gave; each record's of its weights
        is kept, in whole numbers, with what a 1 is."""
        layer = self._layers[name]
        edge = layer.side // 2
        whole, unit = self.whole(gradient, edge)
        height, width = gradient.shape[1:3]
        inner = whole[:, edge : edge + height, edge : edge + width]
        rows = inner.reshape(self.records, -1, layer.outputs).transpose(1, 2)
        own = patches.reshape(self.records, -1, patches.shape[1])
        found = _each_multiplied(rows, own).reshape(self.records, -1)
        self.gradients[name] = found, unit * own_unit
        if not wanted:
            return None
        found = self.product(_patches(whole, layer.side), unit, self._back[name])
        return found.reshape(*gradient.shape[:3], layer.inputs)


class _WholeLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, leaf: Tensor, how: Whole, name: str) -> Tensor:  # noqa: ARG004
        found, patches, unit = how.forward_of(name, a)
        ctx.save_for_backward(patches, unit)
        ctx.how, ctx.name = how, name
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        patches, unit = ctx.saved_tensors
        wanted = ctx.needs_input_grad[0]
        found = ctx.how.back_of(ctx.name, gradients[0], patches, unit, wanted=wanted)
        return found, None, None, None


class _Onto(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, told: Tensor, how: Whole) -> Tensor:
        ctx.how = how
        return images + told

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        whole, unit = ctx.how.whole(gradients[0], 0)
        count, height, width, channels = whole.shape
        total = whole.float().reshape(count, height * width, channels).sum(1)
        own = total.reshape(len(unit), -1).mul_(unit[:, None])
        return gradients[0], own.reshape(count, 1, 1, channels), None


def _patches(edged: Tensor, side: int) -> Tensor:
    """What each point's products are taken of: its own channels, or also those of its neighbours,
    as rows."""
    channels = edged.shape[3]
    if side == 1:
        return edged.reshape(-1, channels)
    wide = edged.view(torch.int64) if edged.is_cuda and channels % 4 == 0 else edged
    count, height, width, words = wide.shape
    size = (count, height - 2, width - 2, 3, 3 * words)
    steps = wide.stride()
    seen = wide.as_strided(size, (*steps[:3], steps[1], 1)).reshape(-1, 9 * words)
    return seen.view(edged.dtype)


def _multiplied(rows: Tensor, columns: Tensor) -> Tensor:
    """Whole numbers' products, exact: see `EXACT`."""
    if rows.is_cuda:
        return torch.mm(rows, columns, out_dtype=torch.float32)
    return torch.mm(rows, columns)


def _each_multiplied(rows: Tensor, columns: Tensor) -> Tensor:
    if rows.is_cuda:
        return torch.bmm(rows, columns, out_dtype=torch.float32)
    return torch.bmm(rows, columns)


def told_of(network: Network, levels: Tensor, labels: Tensor, waves: Tensor) -> Tensor:
    """What the network is told of each image: its level's waves, its class and a constant."""
    classes = functional.one_hot(labels, network.classes).to(waves.dtype)
    return torch.cat([waves[levels], classes, waves.new_ones(len(labels), 1)], 1)


__all__ = ["FREQUENCIES", "Floating", "Layer", "Whole", "said", "told_of"]
