"""The data that ranks send, and a bit-exact check of what arrives; on the device, without a second buffer.

Data are small whole numbers that differ by rank, chosen so that every partial sum is exact in the element type, in any
order of reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "int32": torch.int32}
"""Element types by nccl-tests' names."""

NEVER = -1
"""Fills the buffer of a result beforehand; never the right value of an element."""

_EXACT_UP_TO = {torch.float32: 2**24, torch.float16: 2**11, torch.bfloat16: 2**8, torch.int32: 2**31 - 1}
"""Whole numbers up to this one are exact in the type (2 to the bits of its significand)."""

_TILE_ELEMENTS = 1 << 20
_LEAST_PERIOD, _LARGEST_PERIOD = 3, 251
"""Primes, so that a block that lands a power of two away from its place is detected."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A piece of a result: the sum of the data of some ranks, from some position on."""

    senders: Sequence[int]
    start: int
    length: int


@dataclass(frozen=True, kw_only=True)
class Data:
    """Every rank's data: element i of rank r is (i (1 + r // period) + r) mod period where it is r's turn, else 0.

    It is r's turn if i and r have the same remainder modulo `turns`, so that no more ranks add to an element than its
    type can sum exactly; if there are few ranks, all add to every element.
    """

    period: int
    turns: int = 1

    @classmethod
    def of(cls, reduces: bool, dtype: torch.dtype, ranks: int) -> Data:
        """With the fewest turns and the largest prime period for which every sum is exact and differs by place.

        Args:
            reduces: whether the collective sums over the ranks.
            dtype: element type.
            ranks: number of ranks.
        """
        for turns in range(1, ranks + 1):
            sharing = {len(range(first, ranks, turns)) for first in range(turns)} if reduces else {1}
            largest = min(_EXACT_UP_TO[dtype] // max(sharing) + 1, _LARGEST_PERIOD)
            for period in range(largest, _LEAST_PERIOD - 1, -1):
                prime = all(period % divisor for divisor in range(2, int(period**0.5) + 1))
                # This many ranks at one element, or a multiple, would sum to the same number wherever it is their turn.
                constant = reduces and any(number % period == 0 for number in sharing)
                if prime and not constant and turns % period:
                    return cls(period=period, turns=turns)
        raise AssertionError(f"a rank alone in its turn is always exact: {dtype}, {ranks} ranks")

    def fill(self, buffer: Tensor, rank: int) -> None:
        """Write a rank's data, without a temporary of the buffer's size."""
        tile = self._tile(Piece(senders=(rank,), start=0, length=len(buffer)), buffer)
        for chunk in buffer.split(len(tile)):
            chunk.copy_(tile[: len(chunk)])

    def count_wrong(self, result: Tensor, expected: Sequence[Piece]) -> int:
        """Number of elements of a flat result that differ from the expected ones, compared on its device."""
        wrong = torch.zeros((), dtype=torch.int64, device=result.device)
        for part, block in zip(result.split([block.length for block in expected]), expected, strict=True):
            tile = self._tile(block, part)
            for chunk in part.split(len(tile)):
                wrong += (chunk != tile[: len(chunk)]).sum()
        return int(wrong.item())

    def _tile(self, block: Piece, buffer: Tensor) -> Tensor:
        """Whole periods of a block: enough for a small buffer, few enough for a large one's memory; at least 1."""
        length = self.period * self.turns
        positions = torch.arange(block.start, block.start + length)
        one = torch.zeros(length, dtype=torch.int64)
        for sender in block.senders:
            mine = positions[(sender - block.start) % self.turns :: self.turns]
            factor = 1 + sender // self.period % (self.period - 1)
            one[(sender - block.start) % self.turns :: self.turns] += (mine * factor + sender) % self.period
        periods = max(1, min(_TILE_ELEMENTS // length, -(-len(buffer) // length)))
        return one.repeat(periods).to(buffer.device, buffer.dtype)
