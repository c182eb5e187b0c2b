"""The program's whole life on Google's REST APIs, many times over, in one process."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, note, settings

from emulator.gcp.resources import google_client
from emulator.gke import records
from emulator.gke.fit import fits, free
from emulator.gke.node_shapes import Pool, networks_of, node
from emulator.google import operations
from oasis_stack.command_line import recovery
from tests.emulator.google import enable
from tests.emulator.one_process import Cut, Killed, OneProcess, resumed
from tests.emulator.provider_client import Failed
from tests.support.legal_stacks import stacks
from tests.support.setting_examples import (
    ALONE,
    BILLING_ACCOUNT,
    BUDGET,
    EXAMPLES,
    HUB_TOKEN,
    NOT_IN_THE_CLOUD,
    everything_changed,
)
from tests.support.stacks import FULL, changed

CLOUD_PAGE = Path(__file__).parents[3] / "docs" / "cloud.md"
PROJECT = "//cloudresourcemanager.googleapis.com/projects/some-project"
SOME = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PEERED = changed("oasis:build.peered", True)
BUDGETED = changed("oasis:cost", {"billing_account": BILLING_ACCOUNT, "monthly_usd": 50_000}, PEERED)

TOGETHER: list[set[str]] = [
    {"cluster.authorized_networks[0].name", "cluster.authorized_networks[0].cidr", "cluster.endpoint"},
    {"cluster.maintenance_exclusion.start", "cluster.maintenance_exclusion.end"},
    {"ray.dashboard_access", "ray.dashboard_client_ranges"},
    {"registry.docker_hub.username", "registry.docker_hub.password_secret"},
    {"cluster.system_pool.machine_type", "ray.head.cpus", "ray.head.memory_gb"},
    {"cluster.cpu_pool.machine_type", "ray.cpu_worker.cpus", "ray.cpu_worker.memory_gb"},
    {"cluster.cpu_pool.max_nodes", "ray.cpu_workers_max"},
    {"cost.billing_account", "cost.monthly_usd"},
]
"""Settings that are legal only with each other, changed at once."""

VALUES = {
    "gpu.capacity[].max_nodes": ("oasis:gpu.capacity[0].max_nodes", 3),
    "gpu.capacity[].max_run_duration_hours": ("oasis:gpu.capacity[3].max_run_duration_hours", 25),
    "gpu.capacity[].compact_placement": ("oasis:gpu.capacity[0].compact_placement", False),
    "gpu.capacity[].reservation": ("oasis:gpu.capacity[0].reservation", "another"),
    "cost.billing_account": ("oasis:cost.billing_account", "0A0A0A-0B0B0B-0C0C0C"),
}
"""Fields of a ladder's entries, and what is legal only beside another setting, with a change of each."""

ELSEWHERE = {"project", "region", "zone", "cluster.secrets_encryption_key"}
"""Settings that say where the stack is: the page has it destroyed first."""

UNCHANGED = {"cluster.deletion_protection", *NOT_IN_THE_CLOUD, *ALONE, *ELSEWHERE} | {
    key for key in EXAMPLES if key.endswith(".adopt") or key.startswith("gpu.capacity")
}
"""Settings that are for the first `up` alone, would keep the others from being shown, or are in `VALUES`."""

SHARED = {"emulator/operation", "serviceusage/service"}
"""Kinds of which all stacks of a project use the same."""


@pytest.fixture(autouse=True, scope="module")
def without_waiting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "SECONDS", 0.0)
        patch.setattr(operations, "LATE_SECONDS", 900.0)
        patch.setattr(google_client, "RETRY_SECONDS", (0.0,) * 4)
        yield


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> OneProcess:
    """A stack that is up; tests change copies of it."""
    google = OneProcess(tmp_path_factory.mktemp("standing"), PEERED)
    google.up()
    return google


