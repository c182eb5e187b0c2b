"""A bucket that outlives its stack unless the stack says otherwise, and that a later `up` can take back.

Replaced when changed: name, location, hierarchical namespace (hashicorp/terraform-provider-google 2026-08-21,
resource_storage_bucket.go). A replacement with the same name fails on its predecessor instead of emptying it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_gcp as gcp

from oasis_stack.components.adoption import keep_or_adopt

DAY_SECONDS = 24 * 60 * 60


@dataclass(frozen=True, kw_only=True)
class BucketArgs:
    """What a bucket needs to know."""

    project: str
    """Project id."""
    region: str
    """Location. Training reads from a bucket elsewhere are slow, and billed as traffic."""
    bucket_name: str
    """Name in the namespace that all of Google Cloud shares; deterministic, so that it can be adopted."""
    labels: Mapping[str, str]
    """Labels, for the bill."""
    hierarchical: bool
    """Hierarchical namespace: renaming a folder is one atomic step, which checkpoints rely on. Excludes versioning."""
    soft_delete_days: int
    """Days during which a deleted object can be restored, and is paid for: 7 to 90, or 0 for none."""
    keep: bool
    """Whether a destroy leaves the bucket. If not, it deletes every object in it."""
    adopt: bool
    """Whether to take over an existing bucket of this name; it must exist and have the same location and namespace."""


class Bucket(pulumi.ComponentResource):
    """Registers one Cloud Storage bucket."""

    APIS: ClassVar[tuple[str, ...]] = ("storage.googleapis.com",)

    bucket_name: pulumi.Output[str]
    uri: pulumi.Output[str]

    def __init__(self, name: str, args: BucketArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:Bucket", name, None, opts)
        bucket = gcp.storage.Bucket(
            name,
            project=args.project,
            name=args.bucket_name,
            location=args.region,
            labels=dict(args.labels),
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            soft_delete_policy={"retention_duration_seconds": args.soft_delete_days * DAY_SECONDS},
            hierarchical_namespace={"enabled": args.hierarchical},
            force_destroy=not args.keep,
            opts=keep_or_adopt(
                self, args.keep, f"{args.project}/{args.bucket_name}" if args.adopt else None, ["forceDestroy"]
            ),
        )
        self.bucket_name = bucket.name
        self.uri = bucket.url
        self.register_outputs({"bucket_name": self.bucket_name, "uri": self.uri})
