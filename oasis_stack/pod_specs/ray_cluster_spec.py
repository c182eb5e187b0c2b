"""The RayCluster object: authentication, autoscaler, head and worker groups. Pure.

`replicas` of a worker group belongs to Ray's autoscaler, so no group here has it; `AUTOSCALED` says how that holds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pulumi

from oasis_stack.facts.pod_size import PodSize
from oasis_stack.pod_specs.mounts import Buckets
from oasis_stack.pod_specs.pods import (
    API_MOUNT,
    CONTAINER_SECURITY,
    GpuGroup,
    PodContext,
    cpu_worker_template,
    gpu_worker_template,
    head_template,
)
from workloads.environment import (
    CONFIG_MAP,
    ClusterEnvironment,
    variable,
)

AUTOSCALED = {"pulumi.com/patchForce": "true"}
"""Annotation with which an update wins the list of worker groups back from Ray's autoscaler, and does not fail.

The list has one owner (no list type in ray-operator v1.6.2, config/crd/bases/ray.io_rayclusters.yaml), and once the
autoscaler has scaled, that is the autoscaler. After an update `replicas` reads 0 until it writes again; no worker goes:
with an autoscaler KubeRay deletes only the workers that it names (v1.6.2, controllers/ray/raycluster_controller.go,
reconcilePods), and Ray counts the pods that exist (ray 2.60, kuberay/cloud_provider.py, _initialize_scale_request).
Ignoring changes of `replicas` is no way out: the provider ignores no path through a list (pulumi-kubernetes 4.34,
provider/pkg/await/await.go, handleSSAIgnoreFields)."""

DRIVER_SLOTS = 1000
"""Units of the head's resource `driver`: what must run on the head asks for one, not for CPUs: the head has none."""

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A GPU node takes many minutes to come, and nothing else bounds the wait for it (default 60).
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "1800",
    # The same for a command that asks for GPUs itself: the default, 900, is what flex-start alone asks for.
    "RAY_JOB_START_TIMEOUT_SECONDS": "1800",
    # Unset, a rank that never reports holds all others for ever.
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": "600",
    # The patch prints every line of a training worker twice.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    # Runs appear in the dashboard's Train tab.
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",
    # Spot leaves 15 seconds in all (default 5 between looks).
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
}
"""Settings that Ray reads on the head (ray 2.60, dashboard/consts.py), or in a job's driver, which hands them on to its
workers (train/v2/_internal/constants.py)."""

AUTOSCALER_ENVIRONMENT = {
    # Without it a worker that is still Pending when its job has ended asks GKE for its node for an hour, and the node
    # that comes then is paid for by nobody's work. It outlasts the moment between two requests of one job.
    "RAY_AUTOSCALER_PENDING_NODE_IDLE_TIMEOUT_S": "300",
    # After an hour, by default, workers that are still wanted would be deleted and made anew, also one whose node has
    # just come: GKE tries each rung of the ladder for minutes, in a circle.
    "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S": str(7 * 24 * 3600),
    # A function in place of the program `ray` that the container calls, in the form in which bash hands one on. Version
    # 2 takes the head's pods with restartPolicy Never (KubeRay v1.6.2, controllers/ray/common/pod.go), and KubeRay
    # looks at Ray's container alone: an autoscaler that ended, as at a first answer of the API server that is late
    # (ray 2.60, kuberay/autoscaling_config.py), would never add a worker again, nor give one back.
    "BASH_FUNC_ray%%": (
        "() { trap 'kill $child; wait $child; exit' TERM INT;"
        ' until command ray "$@" & child=$!; wait $child; do sleep 5; done; }'
    ),
}
"""Variables of the autoscaler's container (ray 2.60, autoscaler/_private/constants.py, v2/instance_manager/config.py;
a name with % takes Kubernetes 1.32, feature RelaxedEnvironmentVariableValidation)."""


