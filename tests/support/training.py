"""What the tests of the training loop share: a configuration that trains in a moment, data, an observer, and ranks."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from workloads.convnext import config as configuration
from workloads.convnext.config import TrainConfig
from workloads.convnext.images.sampling import Batch, Slot
from workloads.convnext.learning.loop import Record, Training

CPU = torch.device("cpu")


def small(**changes: Any) -> TrainConfig:
    """A configuration that trains in a second."""
    values = {"data": "synthetic", "epochs": 2, "batch_size": 256, "log_steps": 2, "warmup_epochs": 0, **changes}
    return dataclasses.replace(configuration.digits_laptop(), **values)


class Few:
    """So many images of four classes: each class one picture, under noise."""

    def __init__(self, count: int, size: int = 32) -> None:
        self.classes: tuple[str, ...] = ("a", "b", "c", "d")
        self._labels = torch.arange(count) % 4
        generator = torch.Generator().manual_seed(1)
        pictures = torch.randint(0, 128, (4, 3, size, size), generator=generator)
        noise = torch.randint(0, 128, (count, 3, size, size), generator=generator)
        self._images = (pictures[self._labels] + noise).to(torch.uint8)

    def __len__(self) -> int:
        return len(self._labels)

    def batches(self, slots: Sequence[Slot], epoch: int) -> Iterator[Batch]:
        for slot in slots:
            yield Batch(self._images[slot.indices], self._labels[slot.indices], slot)


class Recorder:
    """Keeps the records, and a snapshot of the state after one step."""

    def __init__(self, snapshot_step: int | None = None) -> None:
        self.records: list[Record] = []
        self.snapshot: dict[str, Any] = {}
        self._step = snapshot_step

    def record(self, record: Record) -> None:
        self.records.append(record)

    def after_step(self, training: Training) -> None:
        if training.position.step == self._step and not self.snapshot:
            self.snapshot = training.snapshot()


class Killed(Exception):
    """The process ends here."""


class Killer(Recorder):
    """Ends the run after one step, as a kill would right after a checkpoint; `written` is what is left of it."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.written = b""
        self._kill_at = step

    def after_step(self, training: Training) -> None:
        if training.position.step == self._kill_at:
            buffer = io.BytesIO()
            torch.save(training.snapshot(), buffer)
            self.written = buffer.getvalue()
            raise Killed


def weights(training: Training) -> Tensor:
    """All weights in one row."""
    return torch.cat([parameter.detach().flatten() for parameter in training.model.parameters()])
