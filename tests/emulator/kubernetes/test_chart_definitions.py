"""The resource types of KubeRay's chart on a real API server: an older version's are brought up to date."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from emulator.kubernetes import control_plane, crds, kuberay
from emulator.rest import cloud_server
from oasis_stack.components import chart_definitions
from oasis_stack.live_state import RequestRefused
from tests.emulator.conftest import ControlPlane, resources
from tests.support.waiting import eventually

pytestmark = pytest.mark.emulated

NAME = "rayclusters.ray.io"


@pytest.fixture
def repository(bare_cluster: ControlPlane) -> str:
    cloud_server.start(bare_cluster.state)
    return cloud_server.charts_address(bare_cluster.state)


def test_types_of_an_older_version_are_brought_to_the_charts(bare_cluster: ControlPlane, repository: str) -> None:
    [manifest] = [file for file in crds.kuberay_files() if "rayclusters" in file.name]
    older = yaml.load(manifest.read_text(), yaml.CSafeLoader)
    version = next(found for found in older["spec"]["versions"] if found["name"] == "v1")
    new_fields = [
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].pop(field)
        for field in ("authOptions", "autoscalerOptions")
    ]
    bare_cluster.api.create(older)

    props = {"repository": repository, "chart": kuberay.NAME, "version": kuberay.version()}
    kubeconfig = json.dumps(yaml.safe_load(control_plane.kubeconfig_file(bare_cluster.state).read_text()))
    provider = chart_definitions._ChartDefinitions()
    provider.create({"kubeconfig": kubeconfig, **props})

    assert new_fields == [_schema(bare_cluster, field) for field in ("authOptions", "autoscalerOptions")]
    kinds = {"rayclusters", "rayjobs", "rayservices"}
    eventually(lambda: kinds <= {found["name"] for found in resources(bare_cluster.api, "/apis/ray.io/v1")})


def test_a_chart_that_is_not_what_the_index_says_is_refused(repository: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = chart_definitions.fetch

    def changed(url: str) -> bytes:
        return whole(url) + (b"x" if url.endswith(".tgz") else b"")

    monkeypatch.setattr(chart_definitions, "fetch", changed)
    with pytest.raises(RequestRefused, match="where its index says"):
        list(chart_definitions.definitions(repository, kuberay.NAME, kuberay.version()))
    with pytest.raises(RequestRefused, match=r"no chart kuberay-operator of version 0\.1"):
        list(chart_definitions.definitions(repository, kuberay.NAME, "0.1"))


def _schema(cluster: ControlPlane, field: str) -> Any:
    found = cluster.api.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}")
    version = next(it for it in found["spec"]["versions"] if it["name"] == "v1")
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][field]
