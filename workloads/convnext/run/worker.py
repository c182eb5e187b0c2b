"""The work of each Ray Train worker: find the data, resume, train, report. Imported on the nodes, by reference.

A WorkloadError raised here ends the run at once (see `trainer.RunCallback`); any other error is a lost worker, which is
retried.
"""

from __future__ import annotations

import json
import reprlib
import socket
import time
from collections.abc import Callable, Collection
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist

from workloads.checkpoints import manifest
from workloads.checkpoints.store import Checkpoint, CheckpointStore
from workloads.cluster import autoscaler
from workloads.convnext.config import TrainConfig
from workloads.convnext.images.data import sources
from workloads.convnext.images.location import fetched
from workloads.convnext.images.sampling import Source
from workloads.convnext.kernels.choice import Choice
from workloads.convnext.learning.loop import Record, Training
from workloads.convnext.ranks import gathered
from workloads.convnext.run import end_of_node, stall, train_group
from workloads.convnext.run.end_of_node import Notice
from workloads.convnext.run.reporter import Reporter
from workloads.errors import DataIntegrityError
from workloads.reporting import cost
from workloads.storage.folders import Folder, locate

KERNELS = "kernels.json"
"""A run's choice of kernels, beside its checkpoints."""


def work(job: dict[str, Any]) -> Record:
    """Train to the end; the `train_loop_per_worker`.

    Args:
        job: `config`, a TrainConfig as plain data; `run`, the address of the run's folder; `workers`, the number that
            the run is made for, although there may be fewer; `attempt`, the name of the driver's attempt;
            `node_hour_usd`, the hourly price of one of its nodes, and `max_usd`, the cost limit of the run, each None
            if not given; `own_nodes`, True if the nodes came for this run alone.

    Returns:
        The summary of the run.
    """
    config = TrainConfig(**job["config"])
    device = ray.train.torch.get_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    began = time.time()
    folder = locate(job["run"])
    kept = _kernels(folder)
    training = Training(config, *_splits(config, device), device, job.get("workers", 0), kept)
    if training.rank == 0 and kept is None:
        _keep_kernels(folder, training.kernels)
    store = CheckpointStore(folder.child("checkpoints"), config.keep_checkpoints)
    reporter = Reporter(config, store, folder, training.rank == 0, _send)
    places = gathered((ray.get_runtime_context().get_node_id(), end_of_node.run_until()))
    nodes = {node for node, _ in places}  # Ray's node ids
    # Before the records of this start, which count from its beginning.
    stay, spent = _stay(job, folder, nodes, began, training.rank)
    resumed = _resume(training, store, reporter, {"attempt": job.get("attempt", ""), **stay})
    reporter.flush()  # report at once where the run resumes, not with the first records
    watched = Notice(nodes) if training.rank == 0 else None
    until = min((end for _, end in places if end is not None), default=None)
    reporter.start(until, watched, cost.Budget.of(job.get("max_usd"), spent, stay), resumed and training.position)
    try:
        last = training.run(reporter, reporter.save_if_due)
    finally:
        if watched is not None:
            watched.close()
    reporter.finish()
    return {
        **{name: last[name] for name in ("val/accuracy", "val/loss", "val/images")},
        "steps": training.position.step,
        "epochs": training.position.epoch,
        "workers": training.world_size,
        "backend": dist.get_backend(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
        "resumed_from": resumed.name if resumed else None,
        "seconds": time.time() - began,
    }


@torch._dynamo.callback.on_compile_end
def _piece_compiled(_: object) -> None:
    """Count it as progress: to compile all of the model may take longer than a stall, without a step."""
    stall.moved()


def _splits(config: TrainConfig, device: torch.device) -> tuple[Source, Source]:
    train, val = sources(config, fetched(config.data), device)
    check_same_data(train, val)
    return train, val


def check_same_data(train: Source, val: Source) -> None:
    """Refuse data that nodes see differently: ranks that take different steps wait for each other in vain. Collective.

    A GPU worker's mount caches a file's metadata for the life of its pod (`data_options` in
    `oasis_stack.pod_specs.mounts`), and other pods of the run may have started after the file changed.

    Raises:
        DataIntegrityError: names two nodes, and what each sees.
    """
    classes = f"{len(train.classes)} classes ({reprlib.repr(list(train.classes))})"
    seen = f"{len(train)} training images of {classes} and {len(val)} validation images"
    mine = (train.classes, len(train), len(val))
    (first, there, text), *others = gathered((mine, socket.gethostname(), seen))
    for facts, host, told in others:
        if facts != first:
            raise DataIntegrityError(
                f"the nodes do not see the same data: {text} on {there}, {told} on {host}.",
                "Leave data alone while it is read. A mount keeps what it has read for its pod's life: give changed "
                "data another name, or make new pods with `make restart`.",
            )


def _stay(job: dict[str, Any], folder: Folder, nodes: Collection[str], began: float, rank: int) -> tuple[Record, float]:
    """The record of this start's cost for the run's history, and, on rank 0, the USD spent by the starts before it.

    A run's own nodes are billed to it from when Ray came up there, or from when an earlier start on them ended.

    Args:
        job: the argument of `work`.
        folder: folder of the run.
        nodes: Ray's ids of the run's nodes.
        began: when this rank's work began, unix time; its group began before that.
        rank: this rank.
    """
    stay = {"began": min([began, *train_group.began]), "nodes": len(nodes), "node_hour_usd": job.get("node_hour_usd")}
    if rank or not (job.get("max_usd") or job.get("own_nodes")):
        return stay, 0.0
    earlier = cost.stays(folder)
    joined = autoscaler.joined(nodes) if job.get("own_nodes") else None
    if joined is not None:
        stay["began"] = cost.paid_since(joined, earlier)
    return stay, cost.usd(earlier)


def _kernels(folder: Folder) -> Choice | None:
    """The run's choice of kernels; torch's for a run from before the choice existed, None for a new run."""
    try:
        found = json.loads(folder.read(KERNELS))
    except FileNotFoundError:
        return {} if manifest.committed(folder.child("checkpoints").files()) else None
    return {(channels, side): implementation for channels, side, implementation in found}


def _keep_kernels(folder: Folder, chosen: Choice) -> None:
    # Nothing was chosen if torch's kernels are the only ones; a folder without the file means the same.
    if chosen:
        content = json.dumps([[*shape, implementation] for shape, implementation in chosen.items()])
        folder.write(KERNELS, content.encode())


def _send(records: list[Record]) -> None:
    ray.train.report({"records": records})


def _resume(training: Training, store: CheckpointStore, reporter: Reporter, facts: Record) -> Checkpoint | None:
    """Load the newest checkpoint that every rank can read. Rank 0 chooses; the others accept it, or say why not.

    Args:
        facts: the record of this start for the run's history.
    """
    checkpoint = agree(store, training.identity, training.rank, training.world_size, reporter.say)
    if training.rank == 0:
        store.collect()
    if checkpoint:
        training.load(checkpoint.state)
    position = training.position
    reporter.keep(
        {
            "event": "resumed",
            **facts,
            "name": checkpoint.name if checkpoint else None,
            "world_size": training.world_size,
            "step": position.step,
            "epoch": position.epoch + position.consumed / training.identity["training_images"],
        }
    )
    if checkpoint and position.epoch >= training.config.epochs:
        reporter.say(f"all of its epochs ({training.config.epochs}) are complete; raise --epochs to train on")
    return checkpoint


def agree(
    store: CheckpointStore, identity: dict[str, Any], rank: int, world_size: int, say: Callable[[str], None]
) -> Checkpoint | None:
    """The newest checkpoint that verifies on every rank; None if the run has none. Every rank calls this.

    Args:
        store: the run's checkpoints, as this rank sees them.
        identity: identity of the run.
        rank: this rank.
        world_size: number of ranks, in torch's process group if there are several.
        say: on rank 0, told of each checkpoint that was skipped, and why.

    Raises:
        UsageError: the checkpoints belong to another run.
        DataIntegrityError: there are committed checkpoints, but none verifies on every rank.
    """
    refused: set[str] = set()
    while True:
        checkpoint = store.newest(identity, say, refused) if rank == 0 else None
        if world_size == 1:
            return checkpoint
        choice: list[str | None] = [checkpoint.name if checkpoint else None]
        dist.broadcast_object_list(choice, src=0)
        (name,) = choice
        if name is None:
            return None
        try:
            checkpoint = checkpoint or store.load(name, identity)
            mine = ""
        except DataIntegrityError as error:
            mine = f"checkpoint {name} is passed over: rank {rank} cannot read it: {error.problem}"
        problems = list(filter(None, gathered(mine)))
        if not problems:
            return checkpoint
        if rank == 0:
            say("; ".join(problems))
        refused.add(name)
