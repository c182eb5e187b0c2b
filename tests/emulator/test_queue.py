"""Queued jobs on the whole platform: the real Kueue and the real KubeRay, on a GKE that brings all nodes or none."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from emulator.kubernetes.api import Body
from emulator.machine.state import write_atomically
from tests.emulator.conftest import PATIENCE_SECONDS, Emulated, shell
from tests.support.queued_jobs import documented_job
from tests.support.waiting import eventually

pytestmark = pytest.mark.emulated

RAY, KUEUE, REQUESTS = "ray.io/v1", "kueue.x-k8s.io/v1beta2", "autoscaling.x-k8s.io/v1"
NAMESPACE, POOL = "ray", "cloud.google.com/gke-nodepool"
WHERE = """
import sys, ray
ray.init(logging_level="error")
print(len(ray.nodes()), "nodes at", ray.get_runtime_context().gcs_address)
sys.exit(42)
"""
ONE_NODE = {"capacity": {"us-central1-b/flex-start": 1}}


@pytest.fixture(autouse=True)
def nothing_stays(emulated: Emulated) -> Iterator[None]:
    """Each test has the queue and its nodes for itself, and leaves nothing there."""
    eventually(lambda: not _nodes(emulated))
    yield
    _limits(emulated).unlink(missing_ok=True)
    for kind in ((RAY, "RayJob"), ("batch/v1", "Job")):
        for found in emulated.api.list(*kind, NAMESPACE):
            emulated.api.delete(found, "Foreground")
    eventually(lambda: emulated.api.list(KUEUE, "Workload") == [])
    eventually(lambda: emulated.api.list(REQUESTS, "ProvisioningRequest") == [])


def test_two_nodes_come_together_or_not_at_all_and_the_job_runs_on_its_own_ray(
    emulated: Emulated, tmp_path: Path
) -> None:
    write_atomically(_limits(emulated), json.dumps(ONE_NODE))
    (tmp_path / "where.py").write_text(WHERE)
    words = ("--queue", "--nodes", "2", "--working-dir", str(tmp_path), "--", "python3", "where.py")
    client = emulated.start_workloads("submit", *words)

    request = _the_request(emulated)
    [pods] = request["spec"]["podSets"]
    assert pods["count"] == 2
    eventually(lambda: "GCE out of resources" in _waits_for(emulated))
    assert not _nodes(emulated), "a node was bought for half a job"
    [waiting] = [line for line in emulated.workloads("jobs", "list").stdout.splitlines() if " QUEUED " in line]
    assert waiting.split()[0] in emulated.workloads("jobs", "logs", waiting.split()[0]).stderr

    _limits(emulated).unlink()
    eventually(lambda: _placed(emulated) == 2)
    first, second = sorted(datetime.fromisoformat(born) for born in _nodes(emulated).values())
    assert second - first <= timedelta(seconds=10), "the nodes did not come at once"
    out, told = client.communicate(timeout=PATIENCE_SECONDS)

    assert client.returncode == 42, out + told
    assert "GCE out of resources" in told
    assert re.search(r"^3 nodes at 127\.0\.0\.1:", out, re.MULTILINE), out
    assert f":{emulated.state.port('ray-gcs')}" not in out  # not the stack's own
    assert not _staged(emulated)
    eventually(lambda: not _nodes(emulated))


def test_a_plain_job_gets_both_nodes_or_none_and_the_next_job_waits_behind_it_whoever_is_there(
    emulated: Emulated,
) -> None:
    write_atomically(_limits(emulated), json.dumps(ONE_NODE))
    job = documented_job()
    emulated.api.create(job)
    eventually(lambda: "GCE out of resources" in _waits_for(emulated))
    assert (_nodes(emulated), _placed(emulated, "job-name=gang")) == ({}, 0)

    _limits(emulated).unlink()

    eventually(lambda: _placed(emulated, "job-name=gang") == 2)
    assert len(_nodes(emulated)) == 2
    screen = emulated.workloads("status").stdout
    assert re.search(r"^2 GPU nodes on, up to [\d.]+ USD an hour at list price$", screen, re.MULTILINE), screen
    assert screen.count(f"{NAMESPACE}/gang-") == 2

    client = emulated.start_workloads("submit", "--queue", "--", "python3", "-c", "raise SystemExit(7)")
    eventually(lambda: _jobs(emulated))
    [second] = _jobs(emulated)
    eventually(lambda: "behind gang, which has 2 nodes" in emulated.workloads("jobs", "logs", second).stderr)
    client.kill()
    client.communicate()
    emulated.api.delete(job, "Foreground")

    followed = emulated.workloads("jobs", "attach", second)

    assert followed.returncode == 7, followed.stdout + followed.stderr
    assert not _staged(emulated)


def test_what_idles_is_ended_once_that_was_seen_long_enough_and_goes_on_when_told_to(emulated: Emulated) -> None:
    selectors = {"sleeper": "job-name=sleeper", "mine": "ray.io/cluster=mine,ray.io/group=gpu"}
    emulated.api.create(documented_job("sleeper", 1))
    mine = emulated.api.create(_cluster_of_a_user(emulated))
    utilisation = emulated.state.path("utilisation.json")
    try:
        eventually(lambda: all(_running(emulated, selector) for selector in selectors.values()))
        assert "2 young" in emulated.workloads("idle", "--end").stdout
        for selector in selectors.values():
            _backdate(emulated, selector)
        assert "2 not seen; " in emulated.workloads("idle", "--end").stdout
        write_atomically(utilisation, json.dumps({f"{NAMESPACE}/{name}-*": 0 for name in selectors}))
        eventually(lambda: emulated.workloads("idle").stdout.count(" suspend it: ") == 2)
        assert all(_running(emulated, selector) for selector in selectors.values())

        ended = emulated.workloads("idle", "--end")

        assert ended.returncode == 0, ended.stdout + ended.stderr
        eventually(lambda: not emulated.api.list("v1", "Pod", NAMESPACE, labelSelector="ray.io/cluster=mine"))
        eventually(lambda: not _nodes(emulated))
        for whose, name in (("Job", "sleeper"), ("RayCluster", "mine")):
            [undone] = re.findall(rf"^ended {whose} ray/{name}; `(.*)` has it go on$", ended.stdout, re.MULTILINE)
            subprocess.run(shlex.split(undone), env=shell(emulated.state), check=True, timeout=PATIENCE_SECONDS)
            eventually(lambda name=name: _running(emulated, selectors[name]))
    finally:
        utilisation.unlink(missing_ok=True)
        emulated.api.delete(mine, "Foreground")


def test_ctrl_c_takes_a_job_out_of_the_queue(emulated: Emulated) -> None:
    write_atomically(_limits(emulated), json.dumps(ONE_NODE))
    client = emulated.start_workloads("submit", "--queue", "--nodes", "2", "--working-dir", "docs", "--", "true")
    _the_request(emulated)
    assert _staged(emulated)

    client.send_signal(signal.SIGINT)
    _, told = client.communicate(timeout=PATIENCE_SECONDS)

    assert client.returncode == 130, told
    assert _jobs(emulated) == []
    assert not _staged(emulated)


def _cluster_of_a_user(found: Emulated) -> Body:
    """A RayCluster like the stack's, of a fixed size: one GPU worker."""
    [own] = found.api.list(RAY, "RayCluster", NAMESPACE)
    [gpu] = [group for group in own["spec"]["workerGroupSpecs"] if group["groupName"] == "gpu"]
    workers = {**gpu, "replicas": 1, "minReplicas": 1, "maxReplicas": 1}
    spec = {**own["spec"], "enableInTreeAutoscaling": False, "workerGroupSpecs": [workers]}
    metadata = {"name": "mine", "namespace": NAMESPACE}
    return {"apiVersion": RAY, "kind": "RayCluster", "metadata": metadata, "spec": spec}


