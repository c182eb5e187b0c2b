"""Options for resources that a destroy may keep and a later `up` may adopt: one setting each way, no other tool."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi

from oasis_stack.facts.retention import Retention

UNREAD = ("labels", "pulumiLabels", "effectiveLabels")
"""Arguments that the provider does not read back on import: if they were compared, it would refuse to import what
Pulumi itself made (pulumi/pulumi-gcp issue 3044)."""


def keep_or_adopt(
    parent: pulumi.Resource, retention: Retention, resource_id: str, also_unread: Sequence[str] = ()
) -> pulumi.ResourceOptions:
    """Options of a child that a destroy may leave in the cloud, and that can be adopted by its `resource_id`.

    `also_unread` names further arguments that exist only on our side. Once the stack no longer adopts, an `up` sets
    them and the labels.
    """
    return pulumi.ResourceOptions(
        parent=parent,
        # A destroy forgets the resource instead of asking Google to delete it.
        retain_on_delete=retention.keep,
        import_=resource_id if retention.adopt else None,
        ignore_changes=[*UNREAD, *also_unread] if retention.adopt else None,
    )
