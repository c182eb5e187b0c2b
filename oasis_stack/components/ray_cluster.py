"""The long-lived RayCluster, its namespace, who may reach it, and what jobs learn about the stack.

The autoscaler's role, the head's Service and the token's Secret are KubeRay's work, and go with the RayCluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import pulumi
import pulumi_kubernetes as kubernetes

from oasis_stack import wait
from oasis_stack.facts import names
from oasis_stack.facts.pod_size import PodSize
from oasis_stack.pod_specs import admission_policy, network_policy
from oasis_stack.pod_specs.mounts import Mounts
from oasis_stack.pod_specs.pods import (
    GpuGroup,
    PodContext,
    cpu_worker_template,
    gpu_worker_template,
    head_template,
)
from oasis_stack.pod_specs.ray_cluster_spec import AUTOSCALED, pod_environment, ray_cluster_spec, worker_group
from workloads.environment import (
    CONFIG_MAP,
    DATA_MOUNT,
    GIB_DIRECTORY,
    RUNS_MOUNT,
    SCRATCH_MOUNT,
    ClusterEnvironment,
    variable,
)

DELETE_TIMEOUT = "20m"
"""Pods may take their whole grace period, and a namespace waits for all that is in it."""

WORKLOADS_GONE_MINUTES = 20

ALL_HEADS = 10_000


@dataclass(frozen=True, kw_only=True)
class InternalLoadBalancer:
    """An address in the primary VPC at which the dashboard answers."""

    address: pulumi.Input[str]
    """Reserved internal address."""
    port: int
    """TCP port."""
    client_ranges: Sequence[str]
    """Ranges that may use it; nobody else gets through."""


@dataclass(frozen=True, kw_only=True)
class RayClusterArgs:
    """Arguments of the RayCluster."""

    namespace: str
    """Kubernetes namespace, made here; pods of other namespaces cannot reach it."""
    cluster_name: str
    """Name of the RayCluster, of its token's Secret, and, with `-head-svc`, of the head's Service."""
    ray_version: str
    """Ray in the image; another one here, and KubeRay starts Ray with options it does not know."""
    image: pulumi.Input[str]
    """Container image of every Ray pod."""
    environment: Mapping[str, pulumi.Input[str]]
    """Every field of `workloads.environment.ClusterEnvironment`; pods do not start while one is missing."""
    head: PodSize
    """Size of the head; one that runs out of memory takes all jobs with it."""
    cpu_worker: PodSize
    """Size of a CPU worker; more than a node of the CPU pool has free, and none ever starts."""
    cpu_workers_max: int
    """Most CPU workers; 0 builds no such group."""
    gpu: GpuGroup | None
    """The GPU worker group; None in a stack without GPUs."""
    cluster_queue: pulumi.Input[str] | None
    """Kueue's ClusterQueue for jobs of the namespace, which outlives them; None: no queue is made there."""
    idle_timeout_seconds: int
    """How long a worker without work stays; short gives up nodes that are hard to get back, long pays for them."""
    data_bucket: pulumi.Input[str]
    """Bucket mounted read-only for data."""
    runs_bucket: pulumi.Input[str]
    """Bucket mounted for results and logs."""
    control_plane_ranges: Sequence[str]
    """Range of the control plane's private endpoint; another one, and the autoscaler cannot scale."""
    load_balancer: InternalLoadBalancer | None
    """Way to the dashboard; None: reached by port-forward only."""
    kubeconfig: pulumi.Input[str]
    """Kubeconfig of the cluster, as JSON, for the removal of users' workloads on destroy."""


