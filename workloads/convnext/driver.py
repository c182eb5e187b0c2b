"""The Ray side of the driver: capacity, the Train controller's settings, and which failures deserve another attempt."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, UserCallback
from ray.train.torch import TorchTrainer
from ray.train.v2.api.config import LoggingConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from workloads import capacity, progress
from workloads.convnext.train import Run
from workloads.convnext.train_group import ProcessGroup
from workloads.convnext.worker import work
from workloads.errors import CapacityError, UsageError, WorkloadError, WorkloadFailedError
from workloads.tracking import Journal, Record

COLLECTIVE_TIMEOUT_SECONDS = 600
"""How long a rank waits in a collective before the attempt ends. By default torch waits 30 minutes, Ray for ever."""

LEASE_NAMESPACE = "oasis-runs"
LEASE_PATIENCE_SECONDS = 20
"""How long a killed driver's actors may outlive it, before a lease counts as held by someone alive."""


class Controller(UserCallback):
    """In Ray Train's controller, on the driver's node: writes the journal, and ends a run that no retry can save."""

    def __init__(self, journal: Path) -> None:
        self._journal = Journal(journal)

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Append what rank 0 reported."""
        self._journal.append(metrics[0]["records"])

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Let a worker's own verdict stand.

        Ray Train retries every failure of a worker and none of its controller: raised here, the verdict is final.

        Raises:
            WorkloadError: the one that a worker raised.
        """
        for exception in worker_exceptions.values():
            verdict = find_verdict(exception)
            if verdict is not None:
                raise verdict
        lost = "; ".join(f"lost rank {rank} ({_cause(error)})" for rank, error in sorted(worker_exceptions.items()))
        self._journal.append([{"event": "note", "text": f"{lost}; going on from the newest checkpoint"}])


def _cause(error: Exception) -> str:
    # Ray's wrapper shows a traceback, whose last line names the exception.
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]


def find_verdict(error: BaseException, depth: int = 8) -> WorkloadError | None:
    """The WorkloadError inside the layers that Ray wraps round a worker's exception, or None."""
    if isinstance(error, WorkloadError):
        return error
    if depth == 0:
        return None
    inner = [error.__cause__]
    for value in vars(error).values():
        inner += list(value.values()) if isinstance(value, dict) else [value]
    for candidate in inner:
        if isinstance(candidate, BaseException) and (found := find_verdict(candidate, depth - 1)):
            return found
    return None


def fit(run: Run) -> Record:
    """Run to the end, over as many worker failures as Ray Train is allowed.

    Returns:
        The summary that rank 0 returned.

    Raises:
        WorkloadError: a worker's verdict, no capacity, or too many failures.
        KeyboardInterrupt: Ctrl-C; the workers are gone.
    """
    _configure(run)
    with lease(run):
        _await_capacity(run)
        try:
            result = _trainer(run).fit()
        except SystemExit as stop:
            # Ray Train's handler of SIGINT stops the workers and leaves with 0, which would read as success.
            raise KeyboardInterrupt from stop
        except TrainingFailedError as error:
            raise _explained(run, error) from error
        finally:
            run.folder.child("ray").remove()
    summary: Record = result.return_value or {}
    return summary


def _configure(run: Run) -> None:
    # Ray Train reads these in the driver and hands them to controller and workers.
    settings = {
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # it prints every line twice (Ray 2.60)
        "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": str(COLLECTIVE_TIMEOUT_SECONDS),
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(run.timeout),
        # A report waits for the controller's next poll, and a failure is seen at one.
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def _trainer(run: Run) -> TorchTrainer:
    on_gpus = run.gpus_per_node > 0
    return TorchTrainer(
        work,
        train_loop_config={"config": run.config.to_dict(), "run": run.folder.uri},
        torch_config=ProcessGroup(timeout_s=COLLECTIVE_TIMEOUT_SECONDS),
        scaling_config=ScalingConfig(
            num_workers=run.workers,
            use_gpu=on_gpus,
            # One CPU for the training process; the loader's processes are not Ray's, and have the node's others.
            resources_per_worker={"GPU": 1, "CPU": 1} if on_gpus else {"CPU": 1},
            placement_strategy="PACK" if on_gpus else "SPREAD",
        ),
        run_config=RunConfig(
            # A new name for each attempt: Ray's own snapshot is then never one that a kill has torn.
            name=run.attempt,
            storage_path=run.folder.child("ray").path,
            storage_filesystem=run.folder.filesystem,
            failure_config=FailureConfig(max_failures=3, controller_failure_limit=2),
            checkpoint_config=CheckpointConfig(num_to_keep=run.config.keep_checkpoints),
            callbacks=[Controller(run.journal)],
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )


def _await_capacity(run: Run) -> None:
    """Wait for all workers' places, with progress and a verdict; the idle timeout keeps nodes until Ray Train comes."""
    if not run.gpus_per_node:
        with capacity.hold([{"CPU": 1}] * run.workers, run.timeout, progress.note, "SPREAD"):
            return
    nodes = math.ceil(run.workers / run.gpus_per_node)
    capacity.check_maximum(nodes, run.gpu_max_nodes, "GPU", "oasis:gpu.capacity")
    gpus = min(run.workers, run.gpus_per_node)
    bundles = [{"GPU": gpus, "CPU": gpus}] * nodes
    with capacity.hold(bundles, run.timeout, progress.note):
        return


@contextmanager
def lease(run: Run) -> Iterator[None]:
    """Hold the run's name: an actor that dies with this driver, however that ends, and so needs no expiry."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0)(_Lease).options(
        name=run.folder.uri, namespace=LEASE_NAMESPACE, scheduling_strategy=here
    )
    holders = []
    deadline = time.monotonic() + LEASE_PATIENCE_SECONDS
    while not holders:
        try:
            holders.append(actor.remote())
        except ValueError as error:
            if time.monotonic() > deadline:
                raise UsageError(
                    f"run {run.name} is being trained by another job of this cluster.",
                    "Wait for it, stop it with `python -m workloads jobs stop`, or choose another --run name.",
                ) from error
            time.sleep(1)
    try:
        yield
    finally:
        holders.clear()  # the last handle: without one Ray ends the actor and frees the name


class _Lease:
    """Exists as long as the driver that made it."""


def _explained(run: Run, error: TrainingFailedError) -> WorkloadError:
    verdict = find_verdict(error)
    if verdict is not None:
        return verdict
    first = (str(error).strip().splitlines() or [""])[0]
    if "start" in first and "timed out" in str(error):
        return CapacityError(
            f"{run.workers} workers did not start within {run.timeout:.0f} s.",
            "Free CPUs or GPUs, or ask for fewer --workers.",
        )
    return WorkloadFailedError(
        f"run {run.name} failed more often than it may be retried: {str(error).strip()[-2000:]}.",
        f"Its checkpoints are kept: the same command with --run {run.name} continues.",
    )
