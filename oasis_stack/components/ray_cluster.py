"""The long-lived RayCluster, its namespace, access to it, and the facts about the stack that jobs see.

KubeRay makes the autoscaler's role, the head's Service and the token's Secret, and deletes them with the RayCluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_kubernetes as kubernetes

from oasis_stack import wait
from oasis_stack.pod_specs import network_policy
from oasis_stack.pod_specs.ray_cluster_spec import AUTOSCALED, RayPods, cluster_of
from oasis_stack.ray_namespace import DELETE_TIMEOUT, RayNamespace, metadata

WORKLOADS_GONE_MINUTES = 20


@dataclass(frozen=True, kw_only=True)
class InternalLoadBalancer:
    """An address in the primary VPC at which the dashboard answers."""

    address: pulumi.Input[str]
    """Reserved internal address."""
    port: int
    """TCP port."""
    client_ranges: Sequence[str]
    """Ranges that may use it; all other traffic is blocked."""


@dataclass(frozen=True, kw_only=True)
class RayClusterArgs:
    """Arguments of the RayCluster."""

    namespace: str
    """Kubernetes namespace, made here; pods of other namespaces cannot reach it."""
    cluster_name: str
    """Name of the RayCluster, of its token's Secret, and, with `-head-svc`, of the head's Service."""
    environment: Mapping[str, pulumi.Input[str]]
    """Every field of `workloads.environment.ClusterEnvironment`; pods do not start while one is missing."""
    pods: RayPods
    """Specification of its pods."""
    cluster_queue: pulumi.Input[str] | None
    """Kueue's ClusterQueue for jobs of the namespace, which outlives them; None: no queue is made there."""
    control_plane_ranges: Sequence[str]
    """Range of the control plane's private endpoint; if it is wrong, the autoscaler cannot scale."""
    load_balancer: InternalLoadBalancer | None
    """Load balancer for the dashboard; None: reached by port-forward only."""
    kubeconfig: pulumi.Input[str]
    """Kubeconfig of the cluster, as JSON, for the removal of users' workloads on destroy."""


class RayCluster(pulumi.ComponentResource):
    """Registers the RayCluster with namespace, service account, ConfigMap, NetworkPolicies, admission policies and
    disruption budget; if asked for, the dashboard's internal load balancer and a queue for jobs; and the removal of all
    workloads on destroy."""

    APIS: ClassVar[tuple[str, ...]] = ("container.googleapis.com",)

    ray_namespace: pulumi.Output[str]
    ray_cluster_name: pulumi.Output[str]

    def __init__(self, name: str, args: RayClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:RayCluster", name, None, opts)
        ours = RayNamespace(
            parent=self,
            title=name,
            prefix="",
            policies="oasis-ray",
            namespace=args.namespace,
            environment=args.environment,
            budget=f"{args.cluster_name}-head",
            control_plane_ranges=args.control_plane_ranges,
            dashboard_client_ranges=args.load_balancer.client_ranges if args.load_balancer else (),
            cluster_queue=args.cluster_queue,
        )
        namespace = ours.namespace_itself()
        within = self.ray_namespace = namespace.metadata.apply(lambda metadata: str(metadata.name))
        found = ours.surroundings(within)
        # Another team's jobs keep the queue too: without Kueue they would neither run nor end.
        found += ours.queue(within, args.kubeconfig, found, only="")
        # Users' workloads are removed after our RayCluster, while the operator, this namespace and its content exist.
        workloads_gone = wait.WorkloadsGone(
            name,
            args.kubeconfig,
            WORKLOADS_GONE_MINUTES,
            pulumi.ResourceOptions(parent=self, depends_on=found),
        )
        cluster = kubernetes.apiextensions.CustomResource(
            name,
            api_version="ray.io/v1",
            kind="RayCluster",
            metadata=metadata(within, args.cluster_name, AUTOSCALED),
            spec=cluster_of(args.pods),
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
                metadata=metadata(within, "dashboard", LOAD_BALANCER),
                spec=_load_balancer_spec(args.load_balancer, args.cluster_name),
                # The wait for workloads to go is also the wait for this one's load balancer.
                opts=pulumi.ResourceOptions(parent=self, depends_on=[workloads_gone]),
            )
        self.register_outputs({"ray_namespace": self.ray_namespace, "ray_cluster_name": self.ray_cluster_name})


LOAD_BALANCER = {
    "networking.gke.io/load-balancer-type": "Internal",
    # Its address is known beforehand; a wait would be for the head's image. Another resource waits for its removal.
    "pulumi.com/skipAwait": "true",
}
"""Annotations of the dashboard's Service; without the first it would be public."""


def _load_balancer_spec(balancer: InternalLoadBalancer, cluster_name: str) -> kubernetes.core.v1.ServiceSpecArgs:
    """Spec of the Service that serves the dashboard at an internal address, only to the given ranges."""
    port = kubernetes.core.v1.ServicePortArgs(
        name="dashboard", port=balancer.port, target_port=network_policy.DASHBOARD_PORT
    )
    return kubernetes.core.v1.ServiceSpecArgs(
        type="LoadBalancer",
        load_balancer_ip=balancer.address,
        load_balancer_source_ranges=list(balancer.client_ranges),
        # Keeps the clients' addresses, by which the NetworkPolicy tells them apart.
        external_traffic_policy="Local",
        selector={"ray.io/cluster": cluster_name, **network_policy.HEAD},
        ports=[port],
    )


def port_forward_command(namespace: str, cluster_name: str, port: int) -> str:
    """Command that makes the dashboard answer at `http://127.0.0.1:<port>`."""
    service = f"service/{cluster_name}-head-svc"
    return f"kubectl --namespace {namespace} port-forward {service} {port}:{network_policy.DASHBOARD_PORT}"
