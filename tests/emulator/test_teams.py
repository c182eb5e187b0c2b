"""Teams on the whole platform: what each may do, how lent nodes come back, and that no team goes with jobs in hand."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from emulator.kubernetes.api import Body
from emulator.machine.state import EmulatorError
from tests.emulator.conftest import Emulated, shell
from tests.support.queued_jobs import PRIORITY, QUEUE, documented_job, queued_ray_job
from tests.support.waiting import eventually

pytestmark = pytest.mark.emulated

RAY, KUEUE = "ray.io/v1", "kueue.x-k8s.io/v1beta2"
ANN, BOB = "ann@example.com", "bob@example.com"
PAINTERS, EVERYBODY = "painters@example.com", "system:authenticated"
TEAMS = {
    "oasis:cluster": {"security_group": "gke-security-groups@example.com"},
    "oasis:teams": [
        {"name": "vision", "gpu_nodes": 1, "members": [f"user:{ANN}", f"group:{PAINTERS}"]},
        {"name": "speech", "gpu_nodes": 1, "members": [f"user:{BOB}"]},
    ],
}
WHERE = "import os; print('here', os.environ['OASIS_RAY_NAMESPACE'], os.environ['OASIS_RUNS_URI'])"

MAY = {
    ("create", "ray.io", "rayjobs"): True,
    ("delete", "ray.io", "rayjobs"): True,
    ("create", "batch", "jobs"): True,
    ("get", "", "pods/log"): True,
    ("create", "", "pods/portforward"): True,
    ("list", "kueue.x-k8s.io", "workloads"): True,
    ("get", "", "secrets"): True,  # tokens of its own jobs' clusters; there are no others
    ("list", "", "secrets"): False,
    ("create", "", "pods"): False,
    ("create", "", "pods/exec"): False,
    ("create", "ray.io", "rayclusters"): False,
    ("patch", "ray.io", "rayclusters"): False,
    ("create", "kueue.x-k8s.io", "localqueues"): False,
    ("patch", "kueue.x-k8s.io", "workloads"): False,
    ("create", "rbac.authorization.k8s.io", "rolebindings"): False,
    ("patch", "", "configmaps"): False,
    ("create", "", "serviceaccounts/token"): False,
    ("delete", "networking.k8s.io", "networkpolicies"): False,
}
"""What a member may do in the team's namespace: verb, API group, resource."""

