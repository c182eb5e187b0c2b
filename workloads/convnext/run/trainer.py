"""Ray Train for a run: a verdict on capacity, retries as long as there is progress, a clean Ctrl-C.

This code runs in Ray Train's controller (ray 2.60, train/v2), beside the driver, and imports no torch, which would cost
that process half a gigabyte.
"""

from __future__ import annotations

import math
import signal
import textwrap
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.train import FailureConfig, ScalingConfig, UserCallback
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2._internal.execution.failure_handling.default import DefaultFailurePolicy
from ray.train.v2._internal.execution.scaling_policy import (
    ElasticScalingPolicy,
    NoopDecision,
    ResizeDecision,
    ScalingDecision,
)
from ray.train.v2.api.callback import RayTrainCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import ControllerError

from workloads import interruption
from workloads.checkpoints import manifest
from workloads.cluster import autoscaler, worker_count
from workloads.convnext.run import end_of_node
from workloads.convnext.run.run import Run
from workloads.convnext.run.stall import StallWatch
from workloads.errors import (
    AuthError,
    BudgetError,
    CapacityError,
    LostProcessError,
    PlaceError,
    WorkloadError,
    first_line,
)
from workloads.nccl.logs import faults
from workloads.reporting import cost, progress
from workloads.reporting.history import Journal
from workloads.reporting.progress import counted
from workloads.storage.folders import Folder

ABORT_SECONDS = 10.0
"""How long the controller may take to end its workers at Ctrl-C before it is killed together with them."""

AGAIN_SECONDS = 2.0
"""Longest time between two polls: the same loss, reported again later, belongs to another group."""

CAUSE_CHARACTERS = 300
"""Maximum length of the message about a lost rank, in whole words."""

FAILURES = 3
"""Failures in a row, without progress between them, that a run survives: one more is no accident."""

GROW_SECONDS = 2.0
"""How long a run requests places for further workers, which should be free, before it tries again later."""

STARTS = 3
"""Starts in a row that may fail: places that were free when counted and taken when asked for."""

SAVE_SECONDS = 60.0
"""Longest wait for the checkpoint before a change of size."""


class RunCallback(UserCallback):
    """Writes the journal, including lost workers, and ends a run that no retry can save."""

    def __init__(self, journal: Path) -> None:
        self._journal = Journal(journal)
        self._trained = False
        self._told = ("", -math.inf)

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Append rank 0's report."""
        records = metrics[0]["records"]
        self._trained |= any(record["event"] in ("step", "epoch") for record in records)
        self._journal.append(records)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Let a worker's own verdict stand.

        Ray Train retries every failure of a worker and no failure of its controller: raised here, the verdict is final.
        A fault of the place or a missing permission ends a run that has trained nothing. Later it may be temporary and
        is retried, as a lost worker is, and as a lost process is at any time.

        Raises:
            WorkloadError: the error that a worker raised.
        """
        for exception in worker_exceptions.values():
            verdict = find_verdict(exception)
            passing = (PlaceError, AuthError) if self._trained else LostProcessError
            if verdict is not None and not isinstance(verdict, passing):
                raise verdict
        lost = "; ".join(f"lost rank {rank} ({_cause(error)})" for rank, error in sorted(worker_exceptions.items()))
        advice = faults.advice("\n".join(map(str, worker_exceptions.values())))
        text = " ".join(filter(None, [f"{lost}; going on from the newest checkpoint", advice and f"({advice})"]))
        # A rank on a drained node is reported at each poll, until those that wait for it give up or the deadline
        # passes.
        before, self._told = self._told, (text, time.monotonic())
        if text != before[0] or self._told[1] - before[1] > AGAIN_SECONDS:
            self._journal.append([{"event": "note", "text": text}])


def _cause(error: Exception) -> str:
    verdict = find_verdict(error)
    if verdict is not None:
        return verdict.problem.rstrip(".")
    # Ray's wrapper shows a traceback, whose last line names the exception.
    last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return textwrap.shorten(last, CAUSE_CHARACTERS, placeholder=" ...")


def find_verdict(error: BaseException, depth: int = 8) -> WorkloadError | None:
    """The WorkloadError inside the layers that Ray wraps around a worker's exception, or None."""
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


