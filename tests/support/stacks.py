"""Settings for tests: one legal stack with every section, to change one thing at a time."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import Any

from oasis_stack.facts.site import Site

FULL: dict[str, Any] = {
    "gcp:project": "some-project",
    "oasis:region": "us-central1",
    "oasis:zone": "us-central1-b",
    "oasis:gpu": {
        "capacity": [
            {"mode": "reservation", "reservation": "ours", "max_nodes": 2},
            {"mode": "flex-start", "max_nodes": 4},
            {"mode": "spot", "max_nodes": 2},
        ]
    },
    "oasis:build": {},
    "oasis:wandb": {},
}
"""A stack that builds every component, by its defaults; keys as in a stack file."""

SITE = Site(project="project-a", region="us-central1", zone="us-central1-b", prefix="oasis", labels={"team": "vision"})
"""Where the components of tests stand."""


def changed(key: str, value: object, config: Mapping[str, Any] = FULL) -> dict[str, Any]:
    """A copy with one key set: `oasis:gpu.capacity[1].max_nodes`. A value of None removes it."""
    new = copy.deepcopy(dict(config))
    top, *path = key.replace("[", ".[").split(".")
    here: Any = new
    steps: list[str | int] = [top, *(int(step.strip("[]")) if step.startswith("[") else step for step in path)]
    for step, following in itertools.pairwise(steps):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(step, str):
            here = here.setdefault(step, empty)
        else:
            if step == len(here):
                here.append(empty)
            here = here[step]
    last = steps[-1]
    if value is None:
        del here[last]
    elif isinstance(last, int) and last == len(here):
        here.append(value)
    else:
        here[last] = value
    return new
