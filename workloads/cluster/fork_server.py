"""A process that has imported the modules of a node's workers, and forks each worker when `fork_client` asks for it.

Imports take most of the time from a lost rank to the next step, and half a gigabyte of memory in each process. A fork
has them at once, in pages that all share. A server is its raylet's child, serves one job, and ends with its raylet, or
with its driver if that is on the same node, or some time after its last worker. After the imports it checks for
obstacles to forks: other threads, which do not survive in a fork, and random numbers that Ray has drawn, because every
fork would draw the same next ones. It does not touch CUDA: a fork of a process that has initialised CUDA cannot use it
(torch.cuda, "bad fork").
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import socket
import sys
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.cluster import fork_client
from workloads.cluster.fork_client import KIND, MADE, READY, REFUSED, TASK, is_strangers

LINGER_SECONDS = 60.0
"""How long a server without workers stays: those of a lost group have gone before the next ones come."""

LOOK_SECONDS = 0.5
"""How often a server looks for workers that have ended."""

END_SECONDS = 10.0
"""How long a server waits for the workers that end with their raylet or driver, as Ray ends them, so that it is their
parent until then."""

TASK_SECONDS = 5.0
"""How long a client that was told READY may take to send its task."""

SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",  # what Ray sets for an actor of one CPU, but after torch has read it
    "OPENBLAS_NUM_THREADS": "1",  # OpenBLAS, of NumPy, starts its threads when it is loaded
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # Arrow's allocator, too
}
"""Variables during the imports, where the environment does not have them."""


CLIENT = 'test -x "$0" -a -f "$1" && exec "$0" -I -S "$@"; shift 3; exec python "$@"'
"""What bash runs for a worker: Python with `fork_client`, or alone on a node that does not have both where they are."""


def executable(modules: Sequence[str]) -> str:
    """The `py_executable` of a Ray runtime environment whose workers are forked.

    Args:
        modules: what the server imports.
    """
    client = str(Path(fork_client.__file__).resolve())
    return shlex.join(["bash", "-c", CLIENT, sys.executable, client, ",".join(modules), process(os.getpid())])


PLACE = str(Path(__file__).resolve().parents[2])
"""Of this package; in a server's search path, where Python has the folder of a worker's script."""


def process(pid: int) -> str:
    """A process, told from a later one with the same number; empty if there is none.

    A driver is one on another node too, where nothing has both its number and its start.
    """
    try:
        facts = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return f"{pid}@{facts.rpartition(')')[2].split()[19]}"  # starttime, since the machine's: proc_pid_stat(5)


@dataclass(frozen=True)
class Task:
    """The start of a worker: its arguments, environment and output files."""

    arguments: list[str]
    """Its script, and what that is given."""
    environment: dict[str, str]
    directory: str


def main(place: str, lock: str, modules: str, driver: str) -> None:
    """Import, listen and fork. It returns when the server's time is over, and in each worker when that has ended.

    Args:
        place: path of the socket.
        lock: file descriptor of the lock that makes this the only server there.
        modules: to import, with commas between them.
        driver: the job's, as `process` writes it.
    """
    atexit.register(_leave)  # before the imports register theirs, and so the last to be called
    others = {found for found in (process(os.getppid()), driver) if _runs(found)}
    task = None
    with socket.socket(socket.AF_UNIX, KIND) as listener:
        if problem := _listen(listener, place) or _prepare(modules.split(",")):
            print(f"this node's workers are not forked: {problem}", file=sys.stderr, flush=True)
            Path(place + REFUSED).write_text(problem)
        else:
            task = _serve(listener, others)
        if task is None:
            Path(place).unlink(missing_ok=True)
    os.close(int(lock))
    if task is not None:
        _become(task)


def _listen(listener: socket.socket, place: str) -> str:
    """Before the imports, as clients can wait then; returns what is wrong, empty if nothing is."""
    try:
        Path(place).unlink(missing_ok=True)
        listener.bind(place)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        return f"{place}: {error.strerror or error}"
    return ""


def _prepare(modules: Sequence[str]) -> str:
    """Import; returns why there can be no forks after it, empty if there can."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in SINGLE_THREADED.items() if name not in before})
    try:
        _import(modules)
        return _unfit()
    except (Exception, SystemExit) as error:  # the worker's own import fails in the same way, where it is told
        return f"{type(error).__name__}: {error}"
    finally:
        for name in SINGLE_THREADED.keys() - before.keys():
            del os.environ[name]


