"""IAM policies: who holds which role on one resource. Setting a policy replaces all of it, guarded by its etag.

Reference: Google Cloud documentation, "Policy" of the IAM API and "Manage access to projects, folders, and
organizations" (read-modify-write). A grant takes effect some time after it is in the policy.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from emulator.google.cloud import Cloud, Use
from emulator.google.errors import RefusedCall

KIND = "iam/policy"
_TIMES = "emulator/grants"
"""When each grant of a policy was made, by role and member."""

GRANT_SECONDS = 120.0
"""Time until a grant takes effect (IAM documentation, "Access change propagation": "typically 2 minutes, potentially 7
minutes or longer"). Here, a revoked grant loses its effect at once."""

_NONE: Mapping[str, Any] = {"version": 1, "etag": "ACAB"}
"""The policy of a resource on which nobody holds a role."""

_POOL = re.compile(r"/workloadIdentityPools/([^/]+)/|serviceAccount:([^\[]+\.svc\.id\.goog)\[")


def full_name(service: str, resource: str) -> str:
    """A resource's full name (AIP-122): `//storage.googleapis.com/my-bucket`."""
    return f"//{service}/{resource}"


def get(cloud: Cloud, resource: str) -> dict[str, Any]:
    """The policy of a resource, by its full name."""
    found = cloud.find(KIND, resource)
    return dict(found.body if found else _NONE)


def put(cloud: Cloud, resource: str, policy: Mapping[str, Any], owner: Use | None = None) -> dict[str, Any]:
    """Replace the policy of a resource; with `owner`, it is deleted with the resource. Raises RefusedCall."""
    now = get(cloud, resource)
    if policy.get("etag", now["etag"]) != now["etag"]:
        raise RefusedCall(
            409,
            "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff.",
            "aborted",
        )
    bindings = [binding for binding in policy.get("bindings", []) if binding.get("members")]
    for binding in bindings:
        for member in binding["members"]:
            _admit_member(cloud, member)
    if not bindings:
        if cloud.find(KIND, resource):
            cloud.delete(KIND, resource)
        return dict(_NONE)
    digest = hashlib.sha256(json.dumps([bindings, now["etag"]], sort_keys=True).encode()).digest()
    body = {"version": 1, "etag": base64.b64encode(digest[:8]).decode(), "bindings": bindings}
    made = _times(cloud, resource)
    stored = cloud.put(KIND, resource, body, [owner] if owner else [])
    times = {grant: made.get(grant, cloud.now()) for grant in _grants(bindings)}
    cloud.put(_TIMES, resource, times, [Use(kind=KIND, name=resource, relation="part-of")])
    return stored.body


def roles(cloud: Cloud, resource: str, member: str) -> set[str]:
    """Roles that a member holds on the resource itself."""
    bindings = get(cloud, resource).get("bindings", [])
    return {binding["role"] for binding in bindings if member in binding["members"]}


def roles_in_effect(cloud: Cloud, resource: str, member: str) -> set[str]:
    """Roles that a member holds on the resource itself and that are in effect by now."""
    made, now = _times(cloud, resource), cloud.now()
    held = roles(cloud, resource, member)
    return {role for role in held if now >= made.get(f"{role} {member}", 0) + GRANT_SECONDS}


def _times(cloud: Cloud, resource: str) -> dict[str, float]:
    found = cloud.find(_TIMES, resource)
    return found.body if found else {}


def _grants(bindings: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for binding in bindings:
        yield from (f"{binding['role']} {member}" for member in binding["members"])


def _admit_member(cloud: Cloud, member: str) -> None:
    kind, _, identity = member.partition(":")
    if kind == "serviceAccount" and identity.endswith(".iam.gserviceaccount.com"):
        project = identity.split("@", 1)[-1].removesuffix(".iam.gserviceaccount.com")
        # Google's own agents (service-<number>@gcp-sa-...) are in Google's projects.
        if cloud.find("resourcemanager/project", f"projects/{project}"):
            cloud.get("iam/serviceAccount", f"projects/{project}/serviceAccounts/{identity}")
    pool = _POOL.search(member)
    if pool and not cloud.find("iam/workloadIdentityPool", pool[1] or pool[2]):
        # The pool comes with the project's first cluster that has Workload Identity.
        raise RefusedCall(
            400,
            f"Identity Pool does not exist ({pool[1] or pool[2]}). Please check that you specified a valid resource "
            "name as returned in the `name` attribute in the configuration API.",
            "badRequest",
        )
