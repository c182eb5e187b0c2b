"""Every setting of a stack, its default and its limits. Defaults live only here.

`Settings`, at the end, is a whole stack; its sections are above it, in the same order. `settings` reads them, and
`rules` checks what several of them must satisfy together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pulumi

from oasis_stack.facts import address_plan, names, pod_size
from oasis_stack.facts.address_plan import AddressPlan
from oasis_stack.facts.capacity_rules import CapacityEntry
from oasis_stack.facts.machine import BUILD_MACHINES, GENERAL_PURPOSE, MACHINES, Machine, PoolSize, general_purpose
from oasis_stack.facts.pod_size import PodSize
from oasis_stack.facts.queue_share import QueueShare
from oasis_stack.facts.retention import BucketRetention, RepositoryRetention, Retention
from oasis_stack.facts.site import Site


@dataclass(frozen=True)
class Between:
    """A whole number within bounds, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def accepts(self, value: object) -> bool:
        return isinstance(value, int) and self.low <= value <= self.high


@dataclass(frozen=True)
class Matching:
    """Text of a given form."""

    pattern: str | re.Pattern[str]
    meaning: str
    """The form in words, with an example."""

    def __str__(self) -> str:
        return self.meaning

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None


@dataclass(frozen=True)
class Sized:
    """A name that ends in a size: `e2-standard-8` belongs to the family `e2-standard`."""

    families: Mapping[str, Sequence[int]]
    """The sizes of each family."""

    def __str__(self) -> str:
        return f"a machine type of {', '.join(self.families)}: {', '.join(self._names(next(iter(self.families))))} ..."

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and value in self._names(value.rpartition("-")[0])

    def allowed(self, value: object) -> str:
        """The names in the value's own family; all families if it belongs to none."""
        names = self._names(str(value).rpartition("-")[0])
        return f"one of {', '.join(names)}" if names else str(self)

    def _names(self, family: str) -> list[str]:
        return [f"{family}-{size}" for size in self.families.get(family, ())]


@dataclass(frozen=True)
class ItemDefaults:
    """Defaults for the fields of list items whose class has no defaults of its own."""

    values: Mapping[str, object]


_Label = Annotated[str, Matching(names.DNS_LABEL_PATTERN, "1 to 63 of a-z, 0-9 and -, no - at either end")]
_Block = Annotated[str, Matching(r"[0-9.]+/[0-9]+", "a private IPv4 network such as 10.64.0.0/16")]
_Time = Annotated[str, Matching(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "a UTC time, as 2027-01-31T00:00:00Z")]
_NodeMachine = Annotated[str, Sized(GENERAL_PURPOSE)]
_NAME = "1 to 16 of a-z, 0-9 and -, a letter first, no - at the end, not beginning with goog nor containing google"


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The three blocks that every range is cut from. Changing a block of an existing stack replaces its cluster."""

    primary_block: _Block = "10.64.0.0/16"
    """Nodes, Services, load balancer proxies, build workers, control plane."""
    pods_block: _Block = "10.96.0.0/14"
    """Pods: a /24 per node."""
    device_block: _Block = "10.128.0.0/15"
    """Second gVNIC and the RDMA NICs of the GPU nodes, one sixteenth each."""
    proxy_only: bool = False
    """Whether the VPC gets a proxy-only subnet; an Ingress of class `gce-internal` of your own would need one."""


@dataclass(frozen=True, kw_only=True)
class AuthorizedNetwork:
    """A network that may reach the IP endpoint of the control plane."""

    name: Annotated[str, Matching(r"[^\x00-\x1f]{1,50}", "text of 1 to 50 characters")]
    """Description of the network, for people."""
    cidr: Annotated[str, Matching(r"[0-9a-fA-F.:]+/[0-9]+", "a network such as 203.0.113.0/24")]
    """Its addresses as seen from the internet."""


@dataclass(frozen=True, kw_only=True)
class MaintenanceExclusion:
    """A period in which GKE upgrades neither minor versions nor nodes. Its dates are fixed: an `up` never moves it."""

    start: _Time
    """First moment."""
    end: _Time | None = None
    """Last moment, at most 180 days after the first; once it has passed, nothing is protected. Without it the exclusion
    lasts until support for the cluster's version ends."""

    @property
    def period(self) -> tuple[str, str | None]:
        """Both moments."""
        return self.start, self.end


