"""Removes what a killed run of Pulumi leaves in its state backend, if it is certain that nobody needs it.

Pulumi writes a lock that names the process that holds it, and never checks whether that is still alive (pulumi/pulumi
v3.259.0, pkg/backend/diy/lock.go). In a folder it also writes, beside each file, another with the content type,
`<file>.attrs`; if a kill leaves that one empty, it hides the file: "failed to load checkpoint: EOF" (gocloud.dev,
blob/fileblob/attrs.go).
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
from collections.abc import Callable, Mapping
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
    """Remove empty content types, and the stack's locks if each is of this user's process on this machine that is gone.

    Raises:
        ProgramError: Pulumi cannot remove the locks.
    """
    backend = urlsplit({**stack.environment(), **os.environ}.get("PULUMI_BACKEND_URL", ""))
    project = yaml.safe_load((stack.file.parent / "Pulumi.yaml").read_text())["name"]
    locks = f".pulumi/locks/organization/{project}/{stack.name}"
    found: list[Lock] = []
    if backend.scheme == "file":
        folder = Path(backend.netloc + backend.path).expanduser()
        _remove_empty(folder / ".pulumi" / "stacks" / project / f"{stack.name}.json.attrs", say)
        found = _kept(folder / locks)
    if backend.scheme == "gs":
        found = _stored(stack, backend.netloc, f"{backend.path.strip('/')}/{locks}/".removeprefix("/"))
    if found and all(map(_is_left_behind, found)):
        held = ", ".join(f"process {lock['pid']} of {lock['timestamp']}" for lock in found)
        say(f"The last run was killed on this machine and left its lock on stack {stack.name} ({held}): removing it")
        external_program.read(stack.bare_command("cancel", "--yes", stack.name), stack.environment())


def _remove_empty(content_type: Path, say: Callable[[str], None]) -> None:
    if content_type.exists() and not content_type.stat().st_size:
        say(f"The last run was killed while it wrote its state: removing {content_type}, which it left empty")
        content_type.unlink()


def _kept(folder: Path) -> list[Lock]:
    """The locks in a folder."""
    found: list[Lock] = []
    for file in sorted(folder.glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # that run has ended since
            found.append(json.loads(file.read_text()))
    return found


def _stored(stack: Stack, bucket: str, prefix: str) -> list[Lock]:
    """The locks in a bucket; none where it cannot be read: Pulumi is about to say what is wrong."""
    project = str(stack_file.config(stack.file).get("gcp:project", ""))
    objects = f"{live_state.google_api('storage', 'https://storage.googleapis.com/storage/v1/')}b/{bucket}/o"
    try:
        names = [one["name"] for one in live_state.google_list(project, f"{objects}?prefix={quote(prefix, safe='')}")]
        read = [live_state.google_get(project, f"{objects}/{quote(name, safe='')}", {"alt": "media"}) for name in names]
    except (live_state.RequestRefused, live_state.NotAnswering):
        return []
    return [lock for lock in read if lock]  # without those whose run has ended since


def _is_left_behind(lock: Lock) -> bool:
    if (lock["hostname"], lock["username"]) != (socket.gethostname(), getpass.getuser()):
        return False
    pid = int(lock["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's, to which the number may have come since
        return False
    # One that ended and that nobody has asked for since, as in a container without an init (proc_pid_stat(5)).
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"
