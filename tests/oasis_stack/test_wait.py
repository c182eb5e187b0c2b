"""Waiting, against an HTTP server on loopback that plays the Kubernetes API, Google's APIs and its token server."""

import base64
import json
import pickletools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.protobuf.struct_pb2 import Struct
from pulumi.dynamic.dynamic import serialize_provider
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from oasis_stack import wait
from oasis_stack.components import chart_definitions
from oasis_stack.live_state import RequestRefused, WaitError
from tests.support import loopback
from tests.support.loopback import Request
from tests.support.processes import python

Answer = tuple[int, dict[str, Any]]
SOON = 0.002
"""Minutes."""

RAY_JOB = "/apis/ray.io/v1/namespaces/team/rayjobs/tune"


class World:
    """Answers by path, each a value or a function of the query; everything else is a 404. Keeps what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | Callable[[dict[str, list[str]]], Answer]] = {
            "/token": (200, {"access_token": "t", "expires_in": 3600, "token_type": "Bearer"}),
            "/api/v1/services": (200, {"items": []}),
        }
        self.asked: list[tuple[str, str]] = []
        self.quota_projects: set[str | None] = set()
        self.bearers: set[str | None] = set()
        self.url = ""

    def answer(self, method: str, path: str) -> Answer:
        parts = urlsplit(path)
        self.asked.append((method, parts.path))
        found = self.answers.get(f"DELETE {parts.path}" if method == "DELETE" else parts.path, (404, {}))
        return found if isinstance(found, tuple) else found(parse_qs(parts.query))

    @property
    def kubeconfig(self) -> str:
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                "users": [{"name": "c", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
                "current-context": "c",
            }
        )


@pytest.fixture(scope="module")
def private_key() -> str:
    """A key for a service account that exists in these tests alone."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, private_key: str) -> Iterator[World]:
    """A world that answers on a free loopback port, and an environment that leads to it."""
    world = World()

    def answer(request: Request) -> Answer:
        world.bearers.add(request.headers.get("authorization"))
        if not request.path.startswith(("/token", "/api")):
            world.quota_projects.add(request.headers.get("x-goog-user-project"))
        return world.answer(request.method, request.path)

    with loopback.answering(answer) as world.url:
        credentials = tmp_path / "credentials.json"
        identity = {"type": "service_account", "client_email": "me@project-a.iam.gserviceaccount.com"}
        credentials.write_text(json.dumps({**identity, "private_key": private_key, "token_uri": f"{world.url}/token"}))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN", raising=False)
        monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)  # to be given back; an error sets it
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(credentials))
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", f"{world.url}/compute/v1/")
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBUILD", f"{world.url}/")
        yield world


def _definition(*conditions: tuple[str, str]) -> Answer:
    return 200, {"status": {"conditions": [{"type": kind, "status": status} for kind, status in conditions]}}


def _in_turn(*answers: Answer) -> Callable[[dict[str, list[str]]], Answer]:
    rest = list(answers)
    return lambda _: rest.pop(0) if len(rest) > 1 else rest[0]


