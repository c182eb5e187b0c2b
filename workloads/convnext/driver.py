"""The driver of a run: capacity before anything starts, Ray Train's settings, and what its end means.

It imports no torch, and neither do the processes that it starts beside the workers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ray.train import CheckpointConfig, RunConfig, ScalingConfig, TrainingFailedError, UserCallback
from ray.train.v2.api.config import LoggingConfig

from workloads import capacity, progress
from workloads.convnext import lease
from workloads.convnext.remote import work
from workloads.convnext.train import Run
from workloads.convnext.train_group import ProcessGroup
from workloads.convnext.trainer import Controller, Retries, Scaling, Trainer, find_verdict
from workloads.errors import CapacityError, WorkloadError, WorkloadFailedError
from workloads.tracking import Record

RESIZE_SECONDS = 60.0
"""How often an elastic run looks whether it could grow."""

START_SECONDS = 60.0
"""How long Ray Train's own wait for places may take; they were free when it began, see `Scaling`."""

SETTINGS = {
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # it prints every line twice (Ray 2.60)
    # A report waits for the controller's next poll, and a failure is seen at one.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
    # Each group of workers would wait for one more process to start; `notice` watches the drains.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
"""What Ray Train reads in the driver and hands to controller and workers, unless the environment says otherwise."""


def fit(run: Run, callbacks: Sequence[UserCallback] = (), work: Callable[[dict[str, Any]], Record] = work) -> Record:
    """Run to the end, over worker failures, drained nodes and changes of size.

    It may be called in any process that is connected to Ray, in a thread, and inside a Tune trainable: the process's
    environment is as before when it returns, and SIGINT is its business in the main thread alone.

    Args:
        run: what to train and with what.
        callbacks: of Ray Train, called in its controller after the journal's; `metrics[0]["records"]` has the records.
        work: what each worker runs, importable by name on the nodes; it is given `config` and `run`.

    Returns:
        The summary that rank 0 returned.

    Raises:
        WorkloadError: a worker's verdict, no capacity, or too many failures.
        KeyboardInterrupt: Ctrl-C; the workers are gone.
    """
    with lease.hold(run.folder.uri, run.name):
        _await_capacity(run)
        try:
            with _settings(run):
                result = _trainer(run, callbacks, work).fit()
        except TrainingFailedError as error:
            raise _explained(run, error) from error
        finally:
            run.folder.child("ray").remove()
    summary: Record = result.return_value or {}
    return summary


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


def _trainer(run: Run, callbacks: Sequence[UserCallback], work: Callable[[dict[str, Any]], Record]) -> Trainer:
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
        train_loop_config={"config": run.config.to_dict(), "run": run.folder.uri},
        backend_config=ProcessGroup(timeout_seconds=run.collective_timeout),
        scaling_config=scaling,
        run_config=RunConfig(
            # A new name for each attempt: Ray's own snapshot is then never one that a kill has torn.
            name=run.attempt,
            storage_path=run.folder.child("ray").path,
            storage_filesystem=run.folder.filesystem,
            checkpoint_config=CheckpointConfig(num_to_keep=run.config.keep_checkpoints),
            callbacks=[Controller(run.journal), *callbacks],
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
        scaling=Scaling(scaling, run.bundle, run.strategy, run.timeout, run.journal),
        retries=Retries(run.folder.child("checkpoints")),
    )


def _await_capacity(run: Run) -> None:
    """Wait for the workers' places before anything is started; the idle timeout keeps nodes until Ray Train comes."""
    if not run.gpus_per_node:
        with capacity.hold([run.bundle] * run.least_workers, run.timeout, progress.note, run.strategy):
            return
    most = math.ceil(run.workers / run.gpus_per_node)
    capacity.check_maximum(most, run.gpu_max_nodes, "GPU", "oasis:gpu.capacity")
    gpus = min(run.least_workers, run.gpus_per_node)
    with capacity.hold(
        [{"GPU": gpus, "CPU": gpus}] * math.ceil(run.least_workers / run.gpus_per_node), run.timeout, progress.note
    ):
        return


def _explained(run: Run, error: TrainingFailedError) -> WorkloadError:
    verdict = find_verdict(error)
    if verdict is not None:
        return verdict
    first = (str(error).strip().splitlines() or [""])[0]
    if "start" in first and "timed out" in str(error):
        return CapacityError(
            f"{run.workers} workers did not start, though there were places for them a moment before.",
            "Free CPUs or GPUs, or ask for fewer --workers.",
        )
    return WorkloadFailedError(
        f"run {run.name} failed too often without a new checkpoint: {str(error).strip()[-2000:]}.",
        f"Its checkpoints are kept: the same command with --run {run.name} continues.",
    )