@pytest.mark.thorough
def test_what_up_makes_reads_back_without_a_difference_and_goes_by_one_destroy(tmp_path: Path) -> None:
    google = OneProcess(tmp_path, FULL)
    deployment = google.up()
    assert len(google.held) > 60
    assert google.again(deployment) == {}
    google.up()
    assert google.steps == []
    google.destroy()
    assert [(one.kind, one.name) for one in google.cloud.inventory().other] == []


@pytest.mark.thorough
def test_what_an_interrupted_run_made_can_be_made_again_or_is_found_by_its_inputs(tmp_path: Path) -> None:
    config = changed("oasis:wandb_api_key", "0" * 40, PEERED)
    config = changed("oasis:gpu.capacity[3]", {"mode": "queued", "max_nodes": 2}, config)
    google = OneProcess(tmp_path, changed("oasis:teams", [{"name": "vision", "gpu_nodes": 1}], config))
    google.up()
    found = set[str]()
    for (token, name), held in google.held.items():
        identity = recovery.identity({"type": token, "inputs": held.inputs})
        if identity:
            found.add(token)
            taken_over = google.provider.read(token, identity, held)
            assert taken_over is not None and taken_over.id == held.id
            with pytest.raises(Failed, match="409"):
                google.provider.create(token, name, held.inputs)
        elif token != "gcp:secretmanager/secretVersion:SecretVersion":  # a second one is as good
            assert google.provider.create(token, name, held.inputs).id == held.id
    assert recovery.IDENTITIES.keys() - found == {
        "gcp:compute/address:Address",
        "kubernetes:helm.sh/v3:Release",
    }


@pytest.mark.thorough
@pytest.mark.parametrize("cut", get_args(Cut))
@pytest.mark.parametrize("part", [0.15, 0.5, 0.85])
def test_after_an_interruption_anywhere_the_next_run_finishes_and_nothing_is_there_twice(
    standing: OneProcess, tmp_path: Path, part: float, cut: Cut
) -> None:
    google = OneProcess(tmp_path / "up", PEERED)
    google.cuts = {round(part * standing.calls): cut}
    deployment, runs = resumed(google.up)
    assert (runs > 1) == (cut != "lost")
    assert kinds(google) == kinds(standing)
    assert google.again(deployment) == {}

    going = standing.configured(PEERED, tmp_path / "destroy")
    going.cuts = {round(part * standing.calls / 2): cut}  # grants on what goes anyway are not taken back one by one
    _, runs = resumed(going.destroy)
    assert (runs > 1) == (cut != "lost")
    assert [one.name for one in going.cloud.inventory().other] == []


@pytest.mark.thorough
def test_a_destroy_after_a_change_was_cut_off_also_takes_what_the_change_had_not_yet_removed(
    standing: OneProcess, tmp_path: Path
) -> None:
    google = standing.configured(changed("oasis:gpu.compute_class", "another", PEERED), tmp_path / "cut-off")
    google.cuts = {1: "killed after"}
    with pytest.raises(Killed):
        google.up()
    assert kinds(google) > kinds(standing)
    google.destroy()
    assert [one.name for one in google.cloud.inventory().other] == []


@pytest.mark.thorough
def test_a_change_of_a_setting_makes_anew_what_the_docs_say_and_nothing_else(tmp_path: Path) -> None:
    google = OneProcess(tmp_path / "all", everything_changed(UNCHANGED))
    for api in ("secretmanager", "cloudkms"):
        enable(google.cloud, f"{api}.googleapis.com", "keys-project")
    login = HUB_TOKEN.partition("/versions")[0]
    google.cloud.put("secretmanager/secret", login, {"name": login})
    google.up()
    documented, whole = _documented(), everything_changed(UNCHANGED)
    in_place = EXAMPLES.keys() - UNCHANGED - documented.keys()
    changes = {key: everything_changed(UNCHANGED | _with(key)) for key in documented.keys() & EXAMPLES.keys()}
    changes |= {key: changed(path, value, whole) for key, (path, value) in VALUES.items()}
    changes["all the others"] = everything_changed(UNCHANGED.union(*map(_with, in_place)))
    anew: dict[str, set[str]] = {}
    for key, config in sorted(changes.items()):
        other = google.configured(config, tmp_path / re.sub(r"\W", "-", key))
        deployment = other.up()
        assert other.again(deployment) == {}, key
        replaced = {found for found, held in google.held.items() if other.held.get(found, held).id != held.id}
        if kinds_anew := {type_.rpartition(":")[2] for type_, _ in replaced if "Member" not in type_}:
            anew[key] = kinds_anew
    assert anew == documented


