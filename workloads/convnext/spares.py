"""Spare processes: on each node as many as a run has ranks there, with everything imported, doing nothing.

When a rank is lost, Ray Train ends all others too and starts anew. New processes and their imports are most of the time
from there to the next step, and a spare has both behind it. It is one of Ray's own idle processes: Ray gives a new
actor one that has run nothing yet and has the same runtime environment, and ends those of a job that is over (ray 2.60,
raylet/worker_pool.cc, FindAndPopIdleWorker and TryKillingIdleWorkers). They hold no CPU and no GPU of Ray's.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import threading
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import grpc
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray._private.ray_constants import WORKER_PROCESS_SETUP_HOOK_ENV_VAR

SETTLE_SECONDS = 10.0
"""After a start: the first steps have the cores for themselves."""

TRIES, TRY_SECONDS = 10, 5.0
"""How often, and how long after each other, a raylet is asked for the spares that are missing."""

KEEP_SECONDS = 30 * 24 * 3600
"""How long a raylet keeps a spare that nobody needs: longer than any run, as it ends when its job does."""

CALL_SECONDS = 10.0
"""How long the raylet may take to answer."""

PROTOCOL = ("common_pb2", "node_manager_pb2", "node_manager_pb2_grpc")
"""Ray's modules with the request, and with the service that takes it."""

HELPERS = 2
"""Ray Train's own actors that every start of a group waits for: its barrier for reports, its watch over nodes."""


class Kind(StrEnum):
    """What a spare is for; its value names what its process runs first."""

    RANK = f"{__name__}.prepare_rank"
    HELPER = f"{__name__}.prepare_helper"

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment of its processes.

        Ray's own setting for what a process runs first is a job's as a whole; the variable that Ray makes of it is not.
        It is read before Ray has told the process where the driver imports from.
        """
        places = [str(Path(__file__).parents[2]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        return {WORKER_PROCESS_SETUP_HOOK_ENV_VAR: self.value, "PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}


def prepare_rank() -> None:
    """Import what a rank needs."""
    # As Ray does for an actor of one CPU, unless it is set; for a spare Ray would do it after torch has read it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _import("workloads.convnext.worker")


def prepare_helper() -> None:
    """Import what Ray Train's controller and its helpers need."""
    _import("workloads.convnext.trainer")


def _import(module: str) -> None:
    gc.disable()  # none of it becomes garbage, and looking for that takes a sixth of the time
    with contextlib.suppress(Exception):  # it fails again in the process's own work, whose words reach the user
        importlib.import_module(module)
    gc.enable()


class Standby:
    """Has this process's node keep so many spares of a kind, from when the start that it was made in has settled."""

    def __init__(self, kind: Kind, wanted: int, say: Callable[[str], None]) -> None:
        """Begin to wait.

        Args:
            kind: of this process too, since Ray gives a spare the runtime environment that this one has.
            wanted: how many.
            say: told, if there will be none.
        """
        self._kind, self._wanted, self._say = kind, wanted, say
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="spares", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask no more; spares that are there stay."""
        self._closing.set()

    def _ask(self) -> None:
        pause = SETTLE_SECONDS
        for _ in range(TRIES):
            if self._closing.wait(pause):
                return
            try:
                if not provide(self._kind, self._wanted):
                    return
            except grpc.RpcError as error:
                problem = f"this node's raylet answers {error.code().name}"
                self._say(f"no spare processes, so a restart takes longer: {problem}")
                return
            pause = TRY_SECONDS


def provide(kind: Kind, wanted: int) -> int:
    """Ask this node's raylet, whose child this process is, for the spares that are missing.

    Returns:
        How many were. A raylet starts as many at a time as it has CPUs, at least one, and forgets about the others.

    Raises:
        grpc.RpcError: the raylet does not answer.
    """
    context = ray.get_runtime_context()
    job = context.get_job_id()
    missing = max(0, wanted - len(standing_by(os.getppid(), job, kind)))
    if not missing:
        return 0
    # Generated from Ray's .proto files, whose messages no type checker knows; Python has no other way to this call.
    common, messages, services = (importlib.import_module(f"ray.core.generated.{name}") for name in PROTOCOL)
    request = messages.PrestartWorkersRequest(
        language=common.PYTHON,
        job_id=bytes.fromhex(job),
        runtime_env_info={"serialized_runtime_env": context.get_runtime_env_string()},
        keep_alive_duration_secs=KEEP_SECONDS,
        num_workers=missing,
    )
    here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    connection: Any = init_grpc_channel(f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}")
    with connection as channel:
        services.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=CALL_SECONDS)
    return missing


def standing_by(raylet: int, job: str, kind: Kind) -> list[int]:
    """The processes of a job's spares on this machine, starting or ready.

    Args:
        raylet: its process, whose children they are.
        job: Ray's id of the job, which Ray puts into their environment.
        kind: what they are for.
    """
    marks = {f"RAY_JOB_ID={job}".encode(), f"{WORKER_PROCESS_SETUP_HOOK_ENV_VAR}={kind.value}".encode()}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            name, _, facts = (process / "stat").read_text().rpartition(")")
            variables = (process / "environ").read_bytes().split(b"\0")
            taken = "(ray::" in name and "(ray::IDLE" not in name  # Ray names a process after its actor
            if int(facts.split()[1]) == raylet and not taken and marks.issubset(variables):
                found.append(int(process.name))
    return found
