"""Six Artifact Registry repositories: for images and for Python packages, each a local one, a mirror and both as one.

A virtual repository asks the local one first, so that nobody can substitute a public package for a private one. Local
repositories hold what was made here and may be kept; the others hold copies and are deleted. Replaced when changed: id,
location, format, mode, upstream (hashicorp/terraform-provider-google 2026-08-21,
resource_artifact_registry_repository.go).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import pulumi
import pulumi_gcp as gcp

from oasis_stack.components.adoption import keep_or_adopt
from oasis_stack.facts import names
from oasis_stack.facts.retention import DAY_SECONDS, RepositoryRetention
from oasis_stack.facts.site import Site

Format = Literal["DOCKER", "PYTHON"]

LOCAL_PRIORITY, REMOTE_PRIORITY = 20, 10
"""The higher one is asked first (saltysoup/oasis-temp, infra/base/registry.tf)."""


MADE_HERE_DAYS = 180
"""Age at which an image or a package that was made here is deleted, unless it is one of the newest or in use."""

COPY_DAYS = 30
"""Age at which a copy of a public artifact is deleted, unless it is one of the newest; the next request copies anew."""


@dataclass(frozen=True, kw_only=True)
class DockerHub:
    """A Docker Hub login."""

    username: str
    """Docker ID."""
    password_secret: str
    """Full name of the secret version that holds an access token."""


@dataclass(frozen=True, kw_only=True)
class ArtifactRegistryArgs:
    """Arguments of the repositories."""

    site: Site
    """Where the stack stands."""
    project_number: pulumi.Input[str]
    """Project number: part of the service agent's address."""
    retention: RepositoryRetention
    """What becomes of the two local repositories and of what is in them."""
    docker_hub: DockerHub | None
    """Login for public images; with None, Docker Hub refuses with 429 once the shared address has fetched enough."""
    in_use: str
    """Image of the Ray pods, kept whatever its age; if it is not the one they use, theirs may be deleted."""


