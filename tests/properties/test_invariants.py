"""What holds for every legal stack: over random ones, shrunk to a stack file that one can read, and on the default."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from ipaddress import IPv4Network
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as some

from oasis_stack.command_line import resource_tree
from oasis_stack.command_line.offline import PROJECT_NUMBER, Deployment, Registered, deploy_stack
from oasis_stack.components.cluster import NODE_ROLES
from oasis_stack.facts import address_plan
from oasis_stack.facts.problem import SettingsError
from oasis_stack.settings.schema import Settings
from oasis_stack.settings.settings import from_config, parse
from tests.support.legal_stacks import stacks
from tests.support.program import at, quotas
from tests.support.setting_examples import everything_changed
from tests.support.stacks import FULL

PARSED = settings(max_examples=100, deadline=None)
DEPLOYED = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])

NODE_POOL = "gcp:container/nodePool:NodePool"
RAY_CLUSTER = "kubernetes:ray.io/v1:RayCluster"
NETWORK, PARAMETER_SET = (f"kubernetes:networking.gke.io/v1:{kind}" for kind in ("Network", "GKENetworkParamSet"))
KUEUE = "kubernetes:kueue.x-k8s.io/v1beta2"

ROLES = {
    *NODE_ROLES.values(),
    *("roles/artifactregistry.reader", "roles/artifactregistry.writer"),
    *("roles/storage.objectViewer", "roles/storage.objectUser", "roles/storage.bucketViewer"),
    "roles/storage.legacyBucketReader",
    *("roles/secretmanager.secretAccessor", "roles/cloudkms.cryptoKeyEncrypterDecrypter"),
}
"""Every role that the program may grant."""


@pytest.mark.thorough
@PARSED
@given(stacks())
def test_every_legal_stack_is_accepted_with_ranges_apart_private_and_large_enough(config: dict[str, Any]) -> None:
    stack = parse(from_config(config))
    plan = stack.address_plan()
    networks = {name: IPv4Network(text) for name, text in plan.ranges().items()}

    for (one, first), (other, second) in itertools.combinations(networks.items(), 2):
        assert not first.overlaps(second), (one, other)
    assert all(any(found.subnet_of(block) for block in address_plan.PRIVATE_BLOCKS) for found in networks.values())
    gpu_nodes = stack.gpu.max_nodes if stack.gpu else 0
    every = gpu_nodes + stack.cluster.system_pool.max_nodes + stack.cluster.cpu_pool.max_nodes
    assert networks["nodes"].num_addresses - 4 >= every
    assert networks["pods"].num_addresses >= 256 * every
    for name in ("gvnic", *(name for name in networks if name.startswith("rdma"))):
        assert networks[name].num_addresses - 4 >= gpu_nodes
    assert len(plan.rdma) == (stack.gpu.machine.rdma_nics if stack.gpu else 0)


@pytest.mark.thorough
@PARSED
@given(
    stacks(),
    some.recursive(some.none() | some.integers() | some.text(max_size=9), some.lists, max_leaves=4),
    some.data(),
)
def test_any_value_is_read_or_refused_by_key(config: dict[str, Any], value: object, data: some.DataObject) -> None:
    key = data.draw(some.sampled_from(sorted(config)))
    if isinstance(config[key], dict) and config[key] and data.draw(some.booleans()):
        config[key][data.draw(some.sampled_from(sorted(config[key])))] = value
    else:
        config[key] = value
    try:
        parse(from_config(config))
    except SettingsError as error:
        assert all(found.key and found.allowed and found.remedy for found in error.problems)
        assert len({(found.key, found.allowed) for found in error.problems}) == len(error.problems)


def gpu_group(stack: Deployment) -> dict[str, Any]:
    """The RayCluster's group of GPU workers."""
    (found,) = [one for one in at(stack.only(RAY_CLUSTER), "spec.workerGroupSpecs") if one["groupName"] == "gpu"]
    return found