def _with(key: str) -> set[str]:
    return next((group for group in TOGETHER if key in group), {key})


def _documented() -> dict[str, set[str]]:
    """By setting, the kinds that the page says are made anew."""
    section = CLOUD_PAGE.read_text().partition("## Changing a setting")[2].partition("\n## ")[0]
    found: dict[str, set[str]] = {}
    for row in re.findall(r"^\| (`oasis:.*?) \| (.*) \|$", section, re.MULTILINE):
        settings_of_row, kinds_of_row = (re.findall(r"`([^`]+)`", cell) for cell in row)
        found |= {key.removeprefix("oasis:").removeprefix("gcp:"): set(kinds_of_row) for key in settings_of_row}
    return found


@pytest.mark.thorough
def test_what_is_changed_or_deleted_behind_the_stacks_back_is_put_right(standing: OneProcess, tmp_path: Path) -> None:
    google = standing.configured(PEERED, tmp_path / "drifted")
    before = kinds(google)
    firewall = next(held for (_, name), held in google.held.items() if name == "network-internal")
    bucket = google.held["gcp:storage/bucket:Bucket", "data"]
    pool, other = (google.held["gcp:container/nodePool:NodePool", f"gpu-{mode}"] for mode in ("spot", "flex-start"))
    nodes = google.held["gcp:compute/subnetwork:Subnetwork", "network-nodes"]
    cluster = google.held["gcp:container/cluster:Cluster", "cluster"]
    more = {"rangeName": "more-pods", "ipCidrRange": "10.80.0.0/16"}
    google.provider.delete(pool)
    google.cloud.update(records.POOL_KIND, other.id, _rewrite_as_google_may)
    google.cloud.update("container/cluster", cluster.id, lambda body: body.pop("privateClusterConfig"))
    google.cloud.update("compute/subnetwork", nodes.id, lambda body: body["secondaryIpRanges"].append(more))
    google.provider.update(firewall, {**firewall.inputs, "sourceRanges": ["0.0.0.0/0"]})
    google.provider.update(bucket, {**bucket.inputs, "publicAccessPrevention": "inherited"})

    google.refresh()
    deployment = google.up()

    assert {(step.op, step.name) for step in google.steps} == {
        ("create", "gpu-spot"),
        ("update", "network-internal"),
        ("update", "network-nodes"),  # which Google refuses while pods are in the range; the cluster stays
        ("update", "data"),
    }
    assert kinds(google) == before
    assert google.again(deployment) == {}


def _rewrite_as_google_may(pool: dict[str, Any]) -> None:
    pool["config"]["ephemeralStorageLocalSsdConfig"]["localSsdCount"] = 4
    pool["config"]["metadata"]["added"] = "by GKE"


