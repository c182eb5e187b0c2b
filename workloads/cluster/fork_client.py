"""The program that Ray runs instead of Python if workers are forked: it asks the node's fork server for the worker, or
becomes the server or the worker itself.

`python -I -S fork_client.py MODULES DRIVER SCRIPT ARGUMENT...`, SCRIPT and the rest as Ray gives them to Python. The
first such process of a job on a node becomes the server (`fork_server`), which imports MODULES once; each worker is
then a fork of it, and this process ends as soon as its worker is there. If no server comes, for whatever reason, this
process becomes the worker itself, as it would have without forks: a forked worker differs only in starting sooner.

Python runs this file without its site-packages, because each worker waits for it: standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

WAIT_SECONDS = 35.0
"""For a server that still imports, since Ray has launched the worker. Ray gives one up that is not there within 60 s
(ray 2.60, worker_register_timeout_seconds), imports of its own not counted, which come after that."""

RETRY_SECONDS = 0.02
"""Between two looks for a server that does not listen yet."""

KIND = socket.SOCK_SEQPACKET
"""Of the server's socket: a message arrives whole, and so does the end."""

READY, TASK, MADE = b"ready", b"task", b"made"
"""What is said: by the server, when it can fork; by the client, with the worker's facts, its input and its outputs; by
the fork."""

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
    with contextlib.suppress(OSError):  # no room, no folder, no more processes: the worker may do without
        if _forked(modules, driver, arguments):
            return
    os.execv(sys.executable, [sys.executable, *arguments])


def _forked(modules: str, driver: str, arguments: Sequence[str]) -> bool:
    """True if a server made the worker; there is one, or this process's parent becomes it."""
    place = address(arguments, modules)
    launched = [int(word.partition("=")[2]) / 1000 for word in arguments if word.startswith("--worker-launch-time-ms=")]
    until = min([*launched, time.time()]) + WAIT_SECONDS
    while place and time.time() < until and not Path(place + REFUSED).exists():
        lock = _lock(place + LOCK)
        if lock is not None:
            if os.fork():
                _become_server(place, lock, modules, driver)
            os.setpgid(0, 0)  # not the server's: Ray ends what is left of a worker's group when the worker has gone
            os.close(lock)
        made = _made(place, arguments, until)
        if made is not None:
            return made
        time.sleep(RETRY_SECONDS)
    return False


def address(arguments: Sequence[str], modules: str) -> str:
    """Address of the server for a worker like this one: one for each job, environment and raylet.

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
        f"import sys; sys.path[0 : not sys.flags.safe_path] = [{str(Path(__file__).resolve().parents[2])!r}]; "
        "from workloads.cluster import fork_server; fork_server.main(*sys.argv[1:])"
    )
    try:
        os.execv(sys.executable, [sys.executable, "-c", code, place, str(lock), modules, driver])
    finally:
        os._exit(1)  # the worker is its fork's business, and would otherwise be there twice


def _made(place: str, arguments: Sequence[str], until: float) -> bool | None:
    """Ask the server for the worker.

    Returns:
        Whether it made it; None where no server listens (yet). One that ends in the middle is not asked for again: it
        may have been the imports, or the job's end.
    """
    with socket.socket(socket.AF_UNIX, KIND) as server:
        try:
            server.connect(place)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        server.settimeout(max(0.0, until - time.time()))
        # A server that is not ready yet would make what it was sent after this process has given it up.
        if is_strangers(server) or server.recv(len(READY)) != READY:
            return False
        server.settimeout(None)
        with os.fdopen(os.memfd_create("task"), "wb") as task:
            facts = {"arguments": arguments, "environment": dict(os.environ), "directory": str(Path.cwd())}
            task.write(json.dumps(facts).encode())
            task.flush()
            socket.send_fds(server, [TASK], [task.fileno(), 0, 1, 2])
        return server.recv(len(MADE)) == MADE


def is_strangers(connection: socket.socket) -> bool:
    """True if another user is at the other end: Ray lets all users of a machine write to the socket's folder."""
    facts = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", facts)[1] != os.getuid()


if __name__ == "__main__":
    main(*sys.argv[1:])
