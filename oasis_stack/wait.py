"""Resources that wait for what arrives or goes late, by polling in their create or delete, with a time limit and
progress; others refuse a change or removal.

Pulumi pickles these providers by reference and runs them in a process of its own, also for a later `destroy`: they hold
no state and no credential, and renaming one here strands the stacks that have it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from oasis_stack.live_state import (
    KubernetesClient,
    NotAnswering,
    ObjectKind,
    RequestRefused,
    Unreachable,
    WaitError,
    google_api,
    google_says_disabled,
    google_time,
    last_part,
    made_by_gke,
    peered_worker_pools,
    say,
    until_none,
)

GRANT_SECONDS = 120
"""After which Google's services know of a grant (IAM documentation, "Access change propagation": "typically 2 minutes,
potentially 7 minutes or longer")."""

UNREACHABLE_MINUTES = 5
"""How long a destroy keeps asking a cluster that does not answer at all."""

WORKLOADS = ObjectKind("kueue.x-k8s.io", "v1beta2", "workloads")
RAY_JOBS = ObjectKind("ray.io", "v1", "rayjobs")
QUEUED_JOBS = ObjectKind("batch", "v1", "jobs", "kueue.x-k8s.io/queue-name")

RAY_JOBS_OVER = ("Complete", "Failed", "ValidationFailed")
"""KubeRay's states of a RayJob that no longer changes (ray-project/kuberay v1.6.2, ray-operator/apis/ray/v1)."""

_DISK_DRIVER, _DISK = "pd.csi.storage.gke.io", r"projects/([^/]+)/(zone|region)s/([^/]+)/disks/([^/]+)"
"""Of disks of Compute Engine, and what the handle of such a volume is (kubernetes/csi-translation-lib v0.36.3,
plugins/gce_pd.go)."""

MAKERS = (
    ObjectKind("ray.io", "v1", "raycronjobs"),
    RAY_JOBS,
    ObjectKind("ray.io", "v1", "rayservices"),
    ObjectKind("ray.io", "v1", "rayclusters"),
    # Jobs of no queue hold no nodes that anything here waits for; they go with the cluster.
    QUEUED_JOBS,
    WORKLOADS,
    ObjectKind("networking.k8s.io", "v1", "ingresses"),
)
"""Kinds whose objects hold nodes, queues or load balancers; makers before what they make, so that nothing deleted comes
back (ray-project/kuberay v1.7.0, ray-operator/apis/ray/v1). A Workload is what Kueue makes of a job: an uninstall of
Kueue hangs while there is one (GoogleCloudPlatform/cluster-toolkit issues 5091 and 5109)."""


class Waiter(ResourceProvider):
    """Remembers its inputs, and nothing else; subclasses wait when the resource is made or when it goes."""

    serialize_as_secret_always = False  # the pickle is the name of a class

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        # Never a replacement: its deletion would wait for a teardown in the middle of an update.
        return DiffResult(changes=any(_olds.get(key) != value for key, value in _news.items() if key != "__provider"))

    def create(self, props: dict[str, Any]) -> CreateResult:
        with _one_message():
            self.await_arrival(props)
        return CreateResult(id_=type(self).__name__.strip("_"), outs=props)

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        with _one_message():
            self.await_arrival(_news)
        return UpdateResult(outs=_news)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        with _one_message():
            self.await_departure(_props)

    def await_arrival(self, props: Mapping[str, Any]) -> None:
        """Wait at creation and at each update; at once done here."""

    def await_departure(self, props: Mapping[str, Any]) -> None:
        """Wait at deletion; at once done here."""


@contextmanager
def _one_message() -> Iterator[None]:
    """Let an error reach the user as its message alone: Pulumi shows the whole traceback of a dynamic provider's error
    (pulumi 3.259, dynamic/__main__.py), and urllib3 warns of each attempt that fails."""
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    try:
        yield
    except (WaitError, RequestRefused, NotAnswering) as error:
        sys.tracebacklimit = 0
        raise type(error)(str(error)) from None


