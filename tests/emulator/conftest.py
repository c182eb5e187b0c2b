"""The emulated platform for tests: a control plane of their own, never the one in the checkout's `.oasis`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from emulator import build, control_plane
from emulator.api import Api
from emulator.cloud import Cloud
from emulator.state import State


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


def eventually(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for what a controller does in its own time; fails with the last answer."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"after {seconds:.0f} s the answer is still {answer!r}"
        time.sleep(0.1)


def listening_addresses() -> set[str]:
    """Addresses (hexadecimal, as the kernel writes them) with a TCP listener, from /proc/net/tcp and tcp6."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                found.add(f"{fields[1]} {fields[9]}")
    return found
