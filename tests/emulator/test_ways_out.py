"""No way from a job to the node: each way out is tried on a real API server under a real KubeRay, and refused.

A job is tried at its strongest, with the token of Ray's service account, which it has only once it has taken over the
autoscaler. Each row says who refuses it; where that one is taken away, the same row goes through, so none can pass by
being malformed. What would change something is a dry run, which admission judges like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.node_provider import worker_delete_patch, worker_replica_patch

from emulator.kubernetes import control_plane
from emulator.kubernetes.api import Api, ApiError, Body
from emulator.machine.state import CHECKOUT
from oasis_stack.pod_specs import admission_policy
from tests.emulator.conftest import ControlPlane
from tests.emulator.programs import kubernetes_object
from tests.emulator.ray.test_ray_cluster import Platform, platform_on
from tests.support.waiting import eventually

pytestmark = pytest.mark.emulated

CLUSTER = "/apis/ray.io/v1/namespaces/ray/rayclusters/oasis"
PODS = "/api/v1/namespaces/ray/pods"
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

ROLE = "is forbidden: User"
ACCOUNT = "ValidatingAdmissionPolicy 'oasis-ray-account'"
POLICY = "ValidatingAdmissionPolicy 'oasis-ray-pods'"
ADDRESSES = "ValidatingAdmissionPolicy 'oasis-ray-addresses'"
LEVEL = "violates PodSecurity"
NOBODY = ""
WORDS = (ACCOUNT, POLICY, ADDRESSES, LEVEL, ROLE)

ROOT = {"securityContext": {"privileged": True}}
DISK = [{"name": "node", "hostPath": {"path": "/"}}]


@dataclass(frozen=True)
class Way:
    """One way out, as a request that a job sends to the API server; HEAD stands for the name of the head's pod."""

    name: str
    method: str
    path: str
    body: Any = None
    content: str = "application/json"
    through: int = 200
    """Status of the answer where none of them refuses it: exec wants another kind of connection, and the API server
    passes nothing on to the loopback address of kwok's kubelets."""
    holder: str = ROLE
    """Who refuses it to Ray's account with the role that KubeRay gives it."""
    second: str = ACCOUNT
    """Who still refuses it, should the account's role allow everything."""


def _pod(namespace: str = "ray", **spec: Any) -> Body:
    container = {"name": "c", "image": "i", **spec.pop("container", {})}
    return kubernetes_object("v1", "Pod", "way-out", {"containers": [container], **spec}, namespace)


def _set(path: str, value: Any) -> list[Body]:
    """A patch of one field of the RayCluster's spec."""
    return [{"op": "add", "path": f"/spec/{path}", "value": value}]


def _template(path: str, value: Any) -> list[Body]:
    """A patch of one field of the pods of its first worker group."""
    return _set(f"workerGroupSpecs/0/template/spec/{path}", value)


