"""The emulated `gcp` provider: Google's outputs, refusals, replacements and drift, as the engine meets them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from emulator.gcp import types as gcp_types
from emulator.gcp.resources import google_client
from emulator.gcp.tables import ROWS
from emulator.google import operations
from emulator.google.apis import serviceusage
from emulator.google.apis.cloudbuild import PRODUCER
from emulator.google.apis.kubernetes_engine import instance_groups
from emulator.google.cloud import Cloud
from emulator.google.scope import project_number
from emulator.google.storage import ObjectStore
from emulator.protocol.wire import UNKNOWN, Secret, plain
from tests.emulator.provider_client import PROJECT, Client, Failed, Held, InvalidInputs

NETWORK = "gcp:compute/network:Network"
SUBNETWORK = "gcp:compute/subnetwork:Subnetwork"
FIREWALL = "gcp:compute/firewall:Firewall"
CLUSTER = "gcp:container/cluster:Cluster"
POOL = "gcp:container/nodePool:NodePool"
BUCKET = "gcp:storage/bucket:Bucket"
BUDGET = "gcp:billing/budget:Budget"
SECRET = "gcp:secretmanager/secret:Secret"
VERSION = "gcp:secretmanager/secretVersion:SecretVersion"
ADDRESS = "gcp:compute/globalAddress:GlobalAddress"
CONNECTION = "gcp:servicenetworking/connection:Connection"
WORKER_POOL = "gcp:cloudbuild/workerPool:WorkerPool"
CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "LATE_SECONDS", 3600.0)
    monkeypatch.setattr(operations, "SECONDS", 0.0)
    monkeypatch.setattr(serviceusage, "API_SECONDS", 0.0)


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    (tmp_path / "control-plane.json").write_text(json.dumps({"endpoint": "127.0.0.1:6443", "ca": "Q0E="}))
    return Cloud(tmp_path)


def expire(cloud: Cloud, kind: str) -> None:
    """Let the time be over for which what is late to go stays."""
    for found in cloud.list(kind):
        cloud.expire(kind, found.name, 0)


@pytest.fixture
def client(cloud: Cloud) -> Client:
    client = Client(cloud)
    client.enable("compute", "container", "storage", "secretmanager", "iam", "cloudresourcemanager")
    client.enable("servicenetworking", "cloudbuild")
    return client


def subnet(network: Held, block: str, **more: Any) -> dict[str, Any]:
    return {"project": PROJECT, "region": "us-central1", "network": network.id, "ipCidrRange": block, **more}


def flex_pool(cluster: Held, **changes: Any) -> dict[str, Any]:
    """The inputs of an H200 flex-start pool; `nodeConfig` in `changes` is merged."""
    node = {
        "machineType": "a3-ultragpu-8g",
        "diskType": "hyperdisk-balanced",
        "flexStart": True,
        "guestAccelerators": [{"type": "nvidia-h200-141gb", "count": 8}],
        "labels": {"cloud.google.com/compute-class": "h200"},
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
    }
    return {
        "project": PROJECT,
        "cluster": cluster.outputs["name"],
        "location": "us-central1",
        "nodeLocations": ["us-central1-b"],
        "initialNodeCount": 0,
        "autoscaling": {"totalMinNodeCount": 0, "totalMaxNodeCount": 4, "locationPolicy": "ANY"},
        "management": {"autoRepair": False, "autoUpgrade": True},
        **changes,
        "nodeConfig": {**node, **changes.get("nodeConfig", {})},
    }


def make_cluster(client: Client) -> tuple[Held, Held, Held]:
    """(network, subnetwork, cluster)"""
    network = client.create(NETWORK, "net", {"project": PROJECT, "autoCreateSubnetworks": False})
    pods = [{"rangeName": "pods", "ipCidrRange": "10.4.0.0/14"}]
    nodes = client.create(SUBNETWORK, "nodes", subnet(network, "10.0.0.0/24", secondaryIpRanges=pods))
    inputs = {
        "project": PROJECT,
        "location": "us-central1",
        "network": network.id,
        "subnetwork": nodes.id,
        "initialNodeCount": 1,
        "datapathProvider": "ADVANCED_DATAPATH",
        "enableMultiNetworking": True,
        "ipAllocationPolicy": {"clusterSecondaryRangeName": "pods"},
        "workloadIdentityConfig": {"workloadPool": f"{PROJECT}.svc.id.goog"},
        "deletionProtection": False,
    }
    return network, nodes, client.create(CLUSTER, "oasis", inputs)


def make_rdma(client: Client) -> tuple[Held, Held]:
    """(RoCE network, one of its subnetworks)"""
    profile = f"projects/{PROJECT}/global/networkProfiles/us-central1-b-vpc-roce"
    inputs = {"project": PROJECT, "autoCreateSubnetworks": False, "networkProfile": profile}
    network = client.create(NETWORK, "rdma", inputs)
    return network, client.create(SUBNETWORK, "rdma-0", subnet(network, "10.128.0.0/20"))


def program_types() -> set[str]:
    """Tokens of the resource types that the program's source names."""
    source = "\n".join(file.read_text() for file in (CHECKOUT / "oasis_stack").rglob("*.py"))
    used = set(re.findall(r"\bgcp\.([a-z]+)\.([A-Z]\w+)\(", source))
    return {token for token in gcp_types.tokens() if (token.split(":")[1].split("/")[0], token.rsplit(":")[-1]) in used}


