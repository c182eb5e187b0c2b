"""The ComputeClass component: the ladder as Kubernetes gets it."""

from __future__ import annotations

from oasis_stack.components.compute_class import KIND, ComputeClass, ComputeClassArgs
from tests.support.deployment import Deploy, Deployment


def build(deploy: Deploy) -> Deployment:
    args = ComputeClassArgs(
        class_name="h200",
        pool_names=["gpu-reservation-ab12cd34", "gpu-flex-start-ab12cd34", "gpu-spot-ab12cd34"],
        consolidation_delay_minutes=15,
        kubeconfig="{}",
    )
    return deploy(lambda: ComputeClass("gpu-class", args))


def test_pools_are_tried_in_ladder_order_by_rules_that_hold_nothing_else(deploy: Deploy) -> None:
    deployed = build(deploy).only("kubernetes:cloud.google.com/v1:ComputeClass")

    assert deployed.inputs["metadata"] == {"name": "h200"}
    assert deployed.inputs["spec"] == {
        "priorities": [
            {"nodepools": ["gpu-reservation-ab12cd34"]},
            {"nodepools": ["gpu-flex-start-ab12cd34"]},
            {"nodepools": ["gpu-spot-ab12cd34"]},
        ],
        "whenUnsatisfiable": "DoNotScaleUp",
        "activeMigration": {"optimizeRulePriority": False},
        "autoscalingPolicy": {"consolidationDelayMinutes": 15},
    }


def test_the_class_is_made_once_the_cluster_knows_the_kind(deploy: Deploy) -> None:
    deployment = build(deploy)

    (served,) = [resource for resource in deployment if resource.type.endswith(":CustomResourcesServed")]
    assert served.inputs["kinds"] == [KIND] == ["computeclasses.cloud.google.com"]
    assert served.inputs["timeout_minutes"] >= 60
    assert deployment.is_before(served, deployment.only("kubernetes:cloud.google.com/v1:ComputeClass"))
    assert deployment.only("oasis:index:ComputeClass").outputs == {"class_name": "h200"}
