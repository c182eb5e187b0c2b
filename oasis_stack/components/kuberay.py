"""The KubeRay operator from its own Helm chart: GKE's add-on brings a version that a stack cannot choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pulumi
import pulumi_kubernetes as kubernetes

from oasis_stack.components.chart_definitions import ChartDefinitions
from oasis_stack.facts import names

CHART = "kuberay-operator"

TIMEOUT_SECONDS = 900
"""How long Helm waits for the operator: on a new cluster the system pool may have to grow first."""


@dataclass(frozen=True, kw_only=True)
class KubeRayArgs:
    """Arguments of the operator's release."""

    repository: str
    """Address of the Helm repository that has the chart."""
    kubeconfig: pulumi.Input[str]
    """Kubeconfig of the cluster, as JSON, used to update the chart's resource types to its version."""


class KubeRay(pulumi.ComponentResource):
    """Registers the resource types of KubeRay and the Helm release of its operator, with its namespace."""

    APIS: ClassVar[tuple[str, ...]] = ("container.googleapis.com",)

    release_name: pulumi.Output[str]

    def __init__(self, name: str, args: KubeRayArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:KubeRay", name, None, opts)
        definitions = ChartDefinitions(
            name, args.kubeconfig, args.repository, CHART, names.KUBERAY_VERSION, pulumi.ResourceOptions(parent=self)
        )
        release = kubernetes.helm.v3.Release(
            name,
            name=CHART,
            chart=CHART,
            skip_crds=True,
            version=names.KUBERAY_VERSION,
            namespace=names.KUBERAY_NAMESPACE,
            create_namespace=True,
            repository_opts={"repo": args.repository},
            values=chart_values(),
            atomic=True,
            timeout=TIMEOUT_SECONDS,
            # The operator exits if a type that it watches is not served.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[definitions]),
        )
        self.release_name = release.name.apply(str)
        self.register_outputs({"release_name": self.release_name})


def chart_values() -> dict[str, Any]:
    """Chart values that differ from the defaults."""
    return {
        "image": {"repository": "quay.io/kuberay/operator", "tag": f"v{names.KUBERAY_VERSION}"},
        # The chart's 512Mi is for a handful of objects; an operator that runs out of memory stops every scale-up.
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        # Nodes that can vanish (Spot, flex-start) would take the operator with them.
        "nodeSelector": dict(names.SYSTEM_POOL_LABELS),
    }
