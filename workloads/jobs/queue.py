"""A job in Kueue's queue: why it waits, the wait itself, and following the job from its start to its end.

Kueue writes all it knows into the job's Workload (sigs.k8s.io/kueue v0.19.2, apis/kueue/v1beta2/workload_types.go): a
condition QuotaReserved until it is the job's turn, an admission check with Google's message while nodes are requested,
Admitted once they are there, Evicted if they were taken back, and `active: false` if Kueue gave up on the job.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ray.job_submission import JobStatus

from workloads.cluster.stack import DeployedStack
from workloads.errors import (
    EXIT_INTERRUPTED,
    AuthError,
    CapacityError,
    PlaceError,
    WorkloadError,
    WorkloadFailedError,
)
from workloads.jobs import pending, ray_job
from workloads.jobs.dashboard import reach
from workloads.jobs.follow import PATIENCE_SECONDS, Follower, Jobs, exit_code, fetch_results, tell
from workloads.jobs.paid_nodes import GPU
from workloads.jobs.ray_job import OVER, OwnCluster, Status
from workloads.reporting.progress import counted

WORKLOADS = "workloads.kueue.x-k8s.io"
"""Kueue's objects, one for each job that it manages."""

WORKING_DIR = "working_dir.zip"
"""The archive of a queued job's working directory, in the job's own folder of the runs bucket."""

_POLL_SECONDS = 2.0
_MOST_POLL_SECONDS = 10.0  # each poll calls kubectl twice, so the longer the wait, the less often it polls
_PROGRESS_SECONDS = 30.0  # a wait of hours needs no more lines than this, unless something changes
_STARTS_SECONDS = 10.0  # but one of seconds does
_TOLD_SECONDS = 10.0  # a shorter wait need not be counted
_NAMED = 3  # of the jobs ahead

_NO_QUEUE = re.compile(r"Queue \S+ doesn't exist")
_NOT_GIVEN = "AdmissionCheck"
_TOO_OFTEN = "maximum number of re-queuing retries"
"""Kueue's reason for an eviction after a failed request, and its message if pods were not ready too often
(apis/kueue/v1beta2/workload_types.go; pkg/controller/core/workload_controller.go)."""
_FREE = re.compile(r"insufficient unused quota for nvidia\.com/gpu in flavor \S+, (\d+) more needed")

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Standing:
    """Status of a job that has not begun."""

    state: Literal["waits", "admitted", "no queue", "given up", "not ready"]
    text: str


def folder(stack: DeployedStack, name: str) -> str:
    """Address of a queued job's files: Ray fetches them when the job begins, hours later and maybe again."""
    return f"{stack.environment.runs_uri.rstrip('/')}/.queued/{name}"


def look(stack: DeployedStack, status: Status) -> Standing:
    """Status of a job of the queue that has not begun.

    Raises:
        PlaceError: Kubernetes does not answer.
    """
    try:
        found = stack.get(WORKLOADS)["items"]
    except AuthError as error:
        return Standing("waits", f"why it waits is not shown to you: {error.problem}")
    own = [one for one in found if status.uid in owners(one, "uid")]
    if not own:
        return Standing("waits", "Kueue has not taken it up yet")
    standing = judge(own[-1], found)
    if standing.state != "admitted" or not status.cluster:
        return standing
    if status.phase == "Running":
        return Standing("admitted", f"{standing.text}, its cluster is up, and KubeRay submits the job")
    return Standing("admitted", f"{standing.text}; {pending.describe(stack, status.cluster)}")


def judge(workload: Body, everyone: Iterable[Body]) -> Standing:
    """Status of a Workload.

    Args:
        workload: as the API server has it.
        everyone: all Workloads of the namespace, to tell which are ahead.
    """
    conditions, checks = _conditions(workload), workload.get("status", {}).get("admissionChecks") or ()
    # A check is rejected once Google gives up on a request, and also when it takes the nodes back (CapacityRevoked).
    rejected = [check for check in checks if check["state"] == "Rejected"]
    evicted = conditions.get("Evicted", {})
    if rejected or workload["spec"].get("active") is False:
        said = str((rejected[0] if rejected else evicted).get("message") or "no reason is given")
        return Standing("not ready" if _TOO_OFTEN in said else "given up", said)
    nodes = counted(_nodes(workload), "node")
    if evicted.get("status") == "True" and evicted.get("reason") == _NOT_GIVEN:
        said = str(evicted.get("message", "")).rpartition(" state: ")[2]
        return Standing("waits", f"Google did not give {nodes}, and is asked again{said and f': {said}'}")
    if evicted.get("status") == "True":
        again = _turn(workload, everyone) if not _is(workload, "QuotaReserved") else ""
        return Standing(
            "waits", f"it was put back into the queue ({evicted.get('message', '')}){again and f'; {again}'}"
        )
    if _is(workload, "Admitted"):
        return Standing("admitted", f"its {nodes} are there" if _nodes(workload) > 1 else "its node is there")
    if _is(workload, "QuotaReserved"):
        return Standing("waits", _asked(checks, nodes))
    if _NO_QUEUE.search(reason := str(conditions.get("QuotaReserved", {}).get("message", ""))):
        return Standing("no queue", reason)
    return Standing("waits", _turn(workload, everyone))