def test_the_tables_have_a_row_for_every_type_that_the_program_uses() -> None:
    assert program_types() - ROWS.keys() == set()


@pytest.mark.parametrize("token", sorted(ROWS))
def test_a_row_gives_every_output_of_its_type_and_names_only_inputs_it_has(token: str) -> None:
    row, inputs = ROWS[token], gcp_types.inputs_of(token)
    named = {*row.defaults, *row.replaces, *row.replaces_if, *row.not_computed, *row.hidden} - {"*"}
    assert [path for path in named if not gcp_types.has_input(token, path)] == []
    assert row.auto_name is None or row.auto_name[0] in inputs


def test_a_platform_is_made_read_without_drift_and_taken_away_in_order_only(client: Client, cloud: Cloud) -> None:
    network, nodes, cluster = make_cluster(client)
    rdma, rdma_subnet = make_rdma(client)
    pair = {"network": rdma.outputs["name"], "subnetwork": rdma_subnet.outputs["name"]}
    pool = client.create(POOL, "flex", flex_pool(cluster, networkConfig={"additionalNodeNetworkConfigs": [pair]}))
    held = [network, nodes, cluster, rdma, rdma_subnet, pool]

    assert cluster.outputs["endpoint"] == "127.0.0.1:6443"
    assert cluster.outputs["masterAuth"]["clusterCaCertificate"] == "Q0E="
    assert network.outputs["selfLink"] == f"https://www.googleapis.com/compute/v1/{network.id}"
    assert (network.outputs["mtu"], rdma.outputs["mtu"]) == (1460, 8896)
    reserved = client.diff(client.read(SUBNETWORK, nodes.id, nodes) or nodes, nodes.inputs).detailedDiff
    # By GKE, when the cluster came.
    assert set(reserved) == {"reservedInternalRange", "secondaryIpRanges[0].reservedInternalRange"}
    held.remove(nodes)
    for one in held:
        again = client.read(one.token, one.id, one)
        assert again is not None and (again.inputs, again.outputs) == (one.inputs, one.outputs)

    for early in (network, nodes, rdma, rdma_subnet):
        with pytest.raises(Failed, match=f"resource '{re.escape(early.id)}' is already being used by"):
            client.delete(early)
    for one in (pool, rdma_subnet, rdma, cluster, nodes):
        client.delete(one)
    with pytest.raises(Failed, match=r"already being used by 'projects/test-project/global/firewalls/gke-oasis"):
        client.delete(network)
    expire(cloud, "compute/firewall")
    client.delete(network)
    client.delete(network)  # gone already: no error
    assert cloud.inventory().other == []
    assert client.read(NETWORK, network.id, network) is None


def test_names_are_made_up_within_the_limit_and_kept(client: Client) -> None:
    long = client.create(NETWORK, "Rdma_" + "x" * 80, {"project": PROJECT})
    assert re.fullmatch(r"rdma-x+-[0-9a-f]{7}", long.inputs["name"]) and len(long.inputs["name"]) == 63
    assert client.diff(long, {"project": PROJECT}).changes == 1
    changed = client.diff(long, {"project": PROJECT, "description": "other"})
    assert (list(changed.replaces), changed.deleteBeforeReplace) == (["description"], False)
    named = client.create(NETWORK, "n", {"project": PROJECT, "name": "fixed"})
    assert client.diff(named, {"project": PROJECT, "name": "fixed", "description": "other"}).deleteBeforeReplace


