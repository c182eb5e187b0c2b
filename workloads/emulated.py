"""Detects a shell that `python -m emulator env` made, and whose emulated cloud has since ended or moved."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

ENDPOINT_VARIABLE = "STORAGE_EMULATOR_HOST"
"""Google's own name for the address of another Cloud Storage."""

_CHECKOUT = Path(__file__).resolve().parents[1]
_EVAL = 'eval "$(.venv/bin/python -m emulator env)"'


def is_here() -> bool:
    """True in a shell of an emulated cloud."""
    return ENDPOINT_VARIABLE in os.environ


def lost() -> str:
    """What to type where the emulated cloud of this shell does not answer; empty where it does, and in other shells."""
    endpoint = os.environ.get(ENDPOINT_VARIABLE, "")
    address = urlsplit(endpoint)
    if address.port is None or _answers(str(address.hostname), address.port):
        return ""
    status = [sys.executable, "-m", "emulator", "status"]
    is_up = subprocess.run(status, cwd=_CHECKOUT, capture_output=True, check=False).returncode == 0
    now = f"It is up elsewhere now: type {_EVAL}"
    start = "`make demo` or `.venv/bin/python -m emulator up`"
    return f"The emulated cloud of this shell does not answer at {endpoint}. " + (
        now if is_up else f"Nothing of it is up: start it with {start}, then type {_EVAL}"
    )


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True
