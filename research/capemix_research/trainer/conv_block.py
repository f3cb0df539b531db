"""Convolution, ReLU, batch normalisation and pooling of many models in three kernels (CUDA).

The 32 x 28 x 28 activations of an image are 32 times its input, and a step is bound by moving
them. So they never reach memory: every kernel computes them again from the image, for a tile of
pooled cells at a time. The four positions of a cell see 6 x 6 pixels together, so that a tile is
one matrix product: neighbourhoods (cells x 36 pixels) times spread weights (pixels x
columns), where column 4 c + q is channel c at position q. What is kept is the pooled output, and
which position it came from.

Products take half precision in and give single precision out: 16-bit floats for values (the 11
bits of tf32), bfloat16 for gradients, which need the range.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from capemix.evaluate.cnn import CHANNELS, KERNEL, POOLED, SIDE
from capemix_research.trainer.cnns import BN_EPSILON

# Triton's interpreter, for tests on a CPU, knows no bfloat16.
_INTERPRETED: Final = triton.knobs.runtime.interpret
_VALUES: Final = tl.constexpr(tl.float32 if _INTERPRETED else tl.float16)
_GRADS: Final = tl.constexpr(tl.float32 if _INTERPRETED else tl.bfloat16)
_FORWARD: Final = {"TILE": 64, "TILES": 14, "num_warps": 4, "num_stages": 3}
_BACKWARD: Final = {"TILE": 32, "TILES": 28, "num_warps": 4, "num_stages": 2}
"""Cells in a tile and tiles that one program goes through: 28 programs a model at a batch of 128.
The quickest of what fits on an H200."""

_ROWS: Final = 8
_CELLS: Final = (SIDE // 2) ** 2
_TAPS: Final = KERNEL * KERNEL
_PIXELS: Final = 64
"""6 x 6, rounded up to what a matrix product takes."""

_COLUMNS: Final = 4 * CHANNELS
_SUMS: Final = _PIXELS + 2
"""Rows of a program's gradients: pixels, then the bias, then the scale."""


