"""Pod templates of the Ray head and its worker groups. Pure.

KubeRay takes the first container as Ray's and adds the start command, probes, the token and the autoscaler around it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

from oasis_stack.facts import names, pod_size
from oasis_stack.facts.machine import Machine
from oasis_stack.facts.pod_size import PodSize
from oasis_stack.pod_specs import gib
from oasis_stack.pod_specs.mounts import GROUP, USER, Buckets, PodVolumes, pod_volumes
from workloads.environment import DRAIN_SECONDS, DRAIN_VARIABLE, GIB_DIRECTORY, GRACE_SECONDS, MAX_RUN_VARIABLE

HEAD_GRACE_SECONDS = 30

SPOT_DRAIN_SECONDS, SPOT_GRACE_SECONDS = 12, 15
"""A pod on Spot gets 15 s to end, whatever it asks for (GKE documentation, "Spot VMs")."""

HEAD_STARTS_PER_CPU = 3
"""Processes that the head may start at once, for each of its CPUs (SkyPilot's figure, sky/provision/instance_setup.py).
At four times as many, Ray warns in the output of every job (ray 2.60, raylet/worker_pool.cc). Unset, it is one in
all, as the head offers no CPUs (_private/services.py, start_raylet), and each trial of a search has five processes
there."""

CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""No pod of Ray is privileged; Google's RDMA test pods dropped IPC_LOCK in 2025 (container-engine-accelerators)."""

_API_VOLUME = "kubernetes-api"

API_MOUNT = {"name": _API_VOLUME, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
"""Mount by which the autoscaler's container has the account's Kubernetes token; drivers run in the one beside it."""

NOT_MOVED = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""GKE's autoscaler may not move a Ray pod to save a node: the work in it would be lost. Idle workers go by Ray's own
autoscaler (GKE documentation, "About cluster autoscaling")."""


@dataclass(frozen=True, kw_only=True)
class GpuGroup:
    """The GPU worker group."""

    compute_class: pulumi.Input[str]
    """ComputeClass of the GPU pools; one that does not exist, and the pods stay Pending."""
    machine: Machine
    """What a GPU node has; a worker takes a whole node."""
    max_nodes: int
    """Most workers; above the sum of the pools' maxima, Ray waits for nodes that cannot come."""
    spot: bool
    """Whether the ladder has a Spot pool: pods have 15 seconds to leave there, and must drain within that."""
    max_run_seconds: int | None
    """Shortest life of a flex-start node in the ladder, so that training commits before its end; None without one."""
    device_networks: Sequence[pulumi.Input[str]]
    """GKE Networks of eth1, eth2, ... in NIC order; none for a machine without RDMA NICs."""


@dataclass(frozen=True, kw_only=True)
class PodContext:
    """Facts that all pods of the cluster share."""

    image: pulumi.Input[str]
    """Ray image; its Ray must be the cluster's version."""
    environment: Sequence[Mapping[str, Any]]
    """Variables of every Ray container, as Kubernetes writes them."""
    buckets: Buckets
    """What is mounted in all of them."""


def head_template(context: PodContext, size: PodSize) -> dict[str, Any]:
    """The head pod: Ray's services, the drivers of jobs, and the autoscaler, which needs the Kubernetes API."""
    volumes = pod_volumes(context.buckets, size, local_ssds=0, training=False)
    container = _container("ray-head", context, size, volumes)
    ports = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "metrics": 8080}
    starts = {"name": "RAY_worker_maximum_startup_concurrency", "value": str(HEAD_STARTS_PER_CPU * size.cpus)}
    container["env"].append(starts)
    container["ports"] = [{"name": name, "containerPort": port} for name, port in ports.items()]
    pod = _pod(context, container, volumes, HEAD_GRACE_SECONDS)
    pod["nodeSelector"] = dict(names.SYSTEM_POOL_LABELS)
    pod["volumes"].append(_api_volume())
    return {"metadata": {"annotations": {**volumes.annotations, **NOT_MOVED}}, "spec": pod}


def cpu_worker_template(context: PodContext, size: PodSize) -> dict[str, Any]:
    """A worker without GPUs. Its pool may carry a label as taint too, which keeps other pods off."""
    volumes = pod_volumes(context.buckets, size, local_ssds=0, training=False)
    container = _container("ray-worker", context, size, volumes)
    container["env"].append(_drain(DRAIN_SECONDS))
    pod = _pod(context, container, volumes, GRACE_SECONDS) | {
        "nodeSelector": dict(names.CPU_POOL_LABELS),
        "tolerations": [_tolerate(key, value) for key, value in names.CPU_POOL_LABELS.items()],
    }
    return {"metadata": {"annotations": {**volumes.annotations, **NOT_MOVED}}, "spec": pod}


def gpu_worker_template(context: PodContext, gpu: GpuGroup) -> dict[str, Any]:
    """A worker that takes a whole GPU node; with RDMA NICs it has them all, and starts with gIB or not at all."""
    machine = gpu.machine
    size = pod_size.whole_node_pod(machine)
    volumes = pod_volumes(context.buckets, size, local_ssds=machine.local_ssds, training=True)
    container = _container("ray-worker", context, size, volumes)
    for resources in container["resources"].values():
        resources["nvidia.com/gpu"] = str(machine.gpus)
    drain, grace = (SPOT_DRAIN_SECONDS, SPOT_GRACE_SECONDS) if gpu.spot else (DRAIN_SECONDS, GRACE_SECONDS)
    container["env"].append(_drain(drain))
    if gpu.max_run_seconds is not None:
        container["env"].append({"name": MAX_RUN_VARIABLE, "value": str(gpu.max_run_seconds)})
    pod = _pod(context, container, volumes, grace) | {
        "nodeSelector": {"cloud.google.com/compute-class": gpu.compute_class},
        "tolerations": _gpu_tolerations(gpu),
    }
    annotations: dict[str, pulumi.Input[str]] = {**volumes.annotations, **NOT_MOVED}
    if machine.rdma_nics:
        _require_rdma(pod, container)
        annotations |= interface_annotations(gpu.device_networks)
    return {"metadata": {"annotations": annotations}, "spec": pod}


def interface_annotations(device_networks: Sequence[pulumi.Input[str]]) -> dict[str, pulumi.Input[str]]:
    """Annotations that give a pod all NICs of its node: eth0 is the pod network, eth<i> the i-th device network."""
    return {
        "networking.gke.io/default-interface": "eth0",
        "networking.gke.io/interfaces": pulumi.Output.all(*device_networks).apply(
            lambda networks: json.dumps(
                [{"interfaceName": f"eth{i}", "network": network} for i, network in enumerate(("default", *networks))]
            )
        ),
    }


def _require_rdma(pod: dict[str, Any], container: dict[str, Any]) -> None:
    pod["volumes"].append(gib.VOLUME)
    pod["initContainers"] = [gib.install_container(CONTAINER_SECURITY)]
    container["volumeMounts"].append(gib.mount(GIB_DIRECTORY))
    container["command"] = [gib.start_guard(GIB_DIRECTORY)]
    container["env"] += [
        {"name": "LD_LIBRARY_PATH", "value": f"{GIB_DIRECTORY}/lib64:{gib.DRIVER_DIRECTORY}/lib64"},
        # Ten interfaces in the pod, and only eth0 reaches other pods at the addresses they are known by.
        {"name": "NCCL_SOCKET_IFNAME", "value": "eth0"},
        {"name": "GLOO_SOCKET_IFNAME", "value": "eth0"},
    ]


def _api_volume() -> dict[str, Any]:
    """What Kubernetes itself would mount into every container of the pod (kubernetes v1.36,
    plugin/pkg/admission/serviceaccount/admission.go, TokenVolumeSource)."""
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    return {"name": _API_VOLUME, "projected": {"sources": sources}}


def _pod(context: PodContext, container: dict[str, Any], volumes: PodVolumes, grace_seconds: int) -> dict[str, Any]:
    return {
        "serviceAccountName": names.RAY_ACCOUNT,
        # Google's credentials come from the metadata server, whatever this says.
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": GROUP,
            "fsGroup": GROUP,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": list(volumes.volumes),
    }


def _container(name: str, context: PodContext, size: PodSize, volumes: PodVolumes) -> dict[str, Any]:
    resources = {"cpu": str(size.cpus), "memory": f"{size.memory_gib}Gi"}
    return {
        "name": name,
        "image": context.image,
        "env": [dict(variable) for variable in context.environment],
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": list(volumes.mounts),
    }


def _drain(seconds: int) -> dict[str, str]:
    return {"name": DRAIN_VARIABLE, "value": str(seconds)}


def _gpu_tolerations(gpu: GpuGroup) -> list[dict[str, Any]]:
    taints: list[tuple[str, pulumi.Input[str]]] = [
        ("nvidia.com/gpu", "present"),
        ("cloud.google.com/compute-class", gpu.compute_class),
    ]
    if gpu.spot:
        taints.append(("cloud.google.com/gke-spot", "true"))
    return [_tolerate(key, value) for key, value in taints]


def _tolerate(key: str, value: pulumi.Input[str]) -> dict[str, Any]:
    return {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
