"""Our RayCluster on a real API server, under a real KubeRay: admitted as rendered, changed without losing a worker."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
import pytest
import yaml

from emulator.kubernetes.api import Body
from emulator.rest import cloud_server
from oasis_stack.components.kuberay import KubeRay, KubeRayArgs
from oasis_stack.components.ray_cluster import RayCluster, RayClusterArgs
from oasis_stack.facts import names
from oasis_stack.facts.machine import MACHINES
from oasis_stack.facts.pod_size import PodSize
from oasis_stack.pod_specs.pods import GpuGroup
from oasis_stack.pod_specs.ray_cluster_spec import RayPods
from tests.emulator import programs
from tests.emulator.conftest import ControlPlane
from tests.support.waiting import eventually
from workloads.environment import ClusterEnvironment

pytestmark = pytest.mark.emulated

H200 = "a3-ultragpu-8g"
SYSTEM, CPU = names.SYSTEM_POOL_LABELS, names.CPU_POOL_LABELS


class Platform:
    """The operator and the RayCluster, by the real engine on the emulated cluster."""

    def __init__(self, plane: ControlPlane, checkout: Path) -> None:
        self._plane, self._checkout = plane, checkout

    def up(self, *, machine: str = H200, idle_timeout_seconds: int = 600, gpu_nodes: int = 4) -> dict[str, int]:
        """Apply the settings; what happened to how many resources."""
        repository = cloud_server.charts_address(self._plane.state)
        call = f"register(kubeconfig, provider, {repository!r}, {machine!r}, {idle_timeout_seconds}, {gpu_nodes})"
        program = f"from tests.emulator.ray.test_ray_cluster import register\n\n{call}\n"
        return dict(programs.engine(self._plane.state, self._checkout, program).up().changes)

    def destroy(self) -> None:
        programs.engine(self._plane.state, self._checkout, "").destroy()

    def scale(self, **workers: int) -> None:
        """What Ray's autoscaler does: a JSON patch of its own (ray 2.60, kuberay/cloud_provider.py)."""
        groups = [group["groupName"] for group in self.cluster()["spec"]["workerGroupSpecs"]]
        patch: Any = [
            {"op": "replace", "path": f"/spec/workerGroupSpecs/{groups.index(group)}/replicas", "value": count}
            for group, count in workers.items()
        ]
        path = "/apis/ray.io/v1/namespaces/ray/rayclusters/oasis"
        self._plane.api.request("PATCH", path, body=patch, content_type="application/json-patch+json")

    def cluster(self) -> Body:
        return self._plane.api.get("ray.io/v1", "RayCluster", "oasis", "ray") or {}

    def running(self) -> dict[str, str]:
        """Identity of every running Ray pod, and its group."""
        return {
            pod["metadata"]["uid"]: pod["metadata"]["labels"]["ray.io/group"]
            for pod in self._plane.api.list("v1", "Pod", "ray")
            if pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }


def register(
    access: pulumi.Output[str],
    provider: kubernetes.Provider,
    repository: str,
    machine: str,
    idle_timeout_seconds: int,
    gpu_nodes: int,
) -> None:
    """The part of the program that is under test, run by the engine."""
    shape = MACHINES[machine]
    networks = names.device_networks(shape.rdma_nics) if shape.rdma_nics else ()
    kubeconfig = access.apply(lambda text: json.dumps(yaml.safe_load(text)))
    args = RayClusterArgs(
        namespace="ray",
        cluster_name="oasis",
        environment={field.name: f"<{field.name}>" for field in dataclasses.fields(ClusterEnvironment)},
        pods=RayPods(
            ray_version="2.60.0",
            image="rayproject/ray:2.60.0-py312-cu128",
            head=PodSize(cpus=4, memory_gib=16),
            cpu_worker=PodSize(cpus=6, memory_gib=24),
            cpu_workers_max=3,
            gpu=GpuGroup(
                compute_class="h200",
                machine=shape,
                max_nodes=gpu_nodes,
                spot=False,
                max_run_seconds=None,
                device_networks=networks,
            ),
            idle_timeout_seconds=idle_timeout_seconds,
            data_bucket="data-bucket",
            runs_bucket="runs-bucket",
        ),
        cluster_queue=None,
        control_plane_ranges=["10.64.128.0/28", "10.96.0.0/20"],
        load_balancer=None,
        kubeconfig=kubeconfig,
    )
    operator = KubeRay(
        "kuberay",
        KubeRayArgs(repository=repository, kubeconfig=kubeconfig),
        pulumi.ResourceOptions(providers=[provider]),
    )
    RayCluster("ray", args, pulumi.ResourceOptions(providers=[provider], depends_on=[operator]))


@contextmanager
def platform_on(plane: ControlPlane, checkout: Path) -> Iterator[Platform]:
    """A platform that is yet to be brought up, with its nodes; nothing of it stays."""
    cloud_server.start(plane.state)
    for node in nodes():
        plane.api.create(node)
    found = Platform(plane, checkout)
    try:
        yield found
    finally:
        found.destroy()
        for node in nodes():
            plane.api.delete(node)


@pytest.fixture
def platform(bare_cluster: ControlPlane, tmp_path: Path) -> Iterator[Platform]:
    with platform_on(bare_cluster, tmp_path / "platform") as found:
        yield found


def test_a_setting_changed_after_ray_scaled_up_neither_conflicts_nor_removes_a_worker(platform: Platform) -> None:
    platform.up()
    eventually(lambda: sorted(platform.running().values()) == ["headgroup"])
    platform.scale(cpu=1, gpu=2)
    eventually(lambda: sorted(platform.running().values()) == ["cpu", "gpu", "gpu", "headgroup"])
    before = platform.running()

    # One setting outside the list that the autoscaler now owns, and one inside it.
    changed = platform.up(idle_timeout_seconds=1200, gpu_nodes=3)

    assert changed == {**changed, "update": 1}
    spec = platform.cluster()["spec"]
    assert spec["autoscalerOptions"]["idleTimeoutSeconds"] == 1200
    assert [group["maxReplicas"] for group in spec["workerGroupSpecs"]] == [3, 3]
    assert "update" not in platform.up(idle_timeout_seconds=1200, gpu_nodes=3)
    # The operator has seen the new object once it has acted on the next wish of Ray's.
    platform.scale(cpu=1, gpu=3)
    eventually(lambda: len(platform.running()) == 5)
    assert before.items() <= platform.running().items()


def test_a_stack_without_rdma_is_admitted_under_the_baseline_pod_security_level(platform: Platform) -> None:
    platform.up(machine="g2-standard-4")

    platform.scale(gpu=1)

    eventually(lambda: sorted(platform.running().values()) == ["gpu", "headgroup"])


def nodes() -> list[Body]:
    """One node for the head, one for CPU workers, three for GPU workers; kwok makes them ready."""
    taint = {"key": "cloud.google.com/compute-class", "value": "h200", "effect": "NoSchedule"}
    gpu = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    small = {"cpu": "8", "memory": "64Gi", "pods": "20"}
    large = {"cpu": "223", "memory": "2880Gi", "pods": "20", "nvidia.com/gpu": "8"}
    return [
        _node("ray-system", SYSTEM, [], small),
        _node("ray-cpu", CPU, [{"key": names.NODE_POOL_LABEL, "value": "cpu", "effect": "NoSchedule"}], small),
        *(_node(f"ray-gpu-{i}", {taint["key"]: taint["value"]}, [taint, gpu], large) for i in range(3)),
    ]


def _node(name: str, labels: dict[str, str], taints: list[dict[str, str]], size: dict[str, str]) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"capacity": size, "allocatable": size},
    }