def _named(name: str, **metadata: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team", **metadata}, "spec": {"type": "LoadBalancer"}}


@pytest.mark.thorough
def test_creation_waits_until_every_type_is_established_and_outlives_server_errors(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
    late = "computeclasses.cloud.google.com"
    world.answers[path + "networks.networking.gke.io"] = _definition(("Established", "True"))
    world.answers[path + late] = _in_turn(
        (404, {}),
        (503, {}),
        (200, {"status": {"conditions": None}}),
        _definition(("NamesAccepted", "True")),
        _definition(("Established", "True")),
    )
    props = {"kubeconfig": world.kubeconfig, "kinds": ["networks.networking.gke.io", late], "timeout_minutes": 1.0}
    created = wait._CustomResourcesServed().create(props)
    assert created.outs == props
    told = capfd.readouterr().err
    assert f"waiting until the cluster serves: {late}" in told and "503" in told
    assert "networks.networking.gke.io" not in told


def test_creation_waits_until_every_enabled_api_has_stopped_saying_that_it_is_disabled(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER", f"{world.url}/")
    disabled = {"error": {"code": 403, "details": [{"reason": "SERVICE_DISABLED"}]}}
    older = {"error": {"code": 403, "errors": [{"reason": "accessNotConfigured"}]}}
    networks, clusters = (
        "/compute/v1/projects/project-a/global/networks",
        "/v1/projects/project-a/locations/-/clusters",
    )
    world.answers[networks] = _in_turn((403, older), (503, {}), (429, {}), (403, older), (200, {}))
    # No permission to list is an answer all the same: what `up` needs may be granted.
    world.answers[clusters] = _in_turn((403, disabled), (403, {"error": {"code": 403, "message": "denied"}}))
    apis = ["compute.googleapis.com", "container.googleapis.com", "iamcredentials.googleapis.com"]
    wait._ApisAnswer().create({"project": "project-a", "apis": apis, "timeout_minutes": 1.0})
    asked = [path for _, path in world.asked]
    assert asked.count(networks) >= 5
    assert asked.count(clusters) >= 2
    # An API that is off where the credentials come from does not count.
    assert world.quota_projects == {"project-a"}
    told = capfd.readouterr().err
    assert "compute.googleapis.com, container.googleapis.com" in told
    assert "iamcredentials" not in told


def test_an_error_is_one_message_without_traceback_and_attempts_that_fail_are_no_noise(world: World) -> None:
    """Of Pulumi's own server of dynamic providers, as the engine asks it."""
    dead = world.kubeconfig.replace(world.url, "http://127.0.0.1:1")
    properties = Struct()
    properties.update({"kubeconfig": dead, "kinds": ["a.b"], "timeout_minutes": SOON})
    properties.update({"__provider": serialize_provider(wait._CustomResourcesServed())})
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "pulumi.dynamic"],
        cwd=Path(wait.__file__).parent.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout and server.stderr
            with grpc.insecure_channel(f"127.0.0.1:{int(server.stdout.readline())}") as channel:
                request = provider_pb2.CreateRequest(urn="urn:pulumi:a::b::c::d", properties=properties)
                with pytest.raises(grpc.RpcError) as refusal:
                    provider_pb2_grpc.ResourceProviderStub(channel).Create(request, timeout=60)
        finally:
            server.terminate()
        noise = server.stderr.read()
    *header, message = str(refusal.value.details()).strip().splitlines()
    assert header in ([], ["Traceback (most recent call last):"])
    assert message.startswith("oasis_stack.live_state.WaitError: waiting until the cluster serves: after 0.002 minutes")
    assert all(line.startswith("waiting until the cluster serves") for line in noise.splitlines()), noise


def test_the_waits_take_the_access_token_that_the_provider_takes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "from-the-environment")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    world.answers["/compute/v1/projects/project-a/global/networks"] = (200, {})
    props: dict[str, Any] = {"project": "project-a", "apis": ["compute.googleapis.com"], "timeout_minutes": SOON}
    wait._ApisAnswer().create(props)
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/a.b"
    world.answers[path] = _definition(("Established", "True"))
    failing = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "false"}}
    kubeconfig = json.loads(world.kubeconfig) | {"users": [{"name": "c", "user": failing}]}
    wait._CustomResourcesServed().create({"kubeconfig": json.dumps(kubeconfig), "kinds": ["a.b"], **props})
    assert world.bearers == {"Bearer from-the-environment"}


def test_an_api_that_stays_disabled_is_named_with_what_to_do(world: World) -> None:
    world.answers["/compute/v1/projects/project-a/global/networks"] = (403, {"error": {"reason": "SERVICE_DISABLED"}})
    props = {"project": "project-a", "apis": ["compute.googleapis.com"], "timeout_minutes": SOON}
    with pytest.raises(WaitError, match=r"still compute\.googleapis\.com.*billing account.*pulumi up"):
        wait._ApisAnswer().create(props)


def test_what_never_comes_is_named_with_what_to_do(world: World) -> None:
    props = {"kubeconfig": world.kubeconfig, "kinds": ["queues.example.com"], "timeout_minutes": SOON}
    with pytest.raises(WaitError, match=r"still queues\.example\.com.*kubectl get crd.*pulumi up"):
        wait._CustomResourcesServed().create(props)


