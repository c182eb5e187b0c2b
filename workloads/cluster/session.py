"""The connection to Ray: inside a job, at an address, or embedded in this process. The workloads do not know which.

`prepare` must run before anything imports ray, because Ray reads the variable that keeps an embedded cluster on
loopback when it is imported.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from workloads import interruption
from workloads.cluster import fork_server
from workloads.environment import FORK_VARIABLE, ClusterEnvironment, variable
from workloads.errors import PlaceError, first_line
from workloads.reporting import progress

_EMBEDDED = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Linux too: the one switch that binds Ray's servers to 127.0.0.1
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_DEDUP_LOGS": "0",
    # Ray runs workers at niceness 15, so that its own servers come first (ray-project/ray pull request 24928): beside
    # whatever else computes here, they would get next to nothing.
    "RAY_worker_niceness": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run` Ray starts workers in another way, but they have our Python
}
_OBJECT_STORE_BYTES = 200_000_000
_SOCKET = "/oasis-12345678/session_2026-12-31_23-59-59_123456_4194304/sockets/plasma_store"
"""The longest of an embedded Ray's, below the folder for temporary files."""

_LONGEST_SOCKET = 107 if sys.platform == "linux" else 103
"""Bytes of a socket's address that Ray allows here and on macOS (ray 2.60, validate_socket_filepath)."""

_LISTENER_SECONDS = 10.0
"""A head that is up answers within a round trip of its network, or of a port-forward."""

_STARTING = "starting Ray on this machine, which takes 5 to 20 s"
_STARTS = 2
_TOO_LATE = "node timed out during startup"
"""Words of the error of a node that is not up after 30 s, which cannot be set (ray 2.60, _private/node.py)."""

_PYTHON_KEPT = {"working_dir", "py_modules", "excludes", "env_vars", "config", "worker_process_setup_hook"}
"""Fields of a job's runtime environment that leave its workers the Python that this process has."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Facts that a workload may know about the place it runs in."""

    address: str | None
    """Address of a running Ray; None for one embedded in this process, which ends with it."""
    environment: ClusterEnvironment | None
    """What the stack promises; None outside a stack's cluster, where nothing but Ray's own resources is known."""
    told_by: str = ""
    """Where a client, outside the place, has `environment` from; empty inside, where variables have it."""

    @property
    def embedded(self) -> bool:
        """True if Ray lives and dies with this process."""
        return self.address is None

    @property
    def wandb_secret(self) -> str:
        """Secret Manager resource with the stack's W&B key; empty for none."""
        return self.environment.wandb_secret if self.environment else ""


def prepare(address: str | None = None) -> Place:
    """Decide where Ray is, and set the variables that it reads from the environment.

    Args:
        address: `host:port` of a running Ray's GCS. Without it, RAY_ADDRESS, which Ray sets inside a job; without that,
            an embedded cluster.

    Raises:
        PlaceError: ray was imported already, so an embedded one could not be kept on loopback.
        EnvironmentContractError: OASIS_ variables are set, and incomplete.
    """
    promised = variable("project") in os.environ
    environment = ClusterEnvironment.from_env() if promised else None
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is None:
        unset = [name for name, value in _EMBEDDED.items() if os.environ.get(name) != value]
        if "ray" in sys.modules and "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" in unset:
            raise PlaceError(
                "ray was imported before the place was prepared, so an embedded Ray would listen on every interface.",
                "Call session.prepare() first, or set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 in the environment.",
            )
        os.environ.update(_EMBEDDED)
        # A token of its own: Ray would otherwise write one to the user's home, and later send it to other clusters.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    return Place(address=address, environment=environment)


@contextmanager
def connect(place: Place, *, cpus: int = 2, imports: Sequence[str] = ()) -> Iterator[None]:
    """Be connected to Ray for the length of the block; an embedded one is started for it and ends with it.

    Within another such block it is that block's connection, with what that imports.

    Args:
        place: what `prepare` returned.
        cpus: CPUs an embedded Ray offers, whatever the machine has. A cluster has its own.
        imports: modules that each node imports once, for all workers of this process, which are forked then; see
            `fork_server`. Without any, and where `forked_workers` says no, they are started as Ray does.

    Raises:
        PlaceError: no Ray answers at the address, or the embedded one does not start.
    """
    progress.wait(_STARTING if place.embedded else f"connecting to Ray at {place.address}")
    import ray

    if ray.is_initialized():
        yield
        return
    if place.address:
        _check_listener(place, place.address)
    environment = _runtime_environment(place, imports)
    directory = tempfile.mkdtemp(prefix="oasis-", dir=_short_folder()) if place.embedded else ""
    where: dict[str, Any] = {"address": place.address}
    if place.embedded:
        where = {
            "num_cpus": cpus,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_temp_dir": directory,
        }
    try:
        try:
            with interruption.handlers_kept():
                _init(log_to_driver=False, logging_level=logging.WARNING, runtime_env=environment, **where)
        except SystemExit as ended:  # how Ray's own handler answers SIGTERM
            raise KeyboardInterrupt from ended
        except Exception as error:  # of many kinds
            raise _unreachable(place, error) from error
        progress.wait_over()
        yield
    finally:
        _shut_down(directory)