def take_out(stack: DeployedStack, status: Status) -> None:
    """Remove a queued job, and only then its files, without which it would get its nodes and fail."""
    if ray_job.remove(stack, status.name):
        tidy(stack, status)


def tidy(stack: DeployedStack, status: Status) -> None:
    """Delete the files of a job that has ended or was removed: the working directory that `submit` uploaded for it."""
    address = folder(stack, status.name)
    if status.working_dir != f"{address}/{WORKING_DIR}":
        return
    try:
        from workloads.storage.folders import locate

        locate(address).remove()
    except (WorkloadError, ImportError) as error:
        tell(f"{address}, the job's working directory, is still there: {error}")


def through(
    stack: DeployedStack,
    name: str,
    results: Path,
    again: str,
    interrupted: Callable[[Follower], int] | None = None,
) -> int:
    """Wait in the queue, follow the job to its end, and repeat both each time Kueue takes its nodes back.

    Args:
        stack: stack with the queue.
        name: name of the job.
        results: folder that its results are copied below.
        again: command that attaches to the job.
        interrupted: what Ctrl-C does while the job runs, and the exit code then; without it, the interruption is
            raised, as it is while the job waits.

    Returns:
        The job's exit code.

    Raises:
        CapacityError: Google does not provide the nodes; the job is removed.
        PlaceError: there is no such queue, and the job is removed; or Kubernetes or Ray stayed out of reach, and it is
            left as it is.
        AuthError: Kubernetes or Ray refuses an answer; the job is left as it is.
        WorkloadFailedError: it failed before it began, or somebody else removed it.
    """
    begun = False
    while True:
        status = _await_begin(stack, name, again, begun)
        begun = True
        code = _follow(stack, status, results, again, interrupted)
        if code is not None:
            tidy(stack, status)
            return code
        tell(f"Kueue took the nodes of job {name} back")


def _await_begin(stack: DeployedStack, name: str, again: str, begun: bool) -> Status:
    """Wait until KubeRay has submitted the job, with a line at each change; `begun` says that it has run before."""
    began = answered = time.monotonic()
    told, said = -_PROGRESS_SECONDS, ""
    known: Status | None = None
    while True:
        try:
            status = ray_job.find(stack, name)
            if status is None:
                if known:
                    tidy(stack, known)
                raise WorkloadFailedError(f"RayJob {name} was deleted while it was waited for.", "Submit it again.")
            known = status
            if status.job and not status.held and status.phase in ("Running", *OVER):
                return status
            standing = look(stack, status)
        except (AuthError, PlaceError) as error:
            away = time.monotonic() - answered
            if isinstance(error, AuthError) or away > PATIENCE_SECONDS:
                raise type(error)(
                    f"Kubernetes has said nothing about the job for {away:.0f} s: {error.problem}",
                    f"Job {name} stays in the queue, and begins without you; `{again}` goes on where you were. "
                    f"{error.remedy}",
                ) from error
            time.sleep(_POLL_SECONDS)
            continue
        answered = time.monotonic()
        if status.over:
            tidy(stack, status)
            raise ray_job.failure(stack, status)
        _raise_if_hopeless(stack, status, standing, begun)
        patience = _STARTS_SECONDS if standing.state == "admitted" else _PROGRESS_SECONDS
        if standing.text != said or answered - told > patience:
            told, said, waited = answered, standing.text, answered - began
            tell(said + (f" (waited {_duration(waited)})" if waited > _TOLD_SECONDS else ""))
        time.sleep(min(max(_POLL_SECONDS, (answered - began) / 30), _MOST_POLL_SECONDS))


def _raise_if_hopeless(stack: DeployedStack, status: Status, standing: Standing, begun: bool) -> None:
    if standing.state in ("waits", "admitted"):
        return
    take_out(stack, status)
    if standing.state == "no queue":
        raise PlaceError(
            f"Kueue does not take job {status.name}: {standing.text}.",
            "Run `pulumi up`, which makes the queue that the stack's outputs name; or submit without --queue.",
        )
    if standing.state == "not ready":
        raise WorkloadFailedError(
            f"Job {status.name} had its nodes several times, and each time not all of its pods ran within half an hour:"
            f" {standing.text}",
            "Look at the image and its mounts: `" + stack.command("get", "events") + "`.",
        )
    if begun:
        raise CapacityError(
            f"Job {status.name} ran until its nodes were taken from it: {standing.text}",
            "Submit it again; with the same --run, a training goes on from its last checkpoint.",
        )
    raise CapacityError(
        f"The nodes of job {status.name} could not be had: {standing.text}",
        "Submit it again later or with fewer --nodes, or without --queue, where other kinds of capacity are tried.",
    )


