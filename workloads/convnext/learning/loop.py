"""The training loop: forward, backward, step, evaluate, in plain torch over whatever process group there is.

All ranks compute the same records, because every sum in them is reduced over ranks first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from workloads.convnext.config import TrainConfig
from workloads.convnext.images.augment import DeviceAugmentation
from workloads.convnext.images.sampling import Batch, Source, order, slots
from workloads.convnext.kernels.choice import Choice
from workloads.convnext.learning import execution, flops, snapshot
from workloads.convnext.learning.meter import Meter, Tally
from workloads.convnext.learning.model import AveragedWeights, parameter_groups
from workloads.errors import WorkloadFailedError

Record = dict[str, Any]

_FINAL_LEARNING_RATE = 0.01
"""Learning rate at the end of the cosine, as a share of the peak."""


@dataclass
class Position:
    """Progress of a run, counted in images, so that it stays valid when batch size or worker count changes."""

    step: int = 0
    """Optimiser steps done."""
    epoch: int = 0
    """Epochs finished, including evaluation."""
    consumed: int = 0
    """Images of the current epoch that were already used for training."""


class Observer(Protocol):
    """The surroundings of the loop: where records go and when checkpoints are due."""

    def record(self, record: Record) -> None:
        """Take one record. Called on every rank, with values that are equal except for times."""
        ...

    def after_step(self, training: Training) -> None:
        """Called on every rank after each complete step (an epoch's last one with its evaluation): the time to save."""
        ...


class Training:
    """Model, optimiser, schedule and position of one run, on this rank."""

    def __init__(
        self,
        config: TrainConfig,
        train: Source,
        val: Source,
        device: torch.device,
        workers: int = 0,
        kernels: Choice | None = None,
        *,
        eager_fallback: bool = True,
    ) -> None:
        """Build everything from the seed; `load` continues from a checkpoint.

        Args:
            config: what to compute.
            train: images to train on.
            val: images to evaluate on.
            device: where this rank computes.
            workers: number of ranks for which the batch was chosen; 0 for as many as there are.
            kernels: the run's own choice of kernels; None if it has not chosen yet.
            eager_fallback: run eagerly what cannot be compiled, and note it. Must be off to measure compiled code.

        Raises:
            UsageError: the model does not fit in the device's memory, or the run's kernels cannot be used there.
            WorkloadFailedError: without `eager_fallback`, the model cannot be compiled.
        """
        self.config = config
        self.position = Position()
        self._meter = Meter(device)
        self._train, self._val, self._device = train, val, device
        distributed = dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if distributed else 0
        self.world_size = dist.get_world_size() if distributed else 1
        # A batch that fits the workers that the run was made for also fits fewer of them, in more parts.
        self._accumulate = config.accumulate * -(-max(workers, self.world_size) // self.world_size)
        self._notes = execution.configure(config, device)
        with execution.within_memory(config, *self._parts):
            images = len(slots(torch.arange(config.batch_size), config.batch_size, 0, *self._parts)[0].indices)
            self.kernels, chosen = execution.kernels(config, device, images, kernels)
            built = execution.executable(
                config, len(train.classes), device, images, self.kernels, fallback=eager_fallback
            )
            self.model, self._depth, notes = built
            self._notes += chosen + notes
            self._parallel: nn.Module = self.model
            if distributed:
                self._parallel = DistributedDataParallel(
                    self.model,
                    device_ids=[device] if device.type == "cuda" else None,
                    gradient_as_bucket_view=True,
                    # Under no_sync a static graph stops reducing gradients (pytorch/pytorch pull request 187732).
                    static_graph=self._accumulate == 1,
                )
            groups = parameter_groups(self.model, config.weight_decay)
            self.optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)
            self._ema = AveragedWeights(self.model, config.ema_decay) if config.ema_decay else None
            self._augment = DeviceAugmentation(config, len(train.classes), device)
        self._flops = flops.training_flops(config.model, config.image_size, len(train.classes))
        self._peak = flops.peak(device, config.precision)

    @property
    def _parts(self) -> tuple[int, int]:
        return self.world_size, self._accumulate

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that a checkpoint and a run that loads it must have in common."""
        return {
            **self.config.identity,
            "classes": list(self._train.classes),
            "training_images": len(self._train),
        }

    def state(self) -> dict[str, Any]:
        """Everything that `load` needs, as `torch.load(weights_only=True)` reads it: the live tensors, not copies.

        It holds no random generator: everything random follows from the seed, the position and the image.
        """
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self._ema.state() if self._ema else [],
            "position": asdict(self.position),
            "tally": asdict(self._meter.so_far()),
        }

    def snapshot(self) -> dict[str, Any]:
        """`state`, copied to CPU memory, to be written while training or evaluation continues.

        Raises:
            WorkloadFailedError: weights are NaN or infinite; a checkpoint of them would replace good ones.
        """
        with self._ema.beside() if self._ema else nullcontext():
            if not torch.stack([weights.isfinite().all() for weights in self.model.parameters()]).all():
                raise self._diverged("a weight of the model is not a number")
            return snapshot.copied(self.state(), self._device)

    def _diverged(self, what: str) -> WorkloadFailedError:
        return WorkloadFailedError(
            f"{what} at step {self.position.step}.",
            "Lower --learning-rate or raise the recipe's warmup_epochs, under a new --run name.",
        )

    def load(self, state: dict[str, Any]) -> None:
        """Continue from where `state` was taken."""
        self.model.load_state_dict(state["model"])
        # The one optimiser setting that a run may change and no step sets: the checkpoint has the previous value.
        decays = [group["weight_decay"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, decay in zip(self.optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        if self._ema:
            self._ema.load(state["ema"])
        self.position = Position(**state["position"])
        # A checkpoint of an older release has no tally: the record of its epoch lacks the images before the checkpoint.
        self._meter = Meter(self._device, Tally(**state.get("tally", {})))

    def run(self, observer: Observer, evaluating: Callable[[Training], None] = lambda training: None) -> Record:
        """Train to the last epoch.

        Args:
            observer: told of all events.
            evaluating: called on every rank before the evaluation that ends an epoch and after each of its batches: the
                time to save what cannot wait for `after_step`.

        Returns:
            The last evaluation's record.

        Raises:
            WorkloadFailedError: the loss is no longer a number.
            UsageError: the batch does not fit in the device's memory.
        """
        for note in self._notes:
            observer.record({"event": "note", "text": note, "step": self.position.step, "epoch": self.position.epoch})
        with execution.within_memory(self.config, *self._parts):
            last = self._evaluate() if self.position.epoch >= self.config.epochs else {}
            while self.position.epoch < self.config.epochs:
                self._learn_rest(observer)
                last = self._end_epoch(observer, evaluating)
        return last

    def _learn_rest(self, observer: Observer) -> None:
        """Train on the remaining images of the epoch, if there are any."""
        config, position, meter = self.config, self.position, self._meter
        self._parallel.train()
        visit = order(len(self._train), config.seed, position.epoch)[position.consumed :]
        shares = slots(visit, config.batch_size, self.rank, *self._parts)
        meter.begin()
        for number, batch in enumerate(self._train.batches(shares, position.epoch), start=1):
            meter.arrived()
            complete = number % self._accumulate == 0
            self._learn(batch, meter, complete)
            if complete:
                self._step(batch.slot.total)
                meter.gather()
                if position.step % config.log_steps == 0:
                    observer.record(self._progress(meter.read()))
                if position.consumed < len(self._train):
                    observer.after_step(self)
            meter.waiting()
        meter.read()

    def _end_epoch(self, observer: Observer, evaluating: Callable[[Training], None]) -> Record:
        position = self.position
        evaluating(self)
        evaluated = self._evaluate(lambda: evaluating(self))
        record = {**self._progress(self._meter.so_far()), **evaluated, "event": "epoch"}
        position.epoch, position.consumed = position.epoch + 1, 0
        self._meter = Meter(self._device)
        observer.record(record)
        observer.after_step(self)
        return record

    def _learn(self, batch: Batch, meter: Meter, complete: bool) -> None:
        """Add one slot's gradients to the accumulated ones; the last slot of a step reduces them over ranks."""
        slot, epoch = batch.slot, self.position.epoch
        weights = slot.weights.to(self._device, non_blocking=True)
        pixels, targets = self._augment(batch.images, batch.labels, slot.indices, epoch)
        if self._depth:
            self._depth.draw(slot.indices.to(self._device, non_blocking=True), epoch)
        with self._local() if not complete else nullcontext():
            with execution.autocast(self.config, self._device):
                logits = self._parallel(pixels)
            losses = functional.cross_entropy(logits.float(), targets, reduction="none")
            # DDP averages gradients over ranks, which have unequal numbers of images in an uneven batch: weight by sum.
            ((losses * weights).sum() * (self.world_size / slot.total)).backward()
        meter.add(losses.detach(), logits.detach().argmax(1) == targets.argmax(1), weights)

    def _local(self) -> AbstractContextManager[None]:
        parallel = self._parallel
        return parallel.no_sync() if isinstance(parallel, DistributedDataParallel) else nullcontext()

    def _step(self, images: int) -> None:
        config, position = self.config, self.position
        rate = learning_rate(config, position.epoch + position.consumed / len(self._train))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if config.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        position.step += 1
        position.consumed += images
        if self._ema:
            self._ema.update(position.step)

    def _progress(self, tally: Tally) -> Record:
        position = self.position
        if not math.isfinite(tally.loss):
            raise self._diverged(f"the training loss is {tally.loss}")
        rate = tally.images / max(tally.seconds, 1e-9)
        return {
            "event": "step",
            "step": position.step,
            "epochs": self.config.epochs,
            "epoch": round(position.epoch + position.consumed / len(self._train), 4),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "train/loss": tally.loss,
            "train/accuracy": tally.accuracy,
            "train/images_per_second": rate,
            "train/data_wait_share": tally.waited / max(tally.seconds, 1e-9),
            "seconds": tally.seconds,
        } | ({"train/mfu": flops.utilisation(rate / self.world_size, self._flops, self._peak)} if self._peak else {})

    @torch.no_grad()
    def _evaluate(self, between: Callable[[], None] = lambda: None) -> Record:
        self._parallel.eval()
        meter = Meter(self._device)
        visit = torch.arange(len(self._val))
        length = max(1, min(-(-self.config.batch_size // self._accumulate), len(self._val)))
        with self._ema.in_place() if self._ema else nullcontext(), execution.eager(self.config):
            for batch in self._val.batches(slots(visit, length, self.rank, self.world_size), 0):
                labels = batch.labels.to(self._device, non_blocking=True)
                with execution.autocast(self.config, self._device):
                    logits = self.model(self._augment.normalise(batch.images))
                losses = functional.cross_entropy(logits.float(), labels, reduction="none")
                weights = batch.slot.weights.to(self._device, non_blocking=True)
                meter.add(losses, logits.argmax(1) == labels, weights)
                between()
        meter.gather()
        tally = meter.read()
        return {"val/loss": tally.loss, "val/accuracy": tally.accuracy, "val/images": int(tally.images)}


def learning_rate(config: TrainConfig, epochs_done: float) -> float:
    """Linear warm-up, then a cosine to a hundredth of the peak, as a function of (fractional) epochs done."""
    if epochs_done < config.warmup_epochs:
        return config.learning_rate * min(max(epochs_done, 1e-3) / config.warmup_epochs, 1.0)
    span = max(config.epochs - config.warmup_epochs, 1e-9)
    fraction = min((epochs_done - config.warmup_epochs) / span, 1.0)
    share = _FINAL_LEARNING_RATE + (1 - _FINAL_LEARNING_RATE) * (1 + math.cos(math.pi * fraction)) / 2
    return config.learning_rate * share
