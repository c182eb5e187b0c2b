"""Nodes that Ray's own autoscaler adds and removes: processes of this machine, and none at all while a file says so.

Of Ray's wheel only the class below is used, as the configuration that goes with it is not in the wheel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID, FakeMultiNodeProvider
from ray.autoscaler.tags import NODE_KIND_WORKER, TAG_RAY_NODE_KIND

from oasis_stack.pod_specs.ray_cluster_spec import AUTOSCALER_ENVIRONMENT

VARIABLES = AUTOSCALER_ENVIRONMENT | {
    "RAY_AUTOSCALER_PENDING_NODE_IDLE_TIMEOUT_S": "5",
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
}
"""Environment of the head."""

HEAD_TYPE = "ray.head.default"


class Booting:
    """A node on which Ray is not up yet."""

    def kill_all_processes(self, **_: object) -> None:
        """End it; there is nothing that runs."""


class Provider(FakeMultiNodeProvider):
    """Starts a node for each that is asked of it, unless there is a stock-out; while a file says so, one that is long
    in coming."""

    def create_node_with_resources_and_labels(
        self, node_config: Any, tags: Any, count: int, resources: Any, labels: Any
    ) -> None:
        """As a cloud does: nodes, or the error that it has none.

        Raises:
            RuntimeError: there is a stock-out.
        """
        if Path(self.provider_config["stock_out"]).exists():
            raise RuntimeError("ZONE_RESOURCE_POOL_EXHAUSTED")
        if Path(self.provider_config["slow"]).exists():
            for _ in range(count):
                booting = {"tags": {**tags, TAG_RAY_NODE_KIND: NODE_KIND_WORKER}, "node": Booting()}
                self._nodes[self._next_hex_node_id()] = booting
            return
        super().create_node_with_resources_and_labels(node_config, tags, count, resources, labels)


def configuration(gcs: str, most: int, stock_out: Path, slow: Path) -> dict[str, Any]:
    """What `ray start --autoscaling-config` reads.

    Args:
        gcs: address of the head.
        most: nodes of one CPU that there can be.
        stock_out: while this file exists, there are none.
        slow: while this file exists, those that are asked for do not come up.
    """
    commands = ("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands")
    starts = ("head_start_ray_commands", "worker_start_ray_commands")
    return {
        **{name: [] for name in (*commands, *starts)},  # for machines that are reached by ssh; Ray wants them all
        "auth": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "cluster_name": "autoscaled",
        "max_workers": most,
        "idle_timeout_minutes": 0.1,
        "provider": {
            "type": "external",
            "module": f"{__name__}.{Provider.__name__}",
            "launch_multiple": True,
            "head_node_id": FAKE_HEAD_NODE_ID,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "gcs_address": gcs,
            "stock_out": str(stock_out),
            "slow": str(slow),
        },
        "head_node_type": HEAD_TYPE,
        "available_node_types": {
            HEAD_TYPE: {"resources": {}, "node_config": {}, "max_workers": 0},
            "cpu": {
                "resources": {"CPU": 1, "object_store_memory": 80_000_000},
                "node_config": {},
                "min_workers": 0,
                "max_workers": most,
            },
        },
    }
