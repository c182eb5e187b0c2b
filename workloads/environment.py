"""The contract between the cluster and its workloads: the variables and mounts promised to a pod, and their reader.

Standard library only, because both sides import it: `oasis_stack.pod_specs.pods` writes these variables into pods
and `workloads` reads them. The same values, under the same names, are the stack's outputs and the ConfigMap.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

CONFIG_MAP = "oasis-environment"
"""ConfigMap in the Ray namespace with the stack's outputs, so that kubectl access alone is enough to submit."""

CLUSTER_CONFIG_MAP, CLUSTER_KEY = "oasis-ray-cluster", "spec.json"
"""ConfigMap in a team's namespace, and its key, with the spec of a RayCluster that those of its jobs are made like."""

VARIABLE_PREFIX = "OASIS_"
"""Environment variable of field `x` is `OASIS_X`."""

FORK_VARIABLE = "OASIS_FORK_WORKERS"
"""0 in a command's environment has Ray start each of its workers of its own, with imports of its own; 1 has them forked
on GPUs too."""

MAX_RUN_VARIABLE = "OASIS_MAX_RUN_SECONDS"
"""In GPU workers of a ladder with flex-start: GKE takes such a node so many seconds after its start, whatever runs."""

NODE_HOUR_VARIABLE = "OASIS_NODE_HOUR_USD"
"""What an hour of one of a run's nodes costs, USD, where that is not the stack's list price: a contract's, or another
Ray's than a stack's."""

DRAIN_VARIABLE = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
"""A worker that is told to end reports itself as preempted and is waited for this long (ray 2.60, _private/node.py)."""

DRAIN_SECONDS, GRACE_SECONDS = 120, 150
"""Not on Spot: time for a checkpoint of some 10 GB to reach the bucket. Ray drains, then the pod may end."""

SUBMITTED_VARIABLE = "OASIS_SUBMITTED_WITH"
"""In a job of `submit`, the flags with which it is submitted again. The folder it works in is gone after it."""

API_SERVER_VARIABLE = "KUBERNETES_SERVICE_HOST"
"""In every container of Kubernetes, and so how a pod is told from another place (Kubernetes documentation, "Service",
"Environment variables")."""

DATA_MOUNT = "/data"
"""Mount of the data bucket in pods: read, cached, never written by a job."""

RUNS_MOUNT = "/bucket"
"""Mount of the runs bucket in pods: results and logs for people. Checkpoints go to `runs_uri`, not through it."""

SCRATCH_MOUNT = "/scratch"
"""Node-local disk (local SSD on A3 Ultra), gone with the pod."""

GIB_DIRECTORY = "/usr/local/gib"
"""Mount of the RDMA NCCL plugin (gIB) in GPU workers."""


class EnvironmentContractError(ValueError):
    """The environment lacks a promised variable or holds a value of the wrong shape."""