class _Place(Waiter):
    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        with _one_message():
            for key in ("project", "region", "zone"):
                if _olds.get(key, _news[key]) != _news[key]:
                    raise WaitError(
                        f"this stack stands in {key} {_olds[key]}, and its file now says {_news[key]}: Pulumi would "
                        "lose its way between the two, and nothing was done. For the new place use a stack of another "
                        f"name, or run `pulumi destroy` first, with {_olds[key]} in the file again."
                    )
        return super().diff(_id, _olds, _news)


class _ApisAnswer(Waiter):
    def await_arrival(self, props: Mapping[str, Any]) -> None:
        until_none(
            "waiting until these APIs, which are enabled, answer",
            lambda: [api for api in props["apis"] if google_says_disabled(api, props["project"])],
            props["timeout_minutes"],
            f"Look with `gcloud services list --project={props['project']}`: if one is missing, check the project's "
            "billing account. Then run `pulumi up` again: it goes on waiting.",
        )


class _GrantInEffect(Waiter):
    def await_arrival(self, props: Mapping[str, Any]) -> None:
        url = google_api("cloudkms", "https://cloudkms.googleapis.com/") + f"v1/{props['key']}"
        until: list[float] = []

        def unknown() -> list[str]:
            now = google_time(props["project"], url)
            if not until:
                until.append(now + GRANT_SECONDS)
            return [f"a grant on {last_part(props['key'])}"] if now <= until[0] else []

        until_none(
            f"waiting {GRANT_SECONDS // 60} minutes, as Google's services do not know at once of",
            unknown,
            props["timeout_minutes"],
            "Google's clock did not get that far. Run `pulumi up` again: it waits again.",
        )


class _CustomResourcesServed(Waiter):
    def await_arrival(self, props: Mapping[str, Any]) -> None:
        cluster = KubernetesClient(props["kubeconfig"])
        until_none(
            "waiting until the cluster serves",
            lambda: [kind for kind in props["kinds"] if not is_established(cluster.definition(kind))],
            props["timeout_minutes"],
            "GKE installs some resource types up to an hour after it made the cluster. Look with `kubectl get crd`, "
            "then run `pulumi up` again: it goes on waiting.",
        )


def is_established(definition: Mapping[str, Any]) -> bool:
    """True if the cluster serves the objects of this CustomResourceDefinition."""
    return _has_come_to(definition.get("status", {}), "Established")


def _has_come_to(status: Mapping[str, Any], *kinds: str) -> bool:
    """True if one of these conditions holds; a new object may have none, or null."""
    return any(one["type"] in kinds and one["status"] == "True" for one in status.get("conditions") or ())


class _WorkloadsGone(Waiter):
    def await_departure(self, props: Mapping[str, Any]) -> None:
        cluster = KubernetesClient(props["kubeconfig"])
        if _cluster_gone(cluster):
            return
        until_none(
            "removing workloads before their cluster",
            lambda: _remove_workloads(cluster),
            props["timeout_minutes"],
            "Look with `kubectl get rayjobs,rayservices,rayclusters,jobs,services,ingresses -A`, and with a queue also "
            "`kubectl get workloads -A`: what stays has a finalizer whose controller must answer. Then run `pulumi "
            "destroy` again: it goes on from here.",
        )
        _tell_of_disks(cluster)


class _AggregatedRolesGone(Waiter):
    def await_departure(self, props: Mapping[str, Any]) -> None:
        cluster = KubernetesClient(props["kubeconfig"])
        if not _cluster_gone(cluster):
            cluster.remove_aggregated_roles(props["release"])


class _QueuedNamespaces(Waiter):
    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        with _one_message():
            for namespace in sorted({*_olds["namespaces"]} - {*_news["namespaces"]}):
                _refuse_with_jobs(KubernetesClient(_news["kubeconfig"]), namespace)
        return UpdateResult(outs=_news)


class _QueueEmpty(Waiter):
    def await_departure(self, props: Mapping[str, Any]) -> None:
        # No namespace is named in a stack that an earlier version made, which had one queue.
        _refuse_with_jobs(KubernetesClient(props["kubeconfig"]), str(props.get("namespace") or ""))


