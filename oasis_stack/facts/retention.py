"""Retention of stored resources: whether they outlive their stack, and how long their old versions stay."""

from __future__ import annotations

from dataclasses import dataclass

DAY_SECONDS = 24 * 60 * 60


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Whether a resource outlives its stack."""

    keep: bool
    """Whether a destroy leaves the resource. If not, everything in it is deleted."""
    adopt: bool
    """Whether to take over an existing resource of this name; it must exist and have the same location and kind."""


@dataclass(frozen=True, kw_only=True)
class BucketRetention(Retention):
    """Retention of a bucket and its objects."""

    soft_delete_days: int
    """Days during which a deleted object can be restored, and is paid for: 7 to 90, or 0 for none."""


@dataclass(frozen=True, kw_only=True)
class RepositoryRetention(Retention):
    """Retention of the repositories that hold what was made here, and of the versions in them."""

    keep_untagged_days: int
    """Age at which an image that lost its tag is deleted; too short removes layers that a running pod still pulls."""
    keep_versions: int
    """How many of the newest versions of each image and package are kept, whatever their age."""
