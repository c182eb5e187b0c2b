"""Our kernels on Triton's interpreter, and torch's beside them, against fp64: a program, given shapes as JSON.

A process has the interpreter from its start or not at all. Prints a line of JSON for each shape and dtype: the largest
error of the convolution and of its gradients, by ours and by torch's, as shares of the largest value. To bf16 the
interpreter cuts where a GPU rounds (triton 3.9, runtime/interpreter.py, `cast_impl`), so ours may err twice as much.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor
from torch.nn import functional

from workloads.convnext.kernels import depthwise

RESULTS = "convolution", "gradient of x", "gradient of the weight", "gradient of the bias"
DTYPES = torch.float32, torch.bfloat16


def operands(images: int, channels: int, height: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """x, the result's gradient, weight and bias."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*extents: int) -> Tensor:
        return torch.randn(extents, generator=generator)

    shape = images, channels, height, width
    of_images = [drawn(*shape).to(dtype).contiguous(memory_format=torch.channels_last) for _ in range(2)]
    return *of_images, drawn(channels, 1, 7, 7), drawn(channels)


def by_torch(dtype: torch.dtype, *given: Tensor) -> list[Tensor]:
    """The results by torch's convolution and autograd, in this dtype."""
    x, gradient, weight, bias = (tensor.to(dtype) for tensor in given)
    inputs = x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()
    y = functional.conv2d(*inputs, padding=3, groups=len(weight))
    return [y.detach(), *torch.autograd.grad(y, inputs, gradient)]


def errors(shape: tuple[int, int, int, int], dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """Errors of ours and of torch's, by result."""
    x, gradient, weight, bias = given = operands(*shape, dtype)
    ours = [
        depthwise.convolved(x, weight, bias),
        depthwise.convolved(gradient, weight, None),
        *depthwise.correlated(x, gradient),
    ]
    assert [tensor.dtype for tensor in ours] == [dtype, dtype, torch.float32, torch.float32]
    exact = by_torch(torch.float64, *given)

    def apart(found: Sequence[Tensor]) -> dict[str, float]:
        return {
            name: float((one.double() - other).abs().max() / other.abs().max())
            for name, one, other in zip(RESULTS, found, exact, strict=True)
        }

    return {"ours": apart(ours), "torch": apart(by_torch(dtype, *given))}


if __name__ == "__main__":
    for shape in json.loads(sys.argv[1]):
        for dtype in DTYPES:
            print(
                json.dumps({"shape": shape, "dtype": str(dtype).removeprefix("torch."), **errors(tuple(shape), dtype)}),
                flush=True,
            )
