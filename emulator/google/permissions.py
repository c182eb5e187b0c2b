"""Which permission a method requires, and which of the predefined roles hold it.

Source of both: Google's "IAM roles and permissions index" and the authorization notes of its REST references, as
iann0036/iam-dataset recorded them on 2026-08-22 (gcp/roles, gcp/map.json); where that has nothing, the page is named.
Only the roles that this project's documentation names are known, with their permissions on the served APIs. A caller
with another role is refused, as is one whose role is on a resource above the project.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from emulator.google import policies
from emulator.google.collection import Body, Call, Collection
from emulator.google.discovery import Method
from emulator.google.errors import RefusedCall

_READS = "resourcemanager.projects.get"

ROLES: Mapping[str, str] = {
    "roles/artifactregistry.admin": f"artifactregistry.repositories.* {_READS}",
    "roles/billing.costsManager": "billing.budgets.*",
    "roles/cloudbuild.workerPoolOwner": f"cloudbuild.workerpools.* {_READS}",
    "roles/cloudkms.admin": f"cloudkms.cryptoKeys.* {_READS}",
    "roles/cloudquotas.viewer": "cloudquotas.quotas.get",
    # "Create a future reservation request in calendar mode", required permissions.
    "roles/compute.futureReservationUser": f"compute.advice.calendarMode {_READS}",
    "roles/compute.networkAdmin": f"""
        compute.addresses.* compute.globalAddresses.* compute.networks.* compute.routers.* compute.subnetworks.*
        compute.forwardingRules.* compute.firewalls.get compute.firewalls.list compute.instanceGroupManagers.get
        compute.instanceGroupManagers.list compute.networkEndpointGroups.get compute.networkEndpointGroups.list
        compute.projects.get compute.regions.get compute.regions.list
        servicenetworking.services.addPeering servicenetworking.services.deleteConnection servicenetworking.services.get
        serviceusage.services.list {_READS}""",
    "roles/compute.securityAdmin": f"""
        compute.firewalls.* compute.networks.get compute.networks.list compute.networks.updatePolicy compute.routers.get
        compute.routers.list compute.subnetworks.get compute.subnetworks.list serviceusage.services.get
        serviceusage.services.list {_READS}""",
    # Advice: "View the availability of Spot VMs", "View the preemption rate and pricing for Spot VMs", required roles.
    "roles/compute.viewer": f"""
        compute.advice.capacity compute.advice.capacityHistory compute.machineTypes.get compute.networkProfiles.get
        compute.projects.get compute.regions.get compute.reservationBlocks.get compute.reservationSubBlocks.get
        compute.reservations.get {_READS}""",
    "roles/container.admin": f"container.clusters.* {_READS}",
    "roles/iam.serviceAccountAdmin": f"""
        iam.serviceAccounts.create iam.serviceAccounts.delete iam.serviceAccounts.get iam.serviceAccounts.getIamPolicy
        iam.serviceAccounts.list iam.serviceAccounts.setIamPolicy iam.serviceAccounts.update {_READS}""",
    "roles/iam.serviceAccountUser": f"""
        iam.serviceAccounts.actAs iam.serviceAccounts.get iam.serviceAccounts.list {_READS}""",
    "roles/monitoring.viewer": f"monitoring.timeSeries.list {_READS}",
    "roles/orgpolicy.policyViewer": "orgpolicy.policy.get",
    "roles/resourcemanager.projectIamAdmin": "resourcemanager.projects.*",
    "roles/secretmanager.admin": f"secretmanager.* {_READS}",
    "roles/secretmanager.secretAccessor": f"secretmanager.versions.access {_READS}",
    "roles/serviceusage.serviceUsageAdmin": "serviceusage.services.*",
    "roles/storage.admin": f"storage.buckets.* storage.managedFolders.* storage.objects.* {_READS}",
    "roles/storage.bucketViewer": "storage.buckets.get storage.buckets.list",
    "roles/storage.legacyBucketReader": "storage.buckets.get storage.objects.list",
}
"""Patterns of the permissions that a role holds."""

_UNGUARDED = frozenset(
    {
        # "Get publicly available Google Cloud pricing information": public, requires no role.
        "cloudbilling.services.skus.list",
        # Their REST references: testIamPermissions itself requires no permission.
        "cloudbilling.billingAccounts.testIamPermissions",
        "cloudkms.projects.locations.keyRings.cryptoKeys.testIamPermissions",
        "secretmanager.projects.secrets.testIamPermissions",
        "cloudresourcemanager.projects.testIamPermissions",
        # No public source says which permission this requires: anyone may call it.
        "serviceusage.services.generateServiceIdentity",
    }
)

_EXCEPTIONS: Mapping[str, str] = {
    # Discovery document, description of the method.
    "cloudbilling.projects.getBillingInfo": _READS,
    # The permission of the older v1 API, which roles/orgpolicy.policyViewer holds; for v2 this is a guess.
    "orgpolicy.projects.policies.getEffectivePolicy": "orgpolicy.policy.get",
    # google-cloud-quotas 0.6.3: its methods read "quotas".
    "cloudquotas.projects.locations.services.quotaInfos.list": "cloudquotas.quotas.get",
    "secretmanager.projects.secrets.addVersion": "secretmanager.versions.add",
    # "Configure private services access", permissions.
    "servicenetworking.services.connections.create": "servicenetworking.services.addPeering",
    "servicenetworking.services.connections.deleteConnection": "servicenetworking.services.deleteConnection",
    "servicenetworking.services.connections.list": "servicenetworking.services.get",
    "servicenetworking.services.connections.patch": "servicenetworking.services.addPeering",
    "serviceusage.services.batchEnable": "serviceusage.services.enable",
}

_VERBS = {"insert": "create", "patch": "update", "aggregatedList": "list", "setResourceLabels": "update"}

_CLUSTER_READS = frozenset({"get", "list"})
_CLUSTER_VERBS = frozenset({"create", "delete", "get", "list"})


def permission_of(method: Method) -> str:
    """The permission that a method requires; empty for one that anyone may call."""
    api, last = method.document.api, method.collection.rpartition(".")[2]
    if method.id in _UNGUARDED or last.endswith("perations"):
        return ""
    if method.id in _EXCEPTIONS:
        return _EXCEPTIONS[method.id]
    if last == "nodePools":
        return "container.clusters.get" if method.name in _CLUSTER_READS else "container.clusters.update"
    if api == "container":
        return f"container.clusters.{method.name if method.name in _CLUSTER_VERBS else 'update'}"
    service = {"billingbudgets": "billing", "cloudresourcemanager": "resourcemanager"}.get(api, api)
    collection = "workerpools" if last == "workerPools" else last
    return f"{service}.{collection}.{_VERBS.get(method.name, method.name)}"


def holds(roles: Iterable[str], permission: str) -> bool:
    """True if one of the roles holds a permission."""
    return any(fnmatchcase(permission, pattern) for role in roles for pattern in ROLES.get(role, "").split())


def require_permission(call: Call, permission: str, resource: str) -> None:
    """Refuse a caller that holds a permission neither on the resource (its full name) nor on the resource's project. A
    billing account has no project."""
    if not call.principal:
        return
    project = policies.full_name("cloudresourcemanager.googleapis.com", f"projects/{call.project}")
    of = (resource,) if "/billingAccounts/" in resource else (project, resource.partition("/versions/")[0])
    if not holds(_roles(call, *of), permission):
        known = ", ".join(roles_with(permission)) or "none that is known here"
        denied = f"Permission '{permission}' denied for resource '{resource}' (or it may not exist)."
        raise RefusedCall(403, f"{denied} Roles that hold it: {known}.", "forbidden")


class Testable(Collection):
    """Resources that support `testIamPermissions`."""

    def do_test_iam_permissions(self, call: Call) -> Body:
        """The permissions, of those asked about, that the caller holds on the resource or on its project."""
        project = policies.full_name("cloudresourcemanager.googleapis.com", f"projects/{call.project}")
        held = _roles(call, self.full_name(call), project)
        asked: list[str] = call.body.get("permissions", [])
        found = [permission for permission in asked if not call.principal or holds(held, permission)]
        return {"permissions": found} if found else {}


def _roles(call: Call, *resources: str) -> set[str]:
    """The roles that the caller has on any of these resources (full names)."""
    return {role for name in resources for role in policies.roles_in_effect(call.cloud, name, call.principal)}


def roles_with(permission: str) -> list[str]:
    """The known roles that hold a permission."""
    return sorted(role for role in ROLES if holds([role], permission))
