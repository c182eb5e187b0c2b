"""Each rule of `docs/google-rules.md` is broken once, and what is asked is refused as the page says."""

from __future__ import annotations

import ast
import base64
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from emulator.google import operations
from emulator.google.apis.rest import GoogleApis
from emulator.google.callers import Tokens
from emulator.google.cloud import Cloud
from emulator.google.errors import CloudError, in_googles_words
from emulator.google.http_message import Request
from emulator.google.policies import GRANT_SECONDS
from emulator.google.storage import ObjectStore
from emulator.google.storage_index import ObjectFacts, Preconditions
from tests.emulator.google import enable

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "google-rules.md"

PROJECT = "some-project"
ME, DOMAIN = "user:me@example.com", f"{PROJECT}.iam.gserviceaccount.com"

NETWORKS = f"compute/v1/projects/{PROJECT}/global/networks"
PROFILES, ROCE = f"projects/{PROJECT}/global/networkProfiles", "us-central1-b-vpc-roce"
ZONES = f"compute/v1/projects/{PROJECT}/zones"
FIREWALLS = f"compute/v1/projects/{PROJECT}/global/firewalls"
RANGES = f"compute/v1/projects/{PROJECT}/global/addresses"
REGION = f"compute/v1/projects/{PROJECT}/regions/us-central1"
LOCATION = f"v1/projects/{PROJECT}/locations/us-central1"
CLUSTERS, CLUSTER = f"{LOCATION}/clusters", f"{LOCATION}/clusters/oasis"
REPOSITORIES, WORKERS = f"{LOCATION}/repositories", f"{LOCATION}/workerPools"
KEY = f"projects/{PROJECT}/locations/us-central1/keyRings/r/cryptoKeys/k"
SECRETS, SECRET = f"v1/projects/{PROJECT}/secrets", f"v1/projects/{PROJECT}/secrets/key"
ACCOUNTS, POLICY = f"v1/projects/{PROJECT}/serviceAccounts", f"v1/projects/{PROJECT}"
CONNECTIONS = "v1/services/servicenetworking.googleapis.com/connections"
BUCKETS = "storage/v1/b"
BUDGETS = "v1/billingAccounts/01AB23-4CD567-89EF01/budgets"