def _refuse_with_jobs(cluster: KubernetesClient, namespace: str) -> None:
    """Refuse to remove a queue that has jobs: that of `namespace`; empty: all.

    Raises:
        WaitError: it has jobs; names them, and says what to do.
    """
    if _cluster_gone(cluster):
        return
    live = set(_live_workloads(cluster, namespace))
    if namespace:  # it goes as a whole, and with it what Kueue does not know yet, or no more
        live |= set(_live_jobs(cluster, namespace))
    if live:
        raise WaitError(
            f"the queue{namespace and f' of {namespace}'} is to go, and these jobs are in it or run: "
            f"{', '.join(sorted(live))}. Without it they would neither run nor end. Wait for them, or end each with "
            "`python -m workloads jobs stop NAME` or `kubectl delete`; then run `pulumi up` again. Until then the "
            "queue and its nodes stay."
        )


def _live_workloads(cluster: KubernetesClient, namespace: str) -> Iterator[str]:
    """Jobs that Kueue has in hand, each as `<namespace>/<name>`, of one namespace or of all; a Workload belongs to its
    job."""
    for workload in cluster.objects(WORKLOADS):
        if namespace not in ("", workload["metadata"]["namespace"]):
            continue
        if not _has_come_to(workload.get("status", {}), "Finished"):
            metadata = workload["metadata"]
            owner = next(iter(metadata.get("ownerReferences") or ()), metadata)
            yield f"{metadata['namespace']}/{owner['name']}"


def _live_jobs(cluster: KubernetesClient, namespace: str) -> Iterator[str]:
    """Jobs of a namespace that are not over, each as `<namespace>/<name>`."""
    for kind in (RAY_JOBS, QUEUED_JOBS):
        for job in cluster.objects(kind):
            status = job.get("status") or {}
            ended = status.get("jobDeploymentStatus") in RAY_JOBS_OVER or _has_come_to(status, "Complete", "Failed")
            if job["metadata"]["namespace"] == namespace and not ended:
                yield f"{namespace}/{job['metadata']['name']}"


def _cluster_gone(cluster: KubernetesClient) -> bool:
    """True if there is no cluster to clean up; the user must say so, since a network fault looks the same.

    Raises:
        WaitError: the cluster does not answer, and the user has not said so.
    """

    def silent() -> list[str]:
        try:
            cluster.load_balancers()
        except Unreachable as failure:
            return [str(failure)]
        except NotAnswering:
            return []  # it lives; the wait that follows asks again
        return []

    # The Kubernetes provider's own switch for the same case, so that one setting serves both.
    if os.environ.get("PULUMI_K8S_DELETE_UNREACHABLE", "").lower() in ("1", "true") and silent():
        say("the cluster does not answer and PULUMI_K8S_DELETE_UNREACHABLE is set: nothing is removed from it")
        return True
    until_none(
        "asking the cluster what runs on it",
        silent,
        UNREACHABLE_MINUTES,
        # With a refresh: only that has the provider forget a Helm release (pulumi/pulumi-kubernetes issue 2675).
        "If it was deleted by other means, run `PULUMI_K8S_DELETE_UNREACHABLE=true pulumi destroy --refresh`; else "
        "check your connection to it.",
    )
    return False


def _remove_workloads(cluster: KubernetesClient) -> list[str]:
    """Delete what is not being deleted yet, and name everything that is still there."""
    found: list[str] = []
    for kind in MAKERS:
        for namespace, name, going in map(_identity, cluster.objects(kind)):
            found.append(f"{kind.plural}/{namespace}/{name}")
            if not going:
                say(f"removing {found[-1]}")
                cluster.remove(kind, namespace, name)
    for namespace, name, going in map(_identity, cluster.load_balancers()):
        found.append(f"services/{namespace}/{name}")
        if not going:
            say(f"removing {found[-1]} and its load balancer")
            cluster.remove_service(namespace, name)
    return found


