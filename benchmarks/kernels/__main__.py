"""What an H200 could do at most with our depthwise kernels and with a whole step: `python -m benchmarks.kernels`.

Compiles the kernels of ConvNeXt-Base's stages for sm_90, which needs no GPU, and takes their code apart: registers,
spills, shared memory, instructions by kind. Each has three least times: of its bytes, of its operations on the fp32
cores, and of the instructions of its loop at one per cycle and scheduler. A depthwise convolution sums nothing over
channels, so it is no matrix product, and the tensor cores' peak does not apply. Beside them what one H200 measured.
Then the least time of a training step, part by part. `--interpret` also runs the kernels at these shapes, on one and on
two images, on Triton's interpreter, and compares them and torch's with fp64; that takes half an hour. Results go to
benchmarks/kernels.json; returns 1 if a kernel spills or is wrong, or if a least time is longer than what was measured.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.harness import command, figures
from benchmarks.harness.figures import Record, say, today
from benchmarks.kernels import assembly, step
from benchmarks.kernels.assembly import DATA_GRADIENT, FORWARD, PASSES, WEIGHT_GRADIENT
from workloads.convnext.kernels.choice import ERROR
from workloads.convnext.kernels.depthwise import CHANNELS, COLUMNS, KERNEL
from workloads.convnext.learning.model import depthwise_shapes
from workloads.reporting.progress import counted

RESULTS = Path(__file__).parent.with_suffix(".json")

IMAGES = 256
SHAPES = depthwise_shapes("base", 224)

SHOWN = "FFMA", "HFMA2", "FADD", "LDG", "STG", "LDS", "STS", "LDL", "STL"
"""Kinds of instructions that are told apart: arithmetic in fp32 and in half precision, and the kinds of memory."""

MEASURED = {
    (128, 56): {FORWARD: 0.44, DATA_GRADIENT: 0.44, WEIGHT_GRADIENT: 0.55},
    (256, 28): {FORWARD: 0.26, DATA_GRADIENT: 0.26, WEIGHT_GRADIENT: 0.33},
    (512, 14): {FORWARD: 0.13, DATA_GRADIENT: 0.13, WEIGHT_GRADIENT: 0.17},
    (1024, 7): {FORWARD: 0.05, DATA_GRADIENT: 0.05, WEIGHT_GRADIENT: 0.09},
}
"""Milliseconds of 256 images on one H200 on 2026-11-26, the lower of two numbers of programs (docs/figures.md)."""

MEASURED_STEP = {"all": 372.2, "matrix products": 136.3, "depthwise convolutions": 80.5, "GELU": 60.9}
"""Microseconds per image on that day, of 2,687 images a second; idle for 23 of them; the parts by profile."""


def kernel(one: str, channels: int, side: int) -> Record:
    """One pass of one shape."""
    code = assembly.built(one, channels, side)
    moved, computed = step.depthwise(channels, side)
    tiles = IMAGES * math.ceil(side / KERNEL) * math.ceil(side / COLUMNS) * math.ceil(channels / CHANNELS)
    # Both kernels run the loop once for each tile and column of the 7 x 7. The published peak is 32 lanes' two
    # operations in each scheduler's every cycle: so many instructions a second.
    # The weight gradient's additions are the bias's gradient, which one of its 7 columns sums.
    issued = tiles * KERNEL * assembly.warps(one) * (code.loop.total() - code.loop["FADD"] * (1 - 1 / KERNEL))
    least = {
        "memory": IMAGES * moved / step.HBM,
        "fp32 cores": IMAGES * computed / step.CUDA_CORES,
        "instructions": issued / (step.CUDA_CORES / 64),
    }
    found = {
        "registers": code.registers,
        "bytes spilled": code.spilled,
        "bytes of shared memory": code.shared,
        "instructions": {kind: code.instructions[kind] for kind in SHOWN} | {"all": code.instructions.total()},
        "instructions of the loop": {kind: code.loop[kind] for kind in SHOWN} | {"all": code.loop.total()},
        "bytes an image": moved,
        "operations an image": computed,
        "least ms": {limit: round(1000 * seconds, 4) for limit, seconds in least.items()},
    }
    measured = MEASURED.get((channels, side), {})
    return found | ({"measured ms": measured[one]} if measured else {})


def whole_step() -> Record:
    """Each part of a step of ConvNeXt-Base, and their sum."""
    found = {
        name: {"bytes": round(part.bytes), "operations": round(part.flops), "least us": round(part.microseconds, 1)}
        for name, part in step.parts("base", 224, 1000, IMAGES).items()
    }
    found["all"] = {key: round(sum(part[key] for part in found.values()), 1) for key in next(iter(found.values()))}
    for name, microseconds in MEASURED_STEP.items():
        found[name]["measured us"] = microseconds
    return found | {"images a second at most": round(1e6 / found["all"]["least us"])}


def interpreted() -> Iterator[tuple[str, Record]]:
    """Errors of ours and of torch's, as shares of the largest value, by shape, images and dtype."""
    for images in (1, 2):
        for channels, side in SHAPES:
            shape = json.dumps([[images, channels, side, side]])
            program = [sys.executable, "-m", "benchmarks.kernels.interpreted", shape]
            for line in subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
                one = json.loads(line)
                yield f"{channels} x {side}², {counted(images, 'image')}, {one['dtype']}", one


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, compute, print and keep."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--interpret", action="store_true", help="also compare the kernels with fp64")
    given = parser.parse_args(arguments)
    kernels: dict[str, Record] = {}
    for channels, side in SHAPES:
        for one in PASSES:
            kernels[f"{channels} x {side}², {one}"] = kernel(one, channels, side)
            say(f"{channels} x {side}²: {one}")
    wrong = [
        f"{name}: {found['bytes spilled']} bytes spilled" for name, found in kernels.items() if found["bytes spilled"]
    ]
    wrong += [
        f"{name}: measured faster than possible"
        for name, found in kernels.items()
        if found.get("measured ms", math.inf) < max(found["least ms"].values())
    ]
    found = {"date": today(), "images": IMAGES, "kernels": kernels, "a step, per image": whole_step()}
    errors: dict[str, Record] = figures.read(given.results).get("errors", {})
    for name, one in interpreted() if given.interpret else ():
        errors[name] = {"date": today(), "ours": one["ours"], "torch": one["torch"]}
        say(f"{name}: {max(one['ours'].values()):.1e}, torch {max(one['torch'].values()):.1e}")
        if not max(one["ours"].values()) <= ERROR[getattr(torch, one["dtype"])]:
            wrong.append(f"{name}: an error of {max(one['ours'].values()):.1e}")
    found |= {"errors": errors} if errors else {}
    return command.conclude(given.results, found, wrong)


if __name__ == "__main__":
    command.run(main)
