"""A real Ray, a head and two workers on 127.0.0.1, with a stack's variables and token, and an emulated Google."""

from __future__ import annotations

import secrets
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from emulator.google.cloud import Cloud
from emulator.machine import processes
from emulator.machine.state import State
from emulator.ray import nodes as ray_nodes
from emulator.ray.deployed_ray import DeployedRay
from emulator.rest.cloud_server import CloudServer
from tests.emulator.google import make_bucket
from tests.support import stub_kubectl
from tests.support.processes import begun, command, descendants, python, usual_variables
from workloads.environment import ClusterEnvironment


@dataclass(frozen=True)
class Cluster:
    """A running Ray and what a client on this machine needs to use it."""

    state: State
    environment: ClusterEnvironment
    token: str
    variables: dict[str, str]
    """Environment of a client: a kubectl that knows this cluster, and where the emulated Google is."""

    def run(self, *arguments: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        """`python -m workloads` as a user on this machine."""
        return python("-m", "workloads", *arguments, env=self.variables, timeout=timeout)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The same, left running."""
        return begun("-m", "workloads", *arguments, env=self.variables)

    def processes(self, words: str = "") -> list[int]:
        """Running processes of this Ray, those of its jobs included, whose command line has these words."""
        nodes = [pid for node in self.state.processes() for pid in processes.session_of(node)]
        return [pid for pid in {*nodes, *(pid for node in nodes for pid in descendants(node))} if words in command(pid)]

    def bucket(self, uri: str) -> Path:
        """The folder that a mount of a bucket would be."""
        return self.state.directory / "buckets" / uri.removeprefix("gs://")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One Ray for all tests here; they leave it as they found it."""
    state = State(tmp_path_factory.mktemp("ray") / ".oasis")
    cloud = Cloud(state.directory)
    server = CloudServer(cloud, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    google = f"http://127.0.0.1:{server.server_address[1]}"
    endpoints = {"STORAGE_EMULATOR_HOST": google, "CLOUD_STORAGE_EMULATOR_ENDPOINT": google}
    url = f"http://127.0.0.1:{state.port('ray-dashboard')}"
    environment = replace(stub_kubectl.OUTPUTS, ray_dashboard_url=url)
    for uri in (environment.data_uri, environment.runs_uri):
        make_bucket(cloud, uri.removeprefix("gs://"), environment.project)
    token = secrets.token_hex(32)
    outputs = {name: str(value) for name, value in vars(environment).items()}
    try:
        ray_nodes.start(state, DeployedRay(environment=outputs, token=token), endpoints, print)
        path = stub_kubectl.install(tmp_path_factory.mktemp("bin"), environment, token)
        yield Cluster(state, environment, token, usual_variables(**endpoints, PATH=path))
    finally:
        ray_nodes.stop(state)
        server.shutdown()
