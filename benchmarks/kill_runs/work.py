"""What the workers of `benchmarks.kills` run: the trainer under observation, and Ray Train's own way as the baseline.

The oracle knows nothing about the sampler: each image of its data set carries its number in its pixels, which are read
back from the batch that the model gets.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor

from workloads.convnext.config import TrainConfig
from workloads.convnext.images.data import sources
from workloads.convnext.images.sampling import Batch
from workloads.convnext.learning.loop import Record, Training
from workloads.convnext.learning.meter import Meter
from workloads.convnext.run import worker
from workloads.errors import WorkloadFailedError
from workloads.storage.folders import locate

IMAGES, CLASSES = 512, 4
BITS = 16
"""Bits of an image's number: a grid of 4 x 4 squares of 8 pixels, white for 1."""

ABSENT = "absent.json"
"""File in the observation's folder: which rank stays away, and from which step. That rank first removes the file."""

STOP = "stop"
"""File in the observation's folder that ends the run without telling the store, as if its driver had died."""


FOLDERS: list[Path] = []
"""Where this process writes its observation."""


def write_images(root: Path) -> None:
    """Write the numbered data set, once."""
    if (root / "complete").exists():
        return
    for split, count in (("train", IMAGES), ("val", 32)):
        for number in range(count):
            folder = root / split / f"class{number % CLASSES}"
            folder.mkdir(parents=True, exist_ok=True)
            bits = torch.tensor([number >> bit & 1 for bit in range(BITS)], dtype=torch.uint8) * 255
            grid = bits.view(4, 4).repeat_interleave(8, 0).repeat_interleave(8, 1)
            Image.fromarray(grid.numpy()).convert("RGB").save(folder / f"{number:05d}.png")
    (root / "complete").touch()


def numbers(images: Tensor) -> list[int]:
    """The numbers in the pixels, uint8 [N, 3, 32, 32]."""
    bits = (images[:, 0, 4::8, 4::8].reshape(len(images), BITS) > 127).long()
    return (bits << torch.arange(BITS)).sum(1).tolist()


class Observed(Training):
    """Writes what the model was really given, step by step, into a file of this process."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._seen: list[int] = []
        attempt: list[object] = [time.time_ns()]
        if self.world_size > 1:
            dist.broadcast_object_list(attempt, src=0)
        self._head = {"attempt": attempt[0], "rank": self.rank, "world": self.world_size, "pid": os.getpid()}
        self._folder = FOLDERS[0]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = self._folder / f"{attempt[0]}-{self.rank}.jsonl"

    def _learn(self, batch: Batch, meter: Meter, complete: bool) -> None:
        self._stay_away()
        self._seen += numbers(batch.images[batch.slot.weights > 0])
        super()._learn(batch, meter, complete)

    def _step(self, images: int) -> None:
        epoch = self.position.epoch
        super()._step(images)
        line = {**self._head, "time": time.time(), "step": self.position.step, "epoch": epoch, "seen": self._seen}
        with self._file.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        self._seen = []
        if (self._folder / STOP).exists():
            raise WorkloadFailedError(STOP, "")

    def _stay_away(self) -> None:
        order = self._folder / ABSENT
        if not order.exists():
            return
        told = json.loads(order.read_text())
        if told["rank"] == self.rank and self.position.step >= told["step"]:
            order.unlink()
            (self._folder / "absent-since").write_text(str(time.time()))
            time.sleep(3600)


def observed(job: dict[str, Any]) -> Record:
    """`worker.work` with its training observed."""
    FOLDERS[:] = [Path(f"{locate(job['run']).path}-observed")]
    worker.Training = Observed
    return worker.work(job)


class _Reports:
    """Ray Train's way: all ranks report every so many steps, rank 0 with a checkpoint."""

    def __init__(self, every: int) -> None:
        self._every = every

    def record(self, record: Record) -> None:
        """Do nothing: metrics are not measured."""

    def after_step(self, training: Training) -> None:
        """Report with a checkpoint, as Ray Train's user guide does."""
        if training.position.step % self._every:
            return
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if training.rank == 0:
                torch.save(training.state(), Path(folder) / "state.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": training.position.step}, checkpoint=checkpoint)


def baseline(job: dict[str, Any]) -> Record:
    """The same training with Ray Train's checkpoints and resume, as in its user guide."""
    FOLDERS[:] = [Path(f"{locate(job['run']).path}-observed")]
    config = TrainConfig(**job["config"])
    device = ray.train.torch.get_device()
    training = Observed(config, *sources(config, Path(config.data), device), device)
    newest = ray.train.get_checkpoint()
    if newest is not None:
        with newest.as_directory() as folder:
            training.load(torch.load(Path(folder) / "state.pt", weights_only=True))
    training.run(_Reports(job["every"]))
    return {"steps": training.position.step}
