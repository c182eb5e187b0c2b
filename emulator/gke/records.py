"""What GKE writes into pools by itself, so that a refresh finds values that nobody asked for.

Counts and labels of a pool: hashicorp/terraform-provider-google 2026-08-21, container_node_pool.html.markdown (on
`initial_node_count` and a resized pool), and `node_shapes`. Empty parts that nobody asked for:
terraform-google-modules/terraform-google-kubernetes-engine issues 2304 and 2465, which saw them in some pools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.gke.node_shapes import Pool, api_taints, pool_labels
from emulator.google.apis.kubernetes_engine import instance_groups
from emulator.google.cloud import Cloud
from emulator.google.errors import NotFoundError

POOL_KIND = "container/nodePool"

Body = dict[str, Any]

_EMPTY: Body = {"advancedMachineFeatures": {}, "ephemeralStorageLocalSsdConfig": {}}


def record_pool(cloud: Cloud, pool: Pool, counts: Mapping[str, int]) -> None:
    """Record a pool's number of nodes by zone, and the labels and taints that GKE adds to those asked for."""
    labels, taints = pool_labels(pool), api_taints(pool)
    sizes = {zone: counts.get(zone, 0) for zone in pool.zones}

    def change(body: Body) -> None:
        if pool.scales:  # the number of any other pool is its user's
            body["initialNodeCount"] = -(-sum(sizes.values()) // len(sizes))
        config = body["config"]
        body["config"] = {**_EMPTY, **config, "labels": {**labels, **config.get("labels", {})}, "taints": taints}
        body.setdefault("queuedProvisioning", {})

    changed = {**pool.body}
    change(changed)
    try:
        if changed != pool.body:
            cloud.update(POOL_KIND, pool.identity, change)
        if sizes != instance_groups.sizes(cloud, pool.identity):
            instance_groups.settle(cloud, pool.identity, sizes)
    except NotFoundError:
        return  # deleted meanwhile
