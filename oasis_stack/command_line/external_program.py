"""Calls to external programs: checked for first, called by argument vector, never through a shell.

Ctrl-C reaches them from the terminal as well, and they are left to end in order: a Pulumi that is killed earlier leaves
its lock, and the resources that it was making in no state.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
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
    """A program is missing or failed; the message says what to do."""


def require(*names: str) -> None:
    """Check that programs are on PATH.

    Raises:
        ProgramError: names every one that is not, and how to install it.
    """
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise ProgramError("\n".join(f"{name} is not installed; get it: {INSTALL[name]}" for name in missing))


def show(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run a program on this terminal; its exit status.

    Raises:
        KeyboardInterrupt: there was one, and the program has ended.
    """
    return run(arguments, environment).returncode


def read(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
) -> str:
    """Run a program and return what it printed. What `stdin` holds is in no message.

    Raises:
        ProgramError: it failed; with what it said.
        KeyboardInterrupt: as `show`.
    """
    done = run(arguments, environment, stdin or "")
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or "it printed nothing"
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


def run(
    arguments: Sequence[str], environment: Mapping[str, str] | None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end: on this terminal, or with `stdin` and what it says kept.

    Raises:
        ProgramError: it is not installed.
        KeyboardInterrupt: there was one, and the program has ended.
    """
    require(arguments[0])
    pipe = None if stdin is None else subprocess.PIPE
    interrupts = 0
    with subprocess.Popen(
        arguments, env={**os.environ, **(environment or {})}, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as program:
        while True:
            try:
                if interrupts > 1:  # it may have heard of none, as where only this process is sent them
                    program.send_signal(signal.SIGINT)
                elif interrupts and program.poll() is None:
                    print(f"waiting for {arguments[0]} to shut down; Ctrl-C again kills it", file=sys.stderr)
                said = program.communicate(None if interrupts else stdin)
                break
            except KeyboardInterrupt:  # comes after the quarter of a second that the program is given first
                interrupts += 1
    if interrupts:
        raise KeyboardInterrupt
    return subprocess.CompletedProcess(arguments, program.returncode, *said)