POOL: Mapping[str, Any] = {
    "name": "gpu",
    "autoscaling": {"enabled": True, "totalMaxNodeCount": 4},
    "locations": ["us-central1-b"],
    "management": {"autoUpgrade": True},
    "config": {"machineType": "a3-ultragpu-8g", "diskType": "hyperdisk-balanced"},
}
FLEX = {"flexStart": True, "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}}


class Google:
    """An emulated Google with one of everything, and its answers without a socket."""

    def __init__(self, directory: Path) -> None:
        self.cloud = Cloud(directory)
        self._apis = GoogleApis(self.cloud)
        for api in (
            "artifactregistry",
            "billingbudgets",
            "cloudbuild",
            "cloudresourcemanager",
            "compute",
            "container",
            "iam",
            "monitoring",
            "secretmanager",
            "servicenetworking",
            "serviceusage",
            "storage",
        ):
            enable(self.cloud, f"{api}.googleapis.com", PROJECT)
        for name, profile in {"net": "", "other": "", "rdma": ROCE}.items():
            self.network(name, profile)
        self.subnetwork("nodes", secondaryIpRanges=[{"rangeName": "pods", "ipCidrRange": "10.4.0.0/14"}])
        self.subnetwork("elsewhere", network="other", ipCidrRange="10.1.0.0/24")
        self.subnetwork("small", network="other", ipCidrRange="10.3.0.0/29")
        for nic in range(9):
            self.subnetwork(f"rdma-{nic}", network="rdma", ipCidrRange=f"10.2.{nic}.0/24")
        self.post(f"{REGION}/addresses", {"name": "out", "labels": {"a": "b"}})
        self.post(ACCOUNTS, {"accountId": "nodes-of-ours"})
        for secret in ("key", "empty"):
            self.post(SECRETS, {"replication": {"automatic": {}}}, secretId=secret)
        self.post(BUCKETS, {"name": "a-bucket", "location": "us-central1"}, project=PROJECT)
        self.bucket("uniform", iamConfiguration={"uniformBucketLevelAccess": {"enabled": True}})
        self.cluster("oasis")
        self.cluster("plain", networkConfig={})

    def ask(
        self,
        verb: str,
        path: str,
        body: Mapping[str, Any],
        principal: str = "",
        quota_project: str = "",
        **query: str,
    ) -> Any:
        return self._apis.answer(verb, f"/{path}", query, body, principal, quota_project)

    def get(self, path: str, principal: str = "", **query: str) -> Any:
        return self.ask("GET", path, {}, principal, **query)

    def post(self, path: str, body: Mapping[str, Any], **query: str) -> Any:
        return self.ask("POST", path, body, **query)

    def delete(self, path: str) -> Any:
        return self.ask("DELETE", path, {})

    def network(self, name: str = "n", profile: str = "", **body: Any) -> Any:
        profiled = {"networkProfile": f"{PROFILES}/{profile}"} if profile else {}
        return self.post(NETWORKS, {"name": name, "autoCreateSubnetworks": False, **profiled, **body})

    def subnetwork(self, name: str, network: str = "net", **body: Any) -> Any:
        given = {"ipCidrRange": "10.0.0.0/20", **body}
        return self.post(f"{REGION}/subnetworks", {"name": name, "network": f"global/networks/{network}", **given})

    def expand(self, block: str) -> Any:
        return self.post(f"{REGION}/subnetworks/nodes/expandIpCidrRange", {"ipCidrRange": block})

    def cluster(self, name: str, **body: Any) -> Any:
        own = {
            "name": name,
            "network": "net",
            "subnetwork": "nodes",
            "initialNodeCount": 1,
            "locations": ["us-central1-b"],
            "networkConfig": {"enableMultiNetworking": True, "datapathProvider": "ADVANCED_DATAPATH"},
            "releaseChannel": {"channel": "REGULAR"},
        }
        return self.post(CLUSTERS, {"cluster": {**own, **body}})

    def in_range(self, part: str, block: str, nodes: str) -> Any:
        """A cluster whose pods or Services have this block, beside its nodes'."""
        ranges = [{"rangeName": part, "ipCidrRange": block}]
        self.subnetwork(part, network="other", ipCidrRange=nodes, secondaryIpRanges=ranges)
        policy = {"useIpAliases": True, f"{part}SecondaryRangeName": part}
        return self.cluster("c", network="other", subnetwork=part, ipAllocationPolicy=policy)

    def pool(
        self, cluster: str = "oasis", config: Mapping[str, Any] | None = None, principal: str = "", **body: Any
    ) -> Any:
        given = {**POOL, **body, "config": {**POOL["config"], **(config or {})}}
        return self.ask("POST", f"{CLUSTERS}/{cluster}/nodePools", {"nodePool": given}, principal)

    def nics(self, *pairs: tuple[str, str], cluster: str = "oasis", **body: Any) -> Any:
        given = [{"network": network, "subnetwork": subnetwork} for network, subnetwork in pairs]
        return self.pool(cluster, networkConfig={"additionalNodeNetworkConfigs": given}, **body)

    def bucket(self, name: str = "another-bucket", **body: Any) -> Any:
        return self.post(BUCKETS, {"name": name, "location": "us-central1", **body}, project=PROJECT)

    def folder(self, bucket: str, name: str = "teams/vision/") -> Any:
        return self.post(f"{BUCKETS}/{bucket}/managedFolders", {"bucket": bucket, "name": name})

    def capacity(self, machine: str, zone: str = "us-central1-b", region: str = REGION) -> Any:
        body = {
            "distributionPolicy": {"zones": [{"zone": f"zones/{zone}"}], "targetShape": "ANY_SINGLE_ZONE"},
            "instanceFlexibilityPolicy": {"instanceSelections": {"node": {"machineTypes": [machine]}}},
            "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
            "size": 1,
        }
        return self.post(f"{region}/advice/capacity", body)

    def windows(self, *names: str, days: int = 1, since: str = "2026-12-01T00:00:00Z") -> Any:
        times = {"startTimeNotEarlierThan": since, "startTimeNotLaterThan": "2026-12-31T00:00:00Z"}
        lengths = {"minDuration": f"{days * 86400}s", "maxDuration": "86400s"}
        wanted = {"specificSkuResources": {"machineType": "a3-ultragpu-8g", "instanceCount": "2"}}
        spec = {"targetResources": wanted, "timeRangeSpec": {**times, **lengths}}
        return self.post(f"{REGION}/advice/calendarMode", {"futureResourcesSpecs": dict.fromkeys(names, spec)})

    def grant(self, member: str, role: str = "roles/viewer", **policy: Any) -> Any:
        bindings = [{"role": role, "members": [member]}]
        return self.post(f"{POLICY}:setIamPolicy", {"policy": {"bindings": bindings, **policy}})

    def peer(self, network: str = "net", ranges: tuple[str, ...] = ("peering",)) -> Any:
        name = f"projects/{PROJECT}/global/networks/{network}"
        return self.post(CONNECTIONS, {"network": name, "reservedPeeringRanges": list(ranges)})

    def reserve(self, name: str, **body: Any) -> Any:
        own = {"name": name, "network": "global/networks/net", "purpose": "VPC_PEERING", "addressType": "INTERNAL"}
        return self.post(RANGES, {**own, "prefixLength": 24, **body})

    def version(self, data: str, **payload: Any) -> Any:
        given = {"data": base64.b64encode(data.encode()).decode(), **payload}
        return self.post(f"{SECRET}:addVersion", {"payload": given})

    def objects(self) -> ObjectStore:
        return ObjectStore(self.cloud)

    def budget(self, currency: str = "USD", quota_project: str = PROJECT, **body: Any) -> Any:
        given = {"amount": {"specifiedAmount": {"currencyCode": currency, "units": "5000"}}, **body}
        return self.ask("POST", BUDGETS, given, quota_project=quota_project)

    def series(self, wanted: str) -> Any:
        query = {"filter": wanted, "interval.endTime": "2026-11-28T10:00:00Z"}
        return self.ask("GET", f"v3/projects/{PROJECT}/timeSeries", {}, **query)

    def put(self, name: str, bucket: str = "a-bucket") -> ObjectFacts:
        """An object of two bytes in a bucket."""
        content = self.objects().temporary()
        content.write_bytes(b"ok")
        return self.objects().put(bucket, name, content)

    def given(self, file: str, content: object, ask: Callable[[], object]) -> object:
        """A call while the emulator's folder holds a file."""
        path = self.cloud.directory / file
        path.write_text(json.dumps(content))
        try:
            return ask()
        finally:
            path.unlink()

    def faulty(self, planned: object) -> object:
        """A call while `faults.json` holds this."""
        return self.given("faults.json", planned, lambda: self.get(f"{NETWORKS}/net"))

    def meanwhile(self, ask: Callable[[], object], cluster: str = "oasis") -> object:
        """A call while an operation runs on a cluster."""
        place = f"projects/{PROJECT}/locations/us-central1"
        body = {"api": "container", "operationType": "UPDATE_CLUSTER", "target": f"{place}/clusters/{cluster}"}
        name, now = f"{place}/operations/operation-1", self.cloud.now()
        self.cloud.put(operations.KIND, name, {**body, "starts": now, "ends": now + 60})
        try:
            return ask()
        finally:
            self.cloud.delete(operations.KIND, name)


Ask = Callable[[Google], object]
Asked = Mapping[str, Ask | tuple[Ask, ...]]
"""By what is asked, as the page says it, a call that asks it, or several."""


def _request(body: bytes = b"", **headers: str) -> Request:
    return Request(method="POST", path="/", query={}, headers=headers, body=io.BytesIO(body), host="localhost")


BROKEN: Asked = {
    # Every API
    "a field that the API's schema lacks": lambda g: g.network(cidr="10.0.0.0/8"),
    "a field of a wrong type": lambda g: g.network(autoCreateSubnetworks="yes"),
    "a number that the field does not hold": lambda g: g.network(mtu=2**40),
    "a value outside a field's list": lambda g: g.subnetwork("s", purpose="PUBLIC"),
    "a create without a field that the schema requires": (
        lambda g: g.post(BUCKETS, {}, project=PROJECT),
        lambda g: g.post(f"{BUCKETS}/uniform/managedFolders", {}),
    ),
    "a body that is not JSON": lambda g: _request(b"{").json(),
    "a body that is no object": lambda g: _request(b"[]").json(),
    "a create without the parameter that names the new one": lambda g: g.post(REPOSITORIES, {"format": "DOCKER"}),
    "a list from a page that does not exist": lambda g: g.get(NETWORKS, pageToken="next"),
    "a call without a good access token": lambda g: Tokens(g.cloud).require(_request(Authorization="Bearer x")),
    "a call of an API that is off in the project": lambda g: g.get("v1/projects/other-project/secrets/s"),
    "a call of a caller whose roles lack its permission": lambda g: g.get(SECRET, ME),
    "a call less than two minutes after the grant that it needs": lambda g: (
        g.grant(ME, role="roles/secretmanager.admin"),
        g.cloud.turn(GRANT_SECONDS - 1),
        g.get(SECRET, ME),
    ),
    "a policy written back with another etag than was read": lambda g: g.grant(ME, etag="AAAA"),
    "a grant to a service account that does not exist": lambda g: g.grant(f"serviceAccount:nobody@{DOMAIN}"),
    "a grant to a workload before any cluster has a workload pool": lambda g: g.grant(
        f"serviceAccount:{PROJECT}.svc.id.goog[ns/sa]"
    ),
    "an operation that does not exist": lambda g: g.get(f"{LOCATION}/operations/operation-9"),
    # Networks, and advice on capacity
    "a name that is not of 1-63 lower-case letters, digits and dashes": (
        lambda g: g.network("Net"),
        lambda g: g.subnetwork("-", ipCidrRange="10.9.0.0/24"),
        lambda g: g.post(f"{REGION}/routers", {"name": "r" * 64, "network": "global/networks/net"}),
        lambda g: g.post(FIREWALLS, {"name": "", "network": "global/networks/net"}),
    ),
    "a second one of a name": lambda g: g.network("net"),
    "what does not exist": lambda g: g.get(f"{NETWORKS}/nothing"),
    "another resource by its bare name": lambda g: g.post(
        f"{REGION}/subnetworks", {"name": "s", "network": "net", "ipCidrRange": "10.9.0.0/24"}
    ),
    "a network profile by a path without its project": lambda g: g.network(
        networkProfile=f"global/networkProfiles/{ROCE}"
    ),
    "a firewall rule without a network": lambda g: g.post(FIREWALLS, {"name": "f"}),
    "a subnetwork in use deleted": lambda g: g.delete(f"{REGION}/subnetworks/nodes"),
    "a subnetwork's range that overlaps another of the network": lambda g: g.subnetwork("s", ipCidrRange="10.0.8.0/24"),
    "a subnetwork's range that is no range": lambda g: g.subnetwork("s", ipCidrRange="10.0.0.1/24"),
    "a subnetwork's range smaller than /29": (
        lambda g: g.subnetwork("s", ipCidrRange="10.9.0.0/30"),
        lambda g: g.expand("10.0.0.0/30"),
    ),
    "a subnetwork changed that has changed since it was read": lambda g: g.ask(
        "PATCH", f"{REGION}/subnetworks/nodes", {"fingerprint": "AAAAAAAAAAA="}
    ),
    "a subnetwork shrunk": lambda g: g.expand("10.0.0.0/24"),
    "an address's labels changed that have changed since they were read": lambda g: g.post(
        f"{REGION}/addresses/out/setLabels", {"labels": {}, "labelFingerprint": "AAAAAAAAAAA="}
    ),
    "an address in a range that has none left": lambda g: [
        g.post(
            f"{REGION}/addresses",
            {"name": f"a{n}", "subnetwork": "regions/us-central1/subnetworks/small", "addressType": "INTERNAL"},
        )
        for n in range(9)
    ],
    "a range for Google's services where none is left": lambda g: [
        g.reserve(f"r{n}", prefixLength=9) for n in range(9)
    ],
    "a RoCE profile of a zone that has none": lambda g: g.network(profile="us-west4-a-vpc-roce"),
    "a RoCE profile of such a zone, to read it": lambda g: g.get(f"compute/v1/{PROFILES}/us-west4-a-vpc-roce"),
    "a machine type of a zone that does not offer it": lambda g: g.get(
        f"{ZONES}/us-west4-a/machineTypes/a3-ultragpu-8g"
    ),
    "a machine type that there is not": lambda g: g.get(f"{ZONES}/us-central1-b/machineTypes/x9-8"),
    "advice of a region that there is not": lambda g: g.capacity(
        "a3-ultragpu-8g", region=f"compute/v1/projects/{PROJECT}/regions/us-mars1"
    ),
    "advice on a machine type that the region, or the zone asked for, does not offer": lambda g: g.capacity(
        "a3-ultragpu-8g", zone="us-central1-c"
    ),
    "the history of another way of buying than Spot": lambda g: g.post(
        f"{REGION}/advice/capacityHistory",
        {"instanceProperties": {"machineType": "a3-ultragpu-8g", "scheduling": {"provisioningModel": "STANDARD"}}},
    ),
    "windows of calendar mode for two specifications at once": lambda g: g.windows("a", "b"),
    "windows of calendar mode in a time that no interval matches": lambda g: g.windows("a", days=7),
    "windows of calendar mode from a moment that is none": lambda g: g.windows("a", since="tomorrow"),
    "a RoCE network with subnetworks of its own accord": lambda g: g.network(profile=ROCE, autoCreateSubnetworks=True),
    "a firewall rule on a RoCE network": lambda g: g.post(FIREWALLS, {"name": "f", "network": "global/networks/rdma"}),
    "a router in a RoCE network": lambda g: g.post(
        f"{REGION}/routers", {"name": "r", "network": "global/networks/rdma"}
    ),
    "a proxy-only subnetwork in a RoCE network": lambda g: g.subnetwork(
        "s", "rdma", ipCidrRange="10.9.0.0/24", purpose="REGIONAL_MANAGED_PROXY", role="ACTIVE"
    ),
    "more of something than its quota": lambda g: g.given("limits.json", {"quotas": {"NETWORKS": 3}}, g.network),
    # Private connections
    "a private connection of a RoCE network": lambda g: g.peer("rdma", ()),
    "a private connection by a range that is not allocated for it": lambda g: g.peer(ranges=("nothing",)),
    "a private connection made again with other ranges": lambda g: (g.peer(ranges=()), g.peer(ranges=("peering",))),
    "a peered worker pool in a network without a private connection": lambda g: g.post(
        WORKERS,
        {"privatePoolV1Config": {"networkConfig": {"peeredNetwork": f"projects/{PROJECT}/global/networks/other"}}},
        workerPoolId="w",
    ),
    # Clusters
    "a cluster or pool whose name is not of 1-40 lower-case letters, digits and dashes": (
        lambda g: g.cluster("Oasis"),
        lambda g: g.pool(name="gpu-"),
    ),
    "a cluster without a first node": lambda g: g.cluster("c", initialNodeCount=0),
    "a workload pool that is not the project's": lambda g: g.cluster(
        "c", workloadIdentityConfig={"workloadPool": "other.svc.id.goog"}
    ),
    "secrets encrypted with a key that GKE's agent may not use": lambda g: g.cluster(
        "c", databaseEncryption={"state": "ENCRYPTED", "keyName": KEY}
    ),
    "multi-networking without Dataplane V2": lambda g: g.cluster("c", networkConfig={"enableMultiNetworking": True}),
    "nodes outside the cluster's region": lambda g: g.cluster("c", locations=["us-east4-b"]),
    "pods in a range that the subnetwork lacks": lambda g: g.cluster(
        "c", ipAllocationPolicy={"useIpAliases": True, "clusterSecondaryRangeName": "nothing"}
    ),
    "pods in a range smaller than /21": lambda g: g.in_range("cluster", "10.8.0.0/22", nodes="10.8.4.0/24"),
    "Services in a range larger than /16": lambda g: g.in_range("services", "10.12.0.0/14", nodes="10.8.5.0/24"),
    "a cluster's labels changed that have changed since they were read": lambda g: g.post(
        f"{CLUSTER}:setResourceLabels", {"resourceLabels": {}, "labelFingerprint": "AAAA"}
    ),
    "a cluster made while another of its name still goes": lambda g: g.meanwhile(lambda: g.cluster("gone"), "gone"),
    "a cluster changed while an operation runs on it": lambda g: g.meanwhile(
        lambda: g.post(f"{CLUSTER}:setMaintenancePolicy", {"maintenancePolicy": {}})
    ),
    "a cluster deleted while an operation runs on it": lambda g: g.meanwhile(lambda: g.delete(CLUSTER)),
    "a pool made while an operation runs on its cluster": lambda g: g.meanwhile(g.pool),
    "a pool's change that changes nothing": lambda g: (
        g.pool(),
        g.ask("PUT", f"{CLUSTER}/nodePools/gpu", {"name": "gpu"}),
    ),
    "a pool changed while an operation runs on its cluster": lambda g: g.meanwhile(
        lambda: g.post(f"{CLUSTER}/nodePools/default-pool:setManagement", {"management": {}})
    ),
    "a pool deleted while an operation runs on its cluster": lambda g: g.meanwhile(
        lambda: g.delete(f"{CLUSTER}/nodePools/default-pool")
    ),
    # Node pools
    "image streaming without the role that pods on it need": lambda g: g.pool(
        config={"serviceAccount": f"nodes-of-ours@{DOMAIN}", "gcfsConfig": {"enabled": True}}
    ),
    "a GPU machine type in a zone that does not offer it": lambda g: g.pool(locations=["us-central1-c"]),
    "another accelerator than the machine type has": lambda g: g.pool(
        config={"accelerators": [{"acceleratorType": "nvidia-l4", "acceleratorCount": "8"}]}
    ),
    "Persistent Disk on a machine type that takes Hyperdisk alone": lambda g: g.pool(
        config={"diskType": "pd-balanced"}
    ),
    "flex-start with a first node": lambda g: g.pool(config=FLEX, initialNodeCount=1),
    "flex-start without autoscaling": lambda g: g.pool(config=FLEX, autoscaling={}),
    "flex-start on Spot VMs": lambda g: g.pool(config={**FLEX, "spot": True}),
    "flex-start with automatic repair": lambda g: g.pool(
        config=FLEX, management={"autoUpgrade": True, "autoRepair": True}
    ),
    "flex-start that does not rule a reservation out": lambda g: g.pool(config={"flexStart": True}),
    "flex-start as a cluster's first pool": lambda g: (
        g.delete(f"{CLUSTERS}/plain/nodePools/default-pool"),
        g.pool("plain", config=FLEX),
    ),
    "flex-start with compact placement by no policy of its own": lambda g: g.pool(
        config=FLEX, placementPolicy={"type": "COMPACT"}
    ),
    "queued provisioning on Spot VMs": lambda g: g.pool(
        config={"spot": True, "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}},
        queuedProvisioning={"enabled": True},
    ),
    "queued provisioning with a node that is always there": lambda g: g.pool(
        config=FLEX,
        queuedProvisioning={"enabled": True},
        autoscaling={"enabled": True, "totalMinNodeCount": 1, "totalMaxNodeCount": 4},
    ),
    "queued provisioning with compact placement": lambda g: g.pool(
        config=FLEX, queuedProvisioning={"enabled": True}, placementPolicy={"type": "COMPACT"}
    ),
    "Spot VMs from a reservation": lambda g: g.pool(
        config={"spot": True, "reservationAffinity": {"consumeReservationType": "ANY_RESERVATION"}}
    ),
    "nodes of a reservation that is not there": lambda g: g.pool(
        config={"reservationAffinity": {"consumeReservationType": "SPECIFIC_RESERVATION", "values": ["nothing"]}}
    ),
    "limits of autoscaling per zone and in total": lambda g: g.pool(
        autoscaling={"enabled": True, "totalMaxNodeCount": 4, "maxNodeCount": 2}
    ),
    "compact placement over two zones": lambda g: g.pool(
        config={"machineType": "n2-standard-8"},
        locations=["us-central1-b", "us-central1-c"],
        placementPolicy={"type": "COMPACT"},
    ),
    "a pool without upgrades in a release channel": lambda g: g.pool(management={}),
    "further networks without multi-networking": lambda g: g.nics(("rdma", "rdma-0"), cluster="plain"),
    "a further network's subnetwork of another network": lambda g: g.nics(("rdma", "elsewhere")),
    "the cluster's own network as a further one": lambda g: g.nics(("net", "nodes")),
    "a RoCE network in another zone than its own": lambda g: g.nics(
        ("rdma", "rdma-0"), locations=["us-central1-c"], config={"machineType": "n2-standard-8"}
    ),
    "more RoCE networks than the machine type has RDMA NICs": lambda g: g.nics(
        *(("rdma", f"rdma-{n}") for n in range(9))
    ),
    "nodes as an account that does not exist": lambda g: g.pool(config={"serviceAccount": f"nobody@{DOMAIN}"}),
    "nodes as an account of which the caller is no user": lambda g: (
        g.grant(ME, role="roles/container.admin"),
        g.cloud.turn(GRANT_SECONDS),
        g.pool(config={"serviceAccount": f"nodes-of-ours@{DOMAIN}"}, principal=ME),
    ),
    # Storage, repositories, accounts, secrets
    "a bucket's name that is not of 3-63 lower-case letters, digits, dashes and underscores": lambda g: g.bucket(
        "Bucket"
    ),
    "a soft delete of neither 0 nor 7 to 90 days": (
        lambda g: g.bucket(softDeletePolicy={"retentionDurationSeconds": "86400"}),
        lambda g: g.ask("PATCH", f"{BUCKETS}/a-bucket", {"softDeletePolicy": {"retentionDurationSeconds": "1"}}),
    ),
    "a hierarchical namespace without uniform access": lambda g: g.bucket(hierarchicalNamespace={"enabled": True}),
    "a hierarchical namespace with versions": lambda g: g.bucket(
        hierarchicalNamespace={"enabled": True},
        iamConfiguration={"uniformBucketLevelAccess": {"enabled": True}},
        versioning={"enabled": True},
    ),
    "a bucket that does not exist": lambda g: g.get(f"{BUCKETS}/nothing"),
    "a bucket deleted with objects in it": lambda g: (g.put("a.txt"), g.delete(f"{BUCKETS}/a-bucket")),
    "a managed folder in a bucket without uniform access": lambda g: g.folder("a-bucket"),
    "a managed folder whose name is no path that ends with a slash": (
        lambda g: g.folder("uniform", "teams"),
        lambda g: g.folder("uniform", "a/" * 16),
    ),
    "a managed folder deleted with objects below it, unless the call allows that": lambda g: (
        g.folder("uniform"),
        g.put("teams/vision/a.txt", "uniform"),
        g.delete(f"{BUCKETS}/uniform/managedFolders/teams%2Fvision%2F"),
    ),
    "an object that does not exist": lambda g: g.objects().get("a-bucket", "nothing"),
    "an object written on a condition that does not hold": lambda g: Preconditions(generation=7).check(None),
    "a repository upstream of a virtual one that does not exist": lambda g: g.post(
        REPOSITORIES,
        {
            "format": "DOCKER",
            "mode": "VIRTUAL_REPOSITORY",
            "virtualRepositoryConfig": {"upstreamPolicies": [{"id": "u", "repository": f"{LOCATION}/repositories/u"}]},
        },
        repositoryId="r",
    ),
    "an account's id that is not of 6-30 lower-case letters, digits and dashes": lambda g: g.post(
        ACCOUNTS, {"accountId": "us"}
    ),
    "an account that does not exist": lambda g: g.get(f"{ACCOUNTS}/nobody@{DOMAIN}"),
    "a secret's id that is not of 1-255 letters, digits, dashes and underscores": lambda g: g.post(
        SECRETS, {"replication": {"automatic": {}}}, secretId="a.b"
    ),
    "a secret that does not exist": lambda g: g.get(f"{SECRETS}/nothing"),
    "the latest version of a secret that has none": lambda g: g.get(f"{SECRETS}/empty/versions/latest:access"),
    "a secret's version that does not exist": lambda g: g.get(f"{SECRET}/versions/9"),
    "a secret's version read that is not enabled": lambda g: (
        g.post(f"{g.version('k')['name'].replace('projects/', 'v1/projects/')}:disable", {}),
        g.get(f"{SECRET}/versions/latest:access"),
    ),
    "a secret's version enabled that is destroyed": lambda g: [
        g.post(f"{SECRET}/versions/{g.version('k')['name'].rpartition('/')[2]}:destroy", {}),
        g.post(f"{SECRET}/versions/latest:enable", {}),
    ],
    "a secret's payload that is not base64": lambda g: g.post(f"{SECRET}:addVersion", {"payload": {"data": "abc"}}),
    "an empty payload of a secret": lambda g: g.version(""),
    "a payload with another checksum than was sent along": lambda g: g.version("key", dataCrc32c="1"),
    # Budgets
    "a budget by credentials that do not say whose quota it takes": lambda g: g.budget(quota_project=""),
    "a budget in another currency than its account's": lambda g: g.budget("EUR"),
    "a budget whose display name has more than 60 characters": lambda g: g.budget(displayName="n" * 61),
    "a budget with a threshold below 0": lambda g: g.budget(thresholdRules=[{"thresholdPercent": -0.5}]),
    "a budget of a custom period that tells of forecast spend": lambda g: g.budget(
        budgetFilter={"customPeriod": {"startDate": {"year": 2027, "month": 1, "day": 1}}},
        thresholdRules=[{"thresholdPercent": 1, "spendBasis": "FORECASTED_SPEND"}],
    ),
    "a budget that does not exist": lambda g: g.get(f"{BUDGETS}/nothing", quota_project=PROJECT),
    # Here alone
    "a budget that is a spend cap": lambda g: g.budget(spendCap={"inputState": "CONFIGURED"}),
    "a method that is not served": lambda g: g.get(f"{REPOSITORIES}/r/packages"),
    "a field of a cluster's update that is not served": lambda g: g.ask(
        "PUT", CLUSTER, {"update": {"desiredStackType": "IPV4"}}
    ),
    "a machine type with GPUs of which nothing is known": lambda g: g.pool(config={"machineType": "a4-highgpu-8g"}),
    "APIs listed by another filter than `state:ENABLED`": lambda g: g.get(
        f"v1/projects/{PROJECT}/services", filter="state:DISABLED"
    ),
    "time series by a filter without `metric.type`, or by another one than is understood here": (
        lambda g: g.series('resource.type = "k8s_container"'),
        lambda g: g.series('metric.type = "m" OR resource.type = "k8s_container"'),
    ),
    "an object's name that a folder cannot hold": lambda g: g.put("a/../b"),
    "an object beside one whose name it has as a folder": lambda g: (g.put("file"), g.put("file/below")),
    "`faults.json` with what it does not know": lambda g: g.faulty([{"effect": "explode"}]),
    "a call that `faults.json` has fail": lambda g: g.faulty([{"effect": "fail", "code": 429}]),
    "a call whose answer `faults.json` has lost": lambda g: g.faulty([{"effect": "lose-answer"}]),
    "`faults.json`, `limits.json` or `utilisation.json` that is no JSON, or another kind of it": lambda g: g.faulty(
        {"effect": "fail"}
    ),
    "`limits.json` with what it does not know": lambda g: g.given("limits.json", {"quotas": {"NETS": 1}}, g.network),
}

Line = tuple[Path, int]
"""A file and a line of it."""


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "SECONDS", 0.0)
        yield Google(tmp_path_factory.mktemp("google"))


@pytest.fixture(scope="module")
def said(google: Google) -> dict[str, list[CloudError]]:
    """What the calls are refused with."""
    found: dict[str, list[CloudError]] = {}
    for asked, asks in BROKEN.items():
        for ask in asks if isinstance(asks, tuple) else (asks,):
            with pytest.raises(CloudError) as refused:
                ask(google)
            found.setdefault(asked, []).append(refused.value)
    return found


def rules() -> dict[str, tuple[int, str]]:
    """Status and words of the page's rows, by what is asked."""
    rows = re.findall(r"^\| (.+?) \| (\d{3}) `(.+?)` \| .+? \|$", PAGE.read_text(), re.MULTILINE)
    return {asked: (int(status), words) for asked, status, words in rows}


def test_what_breaks_a_rule_is_refused_as_the_page_says(said: dict[str, list[CloudError]]) -> None:
    page = rules()
    assert page.keys() == BROKEN.keys()
    for asked, errors in said.items():
        status, words = page[asked]
        for error in map(in_googles_words, errors):
            assert (error.code, words in error.message) == (status, True), (asked, error)


def test_no_refusal_of_the_emulated_google_is_without_a_rule(said: dict[str, list[CloudError]]) -> None:
    passed = {line for errors in said.values() for error in errors for line in _lines(error)}
    without = [f"{file.relative_to(ROOT)}:{line}" for file, line in sorted(_refusals() - passed)]
    assert without == []


def _lines(error: BaseException | None) -> Iterator[Line]:
    """Every line that an error has passed, also as the one that it was before."""
    while error:
        step: TracebackType | None = error.__traceback__
        while step:
            yield Path(step.tb_frame.f_code.co_filename), step.tb_lineno
            step = step.tb_next
        error = error.__cause__ if error.__cause__ is not error else None


def _refusals() -> set[Line]:
    """Every line of the emulated Google that refuses something, or has something refused."""
    found = set[Line]()
    for file in sorted((ROOT / "emulator" / "google").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise) and node.exc and _is_refusal(node.exc):
                found.add((file, node.lineno))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _refuses(node.value.func):
                found.add((file, node.lineno))
    return found


def _is_refusal(raised: ast.expr) -> bool:
    """False for what is no answer of Google's: a program's mistake."""
    name = ast.unparse(raised.func if isinstance(raised, ast.Call) else raised)
    return name not in ("ModuleNotFoundError", "UnknownMachineError")


def _refuses(function: ast.expr) -> bool:
    return ast.unparse(function).rpartition(".")[2].lstrip("_").startswith(("require", "refuse", "admit"))
