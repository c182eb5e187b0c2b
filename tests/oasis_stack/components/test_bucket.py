"""Buckets: what is guarded, what is kept, what is taken back."""

from typing import Any

from oasis_stack.components.bucket import Bucket, BucketArgs
from oasis_stack.facts.lifecycle import BucketLifecycle
from tests.support.deployment import Deploy, Registered
from tests.support.stacks import SITE


def _bucket(deploy: Deploy, **changes: Any) -> Registered:
    arguments: dict[str, Any] = {
        "soft_delete_days": 7,
        "keep": True,
        "adopt": False,
    }
    lifecycle = BucketLifecycle(**(arguments | changes))
    seen = deploy(lambda: Bucket("runs", BucketArgs(site=SITE, lifecycle=lifecycle, hierarchical=True)))
    assert seen.only("oasis:index:Bucket").outputs == {
        "bucket_name": "project-a-oasis-runs",
        "uri": "gs://project-a-oasis-runs",
    }
    return seen.only("gcp:storage/bucket:Bucket")


def test_a_bucket_is_closed_to_the_public_and_remembers_deleted_objects(deploy: Deploy) -> None:
    inputs = _bucket(deploy).inputs
    assert (inputs["uniformBucketLevelAccess"], inputs["publicAccessPrevention"]) == (True, "enforced")
    assert inputs["softDeletePolicy"] == {"retentionDurationSeconds": 604800}
    assert inputs["hierarchicalNamespace"] == {"enabled": True}
    assert (inputs["location"], inputs["labels"]) == ("us-central1", {"team": "vision"})
    assert _bucket(deploy, soft_delete_days=0).inputs["softDeletePolicy"] == {"retentionDurationSeconds": 0}


def test_a_kept_bucket_survives_the_destroy_and_its_objects_cannot_be_deleted_by_it(deploy: Deploy) -> None:
    kept, given_up = _bucket(deploy, keep=True), _bucket(deploy, keep=False)
    assert (kept.retain_on_delete, kept.inputs["forceDestroy"]) == (True, False)
    assert (given_up.retain_on_delete, given_up.inputs["forceDestroy"]) == (False, True)


def test_an_adopted_bucket_is_imported_without_comparing_what_the_provider_cannot_read(deploy: Deploy) -> None:
    adopted, made = _bucket(deploy, adopt=True), _bucket(deploy)
    assert adopted.import_id == "project-a/project-a-oasis-runs"
    assert {"labels", "pulumiLabels", "forceDestroy"} <= adopted.ignore_changes
    assert (made.import_id, made.ignore_changes) == ("", frozenset())
    assert adopted.urn == made.urn
