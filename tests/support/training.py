"""What the tests of the training loop share: a configuration that trains in a moment, data, an observer, and ranks."""

from __future__ import annotations

import dataclasses
import io
import multiprocessing
import queue
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from workloads.cluster import process_group
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


def on_two_ranks(work: Callable[[], Any]) -> list[tuple[Any, list[str]]]:
    """What `work`, a function of a test module, returns on each of two gloo ranks, and the warnings it caused there."""
    context = multiprocessing.get_context("spawn")
    meeting, results = context.Queue(), context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, work, meeting, results)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    answers: dict[int, tuple[Any, list[str]]] = {}
    while len(answers) < len(ranks):
        try:
            rank, result, warned = results.get(timeout=1)
            answers[rank] = (result, warned)
        except queue.Empty:
            broken = [process.exitcode for process in ranks if process.exitcode]
            for process in ranks if broken else ():
                process.kill()
            assert not broken, f"ranks ended with {broken}"
    for process in ranks:
        process.join(30)
    return [answers[rank] for rank in sorted(answers)]


def _rank(rank: int, work: Callable[[], Any], meeting: Any, results: Any) -> None:
    torch.set_num_threads(1)
    listener = process_group.listen("127.0.0.1") if rank == 0 else None
    if listener:
        for _ in range(2):
            meeting.put(listener.getsockname()[1])
    process_group.join(rank, 2, "127.0.0.1", meeting.get(timeout=300), listener, timedelta(seconds=300), CPU)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
    results.put((rank, result, [str(warning.message) for warning in caught]))
    process_group.leave()
