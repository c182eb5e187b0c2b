"""Freshly enabled APIs, asked as the program's wait asks them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from oasis_stack.live_state import google_says_disabled
from tests.emulator.google import PROJECT, Google, enable, lead_clients_to, served

ASKED = (
    "artifactregistry.googleapis.com",
    "cloudbuild.googleapis.com",
    "compute.googleapis.com",
    "container.googleapis.com",
    "iam.googleapis.com",
    "secretmanager.googleapis.com",
    "storage.googleapis.com",
)


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    with served(tmp_path_factory.mktemp("google")) as google:
        yield google


@pytest.mark.parametrize("api", ASKED)
def test_an_api_says_that_it_is_disabled_until_it_has_been_on_for_a_while(
    google: Google, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    lead_clients_to(google, monkeypatch)
    name = f"{PROJECT}/{api}"
    if google.cloud.find("serviceusage/service", name):
        google.cloud.delete("serviceusage/service", name)
    assert google_says_disabled(api, PROJECT)
    google.cloud.put("serviceusage/service", name, {"service": api})
    assert google_says_disabled(api, PROJECT)
    time.sleep(1.1)  # gcp_rules.API_SECONDS, in another process
    assert not google_says_disabled(api, PROJECT)
    google.cloud.delete("serviceusage/service", name)
    enable(google.cloud, api)
    assert not google_says_disabled(api, PROJECT)