def test_a_refusal_is_not_waited_out(world: World) -> None:
    world.answers["/apis/apiextensions.k8s.io/v1/customresourcedefinitions/a.b.c"] = (403, {})
    with pytest.raises(RequestRefused, match=r"403.*gke-gcloud-auth-plugin.*gcloud auth application-default login"):
        wait._CustomResourcesServed().create(
            {"kubeconfig": world.kubeconfig, "kinds": ["a.b.c"], "timeout_minutes": 60}
        )


def test_a_destroy_removes_each_workload_once_and_returns_when_the_last_one_is_gone(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    going = _named("tune", deletionTimestamp="2026-01-01T00:00:00Z")
    jobs, services = [_named("tune")], [_named("web"), {**_named("inner"), "spec": {"type": "ClusterIP"}}]
    polls_left = 2

    def list_jobs(_: dict[str, list[str]]) -> Answer:
        nonlocal polls_left
        if jobs == [going]:
            polls_left -= 1
        return 200, {"items": jobs if polls_left > 0 else []}

    def delete_job(query: dict[str, list[str]]) -> Answer:
        assert query["propagationPolicy"] == ["Foreground"]
        jobs[:] = [going]
        return 200, {}

    def delete_service(_: dict[str, list[str]]) -> Answer:
        del services[0]
        return 200, _named("web")

    disk = {"driver": "pd.csi.storage.gke.io", "volumeHandle": "projects/p/zones/us-central1-b/disks/pvc-1"}
    spec = {"csi": disk, "claimRef": {"namespace": "team", "name": "notes"}, "capacity": {"storage": "10Gi"}}
    others = [{"csi": {**disk, "driver": "another"}}, {"csi": {**disk, "volumeHandle": "odd"}}, {"nfs": {}}]
    world.answers["/api/v1/persistentvolumes"] = (200, {"items": [{"spec": one} for one in (spec, *others)]})
    world.answers["/apis/ray.io/v1/rayjobs"] = list_jobs
    world.answers[f"DELETE {RAY_JOB}"] = delete_job
    world.answers["/api/v1/services"] = lambda _: (200, {"items": services})
    world.answers["DELETE /api/v1/namespaces/team/services/web"] = delete_service
    wait._WorkloadsGone().delete("id", {"kubeconfig": world.kubeconfig, "timeout_minutes": 1.0})
    deletions = [path for method, path in world.asked if method == "DELETE"]
    assert deletions == [RAY_JOB, "/api/v1/namespaces/team/services/web"]
    told = capfd.readouterr().err
    assert "removing rayjobs/team/tune" in told and "removing services/team/web and its load balancer" in told
    assert told.count("may outlive the cluster") == 1 and "disk pvc-1 (10Gi, claim team/notes)" in told
    assert "`gcloud compute disks delete pvc-1 --zone us-central1-b --project p`" in told


def test_a_destroy_empties_the_queue_and_leaves_jobs_that_are_in_none(world: World) -> None:
    queued, plain = _named("batch"), _named("report")
    jobs, workloads, polls = [queued, plain], [_named("job-batch")], 0

    def list_jobs(query: dict[str, list[str]]) -> Answer:
        assert query["labelSelector"] == ["kueue.x-k8s.io/queue-name"]
        return 200, {"items": [job for job in jobs if job is queued]}

    def delete_job(_: dict[str, list[str]]) -> Answer:
        jobs.remove(queued)
        return 200, {}

    def list_workloads(_: dict[str, list[str]]) -> Answer:
        nonlocal polls
        polls += 1
        return 200, {"items": workloads if polls < 3 else []}

    def delete_workload(_: dict[str, list[str]]) -> Answer:
        workloads[:] = [_named("job-batch", deletionTimestamp="2026-01-01T00:00:00Z")]
        return 200, {}

    job = "/apis/batch/v1/namespaces/team/jobs/batch"
    workload = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads/job-batch"
    world.answers["/apis/batch/v1/jobs"] = list_jobs
    world.answers[f"DELETE {job}"] = delete_job
    world.answers["/apis/kueue.x-k8s.io/v1beta2/workloads"] = list_workloads
    world.answers[f"DELETE {workload}"] = delete_workload

    wait._WorkloadsGone().delete("id", {"kubeconfig": world.kubeconfig, "timeout_minutes": 1.0})

    # What makes a Workload goes before it, or it would be made anew; and the end is awaited.
    assert [path for method, path in world.asked if method == "DELETE"] == [job, workload]
    assert jobs == [plain] and polls == 3


def test_roles_that_kubernetes_fills_from_others_go_before_helm_and_no_others(world: World) -> None:
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"

    def list_roles(query: dict[str, list[str]]) -> Answer:
        assert query["labelSelector"] == ["app.kubernetes.io/instance=kueue"]
        filled = {"metadata": {"name": "admin"}, "aggregationRule": {"clusterRoleSelectors": []}}
        return 200, {"items": [filled, {"metadata": {"name": "editor"}}]}

    world.answers["/api/v1/services"] = (200, {"items": []})
    world.answers[roles] = list_roles
    world.answers[f"DELETE {roles}/admin"] = (200, {})

    wait._AggregatedRolesGone().delete("id", {"kubeconfig": world.kubeconfig, "release": "kueue"})

    assert [path for method, path in world.asked if method == "DELETE"] == [f"{roles}/admin"]


@pytest.mark.parametrize("key", ["project", "region", "zone"])
def test_a_stack_does_not_move(key: str, world: World) -> None:
    there = {"project": "ours", "region": "us-central1", "zone": "us-central1-b"}
    assert wait._Place().diff("id", there, {**there, "__provider": "newer"}).changes is False

    with pytest.raises(WaitError, match=rf"stands in {key} {there[key]}, and its file now says elsewhere.*destroy"):
        wait._Place().diff("id", there, {**there, key: "elsewhere"})


_COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}