def _short_folder() -> str:
    """Where an embedded Ray may have its files: $TMPDIR or its like, unless the addresses of Ray's sockets would be too
    long there, as in macOS's (ray-project/ray pull request 17161) or a batch job's (verl-project/verl issue 1120)."""
    found = tempfile.gettempdir()
    return found if len(os.fsencode(found)) + len(_SOCKET) <= _LONGEST_SOCKET else "/tmp"


def _init(**options: Any) -> None:
    """`ray.init`, once more where a node of its own was too late: the next one finds files and modules in memory."""
    import ray

    for left in reversed(range(_STARTS)):
        with _groups_of_their_own() as started:
            try:
                ray.init(**options)
                return
            except Exception as error:
                if not left or _TOO_LATE not in str(error):
                    raise
                for process in started:
                    process.kill()
                    process.wait()
                progress.wait("Ray was not up within the 30 s that it gives itself; starting it once more")


@contextmanager
def _groups_of_their_own() -> Iterator[list[subprocess.Popen[Any]]]:
    """Ray's servers leave the process group of this driver, which alone answers a signal to the whole group: `timeout`
    and a shell's `kill %1` send one, and a driver whose servers have ended waits for them for a minute and dies.

    Yields:
        Ray's servers, as they start.
    """
    from ray._private import services

    started: list[subprocess.Popen[Any]] = []

    class Popen(services.ConsolePopen):
        def __init__(self, *args: Any, **given: Any) -> None:
            super().__init__(*args, process_group=0, **given)
            started.append(self)

    before, services.ConsolePopen = services.ConsolePopen, Popen
    try:
        yield started
    finally:
        services.ConsolePopen = before


def _shut_down(directory: str) -> None:
    """End the connection to Ray completely: a second Ctrl-C would leave processes and their files behind.

    Args:
        directory: of an embedded Ray; empty for a connection to another.
    """
    import ray

    interrupted = isinstance(sys.exc_info()[1], KeyboardInterrupt)
    with interruption.handlers_kept():
        if threading.current_thread() is threading.main_thread():
            interruption.ignore()
        if interrupted and directory:  # whoever wanted the connection says the rest
            with suppress(BrokenPipeError):  # nobody may read on
                progress.note("ending Ray, which takes some seconds")
        ray.shutdown()
        if directory:
            shutil.rmtree(directory, ignore_errors=True)


def release_places() -> None:
    """Remove the placement groups of this connection, and end what runs in them.

    Ray does so when a connection ends. A process that trains several times over one has to after each, as what ended
    Ray Train's controller may have kept it from doing so.
    """
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

    mine = ray.get_runtime_context().get_job_id()  # the end of each id of the job's (ray 2.60, common/id.h)
    for found in placement_group_table().values():
        if found["placement_group_id"].endswith(mine) and found["state"] != "REMOVED":
            identity = ray.PlacementGroupID(bytes.fromhex(found["placement_group_id"]))
            remove_placement_group(PlacementGroup(identity))


def forked_workers(place: Place) -> tuple[bool, str]:
    """True if workers are forked where they can be, and the reason in a few words.

    Args:
        place: where the workers are to run. Of a client, outside it, neither variable nor job is asked.
    """
    if not place.told_by:
        if sys.platform != "linux":
            return False, "only Linux can fork them"
        job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")).get("runtime_env") or {}
        if job.keys() - _PYTHON_KEPT:
            return False, "the job's Python is not this one"
        if said := os.environ.get(FORK_VARIABLE):
            return said != "0", f"variable {FORK_VARIABLE}"
    if place.environment is not None and place.environment.gpus_per_node:
        return False, f"default: tried on no GPU yet; {FORK_VARIABLE}=1 in the job turns it on"
    return True, "default"


def _runtime_environment(place: Place, imports: Sequence[str]) -> dict[str, str]:
    return {"py_executable": fork_server.executable(imports)} if imports and forked_workers(place)[0] else {}


def _check_listener(place: Place, address: str) -> None:
    """Refuse at once an address where nobody listens: Ray itself asks on for minutes.

    Raises:
        PlaceError: nobody does.
    """
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdecimal():
        return  # `auto` and its like, which Ray answers
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_LISTENER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(place, error) from error


def _unreachable(place: Place, error: Exception) -> PlaceError:
    said = first_line(error).rstrip(".")
    if place.embedded:
        return PlaceError(
            f"The embedded Ray did not start: {said}.",
            "Start it again with less running beside it, or run it in a job (`python -m workloads submit -- ...`).",
        )
    return PlaceError(
        f"No Ray answers at {place.address}: {said}.",
        "Run it in a job (`python -m workloads submit -- ...`), or leave --address out for an embedded Ray.",
    )