CLUSTER_WIDE = (
    ("patch", "kueue.x-k8s.io", "clusterqueues"),
    ("create", "kueue.x-k8s.io", "workloadpriorityclasses"),
    ("delete", "admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("list", "", "nodes"),
)


@pytest.fixture(scope="module")
def teams(emulated: Emulated) -> Iterator[Emulated]:
    """The platform with two teams, which go again."""
    emulated.engine(TEAMS).up()
    yield emulated
    for namespace in ("vision", "speech"):
        for kind in ((RAY, "RayJob"), ("batch/v1", "Job")):
            for found in emulated.api.list(*kind, namespace):
                emulated.api.delete(found, "Foreground")
    eventually(lambda: emulated.api.list(KUEUE, "Workload") == [])
    emulated.engine().up()
    assert not [found for found in emulated.api.list("v1", "Namespace") if found["metadata"]["name"] == "vision"]


def test_a_member_may_use_the_team_s_namespace_and_no_other(teams: Emulated) -> None:
    for home, user in (("vision", ANN), ("speech", BOB), ("", "eve@example.com")):
        for namespace in ("vision", "speech", "ray", "kueue-system", "default"):
            for (verb, group, resource), may in MAY.items():
                allowed = _allowed(teams, user, verb, group, resource, namespace)
                assert allowed == (may and namespace == home), (user, verb, resource, namespace)
        assert not any(_allowed(teams, user, *asked) for asked in CLUSTER_WIDE)
    asked = ("eve@example.com", "create", "batch", "jobs", "vision")
    assert _allowed(teams, *asked, of=PAINTERS) and not _allowed(teams, *asked)


@pytest.mark.parametrize(
    ("labels", "metadata", "refused_by"),
    [
        ({}, {}, ""),
        ({QUEUE: None}, {}, "jobs of vision wait in its queue"),
        ({QUEUE: "another"}, {}, "jobs of vision wait in its queue"),
        ({PRIORITY: "speech"}, {}, f"set the label {PRIORITY} to vision"),
        ({PRIORITY: None}, {}, f"set the label {PRIORITY} to vision"),
        ({}, {"annotations": {"kueue.x-k8s.io/elastic-job": "true"}}, "a queued job has a fixed size"),
    ],
)
@pytest.mark.parametrize("kind", ["Job", "RayJob"])
def test_a_member_s_job_waits_in_the_team_s_own_queue_or_is_refused(
    teams: Emulated, kind: str, labels: dict[str, str | None], metadata: dict[str, Any], refused_by: str
) -> None:
    job = documented_job("asked", 1, "vision") if kind == "Job" else queued_ray_job("asked", "vision")
    changed = {**job["metadata"]["labels"], **labels}
    job["metadata"] |= {"labels": {key: value for key, value in changed.items() if value}, **metadata}

    done = _as_ann(teams, job, "create", "--dry-run=server")

    assert (done.returncode == 0) == (refused_by == ""), done.stderr
    assert refused_by in done.stderr


def test_a_member_s_job_is_no_part_of_another_and_does_not_leave_the_queue(teams: Emulated) -> None:
    first = documented_job("first", 3, "vision")  # more nodes than there are: it waits
    owner = {"kind": "Job", "name": "first", "uid": teams.api.create(first)["metadata"]["uid"], "controller": True}
    for job in (documented_job("second", 1, "vision"), queued_ray_job("second", "vision")):
        job["metadata"]["ownerReferences"] = [{"apiVersion": "batch/v1", **owner}]
        assert "a job is nobody's part" in _as_ann(teams, job, "create", "--dry-run=server").stderr
    patch = json.dumps({"metadata": {"labels": {QUEUE: None}}})
    changed = _as_ann(teams, first, "patch", "--type", "merge", "--patch", patch)
    assert "jobs of vision wait in its queue" in changed.stderr
    teams.api.delete(first, "Foreground")


def test_what_holds_a_team_is_written_for_what_it_judges(teams: Emulated) -> None:
    def judged() -> list[Body]:
        policies = teams.api.list("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy")
        ours = [found for found in policies if found["metadata"]["name"].startswith("oasis-team-")]
        return [found["status"]["typeChecking"] for found in ours if "typeChecking" in found.get("status", {})]

    eventually(lambda: len(judged()) == 5 * len(TEAMS["oasis:teams"]))
    assert not any(judged())  # no expression has a type that what it judges has not


def _as_ann(found: Emulated, body: Body, *words: str) -> subprocess.CompletedProcess[str]:
    asked = ("kubectl", "--as", ANN, *words, "-f", "-")
    return subprocess.run(asked, env=shell(found.state), input=json.dumps(body), capture_output=True, text=True)


def test_lent_nodes_come_back_to_their_team_and_the_job_that_had_them_runs_again(teams: Emulated) -> None:
    borrower, owner = documented_job("borrower", 2, "vision"), documented_job("owner", 1, "speech")
    teams.api.create(borrower)
    eventually(lambda: _running(teams, "vision") == 2)  # one node of its own, one of the others'

    teams.api.create(owner)

    eventually(lambda: _running(teams, "speech") == 1)
    assert _running(teams, "vision") == 0
    [workload] = teams.api.list(KUEUE, "Workload", "vision")
    [evicted] = [one for one in workload["status"]["conditions"] if one["type"] == "Evicted"]
    assert evicted["reason"] == "Preempted"
    with pytest.raises(EmulatorError, match=r"the queue of speech is to go, and these jobs are in it or run: speech/"):
        teams.engine({"oasis:cluster": TEAMS["oasis:cluster"]}).up()
    assert set(teams.engine(TEAMS).up().changes) == {"same"}  # nothing was taken from anybody

    teams.api.delete(owner, "Foreground")

    eventually(lambda: _running(teams, "vision") == 2)
    teams.api.delete(borrower, "Foreground")
    eventually(lambda: teams.api.list(KUEUE, "Workload") == [])


def test_a_team_s_job_has_a_ray_of_its_own_and_its_folder_of_the_bucket(teams: Emulated) -> None:
    job = ("submit", "--team", "vision", "--queue", "--", "python3", "-c", WHERE)
    done = teams.workloads(*job)

    assert done.returncode == 0, done.stdout + done.stderr
    [bucket] = [one.name for one in teams.cloud.list("storage/bucket") if one.name.endswith("-runs")]
    assert f"here vision gs://{bucket}/teams/vision" in done.stdout
    name = teams.workloads("jobs", "list", "--team", "vision").stdout.split("\n")[1].split()[0]
    assert name not in teams.workloads("jobs", "list").stdout
    assert teams.workloads("jobs", "attach", name, "--team", "vision").returncode == 0
    assert "up to 2 GPU nodes" in teams.workloads("status", "--team", "vision").stdout
    refused = {
        ("submit", "--team", "vision", "--", "true"): "Add --queue",
        ("submit", "--team", "vison", "--queue", "--", "true"): "has no team vison",
        ("submit", "--team", "ray", "--queue", "--", "true"): "has no team ray",
        ("submit", "--team", "vision", "--queue", "--nodes", "3", "--", "true"): "can have 2 nodes together",
        ("jobs", "stop", "nothing", "--team", "vision"): "Team vision has no job nothing",
    }
    with ThreadPoolExecutor() as at_once:  # each waits for kubectl more than it works
        found = at_once.map(lambda words: teams.workloads(*words), refused)
        for done, said in zip(found, refused.values(), strict=True):
            assert done.returncode != 0 and said in done.stderr, done.stderr


def _allowed(
    found: Emulated, user: str, verb: str, group: str, resource: str, namespace: str = "", of: str = EVERYBODY
) -> bool:
    """The API server's own answer, by roles, to whether somebody of a group may do something."""
    kind, _, below = resource.partition("/")
    asked = {"verb": verb, "group": group, "resource": kind, "subresource": below, "namespace": namespace}
    spec = {"user": user, "groups": [of], "resourceAttributes": asked}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = found.api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=body)
    return bool(answer["status"]["allowed"])


def _running(found: Emulated, namespace: str) -> int:
    return len(found.api.list("v1", "Pod", namespace, fieldSelector="status.phase=Running"))
