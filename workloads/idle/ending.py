"""Ends a holder of GPUs: stops jobs as `jobs stop` does, and suspends everything else.

A suspended holder keeps its object, and continues when told to: a user's RayCluster loses its pods, including the head,
until its `suspend` is false again (ray-operator v1.6.2, raycluster_controller.go, reconcilePods). A Job does the same
(Kubernetes documentation, "Jobs", suspending); Kueue does so to its own Jobs if their Workload is not active
(sigs.k8s.io/kueue v0.19.2, apis/kueue/v1beta2/workload_types.go).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from workloads.cluster.stack import DeployedStack
from workloads.errors import WorkloadFailedError
from workloads.idle.holders import JOB, RAY_CLUSTER, RAY_JOB, STACK_JOB, Holder
from workloads.jobs import command, queue, ray_job
from workloads.jobs.follow import OURS


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to end a holder."""

    says: str
    """What it does, in words that follow "--end would"."""
    act: Callable[[DeployedStack, Holder, str], str] | None
    """Does it, given the flags that name the stack; returns how it is undone, or empty. None: nothing is done."""


def way(holder: Holder, stack: DeployedStack) -> Way:
    """How a holder would be ended."""
    environment = stack.environment
    if holder.namespace != environment.ray_namespace:
        return Way(says=f"nothing: {holder.namespace} is not this Ray's namespace; use `--team` for a team's", act=None)
    if (holder.kind, holder.name) == (RAY_CLUSTER, environment.ray_cluster_name):
        return Way(says=f"nothing: {holder.remark}", act=None)
    return _WAYS.get(holder.kind) or Way(
        says=f"nothing: there is no known way to end a {holder.kind} that can be undone", act=None
    )


def _stop(stack: DeployedStack, holder: Holder, flags: str) -> str:
    if holder.kind == STACK_JOB:
        command.stop(stack, holder.name, None)
        return _resumption(holder.command, flags, "")
    status = ray_job.find(stack, holder.name)
    if status is None:  # it has ended by itself meanwhile
        return ""
    command.stop(stack, holder.name, status)
    where = f" --queue --nodes {len(holder.nodes)}" if status.queue else " --ray-job"
    return _resumption(status.command, flags, where)


def _resumption(entrypoint: str, flags: str, where: str) -> str:
    """How a training is gone on with from its last checkpoint; of another command nobody knows whether it can be."""
    if not entrypoint.startswith(f"{OURS} train"):
        return ""
    words = shlex.split(entrypoint.removeprefix(f"{OURS} "))
    named = any(word == "--run" or word.startswith("--run=") for word in words)
    name = "" if named else f" with --run and its name, which `{OURS} runs list{flags}` shows,"
    return f"`{OURS} submit{flags}{where} -- {shlex.join(words)}`{name} goes on from its last checkpoint"


def _suspend(stack: DeployedStack, holder: Holder, flags: str) -> str:
    kind = holder.kind.lower()
    stack.ask("patch", kind, holder.name, "--type", "merge", "--patch", _spec(suspend=True))
    return _patch(stack, kind, holder.name, _spec(suspend=False))


def _end_job(stack: DeployedStack, holder: Holder, flags: str) -> str:
    job = stack.get("job", holder.name)
    if queue_name := (job["metadata"].get("labels") or {}).get(ray_job.QUEUE_LABEL):
        found = [one for one in stack.get(queue.WORKLOADS)["items"] if holder.uid in queue.owners(one, "uid")]
        if not found:
            raise WorkloadFailedError(
                f"{holder} is in the queue {queue_name}, but Kueue has no Workload for it.", "Look again in a minute."
            )
        # Suspended by anybody else, Kueue would start it again at once.
        name = str(found[-1]["metadata"]["name"])
        stack.ask("patch", queue.WORKLOADS, name, "--type", "merge", "--patch", _spec(active=False))
        return _patch(stack, queue.WORKLOADS, name, _spec(active=True))
    return _suspend(stack, holder, flags)


def _spec(**fields: bool) -> str:
    return json.dumps({"spec": fields})


def _patch(stack: DeployedStack, kind: str, name: str, patch: str) -> str:
    return f"`{stack.command('patch', kind, name, '--type', 'merge', '--patch', patch)}` has it go on"


_WAYS = {
    RAY_JOB: Way(says="stop it and remove its cluster", act=_stop),
    STACK_JOB: Way(says="stop it; Ray then gives its workers back", act=_stop),
    RAY_CLUSTER: Way(says="suspend it: its pods and what runs on it end", act=_suspend),
    JOB: Way(says="suspend it: its pods end, and start anew when it is resumed", act=_end_job),
}
