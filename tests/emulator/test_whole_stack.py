"""The local stack from up to destroy: nothing changes by itself, little with a setting, nothing stays behind."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from emulator import lifecycle
from emulator.google import policies
from emulator.google.apis.kubernetes_engine import instance_groups
from emulator.google.cloud import CloudObject
from emulator.kubernetes.api import Body
from emulator.machine import processes
from emulator.machine.state import CHECKOUT, EmulatorError, write_atomically
from oasis_stack.components.node_pool import COMPUTE_CLASS_KEY
from tests.emulator.conftest import PATIENCE_SECONDS, Emulated, objects, shell
from tests.emulator.programs import kubernetes_object
from tests.support.processes import running
from tests.support.queued_jobs import documented_job
from tests.support.waiting import eventually
from workloads.doctor import listeners

pytestmark = pytest.mark.emulated

RAY = "ray.io/v1"
NODES = {"gpu": 2, "cpu": 1}
# What outlives the stack on purpose: resource types, which are GKE's own or left by Helm, and a release's namespace.
TYPES = ("ray.io", "networking.gke.io", "autoscaling.x-k8s.io", "cloud.google.com")
LEFT = {
    f"v1 {left}"
    for operator in ("kuberay-system", "kueue-system")
    for left in (
        f"Namespace /{operator}",
        f"ServiceAccount {operator}/default",
        f"ConfigMap {operator}/kube-root-ca.crt",
    )
}
REPOSITORIES = "artifactregistry/repository projects/oasis-local/locations/us-central1/repositories"
KEPT = {
    *(f"{REPOSITORIES}/oasis-{name}" for name in ("docker", "python")),
    *(f"storage/bucket oasis-local-oasis-{role}" for role in ("data", "runs")),
}
JOB, TEAM_JOB = (f"sleep {number * 10**6 + os.getpid()}" for number in (1, 2))
KMS_KEY = "projects/oasis-local/locations/us-central1/keyRings/oasis/cryptoKeys/kubernetes"
OPTIONAL = {
    "oasis:network": {"proxy_only": True},
    "oasis:cluster": {"secrets_encryption_key": KMS_KEY},
    "oasis:ray": {"dashboard_access": "internal-load-balancer", "dashboard_client_ranges": ["10.128.0.0/20"]},
}
API_KEY = "0123456789abcdef0123456789abcdef01234567"
PEERED = {"oasis:build": {"peered": True}, "oasis:teams": [{"name": "vision", "gpu_nodes": 1}]}
ADOPT = {**PEERED, **{f"oasis:{section}": {"adopt": True} for section in ("data", "runs", "registry")}}


def test_up_again_changes_nothing_after_gke_has_added_nodes_labels_taints_and_counts(emulated: Emulated) -> None:
    _scale_workers(emulated)
    eventually(lambda: _nodes_by_role(emulated) == {**NODES, "system": 1})
    pools = {found.body["name"]: found.body for found in emulated.cloud.list("container/nodePool")}
    labels = {key for name, body in pools.items() if name.startswith("gpu") for key in body["config"]["labels"]}
    assert COMPUTE_CLASS_KEY in labels and "cloud.google.com/gke-accelerator" in labels

    changes = emulated.engine().up(refresh=True).changes

    assert set(changes) == {"same"}


def test_a_changed_setting_reaches_what_it_names_and_no_worker_goes(emulated: Emulated) -> None:
    _scale_workers(emulated)
    before = _workers(emulated)
    changed = {"oasis:ray": {"idle_timeout_seconds": 777}}

    result = emulated.engine(changed).up()

    assert {kind: count for kind, count in result.changes.items() if kind != "same"} == {"update": 1}
    cluster = next(iter(emulated.api.list(RAY, "RayCluster")))
    assert cluster["spec"]["autoscalerOptions"]["idleTimeoutSeconds"] == 777
    assert before <= _workers(emulated)
    emulated.engine().up()


def test_a_preview_says_what_would_be_done_with_which_properties_and_does_nothing(emulated: Emulated) -> None:
    secret = {"oasis:wandb_api_key": _encrypted(emulated, "oasis:wandb_api_key", API_KEY)}
    said = len(emulated.lines)

    changes = emulated.engine({"oasis:labels": {"environment": "test"}, **secret}).preview().changes

    lines = emulated.lines[said:]
    told = next(number for number, line in enumerate(lines) if line.endswith("would update     Bucket runs"))
    assert lines[told + 1].strip() == '~ labels.environment: "local" -> "test"'
    assert "would create     SecretVersion" in "\n".join(lines)
    assert not [line for line in lines if "  updated" in line or "  created" in line or API_KEY in line]
    assert set(changes) == {"same", "update", "create"}
    assert set(emulated.engine().preview().changes) == {"same"}
    with pytest.raises(EmulatorError, match=r"stands in region us-central1, and its file now says us-east5.*destroy"):
        emulated.engine({"oasis:region": "us-east5", "oasis:zone": "us-east5-a"}).preview()


def test_what_is_off_by_default_comes_goes_and_keeps_a_secret_to_itself(emulated: Emulated) -> None:
    overlay = {**OPTIONAL, "oasis:wandb_api_key": _encrypted(emulated, "oasis:wandb_api_key", API_KEY)}
    key = f"//cloudkms.googleapis.com/{KMS_KEY}"

    with ThreadPoolExecutor(1) as beside:
        # Two minutes pass at Google once the program says that it waits for them.
        passing = beside.submit(_turned_at, emulated, "do not know at once of: a grant on kubernetes", 2 * 60 + 1)
        changes = emulated.engine(overlay).up().changes
        passing.result()

    assert set(changes) == {"same", "update", "create"}
    (address,), (version,) = (_of_the_stack(emulated, kind) for kind in ("compute/address", "secretmanager/version"))
    assert policies.get(emulated.cloud, key)["bindings"]
    service = next(found for found in emulated.api.list("v1", "Service", "ray") if found["spec"].get("loadBalancerIP"))
    assert service["spec"]["loadBalancerIP"] == address.body["address"]
    said: list[str] = []
    lifecycle.start_ray(emulated.state, said.append)
    assert said[0].startswith(f"the stack's Ray is not started: its dashboard is at http://{address.body['address']}:")
    purposes = {subnet.body.get("purpose") for subnet in emulated.cloud.list("compute/subnetwork")}
    assert "REGIONAL_MANAGED_PROXY" in purposes
    (cluster,) = emulated.cloud.list("container/cluster")
    assert cluster.body["databaseEncryption"] == {"state": "ENCRYPTED", "keyName": KMS_KEY}
    assert base64.b64decode(version.body["payload"]).decode() == API_KEY
    told = "\n".join([*emulated.lines, *map(_text, emulated.state.path("pulumi").rglob("*"))])
    assert "oasis:wandb_api_key" in told
    assert not {API_KEY, base64.b64encode(API_KEY.encode()).decode()} & set(re.split(r"[^\w=]+", told))
    assert set(emulated.engine(overlay).up(refresh=True).changes) == {"same"}

    emulated.engine().up()

    assert _of_the_stack(emulated, "compute/address") == []
    assert policies.get(emulated.cloud, key)["bindings"], "another cluster of the project may have the same grant"
    policies.put(emulated.cloud, key, {})
    (version,) = _of_the_stack(emulated, "secretmanager/version")
    assert (version.body["state"], version.body["payload"]) == ("DESTROYED", "")
    assert set(emulated.engine().up(refresh=True).changes) == {"same"}


def _turned_at(emulated: Emulated, words: str, seconds: float) -> None:
    """Turn Google's clock once an `up` has said something."""
    eventually(lambda: any(words in line for line in emulated.lines))
    emulated.cloud.turn(seconds)