def _follow(
    stack: DeployedStack,
    status: Status,
    results: Path,
    again: str,
    interrupted: Callable[[Follower], int] | None,
) -> int | None:
    """Follow a job that has begun to its end, and have its cluster removed; None if it is in the queue again."""
    stopped, left = False, f"job {status.name} was left running; follow it with `{again}`"
    try:
        own = OwnCluster(stack.of_cluster(status.cluster), stack, status.name)
        with reach(own.stack, young=True) as dashboard:
            follower = Follower(Jobs(dashboard, lambda: _put_back(stack, status)), status.name)
            try:
                details = follower.run()
            except KeyboardInterrupt:
                if interrupted is None:
                    raise
                stopped = True
                code = interrupted(follower)
            except OSError:  # from our own output
                print(left, file=sys.stderr)
                raise
            else:
                # The end of a node may look like the end of its job.
                if details.status != JobStatus.SUCCEEDED and _put_back(stack, status):
                    return None
                fetch_results(follower, results)
                code = exit_code(details)
    except WorkloadError as error:
        if _put_back(stack, status):
            if stopped:  # then it is taken out of the queue as well
                raise KeyboardInterrupt from error
            return None
        seen = ray_job.ended_unseen(stack, status.name) if isinstance(error, AuthError | PlaceError) else None
        if seen is None:
            print(left, file=sys.stderr)
            raise
        return seen
    own.release(interrupted=code == EXIT_INTERRUPTED)
    return code


def _put_back(stack: DeployedStack, status: Status) -> bool:
    """True if Kueue has taken a job's cluster away."""
    try:
        now = ray_job.find(stack, status.name)
    except WorkloadError:
        return False
    return now is not None and not now.over and (now.held or now.cluster != status.cluster)


def _asked(checks: Iterable[Body], nodes: str) -> str:
    """Google's answer to the request for all nodes at once."""
    open_ones = [check for check in checks if check["state"] != "Ready"]
    said = "; ".join(message for check in open_ones if (message := str(check.get("message") or "")))
    return f"it is its turn: Google is asked for {nodes} at once{f': {said}' if said else ', and has not answered yet'}"


def _turn(workload: Body, everyone: Iterable[Body]) -> str:
    """What a job waits for while it is not its turn, and which jobs are ahead of it."""
    reason = str(_conditions(workload).get("QuotaReserved", {}).get("message", ""))
    if free := _FREE.search(reason):
        reason = f"{counted(int(free[1]), 'more GPU')} must come free"
    ahead = _ahead(workload, everyone)
    names = ", ".join(ahead[:_NAMED]) + (f" and {len(ahead) - _NAMED} more" if len(ahead) > _NAMED else "")
    parts = ["it waits for its turn" + (f" behind {names}" if names else ""), reason]
    return ": ".join(filter(None, parts))


def _ahead(workload: Body, everyone: Iterable[Body]) -> list[str]:
    has, waits = [], []
    for other in sorted(everyone, key=_created):
        spec = other["spec"]
        same = other["metadata"]["name"] == workload["metadata"]["name"]
        if same or spec.get("queueName") != workload["spec"].get("queueName") or spec.get("active") is False:
            continue
        name, nodes = next(iter(owners(other, "name")), other["metadata"]["name"]), counted(_nodes(other), "node")
        if _is(other, "Finished"):
            continue
        if _is(other, "QuotaReserved"):
            has.append(f"{name}, which {'has' if _is(other, 'Admitted') else 'is getting'} {nodes}")
        elif _created(other) < _created(workload):
            waits.append(f"{name}, which waits for {nodes}")
    return [*has, *waits]


def _created(workload: Body) -> tuple[str, str]:
    metadata = workload["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata["name"])


def owners(workload: Body, key: str) -> list[str]:
    """A field of each object that a Workload was made for, its `name` or its `uid`."""
    return [str(owner[key]) for owner in workload["metadata"].get("ownerReferences") or ()]


def _nodes(workload: Body) -> int:
    """Number of pods that take GPUs, each of which has a node to itself."""
    return sum(
        int(pods.get("count", 1))
        for pods in workload["spec"].get("podSets") or ()
        if any(
            GPU in ((container.get("resources") or {}).get("requests") or {})
            for container in pods["template"]["spec"]["containers"]
        )
    )


def _conditions(workload: Body) -> dict[str, Body]:
    return {one["type"]: one for one in workload.get("status", {}).get("conditions") or ()}


def _is(workload: Body, condition: str) -> bool:
    return _conditions(workload).get(condition, {}).get("status") == "True"


def _duration(seconds: float) -> str:
    minutes, hours = round(seconds / 60), round(seconds / 3600, 1)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{hours:g} h"
