"""Quotas of Compute Engine that a stack's GPUs take at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oasis_stack.facts.machine import Machine
from oasis_stack.settings.schema import Settings


@dataclass(frozen=True, kw_only=True)
class Quota:
    """One quota, by the names that Google has for it, and what the stack needs of it."""

    quota: str
    """Id in the Cloud Quotas API, which knows all of them."""
    metric: str
    """Name in Compute Engine's own API; empty where it does not list it."""
    dimensions: Mapping[str, str] = field(default_factory=dict)
    """Beside the region."""
    region: str
    """Empty for the whole project."""
    most: int
    """What the ladder asks for at most."""
    what: str

    @property
    def called(self) -> str:
        """Its name, as the page in the console has it, with its dimensions."""
        return ", ".join([self.quota, *(f"{key}={value}" for key, value in self.dimensions.items())])


def of_gpus(settings: Settings) -> list[Quota]:
    """Quotas of the ladder's GPUs; none without GPUs."""
    gpu = settings.gpu
    if gpu is None:
        return []
    taken = sum(entry.max_nodes for entry in gpu.capacity if entry.mode in ("flex-start", "queued", "spot"))
    own = gpu.max_nodes - taken
    found = [
        *([_preemptible(gpu.machine, settings.region, taken)] if taken else []),
        *([_of_family(gpu.machine, settings.region, own)] if own else []),
    ]
    every = Quota(
        quota="GPUS-ALL-REGIONS-per-project",
        metric="GPUS_ALL_REGIONS",
        region="",
        most=gpu.max_nodes * gpu.machine.gpus,
        what="all GPUs",
    )
    return [*found, every]


def _model(machine: Machine) -> str:
    return machine.accelerator.split("-")[1].upper()


def _preemptible(machine: Machine, region: str, nodes: int) -> Quota:
    """Of nodes that can be taken back, to which flex-start belongs ("About flex-start provisioning mode")."""
    model = _model(machine)
    return Quota(
        quota=f"PREEMPTIBLE-NVIDIA-{model}-GPUS-per-project-region",
        metric=f"PREEMPTIBLE_NVIDIA_{model}_GPUS",
        region=region,
        most=nodes * machine.gpus,
        what="flex-start, queued and Spot",
    )


def _of_family(machine: Machine, region: str, nodes: int) -> Quota:
    """Of reserved nodes and those on demand. Compute Engine's own API does not list it: a project's list of quotas of
    2026-05-20 and four public tools that read both."""
    return Quota(
        quota="GPUS-PER-GPU-FAMILY-per-project-region",
        metric="",
        dimensions={"gpu_family": f"NVIDIA_{_model(machine)}"},
        region=region,
        most=nodes * machine.gpus,
        what="reservation and on-demand",
    )