def test_a_queue_with_jobs_stays_with_them_until_they_are_over(world: World) -> None:
    job = {"kind": "RayJob", "name": "train", "uid": "1"}
    over = {"conditions": [{"type": "Finished", "status": "True"}]}
    done = {**_named("rayjob-done"), "status": over}
    live = {**_named("rayjob-train"), "status": {"conditions": None}}
    live["metadata"]["ownerReferences"] = [job]
    items = [done, live]
    world.answers["/apis/kueue.x-k8s.io/v1beta2/workloads"] = lambda _: (200, {"items": items})
    props = {"kubeconfig": world.kubeconfig}

    with pytest.raises(WaitError, match=r"^the queue is to go, and these jobs are in it or run: team/train\."):
        wait._QueueEmpty().delete("id", props)
    assert not [path for method, path in world.asked if method == "DELETE"]
    with pytest.raises(WaitError, match=r"^the queue of team is to go, and these jobs are in it or run: team/train\."):
        wait._QueueEmpty().delete("id", {**props, "namespace": "team"})
    wait._QueueEmpty().delete("id", {**props, "namespace": "another"})
    three = {**props, "namespaces": ["ray", "team", "another"]}
    with pytest.raises(WaitError, match=r"^the queue of team is to go"):
        wait._QueuedNamespaces().update("id", three, {**props, "namespaces": ["ray", "another"]})
    wait._QueuedNamespaces().update("id", three, {**props, "namespaces": ["ray", "team"]})

    items.remove(live)
    wait._QueueEmpty().delete("id", props)
    # A namespace goes as a whole, and so with what Kueue does not know of.
    of_team = {**props, "namespace": "team"}
    held = [{"type": "Suspended", "status": "True"}, {"type": "Failed", "status": "False"}]
    for kind, live, over in (
        ("ray.io/v1/rayjobs", {"jobDeploymentStatus": "Running"}, {"jobDeploymentStatus": "Failed"}),
        ("batch/v1/jobs", {"conditions": held}, _COMPLETE),
    ):
        unknown = {**_named("unknown"), "status": live}
        world.answers[f"/apis/{kind}"] = lambda _, job=unknown: (200, {"items": [job]})
        with pytest.raises(WaitError, match=r"in it or run: team/unknown\."):
            wait._QueueEmpty().delete("id", of_team)
        unknown["status"] = over
        wait._QueueEmpty().delete("id", of_team)


