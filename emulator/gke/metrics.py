"""GPU metrics that GKE writes into Cloud Monitoring each minute: here, those in `utilisation.json` in the emulator's
folder.

Nothing computes on an emulated GPU. The file maps shell patterns for `namespace/pod` to percentages (`{"ray/gang-*":
0}`). The first match holds, as if since the pod's container started; a pod without a match has no metric.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from fnmatch import fnmatchcase

from emulator.gke.node_shapes import GPU
from emulator.google.cloud import Cloud, timestamp
from emulator.google.errors import RefusedCall
from emulator.kubernetes.api import Api, Body

FILE = "utilisation.json"

_KIND = "monitoring/timeSeries"
_METRIC = "kubernetes.io/container/accelerator/duty_cycle"
_SAMPLE_SECONDS = 60  # Google Cloud documentation, "GKE system metrics"
_KEPT_SAMPLES = 180
"""Google keeps the samples of six weeks."""


class GpuMetrics:
    """The metrics of one cluster's GPUs."""

    def __init__(self, api: Api, cloud: Cloud) -> None:
        self._api, self._cloud = api, cloud
        self._written: dict[str, tuple[float, int]] = {}
        """The newest sample of each time series."""

    def step(self) -> None:
        """Write what is due. Raises RefusedCall for a file that is not as described above."""
        percentages = self._cloud.asked_in(FILE, dict)
        if not all(isinstance(percent, int) and 0 <= percent <= 100 for percent in percentages.values()):
            raise RefusedCall(400, f"{FILE} holds no whole percentages from 0 to 100: {percentages}", "badRequest")
        if not percentages:
            return
        newest = time.time() // _SAMPLE_SECONDS * _SAMPLE_SECONDS
        for cluster in self._cloud.list("container/cluster"):
            _, project, _, location, _, name = cluster.name.split("/")
            place = {"project_id": project, "location": location, "cluster_name": name}
            for pod in self._api.list("v1", "Pod"):
                metadata = pod["metadata"]
                whole = f"{metadata['namespace']}/{metadata['name']}"
                percent = next((of for pattern, of in percentages.items() if fnmatchcase(whole, pattern)), None)
                of = {**place, "namespace_name": metadata["namespace"], "pod_name": metadata["name"]}
                for container, began, gpus in _containers(pod) if percent is not None else ():
                    for gpu in range(gpus):
                        self._write({**of, "container_name": container}, gpu, began, newest, int(percent or 0))

    def _write(self, labels: dict[str, str], gpu: int, began: float, newest: float, percent: int) -> None:
        name = f"projects/{labels['project_id']}/timeSeries/{'.'.join(labels.values())}.{gpu}"
        if self._written.get(name) == (newest, percent):
            return
        samples = [newest - _SAMPLE_SECONDS * back for back in range(_KEPT_SAMPLES)]
        at = [timestamp(moment) for moment in samples if moment > began]
        points = [
            {"interval": {"startTime": moment, "endTime": moment}, "value": {"int64Value": str(percent)}}
            for moment in at
        ]
        metric = {"make": "nvidia", "accelerator_id": f"GPU-{gpu}", "model": "emulated"}
        body = {
            "metric": {"type": _METRIC, "labels": metric},
            "resource": {"type": "k8s_container", "labels": labels},
            "metricKind": "GAUGE",
            "valueType": "INT64",
            "points": points,
        }
        self._cloud.put(_KIND, name, body)
        self._written[name] = newest, percent


def _containers(pod: Body) -> Iterator[tuple[str, float, int]]:
    """Name, start time and GPUs of a pod's running containers."""
    states = {one["name"]: one.get("state", {}) for one in pod.get("status", {}).get("containerStatuses") or ()}
    for container in pod["spec"]["containers"]:
        gpus = int((container.get("resources", {}).get("limits") or {}).get(GPU, 0))
        began = states.get(container["name"], {}).get("running", {}).get("startedAt")
        if gpus and began:
            yield container["name"], datetime.fromisoformat(began).timestamp(), gpus
