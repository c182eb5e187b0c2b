"""A team: people who share the stack's queue with others, each job on a Ray cluster of its own in the team's namespace.

A job is the unit of isolation: its cluster has its own token, and is deleted with the job. The team's ClusterQueue
(`queue`) sets its share of the queue; the grants of its account (`iam`) set what its pods may use of Google Cloud.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pulumi
import pulumi_kubernetes as kubernetes

from oasis_stack.facts import names
from oasis_stack.pod_specs import admission_policy
from oasis_stack.ray_namespace import RayNamespace, admission, metadata
from workloads.environment import CLUSTER_CONFIG_MAP, CLUSTER_KEY

CONTROLLERS = (
    f"system:serviceaccount:{names.KUBERAY_NAMESPACE}:kuberay-operator",
    f"system:serviceaccount:{names.KUEUE_NAMESPACE}:kueue-controller-manager",
    "system:serviceaccount:kube-system:generic-garbage-collector",
)
"""Accounts that create or change jobs of others (ray-operator v1.6.2, helm-chart/kuberay-operator/values.yaml;
kubernetes-sigs/kueue v0.19.2, charts/kueue/templates/manager/manager.yaml; Kubernetes documentation, "Using RBAC
Authorization", controller roles). If the garbage collector may not remove a finalizer, the job's owner stays."""

_ALL = ("get", "list", "watch", "create", "update", "patch", "delete")
_READ = ("get", "list", "watch")

RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("ray.io", ("rayjobs",), _ALL),
    ("batch", ("jobs",), _ALL),
    ("ray.io", ("rayclusters",), _READ),
    ("kueue.x-k8s.io", ("localqueues", "workloads"), _READ),
    ("", ("configmaps", "events", "pods", "pods/log", "services"), _READ),
    # Access to the dashboard of a job's cluster, whose token is in a Secret that KubeRay names when it creates it.
    ("", ("pods/portforward",), ("get", "create")),
    ("", ("secrets",), ("get",)),
)
"""What members may do in the team's namespace: API group, resources, verbs. Pods come from jobs alone."""


@dataclass(frozen=True, kw_only=True)
class TeamArgs:
    """Arguments of a team."""

    namespace: str
    """Kubernetes namespace, made here, and name of the team's priority; pods elsewhere cannot reach the pods in it."""
    environment: Mapping[str, pulumi.Input[str]]
    """Every field of `workloads.environment.ClusterEnvironment`; pods do not start while one is missing."""
    ray_cluster: Mapping[str, Any]
    """Spec of a RayCluster: the template for those of the team's jobs."""
    cluster_queue: pulumi.Input[str]
    """The team's ClusterQueue; with another team's queue, it would get that team's nodes."""
    members: Sequence[str]
    """Google identities that may use the namespace: `user:`, `group:` or `serviceAccount:` and an address."""
    kubeconfig: pulumi.Input[str]
    """Kubeconfig of the cluster, as JSON, with which an `up` that removes the team looks for its jobs."""


class Team(pulumi.ComponentResource):
    """Registers a team's namespace with account, ConfigMaps, network and admission policies, disruption budget, queue,
    and the rights of its members."""

    APIS: ClassVar[tuple[str, ...]] = ("container.googleapis.com",)

    team_namespace: pulumi.Output[str]

    def __init__(self, name: str, args: TeamArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:Team", name, None, opts)
        child, policies = pulumi.ResourceOptions(parent=self), f"oasis-team-{args.namespace}"
        ours = RayNamespace(
            parent=self,
            title=name,
            prefix=f"{name}.",
            policies=policies,
            namespace=args.namespace,
            environment=args.environment,
            budget="heads",
            control_plane_ranges=(),
            dashboard_client_ranges=(),
            cluster_queue=args.cluster_queue,
        )
        namespace = ours.namespace_itself()
        within = self.team_namespace = namespace.metadata.apply(lambda metadata: str(metadata.name))
        queued = admission_policy.queued_jobs(args.namespace, CONTROLLERS, names.LOCAL_QUEUE, args.namespace)
        found = [
            *ours.surroundings(within),
            *admission(self, {f"{policies}-queue": queued}),
            kubernetes.core.v1.ConfigMap(
                f"{name}.ray-cluster",
                metadata=metadata(within, CLUSTER_CONFIG_MAP),
                data={CLUSTER_KEY: pulumi.Output.json_dumps(args.ray_cluster)},
                opts=child,
            ),
        ]
        role = kubernetes.rbac.v1.Role(
            name,
            metadata=metadata(within, "members"),
            rules=[
                kubernetes.rbac.v1.PolicyRuleArgs(api_groups=[group], resources=[*resources], verbs=[*verbs])
                for group, resources, verbs in RULES
            ],
            opts=child,
        )
        held = [*found, role]
        if args.members:
            held += [
                kubernetes.rbac.v1.RoleBinding(
                    name,
                    metadata=metadata(within, "members"),
                    role_ref=kubernetes.rbac.v1.RoleRefArgs(
                        api_group="rbac.authorization.k8s.io", kind="Role", name="members"
                    ),
                    subjects=[_subject(member) for member in args.members],
                    # A member who may submit must find everything that a job needs.
                    opts=pulumi.ResourceOptions(parent=self, depends_on=[*found, role]),
                )
            ]
        # Members can end their jobs for as long as the jobs keep the team from being removed.
        list(ours.queue(within, args.kubeconfig, held, args.namespace))
        self.register_outputs({"team_namespace": self.team_namespace})


def _subject(member: str) -> kubernetes.rbac.v1.SubjectArgs:
    """A Google identity as GKE knows it: by its address, service accounts as users (Google Kubernetes Engine
    documentation, "Authorize actions in clusters using role-based access control", "Configure Google Groups for
    RBAC")."""
    kind, _, address = member.partition(":")
    group = "Group" if kind == "group" else "User"
    return kubernetes.rbac.v1.SubjectArgs(api_group="rbac.authorization.k8s.io", kind=group, name=address)
