"""The KubeRay component: the chart, its version and where the operator runs."""

from __future__ import annotations

from oasis_stack.components.kuberay import KubeRay, KubeRayArgs
from tests.support.deployment import Deploy


def test_chart_and_operator_have_the_one_version_and_run_on_the_system_pool(deploy: Deploy) -> None:
    args = KubeRayArgs(repository="https://charts.example/", kubeconfig="{}")

    deployment = deploy(lambda: KubeRay("kuberay", args))

    found = deployment.only("kubernetes:helm.sh/v3:Release")
    release = found.inputs
    definitions = deployment.only("pulumi-python:dynamic/chart_definitions:ChartDefinitions")
    # Helm alone would leave the types of an older version in place for ever.
    assert (definitions.inputs["chart"], definitions.inputs["version"]) == ("kuberay-operator", "1.6.2")
    assert deployment.is_before(definitions, found) and release["skipCrds"] is True
    assert (release["chart"], release["version"]) == ("kuberay-operator", "1.6.2")
    assert release["repositoryOpts"] == {"repo": "https://charts.example/"}
    assert release["values"]["image"]["tag"] == "v1.6.2"
    assert release["values"]["nodeSelector"] == {"oasis/pool": "system"}
    assert (release["namespace"], release["createNamespace"]) == ("kuberay-system", True)
    assert release["atomic"] is True  # a release that failed half-way would be found by the next up
    assert deployment.only("oasis:index:KubeRay").outputs == {"release_name": "kuberay-operator"}
