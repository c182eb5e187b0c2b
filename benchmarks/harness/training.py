"""A training for timing steps only: on batches that cost nothing, until its observer has seen enough."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import cycle

import torch
from torch import Tensor

from workloads.convnext.config import TrainConfig
from workloads.convnext.images.sampling import Batch, Slot
from workloads.convnext.learning.loop import Observer, Training

CLASSES = 1000
"""As many as ImageNet has."""

EPOCH_STEPS = 1000
"""Steps that an epoch pretends to have, so that none ends while steps are timed."""

_KEPT = 4


def first_device() -> torch.device:
    """The first GPU, or the CPU if there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


class Prepared:
    """Both splits of a benchmark's data, for one rank: a few batches, made once and repeated forever."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        """Make the batches on `device`, of the configuration's size and seed."""
        self.classes = tuple(str(number) for number in range(CLASSES))
        self._size = config.batch_size
        shape = (config.batch_size, 3, config.image_size, config.image_size)
        generator = torch.Generator().manual_seed(config.seed)
        self._kept = [
            (
                torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(device),
                torch.randint(0, CLASSES, shape[:1], generator=generator).to(device),
            )
            for _ in range(_KEPT)
        ]

    def __len__(self) -> int:
        return self._size * EPOCH_STEPS

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Images, uint8 [N, 3, S, S], and labels [N], without end."""
        return cycle(self._kept)

    def batches(self, slots: Sequence[Slot], epoch: int) -> Iterator[Batch]:
        for slot, (images, labels) in zip(slots, self, strict=False):
            yield Batch(images, labels, slot)


class EnoughError(Exception):
    """Everything is measured; a training's observer raises this to end the training."""


def observe(training: Training, observer: Observer) -> None:
    """Train until the observer has seen enough.

    Raises:
        RuntimeError: the run ended before that.
    """
    try:
        training.run(observer)
    except EnoughError:
        return
    raise RuntimeError("the run ended before everything was measured")


def finished(device: torch.device) -> float:
    """The time once the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