@dataclass(frozen=True, kw_only=True)
class RayPods:
    """The pods of every Ray cluster of the stack, whether the long-lived one or a team's."""

    ray_version: str
    """Ray in the image; another one here, and KubeRay starts Ray with options it does not know."""
    image: pulumi.Input[str]
    """Container image of every Ray pod."""
    head: PodSize
    """Size of the head; one that runs out of memory takes all jobs with it."""
    cpu_worker: PodSize
    """Size of a CPU worker; more than a node of the CPU pool has free, and none ever starts."""
    cpu_workers_max: int
    """Most CPU workers; 0 builds no such group."""
    gpu: GpuGroup | None
    """The GPU worker group; None in a stack without GPUs."""
    idle_timeout_seconds: int
    """How long a worker without work stays; short gives up nodes that are hard to get back, long pays for them."""
    data_bucket: pulumi.Input[str]
    """Bucket mounted read-only for data."""
    runs_bucket: pulumi.Input[str]
    """Bucket mounted for results and logs."""


def cluster_of(pods: RayPods, runs_folder: str = "") -> dict[str, Any]:
    """Spec of a RayCluster of these pods; `runs_folder` of the runs bucket is mounted, or all of it."""
    context = PodContext(
        image=pods.image,
        environment=pod_environment(),
        buckets=Buckets(data=pods.data_bucket, runs=pods.runs_bucket, runs_folder=runs_folder),
    )
    groups = []
    if pods.cpu_workers_max:
        template = cpu_worker_template(context, pods.cpu_worker)
        groups.append(worker_group("cpu", pods.cpu_workers_max, template))
    if pods.gpu is not None:
        groups.append(worker_group("gpu", pods.gpu.max_nodes, gpu_worker_template(context, pods.gpu)))
    # Never on Spot or flex-start: a job does not survive its head.
    head = head_template(context, pods.head)
    return ray_cluster_spec(pods.ray_version, pods.idle_timeout_seconds, head, groups)


def pod_environment() -> list[dict[str, Any]]:
    """Variables of every Ray container: Ray's settings, and what a job knows of its stack, from the ConfigMap."""
    settings: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in RAY_ENVIRONMENT.items()]
    return settings + [
        {"name": variable(one.name), "valueFrom": {"configMapKeyRef": {"name": CONFIG_MAP, "key": one.name}}}
        for one in fields(ClusterEnvironment)
    ]


def ray_cluster_spec(
    ray_version: str, idle_timeout_seconds: int, head: dict[str, Any], groups: list[dict[str, Any]]
) -> dict[str, Any]:
    """Spec of the RayCluster from the head's pod template and the worker groups."""
    return {
        "rayVersion": ray_version,
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {
            "version": "v2",
            "idleTimeoutSeconds": idle_timeout_seconds,
            # The operator's default of 512Mi is what Ray's own autoscaler is killed at.
            "resources": {kind: {"cpu": "500m", "memory": "1Gi"} for kind in ("requests", "limits")},
            "securityContext": CONTAINER_SECURITY,
            "volumeMounts": [API_MOUNT],
            "env": [{"name": name, "value": value} for name, value in AUTOSCALER_ENVIRONMENT.items()],
        },
        "headGroupSpec": {
            "serviceType": "ClusterIP",
            "rayStartParams": {"dashboard-host": "0.0.0.0"},
            # Not in rayStartParams, which KubeRay refuses beside it, and where JSON would have to survive a shell.
            "resources": {"CPU": "0", "driver": str(DRIVER_SLOTS)},
            "template": head,
        },
        "workerGroupSpecs": groups,
    }


def worker_group(name: str, max_workers: int, template: dict[str, Any]) -> dict[str, Any]:
    """A group that Ray's autoscaler sizes between 0 and `max_workers`; its CPUs and GPUs are the container's limits."""
    return {
        "groupName": name,
        "minReplicas": 0,
        "maxReplicas": max_workers,
        "rayStartParams": {},
        "template": template,
    }
