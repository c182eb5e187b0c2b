"""Why pods of a stack wait for a node: whether no node could ever hold them, or none is available now.

To Ray both look the same: a pod that does not come. Kubernetes' scheduler knows the existing nodes; GKE's autoscaler
says whether another node would help, in events on the pod: `NotTriggerScaleUp` and `TriggeredScaleUp`
(kubernetes/autoscaler, processors/status/eventing_scale_up_processor.go) and `FailedScaleUp` (GKE documentation,
"Troubleshoot cluster autoscaler not scaling up").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from workloads.cluster.stack import DeployedStack
from workloads.errors import WorkloadError
from workloads.reporting.progress import counted

Body = Mapping[str, Any]
Verdict = Literal["never fits", "no capacity", "coming", "waiting"]

_FAILED, _REFUSED, _TRIGGERED = "FailedScaleUp", "NotTriggerScaleUp", "TriggeredScaleUp"

NEW_HEAD = "`make restart STACK=...` brings a new head of the stack's own Ray, and ends the jobs there."
"""Advice if an autoscaler has ended."""

_FULL = re.compile(r"in backoff after failed scale-up|max node group size reached|limit reached|resources? exceeded")
"""Temporary obstacles. The others (`Insufficient memory`, a label, a taint) are the pod's own."""

_MEANING: dict[Verdict, tuple[str, str]] = {
    "never fits": (
        "no node of this stack can ever hold it",
        "no wait helps: ask for less per pod or for a larger machine type in the settings, and run `pulumi up`",
    ),
    "no capacity": (
        "Google has no node to give now",
        "it is tried again; oasis:gpu.capacity can name another way to get nodes",
    ),
    "coming": ("a node is being added", ""),
    "waiting": ("the autoscaler has said nothing yet", ""),
}


@dataclass(frozen=True)
class Wait:
    """Why one pod waits."""

    group: str
    """Worker group of the pod, `head`, or the pod's name."""
    verdict: Verdict
    reason: str
    """In the words of the autoscaler or the scheduler; may be empty."""


def look(stack: DeployedStack, pods: Iterable[Body] | None = None) -> list[Wait]:
    """The waits of pods; none if the user may not see pods.

    Args:
        stack: whose kubectl is asked.
        pods: as `kubectl get pods -o json` lists them; all of the stack's namespace if None.
    """
    try:
        seen: Iterable[Body] = stack.get("pods")["items"] if pods is None else pods
        without = [pod for pod in seen if _has_no_node(pod)]
        events = stack.get("events", "--field-selector", "involvedObject.kind=Pod")["items"] if without else ()
        return judge(without, events)
    except WorkloadError:
        return []


def describe(stack: DeployedStack, cluster: str) -> str:
    """States of a cluster's pods, with the reason for each wait."""
    items = _pods(stack, cluster)
    if items is None:
        return "its pods cannot be seen"
    counts = Counter(item.get("status", {}).get("phase", "Pending") for item in items)
    states = ", ".join(f"{count} {phase}" for phase, count in sorted(counts.items()))
    reasons = [*dict.fromkeys(filter(None, map(_why_waiting, items))), *lines(look(stack, items))]
    return f"pods: {states or 'none yet'}" + (f" ({'; '.join(reasons)})" if reasons else "")


def never_fit(stack: DeployedStack, cluster: str) -> bool:
    """True if a cluster has a pod that no node could ever hold."""
    return any(wait.verdict == "never fits" for wait in look(stack, _pods(stack, cluster) or []))


def ended_autoscalers(stack: DeployedStack) -> str:
    """Message about heads whose autoscaler has ended; empty if none has, or if the user may not see pods.

    KubeRay never restarts it (ray-operator v1.6.2, raycluster_controller.go, `shouldDeletePod`).
    """
    try:
        pods = stack.get("pods", "--selector", "ray.io/node-type=head")["items"]
    except WorkloadError:
        return ""
    ended = [
        pod["metadata"]["name"]
        for pod in pods
        for container in pod.get("status", {}).get("containerStatuses") or ()
        if container.get("name") == "autoscaler" and "terminated" in container.get("state", {})
    ]
    return f"Ray's autoscaler has ended in {', '.join(ended)}: no worker is added or given back there" if ended else ""


def judge(pods: Iterable[Body], events: Iterable[Body]) -> list[Wait]:
    """Meaning of the autoscaler's newest event for each pod.

    Args:
        pods: those without a node, as `kubectl get pods -o json` lists them.
        events: as `kubectl get events -o json` lists them, of any object and in any order.
    """
    newest: dict[str, Body] = {}
    for event in sorted(events, key=_moment):
        if event.get("reason") in (_FAILED, _REFUSED, _TRIGGERED):
            newest[str(event["involvedObject"].get("uid", ""))] = event
    return [_of_pod(pod, newest.get(str(pod["metadata"].get("uid", "")))) for pod in pods]


def lines(waits: Iterable[Wait]) -> list[str]:
    """One line for all pods that wait for the same reason, with what to do."""
    found = []
    for wait, count in Counter(waits).items():
        meaning, remedy = _MEANING[wait.verdict]
        text = f"{counted(count, f'{wait.group} pod')} without a node: {meaning}"
        found.append(text + (f" ({wait.reason})" if wait.reason else "") + (f"; {remedy}" if remedy else ""))
    return found


def _of_pod(pod: Body, event: Body | None) -> Wait:
    labels = pod["metadata"].get("labels") or {}
    group = str(labels.get("ray.io/group") or pod["metadata"].get("name", "?")).replace("headgroup", "head")
    if event is None:
        return Wait(group, "waiting", _scheduler(pod))
    message = str(event.get("message", ""))
    match event["reason"]:
        case "TriggeredScaleUp":
            return Wait(group, "coming", "")
        case "FailedScaleUp":
            found = re.search(r"failed: (.*?)\. Pod is", message)
            return Wait(group, "no capacity", found[1] if found else message)
        case _:
            reason = message.removeprefix("pod didn't trigger scale-up: ")
            return Wait(group, "no capacity" if not reason or _FULL.search(reason) else "never fits", reason)


def _has_no_node(pod: Body) -> bool:
    return pod.get("status", {}).get("phase", "Pending") == "Pending" and not pod.get("spec", {}).get("nodeName")


def _scheduler(pod: Body) -> str:
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def _moment(event: Body) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp", ""))


def _pods(stack: DeployedStack, cluster: str) -> list[dict[str, Any]] | None:
    try:
        return stack.get("pods", "--selector", f"ray.io/cluster={cluster}")["items"]
    except WorkloadError:
        return None


def _why_waiting(pod: dict[str, Any]) -> str:
    for container in pod.get("status", {}).get("containerStatuses") or ():
        if waiting := container.get("state", {}).get("waiting"):
            return f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip()
    return ""
