"""What the dashboard of a standing Ray reports about its nodes, bypassing the user's proxy."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException

from emulator.machine.loopback import DIRECTLY


def nodes_alive(url: str, token: str) -> int:
    """Number of nodes that Ray's dashboard reports as alive; 0 while it does not answer."""
    request = urllib.request.Request(f"{url}/nodes?view=summary", headers={"Authorization": f"Bearer {token}"})
    try:
        with DIRECTLY.open(request, timeout=5) as response:
            summary = json.load(response)["data"]["summary"]
    except (OSError, HTTPException, ValueError, KeyError):
        return 0
    return sum(node.get("raylet", {}).get("state") == "ALIVE" for node in summary)
