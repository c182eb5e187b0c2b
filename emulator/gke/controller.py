"""What GKE does inside a cluster, as a standing process: installs types, adds and removes nodes, makes networks ready.

It sees what the real GKE sees: the pools and clusters of the emulated cloud, and the objects in the API server. A
pool's nodes are Node objects that kwok keeps alive; nothing runs on them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from emulator.gke.metrics import GpuMetrics
from emulator.gke.networking import DeviceNetworkControllers
from emulator.gke.nodes import Autoscaler
from emulator.gke.services import LoadBalancers
from emulator.google.cloud import Cloud
from emulator.google.errors import CloudError
from emulator.kubernetes import control_plane, crds
from emulator.kubernetes.api import Api
from emulator.machine.state import State

INTERVAL_SECONDS = 1.0

COMPUTE_CLASS_SECONDS = 3.0
"""How long after the cluster its ComputeClass type arrives; on real GKE it takes minutes to about an hour."""


class ResourceTypes:
    """GKE's own CRDs: the networking ones with the cluster, ComputeClass some time later."""

    def __init__(self, api: Api, cloud: Cloud) -> None:
        self._api, self._cloud = api, cloud
        self._seen: float | None = None
        self._installed: set[str] = set()

    def step(self) -> None:
        """Install what is due."""
        if not self._cloud.list("container/cluster"):
            self._seen = None
            return
        self._seen = self._seen or self._cloud.now()
        self._once("networking", crds.install_networking)
        self._once("queued provisioning", crds.install_provisioning)
        if self._cloud.now() - self._seen >= COMPUTE_CLASS_SECONDS:
            self._once("compute class", crds.install_compute_class)

    def _once(self, name: str, install: Callable[[Api], None]) -> None:
        if name not in self._installed:
            install(self._api)
            self._installed.add(name)


def main() -> None:
    """Play GKE until the process is ended."""
    state = State.from_environment()
    api, cloud = control_plane.connect(state), Cloud(state.directory)
    types = ResourceTypes(api, cloud)
    steps = (
        types.step,
        Autoscaler(api, cloud).step,
        DeviceNetworkControllers(api, cloud).step,
        LoadBalancers(api, cloud).step,
        GpuMetrics(api, cloud).step,
    )
    # The machine may be too busy for the database, or its disk full.
    control_plane.keep_doing(INTERVAL_SECONDS, steps, (CloudError, sqlite3.OperationalError))


if __name__ == "__main__":
    main()
