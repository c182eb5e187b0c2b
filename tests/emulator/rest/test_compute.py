"""Compute Engine's API under Google's own client: networks, what is in them, and the operations that make them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import cloudquotas_v1, compute_v1
from googleapiclient.errors import HttpError

from tests.emulator.google import PROJECT, Google, enable

LINK = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}"
APIS = ["compute"]
REGION = {"project": PROJECT, "region": "us-central1"}


@pytest.fixture(scope="module")
def compute(google: Google) -> Any:
    return google.client("compute", base="/compute/v1/")


@pytest.fixture
def own(google: Google) -> dict[str, Any]:
    """What the clients of google-cloud-compute take."""
    return {
        "credentials": google.credentials(),
        "client_options": {"api_endpoint": f"http://{google.host}"},
    }


def done(compute: Any, operation: dict[str, Any]) -> dict[str, Any]:
    """An operation once it is done, asked for where it says that it is."""
    name, deadline = operation["name"], time.monotonic() + 10
    while operation["status"] != "DONE":
        assert time.monotonic() < deadline, operation
        if "region" in operation:
            operation = compute.regionOperations().get(**REGION, operation=name).execute()
        else:
            operation = compute.globalOperations().wait(project=PROJECT, operation=name).execute()
    return operation


def refused(call: Any) -> tuple[int, str]:
    """Status and words of a refusal."""
    with pytest.raises(HttpError) as refusal:
        call.execute()
    return refusal.value.resp.status, refusal.value.reason


def make_network(compute: Any, name: str) -> str:
    """A network, by its URL."""
    body = {"name": name, "autoCreateSubnetworks": False}
    return done(compute, compute.networks().insert(project=PROJECT, body=body).execute())["targetLink"]


def make_subnetwork(compute: Any, network: str, name: str, block: str) -> dict[str, Any]:
    body = {"name": name, "network": network, "ipCidrRange": block}
    done(compute, compute.subnetworks().insert(**REGION, body=body).execute())
    return compute.subnetworks().get(**REGION, subnetwork=name).execute()


def test_a_network_is_made_with_its_parts_and_goes_after_them(compute: Any) -> None:
    begun = compute.networks().insert(project=PROJECT, body={"name": "n", "autoCreateSubnetworks": False}).execute()
    assert (begun["kind"], begun["operationType"]) == ("compute#operation", "insert")
    assert begun["selfLink"] == f"{LINK}/global/operations/{begun['name']}"
    network = done(compute, begun)["targetLink"]
    subnetworks = [make_subnetwork(compute, network, name, f"10.{name[1]}.0.0/24") for name in ("s1", "s2")]

    assert [(one["gatewayAddress"], one["network"]) for one in subnetworks] == [
        ("10.1.0.1", network),
        ("10.2.0.1", network),
    ]
    assert subnetworks[0]["region"] == f"{LINK}/regions/us-central1"
    assert 0 < int(subnetworks[0]["id"]) < 2**63
    listed = compute.subnetworks().aggregatedList(project=PROJECT).execute()["items"]["regions/us-central1"]
    assert [one for one in listed["subnetworks"] if one["network"] == network] == subnetworks
    found = compute.networks().get(project=PROJECT, network="n").execute()
    assert found["subnetworks"] == [one["selfLink"] for one in subnetworks]
    refusal = done(compute, compute.networks().delete(project=PROJECT, network="n").execute())["error"]["errors"]
    assert [(one["code"], one["message"]) for one in refusal] == [
        (
            "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
            f"The network resource 'projects/{PROJECT}/global/networks/n' is already being used by "
            f"'projects/{PROJECT}/regions/us-central1/subnetworks/s1'",
        )
    ]

    for name in ("s1", "s2"):
        done(compute, compute.subnetworks().delete(**REGION, subnetwork=name).execute())
    done(compute, compute.networks().delete(project=PROJECT, network="n").execute())
    assert refused(compute.networks().get(project=PROJECT, network="n"))[0] == 404


def test_a_change_is_made_only_to_what_is_still_there_as_it_was_read(compute: Any) -> None:
    subnetwork = make_subnetwork(compute, make_network(compute, "changed"), "changed", "10.3.0.0/24")
    calls, place = compute.subnetworks(), {**REGION, "subnetwork": "changed"}
    grown = {"ipCidrRange": "10.3.0.0/20"}
    done(compute, calls.expandIpCidrRange(**place, body=grown).execute())
    pods = {"secondaryIpRanges": [{"rangeName": "pods", "ipCidrRange": "10.4.0.0/16"}]}
    stale = calls.patch(**place, body={"fingerprint": subnetwork["fingerprint"], **pods})
    assert refused(stale) == (412, "Invalid fingerprint.")
    fresh = calls.get(**place).execute()["fingerprint"]
    done(compute, calls.patch(**place, body={"fingerprint": fresh, **pods}).execute())
    now = calls.get(**place).execute()
    assert {**now, **grown, **pods} == now


def test_a_nat_holds_the_addresses_it_was_given_until_it_goes(compute: Any) -> None:
    network = make_network(compute, "out")
    done(compute, compute.routers().insert(**REGION, body={"name": "r", "network": network}).execute())
    done(compute, compute.addresses().insert(**REGION, body={"name": "out"}).execute())
    nat = {
        "name": "nat",
        "natIpAllocateOption": "MANUAL_ONLY",
        "natIps": [f"{LINK}/regions/us-central1/addresses/out"],
        "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
    }
    done(compute, compute.routers().patch(**REGION, router="r", body={"nats": [nat]}).execute())

    found = compute.addresses().get(**REGION, address="out").execute()
    assert (found["status"], found["users"]) == ("IN_USE", [f"{LINK}/regions/us-central1/routers/r"])
    words = refused(compute.addresses().delete(**REGION, address="out"))[1]
    assert "is already being used by" in words and words.endswith("/routers/r'")

    done(compute, compute.routers().patch(**REGION, router="r", body={"nats": []}).execute())
    done(compute, compute.addresses().delete(**REGION, address="out").execute())


def test_googles_other_client_reads_in_pages_and_changes_the_same_networks(
    google: Google, compute: Any, own: dict[str, Any]
) -> None:
    networks, operations = compute_v1.NetworksClient(**own), compute_v1.GlobalOperationsClient(**own)

    def ended(operation: compute_v1.Operation) -> list[tuple[str, str]]:
        """Code and words of the errors of an operation, once it is over."""
        while operation.status != compute_v1.Operation.Status.DONE:
            operation = operations.wait(project=PROJECT, operation=operation.name)
        return [(one.code, one.message) for one in operation.error.errors]

    names = ("paged-a", "paged-b", "paged-c")
    for name in names:
        resource = compute_v1.Network(name=name, auto_create_subnetworks=False)
        assert ended(networks.insert_unary(project=PROJECT, network_resource=resource)) == []
    request = compute_v1.ListNetworksRequest(project=PROJECT, max_results=2)
    pages = [[one.name for one in page.items] for page in networks.list(request=request).pages]
    assert len(pages) > 1 and all(len(page) == 2 for page in pages[:-1])
    assert {name for page in pages for name in page} >= {*names}
    assert compute.networks().get(project=PROJECT, network="paged-b").execute()["autoCreateSubnetworks"] is False

    make_subnetwork(compute, f"{LINK}/global/networks/paged-a", "held", "10.7.0.0/24")
    ((code, words),) = ended(networks.delete_unary(project=PROJECT, network="paged-a"))
    assert code == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE" and words.endswith("/subnetworks/held'")
    done(compute, compute.subnetworks().delete(**REGION, subnetwork="held").execute())
    for name in names:
        assert ended(networks.delete_unary(project=PROJECT, network=name)) == []
    with pytest.raises(exceptions.NotFound):
        networks.get(project=PROJECT, network="paged-a")


def test_quotas_are_kept_and_shown(google: Google, compute: Any, own: dict[str, Any]) -> None:
    make_network(compute, "counted")
    now = len(compute.networks().list(project=PROJECT).execute()["items"])
    limits = google.cloud.directory / "limits.json"
    limits.write_text(json.dumps({"quotas": {"NETWORKS": now, "us-central1/STATIC_ADDRESSES": 1}}))
    try:
        body = {"name": "one-more", "autoCreateSubnetworks": False}
        words = f"Quota 'NETWORKS' exceeded. Limit: {now}.0 globally."
        assert refused(compute.networks().insert(project=PROJECT, body=body)) == (403, words)
        done(compute, compute.addresses().insert(**REGION, body={"name": "one"}).execute())
        words = "Quota 'STATIC_ADDRESSES' exceeded. Limit: 1.0 in region us-central1."
        assert refused(compute.addresses().insert(**REGION, body={"name": "two"})) == (403, words)
        compute.addresses().insert(project=PROJECT, region="us-east4", body={"name": "two"}).execute()
        project = compute_v1.ProjectsClient(**own).get(project=PROJECT)
        region = compute_v1.RegionsClient(**own).get(project=PROJECT, region="us-central1")
        assert [(one.metric, one.limit, one.usage) for one in (*project.quotas, *region.quotas)] == [
            ("NETWORKS", now, now),
            ("STATIC_ADDRESSES", 1, 1),
        ]
    finally:
        limits.unlink()


def test_google_s_own_client_reads_the_quotas_that_compute_engine_does_not_list(
    google: Google, own: dict[str, Any]
) -> None:
    enable(google.cloud, "cloudquotas.googleapis.com")
    parent = f"projects/{PROJECT}/locations/global/services/compute.googleapis.com"
    family = {"gpu_family": "NVIDIA_H200", "region": "us-central1"}
    rows = [{"dimensions": family, "details": {"value": "16"}, "applicableLocations": ["us-central1"]}]
    for quota in ("GPUS-PER-GPU-FAMILY-per-project-region", "NETWORKS-per-project"):
        body = {"name": f"{parent}/quotaInfos/{quota}", "quotaId": quota, "dimensionsInfos": rows}
        google.cloud.put("cloudquotas/quotaInfo", body["name"], body)

    client = cloudquotas_v1.CloudQuotasClient(transport="rest", **own)
    first, _ = client.list_quota_infos(parent=parent)

    assert first.quota_id == "GPUS-PER-GPU-FAMILY-per-project-region"
    (row,) = first.dimensions_infos
    assert (dict(row.dimensions), row.details.value) == (family, 16)
