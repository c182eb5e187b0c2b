"""The implementation of each depthwise convolution of a run: torch's or ours, chosen by measuring at its first start.

Our kernel is compared with fp64 on the device itself, and both are timed on a batch of the run's size. The choice is
kept with the run, because implementations differ in rounding: a resumed run uses the kernels that it began with.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from workloads.convnext.ranks import gathered
from workloads.errors import UsageError, WorkloadFailedError, first_line

TORCH, TRITON = "torch", "triton"

CHECKED_IMAGES = 2

ERROR = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
"""Largest error of ours that is rounding, as a share of the largest value: 84 and 2 units of the dtype's last place."""

TIMED = 5
"""Passes of which the median counts."""


@dataclass(frozen=True)
class Measured:
    """One shape on one device."""

    torch_ms: float
    """Milliseconds of torch's forward and backward pass."""
    ours_ms: float
    """Of ours."""
    problem: str = ""
    """What keeps ours from being used; it was not timed then."""


Shape = tuple[int, int]
"""Channels, and pixels per side."""

Choice = Mapping[Shape, str]
"""`TORCH` or `TRITON`, by shape."""


def choose(
    shapes: Sequence[Shape], images: int, dtype: torch.dtype, device: torch.device, by_time: bool
) -> tuple[Choice, list[str]]:
    """Measure and decide; with several ranks they decide together, by rank 0's clock, and ours must be right on all.

    Args:
        shapes: of the model's depthwise convolutions.
        images: of a pass.
        dtype: of the activations.
        device: this rank's GPU.
        by_time: prefer the faster; otherwise ours wherever it is right, so that every run of the kind has the same.

    Returns:
        The choice, and what the user should know of it.
    """
    every = gathered({shape: measure(shape, images, dtype, device, timed=by_time) for shape in shapes})
    torch.cuda.empty_cache()
    return decided(every, by_time)


def decided(every: Sequence[Mapping[Shape, Measured]], by_time: bool) -> tuple[Choice, list[str]]:
    """The choice, from what each rank has measured, rank 0 first, and what the user should know of it."""
    choice: dict[Shape, str] = {}
    table = []
    for shape, first in every[0].items():
        side = f"{shape[0]} x {shape[1]}²"
        if problem := next((found[shape].problem for found in every if found[shape].problem), ""):
            choice[shape] = TORCH
            table.append(f"{side}: torch's, as ours {problem}")
        else:
            choice[shape] = TRITON if first.ours_ms < first.torch_ms or not by_time else TORCH
            times = f", {first.torch_ms:.2f} and {first.ours_ms:.2f} ms" if by_time else ""
            used = "ours" if choice[shape] == TRITON else "torch's"
            table.append(f"{side}: {used}{times}")
    told = "depthwise convolutions (torch's and ours, forward and backward)" if by_time else "depthwise convolutions"
    return choice, [f"{told}: {'; '.join(table)}"]


def check(kept: Choice, images: int, dtype: torch.dtype, device: torch.device) -> None:
    """Check that the kernels that a run has used so far work here, for passes of that many images.

    Raises:
        UsageError: it cannot.
    """
    for shape, implementation in kept.items():
        if implementation == TRITON and (found := measure(shape, images, dtype, device, timed=False)).problem:
            raise UsageError(
                f"this run convolves its {shape[0]} channels by a kernel of ours, which {found.problem}.",
                "Continue where it works, or use torch's kernels, which round differently: --set kernels=torch.",
            )
    torch.cuda.empty_cache()


def measure(shape: Shape, images: int, dtype: torch.dtype, device: torch.device, timed: bool = True) -> Measured:
    """Compare ours with fp64 at one shape and, if it is right and `timed`, time both.

    With few images and with all of a pass: for another number of them Triton may compile other code, and starts another
    number of programs. fp64 of a whole pass takes less memory than training on it does, and torch's own kernel, which
    may compute in TF32, is too coarse a measure.

    Raises:
        WorkloadFailedError: ours has made the GPU unusable for this process.
    """
    try:
        from workloads.convnext.kernels.depthwise import depthwise, depthwise_backward

        def ours(x: Tensor, gradient: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
            return depthwise(x, weight, bias), *depthwise_backward(gradient, x, weight)

        for count in (CHECKED_IMAGES, images):
            x, gradient, *rest = given = _operands(shape, count, dtype, device)
            worst = _worst(ours(*given), _by_torch(*(operand.double() for operand in given)))
            if not worst <= ERROR[dtype]:  # a NaN too
                return Measured(0, 0, f"is wrong here, by {worst:.1e} of the largest value")
        if not timed:
            return Measured(0, 0)
        narrow = [operand.to(dtype) for operand in rest]
        theirs = _milliseconds(lambda: _by_torch(x, gradient, *narrow), device)
        return Measured(theirs, _milliseconds(lambda: ours(*given), device))
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # whatever keeps a kernel from running, torch's own runs
        _end_if_unusable(device, shape, error)
        return Measured(0, 0, f"does not run here ({type(error).__name__}: {first_line(error)[:120]})")


def _end_if_unusable(device: torch.device, shape: Shape, error: Exception) -> None:
    # After an illegal access, as after some other errors, whatever a process asks of its GPU fails with the same error.
    try:
        _finish(device)
    except RuntimeError:
        raise WorkloadFailedError(
            f"our kernel for convolutions of {shape[0]} channels of {shape[1]} x {shape[1]} pixels has made the GPU "
            f"unusable ({first_line(error)[:120]}).",
            "Train with torch's kernels: --set kernels=torch.",
        ) from error


def _operands(shape: Shape, images: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    channels, side = shape
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*extents: int) -> Tensor:
        return torch.randn(extents, generator=generator, device=device)

    of_images = [
        drawn(images, channels, side, side).to(dtype).contiguous(memory_format=torch.channels_last) for _ in range(2)
    ]
    return *of_images, drawn(channels, 1, 7, 7), drawn(channels)


def _by_torch(x: Tensor, gradient: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    y = functional.conv2d(x, weight, bias, padding=3, groups=len(weight))
    return y, *gradients_by_torch(gradient, x, weight)


def gradients_by_torch(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the images, the kernel and the bias, given that of the convolution's result."""
    places = [1, 1], [3, 3], [1, 1], False, [0, 0], len(weight), [True, True, True]
    return torch.ops.aten.convolution_backward(gradient, x, weight, [len(weight)], *places)


def _worst(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    errors = [(one.double() - other).abs().max() / other.abs().max() for one, other in zip(found, exact, strict=True)]
    return float(torch.stack(errors).max())  # NaN if one of them is, which Python's `max` may pass over


def _milliseconds(work: Any, device: torch.device) -> float:
    taken = []
    for _ in range(2 + TIMED):  # the first compile, and let cuDNN look for its best
        _finish(device)
        begun = time.perf_counter()
        work()
        _finish(device)
        taken.append(1000 * (time.perf_counter() - begun))
    return sorted(taken[2:])[TIMED // 2]


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
