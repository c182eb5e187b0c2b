"""Faults on request: `faults.json` in the emulator's folder says which calls fail, are late, or go unanswered.

The file holds a list of objects: `type` and `call` as shell patterns (`gcp:compute/*`, `create`), `effect` one of
`fail`, `delay` and `lose-answer`, and optionally `message`, `seconds` and `times` (how many calls it meets; else all).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from emulator.google.cloud import Cloud
from emulator.google.http_errors import RefusedCall

FILE = "faults.json"
_EFFECTS = ("fail", "delay", "lose-answer")


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """One line of the file that meets the call at hand."""

    effect: Literal["fail", "delay", "lose-answer"]
    """`fail`: nothing is done. `delay`: done late. `lose-answer`: done, but the caller is told that it failed."""
    message: str
    """What the caller is told."""
    seconds: float
    """How long the call takes."""


def meet(cloud: Cloud, resource_type: str, call: str) -> PlannedFault | None:
    """The first fault for this call, counted as used. Raises ValueError for a file that is not as the module says."""
    file = cloud.directory / FILE
    if not file.exists():
        return None
    for index, entry in enumerate(json.loads(file.read_text())):
        _require_legal(entry)
        if not fnmatchcase(resource_type, entry.get("type", "*")) or not fnmatchcase(call, entry.get("call", "*")):
            continue
        with cloud.transaction():
            used = cloud.find("emulator/fault", str(index))
            met = used.body["met"] if used else 0
            if met >= entry.get("times", met + 1):
                continue
            cloud.put("emulator/fault", str(index), {"met": met + 1})
        message = entry.get("message", "the service is currently unavailable (asked for in faults.json)")
        return PlannedFault(effect=entry["effect"], message=message, seconds=float(entry.get("seconds", 0)))
    return None


def before(fault: PlannedFault | None) -> None:
    """Apply a fault before the call is carried out. Raises RefusedCall for `fail`."""
    if fault is None:
        return
    time.sleep(fault.seconds)
    if fault.effect == "fail":
        raise RefusedCall(503, fault.message, "backendError")


def after(fault: PlannedFault | None) -> None:
    """Apply a fault after the call was carried out. Raises RefusedCall for `lose-answer`."""
    if fault is not None and fault.effect == "lose-answer":
        raise RefusedCall(503, f"the answer was lost: {fault.message}", "backendError")


def _require_legal(entry: dict[str, Any]) -> None:
    known = {"type", "call", "effect", "message", "seconds", "times"}
    if entry.get("effect") not in _EFFECTS or entry.keys() - known:
        raise ValueError(f"{FILE}: {entry!r}; effect must be one of {_EFFECTS}, keys are {sorted(known)}")
