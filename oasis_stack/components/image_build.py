"""The place where `make image` builds: a private Cloud Build worker pool, a least-privilege account, a source bucket.

Unpeered by default: builds need the internet and Artifact Registry, but no machine of the stack. Peering adds service
networking, whose removal Google delays. Replaced when changed: network of the pool (hashicorp/terraform-provider-google
2026-08-21, resource_cloudbuild_worker_pool.go); machine type and disk in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_gcp as gcp

from oasis_stack.facts import names
from oasis_stack.facts.site import Site
from oasis_stack.wait import ConnectionFree

TIMEOUTS = pulumi.CustomTimeouts(create="30m", update="30m", delete="30m")

SERVICE_NETWORKING = "servicenetworking.googleapis.com"

RELEASE_MINUTES = 30
"""A deleted worker pool keeps its place in the peered network for a while (terraform-provider-google issue 16275)."""

SOURCE_DAYS = 30
"""Age at which sources and logs of builds are deleted; they serve to look into a failure, and only the image lasts."""


@dataclass(frozen=True, kw_only=True)
class Peering:
    """Peering with the primary VPC, for builds that must reach something in it."""

    APIS: ClassVar[tuple[str, ...]] = (SERVICE_NETWORKING,)

    network_id: pulumi.Input[str]
    """VPC as `projects/<p>/global/networks/<n>`."""
    project_number: pulumi.Input[str]
    """Project number: Cloud Build wants it in the network's path."""
    address_range: str
    """Range that Google's own network uses for the workers, as CIDR, disjoint from everything in the VPC."""


@dataclass(frozen=True, kw_only=True)
class ImageBuildArgs:
    """Arguments of the image build."""

    site: Site
    """Where the stack stands."""
    machine_type: str
    """Machine type of a build."""
    disk_gb: int
    """Disk of a build in GB; a CUDA image, its layers and its cache need more than 100."""
    peering: Peering | None
    """Peering with the VPC; with None, builds run outside it."""
    image_repository_id: pulumi.Input[str]
    """Repository that images are pushed to and that holds the layer cache."""
    readable_repositories: Mapping[str, pulumi.Input[str]]
    """Repositories that builds pull base images and packages from, by a short name."""


class ImageBuild(pulumi.ComponentResource):
    """Registers a Cloud Build worker pool, its builder account with grants on resources, and a bucket for sources."""

    APIS: ClassVar[tuple[str, ...]] = (
        "cloudbuild.googleapis.com",
        "iam.googleapis.com",
        "storage.googleapis.com",
    )

    worker_pool: pulumi.Output[str]
    builder_service_account: pulumi.Output[str]
    source_bucket: pulumi.Output[str]

    def __init__(self, name: str, args: ImageBuildArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:ImageBuild", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        pool = gcp.cloudbuild.WorkerPool(
            name,
            project=args.site.project,
            location=args.site.region,
            worker_config={"machine_type": args.machine_type, "disk_size_gb": args.disk_gb, "no_external_ip": False},
            network_config=network_config(args.peering),
            opts=pulumi.ResourceOptions(
                parent=self,
                custom_timeouts=TIMEOUTS,
                # The pool names the network, not the connection that it needs there.
                depends_on=self._connection(name, args),
                # A project may have one pool in a region, and no more: "insufficient quota to create a new worker pool"
                # (GoogleCloudPlatform/pbmm-on-gcp-onboarding issue 434).
                delete_before_replace=True,
            ),
        )
        bucket = gcp.storage.Bucket(
            f"{name}-source",
            project=args.site.project,
            name=names.bucket(args.site.project, args.site.prefix, name),
            location=args.site.region,
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            soft_delete_policy={"retention_duration_seconds": 0},
            lifecycle_rules=[{"action": {"type": "Delete"}, "condition": {"age": SOURCE_DAYS}}],
            labels=dict(args.site.labels),
            # Copies of sources and logs: a destroy loses nothing.
            force_destroy=True,
            opts=child,
        )
        builder = gcp.serviceaccount.Account(
            f"{name}-builder",
            project=args.site.project,
            account_id=names.service_account(args.site.prefix, "image-builder"),
            display_name="Builds of the Ray image",
            opts=child,
        )
        self._grants(name, args, builder, bucket)
        self.worker_pool = pool.id
        self.builder_service_account = builder.email
        self.source_bucket = bucket.name
        self.register_outputs(
            {
                "worker_pool": self.worker_pool,
                "builder_service_account": self.builder_service_account,
                "source_bucket": self.source_bucket,
            }
        )

    def _connection(self, name: str, args: ImageBuildArgs) -> list[pulumi.Resource]:
        """Service networking for a peered pool, and the wait that on destroy comes between the two."""
        peering = args.peering
        if peering is None:
            return []
        address, _, length = peering.address_range.partition("/")
        slow = pulumi.ResourceOptions(parent=self, custom_timeouts=TIMEOUTS)
        reserved = gcp.compute.GlobalAddress(
            f"{name}-peering",
            project=args.site.project,
            network=peering.network_id,
            purpose="VPC_PEERING",
            address_type="INTERNAL",
            address=address,
            prefix_length=int(length),
            labels=dict(args.site.labels),
            opts=slow,
        )
        connection = gcp.servicenetworking.Connection(
            f"{name}-peering",
            network=peering.network_id,
            service=SERVICE_NETWORKING,
            reserved_peering_ranges=[reserved.name],
            # If Google's side still holds a deleted pool, only the peering is removed, so that the VPC can be deleted.
            deletion_policy="REMOVE_PEERING",
            opts=slow,
        )
        free = ConnectionFree(
            f"{name}-peering",
            args.site.project,
            args.site.region,
            peering.network_id,
            RELEASE_MINUTES,
            pulumi.ResourceOptions(parent=self, depends_on=[connection]),
        )
        return [free]

    def _grants(
        self,
        name: str,
        args: ImageBuildArgs,
        builder: gcp.serviceaccount.Account,
        bucket: gcp.storage.Bucket,
    ) -> None:
        child = pulumi.ResourceOptions(parent=self)
        granted = {"push": (args.image_repository_id, "roles/artifactregistry.writer")}
        for short, repository in args.readable_repositories.items():
            granted[f"pull-{short}"] = (repository, "roles/artifactregistry.reader")
        for short, (repository, role) in granted.items():
            gcp.artifactregistry.RepositoryIamMember(
                f"{name}-{short}",
                project=args.site.project,
                location=args.site.region,
                repository=repository,
                role=role,
                member=builder.member,
                opts=child,
            )
        # Logs go to this bucket too (`logging: GCS_ONLY`): writing them elsewhere would need a role on the project.
        for role in ("roles/storage.objectUser", "roles/storage.bucketViewer"):
            gcp.storage.BucketIAMMember(
                f"{name}-source-{role.rpartition('.')[2]}",
                bucket=bucket.name,
                role=role,
                member=builder.member,
                opts=child,
            )


def network_config(peering: Peering | None) -> gcp.cloudbuild.WorkerPoolNetworkConfigArgsDict | None:
    """The VPC that workers are peered with, by project number, as Cloud Build requires."""
    if peering is None:
        return None
    network = pulumi.Output.all(peering.project_number, peering.network_id).apply(
        lambda known: f"projects/{known[0]}/global/networks/{known[1].rpartition('/')[2]}"
    )
    return {"peered_network": network, "peered_network_ip_range": peering.address_range}