def test_a_workload_that_will_not_go_is_named_with_what_to_do(world: World) -> None:
    stuck = _named("tune", deletionTimestamp="2026-01-01T00:00:00Z")
    world.answers["/apis/ray.io/v1/rayjobs"] = (200, {"items": [stuck]})
    with pytest.raises(WaitError, match=r"still rayjobs/team/tune\. .*jobs,.*workloads -A.*finalizer.*pulumi destroy"):
        wait._WorkloadsGone().delete("id", {"kubeconfig": world.kubeconfig, "timeout_minutes": SOON})


def test_a_cluster_that_does_not_answer_is_given_up_only_when_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(wait, "UNREACHABLE_MINUTES", SOON)
    world.url = "http://127.0.0.1:1"
    props = {"kubeconfig": world.kubeconfig, "timeout_minutes": 60.0}
    with pytest.raises(
        WaitError, match=r"does not answer.*PULUMI_K8S_DELETE_UNREACHABLE=true pulumi destroy --refresh"
    ):
        wait._WorkloadsGone().delete("id", props)
    monkeypatch.setenv("PULUMI_K8S_DELETE_UNREACHABLE", "true")
    wait._WorkloadsGone().delete("id", props)


@pytest.mark.parametrize("first", [200, 503])
def test_a_cluster_that_answers_is_cleaned_up_whatever_the_user_says_of_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch, world: World, first: int
) -> None:
    monkeypatch.setenv("PULUMI_K8S_DELETE_UNREACHABLE", "true")
    jobs = [_named("tune")]
    world.answers["/api/v1/services"] = _in_turn((first, {"items": []}), (200, {"items": []}))
    world.answers["/apis/ray.io/v1/rayjobs"] = lambda _: (200, {"items": jobs})
    world.answers[f"DELETE {RAY_JOB}"] = lambda _: (200, {"was": jobs.pop()})

    wait._WorkloadsGone().delete("id", {"kubeconfig": world.kubeconfig, "timeout_minutes": SOON})

    assert ("DELETE", RAY_JOB) in world.asked


