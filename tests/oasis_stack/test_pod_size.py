"""How much of a node a Ray pod takes: by Google's own formula it always fits, with all that runs beside it."""

from __future__ import annotations

import pytest

from emulator.gke import node_shapes as gke_node_shapes
from emulator.gke.fit import quantity
from emulator.google.machines import machine_size
from oasis_stack.facts import pod_size
from oasis_stack.facts.machine import GENERAL_PURPOSE, MACHINES, Machine, general_purpose
from oasis_stack.pod_specs.mounts import shared_memory_gib

NODES = [f"{family}-{size}" for family, sizes in GENERAL_PURPOSE.items() for size in sizes]


@pytest.mark.parametrize(
    "machine", [*MACHINES.values(), *map(general_purpose, NODES)], ids=lambda machine: machine.name
)
def test_what_a_pod_may_ask_for_fits_a_node_that_is_not_there_yet(machine: Machine) -> None:
    """Against the emulated node, which has its own reading of the autoscaler's formula, with at least 1 % to spare."""
    size = pod_size.whole_node_pod(machine)
    beside = pod_size.sidecar(size.cpus, size.memory_gib)
    vcpus, memory_gb = machine_size(machine.name)
    cpu_millis = vcpus * 1000 - gke_node_shapes.reserved_cpu_millis(vcpus)
    memory_mib = gke_node_shapes.capacity_memory_mib(memory_gb) - gke_node_shapes.reserved_memory_mib(
        memory_gb, streams=True
    )

    asked = size.cpus * 1000 + beside.cpu_millis + pod_size.SYSTEM_CPU_MILLIS
    assert asked <= cpu_millis - vcpus * 10
    assert size.memory_gib * 1024 + beside.memory_mib + pod_size.SYSTEM_MEMORY_MIB <= 0.99 * memory_mib
    # Ray's object store takes 30 % of the memory, at most 200 GB, and goes to disk where /dev/shm is smaller.
    assert shared_memory_gib(size.memory_gib) * 1.0737 >= min(200, size.memory_gib * 0.3)


def test_the_h200_pod_asks_for_about_what_google_asks_for_itself() -> None:
    """2800 GiB of 2952: docs.cloud.google.com, tutorial scaling-rl-verl-gke."""
    size = pod_size.whole_node_pod(MACHINES["a3-ultragpu-8g"])

    assert 215 <= size.cpus <= 220
    assert 2750 <= size.memory_gib <= 2800


def test_a_node_of_128_gib_shows_what_others_saw() -> None:
    """125.8 GiB of capacity: 2i2c-org/infrastructure, pull request 4131, measured on GKE."""
    assert gke_node_shapes.capacity_memory_mib(128) / 1024 == pytest.approx(125.8, abs=0.15)


def test_a_boot_disk_of_100_gb_leaves_pods_what_others_saw() -> None:
    """98831908Ki and of these 47060071478 bytes: what GKE's nodes show in public outputs of `kubectl describe node`."""
    pool = gke_node_shapes.Pool(identity="projects/p", body={"locations": ["z"], "name": "n", "config": {}})

    status = gke_node_shapes.node(pool, "n", "z", ())["status"]

    assert quantity(status["capacity"]["ephemeral-storage"]) == pytest.approx(98831908 * 1024, rel=0.002)
    assert quantity(status["allocatable"]["ephemeral-storage"]) == pytest.approx(47060071478, rel=0.002)
