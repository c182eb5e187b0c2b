"""Which image is seen when, by which rank, and by what chance it is altered.

All of it depends on seed, epoch and image alone, never on the number of ranks: a run that resumes with another number
of workers sees what it would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slot:
    """One rank's share of one global batch, padded to the same length on every rank and step; weights say so."""

    indices: Tensor
    """Indices of the images, int64 [batch]."""
    weights: Tensor
    """1 for an image of this batch, 0 for padding, float32 [batch]."""
    total: int
    """Images of the batch over all ranks, padding not counted."""


@dataclass(frozen=True)
class Batch:
    """A slot with its images, uint8 [N, 3, H, W], and labels, int64 [N]."""

    images: Tensor
    labels: Tensor
    slot: Slot


class Source(Protocol):
    """One split of the data."""

    classes: tuple[str, ...]

    def __len__(self) -> int: ...

    def batches(self, slots: Sequence[Slot], epoch: int) -> Iterator[Batch]:
        """The slots' images, augmented for this epoch, on the source's device."""
        ...


def order(size: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch visits the images."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(size, generator=generator)


def slots(visit: Tensor, batch_size: int, rank: int, world_size: int) -> list[Slot]:
    """Cut `visit` into global batches and take the rank's share of each.

    Every image falls to exactly one rank with weight 1, also when neither the last batch nor the number of ranks
    divides evenly; every rank gets the same number of slots of the same length, so that collectives match.
    """
    length = -(-batch_size // world_size)
    shares = []
    for start in range(0, len(visit), batch_size):
        batch = visit[start : start + batch_size]
        mine = batch[rank::world_size]
        padding = batch[:1].expand(length - len(mine))
        weights = torch.cat([torch.ones(len(mine)), torch.zeros(len(padding))])
        shares.append(Slot(torch.cat([mine, padding]), weights, len(batch)))
    return shares


def chance(indices: Tensor, seed: int, stream: int) -> Tensor:
    """A random integer below 2^31 for each index, the same wherever it is drawn.

    A counter-based generator (the finalizer of SplitMix64, Steele et al., OOPSLA 2014, with logical shifts), because a
    stateful one would give an image another draw when the number of ranks changes.
    """
    state = indices * -7046029254386353131 + (seed * 2_654_435_761 + stream * 40_503 + 1)
    state = (state ^ (state >> 30 & 0x3FFFFFFFF)) * -4658895280553007687
    state = (state ^ (state >> 27 & 0x1FFFFFFFFF)) * -7723592293110705685
    return (state ^ (state >> 31 & 0x1FFFFFFFF)) >> 33 & 0x7FFFFFFF
