"""Where an emulated Ray keeps sockets and logs: outside the emulator's folder, whose path may be too long for them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from emulator.machine.state import EmulatorError

# unix(7): a socket's path has at most 107 characters. Ray's longest below `session_directory`'s parent:
_LONGEST_SOCKET = "/oasis-0123456789ab/worker-1/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"


def session_directory(directory: Path) -> Path:
    """Folder of Ray's sockets and logs: not in the checkout, as a socket's path has only 107 characters (unix(7))."""
    parent = tempfile.gettempdir()
    if len(parent) + len(_LONGEST_SOCKET) > 107:
        parent = "/tmp"
    path = Path(parent) / f"oasis-{hashlib.sha256(str(directory).encode()).hexdigest()[:12]}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise EmulatorError(
            f"{path}, where Ray would keep its sockets, belongs to another user; remove it or set TMPDIR"
        )
    return path