_running: list[Any] = []
"""In the controller: Ray Train's state of the newest worker group, running or lost."""


class Groups(WorkerGroupCallback):
    """Keeps what `Scaling` needs to end a lost group, from the moment it has places, and announces each group."""

    def __init__(self, journal: Path, stall_seconds: float) -> None:
        self._journal = Journal(journal)
        self._stall_seconds = stall_seconds
        self._watch: StallWatch | None = None

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Remember the group, and announce what it does before its first step."""
        _running[:] = [worker_group.get_worker_group_state()]
        text = f"{counted(len(worker_group), 'worker')} started; reading the data and the newest checkpoint"
        self._journal.append([{"event": "note", "text": text, "waits": True}])
        self._watch = StallWatch(worker_group.get_workers(), self._stall_seconds, self._say)

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """Check whether the group makes progress."""
        if self._watch is not None:
            self._watch.look(worker_group_status.worker_statuses.values())

    def _say(self, text: str) -> None:
        self._journal.append([{"event": "note", "text": text}])


@dataclass
class _Growth:
    """A change of size that waits for a checkpoint."""

    decision: ResizeDecision
    worker: Any
    """Ray Train's handle of rank 0."""
    answer: Any
    """Answer to the last question whether the checkpoint is there."""
    until: float


class Scaling(ElasticScalingPolicy):
    """The number of workers, fixed or elastic.

    Ray's own policies wait for places silently, the elastic one for ever; this one shows the wait and ends it with a
    verdict. It grows a running group only if the places are really free, and only after a checkpoint.
    """

    def __init__(self, config: ScalingConfig, run: Run) -> None:
        super().__init__(config)
        self._run = run
        self._journal = Journal(run.journal)
        self._growth: _Growth | None = None

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        """Wait for places.

        Raises:
            WorkloadError: there are none, or there were none in time, or the nodes that stayed used up the run's budget
                first; Ray Train does not retry it.
        """
        self._growth = None
        self._maybe_send_resource_request()
        # Ray Train ends the lost group only after this decision; until then its survivors hold the places in question.
        while _running:
            _running.pop().shutdown()
        run = self._run
        limit = min(run.timeout, self._seconds_paid())
        try:
            count = worker_count.gather(run.bundle, run.least_workers, run.workers, limit, self._say, run.strategy)
        except CapacityError as error:
            if limit == run.timeout:
                raise
            raise BudgetError(
                f"the run has cost the {run.max_usd:,.2f} USD of --max-usd while it waited for places: {error.problem}",
                "The same command with a higher --max-usd goes on from its newest checkpoint.",
            ) from error
        self._say(f"starting {counted(count, 'worker')}, which load torch: 5 to 30 s, longer on a new node", waits=True)
        return self._get_resize_decision(count)

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> ScalingDecision:
        """Grow if there is room. A group shrinks only when workers are lost, never by decision."""
        self._maybe_send_resource_request()
        if not self.scaling_config.elasticity_enabled:
            return NoopDecision()
        if self._growth is not None:
            return self._grown(self._growth)
        decision = super().make_decision_for_running_worker_group(worker_group_state, worker_group_status)
        if not isinstance(decision, ResizeDecision):
            return decision
        more = decision.num_workers - worker_group_state.num_workers
        if more > 0 and worker_count.placeable([self._run.bundle] * more, self._run.strategy, GROW_SECONDS):
            self._say(f"{counted(more, 'more worker')}: going on with {decision.num_workers} after a checkpoint")
            worker = worker_group_state.workers[0]
            worker.execute_async(end_of_node.ask)
            asked = worker.execute_async(end_of_node.answered)
            self._growth = _Growth(decision, worker, asked, time.monotonic() + SAVE_SECONDS)
        return NoopDecision()

    def _grown(self, growth: _Growth) -> ScalingDecision:
        ready, _ = ray.wait([growth.answer], timeout=0)
        try:
            saved = bool(ready) and ray.get(growth.answer)
        except RayActorError:  # rank 0 is lost; the next poll shows it
            self._growth = None
            return NoopDecision()
        if saved:
            self._growth = None
            return growth.decision
        if time.monotonic() > growth.until:
            self._say(f"no checkpoint within {SAVE_SECONDS:.0f} s: growing is left for later")
            self._growth = None
        elif ready:
            growth.answer = growth.worker.execute_async(end_of_node.answered)
        return NoopDecision()

    def _seconds_paid(self) -> float:
        """How long the budget covers the run's own nodes, which are billed while the run waits for others."""
        run, kind = self._run, "GPU" if self._run.gpus_per_node else "CPU"
        nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get(kind)}
        joined = autoscaler.joined(nodes) if run.own_nodes and run.max_usd else None
        if joined is None:
            return math.inf
        try:
            earlier = cost.stays(run.folder)
        except WorkloadError:  # out of reach; the workers ask again when they start
            return math.inf
        began = cost.paid_since(joined, earlier)
        stay = {"began": began, "nodes": len(nodes), "node_hour_usd": run.node_hour_usd}
        budget = cost.Budget.of(run.max_usd, cost.usd(earlier), stay)
        return max(0.0, budget.until - time.time()) if budget else math.inf

    def _say(self, text: str, waits: bool = False) -> None:
        self._journal.append([{"event": "note", "text": text, "waits": waits}])


