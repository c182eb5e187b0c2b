"""The whole program under mocks: what it registers, how that follows the settings, and what it tells people."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulumi
import pytest

from oasis_stack import components
from oasis_stack.command_line import resource_tree
from oasis_stack.command_line.offline import Deployment, Registered
from oasis_stack.settings.schema import Settings
from oasis_stack.settings.settings import known_keys
from tests.support.processes import python
from tests.support.program import at, deploy_stack
from tests.support.setting_examples import (
    ALONE,
    BUCKET,
    CLASS,
    EXAMPLES,
    GPU_GROUP,
    GPU_POOL,
    IMAGES,
    NOT_IN_THE_CLOUD,
    RAY,
)
from tests.support.stacks import FULL, changed
from workloads.environment import MAX_RUN_VARIABLE, ClusterEnvironment

_RENDER = """
import json
from tests.support.program import deploy_stack

deployment = deploy_stack()
resources = sorted((vars(found) for found in deployment), key=lambda found: (found["type"], found["name"]))
print(json.dumps([resources, deployment.exports], default=sorted))
"""


@pytest.mark.thorough
def test_what_is_registered_does_not_depend_on_the_order_of_sets() -> None:
    def rendered(seed: str) -> str:
        return python("-c", _RENDER, env={**os.environ, "PYTHONHASHSEED": seed}, check=True).stdout

    with ThreadPoolExecutor() as both:
        first, second = map(json.loads, both.map(rendered, "01"))
    assert len(first[0]) > 100
    assert first == second


def test_preview_shows_what_an_update_does(full: Deployment) -> None:
    preview = deploy_stack(FULL, preview=True)

    def outline(deployment: Deployment) -> dict[tuple[str, str], tuple[Any, ...]]:
        return {
            (found.type, found.name): (
                *(found.parent, frozenset(found.inputs), found.retain_on_delete, found.import_id),
                # A preview does not ask Google for the project's number, so nothing hangs on that answer.
                frozenset(urn for urn in found.dependencies if "::services-" not in urn),
            )
            for found in deployment
        }

    assert outline(preview) == outline(full)
    assert set(preview.exports) == set(full.exports)


def test_every_setting_has_an_example() -> None:
    keys = set(known_keys(Settings))
    leaves = {key for key in keys if not any(longer.startswith((f"{key}.", f"{key}[")) for longer in keys)}

    assert leaves == set(EXAMPLES) | NOT_IN_THE_CLOUD


@pytest.mark.parametrize("key", sorted(set(EXAMPLES) - ALONE))
def test_every_setting_reaches_the_resource_it_names(key: str, full: Deployment, other: Deployment) -> None:
    example = EXAMPLES[key]

    assert at(other.get(*example.resource), example.path) == example.shown
    before = [found for found in full if (found.type, found.name) == example.resource]
    assert not before or at(before[0], example.path) != example.shown


def test_the_config_map_says_what_the_exports_say(full: Deployment, other: Deployment) -> None:
    for deployed in (full, other):
        data = deployed.get("kubernetes:core/v1:ConfigMap", "ray").inputs["data"]
        assert data == {name: deployed.exports[name] for name in data}
        read = ClusterEnvironment.from_mapping(data)
        assert read == ClusterEnvironment.from_mapping(deployed.exports)
        assert read.gpus_per_node == 8


def test_secrets_stay_wrapped_and_go_nowhere_else(other: Deployment) -> None:
    holders = [(found, key) for found in other for key, value in found.inputs.items() if "hunter2" in str(value)]

    assert [(found.name, key) for found, key in holders] == [("wandb-value", "secretDataWo")]
    found, key = holders[0]
    assert key in found.secret_inputs
    assert not any("hunter2" in str(value) for value in other.exports.values())
    assert not any("hunter2" in str(found.outputs) for found in other)


def test_the_kubeconfig_is_a_secret_wherever_it_goes(full: Deployment) -> None:
    assert full.secret_exports == {"kubeconfig"}
    readers = [(found, key) for found in full for key in found.inputs if key == "kubeconfig"]
    assert len(readers) >= 3
    assert all(key in found.secret_inputs for found, key in readers)
    # A dynamic provider gives it back in the clear.
    assert all(key in found.secret_outputs for found, key in readers if found.type.startswith("pulumi-python:"))
    assert "token" not in str(full.exports["kubeconfig"])


def test_wrong_settings_end_the_program_before_it_registers_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[str] = []

    def remember(self: pulumi.Resource, kind: str, name: str, *_: object, **__: object) -> None:
        registered.append(f"{kind} {name}")

    monkeypatch.setattr(pulumi.Resource, "__init__", remember)
    # RunError is the one exception whose text Pulumi shows without a traceback.
    with pytest.raises(pulumi.RunError, match="oasis:zone"):
        deploy_stack(changed("oasis:zone", "us-central1-f"))
    assert [one for one in registered if "pulumi:pulumi:Stack" not in one] == []


def components_of(deployed: Deployment) -> list[Registered]:
    return [found for found in deployed if found.type.startswith("oasis:index:")]


def test_every_resource_has_a_component_for_a_parent(full: Deployment, other: Deployment) -> None:
    for deployed in (full, other):
        components_ = {component.urn for component in components_of(deployed)}
        assert {found.urn for found in deployed if found.parent not in components_} == components_


def test_a_component_gives_exactly_the_outputs_it_declares(full: Deployment, other: Deployment) -> None:
    for deployed in (full, other):
        for found in components_of(deployed):
            declared = vars(getattr(components, found.type.rpartition(":")[2]))["__annotations__"]
            assert set(found.outputs) == {name for name in declared if name != "APIS"}, found.type


def test_outputs_that_nothing_in_the_program_reads_name_what_was_made(full: Deployment) -> None:
    assert full.only("oasis:index:KubeRay").outputs == {"release_name": "kuberay-operator"}
    assert full.only("oasis:index:RayCluster").outputs == {"ray_namespace": "ray", "ray_cluster_name": "oasis"}
    registry = full.only("oasis:index:ArtifactRegistry").outputs
    assert len(set(registry.values())) == len(registry), "one stands in another's place"


def test_every_api_that_a_component_names_is_enabled(full: Deployment, other: Deployment) -> None:
    for deployed in (full, other):
        enabled = {found.inputs["service"] for found in deployed.of_type("gcp:projects/service:Service")}
        for found in components_of(deployed):
            assert set(getattr(components, found.type.rpartition(":")[2]).APIS) <= enabled, found.type


def test_everything_in_google_cloud_comes_after_the_apis(full: Deployment, other: Deployment) -> None:
    for deployed in (full, other):
        services = {found.urn for found in deployed.of_type("gcp:projects/service:Service")}
        for found in deployed:
            if found.type.startswith("gcp:") and found.urn not in services:
                assert services <= deployed.created_before(found), found.name


def test_destroy_takes_each_away_as_late_as_the_engine_does(full: Deployment) -> None:
    steps = resource_tree.destroy_order(full)
    needs_apis_alone = [("gcp:secretmanager/secret:Secret", "wandb"), ("gcp:compute/network:Network", "network")]

    [together] = [step for step in steps if full.get(*needs_apis_alone[0]) in step]

    assert full.get(*needs_apis_alone[1]) in together


def test_a_stack_without_gpus_has_nothing_that_is_for_gpus() -> None:
    bare = deploy_stack({key: FULL[key] for key in ("gcp:project", "oasis:region", "oasis:zone")})

    assert {found.type.rpartition(":")[2] for found in components_of(bare)} == {
        *("ProjectServices", "Network", "ArtifactRegistry", "Bucket", "Cluster", "WorkloadIdentity"),
        *("KubeRay", "RayCluster"),
    }
    read = ClusterEnvironment.from_mapping(bare.exports)
    assert (read.machine_type, read.gpus_per_node, read.gpu_max_nodes, read.wandb_secret) == ("", 0, 0, "")
    assert len(at(bare.get(*RAY), "spec.workerGroupSpecs")) == 1


QUEUED = changed("oasis:gpu.capacity[3]", {"mode": "queued", "max_nodes": 5, "max_run_duration_hours": 24})


def test_a_queue_adds_what_is_for_it_and_changes_nothing_else(full: Deployment) -> None:
    queued = deploy_stack(QUEUED)

    more = {(found.type, found.name) for found in queued} - {(found.type, found.name) for found in full}
    assert {(found.type, found.name) for found in full} <= {(found.type, found.name) for found in queued}
    assert {name for _, name in more} == {
        *("kueue", "queue", "gpu-queued", "network-control-plane", "system", "queued", "queued-provisioning", "gpu"),
        *("ray", "queued-jobs", "queued-jobs-google"),  # the LocalQueue with what keeps it, and its jobs' policies
    }
    assert not {found.name for found in full if re.search(r"[Kk]ueue|Queue", found.type + found.name)}
    # The standing cluster's workers and the order of the ladder are the others' alone.
    for path in ("spec.priorities", "metadata.name"):
        assert at(queued.get(*CLASS), path) == at(full.get(*CLASS), path)
    assert at(queued.get(*RAY), GPU_GROUP + ".maxReplicas") == at(full.get(*RAY), GPU_GROUP + ".maxReplicas") == 8
    for deployed, told in ((full, ("", 0, 8)), (queued, ("gpu", 5, 8))):
        read = ClusterEnvironment.from_mapping(deployed.exports)
        assert (read.gpu_queue, read.gpu_queue_nodes, read.gpu_max_nodes) == told


def test_a_stack_may_have_queued_nodes_alone() -> None:
    alone = deploy_stack(changed("oasis:gpu.capacity", [{"mode": "queued", "max_nodes": 2}]))

    assert not alone.of_type(CLASS[0]) + alone.of_type("oasis:index:ComputeClass")
    group = at(alone.get(*RAY), GPU_GROUP)
    assert (group["groupName"], group["maxReplicas"]) == ("gpu", 0)
    # Its template is what a queued job's cluster is made from: no end of the ladder's is in it, as it has none.
    variables = {one["name"] for one in group["template"]["spec"]["containers"][0]["env"]}
    assert MAX_RUN_VARIABLE not in variables


@pytest.mark.thorough
def test_a_stack_without_cpu_workers_has_no_pool_for_them() -> None:
    bare = deploy_stack(changed("oasis:ray.cpu_workers_max", 0, changed("oasis:cluster.cpu_pool.max_nodes", 0)))

    assert "cluster-cpu" not in {pool.name for pool in bare.of_type(GPU_POOL)}
    groups = at(bare.get(*RAY), "spec.workerGroupSpecs")
    assert [group["groupName"] for group in groups] == ["gpu"]


def test_renaming_a_checkpoint_folder_is_one_step_in_the_bucket_that_has_checkpoints(full: Deployment) -> None:
    buckets = {found.name: at(found, "hierarchicalNamespace.enabled") for found in full.of_type(BUCKET)}

    assert (buckets["data"], buckets["runs"]) == (False, True)


def test_the_exports_name_what_was_made(full: Deployment) -> None:
    host = "us-central1-docker.pkg.dev/some-project"
    told = {name: full.exports[name] for name in ("data_uri", "runs_uri", "image_repository", "docker_index")}

    assert told == {
        "data_uri": "gs://some-project-oasis-data",
        "runs_uri": "gs://some-project-oasis-runs",
        "image_repository": f"{host}/oasis-docker",
        "docker_index": f"{host}/oasis-docker-virtual",
    }
    assert full.exports["python_index_url"].endswith("-python.pkg.dev/some-project/oasis-python-virtual/simple/")
    assert full.exports["wandb_secret"] == "projects/some-project/secrets/oasis-wandb"
    assert full.exports["image_build_bucket"] == "some-project-oasis-build"
    assert full.exports["image_build_worker_pool"].endswith("/workerPools/build-1a2b3c4")
    assert full.exports["image_builder"].startswith("oasis-image-builder@")
    assert full.exports["gpu_compute_class"] == "h200"


def test_the_dashboard_answers_where_the_exports_say(full: Deployment, other: Deployment) -> None:
    assert full.exports["ray_dashboard_url"] == "http://127.0.0.1:8265"
    assert re.search(r" port-forward service/oasis-head-svc 8265:8265$", full.exports["ray_dashboard_command"])
    assert other.exports["ray_dashboard_command"] == ""
    assert other.exports["ray_dashboard_url"] == "http://10.64.0.99:9443"
    assert at(other.get("kubernetes:core/v1:Service", "ray"), "spec.loadBalancerIP") == "10.64.0.99"


def test_the_command_for_credentials_fits_the_endpoint(full: Deployment, other: Deployment) -> None:
    assert full.exports["get_credentials_command"].endswith("--project some-project --dns-endpoint")
    assert other.exports["get_credentials_command"].endswith("--location us-east4 --project my-project")


def test_an_image_without_a_registry_comes_from_a_repository_of_the_stack_that_streams(
    full: Deployment, other: Deployment
) -> None:
    repository, _, image = full.exports["image"].removeprefix("us-central1-docker.pkg.dev/some-project/").partition("/")
    assert image == "rayproject/ray:2.60.0-py312-cu128"
    [found] = [it for it in full.of_type(IMAGES[0]) if it.inputs["repositoryId"] == repository]
    # GKE documentation, "Use Image streaming", requirements: a virtual repository is pulled whole on each GPU node.
    assert found.inputs["mode"] in ("STANDARD_REPOSITORY", "REMOTE_REPOSITORY")
    assert other.exports["image"] == EXAMPLES["ray.image"].value
