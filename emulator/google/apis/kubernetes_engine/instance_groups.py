"""Managed instance groups of node pools: one per pool and zone. The sizes of its groups are a pool's node counts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from emulator.google.cloud import Cloud, CloudObject, Use
from emulator.google.collection import Body, Call, Collection, last

COMPUTE_URL = "https://www.googleapis.com/compute/v1/"

KIND = "compute/instanceGroupManager"


class InstanceGroupManagers(Collection):
    """`projects/p/zones/z/instanceGroupManagers/g`."""

    kind = KIND

    def do_list(self, call: Call) -> Body:
        return {"kind": "compute#instanceGroupManagerList", **super().do_list(call)}


def base_name(pool: str, zone: str) -> str:
    """Prefix of the names of a pool's group and machines in a zone; `pool` is the pool's name path."""
    digest = hashlib.sha256(f"{pool}{zone}".encode()).hexdigest()[:8]
    return f"gke-{pool.split('/')[5]}-{last(pool)}"[:44].rstrip("-") + f"-{digest}"


def of_pool(cloud: Cloud, pool: str) -> list[CloudObject]:
    """A pool's groups."""
    users = cloud.users("container/nodePool", pool, "part-of")
    return [cloud.get(kind, name) for kind, name in users if kind == KIND]


def settle(cloud: Cloud, pool: str, sizes: Mapping[str, int]) -> None:
    """Make groups of these sizes, by zone, and delete all others."""
    zones = f"projects/{pool.split('/')[1]}/zones"
    names = {f"{zones}/{zone}/instanceGroupManagers/{base_name(pool, zone)}-grp": zone for zone in sizes}
    for found in of_pool(cloud, pool):
        if found.name not in names:
            cloud.delete(KIND, found.name)
    for name, zone in names.items():
        link = COMPUTE_URL + name
        body = {
            "kind": "compute#instanceGroupManager",
            "name": last(name),
            "zone": f"{COMPUTE_URL}{zones}/{zone}",
            "baseInstanceName": base_name(pool, zone),
            "instanceGroup": link.replace("/instanceGroupManagers/", "/instanceGroups/"),
            "targetSize": sizes[zone],
            "selfLink": link,
        }
        cloud.put(KIND, name, body, [Use(kind="container/nodePool", name=pool, relation="part-of")])


def sizes(cloud: Cloud, pool: str) -> dict[str, int]:
    """How many nodes a pool has, by zone."""
    return {last(found.body["zone"]): found.body["targetSize"] for found in of_pool(cloud, pool)}
