"""The metadata server under google-auth, and the lists that the program's waits poll."""

from __future__ import annotations

import google.auth
import pytest
import requests
from google.auth.transport.requests import AuthorizedSession

from emulator.google.apis.cloudbuild import PRODUCER
from emulator.google.callers import Identity, set_identity
from emulator.google.cloud import Use
from emulator.google.scope import project_number
from tests.emulator.google import Google, lead_clients_to

APIS = ["compute", "cloudbuild"]
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
FLAVOR = {"Metadata-Flavor": "Google"}


@pytest.fixture(scope="module")
def google_cloud(google: Google) -> Google:
    set_identity(google.cloud, Identity(project="test-project", zone="us-central1-b"))
    return google


@pytest.fixture(autouse=True)
def environment(google_cloud: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    lead_clients_to(google_cloud, monkeypatch)


def test_default_credentials_are_found_and_good_for_a_call(google_cloud: Google) -> None:
    credentials, project = google.auth.default(scopes=SCOPES)
    assert project == "test-project"
    listing = f"http://{google_cloud.host}/compute/v1/projects/test-project/global/firewalls"
    assert AuthorizedSession(credentials).get(listing, timeout=10).json()["kind"] == "compute#firewallList"
    assert credentials.token.startswith("ya29.emulated.")
    assert requests.get(listing, timeout=10).status_code == 401
    forged = {"Authorization": "Bearer ya29.emulated.9999999999.AAAA"}
    answer = requests.get(listing, headers=forged, timeout=10)
    assert (answer.status_code, answer.json()["error"]["status"]) == (401, "UNAUTHENTICATED")


def test_it_says_who_and_where_one_is(google_cloud: Google) -> None:
    def value(path: str, **query: str) -> requests.Response:
        address = f"http://{google_cloud.host}/computeMetadata/v1/{path}"
        return requests.get(address, headers=FLAVOR, params=query, timeout=10)

    number = project_number("test-project")
    assert value("project/project-id").text == "test-project"
    assert value("project/numeric-project-id").text == number
    assert value("instance/zone").text == f"projects/{number}/zones/us-central1-b"
    assert value("instance/service-accounts/default/email").text == "test-project.svc.id.goog"
    account = value("instance/service-accounts/default/", recursive="true").json()
    assert account["email"] == "test-project.svc.id.goog" and SCOPES[0] in account["scopes"]
    assert "default/" in value("instance/service-accounts/").text.splitlines()
    assert value("instance/nothing").status_code == 404
    assert requests.get(f"http://{google_cloud.host}/", timeout=10).headers["Metadata-Flavor"] == "Google"
    without = requests.get(f"http://{google_cloud.host}/computeMetadata/v1/project/project-id", timeout=10)
    assert (without.status_code, "test-project" in without.text) == (403, False)


def test_the_waits_see_what_uses_a_network_and_see_it_go(google_cloud: Google) -> None:
    cloud, project = google_cloud.cloud, "projects/test-project"
    network = f"{project}/global/networks/n"
    cloud.put("compute/network", network, {"name": "n"})
    uses = [Use(kind="compute/network", name=network)]
    kinds = {
        "global/firewalls": ("compute/firewall", f"{project}/global/firewalls/k8s-fw-1"),
        "aggregated/networkEndpointGroups": (
            "compute/networkEndpointGroup",
            f"{project}/zones/us-central1-b/networkEndpointGroups/k8s1-1",
        ),
        "aggregated/forwardingRules": (
            "compute/forwardingRule",
            f"{project}/regions/us-central1/forwardingRules/k8s-2",
        ),
    }
    for kind, name in kinds.values():
        cloud.put(kind, name, {"name": name.rsplit("/", 1)[-1], "network": network}, uses)
    pool = f"{project}/locations/us-central1/workerPools/build"
    cloud.put(PRODUCER, pool, {"network": network})
    session = AuthorizedSession(google.auth.default(scopes=SCOPES)[0])
    base = f"http://{google_cloud.host}"

    def listed(path: str) -> str:
        return session.get(f"{base}/compute/v1/{project}/{path}", timeout=10).text

    for path, (_, name) in kinds.items():
        assert f'"https://www.googleapis.com/compute/v1/{network}"' in listed(path)
        assert name.rsplit("/", 1)[-1] in listed(path)
    pools = session.get(f"{base}/v1/{project}/locations/us-central1/workerPools", timeout=10).json()["workerPools"]
    assert [(one["name"], one["state"]) for one in pools] == [(pool, "DELETING")]
    for kind, name in kinds.values():
        cloud.expire(kind, name, 0)
    assert all("k8s" not in listed(path) for path in kinds)
