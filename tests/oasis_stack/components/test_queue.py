"""Kueue and its queue: what a job may be given, on which nodes, and what GKE is asked for."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from oasis_stack.command_line.offline import Deployment
from oasis_stack.facts.machine import general_purpose
from oasis_stack.facts.pod_size import allocatable_cpu_millis, allocatable_memory_mib
from tests.support.program import at, deploy_stack, quotas
from tests.support.setting_examples import GPU_GROUP, KUEUE, RAY, SYSTEM_POOL
from tests.support.stacks import changed

KINDS = "kubernetes:kueue.x-k8s.io/v1beta2"
POOL = ("gcp:container/nodePool:NodePool", "gpu-queued")
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def queued() -> Deployment:
    """The default stack with a queue."""
    return deploy_stack(
        changed("oasis:gpu.capacity[3]", {"mode": "queued", "max_nodes": 5, "max_run_duration_hours": 24})
    )


def flavor(deployed: Deployment, name: str) -> dict[str, Any]:
    return at(deployed.get(f"{KINDS}:ResourceFlavor", name), "spec")


def configuration(deployed: Deployment) -> dict[str, Any]:
    return yaml.safe_load(at(deployed.get(*KUEUE), "values.managerConfig.controllerManagerConfigYaml"))


def templates(deployed: Deployment) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pods of the head and of a GPU worker, as queued jobs have them too."""
    ray = deployed.get(*RAY)
    return at(ray, "spec.headGroupSpec.template.spec"), at(ray, f"{GPU_GROUP}.template.spec")


def requests(pod: dict[str, Any]) -> dict[str, str]:
    (container,) = pod["containers"]
    return container["resources"]["requests"]


def test_kueue_is_pinned_runs_on_the_system_pool_and_starts_once_the_cluster_knows_its_requests(
    queued: Deployment,
) -> None:
    release = queued.get(*KUEUE)
    assert (release.inputs["chart"], release.inputs["version"]) == (
        "oci://registry.k8s.io/kueue/charts/kueue",
        "0.19.2",
    )
    assert "repositoryOpts" not in release.inputs and release.inputs["atomic"] is True
    assert (release.inputs["namespace"], release.inputs["createNamespace"]) == ("kueue-system", True)
    assert at(release, "values.controllerManager.nodeSelector") == {"oasis/pool": "system"}
    served = queued.get("pulumi-python:dynamic/wait:CustomResourcesServed", "kueue")
    assert served.inputs["kinds"] == ["provisioningrequests.autoscaling.x-k8s.io"]
    # Kueue looks for the type once, and without it never asks for a node.
    assert queued.is_before(served, release)


def test_kueue_takes_in_what_names_a_queue_and_nothing_else(queued: Deployment) -> None:
    found = configuration(queued)
    assert found["manageJobsWithoutQueueName"] is False
    # RayClusters and pods are left alone: the standing cluster's must never wait for a quota.
    assert found["integrations"]["frameworks"] == ["batch/job", "ray.io/rayjob"]
    assert found["waitForPodsReady"]["requeuingStrategy"]["backoffLimitCount"] == 3
    local = queued.only(f"{KINDS}:LocalQueue")
    # Kueue would give every job of the namespace a queue of this name.
    assert at(local, "metadata.name") == queued.exports["gpu_queue"] != "default"
    assert at(local, "metadata.namespace") == "ray"
    queue = queued.only(f"{KINDS}:ClusterQueue")
    assert at(local, "spec.clusterQueue") == at(queue, "metadata.name")
    (namespaces,) = at(queue, "spec.namespaceSelector.matchExpressions")
    assert namespaces == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["ray"]}
    assert found["managedJobsNamespaceSelector"] == at(queue, "spec.namespaceSelector")


def test_every_resource_that_pods_ask_for_has_a_quota_or_needs_none(queued: Deployment) -> None:
    """A job that asks for another one is never admitted."""
    covered = set(quotas(queued)["queued"])
    free = tuple(configuration(queued)["resources"]["excludeResourcePrefixes"])
    for pod in templates(queued):
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            for amounts in container.get("resources", {}).values():
                assert all(name in covered or name.startswith(free) for name in amounts)


