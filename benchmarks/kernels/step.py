"""Least time of a training step of ConvNeXt on an H200, per image, from the bytes it moves and the operations it does.

Each part takes as long as the slower of the two at the published peaks, one part after the other. What it assumes:
* activations and their gradients are bf16, weights and optimiser fp32; nothing but weights stays in a cache;
* a matrix product reads both its operands and writes its result once; weights are read once per batch;
* what stands between two products is one pass forward and one backward (Inductor fuses it so), but for the norm's
  weight gradients and the biases', each a pass of its own over what it sums;
* GELU and residual are not in the products' epilogues, as they are not today;
* nothing waits: not for launches, not for the loss, mixing or the next batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from workloads.convnext.config import STAGES, Model
from workloads.convnext.learning import flops
from workloads.convnext.learning.flops import PEAKS
from workloads.convnext.learning.model import depthwise_shapes

HBM = 4.8e12
"""Bytes per second of an H200's memory, by NVIDIA's data sheet."""

CUDA_CORES, TENSOR_CORES = (PEAKS["NVIDIA H200"].tflops[precision] * 1e12 for precision in ("fp32", "bf16"))

NORM = 2 + 2, 2 + 2 + 2 + (2 + 2)
"""Bytes per element forward (x, y) and backward (dy, x, dx; then dy and x for the weight gradients)."""
GELU = 2 + 2, 2 + 2 + 2
"""Forward (x, y) and backward (dy, x, dx)."""
RESIDUAL = 2 + 2 + 2, (2 + 2 + 2) + (2 + 2 + 2)
"""Forward (input, branch, sum) and backward (d sum, branch, d branch; then d sum, d of the convolved x, their sum)."""
BIAS = 2
"""Of a product's result, whose gradient is summed over all rows."""
PATCHES = 2 + 2, 2 + 2
"""Rearranged for a product, and back."""
OPTIMISER = 4 * (4 + 3) + 4 * 3 + 4 + (4 + 2)
"""Per weight: AdamW reads p, g and two moments and writes three; the average reads two and writes one; the gradient is
written; autocast rounds the weight to bf16."""


@dataclass
class Part:
    """One part of a step, per image."""

    bytes: float = 0
    flops: float = 0
    microseconds: float = 0
    """At the published peaks."""

    def add(self, moved: float, computed: float, peak: float, times: int = 1) -> None:
        """Add a kernel that runs so many times."""
        self.bytes += times * moved
        self.flops += times * computed
        self.microseconds += times * 1e6 * max(moved / HBM, computed / peak)


def depthwise(channels: int, side: int) -> tuple[int, int]:
    """Bytes and operations of a depthwise 7 x 7 convolution of an image, forward or either gradient: two images of this
    extent are read or written once."""
    elements = channels * side * side
    return 2 * 2 * elements, 2 * 49 * elements


def parts(model: Model, image_size: int, classes: int, batch: int) -> dict[str, Part]:
    """What a step consists of."""
    names = ("matrix products", "depthwise convolutions", "norms and patches", "GELU", "residuals")
    names += ("gradients of biases", "optimiser")
    found = {name: Part() for name in names}
    products, convolutions, norms, gelu, residuals, biases, optimiser = found.values()

    def product(rows: int, inner: int, outer: int, times: int, passes: int = 3) -> None:
        moved = 2 * (rows * (inner + outer) + inner * outer / batch)
        products.add(moved, 2 * rows * inner * outer, TENSOR_CORES, passes * times)
        biases.add(BIAS * rows * outer, 0, CUDA_CORES, times)

    widths, depths = STAGES[model]
    before, weights = 3, 0
    for (width, side), depth in zip(depthwise_shapes(model, image_size), depths, strict=True):
        rows = side * side
        # The stem's images need no gradient; it takes patches of 4 x 4, and the others of 2 x 2, normed before.
        first = before == 3
        patch = (16 if first else 4) * before
        product(rows, patch, width, 1, passes=2 if first else 3)
        norms.add(sum(NORM) * rows * (width if first else patch) + sum(PATCHES) * rows * patch, 0, CUDA_CORES)
        product(rows, width, 4 * width, depth)
        product(rows, 4 * width, width, depth)
        convolutions.add(*depthwise(width, side), CUDA_CORES, 3 * depth)
        norms.add(sum(NORM) * rows * width, 0, CUDA_CORES, depth)
        gelu.add(sum(GELU) * rows * 4 * width, 0, CUDA_CORES, depth)
        residuals.add(sum(RESIDUAL) * rows * width, 0, CUDA_CORES, depth)
        weights += width * (patch + 3) + depth * width * (8 * width + 49 + 9)
        before = width
    weights += widths[-1] * (classes + 2) + classes
    product(1, widths[-1], classes, 1)
    optimiser.add(OPTIMISER * weights / batch, 0, CUDA_CORES)
    assert products.flops + convolutions.flops == flops.training_flops(model, image_size, classes)
    return found
