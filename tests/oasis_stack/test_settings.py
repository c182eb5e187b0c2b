"""What a stack may say, what each mistake is answered with, and what is filled in."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

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


# What a user may get wrong: the key, the value, and words that the answer must have beside the key.
MISTAKES: dict[str, tuple[str, object, str, str]] = {
    "unknown key at the top": ("oasis:regoin", "us-central1", "oasis:regoin", "did you mean oasis:region"),
    "unknown key in a section": ("oasis:ray.namspace", "ray", "oasis:ray.namspace", "did you mean oasis:ray.namespace"),
    "unknown key in a list": ("oasis:gpu.capacity[1].nodes", 2, "oasis:gpu.capacity[1].nodes", "capacity[1].max_nodes"),
    "key of another section": ("oasis:machine_type", "x", "oasis:machine_type", "did you mean oasis:gpu.machine_type"),
    "project in the wrong namespace": ("oasis:project", "p-12345", "oasis:project", "did you mean gcp:project"),
    "missing project": ("gcp:project", None, "gcp:project", "is missing"),
    "malformed project": ("gcp:project", "My Project", "gcp:project", "'My Project'"),
    "missing zone": ("oasis:zone", None, "oasis:zone", "is missing"),
    "zone outside the region": ("oasis:zone", "us-south1-b", "oasis:zone", "us-central1"),
    "zone without the machine": ("oasis:zone", "us-central1-f", "oasis:zone", "us-east4-b"),
    "region that is none": ("oasis:region", "USA", "oasis:region", "us-central1"),
    "name too long": ("oasis:name", "a-name-of-17-char", "oasis:name", "1 to 16"),
    "name that begins with goog": ("oasis:name", "goog-1", "oasis:name", "not beginning with goog"),
    "name that contains google": ("oasis:name", "my-google", "oasis:name", "nor containing google"),
    "namespace of Kubernetes": ("oasis:ray.namespace", "kube-system", "oasis:ray.namespace", "kube-*"),
    "namespace of everyone": ("oasis:ray.namespace", "default", "oasis:ray.namespace", "not default"),
    "namespace of GKE": ("oasis:ray.namespace", "gke-managed-system", "oasis:ray.namespace", "gke-*"),
    "namespace of Managed Prometheus": ("oasis:ray.namespace", "gmp-public", "oasis:ray.namespace", "gmp-*"),
    "namespace of KubeRay": ("oasis:ray.namespace", "kuberay-system", "oasis:ray.namespace", "kuberay-system"),
    "namespace too long": ("oasis:ray.namespace", "n" * 64, "oasis:ray.namespace", "1 to 63"),
    "Ray cluster name too long": ("oasis:ray.cluster_name", "n" * 54, "oasis:ray.cluster_name", "1 to 53"),
    "label that Google refuses": ("oasis:labels", {"Team": "a b"}, "oasis:labels.Team", "rename"),
    "label key of Google's": ("oasis:labels", {"goog-team": "a"}, "oasis:labels.goog-team", "not goog"),
    "labels that are no mapping": ("oasis:labels", ["a"], "oasis:labels", "section"),
    "block that is no network": (
        *("oasis:network.primary_block", "10.64.0.0/33", "oasis:network.primary_block"),
        "a private IPv4 network",
    ),
    "block with host bits": (
        *("oasis:network.primary_block", "10.64.0.1/16", "oasis:network.primary_block"),
        "has host bits set",
    ),
    "block on Docker's bridge": (
        *("oasis:network.device_block", "172.16.0.0/15", "oasis:network.device_block"),
        "apart from 172.17.0.0/16",
    ),
    "block inside Docker's bridge": (
        *("oasis:network.primary_block", "172.17.64.0/18", "oasis:network.primary_block"),
        "apart from 172.17.0.0/16",
    ),
    "key of another region": (
        *("oasis:cluster.secrets_encryption_key", "projects/p/locations/us-east4/keyRings/r/cryptoKeys/k"),
        *("oasis:cluster.secrets_encryption_key", "us-central1"),
    ),
    "GKE older than its admission policies": (
        *("oasis:cluster.minimum_version", "1.32", "oasis:cluster.minimum_version"),
        "1.33 or newer",
    ),
    "GKE build older than its admission policies": (
        *("oasis:cluster.minimum_version", "1.32.9-gke.9999999", "oasis:cluster.minimum_version"),
        "1.33 or newer",
    ),
    "block that is public": ("oasis:network.pods_block", "8.8.0.0/16", "oasis:network.pods_block", "10.0.0.0/8"),
    "overlapping blocks": (
        *("oasis:network.primary_block", "10.97.0.0/16", "oasis:network.pods_block"),
        "does not overlap oasis:network.primary_block",
    ),
    "block too small for the pools": (
        *("oasis:network.pods_block", "10.96.0.0/20", "oasis:network.pods_block"),
        "a block for 17 nodes",
    ),
    "pool maximum 0": ("oasis:gpu.capacity[1].max_nodes", 0, "oasis:gpu.capacity[1].max_nodes", "from 1 to 1000"),
    "empty ladder": ("oasis:gpu.capacity", [], "oasis:gpu.capacity", "at least one entry"),
    "missing ladder": ("oasis:gpu.capacity", None, "oasis:gpu.capacity", "is missing"),
    "H200 on demand": ("oasis:gpu.capacity[2].mode", "on-demand", "oasis:gpu.capacity[2].mode", "spot"),
    "mode that is none": ("oasis:gpu.capacity[2].mode", "dws", "oasis:gpu.capacity[2].mode", "flex-start"),
    "machine type that is none": ("oasis:gpu.machine_type", "a2-highgpu-8g", "oasis:gpu.machine_type", "g2-standard-4"),
    "flex-start that takes a reservation": (
        *("oasis:gpu.capacity[1].reservation", "ours", "oasis:gpu.capacity[1].reservation"),
        "give the reservation its own entry",
    ),
    "reservation without a name": (
        *("oasis:gpu.capacity[0].reservation", None, "oasis:gpu.capacity[0].reservation"),
        "gcloud compute reservations list",
    ),
    "run duration over 7 days": (
        *("oasis:gpu.capacity[1].max_run_duration_hours", 169, "oasis:gpu.capacity[1].max_run_duration_hours"),
        "from 1 to 168",
    ),
    "run duration of Spot": (
        *("oasis:gpu.capacity[2].max_run_duration_hours", 24, "oasis:gpu.capacity[2].max_run_duration_hours"),
        "only with mode flex-start",
    ),
    "number in quotes": ("oasis:gpu.capacity[1].max_nodes", "4", "oasis:gpu.capacity[1].max_nodes", "whole number"),
    "yes for true": ("oasis:data.keep", "yes", "oasis:data.keep", "true or false"),
    "version without quotes": ("oasis:cluster.minimum_version", 1.35, "oasis:cluster.minimum_version", "in quotes"),
    "whole internet authorised": (
        *("oasis:cluster.authorized_networks", [{"name": "all", "cidr": "0.0.0.0/0"}]),
        *("oasis:cluster.authorized_networks[0].cidr", "never wider than /8"),
    ),
    "half the internet authorised": (
        *("oasis:cluster.authorized_networks", [{"name": "half", "cidr": "128.0.0.0/1"}]),
        *("oasis:cluster.authorized_networks[0].cidr", "never wider than /8"),
    ),
    "authorised network that is none": (
        *("oasis:cluster.authorized_networks", [{"name": "office", "cidr": "203.0.113.300/24"}]),
        *("oasis:cluster.authorized_networks[0].cidr", "203.0.113.0/24"),
    ),
    "IP endpoint for nobody": ("oasis:cluster.endpoint", "ip", "oasis:cluster.authorized_networks", "at least one"),
    "maintenance that ends first": (
        *("oasis:cluster.maintenance_exclusion", {"start": "2027-02-01T00:00:00Z", "end": "2027-01-01T00:00:00Z"}),
        *("oasis:cluster.maintenance_exclusion.end", "after its start"),
    ),
    "maintenance longer than GKE accepts": (
        *("oasis:cluster.maintenance_exclusion", {"start": "2027-01-01T00:00:00Z", "end": "2027-07-01T00:00:00Z"}),
        *("oasis:cluster.maintenance_exclusion.end", "at most 180 days"),
    ),
    "maintenance on a day that is none": (
        *("oasis:cluster.maintenance_exclusion", {"start": "2027-02-30T00:00:00Z", "end": "2027-03-01T00:00:00Z"}),
        *("oasis:cluster.maintenance_exclusion.start", "exists"),
    ),
    "system pool upside down": (
        *("oasis:cluster.system_pool.min_nodes", 9, "oasis:cluster.system_pool.min_nodes"),
        "at most max_nodes",
    ),
    "head larger than its node": (
        *("oasis:cluster.system_pool.machine_type", "e2-standard-4", "oasis:ray.head.cpus"),
        "oasis:cluster.system_pool.machine_type",
    ),
    "CPU worker larger than its node": (
        "oasis:ray.cpu_worker.memory_gb",
        32,
        "oasis:ray.cpu_worker.memory_gb",
        "at most",
    ),
    "more CPU workers than nodes": ("oasis:ray.cpu_workers_max", 5, "oasis:ray.cpu_workers_max", "cpu_pool.max_nodes"),
    "system machine without Persistent Disk": (
        *("oasis:cluster.system_pool.machine_type", "n4-standard-8", "oasis:cluster.system_pool.machine_type"),
        "e2-standard-8",
    ),
    "machine type of a size that is none": (
        *("oasis:cluster.cpu_pool.machine_type", "e2-highmem-32", "oasis:cluster.cpu_pool.machine_type"),
        "allowed: one of e2-highmem-2, e2-highmem-4, e2-highmem-8, e2-highmem-16. ",
    ),
    "build machine of a size that is none": (
        *("oasis:build.machine_type", "c3-standard-16", "oasis:build.machine_type"),
        "allowed: one of c3-standard-4, c3-standard-8, c3-standard-22",
    ),
    "Ray without token authentication": ("oasis:ray.version", "2.48.0", "oasis:ray.version", "2.52.0 or newer"),
    "Ray other than in the image": ("oasis:ray.image", "rayproject/ray:2.59.0", "oasis:ray.version", "2.59.0"),
    "Ray other than in the image that was built": (
        *("oasis:ray.image", "r-docker.pkg.dev/p/oasis-docker/ray:2.59.0-20270101-000000@sha256:" + "0a" * 32),
        *("oasis:ray.version", "2.59.0"),
    ),
    "image without tag": ("oasis:ray.image", "rayproject/ray", "oasis:ray.image", "a tag or a digest"),
    "port below 1024": ("oasis:ray.dashboard_port", 80, "oasis:ray.dashboard_port", "from 1024 to 65535"),
    "load balancer for nobody": (
        *("oasis:ray.dashboard_access", "internal-load-balancer", "oasis:ray.dashboard_client_ranges"),
        "at least one private network",
    ),
    "dashboard for the internet": (
        *("oasis:ray.dashboard_client_ranges", ["0.0.0.0/0"], "oasis:ray.dashboard_client_ranges[0]"),
        "10.0.0.0/8",
    ),
    "soft delete between the steps": ("oasis:data.soft_delete_days", 3, "oasis:data.soft_delete_days", "0, or 7 to 90"),
    "key without a secret": ("oasis:wandb", None, "oasis:wandb", "oasis:wandb: {}"),
    "key in plain text": ("oasis:wandb_api_key", "local-0123", "oasis:wandb_api_key", "revoke that key"),
    "section that is a text": ("oasis:ray", "2.60.0", "oasis:ray", "section"),
    "list that is a mapping": ("oasis:gpu.capacity", {"mode": "spot"}, "oasis:gpu.capacity", "a list"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_answered_with_its_key_and_what_to_do(mistake: str) -> None:
    key, value, named, words = MISTAKES[mistake]
    config = changed("oasis:wandb_api_key", {"secure": "v1:abc"}) if mistake == "key without a secret" else FULL

    error = refusal(changed(key, value, config))

    lines = [line for line in str(error).splitlines() if line.startswith(f"  - {named} ")]
    assert lines, str(error)
    assert any(words.lower() in line.lower() for line in lines), lines
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


def test_one_mistake_is_reported_once() -> None:
    once = {
        name: refusal(changed(MISTAKES[name][0], MISTAKES[name][1])).problems
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


def test_defaults_fill_what_the_file_leaves_out() -> None:
    stack = parse(from_config(FULL))

    assert stack.name == "oasis"
    assert stack.gpu is not None and stack.build is not None and stack.wandb is not None
    assert stack.gpu.compute_class == "h200"
    assert [entry.max_run_duration_hours for entry in stack.gpu.capacity] == [None, 168, None]
    assert stack.gpu.max_nodes == 8
    assert stack.ray.image == "rayproject/ray:2.60.0-py312-cu128"
    assert stack.wandb_api_key is None


def test_what_follows_from_another_setting_follows_it() -> None:
    ladder = [{"mode": "on-demand", "max_nodes": 1}]
    stack = parse(from_config(changed("oasis:gpu", {"machine_type": "g2-standard-4", "capacity": ladder})))
    other = parse(from_config(changed("oasis:ray.version", "2.61.0")))

    assert stack.gpu is not None and stack.gpu.compute_class == "l4"
    assert other.ray.image == "rayproject/ray:2.61.0-py312-cu128"


def test_sections_left_out_are_parts_left_out() -> None:
    bare = {key: FULL[key] for key in ("gcp:project", "oasis:region", "oasis:zone")}

    stack = parse(from_config(bare))

    assert (stack.gpu, stack.build, stack.wandb) == (None, None, None)


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
