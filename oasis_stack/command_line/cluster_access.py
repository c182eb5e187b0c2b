"""The command line's access to the cluster, through kubectl with the stack's own kubeconfig."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from oasis_stack.command_line import external_program
from oasis_stack.command_line.external_program import ProgramError, read, show
from oasis_stack.command_line.pulumi_stack import Stack
from oasis_stack.wait import RAY_JOBS_OVER

_RUNNING = "rayjobs.ray.io,rayservices.ray.io,rayclusters.ray.io,ingresses.networking.k8s.io,services"
"""What people start and `destroy` ends."""

LEAST_KUBECTL = (1, 31)
"""First kubectl that forwards ports over WebSockets by itself (kubernetes/kubernetes pull request 125528); that the DNS
endpoint of a control plane lets nothing older through is a guess."""


def dashboard(stack: Stack, say: Callable[[str], None]) -> int:
    """Make the dashboard answer until Ctrl-C, which is its proper end; else the exit status of the port-forward.

    Raises:
        ProgramError: a program is missing or the stack was never brought up.
    """
    external_program.require("pulumi", "kubectl", "gke-gcloud-auth-plugin")
    url, command = stack.output("ray_dashboard_url"), stack.output("ray_dashboard_command")
    if not command:
        say(f"{url} answers inside the VPC, without a port-forward")
        return 0
    _require_websockets()
    with kubeconfig(stack) as environment:
        say(f"{url} answers until Ctrl-C")
        try:
            return show(shlex.split(command), environment)
        except KeyboardInterrupt:
            return 0


def _require_websockets() -> None:
    version = json.loads(read(["kubectl", "version", "--client", "--output", "json"]))["clientVersion"]["gitVersion"]
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < LEAST_KUBECTL:
        raise ProgramError(
            f"kubectl is {version}; needed is {'.'.join(map(str, LEAST_KUBECTL))} or later, whose port-forward comes "
            f"through a control plane's DNS endpoint. Get it: {external_program.INSTALL['kubectl']}"
        )


@contextmanager
def kubeconfig(stack: Stack) -> Iterator[dict[str, str]]:
    """Environment in which kubectl reaches the stack's cluster.

    The file names the cluster and the plugin that logs in, is readable by this user alone, and goes with the context.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kubeconfig")
        path.touch(mode=0o600)
        path.write_text(stack.output("kubeconfig", show_secrets=True), encoding="utf-8")
        yield {"KUBECONFIG": str(path), "PATH": os.environ.get("PATH", os.defpath)}


def running(stack: Stack) -> list[str]:
    """Everything that runs in the cluster and would end with it, one line each, or why it is not known."""
    try:
        external_program.require("pulumi", "kubectl", "gke-gcloud-auth-plugin")
        with kubeconfig(stack) as environment:
            listed = json.loads(read(["kubectl", "get", _RUNNING, "--all-namespaces", "--output", "json"], environment))
            nodes = json.loads(read(["kubectl", "get", "nodes", "--output", "json"], environment))["items"]
    except ProgramError as error:
        return [f"not known: {error}"]
    found = [
        f"{item['kind']} {item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in listed["items"]
        if (item["kind"] != "Service" or item["spec"].get("type") == "LoadBalancer")
        and (item["kind"] != "RayJob" or item.get("status", {}).get("jobDeploymentStatus") not in RAY_JOBS_OVER)
    ]
    gpus = [node for node in nodes if "cloud.google.com/gke-accelerator" in node["metadata"].get("labels", {})]
    return [*found, f"{len(nodes)} node{'s' * (len(nodes) != 1)}, {len(gpus)} of them with GPUs"]
