"""Settings of the networks, the cluster and the GPU nodes, with their defaults and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from oasis_stack.facts import names
from oasis_stack.facts.capacity_rules import CapacityEntry
from oasis_stack.facts.machine import GENERAL_PURPOSE, MACHINES, Machine, PoolSize
from oasis_stack.settings.reader import Between, ItemDefaults, Matching, Sized

Label = Annotated[str, Matching(names.DNS_LABEL_PATTERN, "1 to 63 of a-z, 0-9 and -, no - at either end")]
Block = Annotated[str, Matching(r"[0-9.]+/[0-9]+", "a private IPv4 network such as 10.64.0.0/16")]
Time = Annotated[str, Matching(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "a UTC time, as 2027-01-31T00:00:00Z")]
NodeMachine = Annotated[str, Sized(GENERAL_PURPOSE)]


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The three blocks that every range is cut from. Changing one of an existing stack replaces its cluster."""

    primary_block: Block = "10.64.0.0/16"
    """Nodes, Services, load balancer proxies, build workers, control plane."""
    pods_block: Block = "10.96.0.0/14"
    """Pods: a /24 per node."""
    device_block: Block = "10.128.0.0/15"
    """Second gVNIC and the RDMA NICs of the GPU nodes, a sixteenth each."""
    proxy_only: bool = False
    """Whether the VPC gets a proxy-only subnet, which an Ingress of class `gce-internal` of your own would need."""


@dataclass(frozen=True, kw_only=True)
class AuthorizedNetwork:
    """A network from which the IP endpoint of the control plane answers."""

    name: Annotated[str, Matching(r"[^\x00-\x1f]{1,50}", "text of 1 to 50 characters")]
    """What the network is, for people."""
    cidr: Annotated[str, Matching(r"[0-9a-fA-F.:]+/[0-9]+", "a network such as 203.0.113.0/24")]
    """Its addresses as seen from the internet."""


@dataclass(frozen=True, kw_only=True)
class MaintenanceExclusion:
    """A time in which GKE upgrades neither minor versions nor nodes. Fixed, so that an `up` never moves it."""

    start: Time
    """First moment."""
    end: Time | None = None
    """Last moment, at most 180 days after the first; one that has passed protects nothing. Without it the exclusion
    lasts until the support of the cluster's version ends."""

    @property
    def period(self) -> tuple[str, str | None]:
        """Both moments."""
        return self.start, self.end


@dataclass(frozen=True, kw_only=True)
class SystemPool(PoolSize):
    """Nodes that are always on: GKE's own pods, KubeRay, the Ray head."""

    machine_type: NodeMachine = "e2-standard-8"
    """Must hold the Ray head beside about 1 vCPU and 2 GiB of system pods."""
    min_nodes: Annotated[int, Between(1, 100)] = 1
    """Paid for around the clock."""
    max_nodes: Annotated[int, Between(1, 100)] = 3
    """Limit of the autoscaler."""


@dataclass(frozen=True, kw_only=True)
class CpuPool(PoolSize):
    """Nodes of Ray's CPU workers; none while nothing needs them."""

    machine_type: NodeMachine = "e2-standard-8"
    """One CPU worker takes one node."""
    min_nodes: Annotated[int, Between(0, 100)] = 0
    """Nodes that are kept ready, and paid for, whether anything runs or not."""
    max_nodes: Annotated[int, Between(0, 1000)] = 4
    """Limit of the autoscaler; 0 builds no such pool, and then `ray.cpu_workers_max` must be 0."""


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """The GKE cluster."""

    release_channel: Literal["RAPID", "REGULAR", "STABLE", "EXTENDED"] = "REGULAR"
    """How early GKE upgrades the control plane."""
    minimum_version: Annotated[
        str, Matching(r"1\.\d+(\.\d+(-gke\.\d+)?)?", 'a GKE version in quotes, such as "1.35"')
    ] = "1.35"
    """Lowest control plane version. Below 1.34 the latest GPU driver is too old for a CUDA 13 image; the
    admission policies of the Ray namespace need 1.33."""
    endpoint: Literal["dns", "ip"] = "dns"
    """How the control plane is reached: `dns` by a Google name and IAM alone; `ip` from authorised networks alone."""
    authorized_networks: tuple[AuthorizedNetwork, ...] = ()
    """With endpoint `ip`: who may connect. Never the whole internet."""
    maintenance_exclusion: MaintenanceExclusion | None = None
    """Without it, an upgrade may drain a node under a training run."""
    system_pool: SystemPool = field(default_factory=SystemPool)
    cpu_pool: CpuPool = field(default_factory=CpuPool)
    deletion_protection: bool = False
    """Whether Pulumi refuses to delete the cluster; a destroy deletes nothing until this is false and applied."""
    secrets_encryption_key: (
        Annotated[
            str,
            Matching(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+", "a Cloud KMS key's full name"),
        ]
        | None
    ) = None
    """Cloud KMS key, in the stack's region, that encrypts Kubernetes Secrets in the control plane's store, beyond
    Google's own encryption."""


@dataclass(frozen=True, kw_only=True)
class GpuSettings:
    """GPU nodes and the ways to get them."""

    machine_type: Annotated[str, Matching("|".join(map(str, MACHINES)), f"one of {', '.join(MACHINES)}")] = (
        "a3-ultragpu-8g"
    )
    """What a GPU node is; `machine.py` has the facts of each."""
    capacity: Annotated[
        tuple[CapacityEntry, ...],
        ItemDefaults({"max_run_duration_hours": None, "reservation": None, "compact_placement": False}),
    ]
    """The ladder, tried from the top. Each entry is a pool of its own that rests at 0 nodes."""
    consolidation_delay_minutes: Annotated[int, Between(1, 1440)] = 15
    """How long an empty GPU node stays: too short gives scarce capacity back between jobs, too long pays for none."""
    driver_version: Literal["LATEST", "DEFAULT"] = "LATEST"
    """NVIDIA driver that GKE installs with a node: the newest of the node's GKE version, or the one that Google
    recommends for it, which moves less. torch with CUDA 13 needs R580 or newer, and no public source says that DEFAULT
    is that new: compare with `python -m workloads doctor` on a node."""
    compute_class: Label = ""
    """ComputeClass that GPU pods select. Default: the GPU's short name, as `h200` or `l4`."""

    @property
    def machine(self) -> Machine:
        """Facts about `machine_type`."""
        return MACHINES[self.machine_type]

    @property
    def has_spot(self) -> bool:
        """Whether a rung is Spot, where a pod has 15 seconds to leave."""
        return any(entry.mode == "spot" for entry in self.capacity)

    @property
    def max_run_seconds(self) -> int | None:
        """Life of the flex-start rung's nodes; None where no rung has an end."""
        hours = [entry.max_run_duration_hours for entry in self.capacity if entry.max_run_duration_hours]
        return min(hours) * 3600 if hours else None

    @property
    def max_nodes(self) -> int:
        """Sum of `gpu.capacity[].max_nodes`: derived, not a key of the stack file."""
        return sum(entry.max_nodes for entry in self.capacity)
