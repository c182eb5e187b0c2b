"""Loss, accuracy and throughput: sums that stay on the device until they are read, and are exact over ranks.

On a GPU, time lost to waiting for data is what the GPU itself was idle for; the host waits without losing any.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
from torch import Tensor

STEPS_AHEAD = 2
"""Batches that may be queued on a GPU: enough to keep it busy. More would let the host drain the loader's queue."""


@dataclass(frozen=True)
class Tally:
    """Sums over images of all ranks, and the ranks' mean seconds: equal on every rank, so all may decide by them."""

    losses: float = 0.0
    hits: float = 0.0
    images: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def loss(self) -> float:
        """Mean over the images; 0 for none."""
        return self.losses / max(self.images, 1)

    @property
    def accuracy(self) -> float:
        """Share of the images that were classified correctly; 0 for none."""
        return self.hits / max(self.images, 1)


class Meter:
    """Sums since the last reading. The additions stay on the device; only reading waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._clock = _DeviceClock(device) if device.type == "cuda" else _HostClock()
        self._clear()

    def _clear(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=self._device)
        self._since = time.perf_counter()

    def waiting(self) -> None:
        """The next batch is asked for."""
        self._clock.waiting()

    def arrived(self) -> None:
        """It is here, and is about to be computed on."""
        self._clock.arrived()

    def add(self, losses: Tensor, hits: Tensor, weights: Tensor) -> None:
        """Count one batch.

        Args:
            losses: of each image, [N].
            hits: whether each was classified correctly, [N].
            weights: 1, or 0 for padding, [N].
        """
        self._sums += torch.stack([losses * weights, hits * weights, weights]).sum(1, dtype=torch.float64)

    def read(self) -> Tally:
        """What was added on all ranks since the last reading. Collective: every rank reads equally often."""
        waited = self._clock.read()
        times = [time.perf_counter() - self._since, waited, 1.0]
        sums = torch.cat([self._sums, torch.tensor(times, dtype=torch.float64, device=self._device)])
        if dist.is_initialized():
            dist.all_reduce(sums)
        losses, hits, images, seconds, waited, ranks = sums.tolist()
        self._clear()
        return Tally(losses, hits, images, seconds / ranks, waited / ranks)


class _HostClock:
    """Where the host computes: it waits for a batch from asking for it to having it."""

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
    """Where a GPU computes: it waits from the end of what was queued to the beginning of the next batch's work."""

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
