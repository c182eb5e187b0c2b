"""The table of grants in docs/cloud.md, row by row: who, which role, on what, why, and what waits for the grant."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from emulator.google import permissions
from oasis_stack.command_line.offline import Deployment, Registered
from tests.support.pages import section
from tests.support.program import deploy_stack
from tests.support.setting_examples import BILLING_ACCOUNT, HUB_TOKEN, KMS_KEY
from tests.support.stacks import changed

NODE_POOL, CLUSTER = "gcp:container/nodePool:NodePool", "gcp:container/cluster:Cluster"
RAY_CLUSTER = "kubernetes:ray.io/v1:RayCluster"

SEVERAL = {
    "both buckets": ("data bucket", "runs bucket"),
    "both virtual repositories": ("`<name>-docker-virtual`", "`<name>-python-virtual`"),
}
"""What the table says in one word."""

ALLOWS = {
    "roles/container.defaultNodeServiceAccount": "node registration",
    "roles/serviceusage.serviceUsageConsumer": "image streaming",
    "roles/artifactregistry.reader": "pull|pip|packages",
    "roles/artifactregistry.writer": "push",
    "roles/storage.objectViewer": "read",
    "roles/storage.objectUser": "write|sources",
    "roles/storage.bucketViewer": r"storage\.buckets\.get|looks at the bucket",
    "roles/storage.legacyBucketReader": "names",
    "roles/secretmanager.secretAccessor": "read the key|read the token",
    "roles/cloudkms.cryptoKeyEncrypterDecrypter": "encrypt",
}
"""What a role is good for, which the table must give as the reason."""

_KEY = {"cloudkms.admin", "cloudkms.cryptoKeyEncrypterDecrypter"}
BEYOND_THE_PROJECT = {
    "make image": {"cloudbuild.builds.editor", "cloudbuild.workerPoolUser"},
    "make init": _KEY,
    "pulumi up": {"billing.costsManager", *_KEY},
    "pulumi destroy": {"billing.costsManager", "cloudkms.cryptoKeyEncrypterDecrypter"},
}
"""What a command takes beside the roles on the project, which tests/emulator/gcp/test_one_process.py tries (Google
Cloud documentation, "IAM basic and predefined roles reference"). The key is that of the stack's own secrets, too."""


@dataclass(frozen=True)
class Grant:
    """One row of the table, its lists written out."""

    subject: str
    role: str
    resource: str
    waits: str


@pytest.fixture(scope="module")
def everything() -> Deployment:
    """A stack with every component and option that brings a grant."""
    key = KMS_KEY.replace("us-east4", "us-central1")
    config = changed("oasis:cluster", {"secrets_encryption_key": key}, changed("oasis:build.peered", True))
    config = changed("oasis:network.proxy_only", True, config)
    config = changed("oasis:cost", {"billing_account": BILLING_ACCOUNT, "monthly_usd": 5000}, config)
    login = {"username": "mydockerid", "password_secret": HUB_TOKEN}
    config = changed("oasis:registry", {"docker_hub": login}, config)
    queued = {"mode": "queued", "max_nodes": 2}
    team = {"name": "vision", "gpu_nodes": 1, "members": ["user:vision@example.com"]}
    config = changed("oasis:teams", [team], changed("oasis:gpu.capacity[3]", queued, config))
    balanced = {"dashboard_access": "internal-load-balancer", "dashboard_client_ranges": ["10.200.0.0/16"]}
    return deploy_stack(changed("oasis:ray", balanced, config))


def rows() -> list[list[str]]:
    """Cells of the table: subject, roles, resource, why, what waits for it."""
    lines = [line for line in section("docs/cloud.md", "Who may do what").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def written() -> list[Grant]:
    """What the table says of every grant in the stack."""
    found: list[Grant] = []
    for subject, roles, resource, _, waits in rows():
        if "deployer" in subject:
            continue
        named = re.findall(r"`<name>[^`]+`", resource)
        places = SEVERAL.get(resource) or (named if resource.startswith("repositor") else [resource])
        found += [Grant(subject, role, place, waits) for role in re.findall(r"roles/[\w.]+", roles) for place in places]
    return found


def granted(deployed: Deployment) -> list[Grant]:
    """What the program grants, in the table's words."""
    return [
        Grant(_subject(found), found.inputs["role"], _place(found), _waits(deployed, found))
        for found in deployed
        if found.type.lower().endswith("iammember")
    ]


def _subject(grant: Registered) -> str:
    member = grant.inputs["member"]
    if member.startswith("principal://"):
        return "workload" if "/ns/ray/" in member else "team's workload"
    if member.startswith("user:"):
        return "team's member"
    account = member.removeprefix("serviceAccount:")
    known = {
        "oasis-nodes@": "node account",
        "oasis-image-builder@": "image builder",
        "service-123456789012@container-engine-robot.": "GKE's own agent",
        "service-123456789012@gcp-sa-artifactregistry.": "Artifact Registry's own agent",
    }
    return next(name for start, name in known.items() if account.startswith(start))


def _place(grant: Registered) -> str:
    inputs = grant.inputs
    if "managedFolder" in inputs:
        return "team's folder of the runs bucket"
    if "bucket" in inputs:
        return f"{inputs['bucket'].rpartition('-')[2]} bucket"
    if "repository" in inputs:
        return f"`<name>-{inputs['repository'].removeprefix('oasis-')}`"
    if "secretId" in inputs:
        return "the secret of `registry.docker_hub`" if inputs["project"] == "keys-project" else "the W&B secret"
    return "the key of `cluster.secrets_encryption_key`" if "cryptoKeyId" in inputs else "project"


def _waits(deployed: Deployment, grant: Registered) -> str:
    waiting = {found.type for found in deployed if grant.urn in deployed.created_before(found)}
    if CLUSTER in waiting:
        return "the cluster"
    assert NODE_POOL not in waiting
    return "the RayCluster" if RAY_CLUSTER in waiting else "nothing in the stack; `make image`"


def test_every_grant_has_its_row_and_every_row_its_grant(everything: Deployment) -> None:
    by_place = sorted(written(), key=str)

    assert by_place == sorted(granted(everything), key=str)
    assert len(set(by_place)) == len(by_place)


def test_every_row_gives_a_reason_that_is_what_the_role_is_good_for() -> None:
    reasons = [why for *_, why, _ in rows()]

    assert all(reasons) and len(set(reasons)) == len(reasons)
    for subject, roles, _, why, _ in rows():
        if "deployer" not in subject:
            for role in re.findall(r"roles/[\w.]+", roles):
                assert re.search(ALLOWS[role], why), (role, why)
                # The emulated Google goes by what a role holds.
                assert all(permissions.holds([role], one) for one in re.findall(r"storage\.buckets\.\w+", why)), role


def test_the_deployer_has_what_each_command_takes_and_no_more() -> None:
    told: dict[str, set[str]] = {}
    for subject, roles, _, _, waits in rows():
        if subject.startswith("deployer"):
            for command in re.findall(r"`((?:make|pulumi) \w+)`", waits):
                told.setdefault(command, set()).update(re.findall(r"roles/([\w.]+)", roles))
    assert told == BEYOND_THE_PROJECT
