"""Settings of the RayCluster, with their defaults and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from oasis_stack.facts import names
from oasis_stack.settings.infrastructure import Block
from oasis_stack.settings.reader import Between, Matching


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """The Ray head pod. It runs no tasks, only Ray's own services and the drivers of jobs."""

    cpus: Annotated[int, Between(1, 127)] = 4
    """vCPUs."""
    memory_gb: Annotated[int, Between(4, 1023)] = 16
    """Memory in GiB; a head that runs out of it takes the whole cluster's jobs with it."""


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
            f"not default, {names.KUBERAY_NAMESPACE}, kube-*, gke-* or gmp-*",
        ),
    ] = "ray"
    """Kubernetes namespace, made and deleted with the stack."""
    cluster_name: Annotated[
        str, Matching(names.RAY_CLUSTER_PATTERN, "1 to 53 of a-z, 0-9 and -, a letter first, no - at the end")
    ] = "oasis"
    """Name of the RayCluster object and of the Secret with its token."""
    version: Annotated[str, Matching(r"\d+\.\d+\.\d+", "a Ray version such as 2.60.0")] = "2.60.0"
    """Ray inside the image; another number here than there, and KubeRay starts Ray with options it does not know."""
    image: Annotated[
        str,
        Matching(
            r"[a-z0-9][a-z0-9._:/-]*(:\w[\w.-]{0,127}|(:\w[\w.-]{0,127})?@sha256:[0-9a-f]{64})",
            "an image with a tag or a digest; `make image` writes one",
        ),
    ] = ""
    """Container image of every Ray pod; without a registry's name it comes from Docker Hub, by the stack's mirror.
    Default: Ray's stock image of `version`, which runs what needs only Ray."""
    operator_repository: Annotated[str, Matching(r"https?://\S+", "the address of a Helm repository")] = (
        "https://ray-project.github.io/kuberay-helm/"
    )
    """Where the KubeRay operator's chart comes from: where its project publishes it (ray-project/kuberay,
    helm-chart/kuberay-operator/README.md), or a mirror of that."""
    idle_timeout_seconds: Annotated[int, Between(30, 86400)] = 600
    """How long a worker without work stays."""
    dashboard_access: Literal["port-forward", "internal-load-balancer"] = "port-forward"
    """How the dashboard and the Jobs API are reached; never from the internet."""
    dashboard_port: Annotated[int, Between(1024, 65535)] = 8265
    """Port of `ray_dashboard_url`: on this machine for a port-forward, else the load balancer's."""
    dashboard_client_ranges: tuple[Block, ...] = ()
    """With an internal load balancer: private networks whose machines may use it."""
    cpu_workers_max: Annotated[int, Between(0, 1000)] = 4
    """Most CPU workers; 0 builds no such group."""
    cpu_worker: CpuWorkerSettings = field(default_factory=CpuWorkerSettings)
    head: HeadSettings = field(default_factory=HeadSettings)

    @property
    def balanced(self) -> bool:
        """Whether an internal load balancer shows the dashboard."""
        return self.dashboard_access == "internal-load-balancer"
