"""What the API server says about the stack's RayCluster: the only way by which the emulator's Ray knows the stack.

The ConfigMap is the stack's, the Secret is KubeRay's; both are read as a researcher with kubectl would read them.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kubernetes import client, config

from emulator.state import EmulatorError

CONFIG_MAP = "oasis-environment"
"""Where the stack leaves its outputs for whoever has kubectl access alone."""


@dataclass(frozen=True, kw_only=True)
class DeployedRay:
    """What the API server says about the stack's RayCluster."""

    environment: Mapping[str, str]
    """Data of the ConfigMap, by the names of the stack's outputs."""
    token: str
    """Token of the Jobs API and of every Ray process; a Ray without it answers nobody."""


def find(kubeconfig: Path, *, timeout_seconds: float = 120.0) -> DeployedRay:
    """Wait until the RayCluster, its ConfigMap and the operator's token Secret are there, and read them.

    Raises:
        EmulatorError: one of them is missing after `timeout_seconds`; says which.
    """
    api = config.new_client_from_config(config_file=str(kubeconfig))
    with api:
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


def _look(api: client.ApiClient) -> tuple[str, DeployedRay | None]:
    """What is missing, or what was found."""
    core = client.CoreV1Api(api)
    try:
        maps = core.list_config_map_for_all_namespaces(field_selector=f"metadata.name={CONFIG_MAP}").items
        if not maps:
            return f"ConfigMap {CONFIG_MAP}", None
        data: dict[str, str] = maps[0].data or {}
        namespace, name = data["ray_namespace"], data["ray_cluster_name"]
        client.CustomObjectsApi(api).get_namespaced_custom_object("ray.io", "v1", namespace, "rayclusters", name)
        secret = core.read_namespaced_secret(name, namespace)
        token = base64.b64decode((secret.data or {})["auth_token"]).decode()
    except client.ApiException as refusal:
        if refusal.status != 404:
            raise
        return (
            f"RayCluster or its token Secret ({json.loads(refusal.body or '{}').get('message', refusal.reason)})",
            None,
        )
    return "", DeployedRay(environment=data, token=token)