def _running(found: Emulated, selector: str) -> list[Body]:
    pods = found.api.list("v1", "Pod", NAMESPACE, labelSelector=selector)
    return [pod for pod in pods if pod["status"].get("phase") == "Running"]


def _backdate(found: Emulated, selector: str) -> None:
    """Have pods run since an hour ago."""
    began = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for pod in _running(found, selector):
        statuses = [{**one, "state": {"running": {"startedAt": began}}} for one in pod["status"]["containerStatuses"]]
        found.api.merge(pod, {"status": {"containerStatuses": statuses}}, subresource="status")


def _the_request(found: Emulated) -> Body:
    eventually(lambda: found.api.list(REQUESTS, "ProvisioningRequest", NAMESPACE))
    [request] = found.api.list(REQUESTS, "ProvisioningRequest", NAMESPACE)
    return request


def _waits_for(found: Emulated) -> str:
    conditions = _the_request(found).get("status", {}).get("conditions") or []
    return " ".join(entry["message"] for entry in conditions if entry["type"] == "Provisioned")


def _limits(found: Emulated) -> Path:
    return found.state.path("limits.json")


def _nodes(found: Emulated) -> dict[str, str]:
    """When each queued node came, of those that are there, and so billed."""
    return {
        node["metadata"]["name"]: node["metadata"]["creationTimestamp"]
        for node in found.api.list("v1", "Node")
        if "queued" in node["metadata"]["labels"].get(POOL, "")
    }


def _placed(found: Emulated, selector: str = "ray.io/group=gpu") -> int:
    """Pods that run on queued nodes."""
    queued = _nodes(found)
    pods = found.api.list("v1", "Pod", NAMESPACE, labelSelector=selector)
    return sum(pod["spec"].get("nodeName") in queued and pod["status"]["phase"] == "Running" for pod in pods)


def _jobs(found: Emulated) -> list[str]:
    return [job["metadata"]["name"] for job in found.api.list(RAY, "RayJob", NAMESPACE)]


def _staged(found: Emulated) -> list[str]:
    """Working directories of queued jobs in the runs bucket."""
    return [str(file) for file in found.state.directory.glob("buckets/*-runs/.queued/**/*") if file.is_file()]
