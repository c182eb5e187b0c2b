"""What plays GKE: nodes come with their pool's labels and go when idle, networks become ready, Services leave rules."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator

import pytest

from emulator.gke import nodes as gke_nodes
from emulator.gke import services as gke_services
from emulator.google.apis.kubernetes_engine import instance_groups
from emulator.google.errors import InUseError
from emulator.kubernetes.api import ApiError, Body, KindNotServedError
from emulator.machine.state import write_atomically
from oasis_stack.components.compute_class import compute_class_spec
from oasis_stack.settings.settings import from_config, parse
from tests.emulator import programs
from tests.emulator.conftest import ControlPlane
from tests.support.legal_stacks import ladders_of_rungs
from tests.support.stacks import changed
from tests.support.waiting import eventually
from workloads.jobs import pending

pytestmark = pytest.mark.emulated

CLASS = {"apiVersion": "cloud.google.com/v1", "kind": "ComputeClass"}
NETWORKING = "networking.gke.io/v1"
PROVISIONING = "autoscaling.x-k8s.io/v1"


@pytest.fixture(scope="module")
def gke(bare_cluster: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with GKE's process at work over a cluster with three pools."""
    programs.cloud_with_pools(bare_cluster.cloud)
    bare_cluster.state.spawn_module("gke", "emulator.gke.controller")
    try:
        eventually(lambda: _served(bare_cluster, CLASS["apiVersion"], CLASS["kind"]))
        body = {
            **CLASS,
            "metadata": {"name": "h200"},
            "spec": {"priorities": [{"nodepools": ["flex"]}, {"nodepools": ["spot"]}]},
        }
        bare_cluster.api.create(body)
        yield bare_cluster
    finally:
        bare_cluster.state.stop("gke")
        print(bare_cluster.state.log("gke").read_text())


def test_the_compute_class_type_comes_after_the_networking_ones(gke: ControlPlane) -> None:
    created = {
        name: gke.api.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", name) or {}
        for name in ("networks.networking.gke.io", "computeclasses.cloud.google.com")
    }
    networks, classes = (body["metadata"]["creationTimestamp"] for body in created.values())

    assert networks < classes


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"nodepools": ["a"], "spot": True}, "nodepools must not have any other field"),
        ({"spot": True, "flexStart": {"enabled": True}}, "spot and flexStart cannot be used together"),
        ({"machineType": "n2-standard-4", "minCores": 4}, "machineType cannot be used with minCores"),
        ({"machineFamily": "n2", "capacityCheckWaitTimeSeconds": 60}, "needs flexStart or tpu"),
        ({"flexStart": {"enabled": True, "nodeRecycling": {"leadTimeSeconds": 0}}}, "greater than or equal to 1"),
        ({}, "at least 1"),
        ({"nodePools": ["a"]}, "field not declared in schema"),
    ],
)
def test_a_compute_class_that_gke_refuses_is_refused(gke: ControlPlane, rule: Body, words: str) -> None:
    body = {**CLASS, "metadata": {"name": "bad"}, "spec": {"priorities": [rule]}}

    with pytest.raises(ApiError, match=words):
        gke.api.apply(body, "test")


def test_a_compute_class_does_not_take_a_name_of_gkes_own(gke: ControlPlane) -> None:
    body = {**CLASS, "metadata": {"name": "gke-h200"}, "spec": {"priorities": [{"nodepools": ["a"]}]}}

    with pytest.raises(ApiError, match="cannot start with gke"):
        gke.api.apply(body, "test")


def test_the_class_of_every_ladder_is_taken(gke: ControlPlane) -> None:
    for rungs in ladders_of_rungs():
        settings = parse(from_config(changed("oasis:gpu.capacity", list(rungs))))
        assert settings.gpu
        names = [entry.pool_name for entry in settings.gpu.class_entries]
        if names:  # a queued entry alone has none
            body = {**CLASS, "metadata": {"name": "any"}, "spec": compute_class_spec(names, 15)}
            taken = gke.api.apply(body, "test", dry_run=True)
            assert [rule["nodepools"] for rule in taken["spec"]["priorities"]] == [[name] for name in names]