class RayCluster(pulumi.ComponentResource):
    """Registers the RayCluster with namespace, service account, ConfigMap, NetworkPolicies, admission policies and
    disruption budget, where asked for the dashboard's internal load balancer and a queue for jobs, and the removal of
    all workloads on destroy."""

    APIS: ClassVar[tuple[str, ...]] = ("container.googleapis.com",)

    ray_namespace: pulumi.Output[str]
    ray_cluster_name: pulumi.Output[str]

    def __init__(self, name: str, args: RayClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:RayCluster", name, None, opts)
        namespace = kubernetes.core.v1.Namespace(
            name,
            metadata=kubernetes.meta.v1.ObjectMetaArgs(name=args.namespace, labels=POD_SECURITY),
            opts=pulumi.ResourceOptions(parent=self, custom_timeouts=pulumi.CustomTimeouts(delete=DELETE_TIMEOUT)),
        )
        self.ray_namespace = namespace.metadata.apply(lambda metadata: str(metadata.name))
        # Users' workloads go after our RayCluster, while the operator, this namespace and all it holds still live.
        workloads_gone = wait.WorkloadsGone(
            name,
            args.kubeconfig,
            WORKLOADS_GONE_MINUTES,
            pulumi.ResourceOptions(parent=self, depends_on=self._surroundings(name, args)),
        )
        cluster = kubernetes.apiextensions.CustomResource(
            name,
            api_version="ray.io/v1",
            kind="RayCluster",
            metadata=self._metadata(args.cluster_name, AUTOSCALED),
            spec=_spec(args),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[workloads_gone],
                custom_timeouts=pulumi.CustomTimeouts(delete=DELETE_TIMEOUT),
            ),
        )
        self.ray_cluster_name = cluster.urn.apply(lambda _: args.cluster_name)
        if args.load_balancer is not None:
            kubernetes.core.v1.Service(
                name,
                metadata=self._metadata("dashboard", LOAD_BALANCER),
                spec=_load_balancer_spec(args.load_balancer, args.cluster_name),
                # The wait for workloads to go is also the wait for this one's load balancer.
                opts=pulumi.ResourceOptions(parent=self, depends_on=[workloads_gone]),
            )
        self.register_outputs({"ray_namespace": self.ray_namespace, "ray_cluster_name": self.ray_cluster_name})

    def _surroundings(self, name: str, args: RayClusterArgs) -> Sequence[pulumi.Resource]:
        """Resources that pods of the namespace find from their first second to their last."""
        child = pulumi.ResourceOptions(parent=self)
        policies = network_policy.policies(
            names.KUBERAY_NAMESPACE,
            args.control_plane_ranges,
            args.load_balancer.client_ranges if args.load_balancer else (),
            queued=args.cluster_queue is not None,
        )
        found = [
            kubernetes.core.v1.ServiceAccount(name, metadata=self._metadata(names.RAY_ACCOUNT), opts=child),
            kubernetes.core.v1.ConfigMap(
                name, metadata=self._metadata(CONFIG_MAP), data=dict(args.environment), opts=child
            ),
            kubernetes.policy.v1.PodDisruptionBudget(
                name,
                metadata=self._metadata(f"{args.cluster_name}-head"),
                spec=kubernetes.policy.v1.PodDisruptionBudgetSpecArgs(
                    # More than there will be, so that none may go, be it of this cluster or of a RayJob's own. No
                    # percentage and no `maxUnavailable`: Kubernetes takes these of its own controllers' pods alone
                    # (its documentation, "Specifying a Disruption Budget for your Application").
                    min_available=ALL_HEADS,
                    selector=kubernetes.meta.v1.LabelSelectorArgs(match_labels=network_policy.HEAD),
                ),
                opts=child,
            ),
            *(
                kubernetes.networking.v1.NetworkPolicy(policy, metadata=self._metadata(policy), spec=spec, opts=child)
                for policy, spec in policies.items()
            ),
            *self._admission(args),
        ]
        return [*found, *self._queue(name, args, found)]

    def _queue(self, name: str, args: RayClusterArgs, found: Sequence[pulumi.Resource]) -> Iterator[pulumi.Resource]:
        """The queue that jobs name, and what keeps it, with all that its jobs find here, for as long as it has any."""
        if args.cluster_queue is not None:
            queue = kubernetes.apiextensions.CustomResource(
                name,
                api_version="kueue.x-k8s.io/v1beta2",
                kind="LocalQueue",
                metadata=self._metadata(names.LOCAL_QUEUE),
                spec={"clusterQueue": args.cluster_queue},
                opts=pulumi.ResourceOptions(parent=self),
            )
            opts = pulumi.ResourceOptions(parent=self, depends_on=[*found, queue])
            yield wait.QueueEmpty(name, args.kubeconfig, opts)

    def _admission(self, args: RayClusterArgs) -> Iterator[pulumi.Resource]:
        child = pulumi.ResourceOptions(parent=self)
        for name, spec in admission_policy.policies(args.namespace, names.RAY_ACCOUNT).items():
            metadata = kubernetes.meta.v1.ObjectMetaArgs(name=name)
            yield kubernetes.admissionregistration.v1.ValidatingAdmissionPolicy(
                name, metadata=metadata, spec=spec, opts=child
            )
            yield kubernetes.admissionregistration.v1.ValidatingAdmissionPolicyBinding(
                name, metadata=metadata, spec=admission_policy.binding(name), opts=child
            )

    def _metadata(self, name: str, annotations: Mapping[str, str] | None = None) -> kubernetes.meta.v1.ObjectMetaArgs:
        return kubernetes.meta.v1.ObjectMetaArgs(name=name, namespace=self.ray_namespace, annotations=annotations)


