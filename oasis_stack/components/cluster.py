"""A private regional GKE cluster, its CPU node pools, and the account that all of its nodes run as.

Replaced when changed: name, location, network, subnet, control plane range, secondary ranges, pods per node, data plane
(hashicorp/terraform-provider-google 2026-08-21, resource_container_cluster.go, ForceNew); everything else in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_gcp as gcp
import pulumi_kubernetes as kubernetes

from oasis_stack.components import control_plane
from oasis_stack.components.control_plane import ControlPlane
from oasis_stack.components.node_config import CPU_NODES, POOL_IGNORES, SYSTEM_NODES, ClusterNetwork, node_config
from oasis_stack.facts import names
from oasis_stack.facts.machine import PoolSize
from oasis_stack.facts.site import Site

TIMEOUTS = pulumi.CustomTimeouts(create="60m", update="90m", delete="60m")
"""An upgrade of a regional control plane alone takes up to an hour."""

NODE_ROLES = {"": "roles/container.defaultNodeServiceAccount", "-streaming": "roles/serviceusage.serviceUsageConsumer"}
"""The grants on the project, by the suffix of their logical names. Logs and metrics of nodes cannot be granted on
anything smaller; image streaming calls an API in the project's name, and without the second role pods that stream
fail (GKE documentation, "Use Image streaming", requirements;
terraform-google-modules/terraform-google-kubernetes-engine issue 2251)."""

PODS_PER_NODE = 110
"""GKE's default, which takes a /24 of the pods' range per node; the address plan relies on it."""


@dataclass(frozen=True, kw_only=True)
class ClusterArgs:
    """Arguments of the cluster."""

    site: Site
    """Where the stack stands."""
    project_number: pulumi.Input[str]
    """Project number: part of the name of GKE's service agent."""
    network: ClusterNetwork
    """VPC and subnet of the nodes' first interface, and the ranges of pods and Services."""
    control_plane: ControlPlane
    """How to reach the control plane, and when GKE upgrades it."""
    system_pool: PoolSize
    """Nodes that are always on: GKE's own pods need them, and GKE refuses flex-start without them."""
    cpu_pool: PoolSize
    """Nodes for Ray's CPU workers only."""
    readable_repositories: Mapping[str, pulumi.Input[str]]
    """Artifact Registry repositories in the region that nodes pull images from, by a short name."""
    deletion_protection: bool
    """Whether the cluster is protected: a destroy fails before it deletes anything, until false is set and applied."""