def test_pods_get_nodes_in_the_order_of_their_class_and_idle_nodes_go(gke: ControlPlane) -> None:
    api = gke.api
    eventually(lambda: len(_nodes(gke)) == 1)
    for name in ("a", "b", "c"):
        api.create(programs.gpu_pod(name))
    eventually(lambda: _running(gke) == 2)
    nodes = {body["metadata"]["labels"]["cloud.google.com/gke-nodepool"]: body for body in _nodes(gke)}

    assert set(nodes) == {"system", "flex", "spot"}
    assert _unschedulable(gke) == 1, "both pools are at their maximum"
    labels = nodes["flex"]["metadata"]["labels"]
    assert labels["cloud.google.com/gke-flex-start"] == "true"
    assert labels["cloud.google.com/gke-accelerator"] == "nvidia-h200-141gb"
    assert labels["cloud.google.com/gke-max-run-duration-seconds"] == "604800"
    assert labels["topology.kubernetes.io/zone"] == "us-central1-b"
    assert nodes["spot"]["metadata"]["labels"]["cloud.google.com/gke-spot"] == "true"
    assert nodes["flex"]["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert {taint["key"] for taint in nodes["flex"]["spec"]["taints"]} == {
        "cloud.google.com/compute-class",
        "nvidia.com/gpu",
    }
    flex = f"{programs.CLUSTER}/nodePools/flex"
    eventually(lambda: instance_groups.sizes(gke.cloud, flex) == {"us-central1-b": 1})
    pool = gke.cloud.get("container/nodePool", flex).body
    assert pool["initialNodeCount"] == 1
    assert pool["config"]["labels"] == {
        "cloud.google.com/compute-class": "h200",
        "cloud.google.com/gke-accelerator": "nvidia-h200-141gb",
        "cloud.google.com/gke-ephemeral-storage-local-ssd": "true",
        "cloud.google.com/gke-flex-start": "true",
        "cloud.google.com/gke-max-run-duration-seconds": "604800",
    }
    assert "nvidia.com/gpu" in {taint["key"] for taint in pool["config"]["taints"]}

    for name in ("a", "b", "c"):
        api.delete(programs.gpu_pod(name))

    eventually(lambda: len(_nodes(gke)) == 1)
    eventually(lambda: instance_groups.sizes(gke.cloud, flex) == {"us-central1-b": 0})


def test_nodes_and_their_pods_go_with_their_pool(gke: ControlPlane) -> None:
    programs.add_pool(
        gke.cloud, "short", {"machineType": "e2-standard-4", "labels": {"role": "short"}}, {"totalMinNodeCount": 1}, []
    )
    eventually(lambda: len(_nodes(gke)) == 2)
    spec = {"nodeSelector": {"role": "short"}, "containers": [{"name": "c", "image": "i"}]}
    gke.api.create(programs.kubernetes_object("v1", "Pod", "on-short", spec, "default"))
    eventually(
        lambda: (gke.api.get("v1", "Pod", "on-short", "default") or {}).get("status", {}).get("phase") == "Running"
    )

    gke.cloud.delete("container/nodePool", f"{programs.CLUSTER}/nodePools/short")

    eventually(lambda: len(_nodes(gke)) == 1)
    eventually(lambda: gke.api.get("v1", "Pod", "on-short", "default") is None)


def test_a_parameter_set_is_held_while_its_network_is_there_and_says_what_is_wrong(gke: ControlPlane) -> None:
    api = gke.api
    parameters = _parameter_set("rdma-0", "rdma", "rdma-0")
    reference = {"group": "networking.gke.io", "kind": "GKENetworkParamSet", "name": "rdma-0"}
    spec = {"type": "Device", "parametersRef": reference}
    network = programs.kubernetes_object(NETWORKING, "Network", "rdma-0", spec)
    plain = _parameter_set("plain", "rdma", "rdma-1")
    del plain["spec"]["deviceMode"]
    for body in (
        parameters,
        network,
        _parameter_set("twin", "rdma", "rdma-0"),
        _parameter_set("lost", "rdma", "nowhere"),
        plain,
    ):
        api.apply(body, "test")

    eventually(lambda: _reason(gke, "Network", "rdma-0", "Ready") == "NetworkReady")
    eventually(lambda: _reason(gke, "GKENetworkParamSet", "twin", "Ready") == "DeviceModeSubnetAlreadyInUse")
    eventually(lambda: _reason(gke, "GKENetworkParamSet", "lost", "Ready") == "SubnetNotFound")
    neither = "SecondaryRangeAndDeviceModeUnspecified"
    eventually(lambda: _reason(gke, "GKENetworkParamSet", "plain", "Ready") == neither)

    api.delete(parameters)
    eventually(
        lambda: (
            "deletionTimestamp" in (api.get(NETWORKING, "GKENetworkParamSet", "rdma-0") or {"metadata": {}})["metadata"]
        )
    )
    assert api.get(NETWORKING, "GKENetworkParamSet", "rdma-0") is not None
    api.delete(network)
    eventually(lambda: api.get(NETWORKING, "GKENetworkParamSet", "rdma-0") is None)
    for name in ("twin", "lost", "plain"):
        api.delete(_parameter_set(name, "rdma", ""))


