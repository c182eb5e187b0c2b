"""What a stack may say, what each mistake is answered with, and what is filled in."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import pulumi
import pytest
from pulumi.runtime import set_all_config

from oasis_stack.facts.problem import SettingsError
from oasis_stack.settings.schema import Settings
from oasis_stack.settings.settings import from_config, load, parse
from tests.support.stacks import FULL, changed


def refusal(config: dict[str, Any]) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        parse(from_config(config))
    return caught.value


class Mistake(NamedTuple):
    """What a user may get wrong, and what the answer must say."""

    key: str
    value: object
    words: str
    """Beside the key."""
    named: str = ""
    """The key that is answered with, if it is another one."""


MISTAKES = {
    "unknown key at the top": Mistake("oasis:regoin", "us-central1", "did you mean oasis:region"),
    "unknown key in a section": Mistake("oasis:ray.namspace", "ray", "did you mean oasis:ray.namespace"),
    "unknown key in a list": Mistake("oasis:gpu.capacity[1].nodes", 2, "capacity[1].max_nodes"),
    "key of another section": Mistake("oasis:machine_type", "x", "did you mean oasis:gpu.machine_type"),
    "project in the wrong namespace": Mistake("oasis:project", "p-12345", "did you mean gcp:project"),
    "missing project": Mistake("gcp:project", None, "is missing"),
    "malformed project": Mistake("gcp:project", "My Project", "'My Project'"),
    "missing zone": Mistake("oasis:zone", None, "is missing"),
    "zone outside the region": Mistake("oasis:zone", "us-south1-b", "us-central1"),
    "zone without the machine": Mistake("oasis:zone", "us-central1-f", "us-east4-b"),
    "region that is none": Mistake("oasis:region", "USA", "us-central1"),
    "name too long": Mistake("oasis:name", "a-name-of-17-char", "1 to 16"),
    "name that begins with goog": Mistake("oasis:name", "goog-1", "not beginning with goog"),
    "name that contains google": Mistake("oasis:name", "my-google", "nor containing google"),
    "namespace of Kubernetes": Mistake("oasis:ray.namespace", "kube-system", "kube-*"),
    "namespace of everyone": Mistake("oasis:ray.namespace", "default", "not default"),
    "namespace of GKE": Mistake("oasis:ray.namespace", "gke-managed-system", "gke-*"),
    "namespace of Managed Prometheus": Mistake("oasis:ray.namespace", "gmp-public", "gmp-*"),
    "namespace of KubeRay": Mistake("oasis:ray.namespace", "kuberay-system", "kuberay-system"),
    "namespace of Kueue": Mistake("oasis:ray.namespace", "kueue-system", "kueue-system"),
    "namespace too long": Mistake("oasis:ray.namespace", "n" * 64, "1 to 63"),
    "Ray cluster name too long": Mistake("oasis:ray.cluster_name", "n" * 54, "1 to 53"),
    "label that Google refuses": Mistake("oasis:labels", {"Team": "a b"}, "rename", named="oasis:labels.Team"),
    "label key of Google's": Mistake(
        "oasis:labels", {"goog-team": "a"}, "not with goog", named="oasis:labels.goog-team"
    ),
    "labels that are no mapping": Mistake("oasis:labels", ["a"], "section"),
    "block that is no network": Mistake("oasis:network.primary_block", "10.64.0.0/33", "a private IPv4 network"),
    "block with host bits": Mistake("oasis:network.primary_block", "10.64.0.1/16", "has host bits set"),
    "block on Docker's bridge": Mistake("oasis:network.device_block", "172.16.0.0/15", "apart from 172.17.0.0/16"),
    "block inside Docker's bridge": Mistake(
        "oasis:network.primary_block", "172.17.64.0/18", "apart from 172.17.0.0/16"
    ),
    "key of another region": Mistake(
        "oasis:cluster.secrets_encryption_key", "projects/p/locations/us-east4/keyRings/r/cryptoKeys/k", "us-central1"
    ),
    "GKE older than its admission policies": Mistake("oasis:cluster.minimum_version", "1.32", "1.33 or newer"),
    "GKE build older than its admission policies": Mistake(
        "oasis:cluster.minimum_version", "1.32.9-gke.9999999", "1.33 or newer"
    ),
    "block too small for the pools": Mistake("oasis:network.pods_block", "10.96.0.0/20", "a block for 17 nodes"),
    "pool maximum 0": Mistake("oasis:gpu.capacity[1].max_nodes", 0, "from 1 to 1000"),
    "empty ladder": Mistake("oasis:gpu.capacity", [], "at least one entry"),
    "missing ladder": Mistake("oasis:gpu.capacity", None, "is missing"),
    "H200 on demand": Mistake("oasis:gpu.capacity[2].mode", "on-demand", "spot"),
    "mode that is none": Mistake("oasis:gpu.capacity[2].mode", "dws", "flex-start"),
    "machine type that is none": Mistake("oasis:gpu.machine_type", "a2-highgpu-8g", "g2-standard-4"),
    "reservation without a name": Mistake(
        "oasis:gpu.capacity[0].reservation", None, "gcloud compute reservations list"
    ),
    "run duration over 7 days": Mistake("oasis:gpu.capacity[1].max_run_duration_hours", 169, "from 1 to 168"),
    "ComputeClass of GKE": Mistake("oasis:gpu.compute_class", "gke-h200", "not beginning with gke or autopilot"),
    "Kueue's chart without an address": Mistake("oasis:gpu.queue_chart", "kueue", "the address of a Helm chart"),
    "number in quotes": Mistake("oasis:gpu.capacity[1].max_nodes", "4", "whole number"),
    "yes for true": Mistake("oasis:data.keep", "yes", "true or false"),
    "version without quotes": Mistake("oasis:cluster.minimum_version", 1.35, "in quotes"),
    "half the internet authorised": Mistake(
        "oasis:cluster.authorized_networks",
        [{"name": "half", "cidr": "128.0.0.0/1"}],
        "never wider than /8",
        named="oasis:cluster.authorized_networks[0].cidr",
    ),
    "authorised network that is none": Mistake(
        "oasis:cluster.authorized_networks",
        [{"name": "office", "cidr": "203.0.113.300/24"}],
        "203.0.113.0/24",
        named="oasis:cluster.authorized_networks[0].cidr",
    ),
    "IP endpoint for nobody": Mistake(
        "oasis:cluster.endpoint", "ip", "at least one", named="oasis:cluster.authorized_networks"
    ),
    "maintenance that ends first": Mistake(
        "oasis:cluster.maintenance_exclusion",
        {"start": "2027-02-01T00:00:00Z", "end": "2027-01-01T00:00:00Z"},
        "after its start",
        named="oasis:cluster.maintenance_exclusion.end",
    ),
    "maintenance longer than GKE accepts": Mistake(
        "oasis:cluster.maintenance_exclusion",
        {"start": "2027-01-01T00:00:00Z", "end": "2027-07-01T00:00:00Z"},
        "at most 180 days",
        named="oasis:cluster.maintenance_exclusion.end",
    ),
    "maintenance on a day that is none": Mistake(
        "oasis:cluster.maintenance_exclusion",
        {"start": "2027-02-30T00:00:00Z", "end": "2027-03-01T00:00:00Z"},
        "exists",
        named="oasis:cluster.maintenance_exclusion.start",
    ),
    "system pool upside down": Mistake("oasis:cluster.system_pool.min_nodes", 9, "at most max_nodes"),
    "head larger than its node": Mistake(
        "oasis:cluster.system_pool.machine_type",
        "e2-standard-4",
        "oasis:cluster.system_pool.machine_type",
        named="oasis:ray.head.cpus",
    ),
    "CPU worker larger than its node": Mistake("oasis:ray.cpu_worker.memory_gb", 32, "at most"),
    "more CPU workers than nodes": Mistake("oasis:ray.cpu_workers_max", 5, "cpu_pool.max_nodes"),
    "system machine without Persistent Disk": Mistake(
        "oasis:cluster.system_pool.machine_type", "n4-standard-8", "e2-standard-8"
    ),
    "machine type of a size that is none": Mistake(
        "oasis:cluster.cpu_pool.machine_type",
        "e2-highmem-32",
        "allowed: one of e2-highmem-2, e2-highmem-4, e2-highmem-8, e2-highmem-16. ",
    ),
    "build machine of a size that is none": Mistake(
        "oasis:build.machine_type", "c3-standard-16", "allowed: one of c3-standard-4, c3-standard-8, c3-standard-22"
    ),
    "Ray without token authentication": Mistake("oasis:ray.version", "2.48.0", "2.52.0 or newer"),
    "Ray other than in the image": Mistake(
        "oasis:ray.image", "rayproject/ray:2.59.0", "2.59.0", named="oasis:ray.version"
    ),
    "Ray other than in the image that was built": Mistake(
        "oasis:ray.image",
        "r-docker.pkg.dev/p/oasis-docker/ray:2.59.0-20270101-000000@sha256:" + "0a" * 32,
        "2.59.0",
        named="oasis:ray.version",
    ),
    "image without tag": Mistake("oasis:ray.image", "rayproject/ray", "a tag or a digest"),
    "port below 1024": Mistake("oasis:ray.dashboard_port", 80, "from 1024 to 65535"),
    "load balancer for nobody": Mistake(
        "oasis:ray.dashboard_access",
        "internal-load-balancer",
        "at least one private network",
        named="oasis:ray.dashboard_client_ranges",
    ),
    "dashboard for the internet": Mistake(
        "oasis:ray.dashboard_client_ranges", ["0.0.0.0/0"], "10.0.0.0/8", named="oasis:ray.dashboard_client_ranges[0]"
    ),
    "soft delete between the steps": Mistake("oasis:data.soft_delete_days", 3, "0, or 7 to 90"),
    "bucket taken over and emptied": Mistake(
        "oasis:data", {"keep": False, "adopt": True}, "is false; allowed: true while", named="oasis:data.keep"
    ),
    "billing account in small letters": Mistake(
        "oasis:cost.billing_account", "01ab23-4cd567-89ef01", "as 01AB23-4CD567-89EF01, in capitals"
    ),
    "billing account by its full name": Mistake(
        "oasis:cost.billing_account", "billingAccounts/01AB23-4CD567-89EF01", "a Cloud Billing account's ID"
    ),
    "budget without an amount": Mistake(
        "oasis:cost.billing_account", "01AB23-4CD567-89EF01", "set oasis:cost.monthly_usd too, or remove this one"
    ),
    "budget of nobody": Mistake("oasis:cost.monthly_usd", 5000, "only beside oasis:cost.billing_account"),
    "budget of nothing": Mistake(
        "oasis:cost",
        {"billing_account": "01AB23-4CD567-89EF01", "monthly_usd": 0},
        "from 1 to 100000000",
        named="oasis:cost.monthly_usd",
    ),
    "key without a secret": Mistake("oasis:wandb", None, "oasis:wandb: {}"),
    "key in plain text": Mistake("oasis:wandb_api_key", "local-0123", "revoke that key"),
    "section that is a text": Mistake("oasis:ray", "2.60.0", "section"),
    "list that is a mapping": Mistake("oasis:gpu.capacity", {"mode": "spot"}, "a list"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_answered_with_its_key_and_what_to_do(mistake: str) -> None:
    made = MISTAKES[mistake]
    config = changed("oasis:wandb_api_key", {"secure": "v1:abc"}) if mistake == "key without a secret" else FULL

    error = refusal(changed(made.key, made.value, config))

    lines = [line for line in str(error).splitlines() if line.startswith(f"  - {made.named or made.key} ")]
    assert lines, str(error)
    assert any(made.words.lower() in line.lower() for line in lines), lines
    assert all("allowed: " in line for line in lines)


def test_what_is_just_within_googles_limits_is_accepted() -> None:
    longest = {"start": "2027-01-01T00:00:00Z", "end": "2027-06-30T00:00:00Z"}
    for key, value in (
        ("oasis:cluster.maintenance_exclusion", longest),
        ("oasis:cluster.minimum_version", "1.33.0-gke.1000000"),
        ("oasis:cluster.minimum_version", "1.33"),
        ("oasis:network.device_block", "172.18.0.0/15"),
        ("oasis:ray.namespace", "kubeflow"),
        ("oasis:ray.namespace", "default-ray"),
        ("oasis:name", "my-goog"),
        ("oasis:labels", {"my-goog": "a"}),
        ("oasis:ray.image", "r-docker.pkg.dev/p/oasis-docker/ray:2.60.0-20270101-000000@sha256:" + "0a" * 32),
    ):
        parse(from_config(changed(key, value)))


QUEUED = changed("oasis:gpu.capacity[3]", {"mode": "queued", "max_nodes": 2})


def test_a_queue_needs_room_for_a_head_beside_the_one_that_always_runs() -> None:
    small = changed("oasis:cluster.system_pool.max_nodes", 1, QUEUED)

    (problem,) = refusal(small).problems
    assert problem.key == "cluster.system_pool.max_nodes" and "raise it" in problem.remedy
    # One node that holds two heads will do, and without a queue there is but one.
    parse(from_config(changed("oasis:cluster.system_pool.machine_type", "e2-standard-16", small)))
    parse(from_config(changed("oasis:cluster.system_pool.max_nodes", 1)))
    assert parse(from_config(QUEUED)).queued_heads == 2


def test_a_queued_entry_has_googles_limit_for_its_end_and_is_no_part_of_the_compute_class() -> None:
    gpu = parse(from_config(QUEUED)).gpu

    assert gpu is not None and gpu.queue is not None
    assert gpu.queue.max_run_duration_hours == 168
    assert gpu.queue not in gpu.class_entries
    # The address plan must hold the nodes of both, the standing cluster's workers know their own alone.
    assert (gpu.class_nodes, gpu.max_nodes) == (8, 10)
    ending = parse(from_config(changed("oasis:gpu.capacity[3].max_run_duration_hours", 24, QUEUED))).gpu
    assert ending is not None and ending.max_run_seconds == 168 * 3600


def test_one_mistake_is_reported_once() -> None:
    once = {
        name: refusal(changed(MISTAKES[name].key, MISTAKES[name].value)).problems
        for name in (
            *("missing zone", "machine type that is none", "mode that is none", "block with host bits"),
            *("block on Docker's bridge", "maintenance that ends first", "key of another region"),
        )
    }
    assert {name: len(problems) for name, problems in once.items()} == dict.fromkeys(once, 1)


@pytest.mark.parametrize(
    ("written", "key", "value"),
    [
        ("oasis:gpu.capacity[0].max_node", "oasis:gpu.capacity[0].max_nodes", 2),
        ("oasis:gpu.capacity[0].reservatoin", "oasis:gpu.capacity[0].reservation", "ours"),
        ("oasis:gpu.capacity[2].mod", "oasis:gpu.capacity[2].mode", "spot"),
        ("oasis:regoin", "oasis:region", "us-central1"),
        ("oasis:project", "gcp:project", "some-project"),
    ],
)
def test_a_misspelt_key_is_not_missing_too(written: str, key: str, value: object) -> None:
    (problem,) = refusal(changed(written, value, changed(key, None))).problems

    assert str(problem).startswith(f"{written} is no setting; ")
    assert str(problem).endswith(f"Did you mean {key}?")


def test_all_mistakes_are_reported_at_once() -> None:
    config = changed("oasis:regoin", "x", changed("oasis:zone", "us-west1-b", changed("oasis:data.keep", 1)))

    keys = {problem.key for problem in refusal(config).problems}

    assert keys >= {"regoin", "zone", "data.keep"}


def test_a_refusal_shows_no_value_that_may_be_a_secret() -> None:
    for key in ("oasis:wandb_api_key", "oasis:wandb_api_kye", "oasis:wandb.api_key"):
        assert "hunter2" not in str(refusal(changed(key, "hunter2")))


def test_what_follows_from_another_setting_follows_it() -> None:
    ladder = [{"mode": "on-demand", "max_nodes": 1}]
    stack = parse(from_config(changed("oasis:gpu", {"machine_type": "g2-standard-4", "capacity": ladder})))
    other = parse(from_config(changed("oasis:ray.version", "2.61.0")))

    assert stack.gpu is not None and stack.gpu.compute_class == "l4"
    assert other.ray.image == "rayproject/ray:2.61.0-py312-cu128"


def under_pulumi(read: Callable[[], Settings], config: dict[str, Any], secret: bool) -> Settings:
    text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}

    async def run() -> Settings:
        set_all_config(text, ["oasis:wandb_api_key"] if secret else [])
        return read()

    return contextvars.copy_context().run(lambda: asyncio.run(run()))


def test_the_program_and_the_command_line_read_alike() -> None:
    others = {"gcp:region": "elsewhere", "aws:region": "mars"}

    assert under_pulumi(load, FULL | others, secret=False) == parse(from_config(FULL))


def test_the_key_is_the_only_output_and_stays_wrapped() -> None:
    stack = under_pulumi(load, FULL | {"oasis:wandb_api_key": "hunter2"}, secret=True)

    outputs = {field.name for field in fields(stack) if isinstance(getattr(stack, field.name), pulumi.Output)}
    assert outputs == {"wandb_api_key"}
    assert "hunter2" not in repr(stack)


def test_a_key_that_is_configured_without_encryption_is_refused() -> None:
    with pytest.raises(pulumi.RunError, match=r"wandb_api_key is '.plain text") as caught:
        under_pulumi(load, FULL | {"oasis:wandb_api_key": "hunter2"}, secret=False)
    assert "hunter2" not in str(caught.value)
