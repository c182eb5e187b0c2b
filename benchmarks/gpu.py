"""Measures training on one GPU, into benchmarks/gpu.json: `python -m benchmarks.gpu`; `--smoke` a tiny one on a CPU.

Our own loop on images that live on the device, for each precision and batch size in a fresh process: images per second,
analytic MFU, peak memory, and where a step's time goes. Medians with the least and the most of the windows. Each
setting is kept as soon as it is measured, beside others of the same machine: the same command continues where it was
cut short and tries again what failed, `--fresh` starts over. A setting that cannot be compiled as asked has failed, and
is never measured eager. Figures of `--smoke` go to benchmarks/gpu-smoke.json, out of the way of a GPU's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch.profiler import ProfilerActivity, profile

from benchmarks.harness import command, figures
from benchmarks.harness.apart import measured_apart
from benchmarks.harness.figures import median_and_range, say, today
from benchmarks.harness.training import CLASSES, EPOCH_STEPS, EnoughError, Prepared, finished, first_device, observe
from workloads.convnext import config as configuration
from workloads.convnext.config import TrainConfig
from workloads.convnext.learning import execution, flops
from workloads.convnext.learning.loop import Record, Training
from workloads.errors import EXIT_OK, BudgetError, UsageError, WorkloadFailedError

RESULTS = Path(__file__).with_suffix(".json")
SMOKE_RESULTS = RESULTS.with_stem("gpu-smoke")

MODES: dict[str, dict[str, Any]] = {
    "bf16+compile": {"precision": "bf16", "compile": True},
    "bf16+compile, torch's kernels": {"precision": "bf16", "compile": True, "kernels": "torch"},
    "bf16": {"precision": "bf16", "compile": False},
    "tf32": {"precision": "tf32", "compile": False},
    "fp32": {"precision": "fp32", "compile": False},
}
"""What each mode changes in the configuration; the most telling modes come first, in case time runs out."""

SMOKE_MODES: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32", "compile": False},
    "fp32+compile": {"precision": "fp32", "compile": True},
}
"""The modes that a CPU has."""

SETTLING_STEPS = 10
"""Steps before the first window: cuDNN picks its kernels and the allocator finds its blocks."""

PROFILED_STEPS = 3

PRODUCT_SIZE = 8192
"""Rows and columns of the matrices whose product gives the measured peak: so large that nothing else matters."""


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
    reached = product_tflops(config, device)
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


def product_tflops(config: TrainConfig, device: torch.device) -> float:
    """10^12 operations per second that a large matrix product reaches there, in the configuration's precision."""
    execution.configure(config, device)
    size = PRODUCT_SIZE if device.type == "cuda" else 256
    dtype = torch.bfloat16 if config.precision == "bf16" and device.type == "cuda" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = []
    for _ in range(10):
        begun = finished(device)
        for _ in range(5):
            torch.mm(left, right)
        seconds.append((finished(device) - begun) / 5)
    return 2 * size**3 / statistics.median(seconds) / 1e12


def settings(smoke: bool, batch_sizes: Sequence[int], modes: Sequence[str] = ()) -> dict[str, TrainConfig]:
    """The measured configurations, by name, in the order in which they are measured.

    Args:
        smoke: a tiny model on a CPU, with a batch size of its own.
        batch_sizes: images per step.
        modes: from `MODES`, or with `smoke` from `SMOKE_MODES`; empty means all.
    """
    base = configuration.synthetic_a3_ultra()
    if smoke:
        base, batch_sizes = dataclasses.replace(base, model="nano", image_size=32), [32]
    offered = SMOKE_MODES if smoke else MODES
    return {
        f"{base.model}, {mode}, {size}": dataclasses.replace(base, batch_size=size, **offered[mode])
        for size in batch_sizes
        for mode in modes or offered
    }


