"""The place where images are built."""

from oasis_stack.command_line.offline import Deployment

POOL = "gcp:cloudbuild/workerPool:WorkerPool"
CONNECTION, WAIT = "gcp:servicenetworking/connection:Connection", "pulumi-python:dynamic/wait:ConnectionFree"


def test_by_default_the_pool_stands_outside_the_vpc_and_nothing_is_peered(full: Deployment) -> None:
    assert "networkConfig" not in full.only(POOL).inputs
    assert full.only(POOL).inputs["workerConfig"]["noExternalIp"] is False
    assert full.only(POOL).delete_before_replace  # there may be no quota for two
    assert not [r for r in full if "servicenetworking" in r.type or "globalAddress" in r.type or r.type == WAIT]


def test_a_peered_pool_has_the_range_of_its_connection_and_its_parts_have_time_to_go(other: Deployment) -> None:
    pool, connection = other.only(POOL), other.only(CONNECTION)
    address = other.only("gcp:compute/globalAddress:GlobalAddress")
    assert pool.inputs["networkConfig"] == {
        "peeredNetwork": "projects/123456789012/global/networks/network-1a2b3c4",
        "peeredNetworkIpRange": "10.48.82.0/24",
    }
    assert (address.inputs["address"], address.inputs["prefixLength"]) == ("10.48.82.0", 24)
    assert connection.inputs["deletionPolicy"] == "REMOVE_PEERING"
    # Longer than the provider's own 20 minutes: a deleted pool keeps its place in the peered network for a while.
    assert all(20 < int(r.timeouts["delete"].removesuffix("m")) <= 60 for r in (pool, connection, address))


def test_sources_are_private_and_go_with_the_stack(full: Deployment) -> None:
    bucket = full.get("gcp:storage/bucket:Bucket", "build-source").inputs
    assert (bucket["publicAccessPrevention"], bucket["forceDestroy"]) == ("enforced", True)
    # A failed build can be looked at a week later, and nothing is paid for a quarter after it.
    (rule,) = bucket["lifecycleRules"]
    assert rule["action"] == {"type": "Delete"} and set(rule["condition"]) == {"age"}
    assert 7 <= rule["condition"]["age"] <= 90
