"""`ray start` for several nodes on 127.0.0.1: run as a script, with the arguments of `ray start`.

Ray listens only on loopback if it takes the machine for a single-node one (its processes read that from
RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0), and then its command line refuses a second node. This script lifts that refusal,
and also the limit of 30 seconds for a node to join, which a machine busy with another cluster does not always meet.
Each node's agent is told which node is its own; see `agent`.
"""

import contextlib
import importlib
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ray._private import ray_constants, services
from ray.exceptions import RayError
from ray.scripts import scripts

_HEAD_SECONDS = 240
_NODE_SECONDS = 120


def main() -> None:
    """Run `ray start` with constants that allow a second node; the rest of Ray sees the real constants."""
    for argument in sys.argv[1:]:
        if argument.startswith("--address="):
            _await(argument.removeprefix("--address="))
    permissive = SimpleNamespace(**{**vars(ray_constants), "ENABLE_RAY_CLUSTER": True})
    patient = mock.patch.object(services, "get_node", _patient(services.get_node, _NODE_SECONDS))
    python = services._build_python_executable_command_memory_profileable
    agents = mock.patch.object(services, python.__name__, _with_own_agent(python))
    with mock.patch.object(scripts, "ray_constants", permissive), patient, agents:
        scripts.cli(["start", *sys.argv[1:]], prog_name="ray")


def _patient(get_node: Callable[[str, str], dict[str, Any]], seconds: float) -> Callable[[str, str], dict[str, Any]]:
    """Ray's `get_node`, retried for so many seconds while it raises RuntimeError for a node that has not joined."""
    deadline = time.monotonic() + seconds

    def get(gcs_address: str, node_id: str) -> dict[str, Any]:
        while True:
            try:
                return get_node(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    return get


def _with_own_agent(python: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Ray's command prefix for the script of each process that it starts, with `agent` added for a node's agent."""

    def command(component: str, session_dir: str, unbuffered: bool = True) -> list[str]:
        words = python(component, session_dir, unbuffered)
        if component != ray_constants.PROCESS_TYPE_DASHBOARD_AGENT:
            return words
        # -P: this folder has modules named like the standard library's.
        return [*words, "-P", str(Path(__file__).with_name("agent.py"))]

    return command


def _await(address: str) -> None:
    """Wait until the head is a node of its cluster; Ray's own wait is too short.

    A worker starts at the same time as the head, as loading Ray takes seconds for both; on a busy machine, the rest of
    the worker's start would take processor time from the head.
    """
    deadline = time.monotonic() + _HEAD_SECONDS
    while time.monotonic() < deadline and not _has_a_node(address):
        time.sleep(0.2)


def _has_a_node(address: str) -> bool:
    host, port = address.split(":")
    with contextlib.closing(socket.socket()) as probe:
        if probe.connect_ex((host, int(port))):  # Ray's client would wait for the port, and complain
            return False
    try:
        # A compiled module, whose contents no type checker can see.
        return bool(importlib.import_module("ray._raylet").GcsClient(address=address).get_all_node_info())
    except (RayError, RuntimeError):  # it listens but does not answer yet
        return False


if __name__ == "__main__":
    main()
