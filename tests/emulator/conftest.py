"""The emulated platform for tests: a control plane of their own, never the one in the checkout's `.oasis`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from emulator import build, lifecycle
from emulator.engine.commands import Engine
from emulator.google.cloud import Cloud
from emulator.kubernetes import control_plane
from emulator.kubernetes.api import Api, ApiError, Body
from emulator.machine.state import CHECKOUT, State
from tests.support.processes import python
from tests.support.waiting import eventually

PATIENCE_SECONDS = 900  # a Ray that starts beside another test's takes minutes on two cores


def shell(state: State) -> dict[str, str]:
    """The environment of a shell with what `python -m emulator env` prints."""
    return {**os.environ, **lifecycle.environment(state)}


@pytest.fixture
def state(tmp_path: Path) -> State:
    """The folder of an emulator that has nothing yet."""
    return State(tmp_path / ".oasis")


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane and the emulated cloud beside it."""

    state: State
    api: Api
    cloud: Cloud


@pytest.fixture(scope="session")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, API server, controller-manager, scheduler and kwok, and nothing that plays GKE."""
    state = State(tmp_path_factory.mktemp("emulator") / ".oasis")
    try:
        build.provide(state, print)
        control_plane.start(state)
        yield ControlPlane(state, control_plane.connect(state), Cloud(state.directory))
    finally:
        state.stop_all()


@dataclass(frozen=True)
class Emulated:
    """The whole platform, deployed: the local stack of this checkout on an emulator of its own."""

    state: State
    lines: list[str]
    """What was reported so far."""
    empty: set[str]
    """Every object that the API server had before the stack was deployed, as `objects` names them."""

    @property
    def api(self) -> Api:
        """An administrator's connection to the emulated cluster."""
        return control_plane.connect(self.state)

    @property
    def cloud(self) -> Cloud:
        """The emulated Google Cloud."""
        return Cloud(self.state.directory)

    def engine(self, overlay: Mapping[str, Any] | None = None) -> Engine:
        """An engine for the stack with other settings on top."""
        return lifecycle.engine(self.state, self.lines.append, overlay)

    def start_workloads(self, *words: str) -> subprocess.Popen[str]:
        """`python -m workloads` as a user types it, running."""
        command = [sys.executable, "-m", "workloads", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=shell(self.state), cwd=CHECKOUT, stdout=pipe, stderr=pipe, text=True)

    def workloads(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`python -m workloads`, done."""
        return python("-m", "workloads", *words, env=shell(self.state), timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    """`python -m emulator up`, done; a test that changes or destroys it puts it back."""
    state = State(tmp_path_factory.mktemp("platform") / ".oasis")
    found = Emulated(state, [], set())
    try:
        with lifecycle.started(state, found.lines.append) as engine:
            for kind in ("ServiceAccount", "ConfigMap"):  # the controllers' own, one in every namespace
                eventually(lambda kind=kind: len({namespace(o) for o in objects(found.api) if f" {kind} " in o}) >= 4)
            found.empty.update(objects(found.api))
            lifecycle.deploy(state, engine, found.lines.append)
        yield found
    finally:
        lifecycle.take_down(state)


def objects(api: Api) -> set[str]:
    """`<group> <kind> <namespace>/<name>` of every object of every kind that is served, but events."""
    groups = api.request("GET", "/apis")["groups"]
    prefixes = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    found: set[str] = set()
    for prefix in prefixes:
        for resource in resources(api, prefix):
            if "/" in resource["name"] or "list" not in resource["verbs"] or resource["kind"] == "Event":
                continue
            for item in _items(api, f"{prefix}/{resource['name']}"):
                place = f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
                found.add(f"{prefix.split('/')[2]} {resource['kind']} {place}")
    return found


def resources(api: Api, prefix: str) -> list[Body]:
    """What discovery names below `/apis/<group>/<version>`."""
    try:
        return api.request("GET", prefix)["resources"]
    except ApiError as error:
        if error.status != 404:  # a group is named a moment before it is served, and a moment longer
            raise
        return []


def _items(api: Api, path: str) -> list[Body]:
    while True:
        try:
            return api.request("GET", path)["items"]
        except ApiError as error:
            if error.status == 404:  # the type went after it was named
                return []
            if "(re)initializing" not in error.message:  # so says a type that was installed a moment ago
                raise
            time.sleep(0.2)


def namespace(named: str) -> str:
    """Of an object that `objects` named."""
    return named.split()[2].partition("/")[0]