def test_a_load_balancer_leaves_a_firewall_rule_that_holds_the_network_for_a_while(
    gke: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"a": "b"}}
    service = programs.kubernetes_object("v1", "Service", "lb", spec, "default")
    made = gke.api.create(service)
    eventually(lambda: _ingress(gke))
    network = f"{programs.PROJECT}/global/networks/primary"
    assert [rule.body["name"].startswith("k8s-fw-") for rule in gke.cloud.list("compute/firewall")] == [True]

    with pytest.raises(InUseError, match="k8s-fw-"):
        gke.cloud.delete("compute/network", network)

    began = time.monotonic()
    gke.api.delete(service)
    eventually(lambda: gke.api.get("v1", "Service", "lb", "default") is None)
    eventually(lambda: not gke.cloud.list("compute/firewall"))
    assert time.monotonic() - began >= gke_services.CLEANUP_SECONDS, "it outlives its Service"

    monkeypatch.setattr(gke.api, "list", lambda *_: [made])  # and what was deleted since it was listed gets none
    gke_services.LoadBalancers(gke.api, gke.cloud).step()
    assert not gke.cloud.list("compute/firewall")


def test_a_worker_that_fits_no_node_waits_for_ever_and_one_without_capacity_is_told_so(gke: ControlPlane) -> None:
    # What the GPU worker asked for while the kernel's 1/64 was left out of the sum: 2,861 GiB, of 2,840 that pods get.
    large = programs.gpu_pod("large")
    large["spec"]["containers"][0]["resources"]["limits"]["memory"] = "2861Gi"
    # With the FUSE sidecar, which GKE adds by annotation, this one is too large as well.
    beside = programs.gpu_pod("beside")
    beside["spec"]["containers"][0]["resources"]["limits"]["memory"] = "2830Gi"
    annotations = {"gke-gcsfuse/volumes": "true", "gke-gcsfuse/memory-request": "23616Mi"}
    beside["metadata"]["annotations"] = annotations
    sold_out = {"call": "gke.grow.*", "effect": "fail", "message": "GCE out of resources"}
    write_atomically(gke.cloud.directory / "faults.json", json.dumps([sold_out]))
    try:
        for body in (large, beside, programs.gpu_pod("fits")):
            gke.api.create(body)

        eventually(lambda: _verdicts(gke).get("fits") == ("no capacity", "2 in backoff after failed scale-up"))
        eventually(lambda: len(_verdicts(gke)) == 3 and all(v[0] != "waiting" for v in _verdicts(gke).values()))

        assert {name: verdict for name, verdict in _verdicts(gke).items() if name != "fits"} == {
            "large": ("never fits", "2 Insufficient memory"),
            "beside": ("never fits", "2 Insufficient memory"),
        }
        assert _running(gke) == 0 and len(_nodes(gke)) == 1
    finally:
        (gke.cloud.directory / "faults.json").unlink()
    gke.cloud.turn(gke_nodes.BACKOFF_SECONDS)
    eventually(lambda: _running(gke) == 1)
    for name in ("large", "beside", "fits"):
        gke.api.delete(programs.gpu_pod(name))


def test_when_the_first_pool_is_sold_out_the_next_one_is_asked_and_the_first_again_after_its_backoff(
    gke: ControlPlane,
) -> None:
    eventually(lambda: len(_nodes(gke)) == 1)
    sold_out = {"call": "gke.grow.flex", "effect": "fail", "times": 1, "message": "GCE out of resources"}
    write_atomically(gke.cloud.directory / "faults.json", json.dumps([sold_out]))
    try:
        gke.api.create(programs.gpu_pod("first"))
        eventually(lambda: _pools(gke) == ["spot", "system"] and _running(gke) == 1)
        gke.api.create(programs.gpu_pod("second"))
        eventually(lambda: "1 in backoff after failed scale-up" in _verdicts(gke).get("second", ("", ""))[1])
        assert _verdicts(gke)["second"][0] == "no capacity"
        gke.cloud.turn(gke_nodes.MOST_BACKOFF_SECONDS)
        eventually(lambda: _pools(gke) == ["flex", "spot", "system"])
    finally:
        (gke.cloud.directory / "faults.json").unlink()
    for name in ("first", "second"):
        gke.api.delete(programs.gpu_pod(name))


def _pools(found: ControlPlane) -> list[str]:
    return sorted(node["metadata"]["labels"]["cloud.google.com/gke-nodepool"] for node in _nodes(found))