_CONTAINER = "containers/0/securityContext"
_PORT = {"containerPort": 1, "hostPort": 1}
_LABELS = {"metadata": {"labels": {"a": "b"}}}
_COMMAND = {"metadata": {"annotations": {"ray.io/overwrite-container-cmd": "true"}}}
_EPHEMERAL = {"spec": {"ephemeralContainers": [{"name": "way-out", "image": "i", **ROOT}]}}
_IMAGE = {"spec": {"containers": [{"name": "autoscaler", "image": "mine"}]}}
_GROUP = [{"op": "copy", "from": "/spec/workerGroupSpecs/0", "path": "/spec/workerGroupSpecs/-"}]
_UNLIMITED = [{"op": "remove", "path": "/spec/autoscalerOptions/idleTimeoutSeconds"}]
_TOKEN = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
_ROLES = "rbac.authorization.k8s.io"
_BINDING = {
    "apiVersion": f"{_ROLES}/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "way-out"},
    "roleRef": {"apiGroup": _ROLES, "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": "ray", "namespace": "ray"}],
}
_RAY_JOB_SPEC = {
    "submissionMode": "InteractiveMode",
    "entrypoint": "id",
    "rayClusterSpec": {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": _pod(volumes=DISK)["spec"]}}},
}
_RAY_JOB = kubernetes_object("ray.io/v1", "RayJob", "way-out", _RAY_JOB_SPEC, "ray")
_ACCOUNTS = "/api/v1/namespaces/{}/serviceaccounts/{}/token"
_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

_make = partial(Way, method="POST")
_pods = partial(_make, path=PODS, second=LEVEL)
_merge = partial(Way, method="PATCH", content=MERGE_PATCH)
_strategic = partial(Way, method="PATCH", content=STRATEGIC)
_cluster = partial(Way, method="PATCH", path=CLUSTER, content=JSON_PATCH, holder=ACCOUNT)

WAYS = (
    _pods("a privileged pod", body=_pod(container=ROOT)),
    _pods("a pod with the node's disk", body=_pod(volumes=DISK)),
    _pods("a pod in the node's network", body=_pod(hostNetwork=True)),
    _pods("a pod among the node's processes", body=_pod(hostPID=True)),
    _make("a pod in another namespace", path="/api/v1/namespaces/default/pods", body=_pod("default")),
    _make("a RayJob with such a template", path="/apis/ray.io/v1/namespaces/ray/rayjobs", body=_RAY_JOB),
    _strategic("a container in a running pod", path=f"{PODS}/HEAD/ephemeralcontainers", body=_EPHEMERAL, second=LEVEL),
    _make("a command in the autoscaler", path=f"{PODS}/HEAD/exec?container=autoscaler&command=id", through=400),
    Way("the kubelet through the API server", method="GET", path="/api/v1/nodes/ray-system/proxy/pods", through=400),
    _merge("the node itself", path="/api/v1/nodes/ray-system", body=_LABELS),
    _make("a token of another account", path=_ACCOUNTS.format("kube-system", "default"), body=_TOKEN),
    _make("a longer token of its own", path=_ACCOUNTS.format("ray", "ray"), body=_TOKEN),
    Way("secrets of others", method="GET", path="/api/v1/namespaces/kube-system/secrets", second=NOBODY),
    _make("every right", path=f"/apis/{_ROLES}/v1/clusterrolebindings", body=_BINDING | {"metadata": {"name": "more"}}),
    _merge("another Pod Security level", path="/api/v1/namespaces/ray", body=_LABELS),
    # No policy judges a change of policies: roles alone refuse it.
    Way("no policy", method="DELETE", path=f"{_POLICIES}/oasis-ray-pods", second=NOBODY),
    _cluster("a RayCluster with a privileged template", body=_template(f"{_CONTAINER}/privileged", True)),
    _cluster("a RayCluster with the node's disk", body=_template("volumes/0", DISK[0])),
    _cluster("a RayCluster in the node's network", body=_template("hostNetwork", True)),
    _cluster("a RayCluster among the node's processes", body=_template("hostPID", True)),
    _cluster("a RayCluster with a port of the node", body=_template("containers/0/ports", [_PORT])),
    _cluster("a RayCluster that sees all of /proc", body=_template(f"{_CONTAINER}/procMount", "Unmasked")),
    _cluster("a RayCluster as another service account", body=_template("serviceAccountName", "default")),
    _cluster("a RayCluster as root", body=_template("securityContext/runAsUser", 0)),
    _cluster("a RayCluster with a token in its workers", body=_template("automountServiceAccountToken", True)),
    _cluster("a RayCluster with another command", body=_template("containers/0/args", ["id"])),
    _cluster("a RayCluster with another autoscaler", body=_set("autoscalerOptions/image", "mine")),
    _cluster("a RayCluster with more workers than it may have", body=_set("workerGroupSpecs/0/maxReplicas", 99)),
    _cluster("a RayCluster with a group of its own", body=_GROUP),
    _cluster("a RayCluster with a field less", body=_UNLIMITED),
    _cluster("a RayCluster with another annotation", body=_COMMAND, content=MERGE_PATCH),
    _strategic("another image in a running pod", path=f"{PODS}/HEAD", body=_IMAGE, holder=ACCOUNT),
    _merge("the labels that network policies go by", path=f"{PODS}/HEAD", body=_LABELS, holder=ACCOUNT),
)


@dataclass(frozen=True)
class PodWay:
    """One way out in a pod that somebody who may make pods (KubeRay, for a RayJob) puts beside Ray's."""

    name: str
    holder: str
    change: Callable[[Body], object]
    """Changes the spec of a GPU worker."""


def _ray(pod: Body) -> Body:
    return pod["containers"][0]


def _security(pod: Body) -> Body:
    return _ray(pod)["securityContext"]


POD_WAYS = (
    PodWay("privileged", LEVEL, lambda pod: _ray(pod).update(ROOT)),
    PodWay("the node's disk", LEVEL, lambda pod: pod["volumes"].append(DISK[0])),
    PodWay("the node's network", LEVEL, lambda pod: pod.update(hostNetwork=True)),
    PodWay("the node's processes", LEVEL, lambda pod: pod.update(hostPID=True)),
    PodWay("the node's shared memory", LEVEL, lambda pod: pod.update(hostIPC=True)),
    PodWay("a port of the node", LEVEL, lambda pod: _ray(pod).update(ports=[_PORT])),
    PodWay("a capability", LEVEL, lambda pod: _security(pod).update(capabilities={"add": ["SYS_ADMIN"]})),
    PodWay("any system call", LEVEL, lambda pod: _security(pod).update(seccompProfile={"type": "Unconfined"})),
    PodWay("another service account", POLICY, lambda pod: pod.update(serviceAccountName="default")),
    PodWay("a token by default", POLICY, lambda pod: pod.pop("automountServiceAccountToken")),
    PodWay("a projected token", POLICY, lambda pod: _project(pod, _ray(pod))),
    PodWay("a projected token before it begins", POLICY, lambda pod: _project(pod, pod["initContainers"][0])),
    PodWay("a token for Ray by the other name", POLICY, lambda pod: _project(pod, _ray(pod), "autoscaler")),
    PodWay("the autoscaler's processes", POLICY, lambda pod: pod.update(shareProcessNamespace=True)),
    PodWay("root", POLICY, lambda pod: pod["securityContext"].update(runAsNonRoot=False)),
    PodWay("root in a container", POLICY, lambda pod: _security(pod).update(runAsNonRoot=False)),
    PodWay("root by sudo", POLICY, lambda pod: _security(pod).pop("allowPrivilegeEscalation")),
    PodWay("root before it begins", POLICY, lambda pod: pod["initContainers"][0].update(image="mine")),
)


def _project(pod: Body, container: Body, name: str = "") -> None:
    pod["volumes"].append({"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}})
    container["volumeMounts"].append({"name": "t", "mountPath": "/t"})
    container["name"] = name or container["name"]


@dataclass(frozen=True)
class Ray:
    """The platform, with a worker of each group, and who talks to its API server."""

    platform: Platform
    admin: Api
    job: Api
    """As Ray's service account, by a token of its own."""
    head: str
    worker: Body
    """A GPU worker as KubeRay made it."""

    def refused(self, way: Way) -> str:
        """Who refuses it to a job; empty where it goes through."""
        path, _, query = way.path.replace("HEAD", self.head).partition("?")
        words = dict(pair.split("=") for pair in query.split("&") if pair)
        dry = {} if way.method == "GET" or "/exec" in path else {"dryRun": "All"}
        call = partial(self.job.request, way.method, path, query=words | dry, body=way.body, content_type=way.content)
        return _holder(call, way.through)

    def refused_pod(self, way: PodWay) -> str:
        """Who refuses such a pod to somebody who may make pods."""
        spec = deepcopy(self.worker["spec"])
        spec.pop("nodeName")
        way.change(spec)
        return self.refused_spec(spec)

    def refused_spec(self, spec: Body) -> str:
        """Who refuses a pod of this spec to somebody who may make pods."""
        body = {**_pod(), "spec": spec}
        return _holder(partial(self.admin.request, "POST", PODS, query={"dryRun": "All"}, body=body))

    def scale(self, *patches: Body) -> None:
        """What Ray's autoscaler sends."""
        body: Any = list(patches)
        self.job.request("PATCH", CLUSTER, body=body, content_type=JSON_PATCH)

    def gpu_workers(self) -> list[str]:
        """Names of those that run, as the autoscaler asks for them."""
        pods = self.job.request("GET", PODS, query={"labelSelector": "ray.io/group=gpu"})["items"]
        return [pod["metadata"]["name"] for pod in pods if pod.get("status", {}).get("phase") == "Running"]

    @contextmanager
    def without(self, policy: str) -> Iterator[None]:
        """The cluster without a policy, as long as the block takes."""
        kind = ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding")
        binding = {"apiVersion": kind[0], "kind": kind[1], "metadata": {"name": policy}}
        self.admin.delete(binding)
        try:
            yield
        finally:
            self.admin.create({**binding, "spec": admission_policy.binding(policy)})

    @contextmanager
    def unlimited(self) -> Iterator[None]:
        """Ray's account may do everything by its roles, as long as the block takes."""
        self.admin.create(_BINDING)
        try:
            yield
        finally:
            self.admin.delete(_BINDING)


def _soon(found: Callable[[], object], expected: object) -> None:
    """Policies and roles hold a moment after they were written."""
    with suppress(AssertionError):
        eventually(lambda: found() == expected)
    assert found() == expected


def _holder(call: Callable[[], object], through: int = 200) -> str:
    try:
        call()
    except ApiError as error:
        for words in WORDS:
            if words in error.message:
                return words
        if error.status != through:
            raise
    return NOBODY


@pytest.fixture(scope="module")
def ray(bare_cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    with platform_on(bare_cluster, tmp_path_factory.mktemp("ways") / "platform") as platform:
        platform.up()
        eventually(lambda: "headgroup" in platform.running().values())
        platform.scale(gpu=1)
        eventually(lambda: "gpu" in platform.running().values())
        api = bare_cluster.api
        (head,) = api.list("v1", "Pod", "ray", labelSelector="ray.io/node-type=head")
        (worker,) = api.list("v1", "Pod", "ray", labelSelector="ray.io/group=gpu")
        answer = api.request("POST", "/api/v1/namespaces/ray/serviceaccounts/ray/token", body=_TOKEN)
        config = yaml.safe_load(control_plane.kubeconfig_file(bare_cluster.state).read_text())
        config["users"][0]["user"] = {"token": answer["status"]["token"]}
        yield Ray(platform, api, Api(config), head["metadata"]["name"], worker)


def test_every_expression_has_the_types_of_what_it_judges(ray: Ray) -> None:
    def checked() -> list[Any]:
        found = ray.admin.list("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy")
        return [policy.get("status", {}).get("typeChecking") for policy in found]

    eventually(lambda: None not in checked())
    assert checked() and not any(checked())


def test_ray_s_autoscaler_scales_up_and_down_as_that_account(ray: Ray) -> None:
    groups = ray.job.request("GET", CLUSTER)["spec"]["workerGroupSpecs"]
    gpu = str([group["groupName"] for group in groups].index("gpu"))

    ray.scale(worker_replica_patch(gpu, 2))

    eventually(lambda: len(ray.gpu_workers()) == 2)
    first, second = ray.gpu_workers()
    ray.scale(worker_replica_patch(gpu, 1), worker_delete_patch(gpu, [first]))
    eventually(lambda: ray.gpu_workers() == [second])
    ray.scale(worker_delete_patch(gpu, []))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_job_is_refused(ray: Ray, way: Way) -> None:
    _soon(lambda: ray.refused(way), way.holder)


def test_a_job_is_refused_whatever_its_role_allows(ray: Ray) -> None:
    with ray.unlimited():
        expected = {way.name: way.second for way in WAYS}
        _soon(lambda: {way.name: ray.refused(way) for way in WAYS}, expected)


def test_it_is_the_policy_that_refuses_a_job_what_its_role_allows(ray: Ray) -> None:
    with ray.without("oasis-ray-account"):
        expected = {way.name: NOBODY if way.holder == ACCOUNT else way.holder for way in WAYS}
        _soon(lambda: {way.name: ray.refused(way) for way in WAYS}, expected)


def test_without_role_and_policy_every_way_is_open_but_to_pods_that_are_refused_to_everybody(ray: Ray) -> None:
    with ray.unlimited(), ray.without("oasis-ray-account"):
        expected = {way.name: LEVEL if way.second == LEVEL else NOBODY for way in WAYS}
        _soon(lambda: {way.name: ray.refused(way) for way in WAYS}, expected)


@pytest.mark.parametrize("way", POD_WAYS, ids=lambda way: way.name)
def test_a_pod_is_refused_to_everybody(ray: Ray, way: PodWay) -> None:
    _soon(lambda: ray.refused_pod(way), way.holder)


def test_it_is_level_and_policy_that_refuse_pods(ray: Ray) -> None:
    assert ray.refused_pod(PodWay("like Ray's own", NOBODY, lambda pod: pod)) == NOBODY
    with ray.without("oasis-ray-pods"):
        expected = {way.name: NOBODY if way.holder == POLICY else way.holder for way in POD_WAYS}
        _soon(lambda: {way.name: ray.refused_pod(way) for way in POD_WAYS}, expected)


def test_the_pod_that_the_docs_give_to_copy_is_let_in(ray: Ray) -> None:
    given = (CHECKOUT / "docs" / "security.md").read_text(encoding="utf-8").partition("```yaml")[2].partition("```")[0]

    assert ray.refused_spec(yaml.safe_load(given)["spec"]) == NOBODY


def test_a_rayjob_with_such_a_template_gets_no_pod_from_whomever_it_comes(ray: Ray) -> None:
    ray.admin.create(_RAY_JOB)
    try:
        eventually(lambda: any(LEVEL in event.get("message", "") for event in ray.admin.list("v1", "Event", "ray")))
        clusters = {pod["metadata"]["labels"]["ray.io/cluster"] for pod in ray.admin.list("v1", "Pod", "ray")}
        assert clusters == {"oasis"}
    finally:
        ray.admin.delete(_RAY_JOB)


def _service(annotations: dict[str, str], **spec: Any) -> Body:
    ports = [{"port": 80}]
    return kubernetes_object("v1", "Service", "way-out", {"ports": ports, **spec}, "ray", annotations=annotations)


def _ingress(annotations: dict[str, str], **spec: Any) -> Body:
    backend = {"service": {"name": "way-out", "port": {"number": 80}}}
    whole = {"defaultBackend": backend, **spec}
    return kubernetes_object("networking.k8s.io/v1", "Ingress", "way-out", whole, "ray", annotations=annotations)


INTERNAL, GCE_INTERNAL = {admission_policy.INTERNAL_SERVICE: "Internal"}, "gce-internal"
CLASS = "networking.gke.io/l4-regional-{}"


@pytest.mark.parametrize(
    ("body", "holder"),
    [
        (_service({}, type="LoadBalancer"), ADDRESSES),
        (_service({admission_policy.INTERNAL_SERVICE: "External"}, type="LoadBalancer"), ADDRESSES),
        (_service(INTERNAL, type="LoadBalancer", loadBalancerClass=CLASS.format("external")), ADDRESSES),
        (_service({}, type="LoadBalancer", loadBalancerClass=CLASS.format("internal")), NOBODY),
        (_service(INTERNAL, type="LoadBalancer"), NOBODY),
        (_service({}, type="NodePort"), NOBODY),
        (_ingress({}), ADDRESSES),
        (_ingress({admission_policy.INGRESS_CLASS: "gce"}), ADDRESSES),
        (_ingress({admission_policy.INGRESS_CLASS: GCE_INTERNAL}), NOBODY),
        (_ingress({}, ingressClassName="nginx"), NOBODY),
    ],
)
def test_no_load_balancer_gets_a_public_address(ray: Ray, body: Body, holder: str) -> None:
    _soon(lambda: _holder(lambda: ray.admin.apply(body, "test", dry_run=True)), holder)


def test_a_service_with_a_public_address_that_is_there_already_ends_and_cannot_be_made_so_again(ray: Ray) -> None:
    public, marked = _service({}, type="LoadBalancer"), _service({"marked": "by GKE"}, type="LoadBalancer")
    with ray.without("oasis-ray-addresses"):
        _soon(lambda: _holder(lambda: ray.admin.apply(public, "test")), NOBODY)
    try:
        changed = _service({}, type="LoadBalancer", externalTrafficPolicy="Local")
        _soon(lambda: _holder(lambda: ray.admin.apply(changed, "test", dry_run=True)), ADDRESSES)
        assert _holder(lambda: ray.admin.apply(marked, "test")) == NOBODY
    finally:
        ray.admin.delete(public)


TOKEN: dict[str, Any] = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("serviceAccountName", "default", "set serviceAccountName"),
        ("automountServiceAccountToken", True, "set automountServiceAccountToken to false"),
        ("securityContext", {}, "set runAsNonRoot to true"),
        ("shareProcessNamespace", True, "no shareProcessNamespace"),
        ("volumes", [TOKEN], "has a Kubernetes token"),
    ],
)
def test_a_job_whose_pods_would_be_refused_is_refused_itself(ray: Ray, field: str, value: object, words: str) -> None:
    page = (CHECKOUT / "docs" / "capacity.md").read_text(encoding="utf-8")
    job = yaml.safe_load(page.partition("```yaml")[2].partition("```")[0])
    assert ray.admin.apply(job, "test", dry_run=True)["kind"] == "Job"
    pod = job["spec"]["template"]["spec"]
    pod[field] = value
    if field == "volumes":
        pod["containers"][0]["volumeMounts"] = [{"name": TOKEN["name"], "mountPath": "/token"}]

    def refusal() -> str:
        try:
            ray.admin.apply(job, "test", dry_run=True)
        except ApiError as error:
            return error.message
        return ""

    eventually(lambda: words in refusal())
