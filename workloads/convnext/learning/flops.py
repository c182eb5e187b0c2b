"""Floating-point operations per training image, counted from the model's shapes, and the share of a GPU's peak in use.

torch's FlopCounterMode counts a depthwise convolution's backward pass as a dense one: three times too much here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workloads.convnext.config import STAGES, Model, Precision


@dataclass(frozen=True)
class Macs:
    """Multiply-accumulates of one image's forward pass; a multiply-accumulate is two operations."""

    matrix: int
    """Those of linear layers and dense convolutions, which tensor cores compute."""
    depthwise: int
    """Those of the depthwise 7 x 7 convolutions, which tensor cores do not speed up."""
    stem: int
    """Those of the first convolution, also counted in `matrix`; its input needs no gradient."""

    @property
    def forward(self) -> int:
        """Multiply-accumulates in total."""
        return self.matrix + self.depthwise


def macs(model: Model, image_size: int, classes: int) -> Macs:
    """Count one forward pass of an image with `image_size` pixels per side."""
    widths, depths = STAGES[model]
    side = image_size // 4
    stem = 4 * 4 * 3 * widths[0] * side**2
    matrix, depthwise = stem, 0
    for width, depth, following in zip(widths, depths, (*widths[1:], None), strict=True):
        depthwise += depth * 7 * 7 * width * side**2
        matrix += depth * 2 * 4 * width**2 * side**2
        if following:
            side //= 2
            matrix += 2 * 2 * width * following * side**2
    return Macs(matrix + widths[-1] * classes, depthwise, stem)


def training_flops(model: Model, image_size: int, classes: int) -> int:
    """Operations of one image's forward and backward pass: each product once forward, and once per operand's gradient.

    Norms, activations and the optimiser are not counted, as in every published MFU.
    """
    counted = macs(model, image_size, classes)
    return 2 * (3 * counted.forward - counted.stem)


@dataclass(frozen=True)
class Peak:
    """A GPU's advertised peak of operations per second, without structured sparsity."""

    tflops: dict[Precision, float]
    """By precision, in 10^12 operations per second."""
    source: str
    """Where the figures are published."""


_HOPPER_SXM: dict[Precision, float] = {"fp32": 67.0, "tf32": 494.7, "bf16": 989.4}

PEAKS: dict[str, Peak] = {
    "NVIDIA H200": Peak(_HOPPER_SXM, "NVIDIA H200 data sheet, SXM, half of the figures given with sparsity"),
    "NVIDIA H100 80GB HBM3": Peak(_HOPPER_SXM, "NVIDIA H100 data sheet, SXM, half of the figures given with sparsity"),
}
"""By the name that `torch.cuda.get_device_name` gives; the PCIe and NVL cards have other names and lower clocks."""


def peak(device: torch.device, precision: Precision) -> float | None:
    """The device's peak at this precision, in 10^12 operations per second; None if none is listed here."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return PEAKS[name].tflops[precision] if name in PEAKS else None


def utilisation(images_per_second: float, flops: int, peak_tflops: float) -> float:
    """Model FLOPs utilisation (MFU, arXiv 2204.02311, appendix B): the share of the peak that the model's work uses.

    Args:
        images_per_second: throughput of one GPU.
        flops: operations of one image, as `training_flops` counts them.
        peak_tflops: peak of that GPU, in 10^12 per second.
    """
    return images_per_second * flops / (peak_tflops * 1e12)
