"""Processes that belong to one emulator: recognised by their start time and by a mark in their environment.

A pid alone is never trusted: the kernel reuses it after the process has ended.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

OWNER_VARIABLE = "OASIS_EMULATOR_OWNER"
"""Variable with the emulator's folder, in the environment of every process that it starts, and so of their children."""

_started: list[subprocess.Popen[bytes]] = []  # kept so that an ended child is reaped, not warned about


@dataclass(frozen=True)
class Process:
    """One process, and what distinguishes it from a later one with the same pid."""

    name: str
    pid: int
    started: int
    """Start time in clock ticks since boot (proc(5), stat, field 22)."""
    boot: str
    """Boot of the machine (random(4), boot_id): both numbers start again with the next boot."""

    def is_running(self) -> bool:
        return start_time(self.pid) == self.started and self.boot == boot()

    def record(self) -> dict[str, object]:
        return asdict(self)


def start(
    name: str, command: Sequence[str | Path], log: Path, environment: Mapping[str, str], directory: Path
) -> Process:
    """Start a command in its own session, so that a terminal's Ctrl-C reaches it only through us; it writes `log`."""
    _reap()
    with log.open("ab") as output:
        child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )
    _started.append(child)
    # A child that has already ended is still a zombie of ours, so its start time can be read.
    fields = _fields(child.pid)
    return Process(name, child.pid, int(fields[19]) if fields else 0, boot())


def run(
    command: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str],
    directory: Path,
    tick: Callable[[float], None],
    every_seconds: float,
) -> int:
    """Run a command and return its exit status; `tick` gets the seconds so far. An interrupt here ends it too."""
    process = start("command", command, log, environment, directory)
    child = next(started for started in _started if started.pid == process.pid)
    begun, told = time.monotonic(), time.monotonic()
    try:
        while (status := child.poll()) is None:
            time.sleep(0.1)
            if time.monotonic() - told >= every_seconds:
                told = time.monotonic()
                tick(told - begun)
        return status
    except BaseException:
        end(session_of(process), grace_seconds=3.0)
        raise


def last_words(log: Path) -> str:
    """The end of what a process wrote, indented for a message."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return "\n  ".join(lines[-12:]) or "(nothing)"


def start_time(pid: int) -> int | None:
    """Start of the process, in clock ticks; None once it has ended with all its threads (a zombie has)."""
    fields = _fields(pid)
    # A killed process is a zombie while its other threads still hold its sockets; field 20 counts them.
    if not fields or (fields[0] in "ZX" and int(fields[17]) <= 1):
        return None
    return int(fields[19])


@functools.cache
def boot() -> str:
    """Identifier of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def owned_by(directory: Path, **variables: str) -> list[int]:
    """Every running process that carries the mark of the emulator in `directory`, except this one and its ancestors.

    Args:
        directory: the emulator's folder.
        variables: further variables that the process's environment must have.
    """
    marks = {f"{name}={value}".encode() for name, value in {OWNER_VARIABLE: directory, **variables}.items()}
    mine = _ancestry(os.getpid())
    found: list[int] = []
    for pid in _pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # ended meanwhile, or belongs to another user
            continue
        if pid not in mine and marks <= set(environment.split(b"\0")):
            found.append(pid)
    return found


def end(pids: Iterable[int], grace_seconds: float) -> None:
    """Ask the processes to end, and kill those that have not after `grace_seconds`."""
    known = {pid: started for pid in pids if (started := start_time(pid)) is not None}
    for chosen, patience in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 5.0)):
        remaining = [pid for pid, started in known.items() if start_time(pid) == started]
        for pid in remaining:
            try:
                os.kill(pid, chosen)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and any(start_time(pid) == known[pid] for pid in remaining):
            _reap()
            time.sleep(0.05)
    _reap()


def session_of(process: Process) -> list[int]:
    """The process, if it runs, and every process of its session, which may outlive it."""
    # A session's number is not reused for another process while the session has members.
    now = start_time(process.pid)
    return in_session(process.pid) if process.boot == boot() and now in (None, process.started) else []


def in_session(leader: int) -> list[int]:
    """Every running process of the session that `leader` started."""
    return [pid for pid in _pids() if _session(pid) == leader]


def command_name(pid: int) -> str:
    """The program's name in the kernel, at most 15 characters; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def words(pid: int) -> list[str]:
    """The words of the command that the process runs; none once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def descendants(*pids: int) -> list[int]:
    """Every running process that these started, across sessions, without these themselves; parents first."""
    parents = {pid: int(fields[1]) for pid in _pids() if (fields := _fields(pid))}
    found = dict.fromkeys(pids)
    while new := [child for child, parent in parents.items() if parent in found and child not in found]:
        found |= dict.fromkeys(new)
    return [pid for pid in found if pid not in pids]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session(pid: int) -> int | None:
    fields = _fields(pid)
    return int(fields[3]) if fields and fields[0] not in "ZX" else None


def _fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the command name before it may contain spaces and brackets


def _ancestry(pid: int) -> set[int]:
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = _fields(pid)
        pid = int(fields[1]) if fields else 0
    return found


def _reap() -> None:
    _started[:] = [child for child in _started if child.poll() is None]