def test_ray_s_pods_find_nodes_in_their_own_pools_alone_and_other_pods_on_the_system_nodes(
    standing: OneProcess, tmp_path: Path
) -> None:
    google = standing.configured(PEERED, tmp_path / "pods")
    made = google.up()
    spec = made.only("kubernetes:ray.io/v1:RayCluster").inputs["spec"]
    sets, networks = (
        [found.inputs for found in made.of_type(f"kubernetes:networking.gke.io/v1:{kind}")]
        for kind in ("GKENetworkParamSet", "Network")
    )
    pods = {"other": {"metadata": {}, "spec": {}}, "head": spec["headGroupSpec"]["template"]}
    pods |= {group["groupName"]: group["template"] for group in spec["workerGroupSpecs"]}
    pools = [Pool(identity=one.name, body=one.body) for one in google.cloud.list(records.POOL_KIND)]
    nodes = {
        pool.name.rpartition("-")[0]: node(pool, "n", "us-central1-b", networks_of(pool, sets, networks))
        for pool in pools
    }

    homes = {
        name: {pool for pool, found in nodes.items() if fits(pod, found, free(found, []))} for name, pod in pods.items()
    }

    assert homes == {
        "other": {"cluster-system"},
        "head": {"cluster-system"},
        "cpu": {"cluster-cpu"},
        "gpu": {"gpu-reservation-ours", "gpu-flex-start", "gpu-spot"},
    }


@pytest.mark.thorough
def test_two_stacks_of_one_project_know_nothing_of_each_other(standing: OneProcess, tmp_path: Path) -> None:
    first = standing.configured(PEERED, tmp_path / "both")
    theirs = contents(first)
    second = OneProcess(tmp_path / "both", changed("oasis:name", "second", PEERED))
    second.up()
    second.destroy()

    left = contents(first)
    assert {kind for kind, _ in left.keys() - theirs.keys()} == {"storage/bucket", "artifactregistry/repository"}
    assert {key: left[key] for key in theirs} == theirs
    assert first.again(first.up()) == {}
    assert first.steps == []


def contents(google: OneProcess) -> dict[tuple[str, str], Any]:
    """What there is, by kind and name; of a policy, who holds what."""
    found: dict[tuple[str, str], Any] = {}
    for one in google.cloud.list():
        if one.kind == "iam/policy":
            bindings = one.body.get("bindings", [])
            found[one.kind, one.name] = {
                (binding["role"], member) for binding in bindings for member in binding["members"]
            }
        elif one.kind not in SHARED:
            found[one.kind, one.name] = one.body
    return found


def kinds(google: OneProcess) -> Counter[str]:
    """How many there are of each kind of what a destroy removes."""
    return Counter(one.kind for one in google.cloud.inventory().other)


@pytest.mark.long
@pytest.mark.thorough
@SOME
@given(stacks())
def test_no_legal_stack_is_refused_and_every_one_goes_by_one_destroy(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any]
) -> None:
    note(json.dumps(config, indent=1))
    google = OneProcess(tmp_path_factory.mktemp("google"), config)
    deployment = google.up()
    assert google.again(deployment) == {}
    google.destroy()
    assert [(one.kind, one.name) for one in google.cloud.inventory().other] == []


@pytest.mark.thorough
def test_the_documented_roles_are_enough_for_up_and_destroy_and_each_of_them_is_needed(tmp_path: Path) -> None:
    page = CLOUD_PAGE.read_text()
    (row,) = re.findall(r"^\| \*\*deployer\*\* .*$", page, re.MULTILINE)
    roles = set(re.findall(r"`(roles/[\w.]+)`", row))
    of_the_account = set(
        re.findall(r"^\| deployer \| `(.*?)` \| the account of `cost.billing_account`", page, re.MULTILINE)
    )
    google = OneProcess(tmp_path / "budgeted", BUDGETED, roles, of_the_account)
    google.up()
    assert google.held[BUDGET].inputs["displayName"] == "oasis in some-project"
    google.destroy()
    policies = {PROJECT, f"//cloudbilling.googleapis.com/billingAccounts/{BILLING_ACCOUNT}"}
    assert {one.name for one in google.cloud.inventory().other} == policies
    with pytest.raises(Failed, match=r"Error 403.*roles/billing\.costsManager"):
        OneProcess(tmp_path / "not-of-the-account", BUDGETED, roles | of_the_account).up()
    for role in sorted(roles):
        with pytest.raises(Failed, match=f"Error 403.*{re.escape(role)}"):
            OneProcess(tmp_path / role.rpartition("/")[2], FULL, roles - {role}).up()
