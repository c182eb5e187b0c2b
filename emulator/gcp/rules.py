"""What the emulated Google refuses, and what it does by itself when an object comes or goes.

GKE's own firewall rules, the subnet and address of its control plane's private endpoint, and a worker pool's hold on
the private connection outlive what made them by `LATE_SECONDS`: a destroy that does not wait for them fails here as it
does there.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping
from datetime import datetime
from ipaddress import IPv4Network
from typing import Any

from emulator.gcp import container_rules as gcp_container_rules
from emulator.gcp import network_rules as gcp_network_rules
from emulator.gcp.row import COMPUTE_URL
from emulator.google.cloud import Cloud, CloudObject, Use
from emulator.google.http_errors import RefusedCall
from emulator.google.secrets import next_version

LATE_SECONDS = float(os.environ.get("OASIS_EMULATOR_LATE_SECONDS", "1.5"))
"""How long what Google cleans up by itself stays."""

API_SECONDS = float(os.environ.get("OASIS_EMULATOR_API_SECONDS", "1.0"))
"""How long a freshly enabled API goes on refusing calls; Google's does so for minutes at times."""

PRODUCER = "servicenetworking/producer"
"""Kind of what a worker pool holds on the other side of a private connection."""

# "Bucket naming requirements", without dots: a name with dots is a domain that must be verified.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]")
_COMPUTE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_ACCOUNT = re.compile(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,255}")


def require_api(cloud: Cloud, api: str, project: str, number: str) -> None:
    """Refuse a call to an API that the project has not enabled. Service Usage itself is on in every project."""
    if api == "serviceusage.googleapis.com":
        return
    enabled = cloud.find("serviceusage/service", f"{project}/{api}")
    if enabled is not None and time.time() >= datetime.fromisoformat(enabled.created).timestamp() + API_SECONDS:
        return
    raise RefusedCall(
        403,
        f"{api} has not been used in project {number} before or it is disabled. Enable it by visiting "
        f"https://console.developers.google.com/apis/api/{api}/overview?project={number} then retry. If you enabled "
        "this API recently, wait a few minutes for the action to propagate to our systems and retry. "
        "reason: SERVICE_DISABLED",
        "accessNotConfigured",
    )


def assign(cloud: Cloud, kind: str, body: dict[str, Any]) -> None:
    """Fill in what Google chooses and the name path needs."""
    if kind == "secretmanager/version":
        body["version"] = str(next_version(cloud, body["secret"]))
    if kind == "compute/address" and not body.get("address"):
        body["address"] = gcp_network_rules.free_address(cloud, body)


def admit(cloud: Cloud, kind: str, body: Mapping[str, Any], name: str) -> None:
    """Refuse a body that cannot be made, or cannot be changed to."""
    if kind.startswith("compute/") and kind != "compute/routerNat":
        _require(_COMPUTE_NAME, body["name"], "resource.name", "1-63 lower-case letters, digits and dashes")
    match kind:
        case "compute/network":
            gcp_network_rules.admit_network(body)
        case "compute/subnetwork":
            gcp_network_rules.admit_subnetwork(cloud, body, name)
        case "compute/firewall":
            gcp_network_rules.refuse_on_roce(cloud, body, "VPC firewall rules")
        case "compute/router":
            gcp_network_rules.refuse_on_roce(cloud, body, "Cloud Router")
        case "compute/routerNat":
            gcp_network_rules.refuse_nat_on_roce(cloud, body)
        case "servicenetworking/connection":
            gcp_network_rules.admit_connection(cloud, body)
        case "container/cluster":
            gcp_container_rules.admit_cluster(cloud, body, name)
        case "container/nodePool":
            gcp_container_rules.admit_pool(cloud, body, name)
        case "cloudbuild/workerPool":
            _admit_worker_pool(cloud, body)
        case "storage/bucket":
            _admit_bucket(body)
        case "iam/serviceAccount":
            _require(_ACCOUNT, body["accountId"], "account_id", "6-30 lower-case letters, digits and dashes")
        case "secretmanager/secret":
            _require(_SECRET, body["secretId"], "secret_id", "1-255 letters, digits, dashes and underscores")
    if kind.endswith("amMember"):
        _admit_member(cloud, body)


def made(cloud: Cloud, kind: str, body: Mapping[str, Any], name: str) -> None:
    """Do what Google does by itself once an object is there."""
    if kind == "container/cluster":
        network = _network(body)
        for part in ("all", "vms", "exkubelet") if network else ():
            path = f"projects/{body['project']}/global/firewalls/gke-{body['name']}-{part}"
            firewall = {"name": path.rsplit("/", 1)[-1], "network": network, "project": body["project"]}
            cloud.put("compute/firewall", path, firewall, [Use(kind="compute/network", name=network)])
        if network and (block := body.get("privateClusterConfig", {}).get("masterIpv4CidrBlock")):
            _make_private_endpoint(cloud, body, network, block)
        pool = body.get("workloadIdentityConfig", {}).get("workloadPool")
        if pool:
            cloud.put("iam/workloadIdentityPool", pool, {})
    if kind == "cloudbuild/workerPool" and (network := body.get("networkConfig", {}).get("peeredNetwork")):
        cloud.put(PRODUCER, name, {"network": network})


def admit_removal(cloud: Cloud, found: CloudObject) -> None:
    """Refuse to let an object go for a reason that is not an edge."""
    body = found.body
    if found.kind == "container/cluster" and body.get("deletionProtection", True):
        raise RefusedCall(
            400,
            "Cannot destroy cluster because deletion_protection is set to true. Set it to false to proceed with "
            "cluster deletion.",
            "failedPrecondition",
        )
    if found.kind == "servicenetworking/connection":
        held = [other for other in cloud.list(PRODUCER) if _same(other.body["network"], body["network"])]
        if held:
            raise RefusedCall(
                400,
                "Unable to remove Service Networking Connection, err: Error code 9, message: Failed to delete "
                "connection; Producer services (e.g. CloudSQL, Cloud Memstore, etc.) are still using this connection.",
                "failedPrecondition",
            )


