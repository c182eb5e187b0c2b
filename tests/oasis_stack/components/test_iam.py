"""What the pods' service account may do, and on what."""

from oasis_stack.components.iam import BucketGrant, WorkloadIdentity, WorkloadIdentityArgs
from tests.support.deployment import Deploy, Deployment
from tests.support.stacks import SITE

WHO = (
    "principal://iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/"
    "project-a.svc.id.goog/subject/ns/ray/sa/ray"
)
USER = ("roles/storage.objectUser", "roles/storage.bucketViewer")


def _deployed(deploy: Deploy) -> Deployment:
    def program() -> None:
        WorkloadIdentity(
            "identity",
            WorkloadIdentityArgs(
                site=SITE,
                project_number="123456789012",
                cluster_name="cluster-a",
                namespace="ray",
                service_account="ray",
                buckets={
                    "data": BucketGrant(bucket="data-bucket", roles=USER),
                    "runs": BucketGrant(bucket="runs-bucket", roles=USER),
                },
                secrets={"wandb": "projects/project-a/secrets/oasis-wandb"},
                repositories={"python": "oasis-python-virtual"},
            ),
        )

    return deploy(program)


def test_every_grant_is_one_member_on_one_resource(deploy: Deploy) -> None:
    grants = [resource for resource in _deployed(deploy) if resource.custom]
    assert {grant.type for grant in grants} == {
        "gcp:storage/bucketIAMMember:BucketIAMMember",
        "gcp:secretmanager/secretIamMember:SecretIamMember",
        "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember",
    }
    assert {grant.inputs["member"] for grant in grants} == {WHO}


def test_the_service_account_may_use_objects_see_the_buckets_read_the_secret_and_the_packages(deploy: Deploy) -> None:
    seen = _deployed(deploy)
    held = {
        (grant.inputs.get("bucket") or grant.inputs.get("secretId") or grant.inputs["repository"], grant.inputs["role"])
        for grant in seen
        if grant.custom
    }
    assert held == {
        ("data-bucket", "roles/storage.objectUser"),
        ("data-bucket", "roles/storage.bucketViewer"),
        ("runs-bucket", "roles/storage.objectUser"),
        ("runs-bucket", "roles/storage.bucketViewer"),
        ("projects/project-a/secrets/oasis-wandb", "roles/secretmanager.secretAccessor"),
        ("oasis-python-virtual", "roles/artifactregistry.reader"),
    }
    assert seen.only("oasis:index:WorkloadIdentity").outputs == {"principal": WHO}
