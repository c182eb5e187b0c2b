"""Loss, accuracy and throughput: sums that stay on the device until they are read, and are exact over ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
from torch import Tensor


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
        self._clear()

    def _clear(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=self._device)
        self._since = self._waiting_since = time.perf_counter()
        self._waited = 0.0

    def arrived(self) -> None:
        """A batch has arrived: what passed since the last step was waiting for data."""
        self._waited += time.perf_counter() - self._waiting_since

    def add(self, losses: Tensor, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Count one batch; padding has weight 0."""
        hits = (logits.argmax(1) == labels).double()
        self._sums += torch.stack([(losses.double() * weights).sum(), (hits * weights).sum(), weights.double().sum()])
        self._waiting_since = time.perf_counter()

    def read(self) -> Tally:
        """What was added on all ranks since the last reading. Collective: every rank reads equally often."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        times = [time.perf_counter() - self._since, self._waited, 1.0]
        sums = torch.cat([self._sums, torch.tensor(times, dtype=torch.float64, device=self._device)])
        if dist.is_initialized():
            dist.all_reduce(sums)
        losses, hits, images, seconds, waited, ranks = sums.tolist()
        self._clear()
        return Tally(losses, hits, images, seconds / ranks, waited / ranks)
