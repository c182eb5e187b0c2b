"""Clusters and node pools under Google's own client, with the metadata server's credentials."""

from __future__ import annotations

from typing import Any

import pytest
from google.auth import compute_engine
from googleapiclient import discovery
from googleapiclient.errors import HttpError

from emulator.google.callers import Identity, set_identity
from tests.emulator.google import PROJECT, Google, directly, lead_clients_to

LOCATION = f"projects/{PROJECT}/locations/us-central1"
NETWORK = f"projects/{PROJECT}/global/networks/net"
SECONDS = 60
"""How long this Google's operations take, on a clock that the tests turn."""
LATE_SECONDS = 600
"""How much longer what GKE made for a cluster stays."""
APIS = ["compute", "container"]
VARIABLES = {
    "OASIS_EMULATOR_LATENCY_SECONDS": str(SECONDS),
    "OASIS_EMULATOR_LATE_SECONDS": str(LATE_SECONDS),
}
CLUSTER: dict[str, Any] = {
    "network": "net",
    "initialNodeCount": 1,
    "locations": ["us-central1-b"],
    "networkConfig": {"datapathProvider": "ADVANCED_DATAPATH"},
    "privateClusterConfig": {"masterIpv4CidrBlock": "10.64.0.0/28"},
}
FLEX: dict[str, Any] = {
    "name": "flex",
    "autoscaling": {"enabled": True, "totalMaxNodeCount": 4},
    "management": {"autoUpgrade": True},
    "upgradeSettings": {"strategy": "SURGE", "maxSurge": 1},
    "config": {
        "machineType": "a3-ultragpu-8g",
        "diskType": "hyperdisk-balanced",
        "flexStart": True,
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
    },
}


@pytest.fixture(scope="module")
def google(google: Google) -> Google:
    """The module's Google with a network."""
    set_identity(google.cloud, Identity(project=PROJECT, zone="us-central1-b"))
    google.cloud.create("compute/network", NETWORK, {"name": "net"})
    return google


@pytest.fixture
def gke(google: Google, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The client's `projects.locations`."""
    lead_clients_to(google, monkeypatch)
    client = discovery.build(
        "container",
        "v1",
        static_discovery=True,
        client_options={"api_endpoint": f"http://{google.host}"},
        credentials=compute_engine.Credentials(),
    )
    return client.projects().locations()


def _await(google: Google, gke: Any, operation: dict[str, Any]) -> dict[str, Any]:
    """An operation once it is over, asked for by its name."""
    google.cloud.turn(SECONDS)
    found = gke.operations().get(name=f"{LOCATION}/operations/{operation['name']}").execute()
    assert found["status"] == "DONE"
    return found


def _make(google: Google, gke: Any, name: str, **changes: Any) -> str:
    body = {"cluster": {**CLUSTER, "name": name, **changes}}
    _await(google, gke, gke.clusters().create(parent=LOCATION, body=body).execute())
    return f"{LOCATION}/clusters/{name}"


@pytest.mark.thorough
def test_a_cluster_and_a_pool_are_provisioned_until_their_operations_are_over(google: Google, gke: Any) -> None:
    clusters, name = gke.clusters(), f"{LOCATION}/clusters/oasis"
    operation = clusters.create(parent=LOCATION, body={"cluster": {**CLUSTER, "name": "oasis"}}).execute()
    assert (operation["operationType"], operation["status"]) == ("CREATE_CLUSTER", "RUNNING")
    assert clusters.get(name=name).execute()["status"] == "PROVISIONING"
    with pytest.raises(HttpError, match=f"Cluster is running incompatible operation {operation['name']}") as refused:
        clusters.nodePools().create(parent=name, body={"nodePool": FLEX}).execute()
    assert b'"reason": "failedPrecondition"' in refused.value.content  # by which the provider knows to try again

    assert _await(google, gke, operation)["endTime"]
    _await(google, gke, clusters.nodePools().create(parent=name, body={"nodePool": FLEX}).execute())

    (cluster,) = clusters.list(parent=f"projects/{PROJECT}/locations/-").execute()["clusters"]
    assert cluster["status"] == "RUNNING"
    assert (cluster["network"], cluster["networkConfig"]["network"]) == ("net", NETWORK)
    pools = {pool["name"]: pool for pool in clusters.nodePools().list(parent=name).execute()["nodePools"]}
    assert pools.keys() == {"default-pool", "flex"}
    assert pools["flex"]["upgradeSettings"] == {"strategy": "SHORT_LIVED"}
    assert pools["flex"]["locations"] == ["us-central1-b"]
    assert cluster["instanceGroupUrls"] == [url for pool in pools.values() for url in pool["instanceGroupUrls"]]


def test_a_field_that_gke_does_not_have_is_refused_in_its_words(google: Google, gke: Any) -> None:
    name = _make(google, gke, "strict")
    for pool, words in (
        ({"config": {"machine": "e2-medium"}}, "Unknown name \"machine\" at 'node_pool.config': Cannot find field"),
        ({"initialNodeCount": "many"}, "Invalid value at 'node_pool.initial_node_count'"),
    ):
        with pytest.raises(HttpError, match=words):
            gke.clusters().nodePools().create(parent=name, body={"nodePool": {"name": "cpu", **pool}}).execute()
    with pytest.raises(HttpError, match=f"Not found: {LOCATION}/clusters/nowhere"):
        gke.clusters().nodePools().list(parent=f"{LOCATION}/clusters/nowhere").execute()


@pytest.mark.thorough
def test_labels_are_changed_in_place_and_a_cluster_without_pools_shows_none(google: Google, gke: Any) -> None:
    name = _make(google, gke, "changed")
    clusters, pool = gke.clusters(), f"{name}/nodePools/default-pool"
    fingerprint = clusters.get(name=name).execute()["labelFingerprint"]
    labels = {"resourceLabels": {"team": "vision"}, "labelFingerprint": fingerprint}
    _await(google, gke, clusters.setResourceLabels(name=name, body=labels).execute())

    changed = clusters.get(name=name).execute()

    assert changed["resourceLabels"] == {"team": "vision"}
    assert changed["initialNodeCount"] == 1
    _await(google, gke, clusters.nodePools().delete(name=pool).execute())
    bare = clusters.get(name=name).execute()
    assert not {"initialNodeCount", "nodeConfig", "nodePools"} & bare.keys()


@pytest.mark.thorough
def test_the_size_of_a_pool_is_that_of_its_groups(google: Google, gke: Any) -> None:
    pool = f"{_make(google, gke, 'sized', initialNodeCount=3)}/nodePools/default-pool"

    (url,) = gke.clusters().nodePools().get(name=pool).execute()["instanceGroupUrls"]
    path = f"/compute/beta/projects/{PROJECT}/zones/us-central1-b/instanceGroupManagers"
    groups = directly(google.cloud)("GET", path, {}, None, "")["items"]
    assert [group["targetSize"] for group in groups if group["selfLink"] == url] == [3]


@pytest.mark.thorough
def test_a_clusters_own_rules_and_private_endpoint_outlive_it_for_a_while(google: Google, gke: Any) -> None:
    name = _make(google, gke, "late")

    def left() -> list[str]:
        return [
            found.name
            for found in google.cloud.list()
            if found.kind.startswith("compute/") and "gke-late" in found.name
        ]

    assert len(left()) == 6
    _await(google, gke, gke.clusters().delete(name=name).execute())
    assert len(left()) == 5, "its instance group went with it"
    google.cloud.turn(LATE_SECONDS)
    assert left() == []