class Retries(DefaultFailurePolicy):
    """Lets a run fail as long as it makes progress: it counts failures in a row without a checkpoint further on.

    Further by more than the one step after which every start saves: a run that fails right after that step would
    restart for ever.
    """

    def __init__(self, checkpoints: Folder, journal: Path) -> None:
        super().__init__(FailureConfig(max_failures=FAILURES, controller_failure_limit=STARTS))
        self._checkpoints, self._journal = checkpoints, Journal(journal)
        self._reached = 0

    def make_decision(self, training_failed_error: Any) -> FailureDecision:
        """Decide whether to continue."""
        before, self._reached = self._reached, self._step_committed()
        if self._reached > before + 1:
            self._worker_group_failures = self._controller_failures = 0
        decision = super().make_decision(training_failed_error)
        if decision == FailureDecision.RETRY and isinstance(training_failed_error, ControllerError):
            why = first_line(training_failed_error.controller_failure)
            self._journal.append([{"event": "note", "text": f"the workers are started once more: {why}"}])
        return decision

    def _is_retryable_error(self, training_failed_error: Any) -> bool:
        # Ray Train treats the loss of a worker that is just being given its work as an error of the controller.
        lost = isinstance(getattr(training_failed_error, "controller_failure", None), RayActorError)
        return lost or super()._is_retryable_error(training_failed_error)

    def _step_committed(self) -> int:
        try:
            return max(map(manifest.step_of, manifest.committed(self._checkpoints.files())), default=0)
        except WorkloadError:  # out of reach: no sign of progress
            return self._reached


class Trainer(DataParallelTrainer):
    """Ray Train's trainer with the two policies above; everything else is Ray's default."""

    def __init__(self, *args: Any, scaling: Scaling, retries: Retries, groups: Groups, **given: Any) -> None:
        super().__init__(*args, **given)
        self._scaling, self._retries, self._groups = scaling, retries, groups

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        # The callback for Ray's datasets starts a process for each worker group, and there are no datasets.
        needed = [one for one in super()._create_default_callbacks() if not isinstance(one, DatasetsCallback)]
        return [self._groups, *needed]

    def _initialize_and_run_controller(self, **given: Any) -> Any:
        policies = {"scaling_policy": self._scaling, "failure_policy": self._retries}
        with interruption.handlers_kept():
            return super()._initialize_and_run_controller(**{**given, **policies})

    def _register_sigint_handler(self, controller: Any) -> None:
        def interrupt(number: int, frame: Any) -> None:
            # Ray's own handler waits for a controller that may itself be waiting, and exits with 0. Another Ctrl-C
            # would interrupt this, and leave Ray's processes to end by themselves.
            interruption.ignore()
            with suppress(BrokenPipeError):  # in `train | tee`, `tee` received the Ctrl-C too, and is gone
                progress.note(f"ending the workers, which takes {ABORT_SECONDS:.0f} s at most")
            try:
                ray.get(controller.abort.remote(), timeout=ABORT_SECONDS)
            except RayActorError:  # the controller ends itself this way
                pass
            except GetTimeoutError:
                ray.kill(controller)
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)
