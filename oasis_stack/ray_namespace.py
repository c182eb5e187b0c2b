"""A Kubernetes namespace for Ray's pods: their account, the facts about the stack, access to them, their permissions,
and what keeps their heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from oasis_stack import wait
from oasis_stack.facts import names
from oasis_stack.pod_specs import admission_policy, network_policy
from workloads.environment import CONFIG_MAP

DELETE_TIMEOUT = "20m"
"""Pods may take their whole grace period, and a namespace waits for all that is in it."""

POD_SECURITY = {"pod-security.kubernetes.io/enforce": "baseline"}
"""Label of the namespace; `restricted` would refuse the init container that copies gIB, which is root."""

ALL_HEADS = 10_000


@dataclass(frozen=True, kw_only=True)
class RayNamespace:
    """A namespace for Ray, of a component that is `parent`."""

    parent: pulumi.ComponentResource
    title: str
    """Logical name of what there is one of."""
    prefix: str
    """First part of the logical names of what there are several of."""
    policies: str
    """First part of the names of the admission policies, which the whole cluster shares."""
    namespace: str
    environment: Mapping[str, pulumi.Input[str]]
    """Every field of `workloads.environment.ClusterEnvironment`; pods do not start while one is missing."""
    budget: str
    """Name of the disruption budget of its heads."""
    control_plane_ranges: Sequence[str]
    """Where the Kubernetes API answers Ray's autoscaler; empty where no head has one."""
    dashboard_client_ranges: Sequence[str]
    """Of clients that use the dashboard's load balancer."""
    cluster_queue: pulumi.Input[str] | None
    """Kueue's ClusterQueue for its jobs, which outlives them; None: no queue is made there."""

    def namespace_itself(self) -> kubernetes.core.v1.Namespace:
        """Register the namespace."""
        return kubernetes.core.v1.Namespace(
            self.title,
            metadata=kubernetes.meta.v1.ObjectMetaArgs(name=self.namespace, labels=POD_SECURITY),
            opts=pulumi.ResourceOptions(
                parent=self.parent, custom_timeouts=pulumi.CustomTimeouts(delete=DELETE_TIMEOUT)
            ),
        )

    def surroundings(self, within: pulumi.Output[str]) -> list[pulumi.Resource]:
        """Register what pods find from their first second to their last; `within` is the namespace once it is there."""
        child = pulumi.ResourceOptions(parent=self.parent)
        policies = network_policy.policies(
            names.KUBERAY_NAMESPACE,
            self.control_plane_ranges,
            self.dashboard_client_ranges,
            queued=self.cluster_queue is not None,
        )
        return [
            kubernetes.core.v1.ServiceAccount(self.title, metadata=metadata(within, names.RAY_ACCOUNT), opts=child),
            kubernetes.core.v1.ConfigMap(
                self.title, metadata=metadata(within, CONFIG_MAP), data=dict(self.environment), opts=child
            ),
            kubernetes.policy.v1.PodDisruptionBudget(
                self.title,
                metadata=metadata(within, self.budget),
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
                kubernetes.networking.v1.NetworkPolicy(
                    f"{self.prefix}{policy}", metadata=metadata(within, policy), spec=spec, opts=child
                )
                for policy, spec in policies.items()
            ),
            *admission(self.parent, admission_policy.policies(self.namespace, names.RAY_ACCOUNT, self.policies)),
        ]

    def queue(
        self, within: pulumi.Output[str], kubeconfig: pulumi.Input[str], found: Sequence[pulumi.Resource], only: str
    ) -> Iterator[pulumi.Resource]:
        """Register the queue that jobs name, and what keeps it, with all that its jobs find, as long as it has any.

        Args:
            within: the namespace, once it is there.
            kubeconfig: of the cluster, as JSON.
            found: what its jobs find.
            only: namespace whose jobs keep it; empty: those of all.
        """
        if self.cluster_queue is not None:
            queue = kubernetes.apiextensions.CustomResource(
                self.title,
                api_version="kueue.x-k8s.io/v1beta2",
                kind="LocalQueue",
                metadata=metadata(within, names.LOCAL_QUEUE),
                spec={"clusterQueue": self.cluster_queue},
                opts=pulumi.ResourceOptions(parent=self.parent),
            )
            opts = pulumi.ResourceOptions(parent=self.parent, depends_on=[*found, queue])
            yield wait.QueueEmpty(self.title, kubeconfig, only, opts)


def admission(parent: pulumi.Resource, policies: Mapping[str, Any]) -> Iterator[pulumi.Resource]:
    """Register admission policies, each with the binding by which it holds."""
    child = pulumi.ResourceOptions(parent=parent)
    for name, spec in policies.items():
        named = kubernetes.meta.v1.ObjectMetaArgs(name=name)
        yield kubernetes.admissionregistration.v1.ValidatingAdmissionPolicy(name, metadata=named, spec=spec, opts=child)
        yield kubernetes.admissionregistration.v1.ValidatingAdmissionPolicyBinding(
            name, metadata=named, spec=admission_policy.binding(name), opts=child
        )


def metadata(
    within: pulumi.Input[str], name: str, annotations: Mapping[str, str] | None = None
) -> kubernetes.meta.v1.ObjectMetaArgs:
    """Metadata of an object of a namespace."""
    return kubernetes.meta.v1.ObjectMetaArgs(name=name, namespace=within, annotations=annotations)
