"""Forecast of a stack's GPU nodes, from `python -m oasis_stack forecast`, which reads the stack file.

That is a separate program, because the workloads run without the stack file and Pulumi. Standard library only.
"""

from __future__ import annotations

import subprocess
import sys

from workloads.cluster.stack import CHECKOUT
from workloads.errors import EXIT_OK, PlaceError, UsageError

SECONDS = 120
"""Longest wait; the program itself waits no longer than 30 s for Google."""


def lines(stack: str, *words: str) -> list[str]:
    """The forecast: a line for each rung, their proposed order, and what Google did not answer.

    Args:
        stack: stack whose file is in this checkout.
        words: further words for the command.

    Raises:
        UsageError: there is no such file, or a setting in it is wrong.
        PlaceError: this place has no checkout, or lacks what the program needs.
    """
    command = [sys.executable, "-m", "oasis_stack", "forecast", "--stack", stack, "--brief", *words]
    remedy = "Ask from the checkout, with its own Python: `make forecast` installs what it needs."
    print(f"asking Google whether the nodes of {stack} are likely to come", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise PlaceError(f"the forecast did not end in {SECONDS} s.", remedy) from None
    if done.returncode == UsageError.exit_code:
        raise UsageError(done.stderr.strip(), "`make plan` says what the stack file means.")
    if done.returncode != EXIT_OK:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PlaceError(f"there is no forecast: {said}", remedy)
    return [line.strip() for line in done.stdout.splitlines()]