def _import(modules: Sequence[str]) -> None:
    # Ray's own two are not public. They are imported here, not above: whoever asks for `executable` may not want Ray.
    actor: Any = importlib.import_module("ray.actor")
    native: Any = importlib.import_module("ray._raylet")

    class Ids:
        """Ray draws an id for each actor class that is defined, from the generator that forks would share."""

        @staticmethod
        def from_random() -> Any:
            """One of the kernel's."""
            return native.ActorClassID(os.urandom(native.ActorClassID.size()))

    native.setproctitle("ray::fork_server")
    gc.disable()  # none of it becomes garbage, and looking for that takes a sixth of the time
    actor.ActorClassID = Ids
    for module in modules:
        importlib.import_module(module)
    actor.ActorClassID = native.ActorClassID
    sys.stdout.flush()  # or each fork would print it
    gc.freeze()  # or the first collection in each fork would copy the pages of all of it
    gc.enable()


def _unfit() -> str:
    if (threads := len(list(Path("/proc/self/task").iterdir()))) > 1:
        return f"the imports have started {threads - 1} threads"
    if _draw() == _draw():
        return "the imports have drawn from Ray's random numbers"
    return ""


def _draw() -> bytes:
    """The first random number that a fork draws."""
    from ray import UniqueID

    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, UniqueID.from_random().binary())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as drawn:
        return drawn.read()


def _serve(listener: socket.socket, others: Set[str]) -> Task | None:
    """Fork as often as it is asked for.

    Args:
        listener: where it is asked.
        others: processes without any of which there is no more to do. Workers do not count then: one of Ray Train's
            outlives the driver.

    Returns:
        In each fork the task, and in the server, at its end, None.
    """
    needed = time.monotonic()
    while time.monotonic() - needed < LINGER_SECONDS and all(map(_runs, others)):
        ready, _, _ = select.select([listener], [], [], LOOK_SECONDS)
        if ready and (task := _accept(listener)) is not None:
            return task
        if _has_children():
            needed = time.monotonic()
    until = time.monotonic() + END_SECONDS
    while _has_children() and time.monotonic() < until:
        time.sleep(LOOK_SECONDS / 10)
    return None


def _runs(found: str) -> bool:
    return bool(found) and process(int(found.partition("@")[0])) == found


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _accept(listener: socket.socket) -> Task | None:
    """Fork for the next client; returns the task in the fork."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(TASK_SECONDS)
        handed: list[int] = []
        if is_strangers(connection):
            return None
        try:
            connection.send(READY)
            said, handed, _, _ = socket.recv_fds(connection, len(TASK), 4)
            if said != TASK:
                return None
            with os.fdopen(os.dup(handed[0]), "rb") as facts:
                facts.seek(0)
                task = Task(**json.load(facts))
            if not os.fork():
                _take_over(connection, handed[1:])
                return task
        except OSError as error:  # the client is gone, or becomes the worker itself when this connection ends
            print(f"a worker was not forked: {error}", file=sys.stderr)
        finally:
            for given in handed:
                os.close(given)
    return None


def _take_over(connection: socket.socket, outputs: Sequence[int]) -> None:
    """In a fork: tell the client, rather than have a server do it that might end before, and write where it does."""
    try:
        connection.send(MADE)
        for number, given in enumerate(outputs):
            os.dup2(given, number)
    except OSError:  # the client is gone; this fork must not go on as a second server
        os._exit(1)


def _leave() -> None:
    """End a process without freeing its memory piece by piece, for which a fork would first have to copy it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _become(task: Task) -> None:
    """Be the worker, in a fork: as if Python had been started for it."""
    os.setpgid(0, 0)  # as Ray starts its workers: a signal to one's group is not the others'
    os.environ.clear()
    os.environ.update(task.environment)
    os.chdir(task.directory)
    importlib.import_module("numpy").random.seed()  # Python's own generator does so itself
    sys.argv = task.arguments
    sys.path[sys.path.index(PLACE)] = str(Path(task.arguments[0]).parent)
    runpy.run_path(task.arguments[0], run_name="__main__")
