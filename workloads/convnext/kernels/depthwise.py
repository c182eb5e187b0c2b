"""A depthwise 7 x 7 convolution of channels-last images, with its gradients, in Triton.

cuDNN's data gradient of it costs more than any other part of a training step of ConvNeXt on an H200. Here a program
computes 7 rows of a tile at once, so that each pixel it loads serves up to 7 of its sums: arithmetic is then the limit,
not memory. 7 divides the rows of all four stages at 224 pixels; other sizes are as right, and slower.

Sums are in fp32 and in a fixed order: the same input gives the same bits. Weights are read in fp32 whatever the images
are, and their gradient is fp32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language
from torch import Tensor
from torch.nn import functional
from triton.language import constexpr

from workloads.convnext.kernels.choice import gradients_by_torch

# What a kernel is written in is a language of its own, of which Python's types say nothing.
jit: Any = triton.jit
tl: Any = triton.language

KERNEL = 7
"""Height and width of the kernel, and rows that a program computes; the Triton code below has it written out."""

COLUMNS, CHANNELS = 8, 64
"""Extent of a tile. Of eight the fastest on an H200, or within a tenth of it, for all of ConvNeXt-Base's shapes."""

CONVOLVING_WARPS, CORRELATING_WARPS = 4, 2
"""Warps of a program, from the same trial: 4 and 8 sums of each kernel row in a thread's registers."""

CORRELATING_PROGRAMS = 2048
"""Programs that share the weight gradient's work: enough for an H200's 132 multiprocessors, few partial sums to add."""


@jit
def _row(at, mask, rows, K: constexpr, STEP: constexpr):
    return tl.load(at + K * STEP, mask=mask & (rows > K), other=0.0).to(tl.float32)


@jit
def _seven(at, mask, rows, STEP: constexpr):
    """Load seven tiles, STEP elements apart, in fp32; those beyond so many rows are zeros."""
    return (
        _row(at, mask, rows, 0, STEP),
        _row(at, mask, rows, 1, STEP),
        _row(at, mask, rows, 2, STEP),
        _row(at, mask, rows, 3, STEP),
        _row(at, mask, rows, 4, STEP),
        _row(at, mask, rows, 5, STEP),
        _row(at, mask, rows, 6, STEP),
    )


@jit
def _added(sum, x, factors, NUMBER: constexpr):
    """The sum and, where there is a factor of that number, its product with x."""
    if NUMBER >= 0 and NUMBER < 7:
        return sum + x * factors[NUMBER]
    return sum


@jit
def _all_added(sums, x, factors, NUMBER: constexpr):
    """`_added` for each of 7 sums: the first takes factor NUMBER, and each after it the one before its neighbour's."""
    return (
        _added(sums[0], x, factors, NUMBER),
        _added(sums[1], x, factors, NUMBER - 1),
        _added(sums[2], x, factors, NUMBER - 2),
        _added(sums[3], x, factors, NUMBER - 3),
        _added(sums[4], x, factors, NUMBER - 4),
        _added(sums[5], x, factors, NUMBER - 5),
        _added(sums[6], x, factors, NUMBER - 6),
    )


