"""The watchdog against idle GPUs, with kubectl's words and the emulated Google's metrics."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from emulator.google import policies
from emulator.google.callers import Identity, set_identity
from tests.emulator.google import PROJECT, Google, enable, lead_clients_to, served
from tests.support import fake_ray, stub_kubectl
from tests.support.fake_ray import TOKEN, FakeRay
from tests.support.stub_kubectl import OUTPUTS
from workloads import __main__ as command_line
from workloads.idle import command, utilisation
from workloads.idle.utilisation import DUTY_CYCLE

CALLER = "user:member@example.com"
MONITORING = "monitoring.googleapis.com"
QUEUED = [{"key": "cloud.google.com/gke-queued", "operator": "Exists"}]
IDLE, BUSY = [0] * 90, [97] * 90
"""What one GPU did in each of the last minutes, the newest first."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    with served(tmp_path_factory.mktemp("google")) as google:
        yield google


@dataclass
class Cluster:
    """A stack's cluster, with its pods and what their GPUs did."""

    google: Google
    ray: FakeRay
    folder: Path
    pods: list[dict[str, Any]]
    objects: dict[str, Any]
    workloads: list[dict[str, Any]]

    def pod(
        self,
        name: str,
        gpus: Sequence[list[int]] = (),
        *,
        owner: tuple[str, str] = ("", ""),
        minutes: float = 90,
        namespace: str = "ray",
        address: str = "",
        tolerations: Sequence[Any] = (),
    ) -> None:
        """A pod with 8 GPUs, on a node of its own, of which `gpus` are seen by Cloud Monitoring."""
        owners = [{"kind": owner[0], "name": owner[1], "uid": f"uid of {owner[1]}", "controller": True}]
        limits = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
        state = {"running": {"startedAt": _written(time.time() - 60 * minutes)}}
        self.pods.append(
            {
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "ownerReferences": owners if owner[0] else []},
                "spec": {
                    "nodeName": f"node-of-{name}",
                    "containers": [{"name": "main", **limits}],
                    "tolerations": [*tolerations],
                },
                "status": {
                    "phase": "Running",
                    "podIP": address,
                    "containerStatuses": [{"name": "main", "state": state}],
                },
            }
        )
        self.saw(name, gpus, namespace)

    def saw(self, pod: str, gpus: Sequence[list[int]], namespace: str = "ray") -> None:
        labels = {"cluster_name": "oasis", "location": "us-central1", "namespace_name": namespace, "pod_name": pod}
        for number, values in enumerate(gpus):
            times = [_written(time.time() - 60 * back - 1) for back in range(len(values))]
            body = {
                "metric": {"type": DUTY_CYCLE, "labels": {"accelerator_id": str(number)}},
                "resource": {"type": "k8s_container", "labels": labels},
                "points": [
                    {"interval": {"startTime": at, "endTime": at}, "value": {"int64Value": str(value)}}
                    for at, value in zip(times, values, strict=True)
                    if value >= 0
                ],
            }
            name = f"projects/{PROJECT}/timeSeries/{namespace}.{pod}.{number}"
            self.google.cloud.put("monitoring/timeSeries", name, body)

    def idle(self, *words: str) -> int:
        at = replace(OUTPUTS, ray_dashboard_url=self.ray.url)
        known = {"pods": self.pods, "objects": self.objects, "others": self.workloads}
        stub_kubectl.install(self.folder, at, TOKEN, self.ray.port, **known)
        return command_line.main(["idle", *words])

    def changes(self) -> list[list[str]]:
        """What kubectl was told to change."""
        calls = [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]
        return [words[2:] for words in calls if {"patch", "delete", "create"} & set(words)]


