"""The lock that a killed run of Pulumi leaves on its stack, removed where it is certain that nobody holds it.

Pulumi writes a lock into the state backend, with the process that holds it, and never looks whether that still lives
(pulumi/pulumi v3.259.0, pkg/backend/diy/lock.go).
"""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml

from oasis_stack import live_state
from oasis_stack.command_line import external_program, stack_file
from oasis_stack.command_line.pulumi_stack import Stack

Lock = Mapping[str, Any]
"""`pid`, `username`, `hostname` and `timestamp` of a run."""


def release(stack: Stack, say: Callable[[str], None]) -> None:
    """Remove the locks of a stack if each is of this user's process on this machine, and that process is gone.

    Raises:
        ProgramError: Pulumi cannot remove them.
    """
    found = list(_locks(stack))
    if found and all(map(_is_left_behind, found)):
        held = ", ".join(f"process {lock['pid']} of {lock['timestamp']}" for lock in found)
        say(f"The last run was killed on this machine and left its lock on stack {stack.name} ({held}): removing it")
        external_program.read(stack.bare_command("cancel", "--yes", stack.name), stack.environment())


def _locks(stack: Stack) -> Iterator[Lock]:
    """The locks on a stack in a folder or in Cloud Storage; none of a backend that cannot be read, or is another."""
    backend = {**stack.environment(), **os.environ}.get("PULUMI_BACKEND_URL", "")
    place = urlsplit(backend)
    project = yaml.safe_load((stack.file.parent / "Pulumi.yaml").read_text())["name"]
    folder = f".pulumi/locks/organization/{project}/{stack.name}"
    if place.scheme == "file":
        for file in sorted(Path(place.netloc + place.path).expanduser().joinpath(folder).glob("*.json")):
            yield json.loads(file.read_text())
    if place.scheme == "gs":
        prefix = "/".join(filter(None, (place.path.strip("/"), folder)))
        try:
            yield from _stored(stack, place.netloc, f"{prefix}/")
        except (live_state.RequestRefused, live_state.NotAnswering):
            return  # Pulumi is about to say what is wrong


def _stored(stack: Stack, bucket: str, prefix: str) -> Iterator[Lock]:
    project = str(stack_file.config(stack.file).get("gcp:project", ""))
    objects = f"{live_state.google_api('storage', 'https://storage.googleapis.com/storage/v1/')}b/{bucket}/o"
    for found in live_state.google_list(project, f"{objects}?prefix={quote(prefix, safe='')}"):
        yield live_state.google_get(project, f"{objects}/{quote(found['name'], safe='')}?alt=media")


def _is_left_behind(lock: Lock) -> bool:
    if (lock["hostname"], lock["username"]) != (socket.gethostname(), getpass.getuser()):
        return False
    pid = int(lock["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # One that ended and that nobody has asked for since, as in a container without an init (proc_pid_stat(5)).
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"
