"""What a step of training is made of, each part timed alone: convolutions, matrix products, decoding."""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.harness.figures import Record, median_and_range
from benchmarks.harness.training import finished, first_device
from workloads.convnext.config import TrainConfig
from workloads.convnext.images.sampling import slots
from workloads.convnext.kernels import choice
from workloads.convnext.learning import execution
from workloads.convnext.learning.model import depthwise_shapes

PRODUCT_SIZE = 8192
"""Rows and columns of the matrices whose product gives the measured peak: so large that nothing else matters."""

EXPANSION = 4
"""Channels between a block's two linear layers, as a multiple of its own (arXiv 2201.03545, section 2.4)."""

TRIES = 10

PICTURES = 3
"""Of each of a hundred classes."""

DECODED_SECONDS = 10.0
"""Time for which pictures are decoded, after a first pass over all of them."""


def depthwise_convolutions(config: TrainConfig) -> Record:
    """Milliseconds of torch's and of our 7 x 7 convolution, forward and backward, at each of the model's shapes."""
    device = first_device()
    execution.configure(config, device)
    found: Record = {}
    for channels, side in depthwise_shapes(config.model, config.image_size):
        one = choice.measure((channels, side), config.batch_size, _dtype(config, device), device)
        times = {"torch ms": round(one.torch_ms, 3), "ours ms": round(one.ours_ms, 3)}
        found[f"{channels} x {side} x {side}"] = {"ours": one.problem} if one.problem else times
    return found


def matrix_products(config: TrainConfig) -> Record:
    """10^12 operations per second of a large matrix product, and of each stage's first linear layer and its gradients.

    The second layer's products have the same shapes, transposed.
    """
    device = first_device()
    execution.configure(config, device)
    found: Record = {"large": {"TFLOP/s": round(large_product(config, device), 2)}}
    for channels, side in depthwise_shapes(config.model, config.image_size):
        rows, wide = config.batch_size * side * side, EXPANSION * channels
        x, gradient, weight = (
            torch.randn(shape, device=device, dtype=_dtype(config, device))
            for shape in ((rows, channels), (rows, wide), (wide, channels))
        )
        products: dict[str, Callable[[], Tensor]] = {
            "forward": lambda x=x, weight=weight: x @ weight.T,
            "gradient of the input": lambda gradient=gradient, weight=weight: gradient @ weight,
            "gradient of the weight": lambda gradient=gradient, x=x: gradient.T @ x,
        }
        found[f"{rows} x {channels} x {wide}"] = {
            f"{name}, TFLOP/s": round(2e-12 * rows * channels * wide / _seconds(product, device), 2)
            for name, product in products.items()
        }
    return found


def large_product(config: TrainConfig, device: torch.device) -> float:
    """10^12 operations per second that a large matrix product reaches there, in the configuration's precision."""
    size = PRODUCT_SIZE if device.type == "cuda" else 256
    left, right = (torch.randn(size, size, device=device, dtype=_dtype(config, device)) for _ in range(2))
    return 2e-12 * size**3 / _seconds(lambda: left @ right, device)


def decoding(config: TrainConfig) -> Record:
    """Pictures per second that this machine's cores decode, cut, scale and join to batches, with a process on each."""
    try:
        from benchmarks.loader import photos
        from workloads.convnext.images.data import stores
        from workloads.convnext.images.stream import streamed
    except ModuleNotFoundError as missing:
        return {"needs": f"{missing.name}, which is not installed here"}
    processes = os.cpu_count() or 1
    config = dataclasses.replace(config, resident=False, loader_workers=processes)
    with tempfile.TemporaryDirectory(prefix="oasis-gpu-") as folder:
        photos.write(Path(folder), PICTURES, 1)
        train, _ = streamed(stores(Path(folder)), config, torch.device("cpu"))
        rates: list[float] = []
        ends = float("inf")
        while len(rates) < 3 or time.perf_counter() < ends:
            visit = torch.arange(len(train)).repeat(processes)
            begun, count = time.perf_counter(), 0
            for batch in train.batches(slots(visit, config.batch_size, 0, 1), len(rates)):
                count += len(batch.labels)
            rates.append(count / (time.perf_counter() - begun))
            ends = min(ends, time.perf_counter() + DECODED_SECONDS)
    return {"pictures per second": median_and_range(rates[1:], 0), "processes": processes}


def _dtype(config: TrainConfig, device: torch.device) -> torch.dtype:
    return torch.bfloat16 if config.precision == "bf16" and device.type == "cuda" else torch.float32


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    taken = []
    for _ in range(TRIES):
        begun = finished(device)
        for _ in range(5):
            work()
        taken.append((finished(device) - begun) / 5)
    return statistics.median(taken)


PARTS: dict[str, Callable[[TrainConfig], Record]] = {
    "depthwise": depthwise_convolutions,
    "products": matrix_products,
    "decoding": decoding,
}
"""By the name that the command gives them, those first that decide most."""
