"""How much of a node a Ray pod takes."""

from __future__ import annotations

import pytest

from oasis_stack import pod_size
from oasis_stack.machine import MACHINES, Machine
from oasis_stack.ray_mounts import shared_memory_gib


def test_the_h200_pod_is_nearly_the_node_and_not_quite() -> None:
    size = pod_size.gpu_pod(MACHINES["a3-ultragpu-8g"])

    # What GKE leaves of the node: 223.3 vCPUs and 2886 GiB.
    assert 210 <= size.cpus <= 222
    assert 2750 <= size.memory_gib <= 2870


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda machine: machine.name)
def test_pod_sidecar_and_daemon_sets_fit_on_every_machine(machine: Machine) -> None:
    size = pod_size.gpu_pod(machine)
    beside = pod_size.sidecar(size.cpus, size.memory_gib)

    assert size.cpus >= 1
    assert size.memory_gib >= 8
    assert size.cpus * 1000 + beside.cpu_millis + pod_size.SYSTEM_CPU_MILLIS < machine.vcpus * 1000
    assert size.memory_gib * 1024 + beside.memory_mib + pod_size.SYSTEM_MEMORY_MIB < machine.memory_gb * 1024
    # Ray's object store takes 30 % of the memory, at most 200 GB, and goes to disk where /dev/shm is smaller.
    assert shared_memory_gib(size.memory_gib) * 1.0737 >= min(200, size.memory_gib * 0.3)


def test_the_reservation_is_that_of_the_documented_example() -> None:
    """GKE keeps 2.6 GiB of 16 and the eviction threshold; of 4 vCPUs, 80 thousandths."""
    machine = MACHINES["g2-standard-4"]
    size = pod_size.gpu_pod(machine)
    beside = pod_size.sidecar(machine.vcpus, machine.memory_gb)

    free_cpu = 4000 - 80 - pod_size.SYSTEM_CPU_MILLIS - beside.cpu_millis
    free_memory = 16 * 1024 - 2663 - 100 - pod_size.SYSTEM_MEMORY_MIB - beside.memory_mib
    assert (size.cpus, size.memory_gib) == (free_cpu // 1000, free_memory // 1024)
