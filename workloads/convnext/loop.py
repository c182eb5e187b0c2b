"""The training loop: forward, backward, step, evaluate, in plain torch over whatever process group there is.

All ranks compute the same records, because every sum in them is reduced over ranks first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from workloads.convnext import model as architecture
from workloads.convnext.config import TrainConfig
from workloads.convnext.meter import Meter, Tally
from workloads.convnext.model import AveragedWeights
from workloads.convnext.sampling import Batch, Source, order, slots
from workloads.errors import UsageError, WorkloadFailedError

Record = dict[str, Any]

MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.12, 57.375)
"""ImageNet's channel statistics on the 0..255 scale, as torchvision's transforms publish them."""

FINAL_LEARNING_RATE = 0.01
"""Where the cosine ends, as a share of the peak."""


@dataclass
class Position:
    """How far a run is. Counted in images, so that it keeps its meaning when batch or worker count changes."""

    step: int = 0
    """Optimiser steps done."""
    epoch: int = 0
    """Epochs finished, evaluation included."""
    consumed: int = 0
    """Images of the current epoch already learnt from."""


class Observer(Protocol):
    """What surrounds the loop: where records go and when checkpoints are due."""

    def record(self, record: Record) -> None:
        """Take one record. Called on every rank, with equal values but for times."""
        ...

    def after_step(self, training: Training) -> None:
        """Called on every rank when a step is complete, an epoch's last one with its evaluation: the moment to save."""
        ...


def learning_rate(config: TrainConfig, epochs_done: float) -> float:
    """Linear warm-up, then a cosine to one hundredth of the peak, by epochs done (a fraction within an epoch)."""
    if epochs_done < config.warmup_epochs:
        return config.learning_rate * max(epochs_done, 1e-3) / config.warmup_epochs
    span = max(config.epochs - config.warmup_epochs, 1e-9)
    fraction = min((epochs_done - config.warmup_epochs) / span, 1.0)
    share = FINAL_LEARNING_RATE + (1 - FINAL_LEARNING_RATE) * (1 + math.cos(math.pi * fraction)) / 2
    return config.learning_rate * share


