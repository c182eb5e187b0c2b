"""Teams: what each has for itself, what it may take of the queue, and in which order it comes and goes."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest

from oasis_stack.command_line.offline import Deployment, Registered
from oasis_stack.facts.problem import SettingsError
from oasis_stack.settings.settings import from_config, parse
from tests.support.policy_evaluator import Pod, allows
from tests.support.program import at, deploy_stack
from tests.support.setting_examples import RAY
from tests.support.stacks import changed
from workloads.environment import CLUSTER_KEY, ClusterEnvironment

KUEUE = "kubernetes:kueue.x-k8s.io/v1beta2"
CLUSTER_QUEUE = f"{KUEUE}:ClusterQueue"
NETWORK_POLICY = "kubernetes:networking.k8s.io/v1:NetworkPolicy"
ROLE_BINDING = "kubernetes:rbac.authorization.k8s.io/v1:RoleBinding"
NAMESPACE, CONFIG_MAP = "kubernetes:core/v1:Namespace", "kubernetes:core/v1:ConfigMap"
FOLDER, FOLDER_MEMBER = "gcp:storage/managedFolder:ManagedFolder", "gcp:storage/managedFolderIamMember"
GPU = "nvidia.com/gpu"

QUEUED = changed(
    "oasis:cluster",
    {"system_pool": {"max_nodes": 8}},
    changed("oasis:gpu.capacity[3]", {"mode": "queued", "max_nodes": 6}),
)
MEMBERS = ["user:ann@example.com", "serviceAccount:ci@p.iam.gserviceaccount.com"]
TEAMS = [
    {"name": "vision", "gpu_nodes": 2, "max_gpu_nodes": 3, "priority": 10, "members": MEMBERS},
    {"name": "speech", "gpu_nodes": 1},
]


def with_teams(*teams: dict[str, Any]) -> dict[str, Any]:
    return changed("oasis:teams", list(teams), QUEUED)


@pytest.fixture(scope="module")
def two() -> Deployment:
    """The default stack with a queue and two teams."""
    return deploy_stack(with_teams(*TEAMS))


@pytest.fixture(scope="module")
def none() -> Deployment:
    """The same without teams."""
    return deploy_stack(QUEUED)


def in_namespace(deployed: Deployment, name: str) -> list[Registered]:
    return [found for found in deployed if at(found, "metadata.namespace") == name]


def quota(deployed: Deployment, queue: str, flavor: str) -> dict[str, tuple[int, int | None]]:
    """Of each resource in one flavor what is the queue's own, and what it may borrow."""
    (group,) = at(deployed.get(CLUSTER_QUEUE, queue), "spec.resourceGroups")
    (found,) = [one for one in group["flavors"] if one["name"] == flavor]
    return {
        one["name"]: (_number(one["nominalQuota"]), _number(one["borrowingLimit"]) if "borrowingLimit" in one else None)
        for one in found["resources"]
    }


def _number(text: str) -> int:
    return int(text.removesuffix("Gi"))


def test_a_team_has_in_its_namespace_what_the_stack_has_in_its_own_but_what_is_for_the_long_lived_cluster(
    two: Deployment,
) -> None:
    ours, theirs = (
        Counter((found.type, at(found, "metadata.name")) for found in in_namespace(two, name))
        for name in ("ray", "vision")
    )
    assert ours - theirs == Counter(
        {
            (RAY[0], "oasis"): 1,
            (NETWORK_POLICY, "autoscaler"): 1,
            ("kubernetes:policy/v1:PodDisruptionBudget", "oasis-head"): 1,
        }
    )
    assert {name for _, name in theirs - ours} == {"heads", "members", "oasis-ray-cluster"}
    assert at(two.get(NAMESPACE, "vision"), "metadata.labels") == at(two.get(NAMESPACE, "ray"), "metadata.labels")