def _tell_of_disks(cluster: KubernetesClient) -> None:
    """Name the disks of claims, which hold somebody's data and so are not deleted here: GKE attempts it as the cluster
    goes, and does not promise it (gcloud reference, "container clusters delete")."""
    try:
        specs = [volume["spec"] for volume in cluster.volumes()]
    except (NotAnswering, RequestRefused) as failure:
        say(f"whether there are disks of PersistentVolumeClaims is not known: {failure}")
        return
    for spec in specs:
        source = spec.get("csi") or {}
        handle = re.fullmatch(_DISK, source.get("volumeHandle", ""))
        if handle and source.get("driver") == _DISK_DRIVER:
            project, scope, place, disk = handle.groups()
            claim = spec.get("claimRef") or {}
            size, owner = spec["capacity"]["storage"], f"{claim.get('namespace', '')}/{claim.get('name', '')}"
            say(
                f"disk {disk} ({size}, claim {owner}) may outlive the cluster, and goes on to cost: once nobody needs "
                f"its data, `gcloud compute disks delete {disk} --{scope} {place} --project {project}`"
            )


def _identity(found: Mapping[str, Any]) -> tuple[str, str, bool]:
    metadata = found["metadata"]
    return metadata["namespace"], metadata["name"], "deletionTimestamp" in metadata


class _NetworkFree(Waiter):
    def await_departure(self, props: Mapping[str, Any]) -> None:
        project, network = props["project"], last_part(props["network"])
        until_none(
            f"waiting until GKE has cleaned network {network}",
            lambda: made_by_gke(project, network),
            props["timeout_minutes"],
            "GKE did not remove them with its cluster. Remove them with `gcloud compute <firewall-rules | addresses | "
            "network-endpoint-groups | forwarding-rules | networks subnets> delete <name> "
            f"--project={project}`, then run `pulumi destroy` again: it goes on from here.",
        )


class _ConnectionFree(Waiter):
    def await_departure(self, props: Mapping[str, Any]) -> None:
        project, region, network = props["project"], props["region"], last_part(props["network"])
        until_none(
            f"waiting until no worker pool is peered with network {network}",
            lambda: peered_worker_pools(project, region, network),
            props["timeout_minutes"],
            f"Look with `gcloud builds worker-pools list --region={region} --project={project}`, remove what is not "
            "this stack's, then run `pulumi destroy` again: it goes on from here.",
        )


