"""Small Pulumi programs and objects for tests where the whole platform would hide what is tested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

from emulator.engine.commands import Engine
from emulator.google.cloud import Cloud, Use
from emulator.kubernetes import control_plane
from emulator.machine.state import State
from emulator.ray.deployed_ray import DeployedRay
from tests.support import stub_kubectl

Body = dict[str, Any]

PROJECT = "projects/p"
CLUSTER = f"{PROJECT}/locations/us-central1/clusters/oasis"
_HEAD = """
from dataclasses import replace
from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes

kubeconfig = pulumi.Output.secret(Path({kubeconfig!r}).read_text())
provider = kubernetes.Provider("cluster", kubeconfig=kubeconfig)


def opts(**options):
    return pulumi.ResourceOptions(provider=provider, **options)


"""
COMPUTE = "https://www.googleapis.com/compute/v1/"


def engine(state: State, checkout: Path, program: str, trouble: Callable[[State], str] = lambda _state: "") -> Engine:
    """An engine for a program's text, written as `write` does."""
    write(state, checkout, program)
    return Engine(state, print, checkout=checkout, trouble=lambda: trouble(state))


def write(state: State, checkout: Path, program: str) -> None:
    """A checkout with a program's text; it finds `pulumi`, `kubernetes`, and `opts()` with the cluster's provider."""
    checkout.mkdir(exist_ok=True)
    (checkout / "Pulumi.yaml").write_text(f"name: {checkout.name}\nruntime: python\n")
    (checkout / "Pulumi.local.yaml").write_text("config: {}\n")
    (checkout / "__main__.py").write_text(
        _HEAD.format(kubeconfig=str(control_plane.kubeconfig_file(state))) + dedent(program)
    )


def cloud_with_pools(cloud: Cloud) -> None:
    """A cluster with a system pool, a flex-start and a Spot pool of H200s, and the networks they need."""
    for network in ("primary", "gvnic", "rdma"):
        name = f"{PROJECT}/global/networks/{network}"
        cloud.put("compute/network", name, {"name": network})
    pairs = [("gvnic", "gvnic"), *(("rdma", f"rdma-{i}") for i in range(8))]
    for network, subnet in pairs:
        body = {"name": subnet, "network": f"{COMPUTE}{PROJECT}/global/networks/{network}"}
        cloud.put("compute/subnetwork", f"{PROJECT}/regions/us-central1/subnetworks/{subnet}", body)
    network = f"{PROJECT}/global/networks/primary"
    cloud.put("container/cluster", CLUSTER, {"network": "primary", "networkConfig": {"network": network}})
    system = {"machineType": "e2-standard-8", "labels": {"role": "system"}}
    add_pool(cloud, "system", system, {"totalMinNodeCount": 1, "totalMaxNodeCount": 3}, [])
    for name, how in (("flex", {"flexStart": True, "maxRunDuration": "604800s"}), ("spot", {"spot": True})):
        config = {
            **how,
            "machineType": "a3-ultragpu-8g",
            "ephemeralStorageLocalSsdConfig": {"localSsdCount": 32},
            "labels": {"cloud.google.com/compute-class": "h200"},
            "taints": [{"key": "cloud.google.com/compute-class", "value": "h200", "effect": "NO_SCHEDULE"}],
        }
        add_pool(cloud, name, config, {"totalMinNodeCount": 0, "totalMaxNodeCount": 1}, pairs)


def add_pool(
    cloud: Cloud, name: str, config: Body, scaling: Body, pairs: list[tuple[str, str]], **more: object
) -> None:
    """One node pool in zone b, with `more` fields of its own."""
    body = {
        "name": name,
        "locations": ["us-central1-b"],
        "autoscaling": {"enabled": True, **scaling},
        "config": config,
        "networkConfig": {"additionalNodeNetworkConfigs": [{"network": n, "subnetwork": s} for n, s in pairs]},
        **more,
    }
    cloud.put(
        "container/nodePool",
        f"{CLUSTER}/nodePools/{name}",
        body,
        [Use(kind="container/cluster", name=CLUSTER, relation="part-of")],
    )


def deployed_ray(dashboard: str, token: str = "t") -> DeployedRay:
    """What the emulator reads of a deployed stack to run its Ray, with the dashboard at this URL."""
    outputs = vars(replace(stub_kubectl.OUTPUTS, ray_dashboard_url=dashboard))
    return DeployedRay(environment={name: str(value) for name, value in outputs.items()}, token=token)


def kubernetes_object(
    api_version: str, kind: str, name: str, spec: Body, namespace: str = "", **metadata: object
) -> Body:
    """An object with a spec, in a namespace or in none."""
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **place, **metadata}, "spec": spec}


def gpu_pod(name: str, namespace: str = "default") -> Body:
    """A pod that takes a whole H200 node of the class `h200`."""
    limits = {"nvidia.com/gpu": "8", "cpu": "100", "memory": "1000Gi"}
    spec = {
        "nodeSelector": {"cloud.google.com/compute-class": "h200"},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {"key": "cloud.google.com/compute-class", "value": "h200"},
        ],
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}],
    }
    return kubernetes_object("v1", "Pod", name, spec, namespace)
