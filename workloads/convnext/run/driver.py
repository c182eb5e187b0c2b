"""The driver of a run: it waits for capacity, sets up Ray Train, and judges how the run ended.

It imports torch only for a check of the fabric; the processes that it starts beside the workers never import it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray.train import CheckpointConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2.api.config import LoggingConfig
from ray.train.v2.api.exceptions import ControllerError

from workloads.cluster import capacity, run_lock
from workloads.convnext.run import stall
from workloads.convnext.run.remote import work
from workloads.convnext.run.run import Run
from workloads.convnext.run.train_group import ProcessGroup
from workloads.convnext.run.trainer import Groups, Retries, RunCallback, Scaling, Trainer, find_verdict
from workloads.environment import ClusterEnvironment
from workloads.errors import CapacityError, WorkloadError, WorkloadFailedError
from workloads.nccl.logs import faults
from workloads.reporting import progress
from workloads.reporting.history import Record
from workloads.storage import folders as storage

RESIZE_SECONDS = 60.0
"""How often an elastic run checks whether it can grow."""

START_SECONDS = 60.0
"""Longest wait of Ray Train itself for places; they were free when the wait began, see `Scaling`."""

SETTINGS = {
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # it prints every line twice (Ray 2.60)
    # A report waits for the controller's next poll, and the controller sees a failure only when it polls.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
    # `notice` sees a drain sooner, and saves; Ray Train's own check moves the workers off the node.
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
}
"""Variables that Ray Train reads in the driver and passes to controller and workers; the environment overrides them."""


def fit(run: Run, work: Callable[[dict[str, Any]], Record] = work) -> Record:
    """Run to the end, through worker failures, drained nodes and changes of size.

    It may be called in any process that is connected to Ray, in a thread, and inside a Tune trainable: it restores the
    process's environment before it returns, and handles SIGINT only in the main thread.

    Args:
        run: what to train and with what.
        work: the function that each worker runs, importable by name on the nodes; it is given `config` and `run`.

    Returns:
        The summary that rank 0 returned.

    Raises:
        WorkloadError: a worker's verdict, no capacity, a bad fabric, or too many failures.
        KeyboardInterrupt: Ctrl-C; the workers have been ended, and Ray takes a moment to clean them up.
    """
    with run_lock.hold(run.folder.uri, run.name):
        _await_capacity(run)
        if run.promise is not None:
            _check_fabric(run, run.promise)
        progress.wait(f"there are places for the workers; starting Ray Train for {run.team}, which takes 5 to 30 s")
        try:
            with _settings(run):
                result = _trainer(run, work).fit()
        except TrainingFailedError as error:
            raise _explained(run, error) from error
        finally:
            progress.wait_over()
            _tidy(run.folder.child("ray"))
    summary: Record = result.return_value or {}
    return summary


def _tidy(snapshots: storage.Folder) -> None:
    """Remove the files that Ray Train keeps beside the checkpoints; if they stay, the run's result is the same."""
    try:
        snapshots.remove()
    except WorkloadError as error:
        progress.note(f"Ray Train's own files could not be removed: {error.problem}")


@contextmanager
def _settings(run: Run) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({name: value for name, value in SETTINGS.items() if name not in before})
    os.environ["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"] = str(run.collective_timeout)
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(START_SECONDS)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _trainer(run: Run, work: Callable[[dict[str, Any]], Record]) -> Trainer:
    elastic = run.least_workers < run.workers
    scaling = ScalingConfig(
        num_workers=(run.least_workers, run.workers) if elastic else run.workers,
        use_gpu=run.gpus_per_node > 0,
        resources_per_worker=run.bundle,
        placement_strategy=run.strategy,
        elastic_resize_monitor_interval_s=RESIZE_SECONDS,
    )
    return Trainer(
        work,
        train_loop_config={
            "config": run.config.to_dict(),
            "run": run.folder.uri,
            "workers": run.workers,
            "attempt": run.attempt,
            "node_hour_usd": run.node_hour_usd,
            "max_usd": run.max_usd,
            "own_nodes": run.own_nodes,
        },
        backend_config=ProcessGroup(timeout_seconds=run.collective_timeout, data=run.config.data),
        scaling_config=scaling,
        run_config=RunConfig(
            # A new name for each attempt: Ray never reads a snapshot of its own that a kill has torn.
            name=run.attempt,
            storage_path=run.folder.child("ray").path,
            storage_filesystem=run.folder.filesystem,
            checkpoint_config=CheckpointConfig(num_to_keep=run.config.keep_checkpoints),
            callbacks=[RunCallback(run.journal)],
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
        scaling=Scaling(scaling, run),
        retries=Retries(run.folder.child("checkpoints"), run.journal),
        groups=Groups(run.journal, run.collective_timeout * stall.SHARE),
    )


def _await_capacity(run: Run) -> None:
    """Wait for the workers' places before anything starts; the idle timeout keeps nodes until Ray Train takes them."""
    if not run.gpus_per_node:
        with capacity.hold([run.bundle] * run.least_workers, run.timeout, progress.note, run.strategy):
            return
    nodes = run.nodes(run.workers)
    capacity.check_maximum(nodes, run.gpu_max_nodes, run.gpu_queue_nodes)
    whole, rest = divmod(run.least_workers, run.gpus_per_node)
    gpus = [run.gpus_per_node] * whole + [rest] * (rest > 0)
    with capacity.hold([{"GPU": count, "CPU": count} for count in gpus], run.timeout, progress.note):
        return


def _check_fabric(run: Run, promise: ClusterEnvironment) -> None:
    """Refuse to train on a fabric that is not what the stack promised.

    Raises:
        FabricError: it is not what the stack promised.
    """
    # This module needs torch; the driver itself does not.
    from workloads.nccl import gate

    kept = ("fabric", run.attempt)
    # All GPUs of a node that the run can grow to use: an elastic start on a few would leave NICs unused and unchecked.
    gpus = min(run.workers, run.gpus_per_node)
    question = gate.Question(
        promise=promise,
        least_nodes=run.nodes(run.least_workers),
        most_nodes=run.nodes(run.workers),
        ranks_per_node=gpus or 1,
        gpus_per_node=gpus,
        timeout=run.timeout,
        folders=(run.folder.child("results", *kept), storage.locate(run.results / "fabric")),
    )
    gate.admit(question, progress.wait)


def _explained(run: Run, error: TrainingFailedError) -> WorkloadError:
    verdict = find_verdict(error)
    if verdict is not None:
        return verdict
    if isinstance(error, ControllerError) and isinstance(error.controller_failure, WorkerGroupStartupTimeoutError):
        return CapacityError(
            f"{run.team} did not start, though there were places a moment before.",
            "Free CPUs or GPUs, or ask for fewer --workers.",
        )
    kept = f"Its checkpoints are kept: the same command with --run {run.name} continues."
    return WorkloadFailedError(
        f"run {run.name} failed too often without progress: {str(error).strip()[-2000:]}.",
        f"{faults.advice(str(error))} {kept}".strip(),
    )
