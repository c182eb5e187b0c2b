"""The local stack from up to destroy: nothing changes by itself, little with a setting, nothing stays behind."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable

import pytest

from emulator import lifecycle
from emulator.api import Body
from emulator.state import CHECKOUT
from tests.emulator.conftest import Emulated, eventually

pytestmark = pytest.mark.emulated

RAY = "ray.io/v1"
GPU_NODES = 2
# Kubernetes' own, and what Helm leaves: a release's namespace outlives it.
NAMESPACES = {"default", "kube-node-lease", "kube-public", "kube-system", "kuberay-system"}
ADOPT = {"oasis:data": {"adopt": True}, "oasis:runs": {"adopt": True}, "oasis:registry": {"adopt": True}}


def test_up_again_changes_nothing_after_gke_has_added_nodes_labels_taints_and_counts(emulated: Emulated) -> None:
    _scale_gpu_workers(emulated)
    pools = {found.body["name"]: found.body for found in emulated.cloud.list("container/nodePool")}
    assert sum(body["nodeCount"] for name, body in pools.items() if name.startswith("gpu")) == GPU_NODES

    changes = emulated.engine().up(refresh=True).changes

    assert set(changes) == {"same"}


def test_a_changed_setting_reaches_what_it_names_and_no_worker_goes(emulated: Emulated) -> None:
    _scale_gpu_workers(emulated)
    before = _workers(emulated)
    changed = {"oasis:ray": {"idle_timeout_seconds": 777}}

    result = emulated.engine(changed).up()

    assert {kind: count for kind, count in result.changes.items() if kind != "same"} == {"update": 1}
    cluster = next(iter(emulated.api.list(RAY, "RayCluster")))
    assert cluster["spec"]["autoscalerOptions"]["idleTimeoutSeconds"] == 777
    assert before <= _workers(emulated)
    emulated.engine().up()


def test_the_users_own_tools_work_and_the_checkout_stays_clean(emulated: Emulated) -> None:
    environment = {**os.environ, **lifecycle.environment(emulated.state)}

    def run(*command: str) -> str:
        done = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=True)
        return done.stdout

    before = _tree()
    outputs = json.loads(run("pulumi", "stack", "output", "--json", "--stack", "local"))
    config_map = json.loads(run("kubectl", "get", "configmap", "oasis-environment", "-n", "ray", "-o", "json"))["data"]

    assert outputs["kubeconfig"] == "[secret]"
    assert {key: str(outputs[key]) for key in config_map} == config_map
    assert "gke-gcloud-auth-plugin" in (emulated.state.path("kubeconfig")).read_text()
    assert _tree() == before, "a stack file was written"


def test_one_destroy_leaves_nothing_whatever_runs_and_a_later_up_adopts_what_was_kept(emulated: Emulated) -> None:
    api, cloud, state = emulated.api, emulated.cloud, emulated.state
    _scale_gpu_workers(emulated)
    for body in (_service(), _ray_job()):
        api.create(body)
    eventually(lambda: _pods(emulated, "default"))
    kept = state.path("buckets", _bucket(emulated, "runs"), "kept.txt")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("a checkpoint")

    with_what_ran = lifecycle.destroy(state, emulated.engine(), emulated.lines.append)

    assert set(with_what_ran.changes) == {"delete"}
    assert [(found.kind, found.name) for found in cloud.inventory().other] == []
    assert {body["metadata"]["name"] for body in api.list("v1", "Namespace")} == NAMESPACES
    eventually(lambda: not api.list("v1", "Node"))
    assert _left(emulated) == []

    with lifecycle.started(state, emulated.lines.append) as engine:
        del engine  # the running emulator, with settings of this test's own
        result = lifecycle.deploy(state, emulated.engine(ADOPT), emulated.lines.append)

    assert result.changes.get("import", 0) > 0
    assert kept.read_text() == "a checkpoint"
    assert set(emulated.engine(ADOPT).up(refresh=True).changes) == {"same"}


def _scale_gpu_workers(found: Emulated) -> None:
    """What Ray's autoscaler does for a job: its own patch of the replicas; then GKE brings the nodes."""
    cluster = next(iter(found.api.list(RAY, "RayCluster")))
    groups = cluster["spec"]["workerGroupSpecs"]
    for group in groups:
        if group["groupName"] == "gpu":
            group["replicas"] = GPU_NODES
    found.api.merge(cluster, {"spec": {"workerGroupSpecs": groups}})
    eventually(lambda: len(_workers(found)) >= GPU_NODES, seconds=60)
    eventually(lambda: len(found.api.list("v1", "Node")) > GPU_NODES)
    eventually(lambda: sum(p.body["nodeCount"] or 0 for p in found.cloud.list("container/nodePool")) > GPU_NODES)


def _workers(found: Emulated) -> set[str]:
    pods = found.api.list("v1", "Pod", "ray", labelSelector="ray.io/group=gpu")
    return {pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") == "Running"}


def _pods(found: Emulated, namespace: str) -> list[Body]:
    return found.api.list("v1", "Pod", namespace)


def _left(found: Emulated) -> list[str]:
    """Objects of users and of the stack that are still in the API server."""
    kinds = [
        ("v1", "Pod"),
        ("v1", "Service"),
        ("apps/v1", "DaemonSet"),
        ("apps/v1", "Deployment"),
        ("cloud.google.com/v1", "ComputeClass"),
        ("networking.gke.io/v1", "GKENetworkParamSet"),
        ("networking.gke.io/v1", "Network"),
        *((RAY, kind) for kind in ("RayCluster", "RayJob", "RayService")),
    ]
    left: Iterable[Body] = (body for version, kind in kinds for body in found.api.list(version, kind))
    return [f"{body['kind']} {body['metadata']['name']}" for body in left if body["metadata"]["name"] != "kubernetes"]


def _bucket(found: Emulated, role: str) -> str:
    return next(item.name for item in found.cloud.list("storage/bucket") if item.name.endswith(role))


def _service() -> Body:
    spec = {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"a": "b"}}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "by-hand", "namespace": "default"},
        "spec": spec,
    }


def _ray_job() -> Body:
    template = {"spec": {"containers": [{"name": "ray", "image": "rayproject/ray:2.60.0"}]}}
    cluster = {"rayVersion": "2.60.0", "headGroupSpec": {"rayStartParams": {}, "template": template}}
    spec = {"entrypoint": "sleep 1000", "shutdownAfterJobFinishes": True, "rayClusterSpec": cluster}
    return {"apiVersion": RAY, "kind": "RayJob", "metadata": {"name": "by-hand", "namespace": "default"}, "spec": spec}


def _tree() -> dict[str, str]:
    return {file.name: file.read_text() for file in CHECKOUT.glob("Pulumi*.yaml")}