def machine() -> dict[str, Any]:
    """Description of the measured machine, with clocks if nvidia-smi reports them."""
    facts: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    facts["torchvision"] = torchvision.__version__
    if not torch.cuda.is_available():
        return {**facts, "device": "CPU"}
    facts |= {"device": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
    facts["cudnn"] = torch.backends.cudnn.version()
    if told := shutil.which("nvidia-smi"):
        wanted = "driver_version,clocks.max.sm,clocks.max.mem,power.limit"
        query = [told, f"--query-gpu={wanted}", "--format=csv,noheader", "--id=0"]
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        if not done.returncode:  # otherwise it lacks such a query, or a container hides the GPU from it
            facts[wanted] = done.stdout.strip()
    peak = flops.PEAKS.get(facts["device"])
    return {**facts, "published peak, TFLOP/s": peak.tflops, "its source": peak.source} if peak else facts


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is requested and still missing, print all that is kept; returns the exit code.

    Raises:
        BudgetError: the time ran out before everything was measured.
    """
    words = sys.argv[1:] if arguments is None else arguments
    given = _asked(words)
    wanted = settings(given.smoke, given.batch_sizes, given.modes or ())
    found, missing = _measure(given, wanted)
    print(json.dumps(figures.read(given.results), indent=2))
    if missing:
        # argparse accepts a prefix of an option as the option.
        again = shlex.join(word for word in words if not "--fresh".startswith(word))
        problem = f"{given.minutes:g} minutes are over; not measured: {'; '.join(missing)}."
        raise BudgetError(problem, f"To go on: python -m benchmarks.{RESULTS.stem} {again}")
    return WorkloadFailedError.exit_code if any("failed" in found[name] for name in wanted) else EXIT_OK


def _asked(words: Sequence[str]) -> argparse.Namespace:
    parser = command.parser(RESULTS, __doc__)
    parser.set_defaults(results=None)
    parser.add_argument("--smoke", action="store_true", help="a tiny model, to see that this program works")
    told = f"of {', '.join(MODES)}; with --smoke of {', '.join(SMOKE_MODES)} (all)"
    parser.add_argument("--modes", nargs="+", metavar="MODE", help=told)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[256, 64], metavar="N", help="(256 64)")
    parser.add_argument("--windows", type=int, default=7, help="at least 5, for a median (7)")
    parser.add_argument("--steps", type=int, default=20, help="in each window (20)")
    told = "end after so many, with what is measured by then kept and the rest named (no limit)"
    parser.add_argument("--minutes", type=minutes, default=math.inf, metavar="M", help=told)
    told = "a setting that takes longer has failed (5)"
    parser.add_argument("--minutes-each", type=minutes, default=5.0, metavar="M", help=told)
    parser.add_argument("--fresh", action="store_true", help="forget what is kept of these settings")
    given = parser.parse_args(words)
    given.results = given.results or (SMOKE_RESULTS if given.smoke else RESULTS)
    if not given.smoke and not torch.cuda.is_available():
        parser.error("there is no GPU here; --smoke runs a tiny model on the CPU")
    most = EPOCH_STEPS - SETTLING_STEPS - PROFILED_STEPS - 1  # an epoch's last step is followed by its evaluation
    if min(given.windows, given.steps) < 1 or given.windows * given.steps > most:
        parser.error(f"--windows and --steps are at least 1, and all windows together have at most {most} steps")
    offered = SMOKE_MODES if given.smoke else MODES
    if unknown := [mode for mode in given.modes or () if mode not in offered]:
        parser.error(f"--modes has {', '.join(unknown)}; there are {', '.join(offered)}")
    return given


def minutes(text: str) -> float:
    """A positive number of minutes, up to one day."""
    if 0 < (found := float(text)) <= 24 * 60:
        return found
    raise ValueError(text)


def _measure(given: argparse.Namespace, wanted: dict[str, TrainConfig]) -> tuple[dict[str, Any], list[str]]:
    """All figures kept for this machine, and the names of the settings for which there was no time.

    Raises:
        UsageError: the file holds figures of another machine, or of other software on this one.
    """
    ends, limit = time.monotonic() + 60 * given.minutes, 60 * given.minutes_each
    here, kept = machine(), figures.read(given.results)
    if kept and kept.get("machine") != here:
        known = json.dumps(kept.get("machine"))
        raise UsageError(
            f"{given.results} has figures of another machine or other software: {known}.",
            "Give --results another file.",
        )
    found: dict[str, Any] = kept.get("settings", {})
    if given.fresh:
        found = {name: one for name, one in found.items() if name not in wanted}
        figures.write(given.results, {"machine": here, "settings": found})
    failed = [name for name in wanted if "failed" in found.get(name, ())]
    missing = [name for name in wanted if name not in found] + failed
    for name in wanted:
        if name not in missing:
            say(f"{name}: measured on {found[name]['date']}; --fresh measures it again")
    while missing and (left := ends - time.monotonic()) > 0:
        name, seconds = missing[0], min(left, limit)
        say(f"{name}: at most {seconds / 60:.3g} minutes")
        one = measured_apart(measured, wanted[name], given.windows, given.steps, seconds=seconds)
        if one is None:
            if seconds < limit:
                break
            one = {"failed": f"not measured within {given.minutes_each:g} minutes"}
        found[name] = {"date": today(), **one}
        say(json.dumps({name: found[name]}))
        figures.write(given.results, {"machine": here, "settings": found})
        missing.remove(name)
    return found, missing


if __name__ == "__main__":
    command.run(main)
