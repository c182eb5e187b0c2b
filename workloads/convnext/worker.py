"""What each Ray Train worker does: find the data, resume, train, report. Imported on the nodes, by reference.

A WorkloadError raised here ends the run at once (see `driver.Controller`); anything else is a lost worker, and retried.
"""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist

from workloads import environment
from workloads.checkpoint import Checkpoint, CheckpointStore
from workloads.convnext import report
from workloads.convnext.config import TrainConfig
from workloads.convnext.data import SYNTHETIC, sources
from workloads.convnext.loop import Record, Training
from workloads.errors import UsageError
from workloads.storage import Folder, locate

DOWNLOADS = 16
"""Objects fetched at a time: many small ones are bound by their latency."""

REPORT_SECONDS = 10.0
"""Longest time between reports within an epoch. `ray.train.report` is a barrier that may wait for the next poll."""


def work(job: dict[str, Any]) -> Record:
    """Train to the end; the `train_loop_per_worker`.

    Args:
        job: `config`, a TrainConfig as plain data, and `run`, the address of the run's folder.

    Returns:
        The summary of the run.
    """
    config = TrainConfig(**job["config"])
    device = ray.train.torch.get_device()
    began = time.monotonic()
    training = Training(config, *sources(config, data_folder(config.data), device), device)
    folder = locate(job["run"])
    store = CheckpointStore(folder.child("checkpoints"), config.keep_checkpoints)
    reporter = Reporter(config, store, folder)
    resumed = _resume(training, store, reporter)
    position = training.position
    reporter.start(position.epoch + position.consumed / training.identity["training_images"])
    last = training.run(reporter)
    reporter.flush()
    return {
        **{name: last[name] for name in ("val/accuracy", "val/loss", "val/images")},
        "steps": training.position.step,
        "epochs": training.position.epoch,
        "workers": training.world_size,
        "backend": dist.get_backend(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
        "resumed_from": resumed.name if resumed else None,
        "seconds": time.monotonic() - began,
    }


class Reporter:
    """Carries the loop's records to the controller and saves when a checkpoint is due."""

    def __init__(self, config: TrainConfig, store: CheckpointStore, folder: Folder) -> None:
        self._config = config
        self._store = store
        self._folder = folder
        self._segment: list[Record] = []
        self._attempt = time.time_ns()
        self._leads = ray.train.get_context().get_world_rank() == 0
        self._pending: list[Record] = []
        self._unreported = 0.0
        self._saved_at = time.monotonic()
        self._began = (time.monotonic(), 0.0)

    def start(self, epoch: float) -> None:
        """The run begins, or goes on, at this epoch: from here the remaining time is reckoned."""
        self._began = (time.monotonic(), epoch)

    def say(self, message: str) -> None:
        """Tell the user one sentence."""
        self._pending.append({"event": "note", "text": message})

    def record(self, record: Record) -> None:
        """Collect; report at an epoch's end and every ten seconds, by the record's own clock that all ranks share."""
        timed = {**record, "time": time.time(), "eta_seconds": self._remaining(record["epoch"])}
        self._pending.append(timed)
        if self._leads:  # the others never save, and would keep every record to the end
            self._segment.append(timed)
        self._unreported += record["seconds"] if record["event"] == "step" else 0.0
        if record["event"] == "epoch" or self._unreported >= REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Report what was collected. Every rank calls it equally often."""
        ray.train.report({"records": self._pending if self._leads else []})
        self._pending, self._unreported = [], 0.0

    def after_step(self, training: Training) -> None:
        """Save when the interval is over or the run is complete. One rank writes: under DDP all hold the same state."""
        complete = training.position.epoch >= self._config.epochs
        if not self._leads or not (complete or time.monotonic() - self._saved_at >= self._config.checkpoint_seconds):
            return
        began = time.monotonic()
        position = training.position
        # First the history, then the state: what is committed is never ahead of what is known of how it came about.
        report.keep(self._folder, f"{self._attempt}-{position.step:09d}", self._segment)
        self._segment = []
        facts = {"world_size": training.world_size, "config": self._config.to_dict(), "epoch": position.epoch}
        saved = self._store.save(training.state(), position.step, training.identity, facts)
        self._saved_at = time.monotonic()
        record = {"event": "checkpoint", "name": saved.name, "bytes": saved.size, "seconds": self._saved_at - began}
        self._pending.append({**record, "step": position.step, "time": time.time()})

    def _remaining(self, epoch: float) -> float:
        since, first = self._began
        return (time.monotonic() - since) * (self._config.epochs - epoch) / max(epoch - first, 1e-9)


def _resume(training: Training, store: CheckpointStore, reporter: Reporter) -> Checkpoint | None:
    """Load the newest valid checkpoint: rank 0 chooses, so that a rank that sees less cannot choose another."""
    choice: list[str | None] = [None]
    checkpoint = None
    if training.rank == 0:
        checkpoint = store.newest(training.identity, reporter.say)
        choice = [checkpoint.name if checkpoint else None]
        store.collect(choice[0])
    if training.world_size > 1:
        dist.broadcast_object_list(choice, src=0)
    if choice[0] is None:
        return None
    checkpoint = checkpoint or store.load(choice[0], training.identity)
    training.load(checkpoint.state)
    position = training.position
    finished = position.epoch >= training.config.epochs
    reporter.say(
        f"resumed from {checkpoint.name}: epoch {position.epoch}, step {position.step}"
        + (f"; its {training.config.epochs} epochs are complete, raise --epochs to train on" if finished else "")
    )
    return checkpoint


def data_folder(data: str) -> Path | None:
    """The folder on this node that a `--data` value means; None for synthetic data.

    Raises:
        UsageError: a gs:// address with nothing behind it.
    """
    if data == SYNTHETIC:
        return None
    if data.startswith("gs://"):
        return _downloaded(data)
    return Path(environment.mount(environment.DATA_MOUNT)) / data


def _downloaded(uri: str) -> Path:
    source = locate(uri)
    listing = source.files()
    if not listing:
        raise UsageError(f"there is nothing at {uri}.", "Name another place with --data, or write the data first.")
    scratch = Path(environment.mount(environment.SCRATCH_MOUNT))
    scratch = scratch if scratch.is_dir() else Path(tempfile.gettempdir())
    folder = scratch / "oasis-data" / hashlib.sha256("\n".join([uri, *listing]).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    complete = folder / "complete"
    # The first worker of a node copies while the others wait for its lock; a killed one's lock is gone with it.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _download(source, listing, folder / "images")
            complete.touch()
    return folder / "images"


def _download(source: Folder, names: list[str], folder: Path) -> None:
    def fetch(name: str) -> None:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source.read(name))

    with ThreadPoolExecutor(DOWNLOADS) as pool:
        for _ in pool.map(fetch, names):
            continue