@pytest.fixture
def cluster(server: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    lead_clients_to(server, monkeypatch)
    enable(server.cloud, "monitoring.googleapis.com")
    set_identity(server.cloud, Identity(project=PROJECT, zone="us-central1-a", principal=""))
    for series in server.cloud.list("monitoring/timeSeries"):
        server.cloud.delete(series.kind, series.name)
    with fake_ray.standing(tmp_path, monkeypatch) as ray:
        yield Cluster(server, ray, tmp_path, [], {}, [])


def test_only_what_was_seen_to_idle_for_the_whole_time_is_idle(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = utilisation._answer

    def paged(session: Any, project: str, asked: dict[str, str]) -> dict[str, Any]:
        """Some of the 90 series, each in two parts, as a page of Google's may end amid one."""
        page = answer(session, project, asked | {"pageSize": "30"})
        parts = [(one, part) for one in page["timeSeries"] for part in (one["points"][:15], one["points"][15:]) if part]
        return {**page, "timeSeries": [{**one, "points": part} for one, part in parts]}

    monkeypatch.setattr(utilisation, "_answer", paged)
    late = [0] * 5 + [-1] * 85  # the others have not arrived
    expected = {
        "idle-all-the-time": ("idle", [IDLE] * 8),
        "idle-since-it-was-busy": ("idle", [[0] * 40 + [99] * 50] * 8),
        "a-little-at-work": ("idle", [[4] * 90] * 8),
        "one-gpu-of-eight-is-busy": ("busy", [*[IDLE] * 7, BUSY]),
        "busy-for-one-minute": ("busy", [[0] * 28 + [5] + [0] * 61] * 8),
        "not-seen-at-all": ("not seen", []),
        "seven-gpus-seen": ("not seen", [IDLE] * 7),
        "seen-for-five-minutes": ("not seen", [late] * 8),
        "seen-in-another-namespace": ("not seen", []),
        "young": ("young", [IDLE] * 8),
        "not-begun": ("young", [IDLE] * 8),
    }
    for name, (_, gpus) in expected.items():
        cluster.pod(name, gpus, owner=("Job", name), minutes=29 if name == "young" else 90)
    cluster.pods[-1]["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "ContainerCreating"}}
    cluster.saw("seen-in-another-namespace", [IDLE] * 8, "vision")
    cluster.pod("ends", [IDLE] * 8, owner=("Job", "ends"))
    cluster.pods[-1]["metadata"]["deletionTimestamp"] = _written(time.time())

    assert cluster.idle() == 0

    table = capsys.readouterr().out.splitlines()[1:]
    found = {
        match[1]: match[2] for row in table if (match := re.search(r"^Job ray/(\S+).* (idle|busy|young|not seen)", row))
    }
    assert found == {name: verdict for name, (verdict, _) in expected.items()}
    assert [row for row in table if "--" in row] == [] and cluster.changes() == []
    assert re.search(r"8 +1 +1:30:0\d +4 % +51\.40 +idle +suspend it", next(row for row in table if "a-little" in row))


def test_without_anything_idle_one_line_says_what_there_is(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.idle() == 0 and capsys.readouterr().out == "nobody has GPUs\n"
    cluster.pod("b", [BUSY] * 8, owner=("Job", "b"))
    cluster.pod("n", owner=("Job", "n"))
    assert cluster.idle("--end", "--for", "1h", "--under", "10%") == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "no GPUs idle, under 10 % for 1h, of 2 holders: 1 busy, 1 not seen; Job ray/n: Cloud Monitoring has no metric, "
        "or too little, of 8 GPUs"
    ]
    assert cluster.changes() == []


def test_what_idles_is_ended_so_that_it_can_go_on_and_nothing_else_is(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, queue in (("plain", {}), ("queued", {"kueue.x-k8s.io/queue-name": "gpu"})):
        cluster.pod(name, [IDLE] * 8, owner=("Job", name), tolerations=QUEUED if queue else ())
        cluster.objects[f"job/{name}"] = {"metadata": {"name": name, "labels": queue}}
    owner = {"name": "queued", "uid": "uid of queued"}
    metadata = {"name": "job-queued-12345", "creationTimestamp": "2026-11-28T10:00:00Z", "ownerReferences": [owner]}
    cluster.workloads.append({"metadata": metadata, "spec": {}})
    cluster.pod("m-gpu-1", [IDLE] * 8, owner=("RayCluster", "mine"))
    cluster.pod("m-gpu-2", [IDLE] * 8, owner=("RayCluster", "mine"))
    cluster.objects["raycluster/mine"] = {"metadata": {"name": "mine", "uid": "4"}, "spec": {}}
    cluster.pod("half-1", [IDLE] * 8, owner=("RayCluster", "half"))
    cluster.pod("half-2", [BUSY] * 8, owner=("RayCluster", "half"))
    cluster.objects["raycluster/half"] = {"metadata": {"name": "half", "uid": "5"}, "spec": {}}
    cluster.pod("theirs", [IDLE] * 8, owner=("Job", "theirs"), namespace="vision")
    cluster.pod("notebook", [IDLE] * 8)

    assert cluster.idle("--end", "--for", "1h") == 0

    said, workload = capsys.readouterr().out, "workloads.kueue.x-k8s.io"
    assert cluster.changes() == [
        ["patch", "job", "plain", "--type", "merge", "--patch", '{"spec": {"suspend": true}}'],
        ["patch", workload, "job-queued-12345", "--type", "merge", "--patch", '{"spec": {"active": false}}'],
        ["patch", "raycluster", "mine", "--type", "merge", "--patch", '{"spec": {"suspend": true}}'],
    ]
    assert (
        'ended RayCluster ray/mine; `kubectl --namespace ray patch raycluster mine --type merge --patch \'{"spec": '
        '{"suspend": false}}\'` has it go on' in said
    )
    assert re.search(r"^RayCluster ray/mine +16 +2 .* 102\.80 +idle", said, re.MULTILINE)
    assert re.search(r"^RayCluster ray/half +16 +2 .* 97 % .* busy$", said, re.MULTILINE)
    assert re.search(r"^Job ray/queued .* 42\.40 ", said, re.MULTILINE)
    assert re.search(r"^Job vision/theirs .* nothing: vision is not this Ray's namespace", said, re.MULTILINE)
    assert re.search(r"^Pod ray/notebook .* nothing: ", said, re.MULTILINE)


def test_an_idle_ray_job_is_stopped_with_its_cluster_and_how_to_go_on_is_said(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster.folder / "rayjobs").mkdir()
    spec = {
        "submissionMode": "InteractiveMode",
        "jobId": "x",
        "entrypoint": "python -m workloads train --run mine",
        "ttlSecondsAfterFinished": 600,
    }
    status = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "rayClusterName": "x-abcde"}
    body = {"metadata": {"name": "x", "uid": "3"}, "spec": spec, "status": status}
    (cluster.folder / "rayjobs" / "x.json").write_text(json.dumps(body))
    cluster.pod("x-gpu-1", [IDLE] * 8, owner=("RayCluster", "x-abcde"))

    assert cluster.idle("--end", "--for", "1h") == 0

    said = capsys.readouterr().out
    assert cluster.ray.stopped and re.search(r"^RayJob ray/x .* stop it and remove its cluster$", said, re.MULTILINE)
    assert cluster.changes()[-1][:-1] == ["patch", "rayjob", "x", "--type", "merge", "--patch"]
    resumed = "`python -m workloads submit --ray-job -- train --run mine` goes on from its last checkpoint"
    assert f"ended RayJob ray/x; {resumed}" in said


@pytest.mark.thorough
def test_of_the_stacks_own_cluster_the_jobs_whose_every_pod_idles_are_stopped(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = {"a": "10.0.0.5", "b": "10.0.0.6", "c": "10.0.0.7"}
    cluster.ray.state["nodes"] = [{"node_id": of, "node_ip": at, "state": "ALIVE"} for of, at in nodes.items()]
    actor = {"job_id": "01000000", "required_resources": {"GPU": 1.0}, "state": "ALIVE"}
    bundle = {"unit_resources": {"GPU": 8.0}, "node_id": "b"}
    group = {"creator_job_id": "01000000", "state": "CREATED", "bundles": [bundle]}
    cluster.ray.state |= {"actors": [{**actor, "node_id": "a"}], "placement_groups": [group]}

    def had(job: float, group_placed: float) -> None:
        """Minutes since the job was submitted, and since its placement group was placed, ten seconds after asking."""
        cluster.ray.minutes = job
        asked = int((time.time() - 60 * group_placed - 10) * 1e9)
        # As Ray writes numbers of 64 bits.
        group["stats"] = {"creation_request_received_ns": str(asked), "end_to_end_creation_latency_us": "10000000"}

    had(60, 60)
    for node, address in nodes.items():
        cluster.pod(f"oasis-{node}", [IDLE] * 8, owner=("RayCluster", "oasis"), address=address)
    cluster.saw("oasis-b", [BUSY])

    assert cluster.idle("--end") == 0
    said = capsys.readouterr().out
    assert not cluster.ray.stopped and re.search(r"^job ray/x +16 +2 .* busy$", said, re.MULTILINE), said
    assert re.search(r"^RayCluster ray/oasis +8 +1 .* nothing: no job holds them", said, re.MULTILINE)

    cluster.saw("oasis-b", [IDLE])
    unknown = {**actor, "job_id": "02000000", "node_id": "c"}
    cluster.ray.state["actors"].append(unknown)
    assert cluster.idle("--end") == 0
    said = capsys.readouterr().out
    assert not cluster.ray.stopped and "nothing: held by something outside Ray's jobs" in said

    cluster.ray.state["actors"].remove(unknown)
    cluster.ray.unshown = 1
    assert cluster.idle("--end") == 0
    said = capsys.readouterr().out
    assert not cluster.ray.stopped and "nothing: which jobs hold them is not known: Ray shows 3 of 4 nodes" in said, (
        said
    )
    cluster.ray.unshown = 0

    # It took its pods over from a job that idled, at once or after it had waited for them.
    for minutes, pod in (((29, 28), "a"), ((60, 29), "b")):
        had(*minutes)
        assert cluster.idle("--end") == 0
        said = capsys.readouterr().out
        assert not cluster.ray.stopped and f"young: it has not had pod oasis-{pod} for that long yet" in said, said

    had(60, 31)
    cluster.ray.failing["/stop"] = 500
    assert cluster.idle("--end") == 5
    assert "job ray/x is not ended: Ray refuses: Request failed with status code 500" in capsys.readouterr().err

    cluster.ray.failing.clear()
    assert cluster.idle("--end") == 0
    assert cluster.ray.stopped and "ended job ray/x" in capsys.readouterr().out
    assert cluster.changes() == []


def test_a_watch_tells_each_change_once_and_outlives_a_look_that_fails(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.pod("a", [BUSY] * 8, owner=("Job", "a"))
    cluster.objects["job/a"] = {"metadata": {"name": "a"}}
    changes: Iterator[Callable[[], object]] = iter(
        [
            lambda: None,
            lambda: cluster.google.cloud.delete("serviceusage/service", f"projects/{PROJECT}/services/{MONITORING}"),
            lambda: (enable(cluster.google.cloud, MONITORING), cluster.saw("a", [IDLE] * 8)),
            lambda: (cluster.folder / "facts.json").write_text(
                json.dumps({**json.loads((cluster.folder / "facts.json").read_text()), "pods": []})
            ),
        ]
    )

    def minute(_: float) -> None:
        change = next(changes, None)
        if change is None:
            raise KeyboardInterrupt
        change()

    # Of this module alone: others sleep too.
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=minute, time=time.time, strftime=time.strftime))
    assert cluster.idle("--watch", "--end") == 130
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in capsys.readouterr().out.splitlines()]
    expected = (
        "no GPUs idle",
        f"not seen: The API {MONITORING} is off in project {PROJECT}",
        "Job ray/a: idle",
        "ending Job ray/a, whose 8 GPUs idle",
        "ended Job ray/a; `kubectl",
        "Job ray/a: has no GPUs any more",
    )
    assert [line[: len(start)] for line, start in zip(lines, expected, strict=True)] == [*expected]
    assert len(cluster.changes()) == 1


def _no_right(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    set_identity(cluster.google.cloud, Identity(project=PROJECT, zone="us-central1-a", principal=CALLER))
    resource = policies.full_name("cloudresourcemanager.googleapis.com", f"projects/{PROJECT}")
    bindings = [{"role": "roles/compute.viewer", "members": [CALLER]}]
    policies.put(cluster.google.cloud, resource, {"bindings": bindings})


def _page(url: str, **_: object) -> requests.Response:
    """The answer of a proxy that wants a login first."""
    answer = requests.Response()
    answer.status_code, answer.raw = 200, io.BytesIO(b"<html>")
    return answer


REFUSED: dict[str, tuple[Callable[[Cluster, pytest.MonkeyPatch], object], list[str], int, str]] = {
    "no credentials": (
        lambda it, patch: patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/none.json"),
        [],
        7,
        "no Google credentials.*\n.*gcloud auth application-default login",
    ),
    "credentials that cannot be read": (
        lambda it, patch: patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(it.folder)),
        [],
        7,
        "no Google credentials.*Is a directory.*\n.*gcloud auth application-default login",
    ),
    "no right": (_no_right, [], 7, "may not read the metrics of project.*\n.*roles/monitoring.viewer on test-project"),
    "API off": (
        lambda it, patch: it.google.cloud.delete("serviceusage/service", f"projects/{PROJECT}/services/{MONITORING}"),
        [],
        8,
        f"{MONITORING} is off.*\n`gcloud services enable {MONITORING} --project {PROJECT}`",
    ),
    "Google unwell": (
        lambda it, patch: (it.google.cloud.directory / "faults.json").write_text('[{"effect": "fail"}]'),
        [],
        8,
        "answers 503: .*asked for in faults.json",
    ),
    "another than Google": (
        lambda it, patch: patch.setattr(utilisation, "_session", lambda project: SimpleNamespace(get=_page)),
        [],
        8,
        f"{MONITORING} does not answer: JSONDecodeError",
    ),
    "Google in part": (
        lambda it, patch: patch.setattr(utilisation, "_answer", lambda *_: {"executionErrors": [{"code": 14}]}),
        [],
        8,
        "Cloud Monitoring gave only part of its answer",
    ),
    "no percentage": (
        lambda it, patch: None,
        ["--under", "five"],
        2,
        "--under is five; it must be a percentage above 0",
    ),
    "too much": (lambda it, patch: None, ["--under", "101"], 2, "--under is 101; it must be a percentage above 0"),
    "no number": (lambda it, patch: None, ["--under", "nan"], 2, "--under is nan"),
    "no time": (lambda it, patch: None, ["--for", "30"], 2, "--for is 30; it must be a number with s, m or h"),
    "a moment": (lambda it, patch: None, ["--for", "10s"], 2, "--for is 10s.*from 5m to 24h"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_nothing_can_be_known_nothing_is_ended(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    spoil, words, code, said = REFUSED[name]
    cluster.pod("a", [IDLE] * 8, owner=("Job", "a"))
    spoil(cluster, monkeypatch)
    try:
        assert cluster.idle("--end", *words) == code
    finally:
        (cluster.google.cloud.directory / "faults.json").unlink(missing_ok=True)
    assert re.search(said, capsys.readouterr().err)
    assert not (cluster.folder / "calls").exists() or cluster.changes() == []


def _written(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