def test_nobody_of_another_namespace_reaches_a_team_s_pods(two: Deployment) -> None:
    policies = [found.inputs for found in two.of_type(NETWORK_POLICY)]
    pods = [
        Pod(namespace=namespace, labels={"ray.io/is-ray-node": "yes", "ray.io/node-type": kind, **queued})
        for namespace in ("ray", "vision", "speech", "default")
        for kind in ("head", "worker")
        for queued in ({}, {"kueue.x-k8s.io/podset": "main"})
    ]
    ports = (53, 443, 6379, 8265, 10002)
    passed = [
        (source.namespace, target.namespace)
        for source, target in itertools.product(pods, pods)
        for port in ports
        if {source.namespace, target.namespace} != {"default"} and allows(policies, source, target, port)
    ]
    assert set(passed) == {("ray", "ray"), ("vision", "vision"), ("speech", "speech")}
    operator = Pod(namespace="kuberay-system", labels={"app.kubernetes.io/name": "kuberay-operator"})
    reached = {
        (pod.labels["ray.io/node-type"], port)
        for pod in pods
        for port in ports
        if pod.namespace == "vision"
        if allows(policies, operator, pod, port)
    }
    assert reached == {("head", 8265)}


def test_its_jobs_are_told_of_their_own_namespace_folder_and_part_of_the_queue(two: Deployment) -> None:
    read = ClusterEnvironment.from_mapping(at(two.get(CONFIG_MAP, "vision"), "data"))
    stack = ClusterEnvironment.from_mapping(two.exports)
    assert (read.team, stack.team) == ("vision", "")
    assert read.runs_uri == f"{stack.runs_uri}/teams/vision"
    assert (read.gpu_queue, read.gpu_queue_nodes, read.gpu_max_nodes, read.cpu_workers_max) == ("gpu", 3, 0, 0)
    assert ClusterEnvironment.from_mapping(at(two.get(CONFIG_MAP, "speech"), "data")).gpu_queue_nodes == 6
    assert two.exports["teams"] == "vision speech"


def test_its_clusters_are_like_the_stack_s_but_for_the_folder_that_they_see(two: Deployment, none: Deployment) -> None:
    kept = json.loads(two.get(CONFIG_MAP, "vision.ray-cluster").inputs["data"][CLUSTER_KEY])
    standing = two.get(*RAY).inputs["spec"]
    assert json.loads(json.dumps(kept).replace(",only-dir=teams/vision", "")) == standing
    assert json.dumps(kept).count("only-dir=teams/vision") == 3  # the head, a CPU and a GPU worker
    assert standing == none.get(*RAY).inputs["spec"]