class Cluster(pulumi.ComponentResource):
    """Registers the GKE cluster, its CPU node pools, their service account with its grants, and the provider for it."""

    APIS: ClassVar[tuple[str, ...]] = (
        "compute.googleapis.com",
        "container.googleapis.com",
        "containerfilesystem.googleapis.com",
        "iam.googleapis.com",
        "logging.googleapis.com",
        "monitoring.googleapis.com",
    )

    cluster_name: pulumi.Output[str]
    endpoint: pulumi.Output[str]
    kubeconfig: pulumi.Output[str]
    node_service_account: pulumi.Output[str]

    def __init__(self, name: str, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:Cluster", name, None, opts)
        account, grants = self._node_account(name, args)
        cluster = self._cluster(name, args, account, grants)
        pools = [self._pool(f"{name}-system", args.system_pool, SYSTEM_NODES, args, cluster, account)]
        if args.cpu_pool.max_nodes:
            pools.append(self._pool(f"{name}-cpu", args.cpu_pool, CPU_NODES, args, cluster, account))
        self.cluster_name = cluster.name
        self.endpoint = control_plane.server(cluster, args.control_plane.endpoint)
        by_address = args.control_plane.endpoint == "ip"
        authority = cluster.master_auth.apply(lambda auth: auth.cluster_ca_certificate)
        self.kubeconfig = pulumi.Output.secret(
            pulumi.Output.all(cluster.name, self.endpoint, authority).apply(
                lambda known: control_plane.kubeconfig(known[0], known[1], known[2] if by_address else None)
            )
        )
        self.node_service_account = account.email
        self.provider = kubernetes.Provider(
            name,
            kubeconfig=self.kubeconfig,
            # The cluster's identity: a different way to reach it must not replace everything inside.
            cluster_identifier=cluster.id,
            # An `up` may end after it creates an object and before it records it; the next `up` would be refused
            # (pulumi-kubernetes 4.34, `upsertExistingObjects`).
            upsert_existing_objects=True,
            # And it owns the object beside that first `up`, under another name that Pulumi made up: every later change
            # of a value would be refused as a conflict (the same, `fieldManagerName`; Kubernetes documentation,
            # "Server-Side Apply", on shared fields).
            enable_patch_force=True,
            # Changed in place: a replaced ConfigMap is gone for a moment, and no pod that names it starts then.
            enable_config_map_mutable=True,
            # Workloads need nodes to start on, and their controllers need nodes to end them.
            opts=pulumi.ResourceOptions(parent=self, depends_on=pools),
        )
        self.register_outputs(
            {
                "cluster_name": self.cluster_name,
                "endpoint": self.endpoint,
                "kubeconfig": self.kubeconfig,
                "node_service_account": self.node_service_account,
            }
        )

    def _cluster(
        self, name: str, args: ClusterArgs, account: gcp.serviceaccount.Account, grants: list[pulumi.Resource]
    ) -> gcp.container.Cluster:
        return gcp.container.Cluster(
            name,
            project=args.site.project,
            location=args.site.region,
            node_locations=[args.site.zone],
            network=args.network.network_id,
            subnetwork=args.network.subnet_id,
            networking_mode="VPC_NATIVE",
            ip_allocation_policy={
                "cluster_secondary_range_name": args.network.pods_range_name,
                "services_secondary_range_name": args.network.services_range_name,
            },
            default_max_pods_per_node=PODS_PER_NODE,
            # Nodes with further networks need both, which can be set only at creation.
            datapath_provider="ADVANCED_DATAPATH",
            enable_multi_networking=True,
            private_cluster_config=control_plane.private_cluster(args.control_plane),
            control_plane_endpoints_config=control_plane.endpoints(args.control_plane.endpoint),
            master_authorized_networks_config=control_plane.authorized(args.control_plane),
            workload_identity_config={"workload_pool": f"{args.site.project}.svc.id.goog"},
            enable_shielded_nodes=True,
            database_encryption=control_plane.secrets_encryption(args.control_plane.secrets_encryption_key),
            authenticator_groups_config=control_plane.groups(args.control_plane.security_group),
            rbac_binding_config=control_plane.NO_ROLES_FOR_EVERYBODY,
            # Explicit: with Cloud DNS, which may become the default, name servers are not pods (`network_policy`).
            dns_config={"cluster_dns": "KUBE_DNS"},
            addons_config={"gcs_fuse_csi_driver_config": {"enabled": True}},
            logging_config={"enable_components": ["SYSTEM_COMPONENTS", "WORKLOADS"]},
            # DCGM: utilisation, memory, NVLink and errors of every GPU.
            monitoring_config={
                "enable_components": ["SYSTEM_COMPONENTS", "POD", "DCGM"],
                "managed_prometheus": {"enabled": True},
            },
            cost_management_config={"enabled": True},
            release_channel={"channel": args.control_plane.release_channel},
            min_master_version=args.control_plane.minimum_version,
            maintenance_policy=control_plane.maintenance(args.control_plane.maintenance_exclusion),
            # For pools that GKE would create by itself; our own pools set it themselves.
            node_pool_defaults={"node_config_defaults": {"insecure_kubelet_readonly_port_enabled": "FALSE"}},
            resource_labels=dict(args.site.labels),
            deletion_protection=args.deletion_protection,
            # GKE creates no cluster without a pool, and the pool it creates cannot be changed without a new cluster.
            remove_default_node_pool=True,
            initial_node_count=1,
            node_config=node_config(account.email, {}),
            opts=pulumi.ResourceOptions(
                parent=self,
                # No argument shows this dependency, but a node without these roles writes no logs and pulls no image.
                depends_on=grants,
                custom_timeouts=TIMEOUTS,
                # A replacement has the same /28 for its control plane, which two clusters in a network cannot share.
                delete_before_replace=True,
                # The provider's own refusal comes in the middle of a destroy, when the workloads are already gone.
                protect=args.deletion_protection,
                # The first two belong to that first pool: once it is gone, the provider reads another pool's nodes, and
                # any difference would replace the cluster. So would a missing range of the control plane. Whether GKE
                # leaves it out of a cluster without an IP endpoint is a guess: no published configuration shows it.
                # Another range of ours still replaces the cluster, as it replaces the nodes' subnet.
                ignore_changes=["initialNodeCount", "nodeConfig", "privateClusterConfig.masterIpv4CidrBlock"],
            ),
        )

    def _node_account(self, name: str, args: ClusterArgs) -> tuple[gcp.serviceaccount.Account, list[pulumi.Resource]]:
        child = pulumi.ResourceOptions(parent=self)
        account = gcp.serviceaccount.Account(
            f"{name}-nodes",
            project=args.site.project,
            account_id=names.service_account(args.site.prefix, "nodes"),
            display_name="Nodes of the GKE cluster",
            opts=child,
        )
        grants: list[pulumi.Resource] = [
            gcp.projects.IAMMember(
                f"{name}-nodes{suffix}",
                project=args.site.project,
                role=role,
                member=account.member,
                opts=child,
            )
            for suffix, role in NODE_ROLES.items()
        ]
        for short, repository in args.readable_repositories.items():
            grants.append(
                gcp.artifactregistry.RepositoryIamMember(
                    f"{name}-nodes-{short}",
                    project=args.site.project,
                    location=args.site.region,
                    repository=repository,
                    role="roles/artifactregistry.reader",
                    member=account.member,
                    opts=child,
                )
            )
        key = args.control_plane.secrets_encryption_key
        if key is not None:
            grants.append(control_plane.key_grant(self, name, args.site.project, args.project_number, key))
        return account, grants

    def _pool(
        self,
        name: str,
        size: PoolSize,
        nodes: gcp.container.NodePoolNodeConfigArgsDict,
        args: ClusterArgs,
        cluster: gcp.container.Cluster,
        account: gcp.serviceaccount.Account,
    ) -> gcp.container.NodePool:
        return gcp.container.NodePool(
            name,
            project=args.site.project,
            cluster=cluster.name,
            location=args.site.region,
            node_locations=[args.site.zone],
            initial_node_count=size.min_nodes,
            autoscaling={
                "total_min_node_count": size.min_nodes,
                "total_max_node_count": size.max_nodes,
                "location_policy": "BALANCED",
            },
            management={"auto_repair": True, "auto_upgrade": True},
            upgrade_settings={"max_surge": 1, "max_unavailable": 0},
            network_config={"enable_private_nodes": True},
            node_config={**node_config(account.email, args.site.labels), **nodes, "machine_type": size.machine_type},
            opts=pulumi.ResourceOptions(
                parent=self,
                custom_timeouts=TIMEOUTS,
                ignore_changes=list(POOL_IGNORES),
            ),
        )
