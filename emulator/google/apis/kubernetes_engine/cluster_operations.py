"""GKE's operations: a change of a cluster takes a while, and the next one is refused until it is done.

The change itself takes effect at once, as with the other services; only its completion is reported late.
"""

from __future__ import annotations

import secrets

from emulator.google import operations
from emulator.google.cloud import Cloud, CloudObject, timestamp
from emulator.google.collection import Body, Call, Collection, last, numbered
from emulator.google.errors import RefusedCall


class Operations(Collection):
    """`projects/p/locations/l/operations/o`."""

    kind = operations.KIND
    items = "operations"

    def shown(self, call: Call, found: CloudObject) -> Body:
        body, now = found.body, call.cloud.now()
        over = now >= body["ends"]
        return {
            "name": last(found.name),
            "operationType": body["operationType"],
            # Never PENDING: an operation that would have to wait for another is refused instead.
            "status": "DONE" if over else "RUNNING",
            "zone": found.name.split("/")[3],
            "location": found.name.split("/")[3],
            "selfLink": link(call, numbered(found.name)),
            "targetLink": link(call, numbered(body["target"])),
            "startTime": timestamp(body["starts"]),
            **({"endTime": timestamp(body["ends"])} if over else {}),
        }


def begin(call: Call, kind: str, target: str) -> Body:
    """A new operation as it stands now; `target` is the name path of a cluster or a node pool."""
    now = call.cloud.now()
    name = f"{target.partition('/clusters/')[0]}/operations/operation-{int(now * 1000)}-{secrets.token_hex(4)}"
    times = {"starts": now, "ends": now + operations.SECONDS}
    body = {"api": call.method.document.api, "operationType": kind, "target": target, **times}
    made = call.cloud.create(operations.KIND, name, body)
    call.cloud.expire(operations.KIND, name, operations.KEPT_SECONDS)
    return Operations().shown(call, made)


def require_idle(call: Call, target: str) -> None:
    """Refuse a change of a cluster, or of one of its pools, while an operation runs on the cluster.

    Words: GoogleCloudPlatform/ai-on-gke, tpu-provisioner/internal/cloud/gke.go. The reason that makes the provider
    retry: hashicorp/terraform-provider-google-beta v7.45.0, tpgresource/utils.go, IsFailedPreconditionError.
    """
    if found := _running(call.cloud, target):
        message = f"Cluster is running incompatible operation {last(found.name)}."
        raise RefusedCall(400, message, "failedPrecondition")


def status(call: Call, name: str) -> str:
    """`status` of a cluster or a node pool."""
    found = _running(call.cloud, name)
    if found is None:
        return "RUNNING"
    kind, own = found.body["operationType"], found.body["target"] == name
    if kind == "CREATE_CLUSTER" or (own and kind == "CREATE_NODE_POOL"):
        return "PROVISIONING"
    return "RECONCILING" if own or "/nodePools/" not in name else "RUNNING"


def link(call: Call, name: str) -> str:
    """URL of an object in the API version that was called."""
    return f"https://{call.method.document.host}/{call.method.document.version}/{name}"


def _running(cloud: Cloud, target: str) -> CloudObject | None:
    cluster = target.partition("/nodePools/")[0]
    for one in cloud.list(operations.KIND, f"{cluster.partition('/clusters/')[0]}/operations/"):
        # Other services' operations in this location have no target.
        if one.body.get("target", "").partition("/nodePools/")[0] == cluster and cloud.now() < one.body["ends"]:
            return one
    return None
