"""A stand-alone RayJob on the whole platform: the real KubeRay makes its cluster, a real Ray runs it, nothing stays."""

from __future__ import annotations

import signal
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from emulator.kubernetes.api import Body
from emulator.machine.state import State
from emulator.ray import job_clusters
from tests.emulator.conftest import PATIENCE_SECONDS, Emulated
from tests.support.waiting import eventually

pytestmark = pytest.mark.emulated

RAY, NAMESPACE = "ray.io/v1", "ray"

HELLO = """
import os, sys, ray
ray.init(logging_level="error")
print("cpus", ray.cluster_resources()["CPU"], "at", ray.get_runtime_context().gcs_address)
print(open("greeting.txt").read(), os.environ["WHO"])
print(ray.get(ray.remote(lambda: "from a worker").remote()))
sys.exit(42)
"""


def test_a_rayjob_runs_on_a_cluster_of_its_own_that_is_there_for_it_alone(emulated: Emulated, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    (tmp_path / "greeting.txt").write_text("hello")

    done = emulated.workloads(
        "submit",
        "--ray-job",
        "--working-dir",
        str(tmp_path),
        "--env",
        "WHO=world",
        "--",
        "python",
        "hello.py",
    )

    assert done.returncode == 42, done.stdout + done.stderr
    [job] = emulated.api.list(RAY, "RayJob", NAMESPACE)
    name, cluster = job["metadata"]["name"], job["status"]["rayClusterName"]
    lines = done.stdout.splitlines()
    [place] = [line for line in lines if line.startswith("cpus 2.0 at 127.0.0.1:")]
    assert not place.endswith(f":{emulated.state.port('ray-gcs')}")  # not the stack's own
    assert "hello world" in lines and "from a worker" in lines
    assert (job["status"]["jobStatus"], job["status"]["jobDeploymentStatus"]) == ("FAILED", "Failed")
    assert cluster.startswith(f"{name}-")
    assert _clusters(emulated) == ["oasis"]
    eventually(lambda: _left(emulated, cluster) == [])
    assert emulated.workloads("jobs", "attach", name).returncode == 42
    _delete(emulated, job)


def test_a_detached_rayjob_is_like_the_stack_s_cluster_and_stops_by_its_id(emulated: Emulated) -> None:
    submitted = emulated.workloads("submit", "--ray-job", "--detach", "--", "sleep", "1000")
    assert submitted.returncode == 0, submitted.stderr
    name = submitted.stdout.strip()
    [job] = emulated.api.list(RAY, "RayJob", NAMESPACE)
    eventually(lambda: _status(emulated, name).get("jobStatus") == "RUNNING")
    cluster = _status(emulated, name)["rayClusterName"]
    assert _ready_since(_pod(emulated, cluster)) > _started(emulated, cluster), "the head was ready before its Ray"
    assert _pod(emulated, cluster)["spec"]["serviceAccountName"] == "ray"
    assert _with_token(_pod(emulated, "oasis")) == _with_token(_pod(emulated, cluster)) == ["autoscaler"]
    assert {pod["metadata"]["labels"].get("ray.io/is-ray-node") for pod in _pods(emulated)} == {"yes"}  # no submitter
    ours, its = (_container(emulated, each) for each in ("oasis", cluster))
    assert ours["image"] == its["image"]
    assert {"/data", "/bucket", "/scratch", "/dev/shm"} <= _mounted(ours) == _mounted(its)
    eventually(lambda: _protected(emulated) == (2, 0))  # heads, and those that may be disturbed
    assert name in emulated.workloads("jobs", "list").stdout

    stopped = emulated.workloads("jobs", "stop", name)

    assert stopped.returncode == 0, stopped.stderr
    assert _status(emulated, name)["jobStatus"] == "STOPPED"
    eventually(lambda: _left(emulated, cluster) == [])
    _delete(emulated, job)
    eventually(lambda: _clusters(emulated) == ["oasis"])


def test_ctrl_c_while_the_cluster_comes_up_leaves_nothing(emulated: Emulated) -> None:
    before = [job["metadata"]["name"] for job in emulated.api.list(RAY, "RayJob", NAMESPACE)]
    client = emulated.start_workloads("submit", "--ray-job", "--", "sleep", "1000")
    eventually(lambda: len(_clusters(emulated)) == 2)
    [cluster] = set(_clusters(emulated)) - {"oasis"}

    client.send_signal(signal.SIGINT)

    _, said = client.communicate(timeout=PATIENCE_SECONDS)
    assert client.returncode == 130, said
    assert [job["metadata"]["name"] for job in emulated.api.list(RAY, "RayJob", NAMESPACE)] == before
    # A Ray that was being started when its cluster went is ended at its next line of progress.
    eventually(lambda: _left(emulated, cluster) == [])


def _delete(found: Emulated, job: Body) -> None:
    """Delete a RayJob and wait until it is gone: KubeRay holds it by a finalizer until it has looked at it again."""
    found.api.delete(job)
    eventually(lambda: found.api.get(RAY, "RayJob", job["metadata"]["name"], NAMESPACE) is None)


def _clusters(found: Emulated) -> list[str]:
    return sorted(cluster["metadata"]["name"] for cluster in found.api.list(RAY, "RayCluster"))


def _status(found: Emulated, name: str) -> Body:
    return (found.api.get(RAY, "RayJob", name, NAMESPACE) or {}).get("status", {})


def _pod(found: Emulated, cluster: str) -> Body:
    [pod] = found.api.list("v1", "Pod", NAMESPACE, labelSelector=f"ray.io/cluster={cluster},ray.io/node-type=head")
    return pod


def _ready_since(pod: Body) -> float:
    [ready] = [condition for condition in pod["status"]["conditions"] if condition["type"] == "Ready"]
    assert ready["status"] == "True"
    return datetime.fromisoformat(ready["lastTransitionTime"]).timestamp()


def _started(found: Emulated, cluster: str) -> float:
    """When the first process of a RayJob's Ray began."""
    processes = State(found.state.path(job_clusters.FOLDER, cluster)).processes()
    return min(psutil.Process(process.pid).create_time() for process in processes)


def _pods(found: Emulated) -> list[Body]:
    return found.api.list("v1", "Pod", NAMESPACE)


def _with_token(pod: Body) -> list[str]:
    """Containers of a pod that have a Kubernetes token."""
    tokens = {
        volume["name"]
        for volume in pod["spec"]["volumes"]
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", ()))
    }
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
    return [each["name"] for each in containers if {mount["name"] for mount in each["volumeMounts"]} & tokens]


def _container(found: Emulated, cluster: str) -> Body:
    return _pod(found, cluster)["spec"]["containers"][0]


def _mounted(container: Body) -> set[str]:
    return {mount["mountPath"] for mount in container["volumeMounts"]}


def _protected(found: Emulated) -> tuple[int, int]:
    [budget] = found.api.list("policy/v1", "PodDisruptionBudget", NAMESPACE)
    return budget["status"].get("currentHealthy", 0), budget["status"].get("disruptionsAllowed", 0)


def _left(found: Emulated, cluster: str) -> list[str]:
    """What of a RayJob's cluster is still there: objects, and the Ray behind it."""
    selector = f"ray.io/cluster={cluster}"
    kinds = (("v1", "Pod"), ("v1", "Service"), ("v1", "Secret"))
    objects = [kind for version, kind in kinds if found.api.list(version, kind, NAMESPACE, labelSelector=selector)]
    forwards = found.api.list("kwok.x-k8s.io/v1alpha1", "PortForward", NAMESPACE)
    named = [item["metadata"]["name"] for item in forwards]
    rays = [folder.name for folder in (found.state.directory / job_clusters.FOLDER).glob("*")]
    return [*objects, *(name for name in named if cluster in name), *(name for name in rays if name == cluster)]