def _of_the_stack(emulated: Emulated, kind: str) -> list[CloudObject]:
    """Objects of a kind, without what GKE made by itself."""
    return [found for found in emulated.cloud.list(kind) if not str(found.body.get("name", "")).startswith("gke-")]


def test_everything_listens_on_loopback_alone(emulated: Emulated) -> None:
    running = emulated.state.processes()
    assert {"etcd", "gke", "ray-head"} <= {process.name for process in running}

    found = listeners.of(pid for process in running for pid in processes.session_of(process))

    assert len(found) > len(running)
    assert [address for address, loopback in found if not loopback] == []


def test_the_users_own_tools_work_and_the_checkout_stays_clean(emulated: Emulated) -> None:
    before = _tree()
    outputs = json.loads(_run(emulated, "pulumi", "stack", "output", "--json", "--stack", "local"))
    get = ("get", "configmap", "oasis-environment", "-n", "ray", "-o", "json")
    config_map = json.loads(_run(emulated, "kubectl", *get))["data"]

    assert outputs["kubeconfig"] == "[secret]"
    assert {key: str(outputs[key]) for key in config_map} == config_map
    assert "gke-gcloud-auth-plugin" in (emulated.state.path("kubeconfig")).read_text()
    for command in ("preview", "up --yes --skip-preview"):
        said = _run(emulated, "pulumi", *command.split(), "--stack", "local")
        assert re.search(r"Resources:\n +\d+ unchanged\n", said), said
        assert "warning" not in said
    for words in ("stack", "stack history", "stack export", "stack output --show-secrets", "config"):
        _run(emulated, "pulumi", *words.split(), "--stack", "local")
    assert _tree() == before, "a stack file was written"