class Training:
    """Model, optimiser, schedule and position of one run, on this rank."""

    def __init__(self, config: TrainConfig, train: Source, val: Source, device: torch.device) -> None:
        """Build everything from the seed; `load` continues from a checkpoint.

        Args:
            config: what to compute.
            train: images to learn from.
            val: images to evaluate on.
            device: where this rank computes.
        """
        self.config = config
        self.position = Position()
        self._train, self._val, self._device = train, val, device
        distributed = dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if distributed else 0
        self.world_size = dist.get_world_size() if distributed else 1
        self._cuda = device.type == "cuda"
        if self._cuda:
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.benchmark = True
        self.model = architecture.build(config.model, len(train.classes), config.drop_path, config.seed).to(device)
        self._parallel: nn.Module = self.model
        if distributed:
            self._parallel = DistributedDataParallel(
                self.model, device_ids=[device] if self._cuda else None, gradient_as_bucket_view=True, static_graph=True
            )
        groups = architecture.parameter_groups(self.model, config.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)
        self._ema = AveragedWeights(self.model, config.ema_decay) if config.ema_decay else None
        self._mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
        self._deviation = torch.tensor(DEVIATION, device=device).view(1, 3, 1, 1)

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with a run that loads it."""
        return {
            "model": self.config.model,
            "image_size": self.config.image_size,
            "classes": list(self._train.classes),
            "training_images": len(self._train),
            "ema": self._ema is not None,
        }

    def state(self) -> dict[str, Any]:
        """Everything that `load` needs, as `torch.load(weights_only=True)` reads it; random states are derived."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self._ema.state() if self._ema else [],
            "position": asdict(self.position),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self._ema:
            self._ema.load(state["ema"])
        self.position = Position(**state["position"])

    def run(self, observer: Observer) -> Record:
        """Train to the last epoch.

        Returns:
            The last evaluation's record.

        Raises:
            WorkloadFailedError: the loss is no longer a number.
            UsageError: the batch does not fit the device's memory.
        """
        last = self._evaluate() if self.position.epoch >= self.config.epochs else {}
        try:
            while self.position.epoch < self.config.epochs:
                last = self._epoch(observer)
        except torch.OutOfMemoryError as error:
            raise UsageError(
                f"a batch of {self.config.batch_size} over {self.world_size} workers does not fit the device's memory.",
                "Choose a smaller --batch-size or more --workers.",
            ) from error
        return last

    def _epoch(self, observer: Observer) -> Record:
        config, position = self.config, self.position
        self._parallel.train()
        visit = order(len(self._train), config.seed, position.epoch)[position.consumed :]
        meter, whole = Meter(self._device), Tally()
        shares = slots(visit, config.batch_size, self.rank, self.world_size)
        for batch in self._train.batches(shares, position.epoch):
            meter.arrived()
            self._step(batch, meter)
            if position.step % config.log_steps == 0:
                tally = meter.read()
                whole += tally
                observer.record(self._progress(tally))
            if position.consumed < len(self._train):
                observer.after_step(self)
        whole += meter.read()
        record = {**self._progress(whole), **self._evaluate(), "event": "epoch"}
        position.epoch, position.consumed = position.epoch + 1, 0
        observer.record(record)
        observer.after_step(self)
        return record

    def _step(self, batch: Batch, meter: Meter) -> None:
        config, position = self.config, self.position
        rate = learning_rate(config, position.epoch + position.consumed / len(self._train))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # A step draws its randomness (stochastic depth) from its own number, so that a resumed run repeats it exactly.
        torch.manual_seed((config.seed * 1_000_003 + position.step) * 4096 + self.rank)
        weights = batch.slot.weights.to(self._device)
        labels = batch.labels.to(self._device, non_blocking=True)
        logits = self._logits(self._parallel, batch.images)
        losses = functional.cross_entropy(logits, labels, label_smoothing=config.label_smoothing, reduction="none")
        # DDP averages gradients over ranks, which hold unequal numbers of images in an uneven batch: weigh by the sum.
        loss = (losses * weights).sum() * (self.world_size / batch.slot.total)
        loss.backward()
        if config.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        position.step += 1
        position.consumed += batch.slot.total
        if self._ema:
            self._ema.update(position.step)
        meter.add(losses.detach(), logits.detach(), labels, weights)

    def _logits(self, model: nn.Module, images: Tensor) -> Tensor:
        pixels = images.to(self._device, non_blocking=True).float().sub(self._mean).div(self._deviation)
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._cuda):
            return model(pixels.contiguous(memory_format=torch.channels_last)).float()

    def _progress(self, tally: Tally) -> Record:
        position = self.position
        if not math.isfinite(tally.loss):
            raise WorkloadFailedError(
                f"the training loss is {tally.loss} at step {position.step}.",
                "Lower --learning-rate or raise the recipe's warmup_epochs, under a new --run name.",
            )
        return {
            "event": "step",
            "step": position.step,
            "epochs": self.config.epochs,
            "epoch": round(position.epoch + position.consumed / len(self._train), 4),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "train/loss": tally.loss,
            "train/accuracy": tally.accuracy,
            "train/images_per_second": tally.images / max(tally.seconds, 1e-9),
            "train/data_wait_share": tally.waited / max(tally.seconds, 1e-9),
            "seconds": tally.seconds,
        }

    @torch.no_grad()
    def _evaluate(self) -> Record:
        self._parallel.eval()
        meter = Meter(self._device)
        visit = torch.arange(len(self._val))
        length = max(1, min(self.config.batch_size, len(self._val)))
        with self._ema.in_place() if self._ema else _unchanged():
            for batch in self._val.batches(slots(visit, length, self.rank, self.world_size), 0):
                labels = batch.labels.to(self._device)
                logits = self._logits(self.model, batch.images)
                losses = functional.cross_entropy(logits, labels, reduction="none")
                meter.add(losses, logits, labels, batch.slot.weights.to(self._device))
        tally = meter.read()
        return {"val/loss": tally.loss, "val/accuracy": tally.accuracy, "val/images": int(tally.images)}


@contextmanager
def _unchanged() -> Iterator[None]:
    yield
