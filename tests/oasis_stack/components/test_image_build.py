"""The place where images are built."""

from oasis_stack.components.image_build import ImageBuild, ImageBuildArgs, Peering
from tests.support.deployment import Deploy, Deployment
from tests.support.stacks import SITE

POOL = "gcp:cloudbuild/workerPool:WorkerPool"
CONNECTION, WAIT = "gcp:servicenetworking/connection:Connection", "pulumi-python:dynamic/wait:ConnectionFree"


def _deployed(deploy: Deploy, peering: Peering | None) -> Deployment:
    def program() -> None:
        ImageBuild(
            "build",
            ImageBuildArgs(
                site=SITE,
                machine_type="e2-highmem-8",
                disk_gb=200,
                peering=peering,
                image_repository_id="oasis-docker",
                readable_repositories={"docker": "oasis-docker-virtual", "python": "oasis-python-virtual"},
            ),
        )

    return deploy(program)


PEERED = Peering(
    network_id="projects/project-a/global/networks/primary",
    project_number="123456789012",
    address_range="10.64.49.0/24",
)


def test_by_default_the_pool_stands_outside_the_vpc_and_nothing_is_peered(deploy: Deploy) -> None:
    seen = _deployed(deploy, None)
    assert "networkConfig" not in seen.only(POOL).inputs
    assert seen.only(POOL).inputs["workerConfig"] == {
        "machineType": "e2-highmem-8",
        "diskSizeGb": 200,
        "noExternalIp": False,
    }
    assert not [r for r in seen if "servicenetworking" in r.type or "globalAddress" in r.type or r.type == WAIT]


def test_a_peered_pool_goes_before_the_wait_and_the_wait_before_the_connection(deploy: Deploy) -> None:
    seen = _deployed(deploy, PEERED)
    pool, wait, connection = seen.only(POOL), seen.only(WAIT), seen.only(CONNECTION)
    address = seen.only("gcp:compute/globalAddress:GlobalAddress")
    assert pool.inputs["networkConfig"] == {
        "peeredNetwork": "projects/123456789012/global/networks/primary",
        "peeredNetworkIpRange": "10.64.49.0/24",
    }
    assert (address.inputs["address"], address.inputs["prefixLength"]) == ("10.64.49.0", 24)
    assert seen.is_before(wait, pool) and seen.is_before(connection, wait) and seen.is_before(address, connection)
    assert connection.inputs["deletionPolicy"] == "REMOVE_PEERING"
    # Longer than the provider's own 20 minutes: a deleted pool keeps its place in the peered network for a while.
    assert all(20 < int(r.timeouts["delete"].removesuffix("m")) <= 60 for r in (pool, connection, address))


def test_the_builder_may_push_to_one_repository_read_two_and_use_its_bucket_and_nothing_in_the_project(
    deploy: Deploy,
) -> None:
    seen = _deployed(deploy, None)
    grants = [r for r in seen if "Iam" in r.type or "IAM" in r.type]
    builder = "serviceAccount:oasis-image-builder@project-a.iam.gserviceaccount.com"
    assert {grant.inputs["member"] for grant in grants} == {builder}
    assert {(g.inputs.get("repository") or g.inputs["bucket"], g.inputs["role"]) for g in grants} == {
        ("oasis-docker", "roles/artifactregistry.writer"),
        ("oasis-docker-virtual", "roles/artifactregistry.reader"),
        ("oasis-python-virtual", "roles/artifactregistry.reader"),
        ("project-a-oasis-build", "roles/storage.objectUser"),
        ("project-a-oasis-build", "roles/storage.bucketViewer"),
    }


def test_sources_are_private_and_go_with_the_stack(deploy: Deploy) -> None:
    bucket = _deployed(deploy, None).only("gcp:storage/bucket:Bucket").inputs
    assert (bucket["publicAccessPrevention"], bucket["forceDestroy"]) == ("enforced", True)
    # A failed build can be looked at a week later, and nothing is paid for a quarter after it.
    (rule,) = bucket["lifecycleRules"]
    assert rule["action"] == {"type": "Delete"} and set(rule["condition"]) == {"age"}
    assert 7 <= rule["condition"]["age"] <= 90