class Place(Resource, module="wait", name="Place"):
    """The project, region and zone of a stack. Refuses to change any of them, in a preview too. Makes nothing, removes
    nothing."""

    def __init__(
        self, name: str, project: str, region: str, zone: str, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(_Place(), name, {"project": project, "region": region, "zone": zone}, opts)


class ApisAnswer(Resource, module="wait", name="ApisAnswer"):
    """Exists once freshly enabled Google APIs have stopped refusing calls as disabled, which takes minutes at times."""

    def __init__(
        self,
        name: str,
        project: str,
        apis: Sequence[str],
        timeout_minutes: int,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`apis` such as `compute.googleapis.com`; those that `up` does not call are not asked."""
        props = {"project": project, "apis": list(apis), "timeout_minutes": timeout_minutes}
        super().__init__(_ApisAnswer(), name, props, opts)


class GrantInEffect(Resource, module="wait", name="GrantInEffect"):
    """Exists once a grant on a key has had the time that Google's services take to know of it. Makes nothing, removes
    nothing."""

    def __init__(
        self, name: str, project: str, key: str, timeout_minutes: int, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """`key` is a Cloud KMS key's full name, granted in what this one depends on."""
        props = {"project": project, "key": key, "timeout_minutes": timeout_minutes}
        super().__init__(_GrantInEffect(), name, props, opts)


class CustomResourcesServed(Resource, module="wait", name="CustomResourcesServed"):
    """Exists once the cluster serves the given resource types. Makes nothing, removes nothing."""

    kinds: pulumi.Output[Sequence[str]]

    def __init__(
        self,
        name: str,
        kubeconfig: pulumi.Input[str],
        kinds: Sequence[str],
        timeout_minutes: int,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`kinds` are names of definitions, `<plural>.<group>`; `kubeconfig` is JSON."""
        props = {"kubeconfig": kubeconfig, "kinds": list(kinds), "timeout_minutes": timeout_minutes}
        super().__init__(_CustomResourcesServed(), name, props, secret_kubeconfig(opts))


class WorkloadsGone(Resource, module="wait", name="WorkloadsGone"):
    """On destroy, removes every Ray object, queued job, Ingress and load-balanced Service of the cluster, whoever made
    it.

    It goes before KubeRay and Kueue, which must end them, and with or after the stack's own RayCluster.
    """

    def __init__(
        self,
        name: str,
        kubeconfig: pulumi.Input[str],
        timeout_minutes: int,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {"kubeconfig": kubeconfig, "timeout_minutes": timeout_minutes}
        super().__init__(_WorkloadsGone(), name, props, secret_kubeconfig(opts))


class AggregatedRolesGone(Resource, module="wait", name="AggregatedRolesGone"):
    """On destroy, removes the ClusterRoles of a Helm release that aggregate rules of other roles, before Helm does.

    As the others go, Kubernetes writes such a role's rules anew, and with them the role that Helm had deleted. Helm
    then waits for it until its time is over, and fails (Kubernetes v1.36.3, pkg/controller/clusterroleaggregation,
    `applyClusterRoles`; helm v3.18.6, pkg/kube/wait.go, `waitForDeletedResources`; seen with Kueue 0.19.2).
    """

    def __init__(
        self,
        name: str,
        kubeconfig: pulumi.Input[str],
        release: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {"kubeconfig": kubeconfig, "release": release}
        super().__init__(_AggregatedRolesGone(), name, props, secret_kubeconfig(opts))


class QueuedNamespaces(Resource, module="wait", name="QueuedNamespaces"):
    """Exists while jobs of the given namespaces may be queued, and refuses to drop a namespace that has jobs from the
    list: by then, what follows it in an update, Kueue's own configuration above all, has not changed."""

    def __init__(
        self,
        name: str,
        kubeconfig: pulumi.Input[str],
        namespaces: Sequence[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {"kubeconfig": kubeconfig, "namespaces": list(namespaces)}
        super().__init__(_QueuedNamespaces(), name, props, secret_kubeconfig(opts))


class QueueEmpty(Resource, module="wait", name="QueueEmpty"):
    """Refuses to remove a queue that has jobs: it is deleted before its LocalQueue."""

    def __init__(
        self,
        name: str,
        kubeconfig: pulumi.Input[str],
        namespace: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`namespace` is that whose jobs count; empty: those of all."""
        props = {"kubeconfig": kubeconfig, "namespace": namespace}
        super().__init__(_QueueEmpty(), name, props, secret_kubeconfig(opts))


class NetworkFree(Resource, module="wait", name="NetworkFree"):
    """On destroy, waits until GKE has removed what it made in a network: after the cluster, before the network."""

    def __init__(
        self,
        name: str,
        project: str,
        network: pulumi.Input[str],
        timeout_minutes: int,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`network` is the VPC's name or any form of its path."""
        props = {"project": project, "network": network, "timeout_minutes": timeout_minutes}
        super().__init__(_NetworkFree(), name, props, opts)


class ConnectionFree(Resource, module="wait", name="ConnectionFree"):
    """On destroy, waits until no build worker pool uses a network's peering: after the pool, before the connection."""

    def __init__(
        self,
        name: str,
        project: str,
        region: str,
        network: pulumi.Input[str],
        timeout_minutes: int,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`network` is the VPC's name or any form of its path."""
        props = {"project": project, "region": region, "network": network, "timeout_minutes": timeout_minutes}
        super().__init__(_ConnectionFree(), name, props, opts)


def secret_kubeconfig(opts: pulumi.ResourceOptions | None) -> pulumi.ResourceOptions:
    """Options with which a kubeconfig stays a secret: a dynamic provider gives it back in the clear."""
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(additional_secret_outputs=["kubeconfig"]))