def test_gpu_pods_come_to_the_nodes_of_the_queued_pool_and_no_others(queued: Deployment) -> None:
    assert flavor(queued, "queued")["nodeLabels"] == {"cloud.google.com/gke-nodepool": f"{POOL[1]}-1a2b3c4"}
    assert queued.is_before(queued.get(*POOL), queued.get(f"{KINDS}:ResourceFlavor", "queued"))


def test_a_head_gets_no_gpu_node_however_full_the_system_pool_is(queued: Deployment) -> None:
    """Kueue tries flavours in their order, and skips one with a taint that the pod itself does not tolerate."""
    head, _ = templates(queued)
    assert list(quotas(queued)) == ["system", "queued"]
    gpu = flavor(queued, "queued")
    tolerated = {entry["key"] for entry in head.get("tolerations", [])}
    assert {taint["key"] for taint in gpu["nodeTaints"]} == {GPU, "cloud.google.com/gke-queued"}
    assert all(taint["effect"] == "NoSchedule" and taint["key"] not in tolerated for taint in gpu["nodeTaints"])
    assert "tolerations" not in gpu
    assert flavor(queued, "system") == {"nodeLabels": head["nodeSelector"]}
    assert quotas(queued)["system"][GPU] == 0


def test_the_quota_of_gpu_nodes_is_the_whole_pool(queued: Deployment) -> None:
    nodes = int(at(queued.get(*POOL), "autoscaling.totalMaxNodeCount"))
    _, worker = templates(queued)
    asked = requests(worker)
    assert quotas(queued)["queued"] == {
        "cpu": int(asked["cpu"]) * nodes,
        "memory": int(asked["memory"].removesuffix("Gi")) * nodes,
        GPU: int(asked[GPU]) * nodes,
    }
    assert queued.exports["gpu_queue_nodes"] == str(nodes) == "5"


@pytest.mark.parametrize("name", ["queued", "other"])
def test_the_quota_of_heads_is_what_the_system_pool_holds_beside_the_standing_one(
    name: str, request: pytest.FixtureRequest
) -> None:
    deployed: Deployment = request.getfixturevalue(name)
    head, _ = templates(deployed)
    cpus, memory = int(requests(head)["cpu"]), int(requests(head)["memory"].removesuffix("Gi"))
    quota = quotas(deployed)["system"]
    heads = quota["cpu"] // cpus
    assert heads >= 1
    assert (quota["cpu"], quota["memory"]) == (heads * cpus, heads * memory)
    # All of them, with their sidecars and the system's own pods, fit on the nodes of the pool.
    pool = deployed.get(*SYSTEM_POOL)
    machine = general_purpose(at(pool, "nodeConfig.machineType"))
    nodes = int(at(pool, "autoscaling.totalMaxNodeCount"))
    assert (heads + 1) % nodes == 0
    on_each = (heads + 1) // nodes
    assert on_each * (cpus * 1000 + 500) + 2000 <= allocatable_cpu_millis(machine.vcpus)
    assert on_each * (memory * 1024 + 512) + 4096 <= allocatable_memory_mib(machine.memory_gb * 1024)


def test_gke_is_asked_for_the_gpu_pods_nodes_alone_and_for_as_long_as_the_pool_gives_them(queued: Deployment) -> None:
    asked = at(queued.only(f"{KINDS}:ProvisioningRequestConfig"), "spec")
    assert asked["provisioningClassName"] == "queued-provisioning.gke.io"
    assert asked["managedResources"] == [GPU]
    life = at(queued.get(*POOL), "nodeConfig.maxRunDuration")
    assert f"{asked['parameters']['maxRunDurationSeconds']}s" == life == "86400s"
    (selector,) = asked["podSetUpdates"]["nodeSelector"]
    assert selector == {
        "key": "autoscaling.gke.io/provisioning-request",
        "valueFromProvisioningClassDetail": "ResizeRequestName",
    }
    # Neither merges pod sets: one kind of GPU worker is one set, and GKE takes no more.
    assert "podSetMergePolicy" not in asked
    check = queued.only(f"{KINDS}:AdmissionCheck")
    assert at(check, "spec.controllerName") == "kueue.x-k8s.io/provisioning-request"
    assert at(check, "spec.parameters.name") == at(queued.only(f"{KINDS}:ProvisioningRequestConfig"), "metadata.name")
    (rule,) = at(queued.only(f"{KINDS}:ClusterQueue"), "spec.admissionChecksStrategy.admissionChecks")
    assert rule == {"name": at(check, "metadata.name"), "onFlavors": ["queued"]}