def test_the_resource_types_of_a_chart_are_there_when_the_cluster_serves_them(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    name = "rayjobs.ray.io"
    monkeypatch.setattr(chart_definitions, "definitions", lambda *_: iter([{"metadata": {"name": name}}]))
    made = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    world.answers[made] = (201, {})
    world.answers[f"{made}/{name}"] = _in_turn(
        (404, {}), _definition(("NamesAccepted", "True")), _definition(("Established", "True"))
    )
    props = {"kubeconfig": world.kubeconfig, "repository": "", "chart": "kuberay-operator", "version": "1"}

    chart_definitions._ChartDefinitions().create(props)

    assert world.asked == [("GET", f"{made}/{name}"), ("POST", made), *[("GET", f"{made}/{name}")] * 2]


def test_the_network_is_free_when_gkes_own_objects_are_gone_from_all_pages_and_scopes_and_others_do_not_matter(
    world: World,
) -> None:
    base = "/compute/v1/projects/project-a/"
    mine, other = "https://x/projects/project-a/global/networks/primary", "https://x/networks/primary-2"
    rules = [
        {"name": "k8s-fw-a1", "network": mine},
        {"name": "k8s-fw-b2", "network": other},
        {"name": "ssh", "network": mine},
    ]
    groups = {"zones/y": {"networkEndpointGroups": [{"name": "k8s1-n", "network": mine}]}}

    def firewalls(query: dict[str, list[str]]) -> Answer:
        first = {"items": rules[1:], "nextPageToken": "2"}
        return 200, {"items": rules[:1]} if query.get("pageToken") == ["2"] else first

    def aggregated(query: dict[str, list[str]]) -> Answer:
        first = {"items": {"zones/z": {"warning": {}}}, "nextPageToken": "2"}
        return 200, {"items": groups} if query.get("pageToken") == ["2"] else first

    world.answers[base + "global/firewalls"] = firewalls
    world.answers[base + "aggregated/networkEndpointGroups"] = aggregated
    world.answers[base + "aggregated/forwardingRules"] = (200, {"items": {}})
    # The subnet of the control plane's private endpoint, and its address, which names the subnet alone.
    endpoint = {"name": "gke-oasis-1a-pe-subnet", "network": mine}
    addresses = [
        {"name": "gke-oasis-1a-pe", "subnetwork": "x/gke-oasis-1a-pe-subnet"},
        {"name": "gke-b", "subnetwork": "y"},
    ]
    subnets = {"regions/r": {"subnetworks": [endpoint, {"name": "ours", "network": mine}]}}
    world.answers[base + "aggregated/subnetworks"] = lambda _: (200, {"items": subnets})
    world.answers[base + "aggregated/addresses"] = (200, {"items": {"regions/r": {"addresses": addresses}}})
    props = {"project": "project-a", "network": mine, "timeout_minutes": SOON}
    with pytest.raises(WaitError) as refusal:
        wait._NetworkFree().delete("id", props)
    message = str(refusal.value)
    assert "still firewalls/k8s-fw-a1, networkEndpointGroups/k8s1-n, subnetworks/gke-oasis-1a-pe-subnet, " in message
    assert "addresses/gke-oasis-1a-pe. GKE did not remove" in message
    assert "--project=project-a" in message
    groups.clear()
    subnets.clear()
    del rules[0]
    rules.insert(0, {"name": "gke-old", "network": other})
    wait._NetworkFree().delete("id", props)


def test_the_connection_is_free_when_no_worker_pool_is_peered_with_its_network(world: World) -> None:
    pools = [
        {
            "name": "a",
            "privatePoolV1Config": {"networkConfig": {"peeredNetwork": "projects/1/global/networks/primary"}},
        },
        {"name": "b", "privatePoolV1Config": {}},
    ]
    path = "/v1/projects/project-a/locations/us-central1/workerPools"
    world.answers[path] = lambda _: (200, {"workerPools": pools})
    props = {"project": "project-a", "region": "us-central1", "network": "x/primary", "timeout_minutes": SOON}
    with pytest.raises(WaitError, match=r"still a\. Look with"):
        wait._ConnectionFree().delete("id", props)
    del pools[0]
    wait._ConnectionFree().delete("id", props)


def test_a_google_api_that_forbids_is_not_waited_out(world: World) -> None:
    world.answers["/compute/v1/projects/project-a/global/firewalls"] = (403, {"error": {"message": "no permission"}})
    with pytest.raises(RequestRefused, match=r"403.*no permission.*table of roles"):
        wait._NetworkFree().delete("id", {"project": "project-a", "network": "n", "timeout_minutes": 60.0})


def test_providers_are_stored_as_their_names_alone_and_found_by_another_process() -> None:
    providers = wait.Waiter.__subclasses__()
    assert {wait._ApisAnswer, chart_definitions._ChartDefinitions} <= set(providers)
    stored = [base64.b64decode(serialize_provider(provider())) for provider in providers]
    for provider, pickle in zip(providers, stored, strict=True):
        words = {argument for _, argument, _ in pickletools.genops(pickle) if isinstance(argument, str)}
        # A class stored by value would carry its functions' code, which differs between Python 3.11 and 3.12.
        assert words == {provider.__module__, provider.__name__}
    loading = "import dill, sys; print(*(type(dill.loads(bytes.fromhex(a))).__name__ for a in sys.argv[1:]))"
    other = python("-c", loading, *(pickle.hex() for pickle in stored), check=True)
    assert other.stdout.split() == [provider.__name__ for provider in providers]


def test_only_a_changed_input_is_an_update_and_nothing_is_a_replacement() -> None:
    provider = wait._NetworkFree()
    old = {"network": "a", "timeout_minutes": 30.0, "__provider": "x"}
    assert provider.diff("id", old, {**old, "__provider": "y"}).changes is False
    changed = provider.diff("id", old, {**old, "network": "b"})
    assert (changed.changes, changed.replaces) == (True, None)
    updated = provider.update("id", old, {**old, "network": "b"})
    assert updated.outs is not None and updated.outs["network"] == "b"