def test_google_gives_no_more_than_it_has_takes_spot_nodes_back_and_ends_flex_start_ones(gke: ControlPlane) -> None:
    limits = gke.cloud.directory / "limits.json"
    eventually(lambda: _pools(gke) == ["system"])
    write_atomically(limits, json.dumps({"capacity": {"us-central1-b/flex-start": 0}}))
    try:
        gke.api.create(programs.gpu_pod("taken-back"))
        eventually(lambda: _pools(gke) == ["spot", "system"] and _running(gke) == 1)
        quota = {"us-central1/PREEMPTIBLE_NVIDIA_H200_GPUS": 7}
        write_atomically(limits, json.dumps({"capacity": {"us-central1-b/spot": 0}, "quotas": quota}))
        eventually(lambda: _told_to_end(gke) == ["spot"] and not gke.api.list("v1", "Pod", "default"))
        assert _pools(gke) == ["spot", "system"]
        gke.cloud.turn(gke_nodes.NOTICE_SECONDS)
        eventually(lambda: _pools(gke) == ["system"])

        gke.cloud.turn(gke_nodes.MOST_BACKOFF_SECONDS)
        gke.api.create(programs.gpu_pod("ended"))
        eventually(lambda: _verdicts(gke).get("ended") == ("no capacity", "2 in backoff after failed scale-up"))
        told = [event["message"] for event in gke.api.list("v1", "Event", "default")]
        assert any("pod failed: GCE quota exceeded" in message for message in told)
    finally:
        limits.unlink()
    gke.cloud.turn(gke_nodes.MOST_BACKOFF_SECONDS)
    eventually(lambda: _pools(gke) == ["flex", "system"] and _running(gke) == 1)
    gke.cloud.turn(7 * 86400)
    eventually(lambda: _told_to_end(gke) == ["flex"] and not gke.api.list("v1", "Pod", "default"))
    gke.cloud.turn(gke_nodes.NOTICE_SECONDS)
    eventually(lambda: _pools(gke) == ["system"])


def test_a_provisioning_request_gets_all_of_its_nodes_or_none_in_googles_states(gke: ControlPlane) -> None:
    config = {
        "machineType": "a3-ultragpu-8g",
        "flexStart": True,
        "ephemeralStorageLocalSsdConfig": {"localSsdCount": 32},
    }
    programs.add_pool(gke.cloud, "queued", config, {"totalMaxNodeCount": 2}, [], queuedProvisioning={"enabled": True})
    eventually(lambda: _served(gke, PROVISIONING, "ProvisioningRequest"))
    eventually(lambda: _pools(gke) == ["system"])
    try:
        two_sets, too_large, fits = _request(gke, "two-sets", 1, 1), _request(gke, "large", 3), _request(gke, "fits", 2)
        eventually(lambda: _said(gke, two_sets) == {"Failed": ("True", "MultiplePodSetsUnsupported")})
        size_reached = "NodepoolSizeReached"
        eventually(lambda: _said(gke, too_large) == {"Accepted": ("False", size_reached)})
        provided = {"Accepted": ("True", "SuccessfullyQueued"), "Provisioned": ("True", "Provisioned")}
        eventually(lambda: _said(gke, fits) == provided)
        assert _pools(gke) == ["queued", "queued", "system"]
        body = gke.api.get(PROVISIONING, "ProvisioningRequest", fits, "default") or {}
        name = body["status"]["provisioningClassDetails"]["ResizeRequestName"]
        key = "autoscaling.gke.io/provisioning-request"
        mine = [node for node in _nodes(gke) if node["metadata"]["labels"].get(key) == name]
        assert len(mine) == 2
        assert all("cloud.google.com/gke-queued" in str(node["spec"]["taints"]) for node in mine)
        time.sleep(gke_nodes.IDLE_SECONDS + 2)
        assert _pools(gke) == ["queued", "queued", "system"], "they wait for their pods"

        gke.cloud.turn(601)

        provided["BookingExpired"] = ("True", "BookingExpired")
        eventually(lambda: _said(gke, fits) == provided)
        eventually(lambda: _said(gke, too_large).get("Failed") == ("True", size_reached))
        eventually(lambda: _pools(gke) == ["system"])
        gke.cloud.turn(7 * 86400)
        eventually(lambda: _said(gke, fits).get("CapacityRevoked") == ("True", "CapacityRevoked"))
    finally:
        for found in gke.api.list(PROVISIONING, "ProvisioningRequest"):
            gke.api.delete(found)
        gke.cloud.delete("container/nodePool", f"{programs.CLUSTER}/nodePools/queued")