def check_devices(stack: Deployment, chosen: Settings) -> None:
    """One subnet, NIC, Network, parameter set and interface each, all in one order."""
    nics = chosen.gpu.machine.rdma_nics if chosen.gpu else 0
    names = ["gvnic-1", *(f"rdma-{index}" for index in range(nics))] if nics else []
    for kind in (NETWORK, PARAMETER_SET):
        assert sorted(found.name for found in stack.of_type(kind)) == names
    if not chosen.gpu:
        return
    pools = [found for found in stack.of_type(NODE_POOL) if found.name.startswith("gpu-")]
    annotations = gpu_group(stack)["template"]["metadata"].get("annotations", {})
    sets = [at(stack.get(PARAMETER_SET, name), "spec.vpcSubnet") for name in names]
    for pool in pools:
        attached = at(pool, "networkConfig.additionalNodeNetworkConfigs") or []
        assert [nic["subnetwork"] for nic in attached] == sets
        assert len({nic["subnetwork"] for nic in attached}) == len(attached)
    interfaces = json.loads(annotations.get("networking.gke.io/interfaces", "[]"))
    assert [found["network"] for found in interfaces] == (["default", *names] if names else [])
    assert [found["interfaceName"] for found in interfaces] == [f"eth{index}" for index in range(len(interfaces))]


def check_pools(stack: Deployment, chosen: Settings) -> None:
    """Pools rest at 0, their maxima are Ray's, and class, label, taint and selector are one name."""
    if not chosen.gpu:
        return
    pools = {found.name: found for found in stack.of_type(NODE_POOL) if found.name.startswith("gpu-")}
    assert set(pools) == {entry.pool_name for entry in chosen.gpu.capacity}
    group = gpu_group(stack)
    classed = [pools[entry.pool_name] for entry in chosen.gpu.class_entries]
    maxima = [at(pool, "autoscaling.totalMaxNodeCount") for pool in classed]
    assert group["maxReplicas"] * group.get("numOfHosts", 1) == sum(maxima) == chosen.gpu.class_nodes
    assert group.get("minReplicas", 0) == 0 and "replicas" not in group
    key = "cloud.google.com/compute-class"
    selected = group["template"]["spec"]["nodeSelector"][key]
    assert selected == chosen.gpu.compute_class
    for pool in pools.values():
        assert (at(pool, "initialNodeCount"), at(pool, "autoscaling.totalMinNodeCount")) == (0, 0)
        assert at(pool, "nodeLocations") == [chosen.zone]
    for pool in classed:
        assert at(pool, "nodeConfig.labels") == {key: selected}
        assert at(pool, "nodeConfig.taints") == [{"key": key, "value": selected, "effect": "NO_SCHEDULE"}]
    classes = stack.of_type("kubernetes:cloud.google.com/v1:ComputeClass")
    assert [at(found, "metadata.name") for found in classes] == ([selected] if classed else [])
    ladder = [rule["nodepools"] for found in classes for rule in at(found, "spec.priorities")]
    assert ladder == [[f"{entry.pool_name}-1a2b3c4"] for entry in chosen.gpu.class_entries]


def check_queue(stack: Deployment, chosen: Settings) -> None:
    """A queue is there with its pool and not without, leads to that pool alone, and holds what the pools hold."""
    rung = chosen.gpu.queue if chosen.gpu else None
    queues = stack.of_type(f"{KUEUE}:ClusterQueue")
    assert len(queues) == len(stack.of_type(f"{KUEUE}:LocalQueue")) == bool(rung) * (1 + len(chosen.teams))
    pools = [found for found in stack.of_type(NODE_POOL) if at(found, "queuedProvisioning.enabled")]
    assert [pool.name for pool in pools] == ([rung.pool_name] if rung else [])
    assert bool(rung) == ("network-control-plane" in {found.name for found in stack})
    if not (rung and chosen.gpu):
        return
    for pool in pools:
        assert not at(pool, "nodeConfig.labels") and not at(pool, "nodeConfig.taints")
        asked = at(stack.only(f"{KUEUE}:ProvisioningRequestConfig"), "spec.parameters.maxRunDurationSeconds")
        assert at(pool, "nodeConfig.maxRunDuration") == f"{asked}s"
    gpus = {name: found["nvidia.com/gpu"] for name, found in quotas(stack).items()}
    assert gpus == {"system": 0, "queued": rung.max_nodes * chosen.gpu.machine.gpus}
    assert quotas(stack)["system"]["cpu"] == chosen.ray.head.cpus * chosen.queued_heads > 0


