"""Measures training on one GPU, into benchmarks/gpu.json: `python -m benchmarks.gpu`; `--smoke` a tiny one on a CPU.

Our own loop on images that live on the device, for each precision and batch size in a fresh process: images per second,
analytic MFU, peak memory, and where a step's time goes. Medians with the least and the most of the windows.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch.profiler import ProfilerActivity, profile

from benchmarks.prepared import CLASSES, Prepared
from workloads import closed_pipe
from workloads.convnext import config as configuration
from workloads.convnext import execution, flops
from workloads.convnext.config import TrainConfig
from workloads.convnext.loop import Record, Training
from workloads.errors import UsageError

RESULTS = Path(__file__).with_suffix(".json")

MODES = {"fp32": ("fp32", False), "tf32": ("tf32", False), "bf16": ("bf16", False), "bf16+compile": ("bf16", True)}
"""Precision, and whether compiled."""

SETTLING_STEPS = 10
"""Steps before the first window: cuDNN picks its kernels and the allocator finds its blocks."""

PROFILED_STEPS = 3

PRODUCT_SIZE = 8192
"""Rows and columns of the matrices whose product gives the measured peak: large enough that nothing but it counts."""


class Enough(Exception):
    """Every window is measured."""


class Windows:
    """Observes the loop: times windows of steps, then profiles a few."""

    def __init__(self, device: torch.device, windows: int, steps: int) -> None:
        self.rates: list[float] = []
        self.notes: list[str] = []
        self.split: dict[str, float] = {}
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
            self.split = split(self._profile.events() or [], on_gpu=self._device.type == "cuda")
            raise Enough

    def _now(self) -> float:
        return _finished(self._device)


def _finished(device: torch.device) -> float:
    """The time, when the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


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


def kind(operation: str, shapes: Sequence[Any], kernel: str = "") -> str:
    """What an operation is part of: by its name and its operands' shapes; a fused kernel by Inductor's name for it."""
    name = kernel if kernel.startswith("triton") else operation
    if "adam" in name.lower() or "_foreach_" in name or "Optimizer" in name:
        return "optimiser"
    if "layer_norm" in name:
        return "layer norm"
    if "conv" in name:
        # The depthwise kernels alone are [C, 1, 7, 7].
        narrow = any(isinstance(shape, list | tuple) and list(shape[1:]) == [1, 7, 7] for shape in shapes)
        return "depthwise" if narrow or "depthwise" in name else "matrix products"
    if any(part in name for part in ("addmm", "::mm", "::bmm", "matmul", "linear")):
        return "matrix products"
    return "elementwise"


def measured(config: TrainConfig, windows: int, steps: int) -> dict[str, Any]:
    """One setting; runs in a process of its own, so that nothing of another's memory or tuning is left."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    reached = product_tflops(config, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    observer = Windows(device, windows, steps)
    data, begun, built = Prepared(config, device), time.perf_counter(), 0.0
    try:
        training = Training(config, data, data, device)
        built = time.perf_counter() - begun
        training.run(observer)
    except UsageError as error:
        return {"does not fit": error.problem}
    except Enough:
        pass
    counted = flops.training_flops(config.model, config.image_size, CLASSES)
    peak = flops.peak(device, config.precision)
    rate = statistics.median(observer.rates)
    figures: dict[str, Any] = {
        "images per second": {
            "median": round(rate, 1),
            "least": round(min(observer.rates), 1),
            "most": round(max(observer.rates), 1),
            "windows": windows,
        },
        "GFLOP per image": round(counted / 1e9, 2),
        "TFLOP/s of a large matrix product": round(reached, 2),
        "MFU of that": round(flops.utilisation(rate, counted, reached), 4),
        "seconds to build and compile": round(built, 1),
        "milliseconds per step by kind": observer.split,
        "notes": observer.notes,
    }
    if peak:
        figures["MFU of the published peak"] = round(flops.utilisation(rate, counted, peak), 4)
    if device.type == "cuda":
        figures["peak memory GiB"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    return figures


def product_tflops(config: TrainConfig, device: torch.device) -> float:
    """10^12 operations per second that a large product of matrices reaches there, in the configuration's precision."""
    execution.configure(config, device)
    size = PRODUCT_SIZE if device.type == "cuda" else 256
    dtype = torch.bfloat16 if config.precision == "bf16" and device.type == "cuda" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = []
    for _ in range(10):
        begun = _finished(device)
        for _ in range(5):
            torch.mm(left, right)
        seconds.append((_finished(device) - begun) / 5)
    return 2 * size**3 / statistics.median(seconds) / 1e12


def settings(smoke: bool, batch_sizes: Sequence[int]) -> dict[str, TrainConfig]:
    """What is measured, by name."""
    base = configuration.synthetic_a3_ultra()
    if smoke:
        tiny = dataclasses.replace(base, model="nano", image_size=32, batch_size=32, precision="fp32")
        return {"nano, fp32, 32": dataclasses.replace(tiny, compile=False), "nano, fp32+compile, 32": tiny}
    return {
        f"{base.model}, {mode}, {size}": dataclasses.replace(
            base, batch_size=size, precision=precision, compile=compiled
        )
        for mode, (precision, compiled) in MODES.items()
        for size in batch_sizes
    }


def machine() -> dict[str, Any]:
    """What it was measured on, clocks included where nvidia-smi tells them."""
    facts: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    facts["torchvision"] = torchvision.__version__
    if not torch.cuda.is_available():
        return {**facts, "device": "CPU"}
    facts |= {"device": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
    facts["cudnn"] = torch.backends.cudnn.version()
    if told := shutil.which("nvidia-smi"):
        wanted = "driver_version,clocks.max.sm,clocks.max.mem,power.limit"
        query = [told, f"--query-gpu={wanted}", "--format=csv,noheader", "--id=0"]
        facts[wanted] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    peak = flops.PEAKS.get(facts["device"])
    return {**facts, "published peak, TFLOP/s": peak.tflops, "its source": peak.source} if peak else facts


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a tiny model, to see that this program works")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256], metavar="N", help="(64 256)")
    parser.add_argument("--windows", type=int, default=7, help="at least 5, for a median (7)")
    parser.add_argument("--steps", type=int, default=20, help="in each window (20)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    if not given.smoke and not torch.cuda.is_available():
        parser.error("there is no GPU here; --smoke runs a tiny model on the CPU")
    figures: dict[str, Any] = {"date": datetime.date.today().isoformat(), "machine": machine(), "settings": {}}
    for name, config in settings(given.smoke, given.batch_sizes).items():
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            figures["settings"][name] = pool.submit(measured, config, given.windows, given.steps).result()
        print(json.dumps({name: figures["settings"][name]}), file=sys.stderr, flush=True)
    text = json.dumps(figures, indent=2)
    print(text)
    given.results.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(closed_pipe.run(main))