@jit
def _depthwise(
    x_ptr,
    taps_ptr,
    bias_ptr,
    y_ptr,
    HEIGHT: constexpr,
    WIDTH: constexpr,
    DEPTH: constexpr,
    TRANSPOSED: constexpr,
    COLUMNS: constexpr,
    CHANNELS: constexpr,
):
    """Convolve one tile: 7 rows of COLUMNS pixels of CHANNELS channels of an image.

    x and y are [images, HEIGHT, WIDTH, DEPTH], taps [49, DEPTH], bias [DEPTH]. TRANSPOSED mirrors the taps and leaves
    the bias out, which makes of y's gradient x's.
    """
    across = tl.cdiv(WIDTH, COLUMNS)
    down = tl.cdiv(HEIGHT, 7)
    tile = tl.program_id(0)
    # A [1, 1] tensor, as Triton's interpreter makes no mask of a comparison of scalars.
    top = tile // across % down * 7 + tl.zeros((1, 1), tl.int32)
    image = tl.cast(tile // (across * down), tl.int64) * (HEIGHT * WIDTH * DEPTH)
    w = tile % across * COLUMNS + tl.arange(0, COLUMNS)[:, None]
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    real = c < DEPTH
    start = tl.zeros((COLUMNS, CHANNELS), tl.float32)
    if not TRANSPOSED:
        start += tl.load(bias_ptr + c, mask=real, other=0.0)
    sums = (start, start, start, start, start, start, start)
    every = tl.full((1, 1), 7, tl.int32)
    for j in tl.range(7, num_stages=1):
        first_tap = taps_ptr + (48 - j if TRANSPOSED else j) * DEPTH + c
        taps = _seven(first_tap, real, every, -7 * DEPTH if TRANSPOSED else 7 * DEPTH)
        column = w + (j - 3)
        inside = (column >= 0) & (column < WIDTH) & real
        # Of an image that is one tile high, the three rows above and below are not there.
        for r in tl.static_range(0 if HEIGHT > 7 else 3, 13 if HEIGHT > 7 else 10):
            row = top + (r - 3)
            at = x_ptr + image + (row * WIDTH + column) * DEPTH + c
            x = tl.load(at, mask=inside & (row >= 0) & (row < HEIGHT), other=0.0).to(tl.float32)
            sums = _all_added(sums, x, taps, r)
    for k in tl.static_range(7):
        at = y_ptr + image + ((top + k) * WIDTH + w) * DEPTH + c
        tl.store(at, sums[k].to(y_ptr.dtype.element_ty), mask=(w < WIDTH) & (top + k < HEIGHT) & real)


@jit
def _depthwise_weight_gradient(
    x_ptr,
    gradient_ptr,
    partial_ptr,
    tiles,
    HEIGHT: constexpr,
    WIDTH: constexpr,
    DEPTH: constexpr,
    COLUMNS: constexpr,
    CHANNELS: constexpr,
):
    """Sum one column of the kernel's gradient, and in its first the bias's, over one share of the tiles.

    x and y's gradient are [images, HEIGHT, WIDTH, DEPTH]. The partial sums are [shares, 50, DEPTH], the bias's last.
    """
    across = tl.cdiv(WIDTH, COLUMNS)
    down = tl.cdiv(HEIGHT, 7)
    j = tl.program_id(0)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    share = tl.program_id(2)
    real = c < DEPTH
    zero = tl.zeros((COLUMNS, CHANNELS), tl.float32)
    sums = (zero, zero, zero, zero, zero, zero, zero)
    total = zero
    for tile in tl.range(share, tiles, tl.num_programs(2), num_stages=1):
        top = tile // across % down * 7 + tl.zeros((1, 1), tl.int32)
        image = tl.cast(tile // (across * down), tl.int64) * (HEIGHT * WIDTH * DEPTH)
        w = tile % across * COLUMNS + tl.arange(0, COLUMNS)[:, None]
        at = gradient_ptr + image + (top * WIDTH + w) * DEPTH + c
        gradients = _seven(at, (w < WIDTH) & real, HEIGHT - top, WIDTH * DEPTH)
        if j == 0:
            for k in tl.static_range(7):
                total += gradients[k]
        column = w + (j - 3)
        inside = (column >= 0) & (column < WIDTH) & real
        for r in tl.static_range(0 if HEIGHT > 7 else 3, 13 if HEIGHT > 7 else 10):
            row = top + (r - 3)
            at = x_ptr + image + (row * WIDTH + column) * DEPTH + c
            x = tl.load(at, mask=inside & (row >= 0) & (row < HEIGHT), other=0.0).to(tl.float32)
            sums = _all_added(sums, x, gradients, r)
    out = partial_ptr + share * 50 * DEPTH + c
    for i in tl.static_range(7):
        tl.store(out + (i * 7 + j) * DEPTH, tl.sum(sums[i], 0, keep_dims=True), mask=real)
    if j == 0:
        tl.store(out + 49 * DEPTH, tl.sum(total, 0, keep_dims=True), mask=real)


@torch.library.custom_op("oasis::depthwise", mutates_args=(), device_types="cuda")
def depthwise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve `x`, [N, C, H, W], padded by 3, with `weight`, float32 [C, 1, 7, 7], and add `bias`, float32 [C].

    Returns:
        [N, C, H, W] of x's dtype, channels last.
    """
    return convolved(x.contiguous(memory_format=torch.channels_last), weight, bias)


@torch.library.custom_op("oasis::depthwise_backward", mutates_args=(), device_types="cuda")
def depthwise_backward(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `x`, in its dtype, of `weight` and of the bias, in float32, given that of `depthwise`'s result."""
    gradient, x = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (gradient, x))
    return convolved(gradient, weight, None), *correlated(x, gradient)


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve with the kernel and add the bias; without one, with the mirrored kernel, as the data gradient wants it.

    Args:
        x: [N, C, H, W], channels last.
        weight: [C, 1, 7, 7].
        bias: [C].
    """
    channels, height, width = x.shape[1:]
    taps = weight.detach().float().reshape(channels, KERNEL**2).t().contiguous()
    y = torch.empty_like(x)
    _depthwise[_tiles(x), triton.cdiv(channels, CHANNELS)](
        x,
        taps,
        taps if bias is None else bias,
        y,
        HEIGHT=height,
        WIDTH=width,
        DEPTH=channels,
        TRANSPOSED=bias is None,
        COLUMNS=COLUMNS,
        CHANNELS=CHANNELS,
        num_warps=CONVOLVING_WARPS,
        enable_fp_fusion=True,
    )
    return y


def correlated(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the kernel, float32 [C, 1, 7, 7], and of the bias, float32 [C].

    Args:
        x: [N, C, H, W], channels last.
        gradient: the result's, likewise.
    """
    channels, height, width = x.shape[1:]
    tiles, blocks = _tiles(x), triton.cdiv(channels, CHANNELS)
    shares = max(1, min(tiles, CORRELATING_PROGRAMS // (KERNEL * blocks)))
    partial = torch.empty((shares, KERNEL**2 + 1, channels), dtype=torch.float32, device=x.device)
    _depthwise_weight_gradient[KERNEL, blocks, shares](
        x,
        gradient,
        partial,
        tiles,
        HEIGHT=height,
        WIDTH=width,
        DEPTH=channels,
        COLUMNS=COLUMNS,
        CHANNELS=CHANNELS,
        num_warps=CORRELATING_WARPS,
        enable_fp_fusion=True,
    )
    # Copies, as an operator's results may share no memory.
    sums = partial.sum(0)
    return sums[:-1].t().reshape(channels, 1, KERNEL, KERNEL).contiguous(), sums[-1].clone()


def _tiles(x: Tensor) -> int:
    images, _, height, width = x.shape
    return images * triton.cdiv(height, KERNEL) * triton.cdiv(width, COLUMNS)


@depthwise.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)


@depthwise_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    of_weight = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    return torch.empty_like(x, memory_format=torch.channels_last), of_weight, of_weight.new_empty(len(weight))


@depthwise.register_kernel("cpu")
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = functional.conv2d(x.to(weight.dtype), weight, bias, padding=KERNEL // 2, groups=len(weight))
    return y.to(x.dtype).contiguous(memory_format=torch.channels_last)


@depthwise_backward.register_kernel("cpu")
def _(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    of_x, of_weight, of_bias = gradients_by_torch(gradient.to(weight.dtype), x.to(weight.dtype), weight)
    return of_x.to(x.dtype).contiguous(memory_format=torch.channels_last), of_weight, of_bias


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return depthwise_backward(gradient, *ctx.saved_tensors)


depthwise.register_autograd(_backward, setup_context=_keep)
