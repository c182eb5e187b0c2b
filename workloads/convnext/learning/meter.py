"""Loss, accuracy and throughput: sums that stay on the device until they are read, and are exact over ranks.

On a GPU, the time lost waiting for data is the time for which the GPU itself was idle; the host waits without loss.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

STEPS_AHEAD = 2
"""Batches that may be queued on a GPU: enough to keep it busy. More would let the host drain the loader's queue."""


@dataclass(frozen=True)
class Tally:
    """Sums over the images of all ranks, and the ranks' mean seconds: equal on every rank, so all may decide by them.

    The times of a tally that was not read are the exception, see `Meter.so_far`.
    """

    losses: float = 0.0
    hits: float = 0.0
    images: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0

    @property
    def loss(self) -> float:
        """Mean over the images; 0 for none."""
        return self.losses / max(self.images, 1)

    @property
    def accuracy(self) -> float:
        """Share of the images classified correctly; 0 for none."""
        return self.hits / max(self.images, 1)


class Meter:
    """Sums since the last reading, and since the meter was made. They stay on the device; only reading waits for it."""

    def __init__(self, device: torch.device, before: Tally | None = None) -> None:
        """Begin to count.

        Args:
            device: where the sums are.
            before: the count of an earlier attempt.
        """
        before = before or Tally()
        self._device = device
        self._mine = self._zeros()
        self._whole = torch.tensor([before.losses, before.hits, before.images], dtype=torch.float64, device=device)
        self._seconds, self._waited = before.seconds, before.waited
        self._sums = self._zeros()
        self.begin()

    def _zeros(self) -> Tensor:
        return torch.zeros(3, dtype=torch.float64, device=self._device)

    def begin(self) -> None:
        """The first batch is requested: time counts from here."""
        self._clock = _DeviceClock(self._device) if self._device.type == "cuda" else _HostClock()
        self._since = time.perf_counter()

    def waiting(self) -> None:
        """The next batch is requested."""
        self._clock.waiting()

    def arrived(self) -> None:
        """The batch has arrived, and its computation is about to start."""
        self._clock.arrived()

    def add(self, losses: Tensor, hits: Tensor, weights: Tensor) -> None:
        """Count one batch.

        Args:
            losses: loss of each image, [N].
            hits: whether each was classified correctly, [N].
            weights: 1, or 0 for padding, [N].
        """
        self._mine += torch.stack([losses * weights, hits * weights, weights]).sum(1, dtype=torch.float64)

    def gather(self) -> None:
        """Sum over the ranks what each has added, without waiting for it on a GPU. Collective.

        Called at each step, so that any one rank can say at a checkpoint what all of them have counted.
        """
        if dist.is_initialized():
            dist.all_reduce(self._mine)
        self._sums += self._mine
        self._whole += self._mine
        self._mine = self._zeros()

    def read(self) -> Tally:
        """Sums since the last reading. Collective: every rank reads equally often."""
        waited = self._clock.read()
        times = torch.tensor([time.perf_counter() - self._since, waited, 1.0], dtype=torch.float64, device=self._device)
        if dist.is_initialized():
            dist.all_reduce(times)
        losses, hits, images, seconds, waited, ranks = torch.cat([self._sums, times]).tolist()
        self._seconds += seconds / ranks
        self._waited += waited / ranks
        self._sums = self._zeros()
        self._since = time.perf_counter()
        return Tally(losses, hits, images, seconds / ranks, waited / ranks)

    def so_far(self) -> Tally:
        """Everything gathered, including `before`, with the times as of the last reading."""
        losses, hits, images = self._whole.tolist()
        return Tally(losses, hits, images, self._seconds, self._waited)


class _HostClock:
    """Clock for a host that computes: its wait for a batch lasts from the request to the arrival."""

    def __init__(self) -> None:
        self._asked = time.perf_counter()
        self._waited = 0.0

    def waiting(self) -> None:
        self._asked = time.perf_counter()

    def arrived(self) -> None:
        self._waited += time.perf_counter() - self._asked

    def read(self) -> float:
        waited, self._waited = self._waited, 0.0
        return waited


class _DeviceClock:
    """Clock for a GPU: its wait lasts from the end of the queued work to the start of the next batch's work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ends: list[torch.cuda.Event] = []
        self._gaps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def waiting(self) -> None:
        self._ends.append(_now())
        if len(self._ends) > STEPS_AHEAD:
            self._ends.pop(0).synchronize()

    def arrived(self) -> None:
        if self._ends:
            self._gaps.append((self._ends[-1], _now()))

    def read(self) -> float:
        torch.cuda.synchronize(self._device)
        waited = sum(end.elapsed_time(begin) for end, begin in self._gaps) / 1000
        self._gaps.clear()
        return waited


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
