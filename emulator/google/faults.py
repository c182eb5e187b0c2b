"""Faults on request: `faults.json` in the emulator's folder says which calls fail, are delayed, or get no answer.

The file holds a list of objects. `call` is a shell pattern for the ids of Google's methods (`compute.*.insert`) or for
the growth of a GKE pool (`gke.grow.NAME`); or `changes` is true, for every method that changes something. `effect` is
one of `fail`, `delay` and `lose-answer`. Optional keys: `message`, `seconds`, `after` (how many calls to let pass
first), `times` (how many calls to hit after that; all by default), and `code`, the HTTP status of a failure (503).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from emulator.google.cloud import Cloud
from emulator.google.errors import RefusedCall

FILE = "faults.json"
_EFFECTS = ("fail", "delay", "lose-answer")

REASONS: Mapping[int, str] = {
    # Compute Engine's answer to too many calls: hashicorp/terraform-provider-google issue 8360.
    403: "rateLimitExceeded",
    409: "aborted",
    412: "conditionNotMet",
    # Likewise: issue 1704 there.
    429: "rateLimitExceeded",
    500: "internalError",
    503: "backendError",
}
"""The statuses that a failure can have, with the reason that Google gives for each."""


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """An entry of the file that applies to the current call."""

    effect: Literal["fail", "delay", "lose-answer"]
    """`fail`: nothing is done. `delay`: done late. `lose-answer`: done, but the caller is told that it failed."""
    message: str
    """What the caller is told."""
    seconds: float
    """How long the call takes; for a lost answer, how long the caller waits in vain."""
    code: int
    """HTTP status of a failure."""


def meet(cloud: Cloud, call: str, *, changes: bool = False) -> PlannedFault | None:
    """The first fault that applies to this call, counted as used; `changes` says whether the call changes something.

    Raises RefusedCall for a file that is not as described above.
    """
    for entry in cloud.asked_in(FILE, list):
        _require_legal(entry)
        if not fnmatchcase(call, entry.get("call", "*")) or (entry.get("changes") and not changes):
            continue
        with cloud.transaction():
            name = json.dumps(entry, sort_keys=True)
            used = cloud.find("emulator/fault", name)
            met, passed = (used.body["met"] if used else 0), entry.get("after", 0)
            if met >= passed + entry.get("times", met + 1):
                continue
            cloud.put("emulator/fault", name, {"met": met + 1})
        if met >= passed:
            message = entry.get("message", "the service is currently unavailable (asked for in faults.json)")
            seconds = float(entry.get("seconds", 0))
            return PlannedFault(effect=entry["effect"], message=message, seconds=seconds, code=entry.get("code", 503))
    return None


def before(fault: PlannedFault | None) -> None:
    """Apply a fault before the call is carried out. Raises RefusedCall for `fail`."""
    if fault is None:
        return
    if fault.effect != "lose-answer":
        time.sleep(fault.seconds)
    if fault.effect == "fail":
        raise RefusedCall(fault.code, fault.message, REASONS[fault.code])


def after(fault: PlannedFault | None) -> None:
    """Apply a fault after the call was carried out. Raises RefusedCall for `lose-answer`."""
    if fault is not None and fault.effect == "lose-answer":
        time.sleep(fault.seconds)
        raise RefusedCall(503, f"the answer was lost: {fault.message}", "backendError")


def _require_legal(entry: dict[str, Any]) -> None:
    known = {"after", "call", "changes", "code", "effect", "message", "seconds", "times"}
    if entry.get("effect") not in _EFFECTS or entry.get("code", 503) not in REASONS or entry.keys() - known:
        codes = ", ".join(map(str, REASONS))
        message = f"{FILE}: {entry!r}; effect must be one of {_EFFECTS}, code of {codes}, keys are {sorted(known)}"
        raise RefusedCall(400, message, "badRequest")
