"""What KubeRay says of the RayJobs of a stack's namespace, and what Kubernetes says of their pods."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from workloads.cluster.stack import DeployedStack
from workloads.errors import EXIT_INTERRUPTED, EXIT_OK, AuthError, PlaceError, WorkloadError, WorkloadFailedError
from workloads.jobs import pending
from workloads.jobs.follow import whose

OVER = ("Complete", "Failed", "ValidationFailed")
"""KubeRay's words for a RayJob that does not change any more."""

_EXIT_CODE = re.compile(r"exit code (\d+)")


@dataclass(frozen=True, kw_only=True)
class Status:
    """KubeRay's report on a RayJob."""

    name: str
    command: str
    phase: str
    """Of the RayJob: Initializing, Waiting, Running, or one of `OVER`; empty before KubeRay has seen it."""
    job: str
    """Of the Ray job, by Ray's words; empty before there is one."""
    cluster: str
    reason: str
    message: str
    began: str
    ended: str
    """Times as Kubernetes writes them; empty where there is none yet."""

    @property
    def over(self) -> bool:
        """True if it does not change any more."""
        return self.phase in OVER

    @property
    def exit_code(self) -> int:
        """Of an ended job, as far as the object tells: Ray's message names the driver's own code."""
        if self.job == "SUCCEEDED":
            return EXIT_OK
        if self.job == "STOPPED":
            return EXIT_INTERRUPTED
        named = _EXIT_CODE.search(self.message)
        return int(named[1]) if named else WorkloadFailedError.exit_code

    @property
    def ending(self) -> str:
        """With which exit code its driver ended, and whose that is; empty where it had none but 0."""
        named = _EXIT_CODE.search(self.message) if self.job == "FAILED" else None
        return f"job {self.name} ended with exit code {named[1]}{whose(self.command)}" if named else ""


def find(stack: DeployedStack, name: str) -> Status | None:
    """A RayJob of the stack's namespace, or None."""
    text = stack.ask("get", "rayjob", name, "--ignore-not-found", "-o", "json")
    return _status(json.loads(text)) if text.strip() else None


def listed(stack: DeployedStack) -> list[Status]:
    """The RayJobs of the stack's namespace; none where they may not be listed."""
    try:
        items: list[dict[str, Any]] = json.loads(stack.ask("get", "rayjobs", "-o", "json"))["items"]
    except (AuthError, PlaceError):
        return []
    return [_status(item) for item in items]


def pods(stack: DeployedStack, cluster: str) -> str:
    """States of a cluster's pods, with the reason of those that wait."""
    items = _pods(stack, cluster)
    if items is None:
        return "its pods cannot be seen"
    counts = Counter(item.get("status", {}).get("phase", "Pending") for item in items)
    states = ", ".join(f"{count} {phase}" for phase, count in sorted(counts.items()))
    reasons = [*dict.fromkeys(filter(None, map(_why_waiting, items))), *pending.lines(pending.look(stack, items))]
    return f"pods: {states or 'none yet'}" + (f" ({'; '.join(reasons)})" if reasons else "")


def never_fit(stack: DeployedStack, cluster: str) -> bool:
    """True if a cluster has a pod that no node could ever hold."""
    return any(wait.verdict == "never fits" for wait in pending.look(stack, _pods(stack, cluster) or []))


def _pods(stack: DeployedStack, cluster: str) -> list[dict[str, Any]] | None:
    try:
        text = stack.ask("get", "pods", "--selector", f"ray.io/cluster={cluster}", "-o", "json")
    except WorkloadError:
        return None
    return json.loads(text)["items"]


def _status(body: dict[str, Any]) -> Status:
    status: dict[str, Any] = body.get("status") or {}
    return Status(
        name=body["metadata"]["name"],
        command=str(body["spec"].get("entrypoint") or ""),
        phase=str(status.get("jobDeploymentStatus") or ""),
        job=str(status.get("jobStatus") or ""),
        cluster=str(status.get("rayClusterName") or ""),
        reason=str(status.get("reason") or ""),
        message=str(status.get("message") or ""),
        began=str(status.get("startTime") or body["metadata"].get("creationTimestamp") or ""),
        ended=str(status.get("endTime") or ""),
    )


def _why_waiting(pod: dict[str, Any]) -> str:
    for container in pod.get("status", {}).get("containerStatuses") or ():
        if waiting := container.get("state", {}).get("waiting"):
            return f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip()
    return ""
