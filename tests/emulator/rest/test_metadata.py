"""The metadata server under google-auth."""

from __future__ import annotations

import google.auth
import pytest
import requests
from google.auth.transport.requests import AuthorizedSession

from emulator.google.callers import Identity, set_identity
from emulator.google.scope import project_number
from tests.emulator.google import Google, lead_clients_to

APIS = ["compute"]
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
