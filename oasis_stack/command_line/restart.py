"""`restart`: recreates the Ray pods from the current spec, after their image or anything else in it was changed.

KubeRay 1.6 recreates pods only with the upgrade strategy Recreate, which would end every job at any small change; so a
person does it, at a time when the running jobs may end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from oasis_stack.command_line import external_program
from oasis_stack.command_line.cluster_access import kubeconfig
from oasis_stack.command_line.external_program import ProgramError, read, show
from oasis_stack.command_line.pulumi_stack import Stack

CLUSTER_LABEL, TYPE_LABEL = "ray.io/cluster", "ray.io/node-type"
"""What KubeRay marks a RayCluster's pods with (ray-project/kuberay v1.6.2, controllers/ray/utils/constant.go)."""

ANSWER_SECONDS = 30
"""Longest wait for Ray's list of jobs: a head may take a connection and never answer."""

# Ray's dashboard knows jobs that no Kubernetes object stands for; the head has Ray's token in its environment.
_LIST_JOBS = """\
from ray.job_submission import JobSubmissionClient
for job in JobSubmissionClient("http://127.0.0.1:8265").list_jobs():
    if not job.status.is_terminal():
        print(job.submission_id or job.job_id, job.status.value, " ".join(job.entrypoint.split()))
"""


def restart(stack: Stack, yes: bool, say: Callable[[str], None]) -> int:
    """Delete the RayCluster's pods, once the person agrees; the exit status of kubectl.

    Raises:
        ProgramError: a program is missing, the cluster does not answer, or there is no one to ask.
    """
    external_program.require("pulumi", "kubectl", "gke-gcloud-auth-plugin")
    namespace, cluster = stack.output("ray_namespace"), stack.output("ray_cluster_name")
    chosen = _selected(namespace, cluster)
    with kubeconfig(stack) as environment:
        pods = _pods(chosen, environment)
        if not pods:
            say(f"RayCluster {namespace}/{cluster} has no pods; KubeRay makes them from the current spec by itself")
            return 0
        say("\n  ".join(["Ends, and comes back from the current spec:", *map(_described, pods)]))
        say("\n  ".join(["Ends with them, and must be submitted again:", *_jobs(pods, namespace, environment)]))
        if not yes and not _agreed():
            say("nothing was deleted")
            return 0
        status = show(["kubectl", "delete", "pods", *chosen], environment)
    if status == 0:
        say("KubeRay recreates the head in a minute or two, and workers when jobs ask for them")
    return status


def jobs_of_the_standing_ray(stack: Stack) -> list[str]:
    """Its jobs that have not ended, one line each, or why they are not known; none if the cluster does not answer."""
    try:
        namespace, cluster = stack.output("ray_namespace"), stack.output("ray_cluster_name")
        with kubeconfig(stack) as environment:
            pods = _pods(_selected(namespace, cluster), environment)
            return [f"jobs of RayCluster {namespace}/{cluster}: {line}" for line in _jobs(pods, namespace, environment)]
    except ProgramError:
        return []


def _selected(namespace: str, cluster: str) -> list[str]:
    return ["--namespace", namespace, "--selector", f"{CLUSTER_LABEL}={cluster}"]


def _pods(chosen: list[str], environment: Mapping[str, str]) -> list[Mapping[str, Any]]:
    return json.loads(read(["kubectl", "get", "pods", *chosen, "--output", "json"], environment))["items"]


def _described(pod: Mapping[str, Any]) -> str:
    metadata, containers = pod["metadata"], pod["spec"]["containers"]
    role = metadata["labels"].get(TYPE_LABEL, "pod")
    return f"{role} {metadata['name']}, {pod.get('status', {}).get('phase', 'Unknown')}, image {containers[0]['image']}"


def _jobs(pods: list[Mapping[str, Any]], namespace: str, environment: Mapping[str, str]) -> list[str]:
    heads = [pod for pod in pods if pod["metadata"]["labels"].get(TYPE_LABEL) == "head"]
    if not heads:
        return ["no jobs: there is no head"]
    head = heads[0]
    ask = ["timeout", str(ANSWER_SECONDS), "python", "-c", _LIST_JOBS]
    inside = ["--container", head["spec"]["containers"][0]["name"], "--", *ask]
    try:
        listed = read(["kubectl", "exec", "--namespace", namespace, head["metadata"]["name"], *inside], environment)
    except ProgramError as error:
        return [f"not known: the head does not answer, and may be unable to start: {str(error).splitlines()[-1]}"]
    return listed.splitlines() or ["no job runs"]


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise ProgramError("nothing was deleted: there is no terminal to ask on. Pass --yes to agree beforehand.")
    try:
        return input("Delete these pods? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
