"""Every setting of a stack, its default and its limits. Defaults live only here, in `infrastructure` and in `ray`.

The program reads them with `load` from Pulumi's configuration, the command line with `parse` from the stack file: the
same rules for both. What concerns several settings at once is in `rules`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any

import pulumi
from pulumi.runtime import config as runtime_config

from oasis_stack.facts import address_plan, names
from oasis_stack.facts.address_plan import AddressPlan
from oasis_stack.facts.capacity_rules import MAX_RUN_HOURS
from oasis_stack.facts.lifecycle import BucketLifecycle, Lifecycle, RepositoryLifecycle
from oasis_stack.facts.machine import BUILD_MACHINES
from oasis_stack.facts.problem import Problem, SettingsError
from oasis_stack.facts.site import Site
from oasis_stack.settings import rules as setting_rules
from oasis_stack.settings.infrastructure import ClusterSettings, GpuSettings, NetworkSettings
from oasis_stack.settings.ray import RaySettings
from oasis_stack.settings.reader import Between, Matching, Reader, Sized

__all__ = ["Problem", "Settings", "SettingsError", "from_config", "load", "parse"]

_NAME = "1 to 16 of a-z, 0-9 and -, a letter first, no - at the end, not beginning with goog nor containing google"


@dataclass(frozen=True, kw_only=True)
class BucketSettings(BucketLifecycle):
    """One bucket."""

    keep: bool = True
    """Whether `pulumi destroy` leaves it. If false, everything in it is deleted with the stack."""
    adopt: bool = False
    """Set true once, when an earlier stack kept the bucket: `up` takes it over instead of making one."""
    soft_delete_days: Annotated[int, Between(0, 90)] = 7
    """How long a deleted object can be restored, and is paid for: 7 to 90 days, or 0 for not at all."""


@dataclass(frozen=True, kw_only=True)
class DockerHubSettings:
    """A login at Docker Hub, which refuses (429) what comes without one from an address that has fetched enough, and
    many share one."""

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
class RegistrySettings(RepositoryLifecycle):
    """The repositories of images and Python packages."""

    keep: bool = True
    """Whether `pulumi destroy` keeps the two local repositories. The others only hold copies and are always deleted."""
    adopt: bool = False
    """As for a bucket."""
    keep_untagged_days: Annotated[int, Between(1, 365)] = 7
    """Untagged images older than this are deleted. What `make image` builds keeps its tag, and goes after 180 days."""
    keep_versions: Annotated[int, Between(1, 100)] = 5
    """The newest versions of each image and package that no policy deletes; nor does one delete the image in use."""
    docker_hub: DockerHubSettings | None = None
    """Login with which public images are fetched; without one, what Docker Hub gives to everybody."""


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """A Cloud Build private worker pool for the image."""

    machine_type: Annotated[str, Sized(BUILD_MACHINES)] = "e2-highmem-8"
    """What a build runs on; paid only while one does."""
    disk_gb: Annotated[int, Between(100, 4000)] = 200
    """Disk of a build in GB: base image, layers and cache together."""
    peered: bool = False
    """Whether builds run inside the primary VPC; that adds service networking, whose removal Google delays."""


@dataclass(frozen=True, kw_only=True)
class WandbSettings(Lifecycle):
    """The secret that holds the Weights & Biases key. `make secret` gives it a value."""

    keep: bool = False
    """Whether `pulumi destroy` leaves the secret and its versions."""
    adopt: bool = False
    """As for a bucket."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A whole stack. Plain values, but for the one secret."""

    project: Annotated[str, Matching(names.PROJECT_PATTERN, "a project id, 6 to 30 of a-z, 0-9 and -")]
    """Google Cloud project id; in the stack file `gcp:project`, written by `make init`."""
    region: Annotated[str, Matching(r"[a-z]+-[a-z]+[0-9]+", "a region such as us-central1")]
    """Region of everything. Changing it replaces everything."""
    zone: Annotated[str, Matching(r"[a-z]+-[a-z]+[0-9]+-[a-z]", "a zone such as us-central1-b")]
    """Zone of all nodes; an RDMA VPC has exactly one."""
    name: Annotated[str, Matching(names.NAME_PATTERN, _NAME)] = "oasis"
    """First part of every name that must be found again; two stacks of one project need two. A change replaces."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of everything that can carry some, for the bill."""
    state_backend: Annotated[str, Matching(r"(gs|file)://.+", "an address such as gs://bucket")] = ""
    """Where Pulumi keeps this stack's state; written by `make init`, read by the make targets, not by the program."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    gpu: GpuSettings | None = None
    """Leave it out for a stack without GPUs."""
    ray: RaySettings = field(default_factory=RaySettings)
    data: BucketSettings = field(default_factory=BucketSettings)
    """Bucket of the training data."""
    runs: BucketSettings = field(default_factory=BucketSettings)
    """Bucket of checkpoints, results and logs."""
    registry: RegistrySettings = field(default_factory=RegistrySettings)
    build: BuildSettings | None = None
    """`{}` takes its defaults; leave it out to build images with a local Docker or Podman only."""
    wandb: WandbSettings | None = None
    """`{}` takes its defaults; leave it out for a stack without Weights & Biases."""
    wandb_api_key: pulumi.Output[str] | None = None
    """Optional first value of the secret, encrypted in the stack file; `make secret` needs no copy there."""

    @property
    def site(self) -> Site:
        """Where the stack stands."""
        return Site(project=self.project, region=self.region, zone=self.zone, prefix=self.name, labels=self.labels)

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


def parse(values: Mapping[str, object]) -> Settings:
    """Settings from keys without namespace, nested sections as mappings.

    `wandb_api_key` must be an Output or the stack file's encrypted form `{secure: ...}`, which is left unread.

    Raises:
        SettingsError: everything that is wrong, at once.
    """
    values = dict(values)
    encrypted = values.pop("wandb_api_key", None)
    reader = Reader(Settings)
    settings = _derived(reader.section(Settings, values, ""))
    if isinstance(encrypted, pulumi.Output):
        settings = replace(settings, wandb_api_key=encrypted)
    problems = [*reader.problems, *setting_rules.problems(settings, encrypted, {p.key for p in reader.problems})]
    if problems:
        raise SettingsError(problems)
    return settings


def load() -> Settings:
    """Settings of the stack that Pulumi runs.

    Raises:
        pulumi.RunError: with what `parse` found wrong. Pulumi shows its text alone, without a traceback.
    """
    config: dict[str, Any] = runtime_config.get_config_env() | runtime_config.CONFIG.get()
    secret_keys = set(runtime_config.get_config_secret_keys_env())
    values = from_config(config)
    key = "oasis:wandb_api_key"
    if key in config and (key in secret_keys or runtime_config.is_config_secret(key)):
        values["wandb_api_key"] = pulumi.Output.secret(config[key])
    try:
        return parse(values)
    except SettingsError as error:
        raise pulumi.RunError(str(error)) from None


def from_config(config: Mapping[str, object]) -> dict[str, object]:
    """Settings' keys from namespaced ones: Pulumi's, where a section is JSON text, or a stack file's with mappings.

    Other providers' namespaces are not ours to judge; only `gcp:project` is taken from them.
    """
    values: dict[str, object] = {}
    for key, value in config.items():
        namespace, _, name = key.partition(":")
        if key == "gcp:project":
            values["project"] = value
        elif namespace == "oasis":
            values[key if name == "project" else name] = _decoded(value)
    return values


def _decoded(value: object) -> object:
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    return _dated(value)


def _dated(value: object) -> object:
    """What is below a value, with each date that stood without quotes as one in quotes is written.

    Pulumi gives it in the form of Go's time.String (pulumi/sdk, go/common/resource/config/object.go).
    """
    if isinstance(value, Mapping):
        return {key: _dated(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_dated(below) for below in value]
    if isinstance(value, str) and (found := _GO_TIME.fullmatch(value)):
        moment = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S %z")
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return value


_GO_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}) \S+")


def _derived(settings: Settings) -> Settings:
    # Defaults that follow from another setting.
    ray = settings.ray
    if not ray.image:
        ray = replace(ray, image=f"rayproject/ray:{ray.version}-py312-cu128")
    gpu = settings.gpu
    if gpu is not None:
        capacity = tuple(
            replace(entry, max_run_duration_hours=MAX_RUN_HOURS)
            if entry.mode == "flex-start" and entry.max_run_duration_hours is None
            else entry
            for entry in gpu.capacity
        )
        gpu = replace(gpu, capacity=capacity, compute_class=gpu.compute_class or gpu.machine.accelerator.split("-")[1])
    return replace(settings, ray=ray, gpu=gpu)
