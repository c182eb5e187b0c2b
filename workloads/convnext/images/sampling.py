"""The order of images: when an image is seen, by which rank, next to which others, and how it is randomly altered.

All of this depends only on seed, epoch and image, never on the number of ranks: a run that resumes with a different
number of workers sees the same images as it would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slot:
    """A rank's share of a global batch, or one of `accumulate` parts of that share, computed at once.

    Padded to the same length on every rank and step; weights say so. Images 0 and 1 are a pair, 2 and 3, and so on:
    the pairs that mixup and CutMix mix, the same for every number of ranks and parts.
    """

    indices: Tensor
    """Indices of the images, int64 [N], on the host."""
    weights: Tensor
    """1 for an image of this batch, 0 for padding, float32 [N]."""
    total: int
    """Images of the global batch, over all ranks and parts, padding not counted."""

    def pinned(self) -> Slot:
        """The slot in page-locked memory, so that its copy to the GPU waits for nothing."""
        return replace(self, indices=self.indices.pin_memory(), weights=self.weights.pin_memory())


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
        """The slots' images in the order of the slots: the part of each that this epoch shows, not yet altered."""
        ...


def order(size: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch visits the images."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(size, generator=generator)


def slots(visit: Tensor, batch_size: int, rank: int, world_size: int, accumulate: int = 1) -> list[Slot]:
    """Cut `visit` into global batches and take the rank's share of each, in `accumulate` parts.

    Every image falls to exactly one rank and part with weight 1, also when neither the last batch nor the number of
    ranks divides evenly; every rank gets the same number of slots of the same length, so that collectives match.

    Args:
        visit: indices of the images still to be seen in this epoch, int64.
        batch_size: images of a global batch; the last one may be smaller.
        rank: whose share.
        world_size: how many ranks share a batch.
        accumulate: slots per global batch; as many consecutive slots make one optimiser step.
    """
    shares = world_size * accumulate
    length = len(_share(torch.arange(batch_size), 0, shares))
    cut = []
    for start in range(0, len(visit), batch_size):
        batch = visit[start : start + batch_size]
        for part in range(accumulate):
            mine = _share(batch, part * world_size + rank, shares)
            # An image without a partner is padded with itself, and so mixes with itself however the batch is shared.
            padding = (mine if len(mine) else batch)[-1:].expand(length - len(mine))
            weights = torch.cat([torch.ones(len(mine)), torch.zeros(len(padding))])
            cut.append(Slot(torch.cat([mine, padding]), weights, len(batch)))
    return cut


def _share(batch: Tensor, number: int, shares: int) -> Tensor:
    # Dealt out by pairs; the first share is never smaller than another.
    return batch[torch.arange(len(batch)) // 2 % shares == number]


class Draw(IntEnum):
    """The random decisions about an image in an epoch; each has its own stream of random numbers."""

    FRAME = 0
    """Seed of the choice of a picture's part."""
    DOWN = 1
    ACROSS = 2
    MIRROR = 3
    ERASE = 4
    ERASE_AREA = 5
    ERASE_RATIO = 6
    ERASE_ROW = 7
    ERASE_COLUMN = 8
    MIX_KIND = 9
    MIX_SHARE = 10
    CUT_ROW = 11
    CUT_COLUMN = 12


def chance(indices: Tensor, seed: int, epoch: int, draw: int | Tensor) -> Tensor:
    """A random integer below 2^31 for each index, the same wherever it is drawn.

    A counter-based generator (the finalizer of SplitMix64, Steele et al., OOPSLA 2014, with logical shifts), because a
    stateful one would give an image another draw when the number of ranks changes.

    Args:
        indices: the images, int64 [N].
        seed: the run's.
        epoch: the epoch in which they are seen.
        draw: a `Draw`, or several as int64 [D, 1], which gives [D, N].
    """
    stream = draw + epoch * len(Draw)
    state = indices * -7046029254386353131 + (stream * 40_503 + (seed * 2_654_435_761 + 1))
    state = (state ^ (state >> 30 & 0x3FFFFFFFF)) * -4658895280553007687
    state = (state ^ (state >> 27 & 0x1FFFFFFFFF)) * -7723592293110705685
    return (state ^ (state >> 31 & 0x1FFFFFFFF)) >> 33 & 0x7FFFFFFF
