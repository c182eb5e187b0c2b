"""The jobs on a stack's own RayCluster, each with the pods whose GPUs it holds, as Ray knows them.

The cluster is no holder that could be ended: it is the stack's, and others' jobs run on it. Its jobs are; once they
have stopped, Ray's autoscaler gives the workers back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from workloads.cluster.stack import DeployedStack
from workloads.errors import WorkloadError, first_line
from workloads.idle.holders import STACK_JOB, GpuPod, Holder
from workloads.jobs.dashboard import MOST_ROWS, Dashboard, reach
from workloads.jobs.follow import Jobs

GIVEN_BACK = "no job holds them; Ray ends workers that have had no job for ray.idle_timeout_seconds"
UNKNOWN = "held by something outside Ray's jobs, such as a detached actor"


def split(whole: Holder, stack: DeployedStack) -> list[Holder]:
    """The stack's own RayCluster, job by job; as it is, with the reason, where its jobs cannot be told apart.

    Args:
        whole: the cluster with all its pods.
        stack: the stack.
    """
    try:
        with reach(stack) as dashboard:
            return _split(whole, dashboard)
    except (WorkloadError, RuntimeError) as error:
        return [replace(whole, remark=f"which jobs hold them is not known: {first_line(error)}")]


def _split(whole: Holder, dashboard: Dashboard) -> list[Holder]:
    address = {node["node_id"]: node["node_ip"] for node in _rows(dashboard, "nodes", "ALIVE")}
    held: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for job, node, since in _users(dashboard):
        at = address.get(node, "")
        held[job][at] = min(since, held[job].get(at, since))
    jobs = {job.job_id: job for job in Jobs(dashboard).listed() if job.job_id}
    # A job whose pods are known in part would be judged, and ended, by that part.
    if held.keys() - jobs.keys():
        return [replace(whole, remark=UNKNOWN)]
    found: list[Holder] = []
    for job, since_at in held.items():
        started = (jobs[job].start_time or 0) / 1000
        pods = tuple(_had(pod, max(started, since_at[pod.address])) for pod in whole.pods if pod.address in since_at)
        name, kind = (jobs[job].submission_id, STACK_JOB) if jobs[job].submission_id else (job, "driver")
        if pods:
            command = jobs[job].entrypoint
            found.append(replace(whole, kind=kind, name=str(name), uid="", pods=pods, command=command))
    taken = {pod.name for holder in found for pod in holder.pods}
    if rest := tuple(pod for pod in whole.pods if pod.name not in taken):
        found.append(replace(whole, pods=rest, remark=GIVEN_BACK))
    return found


def _had(pod: GpuPod, since: float) -> GpuPod:
    """A pod as one job has it: a warm one was another's before, and what its GPUs did then says nothing of this job."""
    return pod if pod.began is None else replace(pod, began=max(pod.began, since))


def _users(dashboard: Dashboard) -> Iterator[tuple[str, str, float]]:
    """Job and node of everything that holds GPUs, actors, placement groups and tasks, and the Unix time since when.

    A job may have waited for its GPUs for long, so its own start tells little. It has to do for actors, of which the
    state API tells no time; 0 stands for that. Those in a placement group take its GPUs, which have another name.
    """
    for actor in _rows(dashboard, "actors", "ALIVE"):
        if "GPU" in (actor["required_resources"] or {}):
            yield actor["job_id"], actor["node_id"] or "", 0.0
    for group in _rows(dashboard, "placement_groups", "CREATED"):
        for bundle in group["bundles"] or ():
            if "GPU" in bundle["unit_resources"]:
                yield group["creator_job_id"], bundle["node_id"] or "", _placed(group["stats"])
    for task in _rows(dashboard, "tasks", "RUNNING"):
        if "GPU" in (task["required_resources"] or {}):
            yield task["job_id"], task["node_id"] or "", (task["start_time_ms"] or 0) / 1000


def _placed(stats: Mapping[str, Any]) -> float:
    """Unix time at which a placement group got its places (ray 2.60, gcs.proto, PlacementGroupStats)."""
    return int(stats["creation_request_received_ns"]) / 1e9 + int(stats["end_to_end_creation_latency_us"]) / 1e6


def _rows(dashboard: Dashboard, kind: str, state: str) -> list[dict[str, Any]]:
    """What Ray has of a kind in a state; never a part of it."""
    wanted = f"filter_keys=state&filter_predicates=%3D&filter_values={state}"
    answer = dashboard.get(f"/api/v0/{kind}?detail=1&limit={MOST_ROWS}&{wanted}")["data"]["result"]
    if answer["num_filtered"] > len(answer["result"]) or answer["partial_failure_warning"]:
        raise RuntimeError(f"Ray shows {len(answer['result'])} of {answer['num_filtered']} {kind}")
    return answer["result"]
