"""Buckets that are taken back."""

from oasis_stack.command_line.offline import Deployment
from tests.support.program import deploy_stack
from tests.support.setting_examples import BUCKET, EXAMPLES, everything_changed
from tests.support.stacks import changed


def test_an_adopted_bucket_is_imported_without_comparing_what_the_provider_cannot_read(full: Deployment) -> None:
    config = changed("oasis:runs.adopt", True, everything_changed({"data.keep", "runs.keep"}))
    taken_over = deploy_stack(changed("oasis:data.adopt", True, config))
    for name in ("data", "runs"):
        adopted, made = taken_over.get(BUCKET, name), full.get(BUCKET, name)
        assert adopted.import_id == EXAMPLES[f"{name}.adopt"].shown
        assert {"labels", "pulumiLabels", "forceDestroy"} <= adopted.ignore_changes
        assert (made.import_id, made.ignore_changes) == ("", frozenset())
        assert adopted.urn == made.urn
        assert made.inputs["location"] == "us-central1"
