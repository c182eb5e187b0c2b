"""The programs that the command line calls: looked for first, called by argument vector, never through a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

INSTALL = {
    "pulumi": "https://www.pulumi.com/docs/install/",
    "gcloud": "https://cloud.google.com/sdk/docs/install",
    "kubectl": "`gcloud components install kubectl`, or https://kubernetes.io/docs/tasks/tools/",
    "gke-gcloud-auth-plugin": "`gcloud components install gke-gcloud-auth-plugin`",
    "docker": "https://docs.docker.com/engine/install/",
    "podman": "https://podman.io/docs/installation",
    "git": "https://git-scm.com/downloads",
}
"""How to get each program."""


class ProgramError(Exception):
    """A program that is missing, or that failed; the message says what to do."""


def require(*names: str) -> None:
    """Check that programs are on PATH.

    Raises:
        ProgramError: names every one that is not, and how to install it.
    """
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise ProgramError("\n".join(f"{name} is not installed; get it: {INSTALL[name]}" for name in missing))


def show(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run a program on this terminal; its exit status."""
    require(arguments[0])
    return subprocess.run(arguments, env={**os.environ, **(environment or {})}, check=False).returncode


def read(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
) -> str:
    """Run a program and return what it printed. What `stdin` holds is in no message.

    Raises:
        ProgramError: it failed; with what it said.
    """
    require(arguments[0])
    done = subprocess.run(
        arguments,
        env={**os.environ, **(environment or {})},
        input="" if stdin is None else stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or "it said nothing"
        raise ProgramError(f"`{' '.join(arguments)}` failed with status {done.returncode}:\n{said}")
    return done.stdout


def succeeds(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> bool:
    """True if a program that only asks a question answers yes."""
    try:
        read(arguments, environment)
    except ProgramError:
        require(arguments[0])
        return False
    return True