@pytest.mark.parametrize(
    ("token", "inputs", "complaint"),
    [
        (FIREWALL, {}, "network: Missing required argument"),
        (FIREWALL, {"network": "n", "allow": []}, "did you mean 'allows'?"),
        (
            FIREWALL,
            {"network": "n", "priority": "10"},
            "priority: Incorrect value type: int is expected, '10' was given",
        ),
        (FIREWALL, {"network": "n", "allows": [{"protocols": "tcp"}]}, "allows[0].protocol: Missing required argument"),
        (POOL, {"cluster": "c", "nodeConfig": {"machine_type": "x"}}, "did you mean 'machineType'?"),
        (BUCKET, {"location": "us", "labels": {"a": 1}}, "labels.a: Incorrect value type"),
    ],
)
def test_an_input_that_the_type_does_not_take_is_named(
    client: Client, token: str, inputs: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidInputs, match=re.escape(complaint)):
        client.check(token, "r", inputs)
    required = {problem.path for problem in gcp_types.problems(token, {})}
    assert client.check(token, "r", dict.fromkeys(required, UNKNOWN)).keys() >= required


def test_only_the_table_decides_what_is_replaced(client: Client) -> None:
    cluster = make_cluster(client)[2]
    pool = client.create(POOL, "flex", flex_pool(cluster))

    def replaced(held: Held, **changes: Any) -> bool:
        answer = client.diff(held, {**{k: v for k, v in plain(held.inputs).items() if k != "__defaults"}, **changes})
        assert answer.changes == 2
        return bool(answer.replaces)

    assert not replaced(pool, autoscaling={"totalMinNodeCount": 0, "totalMaxNodeCount": 9})
    assert not replaced(pool, nodeConfig={**pool.inputs["nodeConfig"], "labels": {"a": "b"}})
    assert replaced(pool, nodeConfig={**pool.inputs["nodeConfig"], "maxRunDuration": "600s"})
    assert replaced(cluster, location="us-east4")
    assert not replaced(cluster, deletionProtection=True)
    network = client.create(NETWORK, "wide", {"project": PROJECT, "autoCreateSubnetworks": False})
    nodes = client.create(SUBNETWORK, "wide", subnet(network, "10.8.0.0/24"))
    assert not replaced(nodes, ipCidrRange="10.8.0.0/20")
    assert replaced(nodes, ipCidrRange="10.8.0.0/26")


def test_what_gke_added_shows_as_drift_and_outlives_an_update(client: Client, cloud: Cloud) -> None:
    inputs = flex_pool(make_cluster(client)[2])
    pool = client.create(POOL, "flex", inputs)

    def scale(body: dict[str, Any]) -> None:
        body["config"]["labels"]["cloud.google.com/gke-flex-start"] = "true"

    cloud.update("container/nodePool", pool.id, scale)
    instance_groups.settle(cloud, pool.id, {"us-central1-b": 3})
    refreshed = client.read(POOL, pool.id, pool)
    assert refreshed is not None and refreshed.outputs["nodeCount"] == 3
    drift = client.diff(refreshed, inputs)
    assert list(drift.detailedDiff) == ['nodeConfig.labels["cloud.google.com/gke-flex-start"]']
    assert not drift.replaces
    updated = client.update(pool, {**inputs, "management": {"autoRepair": False, "autoUpgrade": False}})
    assert updated.outputs["nodeCount"] == 3
    assert "cloud.google.com/gke-flex-start" in updated.outputs["nodeConfig"]["labels"]
    assert updated.outputs["management"]["autoUpgrade"] is False


def test_a_cluster_shows_another_pools_nodes_once_its_first_pool_is_gone_and_can_still_be_changed(
    client: Client, cloud: Cloud
) -> None:
    asked = {"removeDefaultNodePool": True, "nodeConfig": {"diskType": "pd-balanced", "resourceLabels": {}}}
    inputs = {**make_cluster(client)[2].inputs, "name": "bare", **asked}
    cluster = client.create(CLUSTER, "bare", inputs)
    node = {"diskType": "pd-ssd", "resourceLabels": {"team": "vision"}}
    client.create(POOL, "cpu", {"cluster": "bare", "location": "us-central1", "nodeConfig": node})

    refreshed = client.read(CLUSTER, cluster.id, cluster)

    assert refreshed is not None
    drift = client.diff(refreshed, inputs)
    assert {*drift.detailedDiff} == {"initialNodeCount", "nodeConfig.diskType", "nodeConfig.resourceLabels.team"}
    assert [*drift.replaces] == ["initialNodeCount"]
    updated = client.update(refreshed, {**refreshed.inputs, "releaseChannel": {"channel": "RAPID"}})
    assert updated.outputs["initialNodeCount"] == 0


