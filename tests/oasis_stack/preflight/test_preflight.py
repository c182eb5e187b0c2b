"""`make preflight` of a good project on the emulated Google, which finds nothing, and of one for each defect."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from emulator.google.callers import Identity, set_identity
from emulator.google.scope import project_number
from oasis_stack import __main__ as command_line
from oasis_stack.command_line.stack_file import ROOT
from oasis_stack.preflight import access, places, report
from oasis_stack.settings.settings import from_config, parse
from tests.emulator.google import Google, enable, grant, lead_clients_to, served
from tests.support.program import deploy_stack
from tests.support.stacks import FULL, changed

CALLER = "user:deployer@example.com"
ACCOUNT = "01AB23-4CD567-89EF01"
VIEWERS = ("compute.viewer", "cloudquotas.viewer", "orgpolicy.policyViewer", "cloudkms.admin")
ASKED = ("cloudbilling", "cloudkms", "cloudquotas", "cloudresourcemanager", "orgpolicy", "secretmanager")
OFFICE = {"cidr": "203.0.113.0/24", "name": "office"}
KEY = "projects/keys/locations/us-central1/keyRings/r/cryptoKeys/k"
BUDGET = changed("oasis:cost", {"billing_account": ACCOUNT, "monthly_usd": 5000})
BALANCED = changed(
    "oasis:ray", {"dashboard_access": "internal-load-balancer", "dashboard_client_ranges": ["10.0.0.0/8"]}
)
GPUS = "us-central1/PREEMPTIBLE_NVIDIA_H200_GPUS"
FAMILY, PREEMPTIBLE = "GPUS-PER-GPU-FAMILY-per-project-region", "PREEMPTIBLE-NVIDIA-H200-GPUS-per-project-region"
PAID = {"billingAccountName": f"billingAccounts/{ACCOUNT}"}
HUB_SECRET = "projects/hub/secrets/token"
NUMBERS = itertools.count(1)
DISKS = {"us-central1/HDB_TOTAL_GB": 800, "us-central1/SSD_TOTAL_GB": 700}
OBJECTS = {"FIREWALLS": 2, "NETWORKS": 3, "ROUTERS": 1, "SUBNETWORKS": 10}
CPUS = {"us-central1/CPUS": 24, "us-central1/N2D_CPUS": 64}
QUOTAS = {GPUS: 64, "GPUS_ALL_REGIONS": 64, "CPUS_ALL_REGIONS": 56, "us-central1/CPUS": 56, **DISKS, **OBJECTS}
TWO_FAMILIES = changed("oasis:cluster.cpu_pool.machine_type", "n2d-standard-16")
BLOCK = "ours/reservationBlocks/b"
SUB_BLOCK = f"{BLOCK}/reservationSubBlocks/s"
IN_BLOCK = changed("oasis:gpu.capacity[0].reservation", BLOCK)
IN_SUB_BLOCK = changed("oasis:gpu.capacity[0].reservation", SUB_BLOCK)
THEIRS = "projects/neighbour/reservations/theirs"
WITH_THEIRS = changed("oasis:gpu.capacity[0].reservation", THEIRS)
WITH_LOGIN = changed("oasis:registry.docker_hub", {"username": "vision", "password_secret": f"{HUB_SECRET}/versions/2"})


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    with served(tmp_path_factory.mktemp("google")) as google:
        yield google


class Project:
    """A project that a stack could be made in, to spoil."""

    def __init__(self, google: Google, name: str, config: Mapping[str, Any]) -> None:
        self.cloud, self.name = google.cloud, name
        self.config = {**config, "gcp:project": name}
        self.settings = parse(from_config(self.config))
        self.program = deploy_stack(config)
        apis = {one.inputs["service"] for one in self.program if one.type == "gcp:projects/service:Service"}
        for api in {*apis, *(f"{api}.googleapis.com" for api in ASKED)}:
            enable(self.cloud, api, name)
        enable(self.cloud, "cloudkms.googleapis.com", "keys")
        enable(self.cloud, "secretmanager.googleapis.com", "hub")
        self.facts()
        self.roles(*access.PERMISSIONS, *(f"roles/{role}" for role in VIEWERS))
        self.roles_on("cloudbilling", f"billingAccounts/{ACCOUNT}", "roles/billing.costsManager")
        self.roles_on("cloudkms", KEY, "roles/cloudkms.admin")
        self.roles_on("secretmanager", HUB_SECRET, "roles/secretmanager.admin")
        self.limits()
        self.quota(FAMILY, 16, gpu_family="NVIDIA_H200", region="us-central1")
        self.quota(PREEMPTIBLE, 64)
        self.reservation()
        self.block()
        self.block(SUB_BLOCK)
        set_identity(self.cloud, Identity(project=name, zone="us-central1-b", principal=CALLER))

    def facts(self, **facts: object) -> None:
        known = {"projectId": self.name, "number": project_number(self.name)}
        self.cloud.put("resourcemanager/project", f"projects/{self.name}", {**known, **PAID, **facts})

    def roles(self, *roles: str, project: str = "") -> None:
        self.roles_on("cloudresourcemanager", f"projects/{project or self.name}", *roles)

    def roles_on(self, api: str, resource: str, *roles: str) -> None:
        grant(self.cloud, CALLER, api, resource, roles)

    def neighbour(self, share: str) -> None:
        """A reservation of another project, which the caller may see."""
        enable(self.cloud, "compute.googleapis.com", "neighbour")
        self.roles("roles/compute.viewer", project="neighbour")
        self.reservation(THEIRS, {"shareSettings": {"shareType": share}})

    def login(self, state: str) -> None:
        """A token for Docker Hub in the project that keeps it."""
        self.cloud.put("secretmanager/secret", HUB_SECRET, {})
        self.cloud.put("secretmanager/version", f"{HUB_SECRET}/versions/2", {"state": state})

    def limits(self, quotas: Mapping[str, int] | None = None, *absent: str) -> None:
        limits = {"quotas": {**QUOTAS, **(quotas or {})}, "absent": absent}
        (self.cloud.directory / "limits.json").write_text(json.dumps(limits))

    def quota(self, quota: str, value: int, **dimensions: str) -> None:
        rows = [{"dimensions": dimensions, "details": {"value": str(value)}, "applicableLocations": ["us-central1"]}]
        # The general row stands last, and is not meant where the specific one fits.
        rows.append({"details": {"value": "0"}, "applicableLocations": ["us-central1"]})
        name = self.quota_name(quota)
        self.cloud.put("cloudquotas/quotaInfo", name, {"name": name, "quotaId": quota, "dimensionsInfos": rows})

    def quota_name(self, quota: str) -> str:
        return f"projects/{self.name}/locations/global/services/compute.googleapis.com/quotaInfos/{quota}"

    def reservation(self, name: str = "ours", facts: Mapping[str, object] | None = None, **changes: object) -> None:
        held = {"count": "2", "inUseCount": "0", "instanceProperties": {"machineType": "a3-ultragpu-8g"}}
        body = {"status": "READY", "specificReservation": {**held, **changes}, **(facts or {})}
        owner = name.split("/")[1] if "/" in name else self.name
        full = f"projects/{owner}/zones/us-central1-b/reservations/{name.split('/')[-1]}"
        self.cloud.put("compute/reservation", full, body)

    def block(self, name: str = BLOCK, **changes: object) -> None:
        kind = "compute/reservationSubBlock" if name == SUB_BLOCK else "compute/reservationBlock"
        full = f"projects/{self.name}/zones/us-central1-b/reservations/{name}"
        self.cloud.put(kind, full, {"status": "READY", "count": 2, "inUseCount": 0, **changes})

    def networks(self, *names: str) -> None:
        for name in names:
            self.cloud.put("compute/network", f"projects/{self.name}/global/networks/{name}", {"name": name})

    def policy(self, constraint: str, **rule: object) -> None:
        self.cloud.put("orgpolicy/policy", f"projects/{self.name}/policies/{constraint}", {"rules": [rule]})

    def findings(self) -> tuple[bool, list[str]]:
        said: list[str] = []
        return report.run(self.settings, self.program, said.append), said


Make = Callable[[Mapping[str, Any]], Project]
"""A project for a stack with these settings, in which nothing is amiss yet."""


@pytest.fixture
def project(google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    lead_clients_to(google, monkeypatch)
    for name in (*access.PROGRAMS, *access.LATER):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return lambda config: Project(google, f"project-{next(NUMBERS)}", config)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config",
    [
        FULL,
        BUDGET,
        BALANCED,
        IN_BLOCK,
        IN_SUB_BLOCK,
        changed("oasis:gpu", None),
        changed("oasis:build.peered", True),
        changed("oasis:cluster.secrets_encryption_key", KEY),
    ],
)
def test_nothing_is_found_in_a_project_that_lacks_nothing(project: Make, config: dict[str, Any]) -> None:
    fine, said = project(config).findings()
    assert fine and said[-1] == "\nnothing to mend before `up`", "\n".join(said)
    assert not [line for line in said if line.startswith(("  NO", "  ?"))]


class Defect(NamedTuple):
    """One thing that is wrong, and what is said of it."""

    spoil: Callable[[Project], object]
    said: str
    config: Mapping[str, Any] = FULL


def _denied(*values: str) -> dict[str, object]:
    return {"values": {"deniedValues": [*values]}}


def _allowed(*values: str) -> dict[str, object]:
    return {"values": {"allowedValues": [*values]}}


DEFECTS = {
    "a project on its way out": Defect(lambda it: it.facts(lifecycleState="DELETE_REQUESTED"), "is DELETE_REQUESTED"),
    "nobody pays": Defect(lambda it: it.facts(billingAccountName=""), "no billing account pays for"),
    "another account's budget": Defect(
        lambda it: it.facts(billingAccountName="billingAccounts/FFFFFF-000000-000000"),
        f"oasis:cost.billing_account is {ACCOUNT}, and FFFFFF-000000-000000 pays",
        BUDGET,
    ),
    "no right on the account": Defect(
        lambda it: it.roles_on("cloudbilling", f"billingAccounts/{ACCOUNT}", "roles/compute.viewer"),
        f"you may not create a budget for {ACCOUNT}",
        BUDGET,
    ),
    **{
        f"no {role}": Defect(
            lambda it, role=role: it.roles(*(other for other in access.PERMISSIONS if other != role)),
            f"Ask for {role} there",
        )
        for role in access.PERMISSIONS
    },
    **{
        f"a zone without {absent}": Defect(lambda it, absent=absent: it.limits({}, absent), said)
        for absent, said in {
            "us-central1-b/a3-ultragpu-8g": "us-central1-b does not offer a3-ultragpu-8g",
            "us-central1-b/e2-standard-8": "does not offer e2-standard-8",
            "us-central1-b-vpc-roce": "there is no network profile us-central1-b-vpc-roce",
        }.items()
    },
    "too few preemptible GPUs": Defect(
        lambda it: (it.limits({GPUS: 8}), it.quota(PREEMPTIBLE, 8)),
        f"{PREEMPTIBLE} is 8 in us-central1, and the stack takes 48",
    ),
    "too few GPUs, as one API says": Defect(
        lambda it: it.limits({GPUS: 8}), "Compute Engine says 8, Cloud Quotas says 64"
    ),
    "too few GPUs, as the other says": Defect(
        lambda it: it.quota(PREEMPTIBLE, 0), "is 0 in us-central1, and the stack takes 48"
    ),
    "too few reserved GPUs": Defect(
        lambda it: it.quota(FAMILY, 8, gpu_family="NVIDIA_H200", region="us-central1"),
        f"{FAMILY}, gpu_family=NVIDIA_H200 is 8 in us-central1, and the stack takes 16",
    ),
    "reserved GPUs of another family": Defect(
        lambda it: it.quota(FAMILY, 64, gpu_family="NVIDIA_H100", region="us-central1"), "NVIDIA_H200 is 0"
    ),
    "too few L4 GPUs": Defect(
        lambda it: it.limits({"us-central1/NVIDIA_L4_GPUS": 2, "us-central1/SSD_TOTAL_GB": 1000}),
        "NVIDIA-L4-GPUS-per-project-region is 2 in us-central1, and the stack takes 3 (reservation and on-demand)",
        changed("oasis:gpu", {"machine_type": "g2-standard-4", "capacity": [{"mode": "on-demand", "max_nodes": 3}]}),
    ),
    "too few GPUs in all": Defect(
        lambda it: it.limits({"GPUS_ALL_REGIONS": 0}), "GPUS-ALL-REGIONS-per-project is 0, and the stack takes 64"
    ),
    **{
        f"too few {quota.rpartition('/')[2]}": Defect(
            lambda it, quota=quota: it.limits({quota: QUOTAS[quota] - 1}),
            f"is {QUOTAS[quota] - 1} in us-central1, and the stack takes {QUOTAS[quota]} (GB of boot disks)",
        )
        for quota in DISKS
    },
    **{
        f"too few {quota.rpartition('/')[2]}": Defect(
            lambda it, quota=quota: it.limits({"CPUS_ALL_REGIONS": sum(CPUS.values()), **CPUS, quota: CPUS[quota] - 1}),
            f"is {CPUS[quota] - 1} in us-central1, and the stack takes {CPUS[quota]} (vCPUs of system and CPU pools)",
            TWO_FAMILIES,
        )
        for quota in CPUS
    },
    "too few vCPUs": Defect(
        lambda it: it.limits({"CPUS_ALL_REGIONS": 12}), "CPUS-ALL-REGIONS-per-project is 12, and the stack takes 56"
    ),
    **{
        f"too few {quota}": Defect(
            lambda it, quota=quota: it.limits({quota: OBJECTS[quota] - 1}),
            f"{quota} is {OBJECTS[quota] - 1}, of which 0 are in use; the stack makes {OBJECTS[quota]}",
        )
        for quota in OBJECTS
    },
    "networks that others have": Defect(
        lambda it: it.networks("default", "network-1234567"), "NETWORKS is 3, of which 2 are in use; the stack makes 3"
    ),
    "no such block": Defect(
        lambda it: it.cloud.delete(
            "compute/reservationBlock", f"projects/{it.name}/zones/us-central1-b/reservations/{BLOCK}"
        ),
        f"has no {BLOCK}",
        IN_BLOCK,
    ),
    "a small block": Defect(lambda it: it.block(count=1), f"{BLOCK} has 1 nodes, but max_nodes asks for 2", IN_BLOCK),
    "a block on its way": Defect(lambda it: it.block(status="CREATING"), f"{BLOCK} is CREATING", IN_BLOCK),
    "a small sub-block": Defect(
        lambda it: it.block(SUB_BLOCK, count=1), f"{SUB_BLOCK} has 1 nodes, but max_nodes asks for 2", IN_SUB_BLOCK
    ),
    "no such reservation": Defect(
        lambda it: it.cloud.delete("compute/reservation", f"projects/{it.name}/zones/us-central1-b/reservations/ours"),
        "has no reservation ours",
    ),
    "a reservation of another machine": Defect(
        lambda it: it.reservation(instanceProperties={"machineType": "a3-megagpu-8g"}), "ours is for a3-megagpu-8g"
    ),
    "a reservation on its way": Defect(
        lambda it: it.reservation(facts={"status": "CREATING"}), "reservation ours is CREATING"
    ),
    "a reservation that is not shared": Defect(
        lambda it: it.neighbour("LOCAL"),
        "reservation theirs is not shared with other projects by neighbour",
        WITH_THEIRS,
    ),
    "a small reservation": Defect(lambda it: it.reservation(count="1"), "ours has 1 nodes, but max_nodes asks for 2"),
    "a key that is off": Defect(
        lambda it: it.cloud.put("cloudkms/cryptoKey", KEY, {"state": "DISABLED"}),
        "the primary version of projects/keys",
        changed("oasis:cluster.secrets_encryption_key", KEY),
    ),
    "no right to grant the key": Defect(
        lambda it: it.roles_on("cloudkms", KEY, "roles/compute.viewer"),
        "you lack cloudkms.cryptoKeys.setIamPolicy on projects/keys",
        changed("oasis:cluster.secrets_encryption_key", KEY),
    ),
    "no login at Docker Hub": Defect(
        lambda it: None,
        f"there is no secret version {HUB_SECRET}/versions/1",
        changed("oasis:registry.docker_hub", {"username": "vision", "password_secret": f"{HUB_SECRET}/versions/1"}),
    ),
    "a login at Docker Hub that is off": Defect(
        lambda it: it.login("DISABLED"), f"secret version {HUB_SECRET}/versions/2 is DISABLED", WITH_LOGIN
    ),
    "another continent": Defect(
        lambda it: it.policy("gcp.resourceLocations", **_allowed("in:europe-locations")),
        "gcp.resourceLocations: nothing may be made in us-central1",
    ),
    "no place for a secret": Defect(
        lambda it: it.policy("gcp.resourceLocations", **_allowed("in:us-locations")),
        "gcp.resourceLocations: nothing may be made in global",
    ),
    "no GKE": Defect(
        lambda it: it.policy("gcp.restrictServiceUsage", **_denied("container.googleapis.com")),
        "container.googleapis.com may not be used",
    ),
    "keys of one's own": Defect(
        lambda it: it.policy("gcp.restrictNonCmekServices", **_denied("is:storage.googleapis.com")),
        "storage.googleapis.com must be encrypted with keys of yours",
    ),
    "no accounts": Defect(
        lambda it: it.policy("iam.disableServiceAccountCreation", enforce=True), "no service account"
    ),
    "no accounts, by the newer policy": Defect(
        lambda it: it.policy("iam.managed.disableServiceAccountCreation", enforce=True), "no service account"
    ),
    "another soft delete": Defect(
        lambda it: it.policy("storage.softDeletePolicySeconds", **_allowed("604800")),
        "no bucket may keep deleted objects for 0 s (the bucket of oasis:build)",
    ),
    "a retention policy": Defect(
        lambda it: it.policy("storage.retentionPolicySeconds", **_allowed("604800")), "must have a retention policy"
    ),
    "Secrets under a key of one's own": Defect(
        lambda it: it.policy("container.managed.enableSecretsEncryption", enforce=True),
        "Set oasis:cluster.secrets_encryption_key.",
    ),
    "Google groups": Defect(
        lambda it: it.policy("container.managed.enableGoogleGroupsRBAC", enforce=True),
        "Set oasis:cluster.security_group.",
    ),
    "no address of the control plane": Defect(
        lambda it: it.policy("container.managed.enableControlPlaneDNSOnlyAccess", enforce=True),
        "Leave oasis:cluster.endpoint at dns.",
        changed("oasis:cluster.authorized_networks", [OFFICE], changed("oasis:cluster.endpoint", "ip")),
    ),
    "Binary Authorization": Defect(
        lambda it: it.policy("container.managed.enableBinaryAuthorization", enforce=True), "have Binary Authorization"
    ),
    "confidential machines": Defect(
        lambda it: it.policy("compute.restrictNonConfidentialComputing", **_denied("compute.googleapis.com")),
        "every machine must be a Confidential VM",
    ),
    "no NAT": Defect(
        lambda it: it.policy("compute.restrictCloudNATUsage", denyAll=True), "no subnet may use Cloud NAT"
    ),
    "no peering": Defect(
        lambda it: it.policy("compute.restrictVpcPeering", denyAll=True),
        "no network may be peered",
        changed("oasis:build.peered", True),
    ),
    "no load balancer": Defect(
        lambda it: it.policy("compute.restrictLoadBalancerCreationForTypes", **_allowed("in:EXTERNAL")),
        "no internal load balancer may be made",
        BALANCED,
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", DEFECTS)
def test_each_defect_of_a_project_is_found_alone_and_says_what_to_do(project: Make, name: str) -> None:
    defect = DEFECTS[name]
    spoilt = project(defect.config)
    defect.spoil(spoilt)

    fine, said = spoilt.findings()

    text = "\n".join(said)
    bad = [line for line in said if line.startswith("  NO")]
    assert not fine and defect.said in text, text
    assert len(bad) == 1 and said[-1].startswith("\n1 to mend before `up`"), text
    remedy = said[said.index(bad[0]) + 1]
    assert remedy.startswith("      ") and remedy.endswith("."), text


def test_a_project_that_the_caller_may_not_see_is_as_one_that_there_is_not(project: Make) -> None:
    hidden = project(FULL)
    hidden.roles()
    fine, said = hidden.findings()
    assert not fine and f"there is no project {hidden.name} that you may see (cloudresourcemanager" in "\n".join(said)


def test_what_google_does_not_tell_is_said_and_fails_nothing(project: Make) -> None:
    dim = project(FULL)
    for api in ("cloudquotas", "orgpolicy"):
        dim.cloud.delete("serviceusage/service", f"projects/{dim.name}/services/{api}.googleapis.com")
    dim.roles(*access.PERMISSIONS)
    fine, said = dim.findings()
    text = "\n".join(said)
    assert fine and said[-1].startswith("\nnothing to mend before `up`; "), text
    assert f"`gcloud services enable cloudquotas.googleapis.com --project {dim.name}`, and ask again." in text
    assert "Ask for the permission compute.machineTypes.get." in text


def test_an_answer_of_another_form_is_said_and_hides_no_other(project: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    dim = project(FULL)
    dim.limits({GPUS: 0})
    monkeypatch.setattr(access, "services", lambda *_, **__: {}["state"])

    fine, said = dim.findings()

    assert not fine and any("a form that this program does not know (KeyError('state'))" in line for line in said)
    assert any(line.startswith(f"  NO  {PREEMPTIBLE} is 0") for line in said)


def test_what_one_api_says_of_quotas_is_judged_where_the_other_says_nothing(project: Make) -> None:
    spoilt = project(FULL)
    spoilt.quota(PREEMPTIBLE, 0)
    spoilt.cloud.delete("serviceusage/service", f"projects/{spoilt.name}/services/compute.googleapis.com")

    fine, said = spoilt.findings()

    assert not fine and f"  NO  {PREEMPTIBLE} is 0 in us-central1, and the stack takes 48" in "\n".join(said)


@pytest.mark.parametrize(
    ("rule", "mark"),
    [
        (_allowed("in:us-central1-locations", "global"), ""),
        (_allowed("in:europe-locations", "is:us-central1", "us-central1-b", "is:global"), ""),
        (_allowed("in:us-locations", "global"), ""),
        (_denied("in:europe-west1-locations"), ""),
        ({"allowAll": True}, ""),
        (_allowed("us-central1", "global"), "NO"),  # not its zones
        (_denied("us-central1-b"), "NO"),
        ({"denyAll": True}, "NO"),
        (_allowed("in:low-carbon-locations"), "? "),
    ],
)
def test_a_location_is_allowed_as_google_writes_it(project: Make, rule: dict[str, object], mark: str) -> None:
    judged = project(FULL)
    judged.policy("gcp.resourceLocations", **rule)
    _, said = judged.findings()
    [told] = said[said.index("\nOrganisation policies") + 1 :][:1]
    assert told.startswith(f"  {mark}  the policy gcp.resourceLocations" if mark else "  ok"), told


@pytest.mark.parametrize(
    ("constraint", "rule"),
    [
        ("iam.allowedPolicyMemberDomains", _allowed("is:C03xgje4y")),
        ("iam.managed.allowedPolicyMembers", {"enforce": True}),
    ],
)
def test_a_policy_on_who_is_granted_a_role_is_told_where_there_are_teams(
    project: Make, constraint: str, rule: dict[str, object]
) -> None:
    queue = changed("oasis:gpu.capacity[3]", {"mode": "queued", "max_nodes": 2})
    team = {"name": "vision", "gpu_nodes": 1, "members": ["user:ann@example.com"]}
    told = f"  ?   the policy {constraint}: whether it admits the members of vision is not known here"
    for config, expected in ((changed("oasis:teams", [team], queue), True), (queue, False)):
        judged = project(config)
        judged.policy(constraint, **rule)
        _, said = judged.findings()
        assert (told in said) == expected, "\n".join(said)


@pytest.mark.parametrize(
    ("constraint", "rule"),
    [("container.managed.enableNetworkPolicy", {"enforce": True}), ("compute.vmCanIpForward", {"denyAll": True})],
)
def test_a_policy_that_may_stop_the_cluster_is_told_and_fails_nothing(
    project: Make, constraint: str, rule: dict[str, object]
) -> None:
    judged = project(FULL)
    judged.policy(constraint, **rule)
    fine, said = judged.findings()
    assert fine and any(line.startswith(f"  ?   the policy {constraint}: whether ") for line in said), said


def test_what_a_cluster_is_given_satisfies_the_policies_that_ask_for_it(project: Make) -> None:
    judged = project(changed("oasis:cluster.security_group", "gke-security-groups@example.com"))
    for demanded in ("enableGoogleGroupsRBAC", "enableControlPlaneDNSOnlyAccess"):
        judged.policy(f"container.managed.{demanded}", enforce=True)
    fine, said = judged.findings()
    assert fine, "\n".join(said)


@pytest.mark.parametrize("wandb", [None, {"adopt": True}])
def test_a_secret_that_is_not_made_needs_no_location(project: Make, wandb: object) -> None:
    judged = project(changed("oasis:wandb", wandb))
    judged.policy("gcp.resourceLocations", **_allowed("in:us-locations"))
    fine, said = judged.findings()
    assert fine, "\n".join(said)


@pytest.mark.parametrize("there", [1, 3])
def test_a_stack_that_is_up_is_not_told_to_ask_for_what_it_holds(project: Make, there: int) -> None:
    made = project(FULL)
    made.networks(*["network-1234567", "rdma-gvnic-1234567", "rdma-rdma-1234567"][:there])
    fine, said = made.findings()
    held = f"NETWORKS is 3, of which {there} are in use; the stack makes 3, and {there} with these names exist"
    assert fine and f"  ?   {held}" in said


def test_limits_of_a_family_of_machines_are_told(project: Make) -> None:
    wide = project(FULL)
    wide.quota("SSD", 12000, vm_family="A3", region="us-central1")
    info = wide.cloud.get("cloudquotas/quotaInfo", wide.quota_name("SSD"))
    metric = "compute.googleapis.com/local_ssd_total_storage_per_vm_family"
    wide.cloud.put(info.kind, info.name, {**info.body, "metric": metric})
    _, said = wide.findings()
    assert (
        "  -   local_ssd_total_storage_per_vm_family is 12000 for A3, 0 for all; GPU nodes take 96000, of a family "
        "that no public source names"
    ) in said


def test_what_others_keep_for_a_stack_is_found(project: Make) -> None:
    for config, kept in (
        (WITH_THEIRS, "reservation theirs has 2 nodes, 0 of them in use"),
        (WITH_LOGIN, f"secret version {HUB_SECRET}/versions/2 is there"),
    ):
        spoilt = project(config)
        spoilt.neighbour("SPECIFIC_PROJECTS")
        spoilt.login("ENABLED")
        fine, said = spoilt.findings()
        assert fine and f"  ok  {kept}" in said, said


def test_a_key_that_there_is_not_is_named_with_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places.Google, "get", lambda self, api, path: None)
    settings = parse(from_config(changed("oasis:cluster.secrets_encryption_key", KEY)))
    [finding] = places.keys(settings, places.Google(settings.project))
    assert (finding.verdict, finding.what) == ("bad", f"there is no key {KEY}")
    assert "oasis:cluster.secrets_encryption_key" in finding.remedy


def test_of_several_reservations_one_that_cannot_be_seen_hides_no_other(project: Make) -> None:
    ladder = [{"mode": "reservation", "reservation": "projects/owner-project/reservations/theirs", "max_nodes": 1}]
    ladder += [{"mode": "reservation", "reservation": "ours", "max_nodes": 2}]
    both = project(changed("oasis:gpu.capacity", ladder))
    both.reservation(count="0")
    enable(both.cloud, "compute.googleapis.com", "owner-project")
    fine, said = both.findings()
    text = "\n".join(said)
    assert not fine and "NO  reservation ours has 0 nodes" in text
    assert "A shared reservation is visible only in its owner's project." in text


@pytest.mark.parametrize("file", ["none.json", "."])  # none, and one that cannot be read
def test_without_credentials_this_machine_is_looked_at_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / file))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    text = (ROOT / "Pulumi.dev.yaml").read_text().replace("config:", "config:\n  gcp:project: some-project", 1)
    (tmp_path / "Pulumi.dev.yaml").write_text(text)
    assert command_line.main(["preflight", "--stack", "dev"], tmp_path) == 1
    said = capsys.readouterr().out
    assert "NO  pulumi, needed by `up`, is not installed" in said
    assert "?   kubectl, needed by `submit` and `make dashboard`, is not installed" in said
    assert "Google was asked nothing: no Google credentials" in said
    assert "gcloud auth application-default login" in said


def test_the_roles_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "cloud.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| **deployer**")]
    assert all(f"`{role}`" in row for role in access.PERMISSIONS)
    assert row.count("`roles/") == len(access.PERMISSIONS)
