"""Jobs for the queue, as the documentation has them."""

from __future__ import annotations

import yaml

from emulator.kubernetes.api import Body
from emulator.machine.state import CHECKOUT

QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"


def documented_job(name: str = "gang", nodes: int = 2, team: str = "", queue: str = "gpu") -> Body:
    """The plain Job of docs/capacity.md: so many whole nodes, in a team's namespace or in Ray's."""
    page = (CHECKOUT / "docs" / "capacity.md").read_text()
    job = yaml.safe_load(page.partition("```yaml")[2].partition("```")[0])
    labels = {QUEUE: queue, **({PRIORITY: team} if team else {})}
    job["metadata"] |= {"name": name, "namespace": team or job["metadata"]["namespace"], "labels": labels}
    job["spec"] |= {"parallelism": nodes, "completions": nodes}
    return job


def queued_ray_job(name: str, team: str = "") -> Body:
    """A RayJob in the queue, of a team or in Ray's namespace, with a head alone."""
    pods = {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray", "image": "i"}]}}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": name,
            "namespace": team or "ray",
            "labels": {QUEUE: "gpu", **({PRIORITY: team} if team else {})},
        },
        "spec": {
            "entrypoint": "true",
            "suspend": True,
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {"headGroupSpec": pods},
        },
    }
