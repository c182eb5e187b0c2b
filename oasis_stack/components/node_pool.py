"""GPU nodes in one provisioning mode: a pool that rests at zero nodes and grows when a pod selects its compute class. A
queued pool grows when all nodes that a job asked for are available together.

Replaced when changed: networks, GPUs, local SSDs, mode, run duration, reservation, placement, node account
(hashicorp/terraform-provider-google 2026-08-21, resource_container_node_pool.go and node_config.go, ForceNew); machine
type, boot disk, limits, labels and taints in place. A pool at rest loses no node either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_gcp as gcp

from oasis_stack.components.node_config import POOL_IGNORES, AdditionalNetwork, node_config
from oasis_stack.facts.capacity_rules import CapacityEntry, PoolRules, pool_rules
from oasis_stack.facts.machine import Machine
from oasis_stack.facts.site import Site

TIMEOUTS = pulumi.CustomTimeouts(create="30m", update="60m", delete="60m")
"""A deletion first drains the nodes, for up to an hour."""

COMPUTE_CLASS_KEY = "cloud.google.com/compute-class"
"""Label and taint by which a pool joins a class (Google Cloud documentation, "About custom compute classes")."""

UPGRADES: gcp.container.NodePoolUpgradeSettingsArgsDict = {"strategy": "SURGE", "max_surge": 0, "max_unavailable": 1}
"""One node at a time, without a surge node: there is no spare capacity for one."""

RESERVATION_KEY = "compute.googleapis.com/reservation-name"


@dataclass(frozen=True, kw_only=True)
class GpuNodePoolArgs:
    """Arguments of a GPU pool."""

    site: Site
    """Where the stack stands."""
    cluster_name: pulumi.Input[str]
    """GKE cluster."""
    machine: Machine
    """Hardware of a node."""
    entry: CapacityEntry
    """Provisioning mode and number of nodes; `capacity_rules.problems` must have found nothing wrong with it."""
    driver_version: str
    """NVIDIA driver that GKE installs, LATEST or DEFAULT; if it is too old for the image's CUDA, no job starts."""
    compute_class: str
    """Class that the pool belongs to, unless it is queued; pods that select another class never run here."""
    node_service_account: pulumi.Input[str]
    """Email of the account the nodes run as; its grants must exist before the first node."""
    nics: Sequence[AdditionalNetwork]
    """Networks of the further NICs in interface order: the gVNIC, then RDMA NIC 0, 1, ...; empty without RDMA NICs."""


class GpuNodePool(pulumi.ComponentResource):
    """Registers one GKE node pool."""

    APIS: ClassVar[tuple[str, ...]] = (
        "compute.googleapis.com",
        "container.googleapis.com",
        "containerfilesystem.googleapis.com",
    )

    pool_name: pulumi.Output[str]

    def __init__(self, name: str, args: GpuNodePoolArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:GpuNodePool", name, None, opts)
        rules = pool_rules(args.machine, args.entry)
        pool = gcp.container.NodePool(
            name,
            project=args.site.project,
            cluster=args.cluster_name,
            location=args.site.region,
            node_locations=[args.site.zone],
            # No node at `up`: if none is available the pool is left broken, and if one is, it is paid for.
            initial_node_count=0,
            autoscaling={
                "total_min_node_count": 0,
                "total_max_node_count": args.entry.max_nodes,
                "location_policy": rules.location_policy,
            },
            management={"auto_repair": rules.auto_repair, "auto_upgrade": rules.auto_upgrade},
            upgrade_settings=UPGRADES if rules.surge_upgrades else None,
            queued_provisioning={"enabled": True} if rules.queued else None,
            placement_policy=None if rules.placement_type is None else {"type": rules.placement_type},
            network_config=network_config(args.nics),
            node_config=gpu_node_config(args, rules),
            opts=pulumi.ResourceOptions(
                parent=self,
                custom_timeouts=TIMEOUTS,
                # A new class, in labels and taints, must replace the pool, because changes of labels are ignored.
                replace_on_changes=["nodeConfig.taints"],
                ignore_changes=[
                    *POOL_IGNORES,
                    # GKE adds its own; every update would try in vain to remove them (pulumi/pulumi-gcp issue 398),
                    # and the provider cannot ignore single keys (v9.35, tried).
                    "nodeConfig.labels",
                    *([] if rules.surge_upgrades else ["upgradeSettings"]),
                ],
            ),
        )
        self.pool_name = pool.name
        self.register_outputs({"pool_name": self.pool_name})


def gpu_node_config(args: GpuNodePoolArgs, rules: PoolRules) -> gcp.container.NodePoolNodeConfigArgsDict:
    """Settings of a GPU node. GKE adds the taint `nvidia.com/gpu`; a Spot taint would add nothing to the class's."""
    machine = args.machine
    config: gcp.container.NodePoolNodeConfigArgsDict = {
        **node_config(args.node_service_account, args.site.labels, machine.boot_disk_type),
        "machine_type": machine.name,
        "ephemeral_storage_local_ssd_config": {"local_ssd_count": machine.local_ssds},
        "guest_accelerators": [
            {
                "type": machine.accelerator,
                "count": machine.gpus,
                # GKE installs it with the node, so that no driver DaemonSet races the first pod.
                "gpu_driver_installation_config": {"gpu_driver_version": args.driver_version},
            }
        ],
        "spot": rules.spot,
        "reservation_affinity": reservation_affinity(rules, args.site.project),
    }
    # A queued pool is in no class, which would grow it pod by pod; GKE taints it `cloud.google.com/gke-queued`.
    if not rules.queued:
        # The label lets the class find the pool; the taint keeps away pods that did not ask for a GPU.
        config["labels"] = {COMPUTE_CLASS_KEY: args.compute_class}
        config["taints"] = [{"key": COMPUTE_CLASS_KEY, "value": args.compute_class, "effect": "NO_SCHEDULE"}]
    if rules.flex_start:
        config["flex_start"] = True
    if rules.max_run_duration is not None:
        config["max_run_duration"] = rules.max_run_duration
    return config


def network_config(nics: Sequence[AdditionalNetwork]) -> gcp.container.NodePoolNetworkConfigArgsDict:
    """Private nodes, and their further NICs in the given order, which numbers the interfaces."""
    config: gcp.container.NodePoolNetworkConfigArgsDict = {"enable_private_nodes": True}
    if nics:
        config["additional_node_network_configs"] = [
            {"network": nic.network, "subnetwork": nic.subnetwork} for nic in nics
        ]
    return config


def reservation_affinity(rules: PoolRules, project: str) -> gcp.container.NodePoolNodeConfigReservationAffinityArgsDict:
    """The reservation that the nodes consume: the named one, or explicitly none, as flex-start requires. GKE was seen
    to find a block only by its whole path (GoogleCloudPlatform/cluster-toolkit pull requests 5043 and 5452)."""
    name = rules.reservation
    if name is None:
        return {"consume_reservation_type": rules.consume_reservation_type}
    if "/" in name and not name.startswith("projects/"):
        name = f"projects/{project}/reservations/{name}"
    return {"consume_reservation_type": rules.consume_reservation_type, "key": RESERVATION_KEY, "values": [name]}
