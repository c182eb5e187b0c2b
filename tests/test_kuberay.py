"""The KubeRay component: the chart, its version and where the operator runs."""

from __future__ import annotations

from oasis_stack.kuberay import KubeRay, KubeRayArgs
from tests.deployment import Deploy


def test_chart_and_operator_have_the_one_version_and_run_on_the_system_pool(deploy: Deploy) -> None:
    args = KubeRayArgs(namespace="kuberay-system", version="1.6.2", system_pool_labels={"pool": "system"})

    deployment = deploy(lambda: KubeRay("kuberay", args))

    release = deployment.only("kubernetes:helm.sh/v3:Release").inputs
    assert (release["chart"], release["version"]) == ("kuberay-operator", "1.6.2")
    assert release["repositoryOpts"] == {"repo": "https://ray-project.github.io/kuberay-helm/"}
    assert release["values"]["image"]["tag"] == "v1.6.2"
    assert release["values"]["nodeSelector"] == {"pool": "system"}
    assert (release["namespace"], release["createNamespace"]) == ("kuberay-system", True)
    assert release["atomic"] is True  # a release that failed half-way would be found by the next up
    assert deployment.only("oasis:index:KubeRay").outputs == {"release_name": "kuberay-operator"}
