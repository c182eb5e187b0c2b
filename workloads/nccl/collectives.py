"""The collectives as records: how one is run, how much it moves, and what exactly must come out.

Data are small whole numbers that differ by rank, chosen so that every partial sum is exact in the element type whatever
the order of the reduction: a result is right to the last bit or it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.errors import UsageError
from workloads.nccl.bandwidth import all_reduce_factor

DTYPES = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "int32": torch.int32}
"""Element types by nccl-tests' names."""

_EXACT_UP_TO = {torch.float32: 2**24, torch.float16: 2**11, torch.bfloat16: 2**8, torch.int32: 2**31 - 1}
"""Whole numbers up to here have their own value in the type (2 to the bits of its significand)."""

_TILE_ELEMENTS = 1 << 20
_LARGEST_PERIOD = 251
"""A prime, so that a block that lands a power of two away from its place is seen."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective operation of the benchmark."""

    name: str
    """nccl-tests' and torch's word for it."""
    redop: str
    """Reduction; `none` for those that only move."""
    root: int
    """Root rank; -1 for those without one."""
    factor: Callable[[int], float]
    """busbw / algbw for a number of ranks."""
    run: Callable[[Tensor, Tensor], None]
    """Run it from a source into a target; the same tensor twice means in place."""
    expected: Callable[[int, int], Tensor]
    """What position i of a result must hold, for period and ranks: one period, indexed by i modulo the period."""


def _all_reduce(source: Tensor, target: Tensor) -> None:
    # torch offers it in place only; out of place is a copy first, as in torch's own functional collective.
    if source is not target:
        target.copy_(source)
    dist.all_reduce(target)


def _sum_of_ranks(period: int, ranks: int) -> Tensor:
    positions = torch.arange(period)
    return torch.stack([(positions + rank) % period for rank in range(ranks)]).sum(dim=0)


ALL_REDUCE = Collective(
    name="all_reduce", redop="sum", root=-1, factor=all_reduce_factor, run=_all_reduce, expected=_sum_of_ranks
)


def period(dtype: torch.dtype, ranks: int) -> int:
    """After how many elements the data repeat: the largest prime for which a sum over the ranks is exact.

    Raises:
        UsageError: the type cannot hold even the sum of ones and zeros.
    """
    largest = _EXACT_UP_TO[dtype] // ranks + 1
    for candidate in range(min(largest, _LARGEST_PERIOD), 1, -1):
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            return candidate
    raise UsageError(
        f"A sum over {ranks} ranks is not exact in {dtype}, so its result could not be checked.",
        "Use --dtype float or int32.",
    )


def fill(buffer: Tensor, rank: int, period: int) -> None:
    """Write a rank's data, without a temporary of the buffer's size: element i is (i + rank) mod period."""
    tile = ((torch.arange(_tile_length(period, buffer), device=buffer.device) + rank) % period).to(buffer.dtype)
    for chunk in buffer.split(len(tile)):
        chunk.copy_(tile[: len(chunk)])


def count_wrong(result: Tensor, expected: Tensor) -> int:
    """How many elements differ from the expected value, compared on the device.

    Args:
        result: flat result of a collective.
        expected: one period of right values.
    """
    repeats = _tile_length(len(expected), result) // len(expected)
    tile = expected.repeat(repeats).to(result.device, result.dtype)
    wrong = torch.zeros((), dtype=torch.int64, device=result.device)
    for chunk in result.split(len(tile)):
        wrong += (chunk != tile[: len(chunk)]).sum()
    return int(wrong.item())


def _tile_length(period: int, buffer: Tensor) -> int:
    """Whole periods, enough for a small buffer and few enough for a large one's memory."""
    return min(_TILE_ELEMENTS // period, -(-len(buffer) // period)) * period
