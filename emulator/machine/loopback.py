"""Access to loopback, where all of the emulator listens, bypassing any proxy of the user's shell."""

from __future__ import annotations

import os
import urllib.request
from http.client import HTTPException

DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens a URL without a proxy."""


def answers(url: str) -> bool:
    """True if a server is there and does not refuse."""
    try:
        with DIRECTLY.open(url, timeout=2):
            return True
    except (OSError, HTTPException):  # urllib's own errors are OSErrors
        return False


def past_proxies() -> dict[str, str]:
    """Variables that exempt loopback from the proxy, besides what the user has exempted."""
    exempt = [part for part in (os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or "").split(",") if part]
    value = ",".join(dict.fromkeys([*exempt, "127.0.0.1", "localhost"]))
    return {"NO_PROXY": value, "no_proxy": value}
