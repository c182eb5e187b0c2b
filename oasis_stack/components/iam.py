"""Grants on cloud resources for Kubernetes service accounts, through Workload Identity Federation for GKE.

Each grant is for one member on one resource: never on the project, and never a whole binding, which would take away
everyone else's grant of that role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_gcp as gcp

from oasis_stack.facts import names
from oasis_stack.facts.site import Site


@dataclass(frozen=True, kw_only=True)
class BucketGrant:
    """Roles on one bucket."""

    bucket: pulumi.Input[str]
    """Bucket name."""
    roles: tuple[str, ...]
    """Roles such as `roles/storage.objectUser`. Ray's storage also reads the bucket itself (`storage.buckets.get`,
    in `roles/storage.bucketViewer`) and fails without it before it reads any object."""


@dataclass(frozen=True, kw_only=True)
class FolderGrant:
    """Roles on one folder of a bucket: on all objects whose names begin with its path (Cloud Storage documentation,
    "Managed folders"). The folder is created for the grant."""

    bucket: pulumi.Input[str]
    """Bucket name; a bucket without uniform bucket-level access has no managed folders."""
    folder: str
    """Path of the folder, without a slash at either end."""
    roles: tuple[str, ...]
    """Roles such as `roles/storage.objectUser`."""
    also: Sequence[str]
    """Further principals with the same roles: people who put files there for their jobs."""


@dataclass(frozen=True, kw_only=True)
class WorkloadIdentityArgs:
    """Arguments of the workload's identity: each grant and its scope."""

    site: Site
    """Where the stack stands."""
    project_number: pulumi.Input[str]
    """Project number. With the project id instead, the principal matches nobody, and no grant has any effect."""
    cluster_name: pulumi.Input[str]
    """Cluster whose creation makes the identity pool; Google refuses grants before that."""
    namespace: str
    """Kubernetes namespace of the service account."""
    service_account: str
    """Kubernetes service account; any other in the namespace has no access."""
    buckets: Mapping[str, BucketGrant]
    """Bucket grants by a short name, which becomes part of the grants' logical names."""
    folders: Mapping[str, FolderGrant]
    """Grants on folders of buckets, by a short name."""
    secrets: Mapping[str, pulumi.Input[str]]
    """Secrets whose values it may read, as `projects/<p>/secrets/<s>`, by a short name."""
    repositories: Mapping[str, pulumi.Input[str]]
    """Repositories in the region that it may read, by a short name."""


class WorkloadIdentity(pulumi.ComponentResource):
    """Registers member grants on buckets, their folders, secrets and repositories for one Kubernetes service
    account."""

    APIS: ClassVar[tuple[str, ...]] = ("iam.googleapis.com", "iamcredentials.googleapis.com")

    principal: pulumi.Output[str]

    def __init__(self, name: str, args: WorkloadIdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:WorkloadIdentity", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.principal = pulumi.Output.all(args.project_number, args.cluster_name).apply(
            lambda known: principal(args.site.project, known[0], args.namespace, args.service_account)
        )
        for short, grant in args.buckets.items():
            for role in grant.roles:
                gcp.storage.BucketIAMMember(
                    f"{name}-{short}-{role.rpartition('.')[2]}",
                    bucket=grant.bucket,
                    role=role,
                    member=self.principal,
                    opts=child,
                )
        for short, grant in args.folders.items():
            self._grant_folder(f"{name}-{short}", grant)
        for short, secret in args.secrets.items():
            gcp.secretmanager.SecretIamMember(
                f"{name}-{short}",
                project=args.site.project,
                secret_id=secret,
                role="roles/secretmanager.secretAccessor",
                member=self.principal,
                opts=child,
            )
        for short, repository in args.repositories.items():
            gcp.artifactregistry.RepositoryIamMember(
                f"{name}-{short}",
                project=args.site.project,
                location=args.site.region,
                repository=repository,
                role="roles/artifactregistry.reader",
                member=self.principal,
                opts=child,
            )
        self.register_outputs({"principal": self.principal})

    def _grant_folder(self, name: str, grant: FolderGrant) -> None:
        # It needs no parent folder, and a grant on it also covers files and folders below it in Cloud Storage FUSE
        # (GoogleCloudPlatform/gcsfuse, tools/integration_tests/managed_folders, which run in hierarchical buckets).
        child = pulumi.ResourceOptions(parent=self)
        folder = gcp.storage.ManagedFolder(
            f"{name}-folder",
            bucket=grant.bucket,
            name=f"{grant.folder}/",
            # An empty folder could be deleted without this; if it holds objects they stay, and only its grants go.
            force_destroy=True,
            opts=child,
        )
        for role in grant.roles:
            for suffix, member in (("", self.principal), *((f"-{names.digest(one)}", one) for one in grant.also)):
                gcp.storage.ManagedFolderIamMember(
                    f"{name}-folder-{role.rpartition('.')[2]}{suffix}",
                    bucket=grant.bucket,
                    managed_folder=folder.name,
                    role=role,
                    member=member,
                    opts=child,
                )


def principal(project: str, project_number: str, namespace: str, service_account: str) -> str:
    """The identity of a Kubernetes service account in IAM policies (Google Cloud documentation, "About Workload
    Identity Federation for GKE", principal identifiers)."""
    return (
        f"principal://iam.googleapis.com/projects/{project_number}/locations/global/workloadIdentityPools/"
        f"{project}.svc.id.goog/subject/ns/{namespace}/sa/{service_account}"
    )
