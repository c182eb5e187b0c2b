"""A bucket that outlives its stack unless the stack says otherwise, and that a later `up` can adopt.

Replaced when changed: name, location, hierarchical namespace (hashicorp/terraform-provider-google 2026-08-21,
resource_storage_bucket.go). A replacement with the same name fails while its predecessor exists, and does not empty it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_gcp as gcp

from oasis_stack.components.adoption import keep_or_adopt
from oasis_stack.facts import names
from oasis_stack.facts.retention import DAY_SECONDS, BucketRetention
from oasis_stack.facts.site import Site


@dataclass(frozen=True, kw_only=True)
class BucketArgs:
    """Arguments of a bucket."""

    site: Site
    """Where the stack stands."""
    retention: BucketRetention
    """Retention of the bucket and of deleted objects."""
    hierarchical: bool
    """Hierarchical namespace: renaming a folder is one atomic step, which checkpoints rely on. Excludes versioning."""
    seen_by: Collection[str]
    """Principals who may look at the bucket itself, as a client does before it reads an object. Each has one grant,
    however many teams it is in: Google identifies a grant by bucket, role and member, and removes it with the first
    resource that has it."""


class Bucket(pulumi.ComponentResource):
    """Registers one Cloud Storage bucket, whose name ends in the component's name."""

    APIS: ClassVar[tuple[str, ...]] = ("storage.googleapis.com",)

    bucket_name: pulumi.Output[str]
    uri: pulumi.Output[str]

    def __init__(self, name: str, args: BucketArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:Bucket", name, None, opts)
        retention, bucket_name = args.retention, names.bucket(args.site.project, args.site.prefix, name)
        bucket = gcp.storage.Bucket(
            name,
            project=args.site.project,
            name=bucket_name,
            location=args.site.region,
            labels=dict(args.site.labels),
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            soft_delete_policy={"retention_duration_seconds": retention.soft_delete_days * DAY_SECONDS},
            hierarchical_namespace={"enabled": args.hierarchical},
            force_destroy=not retention.keep,
            opts=keep_or_adopt(self, retention, f"{args.site.project}/{bucket_name}", ["forceDestroy"]),
        )
        for member in sorted(args.seen_by):
            gcp.storage.BucketIAMMember(
                f"{name}-bucketViewer-{names.digest(member)}",
                bucket=bucket.name,
                role="roles/storage.bucketViewer",
                member=member,
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.bucket_name = bucket.name
        self.uri = bucket.url
        self.register_outputs({"bucket_name": self.bucket_name, "uri": self.uri})