@dataclass(frozen=True, kw_only=True)
class SystemPool(PoolSize):
    """Nodes that are always on: GKE's own pods, KubeRay, the Ray head."""

    machine_type: _NodeMachine = "e2-standard-8"
    """Must hold the Ray head beside about 1 vCPU and 2 GiB of system pods."""
    min_nodes: Annotated[int, Between(1, 100)] = 1
    """Paid for around the clock."""
    max_nodes: Annotated[int, Between(1, 100)] = 3
    """Limit of the autoscaler."""


@dataclass(frozen=True, kw_only=True)
class CpuPool(PoolSize):
    """Nodes of Ray's CPU workers; none while nothing needs them."""

    machine_type: _NodeMachine = "e2-standard-8"
    """One CPU worker takes one node."""
    min_nodes: Annotated[int, Between(0, 100)] = 0
    """Nodes that are kept ready, and paid for, whether or not anything runs."""
    max_nodes: Annotated[int, Between(0, 1000)] = 4
    """Limit of the autoscaler; with 0 the pool is not made, and `ray.cpu_workers_max` must be 0 as well."""


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
    """How to reach the control plane: `dns`, only by a Google name and IAM; `ip`, only from authorised networks."""
    authorized_networks: tuple[AuthorizedNetwork, ...] = ()
    """With endpoint `ip`: the networks that may connect. Never the whole internet."""
    maintenance_exclusion: MaintenanceExclusion | None = None
    """Without an exclusion, an upgrade may drain a node during a training run."""
    system_pool: SystemPool = field(default_factory=SystemPool)
    cpu_pool: CpuPool = field(default_factory=CpuPool)
    deletion_protection: bool = False
    """Whether Pulumi refuses to delete the cluster; a destroy deletes nothing until false is set here and applied."""
    secrets_encryption_key: (
        Annotated[
            str,
            Matching(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+", "a Cloud KMS key's full name"),
        ]
        | None
    ) = None
    """Cloud KMS key, in the stack's region, that encrypts Kubernetes Secrets in the control plane's store, beyond
    Google's own encryption."""
    security_group: (
        Annotated[
            str,
            Matching(r"gke-security-groups@[^@\s:]+", "gke-security-groups@ and a domain: GKE takes no other name"),
        ]
        | None
    ) = None
    """Google group whose member groups Kubernetes recognises; without it a team's `group:` members have no access. Once
    set, it can be changed but not removed."""


@dataclass(frozen=True, kw_only=True)
class GpuSettings:
    """GPU nodes and the ways to get them."""

    machine_type: Annotated[str, Matching("|".join(map(str, MACHINES)), f"one of {', '.join(MACHINES)}")] = (
        "a3-ultragpu-8g"
    )
    """Machine type of a GPU node; `machine.py` has the facts of each type."""
    capacity: Annotated[
        tuple[CapacityEntry, ...],
        ItemDefaults({"max_run_duration_hours": None, "reservation": None, "compact_placement": False}),
    ]
    """The ladder, tried from the top. Each entry is a node pool of its own that rests at 0 nodes. A queued entry is
    separate from the others: it serves only the jobs of the queue."""
    consolidation_delay_minutes: Annotated[int, Between(1, 1440)] = 15
    """How long an empty GPU node stays: too short gives up scarce capacity between jobs, too long costs idle time."""
    driver_version: Literal["LATEST", "DEFAULT"] = "LATEST"
    """NVIDIA driver that GKE installs on a node: the newest for the node's GKE version, or the one that Google
    recommends for it, which changes less often. torch with CUDA 13 needs R580 or newer, and no public source says that
    DEFAULT is that new: compare with `python -m workloads doctor` on a node."""
    compute_class: Annotated[
        str,
        Matching(
            names.COMPUTE_CLASS_PATTERN,
            "1 to 63 of a-z, 0-9 and -, no - at either end, not beginning with gke or autopilot",
        ),
    ] = ""
    """ComputeClass that GPU pods select. Default: the GPU's short name, such as `h200` or `l4`."""
    queue_chart: Annotated[
        str, Matching(r"(oci|https?)://\S+", "the address of a Helm chart, as oci://registry.k8s.io/kueue/charts/kueue")
    ] = "oci://registry.k8s.io/kueue/charts/kueue"
    """Source of Kueue's chart, which a queued entry needs: the project's own registry (kubernetes-sigs/kueue v0.19.2,
    charts/kueue/README.md), or a mirror of it."""

    @property
    def machine(self) -> Machine:
        """Facts about `machine_type`."""
        return MACHINES[self.machine_type]

    @property
    def has_spot(self) -> bool:
        """True if one rung is Spot, which gives a pod 15 seconds to stop."""
        return any(entry.mode == "spot" for entry in self.capacity)

    @property
    def class_entries(self) -> tuple[CapacityEntry, ...]:
        """Rungs of the ComputeClass, which scale up pod by pod: all but the queued one."""
        return tuple(entry for entry in self.capacity if entry.mode != "queued")

    @property
    def queue(self) -> CapacityEntry | None:
        """The rung whose nodes are provisioned per job; None without one."""
        return next((entry for entry in self.capacity if entry.mode == "queued"), None)

    @property
    def max_run_seconds(self) -> int | None:
        """Shortest lifetime of nodes on the flex-start rungs; None if no rung of the ComputeClass has a limit."""
        return min((entry.max_run_seconds for entry in self.class_entries if entry.max_run_seconds), default=None)

    @property
    def class_nodes(self) -> int:
        """Maximum number of nodes on all rungs of the ComputeClass together."""
        return sum(entry.max_nodes for entry in self.class_entries)

    @property
    def max_nodes(self) -> int:
        """Sum of `gpu.capacity[].max_nodes`: derived, not a key of the stack file."""
        return sum(entry.max_nodes for entry in self.capacity)


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """The Ray head pod. It runs no tasks, only Ray's own services and the drivers of jobs."""

    cpus: Annotated[int, Between(1, 127)] = 4
    """vCPUs."""
    memory_gb: Annotated[int, Between(4, 1023)] = 16
    """Memory in GiB; if the head runs out of it, all jobs of the cluster die with it."""

    @property
    def size(self) -> PodSize:
        """CPUs and memory together."""
        return PodSize(cpus=self.cpus, memory_gib=self.memory_gb)


@dataclass(frozen=True, kw_only=True)
class CpuWorkerSettings:
    """One pod of Ray's CPU worker group, on a node of `cluster.cpu_pool`."""

    cpus: Annotated[int, Between(1, 127)] = 6
    """vCPUs."""
    memory_gb: Annotated[int, Between(1, 1023)] = 24
    """Memory in GiB."""


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """The long-lived RayCluster."""

    namespace: Annotated[
        str,
        Matching(
            names.RAY_NAMESPACE_PATTERN,
            "1 to 63 of a-z, 0-9 and -, no - at either end; "
            f"not default, {names.KUBERAY_NAMESPACE}, {names.KUEUE_NAMESPACE}, kube-*, gke-* or gmp-*",
        ),
    ] = "ray"
    """Kubernetes namespace, made and deleted with the stack."""
    cluster_name: Annotated[
        str, Matching(names.RAY_CLUSTER_PATTERN, "1 to 53 of a-z, 0-9 and -, a letter first, no - at the end")
    ] = "oasis"
    """Name of the RayCluster object and of the Secret with its token."""
    version: Annotated[str, Matching(r"\d+\.\d+\.\d+", "a Ray version such as 2.60.0")] = "2.60.0"
    """Version of Ray in the image; if the two differ, KubeRay starts Ray with options that it does not know."""
    image: Annotated[
        str,
        Matching(
            r"[a-z0-9][a-z0-9._:/-]*(:\w[\w.-]{0,127}|(:\w[\w.-]{0,127})?@sha256:[0-9a-f]{64})",
            "an image with a tag or a digest; `make image` writes one",
        ),
    ] = ""
    """Container image of every Ray pod; without a registry's name it comes from Docker Hub, through the stack's mirror.
    Default: Ray's stock image of `version`, which runs code that needs only Ray."""
    operator_repository: Annotated[str, Matching(r"https?://\S+", "the address of a Helm repository")] = (
        "https://ray-project.github.io/kuberay-helm/"
    )
    """Source of the KubeRay operator's chart: the project's own repository (ray-project/kuberay,
    helm-chart/kuberay-operator/README.md), or a mirror of it."""
    idle_timeout_seconds: Annotated[int, Between(30, 86400)] = 600
    """How long an idle worker stays."""
    dashboard_access: Literal["port-forward", "internal-load-balancer"] = "port-forward"
    """How to reach the dashboard and the Jobs API; never from the internet."""
    dashboard_port: Annotated[int, Between(1024, 65535)] = 8265
    """Port of `ray_dashboard_url`: on this machine for a port-forward, else the load balancer's."""
    dashboard_client_ranges: tuple[_Block, ...] = ()
    """With an internal load balancer: the private networks that may use it."""
    cpu_workers_max: Annotated[int, Between(0, 1000)] = 4
    """Maximum number of CPU workers; with 0 there is no such group."""
    cpu_worker: CpuWorkerSettings = field(default_factory=CpuWorkerSettings)
    head: HeadSettings = field(default_factory=HeadSettings)

    @property
    def balanced(self) -> bool:
        """True if an internal load balancer serves the dashboard."""
        return self.dashboard_access == "internal-load-balancer"


@dataclass(frozen=True, kw_only=True)
class TeamSettings:
    """People who share the stack's queue with others, and nothing else."""

    name: Annotated[
        str,
        Matching(
            names.TEAM_PATTERN,
            "1 to 30 of a-z, 0-9 and -, a letter first, no - at the end; "
            f"not default, {names.KUBERAY_NAMESPACE}, {names.KUEUE_NAMESPACE}, kube-*, gke-* or gmp-*",
        ),
    ]
    """Also the Kubernetes namespace, made and deleted with the stack."""
    gpu_nodes: Annotated[int, Between(1, 1000)]
    """Nodes of the queue that the team owns: lent to others while it does not need them, taken back when it does."""
    max_gpu_nodes: Annotated[int, Between(1, 1000)] | None = None
    """Maximum number of nodes that the team may have at once, including borrowed ones. Default: all of the queue's."""
    priority: Annotated[int, Between(-1000, 1000)] = 0
    """Who borrows first, and from whom: a team that must borrow takes nodes that lower-priority teams have borrowed."""
    members: tuple[
        Annotated[
            str,
            Matching(
                r"(user|group|serviceAccount):[^@\s:]+@[^@\s:]+",
                "user:, group: or serviceAccount: and an address, as user:ann@example.com",
            ),
        ],
        ...,
    ] = ()
    """Google identities that may submit, see and stop the team's jobs, and use its folder of the runs bucket. GKE
    recognises only groups that are members of `cluster.security_group`."""


@dataclass(frozen=True, kw_only=True)
class BucketSettings(BucketRetention):
    """One bucket."""

    keep: bool = True
    """Whether `pulumi destroy` keeps the bucket. If false, everything in it is deleted with the stack."""
    adopt: bool = False
    """Set to true once, when an earlier stack kept the bucket: `up` takes it over instead of making one. Only with
    `keep`."""
    soft_delete_days: Annotated[int, Between(0, 90)] = 7
    """How long a deleted object can be restored, and is billed: 7 to 90 days, or 0 for not at all."""


@dataclass(frozen=True, kw_only=True)
class DockerHubSettings:
    """A Docker Hub login. Without one, Docker Hub refuses requests (429) from an address that has fetched enough, and
    many share an address."""

    username: Annotated[str, Matching(r"[a-z0-9]{4,30}", "a Docker ID, 4 to 30 of a-z and 0-9")]
    """Docker ID."""
    password_secret: Annotated[
        str,
        Matching(
            r"projects/[^/]+/secrets/[^/]+/versions/([0-9]+|latest)",
            "a secret version's full name, projects/<project>/secrets/<secret>/versions/<version>",
        ),
    ]
    """Version of a secret in Secret Manager, made beforehand, that holds an access token of Docker Hub."""


@dataclass(frozen=True, kw_only=True)
class RegistrySettings(RepositoryRetention):
    """The repositories of images and Python packages."""

    keep: bool = True
    """Whether `pulumi destroy` keeps the two local repositories. The others hold only copies and are always deleted."""
    adopt: bool = False
    """As for a bucket."""
    keep_untagged_days: Annotated[int, Between(1, 365)] = 7
    """Untagged images older than this are deleted. Images from `make image` keep their tags and go after 180 days."""
    keep_versions: Annotated[int, Between(1, 100)] = 5
    """How many of the newest versions of each image and package no policy deletes; the image in use is kept as well."""
    docker_hub: DockerHubSettings | None = None
    """Login for fetching public images; without one, Docker Hub's limits for anonymous users apply."""


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """A Cloud Build private worker pool for the image."""

    machine_type: Annotated[str, Sized(BUILD_MACHINES)] = "e2-highmem-8"
    """Machine that a build runs on; billed only while a build runs."""
    disk_gb: Annotated[int, Between(100, 4000)] = 200
    """Disk of a build in GB: base image, layers and cache together."""
    peered: bool = False
    """Whether builds run inside the primary VPC; that adds service networking, whose removal Google delays."""


@dataclass(frozen=True, kw_only=True)
class WandbSettings(Retention):
    """The secret that holds the Weights & Biases key. `make secret` gives it a value."""

    keep: bool = False
    """Whether `pulumi destroy` keeps the secret and its versions."""
    adopt: bool = False
    """As for a bucket."""


@dataclass(frozen=True, kw_only=True)
class CostSettings:
    """Limits on the stack's cost."""

    max_hourly_usd: Annotated[int, Between(1, 1_000_000)] | None = None
    """Maximum USD an hour, by list prices, that the stack may cost with every pool at its `max_nodes`: a stack that
    could cost more is neither previewed nor made. No limit by default."""
    billing_account: (
        Annotated[
            str,
            Matching(
                r"[0-9A-F]{6}(-[0-9A-F]{6}){2}", "a Cloud Billing account's ID, as 01AB23-4CD567-89EF01, in capitals"
            ),
        ]
        | None
    ) = None
    """Billing account of the project, in USD: it gets a budget that watches this project alone. No budget by default;
    allowed only with `monthly_usd`."""
    monthly_usd: Annotated[int, Between(1, 100_000_000)] | None = None
    """The budget's amount for a calendar month. Google emails the account's administrators and users when half of it,
    90 % and all of it is spent, and when all of it is forecast to be spent. The budget stops nothing."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A whole stack. All values are plain, except the one secret."""

    project: Annotated[
        str, Matching(names.PROJECT_PATTERN, "a project id: 6 to 30 of a-z, 0-9 and -, a letter first and no - last")
    ]
    """Google Cloud project id; in the stack file `gcp:project`, written by `make init`."""
    region: Annotated[str, Matching(r"[a-z]+-[a-z]+[0-9]+", "a region such as us-central1")]
    """Region of everything. Changing it replaces everything."""
    zone: Annotated[str, Matching(r"[a-z]+-[a-z]+[0-9]+-[a-z]", "a zone such as us-central1-b")]
    """Zone of all nodes; an RDMA VPC has exactly one."""
    name: Annotated[str, Matching(names.NAME_PATTERN, _NAME)] = "oasis"
    """First part of every name that must be found again; two stacks of one project need two. A change replaces."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels on everything that can carry them, for the bill."""
    state_backend: Annotated[str, Matching(r"(gs|file)://.+", "an address such as gs://bucket")] = ""
    """Where Pulumi keeps this stack's state; written by `make init`, read by the make targets, not by the program."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    gpu: GpuSettings | None = None
    """Omit this section for a stack without GPUs."""
    ray: RaySettings = field(default_factory=RaySettings)
    teams: tuple[TeamSettings, ...] = ()
    """Teams that share the queue, each with a namespace of its own; this needs a queued entry. None by default."""
    data: BucketSettings = field(default_factory=BucketSettings)
    """Bucket of the training data."""
    runs: BucketSettings = field(default_factory=BucketSettings)
    """Bucket of checkpoints, results and logs."""
    registry: RegistrySettings = field(default_factory=RegistrySettings)
    cost: CostSettings = field(default_factory=CostSettings)
    build: BuildSettings | None = None
    """`{}` takes the defaults; omit it to build images only with a local Docker or Podman."""
    wandb: WandbSettings | None = None
    """`{}` takes the defaults; omit it for a stack without Weights & Biases."""
    wandb_api_key: pulumi.Output[str] | None = None
    """Optional first value of the secret, encrypted in the stack file; `make secret` works without a copy there."""

    @property
    def site(self) -> Site:
        """The location of the stack."""
        return Site(project=self.project, region=self.region, zone=self.zone, prefix=self.name, labels=self.labels)

    @property
    def queued_heads(self) -> int:
        """Number of heads of queued jobs that fit in the system pool beside the standing cluster's own."""
        pool = self.cluster.system_pool
        return pod_size.heads_on(general_purpose(pool.machine_type), pool.max_nodes, self.ray.head.size) - 1

    @property
    def queue_shares(self) -> dict[str, QueueShare]:
        """Shares of the queue by ClusterQueue: those of the teams, and the rest; empty without a queue."""
        queue = self.gpu.queue if self.gpu else None
        if queue is None:
            return {}
        taken = sum(team.gpu_nodes for team in self.teams)
        rest = QueueShare(
            namespace=self.ray.namespace,
            nodes=queue.max_nodes - taken,
            heads=self.queued_heads - taken,
            most_nodes=queue.max_nodes,
            priority=None,
        )
        teams = {
            names.team_queue(team.name): QueueShare(
                namespace=team.name,
                nodes=team.gpu_nodes,
                heads=team.gpu_nodes,
                most_nodes=team.max_gpu_nodes or queue.max_nodes,
                priority=team.priority,
            )
            for team in self.teams
        }
        return {names.CLUSTER_QUEUE: rest, **teams}

    def address_plan(self) -> AddressPlan:
        """Every range of the stack.

        Raises:
            SettingsError: the blocks are wrong, overlap, or hold too few nodes.
        """
        pools = (self.cluster.system_pool.max_nodes, self.cluster.cpu_pool.max_nodes)
        return address_plan.plan(
            primary_block=self.network.primary_block,
            pods_block=self.network.pods_block,
            device_block=self.network.device_block,
            max_gpu_nodes=self.gpu.max_nodes if self.gpu else 0,
            # A surge upgrade adds one node to each of these pools.
            max_other_nodes=sum(pools) + len(pools),
            rdma_nics=self.gpu.machine.rdma_nics if self.gpu else 0,
        )
