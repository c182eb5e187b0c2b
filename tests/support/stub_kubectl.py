"""A `kubectl` for tests: knows one stack's objects, forwards a port of its own to a given one, and plays KubeRay."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads.environment import ClusterEnvironment

OUTPUTS = ClusterEnvironment(
    project="test-project",
    region="us-central1",
    zone="us-central1-a",
    cluster_name="oasis",
    ray_namespace="ray",
    ray_cluster_name="oasis",
    ray_dashboard_url="http://127.0.0.1:8265",
    ray_dashboard_command="kubectl --namespace ray port-forward service/oasis-head-svc 8265:8265",
    data_uri="gs://test-data",
    runs_uri="gs://test-runs",
    image="rayproject/ray:2.60.0-py312-cu128",
    image_repository="us-central1-docker.pkg.dev/test-project/oasis",
    python_index_url="",
    machine_type="a3-ultragpu-8g",
    accelerator="nvidia-h200-141gb",
    gpus_per_node=8,
    rdma_nics=8,
    gpu_max_nodes=4,
    gpu_queue="gpu",
    gpu_queue_nodes=2,
    gpu_queue_run_seconds=86400,
    cpu_workers_max=4,
    gpu_node_hour_usd="51.40",
    gpu_queue_node_hour_usd="42.40",
    wandb_secret="",
)

CLUSTER: dict[str, Any] = {
    "enableInTreeAutoscaling": True,
    "authOptions": {"mode": "token"},
    "upgradeStrategy": {"type": "None"},
    "headGroupSpec": {
        "rayStartParams": {},
        "resources": {"CPU": "0", "driver": "1000"},
        "template": {"spec": {"serviceAccountName": "ray", "containers": [{"image": OUTPUTS.image}]}},
    },
    "workerGroupSpecs": [
        {
            "groupName": name,
            "minReplicas": 0,
            "maxReplicas": most,
            "replicas": 1,
            "scaleStrategy": {"workersToDelete": ["a-worker-of-the-stack"]},
            "rayStartParams": {},
            "template": {"spec": {"containers": [{"image": OUTPUTS.image, "resources": {"limits": limits}}]}},
        }
        for name, most, limits in (
            ("cpu", 4, {"cpu": "8", "memory": "32Gi"}),
            ("gpu", 2, {"cpu": "200", "memory": "2800Gi", "nvidia.com/gpu": "8"}),
        )
    ],
}
"""What the stub says of the stack's RayCluster, as far as anybody asks."""


def install(
    folder: Path,
    outputs: ClusterEnvironment | None,
    token: str,
    behind: int = 0,
    *,
    stuck: bool = False,
    pods: Sequence[Any] = (),
    events: Sequence[Any] = (),
    steps: Sequence[Any] = (),
    others: Sequence[Any] = (),
    objects: Mapping[str, Any] | None = None,
    context: str = "",
) -> str:
    """Write the program; returns a PATH that begins with it.

    Args:
        folder: for the program and what it knows.
        outputs: the stack's outputs; None is a cluster without a stack.
        token: of Ray; empty is a Secret that may not be read.
        behind: port that a port-forward leads to.
        stuck: the cluster of a RayJob does not come up.
        pods: what it says of any pods.
        events: what it says happened to them.
        steps: what Kueue says of a job in its queue, one after another: the status of its Workload, and its `active`.
        others: further Workloads.
        objects: Jobs and RayClusters that are there, by `<kind>/<name>`.
        context: the current one; empty as in a pod, where there is none.
    """
    data = {} if outputs is None else {name: str(value) for name, value in vars(outputs).items()}
    facts = {
        "data": data,
        "token": token,
        "behind": behind,
        "cluster": CLUSTER,
        "stuck": stuck,
        "pods": list(pods),
        "events": list(events),
        "steps": list(steps),
        "others": list(others),
        "objects": dict(objects or {}),
        "context": context,
    }
    (folder / "facts.json").write_text(json.dumps(facts))
    program = folder / "kubectl"
    # Imported rather than run, as a script is compiled each time.
    start = (
        f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import kubectl_program; kubectl_program.main()"
    )
    words = shlex.join([sys.executable, "-I", "-S", "-c", start, str(folder)])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
