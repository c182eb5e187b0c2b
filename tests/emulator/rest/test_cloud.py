"""The emulated cloud: what exists, what holds what, and many writers at once."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from emulator.google.cloud import Cloud, Use
from emulator.google.errors import InUseError, NotFoundError

NETWORK = "projects/p/global/networks/n"
SUBNET = "projects/p/regions/r/subnetworks/s"


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)


def _with_subnet(cloud: Cloud) -> None:
    cloud.create("compute/network", NETWORK, {"mtu": 1460})
    cloud.create("compute/subnetwork", SUBNET, {}, [Use(kind="compute/network", name=NETWORK)])


def test_an_object_is_made_only_with_what_it_needs(cloud: Cloud) -> None:
    with pytest.raises(NotFoundError, match="networks/n"):
        cloud.create("compute/subnetwork", SUBNET, {}, [Use(kind="compute/network", name=NETWORK)])
    assert cloud.list() == []


def test_parts_go_with_the_whole_unless_something_else_uses_a_part(cloud: Cloud) -> None:
    cloud.create("compute/router", "r", {})
    cloud.create("compute/routerNat", "n", {}, [Use(kind="compute/router", name="r", relation="part-of")])
    within = [Use(kind="compute/router", name="r", relation="part-of"), Use(kind="compute/routerNat", name="n")]
    cloud.create("compute/routerNat", "m", {}, within)
    cloud.create("compute/address", "a", {}, [Use(kind="compute/routerNat", name="n")])
    with pytest.raises(InUseError):
        cloud.delete("compute/router", "r")
    cloud.delete("compute/address", "a")
    cloud.delete("compute/router", "r")
    assert cloud.list() == []


def test_a_transaction_that_fails_leaves_nothing(cloud: Cloud) -> None:
    with pytest.raises(ZeroDivisionError), cloud.transaction():
        _with_subnet(cloud)
        cloud.update("compute/network", NETWORK, lambda body: body.update(mtu=1 // 0))
    assert cloud.list() == []


def test_an_object_that_is_made_anew_while_it_ends_does_not_end(cloud: Cloud) -> None:
    _with_subnet(cloud)
    cloud.expire("compute/network", NETWORK, 60)
    cloud.put("compute/network", NETWORK, {"mtu": 8896})
    cloud.turn(61)
    assert cloud.get("compute/network", NETWORK).body == {"mtu": 8896}


def test_what_is_kept_is_listed_apart_with_its_grants(cloud: Cloud) -> None:
    _with_subnet(cloud)
    cloud.create("storage/bucket", "data", {})
    part = Use(kind="storage/bucket", name="data", relation="part-of")
    cloud.create("iam/policy", "//storage/data", {}, [part])
    cloud.put("resourcemanager/project", "projects/p", {})
    found = cloud.inventory()
    assert {one.name for one in found.kept} == {"data", "//storage/data"}
    assert {one.name for one in found.other} == {NETWORK, SUBNET}


def test_a_prefix_is_taken_literally(cloud: Cloud) -> None:
    for name in ("a_b/1", "axb/1", "a%b/1", "A_b/1"):
        cloud.create("secretmanager/version", name, {})
    assert [one.name for one in cloud.list("secretmanager/version", "a_b/")] == ["a_b/1"]


def _count_to(directory: Path, times: int) -> None:
    cloud = Cloud(directory)
    for _ in range(times):
        cloud.update("container/nodePool", "pool", lambda body: body.update(nodeCount=body["nodeCount"] + 1))


def test_writers_in_several_processes_lose_no_change(cloud: Cloud) -> None:
    cloud.create("container/nodePool", "pool", {"nodeCount": 0})
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_count_to, args=(cloud.directory, 40)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert cloud.get("container/nodePool", "pool").body["nodeCount"] == 120
