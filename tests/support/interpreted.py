"""Our kernels on Triton's interpreter, which a process has from its start or not at all: `python -m` with shapes.

Prints the errors of the convolution and of the gradients of x, weight and bias, as shares of the largest value, for
each shape and dtype, as JSON.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor
from torch.nn import functional

from workloads.convnext.kernels import depthwise


def operands(images: int, channels: int, height: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """x, the result's gradient, weight and bias."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*extents: int) -> Tensor:
        return torch.randn(extents, generator=generator)

    shape = images, channels, height, width
    of_images = [drawn(*shape).to(dtype).contiguous(memory_format=torch.channels_last) for _ in range(2)]
    return *of_images, drawn(channels, 1, 7, 7), drawn(channels)


def exact(x: Tensor, gradient: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """The same in fp64, by torch's autograd."""
    x, weight, bias = (tensor.double().requires_grad_() for tensor in (x, weight, bias))
    y = functional.conv2d(x, weight, bias, padding=3, groups=len(weight))
    return [y.detach(), *torch.autograd.grad(y, (x, weight, bias), gradient.double())]


def errors(shape: tuple[int, int, int, int], dtype: torch.dtype) -> list[float]:
    x, gradient, weight, bias = operands(*shape, dtype)
    found = [
        depthwise.convolved(x, weight, bias),
        depthwise.convolved(gradient, weight, None),
        *depthwise.correlated(x, gradient),
    ]
    assert [tensor.dtype for tensor in found] == [dtype, dtype, torch.float32, torch.float32]
    expected = exact(x, gradient, weight, bias)
    return [
        float((one.double() - other).abs().max() / other.abs().max())
        for one, other in zip(found, expected, strict=True)
    ]


if __name__ == "__main__":
    shapes = json.loads(sys.argv[1])
    print(json.dumps([[errors(tuple(shape), dtype) for dtype in (torch.float32, torch.bfloat16)] for shape in shapes]))
