"""Checks of Kubernetes: whether pods can get nodes, and whether the head reaches the control plane."""

from __future__ import annotations

import shutil
import socket

from workloads.cluster import stack
from workloads.cluster.stack import DeployedStack
from workloads.doctor.dashboard import ANSWER_SECONDS
from workloads.doctor.finding import Doubtful, NotHere, Subject
from workloads.environment import API_SERVER_VARIABLE
from workloads.errors import PlaceError, WorkloadError
from workloads.jobs import pending

HEAD = "headgroup"
"""What KubeRay says in `RAY_NODE_TYPE_NAME` to a head (ray-project/kuberay v1.6.2, controllers/ray/common/pod.go)."""


def kubectl(place: Subject) -> str:
    """Check that kubectl forwards ports to Ray's dashboard through a control plane's DNS endpoint."""
    if not _has_kubectl(place):
        raise NotHere("kubectl is not installed; it is needed where jobs are submitted from")
    if old := stack.old_kubectl():
        raise Doubtful(
            f"kubectl is {old}; its port-forward does not work through a control plane's DNS endpoint",
            "Install 1.31 or later: `gcloud components install kubectl`, or https://kubernetes.io/docs/tasks/tools/.",
        )
    return "kubectl forwards ports over WebSockets"


def deployed_stack(place: Subject) -> str:
    """Which stack this place belongs to, or leads to: as `submit` finds it, by kubectl's current context."""
    if place.environment is not None:
        return f"this is {place.environment.cluster}"
    if not _has_kubectl(place):
        raise NotHere("there are no OASIS_ variables, which a stack's job has, and no kubectl to find a stack with")
    found = _found_by_kubectl().environment
    return f"kubectl leads to {found.cluster}; `python -m workloads submit -- doctor` looks from within it"


def nodes_for_pods(place: Subject) -> str:
    """Check that the stack's pods have nodes, or wait for ones that can come."""
    if API_SERVER_VARIABLE in place.variables:
        raise NotHere("a pod may not see pods; ask where kubectl works")
    if not _has_kubectl(place):
        raise NotHere("kubectl is not installed")
    deployed = _found_by_kubectl()
    if ended := pending.ended_autoscalers(deployed):
        raise PlaceError(ended, pending.NEW_HEAD)
    waits = pending.look(deployed)
    said = "; ".join(pending.lines(waits))
    verdicts = {wait.verdict for wait in waits}
    if "never fits" in verdicts:
        told = deployed.command("describe", "pods")
        raise PlaceError(said, f"`{told}` says the same; a pod that fits nowhere waits for ever.")
    if "no capacity" in verdicts:
        raise Doubtful(said, "It may still come; `python -m workloads status` shows when it has.")
    return said or "no pod waits for a node"


def control_plane(place: Subject) -> str:
    """Check that Ray's autoscaler, which runs beside the head, reaches the Kubernetes API through the NetworkPolicy."""
    host = place.variables.get(API_SERVER_VARIABLE)
    if not host:
        raise NotHere("not in a pod")
    if place.variables.get("RAY_NODE_TYPE_NAME") != HEAD:
        raise NotHere("not on the head; workers need no way to the Kubernetes API, and have none")
    address = host, int(place.variables.get("KUBERNETES_SERVICE_PORT", "443"))
    try:
        socket.create_connection(address, ANSWER_SECONDS).close()
    except OSError as error:
        raise PlaceError(
            f"the Kubernetes API at {host}:{address[1]} does not answer: {error}",
            "Without it no worker is ever added: look at the egress rules of the head's NetworkPolicy.",
        ) from error
    return f"the Kubernetes API answers at {host}:{address[1]}"


def _has_kubectl(place: Subject) -> bool:
    return shutil.which("kubectl", path=place.variables.get("PATH", "")) is not None


def _found_by_kubectl() -> DeployedStack:
    try:
        return stack.without_token(f"--request-timeout={ANSWER_SECONDS:.0f}s")
    except WorkloadError as error:
        raise NotHere(error.problem) from error
