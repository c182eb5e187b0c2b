"""The KubeRay component: the chart, its version and where the operator runs."""

from __future__ import annotations

from oasis_stack.command_line.offline import Deployment


def test_chart_and_operator_have_the_one_version_and_run_on_the_system_pool(full: Deployment) -> None:
    found = full.only("kubernetes:helm.sh/v3:Release")
    release = found.inputs
    definitions = full.only("pulumi-python:dynamic/chart_definitions:ChartDefinitions")
    # Helm alone would leave the types of an older version in place for ever.
    for chart in (definitions.inputs, release):
        assert (chart["chart"], chart["version"]) == ("kuberay-operator", "1.6.2")
    assert full.is_before(definitions, found) and release["skipCrds"] is True
    assert release["values"]["image"]["tag"] == "v1.6.2"
    assert release["values"]["nodeSelector"] == {"oasis/pool": "system"}
    assert (release["namespace"], release["createNamespace"]) == ("kuberay-system", True)
    assert release["atomic"] is True  # a release that failed half-way would be found by the next up
