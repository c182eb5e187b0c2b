"""The stack's outputs for people and jobs: one mapping for exports, ConfigMap and pod variables, so that they agree.

It is part of the wiring, so it may read settings; it registers nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi

from oasis_stack import components as oasis
from oasis_stack.components import ray_cluster
from oasis_stack.facts import names
from oasis_stack.settings import cost
from oasis_stack.settings.schema import Settings, TeamSettings


def cluster_environment(
    settings: Settings,
    *,
    cluster: oasis.Cluster,
    registry: oasis.ArtifactRegistry,
    data: oasis.Bucket,
    runs: oasis.Bucket,
    secret: oasis.ApiKeySecret | None,
    dashboard: oasis.InternalAddress | None,
) -> dict[str, pulumi.Input[str]]:
    """Every field of `workloads.environment.ClusterEnvironment`, as text."""
    ray, gpu = settings.ray, settings.gpu
    machine, queue = (gpu.machine, gpu.queue) if gpu else (None, None)
    forward = ray_cluster.port_forward_command(ray.namespace, ray.cluster_name, ray.dashboard_port)
    host = "127.0.0.1" if dashboard is None else dashboard.address
    return {
        "project": settings.project,
        "region": settings.region,
        "zone": settings.zone,
        "cluster_name": cluster.cluster_name,
        "ray_namespace": ray.namespace,
        "ray_cluster_name": ray.cluster_name,
        "ray_dashboard_url": pulumi.Output.format("http://{0}:{1}", host, ray.dashboard_port),
        "ray_dashboard_command": forward if dashboard is None else "",
        "data_uri": data.uri,
        "runs_uri": runs.uri,
        # Not through the virtual repository: GKE streams images of standard and remote ones alone (documentation, "Use
        # Image streaming", requirements).
        "image": ray.image
        if names.has_registry(ray.image)
        else pulumi.Output.concat(registry.docker_mirror, "/", ray.image),
        "image_repository": registry.image_repository,
        "python_index_url": registry.python_index_url,
        "machine_type": machine.name if machine else "",
        "accelerator": machine.accelerator if machine else "",
        "gpus_per_node": str(machine.gpus if machine else 0),
        "rdma_nics": str(machine.rdma_nics if machine else 0),
        "gpu_max_nodes": str(gpu.class_nodes if gpu else 0),
        "gpu_queue": names.LOCAL_QUEUE if queue else "",
        "gpu_queue_run_seconds": str((queue.max_run_seconds if queue else None) or 0),
        "gpu_queue_nodes": str(queue.max_nodes if queue else 0),
        "cpu_workers_max": str(ray.cpu_workers_max),
        "gpu_node_hour_usd": _usd(cost.node_hours(settings, queued=False)),
        "gpu_queue_node_hour_usd": _usd(cost.node_hours(settings, queued=True)),
        "wandb_secret": secret.secret_id if secret else "",
    }


def team_environment(
    environment: Mapping[str, pulumi.Input[str]], team: TeamSettings, most_nodes: int
) -> dict[str, pulumi.Input[str]]:
    """The same for a team: no long-lived cluster, a folder of the runs bucket, and its part of the queue."""
    return {
        **environment,
        "ray_namespace": team.name,
        "ray_cluster_name": "",
        "ray_dashboard_url": "",
        "ray_dashboard_command": "",
        "runs_uri": pulumi.Output.concat(environment["runs_uri"], "/", names.team_folder(team.name)),
        "gpu_max_nodes": "0",
        "gpu_queue_nodes": str(most_nodes),
        "cpu_workers_max": "0",
    }


def for_people(
    settings: Settings, *, cluster: oasis.Cluster, registry: oasis.ArtifactRegistry, builds: oasis.ImageBuild | None
) -> dict[str, pulumi.Input[str]]:
    """Further outputs, for people and `make`."""
    price = cost.hourly_cost(settings)
    return {
        "kubeconfig": cluster.kubeconfig,
        "get_credentials_command": _get_credentials_command(settings, cluster.cluster_name),
        "teams": " ".join(team.name for team in settings.teams),
        "hourly_cost_usd": f"{price.at_rest:.2f}" if price.is_sure_at_rest else "",
        "max_hourly_cost_usd": f"{price.at_most:.2f}" if price.is_sure else "",
        "gpu_compute_class": settings.gpu.compute_class if settings.gpu else "",
        "docker_index": registry.docker_index,
        "image_build_worker_pool": builds.worker_pool if builds else "",
        "image_builder": builds.builder_service_account if builds else "",
        "image_build_bucket": builds.source_bucket if builds else "",
    }


def _usd(prices: Sequence[float | None]) -> str:
    """The highest of some prices; empty where one is not known."""
    known = [price for price in prices if price is not None]
    return f"{max(known):.2f}" if known and len(known) == len(prices) else ""


def _get_credentials_command(settings: Settings, cluster_name: pulumi.Input[str]) -> pulumi.Output[str]:
    """Command that writes the cluster into the caller's own kubeconfig."""
    return pulumi.Output.format(
        "gcloud container clusters get-credentials {0} --location {1} --project {2}{3}",
        cluster_name,
        settings.region,
        settings.project,
        " --dns-endpoint" if settings.cluster.endpoint == "dns" else "",
    )
