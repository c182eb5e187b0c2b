"""Freshly enabled APIs, asked as the program's wait asks them."""

from __future__ import annotations

import pytest

from oasis_stack.live_state import google_says_disabled
from tests.emulator.google import PROJECT, Google, lead_clients_to

API_SECONDS = 60
"""How long this Google takes to know that an API is on, on a clock that the test turns."""

VARIABLES = {"OASIS_EMULATOR_API_SECONDS": str(API_SECONDS)}

ASKED = (
    "artifactregistry.googleapis.com",
    "billingbudgets.googleapis.com",
    "cloudbuild.googleapis.com",
    "compute.googleapis.com",
    "container.googleapis.com",
    "iam.googleapis.com",
    "secretmanager.googleapis.com",
    "storage.googleapis.com",
)


@pytest.mark.thorough
def test_an_api_says_that_it_is_disabled_until_it_has_been_on_for_a_while(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead_clients_to(google, monkeypatch)
    for api in ("cloudresourcemanager.googleapis.com", "serviceusage.googleapis.com"):  # of the caller's own project
        assert not google_says_disabled(api, PROJECT)

    def disabled() -> set[str]:
        return {api for api in ASKED if google_says_disabled(api, PROJECT)}

    for api in ("secretmanager.googleapis.com", "storage.googleapis.com"):  # on in every test's Google
        google.cloud.delete("serviceusage/service", f"projects/{PROJECT}/services/{api}")
    assert disabled() == set(ASKED)
    for api in ASKED:
        google.cloud.put("serviceusage/service", f"projects/{PROJECT}/services/{api}", {})
        assert google_says_disabled(api, PROJECT)
    google.cloud.turn(API_SECONDS)
    assert not disabled()