@cache
def _spreading(device: torch.device) -> Tensor:
    """(tap, channel, position) -> pixel * 128 + column: where a weight stands in the product."""
    tap, channel, q = torch.meshgrid(
        torch.arange(_TAPS), torch.arange(CHANNELS), torch.arange(4), indexing="ij"
    )
    pixel = (tap // KERNEL + q // 2) * 6 + tap % KERNEL + q % 2
    return (pixel * _COLUMNS + channel * 4 + q).to(device)


def _spread(weight: Tensor) -> Tensor:
    """Weights (models, 32, 25) as (models, 64 pixels, 128 columns)."""
    where = _spreading(weight.device)
    out = weight.new_zeros(len(weight), _PIXELS * _COLUMNS)
    values = weight.transpose(1, 2).unsqueeze(3).expand(-1, *where.shape)
    out[:, where.flatten()] = values.flatten(1)
    return out


@triton.jit
def _neighbourhoods(image, model, first, rows, TILE: tl.constexpr):
    """6 x 6 pixels (of 64 slots) of each cell, which cell, and whether it exists."""
    cell = first + tl.arange(0, TILE)
    there = cell < rows * 196
    place = cell % 196
    base = (model * rows + cell // 196) * 1024 + (place // 14) * 64 + (place % 14) * 2
    pixel = tl.arange(0, 64)
    step = (pixel // 6) * 32 + pixel % 6
    where = image + base[:, None] + step[None, :]
    found = tl.load(where, mask=there[:, None] & (pixel < 36)[None, :], other=0.0)
    return found, cell, there


@triton.jit
def _weights(spread, biases, model):
    pixel = tl.arange(0, 64)
    column = tl.arange(0, 128)
    weight = tl.load(spread + model * 8192 + pixel[:, None] * 128 + column[None, :])
    return weight.to(_VALUES), tl.load(biases + model * 32 + column // 4), column


@triton.jit
def _stats(image, spread, biases, partial, rows, TILE: tl.constexpr, TILES: tl.constexpr):
    """Each program's sum and sum of squares of every column."""
    model = tl.program_id(0)
    part = tl.program_id(1)
    weight, bias, column = _weights(spread, biases, model)
    total = tl.zeros([128], tl.float32)
    squares = tl.zeros([128], tl.float32)
    for k in range(TILES):
        pixels, _, there = _neighbourhoods(image, model, (part * TILES + k) * TILE, rows, TILE)
        found = tl.maximum(tl.dot(pixels.to(_VALUES), weight) + bias[None, :], 0.0)
        found = tl.where(there[:, None], found, 0.0)
        total += tl.sum(found, 0)
        squares += tl.sum(found * found, 0)
    out = partial + (model * tl.num_programs(1) + part) * 256 + column
    tl.store(out, total)
    tl.store(out + 128, squares)


@triton.jit
def _forward(
    image,
    spread,
    biases,
    factors,
    offsets,
    pooled,
    chosen,
    rows,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """Normalise and pool; of equal positions the first is chosen."""
    model = tl.program_id(0)
    weight, bias, column = _weights(spread, biases, model)
    factor = tl.load(factors + model * 32 + column // 4)
    offset = tl.load(offsets + model * 32 + column // 4)
    channel = tl.arange(0, 32)
    for k in range(TILES):
        first = (tl.program_id(1) * TILES + k) * TILE
        pixels, cell, there = _neighbourhoods(image, model, first, rows, TILE)
        found = tl.maximum(tl.dot(pixels.to(_VALUES), weight) + bias[None, :], 0.0)
        normal = tl.reshape(found * factor[None, :] + offset[None, :], (TILE, 32, 4))
        best, which = tl.max(normal, 2, return_indices=True, return_indices_tie_break_left=True)
        out = (model * rows + cell // 196) * 6272 + cell % 196
        out = out[:, None] + channel[None, :] * 196
        tl.store(pooled + out, best, mask=there[:, None])
        tl.store(chosen + out, which.to(tl.int8), mask=there[:, None])


@triton.jit
def _pooled_sums(grad, pooled, partial, rows, ROWS: tl.constexpr):
    """Each program's sums over its rows of the gradient, and of gradient times value, a channel."""
    model = tl.program_id(0)
    part = tl.program_id(1)
    channel = tl.arange(0, 32)
    place = tl.arange(0, 256)
    at = channel[:, None] * 196 + place[None, :]
    total = tl.zeros([32, 256], tl.float32)
    against = tl.zeros([32, 256], tl.float32)
    for k in range(ROWS):
        row = part * ROWS + k
        there = ((row + 0 * channel)[:, None] < rows) & (place[None, :] < 196)
        start = (model * rows + row) * 6272
        g = tl.load(grad + start + at, mask=there, other=0.0)
        total += g
        against += g * tl.load(pooled + start + at, mask=there, other=0.0)
    out = partial + (model * tl.num_programs(1) + part) * 64 + channel
    tl.store(out, tl.sum(total, 1))
    tl.store(out + 32, tl.sum(against, 1))


@triton.jit
def _backward(
    image,
    spread,
    biases,
    factors,
    means,
    deviations,
    slopes,
    tilts,
    grad,
    chosen,
    partial,
    rows,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """Each program's part of the gradients: pixels by columns, then bias, then scale.

    With g the gradient at a normalised position (that of its cell at the chosen one, 0 elsewhere),
    r the rectified value and x = (r - mean) / deviation:
        dr = factor * g - slope - x * tilt,    slope and tilt from sums over the whole batch.
    """
    model = tl.program_id(0)
    part = tl.program_id(1)
    weight, bias, column = _weights(spread, biases, model)
    own = model * 32 + column // 4
    factor = tl.load(factors + own)
    mean = tl.load(means + own)
    inverse = 1.0 / tl.load(deviations + own)
    slope = tl.load(slopes + own)
    tilt = tl.load(tilts + own)
    channel = tl.arange(0, 32)
    position = tl.arange(0, 4)
    d_weight = tl.zeros([64, 128], tl.float32)
    d_bias = tl.zeros([128], tl.float32)
    d_scale = tl.zeros([128], tl.float32)
    for k in range(TILES):
        pixels, cell, there = _neighbourhoods(image, model, (part * TILES + k) * TILE, rows, TILE)
        at = (model * rows + cell // 196) * 6272 + cell % 196
        at = at[:, None] + channel[None, :] * 196
        g = tl.load(grad + at, mask=there[:, None], other=0.0)
        which = tl.load(chosen + at, mask=there[:, None], other=0)
        here = tl.where(which[:, :, None] == position[None, None, :], g[:, :, None], 0.0)
        here = tl.reshape(here, (TILE, 128))
        found = tl.maximum(tl.dot(pixels.to(_VALUES), weight) + bias[None, :], 0.0)
        x = (found - mean[None, :]) * inverse[None, :]
        d_scale += tl.sum(here * x, 0)
        d_found = here * factor[None, :] - slope[None, :] - x * tilt[None, :]
        d_found = tl.where((found > 0.0) & there[:, None], d_found, 0.0)
        d_bias += tl.sum(d_found, 0)
        d_weight += tl.dot(tl.trans(pixels.to(_GRADS)), d_found.to(_GRADS))
    out = partial + (model * tl.num_programs(1) + part) * 8448 + column
    pixel = tl.arange(0, 64)
    tl.store(out[None, :] + pixel[:, None] * 128, d_weight)
    tl.store(out + 8192, d_bias)
    tl.store(out + 8320, d_scale)


def _grid(models: int, rows: int, tiles: dict[str, int]) -> tuple[int, int]:
    return models, -(-rows * _CELLS // (tiles["TILE"] * tiles["TILES"]))


class FusedBlock(torch.autograd.Function):
    """`capemix_research.trainer.cnns.plain_block`, with its gradients for the parameters."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        models, rows, _ = images.shape
        padded = functional.pad(images.view(models, rows, SIDE, SIDE), (2, 2, 2, 2))
        spread = _spread(weight)
        grid = _grid(models, rows, _FORWARD)
        sums = images.new_empty(models, grid[1], 2, CHANNELS, 4)
        _stats[grid](padded, spread, bias, sums, rows, **_FORWARD)
        mean, square = sums.sum((1, 4)).div_(rows * SIDE * SIDE).transpose(0, 1).contiguous()
        variance = (square - mean * mean).clamp_min(0.0)
        deviation = torch.sqrt(variance + BN_EPSILON)
        factor = scale / deviation
        offset = shift - mean * factor
        pooled = images.new_empty(models, rows, POOLED)
        chosen = torch.empty_like(pooled, dtype=torch.int8)
        _forward[grid](padded, spread, bias, factor, offset, pooled, chosen, rows, **_FORWARD)
        ctx.save_for_backward(padded, spread, bias, factor, mean, deviation, pooled, chosen, shift)
        ctx.mark_non_differentiable(mean, variance)
        return pooled, mean, variance

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        padded, spread, bias, factor, mean, deviation, pooled, chosen, shift = ctx.saved_tensors
        grad = grads[0].contiguous()
        models, rows, _ = pooled.shape
        parts = -(-rows // _ROWS)
        sums = grad.new_empty(models, parts, 2, CHANNELS)
        _pooled_sums[models, parts](grad, pooled, sums, rows, ROWS=_ROWS, num_warps=8)
        d_shift, against = sums.sum(1).transpose(0, 1).contiguous()
        # scale * sum(g x) over the batch, without dividing by scale: sum(g y) - shift * sum(g).
        against = against - shift * d_shift
        count = rows * SIDE * SIDE
        slope, tilt = factor * d_shift / count, against / (deviation * count)
        grid = _grid(models, rows, _BACKWARD)
        partial = grad.new_empty(models, grid[1], _SUMS * _COLUMNS)
        _backward[grid](
            padded,
            spread,
            bias,
            factor,
            mean,
            deviation,
            slope,
            tilt,
            grad,
            chosen,
            partial,
            rows,
            **_BACKWARD,
        )
        found = partial.sum(1)
        d_weight = found[:, _spreading(grad.device)].sum(3).transpose(1, 2).contiguous()
        rest = found.view(models, _SUMS, CHANNELS, 4)[:, _PIXELS:].sum(3)
        return None, d_weight, rest[:, 0].contiguous(), rest[:, 1].contiguous(), d_shift
