"""The ComputeClass component: the ladder as Kubernetes gets it."""

from __future__ import annotations

from oasis_stack.command_line.offline import Deployment
from oasis_stack.components.compute_class import KIND

COMPUTE_CLASS = "kubernetes:cloud.google.com/v1:ComputeClass"


def test_pools_are_tried_by_rules_that_hold_nothing_else(full: Deployment) -> None:
    spec = full.only(COMPUTE_CLASS).inputs["spec"]

    assert set(spec) == {"priorities", "whenUnsatisfiable", "activeMigration", "autoscalingPolicy"}
    assert [set(rule) for rule in spec["priorities"]] == [{"nodepools"}] * 3
    assert spec["whenUnsatisfiable"] == "DoNotScaleUp"
    assert spec["activeMigration"] == {"optimizeRulePriority": False}


def test_the_class_is_made_once_the_cluster_knows_the_kind(full: Deployment) -> None:
    served = full.get("pulumi-python:dynamic/wait:CustomResourcesServed", "gpu-class")
    assert served.inputs["kinds"] == [KIND] == ["computeclasses.cloud.google.com"]
    assert served.inputs["timeout_minutes"] >= 60
    assert full.is_before(served, full.only(COMPUTE_CLASS))