def check_roce(stack: Deployment, chosen: Settings) -> None:
    """The RDMA VPC is of the pool's zone, and nothing that it refuses is attached to it."""
    roce = [found for found in stack.of_type("gcp:compute/network:Network") if at(found, "networkProfile")]
    assert len(roce) == bool(chosen.gpu and chosen.gpu.machine.rdma_nics)
    for network in roce:
        assert at(network, "networkProfile").endswith(f"/networkProfiles/{chosen.zone}-vpc-roce")
        for found in stack:
            if network.urn in found.dependencies and found.type.startswith("gcp:compute/"):
                assert found.type == "gcp:compute/subnetwork:Subnetwork", found.name
    assert {at(found, "mtu") for found in stack.of_type("gcp:compute/network:Network")} == {8896}


def check_spot(stack: Deployment, chosen: Settings) -> None:
    """Workers drain within their grace; with a Spot pool, those with GPUs may land on it and are gone within its 15
    seconds, without one neither."""
    spot = chosen.gpu is not None and any(entry.mode == "spot" for entry in chosen.gpu.capacity)
    for group in at(stack.only(RAY_CLUSTER), "spec.workerGroupSpecs"):
        pod, brief = group["template"]["spec"], spot and group["groupName"] == "gpu"
        (container,) = pod["containers"]
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        drain = int(variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
        # What is left of the grace is for Ray to end its processes (GKE documentation, "Spot VMs").
        assert drain + 3 <= pod["terminationGracePeriodSeconds"] <= (15 if brief else 150)
        assert brief or drain >= 60, "a checkpoint of 10 GB needs the time to reach its bucket"
        # A preStop hook runs before the signal, out of the same seconds; one with `ray stop` would skip the drain.
        assert "lifecycle" not in container
        assert ("cloud.google.com/gke-spot" in {entry["key"] for entry in pod["tolerations"]}) == brief
    for pool in stack.of_type(NODE_POOL):
        assert bool(at(pool, "nodeConfig.spot")) == (pool.name == "gpu-spot"), pool.name


def check_graph(stack: Deployment, _: Settings) -> None:
    """URNs are unique, no resource waits for itself, and network-class resources have time to go."""
    assert max(Counter(found.urn for found in stack).values()) == 1
    for found in stack:
        assert found.urn not in stack.created_before(found), found.name
        if re.match(
            r"gcp:(compute/(network|subnetwork|router|routerNat|firewall|address|globalAddress):|container/)",
            found.type,
        ):
            assert int(found.timeouts["delete"].removesuffix("m")) >= 20, found.name


def check_grants(stack: Deployment, chosen: Settings) -> None:
    """Only known roles, none authoritative, on the project only for nodes, and to one Kubernetes account a team."""
    grants = [
        found for found in stack if re.search(r"iam(Member|Binding|Policy):|IAM(Member|Binding|Policy)|Iam", found.type)
    ]
    assert grants
    namespaces = [chosen.ray.namespace, *(team.name for team in chosen.teams)]
    # By the project's number: with its id it would be a principal that nobody is.
    pool = f"projects/{PROJECT_NUMBER}/locations/global/workloadIdentityPools/{chosen.project}.svc.id.goog"
    accounts = {f"principal://iam.googleapis.com/{pool}/subject/ns/{namespace}/sa/ray" for namespace in namespaces}
    people = {member for team in chosen.teams for member in team.members}
    for found in grants:
        assert re.search(r"I(AM|am)Member$", found.type), found.type
        assert found.inputs["role"] in ROLES, found.name
        on_project = found.type == "gcp:projects/iAMMember:IAMMember"
        assert not on_project or found.inputs["role"] in NODE_ROLES.values()
        member = str(found.inputs["member"])
        known = member.startswith("serviceAccount:") or member in people
        assert known or member in accounts, member
    ray = stack.only(RAY_CLUSTER)
    assert at(ray, "metadata.namespace") == chosen.ray.namespace
    held = [at(found, "metadata.namespace") for found in stack.of_type("kubernetes:core/v1:ServiceAccount")]
    assert sorted(held) == sorted(namespaces)
    assert at(ray, "spec.headGroupSpec.template.spec.serviceAccountName") == "ray"


def check_kept(stack: Deployment, chosen: Settings) -> None:
    """What a destroy leaves is what the settings say, and nothing else."""
    kept = {found.name for found in stack if found.retain_on_delete} - {"wandb-value"}  # which goes with its secret
    expected = {name for name, bucket in (("data", chosen.data), ("runs", chosen.runs)) if bucket.keep}
    expected |= {"registry-docker", "registry-python"} if chosen.registry.keep else set()
    expected |= {"wandb"} if chosen.wandb and chosen.wandb.keep else set()
    # Another cluster of the project may have the same grant of Google's agent.
    expected |= {"cluster-secrets"} if chosen.cluster.secrets_encryption_key else set()
    expected |= {"registry-docker-hub"} if chosen.registry.docker_hub else set()
    assert kept == expected
    for found in stack.of_type("gcp:storage/bucket:Bucket"):
        assert at(found, "publicAccessPrevention") == "enforced" and at(found, "uniformBucketLevelAccess") is True
        assert at(found, "forceDestroy") is not found.retain_on_delete


DESTROYED_BEFORE = (
    ("RayCluster ray", "wait.WorkloadsGone ray", "Release kuberay", "container.NodePool cluster-system"),
    ("Service ray", "wait.WorkloadsGone ray"),
    *(("wait.WorkloadsGone ray", f"{kind} *") for kind in ("Namespace", "ServiceAccount", "ConfigMap")),
    *(("wait.WorkloadsGone ray", f"{kind} *") for kind in ("NetworkPolicy", "PodDisruptionBudget")),
    *(("wait.WorkloadsGone ray", f"ValidatingAdmissionPolicy{kind} *") for kind in ("", "Binding")),
    ("RayCluster ray", "storage.BucketIAMMember identity-*"),
    # Users' Ray objects, which only the waiter knows, have pods on GPU nodes.
    ("wait.WorkloadsGone ray", "ComputeClass *", "container.NodePool gpu-[!q]*"),
    ("wait.WorkloadsGone ray", "Network *"),
    ("wait.WorkloadsGone ray", "GKENetworkParamSet *", "container.NodePool gpu-*", "compute.Subnetwork rdma-*"),
    # Made in the opposite order: GKE refuses flex-start in a cluster without a pool that is always on.
    ("container.NodePool gpu-*", "container.NodePool cluster-system"),
    ("container.NodePool *", "container.Cluster *", "wait.NetworkFree *", "compute.* network*"),
    ("wait.NetworkFree *", "compute.RouterNat *", "compute.Router *"),
    ("compute.Subnetwork network-nodes", "compute.Network network"),
    ("cloudbuild.WorkerPool *", "wait.ConnectionFree *", "servicenetworking.Connection *", "compute.GlobalAddress *"),
    ("container.Cluster *", "projects.IAMMember *", "wait.ApisAnswer *"),
    # An uninstall of Kueue with a Workload in the cluster hangs, and only the waiter knows users' jobs.
    ("wait.WorkloadsGone ray", "wait.QueueEmpty ray", "LocalQueue ray", "ClusterQueue gpu", "ResourceFlavor *"),
    ("ResourceFlavor *", "Release kueue", "container.NodePool cluster-system"),
    ("ResourceFlavor *", "wait.AggregatedRolesGone kueue", "Release kueue"),
    ("ClusterQueue *", "AdmissionCheck *", "ProvisioningRequestConfig *"),
    ("AdmissionCheck *", "Release kueue"),
    ("wait.QueueEmpty ray", "NetworkPolicy queued-jobs*"),
    ("LocalQueue ray", "Namespace ray"),
    ("ResourceFlavor queued", "container.NodePool gpu-queued"),
    # A team goes after its jobs, and its rights before what holds them.
    ("wait.WorkloadsGone ray", "wait.QueueEmpty vision", "LocalQueue vision", "ClusterQueue team-vision"),
    ("wait.QueueEmpty vision", "RoleBinding vision", "NetworkPolicy vision.*"),
    ("RoleBinding vision", "ValidatingAdmissionPolicy* oasis-team-vision-*"),
    ("wait.WorkloadsGone ray", "storage.ManagedFolder *"),
)
"""Kinds and names of which all of one are gone before the next begin, where a stack has them."""


def labelled(found: Registered) -> str:
    return f"{resource_tree.kind(found)} {found.name}"


def check_destroy_order(stack: Deployment, _: Settings) -> None:
    """Nothing goes before what needs it, and the kinds that wait for one another do; VPCs go last but for the APIs."""
    steps = resource_tree.destroy_order(stack)
    step = {found.urn: number for number, found_in in enumerate(steps) for found in found_in}
    deleted = [found for found in stack if found.custom and not found.retain_on_delete]
    assert step.keys() == {found.urn for found in deleted}
    needed = {found.urn: stack.created_before(found) for found in deleted}
    for found in deleted:
        assert all(step[urn] > step[found.urn] for urn in needed[found.urn] & step.keys()), found.name
    for chain in DESTROYED_BEFORE:
        present = [[one for one in deleted if fnmatchcase(labelled(one), words)] for words in chain]
        for first, then in itertools.pairwise(filter(None, present)):
            for one in first:
                assert {other.urn for other in then} - {one.urn} <= needed[one.urn], (one.name, chain)
    network = stack.get("gcp:compute/network:Network", "network")
    after = {resource_tree.kind(found) for number in steps[step[network.urn] + 1 :] for found in number}
    assert after <= {"wait.ApisAnswer", "wait.Place", "projects.Service"}


CHECKS = (
    check_devices,
    check_pools,
    check_queue,
    check_roce,
    check_spot,
    check_graph,
    check_grants,
    check_kept,
    check_destroy_order,
)


@pytest.mark.thorough
@DEPLOYED
@given(stacks())
def test_every_legal_stack_keeps_the_invariants(config: dict[str, Any]) -> None:
    note(json.dumps(config, indent=1))
    chosen = parse(from_config(config))
    stack = deploy_stack(config)

    for check in CHECKS:
        check(stack, chosen)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize(
    ("stack", "config"), [("full", FULL), ("other", everything_changed({"wandb_api_key"}))], ids=["full", "other"]
)
def test_the_stacks_of_all_tests_keep_the_invariants(
    check: Callable[[Deployment, Settings], None], stack: str, config: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    check(request.getfixturevalue(stack), parse(from_config(config)))


def test_whatever_the_order_of_a_destroy_names_is_in_a_stack(full: Deployment, other: Deployment) -> None:
    found = [labelled(one) for one in (*full, *other)]
    named = {words for chain in DESTROYED_BEFORE for words in chain}
    assert {words for words in named if not any(fnmatchcase(one, words) for one in found)} == set()