def test_a_node_that_a_pod_is_to_come_to_is_not_idle_nor_has_been_one_whose_name_comes_again(
    gke: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    gke.state.stop("gke")
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0000")
    autoscaler = gke_nodes.Autoscaler(gke.api, gke.cloud)
    first = programs.gpu_pod("first")
    first["spec"]["schedulerName"] = "nobody"  # or it would come at once
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    gke.api.merge(gke.api.create(first), {"status": {"conditions": [refused]}}, subresource="status")
    autoscaler.step()
    autoscaler.step()  # while the node is not ready: that it will be is enough
    gke.cloud.turn(gke_nodes.IDLE_SECONDS + 1)
    autoscaler.step()
    [node] = [found for found in _nodes(gke) if found["metadata"]["name"].endswith("0000")]
    gke.api.delete(programs.gpu_pod("first"))
    eventually(lambda: gke.api.get("v1", "Pod", "first", "default") is None)
    autoscaler.step()
    gke.api.delete(node)
    autoscaler.step()

    gke.cloud.turn(gke_nodes.IDLE_SECONDS + 1)
    gke.api.create(programs.gpu_pod("second"))
    eventually(lambda: _refused_by_the_scheduler(gke, "second"))
    autoscaler.step()

    assert node["metadata"]["name"] in {found["metadata"]["name"] for found in _nodes(gke)}


def _request(found: ControlPlane, name: str, *counts: int) -> str:
    """Make a request for so many whole nodes, a pod set each; returns its name."""
    pod = programs.gpu_pod(name)["spec"]
    keys = ("nvidia.com/gpu", "cloud.google.com/gke-queued")
    spec = {"containers": pod["containers"], "tolerations": [{"key": key, "operator": "Exists"} for key in keys]}
    metadata = {"name": name, "namespace": "default"}
    found.api.create({"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": {"spec": spec}})
    sets = [{"count": count, "podTemplateRef": {"name": name}} for count in counts]
    body = {"provisioningClassName": "queued-provisioning.gke.io", "parameters": {}, "podSets": sets}
    found.api.create({"apiVersion": PROVISIONING, "kind": "ProvisioningRequest", "metadata": metadata, "spec": body})
    return name


def _said(found: ControlPlane, request: str) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition of a request."""
    body = found.api.get(PROVISIONING, "ProvisioningRequest", request, "default") or {}
    return {one["type"]: (one["status"], one["reason"]) for one in body.get("status", {}).get("conditions") or []}


def _told_to_end(found: ControlPlane) -> list[str]:
    """Pools of the nodes that were told to end."""
    return [
        node["metadata"]["labels"]["cloud.google.com/gke-nodepool"]
        for node in _nodes(found)
        if "cloud.google.com/impending-node-termination" in str(node["spec"].get("taints"))
    ]


def _verdicts(found: ControlPlane) -> dict[str, tuple[str, str]]:
    pods = [pod for pod in found.api.list("v1", "Pod", "default") if not pod["spec"].get("nodeName")]
    waits = pending.judge(pods, found.api.list("v1", "Event", "default"))
    return {pod["metadata"]["name"]: (wait.verdict, wait.reason) for pod, wait in zip(pods, waits, strict=True)}


def _served(found: ControlPlane, api_version: str, kind: str) -> bool:
    try:
        found.api.kind(api_version, kind)
    except KindNotServedError:
        return False
    return True


def _nodes(found: ControlPlane) -> list[Body]:
    return found.api.list("v1", "Node")


def _running(found: ControlPlane) -> int:
    return sum(pod["status"].get("phase") == "Running" for pod in found.api.list("v1", "Pod", "default"))


def _unschedulable(found: ControlPlane) -> int:
    return sum(not pod["spec"].get("nodeName") for pod in found.api.list("v1", "Pod", "default"))


def _refused_by_the_scheduler(found: ControlPlane, pod: str) -> bool:
    body = found.api.get("v1", "Pod", pod, "default") or {}
    return any(one.get("reason") == "Unschedulable" for one in body.get("status", {}).get("conditions") or [])


def _ingress(found: ControlPlane) -> object:
    service = found.api.get("v1", "Service", "lb", "default") or {}
    return service["status"]["loadBalancer"].get("ingress")


def _reason(found: ControlPlane, kind: str, name: str, condition: str) -> str:
    body = found.api.get(NETWORKING, kind, name) or {}
    conditions = body.get("status", {}).get("conditions") or []
    return next((entry["reason"] for entry in conditions if entry["type"] == condition), "")


def _parameter_set(name: str, vpc: str, subnet: str) -> Body:
    spec = {"vpc": vpc, "vpcSubnet": subnet, "deviceMode": "RDMA"}
    return programs.kubernetes_object(NETWORKING, "GKENetworkParamSet", name, spec)
