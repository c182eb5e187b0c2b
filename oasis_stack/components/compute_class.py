"""The order in which the GPU pools are tried: one ComputeClass whose rules name whole pools.

A new cluster does not know the kind: GKE's autoscaler installs it up to an hour later, so the component waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pulumi
import pulumi_kubernetes as kubernetes

from oasis_stack import wait

KIND = "computeclasses.cloud.google.com"

SERVED_MINUTES = 90
"""The documents say "minutes to about an hour" (google/skills, gke-compute-classes, 2026-08)."""


@dataclass(frozen=True, kw_only=True)
class ComputeClassArgs:
    """Arguments of a ComputeClass."""

    class_name: str
    """Label and taint of the pools, which pods select; if the two differ, no pod gets a node."""
    pool_names: Sequence[pulumi.Input[str]]
    """GKE node pools in the order in which they are tried; a pool left out is never scaled up."""
    consolidation_delay_minutes: int
    """How long an empty node is kept, 1 to 1440 minutes; short gives up scarce capacity, long pays for idle GPUs."""
    kubeconfig: pulumi.Input[str]
    """Kubeconfig of the cluster, as JSON, used to wait for the resource type."""


class ComputeClass(pulumi.ComponentResource):
    """Registers one ComputeClass, and a wait until the cluster knows that kind."""

    APIS: ClassVar[tuple[str, ...]] = ("container.googleapis.com",)

    class_name: pulumi.Output[str]

    def __init__(self, name: str, args: ComputeClassArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:ComputeClass", name, None, opts)
        served = wait.CustomResourcesServed(
            name, args.kubeconfig, [KIND], SERVED_MINUTES, pulumi.ResourceOptions(parent=self)
        )
        compute_class = kubernetes.apiextensions.CustomResource(
            name,
            api_version="cloud.google.com/v1",
            kind="ComputeClass",
            metadata={"name": args.class_name},
            spec=compute_class_spec(args.pool_names, args.consolidation_delay_minutes),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[served]),
        )
        # An output of the object, not of the argument: users of the class are made after it and deleted before it.
        self.class_name = compute_class.urn.apply(lambda _: args.class_name)
        self.register_outputs({"class_name": self.class_name})


def compute_class_spec(pool_names: Sequence[pulumi.Input[str]], consolidation_delay_minutes: int) -> dict[str, Any]:
    """The spec of the class: one rule per pool.

    A rule with `nodepools` holds nothing else, because each further field would be a condition of its own (the rules of
    GoogleCloudPlatform/compute-class-api, api/cloud.google.com/v1/types.go, tags 1.33.4 and 1.34.0).
    """
    return {
        "priorities": [{"nodepools": [pool]} for pool in pool_names],
        "whenUnsatisfiable": "DoNotScaleUp",
        # Migration to a better rule evicts running pods: a training run would lose its nodes to a lower price.
        "activeMigration": {"optimizeRulePriority": False},
        "autoscalingPolicy": {"consolidationDelayMinutes": consolidation_delay_minutes},
    }
