"""The `.oasis` folder of a checkout: ports, lock, logs, and the record of the processes that make up its emulator.

Everything here is per checkout, so that two checkouts on one machine do not disturb each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from emulator.machine import processes
from emulator.machine.processes import OWNER_VARIABLE, Process

CHECKOUT = Path(__file__).resolve().parents[2]
"""The checkout this code was imported from."""

DIRECTORY_VARIABLE = "OASIS_EMULATOR_DIR"
"""Variable by which a provider process or an operator finds its emulator's folder."""

OWN = frozenset(
    {
        *(
            "bin",
            "clock",
            "control-plane.json",
            "emulator-shell",
            "faults.json",
            "gcloud",
            "kubeconfig",
            "kubernetes",
            "limits.json",
        ),
        *("ports.json", "ports.lock", "processes", "provider", "pulumi", "ray-jobs", "scratch", "token-key", "uploads"),
        "utilisation.json",
        *("cloud.sqlite", "cloud.sqlite-journal", "cloud.sqlite-shm", "cloud.sqlite-wal"),
    }
)
"""What in `.oasis` belongs to the emulator, and is deleted with the emulated cloud. All else was made by people: runs,
data, results, logs, and the objects in the buckets with their metadata."""

_INDEX = ("storage.sqlite", "storage.sqlite-journal", "storage.sqlite-shm", "storage.sqlite-wal")
# Above Ray's range for workers (10002-19999), which it refuses to share, and below Linux's range for outgoing
# connections (32768-60999, ip-sysctl.rst), which could take a port while nobody listens on it.
_PORTS = range(20000, 32000)
_RAYS = range(10002, 20000)


class EmulatorError(Exception):
    """An error that the user can act on; its text is shown as is, without a traceback."""