def test_secrets_stay_wrapped_and_write_only_values_do_not_come_back(client: Client, cloud: Cloud) -> None:
    secret = client.create(SECRET, "s", {"project": PROJECT, "secretId": "wandb", "replication": {"auto": {}}})
    written = client.create(
        VERSION, "v", {"secret": secret.id, "secretDataWo": Secret("canary"), "secretDataWoVersion": "1"}
    )
    given = client.create(VERSION, "w", {"secret": secret.id, "secretData": Secret("canary")})
    assert "canary" not in str(plain(written.outputs))
    assert given.outputs["secretData"] == Secret("canary")
    assert written.inputs["secretDataWo"] == Secret("canary")
    assert [held.outputs["version"] for held in (written, given)] == ["1", "2"]
    again = client.read(VERSION, written.id, written)
    assert again is not None and again.inputs == written.inputs
    assert (
        client.diff(again, {"secret": secret.id, "secretDataWo": Secret("canary"), "secretDataWoVersion": "1"}).changes
        == 1
    )
    client.delete(secret)  # its versions and grants are part of it
    assert cloud.inventory().other == [] and not cloud.list("secretmanager/version")


def test_a_kept_bucket_is_adopted_only_as_it_is(client: Client, cloud: Cloud) -> None:
    inputs = {
        "project": PROJECT,
        "name": "runs-1",
        "location": "us-central1",
        "labels": {"stack": "dev"},
        "uniformBucketLevelAccess": True,
        "hierarchicalNamespace": {"enabled": True},
        "softDeletePolicy": {"retentionDurationSeconds": 604800},
        "forceDestroy": False,
    }
    client.create(BUCKET, "runs", inputs)
    for identity in ("runs-1", f"{PROJECT}/runs-1"):
        adopted = client.read(BUCKET, identity)
        assert adopted is not None and adopted.id == "runs-1"
        unlabelled = {key: value for key, value in inputs.items() if key != "labels"}
        assert client.diff(adopted, unlabelled).changes == 1
        assert list(client.diff(adopted, inputs).diffs) == ["labels"]  # which the real provider does not read either
        assert list(client.diff(adopted, {**unlabelled, "location": "us-east4"}).replaces) == ["location"]
    with pytest.raises(Failed, match="you already own it"):
        client.create(BUCKET, "again", inputs)


def test_a_bucket_with_objects_goes_only_by_force(client: Client, cloud: Cloud) -> None:
    inputs = {"project": PROJECT, "name": "runs-2", "location": "us-central1"}
    bucket = client.create(BUCKET, "runs", inputs)
    store = ObjectStore(cloud)
    store.put("runs-2", "a/b", store.temporary())
    with pytest.raises(Failed, match="The bucket you tried to delete is not empty"):
        client.delete(bucket)
    assert store.names("runs-2") == ["a/b"]
    client.delete(client.update(bucket, {**inputs, "forceDestroy": True}))
    assert not (cloud.directory / "buckets" / "runs-2").exists()
    assert cloud.list("storage/bucket") == []


def test_a_protected_cluster_and_a_used_connection_stay(client: Client, cloud: Cloud) -> None:
    network, _, cluster = make_cluster(client)
    protected = client.update(cluster, {**cluster.inputs, "deletionProtection": True})
    with pytest.raises(Failed, match="deletion_protection is set to true"):
        client.delete(protected)
    reserved = {"network": network.id, "purpose": "VPC_PEERING", "addressType": "INTERNAL", "prefixLength": 24}
    ranges = [client.create(ADDRESS, "peering", reserved).outputs["name"]]
    to_google = {"service": "servicenetworking.googleapis.com", "reservedPeeringRanges": ranges}
    connection = client.create(CONNECTION, "peering", {"network": network.id, **to_google})
    # Cloud Build wants the project by its number there (pulumi-gcp 10.2, cloudbuild.WorkerPool, peered_network).
    by_number = network.id.replace(PROJECT, client.invoke("gcp:organizations/getProject:getProject")["number"])
    peered = {"location": "us-central1", "networkConfig": {"peeredNetwork": by_number}}
    client.delete(client.create(WORKER_POOL, "build", peered))
    with pytest.raises(Failed, match=r"Producer services .* are still using this connection"):
        client.delete(connection)
    expire(cloud, PRODUCER)
    client.delete(connection)


