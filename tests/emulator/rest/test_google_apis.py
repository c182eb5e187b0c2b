"""Google's REST APIs, asked by Google's own client from its discovery documents."""

from __future__ import annotations

from typing import Any

import pytest
from googleapiclient.errors import HttpError

from emulator.google.scope import project_number
from tests.emulator.google import PROJECT, Google, directly, enable

LOCATION = f"projects/{PROJECT}/locations/us-central1"
APIS = ["artifactregistry", "iam"]
VARIABLES = {"OASIS_EMULATOR_LATENCY_SECONDS": "60"}
ME = "user:me@example.com"


@pytest.fixture
def repositories(google: Google) -> Any:
    return google.client("artifactregistry").projects().locations().repositories()


def test_a_repository_is_made_by_an_operation_and_reads_back_with_what_google_adds(
    google: Google, repositories: Any
) -> None:
    begun = repositories.create(parent=LOCATION, repositoryId="made", body={"format": "DOCKER"}).execute()
    ended = google.client("artifactregistry").projects().locations().operations().get(name=begun["name"])
    assert ended.execute() == begun == {"name": begun["name"]}
    google.cloud.turn(60)
    operation = ended.execute()
    found = repositories.get(name=f"{LOCATION}/repositories/made").execute()
    assert operation["done"] and operation["response"] == found
    assert found["registryUri"] == f"us-central1-docker.pkg.dev/{PROJECT}/made"
    assert found["mode"] == "STANDARD_REPOSITORY" and found["createTime"] == found["updateTime"]
    by_number = LOCATION.replace(PROJECT, project_number(PROJECT))
    assert repositories.get(name=f"{by_number}/repositories/made").execute() == found
    assert found in repositories.list(parent=LOCATION).execute()["repositories"]
    changed = repositories.patch(name=found["name"], updateMask="description", body={"description": "x"}).execute()
    assert changed == {**found, "description": "x"}


def test_what_only_google_sets_is_not_taken_from_a_caller(google: Google) -> None:
    accounts = google.client("iam").projects().serviceAccounts()
    body = {"accountId": "a-caller", "serviceAccount": {"displayName": "Me", "uniqueId": "1", "email": "x@y"}}
    made = accounts.create(name=f"projects/{PROJECT}", body=body).execute()
    assert made["email"] == f"a-caller@{PROJECT}.iam.gserviceaccount.com" and made["uniqueId"] != "1"
    with pytest.raises(HttpError, match="409"):
        accounts.create(name=f"projects/{PROJECT}", body=body).execute()


def test_what_only_google_sets_of_a_bucket_or_a_folder_is_neither_made_nor_changed_by_a_caller(google: Google) -> None:
    storage = google.client("storage", base="/storage/v1/")
    wrong = {"metageneration": "9", "timeCreated": "2001-01-01T00:00:00Z", "projectNumber": "1", "locationType": "dual"}
    policy = {"retentionDurationSeconds": "604800", "effectiveTime": "2001-01-01T00:00:00Z"}
    access = {"uniformBucketLevelAccess": {"enabled": True}}
    body = {"name": "a-bucket", "location": "EU", "softDeletePolicy": policy, "iamConfiguration": access, **wrong}
    made = storage.buckets().insert(project=PROJECT, body=body).execute()
    changed = storage.buckets().patch(bucket="a-bucket", body={**wrong, "labels": {"a": "b", "c": None}}).execute()
    assert changed["labels"] == {"a": "b"}
    assert (made["metageneration"], changed["metageneration"]) == ("1", "2")
    for found in (made, changed):
        assert {key for key in wrong if found[key] == wrong[key]} == set()
        assert found["softDeletePolicy"]["effectiveTime"] > "2026"
        assert found["timeCreated"] == made["timeCreated"]
    folder = storage.managedFolders().insert(bucket="a-bucket", body={"name": "a/", "createTime": "2001"}).execute()
    assert folder["createTime"] > "2026"


def test_of_two_who_change_a_policy_at_once_the_second_must_read_again(google: Google) -> None:
    projects = google.client("cloudresourcemanager").projects()
    read = projects.getIamPolicy(resource=PROJECT, body={}).execute()
    first, second = (
        {"policy": {**read, "bindings": [{"role": role, "members": [ME]}]}} for role in ("roles/viewer", "roles/editor")
    )
    projects.setIamPolicy(resource=PROJECT, body=first).execute()
    with pytest.raises(HttpError, match="concurrent policy changes"):
        projects.setIamPolicy(resource=PROJECT, body=second).execute()
    (left,) = projects.getIamPolicy(resource=PROJECT, body={}).execute()["bindings"]
    assert left["role"] == "roles/viewer"


def test_what_is_made_anew_has_none_of_the_grants_that_its_namesake_had(google: Google, repositories: Any) -> None:
    name = f"{LOCATION}/repositories/again"
    for bindings in ([{"role": "roles/artifactregistry.reader", "members": [ME]}], []):
        repositories.create(parent=LOCATION, repositoryId="again", body={"format": "DOCKER"}).execute()
        google.cloud.turn(60)
        assert "bindings" not in repositories.getIamPolicy(resource=name).execute()
        repositories.setIamPolicy(resource=name, body={"policy": {"bindings": bindings}}).execute()
        repositories.delete(name=name).execute()
        google.cloud.turn(60)


def test_budgets_are_listed_by_the_one_project_that_they_watch(google: Google) -> None:
    enable(google.cloud, "billingbudgets.googleapis.com")
    call, path = directly(google.cloud), "/v1/billingAccounts/01AB23-4CD567-89EF01/budgets"
    amount = {"specifiedAmount": {"units": "5000"}}
    for projects in ([PROJECT], ["another-project"], [PROJECT, "another-project"]):
        names = [f"projects/{project}" for project in projects]
        call("POST", path, {}, {"amount": amount, "budgetFilter": {"projects": names}}, PROJECT)
    call("POST", path, {}, {"amount": {"lastPeriodAmount": {}}}, PROJECT)

    number = f"projects/{project_number(PROJECT)}"
    assert len(call("GET", path, {}, None, PROJECT)["budgets"]) == 4
    for scope in (f"projects/{PROJECT}", number):
        (found,) = call("GET", path, {"scope": scope}, None, PROJECT)["budgets"]
        assert found["budgetFilter"]["projects"] == [number]
    assert call("GET", path, {"scope": "projects/nobody-s"}, None, PROJECT) == {}
