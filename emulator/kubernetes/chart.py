"""What is common to the Helm charts that the emulator can install: the operator's Deployment, and its local process.

A chart is not rendered. Its Deployment, whose pod kwok pretends to run, and Helm's own record are made from here; the
operator itself is a process of this machine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from emulator.kubernetes.api import Api, ApiError, Body
from emulator.machine.loopback import answers
from emulator.machine.state import EmulatorError, State
from emulator.programs.go_modules import TOOLS

_READY_SECONDS = 240


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A Helm chart, and the program that runs in place of its pod."""

    name: str
    """As the chart is called; also the name of the operator's process."""
    tool: str
    """Folder below `tools/` that pins the program."""
    module: str
    """Its Go module."""
    values: frozenset[str]
    """Values of the chart that are carried out here."""
    deployment: Callable[[Body], Body]
    """The operator's Deployment in a release."""
    install: Callable[[Api, State, Body], None]
    """Everything else that the release has in the cluster, but for the process."""
    start: Callable[[State], None]
    """Starts the operator unless it runs, and waits until it is ready. Raises EmulatorError."""
    uninstall: Callable[[Api, State, Body], None]
    """Takes away what `install` made, as far as Helm does; the operator has ended by then."""

    @property
    def version(self) -> str:
        """Version of the program that the emulator builds."""
        pins = (TOOLS / self.tool / "go.mod").read_text()
        found = re.search(rf"{re.escape(self.module)} v(\S+)", pins)
        if found is None:
            raise EmulatorError(f"{TOOLS / self.tool / 'go.mod'} does not pin {self.module}")
        return found[1]


def deployment(
    release: Body, name: str, labels: Mapping[str, str], image: Mapping[str, Any], pod: Mapping[str, Any]
) -> Body:
    """The Deployment of an operator.

    Args:
        release: of the chart.
        name: of the Deployment.
        labels: of its pods.
        image: `repository` and `tag`.
        pod: the values that concern the pod, of which those that are given go into its spec.
    """
    container: Body = {"name": name, "image": f"{image['repository']}:{image['tag']}"}
    if "resources" in pod:
        container["resources"] = pod["resources"]
    placement = {
        key: pod[key] for key in ("affinity", "nodeSelector", "priorityClassName", "tolerations") if key in pod
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": release["namespace"], "labels": dict(labels)},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": dict(labels)}, "spec": {**placement, "containers": [container]}},
        },
    }


def create(api: Api, body: Body) -> None:
    """Make an object unless it is there."""
    try:
        api.create(body)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise


def await_operator(state: State, name: str, port: int) -> None:
    """Wait until an operator's process says at `/readyz` that it is ready.

    Raises:
        EmulatorError: it ended, or is not ready in time.
    """
    deadline = time.monotonic() + _READY_SECONDS
    while not answers(f"http://127.0.0.1:{port}/readyz"):
        if state.process(name) is None or time.monotonic() > deadline:
            raise EmulatorError(f"{name} does not come up; the reason is at the end of {state.log(name)}")
        time.sleep(0.1)
