"""`ray start` for several nodes on 127.0.0.1: run as a script, with the arguments of `ray start`.

Ray listens on loopback alone only where it takes the machine for a single-node one (what its processes read from
RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0), and there its command line refuses a second node. This lifts the refusal, and the
30 seconds within which a node must have joined, which a machine busy with another cluster does not always keep.
"""

import contextlib
import importlib
import socket
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ray._private import ray_constants, services
from ray.exceptions import RayError
from ray.scripts import scripts

_HEAD_SECONDS = 240
_NODE_SECONDS = 120


def main() -> None:
    """Run `ray start` with a view of Ray's constants in which a second node is allowed; the rest sees the real ones."""
    for argument in sys.argv[1:]:
        if argument.startswith("--address="):
            _await(argument.removeprefix("--address="))
    permissive = SimpleNamespace(**{**vars(ray_constants), "ENABLE_RAY_CLUSTER": True})
    patient = mock.patch.object(services, "get_node", _patient(services.get_node, _NODE_SECONDS))
    with mock.patch.object(scripts, "ray_constants", permissive), patient:
        scripts.cli(["start", *sys.argv[1:]], prog_name="ray")


def _patient(get_node: Callable[[str, str], dict[str, Any]], seconds: float) -> Callable[[str, str], dict[str, Any]]:
    """Ray's `get_node`, which raises RuntimeError for a node that has not joined, asked again for so many seconds."""
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


def _await(address: str) -> None:
    """Return once the head is a node of its cluster, which Ray by itself gives it too little time for.

    A worker is started beside the head, as loading Ray takes both of them seconds; the rest of its start would take
    the head's processor time on a busy machine.
    """
    deadline = time.monotonic() + _HEAD_SECONDS
    while time.monotonic() < deadline and not _has_a_node(address):
        time.sleep(0.2)


def _has_a_node(address: str) -> bool:
    host, port = address.split(":")
    with contextlib.closing(socket.socket()) as probe:
        if probe.connect_ex((host, int(port))):  # Ray's client would wait for it, and complain
            return False
    try:
        # A compiled module, whose contents no checker of types can see.
        return bool(importlib.import_module("ray._raylet").GcsClient(address=address).get_all_node_info())
    except (RayError, RuntimeError):  # it listens, and does not answer yet
        return False


if __name__ == "__main__":
    main()