def test_the_parts_of_the_queue_are_the_whole_queue(two: Deployment, none: Deployment) -> None:
    queues = ["gpu", "team-vision", "team-speech"]
    assert {found.name for found in two.of_type(CLUSTER_QUEUE)} == set(queues)
    for flavor in ("system", "queued"):
        whole = quota(none, "gpu", flavor)
        parts = [quota(two, queue, flavor) for queue in queues]
        for resource, (amount, limit) in whole.items():
            assert limit is None  # Kueue refuses one outside a cohort
            assert sum(part[resource][0] for part in parts) == amount
    # As many heads as nodes: with a borrowed head a job could not take back its team's own nodes.
    assert [quota(two, queue, "queued")[GPU] for queue in queues] == [(24, 24), (16, 8), (8, 40)]
    head = quota(none, "gpu", "system")["cpu"][0] // parse(from_config(QUEUED)).queued_heads
    assert [quota(two, queue, "system")["cpu"][0] // head for queue in queues] == [4, 2, 1]


def test_what_is_lent_can_be_taken_back(two: Deployment, none: Deployment) -> None:
    for found in two.of_type(CLUSTER_QUEUE):
        assert at(found, "spec.cohortName") == "gpu"
        assert at(found, "spec.preemption.reclaimWithinCohort") == "Any"
        assert at(found, "spec.preemption.borrowWithinCohort.policy") == "LowerPriority"
    alone = none.get(CLUSTER_QUEUE, "gpu")
    assert at(alone, "spec.cohortName") is None and at(alone, "spec.preemption") is None


def test_each_queue_takes_the_jobs_of_one_namespace_and_kueue_looks_at_all_of_them(two: Deployment) -> None:
    taken = {
        found.name: at(found, "spec.namespaceSelector.matchExpressions[0].values")
        for found in two.of_type(CLUSTER_QUEUE)
    }
    assert taken == {"gpu": ["ray"], "team-vision": ["vision"], "team-speech": ["speech"]}
    for name in ("vision", "speech"):
        assert at(two.get(f"{KUEUE}:LocalQueue", name), "spec.clusterQueue") == f"team-{name}"
        assert at(two.get(f"{KUEUE}:WorkloadPriorityClass", f"team-{name}"), "metadata.name") == name
    release = two.get("kubernetes:helm.sh/v3:Release", "kueue")
    assert "- vision\n" in at(release, "values.managerConfig.controllerManagerConfigYaml")


def test_its_pods_and_members_write_its_folder_and_nobody_else_does(two: Deployment) -> None:
    (folder,) = [found for found in two.of_type(FOLDER) if "vision" in found.inputs["name"]]
    assert folder.inputs["name"] == "teams/vision/"
    assert folder.inputs["bucket"].endswith("-runs")
    assert folder.inputs["forceDestroy"] is True  # it goes alone: the objects stay
    held = {
        (found.inputs["member"].rpartition("/subject/")[2] or found.inputs["member"], found.inputs["role"])
        for found in two
        if found.type.startswith(FOLDER_MEMBER) and found.inputs["managedFolder"] == "teams/vision/"
    }
    assert held == {(who, "roles/storage.objectUser") for who in ("ns/vision/sa/ray", *MEMBERS)}


def test_its_pods_may_list_every_bucket_of_which_they_mount_a_part(two: Deployment) -> None:
    spec = json.loads(at(two.get(CONFIG_MAP, "vision.ray-cluster"), "data")[CLUSTER_KEY])
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    mounted = {
        volume["csi"]["volumeAttributes"]["bucketName"]
        for group in groups
        for volume in group["template"]["spec"]["volumes"]
        if "csi" in volume
    }
    grants = two.of_type("gcp:storage/bucketIAMMember:BucketIAMMember")
    listable = {
        found.inputs["bucket"]
        for found in grants
        if found.inputs["member"].endswith("/subject/ns/vision/sa/ray")
        and found.inputs["role"] in {"roles/storage.objectViewer", "roles/storage.legacyBucketReader"}
    }
    assert len(mounted) == 2 and listable == mounted


def test_members_are_known_to_kubernetes_by_their_addresses(two: Deployment) -> None:
    binding = two.get(ROLE_BINDING, "vision")
    assert [(one["kind"], one["name"]) for one in at(binding, "subjects")] == [
        ("User", "ann@example.com"),
        ("User", "ci@p.iam.gserviceaccount.com"),
    ]
    assert [found.name for found in two.of_type(ROLE_BINDING)] == ["vision"]  # nobody is a member of the other one
    known = changed("oasis:cluster.security_group", "gke-security-groups@example.com", with_teams(TEAMS[1]))
    grouped = deploy_stack(changed("oasis:teams[0].members", ["group:speech@example.com"], known))
    (subject,) = at(grouped.get(ROLE_BINDING, "speech"), "subjects")
    assert (subject["kind"], subject["name"]) == ("Group", "speech@example.com")


def test_a_team_costs_others_nothing(two: Deployment, none: Deployment) -> None:
    before, after = ({(found.type, found.name): found.inputs for found in each} for each in (none, two))
    added = {name for _, name in after.keys() - before.keys() if "vision" not in name and "speech" not in name}
    assert all(name.startswith("runs-bucketViewer-") for name in added) and len(added) == len(MEMBERS)
    changed = {name for name, inputs in before.items() if after[name] != inputs}
    assert changed == {
        (CLUSTER_QUEUE, "gpu"),
        ("pulumi-python:dynamic/wait:QueuedNamespaces", "kueue"),
        ("kubernetes:helm.sh/v3:Release", "kueue"),
    }


@pytest.mark.thorough
def test_who_is_in_two_teams_has_one_grant_on_their_bucket_which_stays_until_both_are_left() -> None:
    def seen(*names: str) -> list[str]:
        deployed = deploy_stack(with_teams(*({"name": one, "gpu_nodes": 1, "members": MEMBERS[:1]} for one in names)))
        assert len(deployed.of_type("oasis:index:Team")) == len(names)  # though one name continues the other's
        grants = deployed.of_type("gcp:storage/bucketIAMMember:BucketIAMMember")
        return [found.name for found in grants if found.inputs["member"] == MEMBERS[0]]

    both, one = seen("a", "a-queued-jobs"), seen("a")
    assert len(both) == 1 and both == one


@pytest.mark.parametrize(
    ("teams", "words"),
    [
        ([{"name": "vision"}], "oasis:teams[0].gpu_nodes is missing"),
        ([{"name": "vision", "gpu_nodes": 0}], "oasis:teams[0].gpu_nodes is 0"),
        ([TEAMS[1], TEAMS[1]], "oasis:teams[1].name is 'speech'; allowed: a name of its own: oasis:teams[0].name has"),
        ([{"name": "ray", "gpu_nodes": 1}], "oasis:teams[0].name is 'ray'; allowed: a name of its own: oasis:ray.name"),
        ([{"name": "kube-x", "gpu_nodes": 1}], "oasis:teams[0].name is 'kube-x'"),
        ([{"name": "a" * 31, "gpu_nodes": 1}], "oasis:teams[0].name is 'aaaa"),
        ([{"name": "a", "gpu_nodes": 3, "max_gpu_nodes": 2}], "oasis:teams[0].max_gpu_nodes is 2"),
        ([{"name": "a", "gpu_nodes": 3, "max_gpu_nodes": 7}], "oasis:teams[0].max_gpu_nodes is 7"),
        ([{"name": "a", "gpu_nodes": 4}, {"name": "b", "gpu_nodes": 3}], "gpu_nodes of 6 together, the max_nodes of"),
        ([{"name": "a", "gpu_nodes": 1, "members": ["ann@example.com"]}], "oasis:teams[0].members[0] is 'ann@example"),
        (
            [{"name": "a", "gpu_nodes": 1, "members": ["user:ann@example.com", "group:a@b.c"]}],
            "oasis:teams[0].members[1] is 'group:a@b.c'; allowed: a group only with oasis:cluster.security_group",
        ),
        (
            [{"name": "a", "gpu_nodes": 1, "members": ["user:a@b.c", "user:d@b.c", "user:a@b.c"]}],
            "oasis:teams[0].members[2] is 'user:a@b.c'; allowed: each member of a team once: oasis:teams[0].members[0]",
        ),
    ],
)
def test_a_team_that_cannot_be_is_refused_by_its_key(teams: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse(from_config(with_teams(*teams)))

    assert words in str(refused.value)
    assert len(refused.value.problems) == 1


def test_teams_need_a_queue_and_places_for_their_heads() -> None:
    with pytest.raises(SettingsError, match="none without an entry of mode queued"):
        parse(from_config(changed("oasis:teams", [TEAMS[1]])))
    small = changed("oasis:cluster.system_pool.max_nodes", 2, with_teams({"name": "a", "gpu_nodes": 4}))
    with pytest.raises(SettingsError, match=r"system_pool.max_nodes is 2; allowed: with teams, enough for 7 heads on"):
        parse(from_config(small))
