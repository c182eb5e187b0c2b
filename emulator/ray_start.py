"""`ray start` for several nodes on 127.0.0.1: run as a script, with the arguments of `ray start`.

Ray listens on loopback alone only where it takes the machine for a single-node one (what its processes read from
RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0), and there its command line refuses a second node. This lifts the refusal alone.
"""

import contextlib
import socket
import sys
import time
from types import SimpleNamespace
from unittest import mock

from ray._private import ray_constants
from ray.scripts import scripts

_HEAD_SECONDS = 120


def main() -> None:
    """Run `ray start` with a view of Ray's constants in which a second node is allowed; the rest sees the real ones."""
    for argument in sys.argv[1:]:
        if argument.startswith("--address="):
            _await(*argument.removeprefix("--address=").split(":"))
    permissive = SimpleNamespace(**{**vars(ray_constants), "ENABLE_RAY_CLUSTER": True})
    with mock.patch.object(scripts, "ray_constants", permissive):
        scripts.cli(["start", *sys.argv[1:]], prog_name="ray")


def _await(host: str, port: str) -> None:
    """Return once the head listens: a worker is started beside it, as loading Ray takes both of them seconds."""
    deadline = time.monotonic() + _HEAD_SECONDS
    while time.monotonic() < deadline:
        with contextlib.closing(socket.socket()) as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.1)


if __name__ == "__main__":
    main()
