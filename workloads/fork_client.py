"""What Ray runs in place of Python where workers are forked: asks the node's fork server for the worker, or becomes it.

`python -I -S fork_client.py MODULES DRIVER SCRIPT ARGUMENT...`, SCRIPT and what follows as Ray gives it to Python. The
first such process of a job on a node becomes the server (`fork_server`), which imports MODULES once; each worker is
then a fork of it, and this process is done as soon as its worker is there. Where no server comes, for whatever reason,
this process becomes the worker itself, as it would have without: forked workers are there sooner, and are no others.

Python runs this file without its site-packages, since each worker waits for it: standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

WAIT_SECONDS = 40.0
"""For a server that still imports. Ray gives a worker up that is not there within 60 s (ray 2.60,
worker_register_timeout_seconds), and its imports may come after."""

RETRY_SECONDS = 0.02
"""Between two looks for a server that does not listen yet."""

KIND = socket.SOCK_SEQPACKET
"""Of the server's socket: a message arrives whole, and so does the end."""

READY, TASK, MADE = b"ready", b"task", b"made"
"""What is said: by the server, when it can fork; by the client, with the worker's facts, its input and its outputs; by
the server, when the worker is there."""

REFUSED = ".refused"
"""Ending of the file beside the server's socket that says why this node's workers are not forked."""

LOCK = ".lock"
"""Ending of the file that a server has locked for as long as it lives."""


def main(modules: str, driver: str, *arguments: str) -> None:
    """Have the worker made; returns when it is, and otherwise not at all.

    Args:
        modules: what the server imports, with commas between them.
        driver: process of the job's driver, as `fork_server.process` writes it.
        arguments: of Python, for the worker.
    """
    place = address(arguments, modules)
    until = time.monotonic() + WAIT_SECONDS
    while place and time.monotonic() < until and not Path(place + REFUSED).exists():
        lock = _lock(place + LOCK)
        if lock is not None and os.fork():
            _become_server(place, lock, modules, driver)
        if lock is not None:
            os.close(lock)
        if _made(place, arguments, until):
            return
        time.sleep(RETRY_SECONDS)
    os.execv(sys.executable, [sys.executable, *arguments])


def address(arguments: Sequence[str], modules: str) -> str:
    """Where the server for a worker like this one listens: one for each job, environment and raylet.

    Returns:
        The path of a socket beside the raylet's own; empty without a raylet.
    """
    raylet = [word.partition("=")[2] for word in arguments if word.startswith("--raylet-name=")]
    if not raylet:
        return ""
    facts = json.dumps([sorted(os.environ.items()), str(Path.cwd()), modules])
    # unix(7) allows 107 characters in all; this name is no longer than Ray's `plasma_store` beside it.
    return str(Path(raylet[0]).with_name("f" + hashlib.sha256(facts.encode()).hexdigest()[:11]))


def _lock(path: str) -> int | None:
    """Lock a file, unless somebody else has; the lock is held for as long as a copy of the descriptor is open."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _become_server(place: str, lock: int, modules: str, driver: str) -> None:
    os.set_inheritable(lock, True)
    # The place of this package goes where Python has put the current directory.
    code = (
        f"import sys; sys.path[0 : not sys.flags.safe_path] = [{str(Path(__file__).resolve().parents[1])!r}]; "
        "from workloads import fork_server; fork_server.main(*sys.argv[1:])"
    )
    os.execv(sys.executable, [sys.executable, "-c", code, place, str(lock), modules, driver])


def _made(place: str, arguments: Sequence[str], until: float) -> bool:
    """Ask the server for the worker; False where there is none, or none any more, or it makes none."""
    facts = {"arguments": arguments, "environment": dict(os.environ), "directory": str(Path.cwd())}
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
        os.fdopen(os.memfd_create("worker"), "wb") as task,
    ):
        task.write(json.dumps(facts).encode())
        task.flush()
        try:
            server.settimeout(max(0.0, until - time.monotonic()))
            server.connect(place)
            # A server that is not ready yet would make what it was sent after this process has given it up.
            if server.recv(len(READY)) != READY:
                return False
            server.settimeout(None)
            socket.send_fds(server, [TASK], [task.fileno(), 0, 1, 2])
            return server.recv(len(MADE)) == MADE
        except OSError:
            return False


if __name__ == "__main__":
    main(*sys.argv[1:])
