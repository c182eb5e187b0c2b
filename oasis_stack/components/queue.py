"""Jobs whose nodes must be provisioned together: Kueue, and the queue through which it asks GKE for a queued pool's
nodes.

Kueue suspends a job, asks for all of its GPU nodes at once with a ProvisioningRequest, and starts the job once they are
there. Its resource types are in the templates of its chart: Helm upgrades them, and an uninstall deletes every
Workload. So queues are emptied before Kueue is removed: an uninstall with live Workloads hangs
(GoogleCloudPlatform/cluster-toolkit issues 5091 and 5109).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pulumi
import pulumi_kubernetes as kubernetes
import yaml

from oasis_stack import wait
from oasis_stack.facts import names
from oasis_stack.facts.capacity_rules import CapacityEntry
from oasis_stack.facts.machine import Machine
from oasis_stack.facts.pod_size import PodSize, whole_node_pod
from oasis_stack.facts.queue_share import QueueShare

API = "kueue.x-k8s.io"
API_VERSION = f"{API}/v1beta2"

RELEASE = "kueue"
"""Name of the Helm release."""

REQUESTS = "provisioningrequests.autoscaling.x-k8s.io"

SERVED_MINUTES = 90
"""GKE's autoscaler installs the type as it does the ComputeClass type ("minutes to about an hour": google/skills,
gke-compute-classes, 2026-08)."""

TIMEOUT_SECONDS = 900
"""How long Helm waits for Kueue: on a new cluster the system pool may have to grow first."""

WEBHOOK_PORT, VISIBILITY_PORT = 9443, 8082
"""Ports of Kueue (kubernetes-sigs/kueue v0.19.2, charts/kueue/templates/manager/manager.yaml)."""

CONTROL_PLANE_PORTS = (WEBHOOK_PORT, VISIBILITY_PORT)
"""Ports at which the control plane must reach Kueue. If it cannot reach the second, no namespace is ever deleted,
because nobody can say what is left in it."""

GPU = "nvidia.com/gpu"

QUEUED_TAINTS = {GPU: "present", "cloud.google.com/gke-queued": "true"}
"""Taints that GKE puts on the nodes of a queued pool (Google Cloud documentation, "Run a large-scale workload with
flex-start with queued provisioning")."""


@dataclass(frozen=True, kw_only=True)
class KueueArgs:
    """Arguments of Kueue's release."""

    chart: str
    """Address of the chart itself, `oci://...` or `https://...`."""
    namespaces: Sequence[str]
    """Kubernetes namespaces whose jobs may be queued. Kueue is not asked about other namespaces, so that the rest of
    the cluster keeps working while Kueue is down; in these namespaces no RayJob or RayCluster can change then."""
    kubeconfig: pulumi.Input[str]
    """Kubeconfig of the cluster, as JSON, used to wait for the ProvisioningRequest type, and to look for jobs before
    Kueue stops managing a namespace."""


class Kueue(pulumi.ComponentResource):
    """Registers Kueue's Helm release, its namespace, and a wait until the cluster knows ProvisioningRequests."""

    APIS: ClassVar[tuple[str, ...]] = ("container.googleapis.com",)

    release_name: pulumi.Output[str]

    def __init__(self, name: str, args: KueueArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:Kueue", name, None, opts)
        served = wait.CustomResourcesServed(
            name, args.kubeconfig, [REQUESTS], SERVED_MINUTES, pulumi.ResourceOptions(parent=self)
        )
        # Removing a team that has jobs is refused before Kueue is told to stop managing its namespace.
        namespaces = wait.QueuedNamespaces(name, args.kubeconfig, args.namespaces, pulumi.ResourceOptions(parent=self))
        release = kubernetes.helm.v3.Release(
            name,
            name=RELEASE,
            chart=args.chart,
            version=names.KUEUE_VERSION,
            namespace=names.KUEUE_NAMESPACE,
            create_namespace=True,
            values=chart_values(args.namespaces),
            atomic=True,
            timeout=TIMEOUT_SECONDS,
            # Kueue looks for the type once, when it starts: without it Kueue never asks for nodes, and no queued job
            # would run (kubernetes-sigs/kueue v0.19.2, cmd/kueue/main.go).
            opts=pulumi.ResourceOptions(parent=self, depends_on=[served, namespaces]),
        )
        gone_first = pulumi.ResourceOptions(parent=self, depends_on=[release])
        wait.AggregatedRolesGone(name, args.kubeconfig, RELEASE, gone_first)
        self.release_name = release.name.apply(str)
        self.register_outputs({"release_name": self.release_name})


def chart_values(namespaces: Sequence[str]) -> dict[str, Any]:
    """Chart values that differ from the defaults."""
    return {
        "controllerManager": {
            # Nodes that can vanish (Spot, flex-start) would take Kueue with them.
            "nodeSelector": dict(names.SYSTEM_POOL_LABELS),
            # Less than the chart's default request, so that the heads of jobs fit beside it.
            "manager": {
                # In the chart's source the image comes from the project's staging registry, with a tag that moves.
                "image": {
                    "repository": "registry.k8s.io/kueue/kueue",
                    "tag": f"v{names.KUEUE_VERSION}",
                    "pullPolicy": "IfNotPresent",
                },
                "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}},
            },
        },
        "managerConfig": {"controllerManagerConfigYaml": yaml.safe_dump(configuration(namespaces), sort_keys=False)},
    }


def configuration(namespaces: Sequence[str]) -> dict[str, Any]:
    """Kueue's own configuration, whole: the chart merges nothing into it (kubernetes-sigs/kueue v0.19.2,
    apis/config/v1beta2/configuration_types.go)."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": ":8443"},
        "webhook": {"port": WEBHOOK_PORT},
        "leaderElection": {"leaderElect": True, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
        "internalCertManagement": {"enable": True},
        # As in the chart's values. With 50 and 100, five hundred jobs at once waited a minute for their requests.
        "clientConnection": {"qps": 300, "burst": 500},
        # Anything that names no queue, above all the long-lived RayCluster, runs as if there were no Kueue.
        "manageJobsWithoutQueueName": False,
        "managedJobsNamespaceSelector": _within(namespaces),
        # A job with some pods that never become ready would hold its nodes, and the queue, for ever. A slow image pull
        # ends a job too. Kueue 0.19 does this by default, and retries without end; hence the explicit setting.
        "waitForPodsReady": {
            "timeout": "30m",
            "blockAdmission": False,
            "requeuingStrategy": {"timestamp": "Eviction", "backoffLimitCount": 3},
        },
        "integrations": {"frameworks": ["batch/job", "ray.io/rayjob"]},
        # Disk and NICs come with a node: a request for a resource without a quota would never be admitted.
        "resources": {"excludeResourcePrefixes": ["ephemeral-storage", "networking.gke.io"]},
    }


def _within(namespaces: Sequence[str]) -> dict[str, Any]:
    """Selector of namespaces by name."""
    return {
        "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": [*namespaces]}],
    }


@dataclass(frozen=True, kw_only=True)
class QueueArgs:
    """Arguments of the queue."""

    shares: Mapping[str, QueueShare]
    """Shares by the name of their ClusterQueue. Together they are the pool's nodes, and the heads that fit in the
    system pool beside what always runs there. With more heads, GPU nodes would wait for a head."""
    pool_name: pulumi.Input[str]
    """GKE node pool with queued provisioning; with any other pool, requests are never fulfilled."""
    machine: Machine
    """Machine of a node in that pool."""
    entry: CapacityEntry
    """How many nodes that pool may have, and for how long; must be the pool's own entry, or GKE refuses requests."""
    head: PodSize
    """Size of the head of a queued Ray job; if heads are larger, fewer fit than are admitted."""


class Queue(pulumi.ComponentResource):
    """Registers Kueue's ClusterQueues with their two kinds of nodes, the priority of each if there are several, and the
    check that asks GKE for GPU nodes."""

    APIS: ClassVar[tuple[str, ...]] = ("container.googleapis.com",)

    cluster_queues: Mapping[str, pulumi.Output[str]]

    def __init__(self, name: str, args: QueueArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:Queue", name, None, opts)
        flavors = [
            self._object("ResourceFlavor", names.SYSTEM_FLAVOR, {"nodeLabels": dict(names.SYSTEM_POOL_LABELS)}),
            self._object("ResourceFlavor", names.QUEUED_FLAVOR, queued_flavor_spec(args.pool_name)),
        ]
        requests = self._object("ProvisioningRequestConfig", names.QUEUED_PROVISIONING, requests_spec(args.entry))
        check = self._object("AdmissionCheck", names.QUEUED_PROVISIONING, CHECK_SPEC, requests)
        # Outputs of the objects, not constants: users of a queue are made after it and deleted before it.
        self.cluster_queues = {
            found: self._queue(args, found, share, *flavors, check).urn.apply(lambda _, found=found: found)
            for found, share in args.shares.items()
        }
        self.register_outputs({"cluster_queues": self.cluster_queues})

    def _queue(self, args: QueueArgs, name: str, share: QueueShare, *after: pulumi.Resource) -> pulumi.Resource:
        queue = self._object("ClusterQueue", name, cluster_queue_spec(args, share), *after)
        if share.priority is not None:
            # The package's class for custom objects supports only those with a spec.
            pulumi.CustomResource(
                f"kubernetes:{API_VERSION}:WorkloadPriorityClass",
                name,
                {
                    "apiVersion": API_VERSION,
                    "kind": "WorkloadPriorityClass",
                    "metadata": {"name": share.namespace},
                    "value": share.priority,
                },
                pulumi.ResourceOptions(parent=self),
            )
        return queue

    def _object(self, kind: str, name: str, spec: dict[str, Any], *after: pulumi.Resource) -> pulumi.Resource:
        return kubernetes.apiextensions.CustomResource(
            name,
            api_version=API_VERSION,
            kind=kind,
            metadata={"name": name},
            spec=spec,
            opts=pulumi.ResourceOptions(parent=self, depends_on=after),
        )


def queued_flavor_spec(pool_name: pulumi.Input[str]) -> dict[str, Any]:
    """The GPU nodes of one pool, by the label that GKE gives them.

    Each pod must itself tolerate the taints. With tolerations here instead, which Kueue adds to any pod, the head of a
    job was placed on GPU nodes as soon as the system nodes were full (tried with Kueue 0.19.2).
    """
    return {
        "nodeLabels": {"cloud.google.com/gke-nodepool": pool_name},
        "nodeTaints": [{"key": key, "value": value, "effect": "NoSchedule"} for key, value in QUEUED_TAINTS.items()],
    }


def requests_spec(entry: CapacityEntry) -> dict[str, Any]:
    """How Kueue asks GKE: only for the pods that want GPUs, in one pod set, because GKE accepts one set per request."""
    return {
        "provisioningClassName": "queued-provisioning.gke.io",
        "managedResources": [GPU],
        # Only here: with an annotation on the job as well, Kueue made new requests without end (tried with 0.19.2).
        "parameters": {"maxRunDurationSeconds": str(entry.max_run_seconds)},
        "retryStrategy": {"backoffLimitCount": 10, "backoffBaseSeconds": 60, "backoffMaxSeconds": 1800},
        # Binds a job's pods to the nodes that were made for it (Google Cloud documentation, as above).
        "podSetUpdates": {
            "nodeSelector": [
                {
                    "key": "autoscaling.gke.io/provisioning-request",
                    "valueFromProvisioningClassDetail": "ResizeRequestName",
                }
            ]
        },
    }


CHECK_SPEC: dict[str, Any] = {
    "controllerName": f"{API}/provisioning-request",
    "parameters": {"apiGroup": API, "kind": "ProvisioningRequestConfig", "name": names.QUEUED_PROVISIONING},
}


def cluster_queue_spec(args: QueueArgs, share: QueueShare) -> dict[str, Any]:
    """What the jobs of a namespace may use at once. Heads find quota on system nodes first; these have no GPUs.

    With other namespaces beside it, a namespace lends what it does not use. It takes its own share back from whoever
    borrowed it, and if it must borrow, it takes nodes back from borrowers of lower priority too.
    """
    node, shared = whole_node_pod(args.machine), len(args.shares) > 1
    borrowed = share.most_nodes - share.nodes if shared else None
    together: dict[str, Any] = {
        "cohortName": names.CLUSTER_QUEUE,
        "preemption": {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}},
    }
    return {
        **(together if shared else {}),
        "namespaceSelector": _within([share.namespace]),
        "resourceGroups": [
            {
                "coveredResources": ["cpu", "memory", GPU],
                "flavors": [
                    {"name": names.SYSTEM_FLAVOR, "resources": _quotas(args.head, share.heads, 0)},
                    {
                        "name": names.QUEUED_FLAVOR,
                        "resources": _quotas(node, share.nodes, args.machine.gpus, borrowed),
                    },
                ],
            }
        ],
        "admissionChecksStrategy": {
            "admissionChecks": [{"name": names.QUEUED_PROVISIONING, "onFlavors": [names.QUEUED_FLAVOR]}]
        },
    }


def _quotas(pod: PodSize, pods: int, gpus: int, borrowed: int | None = None) -> list[dict[str, str]]:
    """Quotas for `pods` pods of this size with `gpus` GPUs each, and for at most `borrowed` more that are borrowed."""

    def amounts(pods: int) -> dict[str, str]:
        return {"cpu": str(pod.cpus * pods), "memory": f"{pod.memory_gib * pods}Gi", GPU: str(gpus * pods)}

    limits = {} if borrowed is None else amounts(borrowed)
    return [
        {
            "name": resource,
            "nominalQuota": amount,
            **({"borrowingLimit": limits[resource]} if resource in limits else {}),
        }
        for resource, amount in amounts(pods).items()
    ]
