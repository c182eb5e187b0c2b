"""Checks of the project and the caller: existence, billing, enabled APIs, and the caller's permissions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from oasis_stack.command_line.external_program import INSTALL
from oasis_stack.preflight.finding import Finding, bad, good, unanswered, unknown
from oasis_stack.preflight.google import Google, UnseenError
from oasis_stack.settings import cost
from oasis_stack.settings.schema import Settings

PROGRAMS = {"pulumi": "`up`", "gke-gcloud-auth-plugin": "`up`"}
"""What `up` calls here."""

LATER = {"kubectl": "`submit` and `make dashboard`", "gcloud": "`make init` and `make image`"}
"""What others call."""

PERMISSIONS: Mapping[str, tuple[str, ...]] = {
    "roles/container.admin": ("container.clusters.create", "container.clusters.delete", "container.clusters.update"),
    "roles/compute.networkAdmin": ("compute.networks.create", "compute.subnetworks.create", "compute.routers.create"),
    "roles/compute.securityAdmin": ("compute.firewalls.create", "compute.firewalls.delete"),
    "roles/iam.serviceAccountAdmin": ("iam.serviceAccounts.create", "iam.serviceAccounts.delete"),
    "roles/iam.serviceAccountUser": ("iam.serviceAccounts.actAs",),
    "roles/resourcemanager.projectIamAdmin": ("resourcemanager.projects.setIamPolicy",),
    "roles/serviceusage.serviceUsageAdmin": ("serviceusage.services.enable",),
    "roles/storage.admin": ("storage.buckets.create", "storage.buckets.setIamPolicy"),
    "roles/artifactregistry.admin": ("artifactregistry.repositories.create",),
    "roles/cloudbuild.workerPoolOwner": ("cloudbuild.workerpools.create",),
    "roles/secretmanager.admin": ("secretmanager.secrets.create",),
}
"""What `up` cannot do without, by the role in the deployer's row of docs/cloud.md that holds it: of each role what no
other of them holds, and some more, as a role of an organisation's own may have parts of several (Google's "IAM roles
and permissions index", by iann0036/iam-dataset, 2026-08-22)."""

BUDGETS = ("billing.budgets.create", "roles/billing.costsManager")
"""Permission on a billing account, and the role that holds it."""


def programs(settings: Settings, google: Google) -> Iterator[Finding]:
    """The programs of this machine."""
    for name, caller in {**PROGRAMS, **LATER}.items():
        if shutil.which(name):
            yield good(f"{name} is installed")
        else:
            judge = bad if name in PROGRAMS else unknown
            yield judge(f"{name}, needed by {caller}, is not installed", f"Get it: {INSTALL[name]}.")


def price(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether the stack could cost more than its limit allows."""
    for problem in cost.problems(settings, datetime.now(UTC).date()):
        yield bad(problem.what, problem.advice)


def project(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether the project is there."""
    correct = "Correct gcp:project, `gcloud projects create` it, or ask its owner for the deployer's roles."
    try:
        found = google.get("cloudresourcemanager", f"v1/projects/{google.project}")
    except UnseenError as unseen:
        if not unseen.denied:
            raise
        yield bad(f"there is no project {google.project} that you may see ({unseen.problem})", correct)
        return
    if found is None:
        yield bad(f"there is no project {google.project}", correct)
    elif (state := found.get("lifecycleState")) != "ACTIVE":
        undelete = f"`gcloud projects undelete {google.project}` within 30 days, or name another in gcp:project."
        yield bad(f"project {google.project} is {state}", undelete)
    else:
        yield good(f"project {google.project} is there, number {found.get('projectNumber')}")


def billing(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether somebody pays, and whether that account is the budget's."""
    found = google.get("cloudbilling", f"v1/projects/{google.project}/billingInfo") or {}
    paying = str(found.get("billingAccountName", "")).rpartition("/")[2]
    if not found.get("billingEnabled"):
        link = f"`gcloud billing projects link {google.project} --billing-account ACCOUNT`."
        yield bad(f"no billing account pays for {google.project}", link)
        return
    yield good(f"billing account {paying} pays for it")
    account = settings.cost.billing_account
    if account is None:
        return
    if account != paying:
        yield bad(
            f"oasis:cost.billing_account is {account}, and {paying} pays for the project",
            f"Set it to {paying}: a budget sees only what is billed to its own account.",
        )
    permission, role = BUDGETS
    path = f"v1/billingAccounts/{account}:testIamPermissions"
    if permission in (google.get("cloudbilling", path, body={"permissions": [permission]}) or {}).get(
        "permissions", []
    ):
        yield good(f"you may create a budget for {account}")
    else:
        yield bad(f"you may not create a budget for {account}", f"Ask its administrator for {role} on the account.")


def services(settings: Settings, google: Google, apis: frozenset[str]) -> Iterator[Finding]:
    """Which of the stack's APIs are enabled; `up` enables the others."""
    path = f"v1/projects/{google.project}/services"
    listed = google.list("serviceusage", path, "services", filter="state:ENABLED")
    on = {str(service["name"]).rpartition("/")[2] for service in listed}
    yield good(f"{len(apis & on)} of {len(apis)} APIs are on")
    if off := sorted(apis - on):
        yield good(f"`up` switches on {', '.join(off)}, which takes some minutes")


def permissions(settings: Settings, google: Google) -> Iterator[Finding]:
    """What the caller may do in the project. Google lets everybody ask that."""
    wanted = {role: asked for role, asked in PERMISSIONS.items() if _is_used(role, settings)}
    asked = [permission for held in wanted.values() for permission in held]
    answer = google.get(
        "cloudresourcemanager", f"v1/projects/{google.project}:testIamPermissions", body={"permissions": asked}
    )
    held = set((answer or {}).get("permissions", []))
    for role, needed in wanted.items():
        if missing := [permission for permission in needed if permission not in held]:
            yield bad(f"you lack {', '.join(missing)} in {google.project}", f"Ask for {role} there, which holds it.")
    if held.issuperset(asked):
        yield good(f"you hold the {len(asked)} permissions that were checked, from {len(wanted)} roles")


def _is_used(role: str, settings: Settings) -> bool:
    if role == "roles/cloudbuild.workerPoolOwner":
        return settings.build is not None
    return role != "roles/secretmanager.admin" or settings.wandb is not None


def grants(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether the caller may let Google's own agents use the key and the secret of the stack file."""
    if key := settings.cluster.secrets_encryption_key:
        yield from _may_grant(google, "cloudkms", key, "roles/cloudkms.admin")
    if login := settings.registry.docker_hub:
        secret = login.password_secret.partition("/versions/")[0]
        yield from _may_grant(google, "secretmanager", secret, "roles/secretmanager.admin")


def _may_grant(google: Google, api: str, name: str, role: str) -> Iterator[Finding]:
    permission = f"{api}.{'cryptoKeys' if api == 'cloudkms' else 'secrets'}.setIamPolicy"
    try:
        held = google.get(api, f"v1/{name}:testIamPermissions", body={"permissions": [permission]}) or {}
    except UnseenError as unseen:
        yield unanswered(unseen)
        return
    if permission in held.get("permissions", []):
        yield good(f"you may grant the use of {name}")
    else:
        yield bad(
            f"you lack {permission} on {name}", f"Ask for {role} on it or its project: `up` lets Google's agent use it."
        )