def removed(cloud: Cloud, found: CloudObject) -> None:
    """Do what Google does by itself, and late, once an object is gone."""
    if found.kind == "container/cluster":
        for firewall in cloud.list("compute/firewall", f"projects/{found.body['project']}/global/firewalls/gke-"):
            if firewall.body["name"].startswith(f"gke-{found.body['name']}-"):
                cloud.expire("compute/firewall", firewall.name, LATE_SECONDS)
        for kind, name in _private_endpoint(found.body).items():
            if cloud.find(kind, name):
                cloud.expire(kind, name, LATE_SECONDS)
    if found.kind == "cloudbuild/workerPool" and cloud.find(PRODUCER, found.name):
        cloud.expire(PRODUCER, found.name, LATE_SECONDS)


def _make_private_endpoint(cloud: Cloud, body: Mapping[str, Any], network: str, block: str) -> None:
    """The subnet that holds the network, and the address in it (terraform-google-modules/
    terraform-google-kubernetes-engine issue 2411)."""
    names = _private_endpoint(body)
    subnet, first = names["compute/subnetwork"], str(IPv4Network(block)[2])
    parts: dict[str, dict[str, Any]] = {
        "compute/subnetwork": {"network": network, "ipCidrRange": block, "purpose": "PRIVATE"},
        "compute/address": {"subnetwork": COMPUTE_URL + subnet, "addressType": "INTERNAL", "address": first},
    }
    holds = {
        "compute/subnetwork": Use(kind="compute/network", name=network),
        "compute/address": Use(kind="compute/subnetwork", name=subnet),
    }
    for kind, part in parts.items():
        last = names[kind].rsplit("/", 1)[-1]
        cloud.put(kind, names[kind], {"name": last, "project": body["project"], **part}, [holds[kind]])


def _private_endpoint(body: Mapping[str, Any]) -> dict[str, str]:
    region = "-".join(str(body["location"]).split("-")[:2])
    base = f"projects/{body['project']}/regions/{region}"
    stem = f"gke-{body['name']}-{hashlib.sha256(body['name'].encode()).hexdigest()[:8]}-pe"
    return {"compute/subnetwork": f"{base}/subnetworks/{stem}-subnet", "compute/address": f"{base}/addresses/{stem}"}


def _admit_worker_pool(cloud: Cloud, body: Mapping[str, Any]) -> None:
    network = body.get("networkConfig", {}).get("peeredNetwork")
    connections = cloud.list("servicenetworking/connection")
    if network and not any(_same(connection.body["network"], network) for connection in connections):
        raise RefusedCall(
            400,
            f"failed precondition: due to network {network} having no private connection to "
            "servicenetworking.googleapis.com, the worker pool cannot be peered with it",
            "failedPrecondition",
        )


def _admit_bucket(body: Mapping[str, Any]) -> None:
    _require(_BUCKET, body["name"], "bucket", "3-63 lower-case letters, digits, dashes and underscores")
    kept = body.get("softDeletePolicy", {}).get("retentionDurationSeconds", 604800)
    # "Soft delete": 0 turns it off, otherwise 7 to 90 days.
    if kept and not 7 * 86400 <= kept <= 90 * 86400:
        raise RefusedCall(400, f"Soft delete retention of {kept} s must be 0 or between 7 and 90 days.", "invalid")
    if body.get("hierarchicalNamespace", {}).get("enabled"):
        # "Hierarchical namespace": needs uniform bucket-level access; no object versioning.
        if not body.get("uniformBucketLevelAccess"):
            raise RefusedCall(400, "Hierarchical namespace buckets must use uniform bucket-level access.", "invalid")
        if body.get("versioning", {}).get("enabled"):
            raise RefusedCall(400, "Hierarchical namespace buckets do not support object versioning.", "invalid")


def _admit_member(cloud: Cloud, body: Mapping[str, Any]) -> None:
    kind, _, identity = str(body["member"]).partition(":")
    if kind == "serviceAccount" and identity.endswith(".iam.gserviceaccount.com"):
        project = identity.split("@", 1)[-1].removesuffix(".iam.gserviceaccount.com")
        # Google's own agents (service-<number>@gcp-sa-...) are in projects of theirs.
        if cloud.find("resourcemanager/project", f"projects/{project}"):
            cloud.get("iam/serviceAccount", f"projects/{project}/serviceAccounts/{identity}")
    pool = re.search(r"/workloadIdentityPools/([^/]+)/|serviceAccount:([^\[]+\.svc\.id\.goog)\[", str(body["member"]))
    if pool and not cloud.find("iam/workloadIdentityPool", pool[1] or pool[2]):
        # The pool comes with the project's first cluster that has Workload Identity.
        raise RefusedCall(400, f"Identity Pool does not exist ({pool[1] or pool[2]}).", "badRequest")


def _network(body: Mapping[str, Any]) -> str:
    value = str(body.get("network", "")).removeprefix(COMPUTE_URL)
    return value if "/" in value or not value else f"projects/{body['project']}/global/networks/{value}"


def _same(one: str, other: str) -> bool:
    return one.rsplit("/", 1)[-1] == other.rsplit("/", 1)[-1]


def _require(pattern: re.Pattern[str], value: str, field: str, allowed: str) -> None:
    if not pattern.fullmatch(value):
        raise RefusedCall(400, f"Invalid value for field '{field}': '{value}'. Must be {allowed}.", "invalid")
