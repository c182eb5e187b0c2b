"""Long-running operations: a slow call answers with an operation, and the caller polls it until it is done.

The object itself is made, changed or gone at once; only the report is late. An operation is forgotten after a day.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any, Literal

from emulator.google.cloud import Cloud, CloudObject, timestamp
from emulator.google.collection import Call
from emulator.google.errors import NotFoundError, RefusedCall

KIND = "emulator/operation"

SECONDS = float(os.environ.get("OASIS_EMULATOR_LATENCY_SECONDS", "0.02"))
"""How long an operation takes."""

LATE_SECONDS = float(os.environ.get("OASIS_EMULATOR_LATE_SECONDS", "1.5"))
"""How long the things that Google cleans up by itself stay."""

Form = Literal["longrunning", "compute"]
"""google.longrunning.Operation, or Compute Engine's own operation."""

KEPT_SECONDS = 86400.0
"""How long an operation is remembered."""


def begin(
    call: Call,
    parent: str,
    response: Mapping[str, Any],
    *,
    form: Form = "longrunning",
    error: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A new operation as it stands now.

    Args:
        call: the call that it answers.
        parent: what precedes `operations/` in its name; empty for a service whose operations have no location.
        response: the result when it is done; in compute's form its own fields, with `selfLink` up to its name.
        form: how it is shown.
        error: the result of a failed operation: `code` (google.rpc.Code, or in compute's form Compute Engine's own
            word) and `message`.
    """
    name = "/".join(filter(None, (parent, f"operations/operation-{secrets.token_hex(8)}")))
    cloud, api = call.cloud, call.method.document.api
    outcome: dict[str, Any] = {"error": dict(error)} if error else {"response": dict(response)}
    if form == "compute":
        outcome["response"] = dict(response)
    made = cloud.create(KIND, name, {"api": api, "form": form, "outcome": outcome, "ends": cloud.now() + SECONDS})
    cloud.expire(KIND, name, KEPT_SECONDS)
    return _shown(cloud, made)


def get(cloud: Cloud, name: str) -> dict[str, Any]:
    """An operation as it stands now. Raises RefusedCall (404)."""
    try:
        return _shown(cloud, cloud.get(KIND, name))
    except NotFoundError:
        raise RefusedCall(404, f"Operation {name!r} was not found.", "notFound") from None


def _shown(cloud: Cloud, found: CloudObject) -> dict[str, Any]:
    body = found.body
    done = cloud.now() >= body["ends"]
    if body["form"] == "compute":
        about, name = body["outcome"]["response"], found.name.rsplit("/", 1)[-1]
        own = {
            "name": name,
            "id": str(int(name.rpartition("-")[2], 16) >> 1),
            "selfLink": about["selfLink"] + found.name,
        }
        ended: dict[str, Any] = {"status": "DONE", "progress": 100, "endTime": timestamp(body["ends"])}
        if error := body["outcome"].get("error"):
            ended |= {"error": {"errors": [error]}, "httpErrorStatusCode": 400, "httpErrorMessage": "BAD REQUEST"}
        return {**about, **own, **(ended if done else {"status": "RUNNING", "progress": 0})}
    return {"name": found.name, **({"done": True, **body["outcome"]} if done else {})}
