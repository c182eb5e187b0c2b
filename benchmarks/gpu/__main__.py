"""Measures training on one GPU, into benchmarks/gpu.json: `python -m benchmarks.gpu`; `--smoke` a tiny one on a CPU.

First the parts of a step that decide most: the depthwise convolutions by torch and by our kernel (`depthwise`), matrix
products (`products`), and how fast the cores beside the GPU decode (`decoding`). Then our own loop on images that live
on the device, for each precision and batch size: images per second, analytic MFU, peak memory, and where a step's time
goes. Medians with the least and the most of the windows. Each measurement has a fresh process and is kept as soon as it
is made, beside others of the same machine: the same command continues where it was cut short and tries again what
failed, `--fresh` starts over. A setting that cannot be compiled as asked has failed, and is never measured eager.
Figures of `--smoke` go to benchmarks/gpu-smoke.json, out of the way of a GPU's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchvision

from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.steps import PROFILED_STEPS, SETTLING_STEPS, measured
from benchmarks.harness import command, figures
from benchmarks.harness.apart import measured_apart
from benchmarks.harness.figures import Record, say, today
from benchmarks.harness.training import EPOCH_STEPS
from workloads.convnext import config as configuration
from workloads.convnext.learning import flops
from workloads.errors import EXIT_OK, BudgetError, UsageError, WorkloadFailedError

RESULTS = Path(__file__).parent.with_suffix(".json")
SMOKE_RESULTS = RESULTS.with_stem("gpu-smoke")

MODES: dict[str, dict[str, Any]] = {
    "bf16+compile": {"precision": "bf16", "compile": True},
    "bf16+compile, torch's kernels": {"precision": "bf16", "compile": True, "kernels": "torch"},
    "bf16+compile+autotune": {"precision": "bf16", "compile": True, "autotune": True},
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


def measurements(
    smoke: bool, batch_sizes: Sequence[int], modes: Sequence[str], windows: int, steps: int
) -> dict[str, Callable[[], Record]]:
    """What is measured, by name, in the order in which it is.

    Args:
        smoke: a tiny model on a CPU, with a batch size of its own.
        batch_sizes: images per step.
        modes: from `PARTS`, which are measured for the first batch size, and from `MODES` or with `smoke` from
            `SMOKE_MODES`; empty means all.
        windows: spans of which each gives a rate.
        steps: of a window.
    """
    base = configuration.synthetic_a3_ultra()
    if smoke:
        base, batch_sizes = dataclasses.replace(base, model="nano", image_size=32, precision="fp32"), [32]
    offered = SMOKE_MODES if smoke else MODES
    first = dataclasses.replace(base, batch_size=batch_sizes[0])
    parts = {
        f"{base.model}, {name}, {first.batch_size}": partial(part, first)
        for name, part in PARTS.items()
        if name in modes or not modes
    }
    return parts | {
        f"{base.model}, {mode}, {size}": partial(
            measured, dataclasses.replace(base, batch_size=size, **offered[mode]), windows, steps
        )
        for size in batch_sizes
        for mode in modes or offered
        if mode in offered
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
    wanted = measurements(given.smoke, given.batch_sizes, given.modes or (), given.windows, given.steps)
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
    told = f"of {', '.join([*PARTS, *MODES])}; with --smoke of {', '.join([*PARTS, *SMOKE_MODES])} (all)"
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
    offered = [*PARTS, *(SMOKE_MODES if given.smoke else MODES)]
    if unknown := [mode for mode in given.modes or () if mode not in offered]:
        parser.error(f"--modes has {', '.join(unknown)}; there are {', '.join(offered)}")
    return given


def minutes(text: str) -> float:
    """A positive number of minutes, up to one day."""
    if 0 < (found := float(text)) <= 24 * 60:
        return found
    raise ValueError(text)


def _measure(given: argparse.Namespace, wanted: dict[str, Callable[[], Record]]) -> tuple[Record, list[str]]:
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
        one = measured_apart(wanted[name], seconds=seconds)
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
