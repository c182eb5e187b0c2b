"""`secret`: gives the Weights & Biases secret a value, read from the terminal or standard input and not stored."""

from __future__ import annotations

import getpass
import re
import sys
from collections.abc import Callable

from oasis_stack.command_line import external_program
from oasis_stack.command_line.external_program import ProgramError, read
from oasis_stack.command_line.pulumi_stack import Stack


def secret(stack: Stack, say: Callable[[str], None]) -> None:
    """Add a version to the secret that the stack made.

    Raises:
        ProgramError: a program is missing, the stack has no such secret, or the value is empty or has several lines.
    """
    external_program.require("pulumi", "gcloud")
    resource = stack.output("wandb_secret")
    match = re.fullmatch(r"projects/([^/]+)/secrets/([^/]+)", resource)
    if match is None:
        raise ProgramError(
            f"stack {stack.name} has no secret. Add `oasis:wandb: {{}}` to {stack.file.name}, then "
            f"`pulumi up -s {stack.name}`, then run this again."
        )
    value = _value()
    # By standard input: an argument would stand in the process list.
    add = ["gcloud", "secrets", "versions", "add", match[2], "--project", match[1], "--data-file", "-"]
    read(add, stdin=value)
    say(f"{resource} has a new version; jobs that start from now on read it")


def _value() -> str:
    try:
        value = getpass.getpass("Weights & Biases API key: ") if sys.stdin.isatty() else sys.stdin.read()
    except EOFError:  # Ctrl-D
        value = ""
    value = value.strip()
    if not value or "\n" in value:
        raise ProgramError("nothing was stored: a key is one non-empty line. Run this again and paste the key.")
    return value