@dataclass(frozen=True, kw_only=True)
class ClusterEnvironment:
    """The stack's facts for a job. Every field is a stack output, a ConfigMap key and a variable."""

    project: str
    """Google Cloud project id."""
    region: str
    """Region of the cluster."""
    zone: str
    """Zone of the GPU nodes."""
    cluster_name: str
    """GKE cluster."""
    ray_namespace: str
    """Kubernetes namespace of the RayCluster; of a team, its own."""
    ray_cluster_name: str
    """RayCluster object; also the name of the Secret with its token (key `auth_token`). Empty in a team's namespace,
    where each job has a cluster of its own."""
    ray_dashboard_url: str
    """Where the dashboard and the Jobs API answer, once the port-forward (if any) runs."""
    ray_dashboard_command: str
    """Command that makes `ray_dashboard_url` answer; empty where it answers by itself."""
    data_uri: str
    """gs:// address of the data bucket."""
    runs_uri: str
    """gs:// address of the bucket for checkpoints, results and logs."""
    image: str
    """Container image of the Ray pods."""
    image_repository: str
    """Docker repository that `make image` pushes to."""
    python_index_url: str
    """Python package index (simple API) of the stack's virtual repository."""
    machine_type: str
    """Compute Engine machine type of the GPU nodes; empty in a stack without GPUs."""
    accelerator: str
    """GPU type as GKE names it, `nvidia-h200-141gb`; empty without GPUs."""
    gpus_per_node: int
    """GPUs of one node; 0 without GPUs."""
    rdma_nics: int
    """RDMA NICs of one node; 0 where the machine type has none. Above 0, a job may demand gIB."""
    gpu_max_nodes: int
    """Most GPU nodes the stack can ever have: a job that asks for more is infeasible."""
    gpu_queue: str
    """Kueue's LocalQueue in the Ray namespace, for jobs whose nodes must come together; empty without one."""
    gpu_queue_run_seconds: int
    """Life of a node of a queued job, after which GKE takes it away, whatever runs; 0 without a queue."""
    gpu_queue_nodes: int
    """Most GPU nodes of queued jobs together; 0 without a queue."""
    cpu_workers_max: int
    """Most pods of the CPU worker group."""
    gpu_node_hour_usd: str = ""
    """List price of an hour of the dearest GPU node that the ladder buys, USD; empty where it is not known, as in pods
    that are older than this variable."""
    gpu_queue_node_hour_usd: str = ""
    """The same of a node of a queued job."""
    wandb_secret: str
    """Secret Manager resource `projects/<p>/secrets/<s>` with the W&B key; empty without one. Never the key itself."""

    @property
    def cluster(self) -> str:
        """The cluster in words."""
        return f"cluster {self.cluster_name} of project {self.project} in {self.zone}"

    @property
    def team(self) -> str:
        """The team whose facts these are; empty: nobody's in particular."""
        return "" if self.ray_cluster_name else self.ray_namespace

    def node_hour_usd(self, *, queued: bool) -> float | None:
        """List price of an hour of a GPU node, USD, of the dearest kind that a job may get; None where it is not known.

        Args:
            queued: whether it is a job of the queue; a team's always is.
        """
        price = self.gpu_queue_node_hour_usd if queued or self.team else self.gpu_node_hour_usd
        return float(price) if price else None

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> ClusterEnvironment:
        """Read stack outputs or the ConfigMap's data.

        Raises:
            EnvironmentContractError: a field is missing, or a count is not a whole number of at least 0.
        """
        if missing := [field.name for field in fields(cls) if field.default is MISSING and field.name not in values]:
            raise EnvironmentContractError(
                f"the stack's outputs lack {', '.join(missing)}; they have "
                f"{', '.join(sorted(map(str, values))) or 'nothing'}. Run `pulumi up` with this version of the program."
            )
        given = [field for field in fields(cls) if field.name in values]
        texts = {field.name: str(values[field.name]) for field in given if field.type == "str"}
        numbers = [field.name for field in fields(cls) if field.type == "int"]
        read: dict[str, Any] = {**texts, **{name: _count(name, str(values[name])) for name in numbers}}
        return cls(**read)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> ClusterEnvironment:
        """Read the pod's variables (`OASIS_PROJECT`, ...).

        Raises:
            EnvironmentContractError: as `from_mapping`.
        """
        environ = os.environ if environ is None else environ
        names = {variable(field.name): field.name for field in fields(cls)}
        return cls.from_mapping({names[key]: value for key, value in environ.items() if key in names})


def variable(field: str) -> str:
    """Environment variable that carries a field."""
    return VARIABLE_PREFIX + field.upper()


def mount(default: str, environ: Mapping[str, str] | None = None) -> str:
    """Path of a mount in this place: `OASIS_DATA_MOUNT` and its like, where they are set, else the default.

    Args:
        default: `DATA_MOUNT`, `RUNS_MOUNT` or `SCRATCH_MOUNT`.
        environ: variables to look in; the process's own if None.
    """
    names = {DATA_MOUNT: "data_mount", RUNS_MOUNT: "runs_mount", SCRATCH_MOUNT: "scratch_mount"}
    return (os.environ if environ is None else environ).get(variable(names[default])) or default


def _count(field: str, text: str) -> int:
    # Pulumi's JSON outputs give 8 or 8.0 for the same number, a ConfigMap gives "8".
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number < 0 or not number.is_integer():
        raise EnvironmentContractError(
            f"{field} is {text!r}; it must be a whole number of at least 0. Check the stack's outputs."
        )
    return int(number)
