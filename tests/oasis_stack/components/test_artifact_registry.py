"""Repositories of images and packages."""

from dataclasses import dataclass
from typing import Any

import pytest

from oasis_stack.command_line.offline import PROJECT_NUMBER, Deployment, deploy
from oasis_stack.components.artifact_registry import ArtifactRegistry, ArtifactRegistryArgs
from oasis_stack.facts.retention import RepositoryRetention
from tests.support.stacks import SITE

REPOSITORY = "gcp:artifactregistry/repository:Repository"


def test_images_and_packages_each_have_a_virtual_repository_that_asks_the_local_one_before_the_public_one(
    full: Deployment,
) -> None:
    found = {(r.inputs["format"], r.inputs["mode"].partition("_")[0]) for r in full.of_type(REPOSITORY)}
    assert found == {(f, m) for f in ("DOCKER", "PYTHON") for m in ("STANDARD", "REMOTE", "VIRTUAL")}
    for kind in ("docker", "python"):
        virtual = full.get(REPOSITORY, f"registry-{kind}-virtual")
        upstreams = virtual.inputs["virtualRepositoryConfig"]["upstreamPolicies"]
        by_priority = sorted(upstreams, key=lambda policy: -policy["priority"])
        base = "projects/some-project/locations/us-central1/repositories/oasis"
        assert [policy["repository"] for policy in by_priority] == [f"{base}-{kind}", f"{base}-{kind}-remote"]


def test_a_login_at_docker_hub_is_read_from_its_secret_by_googles_agent_before_the_mirror_uses_it(
    other: Deployment,
) -> None:
    mirror = other.get(REPOSITORY, "registry-docker-remote")
    grant = other.get("gcp:secretmanager/secretIamMember:SecretIamMember", "registry-docker-hub")
    assert (grant.inputs["project"], grant.inputs["secretId"]) == ("keys-project", "docker-hub")
    assert other.is_before(other.get("gcp:projects/serviceIdentity:ServiceIdentity", "registry-agent"), grant)
    assert other.is_before(grant, mirror)
    packages = other.get(REPOSITORY, "registry-python-remote")
    assert "upstreamCredentials" not in packages.inputs["remoteRepositoryConfig"]


@dataclass(frozen=True)
class Version:
    """One version of an image, as the registry has it."""

    digest: str
    tags: tuple[str, ...]
    days: int
    """Its age."""


def deleted(policies: list[dict[str, Any]], versions: list[Version]) -> set[str]:
    """What Artifact Registry deletes: what a DELETE policy matches and no KEEP policy does (Google Cloud
    documentation, "Cleanup policy overview")."""

    def matches(policy: dict[str, Any], version: Version) -> bool:
        if "mostRecentVersions" in policy:
            newest = sorted(versions, key=lambda one: one.days)[: int(policy["mostRecentVersions"]["keepCount"])]
            return version in newest
        condition = policy["condition"]
        assert set(condition) <= {"tagState", "olderThan", "tagPrefixes", "versionNamePrefixes"}
        return (
            {"TAGGED": bool(version.tags), "UNTAGGED": not version.tags}.get(condition.get("tagState"), True)
            and version.days * 86400 > int(condition.get("olderThan", "0s").removesuffix("s"))
            and any(tag.startswith(p) for p in condition.get("tagPrefixes", [""]) for tag in version.tags or ("",))
            and any(version.digest.startswith(p) for p in condition.get("versionNamePrefixes", [""]))
        )

    meant: dict[str, set[str]] = {"DELETE": set(), "KEEP": set()}
    for policy in policies:
        meant[policy["action"]] |= {version.digest for version in versions if matches(policy, version)}
    return meant["DELETE"] - meant["KEEP"]


IMAGES = [
    Version("sha256:a1", ("2.60.0-20261101",), 1),
    Version("sha256:b2", (), 5),
    Version("sha256:c3", ("2.60.0-20260901",), 61),
    Version("sha256:d4", ("2.60.0-20260301",), 250),
    Version("sha256:e5", ("2.60.0-20260101",), 310),
]
OURS = "us-central1-docker.pkg.dev/project-a/oasis-docker/ray"


def policies(keep_versions: int, in_use: str = "rayproject/ray:2.60.0-py312-cu128") -> list[dict[str, Any]]:
    """Of the local repository of images."""
    args = ArtifactRegistryArgs(
        site=SITE,
        project_number=PROJECT_NUMBER,
        retention=RepositoryRetention(keep=False, adopt=False, keep_untagged_days=3, keep_versions=keep_versions),
        docker_hub=None,
        in_use=in_use,
    )
    deployed = deploy(lambda: ArtifactRegistry("registry", args))
    return deployed.get(REPOSITORY, "registry-docker").inputs["cleanupPolicies"]


@pytest.mark.parametrize(
    ("in_use", "gone"),
    [
        ("rayproject/ray:2.60.0-py312-cu128", {"sha256:b2", "sha256:d4", "sha256:e5"}),
        (f"{OURS}:2.60.0-20260301@sha256:d4", {"sha256:b2", "sha256:e5"}),
        (f"{OURS}:2.60.0-20260301", {"sha256:b2", "sha256:e5"}),
        (f"{OURS}@sha256:e5", {"sha256:b2", "sha256:d4"}),
        # The tag was moved to a later build; the pods have the digest.
        (f"{OURS}:2.60.0-20260901@sha256:d4", {"sha256:b2", "sha256:e5"}),
        ("elsewhere.example/ray:2.60.0-20260301", {"sha256:b2", "sha256:d4", "sha256:e5"}),
    ],
)
def test_old_images_and_untagged_ones_go_but_never_the_newest_nor_the_one_in_use(in_use: str, gone: set[str]) -> None:
    asked = policies(1, in_use)

    assert deleted(asked, IMAGES) == gone
    assert len({policy["id"] for policy in asked}) == len(asked) <= 10


def test_of_many_old_images_as_many_stay_as_the_stack_asks_for() -> None:
    old = [Version(f"sha256:{day}", (f"2.60.0-{day}",), day) for day in range(200, 210)]

    assert deleted(policies(4), old) == {f"sha256:{day}" for day in range(204, 210)}


def test_packages_and_copies_of_public_things_go_by_age_but_never_the_newest(other: Deployment) -> None:
    half_a_year, month = f"{180 * 86400}s", f"{30 * 86400}s"
    for name, age in (("python", half_a_year), ("python-remote", month), ("docker-remote", month)):
        policies = {p["action"]: p for p in other.get(REPOSITORY, f"registry-{name}").inputs["cleanupPolicies"]}
        assert policies["DELETE"]["condition"] == {"tagState": "ANY", "olderThan": age}
        assert policies["KEEP"]["mostRecentVersions"] == {"keepCount": 17}
    assert "cleanupPolicies" not in other.get(REPOSITORY, "registry-docker-virtual").inputs