POD_SECURITY = {"pod-security.kubernetes.io/enforce": "baseline"}
"""Label of the namespace; `restricted` would refuse the init container that copies gIB, which is root."""

LOAD_BALANCER = {
    "networking.gke.io/load-balancer-type": "Internal",
    # Its address is known beforehand; a wait would be for the head's image. Its removal is waited for elsewhere.
    "pulumi.com/skipAwait": "true",
}
"""Annotations of the dashboard's Service; without the first it would be public."""


def _load_balancer_spec(balancer: InternalLoadBalancer, cluster_name: str) -> kubernetes.core.v1.ServiceSpecArgs:
    """Spec of the Service that shows the dashboard at an internal address, to the given ranges alone."""
    port = kubernetes.core.v1.ServicePortArgs(
        name="dashboard", port=balancer.port, target_port=network_policy.DASHBOARD_PORT
    )
    return kubernetes.core.v1.ServiceSpecArgs(
        type="LoadBalancer",
        load_balancer_ip=balancer.address,
        load_balancer_source_ranges=list(balancer.client_ranges),
        # Keeps the clients' addresses, by which the NetworkPolicy tells them apart.
        external_traffic_policy="Local",
        selector=head_labels(cluster_name),
        ports=[port],
    )


def head_labels(cluster_name: str) -> dict[str, str]:
    """Labels that KubeRay gives the head of that cluster, and no other pod."""
    return {"ray.io/cluster": cluster_name, "ray.io/node-type": "head"}


def port_forward_command(namespace: str, cluster_name: str, port: int) -> str:
    """Command that makes the dashboard answer at `http://127.0.0.1:<port>`."""
    service = f"service/{cluster_name}-head-svc"
    return f"kubectl --namespace {namespace} port-forward {service} {port}:{network_policy.DASHBOARD_PORT}"


def _spec(args: RayClusterArgs) -> dict[str, Any]:
    context = PodContext(
        image=args.image,
        service_account=names.RAY_ACCOUNT,
        environment=pod_environment(
            CONFIG_MAP, {variable(field.name): field.name for field in fields(ClusterEnvironment)}
        ),
        mounts=Mounts(
            data=DATA_MOUNT,
            runs=RUNS_MOUNT,
            scratch=SCRATCH_MOUNT,
            gib=GIB_DIRECTORY,
            data_bucket=args.data_bucket,
            runs_bucket=args.runs_bucket,
        ),
    )
    groups = []
    if args.cpu_workers_max:
        template = cpu_worker_template(context, args.cpu_worker, names.CPU_POOL_LABELS)
        groups.append(worker_group("cpu", args.cpu_workers_max, template))
    if args.gpu is not None:
        groups.append(worker_group("gpu", args.gpu.max_nodes, gpu_worker_template(context, args.gpu)))
    # Never on Spot or flex-start: a job does not survive its head.
    head = head_template(context, args.head, names.SYSTEM_POOL_LABELS)
    return ray_cluster_spec(args.ray_version, args.idle_timeout_seconds, head, groups)
