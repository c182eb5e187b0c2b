"""When an object counts as made or gone, for the kinds that Pulumi's provider awaits and the emulated cluster has.

Rules after pulumi/pulumi-kubernetes, provider/pkg/await; what needs a real network or disk (Endpoints, volume claims)
is not awaited.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from emulator.kubernetes.api import Api, Body, KindNotServedError
from emulator.kubernetes.objects import SKIP_AWAIT, WAIT_FOR, annotation, is_set

DEFAULT_SECONDS = 600.0

Obstacle = Callable[[Body], str]
"""What still keeps an object from being ready; empty when nothing does."""


class NotReadyError(Exception):
    """The object is there but not ready in time."""

    def __init__(self, live: Body, reason: str) -> None:
        super().__init__(reason)
        self.live, self.reason = live, reason


class StillThereError(Exception):
    """The object was deleted but does not go."""


def until_ready(api: Api, body: Body, seconds: float, stop: Callable[[], bool]) -> Body:
    """The object once it is ready, or as it is where nothing has to be awaited.

    Raises:
        NotReadyError: it is not after `seconds`, or `stop` said so.
    """
    began = time.monotonic()
    live, pause = body, 0.05
    obstacle = _obstacle(body)
    while reason := obstacle(live):
        waited = time.monotonic() - began
        if waited > (seconds or DEFAULT_SECONDS) or stop():
            raise NotReadyError(live, f"not ready after {waited:.0f} s: {reason}")
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)
        live = _get(api, body) or live
    return live


def until_gone(api: Api, body: Body, seconds: float, stop: Callable[[], bool]) -> None:
    """Return once the object with this uid is gone.

    Raises:
        StillThereError: it is not after `seconds`; says which finalizers hold it.
    """
    began, pause = time.monotonic(), 0.05
    uid = body["metadata"].get("uid")
    while (live := _get(api, body)) is not None and (uid is None or live["metadata"]["uid"] == uid):
        waited = time.monotonic() - began
        if waited > (seconds or DEFAULT_SECONDS) or stop():
            raise StillThereError(
                f"still there {waited:.0f} s after its deletion was asked for; "
                f"{_held_by(live)}. The controllers that should release it must be alive."
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)


def _get(api: Api, body: Body) -> Body | None:
    metadata = body["metadata"]
    try:
        return api.get(body["apiVersion"], body["kind"], metadata["name"], metadata.get("namespace"))
    except KindNotServedError:
        return None


def _held_by(live: Body) -> str:
    finalizers = [*live["metadata"].get("finalizers", []), *live.get("spec", {}).get("finalizers", [])]
    told = [
        str(entry.get("message")) for entry in live.get("status", {}).get("conditions") or [] if entry.get("message")
    ]
    return f"its finalizers are {', '.join(finalizers) or 'none'}" + (f" ({'; '.join(told)})" if told else "")


def _obstacle(body: Body) -> Obstacle:
    if is_set(body, SKIP_AWAIT):
        return _nothing
    if wanted := annotation(body, WAIT_FOR):
        return _wanted(wanted)
    return _KINDS.get((body["apiVersion"], body["kind"]), _nothing)


def _nothing(_live: Body) -> str:
    return ""


def _namespace(live: Body) -> str:
    phase = live.get("status", {}).get("phase")
    return "" if phase == "Active" else f"phase {phase}"


def _deployment(live: Body) -> str:
    wanted = live["spec"].get("replicas", 1)
    return _observed(live) or _count(live, wanted, "updatedReplicas", "availableReplicas")


def _stateful_set(live: Body) -> str:
    wanted = live["spec"].get("replicas", 1)
    return _observed(live) or _count(live, wanted, "updatedReplicas", "readyReplicas")


def _daemon_set(live: Body) -> str:
    wanted = live.get("status", {}).get("desiredNumberScheduled", 0)
    return _observed(live) or _count(live, wanted, "updatedNumberScheduled", "numberAvailable")


def _service(live: Body) -> str:
    if live["spec"].get("type") != "LoadBalancer":
        return ""
    return "" if live.get("status", {}).get("loadBalancer", {}).get("ingress") else "no load balancer address yet"


def _job(live: Body) -> str:
    return _condition(live, "Complete")


def _observed(live: Body) -> str:
    seen = live.get("status", {}).get("observedGeneration", 0)
    return "" if seen >= live["metadata"].get("generation", 0) else "its controller has not seen it yet"


def _count(live: Body, wanted: int, *fields: str) -> str:
    status = live.get("status", {})
    short = [f"{field} {status.get(field, 0)} of {wanted}" for field in fields if status.get(field, 0) < wanted]
    return ", ".join(short)


def _condition(live: Body, name: str) -> str:
    for entry in live.get("status", {}).get("conditions") or []:
        if entry.get("type") == name:
            return (
                "" if entry.get("status") == "True" else f"{name} is {entry.get('status')}: {entry.get('message', '')}"
            )
    return f"no condition {name} yet"


def _wanted(expression: str) -> Obstacle:
    """`condition=Ready` or `jsonpath={.status.phase}=Bound`, as the annotation pulumi.com/waitFor has them."""
    kind, _, rest = expression.partition("=")
    if kind == "condition" and rest:
        return lambda live: _condition(live, rest)
    path = re.fullmatch(r"\{((?:\.\w+)+)\}(?:=(.+))?", rest)
    if kind != "jsonpath" or path is None:
        raise ValueError(
            f"{WAIT_FOR}: {expression!r} is not understood; known are `condition=Type` and `jsonpath={{.a.b}}=value`"
        )
    keys, value = path[1].strip(".").split("."), path[2]

    def obstacle(live: Body) -> str:
        found: Any = live
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        met = found is not None if value is None else str(found) == value
        return "" if met else f"{path[1]} is {found}"

    return obstacle


_KINDS: dict[tuple[str, str], Obstacle] = {
    ("v1", "Namespace"): _namespace,
    ("v1", "Service"): _service,
    ("apps/v1", "Deployment"): _deployment,
    ("apps/v1", "StatefulSet"): _stateful_set,
    ("apps/v1", "DaemonSet"): _daemon_set,
    ("batch/v1", "Job"): _job,
}
