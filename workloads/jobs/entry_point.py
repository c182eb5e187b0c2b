"""The resources of a job's entry point, and whether any node of the cluster could ever provide them.

By default it takes a slot on the head, through the head's custom resource `driver`: the head has no CPUs to request,
and a request for CPUs would add a node, even a GPU node, for the driver alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workloads.errors import InfeasibleError, UsageError

DRIVER_RESOURCES = {"driver": 0.01}
"""Default request of an entry point: a hundredth of the resource of which the head has one per slot."""

_BUILT_IN = ("CPU", "GPU", "memory")
"""Resources that Ray takes as parameters of their own, not by name."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """An entry point's resources, all of them on one node."""

    amounts: Mapping[str, float]
    """By Ray's names: CPU, GPU, memory (bytes), and custom resources."""

    def parameters(self) -> dict[str, Any]:
        """The same as parameters of `JobSubmissionClient.submit_job`."""
        wanted = self.amounts
        own = {name: amount for name, amount in wanted.items() if name not in _BUILT_IN}
        found: dict[str, Any] = {"entrypoint_resources": own} if own else {}
        for parameter, name in (("entrypoint_num_cpus", "CPU"), ("entrypoint_num_gpus", "GPU")):
            if name in wanted:
                found[parameter] = wanted[name]
        if "memory" in wanted:
            found["entrypoint_memory"] = int(wanted["memory"])
        return found

    def fits(self, resources: Mapping[str, float]) -> bool:
        """True if a node with these resources, were it free, could hold the entry point."""
        return all(resources.get(name, 0) >= amount for name, amount in self.amounts.items())

    def __str__(self) -> str:
        return describe(self.amounts)


@dataclass(frozen=True, kw_only=True)
class Supply:
    """One node that is there, or a kind of node that can be added."""

    name: str
    resources: Mapping[str, float]
    count: int
    """How many there are, or can be."""

    def __str__(self) -> str:
        return f"{self.name}: {f'up to {self.count} x ' if self.count > 1 else ''}{describe(self.resources)}"


def add_entry_point_arguments(group: Any) -> None:
    """The arguments that set the entry point's resources; Ray's own names work too."""
    group.add_argument(
        "--num-cpus", "--entrypoint-num-cpus", type=float, metavar="N", help="CPUs for the command itself"
    )
    group.add_argument(
        "--num-gpus", "--entrypoint-num-gpus", type=float, metavar="N", help="GPUs for the command itself"
    )
    group.add_argument(
        "--memory", "--entrypoint-memory", type=float, metavar="BYTES", help="memory for the command itself"
    )
    group.add_argument(
        "--resources",
        "--entrypoint-resources",
        metavar="JSON",
        help="further Ray resources for it; without any of these four options: "
        f"'{json.dumps(DRIVER_RESOURCES)}', a place on the head",
    )


def read(args: argparse.Namespace) -> Demand:
    """The demand that the arguments state.

    Raises:
        UsageError: an amount is negative or not a number, or one resource is requested twice.
    """
    amounts = _named(args.resources)
    for flag, name, amount in (
        ("--num-cpus", "CPU", args.num_cpus),
        ("--num-gpus", "GPU", args.num_gpus),
        ("--memory", "memory", args.memory),
    ):
        if amount is None:
            continue
        if name in amounts:
            raise UsageError(f"{name} is asked for by {flag} and by --resources.", "Ask for it once.")
        if not 0 <= amount < float("inf"):
            raise UsageError(f"{flag} is {amount:g}; it must be a number of at least 0.", "Ask for an amount.")
        amounts[name] = amount
    return Demand(amounts={name: amount for name, amount in amounts.items() if amount > 0} or DRIVER_RESOURCES)


def refuse_impossible(demand: Demand, supplies: Iterable[Supply]) -> None:
    """Refuse at once a demand that Ray would leave pending for half an hour.

    Args:
        demand: demand of the entry point.
        supplies: every node that is there or can be added.

    Raises:
        InfeasibleError: none of them can hold it.
    """
    known = list(supplies)
    if any(demand.fits(supply.resources) for supply in known):
        return
    raise InfeasibleError(
        f"The command itself asks for {demand} on one node, which no node of this cluster can ever have: "
        f"{'; '.join(map(str, known)) or 'it has none'}.",
        "Ask for less. What Ray's workers take need not be asked for here: without --num-cpus, --num-gpus, --memory "
        "and --resources the command runs on the head.",
    )


def groups(spec: Mapping[str, Any]) -> list[Supply]:
    """A RayCluster's resources according to its object: the head, and each worker group at its maximum.

    Args:
        spec: spec of the RayCluster.
    """
    # Ray's own reading of a group, which its autoscaler uses as well.
    reader = importlib.import_module("ray.autoscaler._private.kuberay.autoscaling_config")
    kinds: dict[str, Any] = reader._generate_available_node_types_from_ray_cr_spec(spec)
    workers = {group["groupName"]: group for group in spec.get("workerGroupSpecs") or ()}
    found = []
    for name, kind in kinds.items():
        group = workers.get(name)
        limit = "maxReplicas" if spec.get("enableInTreeAutoscaling") else "replicas"
        count = 1 if group is None else int(group.get(limit) or 0) * int(group.get("numOfHosts") or 1)
        if count:
            label = "head" if group is None else f"worker group {name}"
            found.append(Supply(name=label, resources=kind["resources"], count=count))
    return found


def describe(resources: Mapping[str, float]) -> str:
    """Amounts in words: `8 CPU, 64.0 GB memory`, without resources that Ray counts for its own use."""
    shown = {name: amount for name, amount in resources.items() if not name.startswith(("node:", "object_store"))}
    words = [
        f"{amount / 1e9:.1f} GB memory" if name == "memory" else f"{amount:g} {name}"
        for name, amount in sorted(shown.items())
    ]
    return ", ".join(words) or "nothing"


def _named(text: str | None) -> dict[str, float]:
    try:
        given = json.loads(text or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(
        isinstance(amount, int | float) and not isinstance(amount, bool) and 0 <= amount < float("inf")
        for amount in given.values()
    ):
        raise UsageError(f"--resources is {text!r}.", f"Write amounts by name, as in '{json.dumps(DRIVER_RESOURCES)}'.")
    return {name: float(amount) for name, amount in given.items()}