class State:
    """One emulator's folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.directory.stat().st_mode & 0o777 != 0o700:  # credentials and secrets are in it
            self.directory.chmod(0o700)

    @classmethod
    def of_checkout(cls, checkout: Path = CHECKOUT) -> State:
        return cls(checkout / ".oasis")

    @classmethod
    def from_environment(cls) -> State:
        """The folder that a provider process was given."""
        directory = os.environ.get(DIRECTORY_VARIABLE)
        if not directory:
            raise EmulatorError(
                f"{DIRECTORY_VARIABLE} is not set; this program is started by `python -m emulator`, not by hand"
            )
        return cls(Path(directory))

    def path(self, *parts: str) -> Path:
        """A file or folder below `.oasis`; its parent exists afterwards."""
        path = self.directory.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def port(self, name: str, preferred: int | None = None, *, fits: Callable[[int], bool] = lambda _port: True) -> int:
        """The loopback port of that name: a free one is chosen on the first call, and stays the same until `clear`.

        It stays the same after that, too, unless somebody has taken it: a shell with the old addresses finds this
        checkout's next emulator. `preferred` is used if it is free and outside Ray's range for workers; otherwise, one
        that `fits`.
        """
        with self.path("ports.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            file = self.path("ports.json")
            ports: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
            if name not in ports:
                ports[name] = _free_port(preferred, f"{self.directory} {name}", set(ports.values()), fits)
                write_atomically(file, json.dumps(ports, indent=2))
            return ports[name]

    def environment(self) -> dict[str, str]:
        """Variables that tell every process of this emulator its folder, and mark it as belonging to the emulator."""
        return {DIRECTORY_VARIABLE: str(self.directory), OWNER_VARIABLE: str(self.directory)}

    def spawn(
        self, name: str, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Process:
        """Start and record a standing process; it writes to `logs/<name>.log` and ends with `stop` or `stop_all`."""
        if (running := self.process(name)) is not None:
            raise EmulatorError(
                f"{name} is already running as process {running.pid}; `.venv/bin/python -m emulator down` ends it"
            )
        environment = {**os.environ, **self.environment(), **(env or {})}
        process = processes.start(name, command, self.log(name), environment, cwd or self.directory)
        write_atomically(self._record(name), json.dumps(process.record()))
        return process

    def spawn_module(self, name: str, module: str) -> None:
        """Start a module of this checkout as a standing process, unless it runs."""
        if self.process(name) is None:
            self.spawn(name, [sys.executable, "-u", "-m", module], env={"PYTHONPATH": str(CHECKOUT)})

    def log(self, name: str) -> Path:
        """Path of a process's output."""
        return self.path("logs", f"{name}.log")

    def process(self, name: str) -> Process | None:
        """The recorded process of that name, if it is running."""
        process = self.recorded(name)
        return process if process and process.is_running() else None

    def recorded(self, name: str) -> Process | None:
        """The recorded process of that name, running or not."""
        try:
            return Process(**json.loads(self._record(name).read_text()))
        except FileNotFoundError:
            return None

    def processes(self) -> list[Process]:
        """Recorded processes that are running, oldest first."""
        return [process for process in self._all() if process.is_running()]

    def ended(self) -> list[str]:
        """Names of recorded processes that no longer run, though nothing stopped them."""
        return [process.name for process in self._all() if not process.is_running()]

    def stop(self, name: str, *, grace_seconds: float = 5.0) -> None:
        """End one recorded process and what it started; nothing happens if it is not running."""
        if (process := self.recorded(name)) is not None:
            processes.end(processes.session_of(process), grace_seconds)
        self._record(name).unlink(missing_ok=True)

    def stop_all(self, *, grace_seconds: float = 5.0) -> list[str]:
        """End every process of this emulator, even without a record; returns the names of the recorded ones."""
        running = self.processes()
        pids = [pid for process in reversed(self._all()) for pid in processes.session_of(process)]
        processes.end(dict.fromkeys([*pids, *processes.owned_by(self.directory)]), grace_seconds)
        # Processes started while these were being ended.
        processes.end(processes.owned_by(self.directory), grace_seconds)
        shutil.rmtree(self.path("processes"), ignore_errors=True)
        return [process.name for process in running]

    def clear(self) -> None:
        """Delete the emulated cloud, but nothing that people have made. Only with nothing running."""
        for entry in self.directory.iterdir():
            # With a leading dot: files that `write_atomically` had not yet renamed when it was killed.
            if entry.name not in OWN and not entry.name.startswith(tuple(f".{name}." for name in OWN)):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def kept(self) -> list[Path]:
        """Everything that users made, which `clear` keeps: every bucket, and every other file or folder of theirs."""
        entries = [entry for entry in self.directory.iterdir() if entry.name not in {*OWN, *_INDEX, "lock", "buckets"}]
        entries += self.directory.glob("buckets/*")
        return sorted(entry for entry in entries if not entry.is_dir() or any(entry.iterdir()))

    @contextlib.contextmanager
    def lock(self, command: str) -> Iterator[None]:
        """Hold the lock while a command changes this emulator; a second command in the same checkout is refused.

        Raises:
            EmulatorError: another command holds the lock; says which, and what to do.
        """
        with self.path("lock").open("a+") as file:
            if not _taken(file):
                raise EmulatorError(
                    f"`{self._holder()['command']}` (process {self._holder()['pid']}) is at work in this checkout "
                    f"({self.directory.parent}), so `{command}` was not started. Wait for it to end, or end it "
                    "and its emulator with `make down`. A second checkout has its own emulator."
                )
            file.truncate(0)
            file.write(
                json.dumps({"command": command, "pid": os.getpid(), "started": processes.start_time(os.getpid())})
            )
            file.flush()
            yield
            file.truncate(0)

    def interrupt_holder(self, tell: Callable[[str], None], patience_seconds: float = 90.0) -> str | None:
        """Send Ctrl-C to the command that holds the lock and wait until it releases it; returns the command's name.

        Args:
            tell: called with the name before the wait; must not raise.
            patience_seconds: longer than a demo's command may take to stop its job and the rest to end after it.
        """
        holder = self._holder()
        pid = int(str(holder["pid"]))
        known = pid > 0 and pid != os.getpid() and holder["started"] is not None
        if not known or not self.is_locked() or processes.start_time(pid) != holder["started"]:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        tell(str(holder["command"]))
        deadline = time.monotonic() + patience_seconds
        while self.is_locked() and processes.start_time(pid) == holder["started"]:
            if time.monotonic() > deadline:
                raise EmulatorError(
                    f"process {pid} (`{holder['command']}`) goes on after {patience_seconds:.0f} s; end it yourself"
                )
            time.sleep(0.1)
        return str(holder["command"])

    def is_locked(self) -> bool:
        """True if a command, this process included, is at work in this checkout."""
        with self.path("lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # two that only check must not block each other
            except BlockingIOError:
                return True
            return False

    def _holder(self) -> dict[str, object]:
        try:
            return dict(json.loads(self.path("lock").read_text()))
        except (OSError, ValueError):
            return {"command": "another command", "pid": 0, "started": None}

    def _all(self) -> list[Process]:
        names = [file.stem for file in (self.directory / "processes").glob("*.json")]
        return sorted(filter(None, map(self.recorded, names)), key=lambda process: process.started)

    def _record(self, name: str) -> Path:
        return self.directory / "processes" / f"{name}.json"  # does not create the folder


def write_atomically(file: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step, so that a reader or a crash never sees half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{time.monotonic_ns()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    temporary.replace(file)


def _taken(lock: IO[str]) -> bool:
    """True if the lock is now ours. Retries briefly, as another process's `is_locked` holds it for an instant."""
    for _ in range(10):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def _free_port(preferred: int | None, seed: str, taken: set[int], fits: Callable[[int], bool]) -> int:
    candidates = [preferred] if preferred and preferred not in _RAYS else []
    candidates += filter(fits, random.Random(seed).sample(_PORTS, 200))
    for port in candidates:
        if port not in taken and not occupied(port) and _reserve(port):
            return port
    raise EmulatorError(f"no free port between {_PORTS.start} and {_PORTS.stop} on 127.0.0.1; end what listens there")


def _reserve(port: int) -> bool:
    """Reserve a port until this command ends; False if another command, which may not listen there for another minute,
    has chosen it."""
    if port not in _reserved:
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0oasis-port-{port}")  # an abstract name: no file, and gone with the process (unix(7))
        except OSError:
            name.close()
            return False
        _reserved[port] = name
    return True


_reserved: dict[int, socket.socket] = {}


def occupied(port: int) -> str:
    """Why nobody can listen on a loopback port now; empty if the port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return str(error.strerror)
    return ""
