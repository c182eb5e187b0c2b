"""Repositories of images and packages."""

from typing import Any

from oasis_stack.artifact_registry import ArtifactRegistry, ArtifactRegistryArgs
from tests.deployment import Deploy, Deployment

REPOSITORY = "gcp:artifactregistry/repository:Repository"


def _deployed(deploy: Deploy, **changes: Any) -> Deployment:
    arguments: dict[str, Any] = {
        "project": "project-a",
        "region": "us-central1",
        "prefix": "oasis",
        "labels": {"team": "vision"},
        "keep": False,
        "adopt": False,
        "keep_untagged_days": 7,
        "keep_versions": 5,
    }
    return deploy(lambda: ArtifactRegistry("registry", ArtifactRegistryArgs(**(arguments | changes))))


def test_images_and_packages_each_have_a_local_a_remote_and_a_virtual_repository(deploy: Deploy) -> None:
    seen = _deployed(deploy)
    found = {(r.inputs["format"], r.inputs["mode"].partition("_")[0]) for r in seen.of_type(REPOSITORY)}
    assert found == {(f, m) for f in ("DOCKER", "PYTHON") for m in ("STANDARD", "REMOTE", "VIRTUAL")}
    assert all(r.inputs["labels"] == {"team": "vision"} for r in seen.of_type(REPOSITORY))


def test_the_virtual_repository_asks_the_local_one_before_the_public_one(deploy: Deploy) -> None:
    seen = _deployed(deploy)
    for kind in ("docker", "python"):
        virtual = seen.get(REPOSITORY, f"registry-{kind}-virtual")
        upstreams = virtual.inputs["virtualRepositoryConfig"]["upstreamPolicies"]
        by_priority = sorted(upstreams, key=lambda policy: -policy["priority"])
        base = "projects/project-a/locations/us-central1/repositories/oasis"
        assert [policy["repository"] for policy in by_priority] == [f"{base}-{kind}", f"{base}-{kind}-remote"]


def test_the_addresses_are_the_local_one_to_push_and_the_virtual_ones_to_pull(deploy: Deploy) -> None:
    assert _deployed(deploy).only("oasis:index:ArtifactRegistry").outputs == {
        "image_repository": "us-central1-docker.pkg.dev/project-a/oasis-docker",
        "docker_index": "us-central1-docker.pkg.dev/project-a/oasis-docker-virtual",
        "python_index_url": "https://us-central1-python.pkg.dev/project-a/oasis-python-virtual/simple/",
        "repository_id": "oasis-docker",
        "docker_index_id": "oasis-docker-virtual",
        "python_index_id": "oasis-python-virtual",
    }


def test_old_untagged_images_go_but_never_the_newest(deploy: Deploy) -> None:
    seen = _deployed(deploy, keep_untagged_days=3, keep_versions=2)
    policies = {p["action"]: p for p in seen.get(REPOSITORY, "registry-docker").inputs["cleanupPolicies"]}
    assert policies["DELETE"]["condition"] == {"tagState": "UNTAGGED", "olderThan": "259200s"}
    assert policies["KEEP"]["mostRecentVersions"] == {"keepCount": 2}


def test_packages_and_copies_of_public_things_go_by_age_but_never_the_newest(deploy: Deploy) -> None:
    seen = _deployed(deploy, keep_versions=2)
    half_a_year, month = f"{180 * 86400}s", f"{30 * 86400}s"
    for name, age in (("python", half_a_year), ("python-remote", month), ("docker-remote", month)):
        policies = {p["action"]: p for p in seen.get(REPOSITORY, f"registry-{name}").inputs["cleanupPolicies"]}
        assert policies["DELETE"]["condition"] == {"tagState": "ANY", "olderThan": age}
        assert policies["KEEP"]["mostRecentVersions"] == {"keepCount": 2}
    assert "cleanupPolicies" not in seen.get(REPOSITORY, "registry-docker-virtual").inputs


def test_only_what_was_made_here_is_kept_and_adopted(deploy: Deploy) -> None:
    seen = _deployed(deploy, keep=True, adopt=True)
    local = {"registry-docker", "registry-python"}
    assert {r.name for r in seen.of_type(REPOSITORY) if r.retain_on_delete} == local
    assert {r.name: r.import_id for r in seen.of_type(REPOSITORY) if r.import_id} == {
        name: f"projects/project-a/locations/us-central1/repositories/oasis-{name.partition('-')[2]}" for name in local
    }
