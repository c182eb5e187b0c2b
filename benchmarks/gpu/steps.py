"""Whole steps of training on one device, timed in windows, and where a step's time goes."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.parts import large_product
from benchmarks.harness.figures import Record, median_and_range
from benchmarks.harness.training import CLASSES, EnoughError, Prepared, finished, first_device, observe
from workloads.convnext.config import TrainConfig
from workloads.convnext.learning import execution, flops
from workloads.convnext.learning.loop import Training
from workloads.errors import UsageError

SETTLING_STEPS = 10
"""Steps before the first window: cuDNN picks its kernels and the allocator finds its blocks."""

PROFILED_STEPS = 3


class Windows:
    """Observes the loop: times windows of steps, then profiles a few."""

    def __init__(self, device: torch.device, windows: int, steps: int) -> None:
        self.rates: list[float] = []
        self.notes: list[str] = []
        self.split: dict[str, float] = {}
        self.busy = 0.0
        self._device, self._windows, self._steps = device, windows, steps
        self._seen = 0
        self._begun = 0.0
        self._profile: profile | None = None

    def record(self, record: Record) -> None:
        if record["event"] == "note":
            self.notes.append(record["text"])

    def after_step(self, training: Training) -> None:
        self._seen += 1
        timed = self._seen - SETTLING_STEPS
        if timed == 0:
            self._begun = self._now()
        if timed > 0 and timed % self._steps == 0 and len(self.rates) < self._windows:
            now = self._now()
            self.rates.append(training.config.batch_size * self._steps / (now - self._begun))
            self._begun = now
        if len(self.rates) == self._windows:
            self._profiled(timed - self._windows * self._steps)

    def _profiled(self, step: int) -> None:
        if self._profile is None:
            cuda = [ProfilerActivity.CUDA] if self._device.type == "cuda" else []
            self._profile = profile(activities=[ProfilerActivity.CPU, *cuda], record_shapes=True)
            self._profile.__enter__()
        elif step == PROFILED_STEPS:
            self._now()
            self._profile.__exit__(None, None, None)
            events, on_gpu = self._profile.events() or [], self._device.type == "cuda"
            self.split, self.busy = split(events, on_gpu), busy(events, on_gpu)
            raise EnoughError

    def _now(self) -> float:
        return finished(self._device)


def split(events: Iterable[Any], on_gpu: bool) -> dict[str, float]:
    """Milliseconds of one step by kind of work, of the GPU's kernels or of the CPU's operations."""
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        if on_gpu:
            for kernel in event.kernels:
                spent[kind(event.name, event.input_shapes or [], kernel.name)] += kernel.duration
        else:
            spent[kind(event.name, event.input_shapes or [])] += event.self_cpu_time_total
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    return {name: round(microseconds / 1000 / PROFILED_STEPS, 3) for name, microseconds in ordered if microseconds}


def busy(events: Iterable[Any], on_gpu: bool) -> float:
    """Milliseconds of one step in which anything ran: kernels (overlaps counted once), or a CPU's operations."""
    if not on_gpu:
        return sum(event.self_cpu_time_total for event in events) / 1000 / PROFILED_STEPS
    # Regions that a program has named are on the GPU's timeline as well, and cover the gaps between its kernels.
    ran = [one for one in events if one.device_type.name == "CUDA" and not one.is_user_annotation]
    total, reached = 0.0, 0.0
    for begun, ended in sorted((one.time_range.start, one.time_range.end) for one in ran):
        total += max(0.0, ended - max(begun, reached))
        reached = max(reached, ended)
    return total / 1000 / PROFILED_STEPS


def kind(operation: str, shapes: Sequence[Any], kernel: str = "") -> str:
    """Kind of an operation, by its name and its operands' shapes; a fused kernel goes by Inductor's name."""
    generated = kernel.startswith("triton_")
    name = kernel if generated else operation
    if "adam" in name.lower() or "_foreach_" in name or "Optimizer" in name:
        return "optimiser"
    if kernel.startswith("triton_tem_"):  # from Inductor's templates, all of which multiply or convolve
        return "matrix products"
    if "layer_norm" in name:
        return "layer norm"
    if generated:  # its name lists all fused operations, including the bias or layout of a product or convolution
        return "elementwise"
    if "depthwise" in name or "depthwise" in kernel:
        return "depthwise"
    if "conv" in name:
        # The depthwise kernels alone are [C, 1, 7, 7].
        narrow = any(isinstance(shape, list | tuple) and list(shape[1:]) == [1, 7, 7] for shape in shapes)
        return "depthwise" if narrow else "matrix products"
    if any(part in name for part in ("addmm", "::mm", "::bmm", "matmul", "linear")):
        return "matrix products"
    return "elementwise"


def measured(config: TrainConfig, windows: int, steps: int) -> dict[str, Any]:
    """Measure one setting, in a process of its own, free of another's memory, tuning or failure."""
    device = first_device()
    execution.configure(config, device)
    reached = large_product(config, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    observer = Windows(device, windows, steps)
    data, begun, built = Prepared(config, device), time.perf_counter(), 0.0
    try:
        training = Training(config, data, data, device, eager_fallback=False)
        built = time.perf_counter() - begun
        observe(training, observer)
    except UsageError as error:
        return {"does not fit": error.problem}
    counted = flops.training_flops(config.model, config.image_size, CLASSES)
    peak = flops.peak(device, config.precision)
    rate = statistics.median(observer.rates)
    step = 1000 * config.batch_size / rate
    found: dict[str, Any] = {
        "images per second": median_and_range(observer.rates, digits=1) | {"windows": windows},
        "GFLOP per image": round(counted / 1e9, 2),
        "TFLOP/s of a large matrix product": round(reached, 2),
        "MFU of that": round(flops.utilisation(rate, counted, reached), 4),
        "seconds to build and compile": round(built, 1),
        "compiled graphs": execution.compiled_graphs(),
        "milliseconds per step": round(step, 3),
        "milliseconds per step by kind": observer.split,
        "notes": observer.notes,
    }
    if observer.busy:  # otherwise the profiler saw no kernel: some containers deny it access to the GPU
        found["milliseconds per step idle"] = round(max(0.0, step - observer.busy), 3)
    if peak:
        found["MFU of the published peak"] = round(flops.utilisation(rate, counted, peak), 4)
    if device.type == "cuda":
        found["peak memory GiB"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    return found
