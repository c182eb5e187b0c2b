"""What GKE writes into pools and clusters by itself, so that a refresh finds there what nobody asked for.

Counts and labels of a pool: hashicorp/terraform-provider-google 2026-08-21, container_node_pool.html.markdown (what it
says of `initial_node_count` and a resized pool), and `node_shapes`. A cluster's `nodeConfig` and `initialNodeCount`
are those of its first pool (GKE API, Cluster: "populated with the node configuration of the first node pool").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from emulator.gke.node_shapes import Pool, effective_taints, pool_labels
from emulator.google.cloud import Cloud
from emulator.google.errors import NotFoundError

POOL_KIND, CLUSTER_KIND = "container/nodePool", "container/cluster"

Body = dict[str, Any]


def record_pool(cloud: Cloud, pool: Pool, count: int) -> None:
    """Record a pool's number of nodes per zone, and the labels and taints that GKE adds to those asked for."""
    per_zone = -(-count // len(pool.zones))
    labels, taints = pool_labels(pool), effective_taints(pool)

    def change(body: Body) -> None:
        body["initialNodeCount"] = body["nodeCount"] = per_zone
        config = body.setdefault("nodeConfig", {})
        if config.get("flexStart"):
            # Whatever was asked for (terraform-google-modules/terraform-google-kubernetes-engine pull request 2352).
            body["upgradeSettings"] = {"strategy": "SHORT_LIVED"}
        config["effectiveTaints"] = taints
        config["labels"] = {**labels, **(config.get("labels") or {})}

    _write(cloud, POOL_KIND, pool.identity, pool.body, change)


def record_clusters(cloud: Cloud, pools: Iterable[Pool]) -> None:
    """Of a cluster whose own first pool was removed, the nodes of the pool that is first now."""
    first = {pool.cluster: pool for pool in sorted(pools, key=lambda pool: pool.name, reverse=True)}
    for found in cloud.list(CLUSTER_KIND):
        pool = first.get(found.name)
        if pool is None or not found.body.get("removeDefaultNodePool"):
            continue
        config = dict(pool.config)

        def change(body: Body, config: Body = config) -> None:
            body |= {"initialNodeCount": 0, "nodeConfig": config}

        _write(cloud, CLUSTER_KIND, found.name, found.body, change)


def _write(cloud: Cloud, kind: str, name: str, now: Mapping[str, Any], change: Callable[[Body], None]) -> None:
    """Make a change that is one."""
    changed = {**now, "nodeConfig": dict(now.get("nodeConfig") or {})}
    change(changed)
    if changed == now:
        return
    try:
        cloud.update(kind, name, change)
    except NotFoundError:
        return  # deleted meanwhile
