"""What the API server says about the stack's RayCluster: all that the emulator's Ray knows about the stack.

The ConfigMap is the stack's, the Secret is KubeRay's; both are read as a researcher with kubectl would read them.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from emulator.kubernetes.api import Api, Body, KindNotServedError
from emulator.machine.state import EmulatorError

CONFIG_MAP = "oasis-environment"
"""Where the stack leaves its outputs for users who have only kubectl access."""


@dataclass(frozen=True, kw_only=True)
class DeployedRay:
    """The stack's RayCluster, as the API server has it."""

    environment: Mapping[str, str]
    """Data of the ConfigMap, keyed by the names of the stack's outputs."""
    token: str
    """Token of the Jobs API and of every Ray process; a Ray without it answers nobody."""


def find(kubeconfig: Path, *, timeout_seconds: float = 120.0) -> DeployedRay:
    """Wait until the RayCluster, its ConfigMap and the operator's token Secret are there, and read them.

    Raises:
        EmulatorError: one of them is missing after `timeout_seconds`; the message says which.
    """
    api = Api(yaml.safe_load(kubeconfig.read_text()))
    deadline = time.monotonic() + timeout_seconds
    while True:
        missing, found = _look(api)
        if found:
            return found
        if time.monotonic() > deadline:
            raise EmulatorError(
                f"{missing} is not in the API server after {timeout_seconds:.0f} s, so there is no Ray to start. "
                "`kubectl get rayclusters,configmaps,secrets -A` shows what is there; `make down` and then "
                "`make demo` start anew."
            )
        time.sleep(0.5)


def promises(api: Api) -> list[Body]:
    """The ConfigMaps with the stack's outputs: the stack's own, and each team's."""
    return api.list("v1", "ConfigMap", fieldSelector=f"metadata.name={CONFIG_MAP}")


def _look(api: Api) -> tuple[str, DeployedRay | None]:
    """The RayCluster if all its parts are there, or else what is missing."""
    # A team has such a ConfigMap too, but no standing RayCluster.
    data = next((found["data"] for found in promises(api) if found["data"].get("ray_cluster_name")), None)
    if data is None:
        return f"ConfigMap {CONFIG_MAP}", None
    namespace, name = data["ray_namespace"], data["ray_cluster_name"]
    try:
        cluster = api.get("ray.io/v1", "RayCluster", name, namespace)
    except KindNotServedError:
        cluster = None
    if cluster is None:
        return f"RayCluster {namespace}/{name}", None
    secret = api.get("v1", "Secret", name, namespace) or {}
    if "auth_token" not in secret.get("data", {}):
        return f"the token Secret {namespace}/{name}", None
    token = base64.b64decode(secret["data"]["auth_token"]).decode()
    return "", DeployedRay(environment=data, token=token)
