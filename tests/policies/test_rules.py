"""The policies' rules on recorded resources: what the settings allow passes, and what breaks one is refused by it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pulumi_gcp
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as tried
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from oasis_stack.command_line import offline
from oasis_stack.command_line.offline import Deployment
from oasis_stack.settings.rules import WIDEST_AUTHORIZED_PREFIX
from policies import rules
from policies.rules import RULES, Resource, StackRule
from tests.support.legal_stacks import stacks
from tests.support.pages import section
from tests.support.policy_breaks import BREAKS, KEPT, STRICT, Break, recorded, settings
from tests.support.program import deploy_stack
from tests.support.stacks import changed
from tests.workloads.test_image import pinned

DEPLOYED = tried(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def broken(resources: Iterable[Resource], *, mandatory: bool = False) -> dict[str, list[str]]:
    """What each policy, or each mandatory one, says of these resources, with the settings of `strict.json`."""
    stack, found = list(resources), {}
    for rule in RULES:
        given = rule.configured(settings(rule.name))
        if isinstance(rule, StackRule):
            said = list(rule.check(stack, given))
        else:
            said = [message for one in stack for message in rule.check(one, given)]
        if said and (rule.mandatory or not mandatory):
            found[rule.name] = said
    return found


def test_a_stack_that_keeps_them_passes_all_also_the_strict_ones() -> None:
    assert broken(map(recorded, deploy_stack(KEPT))) == {}


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: f"{one.policy}: {one.type.rpartition(':')[2]} {one.path}")
def test_a_resource_that_breaks_a_policy_is_refused_by_it_and_no_other(one: Break) -> None:
    deployment = deploy_stack(KEPT)
    others = [found for found in map(recorded, deployment) if (found.type, found.name) != (one.type, one.name)]
    assert broken([*others, one.of(deployment)]).keys() == {one.policy}


def test_a_stack_without_the_labels_that_are_asked_for_is_told_which_resources_lack_them() -> None:
    said = broken(map(recorded, deploy_stack(changed("oasis:labels", None, KEPT))))
    assert said.keys() == {"required-labels"}
    assert "the label team is missing: build-source, cluster, cluster-cpu," in said["required-labels"][0]


def test_each_policy_has_a_resource_that_breaks_it() -> None:
    assert {one.policy for one in BREAKS} == {rule.name for rule in RULES}


@pytest.mark.thorough
@DEPLOYED
@given(stacks())
def test_every_legal_stack_passes_the_mandatory_ones(config: dict[str, Any]) -> None:
    assert broken(map(recorded, offline.deploy_stack(config)), mandatory=True) == {}


def test_an_ip_endpoint_that_answers_named_networks_alone_passes_and_one_for_everybody_does_not() -> None:
    networks = [{"name": "office", "cidr": "203.0.113.0/24"}]
    deployment = deploy_stack(changed("oasis:cluster", {"endpoint": "ip", "authorized_networks": networks}))
    assert broken(map(recorded, deployment), mandatory=True) == {}
    path = "masterAuthorizedNetworksConfig"
    for where, value in (
        (path, None),
        (f"{path}.gcpPublicCidrsAccessEnabled", None),
        (f"{path}.cidrBlocks", [{"cidrBlock": "0.0.0.0/0"}]),
        (f"{path}.cidrBlocks", [{"cidrBlock": "0.0.0.0/1"}, {"cidrBlock": "128.0.0.0/1"}]),
    ):
        one = Break("closed-control-plane", rules.CLUSTER, "cluster", where, value)
        assert broken([one.of(deployment)], mandatory=True).keys() == {one.policy}


def test_networks_are_as_wide_as_the_settings_allow() -> None:
    assert rules.WIDEST_PREFIX == WIDEST_AUTHORIZED_PREFIX


@pytest.mark.parametrize(
    ("pool", "most"),
    [
        ({"nodeCount": 1, "nodeLocations": ["us-central1-b"]}, 1),
        ({"autoscaling": {"maxNodeCount": 2}, "nodeLocations": ["us-central1-b", "us-central1-c"]}, 4),
        ({"autoscaling": {"maxNodeCount": 2}}, 6),
        ({"autoscaling": {}, "nodeCount": 1}, None),
        ({"initialNodeCount": 1}, None),
    ],
)
def test_a_pool_of_a_fixed_size_or_with_a_maximum_in_each_zone_has_a_maximum(
    pool: dict[str, Any], most: int | None
) -> None:
    pool = {**pool, "networkConfig": {"enablePrivateNodes": True}}
    refused = broken([Resource(type=rules.NODE_POOL, name="mine", properties=pool)], mandatory=True)
    assert rules.most_nodes(pool) == most
    assert refused.keys() == (set() if most else {"bounded-pools"})


def test_a_bucket_that_was_taken_over_has_the_labels_that_were_found_on_it() -> None:
    deployment = deploy_stack(KEPT)
    found = {"team": "vision", "goog-pulumi-provisioned": "true"}
    data = Resource(type=rules.BUCKET, name="data", properties={"labels": None, "effectiveLabels": found})
    others = [one for one in map(recorded, deployment) if one.name != "data"]
    assert broken([*others, data]).keys() & {"same-labels", "required-labels"} == set()


def test_whatever_the_program_has_that_takes_labels_is_looked_at_and_has_them(other: Deployment) -> None:
    takes = set()
    for one in other:
        module, _, name = one.type.removeprefix("gcp:").partition("/")
        if one.type.startswith("gcp:"):
            made = getattr(getattr(pulumi_gcp, module), name.partition(":")[2])
            if {"labels", "resource_labels"} & vars(made).keys():
                takes.add(one.type)
    assert len(takes) > 5
    assert takes <= rules.LABELS.keys()
    assert broken(map(recorded, other)).keys() & {"same-labels", "required-labels"} == set()


def test_the_table_of_policies_has_each_with_its_level() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| .+ \| (mandatory|advice) \|$", section("docs/cloud.md", "Policies"), re.M)
    assert rows == [(rule.name, "mandatory" if rule.mandatory else "advice") for rule in RULES]


def test_the_strict_configuration_names_policies_and_settings_that_there_are() -> None:
    known = {rule.name: rule for rule in RULES}
    given = json.loads(STRICT.read_text())
    assert given.keys() == {rule.name for rule in RULES if not rule.mandatory}
    for name in given:
        assert settings(name).keys() <= known[name].settings.keys()


def test_the_lock_file_holds_what_is_asked_for_each_package_with_its_hashes() -> None:
    folder = STRICT.parent
    locked = pinned((folder / "requirements.txt").read_text())
    asked = [line for line in (folder / "requirements.in").read_text().splitlines() if not line.startswith("#")]
    for wanted in map(Requirement, asked):
        assert locked[canonicalize_name(wanted.name)] in wanted.specifier
    blocks = re.split(r"^(?=\w)", (folder / "requirements.txt").read_text(), flags=re.MULTILINE)[1:]
    assert [block for block in blocks if "--hash=sha256:" not in block] == []
    assert len(blocks) == len(locked)