def test_a_preview_makes_nothing_and_leaves_googles_own_values_open(client: Client, cloud: Cloud) -> None:
    before = cloud.list()
    foreseen = client.create(SUBNETWORK, "s", subnet(Held(NETWORK, UNKNOWN, {}, {}), "10.0.0.0/24"), preview=True)
    assert foreseen.id == "" and foreseen.outputs["selfLink"] == UNKNOWN
    assert foreseen.outputs["ipCidrRange"] == "10.0.0.0/24"
    assert cloud.list() == before


def test_a_refused_call_is_made_again_and_a_create_whose_answer_is_lost_finds_itself_there(
    client: Client, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(google_client, "RETRY_SECONDS", (0.0, 0.0))
    insert = {"call": "compute.networks.insert"}
    for fault in ({"effect": "fail", "times": 2}, {"effect": "lose-answer", "after": 1, "times": 1}):
        (cloud.directory / "faults.json").write_text(json.dumps([{**insert, **fault}]))
        client.create(NETWORK, fault["effect"], {"project": PROJECT, "name": fault["effect"]})
    with pytest.raises(Failed, match="already exists, alreadyExists"):
        client.create(NETWORK, "m", {"project": PROJECT, "name": "m"})
    (cloud.directory / "faults.json").write_text('[{"effect": "explode"}]')
    with pytest.raises(Failed, match="effect must be one of"):
        client.create(NETWORK, "o", {"project": PROJECT, "name": "o"})


def test_a_budget_is_made_on_a_project_s_quota_alone_and_shows_what_google_fills_in(
    client: Client, cloud: Cloud
) -> None:
    client.enable("billingbudgets")
    inputs: dict[str, Any] = {
        "billingAccount": "01AB23-4CD567-89EF01",
        "displayName": "ours",
        "budgetFilter": {"projects": [f"projects/{project_number(PROJECT)}"], "calendarPeriod": "MONTH"},
        "amount": {"specifiedAmount": {"units": "5000"}},
        "thresholdRules": [{"thresholdPercent": 0.5}, {"thresholdPercent": 1, "spendBasis": "FORECASTED_SPEND"}],
    }
    with pytest.raises(Failed, match=r"billingbudgets\.googleapis\.com API requires a quota project"):
        client.create(BUDGET, "ours", inputs)
    owner = Client(cloud, billingProject=PROJECT, userProjectOverride="true")
    budget = owner.create(BUDGET, "ours", inputs)

    shown = plain(budget.outputs)
    assert re.fullmatch("billingAccounts/01AB23-4CD567-89EF01/budgets/[0-9a-f-]{36}", budget.id)
    assert shown["name"] == budget.id.rpartition("/")[2] and shown["billingAccount"] == "01AB23-4CD567-89EF01"
    assert shown["amount"] == {"specifiedAmount": {"currencyCode": "USD", "units": "5000"}}
    assert shown["budgetFilter"]["creditTypesTreatment"] == "INCLUDE_ALL_CREDITS"
    assert [rule["spendBasis"] for rule in shown["thresholdRules"]] == ["CURRENT_SPEND", "FORECASTED_SPEND"]
    owner.delete(budget)
    owner.delete(budget)
    assert cloud.list("billingbudgets/budget") == []


def test_what_is_not_emulated_is_an_error_that_says_where_to_add_it(client: Client) -> None:
    with pytest.raises(Failed, match=r"Add a row to emulator/gcp/tables\.py"):
        client.create("gcp:sql/databaseInstance:DatabaseInstance", "d", {})
    with pytest.raises(Failed, match=r"Add it to emulator/gcp/invokes\.py"):
        client.invoke("gcp:compute/getImage:getImage")
    project = client.invoke("gcp:organizations/getProject:getProject", projectId=PROJECT)
    assert re.fullmatch(r"[1-9]\d{11}", project["number"])