class ArtifactRegistry(pulumi.ComponentResource):
    """Registers six Artifact Registry repositories: Docker and Python, each local, remote and virtual. With a Docker
    Hub login it also registers Artifact Registry's service agent and its access to the secret."""

    APIS: ClassVar[tuple[str, ...]] = ("artifactregistry.googleapis.com",)

    image_repository: pulumi.Output[str]
    docker_index: pulumi.Output[str]
    docker_mirror: pulumi.Output[str]
    python_index_url: pulumi.Output[str]
    repository_id: pulumi.Output[str]
    docker_index_id: pulumi.Output[str]
    docker_mirror_id: pulumi.Output[str]
    python_index_id: pulumi.Output[str]

    def __init__(self, name: str, args: ArtifactRegistryArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:ArtifactRegistry", name, None, opts)
        images, image_mirror, image_index = self._triple(name, args, "DOCKER")
        _, _, package_index = self._triple(name, args, "PYTHON")
        host = f"{args.site.region}-{{}}.pkg.dev/{args.site.project}/"
        self.image_repository = pulumi.Output.concat(host.format("docker"), images.repository_id)
        self.docker_index = pulumi.Output.concat(host.format("docker"), image_index.repository_id)
        self.docker_mirror = pulumi.Output.concat(host.format("docker"), image_mirror.repository_id)
        self.python_index_url = pulumi.Output.concat(
            "https://", host.format("python"), package_index.repository_id, "/simple/"
        )
        self.repository_id = images.repository_id
        self.docker_index_id = image_index.repository_id
        self.docker_mirror_id = image_mirror.repository_id
        self.python_index_id = package_index.repository_id
        self.register_outputs(
            {
                "image_repository": self.image_repository,
                "docker_index": self.docker_index,
                "docker_mirror": self.docker_mirror,
                "python_index_url": self.python_index_url,
                "repository_id": self.repository_id,
                "docker_index_id": self.docker_index_id,
                "docker_mirror_id": self.docker_mirror_id,
                "python_index_id": self.python_index_id,
            }
        )

    def _triple(
        self, name: str, args: ArtifactRegistryArgs, format_: Format
    ) -> tuple[gcp.artifactregistry.Repository, gcp.artifactregistry.Repository, gcp.artifactregistry.Repository]:
        """The local, the remote and the virtual repository of one format."""
        kind = format_.lower()
        local_id = names.repository(args.site.prefix, kind)
        local = gcp.artifactregistry.Repository(
            f"{name}-{kind}",
            project=args.site.project,
            location=args.site.region,
            repository_id=local_id,
            format=format_,
            mode="STANDARD_REPOSITORY",
            cleanup_policies=[
                *local_policies(format_, args.retention),
                *kept_in_use(args.in_use, f"{args.site.region}-{kind}.pkg.dev/{args.site.project}/{local_id}/"),
            ],
            labels=dict(args.site.labels),
            opts=keep_or_adopt(
                self,
                args.retention,
                f"projects/{args.site.project}/locations/{args.site.region}/repositories/{local_id}",
            ),
        )
        login = args.docker_hub if format_ == "DOCKER" else None
        remote = gcp.artifactregistry.Repository(
            f"{name}-{kind}-remote",
            project=args.site.project,
            location=args.site.region,
            repository_id=names.repository(args.site.prefix, f"{kind}-remote"),
            format=format_,
            mode="REMOTE_REPOSITORY",
            remote_repository_config=upstream(format_, login),
            cleanup_policies=copies_policies(args.retention.keep_versions),
            labels=dict(args.site.labels),
            # Google tries the login when it makes the repository.
            opts=pulumi.ResourceOptions(parent=self, depends_on=self._secret_grants(name, args, login)),
        )
        virtual = gcp.artifactregistry.Repository(
            f"{name}-{kind}-virtual",
            project=args.site.project,
            location=args.site.region,
            repository_id=names.repository(args.site.prefix, f"{kind}-virtual"),
            format=format_,
            mode="VIRTUAL_REPOSITORY",
            virtual_repository_config={
                "upstream_policies": [
                    {"id": "local", "repository": local.id, "priority": LOCAL_PRIORITY},
                    {"id": "remote", "repository": remote.id, "priority": REMOTE_PRIORITY},
                ]
            },
            labels=dict(args.site.labels),
            opts=pulumi.ResourceOptions(parent=self),
        )
        return local, remote, virtual

    def _secret_grants(self, name: str, args: ArtifactRegistryArgs, login: DockerHub | None) -> list[pulumi.Resource]:
        """Artifact Registry's service agent may read the token (Artifact Registry documentation, "Configure remote
        repository authentication to Docker Hub")."""
        if login is None:
            return []
        child = pulumi.ResourceOptions(parent=self)
        agent = gcp.projects.ServiceIdentity(
            f"{name}-agent", project=args.site.project, service="artifactregistry.googleapis.com", opts=child
        )
        _, owner, _, secret, *_ = login.password_secret.split("/")
        grant = gcp.secretmanager.SecretIamMember(
            f"{name}-docker-hub",
            project=owner,
            secret_id=secret,
            role="roles/secretmanager.secretAccessor",
            member=pulumi.Output.format(
                "serviceAccount:service-{0}@gcp-sa-artifactregistry.iam.gserviceaccount.com", args.project_number
            ),
            # Another stack of the project may have the same grant for this agent; see `control_plane.key_grant`.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[agent], retain_on_delete=True),
        )
        return [grant]


def upstream(format_: Format, login: DockerHub | None) -> gcp.artifactregistry.RepositoryRemoteRepositoryConfigArgsDict:
    """The public index that a remote repository mirrors."""
    if format_ == "PYTHON":
        return {"python_repository": {"public_repository": "PYPI"}}
    config: gcp.artifactregistry.RepositoryRemoteRepositoryConfigArgsDict = {
        "docker_repository": {"public_repository": "DOCKER_HUB"}
    }
    if login is not None:
        config["upstream_credentials"] = {
            "username_password_credentials": {
                "username": login.username,
                "password_secret_version": login.password_secret,
            }
        }
    return config


Policy = gcp.artifactregistry.RepositoryCleanupPolicyArgsDict

Condition = gcp.artifactregistry.RepositoryCleanupPolicyConditionArgsDict


def copies_policies(keep_versions: int) -> list[Policy]:
    """Cleanup policies of a remote repository: old copies are deleted."""
    return [_newest(keep_versions), _delete("old", {"tag_state": "ANY", "older_than": f"{COPY_DAYS * DAY_SECONDS}s"})]


def local_policies(format_: Format, retention: RepositoryRetention) -> list[Policy]:
    """Cleanup policies of a local repository: old versions are deleted, untagged images sooner.

    A version that one policy keeps is deleted by no other (Google Cloud documentation, "Cleanup policy overview"). The
    newest are counted for each image and package; the layer cache of an image is one of its versions.
    """
    policies = [
        _newest(retention.keep_versions),
        _delete("old", {"tag_state": "ANY", "older_than": f"{MADE_HERE_DAYS * DAY_SECONDS}s"}),
    ]
    if format_ == "DOCKER":
        lost: Condition = {"tag_state": "UNTAGGED", "older_than": f"{retention.keep_untagged_days * DAY_SECONDS}s"}
        policies.append(_delete("untagged", lost))
    return policies


def kept_in_use(image: str, repository: str) -> list[Policy]:
    """A rule that keeps the stack's image, however many were built after it; none for an image from elsewhere.

    Args:
        image: reference by tag, by digest, or by both.
        repository: address of the repository, with a slash at the end.
    """
    if not image.startswith(repository):
        return []
    named, _, digest = image.removeprefix(repository).partition("@")
    tag = named.partition(":")[2]
    ways: dict[str, Condition] = {}
    if tag:
        ways["tag"] = {"tag_state": "TAGGED", "tag_prefixes": [tag]}
    if digest:  # the name of the version in a Docker repository; a tag may have been moved to another one
        ways["digest"] = {"version_name_prefixes": [digest]}
    return [{"id": f"keep-{name}-in-use", "action": "KEEP", "condition": one} for name, one in ways.items()]


def _newest(keep_versions: int) -> Policy:
    return {"id": "keep-newest", "action": "KEEP", "most_recent_versions": {"keep_count": keep_versions}}


def _delete(name: str, condition: Condition) -> Policy:
    return {"id": f"delete-{name}", "action": "DELETE", "condition": condition}
