"""Execution of a model: arithmetic precision, determinism, compilation, and out-of-memory errors.

None of these settings changes the result beyond rounding, and the weights keep the same names under all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from workloads.convnext.config import TrainConfig
from workloads.convnext.kernels import choice
from workloads.convnext.kernels.choice import Choice
from workloads.convnext.learning import model as architecture
from workloads.convnext.learning.model import Block, StochasticDepth
from workloads.convnext.memory import exhausted
from workloads.convnext.ranks import gathered
from workloads.environment import SCRATCH_MOUNT, mount
from workloads.errors import UsageError, WorkloadFailedError, first_line
from workloads.reporting.progress import counted

COMPILED_SHAPES = 64
"""Versions of one Python function that torch.compile may keep: ConvNeXt's modules need nine, the default is eight."""


def configure(config: TrainConfig, device: torch.device) -> list[str]:
    """Set torch's switches, which apply to the whole process, as the configuration asks.

    Returns:
        Notes for the user on settings that this device cannot provide.
    """
    _keep_compiled()
    torch.use_deterministic_algorithms(config.deterministic)
    if device.type != "cuda":
        return [f"precision {config.precision} is for GPUs; CPUs compute in fp32"] if config.precision != "fp32" else []
    torch.cuda.set_device(device)
    if config.deterministic:
        # cuBLAS reads this variable on first use; without it, torch refuses matrix products in this mode.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    exact = config.precision == "fp32"
    # Set both: by default torch multiplies matrices in fp32 and convolves in TF32. Matrix products use torch's older
    # function, which sets the newer switch too: if only that is set, `get_float32_matmul_precision` raises, and before
    # torch 2.15 Inductor's max-autotune calls it.
    torch.set_float32_matmul_precision("highest" if exact else "high")
    # The convolutions' own switch, once set, ignores the switch of all of cuDNN.
    cudnn: Any = torch.backends.cudnn  # `conv` in it has no declared type
    cudnn.fp32_precision = cudnn.conv.fp32_precision = "ieee" if exact else "tf32"
    cudnn.benchmark = not config.deterministic
    return []


def _keep_compiled() -> None:
    """Keep what is compiled on the node's scratch disk, if it has one, for all of the node's ranks.

    By default it is in the container's own file system, where torch keeps Triton's kernels apart by GPU, so that each
    rank compiles the same ones (torch 2.15, `_inductor/runtime/triton_heuristics.py`).
    """
    scratch = Path(mount(SCRATCH_MOUNT))
    if not (scratch.is_dir() and os.access(scratch, os.W_OK)):
        return
    # Importing Dynamo sets it to the default (torch 2.15, `_dynamo/package.py`); another one is the user's.
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", default_cache_dir()) == default_cache_dir():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{scratch}/torchinductor-{os.getuid()}"
    os.environ.setdefault("TRITON_CACHE_DIR", f"{os.environ['TORCHINDUCTOR_CACHE_DIR']}/triton")


def autocast(config: TrainConfig, device: torch.device) -> AbstractContextManager[object]:
    """bf16 if the configuration asks for it and the device has it; no scaler, because bf16 has fp32's range."""
    wanted = config.precision == "bf16" and device.type == "cuda"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=wanted)


def kernels(config: TrainConfig, device: torch.device, images: int, kept: Choice | None) -> tuple[Choice, list[str]]:
    """The implementation of each depthwise convolution: the run's earlier choice, or one made now.

    Args:
        config: configuration of the training.
        device: device to compute on; a CPU has only torch's.
        images: images in one pass.
        kept: the run's choice, None if it has none yet.

    Returns:
        The choice, and what the user should know about it.

    Raises:
        UsageError: our kernels, with which the run was trained so far, cannot be used here.
    """
    if device.type != "cuda" or config.kernels == "torch":
        return {}, []
    shapes = architecture.depthwise_shapes(config.model, config.image_size)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    if kept is None:
        return choice.choose(shapes, images, dtype, device, by_time=not config.deterministic)
    choice.check(kept, images, dtype, device)
    return kept, []


