"""Linux's namespaces, for what a test must not do to this machine: listen on every interface, mount a full disk."""

from __future__ import annotations

import os
import shutil
import subprocess


def apart(*kinds: str) -> list[str]:
    """Words before a command that run it in namespaces of its own; none where this machine lets nobody make them.

    Args:
        kinds: as unshare(1) calls them: `net`, `mount`.
    """
    # A user namespace gives the right to make others; root has it already.
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, *(f"--{kind}" for kind in kinds)]
    trial = ["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"] if "mount" in kinds else ["true"]
    if not shutil.which("unshare"):
        return []
    return command if subprocess.run([*command, *trial], capture_output=True, check=False).returncode == 0 else []
