"""Runs the wiring diagram under mocks, and looks into what it registered by dotted paths."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

from oasis_stack.command_line import offline
from oasis_stack.command_line.offline import Deployment, Registered
from tests.support.stacks import FULL


def deploy_stack(config: Mapping[str, Any] = FULL, preview: bool = False) -> Deployment:
    """What the program registers for a stack file: run once for each, so that tests share it and change nothing."""
    return _run(json.dumps(config), preview)


@cache
def _run(config: str, preview: bool) -> Deployment:
    return offline.deploy_stack(json.loads(config), preview)


def quotas(deployed: Deployment) -> dict[str, Counter[str]]:
    """By the kind of nodes, what all queues may have of it together, as amounts without units."""
    found: dict[str, Counter[str]] = {}
    for queue in deployed.of_type("kubernetes:kueue.x-k8s.io/v1beta2:ClusterQueue"):
        (group,) = at(queue, "spec.resourceGroups")
        assert group["coveredResources"] == ["cpu", "memory", "nvidia.com/gpu"]
        for flavor in group["flavors"]:
            amounts = {one["name"]: int(one["nominalQuota"].removesuffix("Gi")) for one in flavor["resources"]}
            found.setdefault(flavor["name"], Counter()).update(amounts)
    return found


def at(resource: Registered, path: str) -> Any:
    """What stands at `spec.groups[1].name` of the inputs, or an option as `@protect`; None where nothing does."""
    if path.startswith("@"):
        return getattr(resource, path[1:])
    here: Any = resource.inputs
    for step in path.replace("[", ".[").split("."):
        if step.startswith("["):
            index = int(step[1:-1])
            here = here[index] if isinstance(here, list) and index < len(here) else None
        else:
            here = here.get(step) if isinstance(here, dict) else None
    return here