def test_with_peered_builds_and_a_team_one_destroy_leaves_nothing_whatever_runs_and_a_later_up_adopts_what_was_kept(
    emulated: Emulated,
) -> None:
    api, cloud, state = emulated.api, emulated.cloud, emulated.state
    _peer(emulated)
    _scale_workers(emulated)
    by_hand = {"apiVersion": "v1", "kind": "List", "items": [_service(), _ray_job()]}
    _run(emulated, "kubectl", "create", "-f", "-", given=json.dumps(by_hand))
    eventually(lambda: _pods(emulated, "default"))
    _fill_the_queue(emulated)
    kept = state.path("buckets", _bucket(emulated, "runs"), "teams", "vision", "kept.txt")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("a checkpoint")
    _submit(emulated, "--", *JOB.split())
    eventually(lambda: running(JOB) and running(TEAM_JOB), PATIENCE_SECONDS)

    state.path("limits.json").unlink()
    with_what_ran = lifecycle.destroy(state, emulated.engine(), emulated.lines.append)

    assert set(with_what_ran.changes) == {"delete", "kept"}
    assert with_what_ran.changes["kept"] == len(KEPT)
    assert not running(JOB)
    eventually(lambda: not running(TEAM_JOB))
    assert [(found.kind, found.name) for found in cloud.inventory().other] == []
    assert _kept(emulated) == KEPT
    eventually(lambda: not api.list("v1", "Node"))
    eventually(lambda: _left(emulated) <= LEFT)
    assert _left(emulated) == LEFT

    with lifecycle.started(state, emulated.lines.append) as engine:
        del engine  # the running emulator, with settings of this test's own
        result = lifecycle.deploy(state, emulated.engine(ADOPT), emulated.lines.append)

    assert result.changes.get("import", 0) > 0
    assert kept.read_text() == "a checkpoint"
    assert set(emulated.engine(ADOPT).up(refresh=True).changes) == {"same"}

    without_adopt = emulated.engine(PEERED).up().changes  # sets what an import does not read back: labels

    assert (set(without_adopt), without_adopt["update"]) == ({"same", "update"}, len(KEPT))
    assert kept.read_text() == "a checkpoint"
    assert set(emulated.engine(PEERED).up(refresh=True).changes) == {"same"}


def _encrypted(found: Emulated, key: str, value: str) -> dict[str, str]:
    """A value of the stack file as `pulumi config set --secret` writes it."""
    file = found.state.path("pulumi", "encrypted.yaml")
    file.write_text(found.state.path("pulumi", "project", "Pulumi.local.yaml").read_text())
    where = ("--stack", "local", "--config-file", str(file))
    _run(found, str(found.state.path("bin", "pulumi")), "config", "set", "--secret", key, *where, given=value)
    return yaml.safe_load(file.read_text())["config"][key]


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""


def _peer(found: Emulated) -> None:
    """Builds inside the VPC: service networking comes, and the worker pool is made anew in it."""
    (before,) = found.cloud.list("cloudbuild/workerPool")

    changes = found.engine(PEERED).up().changes

    (after,) = found.cloud.list("cloudbuild/workerPool")
    assert (changes["replace"], changes.get("delete", 0)) == (1, 0)
    assert after.name != before.name
    assert "peeredNetwork" in after.body["privatePoolV1Config"]["networkConfig"]
    assert len(found.cloud.list("servicenetworking/connection")) == 1
    assert set(found.engine(PEERED).up().changes) == {"same"}