def executable(
    config: TrainConfig,
    classes: int,
    device: torch.device,
    images: int,
    chosen: Choice | None = None,
    *,
    fallback: bool = True,
) -> tuple[nn.Module, StochasticDepth | None, list[str]]:
    """The model on its device, compiled if that is wanted and possible on every rank, so that all run it the same way.

    It is compiled block by block: equal blocks share their code, and a block's gradients are ready when its backward
    pass ends, so that DDP reduces them while those of earlier blocks are computed. A model compiled as a whole would
    deliver them all at the end.

    Args:
        config: what to build.
        classes: number of classes.
        device: device to run on.
        images: images in one pass, for which the code is compiled.
        chosen: the implementation of each depthwise convolution; torch's if not listed.
        fallback: run eagerly what cannot be compiled on every rank, and say so, rather than fail.

    Returns:
        The model, its stochastic depth (None without), and what the user should know.

    Raises:
        WorkloadFailedError: without `fallback`, the model cannot be compiled on this rank or another.
    """

    model, depth = _built(config, classes, device, chosen or {})
    if not config.compile:
        return model, depth, []
    reason = ""
    try:
        _compile(model, config.autotune)
        _rehearse(model, depth, config, device, images)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # eager mode can run whatever the compiler cannot
        reason = f"{type(error).__name__}: {first_line(error)[:200]}"
    problem = _uncompiled(gathered(reason))
    if problem and fallback:
        return *_built(config, classes, device, chosen or {}), [f"{problem}; the model runs eager"]
    if problem:
        raise WorkloadFailedError(f"{problem}.", "`python -m workloads doctor` checks for a compiler.")
    if not fallback and not compiled_graphs():
        raise WorkloadFailedError("torch.compile has compiled nothing.", "Look for a variable that turns it off.")
    return model, depth, []


def _uncompiled(reasons: list[str]) -> str:
    """Why the model cannot be compiled on some ranks, from the reason of each rank; empty if none has one."""
    failed = [rank for rank, reason in enumerate(reasons) if reason]
    if not failed:
        return ""
    first = reasons[failed[0]]
    if len(reasons) == 1:
        return f"torch.compile does not work here ({first})"
    return f"torch.compile does not work on {len(failed)} of {len(reasons)} ranks (rank {failed[0]}: {first})"


def _built(
    config: TrainConfig, classes: int, device: torch.device, chosen: Choice
) -> tuple[nn.Module, StochasticDepth | None]:
    model = architecture.build(config.model, classes, config.seed).to(device)
    architecture.use_ours(model, [channels for (channels, _), by in chosen.items() if by == choice.TRITON])
    return model, StochasticDepth(model, config.drop_path, config.seed, device) if config.drop_path else None


def compiled_graphs() -> int:
    """Graphs that torch.compile has made in this process."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def _compile(model: nn.Module, autotune: bool) -> None:
    # Not `max-autotune`, whose CUDA graphs would hold the memory of every block's shapes.
    mode = "max-autotune-no-cudagraphs" if autotune else None
    torch._dynamo.config.recompile_limit = COMPILED_SHAPES
    for part in [*model.get_submodule("features").children(), model.get_submodule("classifier")]:
        blocks = [block for block in part.children() if isinstance(block, Block)]
        for unit in blocks or [part]:
            # In place, so that the weights keep their names.
            unit.compile(fullgraph=True, dynamic=False, mode=mode)


def eager(config: TrainConfig) -> AbstractContextManager[object]:
    """Run the model uncompiled during evaluation: compiling its shapes as well would not pay off."""
    return torch.compiler.set_stance("force_eager") if config.compile else nullcontext()


def _rehearse(
    model: nn.Module, depth: StochasticDepth | None, config: TrainConfig, device: torch.device, images: int
) -> None:
    # The backward pass is compiled when it first runs, so a forward pass alone would not show a failure there.
    if depth:
        depth.draw(torch.zeros(images, dtype=torch.int64, device=device), 0)
    shape = (images, 3, config.image_size, config.image_size)
    pixels = torch.zeros(shape, device=device).contiguous(memory_format=torch.channels_last)
    with autocast(config, device):
        model(pixels).float().sum().backward()
    model.zero_grad(set_to_none=True)


@contextmanager
def within_memory(config: TrainConfig, world_size: int, accumulate: int) -> Iterator[None]:
    """Report in one sentence that a batch does not fit; torch would report how many bytes it could not allocate.

    Raises:
        UsageError: the memory of the device, or of the machine, is too small.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not exhausted(error):
            raise
        images = -(-config.batch_size // (world_size * accumulate))
        raise UsageError(
            f"{counted(images, 'image')} of {config.image_size} x {config.image_size} pixels at a time (a batch of "
            f"{config.batch_size} over {counted(world_size, 'worker')} in {counted(accumulate, 'part')}) do not fit "
            "the memory of a worker's device.",
            "Choose a smaller --batch-size, more --workers, or a recipe with a larger accumulate.",
        ) from error