def _scale_workers(found: Emulated) -> None:
    """What Ray's autoscaler does for a job: its own patch of the replicas; then GKE brings the nodes."""
    cluster = next(iter(found.api.list(RAY, "RayCluster")))
    groups = cluster["spec"]["workerGroupSpecs"]
    for group in groups:
        group["replicas"] = NODES[group["groupName"]]
    found.api.merge(cluster, {"spec": {"workerGroupSpecs": groups}})
    eventually(lambda: len(_workers(found)) >= NODES["gpu"])
    eventually(lambda: len(found.api.list("v1", "Node")) > sum(NODES.values()))
    eventually(lambda: sum(_nodes_by_role(found).values()) > sum(NODES.values()))


def _fill_the_queue(found: Emulated) -> None:
    """The team's job that runs, then one that waits for its node, one that waits for quota, one that no queue takes."""
    write_atomically(
        found.state.path("limits.json"), json.dumps({"capacity": {"us-central1-b/flex-start": NODES["gpu"] + 1}})
    )
    _submit(found, "--queue", "--team", "vision", "--", *TEAM_JOB.split())
    eventually(lambda: found.api.list("v1", "Pod", "vision", labelSelector="ray.io/node-type=worker"))
    waits: dict[str, Callable[[], object]] = {
        "has-no-node": lambda: _says(found, "has-no-node", "Pending"),
        "has-no-quota": lambda: _says(found, "has-no-quota", "insufficient unused quota"),
        "has-no-queue": lambda: _says(found, "has-no-queue", "doesn't exist"),
    }
    for name, condition in waits.items():
        found.api.create(documented_job(name, 1, queue="nope" if name == "has-no-queue" else "gpu"))
        eventually(condition)


def _says(found: Emulated, job: str, words: str) -> bool:
    """Whether the Workload of a job says so, in a condition or in the check of its nodes."""
    workloads = found.api.list("kueue.x-k8s.io/v1beta2", "Workload", "ray")
    return any(
        words in json.dumps(one["status"])
        for one in workloads
        if one["metadata"]["name"].startswith(f"job-{job}-") and "status" in one
    )


def _nodes_by_role(found: Emulated) -> dict[str, int]:
    """What the instance groups of the node pools of each role have of machines, added up."""
    groups = [group.body for group in found.cloud.list(instance_groups.KIND)]
    return {role: sum(one["targetSize"] for one in groups if role in one["name"]) for role in (*NODES, "system")}


def _workers(found: Emulated) -> set[str]:
    pods = found.api.list("v1", "Pod", "ray", labelSelector="ray.io/group=gpu")
    return {pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") == "Running"}


def _pods(found: Emulated, namespace: str) -> list[Body]:
    return found.api.list("v1", "Pod", namespace)


def _left(found: Emulated) -> set[str]:
    """What is in the API server now and was not before the stack came, resource types apart."""
    return {
        named
        for named in objects(found.api) - found.empty
        if not (named.split()[1] in ("CustomResourceDefinition", "APIService") and named.endswith(TYPES))
    }


def _kept(found: Emulated) -> set[str]:
    """What is kept, by kind and last name; APIs and their agents, which never go, apart."""
    kept = [one for one in found.cloud.inventory().kept if not one.kind.startswith("serviceusage/")]
    return {f"{one.kind} {one.name}" for one in kept}


def _submit(found: Emulated, *command: str) -> None:
    done = found.workloads("submit", "--stack", "local", "--detach", *command)
    assert done.returncode == 0, done.stderr


def _bucket(found: Emulated, role: str) -> str:
    return next(item.name for item in found.cloud.list("storage/bucket") if item.name.endswith(role))


def _run(found: Emulated, *command: str, given: str = "") -> str:
    """A command of the user's, in the shell that `python -m emulator env` makes; what it printed."""
    done = subprocess.run(
        command, env=shell(found.state), cwd=CHECKOUT, input=given, capture_output=True, text=True, check=True
    )
    return done.stdout


def _service() -> Body:
    spec = {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"a": "b"}}
    return kubernetes_object("v1", "Service", "by-hand", spec, "default")


def _ray_job() -> Body:
    template = {"spec": {"containers": [{"name": "ray", "image": "rayproject/ray:2.60.0"}]}}
    cluster = {"rayVersion": "2.60.0", "headGroupSpec": {"rayStartParams": {}, "template": template}}
    spec = {"entrypoint": "sleep 1000", "shutdownAfterJobFinishes": True, "rayClusterSpec": cluster}
    return kubernetes_object(RAY, "RayJob", "by-hand", spec, "default")


def _tree() -> dict[str, str]:
    return {file.name: file.read_text() for file in CHECKOUT.glob("Pulumi*.yaml")}
